//! The processes that this one is connected with, and the signs of life it has of them.

use martlet_fabric::{Fabric, Identity, NodeId, OpError, PeerId, PeerKind};

use super::{Read, read_token, remote_life};
use crate::basics::layout::life;
use crate::basics::{Canary, ProcessId, Time, ViewNumber};
use crate::detector::broadcast::Silence;
use crate::detector::certain::{DeathWords, Sign};
use crate::detector::certificate::{Pledge, Pledged, Reading};
use crate::detector::heartbeat::{Score, Thresholds};
use crate::detector::wardens::Secret;
use crate::membership::view::{Evidence, View};

/// How a process has asked to be taken in.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// When the request was received here.
    pub at: Time,
    /// The newest view that the process knew.
    pub view: ViewNumber,
    /// The processes that it was connected with.
    pub reaches: Vec<ProcessId>,
}

/// One connected member.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub id: PeerId,
    pub process: ProcessId,
    deaths: DeathWords,
    /// What it has pledged, as read from its memory.
    pledge: Reading,
    /// The secret that proves that it is gone.
    proof: Option<Secret>,
    score: Score,
    silence: Silence,
    /// The members that it hears, according to its last broadcast: one bit per place in the view.
    heard: Option<u16>,
    suspicion: Option<Evidence>,
    /// Whether the suspicion is known from others only, and nothing has been seen here to support it.
    hearsay: bool,
    /// Its heartbeat when this process last read it.
    last_beat: Option<u64>,
    /// Its heartbeat when this process first read it after the suspicion arose.
    beat_when_suspected: Option<u64>,
    /// Its connection has ended; or an earlier one has, and a new one does not repair that.
    lost: bool,
    /// Its memory has been given up: it cannot be taken in any more.
    forgotten: bool,
    /// When it became known to be gone for certain.
    dead_since: Option<Time>,
    /// A view has listed it.
    listed: bool,
    /// How it last asked to be taken in.
    asked_to_join: Option<Asked>,
    /// Processes that have said that they are connected with it, since it asked to be taken in.
    vouchers: Vec<ProcessId>,
    /// The newest view number seen on its board.
    pub board: ViewNumber,
    /// Whether the number on its board is being read; and whether a number read after that is wanted as well.
    pub number_asked: bool,
    pub number_wanted: bool,
    /// Whether its board is being read.
    pub board_asked: bool,
    /// Its heartbeat is being read.
    heart_asked: bool,
    /// Whether that read began before the process was suspected.
    heart_asked_before: bool,
}

/// More processes than a cluster has members, and their latest lives.
const CROWD: usize = 64;
/// So many later lives make it sure that an unlisted one is over.
const LIVES_KEPT: usize = 8;

/// All of them. There are at most a few dozen, so linear search will do.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    me: ProcessId,
    thresholds: Thresholds,
    list: Vec<Peer>,
}

impl Peers {
    pub fn new(me: ProcessId, thresholds: Thresholds) -> Peers {
        Peers { me, thresholds, list: Vec::with_capacity(32) }
    }

    /// A process is connected, possibly again. With `mends`, a new connection is as good as never having lost the old one. Otherwise the loss stands:
    /// a view that lists the process is superseded by one that does not, whatever is heard from it meanwhile.
    pub fn add(&mut self, now: Time, id: PeerId, identity: Identity, mends: bool) -> Option<ProcessId> {
        if identity.kind != PeerKind::Member {
            return None;
        }
        let process = ProcessId { node: identity.node, incarnation: identity.incarnation };
        let of_node = |p: &&Peer| p.process.node == process.node && Canary::PledgeOfNode.is_planted();
        let earlier_pledge = self.list.iter().rfind(of_node).map(|p| p.pledge);
        let earlier = self.list.iter().position(|p| p.process == process).map(|at| self.list.remove(at));
        let listed = earlier.as_ref().is_some_and(|e| e.listed);
        let severed = earlier.filter(|e| listed && e.lost && !mends);
        self.list.push(Peer {
            id,
            process,
            deaths: DeathWords::default(),
            // Read afresh on each connection: a process that has come back with its log is the same process, but has pledged something else.
            pledge: earlier_pledge.unwrap_or_default(),
            proof: None,
            score: Score::new(self.thresholds),
            silence: Silence::new(now),
            heard: None,
            suspicion: severed.as_ref().and_then(|e| e.suspicion),
            hearsay: false,
            last_beat: None,
            beat_when_suspected: None,
            lost: severed.is_some(),
            forgotten: false,
            dead_since: severed.and_then(|e| e.dead_since),
            listed,
            asked_to_join: None,
            vouchers: Vec::new(),
            board: ViewNumber(0),
            number_asked: false,
            number_wanted: false,
            board_asked: false,
            heart_asked: false,
            heart_asked_before: false,
        });
        Some(process)
    }

