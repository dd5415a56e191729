//! What single operations of a fabric cost, in the parts that a LogGP model is made of (DARE section 2.3): one endpoint that posts, and peers whose memory it
//! reaches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_fabric::contract::MAX_DATAGRAM_BYTES;
use martlet_fabric::{Local, LocalRegion, PeerEvent, PeerId, Region, RegionName, RegionSpec, Remote, Token};
use martlet_node::clock;
use martlet_node::sched::{self, OnCore};
use martlet_protocol::basics::Time;

use super::endpoint::{self, Endpoint, Place};
use super::lane_reader::{Assignment, RAW_LANE, RAW_LANE_BYTES, Reader, offset, stamp};
use super::raise::Raise;
use crate::report::placement::two_cores;

/// Memory that peers read from each other.
const RAW_REGION: RegionName = RegionName(201);
const RAW_REGION_BYTES: usize = 32 << 10;
/// The most bytes of a read or a write.
pub const MAX_BYTES: usize = RAW_REGION_BYTES;
/// Operations in a batch: one by itself is about as long as a reading of the clock.
const BATCH: u64 = 16;
/// How long operations are left alone that have been posted, so that what is left of them is to collect their completions, in nanoseconds.
const SETTLE_NS: u64 = 20_000;
/// What has not come back after so long is lost, in nanoseconds.
const LOST_NS: u64 = 100_000_000;
/// How long things may take that have no reason to take long.
const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: Token = Token(1);

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A write into a peer's memory, where the peer reads what comes, as a follower reads its log.
    Write,
    /// A read of a peer's memory.
    Read,
    /// A datagram to a peer's program.
    Datagram,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Write, Kind::Read, Kind::Datagram];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::Read => "read",
            Kind::Datagram => "datagram",
        }
    }

    /// The most bytes of one.
    pub const fn most_bytes(self) -> usize {
        match self {
            Kind::Write | Kind::Read => MAX_BYTES,
            Kind::Datagram => MAX_DATAGRAM_BYTES,
        }
    }
}

/// How long something took, sample by sample, in nanoseconds; each the mean of a batch.
#[derive(Clone, Debug, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// The median; 0 of none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// How long the parts of one operation take.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Until it is posted, or a datagram is sent.
    pub issue: Samples,
    /// From there until it has completed; of a datagram, until the peer has it: half of a round trip.
    pub whole: Samples,
    /// To collect a completion that is there, or to receive a datagram that has come.
    pub collect: Samples,
}

/// The endpoint that posts.
pub struct Prober<'a, F> {
    fabric: F,
    peers: Vec<PeerId>,
    assignment: &'a Assignment,
    series: u64,
    number: u64,
    datagram: Vec<u8>,
}

fn regions() -> RegionSpec {
    let mut regions = endpoint::regions();
    regions.member_lanes.push((RAW_LANE, RAW_LANE_BYTES));
    regions.public.push((RAW_REGION, RAW_REGION_BYTES));
    regions
}

