//! What the wardens of several hosts tell each other: heartbeats over redundant paths, and the ends of applications (FiDe sections 3.1, 3.3 and 3.4;
//! `docs/fide.md`).
//!
//! # The roll
//! A warden keeps a roll of its host's applications. Every change has a number, and every packet carries what has changed since the last number that
//! the receiver has acknowledged. So a lost packet loses nothing, a repetition changes nothing, and an end is repeated until it has been
//! acknowledged: at once, after [`Config::REPEATS_NS`], and then every [`Config::REPEAT_EVERY_NS`]. A packet without changes is a heartbeat. Each
//! packet is sent over every path, under one number; the first copy to arrive is used, and the others show that their paths work. The roll has one
//! entry per application, for its newest life: if several lives begin and end before the other warden has heard of them, it is told only of the
//! newest.
//!
//! # What is certain
//! An application's entry holds the digest of a secret that its warden keeps. The entry that says that the application has failed reveals the secret.
//! Such a certificate therefore proves that it comes from the warden that announced the application, and it applies to one life of the application
//! only. A failure without the secret certifies nothing. Silence is a presumption, whatever the timeout, and is withdrawn when the host is heard
//! again.
//!
//! # Lives
//! A warden has a life, drawn at random, and a challenge for each other warden; only packets that repeat the challenge are believed. A first packet
//! has none to repeat, and all it does is get an answer. The challenge changes when a new life of the other warden is met. So a packet that was kept
//! back can be replayed neither to a warden that has been restarted, nor, after its sender's life is over, to any warden. After a new life of a
//! warden is met, applications announced by the old life are presumed dead unless the new one announces them within a while. Packets are
//! authenticated elsewhere.

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

/// One life of an application of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppLife {
    /// The application's number.
    pub app: u32,
    /// The number of the life.
    pub incarnation: u64,
}

/// The state of an application, as its warden reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is alive.
    Alive,
    /// It has failed, as this secret proves.
    Failed(Secret),
    /// It has quit.
    Left,
}

/// An entry of the roll: an application's newest change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The application and its life.
    pub life: AppLife,
    /// What its secret is recognised by.
    pub digest: Digest,
    /// Its state.
    pub standing: Standing,
}

/// What one warden sends another, the same over each path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender's life.
    pub from_life: u64,
    /// The challenge that the receiver has to repeat.
    pub challenge: u64,
    /// The receiver's challenge, if the sender knows it; otherwise 0.
    pub repeats: u64,
    /// The packet's number, counted from 1 within one life of the sender and separately for each receiver.
    pub seq: u64,
    /// The sender is ending in order, so its silence from now on means nothing.
    pub bye: bool,
    /// The last change of the receiver's roll that the sender has heard.
    pub heard: u64,
    /// The entries cover the changes after this one...
    pub after: u64,
    /// ...up to this one.
    pub upto: u64,
    /// The newest entry of each application that has changed in between, in the order of their changes.
    pub entries: Vec<Entry>,
}

/// The most entries that a packet carries: that many fit into a packet on any path.
pub const MAX_ENTRIES: usize = 16;
/// The most applications on a roll, provided that enough of them are over and that all other wardens have heard so.
const MAX_ROLL: usize = 1024;
/// The same where some warden has not heard of those ends. If one is dropped all the same, that warden takes the application for alive until it finds
/// this warden silent or restarted.
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
    /// How many paths each packet is sent over: 1 or 2.
    pub paths: u8,
    /// The digest of a secret: SHA-256.
    pub digest: fn(&Secret) -> Digest,
}

impl Config {
    /// When a change is sent again, counted from the change, before the regular [`Config::REPEAT_EVERY_NS`] sets in.
    pub const REPEATS_NS: [u64; 2] = [100_000, 300_000];
    /// How often what has not been acknowledged is sent again.
    pub const REPEAT_EVERY_NS: u64 = 1_000_000;
}

/// How certain the end of an application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// Its warden has certified it: the application acts no more.
    Certified(Secret),
    /// Its host, or its warden, has been silent for longer than planned. The application may be alive.
    Presumed,
}