    /// The peer's process ended (`certain`), or its connection did. Returns the process to suspect.
    pub fn gone(&mut self, id: PeerId, certain: bool) -> Option<ProcessId> {
        let peer = self.get(id)?;
        peer.lost = true;
        if peer.suspicion == Some(Evidence::Left) && certain {
            return None;
        }
        Some(peer.process)
    }

    pub fn get(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.list.iter_mut().find(|p| p.id == id)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.list.iter_mut()
    }

    /// The newest view number seen on any board; 0 for none.
    pub fn newest_board(&self) -> ViewNumber {
        self.list.iter().map(|p| p.board).max().unwrap_or_default()
    }

    pub fn process(&self, id: PeerId) -> Option<ProcessId> {
        self.list.iter().find(|p| p.id == id).map(|p| p.process)
    }

    pub fn of(&self, process: ProcessId) -> Option<PeerId> {
        if process == self.me {
            return Some(PeerId::SELF);
        }
        self.list.iter().find(|p| p.process == process).map(|p| p.id)
    }

    pub fn suspicion(&self, process: ProcessId) -> Option<Evidence> {
        self.list.iter().find(|p| p.process == process).and_then(|p| p.suspicion)
    }

    pub fn is_suspect(&self, process: ProcessId) -> bool {
        self.suspicion(process).is_some()
    }

    /// Whether this process is connected with `process` and does not suspect it.
    pub fn is_trusted(&self, process: ProcessId) -> bool {
        self.list.iter().any(|p| p.process == process && p.suspicion.is_none())
    }

    /// Notes a suspicion, our own or `hearsay`. Returns whether it is news, or stronger than what was known.
    pub fn suspect(&mut self, now: Time, process: ProcessId, evidence: Evidence, hearsay: bool) -> bool {
        let Some(peer) = self.list.iter_mut().find(|p| p.process == process) else { return false };
        // Unlike a presumption, an eviction is not withdrawn.
        let decided = peer.suspicion == Some(Evidence::Presumed) && evidence == Evidence::Evicted;
        match peer.suspicion {
            Some(known) if known.releases_leases() || !(evidence.releases_leases() || decided) => {
                peer.hearsay &= hearsay;
                false
            }
            _ => {
                peer.suspicion = Some(evidence);
                peer.hearsay = hearsay;
                peer.beat_when_suspected = None;
                // The read under way may return a heartbeat older than the last beat before the suspicion.
                peer.heart_asked_before = peer.heart_asked;
                if evidence.releases_leases() {
                    peer.dead_since.get_or_insert(now);
                }
                true
            }
        }
    }

    /// Whether this process presumes `process` dead because of what it has seen itself.
    pub fn has_seen_stop(&self, process: ProcessId) -> bool {
        self.list.iter().any(|p| p.process == process && p.suspicion.is_some() && !p.hearsay)
    }

    /// Processes that this one is connected with. A process that is merely presumed dead is among them: it may be alive, and its memory is within
    /// reach in any case.
    pub fn reached(&self) -> Vec<ProcessId> {
        let reached = self.list.iter().filter(|p| !p.lost && !p.forgotten && !p.suspicion.is_some_and(Evidence::releases_leases));
        reached.map(|p| p.process).collect()
    }

    /// A process asks to be taken in.
    pub fn note_asked(&mut self, id: PeerId, asked: Asked) {
        if let Some(peer) = self.get(id) {
            peer.asked_to_join = Some(asked);
        }
    }

    /// How `newcomer` last asked to be taken in.
    pub fn asked(&self, newcomer: ProcessId) -> Option<&Asked> {
        self.list.iter().find(|p| p.process == newcomer)?.asked_to_join.as_ref()
    }

    /// `voucher` says that it is connected with `newcomer`, which asks to be taken in.
    pub fn note_voucher(&mut self, newcomer: ProcessId, voucher: ProcessId) {
        if let Some(peer) = self.list.iter_mut().find(|p| p.process == newcomer && !p.vouchers.contains(&voucher)) {
            peer.vouchers.push(voucher);
        }
    }

