//! What is sent again, when, and what becomes of the window: if packets are lost, and if a peer merely does not answer. Also how long an operation
//! takes at most.

use std::collections::VecDeque;

use super::model::{WORDS, World};
use crate::ethernet::packet::{LARGEST_PACKET, MAX_PACKET};

/// The shortest wait for an answer before something is sent again.
const PATIENCE_US: u64 = 300;
/// From a packet to its answer.
const ROUND_TRIP_US: u64 = 40;

impl World {
    /// The asker has a turn, `later_us` later. Returns how many packets it sends.
    fn turn(&mut self, later_us: u64) -> usize {
        let before = self.there.len();
        self.now += later_us;
        self.ask();
        self.there.len() - before
    }

    /// Everything on its way arrives, and is answered.
    fn deliver(&mut self) {
        self.now += ROUND_TRIP_US;
        while let Some(packet) = self.there.pop_front() {
            self.arrive(packet);
        }
        self.hear();
    }

    /// The asker takes all answers.
    fn hear(&mut self) {
        while let Some(packet) = self.back.pop_front() {
            self.return_to_asker(packet);
        }
    }

    /// Posts writes of a packet each, one after another.
    fn stream(&mut self, writes: usize) {
        for n in 0..writes {
            self.write(n * 120 % (WORDS - 120), 120);
        }
    }
}

/// A world in which `writes` writes of `words` words have been answered, one after another.
fn after_writes(writes: usize, words: usize) -> World {
    let mut world = World::new();
    for _ in 0..writes {
        world.write(0, words);
        world.turn(1);
        world.deliver();
    }
    world
}

/// A stream that has been under way for a while, with as much on its way to the owner as the window allows.
fn streaming() -> World {
    let mut world = World::new();
    for _ in 0..4 {
        world.stream(100);
        while world.turn(0) > 0 {
            world.deliver();
        }
    }
    world.stream(600);
    world.turn(1);
    world
}

#[test]
fn a_peer_that_has_no_turn_for_milliseconds_costs_no_window_and_few_packets() {
    let mut world = streaming();
    let (window, flying) = (world.asker.window(), world.there.len());
    assert!(flying > 100, "{flying} packets under way");
    let again: usize = (0..500).map(|_| world.turn(10)).sum();
    assert!((1..=10).contains(&again), "{again} packets sent again in 5 ms");
    // It takes them a few at a time, in the order in which they came.
    while !world.there.is_empty() {
        for _ in 0..32.min(world.there.len()) {
            let packet = world.there.pop_front().expect("some");
            world.arrive(packet);
        }
        world.hear();
        assert!(world.asker.window() >= window, "{} bytes of {window} are left of the window", world.asker.window());
    }
    let sent = world.turn(0);
    assert!(sent >= flying, "{sent} packets go out, and {flying} did before");
    world.settle();
}

#[test]
fn one_packet_alone_is_sent_again_after_the_shortest_wait_and_shrinks_nothing() {
    let mut world = after_writes(20, 8);
    let window = world.asker.window();
    world.write(0, 8);
    world.read_word(0);
    assert_eq!(world.turn(1), 1);
    world.there.clear();
    assert_eq!(world.asker.due(), Some(world.now + PATIENCE_US));
    assert_eq!(world.turn(PATIENCE_US - 1), 0);
    assert_eq!(world.turn(1), 1);
    world.deliver();
    assert_eq!(world.completed, world.posted);
    assert!(world.asker.window() >= window);
}

/// If one packet in ten is lost, one operation in a thousand loses three packets in a row.
#[test]
fn the_first_waits_are_alike_and_those_behind_them_double_up_to_ten_milliseconds() {
    let mut world = after_writes(20, 8);
    world.write(0, 8);
    assert_eq!(world.turn(1), 1);
    for wait in [300, 300, 300, 600, 1_200, 2_400, 4_800, 9_600, 10_000, 10_000] {
        assert_eq!(world.asker.due(), Some(world.now + wait));
        assert_eq!((world.turn(wait - 1), world.turn(1)), (0, 1));
        world.there.clear();
    }
    // News ends that: the next operation waits as briefly as the first did.
    world.turn(10_000);
    world.deliver();
    world.write(0, 8);
    world.turn(1);
    assert_eq!(world.asker.due(), Some(world.now + PATIENCE_US));
}

