//! What the wardens of several hosts tell each other: heartbeats over redundant paths, and the ends of applications (FiDe sections 3.1, 3.3 and 3.4; `docs/fide.md`).
//!
//! # The roll
//! A warden keeps a roll of its host's applications. Every change has a number, and every packet carries what has changed since the last number that the other one
//! has said to have heard. So nothing is lost with a packet, a repetition changes nothing, and an end is repeated until it has been heard: at once, after
//! [`Config::REPEATS_NS`], and then every [`Config::REPEAT_EVERY_NS`]. A packet without changes is a heartbeat. All go over every path, under one number; the first to
//! arrive counts, and what comes over the others says that those paths work. The roll has one entry an application, its newest life: of lives that both begin and end before
//! the other warden has heard of them, the newest is told of.
//!
//! # What is certain
//! An application's entry holds the digest of a secret that its warden keeps. The entry that says that it has failed reveals the secret. So such a certificate proves
//! that it comes from the warden that had told of the application, and it is of one life of it. A failure without it is none. Silence is a presumption, whatever the
//! timeout: it is withdrawn when the host is heard again.
//!
//! # Lives
//! A warden has a life, drawn at random, and a challenge for each other one, which a packet has to repeat to be believed. A first packet has none to repeat; all it does
//! is to be answered. The challenge changes when a new life of the other is met. So a packet that was kept back cannot be played again to a warden that has been
//! restarted, nor one of a life that is over to anybody. Of a new life of another warden the applications of the old one are presumed dead unless it tells of them
//! within a while. Packets are authenticated outside.

mod canary;

use std::collections::{BTreeMap, VecDeque};

pub use self::canary::Canary;
use crate::basics::Time;

/// A host, by the number that the wardens' configuration gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u16);

/// The secret of one life of an application.
pub type Secret = [u8; 16];
/// What a secret is recognised by.
pub type Digest = [u8; 32];

/// An application of a host, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppLife {
    /// Its number.
    pub app: u32,
    /// Which life.
    pub incarnation: u64,
}

/// How an application stands, as its warden says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is alive.
    Alive,
    /// It has failed, by this secret.
    Failed(Secret),
    /// It has quit.
    Left,
}

/// An entry of the roll: an application's newest change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which one.
    pub life: AppLife,
    /// By what its secret is recognised.
    pub digest: Digest,
    /// How it stands.
    pub standing: Standing,
}

/// What one warden sends another, over each path alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's life.
    pub from_life: u64,
    /// What the receiver has to repeat.
    pub challenge: u64,
    /// The receiver's challenge, as far as the sender knows; 0: it does not.
    pub repeats: u64,
    /// The packet's number, from 1 on in a life of the sender; not the same for two receivers of it.
    pub seq: u64,
    /// The sender ends in order, and its silence will be no sign.
    pub bye: bool,
    /// Up to which change the sender has heard the receiver's roll.
    pub heard: u64,
    /// The entries are what has changed after this change...
    pub after: u64,
    /// ...up to this one.
    pub upto: u64,
    /// The newest entry of each application that has changed in between, in the order of their changes.
    pub entries: Vec<Entry>,
}

/// The most entries that a packet carries: so many fit over any path.
pub const MAX_ENTRIES: usize = 16;
/// The most applications on a roll, as long as enough of them are over, and all have heard that.
const MAX_ROLL: usize = 1024;
/// The same for those whose end somebody has not heard. One that is dropped all the same counts as alive there, until that one finds this warden silent or restarted.
const MAX_OWED: usize = 4 * MAX_ROLL;
/// The most paths to a host.
pub const MAX_PATHS: usize = 2;

/// How a warden takes part.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its life: random, never 0.
    pub life: u64,
    /// The interval between heartbeats: the paper's `HB`, in nanoseconds.
    pub interval_ns: u64,
    /// Over how many paths each packet goes: 1 or 2.
    pub paths: u8,
    /// The digest of a secret: SHA-256.
    pub digest: fn(&Secret) -> Digest,
}

