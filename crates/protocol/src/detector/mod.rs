//! Failure detection: small pure judges. Membership feeds them what it reads, and acts on what they say.
//!
//! A suspicion carries its certainty. [`certain`] judges the kernel's word on a process; [`heartbeat`] judges a counter read from its memory;
//! [`broadcast`] judges silence; [`planned`] says how long silence may last on paths whose bounds are known; [`stall`] tells a detector that it was
//! itself asleep, so that it discards what it seems to have observed. [`wardens`] is what the wardens of several hosts tell each other, and
//! [`certificate`] is the proof by which others believe it.

pub mod broadcast;
pub mod certain;
pub mod certificate;
pub mod heartbeat;
pub mod planned;
pub mod stall;
pub mod wardens;
