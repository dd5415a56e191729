//! How often each command was called over the Redis protocol, how long it took, and which errors were returned: INFO's `commandstats`, `latencystats` and
//! `errorstats`.

use std::collections::BTreeMap;
use std::fmt::Write;

use hdrhistogram::Histogram;

use super::clock::Clock;
use super::table::{self, Command};

/// The longest duration that is recorded as such, in nanoseconds; the same as in Redis.
const LONGEST_NS: u64 = 1_000_000_000;
/// Durations beyond this are ignored. They are measured with the wall clock, which may be set meanwhile, and no command takes this long on a node that stays
/// primary.
const SET_NS: u64 = 10_000_000_000;
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];
/// How many kinds of errors are kept, whatever clients send: more than exist.
const ERRORS: usize = 128;

/// What is counted of one command.
#[derive(Clone, Debug)]
struct Called {
    calls: u64,
    ns: u64,
    rejected: u64,
    failed: u64,
    /// Durations, once it has been called.
    durations: Option<Histogram<u64>>,
}

/// How many calls are timed together at most. Reading the clock for each call would take a tenth of a pipelined GET.
const RUN: u64 = 16;

/// Consecutive calls of one command that are not counted yet.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The command's number.
    command: usize,
    /// When the first call began, by the wall clock in nanoseconds.
    began: u64,
    calls: u64,
    failed: u64,
}

/// All counters by command, and by error. One thread writes them.
///
/// Consecutive requests of one command that have arrived together are timed together, up to 16 of them: each counts as having taken the mean.
#[derive(Clone, Debug)]
pub struct Calls {
    /// By [`Command::number`].
    commands: Vec<Called>,
    run: Option<Run>,
    errors: BTreeMap<Vec<u8>, u64>,
}

impl Default for Calls {
    fn default() -> Calls {
        let none = Called { calls: 0, ns: 0, rejected: 0, failed: 0, durations: None };
        Calls { commands: vec![none; table::count()], run: None, errors: BTreeMap::new() }
    }
}

impl Calls {
    /// A command is about to be executed, and only commands have been executed since [`Calls::settle`]. [`Calls::ended`] must follow.
    #[inline]
    pub fn begin(&mut self, command: &Command, clock: &mut Clock) {
        match &self.run {
            Some(run) if run.command == command.number && run.calls < RUN => {}
            Some(_) => {
                self.settle(clock);
                self.start(command, clock);
            }
            None => self.start(command, clock),
        }
    }

    fn start(&mut self, command: &Command, clock: &mut Clock) {
        self.run = Some(Run { command: command.number, began: clock.latest(), calls: 0, failed: 0 });
    }

    /// The command that began last has been executed; `failed`: it answered with an error.
    #[inline]
    pub fn ended(&mut self, failed: bool) {
        if let Some(run) = &mut self.run {
            run.calls += 1;
            run.failed += u64::from(failed);
        }
    }

    /// Counts what has been executed, because something other than a command comes next.
    pub fn settle(&mut self, clock: &mut Clock) {
        if let Some(run) = self.run.take() {
            self.count(run, clock.read());
        }
    }

    /// Sets all counters to 0. A command that is being executed is still counted.
    pub fn reset(&mut self) {
        *self = Calls { run: self.run, ..Calls::default() };
    }

    /// Counts a command that has others executed, and so takes as long as all of them. It began at `began`, and has just ended.
    pub fn executed_others(&mut self, command: &Command, began: u64, failed: bool, clock: &mut Clock) {
        self.settle(clock);
        self.count(Run { command: command.number, began, calls: 1, failed: u64::from(failed) }, clock.latest());
    }

    fn count(&mut self, run: Run, ended: u64) {
        let of = &mut self.commands[run.command];
        of.calls += run.calls;
        of.failed += run.failed;
        let ns = ended.saturating_sub(run.began);
        if ns < SET_NS && run.calls > 0 {
            of.ns += ns;
            let durations = of.durations.get_or_insert_with(|| {
                // Two significant digits, where Redis reports three. These bounds and digits are valid.
                Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("a nanosecond to a second")
            });
            durations.saturating_record_n((ns / run.calls).max(1), run.calls);
        }
    }

    /// A command was refused before it was executed.
    pub fn rejected(&mut self, command: &Command) {
        self.commands[command.number].rejected += 1;
    }

    /// A reply was this error: a code, a space, a text.
    pub fn told(&mut self, error: &[u8]) {
        let code = error.split(|c| *c == b' ' || *c == b'\r').next().unwrap_or(error);
        if let Some(count) = self.errors.get_mut(code) {
            *count += 1;
        } else if self.errors.len() < ERRORS {
            self.errors.insert(code.to_vec(), 1);
        }
    }

    fn each(&self) -> impl Iterator<Item = (&'static Command, &Called)> {
        self.commands.iter().enumerate().map(|(number, called)| (table::numbered(number), called))
    }

