//! Output in which a server says what differs between replicas: how much memory is in use while some of it is freed beside, say.
//!
//! A client that was sent such output by one replica could not be sent the rest of it by another, and would lose its connection. So the leader's words are everyone's: the others are told
//! them as they are told what the system says, and take them for what their servers have written. `martlet run` says by which requests a connection asks for such output, and by
//! which texts it is known. What connections are sent that have asked for none is not looked through, whatever a client may have stored.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::answers::{Call, Effect, told};
use crate::board::Told;
use crate::replica::Replica;

/// The longest write that is looked at, in bytes: longer ones are no such output.
const MOST_BYTES: usize = 128 << 10;
/// The most that the others are told of it in one round, in bytes. Then the server is told that there is no room, and writes it in the next one. The board keeps so much for several
/// rounds, and for those [the leader waits](crate::backpressure) where a follower is behind.
const MOST_ROUND_BYTES: usize = 4 << 20;
/// In place of words: there is no room for any in this round.
const NO_ROOM: i64 = 1;

/// How such output is known.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    /// The names of the requests that ask for it, in small letters.
    asking: Vec<String>,
    /// The texts of which one stands in it.
    marks: Vec<String>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// From here on connections are looked after that have asked for such output, and output is such in which one of these texts stands. The first line has the names of the requests, with spaces
/// between them, and each further one a text.
///
/// # Errors
/// When there is none of either, or it was said before.
pub fn know_by(text: &str) -> Result<(), String> {
    let known = parse(text)
        .ok_or_else(|| format!("{text:?} does not say by which requests and texts output is known that differs between replicas"))?;
    KNOWN.set(known).map_err(|_| "it was said before which output differs between replicas".to_owned())
}

fn parse(text: &str) -> Option<Known> {
    let (names, marks) = text.split_once('\n')?;
    let asking: Vec<String> = names.split(' ').map(str::to_ascii_lowercase).collect();
    let marks: Vec<String> = marks.split('\n').map(str::to_owned).collect();
    let is_said = |texts: &[String]| texts.iter().all(|text| !text.is_empty());
    (is_said(&asking) && is_said(&marks)).then_some(Known { asking, marks })
}

/// The names of the requests that ask for it, in small letters.
pub fn asking() -> &'static [String] {
    KNOWN.get().map_or(&[], |known| &known.asking)
}

/// Whether one of these texts stands in a write.
fn is_marked(parts: &[&[u8]], marks: &[String]) -> bool {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len > MOST_BYTES || marks.iter().all(|mark| mark.len() > len) {
        return false;
    }
    let whole = match parts {
        [part] => Cow::Borrowed(*part),
        parts => Cow::Owned(parts.concat()),
    };
    marks.iter().any(|mark| find(&whole, mark.as_bytes()))
}

fn find(bytes: &[u8], text: &[u8]) -> bool {
    // SAFETY: the pointers are to so many bytes each.
    let found = unsafe { libc::memmem(bytes.as_ptr().cast(), bytes.len(), text.as_ptr().cast(), text.len()) };
    !found.is_null()
}

/// How much the others have been told in a round.
#[derive(Debug, Default)]
pub struct Worded {
    round: u64,
    bytes: usize,
}

impl Worded {
    /// Whether so many bytes more may be told in this round; they count from here on.
    fn takes(&mut self, round: u64, bytes: usize) -> bool {
        if self.round != round {
            *self = Worded { round, bytes: 0 };
        }
        let takes = self.bytes + bytes <= MOST_ROUND_BYTES;
        if takes {
            self.bytes += bytes;
        }
        takes
    }
}

/// What a client is sent for what its server writes to it.
pub enum Words {
    /// That.
    Its,
    /// This.
    Leaders(Vec<u8>),
    /// Nothing in this round.
    None,
}

impl Replica {
    /// What a client is sent that has asked for such output.
    pub fn words_for(&mut self, parts: &[&[u8]]) -> Words {
        if !KNOWN.get().is_some_and(|known| is_marked(parts, &known.marks)) {
            return Words::Its;
        }
        let (round, mut worded) = (self.round, std::mem::take(&mut self.worded));
        let answer = self.decide(Call::Say, Effect::Once, |_| match parts.concat() {
            bytes if worded.takes(round, bytes.len()) => Told { bytes, ..told(Ok(0)) },
            _ => told(Ok(NO_ROOM)),
        });
        self.worded = worded;
        if answer.value == NO_ROOM { Words::None } else { Words::Leaders(answer.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_known_by_the_texts_that_stand_in_it_wherever_it_is_cut() {
        let marks = ["# Memory".to_owned(), "peak".to_owned()];
        assert!(is_marked(&[b"$5\r\n# Memory\r\nused"], &marks) && is_marked(&[b"# Mem", b"ory"], &marks) && is_marked(&[b"peak"], &marks));
        assert!(!is_marked(&[b"# Mem", b"orx"], &marks) && !is_marked(&[b"pea"], &marks) && !is_marked(&[], &marks));
        let long = vec![b'x'; MOST_BYTES - 3];
        assert!(!is_marked(&[&long, b"peak"], &marks), "it is too long for any");
        assert!(is_marked(&[&long[1..], b"peak"], &marks));
    }

    #[test]
    fn it_is_said_in_lines_how_output_is_known() {
        let known = |asking: &[&str], marks: &[&str]| Known {
            asking: asking.iter().map(ToString::to_string).collect(),
            marks: marks.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(parse("INFO memory\n# Memory\r\npeak"), Some(known(&["info", "memory"], &["# Memory\r", "peak"])));
        for text in ["info", "info\n", "\n# Memory", "info  memory\npeak", "info\npeak\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn each_round_has_room_for_words_of_its_own() {
        let mut worded = Worded::default();
        assert!(worded.takes(1, MOST_ROUND_BYTES - 1) && worded.takes(1, 1) && !worded.takes(1, 1));
        assert!(worded.takes(2, MOST_BYTES) && !worded.takes(2, MOST_ROUND_BYTES) && worded.takes(2, MOST_BYTES));
    }
}
