//! What a client is told, and why it refuses a request.

use martlet_protocol::basics::layout::Sizes;

use super::MAX_ARGS;

/// What a client's replies depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// That the primary's lease holds, by its clock. With the engine `mu`: on a majority, as [`Quorum`](Reads::Quorum).
    #[default]
    Lease,
    /// On no clock: a majority of the coordinators is asked after the request was executed. On shared memory that takes a microsecond or so more, over a network a round trip. A primary
    /// that has been succeeded, and whose clock was stopped meanwhile, so answers nothing instead of what is out of date.
    Quorum,
}

/// What a client can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Names it for its life; no other client may use the name, nor an earlier life of this one. Its incarnation serves well.
    /// To be drawn from the system's secure source: the salts of the lanes for its replies come from it, which keep others' data from being
    /// taken for replies.
    pub session: u64,
    /// How large the rings are: as at the nodes.
    pub sizes: Sizes,
    /// The most requests without reply; at most 4096, which is what a server keeps.
    pub max_outstanding: usize,
    /// What replies depend on. Those to writes wait for it too.
    pub reads: Reads,
    /// While nobody is known to lead, how long to wait for a notice before another node is asked, in nanoseconds.
    pub probe_ns: u64,
    /// After so long without any word from the node that is believed to lead, another one is asked, in nanoseconds.
    pub silence_ns: u64,
}

impl ClientConfig {
    /// The usual settings for a client of that name.
    pub fn new(session: u64) -> ClientConfig {
        ClientConfig {
            session,
            sizes: Sizes::default(),
            max_outstanding: 256,
            reads: Reads::default(),
            probe_ns: 200_000,
            silence_ns: 50_000_000,
        }
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// As many requests as allowed wait for their replies.
    #[error("{0} requests wait for their replies already")]
    Full(usize),
    /// It does not fit into a lane.
    #[error("the request takes {bytes} bytes, and a lane takes {limit} at most")]
    TooLong {
        /// What it takes.
        bytes: usize,
        /// What fits.
        limit: usize,
    },
    /// It has no argument, or too many.
    #[error("a request has 1 to {MAX_ARGS} arguments, not {0}")]
    Arguments(usize),
    /// A call needs all replies for itself, and some are awaited.
    #[error("{0} requests wait for their replies; a call must be the only one")]
    Busy(usize),
    /// The caller gave up. The request may still take effect; its reply will come through [`Client::poll`](super::Client::poll).
    #[error("given up; the request may or may not take effect")]
    GivenUp,
}
