//! One life of a node: its turns, its sleeps, and its founding.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use martlet_fabric::{Identity, Levels, LocalRegion, NodeId, PeerKind};
use martlet_protocol::basics::layout::{LIFE, RETURNED};
use martlet_protocol::basics::{ProcessId, Time};
use martlet_protocol::detector::wardens::{Digest, Secret};
use martlet_protocol::duty::{Host, Turn};
use martlet_protocol::engine::Gathered;
use martlet_protocol::founding::{Refounding, Returned, Verdict};
use martlet_protocol::membership::{ClockBounds, Core, Member, Roles};
use martlet_protocol::replica::{Application, Standing, StateMachine as _, UnreadableEntry};

use super::disk::Birth;
use super::policy::SecondProcess;
use super::recovery::{FileWatch, goes_on_from};
use super::rhythm::{Gaps, Posture};
use super::{Milestone, OnMilestone, RunError};
use crate::acting::{ActingThread, ActingThreads};
use crate::agent::Agent;
use crate::backend::{Backend, Rest as _};
use crate::clock;
use crate::clock::jumps::JumpWatch;
use crate::config::{Cluster, Settings};
use crate::counters::{Counter, Counters, EventKind};
use crate::durable::Keeper;
use crate::engine::{self, NodeEngine};
use crate::founding::{self, Founding, OnBackend};
use crate::idle::{Idler, Rest};
use crate::rehearsal::Rehearsals;
use crate::sched::{Class, FifoWatch, Placement};
use crate::stop::Stop;
use crate::wal::WalError;
use crate::warden::Registration;

/// The longest sleep, in nanoseconds: a lost wake-up would cost this much and no more.
const LONGEST_SLEEP_NS: u64 = 20_000_000;

/// How often what the fabric counts is copied into the counters, in nanoseconds.
const COUNT_INTERVAL_NS: u64 = 100_000_000;

/// What to do about nodes that are waited for because they may run unseen on this host.
const ALL_HERE_HINT: &str = " where this process does not see them: in another network namespace, or with another rendezvous directory. Start them; or, if \
    every node of the cluster runs where this one sees it, start this one with `martlet node --all-here`, as `martlet cluster up` does (docs/containers.md)";

/// What to do when the state is lost.
const LOST_HINT: &str = " by itself. `martlet cluster down`, then `up`, begins with nothing, or with what is on the others' disks";

/// How a life ended.
pub(super) enum End {
    Stopped {
        left: bool,
    },
    StartOver,
    /// The cluster's file says that the cluster has been founded again; these are the settings read from it. With it the state that this node held, if the
    /// cluster continues from this node.
    MovesOn(Box<Settings>, Option<Gathered>),
    /// Begin again as this earlier life, whose log the disk has.
    ComeBackAs(u64),
    DiskFailed(WalError),
    /// The view's feature level is one that this build cannot work at.
    Unsuited(u8),
    /// It has met only nodes of builds that do not understand it. The text says why the latest connection was refused.
    Misfit(String),
    /// Its machine could not read an entry of the log.
    Unreadable(UnreadableEntry),
}

/// How long a node that knows no view, and has met only nodes of builds that do not understand it, waits for others, in nanoseconds.
const MISFIT_PATIENCE_NS: u64 = 5_000_000_000;
/// How often it looks whether this is the case, in nanoseconds.
const MISFIT_INTERVAL_NS: u64 = 100_000_000;
/// How old the latest refusal may be to count: older than the longest pause between two attempts to connect, over any fabric.
const MISFIT_FRESH: Duration = Duration::from_secs(2);

/// Whether this node meets only nodes of other builds, and since when.
#[derive(Debug, Default)]
struct Misfits {
    next: Time,
    since: Option<Time>,
}

impl Misfits {
    /// Why this node cannot belong to anything, once the condition has lasted long enough. `refusal`: the latest refusal of that kind, if no node of its own
    /// build is there.
    fn verdict(&mut self, now: Time, refusal: impl FnOnce() -> Option<String>) -> Option<String> {
        if now < self.next {
            return None;
        }
        self.next = now.after(MISFIT_INTERVAL_NS);
        let why = refusal();
        self.since = why.as_ref().map(|_| self.since.unwrap_or(now));
        why.filter(|_| self.since.is_some_and(|since| now.since(since) >= MISFIT_PATIENCE_NS))
    }
}

