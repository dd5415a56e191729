//! A node's log: lines on standard error, written by a thread that lives only as long as there are lines.
//!
//! Whatever happens to the log, it never stops or delays the node. A thread that logs puts its line into a queue and continues; it never writes, and never
//! waits for a thread that does. If standard error takes no more (the disk is full, or the reader of a pipe has gone), or takes it too slowly, lines are
//! dropped and counted. As soon as lines can be written again, a line in their place says how many are missing and why.
//!
//! If a process is killed, lines that still wait are lost. Usually there are none, because the first line gets the [writer
//! started](martlet_fabric::host::errand).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use martlet_fabric::host::errand;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::fail::{Fail, Outcome};

/// How many lines may wait to be written, and how many bytes in all.
const MOST_LINES: usize = 4096;
const MOST_BYTES: usize = 1 << 20;
/// How long the end of the process waits for lines to be written while no progress is made.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same when a thread has panicked: other processes wait for this one to be gone.
const PATIENCE_IN_PANIC: Duration = Duration::from_millis(50);

/// How long the writer waits for another line before its thread ends.
const LINGER: Duration = Duration::from_millis(1);

/// The log of this process, once it has one.
static LOG: OnceLock<Arc<Log>> = OnceLock::new();

struct Log {
    queue: Queue,
    /// What the writing thread holds while it writes.
    pen: Mutex<(Writer<StandardError>, Receiver<Line>)>,
    /// There is a writing thread, or it has been asked for.
    writes: AtomicBool,
}

impl Log {
    fn put(self: &Arc<Log>, text: &[u8]) {
        self.queue.put(text);
        // AcqRel, as in `write`: the writer whose `false` replaces this `true` finds the line as well.
        if !self.writes.swap(true, Ordering::AcqRel) {
            let log = Arc::clone(self);
            if !errand::send("martlet-log", Arc::new(move || log.write())) {
                // The next line asks again.
                self.writes.store(false, Ordering::Release);
            }
        }
    }

    /// Writes the waiting lines on the calling thread, which is about to end the process and can have no writer thread. Does nothing if it would have to wait
    /// for one.
    fn write_here(&self) {
        let stderr = io::stderr();
        let stderr = stderr.as_fd();
        let is_ready =
            poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0);
        if is_ready && let Ok(mut pen) = self.pen.try_lock() {
            let (writer, lines) = &mut *pen;
            writer.write_all_of(lines, &self.queue);
        }
    }

    /// Writes until no line has come for a while.
    fn write(&self) {
        let mut pen = self.pen.lock().unwrap_or_else(PoisonError::into_inner);
        let (writer, lines) = &mut *pen;
        loop {
            writer.write_all_of(lines, &self.queue);
            self.writes.swap(false, Ordering::AcqRel);
            if self.queue.is_empty() || self.writes.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

/// From here on what this process logs goes to standard error, as far as RUST_LOG says, and so do the messages of panics.
///
/// # Errors
/// When RUST_LOG cannot be understood.
pub fn start() -> Outcome {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.trim().is_empty() => EnvFilter::builder().parse(&text).map_err(|error| {
            Fail::usage(format_args!(
                "RUST_LOG is `{text}`: {error}; allowed are error, warn, info, debug and trace, or such as info,martlet_node=debug"
            ))
        })?,
        Err(error @ std::env::VarError::NotUnicode(_)) => return Err(Fail::usage(format_args!("RUST_LOG: {error}"))),
        _ => EnvFilter::new("info"),
    };
    let (queue, lines) = Queue::new();
    let log = Arc::new(Log { queue, pen: Mutex::new((Writer::new(StandardError), lines)), writes: AtomicBool::new(false) });
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Lines(Arc::clone(&log)))
        .with_ansi(io::stderr().is_terminal())
        // Internal errors would be printed with `eprintln!`, which panics when nothing can be written.
        .log_internal_errors(false);
    if LOG.set(log).is_ok() {
        subscriber.init();
        panic::set_hook(Box::new(|info| {
            let thread = thread::current();
            let backtrace = Backtrace::capture();
            let backtrace = if backtrace.status() == BacktraceStatus::Captured { format!("\n{backtrace}") } else { String::new() };
            say(&format!("thread '{}' {info}{backtrace}\n", thread.name().unwrap_or("without a name")));
            finish_within(PATIENCE_IN_PANIC);
        }));
    }
    Ok(())
}

/// Appends a text to what has been logged. Returns whether this process has a log.
pub fn say(text: &str) -> bool {
    LOG.get().map(|log| log.put(text.as_bytes())).is_some()
}

/// Waits until everything logged has been written, for as long as progress is made.
pub fn finish() {
    finish_within(PATIENCE);
}

