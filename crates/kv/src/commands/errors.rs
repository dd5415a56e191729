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

/// For a request that the engine could not replicate, and that had no effect.
pub(super) fn too_large(bytes: usize, limit: usize) -> String {
    format!("ERR the changes of this request may take {bytes} bytes, and an entry of the log holds at most {limit}: send less at once")
}
