//! The switch between virtual machines: each frame that one sends goes to the machine that it is for, or to all others.
//!
//! Frames wait for a machine that is slow or paused, as in the queue of a switch. When too many wait, further ones are lost.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The beginning of the address of a machine's device; the machine's number, counted from 1, follows.
const VENDOR: [u8; 5] = [0x52, 0x54, 0, 0x77, 0];
/// The longest frame.
const FRAME: usize = 2048;
/// The most frames that wait for a machine.
const WAITING: usize = 256;
/// How often to check whether the switch is to end.
const LOOK: Duration = Duration::from_millis(100);
/// How often to check whether a machine is still paused.
const STILL: Duration = Duration::from_millis(1);

/// The switch, which ends when this is dropped.
pub struct Wire {
    directory: PathBuf,
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    ports: Vec<Port>,
    /// A machine, and how many of the first machines it is separated from.
    parted: Mutex<Option<(usize, usize)>>,
    over: AtomicBool,
}

/// A machine's connection to the switch.
struct Port {
    /// Our socket.
    socket: UnixDatagram,
    /// The path of QEMU's socket.
    machine: PathBuf,
    /// Frames for it. A slow machine delays no other.
    frames: SyncSender<Vec<u8>>,
    stands_still: AtomicBool,
}

impl Wire {
    /// A switch for this many machines, with its sockets in that directory.
    ///
    /// # Errors
    /// When the sockets cannot be made.
    pub fn make(directory: &Path, machines: usize) -> Result<Wire, String> {
        let trouble = |e: io::Error| format!("there is no wire between machines: {e}");
        let port = |machine: usize| -> io::Result<(Port, Receiver<Vec<u8>>)> {
            let socket = UnixDatagram::bind(path(directory, "switch", machine))?;
            socket.set_read_timeout(Some(LOOK))?;
            socket.set_write_timeout(Some(LOOK))?;
            let (frames, waiting) = sync_channel(WAITING);
            Ok((Port { socket, machine: path(directory, "machine", machine), frames, stands_still: AtomicBool::new(false) }, waiting))
        };
        let (ports, waiting): (Vec<_>, Vec<_>) =
            (0..machines).map(port).collect::<io::Result<Vec<_>>>().map_err(trouble)?.into_iter().unzip();
        let shared = Arc::new(Shared { ports, parted: Mutex::new(None), over: AtomicBool::new(false) });
        let mut threads = Vec::new();
        for (machine, waiting) in waiting.into_iter().enumerate() {
            let (sends, takes) = (Arc::clone(&shared), Arc::clone(&shared));
            threads.push(std::thread::spawn(move || sends.carry(machine)));
            threads.push(std::thread::spawn(move || takes.deliver(machine, &waiting)));
        }
        Ok(Wire { directory: directory.to_path_buf(), shared, threads })
    }

    /// QEMU's arguments for a machine's end.
    pub fn arguments(&self, machine: usize) -> [String; 4] {
        let [local, remote] = ["machine", "switch"].map(|end| path(&self.directory, end, machine).display().to_string());
        let mac = address(machine).map(|byte| format!("{byte:02x}")).join(":");
        [
            "-netdev".into(),
            format!("dgram,id=wire,local.type=unix,local.path={local},remote.type=unix,remote.path={remote}"),
            "-device".into(),
            format!("virtio-net-pci,netdev=wire,mac={mac}"),
        ]
    }

    /// Separates a machine from the first `others` machines, or connects all again.
    pub fn part(&self, machine: Option<usize>, others: usize) {
        *self.shared.parted.lock().unwrap_or_else(PoisonError::into_inner) = machine.map(|machine| (machine, others));
    }

