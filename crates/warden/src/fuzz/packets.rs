//! Checks what a warden concludes from packets, whatever their origin: another warden in any of its lives, or a network that has kept packets and delivers them
//! again. A model keeps beside it what the other host has proven, by the rules of [`wardens`](martlet_protocol::detector::wardens). Everything that the warden
//! reports and sends is compared with that model.

use std::collections::{BTreeMap, BTreeSet};

use martlet_fabric::fuzz::Input;
use martlet_protocol::basics::Time;
use martlet_protocol::detector::wardens::{
    AppLife, Certainty, Config, Digest, Disbelief, Entry, Event, HostId, MAX_ENTRIES, Output, Packet, Secret, Standing, Wardens,
};

use super::decoded;
use crate::packet;

const OTHER: HostId = HostId(2);
const LIFE: u64 = 9;
const INTERVAL_NS: u64 = 1_000_000;
const TIMEOUT_NS: u64 = 3_000_000;
/// The unit of an input's times.
const STEP_NS: u64 = 50_000;
/// For how many timeouts a restarted warden may leave it open which applications are still alive.
const RESTART_TIMEOUTS: u64 = 100;

/// Runs a script of packets, of passing time, and of what applications of this host do.
pub(super) fn check(script: &[u8]) {
    let config = Config { life: LIFE, interval_ns: INTERVAL_NS, paths: 2, digest: crate::digest };
    let mut world = World {
        now: Time(0),
        warden: Wardens::new(Time(0), config, &[(OTHER, TIMEOUT_NS)]),
        roll: BTreeMap::new(),
        change: 0,
        last_seq: 0,
        challenges: vec![LIFE],
        kept: Vec::new(),
        proven: Proven::default(),
        told: BTreeMap::new(),
        over: BTreeMap::new(),
        is_silent: true,
        has_left: false,
        is_path_lost: [false; 2],
    };
    let mut input = Input(script);
    while !input.is_empty() {
        world.step(&mut input);
    }
}

/// What the other host has said in packets that answer the challenge.
#[derive(Default)]
struct Proven {
    /// The newest known life of its warden; 0: none has been met.
    life: u64,
    /// How many lives have been met.
    meetings: u64,
    met: Time,
    /// The number of its newest packet.
    newest: u64,
    /// Since when it has been silent, counting only the time that this warden was awake.
    quiet_since: Time,
    has_left: bool,
    /// Up to which change of its roll it has reported, without a gap.
    covered: u64,
    /// Up to which change of our roll it has heard.
    heard: u64,
    /// For each application it has reported, the digest by which a certificate of its failure is recognised.
    digests: BTreeMap<AppLife, Digest>,
}

/// The ends of lives. If a life has failed, with the secret that proves it.
type Ends = BTreeMap<AppLife, Option<Secret>>;

/// What the warden is doing while it reports something.
enum During<'a> {
    /// It handles a packet that is believed: whether that packet is newer than all before, and the ends that it reports.
    Packet(&'a Packet, bool, Ends),
    /// It handles a packet that is not believed.
    Disbelieved,
    Poll,
}

