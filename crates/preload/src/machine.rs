//! The state machine that the replicas' node runs: it hands rounds on to the server's replay, and teaches newcomers those that they lack.

use std::cell::{Cell, RefCell};

use martlet_fabric::{Pulse, invariant};
use martlet_node::embed::StateMachine;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::UnreadablePart;

use crate::entry::Entry;
use crate::heart;
use crate::main_thread::Confined;
use crate::replay::Replay;

/// The rounds. A fork has its own copy.
pub static REPLAY: Confined<RefCell<Option<Replay>>> = Confined::new(RefCell::new(None));

/// The number of the round that this replica proposes just now, as leader; 0: none.
pub static OWN: Confined<Cell<u64>> = Confined::new(Cell::new(0));

/// Uses the rounds.
pub fn with_replay<R>(use_it: impl FnOnce(&mut Replay) -> R) -> R {
    use_it(REPLAY.get().borrow_mut().get_or_insert_with(Replay::new))
}

/// See the module. What it holds stands apart, in [`REPLAY`]: it is older than the node that runs it, and survives its ends.
#[derive(Debug)]
pub struct Machine;

impl StateMachine for Machine {
    fn apply(&mut self, index: LogIndex, command: &[u8], _: &mut Vec<u8>) {
        let entry = Entry::decode(command);
        invariant!(entry.is_ok(), "entry {index} of the log is none of a captured server");
        if let Ok(Entry::Round(round)) = entry {
            let own = round.number == OWN.get().get();
            with_replay(|replay| if own { replay.take_own(round.number, command) } else { replay.take(round.number, command) });
        }
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        with_replay(|replay| replay.part(0, usize::MAX, out));
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        with_replay(|replay| replay.install(snapshot))
    }

    /// Nothing is forgotten: what the server has executed it cannot undo, and all that is committed follows on it.
    fn clear(&mut self) {}

    fn keep_alive(&mut self, pulse: &Pulse) {
        heart::show_by(pulse.clone());
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        with_replay(|replay| replay.part(cursor, budget, out))
    }

    /// Replicas are compared by what they write to their clients; their nodes keep different numbers of rounds.
    fn digest(&self) -> u64 {
        with_replay(|replay| replay.last())
    }
}
