//! What the nodes of the benchmark serve: whoever leads proposes at a steady pace, and keeps what it sees of its own time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use martlet_node::clock;
use martlet_protocol::basics::Time;
use martlet_protocol::replica::{Application, Replica, Standing, StateMachine as _, Ticket};

use super::machine::{self, Bytes};
use super::record::{Record, Span};

/// By how much one command lengthens the state.
pub const GROWTH: usize = 64 << 10;
/// Proposals taken in one turn, at most.
const A_TURN: usize = 32;
/// A gap between two turns is kept from this length on, in nanoseconds.
const KEPT_NS: u64 = 20_000;
/// How often the thread asks for how long it was kept from running, in nanoseconds: so much of that is counted for a gap that was before it.
const ASKED_NS: u64 = 100_000;

/// What the benchmark wants of the nodes, as they read it from their standard input.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The state is to be at least so long.
    state: AtomicU64,
    /// One proposal is due each so many nanoseconds; 0: none are.
    pace: AtomicU64,
    /// Of how many bytes.
    payload: AtomicU64,
}

impl Wanted {
    /// Takes orders until there are no more: `fill BYTES`, or `load PACE_NS PAYLOAD`.
    pub fn read(&self, orders: impl BufRead) {
        for line in orders.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
            match words.first() {
                Some(&"fill") => self.state.store(number(1), Ordering::Relaxed),
                Some(&"load") => {
                    self.payload.store(number(2), Ordering::Relaxed);
                    self.pace.store(number(1), Ordering::Relaxed);
                }
                _ => tracing::error!(line, "no order"),
            }
        }
    }
}

/// For how long a thread could have run and was not let.
struct Waits(Option<File>);

impl Waits {
    /// Of the calling thread. Without the kernel's word for it, it is never.
    fn of_this_thread() -> Waits {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        let file = File::open(format!("/proc/self/task/{tid}/schedstat"));
        Waits(file.inspect_err(|error| tracing::warn!(%error, "the kernel does not tell how long threads wait for a core")).ok())
    }

    /// So far, in nanoseconds: the second number of three.
    fn ns(&self) -> u64 {
        let mut text = [0; 64];
        let Some(read) = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()) else { return 0 };
        let text = std::str::from_utf8(&text[..read]).unwrap_or_default();
        text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}

/// The application.
pub struct Pacer {
    wanted: Arc<Wanted>,
    pub record: Record,
    /// Executed, and not released: when it was due, or `None` where it lengthens the state.
    waiting: VecDeque<(Ticket, Option<u64>)>,
    reign: u64,
    /// When the next proposal is due.
    next: u64,
    last_turn: Time,
    waits: Option<Waits>,
    /// How long the thread had waited at the last look, and when that was.
    waited: (u64, Time),
    rng: fastrand::Rng,
    command: Vec<u8>,
}

impl Pacer {
    pub fn new(wanted: Arc<Wanted>) -> Pacer {
        Pacer {
            wanted,
            record: Record::new(),
            waiting: VecDeque::with_capacity(1 << 16),
            reign: 0,
            next: 0,
            last_turn: Time(0),
            waits: None,
            waited: (0, Time(0)),
            rng: fastrand::Rng::new(),
            command: Vec::with_capacity(1 << 16),
        }
    }

    /// Looks at the clock, as whoever leads does in each turn.
    fn note_turn(&mut self, now: Time) {
        let gap = now.since(self.last_turn);
        if self.last_turn != Time(0) && (gap >= KEPT_NS || now.since(self.waited.1) >= ASKED_NS) {
            let waited = self.waits.get_or_insert_with(Waits::of_this_thread).ns();
            if gap >= KEPT_NS {
                let span = Span { at: self.last_turn.0, ns: gap, waited_ns: (waited - self.waited.0).min(gap) };
                Record::keep(&mut self.record.gaps, &mut self.record.overflowed, span);
            }
            self.waited = (waited, now);
        }
        // A look is a part of the turn: the kernel likes to give the core to others at its end.
        self.last_turn = now;
    }

    /// Executes and proposes one command. `false`: there is no room.
    fn propose<R: Replica<Machine = Bytes>>(&mut self, replica: &mut R, due: Option<u64>) -> bool {
        if !replica.has_room(self.command.len()) {
            return false;
        }
        let Ok(index) = replica.propose(&self.command) else { return false };
        replica.machine_mut().apply(index, &self.command);
        self.waiting.push_back((replica.ticket(), due));
        true
    }

    fn begin<R: Replica>(&mut self, replica: &R) -> bool {
        if self.reign != replica.reign() {
            self.reign = replica.reign();
            self.waiting.clear();
            (self.next, self.last_turn) = (0, Time(0));
        }
        replica.standing() == Standing::Primary
    }
}

impl Application for &mut Pacer {
    type Machine = Bytes;

    fn poll<R: Replica<Machine = Bytes>>(&mut self, replica: &mut R) -> usize {
        while replica.client_event().is_some() {}
        if !self.begin(replica) {
            return 0;
        }
        let now = clock::now();
        self.note_turn(now);
        let state = self.wanted.state.load(Ordering::Relaxed) as usize;
        let mut taken = 0;
        let missing = state.saturating_sub(replica.machine().len());
        if missing > 0 {
            machine::grow(missing.min(GROWTH), &mut self.command);
            taken += usize::from(self.propose(replica, None));
        }
        let pace = self.wanted.pace.load(Ordering::Relaxed);
        if pace == 0 {
            self.next = 0;
            return taken;
        }
        if self.next == 0 {
            self.next = now.0;
        }
        // What fell due while nothing could be proposed is proposed now, and its time counts from then.
        while self.next <= now.0 && taken < A_TURN {
            let payload = self.wanted.payload.load(Ordering::Relaxed) as usize;
            let place = self.rng.u64(..=replica.machine().len() as u64);
            machine::write(place, payload, &mut self.command);
            if !self.propose(replica, Some(self.next)) {
                break;
            }
            self.next += pace;
            taken += 1;
        }
        taken
    }

    fn release<R: Replica<Machine = Bytes>>(&mut self, replica: &mut R) -> usize {
        if !self.begin(replica) {
            return 0;
        }
        let mut sent = 0;
        while let Some((_, due)) = self.waiting.front().copied().filter(|(ticket, _)| *ticket <= replica.released()) {
            self.waiting.pop_front();
            sent += 1;
            if let Some(due) = due {
                let span = Span { at: due, ns: clock::now().since(Time(due)), waited_ns: 0 };
                Record::keep(&mut self.record.proposals, &mut self.record.overflowed, span);
            }
        }
        sent
    }
}
