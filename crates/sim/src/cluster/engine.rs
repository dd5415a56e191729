//! What the simulator needs from a replication engine in addition to its interface. A new engine joins the simulator with an implementation here and a line in
//! [`KINDS`](super::KINDS).

use martlet_fabric::RegionName;
use martlet_protocol::basics::{LogIndex, ProcessId, ballot};
use martlet_protocol::detector::heartbeat::Thresholds;
use martlet_protocol::engine::Engine as _;
use martlet_protocol::engine::view_log::{self, Holds, Rule, ViewLog};
use martlet_protocol::engine::{self, Apus, Dare, Mu, apus, dare, mu};
use martlet_protocol::replica::group::{Group, Phase};
use martlet_protocol::replica::{self, Durability};

use super::settings::Settings;

/// A vote that has to be in the memory of a quorum before any other process is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The lane in the others' memory that holds the vote.
    pub lane: RegionName,
    /// The index of the vote's word in that lane.
    pub at: usize,
    /// The word that says the vote.
    pub word: u64,
    /// The lowest value that a vote of a later term has.
    pub later: u64,
    /// How many memories have to hold it, including the voter's own.
    pub quorum: usize,
}

/// An engine that can be simulated.
pub trait Engine: engine::Durable {
    /// Its settings in a life. `secret` is random, and no client knows it.
    fn config(settings: &Settings, spans_hosts: bool, secret: u64) -> Self::Config;
    /// Whether the service survives if `victim` is lost as well. `able` are the processes that run, are not stopped, and are not taken for dead by any other;
    /// `all` are all that run.
    fn can_lose(victim: ProcessId, able: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)]) -> bool;
    /// Whether these processes can continue by themselves, even if any of the newcomers is taken in; `all` are all that run.
    fn suffice(these: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)], newcomers: &[ProcessId]) -> bool;
    /// The dead processes whose memory counts for what it replicates as leader.
    fn counted_zombies(&self) -> Vec<ProcessId> {
        Vec::new()
    }
    /// A dead process that it nevertheless waits for before it prunes its log.
    fn dead_that_is_waited_for(&self) -> Option<ProcessId> {
        None
    }
    /// Whether the size of its group is being changed, so that two groups decide.
    fn is_in_transition(&self) -> bool {
        false
    }
    /// Whether the newest group of which it has an entry leaves this process out.
    fn is_leaving_out(&self, _: ProcessId) -> bool {
        false
    }
    /// The last vote that it has told others of.
    fn vote(&self) -> Option<Vote> {
        None
    }
    /// Whether it hears from a leader and takes no part in an election.
    fn is_at_rest(&self) -> bool {
        false
    }
    /// Its state in one line, for debugging.
    fn describe(&self) -> String;
}

impl<R: Rule> Engine for ViewLog<R> {
    fn config(settings: &Settings, spans_hosts: bool, secret: u64) -> view_log::Config {
        view_log::Config {
            log_ring_bytes: settings.log_ring_bytes,
            backlog_bytes: settings.log_ring_bytes,
            nudge_entries: 4,
            nudge_gap_ns: 1_000,
            ask_gap_ns: 1_000,
            flush_idle_ns: settings.flush_idle_ns,
            drain_budget_bytes: settings.drain_budget_bytes,
            transfer_budget_bytes: settings.transfer_budget_bytes,
            fences_departed: R::HOLDS == Holds::Written && spans_hosts,
            execution: settings.execution,
            secret,
            ..view_log::Config::default()
        }
    }

    /// Any replica of the view is enough, and views are checked anyway.
    fn can_lose(_: ProcessId, _: &[(ProcessId, &Self)], _: &[(ProcessId, &Self)]) -> bool {
        true
    }

    /// As above.
    fn suffice(_: &[(ProcessId, &Self)], _: &[(ProcessId, &Self)], _: &[ProcessId]) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!(
            "view {}, {:?}, applied {} of {}, committed {}, alone {}, lagging {:?}",
            self.view(),
            self.standing(),
            self.applied(),
            self.last(),
            self.committed(),
            self.is_alone(),
            self.lagging().collect::<Vec<_>>()
        )
    }
}