impl Config {
    /// When a change is sent anew, counted from the change, before it is every [`Config::REPEAT_EVERY_NS`].
    pub const REPEATS_NS: [u64; 2] = [100_000, 300_000];
    /// How often what has not been heard is sent anew.
    pub const REPEAT_EVERY_NS: u64 = 1_000_000;
}

/// How sure the end of an application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// Its warden has certified it: it does nothing any more.
    Certified(Secret),
    /// Its host, or its warden, has been silent for longer than planned. It may live.
    Presumed,
}

/// What a warden learns of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An application is alive: it has begun, or its host is heard again.
    Alive(HostId, AppLife),
    /// An application has failed. Of a life that ended before it was heard of, this is all that is told.
    Failed(HostId, AppLife, Certainty),
    /// An application has quit, or its warden has ended in order and watches it no more. As for a failure, it may be all that is told of a life.
    Left(HostId, AppLife),
    /// A path to a host no longer works, while another one does.
    PathLost(HostId, u8),
    /// It works again.
    PathBack(HostId, u8),
    /// A host is silent.
    Silent(HostId),
    /// It is heard.
    Heard(HostId),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this over every path.
    Send(HostId, Packet),
    /// Tell this.
    Told(Event),
}

/// Why a packet is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disbelief {
    /// It comes from no host that this warden knows.
    Stranger,
    /// It does not repeat this warden's challenge: its sender does not know it yet, or it was kept.
    NotFresh,
    /// It says that an application has failed, and does not prove it.
    NoProof,
    /// It tells of changes that follow others, which have not been heard yet.
    Gap,
}

#[derive(Clone, Copy, Debug)]
struct Own {
    entry: Entry,
    secret: Secret,
    /// The number of its newest change.
    change: u64,
}

#[derive(Clone, Copy, Debug)]
struct Theirs {
    digest: Digest,
    /// Of which life of its warden that is known.
    told_by: u64,
    is_presumed: bool,
}

#[derive(Clone, Debug)]
struct Peer {
    timeout_ns: u64,
    /// 0: not heard yet.
    life: u64,
    /// How many of its lives have been met.
    meetings: u64,
    /// Its challenge.
    challenge: u64,
    /// Up to which of our changes it has heard.
    heard: u64,
    /// Up to which of its changes we have.
    we_heard: u64,
    seq: u64,
    /// The number of its newest packet.
    newest: u64,
    last_heard: Time,
    /// When something came over each path.
    paths: [Time; MAX_PATHS],
    /// The newest packet over each path.
    path_seq: [u64; MAX_PATHS],
    is_path_lost: [bool; MAX_PATHS],
    is_silent: bool,
    has_left: bool,
    /// When its present life was first heard.
    met: Time,
    apps: BTreeMap<AppLife, Theirs>,
    /// Of each application that is over as its warden says, the life whose end has been told here.
    over: BTreeMap<u32, u64>,
    next_beat: Time,
    /// When what it has not heard is sent anew.
    next_repeat: Option<Time>,
    answers: bool,
}

/// One warden among others: a state machine. Packets and time come in; [`Output`]s go out.
#[derive(Clone, Debug)]
pub struct Wardens {
    config: Config,
    roll: BTreeMap<u32, Own>,
    change: u64,
    /// When the newest change was, for its repetitions.
    changed: Time,
    peers: BTreeMap<HostId, Peer>,
    has_left: bool,
    outputs: VecDeque<Output>,
}

impl Wardens {
    /// A warden that knows these hosts, each with the time for which it may be silent ([`super::planned::PathBounds::timeout_ns`]).
    pub fn new(now: Time, config: Config, peers: &[(HostId, u64)]) -> Wardens {
        let peer = |timeout_ns| Peer {
            timeout_ns,
            life: 0,
            meetings: 0,
            challenge: 0,
            heard: 0,
            we_heard: 0,
            seq: 0,
            newest: 0,
            last_heard: now,
            paths: [now; MAX_PATHS],
            path_seq: [0; MAX_PATHS],
            is_path_lost: [false; MAX_PATHS],
            // Until it is heard for the first time.
            is_silent: true,
            has_left: false,
            met: now,
            apps: BTreeMap::new(),
            over: BTreeMap::new(),
            next_beat: now,
            next_repeat: None,
            answers: false,
        };
        let peers = peers.iter().map(|(host, timeout_ns)| (*host, peer(*timeout_ns))).collect();
        Wardens { config, roll: BTreeMap::new(), change: 0, changed: now, peers, has_left: false, outputs: VecDeque::new() }
    }

