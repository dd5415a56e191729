//! The bare death probe: two processes, one robust futex word, nothing else. It measures how long the machine itself takes to report a death.
//! Detection and failover times of the same run are quoted against it, since it drifts between 5 and 35 microseconds on one machine.
//!
//! The prober starts its own executable again as the victim, with hidden arguments that the caller's command line understands. The number of the
//! inherited descriptor ([`DeathProbe::fd_number`]) has to be among them.
//!
//! If the process that takes over shares the victim's processor and sleeps there, it cannot answer a death before it can say that the death has woken
//! it. That time is the bare succession ([`Victim::kill_before_heir`]).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::futex;
use super::memory::{self, Access, Area, Map, page};
use super::process;
use super::robust::{DeathWords, OWNER_DIED};
use crate::primitive::{AtomicU64, Ordering};

/// The victim's death word. On a cache line of its own.
const DEATH: usize = 0;
/// 1 once the victim is ready to be killed. On a cache line of its own.
const READY: usize = 8;
/// What the heir is about to do, or has done: see [`heir`]. On a cache line of its own.
const HEIR: usize = 16;
/// Bytes that a processor fetches at a time.
const CACHE_LINE: usize = 64;
/// How long a death may take to be seen before the probe is given up: only a broken kernel needs that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a victim passes the time until it is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pastime {
    /// It sleeps in the kernel.
    #[default]
    Sleep,
    /// It spins in user mode, and does nothing else.
    Spin,
    /// It walks through its resident memory over and over, as a process that works would: the processor's caches then hold none of the kernel's code
    /// for ending a process.
    Walk,
}

impl Pastime {
    /// Passes the time, for ever.
    pub fn pass(self, resident: &[u8]) -> ! {
        loop {
            match self {
                Pastime::Sleep => std::thread::sleep(Duration::from_secs(3600)),
                Pastime::Spin => std::hint::spin_loop(),
                Pastime::Walk => {
                    std::hint::black_box(resident.iter().step_by(CACHE_LINE).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
                }
            }
            std::hint::black_box(resident);
        }
    }
}

/// What a victim does until it is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VictimPlan {
    /// How it passes the time.
    pub pastime: Pastime,
    /// The processor to run on; any, if `None`.
    pub cpu: Option<usize>,
    /// Bytes of memory to keep resident; the kernel tears them down when the victim ends.
    pub resident_bytes: usize,
}

/// Acts as the victim: registers the word in the inherited memory `fd`, reports that it is ready, and waits to be killed. It also ends with the
/// thread that started it, so that no victim is left over. Returns only an error.
pub fn victim(fd: RawFd, plan: VictimPlan) -> io::Result<std::convert::Infallible> {
    process::end_with_parent()?;
    process::disable_core_dumps()?;
    if fd <= 2 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {fd}; allowed is an inherited one above 2")));
    }
    // SAFETY: the caller says that the prober has left this descriptor to us. A number that is no descriptor, or that names something else, fails the
    // check below; at worst we close a descriptor of this short-lived process.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    memory::check(&fd, "probe", page()).map_err(io::Error::other)?;
    let area = Area::new(&Map::new(&fd, 0, page(), Access::ReadWrite, true)?, 0, page());
    if let Some(cpu) = plan.cpu {
        process::pin_to_cpu(cpu)?;
    }
    let mut resident = vec![0u8; plan.resident_bytes];
    for at in (0..resident.len()).step_by(page()) {
        resident[at] = 1;
    }
    let words = DeathWords::register_in(area.clone(), &[DEATH]).map_err(io::Error::other)?;
    area.memory()[READY].store(1, Ordering::Release);
    std::hint::black_box(&words);
    plan.pastime.pass(&resident)
}

/// How long a death took to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeathTiming {
    /// From before kill() to its return, in nanoseconds.
    pub kill_ns: u64,
    /// From before kill() to the word's change, seen by polling it, in nanoseconds.
    pub seen_ns: u64,
}

/// The states of the heir, in ascending order.
mod heir {
    /// There is none yet.
    pub const ABSENT: u64 = 0;
    /// It goes to sleep at once.
    pub const WAITS: u64 = 1;
    /// It has seen the death.
    pub const SUCCEEDS: u64 = 2;
    /// It could not wait.
    pub const FAILED: u64 = 3;
}

/// How long a sleeping heir is given to fall asleep. It cannot be seen from outside when it has, and an heir that is caught awake is only faster.
const FALL_ASLEEP: Duration = Duration::from_millis(1);

/// The prober's side. One probe serves many victims, one after another.
#[derive(Debug)]
pub struct DeathProbe {
    fd: OwnedFd,
    area: Area,
}

