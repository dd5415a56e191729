//! A client's settings, and why it refuses a request.

use martlet_protocol::basics::layout::Sizes;

use super::MAX_ARGS;

/// What a client's replies depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// With an engine that follows views (`primary-backup`, `hsuc`, `huc`) they depend on the primary's lease, by its clock. With a majority engine (`mu`,
    /// `dare`, `apus`) they depend on a majority, as with [`Quorum`](Reads::Quorum).
    #[default]
    Lease,
    /// They depend on no clock: a majority of the coordinators is asked after the request was executed. On shared memory that takes a microsecond or so more,
    /// over a network a round trip. So a primary that has been succeeded while its clock stood still answers nothing, rather than something outdated.
    Quorum,
}

/// A client's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The client's name for its whole life. No other client may use it, nor an earlier life of this one; its incarnation serves well. Draw it from the
    /// system's secure source: the salts of the lanes for its replies derive from it, and keep other data from being taken for replies.
    pub session: u64,
    /// How large the rings are; the same as at the nodes.
    pub sizes: Sizes,
    /// The most requests without a reply; at most 4096, since a server keeps that many replies.
    pub max_outstanding: usize,
    /// What replies depend on, to reads and to writes.
    pub reads: Reads,
    /// While no leader is known, how long to wait for a notice before another node is asked, in nanoseconds.
    pub probe_ns: u64,
    /// How long the supposed leader may be silent before another node is asked, in nanoseconds.
    pub silence_ns: u64,
}

impl ClientConfig {
    /// The usual settings for a client with that name.
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
    /// As many requests are waiting for replies as may.
    #[error("{0} requests already wait for their replies: take some replies first")]
    Full(usize),
    /// The request does not fit into a lane.
    #[error(
        "the request has {bytes} bytes; allowed over the fabric: up to {limit}, which is a quarter of sizes.client_ring_bytes. A node's Redis port takes longer ones (docs/redis.md)"
    )]
    TooLong {
        /// What it takes.
        bytes: usize,
        /// What fits.
        limit: usize,
    },
    /// The request has no argument, or too many.
    #[error("the request has {0} arguments; allowed: 1 to {MAX_ARGS}")]
    Arguments(usize),
    /// A call takes all replies for itself, and earlier requests still await theirs.
    #[error("{0} requests wait for their replies: take those first, since a call must be the only request")]
    Busy(usize),
    /// The caller gave up. The request may still take effect; its reply will come through [`Client::poll`](super::Client::poll).
    #[error("gave up waiting: the request may or may not take effect")]
    GivenUp,
}
