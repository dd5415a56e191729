//! A bare echo over UDP: what the network and the system take by themselves of a request that travels between hosts and is answered.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_node::{clock, sched};

use super::{Figure, Unit};
use crate::commands::raise::Raise;

/// What has not been answered after so long is lost.
const PATIENCE: Duration = Duration::from_millis(20);
/// So many samples may be lost one after another.
const LOST_IN_A_ROW: u32 = 200;

/// A datagram of `payload` bytes, at least eight, goes to a thread on the core `there` and comes back, over the loopback device. Both ends look for it without a pause, as nodes do; nothing
/// is sealed, kept or counted. What is lost on the way is asked anew, and is not a sample.
pub fn measure(payload: usize, samples: u64, there: Option<u16>, interrupt: &Interrupt) -> Outcome<Figure> {
    among(1, payload, samples, there, interrupt)
}

/// The same with two threads there, of which the first to answer counts. They share a core, and let each other run.
pub fn measure_two(payload: usize, samples: u64, there: Option<u16>, interrupt: &Interrupt) -> Outcome<Figure> {
    among(2, payload, samples, there, interrupt)
}

fn among(answering: usize, payload: usize, samples: u64, there: Option<u16>, interrupt: &Interrupt) -> Outcome<Figure> {
    let ends = (0..answering).map(|_| pair()).collect::<std::io::Result<Vec<_>>>().context("no sockets for a bare echo")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Raise(&stop);
        for (_, theirs) in &ends {
            let stop = &stop;
            scope.spawn(move || answer(theirs, answering > 1, there, stop));
        }
        let metric = match answering {
            1 => format!("bare UDP echo of {payload} B"),
            _ => format!("bare UDP echo of {payload} B by {answering}, first answer"),
        };
        let mut figure = Figure::new("reference", metric, Unit::Nanoseconds);
        let (mut request, mut came) = (vec![9u8; payload], vec![false; answering]);
        let (mut sample, mut lost) = (0, 0);
        for number in 0_u64.. {
            interrupt.check()?;
            request[..8].copy_from_slice(&number.to_le_bytes());
            came.fill(false);
            let start = clock::now();
            let until = Instant::now() + PATIENCE;
            for (ours, _) in &ends {
                ours.send(&request).context("cannot send a datagram")?;
            }
            if !await_one(&ends, number, &mut came, until, interrupt)? {
                lost += 1;
                if lost > LOST_IN_A_ROW {
                    return Err(Fail::failed(format!("{lost} bare echoes in a row were not answered within {PATIENCE:?}")));
                }
                continue;
            }
            let took = clock::now().since(start);
            lost = 0;
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                figure.record(took);
            }
            sample += 1;
            if sample == samples + samples / 10 {
                break;
            }
            // The next request finds the others with nothing to do.
            while came.contains(&false) && await_one(&ends, number, &mut came, until, interrupt)? {}
        }
        Ok(figure)
    })
}

/// Two sockets that reach each other and no other.
fn pair() -> std::io::Result<(UdpSocket, UdpSocket)> {
    let open = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (ours, theirs) = (open()?, open()?);
    ours.connect(theirs.local_addr()?)?;
    theirs.connect(ours.local_addr()?)?;
    Ok((ours, theirs))
}

fn answer(socket: &UdpSocket, shares_core: bool, there: Option<u16>, stop: &AtomicBool) {
    if let Some(there) = there {
        // Without it the figures are worse, and still true.
        let _ = sched::pin_current_thread(there);
    }
    let mut buffer = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if let Ok(len) = socket.recv(&mut buffer) {
            let _ = socket.send(&buffer[..len]);
        } else if shares_core {
            std::thread::yield_now();
        }
    }
}

/// Waits until the answer to this request has come from one of which none had come; `false`: it has not come by then.
fn await_one(ends: &[(UdpSocket, UdpSocket)], number: u64, came: &mut [bool], until: Instant, interrupt: &Interrupt) -> Outcome<bool> {
    let mut buffer = [0; 2048];
    loop {
        for ((ours, _), came) in ends.iter().zip(&mut *came).filter(|(_, came)| !**came) {
            match ours.recv(&mut buffer) {
                Ok(8..) if buffer[..8] == number.to_le_bytes() => {
                    *came = true;
                    return Ok(true);
                }
                // Of one that was given up.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                failed => drop(failed.context("cannot receive a datagram")?),
            }
        }
        interrupt.check()?;
        if Instant::now() >= until {
            return Ok(false);
        }
    }
}