    /// An application of this host is alive. What was known of an earlier life of it is told no more.
    pub fn begin(&mut self, now: Time, life: AppLife, secret: Secret) {
        let entry = Entry { life, digest: (self.config.digest)(&secret), standing: Standing::Alive };
        self.change_to(now, entry, secret);
    }

    /// An application of this host is over: `failed`, which is certain here, or it has quit. One that is over already stays as it is.
    pub fn end(&mut self, now: Time, life: AppLife, failed: bool) {
        let own = self.roll.get(&life.app).filter(|own| own.entry.life == life && own.entry.standing == Standing::Alive).copied();
        let Some(Own { entry, secret, .. }) = own else { return };
        let standing = if failed { Standing::Failed(secret) } else { Standing::Left };
        self.change_to(now, Entry { standing, ..entry }, secret);
    }

    fn change_to(&mut self, now: Time, entry: Entry, secret: Secret) {
        self.change += 1;
        self.changed = now;
        self.roll.insert(entry.life.app, Own { entry, secret, change: self.change });
        if self.roll.len() > MAX_ROLL {
            // The oldest that is over, and that all have heard of.
            let met = self.peers.values().filter(|peer| peer.life != 0 && !peer.has_left);
            let heard = if self.roll.len() > MAX_OWED { u64::MAX } else { met.map(|peer| peer.heard).min().unwrap_or(u64::MAX) };
            let is_over = |own: &Own| own.entry.standing != Standing::Alive && own.change <= heard;
            let over = self.roll.iter().filter(|(_, own)| is_over(own)).min_by_key(|(_, own)| own.change);
            if let Some(app) = over.map(|(app, _)| *app) {
                self.roll.remove(&app);
            }
        }
        for peer in self.peers.values_mut() {
            peer.next_repeat = Some(now);
        }
    }

    /// This warden ends in order. Its last packets say so.
    pub fn leave(&mut self, now: Time) {
        self.has_left = true;
        for peer in self.peers.values_mut() {
            peer.next_beat = now;
        }
    }

    /// Whether an application of that host stands as alive here, presumptions included.
    pub fn knows(&self, host: HostId, life: AppLife) -> bool {
        self.peers.get(&host).is_some_and(|peer| peer.apps.contains_key(&life))
    }

    /// Up to which of this warden's changes a host has heard, and how many there are.
    pub fn heard_by(&self, host: HostId) -> Option<(u64, u64)> {
        self.peers.get(&host).map(|peer| (peer.heard, self.change))
    }

    /// The life of a host's warden; 0: it has not been heard.
    pub fn life_of(&self, host: HostId) -> u64 {
        self.peers.get(&host).map_or(0, |peer| peer.life)
    }

    /// Whether a host counts as silent, and which of its paths as lost.
    pub fn health(&self, host: HostId) -> Option<(bool, [bool; MAX_PATHS])> {
        self.peers.get(&host).map(|peer| (peer.is_silent, peer.is_path_lost))
    }

