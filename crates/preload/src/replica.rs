//! A replica of a server: what it knows, and what it does in each turn that its node gives it.
//!
//! A follower hands its server the rounds that are committed; a leader collects them. Between the two a replica [takes over](crate::takeover). A replica that
//! has stopped leading ends: its last proposal may not be in the log, and its successor makes sure that it is dead before it touches a socket.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use martlet_node::connections::keeper::{self, Left, Mended};
use martlet_node::counters::Counter;
use martlet_node::embed::{Here, Turn};

use crate::backpressure::Backpressure;
use crate::board::{Board, Holder};
use crate::children::Children;
use crate::control::{Control, Order};
use crate::entry::{End, Entry, Record};
use crate::fault::{self, Void};
use crate::known::Known;
use crate::leaders::Leaders;
use crate::machine::{Machine, OWN, tell_known, with_replay};
use crate::main_thread::Confined;
use crate::pace::Pace;
use crate::socket::{self, Pipe, Poller};
use crate::stream::Stream;
use crate::sys::{complain, die};
use crate::table::{Connection, Table};
use crate::takeover::Asked;
use crate::wording::Worded;
use crate::{clock, fiber, heart, process, threads};

/// How often, in nanoseconds, a leader looks which replicas count towards commits, a follower looks which processes it may have to succeed, and a replica that
/// waits for its first turn looks whether that has come.
const LOOK_NS: u64 = 10_000_000;
/// How often a leader that waits for a newcomer looks at it, in nanoseconds.
const PACE_NS: u64 = 1_000_000;
/// How often a leader that has much to do looks for orders, in nanoseconds.
const ORDERS_NS: u64 = 100_000;
/// For how long a newcomer that has been taught waits for rounds that it lacks all the same, in nanoseconds.
///
/// It does not end at once, although only another lesson can bring those rounds: it may count towards commits, with `dare` and `apus` even before it is taught.
/// Then what the leader commits is in those two logs only, until the third replica has it: should the leader die at this moment, the third replica recovers
/// from this one's log. That takes a moment, and the wait is many times as long. Meanwhile this replica is on the board, so its node is not forked again.
const GAP_NS: u64 = 10_000_000_000;
/// For how long a replica waits to be taught. It is given the state once it has arrived as a whole, and hears of rounds before that.
const TAUGHT_NS: u64 = crate::board::EXPECTED_NS;
/// How often a replica looks whether any replica leads, in nanoseconds.
const LEADER_LOOK_NS: u64 = 1_000_000_000;
/// A replica that `martlet run` does not watch over ends after so many looks that found no leader. A keeper waits as long for a successor.
const LEADERLESS_LOOKS: u32 = keeper::PATIENCE;
/// What the keepers of replicas are called.
pub const KEEPER: &str = "keeper";
/// How many rounds a follower's server executes in one turn of its node.
const ROUNDS_A_TURN: u32 = 64;
/// How many replicas a server has.
pub const REPLICAS: u32 = 3;

/// What the server's thread waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    /// The most events that it takes at once.
    pub most: usize,
    /// Until when, on the monotonic clock; `None`: for as long as it takes.
    pub until_ns: Option<u64>,
}

/// What this replica does.
#[derive(Debug)]
pub enum Role {
    /// It hands its server what is committed.
    Follows,
    /// It has proposed to be the leader. Holds whether that is committed.
    Claims(Rc<Cell<Option<bool>>>),
    /// It is the next leader, and all leaders before it are dead: it executes what they may not have executed.
    Succeeds(Vec<(Holder, Asked)>),
    /// It collects rounds.
    Leads(Box<Lead>),
}