/// The hook that is told of this life's milestones, and which it has been told.
#[derive(Default)]
pub(super) struct Milestones {
    pub(super) hook: Option<OnMilestone>,
    counts: bool,
}

impl Milestones {
    fn tell(&mut self, milestone: Milestone) {
        if let Some(hook) = &mut self.hook {
            hook(milestone);
        }
    }

    fn has_come_to_count(&mut self) {
        if !self.counts {
            self.counts = true;
            self.tell(Milestone::Counts);
        }
    }
}

/// What is carried over into the next life.
pub(super) struct Parts<E, A: Application> {
    pub app: A,
    pub machine: A::Machine,
    pub counters: Counters,
    pub engine: E,
}

/// One incarnation: an endpoint, the thread's death words, and the agent.
pub(super) struct Life<F: Backend, E: NodeEngine, A: Application> {
    pub(super) agent: Agent<F, E, A>,
    rehearsals: Rehearsals<F, E, A>,
    /// Says that this thread acts for the process; `None` once it no longer does.
    acting: Option<ActingThread>,
    pub(super) me: ProcessId,
    gaps: Gaps,
    /// Its log on disk, if it has one.
    keeper: Option<Keeper>,
    /// Whether it is an earlier life's process, returning with its log.
    pub(super) returns: bool,
    /// The lives on its disk as which it could return.
    lives: Vec<u64>,
    /// It has founded the cluster for others, which have to learn that from it.
    pub(super) founds_for_others: bool,
    /// The nodes that it asks to be connected with.
    sought: Vec<NodeId>,
    misfits: Misfits,
    /// The registration with the warden of this host, if the node has one.
    warden: Option<Rc<Registration>>,
    /// When what the fabric counts was last copied into the counters.
    counted: Time,
    pub(super) milestones: Milestones,
    /// Whether this process has held the cluster's state in an earlier life.
    has_held_before: bool,
}

/// Asks to be connected with all other nodes of a cluster, and no longer with others that were `sought`.
fn seek<F: Backend>(fabric: &F, me: NodeId, cluster: &Cluster, sought: &mut Vec<NodeId>) {
    let listed: Vec<NodeId> = cluster.config().nodes.iter().map(|node| NodeId(node.number)).filter(|node| *node != me).collect();
    sought.iter().filter(|node| !listed.contains(node)).for_each(|node| fabric.disconnect(*node));
    listed.iter().for_each(|node| fabric.connect(cluster, *node));
    *sought = listed;
}

impl<F: Backend, E: NodeEngine, A: Application> Life<F, E, A> {
    /// # Errors
    /// Only before any other process is let in: none has heard of this process then.
    pub(super) fn begin(
        settings: &Settings,
        birth: &Birth<'_>,
        (clocks, threads, warden): (ClockBounds, &ActingThreads, Option<Rc<Registration>>),
        engine: Option<E>,
        mut machine: A::Machine,
        counters: Counters,
        app: A,
    ) -> Result<Life<F, E, A>, RunError> {
        let me = birth.me;
        let node = me.node;
        let cluster = settings.cluster();
        let config = cluster.config();
        let identity = Identity { node, incarnation: me.incarnation, kind: PeerKind::Member };
        let mut fabric = F::start_node(settings, identity).map_err(|error| RunError::Fabric { node, error })?;
        let (engine, keeper) = Self::equip(cluster, birth, engine, &mut machine, &fabric)?;
        let returned = engine.returned();
        if let Some(region) = fabric.memory(LocalRegion::Public(RETURNED)) {
            Returned::store(returned.as_ref(), region);
        }

        // What others rely on must be in place before any of them is let in.
        let acting = threads.begin(fabric.own_region(LIFE)).map_err(|error| RunError::DeathWords { node, error })?;
        let lives = birth.lives()?;
        birth.announce()?;

        let now = clock::now();
        let entry = settings.entry();
        let mut membership = engine::membership(cluster, me, entry.role_set(), clocks);
        membership.address.clone_from(&entry.redis);
        membership.digest = warden.as_ref().map(|_| martlet_warden::digest as fn(&Secret) -> Digest);
        let stall_ns = membership.heartbeat_interval_ns / 2;
        let levels = membership.levels;
        let mut core = Core::new(now, membership);
        if let Some(warden) = &warden {
            let secret =
                martlet_fabric::host::random().map_err(|error| RunError::System { node, what: "no secret for the warden", error })?;
            core.pledge(&fabric, secret);
            warden.begin(secret, fabric.bell());
            warden.watch(config.nodes.iter().map(|n| NodeId(n.number)).filter(|n| *n != node));
        }
        let returns = birth.returns();
        if let Some(gathered) = birth.gathered {
            // Before any other process is let in: none may take this node for one that has no view.
            let roles = entry.role_set().with(Roles::COORDINATOR);
            let member = Member { levels, address: entry.redis.clone(), ..Member::new(me, roles) };
            tracing::warn!(view = gathered.first_view().0, last = %gathered.last, "{me} founds the cluster again, with all that it holds");
            core.found_again(now, &mut fabric, gathered.first_view(), vec![member]);
        } else if !returns {
            core.join(now);
        }
        fabric.open();
        let mut sought = Vec::new();
        seek(&fabric, node, cluster, &mut sought);
        let mut agent = Agent::new(me, fabric, core, engine, machine, app, counters, clock::now);
        agent.instruments.jumps = Some(JumpWatch::of_this_host());
        agent.host.dormant = returns;
        agent.take_membership_events();
        let rehearsals = Rehearsals::new(settings, clocks, now);
        let gaps = Gaps::new(now, stall_ns);
        Ok(Life {
            agent,
            rehearsals,
            acting: Some(acting),
            me,
            gaps,
            keeper,
            returns,
            lives,
            founds_for_others: false,
            sought,
            misfits: Misfits::default(),
            warden,
            counted: Time(0),
            milestones: Milestones::default(),
            has_held_before: birth.has_held,
        })
    }

