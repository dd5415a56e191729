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

/// Bytes that a peer's memory has taken, a second.
pub fn writes<F: Endpoint>(fabric: &mut F, peer: PeerId, interrupt: &Interrupt) -> Outcome<Figure> {
    let (bytes, token) = (vec![7; PIECE], Token(1));
    let (mut posted, mut under_way) = (0, 0);
    let mut figure = Figure::new("fabric", format!("bytes a second, WRITEs of {PIECE} B"), Unit::PerSecond);
    samples(&mut figure, interrupt, || {
        while under_way < UNDER_WAY {
            let at = Remote { peer, region: Region::Lane(RAW_LANE), offset: posted % UNDER_WAY * PIECE };
            fabric.write(at, &bytes, token);
            (posted, under_way) = (posted + 1, under_way + 1);
        }
        let Some(completion) = fabric.poll() else { return Ok(0) };
        martlet_fabric::invariant!(completion.result.is_ok(), "a WRITE to a peer that lives: {completion:?}");
        under_way -= 1;
        Ok(PIECE)
    })?;
    while under_way > 0 {
        interrupt.check()?;
        under_way -= usize::from(fabric.poll().is_some());
    }
    Ok(figure)
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
