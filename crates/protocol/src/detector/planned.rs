//! Planned timeouts: how long silence may last on paths whose latency and jitter are known in advance (FiDe section 3.3 and appendix B).
//!
//! A plan of the network bounds each path from one process to another: no packet arrives earlier than the path's latency, and none later than latency
//! plus jitter. From these bounds and the interval between heartbeats follows a timeout that no heartbeat misses as long as the bounds hold. The
//! bounds are assumptions. So such a timeout reports a presumption like any other, and leases are waited for as always (`docs/fide.md`).

/// When a packet may arrive over a path, counted from when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathBounds {
    /// No packet arrives earlier: the paper's `lambda_min`, in nanoseconds.
    pub latency_ns: u64,
    /// How much later than that a packet may arrive: the paper's `delta_max`, in nanoseconds.
    pub jitter_ns: u64,
}

impl PathBounds {
    /// The latest arrival, in nanoseconds after sending.
    #[must_use]
    pub const fn latest_ns(self) -> u64 {
        self.latency_ns.saturating_add(self.jitter_ns)
    }

    /// The combined bounds of several redundant paths, each of which carries every packet. They reach from the earliest arrival over any path to the
    /// latest over any path, so that one of the paths may fail. `None` without a path.
    ///
    /// If latencies differ, the combined jitter is larger than the largest jitter of a path (appendix B: `max(lambda + delta) - min(lambda)`).
    #[must_use]
    pub fn of_redundant(paths: &[PathBounds]) -> Option<PathBounds> {
        let latency_ns = paths.iter().map(|path| path.latency_ns).min()?;
        let latest = paths.iter().map(|path| path.latest_ns()).max()?;
        Some(PathBounds { latency_ns, jitter_ns: latest - latency_ns })
    }

    /// How long a process that sends a heartbeat every `interval_ns` may be silent, in nanoseconds: `TO = HB + lambda + 2 delta`.
    ///
    /// Two heartbeats arrive at most `HB + delta` apart. The rest, `lambda + delta`, is the time that the last packet of a process may take. So a
    /// process that is presumed dead by this timeout has nothing in flight any more.
    #[must_use]
    pub const fn timeout_ns(self, interval_ns: u64) -> u64 {
        interval_ns.saturating_add(self.latency_ns).saturating_add(self.jitter_ns.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn path(latency_ns: u64, jitter_ns: u64) -> PathBounds {
        PathBounds { latency_ns, jitter_ns }
    }

    #[test]
    fn the_timeout_is_interval_plus_latency_plus_twice_the_jitter() {
        assert_eq!(path(5_000, 10_000).timeout_ns(20_000), 45_000);
        assert_eq!(path(1, u64::MAX).timeout_ns(1), u64::MAX, "never shorter than it has to be");
    }

    #[test]
    fn the_jitter_of_redundant_paths_includes_the_difference_of_their_latencies() {
        assert_eq!(PathBounds::of_redundant(&[path(10, 5), path(30, 2)]), Some(path(10, 22)));
        assert_eq!(PathBounds::of_redundant(&[path(10, 50), path(30, 2)]), Some(path(10, 50)));
        assert_eq!(PathBounds::of_redundant(&[]), None);
    }

    /// Every schedule of arrivals that the bounds allow, on a small grid. Each packet arrives over one of two paths; the other path has lost it.
    #[test]
    fn no_heartbeat_misses_its_timeout_whichever_path_carries_it() {
        let paths = [path(3, 2), path(4, 4)];
        let both = PathBounds::of_redundant(&paths).expect("two paths");
        let interval = 6;
        let arrivals: Vec<u64> = paths.iter().flat_map(|path| path.latency_ns..=path.latest_ns()).collect();
        let mut longest = 0;
        for first in &arrivals {
            for second in &arrivals {
                longest = longest.max((interval + second).saturating_sub(*first));
            }
        }
        assert_eq!(longest, interval + both.jitter_ns, "the bound is reached");
        assert_eq!(
            both.timeout_ns(interval) - longest,
            both.latest_ns(),
            "and the last packet of a dead process has arrived before its timeout"
        );
    }
}