    /// Whether this process has held the cluster's state, in this life or in an earlier one.
    pub(super) fn has_held(&self) -> bool {
        self.has_held_before || self.agent.host.member.core.has_counted()
    }

    /// Gives turns until the life is over.
    pub(super) fn live(
        &mut self,
        settings: &Settings,
        (stop, file): (&Stop, &FileWatch),
        bed: &mut F::Rest,
        placement: &Placement,
        second: &mut SecondProcess,
    ) -> io::Result<End> {
        let cluster = settings.cluster();
        let mut founding = Some(match self.keeper {
            None => Founding::<F>::new(founding::config(settings, self.me, self.has_held_before)),
            Some(_) => {
                let config = founding::config(settings, self.me, self.has_held_before);
                Founding::<F>::with_disks(config, self.agent.host.engine.returned(), self.lives.clone())
            }
        });
        let mut idler = Idler::new(&settings.node().threads, clock::now());
        let mut fifo = (placement.class == Class::Fifo).then(FifoWatch::default);
        let shares_host = cluster.config().fabric.traits().certain_deaths;
        let mut posture = Posture::new(placement.class, shares_host, E::TRAITS.elects() && cluster.watches_closely(), clock::now());
        loop {
            // A call that was made after the end was requested is not executed, even if the request came during the last look before a sleep.
            if self.is_asked_to_end(stop) {
                return Ok(self.end_in_order(stop));
            }
            let turn = self.turn();
            if founding.is_some() {
                match self.found(&mut founding, settings, turn.now)? {
                    Verdict::Wait => {}
                    Verdict::Found(_) => continue,
                    Verdict::StartOver => return Ok(End::StartOver),
                    Verdict::ComeBackAs(life) => return Ok(End::ComeBackAs(life)),
                }
            }
            if founding.is_some()
                && let Some(why) = self.misfit(turn.now)
            {
                return Ok(End::Misfit(why));
            }
            if let Some(level) = self.agent.host.member.core.unsuited() {
                return Ok(End::Unsuited(level));
            }
            if let Some(entry) = self.agent.host.machine.unreadable().cloned() {
                self.leave(stop);
                return Ok(End::Unreadable(entry));
            }
            if let Some(error) = self.keeper.as_mut().and_then(Keeper::failure) {
                self.step_aside(stop, &error);
                return Ok(End::DiskFailed(error));
            }
            if file.has_moved_on(cluster)
                && let Some(moved) = file.read_again(settings)
            {
                let Host { engine, machine, member, .. } = &mut self.agent.host;
                let gathered = if goes_on_from(&moved) { engine.gather(&mut member.fabric, machine) } else { None };
                if let Some(entry) = machine.unreadable().cloned() {
                    return Ok(End::Unreadable(entry));
                }
                return Ok(End::MovesOn(Box::new(moved), gathered));
            }
            if let Some(changed) = file.changed() {
                self.note_list(cluster, &changed);
            }
            if self.is_asked_to_end(stop) {
                return Ok(self.end_in_order(stop));
            }
            if self.agent.host.member.excluded || self.is_outlived() || self.returns_in_vain() {
                return Ok(End::StartOver);
            }
            if self.agent.host.unfit {
                // The process is still listed, but has stopped acting: the others need not wait for its lease.
                self.leave(stop);
                return Ok(End::StartOver);
            }
            let leads = self.agent.host.engine.standing() == Standing::Primary;
            posture.after_turn(&turn, leads);
            if !turn.worked {
                second.tend(turn.now);
                // A backup may lead at any moment, and clients that come then must not wait.
                bed.tend(turn.now, !(leads && self.agent.app.is_heard_in_memory()));
                if self.rehearsals.play(turn.now, settings, &mut self.agent, bed) {
                    continue;
                }
            }
            // If a new primary slept before its clients have come, the dead process would get the core that the two share, and finish its exit: that closes
            // connections, which wakes helpers of every process, on the core that those very clients need.
            let awaited = posture.is_new(leads) && self.agent.app.has_clients_in_memory();
            let busy = turn.worked || awaited;
            let rest = self.agent.makes_way(&turn).unwrap_or_else(|| idler.after_turn(turn.now, busy, leads));
            let rest = match rest {
                // This turn has seen in memory that a process is dead, and the next turn acts on it: yielding would only give way to what the dead process has
                // left.
                Rest::Yield if !self.agent.waits_for_permission(&turn) && bed.has_seen_death(&self.agent.host.member.fabric) => Rest::None,
                rest => rest,
            };
            match posture.rest(rest, busy, leads) {
                // Others may be waiting for this core to finish their disk writes.
                Rest::None if self.keeper.as_ref().is_some_and(Keeper::is_waiting) => std::thread::yield_now(),
                Rest::None => std::hint::spin_loop(),
                Rest::Yield => std::thread::yield_now(),
                Rest::Park => {
                    let due = founding.as_ref().map_or(Time(u64::MAX), Founding::<F>::due);
                    // A client that uses memory is heard sooner by a sleep on that memory.
                    let at_sockets = leads && !self.agent.app.is_heard_in_memory() && bed.hears_at_sockets();
                    self.park(due, bed, at_sockets, fifo.as_mut());
                }
            }
        }
    }

