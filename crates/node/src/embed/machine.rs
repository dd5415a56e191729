//! The state machine that a program supplies, and what surrounds it in the log: sessions.

use std::collections::VecDeque;

use martlet_fabric::{Pulse, invariant};
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{self, UnreadableEntry, UnreadablePart};

use super::call::ReadJob;
use super::entry::Entry;
use super::error::CallError;
use super::sessions::{Sessions, Turn};

/// The state that is replicated. Every replica executes the same commands in the same order, and so holds the same state.
///
/// It must be deterministic: only the state and the arguments may matter, and no clock, no random number, no order of a `HashMap`. Its methods are called on
/// the replica's own thread and hold everything else up while they run. A few microseconds are fine. A method that takes as long as the detector waits looks
/// like a death, unless it reports that it is working: [`StateMachine::keep_alive`]. A panic ends the replica.
pub trait StateMachine: Send + 'static {
    /// Executes one command and appends its reply. `index` is the command's place in the log. It is the same on every replica, and grows.
    ///
    /// The leader executes a command before it is replicated, or, with `execution = "committed"` in the cluster's file, once it is committed. The reply goes
    /// out when the command is both executed and replicated. The method must accept any bytes, because nothing else looks at them. The reply to a session's
    /// command is kept until it is confirmed, if it has no more than [`MAX_KEPT_REPLY_BYTES`](super::MAX_KEPT_REPLY_BYTES); a longer one goes out once.
    fn apply(&mut self, index: LogIndex, command: &[u8], reply: &mut Vec<u8>);

    /// Answers a question without changing anything, for [`Replica::query`](super::Replica::query). Not needed if
    /// [`Replica::read`](super::Replica::read) is used.
    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        let _ = (query, reply);
    }

    /// Appends the whole state to `out`.
    fn snapshot(&self, out: &mut Vec<u8>);

    /// Replaces the machine's state with one that [`StateMachine::snapshot`] wrote.
    ///
    /// The bytes are as a replica of this cluster wrote them: they came sealed, and nothing outside the cluster can write there. But that replica may run
    /// another version of the program, or be faulty, and that must not bring this one down. So no bytes may make this method panic or use memory without bound.
    ///
    /// # Errors
    /// When the bytes are no such state. What the machine holds then has no meaning: it is [cleared](StateMachine::clear) before anything else. With a majority
    /// engine (`mu`, `dare`, `apus`) another replica is asked for the state, if another one has it. With an engine that follows views (`primary-backup`,
    /// `hsuc`, `huc`) this replica starts over as a new incarnation, which receives the state anew. Bytes from this replica's own disk are an error of its start.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart>;

    /// Forgets everything. The machine is then as it was when the replica was started for the first time.
    fn clear(&mut self);

    /// Says that from now on the machine belongs to the process of this pulse. It is called again whenever a replica starts over. A method that may take longer
    /// than some milliseconds keeps a clone of the pulse and [reports its progress to it](Pulse::worked), every few tens of microseconds. Then the others see
    /// that this process is working and do not take it for dead. Calls that wait for a reply still have to wait.
    fn keep_alive(&mut self, pulse: &Pulse) {
        let _ = pulse;
    }

    /// Appends the next part of the state, beginning at `cursor` (0 at the start) and about `budget` bytes long. Returns the cursor after it, or `None` when
    /// that was the last part. Cursors stay below 2^63. A part of more than a gigabyte is accepted by no replica.
    ///
    /// Commands are executed between two parts, both here and at the replica that receives them. That replica holds only the parts installed so far. What a
    /// command does there to the rest of the state has no effect in the end, but a command must not do anything to an installed part that it would not do with
    /// the whole state. This holds where each command concerns one part alone.
    ///
    /// The default sends the snapshot in one part, which holds the leader up for as long as it takes. It suits states of up to some hundred kilobytes.
    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let _ = (cursor, budget);
        self.snapshot(out);
        None
    }

    /// Takes a part that [`StateMachine::transfer`] wrote: it replaces whatever this machine held in the part's range.
    ///
    /// # Errors
    /// As [`StateMachine::restore`].
    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        self.restore(part)
    }

    /// Equal for equal states. For tests and for comparing replicas; may be slow. The default hashes the snapshot, which must then be the same for the same
    /// state.
    fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        self.snapshot(&mut bytes);
        digest_of(&bytes)
    }
}

