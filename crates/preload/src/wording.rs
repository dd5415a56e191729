//! Output in which a server says what differs between replicas: how much memory is in use while some of it is freed beside, say.
//!
//! A client that was sent such output by one replica could not be sent the rest of it by another, and would lose its connection. So the leader's words are everyone's: the others are told
//! them as they are told what the system says, and take them for what their servers have written. `martlet run` says by which texts such output is known.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::answers::{Call, Effect, told};
use crate::board::Told;
use crate::replica::Replica;

/// The longest write that is looked at, in bytes: longer ones are no such output.
const MOST_BYTES: usize = 128 << 10;

static MARKS: OnceLock<Vec<String>> = OnceLock::new();

/// Output in which one of these texts stands is such output from here on. They have line feeds between them.
///
/// # Errors
/// When there is none, or it was said before.
pub fn know_by(texts: &str) -> Result<(), String> {
    let marks: Vec<String> = texts.split('\n').map(str::to_owned).collect();
    if marks.is_empty() || marks.iter().any(String::is_empty) {
        return Err(format!("{texts:?} does not say by which texts output is known that differs between replicas"));
    }
    MARKS.set(marks).map_err(|_| "it was said before which output differs between replicas".to_owned())
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

impl Replica {
    /// What the client is sent for what its server writes to it; `None`: that.
    pub fn words_for(&mut self, parts: &[&[u8]]) -> Option<Vec<u8>> {
        if !is_marked(parts, MARKS.get()?) {
            return None;
        }
        let answer = self.decide(Call::Say, Effect::Once, |_| Told { bytes: parts.concat(), ..told(Ok(0)) });
        Some(answer.bytes)
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
}