    /// Whether a newcomer and `other` can use each other's memory: both have said so.
    pub fn have_met(&self, newcomer: ProcessId, other: ProcessId) -> bool {
        let known = self.list.iter().find(|p| p.process == newcomer);
        let reaches = |p: &Peer| p.asked_to_join.as_ref().is_some_and(|asked| asked.reaches.contains(&other));
        known.is_some_and(|p| reaches(p) && (other == self.me || p.vouchers.contains(&other)))
    }

    /// Gives up the peer's memory.
    pub fn forget(&mut self, id: PeerId) {
        if let Some(peer) = self.get(id) {
            peer.forgotten = true;
        }
    }

    /// Whether the memory of this process has been given up.
    pub fn is_forgotten(&self, process: ProcessId) -> bool {
        self.list.iter().any(|p| p.process == process && p.forgotten)
    }

    /// The newest incarnation of this process's node, from this process on, that a view known here has listed.
    pub fn listed_since(&self, process: ProcessId) -> Option<ProcessId> {
        let lives = self.list.iter().filter(|p| p.process.node == process.node && p.process >= process && p.listed);
        lives.map(|p| p.process).max()
    }

    /// Notes the members that a view lists.
    pub fn note_listed(&mut self, view: &View) {
        for peer in &mut self.list {
            peer.listed |= view.member(peer.process).is_some();
        }
    }

    /// Whether a view not yet known here may list this process although it is dead: no view has listed it so far, and it died so recently that a
    /// leader may have taken it in before it knew of the death.
    pub fn may_be_listed(&self, process: ProcessId, now: Time, within_ns: u64) -> bool {
        let peer = self.list.iter().find(|p| p.process == process);
        peer.is_some_and(|p| !p.listed && p.dead_since.is_some_and(|at| now.since(at) < within_ns))
    }

    /// Forgets processes that no longer matter. A process matters as long as `keep` says so: it is a member, or is awaited. Any other is forgotten if
    /// it is gone for certain (unless a view on its way may list it), or if it is lost or given up and a later incarnation of its node has been
    /// listed. Over a network no death is certain, so without the second rule every incarnation of a node would be kept.
    pub fn prune(&mut self, now: Time, within_ns: u64, keep: impl Fn(ProcessId) -> bool) {
        let listed: Vec<ProcessId> = self.list.iter().filter(|p| p.listed).map(|p| p.process).collect();
        self.list.retain(|p| {
            let recent = !p.listed && p.dead_since.is_some_and(|at| now.since(at) < within_ns);
            let gone = p.suspicion.is_some_and(Evidence::releases_leases) && !recent;
            // Once a peer's memory has been given up, the fabric says nothing more about it, not even that the connection is lost.
            let superseded = (p.lost || p.forgotten) && listed.iter().any(|later| later.node == p.process.node && *later > p.process);
            !(gone || superseded) || keep(p.process)
        });
    }

    /// Forgets old lives of nodes, where there are many: those that no view has listed, whose memory has been given up, and whose node has had several lives since.
    /// A node may come back again and again without being taken in, and no view changes, so nothing else would ever [forget](Peers::prune) them. Should a view on
    /// its way list one of them after all, that one is a process that this one has never met.
    pub fn thin_out(&mut self, keep: impl Fn(ProcessId) -> bool) {
        if self.list.len() <= CROWD {
            return;
        }
        let lives: Vec<ProcessId> = self.list.iter().map(|p| p.process).collect();
        self.list.retain(|p| {
            let later = lives.iter().filter(|life| life.node == p.process.node && **life > p.process).count();
            p.listed || !p.forgotten || later < LIVES_KEPT || keep(p.process)
        });
    }

    /// This process was itself stalled, so peers that seemed to stand still may not have.
    pub fn forgive(&mut self, now: Time) {
        for peer in &mut self.list {
            peer.score.forget_last();
            peer.silence.reset(now);
        }
    }

    /// Reads the death words of every process that is not known to be gone.
    pub fn watch<F: Fabric>(&mut self, fabric: &mut F) {
        let watcher = usize::from(self.me.node.0);
        for peer in self.list.iter_mut().filter(|p| !p.forgotten) {
            if peer.suspicion.is_some_and(Evidence::releases_leases) {
                continue;
            }
            let id = peer.id;
            peer.deaths.look(id, watcher, fabric, read_token(Read::Threads, 0, id), |thread| read_token(Read::Death, thread, id));
        }
    }

