//! The Redis protocol: requests are parsed in place, replies are written in RESP2 and RESP3.

pub mod args;
pub mod number;
pub mod reply;
pub mod request;

pub use args::{Args, QueuedRequests, Span};
pub use number::parse_i64;
pub use reply::{Protocol, Reply};
pub use request::{Limits, ProtocolError, RequestParser};