/// What a leader has beside what every replica has.
#[derive(Debug)]
pub struct Lead {
    /// The round that is proposed: its length, and whether it is committed.
    pub proposed: Option<(usize, Rc<Cell<Option<bool>>>)>,
    /// Sockets that have been accepted, already under the descriptors that they will have, but that are in no round yet.
    pub placed: Vec<OwnedFd>,
    /// Connections that the previous leader accepted and that are in no round.
    pub inherited: Vec<OwnedFd>,
    /// Slots that may have unread input.
    pub readable: Vec<u32>,
    /// Slots for which the log is to say how far they are drained.
    pub drained: BTreeSet<u32>,
    /// Signals that the servers are to be given.
    pub signals: Vec<i32>,
    /// The next round is due whether or not it has any content.
    pub is_due: bool,
    /// What earlier leaders have left. Kept until the first round is committed.
    pub left: Vec<(Holder, Option<Left>)>,
    /// The pipe through which output goes into Unix sockets.
    pub pipe: Pipe,
    /// Its first rounds are committed, and nothing of the previous leader is needed any more.
    pub is_settled: bool,
    /// Its first round is committed, and its server has been given that round.
    pub has_begun: bool,
    /// When it last looked which replicas count towards commits.
    pub looked_ns: u64,
    /// What it last said about that.
    pub said: Said,
    /// How fast it collects while a newcomer is far behind.
    pub pace: Pace,
    /// The same while a follower is far behind the leader's words on the board.
    pub backpressure: Backpressure,
}

/// What a leader says of its replicas, one bit for each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Those that count towards commits.
    pub group: u64,
    /// Those among them that still lack rounds.
    pub lacking: u64,
}

impl Lead {
    /// The state of a leader that begins.
    pub fn new(left: Vec<(Holder, Option<Left>)>, pipe: Pipe) -> Lead {
        Lead {
            proposed: None,
            placed: Vec::new(),
            inherited: Vec::new(),
            readable: Vec::new(),
            drained: BTreeSet::new(),
            signals: Vec::new(),
            is_due: true,
            left,
            pipe,
            is_settled: false,
            has_begun: false,
            looked_ns: 0,
            said: Said::default(),
            pace: Pace::default(),
            backpressure: Backpressure::default(),
        }
    }
}

/// A replica.
#[derive(Debug)]
pub struct Replica {
    /// Which node it is.
    pub node: u16,
    /// Its process.
    pub own: Holder,
    pub board: Board,
    pub control: Option<Control>,
    pub poller: Poller,
    pub role: Role,
    pub table: Table,
    /// The last round that its server has been given.
    pub round: u64,
    pub wait: Wait,
    /// What the server is to be told, and at which epoll instance.
    pub delivery: Vec<(RawFd, libc::epoll_event)>,
    /// Signals that the server is to be given first.
    pub signals: Vec<i32>,
    /// The reads of the current round that its server is not to be given.
    pub voids: Vec<Void>,
    /// How far it has heard what the system has told leaders.
    pub heard: u64,
    /// What it has heard of files.
    pub known: Known,
    /// How much of the leader's own wording the others have been told in this round, if this replica leads.
    pub worded: Worded,
    /// The server's children.
    pub children: Children,
    /// It has been forked, or the log has overrun it, and it still lacks rounds.
    pub is_newborn: bool,
    /// When it last looked whether its node is whole, on the monotonic clock.
    looked_at_node_ns: u64,
    /// When it last looked whether its keeper lives.
    looked_at_keeper_ns: u64,
    /// Its keeper is dead, and the system has refused another one.
    lacks_keeper: bool,
    /// The replica that is to be forked while the server waits, before the server continues.
    pub fork: Option<u16>,
    /// The replica that `martlet run` wants forked as soon as that is possible.
    fork_wanted: Option<u16>,
    /// When a leader last looked for orders, in nanoseconds.
    orders_ns: u64,
    /// While rounds wait for others that are missing: the last round before the gap and how often this replica has been taught, and since when both have been
    /// so.
    gap_since: Option<((u64, u64), u64)>,
    /// Whether any replica leads, as far as this one has seen.
    led: Led,
    /// The leaders that it may have to succeed.
    pub leaders: Leaders,
}

/// What a replica has seen of leaders.
#[derive(Debug, Default)]
struct Led {
    /// When it looked last.
    looked_ns: u64,
    /// How often leaders had shown by then that they lead.
    beats: u64,
    /// How many looks since then have found that no leader has. It is not a time: a replica that was stopped along with the others has missed nothing.
    in_vain: u32,
}