    /// Asks how many threads act for a process of which nothing is known yet.
    pub fn ask_threads<F: Fabric>(&mut self, fabric: &mut F, id: PeerId) {
        if let Some(peer) = self.get(id) {
            peer.deaths.ask_count(id, fabric, read_token(Read::Threads, 0, id));
        }
    }

    /// Asks what a process has pledged.
    pub fn ask_pledge<F: Fabric>(&mut self, fabric: &mut F, id: PeerId) {
        if self.get(id).is_some_and(|peer| peer.pledge.pledged() == Pledged::Unread) {
            for word in 0..Pledge::WORDS {
                fabric.read_word(remote_life(id, life::PLEDGE + word), read_token(Read::Pledge, word, id));
            }
        }
    }

    /// Takes one word of a pledge.
    pub fn note_pledge(&mut self, id: PeerId, word: usize, result: Result<u64, OpError>) {
        if let (Some(peer), Ok(value)) = (self.get(id), result) {
            peer.pledge.note(word, value);
        }
    }

    /// What a process has pledged, as far as known here.
    pub fn pledged(&self, process: ProcessId) -> Pledged {
        self.list.iter().find(|p| p.process == process).map_or(Pledged::Unread, |p| p.pledge.pledged())
    }

    /// Notes the secret that proves that a process is gone.
    pub fn note_proof(&mut self, process: ProcessId, secret: Secret) {
        if let Some(peer) = self.list.iter_mut().find(|p| p.process == process) {
            peer.proof = Some(secret);
        }
    }

    /// The secret that proves that a process is gone.
    pub fn proof(&self, process: ProcessId) -> Option<Secret> {
        self.list.iter().find(|p| p.process == process)?.proof
    }

