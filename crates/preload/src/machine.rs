//! The state machine that the replicas' node runs: it passes rounds on to the server's replay, and teaches newcomers the rounds that they lack.

use std::cell::{Cell, RefCell};

use martlet_fabric::{Pulse, invariant};
use martlet_node::embed::StateMachine;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::UnreadablePart;

use crate::board::Board;
use crate::entry::Entry;
use crate::heart;
use crate::main_thread::Confined;
use crate::replay::Replay;

/// The rounds. A fork has its own copy.
pub static REPLAY: Confined<RefCell<Option<Replay>>> = Confined::new(RefCell::new(None));

/// The number of the round that this replica proposes at the moment, as leader; 0: none.
pub static OWN: Confined<Cell<u64>> = Confined::new(Cell::new(0));

/// Where replicas say what they know, and which node this one is.
static KNOWN: Confined<Cell<Option<(Board, u16)>>> = Confined::new(Cell::new(None));

/// Says that the replica of this process is this node's. It teaches what the board says that others do not know.
pub fn teach_by(board: Board, node: u16) {
    KNOWN.get().set(Some((board, node)));
    tell_known();
}

/// Tells the others what this replica knows.
pub fn tell_known() {
    if let Some((board, node)) = KNOWN.get().get() {
        board.knows(node, with_replay(|replay| replay.last()) + 1);
    }
}

/// Uses the rounds.
pub fn with_replay<R>(use_it: impl FnOnce(&mut Replay) -> R) -> R {
    use_it(REPLAY.get().borrow_mut().get_or_insert_with(Replay::new))
}

/// See the module. Its data is separate, in [`REPLAY`]: it is older than the node that runs the machine, and survives that node's ends.
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

    /// Forgets nothing: what the server has executed cannot be undone, and everything that is committed follows on it. But either a lesson begins, or the node
    /// begins anew and will be taught.
    fn clear(&mut self) {
        with_replay(Replay::begin_lesson);
        // A node that begins anew asks a teacher only after this.
        tell_known();
    }

    fn keep_alive(&mut self, pulse: &Pulse) {
        heart::show_by(pulse.clone());
    }

    /// The call does not say which replica is taught. So this leaves out only what all replicas know, and includes everything that any one of them lacks,
    /// whether newborn or overrun by the log: a replica would never be told what is left out here.
    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let unknown = KNOWN.get().get().and_then(|(board, _)| board.first_unknown());
        with_replay(|replay| replay.part(cursor.max(unknown.unwrap_or(0)), budget, out))
    }

    /// Replicas are compared by what they write to their clients; their nodes may keep different numbers of rounds.
    fn digest(&self) -> u64 {
        with_replay(|replay| replay.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Holder;
    use crate::entry::{Stamp, Writer};

    /// What this process knows belongs to one test only.
    #[test]
    fn it_tells_all_that_some_replica_does_not_know_and_one_that_is_taught_again_says_what_it_knows() {
        let board = Board::create().expect("memory");
        teach_by(board, 3);
        let mut machine = Machine;
        let mut len = 0;
        for number in 1..=9 {
            let mut round = [0; 64];
            len = Writer::new(&mut round, number, Stamp::default()).len();
            machine.apply(LogIndex(number), &round[..len], &mut Vec::new());
        }
        let told = |machine: &Machine| {
            let mut part = Vec::new();
            assert_eq!(machine.transfer(0, usize::MAX, &mut part), None);
            part.len() / (len + 4)
        };
        tell_known();
        assert_eq!(told(&machine), 0, "nobody lacks anything");
        // One replica is born; and another, which was there before, has been overrun and does not say so yet.
        board.knows(5, 8);
        board.expect(5, 8, 0);
        assert_eq!(told(&machine), 2);
        let other = Holder { node: 6, pid: 10, started: 5 };
        board.begin(other);
        board.knows(6, 4);
        assert_eq!(told(&machine), 6);
        board.died(other);
        board.knows(3, 1);
        machine.clear();
        assert_eq!((board.first_unknown(), told(&machine)), (Some(8), 2));
        assert!(with_replay(|replay| replay.take_pupil() && !replay.is_level()));
    }
}