/// The groups that may be in force: the newest one that any process knows to be committed, and each one that any process holds in an entry behind everything
/// known to be committed. A process that has been left behind may hold an older group, or one that was superseded at its place in the log; these do not count.
fn in_force<'a, E: Grouped>(all: &'a [(ProcessId, &E)]) -> impl Iterator<Item = &'a Group> {
    let known = || all.iter().filter_map(|(_, engine)| Some((engine.known_group()?, *engine)));
    let newest = known().filter(|((since, _), engine)| *since <= engine.committed()).map(|((since, _), _)| since).max();
    let committed = all.iter().map(|(_, engine)| engine.committed()).max();
    known().filter(move |((since, _), _)| Some(*since) == newest || Some(*since) > committed).map(|((_, group), _)| group)
}

/// An engine that has a group of its own, whose majority commits.
trait Grouped: engine::Engine {
    /// The group in force as far as this engine knows, and the entry since which it is.
    fn known_group(&self) -> Option<(LogIndex, &Group)>;

    /// How many places it knows to be wanted; 0: as many as there are members.
    fn known_wanted(&self) -> u8 {
        0
    }
}

impl Grouped for Mu {
    fn known_group(&self) -> Option<(LogIndex, &Group)> {
        self.group_since().zip(self.group())
    }
}

impl Grouped for Dare {
    fn known_group(&self) -> Option<(LogIndex, &Group)> {
        self.group_since().zip(self.group())
    }

    fn known_wanted(&self) -> u8 {
        self.wanted_places()
    }
}

impl Grouped for Apus {
    fn known_group(&self) -> Option<(LogIndex, &Group)> {
        self.group_since().zip(self.group())
    }
}

/// A majority of every group that may be in force has to be left, all of them with the whole state. The same holds for the group that the victim may be about
/// to join.
fn can_be_lost<E: Grouped>(victim: ProcessId, able: &[(ProcessId, &E)], all: &[(ProcessId, &E)]) -> bool {
    let left = |group: &Group| {
        let stays =
            |member: ProcessId| able.iter().any(|(id, engine)| *id != victim && known(group, *id) == member && engine.is_complete());
        let victim = known(group, victim);
        let grown = group.with(victim).or_else(|| group.extended(victim)?.enlarged());
        group.is_majority(stays) && grown.is_none_or(|grown| grown.is_majority(stays)) && survives_decrease(group, all, stays)
    };
    in_force(all).all(left)
}

/// Whether those that stay can decide in every group to which this one may be decreased. It depends on which process leads then, and so goes last, and that is
/// not known.
fn survives_decrease<E: Grouped>(group: &Group, all: &[(ProcessId, &E)], stays: impl Fn(ProcessId) -> bool) -> bool {
    let wanted = all.iter().map(|(_, engine)| engine.known_wanted());
    let mut smaller = wanted.flat_map(|wanted| group.members().iter().filter_map(move |last| group.decreased(wanted, *last)));
    smaller.all(|both| both.is_majority(&stays))
}

/// Whether these hold a majority of every group that may be in force, even if any of the newcomers is taken in.
fn are_majority<E: Grouped>(these: &[(ProcessId, &E)], all: &[(ProcessId, &E)], newcomers: &[ProcessId]) -> bool {
    let holds = |group: &Group| {
        let grown = group.members().len() + newcomers.iter().filter(|id| !has(group, **id) && !group.has_removed(**id)).count();
        let stays = |member: ProcessId| these.iter().any(|(id, engine)| known(group, *id) == member && engine.is_complete());
        let count = these.iter().filter(|(id, engine)| has(group, *id) && engine.is_complete()).count();
        count >= ballot::majority(grown.max(group.places())) && group.is_majority(stays) && survives_decrease(group, all, stays)
    };
    in_force(all).all(holds)
}

/// The name by which a group knows a process: if it has come back from its disk, its birth. (Without disks no process has an incarnation that is another one's
/// birth.)
fn known(group: &Group, id: ProcessId) -> ProcessId {
    if group.contains(id.birth()) { id.birth() } else { id }
}

fn has(group: &Group, id: ProcessId) -> bool {
    group.contains(known(group, id))
}

/// What an acknowledgement means in a life: where there are disks, that the entry is on them.
fn durability(settings: &Settings) -> Durability {
    if settings.disks.is_some() { Durability::Sync } else { Durability::Memory }
}

/// The smallest log that holds a majority's open entries, whatever the simulated store writes.
const LEAST_LOG_BYTES: usize = 1 << 14;

