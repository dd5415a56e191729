//! A bare echo over UDP: what the network and the system take by themselves of a request that travels between hosts and is answered.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_node::{clock, sched};

use super::{Figure, Unit};
use crate::commands::raise::Raise;

/// A datagram of `payload` bytes goes to a thread on the core `there` and comes back, over the loopback device. Both ends look for it without a pause, as nodes do; nothing
/// is sealed, kept or counted.
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
        let (request, mut came) = (vec![9u8; payload], vec![false; answering]);
        for sample in 0..samples + samples / 10 {
            interrupt.check()?;
            came.fill(false);
            let start = clock::now();
            for (ours, _) in &ends {
                ours.send(&request).context("cannot send a datagram")?;
            }
            await_one(&ends, &mut came, interrupt)?;
            let took = clock::now().since(start);
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                figure.record(took);
            }
            // The others are no answers to the next request.
            while came.contains(&false) {
                await_one(&ends, &mut came, interrupt)?;
            }
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

/// Waits until the answer of one has come of which none had come.
fn await_one(ends: &[(UdpSocket, UdpSocket)], came: &mut [bool], interrupt: &Interrupt) -> Outcome {
    let mut buffer = [0; 2048];
    loop {
        for ((ours, _), came) in ends.iter().zip(&mut *came).filter(|(_, came)| !**came) {
            match ours.recv(&mut buffer) {
                Ok(_) => {
                    *came = true;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                failed => drop(failed.context("cannot receive a datagram")?),
            }
        }
        interrupt.check()?;
    }
}
