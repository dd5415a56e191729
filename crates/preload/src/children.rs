//! The processes that a server forks, such as one that saves its data. There is one of each, the leader's.
//!
//! A child is a copy of the leader's server as it was in some round, and every replica's server was the same in that round. So the other replicas are told the
//! child's number and its end, and have no child of their own. The child outlives the leader that forked it, and goes on: the next leader looks after it.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::answers::{Asks, Call, Effect, result, told};
use crate::board::{Board, Heard, Told};
use crate::entry::{Record, Writer};
use crate::replica::Replica;
use crate::{clock, fault, process, sys, threads};

/// How often a leader looks whether children have ended, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// How often it is checked whether a child is known, in microseconds.
const KNOWN_US: u32 = 100;
/// What is said of a child that has not said with which code it ends: it has been killed.
const KILLED: i32 = libc::SIGKILL;

/// Whether this process is a child of the server's, and so not a replica.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child of the server's.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// A child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its process.
    pub pid: i32,
    /// When that process started, in clock ticks since the host started.
    started: u64,
}

/// The server's children, as every replica knows them.
#[derive(Clone, Debug, Default)]
pub struct Children {
    /// Those that live, as far as the server has been told.
    living: Vec<Child>,
    /// Those that have ended, and how, and that the server has not asked about yet.
    ended: VecDeque<(i32, i32)>,
    /// When it was last checked whether one has ended.
    looked_ns: u64,
}

impl Children {
    /// A child has ended, as the log says.
    pub fn end(&mut self, pid: i32, status: i32) {
        let before = self.living.len();
        self.living.retain(|child| child.pid != pid);
        if self.living.len() < before {
            self.ended.push_back((pid, status));
        }
    }

    /// Whether this process is one of them.
    pub fn has(&self, pid: i32) -> bool {
        self.living.iter().any(|child| child.pid == pid)
    }
}

/// How a child has ended, if it has.
fn end_of(child: Child, board: &Board) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the pointer is to an int.
    let waited = unsafe { libc::syscall(libc::SYS_wait4, child.pid, &mut status, libc::WNOHANG, 0usize) };
    if waited == i64::from(child.pid) {
        return Some(status);
    }
    // The kernel reports the end of a child that the previous leader forked to some other process.
    (waited < 0 && !process::runs(child.pid, child.started)).then(|| board.child_end(child.pid).map_or(KILLED, |code| code << 8))
}

/// In the child: from here on nothing is captured, and everything that belongs to a replica is closed, above all its connections. The child goes on once its
/// leader's successors can know its number, and ends if the leader has died before it could tell them.
fn begin(board: &Board, at: u64, parent: i32) {
    IS_CHILD.store(true, Ordering::Relaxed);
    threads::forget_all();
    fault::note_at(None);
    // SAFETY: plain system calls.
    let own = unsafe { libc::syscall(libc::SYS_getpid) };
    loop {
        // SAFETY: as above.
        let is_orphan = unsafe { libc::syscall(libc::SYS_getppid) } != i64::from(parent);
        match board.hear(at) {
            Heard::Its(Told { value, .. }, _) if value == own => break,
            Heard::Nothing if !is_orphan => {
                // SAFETY: a plain call.
                unsafe { libc::usleep(KNOWN_US) };
            }
            // It has begun nothing.
            _ => {
                // SAFETY: it ends this process.
                unsafe { libc::syscall(libc::SYS_exit_group, 0) };
            }
        }
    }
    let _ = process::close_what_links_to(&["socket:", "anon_inode:", "/memfd:"], |fd| fd > 2 && !is_listener(fd));
}

/// The server closes its listeners in its child itself. Until then nothing else may be under their numbers.
fn is_listener(fd: RawFd) -> bool {
    sys::socket_option::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|listens| listens != 0)
        && sys::socket_option::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM)
}

/// Notes with which code this process ends, if it is a child.
pub fn ends(board: Option<Board>, code: i32) {
    if let (true, Some(board)) = (is_child(), board) {
        // SAFETY: a plain system call.
        board.child_ends(unsafe { libc::syscall(libc::SYS_getpid) } as i32, code);
    }
}

