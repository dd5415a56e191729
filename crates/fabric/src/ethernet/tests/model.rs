//! Both halves of a flow against a reference memory, under a network that loses, repeats, reorders, delays and corrupts; and every small schedule.

use std::collections::VecDeque;

use crate::contract::{Local, LocalRegion, Memory, OpError, RegionName, Token};
use crate::ethernet::packet::{HEAD, Head, Kind, LARGEST_PACKET, MAX_PACKET};
use crate::ethernet::requester::{Requester, Target, Work};
use crate::ethernet::responder::{Regions, Responder};
use crate::ethernet::seal::{Opener, Sealer, Secret, body};
use crate::primitive::{AtomicU64, Ordering};

const PUBLIC: RegionName = RegionName(1);
const LANE: RegionName = RegionName(16);
const LANDING: RegionName = RegionName(2);
pub(super) const WORDS: usize = 640;

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn load(memory: &Memory) -> Vec<u64> {
    memory.iter().map(|word| word.load(Ordering::SeqCst)).collect()
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

struct Owned {
    public: Vec<AtomicU64>,
    lane: Vec<AtomicU64>,
}

impl Regions for Owned {
    fn public(&self, name: RegionName) -> Option<&Memory> {
        (name == PUBLIC).then_some(&self.public)
    }

    fn lane(&self, name: RegionName) -> Option<(usize, &Memory)> {
        (name == LANE).then_some((0, &self.lane))
    }

    fn may_change_public(&self, _: RegionName) -> bool {
        true
    }
}

/// A posted operation, and the result that it must have.
#[derive(Debug)]
enum Expected {
    /// Success, with no further result.
    Plain,
    Word(u64),
    /// These words land at that place.
    Read {
        at: usize,
        words: Vec<u64>,
    },
    /// A record in the lane; how often the lane had been revoked and granted when it was posted, and whether it was granted then.
    Record {
        serial: u64,
        changes: usize,
        granted: bool,
    },
}

/// One asker, one owner, and the network between them.
pub(super) struct World {
    pub(super) asker: Requester,
    owner: Responder,
    memory: Owned,
    landing: Vec<AtomicU64>,
    told: u32,
    pub(super) now: u64,
    /// Requests and responses on their way, sealed.
    pub(super) there: VecDeque<Vec<u8>>,
    pub(super) back: VecDeque<Vec<u8>>,
    /// Requests longer than this are lost.
    pub(super) carries: usize,
    ends: [(Sealer, Opener); 2],
    reference: Vec<u64>,
    expected: VecDeque<Expected>,
    pub(super) posted: u64,
    pub(super) completed: u64,
    serial: u64,
    /// For each change of the lane's permission, the records that were whole in the lane after it.
    changes: Vec<Vec<u64>>,
    granted: bool,
    landing_at: usize,
}

const RECORD: usize = 5;
const PLACES: u64 = (WORDS / RECORD) as u64;

impl World {
    /// A world whose packets are of the base size.
    pub(super) fn new() -> World {
        World::on_route(MAX_PACKET)
    }

    /// A world in which the asker's system says that the route takes packets of this many bytes.
    pub(super) fn on_route(bytes: usize) -> World {
        let end = |n| (Sealer::new(Secret([n; 32]), 7), Opener::new(Secret([n; 32])));
        World {
            asker: Requester::new(bytes),
            owner: Responder::new(1),
            memory: Owned { public: words(WORDS), lane: words(WORDS) },
            landing: words(WORDS),
            told: 1,
            now: 1_000,
            there: VecDeque::new(),
            back: VecDeque::new(),
            carries: LARGEST_PACKET,
            ends: [end(1), end(2)],
            reference: vec![0; WORDS],
            expected: VecDeque::new(),
            posted: 0,
            completed: 0,
            serial: 0,
            changes: Vec::new(),
            granted: true,
            landing_at: 0,
        }
    }

    fn post(&mut self, lane: bool, at: usize, work: Work, len: usize, bytes: &[u8], expected: Expected) {
        self.posted += 1;
        let region = if lane { LANE } else { PUBLIC };
        let mut target = Ok(Target { lane, region, offset: at * 8, epoch: if lane { self.told } else { 0 } });
        if lane && self.told.is_multiple_of(2) && matches!(work, Work::Write) {
            target = Err(OpError::AccessLost);
        }
        self.expected.push_back(expected);
        self.asker.post(Token(self.posted), target, work, len, bytes);
    }

    pub(super) fn write(&mut self, at: usize, count: usize) {
        let value: Vec<u64> = (0..count as u64).map(|n| self.posted << 16 | n | 1 << 60).collect();
        self.reference[at..at + count].copy_from_slice(&value);
        self.post(false, at, Work::Write, count * 8, &bytes_of(&value), Expected::Plain);
    }

    pub(super) fn read(&mut self, at: usize, count: usize) {
        if self.landing_at + count > WORDS {
            self.landing_at = 0;
        }
        let into = Local { region: LocalRegion::Public(LANDING), offset: self.landing_at * 8 };
        let expected = Expected::Read { at: self.landing_at, words: self.reference[at..at + count].to_vec() };
        self.landing_at += count;
        self.post(false, at, Work::Read(into), count * 8, &[], expected);
    }

    pub(super) fn read_word(&mut self, at: usize) {
        let expected = Expected::Word(self.reference[at]);
        self.post(false, at, Work::ReadWord, 8, &[], expected);
    }

    fn swap(&mut self, at: usize, hit: bool) {
        let found = self.reference[at];
        let (expected, new) = (if hit { found } else { found ^ 1 }, self.posted << 32 | 1);
        if hit {
            self.reference[at] = new;
        }
        self.post(false, at, Work::Swap { expected, new }, 8, &[], Expected::Word(found));
    }

    fn record(&mut self) {
        self.serial += 1;
        let at = (self.serial % PLACES) as usize * RECORD;
        let expected = Expected::Record { serial: self.serial, changes: self.changes.len(), granted: self.granted };
        self.post(true, at, Work::Write, RECORD * 8, &bytes_of(&[self.serial; RECORD]), expected);
    }

    /// The owner revokes the permission or grants it.
    fn change(&mut self, granted: bool) {
        self.owner.change(0, granted);
        self.granted = granted;
        let lane = load(&self.memory.lane);
        let whole = (1..=self.serial).filter(|serial| {
            let at = (serial % PLACES) as usize * RECORD;
            lane[at..at + RECORD].iter().all(|word| word == serial)
        });
        let whole = whole.collect();
        self.changes.push(whole);
    }

    /// The asker has a turn.
    pub(super) fn ask(&mut self) {
        self.asker.tick(self.now);
        let (sealer, there) = (&mut self.ends[0].0, &mut self.there);
        self.asker.send(self.now, std::iter::empty(), &mut Vec::new(), Sealer::begin, |packet| {
            sealer.seal(Kind::Request, packet);
            there.push_back(packet.clone());
        });
    }

    pub(super) fn arrive(&mut self, mut packet: Vec<u8>) {
        let Some(head) = Head::decode(&packet).filter(|_| packet.len() <= self.carries) else { return };
        if self.ends[0].1.open(head, &mut packet).is_err() {
            return;
        }
        self.owner.take(body(&packet), &self.memory, |_| {}).expect("what an asker sends is well-formed");
        let (sealer, back) = (&mut self.ends[1].0, &mut self.back);
        if self.owner.owes() {
            self.owner.answer(&self.memory, &mut Vec::new(), Sealer::begin, |packet| {
                sealer.seal(Kind::Response, packet);
                back.push_back(packet.clone());
            });
        }
    }

    pub(super) fn return_to_asker(&mut self, mut packet: Vec<u8>) {
        let Some(head) = Head::decode(&packet) else { return };
        if self.ends[1].1.open(head, &mut packet).is_err() {
            return;
        }
        let (told, landing) = (&mut self.told, &self.landing);
        let heard = self.asker.take(
            body(&packet),
            self.now,
            |grants| grants.iter().for_each(|(lane, epoch)| *told = if lane == 0 { epoch.max(*told) } else { panic!("lane {lane}") }),
            |landed| {
                for (word, bytes) in landing[landed.into.offset / 8..].iter().zip(landed.bytes.as_chunks::<8>().0) {
                    word.store(u64::from_le_bytes(*bytes), Ordering::SeqCst);
                }
            },
        );
        heard.expect("what an owner sends is well-formed");
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(done) = self.asker.pop() {
            self.completed += 1;
            assert_eq!(done.token, Token(self.completed), "completions come in order");
            let expected = self.expected.pop_front().expect("one for each operation");
            match expected {
                Expected::Plain => assert_eq!(done.result, Ok(0)),
                Expected::Word(word) => assert_eq!(done.result, Ok(word), "operation {}", self.completed),
                Expected::Read { at, words } => {
                    assert_eq!(done.result, Ok(0));
                    assert_eq!(load(&self.landing[at..at + words.len()]), words, "operation {}", self.completed);
                }
                Expected::Record { serial, changes, granted } => match done.result {
                    Ok(_) => {
                        let lane = load(&self.memory.lane);
                        let at = (serial % PLACES) as usize * RECORD;
                        assert!(self.serial >= serial + PLACES || lane[at] >= serial, "record {serial} succeeded and is not there");
                        if let Some(whole) = self.changes.get(changes).filter(|_| granted) {
                            assert!(whole.contains(&serial), "record {serial} succeeded, and was not there when the lane was taken");
                        }
                    }
                    Err(error) => {
                        assert_eq!(error, OpError::AccessLost);
                        assert!(!granted || self.changes.len() > changes || self.told_late(changes), "record {serial} failed");
                    }
                },
            }
        }
    }

    /// Whether the asker could not yet know, after that many changes of the lane, that the lane was its own again.
    fn told_late(&self, changes: usize) -> bool {
        changes > 0
    }

    /// Goes on without faults until all is done.
    pub(super) fn settle(&mut self) {
        for _ in 0..20_000 {
            self.now += 100;
            self.ask();
            while let Some(packet) = self.there.pop_front() {
                self.arrive(packet);
            }
            while let Some(packet) = self.back.pop_front() {
                self.return_to_asker(packet);
            }
            self.collect();
            if self.asker.is_empty() {
                assert_eq!(load(&self.memory.public), self.reference, "the memory is what the reference says");
                return;
            }
        }
        panic!("{} of {} operations have ended", self.completed, self.posted);
    }
}

/// One life on a network that `seed` makes more or less hostile.
fn live(seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut world = World::on_route(LARGEST_PACKET);
    let mut faults = [(); 4].map(|()| chance.f64() * chance.f64() * 0.4);
    // Some networks are merely slow.
    let is_slow = seed.is_multiple_of(8);
    if is_slow {
        faults = [0.0; 4];
    }
    let [loss, repeat, corrupt, reorder] = faults;
    let taking = chance.bool();
    let sizes = [MAX_PACKET, 4_000, 9_000, LARGEST_PACKET];
    for _ in 0..chance.usize(20..150) {
        world.now += chance.u64(1..400);
        for _ in 0..chance.usize(0..4) {
            let at = chance.usize(0..WORDS);
            match chance.u8(0..13) {
                0..=3 => world.write(at, 1 + chance.usize(0..8.min(WORDS - at))),
                4 => world.write(at, 1 + chance.usize(0..WORDS - at)),
                5 => world.read(at, 1 + chance.usize(0..WORDS - at)),
                6 => world.read(at, 1 + chance.usize(0..4.min(WORDS - at))),
                7 => world.read_word(at),
                8 => world.swap(at % 8, true),
                9 => world.swap(at % 8, chance.bool()),
                // More outcomes than one response has room for.
                10 if chance.u8(0..8) == 0 => (0..130).for_each(|_| world.swap(at % 8, true)),
                _ => world.record(),
            }
        }
        if taking && chance.u8(0..8) == 0 {
            world.change(!world.granted);
        }
        if !is_slow && chance.u8(0..16) == 0 {
            // From now on, it is another path.
            world.carries = sizes[chance.usize(0..sizes.len())];
        }
        let window = world.asker.window();
        world.ask();
        for back in [false, true] {
            for _ in 0..chance.usize(0..6) {
                let way = if back { &mut world.back } else { &mut world.there };
                if way.is_empty() {
                    continue;
                }
                let at = if chance.f64() < reorder { chance.usize(0..way.len()) } else { 0 };
                let mut packet = way[at].clone();
                if chance.f64() >= repeat {
                    way.remove(at);
                }
                if chance.f64() < loss {
                    continue;
                }
                if chance.f64() < corrupt {
                    let bit = chance.usize(0..packet.len() * 8);
                    packet[bit / 8] ^= 1 << (bit % 8);
                    if bit / 8 < HEAD && bit / 8 >= 4 && bit / 8 < 8 {
                        // It belongs to another flow, and so finds no receiver.
                        continue;
                    }
                }
                if back { world.return_to_asker(packet) } else { world.arrive(packet) }
            }
        }
        assert!(!is_slow || world.asker.window() >= window, "nothing was lost, and less may be under way");
    }
    world.settle();
}

#[test]
fn a_hostile_network_changes_nothing_but_the_time() {
    let seeds = std::env::var("MARTLET_ETHERNET_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(500);
    for seed in 0..seeds {
        let lived = std::panic::catch_unwind(|| live(seed));
        assert!(lived.is_ok(), "seed {seed}");
    }
}

/// One schedule of few packets: each choice is what happens next. `false` if one of the choices was not possible.
fn schedule(choices: &[u8]) -> bool {
    let mut world = World::new();
    world.record();
    world.swap(0, true);
    world.ask();
    for choice in choices {
        let (there, back) = (world.there.len(), world.back.len());
        match choice {
            0 => {
                world.now += 20_000;
                world.ask();
            }
            1 if there > 0 => {
                let packet = world.there.pop_front().expect("some");
                world.arrive(packet);
            }
            2 if there > 1 => {
                let packet = world.there.pop_back().expect("some");
                world.arrive(packet);
            }
            3 if there > 0 => drop(world.there.pop_front()),
            4 if back > 0 => {
                let packet = world.back.pop_front().expect("some");
                world.return_to_asker(packet);
            }
            5 if back > 1 => {
                let packet = world.back.pop_back().expect("some");
                world.return_to_asker(packet);
            }
            6 if back > 0 => drop(world.back.pop_front()),
            7 if world.granted => world.change(false),
            8 if !world.granted => world.change(true),
            9 if world.posted < 5 => {
                world.record();
                world.read(0, 2);
                world.write(0, 1);
                world.ask();
            }
            _ => return false,
        }
    }
    world.settle();
    true
}

fn every_schedule(longest: usize) -> u64 {
    let (mut choices, mut lived) = (Vec::new(), 0);
    loop {
        let possible = schedule(&choices);
        lived += u64::from(possible);
        if possible && choices.len() < longest {
            choices.push(0);
            continue;
        }
        loop {
            match choices.last_mut() {
                None => return lived,
                Some(9) => drop(choices.pop()),
                Some(choice) => {
                    *choice += 1;
                    break;
                }
            }
        }
    }
}

#[test]
fn every_small_schedule_ends_as_the_reference_says() {
    let lived = every_schedule(6);
    assert!(lived > 10_000, "{lived} schedules are no exploration");
}

#[cfg(feature = "canaries")]
#[test]
fn each_canary_is_found() {
    use crate::ethernet::canary::Canary;
    use crate::ethernet::tests::loss;
    use crate::probe;
    let scenes: [fn(); 3] = [
        loss::what_is_sent_behind_the_first_part_does_not_put_it_off,
        loss::what_was_lost_goes_out_again_though_the_window_is_full,
        loss::a_stream_finds_out_what_the_path_carries_and_when_it_carries_it_no_more,
    ];
    for canary in Canary::ALL {
        probe::plant(Some(canary.name()));
        let found = scenes.iter().any(|scene| std::panic::catch_unwind(scene).is_err());
        let found = found || (0..2_000).any(|seed| std::panic::catch_unwind(|| live(seed)).is_err());
        let found = found || std::panic::catch_unwind(|| every_schedule(5)).is_err();
        probe::plant(None);
        assert!(found, "no life, no scene and no schedule shows {canary:?}:{}", canary.meaning());
    }
}