#[test]
fn one_answer_after_a_silence_shows_all_that_was_lost_before_it() {
    let mut world = streaming();
    let (window, flying) = (world.asker.window(), world.there.len());
    world.there.clear();
    assert_eq!(world.turn(PATIENCE_US), 2, "the first and the last");
    world.deliver();
    let now = world.asker.window();
    assert!(now < window && now > window / 2, "{now} bytes of {window} are left of the window");
    let again = world.turn(0);
    assert!(again > flying / 2 && again < flying, "{again} packets sent again of {flying}");
    world.settle();
}

#[test]
fn each_wait_in_a_silence_that_was_loss_counts() {
    let mut world = streaming();
    let window = world.asker.window();
    world.there.clear();
    for _ in 0..500 {
        world.turn(10);
    }
    world.deliver();
    assert!(world.asker.window() < window / 3, "{} bytes of {window} are left of the window", world.asker.window());
    world.settle();
}

#[test]
fn what_was_overtaken_is_sent_again_after_a_round_trip_without_another_answer() {
    let mut world = after_writes(40, 120);
    world.stream(2);
    assert_eq!(world.turn(1), 2);
    world.there.pop_front();
    world.deliver();
    assert_eq!(world.turn(0), 0, "it may come yet");
    let due = world.asker.due().expect("something is under way") - world.now;
    assert!(due < ROUND_TRIP_US, "in {due} us");
    assert_eq!(world.turn(due), 1);
    world.deliver();
    assert_eq!(world.completed, world.posted);
}

/// What was sent again and what follows it are on their way while the peer has no turn: that is one loss and no more.
#[test]
fn a_pause_behind_a_loss_shrinks_the_window_once() {
    let mut world = streaming();
    world.there.pop_front();
    world.deliver();
    let window = world.asker.window();
    world.turn(ROUND_TRIP_US);
    let shrunk = world.asker.window();
    assert!(shrunk <= window && shrunk > window / 2, "{shrunk} bytes of {window} are left of the window");
    for _ in 0..500 {
        world.turn(10);
    }
    while let Some(packet) = world.there.pop_front() {
        world.arrive(packet);
        world.hear();
        assert!(world.asker.window() >= shrunk, "{} bytes of {shrunk} are left of the window", world.asker.window());
    }
    world.settle();
}

/// How long an operation may take on a network that loses one packet in ten in each direction: many times what the unluckiest one takes, and far less
/// than a cluster would notice.
const LONGEST_US: u64 = 20_000;

/// A life in which the asker posts without a pause, and each packet, be it a request, a retransmission or an answer, may be lost.
fn press(seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut world = World::new();
    let loss = chance.f64() * 0.1;
    // A trickle of small packets, or as many as there is room for.
    let (every_us, words) = if chance.bool() { (chance.u64(20..400), 1) } else { (20, 120) };
    let (mut posted_at, mut next) = (VecDeque::new(), 0);
    for step in 0..1_500 {
        world.now += ROUND_TRIP_US / 2;
        while world.now >= next && world.posted < world.completed + 600 {
            match chance.u8(0..20) {
                0 => world.read_word(chance.usize(0..WORDS)),
                1 => world.read(chance.usize(0..WORDS - 8), 8),
                _ => world.write(chance.usize(0..WORDS - words), words),
            }
            posted_at.push_back(world.now);
            next = world.now + every_us;
        }
        let (there, back) = (std::mem::take(&mut world.there), std::mem::take(&mut world.back));
        for packet in there.into_iter().filter(|_| chance.f64() >= loss) {
            world.arrive(packet);
        }
        for packet in back.into_iter().filter(|_| chance.f64() >= loss) {
            world.return_to_asker(packet);
        }
        world.ask();
        posted_at.drain(..posted_at.len() - (world.posted - world.completed) as usize);
        let longest = posted_at.front().map_or(0, |at| world.now - at);
        assert!(longest <= LONGEST_US, "an operation has taken {longest} us, in step {step}, at a loss of {loss:.3}");
    }
    world.settle();
}

#[test]
fn an_asker_that_posts_without_a_pause_gets_an_end_for_each_operation_within_milliseconds() {
    for seed in 0..24 {
        let lived = std::panic::catch_unwind(|| press(seed));
        assert!(lived.is_ok(), "seed {seed}");
    }
}

