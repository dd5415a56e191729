//! Memory is bounded: when all is quiet, what a node holds does not depend on how long it has run or what it has been through.
//!
//! The length of the `Debug` output stands for the memory. It covers every table, queue and buffer of a state machine, including ones added later, without a
//! method that somebody would have to remember to extend.

use std::fmt::{Debug, Write};

use martlet_protocol::basics::ProcessId;

/// How long the descriptions of a node's parts are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Of membership.
    pub core: usize,
    /// Of the engine.
    pub engine: usize,
    /// Requests and replies that wait.
    pub requests: usize,
    /// Peers that are to be forgotten.
    pub let_go: usize,
}

/// The most that a node in a cluster of at most five may hold when all is quiet again. In 1,500 lives with `primary-backup` no node held more than 29,000 in
/// membership and engine together. `mu` has six buffers, each of which keeps the longest record it ever held: for 4 KiB that is 14,100 characters each.
const MOST: Footprint = Footprint { core: 40_000, engine: 110_000, requests: 32, let_go: 32 };

/// The oracle.
#[derive(Debug, Default)]
pub struct BoundedMemory {
    /// The most that any node held.
    pub most: Footprint,
}

impl BoundedMemory {
    /// All is quiet, and this is what a node holds.
    pub fn judge(&mut self, of: ProcessId, held: Footprint) -> Result<(), String> {
        let parts = |f: Footprint| [f.core, f.engine, f.requests, f.let_go];
        let most = parts(self.most).into_iter().zip(parts(held)).map(|(a, b)| a.max(b)).collect::<Vec<_>>();
        self.most = Footprint { core: most[0], engine: most[1], requests: most[2], let_go: most[3] };
        if parts(held).into_iter().zip(parts(MOST)).any(|(held, most)| held > most) {
            return Err(format!("{of} is quiet and holds {held:?}; allowed is {MOST:?}"));
        }
        Ok(())
    }
}

/// The length of the `Debug` output, without storing it.
pub fn length(of: &impl Debug) -> usize {
    struct Counter(usize);
    impl Write for Counter {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let mut counter = Counter(0);
    write!(counter, "{of:?}").expect("counting cannot fail");
    counter.0
}