/// What a warden learns about others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An application is alive: it has begun, or its host is heard again.
    Alive(HostId, AppLife),
    /// An application has failed. For a life that ended before it was heard of, this is the only event.
    Failed(HostId, AppLife, Certainty),
    /// An application has quit, or its warden has ended in order and no longer watches it. As with a failure, this may be the only event of a life.
    Left(HostId, AppLife),
    /// A path to a host has stopped working, while another one still works.
    PathLost(HostId, u8),
    /// The path works again.
    PathBack(HostId, u8),
    /// A host is silent.
    Silent(HostId),
    /// A host is heard again, after silence or after its warden had ended.
    Heard(HostId),
    /// The warden of a host has ended in order. Nothing is learned from there until the next one is heard.
    WardenLeft(HostId),
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this over every path.
    Send(HostId, Packet),
    /// Report this event.
    Told(Event),
}

/// Why a packet is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disbelief {
    /// It comes from no host that this warden knows.
    Stranger,
    /// It does not repeat this warden's challenge: the sender does not know it yet, or the packet was kept back.
    NotFresh,
    /// It says that an application has failed, but does not prove it.
    NoProof,
    /// It reports changes that follow others which have not been heard yet.
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
    /// The life of the warden that reported it.
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
    /// The last of our changes that it has heard.
    heard: u64,
    /// The last of its changes that we have heard.
    we_heard: u64,
    seq: u64,
    /// The number of its newest packet.
    newest: u64,
    last_heard: Time,
    /// When a packet last came over each path.
    paths: [Time; MAX_PATHS],
    /// The number of the newest packet over each path.
    path_seq: [u64; MAX_PATHS],
    is_path_lost: [bool; MAX_PATHS],
    is_silent: bool,
    has_left: bool,
    /// When its present life was first heard.
    met: Time,
    apps: BTreeMap<AppLife, Theirs>,
    /// For each application that is over according to its warden, the life whose end has been reported here.
    over: BTreeMap<u32, u64>,
    next_beat: Time,
    /// When what it has not heard is sent again.
    next_repeat: Option<Time>,
    answers: bool,
}

/// One warden among others: a state machine. Packets and time come in; [`Output`]s go out.
#[derive(Clone, Debug)]
pub struct Wardens {
    config: Config,
    roll: BTreeMap<u32, Own>,
    change: u64,
    /// When the newest change happened, which times its repetitions.
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
            // Until the host is heard for the first time.
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

    /// An application of this host is alive. Its entry replaces that of any earlier life.
    pub fn begin(&mut self, now: Time, life: AppLife, secret: Secret) {
        let entry = Entry { life, digest: (self.config.digest)(&secret), standing: Standing::Alive };
        self.change_to(now, entry, secret);
    }

    /// An application of this host is over: it has `failed`, which is certain here, or it has quit. An application that is over already is left as it
    /// is.
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
            // Drop the oldest one that is over and that all wardens have heard of.
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

    /// This warden is ending in order. Its last packets say so.
    pub fn leave(&mut self, now: Time) {
        self.has_left = true;
        for peer in self.peers.values_mut() {
            peer.next_beat = now;
        }
    }

    /// Whether an application of that host is known here and not reported as over; it may be presumed dead.
    pub fn knows(&self, host: HostId, life: AppLife) -> bool {
        self.peers.get(&host).is_some_and(|peer| peer.apps.contains_key(&life))
    }

    /// The life of a host's warden; 0 if it has not been heard.
    pub fn life_of(&self, host: HostId) -> u64 {
        self.peers.get(&host).map_or(0, |peer| peer.life)
    }

    /// Whether a host is considered silent, and which of its paths are considered lost.
    pub fn health(&self, host: HostId) -> Option<(bool, [bool; MAX_PATHS])> {
        self.peers.get(&host).map(|peer| (peer.is_silent, peer.is_path_lost))
    }

    /// Takes a packet that came over one of the paths and has been authenticated as that host's.
    ///
    /// # Errors
    /// When the packet is not believed, wholly or in part. It does no harm then.
    pub fn handle(&mut self, now: Time, from: HostId, path: u8, packet: &Packet) -> Result<(), Disbelief> {
        let own_life = self.config.life;
        let paths = usize::from(self.config.paths);
        let peer = self.peers.get_mut(&from).ok_or(Disbelief::Stranger)?;
        let path = usize::from(path).min(paths - 1);
        let is_fresh = packet.repeats == Wardens::challenge(own_life, peer.meetings);
        // A life that has been met goes on repeating the challenge under which it was met until it has learned the next one.
        let is_of_life = packet.from_life == peer.life || Canary::KeptIsFresh.is_planted();
        let is_known = peer.meetings > 0 && is_of_life && packet.repeats == Wardens::challenge(own_life, peer.meetings - 1);
        if !is_fresh && !is_known {
            // Any process may have kept it back. All that it gets is an answer that says what to repeat, and not even that if the sender knows the
            // challenge already.
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
            if peer.has_left {
                self.outputs.push_back(Output::Told(Event::Heard(from)));
            }
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
        // A repetition says nothing about the path's present state.
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
            // The goodbye may be a late one, of a host that has been found silent meanwhile.
            (peer.has_left, peer.is_silent) = (true, false);
            for (life, app) in std::mem::take(&mut peer.apps) {
                if !app.is_presumed {
                    self.outputs.push_back(Output::Told(Event::Left(from, life)));
                }
            }
            self.outputs.push_back(Output::Told(Event::WardenLeft(from)));
        }
        taken
    }