fn finish_within(patience: Duration) {
    if let Some(log) = LOG.get() {
        // The thread that is to start the writer may be this one.
        let is_started = errand::start_waiting() && log.writes.load(Ordering::Acquire);
        if !is_started && !log.queue.is_empty() {
            log.write_here();
        }
        log.queue.await_empty(patience);
    }
}

/// A line on its way.
struct Line {
    text: Box<[u8]>,
    /// How many lines before it were dropped.
    dropped_before: u64,
}

/// The queue from the threads that log to the one that writes.
struct Queue {
    lines: SyncSender<Line>,
    /// Bytes that wait or are being written.
    waiting: AtomicUsize,
    /// Lines that were dropped, and that have not been reported yet.
    dropped: AtomicU64,
    /// How many lines have been written or lost.
    done: Mutex<u64>,
    /// Notified when that number grows.
    progress: Condvar,
}

impl Queue {
    fn new() -> (Queue, Receiver<Line>) {
        let (lines, receiver) = mpsc::sync_channel(MOST_LINES);
        let (waiting, dropped) = (AtomicUsize::new(0), AtomicU64::new(0));
        (Queue { lines, waiting, dropped, done: Mutex::new(0), progress: Condvar::new() }, receiver)
    }

    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Takes a line, or counts it as dropped if there is no room.
    fn put(&self, text: &[u8]) {
        let before = self.waiting.fetch_add(text.len(), Ordering::Relaxed);
        let dropped_before = self.dropped.swap(0, Ordering::Relaxed);
        let line = Line { text: text.into(), dropped_before };
        // A single line is taken even if it alone is longer.
        let fits = before == 0 || before.saturating_add(text.len()) <= MOST_BYTES;
        if !fits || self.lines.try_send(line).is_err() {
            self.waiting.fetch_sub(text.len(), Ordering::Relaxed);
            self.dropped.fetch_add(dropped_before + 1, Ordering::Relaxed);
        }
    }

    /// A line has been written, or was lost.
    fn note_done(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.progress.notify_all();
    }

    fn await_empty(&self, patience: Duration) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_empty() {
            let before = *done;
            let (now, waited) = self.progress.wait_timeout(done, patience).unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() && *now == before {
                return;
            }
            done = now;
        }
    }
}

/// The interface to the subscriber: one call for each event.
struct Lines(Arc<Log>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = OneLine<'a>;

    fn make_writer(&'a self) -> OneLine<'a> {
        OneLine(&self.0)
    }
}

struct OneLine<'a>(&'a Arc<Log>);

impl Write for OneLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error without the lock that other threads of this process may hold. If it does not block, this waits for it.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match rustix::io::write(&stderr, bytes) {
                Err(rustix::io::Errno::AGAIN) => {
                    let stderr = stderr.as_fd();
                    let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines, only whole ones as far as that is up to it, and says where some are missing.
struct Writer<W> {
    out: W,
    /// Lines lost since the last one that was written.
    lost: u64,
    /// Why they were lost, unless they came too fast.
    error: Option<io::Error>,
    /// The last thing written is an incomplete line.
    torn: bool,
}

impl<W: Write> Writer<W> {
    fn new(out: W) -> Writer<W> {
        Writer { out, lost: 0, error: None, torn: false }
    }

    /// Writes until no thread has logged for a while.
    fn write_all_of(&mut self, lines: &Receiver<Line>, queue: &Queue) {
        loop {
            let line = match lines.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    // The next line may not come for long, and what is missing should be known now.
                    self.lost += queue.dropped.swap(0, Ordering::Relaxed);
                    self.tell_what_is_missing();
                    match lines.recv_timeout(LINGER) {
                        Ok(line) => line,
                        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
                    }
                }
            };
            self.lost += line.dropped_before;
            self.write(&line.text);
            queue.note_done(line.text.len());
        }
    }

    fn write(&mut self, line: &[u8]) {
        if !(self.tell_what_is_missing() && self.put(line)) {
            self.lost += 1;
        }
    }

    /// Reports what is missing. Returns whether everything has been reported.
    fn tell_what_is_missing(&mut self) -> bool {
        if self.lost == 0 {
            return true;
        }
        let mut note = String::new();
        // Writing the time to a string cannot fail.
        let _ = SystemTime.format_time(&mut format::Writer::new(&mut note));
        let what = if self.lost == 1 { "a line is missing here".to_owned() } else { format!("{} lines are missing here", self.lost) };
        let why = match &self.error {
            Some(error) => format!("standard error could not be written to: {error}"),
            None => "standard error was not read as fast as they came".to_owned(),
        };
        note += &format!("  WARN {}: {what}: {why}\n", module_path!());
        if self.put(note.as_bytes()) {
            (self.lost, self.error) = (0, None);
        }
        self.lost == 0
    }