    /// Takes a packet, which has been authenticated as that host's, from one of the paths.
    ///
    /// # Errors
    /// When it is not believed, wholly or in part. It does no harm then.
    pub fn handle(&mut self, now: Time, from: HostId, path: u8, packet: &Packet) -> Result<(), Disbelief> {
        let own_life = self.config.life;
        let paths = usize::from(self.config.paths);
        let peer = self.peers.get_mut(&from).ok_or(Disbelief::Stranger)?;
        let path = usize::from(path).min(paths - 1);
        let is_fresh = packet.repeats == Wardens::challenge(own_life, peer.meetings);
        // A life that has been met goes on repeating the challenge under which it was until it has learnt of the next.
        let is_of_life = packet.from_life == peer.life || Canary::KeptIsFresh.is_planted();
        let is_known = peer.meetings > 0 && is_of_life && packet.repeats == Wardens::challenge(own_life, peer.meetings - 1);
        if !is_fresh && !is_known {
            // Anybody may have kept it. All that comes of it is an answer, which says what is to be repeated; a sender that knows that gets none.
            if packet.repeats == 0 || packet.from_life != peer.life {
                peer.seq += 1;
                let (seq, after, challenge) = (peer.seq, self.change, Wardens::challenge(own_life, peer.meetings));
                let (repeats, heard) = (packet.challenge, 0);
                let answer =
                    Packet { from_life: own_life, challenge, repeats, seq, bye: false, heard, after, upto: after, entries: vec![] };
                self.outputs.push_back(Output::Send(from, answer));
            }
            return Err(Disbelief::NotFresh);
        }
        if packet.from_life != peer.life {
            Wardens::meet(peer, now, packet.from_life);
        }
        if packet.seq > peer.newest {
            (peer.newest, peer.last_heard, peer.challenge) = (packet.seq, now, packet.challenge);
            if std::mem::take(&mut peer.is_silent) {
                peer.paths = [now; MAX_PATHS];
                self.outputs.push_back(Output::Told(Event::Heard(from)));
                for (life, app) in peer.apps.iter_mut().filter(|(_, app)| app.is_presumed && app.told_by == peer.life) {
                    app.is_presumed = false;
                    self.outputs.push_back(Output::Told(Event::Alive(from, *life)));
                }
            }
        }
        // A repetition says nothing of how the path is now.
        if packet.seq > peer.path_seq[path] {
            (peer.path_seq[path], peer.paths[path]) = (packet.seq, now);
            if std::mem::take(&mut peer.is_path_lost[path]) {
                self.outputs.push_back(Output::Told(Event::PathBack(from, path as u8)));
            }
        }
        // Never more than there is, whatever a packet says.
        let most = if Canary::HeardTooMuch.is_planted() { u64::MAX } else { self.change };
        peer.heard = peer.heard.max(packet.heard.min(most));
        if peer.heard == self.change {
            peer.next_repeat = None;
        }
        let taken = if packet.after > peer.we_heard && !Canary::GapTaken.is_planted() {
            Err(Disbelief::Gap)
        } else {
            Wardens::take(peer, from, packet, self.config.digest, &mut self.outputs)
        };
        if packet.bye && !peer.has_left {
            peer.has_left = true;
            for (life, app) in std::mem::take(&mut peer.apps) {
                if !app.is_presumed {
                    self.outputs.push_back(Output::Told(Event::Left(from, life)));
                }
            }
        }
        taken
    }

    /// What another warden has to repeat, having met so many of whose lives.
    const fn challenge(life: u64, meetings: u64) -> u64 {
        let challenge = life.wrapping_add(meetings);
        if challenge == 0 { u64::MAX } else { challenge }
    }

    /// A new life of a warden is heard, which repeats the challenge: nothing of the earlier one counts.
    fn meet(peer: &mut Peer, now: Time, life: u64) {
        peer.meetings += 1;
        (peer.life, peer.heard, peer.newest, peer.path_seq) = (life, 0, 0, [0; MAX_PATHS]);
        if !Canary::ChangesOfEarlierLife.is_planted() {
            peer.we_heard = 0;
        }
        (peer.met, peer.last_heard, peer.has_left) = (now, now, false);
        peer.paths = [now; MAX_PATHS];
        peer.next_repeat = Some(now);
    }

