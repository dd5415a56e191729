//! What every fabric needs from the host that a process runs on: memory that can be shared, words that threads sleep on, certain news of a thread's
//! death, and what a process sets for itself.
//!
//! | file | contents |
//! |---|---|
//! | `memory` | memfds, mappings, areas of words |
//! | `plan` | the layout of regions in that memory |
//! | `descriptors` | the numbers of descriptors |
//! | `page` | words that one process makes and others map, outside any fabric |
//! | `socket` | Unix sockets that carry whole messages, and which process is at the other end |
//! | `socket_file` | the files by which Unix sockets are found |
//! | `futex` | sleeping on words, and waking |
//! | `robust` | death words |
//! | `marks` | what programs inside the kernel note about threads that end |
//! | `probe` | the bare death probe, a reference for measurements |
//! | `tracer` | takes signals away from a child, for tests and measurements |
//! | `random` | bytes that no other process can guess |
//! | `process` | what a process sets for itself at its start |
//! | `stat` | what the kernel says of a process or of a thread |
//! | `lock` | files that one process at a time has locked |
//! | `errand` | work that may wait for a file system, on threads that live no longer than it takes |

pub mod descriptors;
pub mod errand;
pub(crate) mod futex;
pub mod lock;
pub mod marks;
pub(crate) mod memory;
pub mod page;
pub(crate) mod plan;
pub mod probe;
pub mod process;
mod random;
mod robust;
pub mod socket;
pub mod socket_file;
pub mod stat;
pub mod tracer;

pub use futex::{MAX_SLEEP_WORDS, WakeReason, sleep_on, wake_word};
pub use memory::OwnRegion;
pub use random::random;
/// How long work that is not urgent is put off once a death has been reported, or once the end of a socket suggests one. Other processes now have to
/// do what that process did, and they need the processors. What is learned later is bookkeeping or a safety net, for which nothing waits.
pub const LULL: std::time::Duration = std::time::Duration::from_millis(2);

pub use robust::{DeathWords, DeathWordsError, Holder, MAX_WORDS, OWNER_DIED, Reading, WAITERS, WORDS_EACH};
