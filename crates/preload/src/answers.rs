//! What the system answers to a server, apart from what is in rounds: the number of a child, how a write to a file has ended, how much memory is in use.
//!
//! The leader's server asks the system. The answer is put on the [board](crate::board), where all other replicas find it when they get to the same call: they
//! execute a call only after the leader's server has come back from it. So their servers are told the same, and continue in the same way. A replica whose
//! server makes another call than the leader's has diverged, and ends.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use crate::board::{Heard, MOST_TOLD_BYTES, Told};
use crate::clock::{self, Leap};
use crate::entry::Stamp;
use crate::files;
use crate::replica::{Replica, Role};
use crate::sys::{self, complain, die};

/// A call that the system answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Call {
    Open = 1,
    MakeTemporary,
    Read,
    Write,
    Truncate,
    Sync,
    Status,
    Access,
    ChangeMode,
    Rename,
    Unlink,
    MakeDirectory,
    RemoveDirectory,
    ChangeDirectory,
    Fork,
    Wait,
    Kill,
    Usage,
    Allocator,
    Leap,
    Say,
}

/// The role of the process that asks the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// A leader.
    Leads,
    /// A successor. It executes what a dead leader may have executed, too, so what it asks for may have been done already.
    Succeeds,
}

/// Whether a call does something outside the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does, and doing it twice has the same result as doing it once.
    Repeatable,
    /// It does not, or must not be done twice.
    Once,
}

impl Leap {
    fn told(self) -> Told {
        let bytes = [self.to.monotonic_ns.to_le_bytes(), self.to.wall_ns.to_le_bytes()].concat();
        Told { call: Call::Leap as u8, value: self.reading as i64, bytes, ..Told::default() }
    }

    fn heard(told: &Told) -> Option<Leap> {
        let word = |at: usize| Some(u64::from_le_bytes(told.bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Leap { reading: told.value as u64, to: Stamp { monotonic_ns: word(0)?, wall_ns: word(8)? } })
    }
}

/// The outcome of a system call, as an answer.
pub fn told(result: io::Result<i64>) -> Told {
    match result {
        Ok(value) => Told { value, ..Told::default() },
        Err(error) => Told { value: -1, errno: sys::errno_of(error), ..Told::default() },
    }
}

/// What the server is given of an answer.
pub fn result(told: &Told) -> Result<i64, i32> {
    if told.value < 0 { Err(told.errno) } else { Ok(told.value) }
}

/// Why a replica ends that can no longer hear what the system has told leaders.
const TOO_LATE: &str = "it is too far behind: what the system told the leader is not kept any more";

impl Replica {
    /// The answer to a call of the server's. The leader asks the system; the others are told what it said.
    pub fn decide(&mut self, call: Call, effect: Effect, ask: impl FnOnce(Asks) -> Told) -> Told {
        let succeeds = matches!(self.role, Role::Succeeds(_));
        if let Some(told) = self.answer(call) {
            if succeeds && effect == Effect::Repeatable {
                ask(Asks::Succeeds);
            }
            return told;
        }
        let told = ask(if succeeds { Asks::Succeeds } else { Asks::Leads });
        self.publish(call, told)
    }

    /// The answer that a leader was given to this call; `None`: this replica is to ask, and to [publish](Replica::publish) the answer.
    pub fn answer(&mut self, call: Call) -> Option<Told> {
        if matches!(self.role, Role::Leads(_)) {
            return None;
        }
        let told = self.hear(call);
        if told.is_none() && !matches!(self.role, Role::Succeeds(_)) {
            die(&format!("its server calls the system for something that the leader's did not call for: {call:?}"));
        }
        told
    }

    /// Tells the others this answer to a call.
    pub fn publish(&mut self, call: Call, told: Told) -> Told {
        let told = Told { call: call as u8, ..told };
        self.board.tell(&told);
        self.hears(self.board.told_end());
        told
    }

