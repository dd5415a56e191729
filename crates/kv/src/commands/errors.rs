//! Redis's own texts, because clients compare them.

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const NOT_A_FLOAT: &str = "ERR value is not a valid float";
pub(super) const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub(super) const NAN_OR_INFINITY: &str = "ERR increment would produce NaN or Infinity";
pub(super) const STRING_TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
/// Not Redis's text: there, only memory limits such a reply.
pub(super) const REPLY_TOO_LONG: &str = "ERR the reply is longer than a value may be: ask for fewer keys at once";
pub(super) const NO_SUCH_KEY: &str = "ERR no such key";
pub(super) const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
pub(super) const LOADING: &str = "LOADING Redis is loading the dataset in memory";
pub(super) const NOAUTH: &str = "NOAUTH Authentication required.";

/// An error that quotes what a client sent. Redis quotes the bytes as they are, up to the first that is zero.
pub(super) fn quoting(before: &str, sent: &[u8], after: &str) -> Vec<u8> {
    [before.as_bytes(), up_to_zero(sent), after.as_bytes()].concat()
}

/// The bytes before the first that is zero.
pub(super) fn up_to_zero(sent: &[u8]) -> &[u8] {
    sent.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// For a request that the engine could not replicate, and that had no effect.
pub(super) fn too_large(bytes: usize, limit: usize) -> String {
    format!("ERR the changes of this request may take {bytes} bytes, and an entry of the log holds at most {limit}: send less at once")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_is_quoted_byte_by_byte_up_to_the_first_zero() {
        assert_eq!(quoting("ERR Unknown node ", b"\xff\xfea", "."), b"ERR Unknown node \xff\xfea.");
        assert_eq!(quoting("'", b"\xff\0a", "'"), b"'\xff'");
        assert_eq!(quoting("'", b"", "'"), b"''");
    }
}
