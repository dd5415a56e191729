//! Time as an argument.

/// A moment on the process's clock, in nanoseconds. The clock is never set, and continues while the host is suspended. Moments of different processes
/// are never compared; durations are, within the clock drift bound (uKharon App. C).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The moment `ns` nanoseconds later; stays at the end of time instead of wrapping.
    #[must_use]
    pub const fn after(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to here; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