/// More parts arrive out of order than an answer has room to name. So no answer shows that the retransmission of the first of them was lost, too.
#[test]
pub(super) fn what_is_sent_behind_the_first_part_does_not_put_it_off() {
    let mut world = after_writes(40, 8);
    let all_before = world.completed;
    for _ in 0..10 {
        world.write(0, 8);
        assert_eq!(world.turn(1), 1);
    }
    for lost in [8, 6, 4, 2, 0] {
        world.there.remove(lost);
    }
    world.deliver();
    assert_eq!(world.turn(ROUND_TRIP_US), 4, "the holes that an answer has shown");
    world.there.clear();
    let mut waited = 0;
    while world.completed == all_before {
        world.write(0, 8);
        world.turn(PATIENCE_US / 3);
        world.deliver();
        waited += PATIENCE_US / 3 + ROUND_TRIP_US;
        assert!(waited <= 2 * PATIENCE_US, "the first part has not been sent again for {waited} us");
    }
    world.settle();
}

/// What an answer has no room to name counts as under way, and that may be more than a window that has shrunk allows.
#[test]
pub(super) fn what_was_lost_goes_out_again_though_the_window_is_full() {
    let mut world = streaming();
    let flying = world.there.len();
    // A peer that takes ten at a time, of which one is lost: each time the window shrinks, and what is under way does not.
    for at in (0..flying).step_by(10) {
        world.there.pop_front();
        for _ in at + 1..flying.min(at + 10) {
            let packet = world.there.pop_front().expect("it was under way");
            world.arrive(packet);
        }
        world.hear();
        world.turn(PATIENCE_US);
    }
    let until = world.completed + flying as u64;
    let began = world.now;
    while world.completed < until {
        world.deliver();
        world.turn(1);
        let took = world.now - began;
        assert!(
            took <= 4 * flying as u64 / 10 * ROUND_TRIP_US,
            "one packet of ten was lost, and {took} us later {} of {flying} are missing",
            until - world.completed
        );
    }
    world.settle();
}

/// Lets a stream go on until `until` holds, or there have been too many rounds.
fn stream_until(world: &mut World, what: &str, until: impl Fn(&World) -> bool) {
    for _ in 0..2_000 {
        if until(world) {
            return;
        }
        if world.posted < world.completed + 80 {
            world.stream(40);
        }
        world.turn(PATIENCE_US / 3);
        world.deliver();
    }
    panic!("packets of {} bytes: {what}", world.asker.packet_bytes());
}

#[test]
pub(super) fn a_stream_finds_out_what_the_path_carries_and_when_it_carries_it_no_more() {
    let mut world = World::on_route(LARGEST_PACKET);
    stream_until(&mut world, "the path carries more", |world| world.asker.packet_bytes() > 30_000);
    assert!(world.asker.packet_bytes() <= LARGEST_PACKET);
    // Some packets are lost, as always.
    for _ in 0..10 {
        world.stream(60);
        world.turn(1);
        world.there.pop_front();
        world.deliver();
    }
    assert!(world.asker.packet_bytes() > 30_000, "{}", world.asker.packet_bytes());
    // The path has changed.
    world.carries = 9_000;
    stream_until(&mut world, "the path carries less", |world| world.asker.packet_bytes() == MAX_PACKET);
    stream_until(&mut world, "the path carries that", |world| (8_000..9_000).contains(&world.asker.packet_bytes()));
    world.carries = MAX_PACKET;
    stream_until(&mut world, "the path carries no large packets", |world| world.asker.packet_bytes() == MAX_PACKET);
    world.settle();
}

#[test]
fn a_path_that_carries_no_large_packets_costs_one_now_and_then() {
    let mut world = World::on_route(LARGEST_PACKET);
    world.carries = MAX_PACKET;
    let (mut tried, mut sent, began) = (0, 0, world.now);
    while world.now < began + 300_000 {
        if world.posted < world.completed + 40 {
            world.stream(20);
        }
        sent += world.turn(1_000);
        tried += world.there.iter().filter(|packet| packet.len() > MAX_PACKET).count();
        world.deliver();
    }
    assert!((3..=6).contains(&tried), "{tried} large packets of {sent} in 300 ms");
    assert_eq!(world.asker.packet_bytes(), MAX_PACKET);
    world.settle();
}

#[test]
fn one_operation_at_a_time_tries_nothing() {
    let mut world = World::on_route(LARGEST_PACKET);
    for _ in 0..100 {
        world.write(0, 120);
        world.turn(1);
        assert!(world.there.iter().all(|packet| packet.len() <= MAX_PACKET));
        world.deliver();
    }
}
