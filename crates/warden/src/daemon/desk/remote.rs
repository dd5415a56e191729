//! How the desk deals with what the wardens of other hosts report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use martlet_protocol::detector::wardens::{AppLife, Certainty, Event, HostId, MAX_PATHS};

use super::super::Seat;
use super::super::eye::Task;
use super::super::pulse::{Order, Orders, Word};
use super::Desk;
use super::lives::Life;
use crate::AppId;
use crate::board::{End, Evidence, Slot, State};
use crate::wire::{Answer, HostStatus};

/// The other hosts, as the desk knows them.
pub(in crate::daemon) struct OtherHosts {
    orders: Orders,
    timeout_ns: u64,
    hosts: BTreeMap<HostId, Health>,
}

#[derive(Clone, Debug)]
struct Health {
    is_silent: bool,
    has_left: bool,
    is_path_lost: [bool; MAX_PATHS],
    /// Counted by the pulse: the packets from this host's addresses that did not authenticate.
    unauthenticated: Arc<AtomicU64>,
}

impl OtherHosts {
    /// `hosts`: each with the count of its packets that did not authenticate.
    pub(in crate::daemon) fn new(orders: Orders, timeout_ns: u64, hosts: BTreeMap<HostId, Arc<AtomicU64>>) -> OtherHosts {
        let unheard = |unauthenticated| Health { is_silent: true, has_left: false, is_path_lost: [false; MAX_PATHS], unauthenticated };
        OtherHosts { orders, timeout_ns, hosts: hosts.into_iter().map(|(host, count)| (host, unheard(count))).collect() }
    }

    /// The warden ends.
    pub(super) fn leave(&self) {
        self.orders.send(Order::Leave);
    }

    /// An application of this host has begun: other hosts may monitor it.
    pub(super) fn begin(&self, life: &Life) {
        self.orders.send(Order::Begin(AppLife { app: life.app.get(), incarnation: life.incarnation }, life.secret));
    }

    /// It has ended.
    pub(super) fn end(&self, life: &Life) {
        self.orders.send(Order::End(AppLife { app: life.app.get(), incarnation: life.incarnation }, life.state == State::Failed));
    }

    /// A program monitors a life on another host.
    pub(super) fn subscribe(&self, life: &Life, seat: &Arc<Seat>) {
        let host = HostId(u16::try_from(life.host).expect("of a host"));
        self.orders.send(Order::Subscribe(
            host,
            AppLife { app: life.app.get(), incarnation: life.incarnation },
            life.slot,
            Arc::clone(seat),
        ));
    }

    pub(super) fn unsubscribe(&self, slot: Slot, seat: u8) {
        self.orders.send(Order::Unsubscribe(slot, seat));
    }

    pub(super) fn forget(&self, slot: Slot) {
        self.orders.send(Order::Forget(slot));
    }

    pub(super) fn status(&self) -> impl Iterator<Item = HostStatus> {
        self.hosts.iter().map(|(host, health)| HostStatus {
            host: host.0,
            is_silent: health.is_silent,
            has_left: health.has_left,
            is_path_lost: health.is_path_lost,
            timeout_ns: self.timeout_ns,
            unauthenticated: health.unauthenticated.load(Ordering::Relaxed),
        })
    }
}

impl Desk {
    /// How long the host of an application may be silent; 0 for an application of this host, and for one that has not been heard of.
    pub(super) fn timeout_of(&self, life: &Life) -> u64 {
        if life.host == 0 { 0 } else { self.others.as_ref().map_or(0, |others| others.timeout_ns) }
    }

    pub(super) fn take_word(&mut self, word: Word) {
        match word {
            Word::Told(event) => self.take_news(event),
            Word::Unauthenticated { host, address, packets } => tracing::warn!(
                host = host.0,
                %address,
                packets,
                "packets that come from another host's address do not authenticate: either its warden has another key, or other numbers of hosts or paths, or is of \
                 another version; or the packets are not its own"
            ),
        }
    }

    pub(super) fn take_news(&mut self, event: Event) {
        match event {
            Event::Alive(host, life) => self.remote_begins(host, life),
            Event::Failed(host, life, certainty) => {
                let (evidence, secret) = match certainty {
                    Certainty::Certified(secret) => (Evidence::Certificate, secret),
                    Certainty::Presumed => (Evidence::Silence, [0; 16]),
                };
                self.remote_ends(host, life, &End::failure(evidence, crate::now_ns(), secret));
            }
            Event::Left(host, life) => {
                self.remote_ends(host, life, &End { state: State::Left, evidence: None, at_ns: crate::now_ns(), secret: [0; 16] });
            }
            Event::PathLost(host, path) | Event::PathBack(host, path) => {
                let is_lost = matches!(event, Event::PathLost(..));
                self.note(host, |health| health.is_path_lost[usize::from(path)] = is_lost);
                match is_lost {
                    true => tracing::warn!(host = host.0, path, "another host is not heard over this path any more"),
                    false => tracing::info!(host = host.0, path, "another host is heard over this path again"),
                }
                self.tell_of_host(host, &Answer::Redundancy { host: host.0, path, is_lost });
            }
            Event::Silent(host) | Event::Heard(host) => {
                let is_silent = matches!(event, Event::Silent(_));
                self.note(host, |health| (health.is_silent, health.has_left) = (is_silent, false));
                match is_silent {
                    true => tracing::warn!(host = host.0, "another host is silent on all paths"),
                    false => tracing::info!(host = host.0, "another host is heard"),
                }
            }
            Event::WardenLeft(host) => {
                self.note(host, |health| (health.is_silent, health.has_left) = (false, true));
                tracing::info!(host = host.0, "the warden of another host has ended in order");
            }
        }
    }