impl DeathProbe {
    /// Makes the word.
    pub fn new() -> io::Result<DeathProbe> {
        let fd = memory::create("martlet-probe", page())?;
        let area = Area::new(&Map::new(&fd, 0, page(), Access::ReadWrite, true)?, 0, page());
        Ok(DeathProbe { fd, area })
    }

    /// The number under which a victim started by [`DeathProbe::spawn`] finds the memory, and which it passes to [`victim`].
    pub fn fd_number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Starts a victim, which has to call [`victim`], and waits until it is ready.
    pub fn spawn(&mut self, command: &mut Command) -> io::Result<Victim<'_>> {
        self.area.memory()[DEATH].store(0, Ordering::Relaxed);
        self.area.memory()[READY].store(0, Ordering::Release);
        let fd = self.fd.as_raw_fd();
        // SAFETY: between fork and exec the closure makes one system call, which is async-signal-safe, and allocates nothing. The
        // descriptor is open in the child, which is a copy of this process, and `self` outlives the call to `spawn`.
        let command = unsafe {
            command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        };
        let mut victim = Victim { child: command.spawn()?, area: &self.area };
        while self.area.memory()[READY].load(Ordering::Acquire) == 0 {
            if let Some(status) = victim.child.try_wait()? {
                return Err(io::Error::other(format!("the victim ended before it was ready: {status}")));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(victim)
    }
}

/// A victim that is ready. Dropping it kills it.
#[derive(Debug)]
pub struct Victim<'a> {
    child: Child,
    area: &'a Area,
}

impl Victim<'_> {
    /// The victim's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process to kill.
    fn target(&self) -> io::Result<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).ok_or(io::Error::other("a pid that is none"))
    }

    /// Kills the victim and polls the word continuously until the kernel has marked it. Then waits until the process is gone.
    pub fn kill(mut self) -> io::Result<DeathTiming> {
        let pid = self.target()?;
        let word = &self.area.memory()[DEATH];
        let start = Instant::now();
        rustix::process::kill_process(pid, Signal::KILL)?;
        let killed = start.elapsed();
        let mut turns = 0u32;
        while word.load(Ordering::Acquire) & OWNER_DIED == 0 {
            std::hint::spin_loop();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1 << 20) && start.elapsed() > PATIENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not mark the victim's word"));
            }
        }
        let seen = start.elapsed();
        self.child.wait()?;
        Ok(DeathTiming { kill_ns: killed.as_nanos() as u64, seen_ns: seen.as_nanos() as u64 })
    }

    /// Kills the victim while a thread of this process, which has first called `prepare`, sleeps on its death word. Returns how long it took, in
    /// nanoseconds, from before kill() until this thread, polling, saw that the sleeper had been woken and had said so. `prepare` places the sleeper:
    /// on the victim's processor, to measure nodes that share a processor.
    pub fn kill_before_heir(mut self, prepare: impl FnOnce() -> io::Result<()> + Send) -> io::Result<u64> {
        let pid = self.target()?;
        let memory = self.area.memory();
        memory[HEIR].store(heir::ABSENT, Ordering::Release);
        let succeeded = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let waited = prepare().and_then(|()| {
                    memory[HEIR].store(heir::WAITS, Ordering::Release);
                    await_death(&memory[DEATH])
                });
                memory[HEIR].store(if waited.is_ok() { heir::SUCCEEDS } else { heir::FAILED }, Ordering::Release);
                waited
            });
            while memory[HEIR].load(Ordering::Acquire) == heir::ABSENT {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(FALL_ASLEEP);
            let start = Instant::now();
            let killed = rustix::process::kill_process(pid, Signal::KILL);
            while killed.is_ok() && memory[HEIR].load(Ordering::Acquire) < heir::SUCCEEDS {
                std::hint::spin_loop();
            }
            let seen = start.elapsed();
            if killed.is_err() {
                // The victim lives, but the sleeper has to end all the same.
                let _ = self.child.kill();
            }
            sleeper.join().map_err(|_| io::Error::other("the sleeper panicked"))??;
            killed.map(|()| seen).map_err(io::Error::from)
        })?;
        self.child.wait()?;
        Ok(succeeded.as_nanos() as u64)
    }
}

/// Sleeps until the kernel has marked the word.
fn await_death(word: &AtomicU64) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let now = word.load(Ordering::Acquire);
        if now & OWNER_DIED != 0 {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not mark the victim's word"));
        }
        futex::wait_on_word(word, now as u32, Some(PATIENCE));
    }
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        // It may already have been killed and waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