    /// The incarnations of a node.
    pub fn lives_of(&self, node: NodeId) -> impl Iterator<Item = ProcessId> + '_ {
        self.list.iter().map(|p| p.process).filter(move |process| process.node == node)
    }

    /// Takes what a process says about its threads. Returns what that proves, if it is news.
    pub fn note_threads(&mut self, id: PeerId, result: Result<u64, OpError>) -> Option<(ProcessId, Evidence)> {
        let peer = self.get(id)?;
        match peer.deaths.note_count(result.ok()?) {
            Sign::Alive => None,
            Sign::Dead => Some((peer.process, Evidence::Certain)),
            Sign::Ended => Some((peer.process, Evidence::Left)),
        }
    }

    /// Takes a death word. If no thread seems to be alive, asks at once whether those are all its threads.
    pub fn note_death_word<F: Fabric>(&mut self, fabric: &mut F, id: PeerId, thread: usize, result: Result<u64, OpError>) {
        if let Some(peer) = self.get(id) {
            peer.deaths.note_word(thread, result.ok());
            peer.deaths.ask_count(id, fabric, read_token(Read::Threads, 0, id));
        }
    }

    /// Reads the heartbeat of a process, unless such a read is under way: if reads were posted faster than they are answered, their queue would grow
    /// without bound.
    pub fn ask_heartbeat<F: Fabric>(&mut self, fabric: &mut F, process: ProcessId) {
        if let Some(peer) = self.list.iter_mut().find(|p| p.process == process && !p.heart_asked) {
            peer.heart_asked = true;
            fabric.read_word(remote_life(peer.id, life::HEARTBEAT), read_token(Read::Heartbeat, 0, peer.id));
        }
    }

    /// Members of `view` not heard for so long that their heartbeats should be read: a process busy with something long sends nothing meanwhile.
    pub fn quiet(&self, now: Time, view: &View, timeout_ns: u64) -> Vec<ProcessId> {
        let quiet = |process: &ProcessId| self.list.iter().any(|p| p.process == *process && p.silence.is_suspicious(now, timeout_ns / 2));
        view.members.iter().map(|m| m.id).filter(quiet).collect()
    }

    /// Takes a heartbeat. Returns the process that is presumed dead because of it, if any.
    ///
    /// A heartbeat that has advanced ends a silence: this process can read what the other one writes, so they reach each other.
    ///
    /// It withdraws a suspicion as well, if it has advanced since the first read that began after the suspicion arose. That this process has not
    /// itself seen the heart stop is no sign of life: the process that raised the suspicion may have watched for longer. Unlike a score, that
    /// baseline survives stalls of this process: an advance is an advance however late it is read, and otherwise a process that stalls often would
    /// never withdraw a suspicion.
    pub fn note_heartbeat(&mut self, now: Time, id: PeerId, result: Result<u64, OpError>) -> Option<ProcessId> {
        let peer = self.get(id)?;
        peer.heart_asked = false;
        let before = std::mem::take(&mut peer.heart_asked_before);
        let counter = result.ok()?;
        if peer.last_beat.replace(counter).is_some_and(|last| last != counter) && !peer.lost {
            peer.silence.reset(now);
        }
        let failed = peer.score.observe(counter);
        let beats = !before && *peer.beat_when_suspected.get_or_insert(counter) != counter;
        if failed {
            return Some(peer.process);
        }
        if beats && peer.suspicion == Some(Evidence::Presumed) && !peer.lost {
            peer.suspicion = None;
        }
        None
    }

    pub fn hear(&mut self, now: Time, id: PeerId, heard: Option<u16>) {
        if let Some(peer) = self.get(id) {
            peer.silence.reset(now);
            if heard.is_some() {
                peer.heard = heard;
            }
        }
    }

    /// A process that was presumed dead is alive.
    pub fn trust(&mut self, id: PeerId) {
        if let Some(peer) = self.get(id)
            && peer.suspicion == Some(Evidence::Presumed)
            && !peer.lost
        {
            peer.suspicion = None;
        }
    }

    /// The members of `view`, known since `learned`, that this process hears: one bit per place. A member that is not connected yet is given as much
    /// time as one that has fallen silent, since a newcomer's connections take a while to come up.
    pub fn heard(&self, now: Time, view: &View, learned: Time, timeout_ns: u64) -> u16 {
        let hears = |process: ProcessId| {
            let known = self.list.iter().find(|p| p.process == process).map_or(Silence::new(learned), |p| p.silence);
            process == self.me || !known.is_suspicious(now, timeout_ns)
        };
        view.members.iter().enumerate().filter(|(_, m)| hears(m.id)).map(|(i, _)| 1 << i).sum()
    }

    /// What each member of `view` hears, by place; a member that has not reported yet is taken to hear all.
    pub fn links(&self, now: Time, view: &View, learned: Time, timeout_ns: u64) -> Vec<u16> {
        let row = |process: ProcessId| {
            if process == self.me {
                return self.heard(now, view, learned, timeout_ns);
            }
            self.list.iter().find(|p| p.process == process).and_then(|p| p.heard).unwrap_or(u16::MAX)
        };
        view.members.iter().map(|m| row(m.id)).collect()
    }

    /// A new view: earlier reports refer to places in the old one, and mean nothing any more.
    pub fn forget_reports(&mut self) {
        self.list.iter_mut().for_each(|p| p.heard = None);
    }
}

#[cfg(test)]
mod tests {
    use martlet_fabric::sim::{Faults, World};
    use martlet_fabric::{Incarnation, PeerEvent};

    use super::*;
    use crate::basics::layout::{Sizes, regions};
    use crate::membership::view::{Member, Roles};

