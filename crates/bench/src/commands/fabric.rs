//! `martlet bench fabric`: what one-sided operations cost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::FabricFlags;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_fabric::ring::{Reader, Record, Writer};
use martlet_fabric::{LocalRegion, PeerEvent, PeerId, Region, RegionSpec, Remote, Token, with_fabric};
use martlet_node::config::FabricKind;
use martlet_node::{clock, sched};
use martlet_protocol::basics::layout::{LOG_LANE, SLOT_WORDS, Sizes};

use super::endpoint::{self, Endpoint, Place};
use super::lane_reader::{RAW_LANE, RAW_LANE_BYTES};
use super::raise::Raise;
use super::stream;
use crate::report::echo;
use crate::report::placement::two_cores;
use crate::report::{Figure, Report, Unit};

/// Measure what one-sided operations cost.
///
/// Single operations are timed in batches if one takes about as long as a reading of the clock; between hosts each is timed by itself, as round trips are.
/// Between ordinary hosts, bare UDP echoes of 64 bytes stand beside them, by one thread and by two, of which the first answer counts. Beside a stream of WRITEs
/// stands one of plain bytes over TCP. Two such streams to two peers at once show how they share what there is.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of samples of each figure.
    #[arg(long, default_value_t = 20_000, value_parser = number::<u32>(100..))]
    samples: u32,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// Operations in a batch, in memory.
const BATCH: u64 = 32;
/// Bytes of a request, as the papers measure it.
const PAYLOAD: usize = 64;
/// How long processes may take to meet before something is broken.
const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: Token = Token(1);
/// The bytes of a record that is only taken.
const SILENT: u8 = 7;
/// The bytes of a record that is answered.
const ANSWER: u8 = 8;

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let place = Place::new("bench-fabric", &arguments.fabric.plan(None)?, 3)?;
    report.set("fabric", arguments.fabric.kind().to_string());
    let cores = two_cores();
    if let Some((here, _)) = cores {
        sched::pin_current_thread(here).context("cannot bind the measuring thread")?;
    }
    let mut tcp = None;
    if arguments.fabric.kind() == FabricKind::between_ordinary_hosts() {
        let (samples, there) = (u64::from(arguments.samples), cores.map(|(_, there)| there));
        report.add(echo::measure(PAYLOAD, samples, there, interrupt)?);
        report.add(echo::measure_two(PAYLOAD, samples, there, interrupt)?);
        tcp = Some(stream::tcp(there, interrupt)?);
    }
    with_fabric!(arguments.fabric.kind(), F => run_on::<F>(arguments, &place, cores, tcp, report, interrupt))
}

fn run_on<F: Endpoint>(
    arguments: &Arguments,
    place: &Place,
    cores: Option<(u16, u16)>,
    tcp: Option<Figure>,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    let samples = u64::from(arguments.samples);
    let batch = if arguments.fabric.kind().traits().spans_hosts { 1 } else { BATCH };
    report.set("payload_bytes", PAYLOAD);
    let stops = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        // They end with us, however we end.
        let _stops = [Raise(&stops[0]), Raise(&stops[1])];
        for (number, stop) in (1..).zip(&stops) {
            let mut answering = F::start(place, number, regions())?;
            answering.connect(place, 0);
            let alone = &stops[1];
            scope.spawn(move || {
                if let Some((_, there)) = cores {
                    // Without it the figures are worse, and still true.
                    let _ = sched::pin_current_thread(there);
                }
                answer(&mut answering, stop, alone);
            });
        }
        let mut fabric = F::start(place, 0, regions())?;
        fabric.connect(place, 1);
        fabric.connect(place, 2);
        let [first, second] = meet(&mut fabric)?;
        interrupt.check()?;
        let mut ends = [first, second].map(|peer| Ring::to(peer, SILENT));
        report.add(replicated(&mut fabric, &mut ends, samples, interrupt)?);
        if tcp.is_some() {
            let (two, share) = stream::writes_to_two(&mut fabric, [first, second], interrupt)?;
            report.set("share_of_the_slower_of_two_streams", format!("{share:.2}"));
            report.add(two);
        }
        // The other core is now for one program alone.
        stops[1].store(true, Ordering::Relaxed);
        report.add(words(&mut fabric, first, batch, samples, interrupt)?);
        report.add(swaps(&mut fabric, first, batch, samples, interrupt)?);
        report.add(writes(&mut fabric, first, batch, samples, interrupt)?);
        let stream = stream::writes(&mut fabric, first, interrupt)?;
        if let Some(tcp) = tcp {
            report.set("ratio_p50_stream_tcp", format!("{:.2}", stream.percentile(50.0) / tcp.percentile(50.0).max(1.0)));
            report.add(tcp);
        }
        report.add(stream);
        ends[0].ask_for_answers();
        report.add(round_trips(&mut fabric, &mut ends[0], samples, interrupt)?);
        Ok(())
    })
}