impl Led {
    /// Looks once more. Returns whether a replica that is not watched over has seen no leader for too long.
    fn look(&mut self, beats: u64, is_watched: bool) -> bool {
        let is_led = std::mem::replace(&mut self.beats, beats) != beats;
        self.in_vain = if is_led || is_watched { 0 } else { self.in_vain + 1 };
        self.in_vain > LEADERLESS_LOOKS
    }
}

/// The captured thread's replica.
static REPLICA: Confined<RefCell<Option<Replica>>> = Confined::new(RefCell::new(None));

/// Uses the replica, if there is one. Nothing that `use_it` calls may give way to the other stack.
pub fn with<R>(use_it: impl FnOnce(&mut Replica) -> R) -> Option<R> {
    REPLICA.get().borrow_mut().as_mut().map(use_it)
}

/// Makes this process a replica.
pub fn install(replica: Replica) {
    *REPLICA.get().borrow_mut() = Some(replica);
}

/// This process is no replica any more.
pub fn uninstall() -> Option<Replica> {
    REPLICA.get().take()
}

/// The outcome of a replica's step.
enum Step {
    /// The server goes on, on its own stack.
    GiveWay,
    /// The node goes on.
    Return(Turn),
}

/// The turn that the node gives its program. Runs on the node's stack.
pub fn turn(here: &mut Here<'_, Machine>) -> Turn {
    for _ in 0..ROUNDS_A_TURN {
        match with(|replica| replica.step(here)) {
            Some(Step::GiveWay) => fiber::to_server(),
            Some(Step::Return(turn)) => return turn,
            None => die("its node ran before the replica was set up"),
        }
    }
    Turn::Worked
}

impl Replica {
    /// A follower that has nothing to do yet.
    pub fn new(own: Holder, board: Board, control: Option<Control>, poller: Poller, table: Table) -> Replica {
        Replica {
            node: own.node,
            own,
            board,
            control,
            poller,
            role: Role::Follows,
            table,
            round: 0,
            wait: Wait::default(),
            delivery: Vec::new(),
            signals: Vec::new(),
            voids: Vec::new(),
            heard: 0,
            known: Known::default(),
            worded: Worded::default(),
            children: Children::default(),
            is_newborn: false,
            looked_at_node_ns: 0,
            looked_at_keeper_ns: 0,
            lacks_keeper: false,
            fork: None,
            fork_wanted: None,
            orders_ns: 0,
            gap_since: None,
            led: Led::default(),
            leaders: Leaders::default(),
        }
    }

    /// Tells the process that started the server.
    pub fn tell(&self, line: &str) {
        if let Some(control) = &self.control {
            control.tell(line);
        }
    }

    fn step(&mut self, here: &mut Here<'_, Machine>) -> Step {
        // This replica may count towards commits before it has been taught, and hear of rounds before it counts.
        let now = clock::monotonic_ns();
        self.mind_keeper(now);
        self.mind_end(now);
        // A leader has executed all that is committed, and need hear of no round but its own.
        let leads = matches!(self.role, Role::Leads(_));
        if !leads && (with_replay(|replay| replay.take_pupil()) || !self.is_newborn && self.look_around(now, here)) {
            // The log has overrun this replica. The others keep for it what it lacks, as for a newborn, and it forks no replica until it has that.
            self.is_newborn = true;
        }
        tell_known();
        if self.is_newborn {
            if leads || with_replay(|replay| replay.is_level()) && group(here) >> self.node & 1 != 0 && is_whole(here) {
                self.is_newborn = false;
                self.board.arrived(self.node);
            } else {
                // If its teacher has to begin again, it begins with what is lacked by now.
                self.board.expect(self.node, with_replay(|replay| replay.last()) + 1, now);
            }
        }
        let lacked = self.board.first_lacked(now);
        with_replay(|replay| replay.expect(lacked));
        match &self.role {
            Role::Leads(_) => self.lead(here, now),
            Role::Follows | Role::Claims(_) | Role::Succeeds(_) => self.follow(here),
        }
    }