    /// This replica has heard the words up to there: notes it, and says so on the board.
    fn hears(&mut self, heard: u64) {
        self.heard = heard;
        self.board.hears(self.node, heard);
    }

    fn hear(&mut self, call: Call) -> Option<Told> {
        match self.board.hear(self.heard) {
            Heard::Its(told, next) => {
                if told.call != call as u8 {
                    die(&format!("its server calls the system for {call:?}, where the leader's made call {}", told.call));
                }
                self.hears(next);
                Some(told)
            }
            Heard::Nothing => None,
            Heard::TooLate => die(TOO_LATE),
        }
    }

    /// The leap of time at this reading of the clock; `None`: there is none. A leader [looks](Self::leaps) for itself, and says so; the others do what it did.
    /// A successor looks for itself at readings that no dead leader can have come to.
    pub fn leaps(&mut self, reading: u64, look: impl FnOnce() -> Option<Leap>) -> Option<Leap> {
        let looks = match &self.role {
            Role::Leads(_) => true,
            Role::Succeeds(_) => reading > self.board.readings(),
            Role::Follows | Role::Claims(_) => false,
        };
        if looks {
            self.board.reads_clock(reading);
            let leap = look();
            leap.into_iter().for_each(|leap| drop(self.publish(Call::Leap, leap.told())));
            return leap;
        }
        if !self.board.tells(self.heard, Call::Leap as u8) {
            return None;
        }
        let (told, next) = match self.board.hear(self.heard) {
            Heard::Its(told, next) => (told, next),
            Heard::Nothing => return None,
            Heard::TooLate => die(TOO_LATE),
        };
        let Some(leap) = Leap::heard(&told) else { die("the leader told it that time has leapt, but not to when") };
        if leap.reading < reading {
            die(&format!("its server has not read the clock where the leader's did, at reading {}", leap.reading));
        }
        if leap.reading > reading {
            return None;
        }
        self.hears(next);
        Some(leap)
    }

    /// Discards what dead leaders were told by the request that crashed them: it belongs to no server.
    pub fn forget_answers(&mut self) {
        self.board.untell(self.heard);
        // No leader has come this way.
        self.board.reads_clock(clock::readings());
    }

    /// Checks that all that dead leaders were told has been heard: this is so if this replica's server has gone the same way.
    pub fn check_answers(&mut self) {
        if self.board.told_end() != self.heard {
            complain("the server asked the system for less here than in the leader before this one");
            self.forget_answers();
        }
    }

    /// Opens a file. Returns its descriptor, or an errno.
    pub fn open(&mut self, path: &CStr, flags: i32, mode: u32) -> Result<RawFd, i32> {
        self.open_as(path, flags, mode, false).map(|(fd, _)| fd)
    }

