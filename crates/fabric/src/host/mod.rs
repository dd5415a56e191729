//! What fabrics need of the host that a process runs on, whichever fabric it is: memory that can be shared, words that threads sleep on, certain news of a thread's
//! death, and what a process sets for itself.
//!
//! | file | what stands there |
//! |---|---|
//! | `memory` | memfds, mappings, areas of words |
//! | `plan` | where regions lie in it |
//! | `descriptors` | which numbers descriptors have |
//! | `page` | words that one process makes and others map, outside any fabric |
//! | `socket` | Unix sockets of whole messages, and who is at the other end |
//! | `futex` | sleeping on words, and waking |
//! | `robust` | death words |
//! | `marks` | what programs inside the kernel note of threads that end |
//! | `probe` | the bare death probe, a reference for measurements |
//! | `tracer` | what takes signals away from a child, for tests and measurements |
//! | `random` | bytes that nobody can guess |
//! | `process` | what a process sets for itself at its start |
//! | `errand` | work that may wait for a file system, on threads that live no longer |

pub mod descriptors;
pub mod errand;
pub(crate) mod futex;
pub mod marks;
pub(crate) mod memory;
pub mod page;
pub(crate) mod plan;
pub mod probe;
pub mod process;
mod random;
mod robust;
pub mod socket;
pub mod tracer;

pub use futex::{MAX_SLEEP_WORDS, WakeReason, sleep_on, wake_word};
pub use memory::OwnRegion;
pub use random::random;
/// How long what is not urgent waits once a death has been told, or the end of a socket says that there may have been one: what the other process did, somebody else has to
/// do now, and the processors are theirs. What is learned later is bookkeeping, or the safety net, for which nobody waits.
pub const LULL: std::time::Duration = std::time::Duration::from_millis(2);

pub use robust::{DeathWords, DeathWordsError, Holder, MAX_WORDS, OWNER_DIED, Reading, WAITERS, WORDS_EACH};
