//! State transfer: a replica that holds the state sends it to one that does not, and that has asked for it.
//!
//! The sender sends a *begin*, then the entries as it applies them and, between them, parts of its state: each part shows exactly the entries before it. An *end*
//! follows the last part, and then the commit index as it advances. So the whole state is never copied, and nothing has to stop meanwhile. A sender that cannot
//! continue says so by a *break*.

mod receiver;
mod sender;

pub use receiver::Learning;
pub use sender::{Sender, Sending, Source, StateLane};

use super::record::{self, Header, LaneFault, RecordKind};

/// The kinds of records of an engine that transfers the state in its records.
pub trait TransferKind: RecordKind {
    /// The state is sent from here on. Body: see [`begin_body`](super::record::begin_body).
    const BEGIN: Self;
    /// A part of the state; the count is 1 when more fragments of the same part follow, else 0.
    const PART: Self;
    /// The whole state has been sent.
    const END: Self;
    /// Only the commit index.
    const FLUSH: Self;
    /// The sender cannot continue.
    const BREAK: Self;
    /// Whether entries follow the end. If not, the learner has to continue from its own log.
    const CONTINUES: bool;

    /// Checks that an entry is what its header says.
    ///
    /// # Errors
    /// When it is not.
    fn check(header: &Header<Self>, body: &[u8]) -> Result<(), LaneFault<Self>> {
        record::check_entries(header, body, false)
    }
}
