//! What a script can tell a cluster to do: wait until, kill, pause, resume. Time and randomness are those of a life in which nothing goes wrong by itself.

use martlet_protocol::basics::ProcessId;
use martlet_protocol::replica::Standing;

use crate::cluster::engine::Engine;
use crate::cluster::life::Cluster;
use crate::cluster::recovery::BOUND_NS;
use crate::cluster::report::Property;

/// How long a script waits for anything, in virtual nanoseconds: as long as a healed cluster has to become whole again.
const PATIENCE_NS: u64 = BOUND_NS;

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    /// Adds a line to the story.
    pub(in crate::cluster) fn say(&mut self, what: &str) {
        self.tell(|_| format!("-- {what}"));
    }

    /// Runs until `done`. If that never happens, it is a violation. Returns whether it happened.
    pub(in crate::cluster) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.world.now() + PATIENCE_NS;
        while !done(self) {
            if self.oracles.violation().is_some() {
                return false;
            }
            if !self.advance(end) {
                self.oracles.violated(self.world.now(), Property::Recovery, format!("not reached: {what}"));
                return false;
            }
        }
        true
    }

    /// Runs until every node is a replica of one active view and the clients have got some replies.
    pub(in crate::cluster) fn until_served(&mut self) {
        self.until("every node is a replica of one active view", Self::is_whole);
        self.until_replies(10);
    }

    /// Runs until the clients have got that many more replies.
    pub(in crate::cluster) fn until_replies(&mut self, more: u64) {
        let wanted = self.replies + more;
        self.until("clients get replies", |c| c.replies >= wanted);
    }

    /// The running process of a node.
    pub(in crate::cluster) fn process(&self, node: u16) -> usize {
        self.current[usize::from(node)].expect("the script knows that it runs")
    }

    /// Whether a process other than this one leads.
    pub(in crate::cluster) fn has_other_primary(&self, than: ProcessId) -> bool {
        self.alive().any(|p| self.nodes[p].as_ref().is_some_and(|n| n.me() != than && n.engine().standing() == Standing::Primary))
    }

    /// Whether the newest view lists this process.
    pub(in crate::cluster) fn lists(&self, process: ProcessId) -> bool {
        self.oracles.views.newest().is_some_and(|view| view.member(process).is_some())
    }

    /// An operator asks a node for another length of leases.
    pub(in crate::cluster) fn ask_for_leases(&mut self, process: usize, lease_ns: u64) {
        let now = self.world.now();
        self.nodes[process].as_mut().expect("it lives").set_lease_ns(now, &mut self.chance, lease_ns);
        self.look_at(process);
        self.world.wake(process);
    }

    /// An operator asks a process for a higher feature level, whether or not all members support it.
    pub(in crate::cluster) fn ask_for_level(&mut self, process: usize, level: u8) {
        let now = self.world.now();
        self.nodes[process].as_mut().expect("it lives").raise_level(now, &mut self.chance, level);
        self.look_at(process);
        self.world.wake(process);
    }

    /// SIGKILL. Returns the id of the process.
    pub(in crate::cluster) fn kill(&mut self, process: usize) -> ProcessId {
        let name = self.name(process);
        self.kills += 1;
        self.end(process, false);
        name
    }

    /// The rest of a scripted life: everything heals, and everything is judged.
    pub(in crate::cluster) fn conclude(&mut self) {
        if self.oracles.violation().is_none() {
            self.heal_all();
            self.recover();
        }
    }
}
