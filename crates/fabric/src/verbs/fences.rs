//! A self-test of revocation: after which calls has a device stopped storing what a writer sends?
//!
//! No specification says that a call that takes a permission away is a fence for requests that the device has already taken in, and some calls are
//! not (TRAPS 16 and 34). This backend destroys a lane's queue pair. This module tests whether that, and what else, is a fence on the devices of a
//! host.
//!
//! RESET is left out: on Linux 6.1, software RDMA follows a null pointer when a queue pair is reset under a running writer, which crashes the kernel.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::config::StartError;
use super::device::{Device, DeviceChoice};
use super::ffi::{self, ACCESS_LOCAL_WRITE, SEND_SIGNALED, SendWr, Sge, Wc};
use super::memory::{Block, Plane, Registered};
use super::peer::LANE_RIGHTS;
use super::queue::{Address, CompletionQueue, Patience, QueuePair, Shape, Transport};
use crate::host::memory::Area;
use crate::primitive::Ordering;

/// A way to take a writer's permission away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Destroying the queue pair on which the writer's requests come in: what this backend does.
    Destroy,
    /// Moving it into the error state.
    Error,
    /// Dropping its access flags.
    Flags,
    /// Deregistering the memory.
    Deregister,
}

impl Fence {
    /// All of them.
    pub const ALL: [Fence; 4] = [Fence::Destroy, Fence::Error, Fence::Flags, Fence::Deregister];
    /// How this backend revokes. Destroying the queue pair is the only way that has to be a fence on any device, since the memory behind the queue
    /// pair goes back to the system with it. The other ways are for comparison: a trial can prove that a way is no fence, never that it is one.
    pub const CHOSEN: Fence = Fence::Destroy;
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fence::Destroy => "destroying the queue pair",
            Fence::Error => "moving the queue pair into the error state",
            Fence::Flags => "dropping the queue pair's access flags",
            Fence::Deregister => "deregistering the memory",
        })
    }
}

/// What was found about one way of revoking.
#[derive(Debug)]
pub struct FenceTrial {
    /// Which way.
    pub fence: Fence,
    /// Revocations under a running writer.
    pub rounds: u32,
    /// How many of them were followed by a store. More than 0 proves that this is no fence. 0 suggests that it is one, the more so the more rounds
    /// there were.
    pub late: u32,
    /// Why the device refuses it, if it does.
    pub refused: Option<io::Error>,
}

impl FenceTrial {
    /// Whether it was tried, and nothing was stored after it.
    pub fn held(&self) -> bool {
        self.refused.is_none() && self.rounds > 0 && self.late == 0
    }
}

impl fmt::Display for FenceTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refused {
            Some(why) => write!(f, "{}: refused by the device ({why})", self.fence),
            None if self.late > 0 => write!(f, "{}: NOT a fence, stored later in {} of {} rounds", self.fence, self.late, self.rounds),
            None => write!(f, "{}: nothing stored later in {} rounds", self.fence, self.rounds),
        }
    }
}

/// Length of the memory that is written, in bytes: several packets.
const BYTES: usize = 16 * 1024;
/// Writes under way at once.
const WRITES: u64 = 4;
/// How long the writer's requests wait for an answer that will not come: some 30 ms in all, or the shortest time that the device supports.
const PATIENCE: Patience = Patience { timeout: 12, retries: 1 };

/// Tries the ways of taking a permission away, `rounds` times each, with a writer on `writer` that never stops and memory behind `owner`; both may be
/// the same device. Blocks for some 50 ms per round, and needs a second thread.
///
/// # Errors
/// When there is no such device, or it cannot create what is needed.
pub fn try_fences(owner: &DeviceChoice, writer: &DeviceChoice, rounds: u32) -> Result<Vec<FenceTrial>, StartError> {
    let (owner, writer) = (Device::open(owner)?, Device::open(writer)?);
    let system = |source| StartError::System { what: "cannot try what revokes", source };
    Fence::ALL.into_iter().map(|fence| attempt(&owner, &writer, fence, rounds).map_err(system)).collect()
}

fn attempt(owner: &Arc<Device>, writer: &Arc<Device>, fence: Fence, rounds: u32) -> io::Result<FenceTrial> {
    let mut trial = FenceTrial { fence, rounds: 0, late: 0, refused: None };
    let mut in_vain = 0;
    while trial.rounds < rounds {
        let round = trial.rounds + in_vain;
        match Bout::new(owner, writer, round)?.fight(fence, round) {
            Ok(Some(late)) => {
                trial.rounds += 1;
                trial.late += u32::from(late);
            }
            // A busy host can be without its core for longer than the writer's patience, and a link can lose much.
            Ok(None) if in_vain < 20 * rounds => in_vain += 1,
            Ok(None) => return Err(io::Error::other("the writer's requests fail before anything is revoked")),
            Err(error) => {
                trial.refused = Some(error);
                break;
            }
        }
    }
    Ok(trial)
}

/// A writer and what it writes to, for one revocation. Queue pairs come first, so that they are dropped before the memory that they work on.
struct Bout {
    owner: QueuePair,
    writer: Writer,
    target: Registered,
    memory: Area,
}

struct Writer {
    queue_pair: QueuePair,
    completions: Arc<CompletionQueue>,
    remote: (u64, u32),
    source: Registered,
    memory: Area,
}