/// What engines with a log and a leader share.
fn shared(settings: &Settings) -> replica::Settings {
    let beat = settings.heartbeat_interval_ns;
    replica::Settings {
        log_ring_bytes: settings.log_ring_bytes.max(LEAST_LOG_BYTES),
        state_ring_bytes: LEAST_LOG_BYTES,
        execution: settings.execution,
        backlog_bytes: settings.log_ring_bytes,
        batch_bytes: settings.transfer_budget_bytes,
        flush_idle_ns: settings.flush_idle_ns,
        nudge_records: 4,
        nudge_gap_ns: 2 * settings.flush_idle_ns,
        heartbeat_interval_ns: beat,
        background_ns: 1_000,
        thresholds: Thresholds::default(),
        fate_beats: 100,
        silence_ns: settings.broadcast_timeout_ns,
        stall_ns: beat,
        death_interval_ns: 0,
        teach_patience_ns: settings.broadcast_timeout_ns,
        // A leader does not wait for learners, and its log goes on meanwhile, so the state has to be transferred faster than the log wraps.
        transfer_budget_bytes: LEAST_LOG_BYTES / 2 + settings.transfer_budget_bytes,
    }
}

impl Engine for Mu {
    fn config(settings: &Settings, _: bool, secret: u64) -> mu::Config {
        mu::Config {
            shared: shared(settings),
            secret,
            durability: durability(settings),
            retry_ns: settings.heartbeat_interval_ns / 4,
            leader_stays: false,
        }
    }

    fn can_lose(victim: ProcessId, able: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)]) -> bool {
        can_be_lost(victim, able, all)
    }

    fn suffice(these: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)], newcomers: &[ProcessId]) -> bool {
        are_majority(these, all, newcomers)
    }

    fn describe(&self) -> String {
        format!(
            "view {}, {:?}, complete {}, ballot {:x}, applied {} of {}, committed {}, leader {:?}, group {:?}",
            self.view(),
            self.standing(),
            self.is_complete(),
            self.ballot(),
            self.applied(),
            self.last(),
            self.committed(),
            self.leader(),
            self.group()
        )
    }
}

impl Engine for Dare {
    fn config(settings: &Settings, _: bool, _: u64) -> dare::Config {
        let beat = settings.heartbeat_interval_ns;
        // The limit that the oracle checks is in true time, whatever the leader's clock does.
        let zombies_ns = settings.clocks.shortened(settings.zombies_ns);
        dare::Config { shared: shared(settings), election_ns: beat, rank_ns: beat / 2, places: 0, zombies_ns }
    }

    fn counted_zombies(&self) -> Vec<ProcessId> {
        Dare::counted_zombies(self).collect()
    }

    fn dead_that_is_waited_for(&self) -> Option<ProcessId> {
        Dare::dead_that_is_waited_for(self)
    }

    fn is_in_transition(&self) -> bool {
        self.group().is_some_and(|group| matches!(group.phase(), Phase::Transitional { .. }))
    }

    fn is_leaving_out(&self, process: ProcessId) -> bool {
        self.group().is_some_and(|group| !group.contains(process))
    }

    fn vote(&self) -> Option<Vote> {
        let dare::Answered { word, quorum } = self.answered()?;
        let (term, _) = dare::layout::choice_of(word)?;
        let later = dare::layout::vote_of(term + 1);
        Some(Vote { lane: dare::layout::CONTROL_LANE, at: dare::layout::control::PRIVATE, word, later, quorum })
    }

    fn is_at_rest(&self) -> bool {
        Dare::is_at_rest(self)
    }

    fn can_lose(victim: ProcessId, able: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)]) -> bool {
        can_be_lost(victim, able, all)
    }

    fn suffice(these: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)], newcomers: &[ProcessId]) -> bool {
        are_majority(these, all, newcomers)
    }

    fn describe(&self) -> String {
        use engine::Engine as _;
        format!("view {}, {}, last {}, group {:?}", self.view(), self.in_words(), self.last(), self.group())
    }
}

impl Engine for Apus {
    fn config(settings: &Settings, _: bool, secret: u64) -> apus::Config {
        let beat = settings.heartbeat_interval_ns;
        apus::Config { shared: shared(settings), secret, durability: durability(settings), election_ns: beat, rank_ns: beat / 2 }
    }

    fn can_lose(victim: ProcessId, able: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)]) -> bool {
        can_be_lost(victim, able, all)
    }

    fn suffice(these: &[(ProcessId, &Self)], all: &[(ProcessId, &Self)], newcomers: &[ProcessId]) -> bool {
        are_majority(these, all, newcomers)
    }

    fn describe(&self) -> String {
        use engine::Engine as _;
        format!("view {}, {}, last {}, group {:?}", self.view(), self.in_words(), self.last(), self.group())
    }
}