struct World {
    now: Time,
    warden: Wardens,
    /// The applications of this host, each with the number of its newest change.
    roll: BTreeMap<u32, (u64, Entry)>,
    change: u64,
    /// The number of the newest packet that was sent.
    last_seq: u64,
    /// The challenges that have been sent, in order.
    challenges: Vec<u64>,
    /// All packets that have arrived.
    kept: Vec<(u8, Packet)>,
    proven: Proven,
    /// The lives that have been reported as alive, and whether they are presumed dead.
    told: BTreeMap<AppLife, bool>,
    /// For each application, the life whose end was reported last.
    over: BTreeMap<u32, u64>,
    is_silent: bool,
    /// Whether its warden was reported to have left.
    has_left: bool,
    is_path_lost: [bool; 2],
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 10 {
            0 => self.pass(input.number() % (1 << 20) * STEP_NS),
            // Longer than any timeout.
            1 => self.pass(input.number() % (1 << 20) * 64 * STEP_NS),
            2 => {
                let (life, path) = (1 + u64::from(input.u8() % 3), input.u8());
                let len = packet::body_len(input.0);
                if let Some(packet) = decoded(input.bytes(len), life) {
                    self.take(path, packet);
                }
            }
            3 if !self.kept.is_empty() => {
                let (path, packet) = self.kept[usize::from(input.u8()) % self.kept.len()].clone();
                self.take(path, packet);
            }
            4 => {
                let late_ns = input.number() % (1 << 20) * STEP_NS;
                self.now = self.now.after(late_ns);
                self.warden.forgive(self.now, late_ns);
                let quiet_since = &mut self.proven.quiet_since;
                *quiet_since = quiet_since.after(late_ns + 2 * INTERVAL_NS).min(self.now);
                self.poll();
            }
            5 => self.change_own(input),
            _ => {
                let (path, packet) = (input.u8(), self.packet(input));
                self.take(path, packet);
            }
        }
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        self.poll();
    }

    /// An application of this host begins, fails or quits.
    fn change_own(&mut self, input: &mut Input<'_>) {
        let (app, how) = (u32::from(input.u8() % 24), input.u8() % 3);
        let standing = self.roll.get(&app).map(|(_, entry)| *entry);
        match standing.filter(|entry| entry.standing == Standing::Alive) {
            Some(entry) if how > 0 => {
                let standing = if how == 1 { Standing::Failed(own_secret(self.roll[&app].1.life)) } else { Standing::Left };
                self.change += 1;
                self.roll.insert(app, (self.change, Entry { standing, ..entry }));
                self.warden.end(self.now, entry.life, how == 1);
            }
            _ => {
                self.change += 1;
                let life = AppLife { app, incarnation: self.change };
                let entry = Entry { life, digest: crate::digest(&own_secret(life)), standing: Standing::Alive };
                self.roll.insert(app, (self.change, entry));
                self.warden.begin(self.now, life, own_secret(life));
            }
        }
    }

    /// Something that the other warden may say, or, often, may not.
    fn packet(&self, input: &mut Input<'_>) -> Packet {
        let proven = &self.proven;
        let (from_life, which) = (1 + u64::from(input.u8() % 3), input.u8());
        let repeats = match which % 8 {
            0 => 0,
            1 => self.challenges[usize::from(which / 8) % self.challenges.len()],
            2 => input.number(),
            _ => self.challenges[self.challenges.len() - 1],
        };
        let seq = if which & 64 == 0 { proven.newest.saturating_add(1) } else { input.number() };
        let heard = match input.u8() % 4 {
            0 => input.number(),
            1 => 0,
            _ => self.change,
        };
        let mut apps = BTreeSet::new();
        let mut entries = Vec::new();
        for _ in 0..input.u8() % 5 {
            let entry = entry(input);
            // A roll has one entry for each application.
            if apps.insert(entry.life.app) {
                entries.push(entry);
            }
        }
        let range = input.u8();
        let after = match range % 4 {
            0 => input.number(),
            1 => 0,
            _ => proven.covered,
        };
        let upto = if range & 4 == 0 { after.saturating_add(entries.len() as u64) } else { input.number() };
        Packet { from_life, challenge: 70 + from_life, repeats, seq, bye: range >> 4 == 15, heard, after, upto, entries }
    }

    fn take(&mut self, path: u8, packet: Packet) {
        let apps: BTreeSet<u32> = packet.entries.iter().map(|entry| entry.life.app).collect();
        if apps.len() < packet.entries.len() {
            return;
        }
        self.kept.truncate(64);
        self.kept.push((path, packet.clone()));
        let result = self.warden.handle(self.now, OTHER, path % 2, &packet);
        let (expected, during) = self.proven.take(self.now, &packet, self.change);
        assert_eq!(result, expected, "{packet:?}");
        self.hold_to(&during);
        assert_eq!(self.has_left, self.proven.has_left, "whether the warden there has ended");
        for life in self.told.keys() {
            assert_eq!(self.warden.knows(OTHER, *life), self.proven.digests.contains_key(life), "{life:?}");
        }
    }

    fn poll(&mut self) {
        self.warden.poll(self.now);
        self.hold_to(&During::Poll);
        let is_quiet = self.proven.life != 0 && !self.proven.has_left && self.now.since(self.proven.quiet_since) > TIMEOUT_NS;
        assert!(self.is_silent || !is_quiet, "quiet since {:?}, at {:?}, and not silent", self.proven.quiet_since, self.now);
        assert_eq!(self.warden.health(OTHER), Some((self.is_silent, self.is_path_lost)));
        assert!(self.warden.wake_at() > self.now, "it would never sleep");
    }

    /// Compares what the warden reports and sends with the model.
    fn hold_to(&mut self, during: &During<'_>) {
        while let Some(output) = self.warden.take_output() {
            match output {
                Output::Send(to, packet) => {
                    assert_eq!(to, OTHER);
                    self.sent(&packet, during);
                }
                Output::Told(event) => self.was_told(event, during),
            }
        }
    }

    fn sent(&mut self, packet: &Packet, during: &During<'_>) {
        assert_eq!(decoded(&packet::encode(packet), LIFE).as_ref(), Some(packet));
        assert!(packet.seq > self.last_seq, "a number is given twice");
        self.last_seq = packet.seq;
        if *self.challenges.last().expect("one at least") != packet.challenge {
            self.challenges.push(packet.challenge);
        }
        let heard = if let During::Disbelieved = during { 0 } else { self.proven.covered };
        assert_eq!(packet.heard, heard, "what was not told has not been heard");
        let said: Vec<Entry> = packet.entries.clone();
        let mut owed: Vec<&(u64, Entry)> =
            self.roll.values().filter(|(change, _)| (packet.after + 1..=packet.upto).contains(change)).collect();
        owed.sort_by_key(|(change, _)| *change);
        assert_eq!(
            said,
            owed.iter().map(|(_, entry)| *entry).collect::<Vec<_>>(),
            "what has changed after {} up to {}",
            packet.after,
            packet.upto
        );
        assert!(packet.upto <= self.change && (packet.upto == self.change || said.len() == MAX_ENTRIES));
        match self.proven.life {
            0 => assert!(said.is_empty(), "nobody knows to whom that is said"),
            _ if matches!(during, During::Disbelieved) => assert!(said.is_empty(), "said to who has proven nothing"),
            _ => assert!(packet.after <= self.proven.heard, "changes are left out that have not been heard"),
        }
    }

    fn was_told(&mut self, event: Event, during: &During<'_>) {
        let proven = &self.proven;
        match (event, during) {
            (event, During::Disbelieved) => panic!("{event:?} follows from what is not believed"),
            (Event::Alive(OTHER, life), During::Packet(packet, is_newer, _)) => {
                let is_said = packet.entries.iter().any(|entry| entry.life == life && entry.standing == Standing::Alive);
                let was_presumed = self.told.insert(life, false);
                assert!(is_said || *is_newer && was_presumed == Some(true), "{life:?} is alive, and nobody has said so");
                assert_ne!(was_presumed, Some(false), "{life:?} is alive, once more");
                self.over.remove(&life.app);
            }
            (Event::Failed(OTHER, life, Certainty::Certified(secret)), During::Packet(_, _, ends)) => {
                assert!(ends.get(&life) == Some(&Some(secret)), "{life:?} has failed by a secret of nobody's");
                self.told.remove(&life);
                assert_ne!(self.over.insert(life.app, life.incarnation), Some(life.incarnation), "{life:?} is over once more");
            }
            (Event::Left(OTHER, life), During::Packet(packet, _, ends)) => {
                if ends.get(&life) == Some(&None) {
                    self.told.remove(&life);
                    assert_ne!(self.over.insert(life.app, life.incarnation), Some(life.incarnation), "{life:?} is over once more");
                } else {
                    assert!(packet.bye && self.told.remove(&life) == Some(false), "{life:?} has not quit");
                }
            }
            (Event::Failed(OTHER, life, Certainty::Presumed), _) => {
                let may_be = match during {
                    During::Packet(packet, ..) => {
                        packet.entries.iter().any(|entry| entry.life.app == life.app && entry.life.incarnation != life.incarnation)
                    }
                    _ => self.is_silent || self.now.since(proven.met) > RESTART_TIMEOUTS * TIMEOUT_NS,
                };
                assert!(may_be, "{life:?} is presumed dead, for nothing");
                assert_eq!(self.told.insert(life, true), Some(false), "{life:?} is presumed dead and was not alive");
            }
            (Event::Silent(OTHER), During::Poll) => {
                assert!(proven.life != 0 && !proven.has_left, "silence that says nothing");
                assert!(self.now.since(proven.quiet_since) > TIMEOUT_NS, "silent at {:?}, quiet since {:?}", self.now, proven.quiet_since);
                assert!(!std::mem::replace(&mut self.is_silent, true), "silent twice");
            }
            (Event::Heard(OTHER), During::Packet(_, is_newer, _)) => {
                let is_back = std::mem::take(&mut self.has_left);
                assert!(is_back || *is_newer && self.is_silent, "heard, and was neither silent nor gone");
                self.is_silent = false;
            }
            (Event::WardenLeft(OTHER), During::Packet(packet, ..)) => {
                assert!(packet.bye && !std::mem::replace(&mut self.has_left, true), "it has not left");
                self.is_silent = false;
            }
            (Event::PathLost(OTHER, path), During::Poll) => {
                assert!(!self.is_silent, "of a silent host no path is lost");
                assert!(!std::mem::replace(&mut self.is_path_lost[usize::from(path)], true), "lost twice");
            }
            (Event::PathBack(OTHER, path), During::Packet(..)) => {
                assert!(std::mem::replace(&mut self.is_path_lost[usize::from(path)], false), "back, and was not lost");
            }
            (event, _) => panic!("{event:?} follows from nothing"),
        }
    }
}