impl Bout {
    fn new(owner: &Arc<Device>, writer: &Arc<Device>, round: u32) -> io::Result<Bout> {
        let shape = Shape { sends: 2 * WRITES as u32, receives: 1, inline: 0 };
        let connected = |device: &Arc<Device>| -> io::Result<(Arc<CompletionQueue>, QueuePair)> {
            let completions = CompletionQueue::new(device, 64)?;
            let queue_pair = QueuePair::new(device, Plane::Replication, &completions, Transport::Connected, shape)?;
            Ok((completions, queue_pair))
        };
        let ((_, answers), (completions, writes)) = (connected(owner)?, connected(writer)?);
        let (target, source) = (Block::new(BYTES)?, Block::new(BYTES * WRITES as usize)?);
        let registered = Registered::new(owner, Plane::Replication, &target, LANE_RIGHTS | ACCESS_LOCAL_WRITE)?;
        let remote = (registered.address, registered.rkey);
        let (at_owner, at_writer) = (Address::of(&owner.port), Address::of(&writer.port));
        let psn = round << 8 & 0xff_ffff;
        answers.answer(at_writer, writes.number, psn, LANE_RIGHTS)?;
        // It never sends; but access flags can only be changed in this state.
        answers.send(psn, 1, PATIENCE)?;
        writes.answer(at_owner, answers.number, psn, 0)?;
        writes.send(psn, 1, PATIENCE)?;
        let memory = source.area(0, BYTES * WRITES as usize);
        let source = Registered::new(writer, Plane::Replication, &source, ACCESS_LOCAL_WRITE)?;
        let writer = Writer { queue_pair: writes, completions, remote, source, memory };
        Ok(Bout { owner: answers, writer, target: registered, memory: target.area(0, BYTES) })
    }

    /// Revokes under the running writer. Returns whether something was stored later, or `None` if the writer failed before.
    fn fight(self, fence: Fence, round: u32) -> io::Result<Option<bool>> {
        let Bout { owner, writer, target, memory } = self;
        let over = &AtomicBool::new(false);
        let snapshot = || -> Vec<u64> { memory.memory().iter().map(|word| word.load(Ordering::Acquire)).collect() };
        std::thread::scope(|scope| {
            let running = scope.spawn(move || {
                let written = writer.write_on(over);
                (writer, written)
            });
            // Several writes have arrived: the writer runs.
            while memory.memory()[0].load(Ordering::Acquire) < 2 * WRITES {
                if running.is_finished() {
                    return Ok(None);
                }
                std::thread::yield_now();
            }
            // So that the revocation hits every stage of a write.
            for _ in 0..round * 37 % 400 {
                std::hint::spin_loop();
            }
            let (mut owner, mut target) = (Some(owner), Some(target));
            let done = match fence {
                Fence::Destroy => {
                    owner = None;
                    Ok(())
                }
                Fence::Deregister => {
                    target = None;
                    Ok(())
                }
                Fence::Error => owner.as_ref().expect("not taken").fail(),
                Fence::Flags => owner.as_ref().expect("not taken").forbid(),
            };
            let at_once = snapshot();
            let mut late = false;
            while !running.is_finished() {
                if !late && snapshot() != at_once {
                    late = true;
                    over.store(true, Ordering::Relaxed);
                }
                if done.is_err() {
                    over.store(true, Ordering::Relaxed);
                }
                std::thread::yield_now();
            }
            late |= snapshot() != at_once;
            let (_writer, written) = running.join().expect("the writer does not panic");
            // Queue pairs are dropped before the memory that they work on.
            drop(owner);
            drop(target);
            done.and(written).map(|()| Some(late))
        })
    }
}

impl Writer {
    /// Writes increasing numbers over the whole memory, several writes at once, until one fails or `over` is set.
    fn write_on(&self, over: &AtomicBool) -> io::Result<()> {
        let (mut posted, mut completed) = (0u64, 0u64);
        let mut wcs = [Wc::EMPTY; 2 * WRITES as usize];
        loop {
            while posted < completed + WRITES && !over.load(Ordering::Relaxed) {
                self.post(posted)?;
                posted += 1;
            }
            if posted == completed {
                return Ok(());
            }
            let count = self.completions.poll(&mut wcs);
            if wcs[..count].iter().any(|wc| wc.status != ffi::WC_SUCCESS) {
                // Access is lost. Whatever is still under way ends with the queue pair.
                return Ok(());
            }
            completed += count as u64;
            if count == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn post(&self, number: u64) -> io::Result<()> {
        let at = (number % WRITES) as usize * BYTES;
        for word in &self.memory.memory()[at / 8..(at + BYTES) / 8] {
            word.store(number + 1, Ordering::Release);
        }
        let mut sge = Sge { addr: self.source.address + at as u64, length: BYTES as u32, lkey: self.source.lkey };
        let mut wr = SendWr {
            wr_id: number,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: ffi::WR_RDMA_WRITE,
            send_flags: SEND_SIGNALED,
            ..SendWr::EMPTY
        };
        wr.rdma(self.remote.0, self.remote.1);
        // SAFETY: a single request, whose buffer stays registered until after the queue pair is gone, since fields are dropped in their order.
        unsafe { self.queue_pair.post(&mut wr) }
    }
}
