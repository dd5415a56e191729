//! Parses replies.

use crate::resp::parse_i64;

/// A reply in RESP3. Text stays where it is; only lists need memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nothing.
    Null,
    /// A short text, such as `OK`.
    Simple(&'a [u8]),
    /// An error: its code, a space, its text.
    Error(&'a [u8]),
    /// An integer.
    Int(i64),
    /// A string.
    Bulk(&'a [u8]),
    /// A list or a set; a map lists keys and values in turn.
    List(Vec<Value<'a>>),
}

/// How deeply lists may nest.
const MAX_DEPTH: usize = 16;

impl<'a> Value<'a> {
    /// Parses `bytes`. Returns `None` when they are not exactly one value.
    pub fn parse(bytes: &'a [u8]) -> Option<Value<'a>> {
        let mut rest = bytes;
        let value = Value::take(&mut rest, MAX_DEPTH)?;
        rest.is_empty().then_some(value)
    }

    fn take(rest: &mut &'a [u8], depth: usize) -> Option<Value<'a>> {
        let end = memchr::memchr(b'\n', rest)?;
        let line = rest[..end].strip_suffix(b"\r")?;
        *rest = &rest[end + 1..];
        let (&kind, text) = line.split_first()?;
        let count = || parse_i64(text).and_then(|n| usize::try_from(n).ok());
        Some(match kind {
            b'+' => Value::Simple(text),
            b'-' => Value::Error(text),
            b':' => Value::Int(parse_i64(text)?),
            b'_' => Value::Null,
            b'$' | b'*' if text == b"-1" => Value::Null,
            b'$' | b'=' => {
                let (body, tail) = rest.split_at_checked(count()?)?;
                *rest = tail.strip_prefix(b"\r\n")?;
                Value::Bulk(if kind == b'=' { body.get(4..)? } else { body })
            }
            b'*' | b'~' | b'%' => {
                let depth = depth.checked_sub(1)?;
                let n = count()?.checked_mul(if kind == b'%' { 2 } else { 1 })?;
                let mut list = Vec::new();
                for _ in 0..n {
                    list.push(Value::take(rest, depth)?);
                }
                Value::List(list)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn replies_are_taken_apart() {
        assert_eq!(Value::parse(b"+OK\r\n"), Some(Value::Simple(b"OK")));
        assert_eq!(Value::parse(b"-ERR no\r\n"), Some(Value::Error(b"ERR no")));
        assert_eq!(Value::parse(b"_\r\n"), Some(Value::Null));
        assert_eq!(Value::parse(b"$3\r\na\nb\r\n"), Some(Value::Bulk(b"a\nb")));
        assert_eq!(Value::parse(b"%1\r\n$1\r\nk\r\n:-5\r\n"), Some(Value::List(vec![Value::Bulk(b"k"), Value::Int(-5)])));
        for bad in [&b""[..], b"+OK", b"$3\r\nab\r\n", b"*1\r\n", b"+OK\r\n+OK\r\n", b"?\r\n", b"$-2\r\n", b"*9223372036854775807\r\n"] {
            assert_eq!(Value::parse(bad), None, "{}", bad.escape_ascii());
        }
        assert_eq!(Value::parse(&b"*1\r\n".repeat(100_000)), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(prop::sample::select(&b"*$%=~_:+-0123\r\nab"[..]), 0..40)) {
            let _ = Value::parse(&bytes);
        }
    }
}