impl Replica {
    /// Forks a child. Returns its number, 0 in the child, or an errno.
    pub fn fork_child(&mut self) -> Result<i32, i32> {
        let answer = match self.answer(Call::Fork) {
            Some(answer) => answer,
            None => {
                // SAFETY: a plain system call.
                let (at, own) = (self.board.told_end(), unsafe { libc::syscall(libc::SYS_getpid) } as i32);
                // SAFETY: the server asks for it, and does in its child what it would do without this library; of the replica's things the child uses nothing
                // but the board.
                let pid = unsafe { sys::fork() };
                if pid == 0 {
                    begin(&self.board, at, own);
                    return Ok(0);
                }
                let forked = told(sys::checked(pid.into()));
                let started = if pid > 0 { process::started(pid).unwrap_or(0) } else { 0 };
                self.publish(Call::Fork, Told { bytes: started.to_le_bytes().into(), ..forked })
            }
        };
        let pid = result(&answer)? as i32;
        let started = answer.bytes.try_into().map_or(0, u64::from_le_bytes);
        self.children.living.push(Child { pid, started });
        Ok(pid)
    }

    /// A child that has ended and that is asked for: any, unless `pid` is a child's number. `Ok(None)`: none has, and the server does not wait.
    pub fn wait_for(&mut self, pid: i32, waits: bool) -> Result<Option<(i32, i32)>, i32> {
        let is_asked = |other: i32| pid <= 0 || pid == other;
        if let Some(at) = self.children.ended.iter().position(|(pid, _)| is_asked(*pid)) {
            return Ok(self.children.ended.remove(at));
        }
        let asked: Vec<Child> = self.children.living.iter().copied().filter(|child| is_asked(child.pid)).collect();
        if asked.is_empty() {
            return Err(libc::ECHILD);
        }
        if !waits {
            return Ok(None);
        }
        let board = self.board;
        let answer = self.decide(Call::Wait, Effect::Once, |_| {
            loop {
                if let Some((pid, status)) = asked.iter().find_map(|child| end_of(*child, &board).map(|status| (child.pid, status))) {
                    return Told { bytes: status.to_le_bytes().into(), ..told(Ok(pid.into())) };
                }
                // SAFETY: a plain call.
                unsafe { libc::usleep(KNOWN_US) };
            }
        });
        let pid = result(&answer)? as i32;
        self.children.living.retain(|child| child.pid != pid);
        Ok(Some((pid, answer.bytes.try_into().map_or(KILLED, i32::from_le_bytes))))
    }

    /// Sends a signal to a child.
    pub fn signal_child(&mut self, pid: i32, signal: i32) -> Result<i64, i32> {
        self.act(Call::Kill, |asks| {
            // SAFETY: a plain system call.
            let sent = sys::checked(unsafe { libc::syscall(libc::SYS_kill, pid, signal) });
            if asks == Asks::Succeeds { Ok(0) } else { sent }
        })
    }

    /// Puts into a leader's round which children have ended.
    pub fn collect_children(&mut self, writer: &mut Writer<'_>) {
        if self.children.living.is_empty() {
            return;
        }
        let now = clock::monotonic_ns();
        if now.saturating_sub(self.children.looked_ns) < LOOK_NS {
            return;
        }
        self.children.looked_ns = now;
        for child in &self.children.living {
            if let Some(status) = end_of(*child, &self.board) {
                writer.add(&Record::Child { pid: child.pid, status });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_child_is_told_once() {
        let mut children = Children::default();
        children.living.push(Child { pid: 7, started: 1 });
        assert!(children.has(7));
        children.end(7, 256);
        children.end(7, 9);
        assert_eq!((children.has(7), children.ended.len(), children.ended.front()), (false, 1, Some(&(7, 256))));
    }

    #[test]
    fn a_child_of_another_leader_that_is_gone_has_ended_as_it_said_or_was_killed() {
        let board = Board::create().expect("memory");
        // No process has so high a number.
        let child = Child { pid: i32::MAX, started: 5 };
        assert_eq!(end_of(child, &board), Some(KILLED));
        board.child_ends(child.pid, 3);
        assert_eq!(end_of(child, &board), Some(3 << 8));
        let own = std::process::id() as i32;
        let alive = Child { pid: own, started: process::started(own).expect("it runs") };
        assert_eq!(end_of(alive, &board), None);
    }
}
