//! What a process says about the program that it runs, so that two builds that do not understand each other separate before they act on each other's
//! memory.

use std::borrow::Cow;
use std::fmt;

/// The longest name of a build, in bytes.
pub const MAX_BUILD_BYTES: usize = 64;

/// The feature levels that a program can work at. It can read everything that is written at any of them. What the processes of a cluster write
/// depends on the one level that the cluster's view names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The lowest; at least 1.
    pub least: u8,
    /// The highest; not below `least`.
    pub most: u8,
}

impl Levels {
    /// One level only.
    pub const fn only(level: u8) -> Levels {
        Levels { least: level, most: level }
    }

    /// The levels from `least` to `most`, if that is a range of levels.
    pub const fn of(least: u8, most: u8) -> Option<Levels> {
        if least == 0 || most < least { None } else { Some(Levels { least, most }) }
    }

    /// Whether a program with this range can work at `level`.
    pub const fn has(self, level: u8) -> bool {
        self.least <= level && level <= self.most
    }

    /// Whether there is a level that both can work at.
    pub const fn meets(self, other: Levels) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most { write!(f, "{}", self.least) } else { write!(f, "{} to {}", self.least, self.most) }
    }
}

/// What a program speaks once the handshake is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The version of everything that two processes write for each other after the handshake. Programs of different versions do not connect.
    pub version: u32,
    /// The feature levels that the program can work at.
    pub levels: Levels,
    /// The program's name for its build, for messages: at most 64 bytes of UTF-8 without control characters.
    pub build: Cow<'static, str>,
}

impl Protocol {
    /// The protocol of a program that connects only to processes of its own, such as a test of a fabric.
    pub const fn private() -> Protocol {
        Protocol { version: 0, levels: Levels::only(1), build: Cow::Borrowed("a private program") }
    }

    /// Whether two programs understand each other.
    pub fn suits(&self, other: &Protocol) -> bool {
        self.version == other.version && self.levels.meets(other.levels)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (protocol version {}, feature levels {})", self.build, self.version, self.levels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_where_they_share_a_level() {
        let range = |least, most| Levels::of(least, most).expect("a range");
        assert_eq!((Levels::of(0, 1), Levels::of(2, 1)), (None, None));
        for (a, b, meet) in [((1, 1), (1, 2), true), ((1, 2), (2, 3), true), ((1, 1), (2, 2), false), ((3, 9), (1, 2), false)] {
            let (a, b) = (range(a.0, a.1), range(b.0, b.1));
            assert_eq!((a.meets(b), b.meets(a)), (meet, meet), "{a}, {b}");
        }
        assert!(range(2, 3).has(3) && !range(2, 3).has(1) && !range(2, 3).has(4));
    }
}