    /// Looks every now and then which processes it may have to succeed. Returns whether the log has overrun this replica, so that it will be taught: even
    /// before that begins no replica is to rely on it.
    fn look_around(&mut self, now: u64, here: &mut Here<'_, Machine>) -> bool {
        let due = now.saturating_sub(self.looked_at_node_ns) >= LOOK_NS;
        if due {
            self.looked_at_node_ns = now;
            self.leaders.watch(self.board.holders().into_iter().filter(|holder| *holder != self.own).collect());
        }
        due && !is_whole(here)
    }

    /// Without a keeper, the connections would end with this process.
    fn mind_keeper(&mut self, now: u64) {
        let every = if self.lacks_keeper { LEADER_LOOK_NS } else { LOOK_NS };
        if now.saturating_sub(self.looked_at_keeper_ns) < every {
            return;
        }
        self.looked_at_keeper_ns = now;
        match keeper::mend() {
            None => {}
            Some(Mended::Replaced) => {
                self.lacks_keeper = false;
                self.tell(&format!("keeper {} replaced", self.node));
            }
            // It has been told already.
            Some(Mended::Lost(_)) if self.lacks_keeper => {}
            Some(Mended::Lost(error)) => {
                self.lacks_keeper = true;
                complain(&format!("its keeper has died, and cannot be replaced: {error}"));
                self.tell(&format!("keeper {} lost", self.node));
            }
        }
    }

    /// Once the process that started the server is gone, nothing replaces the dead. If no replica leads any more either, none ever will.
    fn mind_end(&mut self, now: u64) {
        if now.saturating_sub(self.led.looked_ns) < LEADER_LOOK_NS {
            return;
        }
        self.led.looked_ns = now;
        // A replica that waits for others would take no orders otherwise, and would not notice that there will be no more of them.
        self.take_orders();
        if self.led.look(self.board.beats(), self.control.is_some()) {
            die("no replica leads, and martlet run, which would replace a dead replica, is gone");
        }
    }

    fn follow(&mut self, here: &mut Here<'_, Machine>) -> Step {
        if let Some(number) = with_replay(|replay| replay.upcoming()) {
            // A leader may be executing this round just now: should the round crash it, this replica must not have executed it.
            if number > self.board.survived() && !matches!(self.role, Role::Succeeds(_)) {
                return self.succeed_or_wait(here);
            }
            if let Some(round) = with_replay(|replay| replay.next()) {
                self.deliver(&round);
            }
            return Step::GiveWay;
        }
        self.mind_gap();
        if let Role::Succeeds(before) = &mut self.role {
            if with_replay(|replay| replay.has_gap()) {
                die("it is to lead, but has not received all rounds");
            }
            let before = std::mem::take(before);
            self.take_over(before);
            return Step::Return(Turn::Worked);
        }
        self.succeed_or_wait(here)
    }

    /// Everything that leaders have survived has been executed here.
    fn succeed_or_wait(&mut self, here: &mut Here<'_, Machine>) -> Step {
        match &self.role {
            Role::Claims(outcome) => match outcome.get() {
                // Everything before the claim is committed.
                Some(true) => {
                    // This replica has what it needs of the others, however long it now takes to execute the rest.
                    self.succeed();
                    return Step::Return(Turn::Worked);
                }
                Some(false) => self.role = Role::Follows,
                None => return Step::Return(Turn::Idle),
            },
            _ if here.leads() => {
                // Newborn replicas begin once all of them are there.
                if !self.board.is_open() && group(here).count_ones() < REPLICAS {
                    return Step::Return(Turn::IdleFor(Duration::from_nanos(LOOK_NS)));
                }
                let outcome = Rc::new(Cell::new(None));
                let told = Rc::clone(&outcome);
                here.propose_with(&Entry::reign(self.node), move |result| told.set(Some(result.is_ok())));
                self.role = Role::Claims(outcome);
                return Step::Return(Turn::Worked);
            }
            _ => {}
        }
        self.take_orders();
        if self.forks_now() {
            return Step::GiveWay;
        }
        // Only the next round tells that a leader has survived a round.
        let waits = with_replay(|replay| replay.upcoming()).is_some();
        Step::Return(if waits { Turn::IdleFor(Duration::from_nanos(LOOK_NS)) } else { Turn::Idle })
    }