    /// Opens a file, which is read only by [`read_told`](Replica::read_told) if `by_stream`. A small file of that kind is then read by the leader for all
    /// replicas: by the time that the others read it, it may be another file, such as a configuration that the server rewrites. Returns the descriptor, and
    /// whether the leader reads it for all; or an errno.
    pub fn open_as(&mut self, path: &CStr, flags: i32, mode: u32, by_stream: bool) -> Result<(RawFd, bool), i32> {
        let (writes, is_made_up) = (flags & libc::O_ACCMODE != libc::O_RDONLY, files::is_made_up(path));
        let mut opened = None;
        let answer = self.decide(Call::Open, Effect::Repeatable, |asks| {
            let flags = if asks == Asks::Succeeds { flags & !libc::O_EXCL } else { flags };
            match files::open(path, flags | libc::O_CLOEXEC, mode) {
                Ok(fd) => {
                    opened = Some(fd);
                    let (has_places, at) = files::place(fd, flags);
                    let mut bytes = vec![u8::from(has_places)];
                    bytes.extend_from_slice(&at.to_le_bytes());
                    if let Ok(status) = files::status(fd) {
                        bytes.push(u8::from(status.st_size <= MOST_TOLD_BYTES as i64));
                        files::identity(&status).iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
                    }
                    Told { bytes, ..Told::default() }
                }
                Err(error) => told(Err(error)),
            }
        });
        if let Err(errno) = result(&answer) {
            opened.into_iter().for_each(|fd| {
                sys::close(fd);
            });
            return Err(errno);
        }
        let place = || Some((answer.bytes.first()? != &0, u64::from_le_bytes(answer.bytes.get(1..9)?.try_into().ok()?)));
        let Some(place) = place() else { die("the leader told it that a file is open, but not at which position") };
        let is_small = answer.bytes.get(9).is_some_and(|small| *small != 0);
        let is_told = !writes && (is_made_up || by_stream && is_small);
        let fd = match opened {
            Some(fd) => fd,
            // A file that is only read is there for every replica, unless it has gone since.
            None if !writes && !is_told => {
                files::open(path, flags | libc::O_CLOEXEC, mode).or_else(|_| files::placeholder()).map_err(sys::errno_of)?
            }
            None => files::placeholder().map_err(sys::errno_of)?,
        };
        files::forget(fd);
        if is_told {
            files::keep_told(fd, Some(path));
        } else if writes {
            files::keep_written(fd, path, flags, place);
        } else if by_stream && let Some(read) = answer.bytes.get(10..) {
            let identity = |status: libc::stat| files::identity(&status).iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
            if !files::status(fd).is_ok_and(|own| identity(own) == read) {
                die(&format!("its server reads {}, which has changed since the leader's has read it", path.to_string_lossy()));
            }
        }
        Ok((fd, is_told))
    }

    /// Makes a temporary file. Its name is overwritten: it ends in six letters that are to be chosen.
    pub fn make_temporary(&mut self, template: &mut [u8], flags: i32) -> Result<RawFd, i32> {
        let access = libc::O_RDWR | flags & libc::O_APPEND;
        let name = |bytes: &[u8]| std::ffi::CString::new(bytes).map_err(|_| libc::EINVAL);
        let mut opened = None;
        let answer = self.decide(Call::MakeTemporary, Effect::Once, |_| {
            let mut template = [template.to_vec(), vec![0]].concat();
            // SAFETY: the pointer is to a text that ends with a zero byte.
            let fd = sys::open(|| unsafe { libc::mkostemp(template.as_mut_ptr().cast(), flags | libc::O_CLOEXEC).into() });
            template.pop();
            match fd {
                Ok(fd) => {
                    opened = Some(fd);
                    Told { bytes: template, ..Told::default() }
                }
                Err(error) => told(Err(error)),
            }
        });
        result(&answer)?;
        template.copy_from_slice(&answer.bytes);
        let name = name(template)?;
        let fd = match opened {
            Some(fd) => fd,
            None if matches!(self.role, Role::Succeeds(_)) => {
                files::open(&name, access | libc::O_CREAT | libc::O_CLOEXEC, 0o600).map_err(sys::errno_of)?
            }
            None => files::placeholder().map_err(sys::errno_of)?,
        };
        files::keep_written(fd, &name, access, (true, 0));
        Ok(fd)
    }

    /// Writes a file that is kept. Returns how much was taken, or an errno. `None`: the file is not kept.
    pub fn write_file(&mut self, fd: RawFd, bytes: &[u8]) -> Option<Result<i64, i32>> {
        let mut written = files::written(fd)?;
        if written.appends {
            match self.end(fd) {
                Ok(end) => written.at = end as u64,
                Err(errno) => return Some(Err(errno)),
            }
        }
        let succeeds = matches!(self.role, Role::Succeeds(_));
        let answer = match self.answer(Call::Write) {
            Some(told) => {
                let done = usize::try_from(told.value).map_or(0, |done| done.min(bytes.len()));
                if succeeds && done > 0 {
                    files::write_again(fd, &written, &bytes[..done]);
                }
                told
            }
            None => {
                let write = if succeeds { files::finish_write } else { files::write };
                self.publish(Call::Write, told(write(fd, &written, bytes).map(|done| done as i64)))
            }
        };
        let done = result(&answer);
        if let Ok(done) = done {
            files::move_to(fd, written.at + done as u64);
        }
        Some(done)
    }

