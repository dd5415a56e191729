//! What is marked and what is not, with real processes: those rows of the table in `docs/fide.md` that are certain.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::*;
use crate::host::tracer::Tracer;

const ROLE: &str = "MARTLET_TEST_MARKS";

/// The programs, if this process may have the kernel run them.
fn marker() -> Option<Marker> {
    match Marker::load() {
        Ok(marker) => Some(marker),
        Err(refused @ (Refused::Namespace | Refused::System { .. })) => {
            let is_permission = match &refused {
                Refused::Namespace => true,
                Refused::System { error, .. } => {
                    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
                        || error.raw_os_error() == Some(libc::ENOSYS)
                }
            };
            assert!(is_permission, "{refused}");
            eprintln!("skipped: {refused}");
            None
        }
    }
}

/// A process with two threads that carries out orders: its first thread, and another that sleeps.
struct Victim {
    child: Child,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
    pidfd: OwnedFd,
    process: u32,
    second: u32,
}

impl Victim {
    fn start(role: &str) -> Victim {
        let mut command = Command::new(std::env::current_exe().expect("this executable"));
        command.args(["--exact", "host::marks::tests::plays_its_role", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        // A terminal's signals do not stop a process group whose processes have no parent outside the group.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (orders, says) = (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let process = child.id();
        let pidfd = pidfd_open(Pid::from_raw(process as i32).expect("positive"), PidfdFlags::empty()).expect("our child");
        let mut victim = Victim { child, orders, says, pidfd, process, second: 0 };
        victim.second = victim.hear("threads ").parse().expect("a number");
        victim
    }

    fn hear(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).expect("text") > 0, "it ended before it said {what}");
            if let Some((_, rest)) = line.trim_end().split_once(what) {
                return rest.into();
            }
        }
    }

    fn order(&mut self, what: &str) {
        writeln!(self.orders, "{what}").expect("it listens");
    }

    /// Waits for its answer, by which everything sent before has taken effect.
    fn answers(&mut self) {
        self.order("answer");
        self.hear("answered");
    }

    fn signal(&self, signal: i32) {
        let signal = Signal::from_named_raw(signal).expect("a named one");
        kill_process(Pid::from_raw(self.process as i32).expect("positive"), signal).expect("our child");
    }

    fn is_running(&self) -> bool {
        let fd = self.pidfd.as_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it looks") == 0
    }

    /// Waits until it is the program that it executes, and until that program sleeps.
    fn until_it_sleeps(&self) {
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process)).expect("our child");
            if stat.contains(" (sleep) S ") {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn await_end(&mut self) {
        self.child.wait().expect("ours");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

extern "C" fn handler(_: libc::c_int) {}

fn disposition(signal: i32, action: libc::sighandler_t) {
    // SAFETY: the handler, where there is one, does nothing; no other thread depends on the disposition.
    unsafe { libc::signal(signal, action) };
}

fn dumps(bytes: Option<u64>) {
    let limit = rustix::process::Rlimit { current: bytes, maximum: bytes };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, limit);
}

#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    dumps(Some(0));
    let handled = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
    disposition(
        libc::SIGTERM,
        if role == "handles" {
            handled
        } else if role == "ignores" {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        },
    );
    disposition(libc::SIGSEGV, libc::SIG_DFL);
    let (end, ending) = std::sync::mpsc::channel::<&str>();
    let (told, tells) = std::sync::mpsc::channel();
    let second = std::thread::spawn(move || {
        told.send(rustix::thread::gettid()).expect("awaited");
        if ending.recv() == Ok("exec") {
            let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("1000"));
            panic!("no sleep: {error}");
        }
    });
    println!("\nthreads {}", tells.recv().expect("it begins").as_raw_nonzero());
    let mut second = Some(second);
    let mut memory = Vec::new();
    for line in std::io::stdin().lines() {
        match line.expect("text").as_str() {
            "answer" => println!("\nanswered"),
            "exit" => std::process::exit(0),
            "dump" => {
                dumps(None);
                let _ = std::env::set_current_dir(std::env::temp_dir());
                memory = vec![1u8; 64 << 20];
                // SAFETY: a plain system call about this process, whose disposition is the default one.
                unsafe { libc::raise(libc::SIGSEGV) };
            }
            "exec" => {
                let error = std::os::unix::process::CommandExt::exec(Command::new("sleep").arg("1000"));
                panic!("no sleep: {error}");
            }
            "second execs" => end.send("exec").expect("it waits"),
            "second ends" => {
                end.send("end").expect("it waits");
                second.take().expect("once").join().expect("it ends well");
                println!("\nended");
            }
            other => panic!("no such order: {other}"),
        }
    }
    drop(memory);
}