    /// The server has come back to its wait from the round that it was given last.
    pub fn come_back(&mut self) {
        heart::end();
        fault::end();
        self.close_withdrawn();
        if matches!(self.role, Role::Leads(_) | Role::Succeeds(_)) {
            self.board.survive(self.round);
        }
    }

    fn lead(&mut self, here: &mut Here<'_, Machine>, now: u64) -> Step {
        if !here.leads() {
            die("it no longer leads");
        }
        let Role::Leads(lead) = &mut self.role else { return Step::Return(Turn::Idle) };
        if let Some((len, outcome)) = &lead.proposed {
            return match outcome.get() {
                None => Step::Return(Turn::Idle),
                Some(false) => die("what it has proposed may be lost, since it no longer leads"),
                Some(true) => {
                    let len = *len;
                    lead.proposed = None;
                    // SAFETY: this process is the replica of this node and leads; the reference ends with this block, in which no other is taken.
                    let stage = unsafe { self.board.own_stage(self.node) };
                    self.deliver(&stage[..len]);
                    if let Role::Leads(lead) = &mut self.role
                        && !std::mem::replace(&mut lead.has_begun, true)
                    {
                        self.board.open();
                    }
                    Step::GiveWay
                }
            };
        }
        self.finish_takeover(here);
        self.board.beat();
        // Looking takes a system call. What waits there ends every sleep until it is taken.
        if now.saturating_sub(self.orders_ns) >= ORDERS_NS {
            self.orders_ns = now;
            self.take_orders();
        }
        if self.forks_now() {
            return Step::GiveWay;
        }
        self.tell_group(here, now);
        if !self.may_collect(now) {
            return Step::Return(Turn::IdleFor(Duration::from_nanos(PACE_NS)));
        }
        match self.collect() {
            Some(len) => {
                if let Role::Leads(lead) = &mut self.role {
                    lead.pace.collected();
                }
                // SAFETY: as above.
                let stage = unsafe { self.board.own_stage(self.node) };
                let outcome = Rc::new(Cell::new(None));
                let told = Rc::clone(&outcome);
                OWN.get().set(self.round + 1);
                here.propose_with(&stage[..len], move |result| told.set(Some(result.is_ok())));
                if let Role::Leads(lead) = &mut self.role {
                    lead.proposed = Some((len, outcome));
                }
                Step::Return(Turn::Worked)
            }
            None => {
                let now = clock::monotonic_ns();
                let left = self.wait.until_ns.map_or(LOOK_NS * 10, |until| until.saturating_sub(now));
                Step::Return(Turn::IdleFor(Duration::from_nanos(left)))
            }
        }
    }

    /// Whether the server is to give way for a wanted fork: it waits and has come back from every round that it was given, and its helpers rest too. A newborn
    /// waits until it lacks nothing, because its fork would lack the same.
    fn forks_now(&mut self) -> bool {
        if !self.is_newborn && threads::all_rest() {
            // Another replica may have been asked meanwhile, because this one did not get to it.
            self.fork = self.fork_wanted.take().filter(|node| self.board.present() >> node & 1 == 0);
        }
        self.fork.is_some()
    }

    fn take_orders(&mut self) {
        while let Some(control) = &self.control {
            match control.order() {
                Ok(None) => break,
                Ok(Some(Order::Fork(node))) => self.fork_wanted = Some(node),
                Ok(Some(Order::Signal(number))) => match &mut self.role {
                    Role::Leads(lead) => lead.signals.push(number),
                    _ => self.tell(&format!("refused signal {number}: this replica does not lead")),
                },
                // The server goes on without the process that started it.
                Err(()) => {
                    let _ = self.poller.watch(control.fd(), libc::EPOLLIN as u32, 0);
                    self.control = None;
                }
            }
        }
    }