    /// Where a file that is kept ends, or an errno.
    fn end(&mut self, fd: RawFd) -> Result<i64, i32> {
        result(&self.decide(Call::Status, Effect::Once, |_| told(files::end(fd).map(|end| end as i64))))
    }

    /// Moves to where a file's next read or write begins. `None`: the file has no position, or is not kept.
    pub fn seek(&mut self, fd: RawFd, offset: i64, whence: i32) -> Option<Result<i64, i32>> {
        let at = files::at(fd)?;
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => at as i64,
            _ => match self.end(fd) {
                Ok(end) => end,
                Err(errno) => return Some(Err(errno)),
            },
        };
        let Some(place) = from.checked_add(offset).filter(|place| *place >= 0) else { return Some(Err(libc::EINVAL)) };
        files::move_to(fd, place as u64);
        if files::told(fd).is_some() && !matches!(self.role, Role::Follows | Role::Claims(_)) {
            files::seek(fd, place as u64);
        }
        Some(Ok(place))
    }

    /// Reads what the leader reads for all replicas. `None`: this descriptor is not such a file.
    pub fn read_told(&mut self, fd: RawFd, into: &mut [u8]) -> Option<Result<i64, i32>> {
        let told_of = files::told(fd)?;
        let at = told_of.at;
        let (len, mut asked) = (into.len().min(MOST_TOLD_BYTES), false);
        let mut known = std::mem::take(&mut self.known);
        let mut answer = self.decide(Call::Read, Effect::Once, |_| {
            asked = true;
            let mut bytes = vec![0; len];
            // SAFETY: the pointer is to so many bytes.
            let got = sys::checked(unsafe { libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()) });
            bytes.truncate(got.as_ref().map_or(0, |got| *got as usize));
            let told = Told { bytes, ..told(got) };
            match told_of.path() {
                Some(path) => known.tells(path, at, told),
                None => told,
            }
        });
        if let Some(path) = told_of.path() {
            answer = known.hears(path, at, answer);
        }
        self.known = known;
        let bytes = &answer.bytes[..answer.bytes.len().min(len)];
        into[..bytes.len()].copy_from_slice(bytes);
        let end = at + bytes.len() as u64;
        files::move_to(fd, end);
        if !asked && told_of.is_own() {
            files::take_out(fd, bytes.len());
        }
        if !asked && matches!(self.role, Role::Succeeds(_)) {
            // If a dead leader has read less than the whole, this replica continues after that.
            files::seek(fd, end);
        }
        Some(result(&answer))
    }

    /// A call that returns a number, and that may be done twice.
    pub fn act(&mut self, call: Call, act: impl FnOnce(Asks) -> io::Result<i64>) -> Result<i64, i32> {
        result(&self.decide(call, Effect::Repeatable, |asks| told(act(asks))))
    }

    /// A call that fills in a structure. `fill` asks the system, and returns the result of that.
    pub fn look(&mut self, call: Call, into: &mut [u8], fill: impl FnOnce(&mut [u8]) -> io::Result<i64>) -> Result<i64, i32> {
        let answer = self.decide(call, Effect::Once, |_| {
            let mut bytes = into.to_vec();
            let filled = told(fill(&mut bytes));
            Told { bytes, ..filled }
        });
        let done = result(&answer)?;
        let bytes = &answer.bytes[..answer.bytes.len().min(into.len())];
        into[..bytes.len()].copy_from_slice(bytes);
        Ok(done)
    }
}
