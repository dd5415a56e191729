//! How much gets through when one end sends as fast as it can: WRITEs to a peer's memory, and beside them plain bytes over TCP.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_fabric::{PeerId, Region, Remote, Token};
use martlet_node::sched;

use super::endpoint::Endpoint;
use super::lane_reader::{RAW_LANE, RAW_LANE_BYTES};
use crate::report::{Figure, Unit};

/// Samples of each figure, and how long one takes. As many before them warm up.
const SAMPLES: u32 = 10;
const SAMPLE: Duration = Duration::from_millis(100);
/// Bytes of one WRITE, and of one piece that is given to TCP.
const PIECE: usize = 16 << 10;
/// WRITEs on their way: all places of the lane.
const UNDER_WAY: usize = RAW_LANE_BYTES / PIECE;

/// WRITEs to one peer's memory, one after another.
struct Stream {
    peer: PeerId,
    token: Token,
    posted: usize,
    under_way: usize,
    /// How many have ended.
    ended: usize,
}

impl Stream {
    fn to(peer: PeerId) -> Stream {
        Stream { peer, token: Token(u64::from(peer.0)), posted: 0, under_way: 0, ended: 0 }
    }
}

/// Lets as many of each stream be on their way as its lane has places. Returns how many bytes have been taken.
fn go_on<F: Endpoint>(fabric: &mut F, streams: &mut [Stream], bytes: &[u8]) -> usize {
    for stream in &mut *streams {
        while stream.under_way < UNDER_WAY {
            let at = Remote { peer: stream.peer, region: Region::Lane(RAW_LANE), offset: stream.posted % UNDER_WAY * PIECE };
            fabric.write(at, bytes, stream.token);
            (stream.posted, stream.under_way) = (stream.posted + 1, stream.under_way + 1);
        }
    }
    take(fabric, streams)
}

fn take<F: Endpoint>(fabric: &mut F, streams: &mut [Stream]) -> usize {
    let Some(completion) = fabric.poll() else { return 0 };
    martlet_fabric::invariant!(completion.result.is_ok(), "a WRITE to a peer that lives: {completion:?}");
    let stream = streams.iter_mut().find(|stream| stream.token == completion.token).expect("nothing else is posted");
    (stream.under_way, stream.ended) = (stream.under_way - 1, stream.ended + 1);
    PIECE
}

fn measure<F: Endpoint>(name: String, fabric: &mut F, streams: &mut [Stream], interrupt: &Interrupt) -> Outcome<Figure> {
    let bytes = vec![7; PIECE];
    let mut figure = Figure::new("fabric", name, Unit::PerSecond);
    samples(&mut figure, interrupt, || Ok(go_on(fabric, streams, &bytes)))?;
    while streams.iter().any(|stream| stream.under_way > 0) {
        interrupt.check()?;
        take(fabric, streams);
    }
    Ok(figure)
}

/// Bytes that a peer's memory has taken, a second.
pub fn writes<F: Endpoint>(fabric: &mut F, peer: PeerId, interrupt: &Interrupt) -> Outcome<Figure> {
    measure(format!("bytes a second, WRITEs of {PIECE} B"), fabric, &mut [Stream::to(peer)], interrupt)
}

/// Bytes that the memories of two peers have taken together, a second; and the part of them that went to the one that got less, at best a half.
pub fn writes_to_two<F: Endpoint>(fabric: &mut F, peers: [PeerId; 2], interrupt: &Interrupt) -> Outcome<(Figure, f64)> {
    let mut streams = peers.map(Stream::to);
    let figure = measure(format!("bytes a second, WRITEs of {PIECE} B to two at once"), fabric, &mut streams, interrupt)?;
    let [one, other] = streams.map(|stream| stream.ended as f64);
    Ok((figure, one.min(other) / (one + other)))
}

/// Bytes that a TCP connection has taken, a second, over the loopback device, with its other end on the core `there`: neither sealed nor put anywhere.
pub fn tcp(there: Option<u16>, interrupt: &Interrupt) -> Outcome<Figure> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no socket")?;
    let mut ours = TcpStream::connect(listener.local_addr().context("no address")?).context("no connection")?;
    let (mut theirs, _) = listener.accept().context("no connection")?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(there) = there {
                // Without it the figures are worse, and still true.
                let _ = sched::pin_current_thread(there);
            }
            let mut buffer = vec![0; 4 * PIECE];
            while matches!(theirs.read(&mut buffer), Ok(1..)) {}
        });
        let bytes = vec![7; PIECE];
        let mut figure = Figure::new("reference", "bytes a second over plain TCP", Unit::PerSecond);
        // Whatever comes of it, the other end is to be told that it is over.
        let outcome = samples(&mut figure, interrupt, || ours.write(&bytes).context("cannot write"));
        drop(ours);
        outcome.map(|()| figure)
    })
}

/// `step` sends, and says how many bytes have been taken.
fn samples(figure: &mut Figure, interrupt: &Interrupt, mut step: impl FnMut() -> Outcome<usize>) -> Outcome {
    for sample in 0..2 * SAMPLES {
        let (began, mut taken) = (Instant::now(), 0);
        while began.elapsed() < SAMPLE {
            interrupt.check()?;
            taken += step()?;
        }
        if sample >= SAMPLES {
            figure.record((taken as f64 / began.elapsed().as_secs_f64()) as u64);
        }
    }
    Ok(())
}