    fn end_in_order(&mut self, stop: &Stop) -> End {
        self.milestones.tell(Milestone::Leaves);
        End::Stopped { left: self.leave(stop) }
    }

    fn is_asked_to_end(&self, stop: &Stop) -> bool {
        stop.requests() > 0 || self.agent.app.wants_end()
    }

    pub(super) fn turn(&mut self) -> Turn {
        let mut news = self.keeper.as_mut().is_some_and(|keeper| keeper.before_turn(&mut self.agent.host));
        news |= self.take_certificates();
        let mut turn = self.agent.turn();
        turn.worked |= news;
        if let Some(keeper) = &mut self.keeper {
            turn.worked |= keeper.after_turn(&mut self.agent.host, &mut self.agent.instruments.counters);
        }
        let Agent { host, instruments, .. } = &mut self.agent;
        if host.member.core.has_counted() {
            self.milestones.has_come_to_count();
        }
        if turn.now.since(self.counted) >= COUNT_INTERVAL_NS {
            self.counted = turn.now;
            let connections = host.member.fabric.connections();
            instruments.counters.set(Counter::RefusedConnections, connections.refused);
            instruments.counters.set(Counter::RefusedBuilds, connections.misfits);
            instruments.counters.set(Counter::MalformedDatagrams, host.member.fabric.malformed_datagrams());
            if let Some(warden) = &self.warden {
                // The cluster's file need not list all of them.
                warden.watch(host.member.members.iter().map(|(_, process)| process.node));
                instruments.counters.set(Counter::Warden, u64::from(warden.is_registered()));
            }
        }
        if let Some(gap) = self.gaps.turn(turn.now, &mut instruments.counters) {
            self.agent.record(EventKind::Stalled, None, gap);
        }
        turn
    }

