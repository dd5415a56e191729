//! Output of a server that differs between replicas, such as how much memory is in use while some of it is being freed in the background.
//!
//! A client that one replica had sent part of such output could not be sent the rest by another, and would lose its connection. So all replicas use the
//! leader's words: the others are told them as they are told what the system answers, and take them for what their own servers have written. `martlet run` says
//! which requests ask for such output, and which texts it is recognised by. Connections that have asked for none are not searched, whatever a client may have
//! stored.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::answers::{Call, Effect, told};
use crate::board::Told;
use crate::replica::Replica;

/// The longest write that is looked at, in bytes: a longer one is not such output.
const MOST_BYTES: usize = 128 << 10;
/// The most of it that the others are told in one round, in bytes. Beyond that the server is told that there is no room, and writes it in the next round. The
/// board has room for several such rounds, and [the leader waits](crate::backpressure) before a follower falls further behind.
const MOST_ROUND_BYTES: usize = 4 << 20;
/// Takes the place of words: there is no room for any in this round.
const NO_ROOM: i64 = 1;

/// How such output is recognised.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    /// The names of the requests that ask for it, in lower case.
    asking: Vec<String>,
    /// The texts: output that contains one of them is such output.
    marks: Vec<String>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// From here on, watches for connections that have asked for such output, and takes output that contains one of these texts for such output. The first line of
/// `text` has the names of the requests, with spaces between them, and each further line a text.
///
/// # Errors
/// When there are no names or no texts, or this has been called before.
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

/// The names of the requests that ask for it, in lower case.
pub fn asking() -> &'static [String] {
    KNOWN.get().map_or(&[], |known| &known.asking)
}

/// Whether a write contains one of these texts.
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
    /// Whether so many more bytes may be told in this round. If so, they are counted.
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

/// What a client is sent in place of what its server writes to it.
pub enum Words {
    /// What the server writes.
    Its,
    /// These, the leader's words.
    Leaders(Vec<u8>),
    /// Nothing in this round.
    None,
}

impl Replica {
    /// What a client that has asked for such output is sent.
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