    /// Lets the thread that hears of the end of a life first tell a program at once.
    pub(super) fn watch_for(&self, life: &Life, seat: &Arc<Seat>) {
        match &self.others {
            Some(others) if life.host != 0 => others.subscribe(life, seat),
            _ => self.eye.send(Task::Subscribe(life.slot, Arc::clone(seat))),
        }
    }

    /// Ends that.
    pub(super) fn watch_no_more_for(&self, life: &Life, seat: u8) {
        match &self.others {
            Some(others) if life.host != 0 => others.unsubscribe(life.slot, seat),
            _ => self.eye.send(Task::Unsubscribe(life.slot, seat)),
        }
    }

    fn note(&mut self, host: HostId, change: impl FnOnce(&mut Health)) {
        if let Some(health) = self.others.as_mut().and_then(|others| others.hosts.get_mut(&host)) {
            change(health);
        }
    }

    /// Tells all programs that monitor an application of a host.
    fn tell_of_host(&self, host: HostId, answer: &Answer) {
        let of_host = self.lives.values().filter(|life| life.host == u32::from(host.0));
        let programs: std::collections::BTreeSet<_> = of_host.flat_map(|life| life.monitors.keys().copied()).collect();
        for program in programs.iter().filter_map(|id| self.programs.get(id)) {
            program.seat.tell(&self.board, answer);
        }
    }

    /// A slot for a life of an application on another host, unless that life is on the board as alive already, or is not accepted.
    fn remote_slot(&mut self, host: HostId, life: AppLife) -> Option<(AppId, Slot)> {
        let app = AppId::new(i64::from(life.app)).ok()?;
        let host = u32::from(host.0);
        if let Some(index) = self.current(app) {
            let known = &self.lives[&index];
            if known.state == State::Alive && known.host == host && known.incarnation == life.incarnation {
                return None;
            }
            if known.state == State::Alive && known.host == host {
                // That host's warden has reported the end of the earlier life, or can no longer do so.
                self.end(index, State::Failed, Some(Evidence::Silence));
            } else if known.state == State::Alive {
                tracing::error!(%app, here = known.host, there = host, "an application runs on two hosts at once: the second one is ignored");
                return None;
            }
        }
        self.slot_to_begin(app)
            .inspect_err(|why| tracing::error!(%app, why, "an application of another host is ignored"))
            .ok()
            .map(|slot| (app, slot))
    }

    fn remote_begins(&mut self, host: HostId, life: AppLife) {
        let Some((app, slot)) = self.remote_slot(host, life) else { return };
        let host = u32::from(host.0);
        let known = self.lives.get_mut(&slot.index).expect("its slot is taken");
        let begun = Life { state: State::Alive, incarnation: life.incarnation, host, ..Life::awaited(slot, app) };
        *known = begun.monitored_as(known);
        self.board.begin(slot, app, host, life.incarnation, 0, State::Alive);
        let begun = &self.lives[&slot.index];
        for monitor in begun.monitors.keys().filter_map(|monitor| self.programs.get(monitor)) {
            self.watch_for(begun, &monitor.seat);
        }
        let timeout_ns = self.timeout_of(&self.lives[&slot.index]);
        self.tell_monitors(slot.index, &Answer::TimeoutChanged { app, timeout_ns });
    }

    fn remote_ends(&mut self, host: HostId, life: AppLife, end: &End) {
        let is_it = |known: &Life| known.host == u32::from(host.0) && known.incarnation == life.incarnation && known.app.get() == life.app;
        if let Some(alive) = self.lives.values_mut().find(|known| known.state == State::Alive && is_it(known)) {
            alive.secret = end.secret;
            let index = alive.slot.index;
            return self.end(index, end.state, end.evidence);
        }
        let mut known = self.lives.values().filter(|known| is_it(known));
        // This was reported before; but a presumption is now made certain.
        if known.any(|known| known.evidence != Some(Evidence::Silence)) {
            return;
        }
        // It had ended before this host heard of it. Programs that wait for it are told nevertheless.
        let Some((app, slot)) = self.remote_slot(host, life) else { return };
        let host = u32::from(host.0);
        let known = self.lives.get_mut(&slot.index).expect("its slot is taken");
        let End { state, evidence, at_ns, secret } = *end;
        let over = Life { state, evidence, incarnation: life.incarnation, secret, host, at_ns, ..Life::awaited(slot, app) };
        *known = over.monitored_as(known);
        self.board.begin_over(slot, life, host, end);
        self.tell_monitors(slot.index, &Answer::Look);
        self.over(slot.index);
    }
}