    pub(super) fn write_commands(&self, out: &mut String) -> std::fmt::Result {
        for (command, of) in self.each().filter(|(_, of)| of.calls + of.rejected > 0) {
            let us = of.ns / 1000;
            let mean = if of.calls == 0 { 0.0 } else { of.ns as f64 / 1000.0 / of.calls as f64 };
            let (name, calls, rejected, failed) = (command.name, of.calls, of.rejected, of.failed);
            write!(
                out,
                "cmdstat_{name}:calls={calls},usec={us},usec_per_call={mean:.2},rejected_calls={rejected},failed_calls={failed}\r\n"
            )?;
        }
        Ok(())
    }

    pub(super) fn write_latencies(&self, out: &mut String) -> std::fmt::Result {
        for (command, of) in self.each() {
            let Some(durations) = &of.durations else { continue };
            let of = |percentile: f64| format!("p{percentile}={:.3}", durations.value_at_percentile(percentile) as f64 / 1000.0);
            write!(out, "latency_percentiles_usec_{}:{}\r\n", command.name, PERCENTILES.map(of).join(","))?;
        }
        Ok(())
    }

    pub(super) fn write_errors(&self, out: &mut String) -> std::fmt::Result {
        for (code, count) in &self.errors {
            write!(out, "errorstat_{}:count={count}\r\n", String::from_utf8_lossy(code))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn written(f: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
        let mut out = String::new();
        f(&mut out).expect("a string takes everything");
        out
    }

    /// A clock that the test sets, in nanoseconds.
    fn clock() -> (Clock, Arc<AtomicU64>) {
        let ns = Arc::new(AtomicU64::new(1_000));
        let wall = ns.clone();
        (Clock::new(Box::new(move || wall.load(Ordering::Relaxed))), ns)
    }

    #[test]
    fn commands_are_counted_by_name_and_timed() {
        let mut calls = Calls::default();
        let (mut clock, ns) = clock();
        let (get, set) = (table::find(b"get").unwrap(), table::find(b"set").unwrap());
        let mut call = |command, took, failed| {
            calls.begin(command, &mut clock);
            ns.fetch_add(took, Ordering::Relaxed);
            calls.ended(failed);
        };
        // Six runs of sixteen, and one of four.
        (0..99).for_each(|_| call(get, 2_000, false));
        call(get, 300_000, true);
        call(set, 5_000, false);
        calls.settle(&mut clock);
        calls.settle(&mut clock);
        calls.rejected(table::find_named(b"client|list").unwrap());
        assert_eq!(
            written(|out| calls.write_commands(out)),
            "cmdstat_get:calls=100,usec=498,usec_per_call=4.98,rejected_calls=0,failed_calls=1\r\n\
             cmdstat_set:calls=1,usec=5,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_client|list:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0\r\n"
        );
        let latencies = written(|out| calls.write_latencies(out));
        assert!(latencies.starts_with("latency_percentiles_usec_get:p50=2.0"), "{latencies}");
        assert!(
            latencies.contains(",p99=7") && latencies.contains("\r\nlatency_percentiles_usec_set:p50=5.0"),
            "the last four share what they took: {latencies}"
        );
    }

    #[test]
    fn what_has_others_executed_takes_as_long_as_they_do() {
        let mut calls = Calls::default();
        let (mut clock, ns) = clock();
        let (exec, get) = (table::find(b"exec").unwrap(), table::find(b"get").unwrap());
        let began = clock.latest();
        for _ in 0..2 {
            calls.begin(get, &mut clock);
            ns.fetch_add(3_000, Ordering::Relaxed);
            calls.ended(false);
        }
        calls.executed_others(exec, began, false, &mut clock);
        let stats = written(|out| calls.write_commands(out));
        assert!(stats.contains("cmdstat_exec:calls=1,usec=6,") && stats.contains("cmdstat_get:calls=2,usec=6,"), "{stats}");
        calls.begin(get, &mut clock);
        calls.reset();
        calls.ended(false);
        calls.settle(&mut clock);
        assert_eq!(written(|out| calls.write_commands(out)).matches("cmdstat_").count(), 1, "what was being executed");
    }

    #[test]
    fn a_step_of_the_clock_is_no_duration() {
        let mut calls = Calls::default();
        let (mut clock, ns) = clock();
        calls.begin(table::find(b"get").unwrap(), &mut clock);
        ns.fetch_add(3_600_000_000_000, Ordering::Relaxed);
        calls.ended(false);
        calls.settle(&mut clock);
        assert!(written(|out| calls.write_commands(out)).starts_with("cmdstat_get:calls=1,usec=0,"));
    }

    #[test]
    fn errors_are_counted_by_their_code_and_not_without_end() {
        let mut calls = Calls::default();
        for error in [&b"ERR no such key\r\n"[..], b"ERR other", b"OOM\r\n"] {
            calls.told(error);
        }
        assert_eq!(written(|out| calls.write_errors(out)), "errorstat_ERR:count=2\r\nerrorstat_OOM:count=1\r\n");
        for n in 0..1000 {
            calls.told(format!("E{n} x").as_bytes());
        }
        assert_eq!(calls.errors.len(), ERRORS);
    }
}