/// FNV-1a.
pub(super) fn digest_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Cursors from here on belong to the sessions, and those below to the machine. The sessions come last, so that every reply that they keep is computed by a
/// machine that has received its whole state.
const SESSIONS: u64 = 1 << 63;
/// The first byte of a part says what it is a part of.
const OF_MACHINE: u8 = 1;
/// The first byte of what is not a part: the machine that wrote it could not read an entry.
const NO_PART: u8 = 0;
const OF_SESSIONS: u8 = 2;

/// A program's machine with the sessions of its clients.
pub(super) struct Replicated<M> {
    inner: M,
    sessions: Sessions,
    reply: Vec<u8>,
    /// The first entry that this machine could not read.
    unreadable: Option<UnreadableEntry>,
    /// Used by a leader that executes on commit. `under_way`: its calls that wait for entries to be applied, in their order. `through`: the outcomes of earlier
    /// calls.
    under_way: VecDeque<UnderWay<M>>,
    through: VecDeque<Through<M>>,
}

/// A call that waits for an entry to be applied.
enum UnderWay<M> {
    /// The call gets the reply to the entry with this index.
    Reply(LogIndex),
    /// The call looks at the state after the entries that were proposed before it, and before any later one.
    Look(Box<dyn ReadJob<M>>),
}

/// The outcome of such a call.
pub(super) enum Through<M> {
    Reply(Vec<u8>),
    Looked(Box<dyn ReadJob<M>>),
}

impl<M: StateMachine> Replicated<M> {
    pub fn new(inner: M) -> Self {
        Replicated {
            inner,
            sessions: Sessions::default(),
            reply: Vec::new(),
            unreadable: None,
            under_way: VecDeque::new(),
            through: VecDeque::new(),
        }
    }

    pub fn inner(&self) -> &M {
        &self.inner
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Keeps the reply to the entry with this index, for [`take_through`](Self::take_through).
    pub fn await_reply(&mut self, index: LogIndex) {
        self.under_way.push_back(UnderWay::Reply(index));
    }

    /// Has a read look at the state after all entries that are awaited now. If there are none, hands the read back: it may look at once.
    pub fn await_look(&mut self, job: Box<dyn ReadJob<M>>) -> Option<Box<dyn ReadJob<M>>> {
        if self.under_way.is_empty() {
            return Some(job);
        }
        self.under_way.push_back(UnderWay::Look(job));
        None
    }

    /// The outcome of the first call whose outcome has not been taken. `None`: its entry has not been applied yet.
    pub fn take_through(&mut self) -> Option<Through<M>> {
        if self.through.is_empty() {
            self.look();
        }
        self.through.pop_front()
    }

    /// Stops waiting: the leader that proposed those entries no longer leads. Returns the reads, which have no outcome.
    pub fn give_up_calls(&mut self) -> Vec<Box<dyn ReadJob<M>>> {
        let through = self.through.drain(..).filter_map(|through| match through {
            Through::Looked(job) => Some(job),
            Through::Reply(_) => None,
        });
        let under_way = self.under_way.drain(..).filter_map(|call| match call {
            UnderWay::Look(job) => Some(job),
            UnderWay::Reply(_) => None,
        });
        through.chain(under_way).collect()
    }

    /// Lets the reads at the front look: all entries before them have been applied.
    fn look(&mut self) {
        while let Some(UnderWay::Look(_)) = self.under_way.front() {
            let Some(UnderWay::Look(mut job)) = self.under_way.pop_front() else { break };
            job.look(&self.inner);
            self.through.push_back(Through::Looked(job));
        }
    }

    /// Executes an entry and appends its reply: that of the machine, or the session's name.
    pub fn execute(&mut self, index: LogIndex, entry: Entry<'_>, reply: &mut Vec<u8>) {
        match entry {
            Entry::Plain { command } => self.inner.apply(index, command, reply),
            Entry::InSession { session, seq, confirmed, command } => {
                // The primary proposes no command twice. But the session may have been transferred to this replica with the command already executed.
                match self.sessions.turn(session, seq) {
                    Ok(Turn::Done(known)) => reply.extend_from_slice(known),
                    // A primary that holds the sessions proposes no command out of turn. Should one be in the log all the same, every replica skips it.
                    Err(CallError::Confirmed { .. } | CallError::ReplyTooLong { .. } | CallError::OutOfTurn { .. }) => {}
                    _ => {
                        let start = reply.len();
                        self.inner.apply(index, command, reply);
                        self.sessions.record(index, session, seq, confirmed, &reply[start..]);
                    }
                }
            }
            Entry::Open { evicted } => {
                self.sessions.open(index, evicted);
                reply.extend_from_slice(&index.0.to_le_bytes());
            }
            Entry::Close { session } => self.sessions.close(session),
        }
    }

    pub fn clear(&mut self) {
        self.inner.clear();
        self.sessions.clear();
        self.unreadable = None;
    }
}

/// A machine lent to a node for as long as it runs.
pub(super) struct Lent<'a, M>(pub &'a mut Replicated<M>);

