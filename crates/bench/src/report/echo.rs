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
    let open = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (ours, theirs) = (open().context("no socket")?, open().context("no socket")?);
    ours.connect(theirs.local_addr().context("no address")?).context("cannot connect a socket")?;
    theirs.connect(ours.local_addr().context("no address")?).context("cannot connect a socket")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Raise(&stop);
        scope.spawn(|| {
            if let Some(there) = there {
                // Without it the figures are worse, and still true.
                let _ = sched::pin_current_thread(there);
            }
            let mut buffer = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if let Ok(len) = theirs.recv(&mut buffer) {
                    let _ = theirs.send(&buffer[..len]);
                }
            }
        });
        let mut figure = Figure::new("reference", format!("bare UDP echo of {payload} B"), Unit::Nanoseconds);
        let (request, mut buffer) = (vec![9u8; payload], [0; 2048]);
        for sample in 0..samples + samples / 10 {
            if sample % 1024 == 0 {
                interrupt.check()?;
            }
            let start = clock::now();
            ours.send(&request).context("cannot send a datagram")?;
            loop {
                match ours.recv(&mut buffer) {
                    Ok(_) => break,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    failed => drop(failed.context("cannot receive a datagram")?),
                }
            }
            // The first tenth warms the caches.
            if sample >= samples / 10 {
                figure.record(clock::now().since(start));
            }
        }
        Ok(figure)
    })
}
