//! How often each command was called over the Redis protocol, how long it took, and which errors were told: INFO's `commandstats`, `latencystats` and `errorstats`.

use std::collections::BTreeMap;
use std::fmt::Write;

use hdrhistogram::Histogram;

use super::table::{self, Command};

/// The longest duration that is told apart, in nanoseconds; Redis's.
const LONGEST_NS: u64 = 1_000_000_000;
/// The wall clock measures them, and can be set meanwhile. No command lasts so long on a node that stays primary.
const SET_NS: u64 = 10_000_000_000;
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];
/// More kinds of errors than there are: whatever clients send, no more are kept.
const ERRORS: usize = 128;

/// What is counted of one command.
#[derive(Clone, Debug)]
struct Called {
    calls: u64,
    ns: u64,
    rejected: u64,
    failed: u64,
    /// Durations, once it was called.
    durations: Option<Histogram<u64>>,
}

/// All counters by command, and by error. One thread writes them.
#[derive(Clone, Debug)]
pub struct Calls {
    /// By [`Command::number`].
    commands: Vec<Called>,
    errors: BTreeMap<Vec<u8>, u64>,
}

impl Default for Calls {
    fn default() -> Calls {
        let none = Called { calls: 0, ns: 0, rejected: 0, failed: 0, durations: None };
        Calls { commands: vec![none; table::count()], errors: BTreeMap::new() }
    }
}

impl Calls {
    /// A command was executed in so many nanoseconds; `failed`: it answered with an error.
    #[inline]
    pub fn executed(&mut self, command: &Command, ns: u64, failed: bool) {
        let of = &mut self.commands[command.number];
        of.calls += 1;
        of.failed += u64::from(failed);
        if ns < SET_NS {
            of.ns += ns;
            let durations = of.durations.get_or_insert_with(|| {
                // Two digits of what Redis tells three of; bounds and digits are good ones.
                Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("a nanosecond to a second")
            });
            durations.saturating_record(ns.max(1));
        }
    }

    /// A command was refused before it was executed.
    pub fn rejected(&mut self, command: &Command) {
        self.commands[command.number].rejected += 1;
    }

    /// A reply was that error: a code, a space, a text.
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
    use super::*;

    fn written(f: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
        let mut out = String::new();
        f(&mut out).expect("a string takes everything");
        out
    }

    #[test]
    fn commands_are_counted_by_name_and_timed() {
        let mut calls = Calls::default();
        let (get, list) = (table::find(b"get").unwrap(), table::find_named(b"client|list").unwrap());
        for _ in 0..99 {
            calls.executed(get, 2_000, false);
        }
        calls.executed(get, 300_000, true);
        calls.rejected(list);
        assert_eq!(
            written(|out| calls.write_commands(out)),
            "cmdstat_get:calls=100,usec=498,usec_per_call=4.98,rejected_calls=0,failed_calls=1\r\n\
             cmdstat_client|list:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0\r\n"
        );
        let latencies = written(|out| calls.write_latencies(out));
        assert!(latencies.starts_with("latency_percentiles_usec_get:p50=2.0"), "{latencies}");
        assert!(latencies.contains(",p99=2.0") && latencies.contains(",p99.9=30"), "{latencies}");
    }

    #[test]
    fn a_step_of_the_clock_is_no_duration() {
        let mut calls = Calls::default();
        calls.executed(table::find(b"get").unwrap(), 3_600_000_000_000, false);
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