    fn mind_gap(&mut self) {
        if !with_replay(|replay| replay.has_gap()) {
            self.gap_since = None;
            return;
        }
        let now = clock::monotonic_ns();
        let state = with_replay(|replay| (replay.last(), replay.lessons()));
        // As long as it is being taught, however slowly, there is hope.
        self.gap_since.take_if(|(before, _)| *before != state);
        let ((last, _), since) = *self.gap_since.get_or_insert((state, now));
        if now.saturating_sub(since) > if with_replay(|replay| replay.is_taught()) { GAP_NS } else { TAUGHT_NS } {
            die(&format!(
                "it has received no round after {last} and needs those up to {}, which are not kept any more: it came too late",
                with_replay(|replay| replay.first_early()) - 1
            ));
        }
    }

    /// Whether to collect the next round now, rather than when a newcomer has been told more or a follower has heard more.
    fn may_collect(&mut self, now: u64) -> bool {
        let Role::Leads(lead) = &mut self.role else { return false };
        // Until a successor's first rounds are committed, clients wait for answers that they had coming.
        if !lead.is_settled {
            return true;
        }
        // This step has already looked at the board.
        let lacked = with_replay(|replay| replay.lacked().zip(replay.lacked_bytes()));
        let (board, node) = (self.board, self.node);
        let runs = |follower: Holder| process::runs(follower.pid, follower.started);
        lead.pace.permits(now, lacked) && lead.backpressure.permits(now, board.told_end(), || board.followers(node), runs)
    }

    /// Says which replicas count towards commits when that has changed, and has rounds made for those that lack some.
    fn tell_group(&mut self, here: &mut Here<'_, Machine>, now: u64) {
        let Role::Leads(lead) = &mut self.role else { return };
        // A successor's clients wait, and looking takes system calls.
        if !lead.is_settled || now.saturating_sub(lead.looked_ns) < LOOK_NS {
            return;
        }
        let group = group(here);
        // Replicas that count are taken to be alive: if they are not, they will soon no longer count.
        for other in self.board.processes(self.board.lacking() | !group) {
            // What a dead replica lacked need not be kept any more, nor told to another newcomer.
            if !process::runs(other.pid, other.started) {
                self.board.died(other);
            }
        }
        // A replica may count before it has been taught, and after its death.
        let being_taught = group & self.board.lacking();
        let lacking = being_taught | group & !self.board.present();
        let Said { group: before, lacking: lacking_before } = std::mem::replace(&mut lead.said, Said { group, lacking });
        lead.looked_ns = now;
        // A newcomer learns what it lacks from the next round that it hears of, and a server without timers of its own may have nothing to be woken for.
        lead.is_due |= being_taught != 0;
        if (before, lacking_before) != (group, lacking) {
            self.tell(&format!("group {group} {lacking}"));
        }
        self.show(here);
    }

    /// Shows operators what it leads, once it serves.
    pub fn show(&self, here: &mut Here<'_, Machine>) {
        if matches!(&self.role, Role::Leads(lead) if lead.is_settled) {
            here.show(self.board.service().told(self.table.iter().count() as u64));
        }
    }

    /// Gives the server a committed round.
    fn deliver(&mut self, bytes: &[u8]) {
        let Ok(Entry::Round(round)) = Entry::decode(bytes) else { die("an entry of the log is no round") };
        if round.number != self.round + 1 {
            die(&format!("round {} came behind round {}", round.number, self.round));
        }
        self.round = round.number;
        self.voids = self.board.voids(round.number);
        let now = clock::monotonic_ns();
        fault::begin(round.number, now);
        heart::begin(now, round.number <= self.board.survived());
        clock::set(round.stamp);
        self.delivery.clear();
        for record in round.records() {
            self.learn(record);
        }
    }