    /// Takes the changes of a packet that follow what has been heard.
    fn take(
        peer: &mut Peer,
        from: HostId,
        packet: &Packet,
        digest: fn(&Secret) -> Digest,
        outputs: &mut VecDeque<Output>,
    ) -> Result<(), Disbelief> {
        if packet.upto <= peer.we_heard {
            return Ok(());
        }
        for entry in &packet.entries {
            // An earlier life of the application is over, and nobody has certified it.
            let earlier: Vec<AppLife> =
                peer.apps.keys().filter(|life| life.app == entry.life.app && **life != entry.life).copied().collect();
            for life in earlier {
                let app = peer.apps.remove(&life).expect("just found");
                if !app.is_presumed {
                    outputs.push_back(Output::Told(Event::Failed(from, life, Certainty::Presumed)));
                }
            }
            let known = peer.apps.get(&entry.life).copied();
            match entry.standing {
                Standing::Alive => {
                    if known.is_none_or(|known| known.is_presumed) {
                        outputs.push_back(Output::Told(Event::Alive(from, entry.life)));
                    }
                    peer.apps.insert(entry.life, Theirs { digest: entry.digest, told_by: peer.life, is_presumed: false });
                    peer.over.remove(&entry.life.app);
                }
                Standing::Failed(secret) => {
                    // By the digest that was told when it began; a life that was not told of before brings its own.
                    let known = known.filter(|_| !Canary::OwnDigest.is_planted());
                    let expected = known.map_or(entry.digest, |known| known.digest);
                    if digest(&secret) != expected && !Canary::UncheckedProof.is_planted() {
                        if Canary::SkippedWithDoubt.is_planted() {
                            peer.we_heard = packet.upto;
                        }
                        // What follows is not taken either: the sender is asked again, and nothing is skipped.
                        return Err(Disbelief::NoProof);
                    }
                    if Wardens::is_first_end(peer, entry.life) {
                        outputs.push_back(Output::Told(Event::Failed(from, entry.life, Certainty::Certified(secret))));
                    }
                }
                Standing::Left => {
                    if Wardens::is_first_end(peer, entry.life) {
                        outputs.push_back(Output::Told(Event::Left(from, entry.life)));
                    }
                }
            }
        }
        peer.we_heard = packet.upto;
        // To be told that it has been heard: it repeats until then.
        peer.answers = true;
        Ok(())
    }

    /// Notes the end of a life, whether or not it was told of before. Returns whether its end is told for the first time: a packet may repeat what another one brought.
    fn is_first_end(peer: &mut Peer, life: AppLife) -> bool {
        peer.apps.remove(&life);
        let is_first = peer.over.insert(life.app, life.incarnation) != Some(life.incarnation) || Canary::EndAgain.is_planted();
        if peer.over.len() > MAX_ROLL {
            peer.over.pop_first();
        }
        is_first
    }

    /// Judges silence and sends what is due. To be called after all packets that have arrived were handled, and at [`Wardens::wake_at`] at the latest. After a stall of
    /// its own a warden calls [`Wardens::forgive`] first.
    pub fn poll(&mut self, now: Time) {
        let hosts: Vec<HostId> = self.peers.keys().copied().collect();
        for host in hosts {
            self.judge(now, host);
            self.send(now, host);
        }
    }

    /// Sends what is due and judges nobody, so it may be called without a look at what has arrived.
    pub fn speak(&mut self, now: Time) {
        let hosts: Vec<HostId> = self.peers.keys().copied().collect();
        hosts.into_iter().for_each(|host| self.send(now, host));
    }

    /// This warden was asleep until now, by so much longer than it meant to. What came meanwhile may be lost, or still on its way up, so this time is no silence of the others: nor is the
    /// interval in which it meant to sleep, nor that until the next heartbeat. No more is forgiven, for a busy host's warden is late again and again, and has to find another one silent all
    /// the same.
    pub fn forgive(&mut self, now: Time, late_ns: u64) {
        if Canary::StallIsSilence.is_planted() {
            return;
        }
        let forgiven_ns = late_ns.saturating_add(2 * self.config.interval_ns);
        let later = |at: &mut Time| *at = at.after(forgiven_ns).min(now);
        for peer in self.peers.values_mut() {
            later(&mut peer.last_heard);
            peer.paths.iter_mut().for_each(later);
        }
    }