    /// Says whether a machine is paused from now on: then what is sent to it waits.
    pub fn hold_for(&self, machine: usize, stands_still: bool) {
        self.shared.ports[machine].stands_still.store(stands_still, Ordering::Relaxed);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Carries what a machine sends to the queues of others.
    fn carry(&self, from: usize) {
        let mut frame = [0; FRAME];
        while !self.is_over() {
            let Ok(len) = self.ports[from].socket.recv(&mut frame) else { continue };
            let frame = &frame[..len];
            let parted = *self.parted.lock().unwrap_or_else(PoisonError::into_inner);
            for to in receivers(frame, from, self.ports.len()).filter(|to| !is_parted(parted, from, *to)) {
                // If too many wait already, it is lost, as at any switch.
                let _ = self.ports[to].frames.try_send(frame.to_vec());
            }
        }
    }

    /// Gives a machine the frames that wait for it.
    fn deliver(&self, machine: usize, waiting: &Receiver<Vec<u8>>) {
        let port = &self.ports[machine];
        while !self.is_over() {
            let frame = match waiting.recv_timeout(LOOK) {
                Ok(frame) => frame,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            while port.stands_still.load(Ordering::Relaxed) && !self.is_over() {
                std::thread::sleep(STILL);
            }
            // For a slow machine, more and more frames wait. If the machine is not there yet, or no longer, the frame is lost.
            while port.socket.send_to(&frame, &port.machine).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
                && !self.is_over()
            {}
        }
    }
}

fn path(directory: &Path, end: &str, machine: usize) -> PathBuf {
    directory.join(format!("{end}-{machine}"))
}

fn address(machine: usize) -> [u8; 6] {
    let mut address = [0; 6];
    address[..5].copy_from_slice(&VENDOR);
    address[5] = u8::try_from(machine + 1).expect("few machines");
    address
}

/// The machines that a frame is for.
fn receivers(frame: &[u8], from: usize, machines: usize) -> impl Iterator<Item = usize> {
    let only = frame.get(..6).and_then(|to| (0..machines).find(|machine| address(*machine) == *to));
    (0..machines).filter(move |machine| *machine != from && only.is_none_or(|only| only == *machine))
}

fn is_parted(parted: Option<(usize, usize)>, from: usize, to: usize) -> bool {
    let between = |one: usize, other: usize| parted.is_some_and(|(machine, others)| one == machine && other < others);
    between(from, to) || between(to, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_to_the_machine_that_it_is_for_or_to_all_others() {
        let to = |frame: &[u8], from| receivers(frame, from, 4).collect::<Vec<_>>();
        assert_eq!(to(&[&address(2)[..], b"rest"].concat(), 0), [2]);
        assert_eq!(to(&[0xff; 60], 1), [0, 2, 3]);
        assert_eq!(to(&[&address(1)[..], b"rest"].concat(), 1), [0; 0], "it has sent it to itself");
        assert_eq!(to(b"short", 0), [1, 2, 3]);
    }

    #[test]
    fn a_machine_is_parted_from_the_first_ones_both_ways_and_from_no_others() {
        let parted = Some((1, 3));
        assert!(is_parted(parted, 1, 0) && is_parted(parted, 2, 1));
        assert!(!is_parted(parted, 0, 2) && !is_parted(parted, 1, 3) && !is_parted(parted, 3, 1));
        assert!(!is_parted(None, 1, 0));
    }

    #[test]
    fn what_is_sent_to_a_machine_that_stands_still_comes_when_it_goes_on() {
        let directory = std::env::temp_dir().join(format!("martlet-wire-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("made");
        let wire = Wire::make(&directory, 3).expect("sockets");
        let machine = |n| {
            let socket = UnixDatagram::bind(path(&directory, "machine", n)).expect("bound");
            socket.connect(path(&directory, "switch", n)).expect("connected");
            socket
        };
        let (one, other, third) = (machine(0), machine(1), machine(2));
        wire.hold_for(1, true);
        let frame = |n: u16| [&address(1)[..], &address(0), &n.to_be_bytes()].concat();
        // More than QEMU, or the system on its behalf, takes at once, and as many as may wait.
        let count = WAITING as u16;
        (0..count).for_each(|n| one.send(&frame(n)).map(|_| ()).expect("sent"));
        let mut buffer = [0; FRAME];
        // A frame that is sent last reaches a running machine while all others wait.
        one.send(&[&address(2)[..], b"last"].concat()).expect("sent");
        third.recv(&mut buffer).expect("it comes");
        other.set_nonblocking(true).expect("set");
        assert!(other.recv(&mut buffer).is_err(), "it stands still");
        other.set_nonblocking(false).expect("set");
        wire.hold_for(1, false);
        for n in 0..count {
            assert_eq!(other.recv(&mut buffer).map(|len| buffer[..len].to_vec()).expect("it waits"), frame(n));
        }
        drop(wire);
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
