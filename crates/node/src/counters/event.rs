//! What happens in a failover, stamped.

use martlet_fabric::{Incarnation, NodeId};
use martlet_protocol::basics::{ProcessId, Time, ViewNumber};

macro_rules! kinds {
    ($($name:ident $code:literal $text:literal $doc:literal),+ $(,)?) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum EventKind {
            $(#[doc = $doc] $name = $code),+
        }

        impl EventKind {
            /// All of them, in the order in which a failover passes through them.
            pub const ALL: &[EventKind] = &[$(EventKind::$name),+];

            /// Its name in a timeline.
            pub const fn name(self) -> &'static str {
                match self { $(EventKind::$name => $text),+ }
            }

            fn from_code(code: u64) -> Option<EventKind> {
                match code { $($code => Some(EventKind::$name),)+ _ => None }
            }
        }
    };
}

kinds! {
    Started 1 "started" "The process, or its new incarnation, takes part from here on; `process` is itself.",
    PeerUp 2 "peer up" "`process` is connected.",
    DeathSeen 3 "death seen" "The kernel's word: `process` is dead for certain.",
    Suspected 4 "suspected" "`process` is presumed dead.",
    ViewProposed 5 "view proposed" "This node proposes `view`; `process` is the one that it adds or removes.",
    ViewDecided 6 "view decided" "This node knows that `view` is decided, as its proposer or from another.",
    ViewAcknowledged 7 "view acknowledged" "This node has given up whatever lease it held on views before `view`.",
    ViewActive 8 "view active" "This node found `view` active for the first time.",
    TookOver 9 "took over" "This node is primary of `view` and has applied everything committed before.",
    FirstReply 10 "first reply" "The first reply sent as primary of `view`.",
    SteppedDown 11 "stepped down" "This node was primary and is not any more, as of `view`.",
    Excluded 12 "excluded" "A view without this process was decided: it starts over.",
    Caught 13 "caught up" "`process` holds the whole state and counts as a replica from `view` on.",
    Stalled 14 "stalled" "The main thread did not run for `detail` nanoseconds without meaning to sleep.",
    Alone 15 "alone" "This node is the last replica: the state is in one place only.",
    Leaving 16 "leaving" "This node asked to leave.",
    PermissionAsked 17 "permission asked" "With `mu`: this node takes itself for the leader, and asks the others for their permission.",
    PermissionHeld 18 "permission held" "With `mu`: a majority gives this node its permission.",
    ClockJumped 19 "clock jumped" "The host was suspended or its wall clock set, by `detail` nanoseconds, or its hypervisor tells of a disruption (0): this node gave its lease up, if it held one.",
}

/// Something that happened at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, on the host's clock since its start: comparable between all processes of this host.
    pub at: Time,
    /// What.
    pub kind: EventKind,
    /// In which view.
    pub view: ViewNumber,
    /// Whom it is about.
    pub process: Option<ProcessId>,
    /// A number whose meaning depends on the kind.
    pub detail: u64,
}

/// Words of a record.
pub(super) const WORDS: usize = 8;

impl Event {
    /// The record of event `number`: number + 1, time, kind and node, view, incarnation, detail, 0, seal.
    pub(super) fn sealed(&self, number: u64) -> [u64; WORDS] {
        let (about, incarnation) = match self.process {
            Some(p) => (1 << 32 | u64::from(p.node.0), p.incarnation.0),
            None => (0, 0),
        };
        let mut words = [number + 1, self.at.0, about << 8 | self.kind as u64, self.view.0, incarnation, self.detail, 0, 0];
        words[WORDS - 1] = seal(&words);
        words
    }

    /// The bytes of its record, for the samples of encodings.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn bytes(&self, number: u64) -> Vec<u8> {
        self.sealed(number).iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads a record: the event and its number, or `None` where there is none or it is torn.
    pub(super) fn unsealed(words: &[u64; WORDS]) -> Option<(u64, Event)> {
        let number = words[0].checked_sub(1)?;
        if words[WORDS - 1] != seal(words) {
            return None;
        }
        let kind = EventKind::from_code(words[2] & 0xff)?;
        let about = words[2] >> 8;
        let process = (about >> 32 != 0).then_some(ProcessId { node: NodeId(about as u16), incarnation: Incarnation(words[4]) });
        Some((number, Event { at: Time(words[1]), kind, view: ViewNumber(words[3]), process, detail: words[5] }))
    }
}

/// Every word reaches every bit of the seal (the finaliser of splitmix64 after each).
fn seal(words: &[u64; WORDS]) -> u64 {
    words[..WORDS - 1].iter().fold(0x9e37_79b9_7f4a_7c15, |seal, word| {
        let mut z = (seal ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_field_comes_back() {
        let process = Some(ProcessId { node: NodeId(0), incarnation: Incarnation(u64::MAX) });
        for (i, kind) in EventKind::ALL.iter().enumerate() {
            for process in [None, process] {
                let event = Event { at: Time(5), kind: *kind, view: ViewNumber(6), process, detail: u64::MAX };
                assert_eq!(Event::unsealed(&event.sealed(i as u64)), Some((i as u64, event)));
            }
        }
    }

    #[test]
    fn any_changed_bit_breaks_the_seal() {
        let event = Event { at: Time(5), kind: EventKind::Started, view: ViewNumber(6), process: None, detail: 8 };
        let words = event.sealed(3);
        for word in 0..WORDS {
            for bit in 0..64 {
                let mut torn = words;
                torn[word] ^= 1 << bit;
                assert_eq!(Event::unsealed(&torn), None, "word {word} bit {bit}");
            }
        }
        assert_eq!(Event::unsealed(&[0; WORDS]), None, "fresh memory is no event");
    }
}