/// The usual ones, and a lane that no ring lies in.
fn regions() -> RegionSpec {
    let mut regions = endpoint::regions();
    regions.member_lanes.push((RAW_LANE, RAW_LANE_BYTES));
    regions
}

fn meet<F: Endpoint>(fabric: &mut F) -> Outcome<[PeerId; 2]> {
    let until = Instant::now() + PATIENCE;
    let mut found = [None; 2];
    loop {
        while let Some(event) = fabric.event() {
            if let PeerEvent::Up { peer, identity } = event {
                found[usize::from(identity.node.0) - 1] = Some(peer);
            }
        }
        if let [Some(first), Some(second)] = found {
            return Ok([first, second]);
        }
        if Instant::now() > until {
            return Err(Fail::failed(format_args!("the endpoints did not meet within {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn complete<F: Endpoint>(fabric: &mut F, mut operations: u64) {
    while operations > 0 {
        operations -= u64::from(fabric.poll().is_some());
    }
}

fn words<F: Endpoint>(fabric: &mut F, peer: PeerId, batch: u64, samples: u64, interrupt: &Interrupt) -> Outcome<Figure> {
    let from = Remote { peer, region: Region::Public(SLOT_WORDS), offset: 0 };
    batches("read of a word", batch, samples, interrupt, || {
        fabric.read_word(from, TOKEN);
        complete(fabric, 1);
    })
}

fn swaps<F: Endpoint>(fabric: &mut F, peer: PeerId, batch: u64, samples: u64, interrupt: &Interrupt) -> Outcome<Figure> {
    let at = Remote { peer, region: Region::Public(SLOT_WORDS), offset: 0 };
    let mut value = 0;
    batches("compare-and-swap", batch, samples, interrupt, || {
        fabric.compare_and_swap(at, value, value + 1, TOKEN);
        value += 1;
        complete(fabric, 1);
    })
}

fn writes<F: Endpoint>(fabric: &mut F, peer: PeerId, batch: u64, samples: u64, interrupt: &Interrupt) -> Outcome<Figure> {
    let to = Remote { peer, region: Region::Lane(RAW_LANE), offset: 0 };
    let bytes = [SILENT; PAYLOAD];
    batches(&format!("write of {PAYLOAD} B, completed"), batch, samples, interrupt, || {
        fabric.write(to, &bytes, TOKEN);
        complete(fabric, 1);
    })
}

fn batches(metric: &str, batch: u64, samples: u64, interrupt: &Interrupt, mut operation: impl FnMut()) -> Outcome<Figure> {
    let mut figure = Figure::new("fabric", metric, Unit::Nanoseconds).with("batch", batch);
    for sample in 0..samples + samples / 10 {
        interrupt.check()?;
        let start = clock::now();
        for _ in 0..batch {
            operation();
        }
        let took = clock::now().since(start);
        // The first tenth warms the caches.
        if sample >= samples / 10 {
            figure.record(took / batch);
        }
    }
    Ok(figure)
}

/// Our writing end of a lane at a peer.
struct Ring {
    peer: PeerId,
    writer: Writer,
    record: Record,
}

impl Ring {
    fn to(peer: PeerId, mark: u8) -> Ring {
        let lane = Remote { peer, region: Region::Lane(LOG_LANE), offset: 0 };
        let writer = Writer::new(lane, Sizes::default().log_ring_bytes);
        let mut record = Record::with_capacity(PAYLOAD);
        record.fill(|bytes| bytes.resize(PAYLOAD, mark));
        Ring { peer, writer, record }
    }

    fn ask_for_answers(&mut self) {
        self.record.fill(|bytes| bytes.resize(PAYLOAD, ANSWER));
    }

    /// Posts one record; waits for room if there is none. Returns how many completions come.
    fn push<F: Endpoint>(&mut self, fabric: &mut F) -> u64 {
        loop {
            if let Some(posted) = self.writer.push(fabric, &mut self.record, TOKEN) {
                return u64::from(posted);
            }
            fabric.read_word(self.writer.consumed_word(), TOKEN);
            let found = loop {
                if let Some(completion) = fabric.poll() {
                    break completion.result.unwrap_or(0);
                }
            };
            self.writer.note_consumed(found);
            std::hint::spin_loop();
        }
    }
}

/// A record written to two peers and completed: what a primary does for a request before it may answer.
fn replicated<F: Endpoint>(fabric: &mut F, rings: &mut [Ring; 2], samples: u64, interrupt: &Interrupt) -> Outcome<Figure> {
    let mut figure = Figure::new("fabric", "record written to two peers, completed", Unit::Nanoseconds);
    for sample in 0..samples + samples / 10 {
        if sample % 1024 == 0 {
            interrupt.check()?;
        }
        let start = clock::now();
        let posted = rings.iter_mut().map(|ring| ring.push(fabric)).sum();
        complete(fabric, posted);
        let took = clock::now().since(start);
        if sample >= samples / 10 {
            figure.record(took);
        }
    }
    Ok(figure)
}

/// A record goes to a peer's program and another one comes back.
fn round_trips<F: Endpoint>(fabric: &mut F, ring: &mut Ring, samples: u64, interrupt: &Interrupt) -> Outcome<Figure> {
    let mut figure = Figure::new("fabric", "round trip of records between two programs", Unit::Nanoseconds);
    let lane = LocalRegion::Lane { writer: ring.peer, name: LOG_LANE };
    let mut reader = Reader::new();
    let mut payload = Vec::with_capacity(PAYLOAD);
    // What the peer answered while we wrote without reading.
    let mut due = 0u64;
    let mut received = 0u64;
    let drained = |fabric: &F, reader: &mut Reader, payload: &mut Vec<u8>| {
        let Some(lane) = fabric.memory(lane) else { return 0 };
        let mut taken = 0;
        while reader.next(lane, payload) {
            taken += 1;
        }
        reader.publish(lane);
        taken
    };
    let mut samples_left = samples + samples / 10;
    while samples_left > 0 {
        interrupt.check()?;
        for _ in 0..samples_left.min(1024) {
            let start = clock::now();
            let posted = ring.push(fabric);
            complete(fabric, posted);
            due += 1;
            while received < due {
                serve(fabric);
                received += drained(fabric, &mut reader, &mut payload);
            }
            let took = clock::now().since(start);
            if samples_left <= samples {
                figure.record(took);
            }
            samples_left -= 1;
        }
    }
    Ok(figure)
}

/// Lets the fabric do what others ask of this endpoint, where its own thread has to: a program that is busy with nothing else does so all the time.
fn serve<F: Endpoint>(fabric: &mut F) {
    let completion = fabric.poll();
    martlet_fabric::invariant!(completion.is_none(), "nothing was under way: {completion:?}");
}

/// The other side: takes every record, and answers each when it is asked to. It shares its core until it is `alone`.
fn answer<F: Endpoint>(fabric: &mut F, stop: &AtomicBool, alone: &AtomicBool) {
    let mut asker = None;
    let mut reader = Reader::new();
    let mut payload = Vec::with_capacity(PAYLOAD);
    while !stop.load(Ordering::Relaxed) {
        while let Some(event) = fabric.event() {
            if let PeerEvent::Up { peer, .. } = event {
                asker = Some((peer, Ring::to(peer, SILENT)));
            }
        }
        serve(fabric);
        let Some((peer, ring)) = &mut asker else {
            std::thread::yield_now();
            continue;
        };
        let Some(lane) = fabric.memory(LocalRegion::Lane { writer: *peer, name: LOG_LANE }) else { continue };
        let taken = reader.next(lane, &mut payload);
        if taken {
            reader.publish(lane);
        }
        if taken && payload.first() == Some(&ANSWER) {
            let posted = ring.push(fabric);
            complete(fabric, posted);
        }
        if alone.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        } else {
            // Where a fabric's own threads serve, who spins on their core keeps them from it.
            std::thread::yield_now();
        }
    }
}