    /// Looks for the nodes that the cluster's file lists now, at the addresses that it names, and no longer for others: a host that has left may be given to
    /// other work, and is left in peace.
    fn note_list(&mut self, cluster: &Cluster, changed: &Cluster) {
        // A file of another cluster, or of this one founded again, lists other processes.
        if changed.fabric_name() == cluster.fabric_name() && changed.config().fabric == cluster.config().fabric {
            seek(&self.agent.host.member.fabric, self.me.node, changed, &mut self.sought);
        }
    }

    /// Takes the warden's certificates of deaths. Returns whether there were any.
    fn take_certificates(&mut self) -> bool {
        let Some(warden) = &self.warden else { return false };
        let Agent { host, instruments, .. } = &mut self.agent;
        let mut is_news = false;
        for (node, secret) in warden.certificates() {
            is_news = true;
            host.member.now = clock::now();
            match host.member.core.handle_certificate(host.member.now, &mut host.member.fabric, node, secret) {
                Ok(_) => instruments.counters.add(Counter::CertifiedDeaths, 1),
                Err(why) => tracing::warn!(%node, "the warden says that a node is dead, but its proof does not hold: {why}"),
            }
        }
        if is_news {
            self.agent.take_membership_events();
        }
        is_news
    }

    /// Why this node, which knows no view, never will: every other node that is there runs a build that does not understand this one.
    fn misfit(&mut self, now: Time) -> Option<String> {
        let host = &self.agent.host.member;
        let alone = host.members.is_empty() && host.core.view().is_none();
        self.misfits.verdict(now, || alone.then(|| host.fabric.misfit(MISFIT_FRESH)).flatten())
    }

    /// A turn of a node that waits for others, which may need this core.
    pub(super) fn patient_turn(&mut self) {
        if !self.turn().worked {
            std::thread::yield_now();
        }
    }

    /// Whether a later life of this node is listed: then this one would never be let in.
    fn is_outlived(&self) -> bool {
        let core = &self.agent.host.member.core;
        !core.is_member() && core.view().is_some_and(|v| v.members.iter().any(|m| m.id.node == self.me.node && m.id > self.me))
    }

    /// Founds the cluster if that falls to this process. Returns what is to be done, or has been.
    fn found(&mut self, founding: &mut Option<Founding<F>>, settings: &Settings, now: Time) -> io::Result<Verdict> {
        let cluster = settings.cluster();
        let host = &mut self.agent.host.member;
        let Some(looking) = founding else { return Ok(Verdict::Wait) };
        if host.core.view().is_some() {
            *founding = None;
            self.agent.instruments.counters.set(Counter::Awaited, 0);
            return Ok(Verdict::Wait);
        }
        host.boards_read.drain(..).for_each(|completion| looking.handle_completion(completion));
        let verdict = looking.look(now, &OnBackend::<F>::new(cluster, self.me.node, self.returns), &mut host.fabric, &host.members)?;
        let awaited = looking.awaited().iter().fold(0, |nodes, node| nodes | 1_u64 << (node % 64));
        self.agent.instruments.counters.set(Counter::Awaited, awaited);
        // The hint about nodes that may run unseen helps only on one host.
        let hint = if awaited != 0 && !F::FIXED_CLAIM && !settings.all_here() { ALL_HERE_HINT } else { "" };
        let hint = if looking.is_lost() { LOST_HINT } else { hint };
        if let Some(why) = looking.poll_reason() {
            tracing::warn!("waiting: {why}{hint}");
        }
        let again = match verdict {
            Verdict::Wait => return Ok(Verdict::Wait),
            Verdict::Found(again) => again,
            Verdict::StartOver => {
                tracing::warn!("{} was let into a cluster that has ended since: it starts over", self.me);
                return Ok(Verdict::StartOver);
            }
            Verdict::ComeBackAs(life) => {
                tracing::info!(
                    "the cluster that is founded from the newest log lists this node as its process {life:x}: {} comes back as that process",
                    self.me
                );
                return Ok(Verdict::ComeBackAs(life));
            }
        };
        host.now = clock::now();
        match again {
            None => {
                tracing::info!("the cluster does not run: {} founds the cluster", self.me);
                host.core.bootstrap(host.now, &mut host.fabric);
            }
            Some(again) => {
                let Refounding { number, ref members, .. } = again;
                let names: Vec<String> = members.iter().map(ProcessId::to_string).collect();
                tracing::info!(
                    view = number.0,
                    "the cluster does not run: {} founds the cluster again, with the members {}",
                    self.me,
                    names.join(", ")
                );
                // Only the others themselves can say what they run.
                let levels = Levels::only(host.core.level());
                let member = |id: ProcessId| {
                    let entry = cluster.node(id.node)?;
                    Some(Member { levels, address: entry.redis.clone(), ..Member::new(id, entry.role_set()) })
                };
                self.founds_for_others = !members.contains(&self.me);
                host.core.found_again(host.now, &mut host.fabric, number, again.view_members(member));
            }
        }
        self.agent.instruments.counters.set(Counter::Awaited, 0);
        self.agent.take_membership_events();
        *founding = None;
        Ok(Verdict::Found(None))
    }

