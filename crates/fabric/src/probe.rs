//! Probes for the simulator: bugs planted on purpose, and marks that count what a run has reached.
//!
//! A checker that has never found a bug proves little, and neither does a run that never reached the place where a bug might be. So the crates that
//! are simulated contain *canaries*, known bugs that do nothing until a simulator plants one of them, and *marks* at the transitions of their state
//! machines. Both exist only under the features `canaries` and `marks`. Without these, [`planted`] is the constant `false` and [`reach`] is empty, so
//! that nothing is left of either. A production build never has them: `node` refuses to compile with a fabric that does (see [`BUILT_IN`]).
//!
//! Both belong to a thread, as a simulated life does. They are in this crate, the lowest one, so that the crates above share them and `protocol` has
//! no state outside of its values.

/// Whether this build holds canaries or marks.
pub const BUILT_IN: bool = cfg!(any(feature = "canaries", feature = "marks"));

/// The most marks that can be told apart.
pub const MAX_MARKS: usize = 256;

#[cfg(feature = "canaries")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

#[cfg(feature = "marks")]
thread_local! {
    static REACHED: std::cell::RefCell<[u64; MAX_MARKS]> = const { std::cell::RefCell::new([0; MAX_MARKS]) };
}

/// Whether the bug of this name has been planted in this thread. Without the feature `canaries`, never.
#[inline(always)]
pub fn planted(canary: &'static str) -> bool {
    #[cfg(feature = "canaries")]
    return PLANTED.get().is_some_and(|name| std::ptr::eq(name, canary) || name == canary);
    #[cfg(not(feature = "canaries"))]
    {
        let _ = canary;
        false
    }
}

/// Plants the bug of this name in this thread, in place of the one planted before; or none.
#[cfg(feature = "canaries")]
pub fn plant(canary: Option<&'static str>) {
    PLANTED.set(canary);
}

/// Counts that this thread has reached the mark of this number, below [`MAX_MARKS`].
#[inline(always)]
pub fn reach(mark: usize) {
    #[cfg(feature = "marks")]
    REACHED.with_borrow_mut(|counts| counts[mark] += 1);
    #[cfg(not(feature = "marks"))]
    let _ = mark;
}

/// How often this thread has reached each mark since this was last called.
#[cfg(feature = "marks")]
pub fn take_reached() -> [u64; MAX_MARKS] {
    REACHED.replace([0; MAX_MARKS])
}

/// Declares an enum of probes: each has a documented meaning and a name for reports, and all can be listed.
#[macro_export]
macro_rules! probes {
    ($(#[$about:meta])* pub enum $Probe:ident { $($(#[doc = $doc:literal])+ $Variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $Probe {
            $($(#[doc = $doc])+ $Variant,)+
        }

        impl $Probe {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [$Probe] = &[$($Probe::$Variant),+];

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $($Probe::$Variant => $name,)+
                }
            }

            /// What it is, in words.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $($Probe::$Variant => concat!($($doc),+),)+
                }
            }
        }
    };
}

/// Declares an enum of known bugs: [`probes!`](crate::probes), each of which can be planted.
#[macro_export]
macro_rules! canaries {
    ($(#[$about:meta])* pub enum $Canary:ident { $($bugs:tt)+ }) => {
        $crate::probes! {
            $(#[$about])*
            pub enum $Canary { $($bugs)+ }
        }

        impl $Canary {
            /// Whether it has been planted. Without the feature `canaries`: never.
            #[inline(always)]
            pub fn is_planted(self) -> bool {
                $crate::probe::planted(self.name())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_build_holds_no_probes() {
        if !BUILT_IN {
            assert!(!planted("anything"));
            reach(0);
        }
    }

    #[cfg(feature = "canaries")]
    #[test]
    fn only_the_planted_canary_is_there() {
        plant(Some("one"));
        assert!(planted("one") && !planted("other"));
        plant(None);
        assert!(!planted("one"));
    }

    #[cfg(feature = "marks")]
    #[test]
    fn marks_are_counted_until_they_are_taken() {
        reach(3);
        reach(3);
        assert_eq!(take_reached()[3], 2);
        assert_eq!(take_reached()[3], 0);
    }
}