    fn judge(&mut self, now: Time, host: HostId) {
        let peer = self.peers.get_mut(&host).expect("one of them");
        if peer.life == 0 || peer.has_left && !Canary::ByeIsSilence.is_planted() {
            return;
        }
        let timeout_ns = if Canary::OneBeatIsAll.is_planted() { self.config.interval_ns } else { peer.timeout_ns };
        if !peer.is_silent && now.since(peer.last_heard) > timeout_ns {
            peer.is_silent = true;
            self.outputs.push_back(Output::Told(Event::Silent(host)));
            for (life, app) in peer.apps.iter_mut().filter(|(_, app)| !app.is_presumed) {
                app.is_presumed = true;
                self.outputs.push_back(Output::Told(Event::Failed(host, *life, Certainty::Presumed)));
            }
        }
        // A warden that was restarted has had the time to tell of what lives on.
        if !peer.is_silent && now.since(peer.met) > peer.timeout_ns.saturating_mul(RESTART_TIMEOUTS) {
            let told_by = peer.life;
            for (life, app) in peer.apps.iter_mut().filter(|(_, app)| app.told_by != told_by && !app.is_presumed) {
                app.is_presumed = true;
                self.outputs.push_back(Output::Told(Event::Failed(host, *life, Certainty::Presumed)));
            }
        }
        for path in 0..usize::from(self.config.paths) {
            let is_late = !peer.is_silent && now.since(peer.paths[path]) > peer.timeout_ns;
            if is_late && !std::mem::replace(&mut peer.is_path_lost[path], true) {
                self.outputs.push_back(Output::Told(Event::PathLost(host, path as u8)));
            }
        }
    }

    fn send(&mut self, now: Time, host: HostId) {
        let (change, changed) = (self.change, self.changed);
        let peer = self.peers.get_mut(&host).expect("one of them");
        let repeats = peer.next_repeat.is_some_and(|at| at <= now);
        let beats = peer.next_beat <= now;
        if !(repeats || beats || peer.answers) {
            return;
        }
        peer.answers = false;
        if beats {
            // In step with the interval, unless this warden was late by more than one.
            let next = peer.next_beat.after(self.config.interval_ns);
            peer.next_beat = if next <= now { now.after(self.config.interval_ns) } else { next };
        }
        if repeats {
            let since = now.since(changed);
            let at = Config::REPEATS_NS.iter().find(|after| since < **after).map(|after| changed.after(*after));
            peer.next_repeat = (peer.heard < change).then(|| at.unwrap_or(now.after(Config::REPEAT_EVERY_NS)));
        }
        peer.seq += 1;
        // Before the two know each other's lives, nothing would be believed.
        let is_met = peer.life != 0;
        let after = if is_met { peer.heard } else { change };
        let mut owed: Vec<&Own> = self.roll.values().filter(|own| own.change > after).collect();
        owed.sort_by_key(|own| own.change);
        let is_cut = owed.len() > MAX_ENTRIES;
        owed.truncate(MAX_ENTRIES);
        let upto = if is_cut { owed[MAX_ENTRIES - 1].change } else { change };
        let packet = Packet {
            from_life: self.config.life,
            challenge: Wardens::challenge(self.config.life, peer.meetings),
            repeats: peer.challenge,
            seq: peer.seq,
            bye: self.has_left,
            heard: peer.we_heard,
            after,
            upto,
            entries: owed.iter().map(|own| own.entry).collect(),
        };
        self.outputs.push_back(Output::Send(host, packet));
    }

    /// What is to be done next.
    pub fn take_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Wardens::poll`] has something to do without a packet.
    pub fn wake_at(&self) -> Time {
        let of_peer = |peer: &Peer| {
            let mut at = peer.next_beat;
            at = peer.next_repeat.map_or(at, |repeat| at.min(repeat));
            if peer.life != 0 && !peer.is_silent && !peer.has_left {
                at = at.min(peer.last_heard.after(peer.timeout_ns).after(1));
            }
            at
        };
        self.peers.values().map(of_peer).min().unwrap_or(Time(u64::MAX))
    }
}

/// How many timeouts a restarted warden has for telling of the applications that live on.
const RESTART_TIMEOUTS: u64 = 100;

#[cfg(test)]
mod tests;