    /// Sleeps until there is something to do. Between announcing the sleep and sleeping, the thread takes a whole turn: so it looks at everything that can wake
    /// it.
    fn park(&mut self, due: Time, bed: &mut F::Rest, at_sockets: bool, fifo: Option<&mut FifoWatch>) {
        let host = &mut self.agent.host;
        if std::mem::take(&mut host.member.members_changed) {
            let watched = host.member.members.iter().filter(|(_, process)| host.is_ours_to_watch(*process)).map(|(peer, _)| *peer);
            bed.watch_deaths(&host.member.fabric, watched, self.me.node);
        }
        bed.prepare(&mut host.member.fabric, at_sockets);
        self.agent.cycle.look_around_next();
        let turn = self.turn();
        let due = self.rehearsals.due(&self.agent.host).map_or(due, |rehearsal| due.min(rehearsal));
        let until = self.agent.deadline().min(due).min(turn.now.after(LONGEST_SLEEP_NS));
        let Agent { host, app, instruments, .. } = &mut self.agent;
        if turn.worked || until <= turn.now || host.member.members_changed {
            bed.cancel(&mut host.member.fabric);
            return;
        }
        instruments.counters.add(Counter::Parks, 1);
        instruments.publish(host);
        if fifo.is_some_and(FifoWatch::before_sleep) {
            instruments.counters.add(Counter::Demotions, 1);
        }
        bed.sleep(&mut host.member.fabric, at_sockets, until.since(turn.now), |at_most_ns| app.sleep(at_most_ns));
        // A thread that slept past its deadline was stalled; one that was woken earlier was not.
        self.gaps.slept(clock::now(), until);
    }

    /// Ends the life: the application is told, the death words are given back while the memory still exists, the endpoint goes away, and what has been handed
    /// over to the disk is written; the error is the result of that.
    pub(super) fn end(mut self) -> (u64, Parts<E, A>, Result<(), WalError>) {
        self.agent.end_life();
        // A clean end: a process that still waits for this one sees that it no longer acts.
        if let Some(acting) = self.acting.take() {
            acting.end_life();
        }
        let Agent { host, app, instruments, .. } = self.agent;
        let newest = host.member.core.newest_life().0;
        let parts = Parts { app, machine: host.machine, counters: instruments.counters, engine: host.engine };
        (newest, parts, self.keeper.map_or(Ok(()), Keeper::close))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_meets_none_of_its_build_for_long_gives_up() {
        let why = || Some("another build".to_owned());
        let mut misfits = Misfits::default();
        let at = |ns| Time(1 + ns);
        assert_eq!(misfits.verdict(at(0), why), None);
        assert_eq!(misfits.verdict(at(MISFIT_PATIENCE_NS - 1), why), None);
        // One of its own build has come.
        assert_eq!(misfits.verdict(at(MISFIT_PATIENCE_NS + MISFIT_INTERVAL_NS), || None), None);
        let again = at(MISFIT_PATIENCE_NS + 2 * MISFIT_INTERVAL_NS);
        assert_eq!(misfits.verdict(again, why), None);
        assert_eq!(misfits.verdict(again.after(MISFIT_INTERVAL_NS - 1), || panic!("looks are not for every turn")), None);
        assert_eq!(misfits.verdict(again.after(MISFIT_PATIENCE_NS), why).as_deref(), Some("another build"));
    }
}
