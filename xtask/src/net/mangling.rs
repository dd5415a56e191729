//! What a bad wire does to packets. This is pure: the same packets and seed have the same fate.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser as _;
use fastrand::Rng;

use crate::number::number;

/// How bad the wire is, for each packet, and so in each direction. Nothing gets through a wire that loses more than half.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct Mangling {
    /// Percent of the packets, of UDP and TCP, that are lost each way.
    #[arg(long = "loss", value_name = "PERCENT", default_value_t = 0.0, value_parser = number::<f64>(0.0..=50.0))]
    pub lost: f64,
    /// Percent that are held back for up to 2 ms, so that others overtake them.
    #[arg(long = "reorder", value_name = "PERCENT", default_value_t = 0.0, value_parser = number::<f64>(0.0..=50.0))]
    pub reordered: f64,
    /// Percent that arrive twice.
    #[arg(long = "repeat", value_name = "PERCENT", default_value_t = 0.0, value_parser = number::<f64>(0.0..=50.0))]
    pub repeated: f64,
    /// Percent in which one bit is wrong. A UDP packet reaches its program so, with no check sum; one of TCP is dropped by the kernel, as it would be anywhere.
    #[arg(long = "corrupt", value_name = "PERCENT", default_value_t = 0.0, value_parser = number::<f64>(0.0..=50.0))]
    pub corrupted: f64,
    /// How many microseconds each packet is under way.
    #[arg(long = "delay-us", value_name = "N", default_value = "0", value_parser = number::<u64>(0..=1_000_000).map(Duration::from_micros))]
    pub delay: Duration,
}

impl fmt::Display for Mangling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mangling { lost, reordered, repeated, corrupted, delay } = self;
        write!(
            f,
            "{lost} % lost, {reordered} % late by up to 2 ms, {repeated} % repeated, {corrupted} % corrupted each way, all delayed by {delay:?}"
        )
    }
}

/// By how much at most a packet is late that is overtaken, or that comes a second time.
const LATENESS: Duration = Duration::from_millis(2);
/// The number of the protocol inside, in an IPv4 header.
const UDP: u8 = 17;

/// Packets under way, each to one of the wire's ends. Times are counted from any starting point.
pub struct Wire {
    mangling: Mangling,
    chance: Rng,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    taken: u64,
}

/// Ordered by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Duration,
    number: u64,
    to: usize,
    packet: Vec<u8>,
}

impl Wire {
    /// A wire with nothing under way.
    pub fn new(mangling: Mangling, seed: u64) -> Wire {
        Wire { mangling, chance: Rng::with_seed(seed), under_way: BinaryHeap::new(), taken: 0 }
    }

    fn happens(&mut self, percent: f64) -> bool {
        self.chance.f64() * 100.0 < percent
    }

    fn lateness(&mut self) -> Duration {
        LATENESS.mul_f64(self.chance.f64())
    }

    /// Takes an IPv4 packet.
    pub fn take(&mut self, now: Duration, to: usize, packet: &[u8]) {
        if self.happens(self.mangling.lost) {
            return;
        }
        let mut packet = packet.to_owned();
        if self.happens(self.mangling.corrupted) {
            corrupt(&mut packet, &mut self.chance);
        }
        let due = now + self.mangling.delay;
        if self.happens(self.mangling.repeated) {
            let late = self.lateness();
            self.put(due + late, to, packet.clone());
        }
        let late = if self.happens(self.mangling.reordered) { self.lateness() } else { Duration::ZERO };
        self.put(due + late, to, packet);
    }

    fn put(&mut self, due: Duration, to: usize, packet: Vec<u8>) {
        self.under_way.push(Reverse(UnderWay { due, number: self.taken, to, packet }));
        self.taken += 1;
    }

    /// When the next packet arrives.
    pub fn next(&self) -> Option<Duration> {
        self.under_way.peek().map(|Reverse(first)| first.due)
    }

    /// A packet that has arrived by now, and at which end.
    pub fn give(&mut self, now: Duration) -> Option<(usize, Vec<u8>)> {
        self.next().filter(|due| *due <= now)?;
        self.under_way.pop().map(|Reverse(first)| (first.to, first.packet))
    }
}

