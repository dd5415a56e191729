//! The second part of a life. First a majority alone has to serve, while the others are still stopped or out of reach; then everything heals, and the cluster
//! has to become whole again. At the end everything is judged that can only be judged then.

use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::{Roles, View};
use martlet_protocol::replica::{HandOverState, Standing, StateMachine};

use super::engine::Engine;
use super::life::{Cluster, Due};
use super::node::Node;
use super::oracles::{linearizable, replicas};
use super::report::Property;

/// How long a healed cluster has for what it must do, in virtual nanoseconds: a dozen of the longest broadcast timeouts.
pub(super) const BOUND_NS: u64 = 20_000_000;
/// How often its progress is checked.
const STEP_NS: u64 = 50_000;
/// How long after all trouble has ended it is checked what is left.
const SETTLE_NS: u64 = 300_000;
/// How many requests the majority has to answer.
const ALONE_REPLIES: u64 = 3;

/// Whether a node leads and may answer. Where views decide which node leads, its lease says so.
fn leads<E: Engine, const HOST: bool>(node: &Node<E, HOST>, now: u64) -> bool {
    let entitled = E::TRAITS.elects() || node.may_act_in(now) == Some(node.engine().view());
    node.engine().standing() == Standing::Primary && entitled
}

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// Lets whatever was under way when trouble ended come to its end: a view that had been proposed is decided, for example. Then it turns out whether enough
    /// is left to continue.
    pub(super) fn settle(&mut self) {
        // Nodes that are about to end do so within their patience, and start again.
        let until = self.world.now() + BOUND_NS;
        while self.shutdown.is_some() && self.world.now() < until && self.oracles.violation().is_none() {
            self.go_on_until(self.world.now() + STEP_NS);
        }
        self.go_on_until(self.world.now() + SETTLE_NS);
        // If no process knows a view, the disks decide.
        self.ended = self.oracles.views.newest().is_some() && self.enough(false, |_| true).is_none();
    }

    /// Heals a majority only. The others are stopped or, on a network, cut off from it, and those of them that start over come back later. The majority has to
    /// serve. Then the others come back, too.
    pub(super) fn serve_alone(&mut self) {
        let suspected = |p: usize| self.nodes.iter().flatten().any(|n| n.core().suspicion(self.name(p)).is_some());
        let stays = |p: usize| self.nodes[p].as_ref().is_some_and(|n| !n.is_leaving() && !n.dying && !n.over) && !suspected(p);
        let Some(few) = self.enough_with_newcomers(stays) else { return };
        let others: Vec<usize> = self.alive().filter(|p| !few.contains(p)).collect();
        self.tell(|c| {
            let names: Vec<String> = few.iter().map(|p| c.name(*p).to_string()).collect();
            format!("{} are left alone", names.join(", "))
        });
        for other in &others {
            if HOST {
                self.hold(*other);
            } else {
                self.world.partition(&few, &[*other]);
            }
        }
        self.alone = few.iter().map(|p| self.name(*p).node.0).collect();
        let before = self.replies;
        let done = |c: &Self| {
            let now = c.world.now();
            let answered = c.replies >= before + ALONE_REPLIES || c.requests >= c.settings.most_requests;
            answered && c.left_alone().into_iter().filter_map(|p| c.nodes[p].as_ref()).any(|node| leads(node, now))
        };
        self.served_alone = self.wait_for(Property::Recovery, "a majority alone serves", done);
        self.tell(|_| "the others come back".to_owned());
        self.alone.clear();
        self.world.heal();
        for other in others {
            if HOST {
                self.release(other);
            }
        }
        for node in std::mem::take(&mut self.late) {
            self.enter(self.world.now() + 1, Due::Restart { node });
        }
        self.start_over_the_deaf();
    }

    /// The processes of the nodes that are left alone. If such a node starts over, its new process belongs to them like the earlier one.
    fn left_alone(&self) -> Vec<usize> {
        self.alive().filter(|p| self.alone.contains(&self.name(*p).node.0)).collect()
    }

    /// The cluster has to become whole: every node a replica of one active view, and in the end all of them equal.
    pub(super) fn recover(&mut self) {
        if self.ended {
            return;
        }
        self.have_places_for_all();
        if !self.wait_for(Property::Recovery, "every node is a replica of one active view", Self::is_whole) {
            return;
        }
        let is_told = |node: &Node<E, HOST>| node.engine().hand_over_state() != Some(HandOverState::UnderWay);
        if !self.wait_for(Property::Recovery, "whoever was to hand over can say what came of it", |c| c.nodes.iter().flatten().all(is_told))
        {
            return;
        }
        // Every key is read once more, when everything that clients had begun is over.
        self.closing = true;
        if !self.wait_for(Property::Recovery, "all requests come to an end", |c| c.clients.iter().all(|client| !client.is_waiting())) {
            return;
        }
        self.clients[0].wanted = (1..=self.settings.keys).collect();
        self.enter(self.world.now() + 1, Due::Call { client: 0 });
        if !self.wait_for(Property::Recovery, "every key can be read", |c| c.clients[0].wanted.is_empty()) {
            return;
        }
        if self.wait_for(Property::ReplicasEqual, "all replicas are equal", Self::is_equal) {
            self.settled = true;
            self.look_inside();
        }
    }

    /// An operator gives the group as many places as there are replicas, and asks again until all of them know.
    fn have_places_for_all(&mut self) {
        let until = self.world.now() + BOUND_NS;
        let is_sized = |node: &Node<E, HOST>| node.engine().is_complete() && node.engine().places().is_some();
        while self.nodes.iter().flatten().any(is_sized) && self.world.now() < until && self.oracles.violation().is_none() {
            if let Some(leader) = self.leader() {
                self.resize(leader, 0);
            }
            self.go_on_until(self.world.now() + STEP_NS);
        }
    }

    /// All is quiet: judges what the replicas hold.
    fn look_inside(&mut self) {
        let now = self.world.now();
        for node in self.nodes.iter().flatten() {
            if self.settings.roles[usize::from(node.me().node.0)].has(Roles::REPLICA) {
                self.oracles.settled(now, node.me(), &node.host.machine);
            }
            self.oracles.footprint(now, node.me(), node.footprint());
        }
    }

    /// Runs until `done`, or until it is clear that it will not happen. Returns whether it did.
    fn wait_for(&mut self, property: Property, what: &str, done: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..BOUND_NS / STEP_NS {
            if self.oracles.violation().is_some() {
                return false;
            }
            if done(self) {
                return true;
            }
            if self.has_ended() {
                return false;
            }
            self.go_on_until(self.world.now() + STEP_NS);
        }
        let describe = |node: &Node<E, HOST>| {
            let (core, leased) = (node.core().view_number(), node.core().lease().view());
            format!("\n  {} knows view {core}, leased {leased}, {}", node.me(), node.engine().describe())
        };
        let state: String = self.nodes.iter().flatten().map(describe).collect();
        let newest = self.oracles.views.newest().cloned();
        self.oracles.violated(self.world.now(), property, format!("not reached: {what}; newest view {newest:?}{state}"));
        false
    }

    /// Whether too little was left when all trouble ended, or no replica or no coordinator of the newest view runs. That takes a crash and a wrong presumption
    /// of death at once, one of them on its way when the other comes: a view drops the last replica or coordinator only when its death is certain, and no
    /// process is killed that is known to be needed. Tests bound how often this happens.
    pub(super) fn has_ended(&self) -> bool {
        let runs = |id: ProcessId| self.nodes.iter().flatten().any(|n| n.me() == id);
        let left = |view: &View, role| view.with_roles(role).any(|m| runs(m.id));
        self.ended || self.oracles.views.newest().is_some_and(|view| !left(view, Roles::REPLICA) || !left(view, Roles::COORDINATOR))
    }

    fn is_equal(&self) -> bool {
        let replicas = self.nodes.iter().flatten().filter(|n| self.settings.roles[usize::from(n.me().node.0)].has(Roles::REPLICA));
        replicas::are_equal(replicas.map(|n| (n.engine().applied(), n.host.machine.digest())))
    }

    pub(super) fn is_whole(&self) -> bool {
        let now = self.world.now();
        let Some(view) = self.oracles.views.newest() else { return false };
        let all_run = self.current.iter().all(Option::is_some);
        let all_replicas =
            view.with_roles(Roles::REPLICA).count() == self.settings.roles.iter().filter(|roles| roles.has(Roles::REPLICA)).count();
        let all_know = self.nodes.iter().flatten().all(|n| n.core().view_number() == view.number && view.member(n.me()).is_some());
        let primaries = self.nodes.iter().flatten().filter(|n| n.engine().standing() == Standing::Primary).count();
        let leading = self.nodes.iter().flatten().filter(|n| leads(n, now)).count();
        all_run && all_replicas && all_know && primaries == 1 && leading == 1
    }

    /// Judges what the clients saw.
    pub(super) fn judge_history(&mut self) {
        for client in 0..self.clients.len() {
            let number = self.clients[client].number();
            if let Some(operation) = self.clients[client].give_up(number) {
                self.history.push((number, operation));
            }
        }
        if self.oracles.violation().is_some() {
            return;
        }
        let took_effect = |client, number| self.oracles.once.holds(client, number);
        match linearizable::judge(&self.history, self.settled.then_some(took_effect)) {
            Ok(decided) => self.undecided = !decided,
            Err(what) => self.oracles.violated(self.world.now(), Property::Linearizable, what),
        }
    }
}