    #[test]
    fn a_member_that_is_not_yet_connected_is_not_silent_at_once() {
        let id = |node| ProcessId { node: NodeId(node), incarnation: Incarnation(1) };
        let members = (0..3).map(|n| Member::new(id(n), Roles::REPLICA)).collect();
        let view = View { number: ViewNumber(4), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
        let mut peers = Peers::new(id(0), Thresholds::default());
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        peers.add(Time(900), PeerId(1), identity, true);
        assert_eq!(peers.heard(Time(1_100), &view, Time(1_000), 100), 0b101, "1 has been silent since it was connected, 2 has time left");
        assert_eq!(peers.heard(Time(1_101), &view, Time(1_000), 100), 0b001, "2 has not been connected in time");
    }

    #[test]
    fn lives_of_a_node_that_is_never_taken_in_do_not_pile_up_although_no_view_changes() {
        let life = |node, incarnation| ProcessId { node: NodeId(node), incarnation: Incarnation(incarnation) };
        let identity = |of: ProcessId| Identity { node: of.node, incarnation: of.incarnation, kind: PeerKind::Member };
        let mut peers = Peers::new(life(0, 1), Thresholds::default());
        // One that a view lists, one that is awaited, and one that is there: the others come and go.
        let members = vec![Member::new(life(1, 1), Roles::REPLICA)];
        let view = View { number: ViewNumber(4), lease_ns: 1, fence_ns: 1, compatible: false, level: 1, members, departed: Vec::new() };
        let mut next = 1;
        let mut come = |peers: &mut Peers, of| {
            next += 1;
            peers.add(Time(next), PeerId(next as u32), identity(of), true);
            PeerId(next as u32)
        };
        for of in [life(1, 1), life(1, 2)] {
            let id = come(&mut peers, of);
            peers.note_listed(&view);
            peers.forget(id);
        }
        let is_awaited = |of: ProcessId| of == life(1, 2);
        come(&mut peers, life(2, 1));
        for incarnation in 3..1000 {
            for node in [1, 2] {
                let id = come(&mut peers, life(node, incarnation));
                peers.gone(id, false);
                peers.forget(id);
            }
            peers.thin_out(is_awaited);
            assert!(peers.list.len() <= CROWD + 2);
        }
        for (of, is_kept) in [(life(1, 1), true), (life(1, 2), true), (life(2, 1), true), (life(1, 3), false), (life(1, 999), true)] {
            assert_eq!(peers.of(of).is_some(), is_kept, "{of}");
        }
    }

    #[test]
    fn a_decision_to_cut_off_is_not_withdrawn_by_a_sign_of_life() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let process = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        let mut peers = Peers::new(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }, Thresholds::default());
        peers.add(Time(900), PeerId(1), identity, true);
        assert!(peers.suspect(Time(1_000), process, Evidence::Presumed, false));
        assert!(peers.suspect(Time(1_000), process, Evidence::Evicted, true), "that is news");
        assert!(!peers.suspect(Time(1_000), process, Evidence::Presumed, false));
        peers.trust(PeerId(1));
        assert_eq!(peers.suspicion(process), Some(Evidence::Evicted));
        assert!(peers.suspect(Time(1_000), process, Evidence::Certain, true));
        assert!(!peers.suspect(Time(1_000), process, Evidence::Evicted, true));
        assert_eq!(peers.suspicion(process), Some(Evidence::Certain));
    }

    #[test]
    fn a_lost_connection_is_mended_by_another_one_unless_somebody_may_have_acted_on_the_loss() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let process = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        let view = View {
            number: ViewNumber(4),
            lease_ns: 1,
            fence_ns: 1,
            compatible: false,
            level: 1,
            members: vec![Member::new(process, Roles::REPLICA)],
            departed: Vec::new(),
        };
        for mends in [true, false] {
            let mut peers = Peers::new(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }, Thresholds::default());
            peers.add(Time(1), PeerId(1), identity, mends);
            peers.note_listed(&view);
            peers.gone(PeerId(1), false);
            assert!(peers.suspect(Time(2), process, Evidence::Presumed, true));
            peers.add(Time(3), PeerId(2), identity, mends);
            assert_eq!((peers.of(process), peers.process(PeerId(1))), (Some(PeerId(2)), None), "by its latest connection");
            assert_eq!(peers.listed_since(process), Some(process), "it is the same process");
            peers.note_heartbeat(Time(2), PeerId(2), Ok(1));
            peers.trust(PeerId(2));
            assert_eq!(peers.suspicion(process), (!mends).then_some(Evidence::Presumed));
        }
    }

    #[test]
    fn only_an_advance_that_was_seen_since_withdraws_a_suspicion() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let process = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        for looked_at_before in [false, true] {
            let mut peers = Peers::new(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }, Thresholds::default());
            peers.add(Time(1), PeerId(1), identity, true);
            if looked_at_before {
                (1..4).for_each(|beat| assert_eq!(peers.note_heartbeat(Time(2), PeerId(1), Ok(beat)), None));
            }
            // Another process reports it gone. It may have beaten once more after our last read, and then stopped.
            assert!(peers.suspect(Time(2), process, Evidence::Presumed, true));
            for _ in 0..3 {
                peers.note_heartbeat(Time(2), PeerId(1), Ok(4));
                assert_eq!(peers.suspicion(process), Some(Evidence::Presumed), "looked at before: {looked_at_before}");
            }
            // A repeated report changes nothing about what has been seen.
            assert!(!peers.suspect(Time(3), process, Evidence::Presumed, true));
            peers.note_heartbeat(Time(2), PeerId(1), Ok(5));
            assert_eq!(peers.suspicion(process), None);
            // Suspected again, now because of what has been seen since.
            assert!(peers.suspect(Time(4), process, Evidence::Presumed, true));
            peers.note_heartbeat(Time(2), PeerId(1), Ok(6));
            assert!(peers.is_suspect(process));
        }
    }

    #[test]
    fn a_look_that_was_under_way_when_somebody_was_suspected_is_nothing_to_compare_with() {
        let identity = |node| Identity { node: NodeId(node), incarnation: Incarnation(1), kind: PeerKind::Member };
        let process = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        let spec = regions(Sizes { log_ring_bytes: 4096, client_ring_bytes: 4096 });
        let mut world = World::<false>::new(1, Faults::calm());
        let [(_, mut fabric), (_, _other)] = [0, 1].map(|node| world.spawn(identity(node), &spec));
        world.run_for(1_000_000);
        let Some(PeerEvent::Up { peer, .. }) = fabric.event() else { panic!("the two meet") };
        let mut peers = Peers::new(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }, Thresholds::default());
        peers.add(Time(1), peer, identity(1), true);
        peers.ask_heartbeat(&mut fabric, process);
        // It beats once more and stops, and another process reports it gone; the result of the earlier read arrives only now.
        peers.suspect(Time(2), process, Evidence::Presumed, true);
        for (found, suspected) in [(7, true), (8, true), (8, true), (9, false)] {
            peers.note_heartbeat(Time(2), peer, Ok(found));
            assert_eq!(peers.is_suspect(process), suspected, "found {found}");
        }
    }

    #[test]
    fn one_that_is_itself_stalled_between_any_two_looks_withdraws_a_suspicion_all_the_same() {
        let identity = Identity { node: NodeId(1), incarnation: Incarnation(1), kind: PeerKind::Member };
        let process = ProcessId { node: NodeId(1), incarnation: Incarnation(1) };
        let mut peers = Peers::new(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }, Thresholds::default());
        peers.add(Time(1), PeerId(1), identity, true);
        peers.suspect(Time(2), process, Evidence::Presumed, true);
        for beat in [7, 8] {
            assert!(peers.is_suspect(process));
            peers.forgive(Time(beat));
            peers.note_heartbeat(Time(2), PeerId(1), Ok(beat));
        }
        assert!(!peers.is_suspect(process));
    }

    #[test]
    fn over_a_network_earlier_lives_are_forgotten_once_a_later_one_is_listed() {
        let identity = |incarnation| Identity { node: NodeId(1), incarnation: Incarnation(incarnation), kind: PeerKind::Member };
        let life = |incarnation| ProcessId { node: NodeId(1), incarnation: Incarnation(incarnation) };
        let view = |incarnation| View {
            number: ViewNumber(4),
            lease_ns: 1,
            fence_ns: 1,
            compatible: false,
            level: 1,
            members: vec![Member::new(life(incarnation), Roles::REPLICA)],
            departed: Vec::new(),
        };
        let mut peers = Peers::new(ProcessId { node: NodeId(0), incarnation: Incarnation(1) }, Thresholds::default());
        let lost = |peers: &mut Peers, incarnation: u64| {
            // It was evicted and its memory given up, or its connection ended first.
            match incarnation % 2 {
                0 => peers.forget(PeerId(incarnation as u32)),
                _ => _ = peers.gone(PeerId(incarnation as u32), false),
            }
        };
        for incarnation in 1..100 {
            peers.add(Time(incarnation), PeerId(incarnation as u32), identity(incarnation), true);
            peers.note_listed(&view(incarnation));
            peers.prune(Time(incarnation), 5, |p| p == life(incarnation));
            assert_eq!(peers.of(life(incarnation - 1)), None);
            assert_eq!(peers.listed_since(life(incarnation - 1)), Some(life(incarnation)), "it is forgotten, and told what comes after");
            lost(&mut peers, incarnation);
            peers.suspect(Time(incarnation), life(incarnation), Evidence::Presumed, true);
        }
        peers.add(Time(100), PeerId(100), identity(100), true);
        peers.prune(Time(100), 5, |_| false);
        assert_eq!(peers.of(life(99)), Some(PeerId(99)), "no view has listed the life that came after it");
        peers.note_listed(&view(100));
        peers.prune(Time(100), 5, |p| p == life(99));
        assert_eq!(peers.of(life(99)), Some(PeerId(99)), "somebody waits for it");
    }
}