impl Proven {
    /// Judges a packet by the rules: whether it is believed, and what follows from it.
    fn take<'a>(&mut self, now: Time, packet: &'a Packet, our_changes: u64) -> (Result<(), Disbelief>, During<'a>) {
        let is_fresh = packet.repeats == LIFE + self.meetings;
        // The life that was met last keeps answering the challenge by which it was met, until it learns the next one.
        let is_known = self.meetings > 0 && packet.from_life == self.life && packet.repeats == LIFE + self.meetings - 1;
        if !is_fresh && !is_known {
            return (Err(Disbelief::NotFresh), During::Disbelieved);
        }
        if packet.from_life != self.life {
            let (meetings, digests) = (self.meetings + 1, std::mem::take(&mut self.digests));
            *self = Proven { life: packet.from_life, meetings, digests, met: now, quiet_since: now, ..Proven::default() };
        }
        let is_newer = packet.seq > self.newest;
        if is_newer {
            (self.newest, self.quiet_since) = (packet.seq, now);
        }
        self.heard = self.heard.max(packet.heard.min(our_changes));
        let mut ends = Ends::new();
        let result = if packet.after > self.covered {
            Err(Disbelief::Gap)
        } else if packet.upto <= self.covered {
            Ok(())
        } else {
            let result = packet.entries.iter().try_for_each(|entry| self.take_entry(entry, &mut ends));
            if result.is_ok() {
                self.covered = packet.upto;
            }
            result
        };
        if packet.bye && !self.has_left {
            self.has_left = true;
            self.digests.clear();
        }
        (result, During::Packet(packet, is_newer, ends))
    }

    fn take_entry(&mut self, entry: &Entry, ends: &mut Ends) -> Result<(), Disbelief> {
        self.digests.retain(|life, _| life.app != entry.life.app || *life == entry.life);
        match entry.standing {
            Standing::Alive => _ = self.digests.insert(entry.life, entry.digest),
            Standing::Failed(secret) => {
                let told = self.digests.get(&entry.life).copied();
                if crate::digest(&secret) != told.unwrap_or(entry.digest) {
                    return Err(Disbelief::NoProof);
                }
                self.digests.remove(&entry.life);
                ends.insert(entry.life, Some(secret));
            }
            Standing::Left => {
                self.digests.remove(&entry.life);
                ends.insert(entry.life, None);
            }
        }
        Ok(())
    }
}

fn own_secret(life: AppLife) -> Secret {
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&life.incarnation.to_le_bytes());
    secret
}

/// An entry of the other host's roll. There are only few applications, lives and secrets, so that entries are often related.
fn entry(input: &mut Input<'_>) -> Entry {
    let (who, how) = (input.u8(), input.u8());
    let life = AppLife { app: 1 + u32::from(who % 3), incarnation: 1 + u64::from(who / 3 % 2) };
    // Mostly the application's own.
    let secret = |choice: u8| [if choice & 3 == 3 { 0 } else { who % 6 + 1 }; 16];
    let standing = match how % 4 {
        0 => Standing::Left,
        1 => Standing::Failed(secret(how >> 2)),
        _ => Standing::Alive,
    };
    Entry { life, digest: crate::digest(&secret(how >> 4)), standing }
}