    /// Writes a line. Returns whether all of it was written.
    fn put(&mut self, line: &[u8]) -> bool {
        let end: &[u8] = if self.torn { b"\n" } else { b"" };
        for mut rest in [end, line] {
            while !rest.is_empty() {
                match self.out.write(rest) {
                    Ok(0) => return self.fail(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        self.torn = rest[written - 1] != b'\n';
                        rest = &rest[written..];
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return self.fail(error),
                }
            }
        }
        true
    }

    fn fail(&mut self, error: io::Error) -> bool {
        self.error = Some(error);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that has room for this many more bytes.
    #[derive(Default)]
    struct Disk {
        room: usize,
        written: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(rustix::io::Errno::NOSPC.into());
            }
            self.room -= taken;
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Set for the process that the next test makes panic.
    const VICTIM: &str = "MARTLET_TEST_PANIC";

    #[test]
    fn a_panic_is_in_the_log_and_waits_for_no_reader() {
        if std::env::var_os(VICTIM).is_some() {
            start().expect("a log");
            tracing::info!("before");
            let _ = thread::spawn(|| panic!("on purpose")).join();
            std::process::exit(7);
        }
        let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "log::tests::a_panic_is_in_the_log_and_waits_for_no_reader", "--nocapture"])
            .env(VICTIM, "1")
            .env_remove("RUST_LOG");
        let said = String::from_utf8(command.output().expect("it runs").stderr).expect("UTF-8");
        let (before, panic) = said.split_once("before\n").expect("what was logged");
        assert!(before.contains(" INFO ") && panic.contains(concat!("panicked at ", file!())) && panic.contains("on purpose"), "{said}");

        let (reader, mut writer) = io::pipe().expect("a pipe");
        let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("as small as there are");
        writer.write_all(&vec![b'.'; size]).expect("its reader lives");
        assert_eq!(command.stderr(writer).stdout(std::process::Stdio::null()).status().expect("it ends").code(), Some(7));
        drop(reader);
    }

    /// What was written, without the times.
    fn lines(writer: &Writer<Disk>) -> Vec<String> {
        let text = String::from_utf8(writer.out.written.clone()).expect("UTF-8");
        text.lines().map(|line| line.split_once("  WARN ").map_or(line, |(_, note)| note).to_owned()).collect()
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_counted_and_told_once_there_is_room() {
        let mut writer = Writer::new(Disk { room: 9, ..Disk::default() });
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            writer.write(line.as_bytes());
        }
        assert_eq!(lines(&writer), ["one", "two", "t"]);
        writer.out.room = usize::MAX;
        writer.write(b"five\n");
        let note =
            "martlet_cluster::log: 2 lines are missing here: standard error could not be written to: No space left on device (os error 28)";
        assert_eq!(lines(&writer), ["one", "two", "t", note, "five"], "no line begins in the middle of another");
        writer.write(b"six\n");
        assert_eq!(lines(&writer).len(), 6, "it is told once");
    }

    #[test]
    fn nobody_waits_for_a_reader_and_where_lines_are_missing_is_told_in_their_place() {
        let (mut queue, receiver) = Queue::new();
        let most = MOST_LINES as u64;
        for number in 0..most + 5 {
            queue.put(format!("{number}\n").as_bytes());
        }
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 5);
        // Makes room for one more line, which comes after the dropped ones.
        let first = receiver.recv().expect("a line");
        queue.note_done(first.text.len());
        queue.put(b"late\n");
        queue.put(b"none\n");
        let mut writer = Writer::new(Disk { room: usize::MAX, ..Disk::default() });
        // Drops the last sender, which ends the writer.
        queue.lines = mpsc::sync_channel(1).0;
        writer.write_all_of(&receiver, &queue);
        let lines = lines(&writer);
        let missing = |count: &str| format!("martlet_cluster::log: {count} missing here: standard error was not read as fast as they came");
        assert_eq!(lines[..2], ["1", "2"]);
        assert_eq!(lines[lines.len() - 3..], [(most - 1).to_string(), missing("5 lines are"), "late".to_owned()]);
        assert_eq!((queue.waiting.load(Ordering::Relaxed), queue.dropped.load(Ordering::Relaxed)), (0, 1));
        queue.await_empty(Duration::MAX);
    }

    #[test]
    fn bytes_that_wait_are_bounded_and_a_single_line_is_not() {
        let (queue, receiver) = Queue::new();
        queue.put(&[b'x'; 2 * MOST_BYTES]);
        queue.put(b"no room\n");
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 1);
        let line = receiver.recv().expect("a line");
        assert_eq!(line.text.len(), 2 * MOST_BYTES);
        queue.await_empty(Duration::from_millis(1));
        queue.note_done(line.text.len());
        queue.put(b"room\n");
        assert_eq!(receiver.recv().expect("a line").dropped_before, 1);
    }
}