impl<M: StateMachine> replica::StateMachine for Lent<'_, M> {
    fn apply(&mut self, index: LogIndex, command: &[u8]) {
        if self.0.unreadable.is_some() {
            return;
        }
        let Some(entry) = Entry::decode(command) else {
            let why = "it is none of an embedded replica: do all nodes of the cluster run the same program?".into();
            self.0.unreadable = Some(UnreadableEntry { index, why });
            return;
        };
        self.0.look();
        let mut reply = std::mem::take(&mut self.0.reply);
        reply.clear();
        self.0.execute(index, entry, &mut reply);
        if matches!(self.0.under_way.front(), Some(UnderWay::Reply(awaited)) if *awaited == index) {
            self.0.under_way.pop_front();
            self.0.through.push_back(Through::Reply(std::mem::take(&mut reply)));
        }
        self.0.reply = reply;
    }

    fn unreadable(&self) -> Option<&UnreadableEntry> {
        self.0.unreadable.as_ref()
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        if self.0.unreadable.is_some() {
            out.push(NO_PART);
            return None;
        }
        if cursor < SESSIONS {
            out.push(OF_MACHINE);
            let next = self.0.inner.transfer(cursor, budget, out).unwrap_or(SESSIONS);
            invariant!(next <= SESSIONS, "a state machine's cursor is {next}; allowed is below 2^63");
            return Some(next);
        }
        out.push(OF_SESSIONS);
        let next = self.0.sessions.transfer(cursor - SESSIONS, budget, out)?;
        invariant!(next < SESSIONS, "the log has had 2^63 entries");
        Some(SESSIONS + next)
    }

    fn install(&mut self, part: &[u8]) -> Result<(), UnreadablePart> {
        match part.split_first() {
            Some((&OF_MACHINE, part)) => self.0.inner.install(part),
            Some((&OF_SESSIONS, part)) => self.0.sessions.install(part),
            _ => Err(UnreadablePart),
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn keep_alive(&mut self, pulse: &Pulse) {
        self.0.inner.keep_alive(pulse);
    }

    fn digest(&self) -> u64 {
        let mut sessions = Vec::new();
        self.0.sessions.transfer(0, usize::MAX, &mut sessions);
        self.0.inner.digest() ^ digest_of(&sessions).rotate_left(1)
    }
}

#[cfg(test)]
mod tests {
    use martlet_protocol::replica::StateMachine as _;

    use super::*;

    /// Appends each command to a list, and replies with how many there are.
    #[derive(Default)]
    struct List(Vec<u8>);

    impl StateMachine for List {
        fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
            self.0.extend_from_slice(command);
            reply.push(self.0.len() as u8);
        }
        fn snapshot(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0);
        }
        fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
            if snapshot.first() == Some(&0) {
                return Err(UnreadablePart);
            }
            self.0 = snapshot.to_vec();
            Ok(())
        }
        fn clear(&mut self) {
            self.0.clear();
        }
    }

    fn apply(machine: &mut Replicated<List>, index: u64, entry: Entry<'_>) -> Vec<u8> {
        let mut reply = Vec::new();
        machine.execute(LogIndex(index), entry, &mut reply);
        reply
    }

    #[test]
    fn a_session_is_named_by_its_entry_and_a_repeated_command_is_answered_and_not_executed() {
        let mut machine = Replicated::new(List::default());
        assert_eq!(apply(&mut machine, 7, Entry::Open { evicted: None }), 7u64.to_le_bytes());
        let once = Entry::InSession { session: 7, seq: 1, confirmed: 0, command: b"ab" };
        assert_eq!(apply(&mut machine, 8, once), [2]);
        assert_eq!(apply(&mut machine, 9, Entry::Plain { command: b"c" }), [3]);
        assert_eq!(apply(&mut machine, 10, once), [2]);
        assert_eq!(machine.inner().0, b"abc");
    }

    #[test]
    fn an_entry_of_another_build_is_named_and_the_state_is_not_taught() {
        let mut machine = Replicated::new(List::default());
        Lent(&mut machine).apply(LogIndex(7), &[99, 1]);
        let mut plain = Vec::new();
        Entry::Plain { command: b"a" }.encode(&mut plain);
        Lent(&mut machine).apply(LogIndex(8), &plain);
        assert_eq!(Lent(&mut machine).unreadable().map(|entry| entry.index), Some(LogIndex(7)));
        assert_eq!(machine.inner().0, b"", "nothing that follows is taken");
        let mut part = Vec::new();
        assert_eq!(Lent(&mut machine).transfer(0, 1000, &mut part), None);
        assert_eq!(Lent(&mut Replicated::new(List::default())).install(&part), Err(UnreadablePart));
        Lent(&mut machine).clear();
        assert_eq!(Lent(&mut machine).unreadable(), None);
    }

    #[test]
    fn what_the_program_cannot_read_is_refused() {
        let mut machine = Replicated::new(List::default());
        assert_eq!(Lent(&mut machine).install(&[OF_MACHINE, 7]), Ok(()));
        assert_eq!(Lent(&mut machine).install(&[OF_MACHINE, 0]), Err(UnreadablePart));
    }

    #[test]
    fn one_that_joins_between_commands_keeps_the_replies_that_were_given() {
        let mut machine = Replicated::new(List::default());
        apply(&mut machine, 1, Entry::Open { evicted: None });
        apply(&mut machine, 2, Entry::InSession { session: 1, seq: 1, confirmed: 0, command: b"ab" });
        let mut learner = Replicated::new(List::default());
        let (mut cursor, mut index) = (Some(0), 2);
        while let Some(at) = cursor {
            let mut part = Vec::new();
            cursor = Lent(&mut machine).transfer(at, 1, &mut part);
            Lent(&mut learner).install(&part).expect("a part");
            // Right after the first part the session is not there yet, and the command has to be executed all the same.
            index += 1;
            let mut bytes = Vec::new();
            Entry::InSession { session: 1, seq: index - 1, confirmed: 0, command: b"x" }.encode(&mut bytes);
            Lent(&mut machine).apply(LogIndex(index), &bytes);
            Lent(&mut learner).apply(LogIndex(index), &bytes);
        }
        assert!(index > 3, "several parts");
        assert_eq!(learner.sessions, machine.sessions);
        assert_eq!(Lent(&mut learner).digest(), Lent(&mut machine).digest());
        assert_eq!(learner.sessions.turn(1, 2), Ok(Turn::Done(&[3])));
    }
}