/// Runs `act` with an endpoint that is connected with so many peers; these share another core, where there is one.
pub fn among<F: Endpoint, T>(place: &Place, peers: u16, act: impl FnOnce(&mut Prober<'_, F>) -> Outcome<T>) -> Outcome<T> {
    let cores = two_cores();
    let _here = cores.map(|(here, _)| OnCore::enter(here)).transpose().context("cannot bind the measuring thread")?;
    let (stop, assignment) = (AtomicBool::new(false), Assignment::default());
    std::thread::scope(|scope| {
        // They end with us, however we end.
        let _stop = Raise(&stop);
        let others = (1..=peers).map(|number| F::start(place, number, regions())).collect::<Outcome<Vec<_>>>()?;
        others.iter().for_each(|other| other.connect(place, 0));
        let (stopped, assigned) = (&stop, &assignment);
        scope.spawn(move || {
            if let Some((_, there)) = cores {
                // Without it the figures are worse, and still true.
                let _ = sched::pin_current_thread(there);
            }
            serve(others, assigned, stopped);
        });
        let mut fabric = F::start(place, 0, regions())?;
        (1..=peers).for_each(|number| fabric.connect(place, number));
        let peers = meet(&mut fabric, usize::from(peers))?;
        let datagram = Vec::with_capacity(MAX_DATAGRAM_BYTES);
        act(&mut Prober { fabric, peers, assignment: &assignment, series: 0, number: 0, datagram })
    })
}

fn meet<F: Endpoint>(fabric: &mut F, count: usize) -> Outcome<Vec<PeerId>> {
    let (until, mut found) = (Instant::now() + PATIENCE, Vec::new());
    while found.len() < count {
        match fabric.event() {
            Some(PeerEvent::Up { peer, .. }) => found.push(peer),
            Some(PeerEvent::Gone { .. }) => return Err(Fail::failed("an endpoint of this benchmark has lost another one")),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        if Instant::now() > until {
            return Err(Fail::failed(format_args!("only {} of {count} endpoints met within {} s", found.len(), PATIENCE.as_secs())));
        }
    }
    Ok(found)
}

/// What the peers do: they read what is written for them, and send each datagram back.
fn serve<F: Endpoint>(mut others: Vec<F>, assignment: &Assignment, stop: &AtomicBool) {
    let mut seats: Vec<(Option<PeerId>, Reader)> = others.iter().map(|_| Default::default()).collect();
    let mut datagram = Vec::with_capacity(MAX_DATAGRAM_BYTES);
    while !stop.load(Ordering::Relaxed) {
        for (fabric, (prober, reader)) in others.iter_mut().zip(&mut seats) {
            while let Some(event) = fabric.event() {
                if let PeerEvent::Up { peer, .. } = event {
                    *prober = Some(peer);
                }
            }
            let completion = fabric.poll();
            martlet_fabric::invariant!(completion.is_none(), "nothing was under way: {completion:?}");
            if let Some(prober) = prober {
                reader.read(assignment, fabric, *prober);
            }
            while let Some(from) = fabric.receive(&mut datagram) {
                fabric.send(from, &datagram);
            }
        }
        // Where a fabric's own threads serve, who spins on their core keeps them from it.
        std::thread::yield_now();
    }
}

impl<F: Endpoint> Prober<'_, F> {
    /// Times operations of so many bytes: from 8, a multiple of 8, to [`Kind::most_bytes`].
    ///
    /// # Errors
    /// When an operation fails, or a datagram does not come back time and again.
    pub fn time(&mut self, kind: Kind, bytes: usize, samples: u32) -> Outcome<Timing> {
        match kind {
            Kind::Write | Kind::Read => self.time_memory(kind, bytes, samples),
            Kind::Datagram => self.time_datagrams(bytes, samples),
        }
    }

    /// How long it takes until writes of so many bytes to all peers have completed.
    ///
    /// # Errors
    /// When one fails.
    pub fn time_writes_to_all(&mut self, bytes: usize, samples: u32) -> Outcome<Samples> {
        self.begin(Kind::Write, bytes);
        let (mut payload, mut taken) = (vec![7u8; bytes], Samples::default());
        for sample in 0..samples + samples / 10 {
            let start = clock::now();
            for _ in 0..BATCH {
                for at in 0..self.peers.len() {
                    self.post(Kind::Write, at, &mut payload);
                }
                self.number += 1;
                self.complete(self.peers.len() as u64)?;
            }
            let took = clock::now().since(start);
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                taken.0.push(took as f64 / BATCH as f64);
            }
        }
        self.assignment.rest();
        Ok(taken)
    }

    fn begin(&mut self, kind: Kind, bytes: usize) {
        (self.series, self.number) = (self.series + 1, 0);
        if kind == Kind::Write {
            self.assignment.read(self.series, bytes);
        }
    }

    #[inline]
    fn post(&mut self, kind: Kind, at: usize, payload: &mut [u8]) {
        let peer = self.peers[at];
        if kind == Kind::Write {
            payload[..8].copy_from_slice(&stamp(self.series, self.number).to_le_bytes());
            let at = Remote { peer, region: Region::Lane(RAW_LANE), offset: offset(self.number, payload.len()) };
            self.fabric.write(at, payload, TOKEN);
        } else if payload.len() == 8 {
            self.fabric.read_word(Remote { peer, region: Region::Public(RAW_REGION), offset: 0 }, TOKEN);
        } else {
            let from = Remote { peer, region: Region::Public(RAW_REGION), offset: 0 };
            self.fabric.read(from, Local { region: LocalRegion::Public(RAW_REGION), offset: 0 }, payload.len(), TOKEN);
        }
    }

    #[inline]
    fn complete(&mut self, mut operations: u64) -> Outcome {
        while operations > 0 {
            if let Some(completion) = self.fabric.poll() {
                completion.result.map_err(|why| Fail::failed(format_args!("an operation of this benchmark failed: {why:?}")))?;
                operations -= 1;
            }
        }
        Ok(())
    }

    fn time_memory(&mut self, kind: Kind, bytes: usize, samples: u32) -> Outcome<Timing> {
        self.begin(kind, bytes);
        let (mut payload, mut timing) = (vec![7u8; bytes], Timing::default());
        for sample in 0..samples + samples / 10 {
            let start = clock::now();
            for _ in 0..BATCH {
                self.post(kind, 0, &mut payload);
                self.number += 1;
                self.complete(1)?;
            }
            let whole = clock::now().since(start);
            let start = clock::now();
            for _ in 0..BATCH {
                self.post(kind, 0, &mut payload);
                self.number += 1;
            }
            let issue = clock::now().since(start);
            settle();
            let start = clock::now();
            self.complete(BATCH)?;
            let collect = clock::now().since(start);
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                timing.add(issue, whole, collect, BATCH);
            }
        }
        self.assignment.rest();
        Ok(timing)
    }

    fn time_datagrams(&mut self, bytes: usize, samples: u32) -> Outcome<Timing> {
        const MOST_LOST: u32 = 100;
        let (mut payload, mut timing) = (vec![7u8; bytes], Timing::default());
        let (mut sample, mut lost) = (0, 0);
        while sample < samples + samples / 10 {
            let start = self.send(&mut payload);
            let sent = clock::now();
            let back = self.await_datagram();
            self.send(&mut payload);
            settle();
            let ready = clock::now();
            // One that has not come yet was no receipt.
            let received = self.receives();
            let taken = clock::now();
            let (Some(back), true) = (back, received || self.await_datagram().is_some()) else {
                lost += 1;
                if lost > MOST_LOST {
                    return Err(Fail::failed(format_args!("{lost} datagrams of {bytes} B did not come back")));
                }
                continue;
            };
            if sample >= samples / 10 {
                timing.issue.0.push(sent.since(start) as f64);
                timing.whole.0.push(back.since(start) as f64 / 2.0);
                if received {
                    timing.collect.0.push(taken.since(ready) as f64);
                }
            }
            sample += 1;
        }
        Ok(timing)
    }

    /// Sends the next datagram, which no other is like. Returns when it began to.
    fn send(&mut self, payload: &mut [u8]) -> Time {
        self.number += 1;
        payload[..8].copy_from_slice(&self.number.to_le_bytes());
        let start = clock::now();
        self.fabric.send(self.peers[0], payload);
        start
    }

    /// Whether the last datagram has come back. Earlier ones are let go.
    fn receives(&mut self) -> bool {
        while self.fabric.receive(&mut self.datagram).is_some() {
            if self.datagram[..8] == self.number.to_le_bytes() {
                return true;
            }
        }
        false
    }

    /// Waits for the last datagram, also where the peer's thread waits for its core. Returns when it had come back; `None`: it is lost.
    fn await_datagram(&mut self) -> Option<Time> {
        let until = clock::now().after(LOST_NS);
        loop {
            let completion = self.fabric.poll();
            martlet_fabric::invariant!(completion.is_none(), "nothing was under way: {completion:?}");
            if self.receives() {
                return Some(clock::now());
            }
            if clock::now() > until {
                return None;
            }
        }
    }
}

impl Timing {
    /// Takes further samples in.
    pub fn extend(&mut self, more: Timing) {
        self.issue.0.extend(more.issue.0);
        self.whole.0.extend(more.whole.0);
        self.collect.0.extend(more.collect.0);
    }

    fn add(&mut self, issue: u64, whole: u64, collect: u64, batch: u64) {
        for (samples, took) in [(&mut self.issue, issue), (&mut self.whole, whole), (&mut self.collect, collect)] {
            samples.0.push(took as f64 / batch as f64);
        }
    }
}

fn settle() {
    let until = clock::now().after(SETTLE_NS);
    while clock::now() < until {
        std::hint::spin_loop();
    }
}