    /// What another warden has to repeat when this many of its lives have been met.
    const fn challenge(life: u64, meetings: u64) -> u64 {
        let challenge = life.wrapping_add(meetings);
        if challenge == 0 { u64::MAX } else { challenge }
    }

    /// Meets a new life of a warden, which has repeated the challenge: what was heard from the earlier life no longer applies.
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

    /// Takes those changes in a packet that have not been heard yet.
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
            // Earlier lives of the application are over, but no warden has certified it.
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
                    // Check against the digest that was announced when the life began; a life that was not announced before brings its own.
                    let known = known.filter(|_| !Canary::OwnDigest.is_planted());
                    let expected = known.map_or(entry.digest, |known| known.digest);
                    if digest(&secret) != expected && !Canary::UncheckedProof.is_planted() {
                        if Canary::SkippedWithDoubt.is_planted() {
                            peer.we_heard = packet.upto;
                        }
                        // What follows is not taken either: the sender repeats it, and nothing is skipped.
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
        // Answer, so that the sender learns that it has been heard: it repeats until then.
        peer.answers = true;
        Ok(())
    }

    /// Notes the end of a life, whether or not the life was announced before. Returns whether this end is reported for the first time: a packet may
    /// repeat what another one brought.
    fn is_first_end(peer: &mut Peer, life: AppLife) -> bool {
        peer.apps.remove(&life);
        let is_first = peer.over.insert(life.app, life.incarnation) != Some(life.incarnation) || Canary::EndAgain.is_planted();
        if peer.over.len() > MAX_ROLL {
            peer.over.pop_first();
        }
        is_first
    }

    /// Judges silence, and sends what is due. Call this after all packets that have arrived were handled, and no later than [`Wardens::wake_at`].
    /// After a stall of its own, a warden calls [`Wardens::forgive`] first.
    pub fn poll(&mut self, now: Time) {
        let hosts: Vec<HostId> = self.peers.keys().copied().collect();
        for host in hosts {
            self.judge(now, host);
            self.send(now, host);
        }
    }

    /// Sends what is due without judging silence, so it may be called before looking at what has arrived.
    pub fn speak(&mut self, now: Time) {
        let hosts: Vec<HostId> = self.peers.keys().copied().collect();
        hosts.into_iter().for_each(|host| self.send(now, host));
    }

    /// This warden was asleep until now, for `late_ns` longer than it meant to be. What was sent meanwhile may be lost, or still on its way up the
    /// stack, so that time is not held against the others as silence. Neither is the interval for which it meant to sleep, nor the one until the next
    /// heartbeat. No more than that is forgiven: the warden of a busy host is late again and again, and must still be able to find another one
    /// silent.
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
        // By now, a restarted warden has had the time to announce the applications that live on.
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
            // Keep in step with the interval, unless this warden was late by more than one interval.
            let next = peer.next_beat.after(self.config.interval_ns);
            peer.next_beat = if next <= now { now.after(self.config.interval_ns) } else { next };
        }
        if repeats {
            let since = now.since(changed);
            let at = Config::REPEATS_NS.iter().find(|after| since < **after).map(|after| changed.after(*after));
            peer.next_repeat = (peer.heard < change).then(|| at.unwrap_or(now.after(Config::REPEAT_EVERY_NS)));
        }
        peer.seq += 1;
        // Before both know each other's lives, entries would not be believed.
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

    /// The next thing to do.
    pub fn take_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Wardens::poll`] next has something to do even if no packet arrives.
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

/// How many timeouts a restarted warden has for announcing the applications that live on.
const RESTART_TIMEOUTS: u64 = 100;

#[cfg(test)]
mod tests;
