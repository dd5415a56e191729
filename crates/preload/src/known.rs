//! What has been read of the files that the leader reads for all replicas, as far as the others have been told.
//!
//! A file that a server reads again and again, such as its configuration, is mostly unchanged: then the others are told just that. Otherwise the server could
//! read it more often in one round than the [board](crate::board) has room for, where the words of a round have to stay until followers get to it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use crate::board::{MOST_TOLD_BYTES, Told};
use crate::sys::die;

/// How many files are known. When there are more, all are forgotten.
const MOST_FILES: usize = 8;
/// Takes the place of an errno: the bytes are those that were read there last.
const AS_KNOWN: i32 = -1;

/// What was read, by the file's path. It is the same at every replica that has heard the same.
#[derive(Clone, Debug, Default)]
pub struct Known(BTreeMap<CString, Vec<u8>>);

impl Known {
    /// How the others are told of bytes that were read there.
    pub fn tells(&self, path: &CStr, at: u64, told: Told) -> Told {
        let is_known = !told.bytes.is_empty() && self.at(path, at, told.bytes.len()) == Some(&told.bytes[..]);
        if is_known { Told { errno: AS_KNOWN, bytes: Vec::new(), ..told } } else { told }
    }

    /// What was read there, from how it was told. It is known from here on.
    pub fn hears(&mut self, path: &CStr, at: u64, told: Told) -> Told {
        if told.errno == AS_KNOWN {
            let Some(bytes) = usize::try_from(told.value).ok().and_then(|len| self.at(path, at, len)) else {
                die(&format!(
                    "the leader told it that {} has not changed, but it does not know the file's earlier content",
                    path.to_string_lossy()
                ));
            };
            return Told { errno: 0, bytes: bytes.to_vec(), ..told };
        }
        self.note(path, at, &told.bytes);
        told
    }

    fn at(&self, path: &CStr, at: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(path)?.get(at..at.checked_add(len)?)
    }

    fn note(&mut self, path: &CStr, at: u64, bytes: &[u8]) {
        let Ok(at) = usize::try_from(at) else { return };
        // Nothing is noted of a read that begins beyond what is known of the file, or that ends beyond the most bytes that may be told.
        if bytes.is_empty() || at > self.0.get(path).map_or(0, Vec::len) || at + bytes.len() > MOST_TOLD_BYTES {
            return;
        }
        if !self.0.contains_key(path) && self.0.len() >= MOST_FILES {
            self.0.clear();
        }
        let content = self.0.entry(path.to_owned()).or_default();
        content.resize(content.len().max(at + bytes.len()), 0);
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Told {
        Told { value: bytes.len() as i64, bytes: bytes.to_vec(), ..Told::default() }
    }

    #[test]
    fn what_stands_where_it_stood_is_told_without_its_bytes_and_heard_with_them() {
        let (mut leader, mut follower) = (Known::default(), Known::default());
        let mut pass = |path: &CStr, at, bytes: &[u8]| {
            let told = leader.tells(path, at, read(bytes));
            let len = told.bytes.len();
            assert_eq!(leader.hears(path, at, told.clone()), read(bytes));
            assert_eq!(follower.hears(path, at, told), read(bytes));
            len
        };
        let path = c"/etc/redis.conf";
        assert_eq!((pass(path, 0, b"abcd"), pass(path, 4, b"efgh"), pass(path, 8, b"")), (4, 4, 0));
        assert_eq!((pass(path, 0, b"abcd"), pass(path, 4, b"eXgh"), pass(path, 4, b"eXgh")), (0, 4, 0));
        // Read in other steps, and more of it.
        assert_eq!((pass(path, 2, b"cdeX"), pass(path, 6, b"ghij"), pass(path, 0, b"abcdeXghij")), (0, 4, 0));
        assert_eq!(pass(c"/etc/other", 0, b"abcd"), 4, "another file");
        assert_eq!((pass(path, 100, b"far"), pass(path, 100, b"far")), (3, 3), "what stands before that was not read");
    }

    #[test]
    fn of_few_files_it_is_known_and_an_error_is_told_as_it_is() {
        let mut known = Known::default();
        for number in 0..=MOST_FILES {
            known.hears(&CString::new(format!("/{number}")).expect("no zero byte"), 0, read(b"x"));
        }
        assert_eq!(known.0.len(), 1);
        let failed = Told { value: -1, errno: libc::EIO, ..Told::default() };
        assert_eq!(known.hears(c"/8", 0, known.tells(c"/8", 0, failed.clone())), failed);
        known.note(c"/8", 1, &vec![0; MOST_TOLD_BYTES]);
        assert_eq!(known.0[c"/8"].len(), 1);
    }
}