/// Waits for a mark; the test's own limit ends it if there never is one.
fn await_mark(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

#[test]
fn each_end_of_a_thread_is_marked_and_of_a_process_where_the_kernel_says_so() {
    let Some(marker) = marker() else { return };
    let marks = marker.marks();
    type End = fn(&mut Victim);
    let ends: [(&str, End); 4] = [
        ("kill", |victim| victim.signal(libc::SIGKILL)),
        ("term", |victim| victim.signal(libc::SIGTERM)),
        ("exit", |victim| victim.order("exit")),
        ("stopped and killed", |victim| {
            victim.signal(libc::SIGSTOP);
            victim.signal(libc::SIGKILL);
        }),
    ];
    for (name, end) in ends {
        let mut victim = Victim::start("plain");
        let since = marks.now();
        assert!(!marks.has_died(victim.process, since) && !marks.has_died(victim.second, since), "{name}");
        end(&mut victim);
        await_mark(|| marks.has_died(victim.process, since) && marks.has_died(victim.second, since));
        if marker.marks_ends() {
            await_mark(|| marks.has_ended(victim.process, since));
        }
        victim.await_end();
        // A thread or process that gets these numbers now, and is found alive, is another one.
        let later = marks.now();
        assert!(!marks.has_died(victim.process, later) && !marks.has_ended(victim.process, later), "{name}: of an earlier one");
    }
}

#[test]
fn trap_33_threads_of_a_process_that_dumps_core_are_marked_while_it_does() {
    let Some(marker) = marker() else { return };
    let marks = marker.marks();
    let mut victim = Victim::start("plain");
    let since = marks.now();
    marker.wish(victim.process, Wish::Dump);
    marker.hush();
    victim.order("dump");
    // The bell says when to look.
    let bell = marker.bell();
    rustix::event::poll(&mut [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)], None).expect("it waits");
    await_mark(|| marks.has_died(victim.process, since) && marks.has_died(victim.second, since));
    victim.await_end();
    for entry in std::fs::read_dir(std::env::temp_dir()).expect("there is one").flatten() {
        let name = entry.file_name();
        if name == "core" || name.to_string_lossy() == format!("core.{}", victim.process) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[test]
fn a_thread_s_end_is_not_its_process_s() {
    let Some(marker) = marker() else { return };
    let marks = marker.marks();
    let mut victim = Victim::start("plain");
    let since = marks.now();
    victim.order("second ends");
    victim.hear("ended");
    assert!(marks.has_died(victim.second, since), "it has been waited for");
    victim.answers();
    assert!(!marks.has_died(victim.process, since) && !marks.has_ended(victim.process, since));
    assert!(victim.is_running());
}

#[test]
fn an_exec_ends_all_threads_of_the_program_and_not_the_process() {
    let Some(marker) = marker() else { return };
    let marks = marker.marks();
    // The second thread takes the number of the first, whose word is not marked.
    for order in ["exec", "second execs"] {
        let mut victim = Victim::start("plain");
        let since = marks.now();
        victim.order(order);
        let is_first = order == "exec";
        await_mark(|| marks.has_died(victim.process, since) && (!is_first || marks.has_died(victim.second, since)));
        assert!(victim.is_running() && !marks.has_ended(victim.process, since), "{order}");
        victim.until_it_sleeps();
        // The program that runs there now has not ended.
        assert!(!marks.has_died(victim.process, marks.now()), "{order}");
        // Its number may have become another thread's before the program was loaded.
        assert!(is_first || !marks.has_died(victim.second, since), "the number from before an exec is marked");
    }
}

#[test]
fn what_is_no_death_is_not_marked() {
    let Some(marker) = marker() else { return };
    let marks = marker.marks();
    for role in ["plain", "handles", "ignores"] {
        let mut victim = Victim::start(role);
        let since = marks.now();
        let mut harmless = vec![libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
        if role != "plain" {
            harmless.push(libc::SIGTERM);
        }
        for signal in harmless {
            victim.signal(signal);
            victim.answers();
        }
        for stop in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            victim.signal(stop);
            // SAFETY: it waits for our own child, which is stopped and goes on.
            let status = unsafe {
                let mut status = 0;
                libc::waitpid(victim.process as i32, &mut status, libc::WUNTRACED);
                status
            };
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == stop, "{stop}: {status:#x}");
            victim.signal(libc::SIGCONT);
            victim.answers();
        }
        let dead = [victim.process, victim.second].map(|thread| marks.has_died(thread, since));
        assert!(dead == [false; 2] && !marks.has_ended(victim.process, since) && victim.is_running(), "{role}: {dead:?}");
    }
}

#[test]
fn a_signal_that_a_tracer_takes_away_is_no_death() {
    let Some(marker) = marker() else { return };
    let marks = marker.marks();
    let mut victim = Victim::start("plain");
    let since = marks.now();
    let tracer = Tracer::seize(Pid::from_raw(victim.process as i32).expect("positive")).expect("our child");
    tracer.take_away(Signal::TERM).expect("it stops for it");
    victim.answers();
    assert!(!marks.has_died(victim.process, since));
}

#[test]
fn no_process_writes_marks_and_what_is_handed_out_keeps_them_coming() {
    let Some(marker) = marker() else { return };
    let fd = marker.marks().as_fd().try_clone_to_owned().expect("a descriptor");
    let links: Vec<_> = marker.links().map(|link| link.try_clone_to_owned().expect("a descriptor")).collect();
    let bytes = (WORDS * 8).next_multiple_of(page());
    assert_eq!(Map::new(&fd, 0, bytes, Access::ReadWrite, false).expect_err("frozen").raw_os_error(), Some(libc::EPERM));
    drop(marker);
    let marks = Marks::open(fd).expect("marks");
    let mut victim = Victim::start("plain");
    let since = marks.now();
    victim.signal(libc::SIGKILL);
    await_mark(|| marks.has_died(victim.process, since));
    victim.await_end();
    drop(links);
}

#[test]
fn what_is_no_array_of_marks_is_named() {
    let memfd = super::super::memory::create("martlet-test", WORDS * 8).expect("memory");
    assert_eq!(Marks::open(memfd).expect_err("no map").to_string(), "these are no marks: map_type is nothing, not 2");
    if marker().is_some() {
        let other = bpf::array(WORDS as u32 * 8).expect("allowed");
        assert_eq!(Marks::open(other).expect_err("it may be written").to_string(), "these are no marks: frozen is 0, not 1");
    }
}

#[test]
fn marks_of_other_numbers_and_of_earlier_threads_do_not_count() {
    let area = |values: &[(usize, u64)]| {
        let fd = super::super::memory::create("martlet-test", (WORDS * 8).next_multiple_of(page())).expect("memory");
        let words = Area::new(&Map::new(&fd, 0, WORDS * 8, Access::ReadWrite, false).expect("mapped"), 0, WORDS * 8);
        values.iter().for_each(|(word, value)| words.memory()[*word].store(*value, Ordering::Release));
        Marks { fd: Arc::new(fd), area: words }
    };
    let marks = area(&[]);
    assert!(!marks.has_died(7, marks.now()), "nothing has been marked yet");
    let marks = area(&[(ORDER, 5), (THREADS + 7, mark_of(7 + (3 << 16), 4))]);
    for (number, since, dead) in [(7 + (3 << 16), 4, true), (7 + (3 << 16), 5, false), (7 + (2 << 16), 4, false), (7, 4, false)] {
        assert_eq!(marks.has_died(number, Moment(since)), dead, "{number} since {since}");
        assert!(!marks.has_ended(number, Moment(since)));
    }
    assert_eq!(marks.now(), Moment(6));
}