    fn learn(&mut self, record: Record<'_>) {
        match record {
            Record::Accept { slot, connection, cookie, listener, peer, local } => {
                self.accept(slot, Stream::new(connection, cookie, peer, local), listener);
            }
            Record::Input { slot, connection, offset, bytes, end } => {
                let Some(known) = self.table.get_mut(slot).filter(|known| known.stream.connection == connection) else { return };
                if known.stream.logged() != offset {
                    die(&format!("input of connection {connection} from byte {offset} on came behind byte {}", known.stream.logged()));
                }
                known.stream.receive(bytes, end);
                if known.is_unix && matches!(self.role, Role::Leads(_)) {
                    // The bytes are consumed now because the round is committed, and not before. If fewer are there, the client is gone, which its next input
                    // will say.
                    let _ = socket::consume(Table::fd_of(slot), bytes.len());
                }
                let noted = std::mem::replace(&mut known.noted, true);
                if let (Role::Leads(lead), false) = (&mut self.role, noted) {
                    lead.readable.push(slot);
                }
                if end != End::Open {
                    // The kernel would report it again and again.
                    self.watch(slot);
                }
            }
            Record::Drained { slot, connection, offset } => {
                if let Some(known) = self.table.get_mut(slot).filter(|known| known.stream.connection == connection) {
                    known.stream.drain(offset);
                }
            }
            Record::Signal { number } => self.signals.push(number),
            Record::Child { pid, status } => self.children.end(pid, status),
            Record::Ready { fd, events } => {
                let Some(interest) = self.table.interests.get(&fd).copied() else { return };
                let slot = self.table.slot_of(fd);
                if let Some(slot) = slot.filter(|_| interest.is_edge() && events & libc::EPOLLOUT as u32 != 0) {
                    self.table.wants_room.remove(&slot);
                }
                let has_ended = slot.and_then(|slot| self.table.get(slot)).is_some_and(|connection| connection.stream.has_ended());
                let told = interest.told(events, has_ended);
                if told != 0 {
                    self.delivery.push((interest.epoll, libc::epoll_event { events: told, u64: interest.data }));
                }
            }
        }
    }

    fn accept(&mut self, slot: u32, stream: Stream, listener: RawFd) {
        let (fd, connection) = (Table::fd_of(slot), stream.connection);
        match &mut self.role {
            Role::Leads(lead) => {
                let Some(at) = lead.placed.iter().position(|placed| placed.as_raw_fd() == fd) else {
                    die(&format!("connection {connection} is at no descriptor {fd}"));
                };
                // The table owns the descriptor from here on, and it is closed when the server closes it.
                std::mem::forget(lead.placed.swap_remove(at));
                self.board.begin_line(slot, connection, crate::stream::Seal::of(0, 0), 0);
            }
            _ => self.place_placeholder(slot),
        }
        self.table.connections = self.table.connections.max(connection);
        self.table.put(slot, Connection::new(stream));
        if let Some(queue) = self.table.listeners.get_mut(&listener) {
            queue.push_back(slot);
        }
    }

    /// Puts a socket that leads nowhere where the leader has a connection.
    pub fn place_placeholder(&self, slot: u32) {
        let fd = Table::fd_of(slot);
        if crate::sys::is_open(fd) {
            die(&format!("descriptor {fd}, which a connection is to have, is something else here"));
        }
        let placed = socket::placeholder().and_then(|socket| crate::sys::move_to(socket, fd));
        if let Err(error) = placed {
            die(&format!("cannot make a socket: {error}"));
        }
    }
}

/// Whether the node of this replica could lead: it is neither being taught nor waiting for that. A replica may know all rounds before its node can lead.
fn is_whole(here: &mut Here<'_, Machine>) -> bool {
    here.metrics().is_ok_and(|metrics| metrics.get(Counter::Whole) != 0)
}

/// The nodes that count towards commits, as this one knows it, one bit each.
fn group(here: &mut Here<'_, Machine>) -> u64 {
    here.metrics().map_or(0, |metrics| metrics.get(Counter::Group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_not_watched_over_ends_when_nobody_has_led_for_long() {
        let mut led = Led::default();
        assert!(!led.look(1, true), "there is a leader");
        assert!((0..2 * LEADERLESS_LOOKS).all(|_| !led.look(1, true)), "it is watched over");
        assert!((0..LEADERLESS_LOOKS).all(|_| !led.look(1, false)));
        assert!(!led.look(2, false), "one leads");
        assert!((0..LEADERLESS_LOOKS).all(|_| !led.look(2, false)));
        assert!(led.look(2, false));
    }
}