/// Flips one bit after the IPv4 header. In a UDP datagram this is a bit of what the sender has written, and the checksum is left out: otherwise the kernel
/// would drop the datagram, and no program would ever see it. In a TCP segment it is for the kernel to find.
fn corrupt(packet: &mut [u8], chance: &mut Rng) {
    let header = usize::from(packet[0] & 0xF) * 4;
    let is_udp = packet.get(9) == Some(&UDP);
    let content = header + if is_udp { 8 } else { 0 };
    if packet.len() <= content {
        return;
    }
    packet[chance.usize(content..packet.len())] ^= 1 << chance.u8(..8);
    if is_udp {
        packet[header + 6..header + 8].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A datagram with 4 bytes of content.
    fn datagram(number: u16) -> Vec<u8> {
        let mut packet = vec![0x45; 32];
        packet[9] = UDP;
        packet[28..30].copy_from_slice(&number.to_be_bytes());
        packet
    }

    /// The outcome for a thousand packets, one in each microsecond, in the order of arrival.
    fn through(mangling: Mangling, seed: u64) -> Vec<(usize, Vec<u8>)> {
        let mut wire = Wire::new(mangling, seed);
        for number in 0..1000 {
            wire.take(Duration::from_micros(number.into()), 2, &datagram(number));
        }
        assert!(mangling.delay.is_zero() || wire.give(mangling.delay - Duration::from_nanos(1)).is_none(), "none is early");
        std::iter::from_fn(|| wire.give(mangling.delay + 4 * MS)).collect()
    }

    fn numbers(came: &[(usize, Vec<u8>)]) -> Vec<u16> {
        came.iter().map(|(_, packet)| u16::from_be_bytes([packet[28], packet[29]])).collect()
    }

    #[test]
    fn a_good_wire_changes_nothing() {
        let came = through(Mangling { delay: MS, ..Mangling::default() }, 1);
        assert_eq!(numbers(&came), (0..1000).collect::<Vec<_>>());
        assert!(came.iter().zip(0..).all(|((to, packet), number)| *to == 2 && *packet == datagram(number)));
    }

    #[test]
    fn the_same_seed_is_the_same_fate() {
        let mangling = Mangling { lost: 5.0, reordered: 10.0, repeated: 2.0, corrupted: 1.0, delay: MS };
        assert_eq!(through(mangling, 7), through(mangling, 7));
        assert_ne!(through(mangling, 7), through(mangling, 8));
    }

    #[test]
    fn about_so_many_are_lost_repeated_and_overtaken() {
        let only = |mangling| numbers(&through(mangling, 3));
        let lost = only(Mangling { lost: 5.0, ..Mangling::default() });
        assert!((920..980).contains(&lost.len()), "{}", lost.len());
        assert!(lost.is_sorted(), "the others keep their order");
        let repeated = only(Mangling { repeated: 5.0, ..Mangling::default() });
        assert!((1020..1080).contains(&repeated.len()), "{}", repeated.len());
        let reordered = only(Mangling { reordered: 5.0, ..Mangling::default() });
        assert_eq!(reordered.len(), 1000);
        let overtaken = reordered.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((20..80).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn a_wrong_bit_is_in_what_the_sender_has_written_and_reaches_a_program() {
        let came = through(Mangling { corrupted: 100.0, ..Mangling::default() }, 3);
        for ((_, packet), number) in came.iter().zip(0..) {
            let sent = datagram(number);
            let wrong: u32 = packet[28..].iter().zip(&sent[28..]).map(|(is, was)| (is ^ was).count_ones()).sum();
            assert_eq!((wrong, &packet[..26], &packet[26..28]), (1, &sent[..26], &[0, 0][..]));
        }
        let mut wire = Wire::new(Mangling { corrupted: 100.0, ..Mangling::default() }, 3);
        // Nothing after the header, and a TCP segment.
        let mut segment = datagram(1);
        segment[9] = 6;
        for packet in [&datagram(1)[..28], &segment[..]] {
            wire.take(Duration::ZERO, 0, packet);
        }
        assert_eq!(wire.give(Duration::ZERO), Some((0, datagram(1)[..28].to_owned())));
        let (_, came) = wire.give(Duration::ZERO).expect("it comes");
        assert_eq!(came.iter().zip(&segment).map(|(is, was)| (is ^ was).count_ones()).sum::<u32>(), 1);
    }
}
