//! Load with a memory: clients that make requests and keep a history of them, for the linearizability checker.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_node::clock;
use martlet_sim::linearizability::kv::{Action, Bytes, Input, Store};
use martlet_sim::linearizability::{Operation, OperationOf, Outcome as Ending, Verdict, check};

use super::clients;
use crate::trial::caller::{Caller, Reply};

/// One client's operation.
pub type Op = OperationOf<Store>;

/// What kind of load.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// How many keys each round has. Every round has keys of its own.
    pub keys: u64,
    /// How many requests in a hundred read.
    pub reads: u8,
    /// How many of the clients only read: the last ones.
    pub readers: usize,
    /// Between two requests of a client.
    pub pause: Duration,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// What one client did in one round.
#[derive(Debug)]
pub struct Recording {
    /// Its operations, in order.
    pub history: Vec<Op>,
    /// How long reads with a reply took, in nanoseconds.
    pub reads: Histogram<u64>,
    /// How long changes with a reply took, in nanoseconds.
    pub changes: Histogram<u64>,
    /// Requests that were refused, and so did not happen; and the last reason.
    pub refused: (u64, Option<String>),
}

impl Recording {
    fn new() -> Recording {
        let histogram = || Histogram::new(3).expect("three digits are supported");
        Recording { history: Vec::new(), reads: histogram(), changes: histogram(), refused: (0, None) }
    }

    /// Requests without a reply.
    pub fn unknown(&self) -> usize {
        self.history.iter().filter(|op| op.outcome == Ending::Unknown).count()
    }
}

/// Makes requests about the keys of one round until told to stop.
pub fn drive(
    caller: &mut dyn Caller,
    client: u64,
    round: u64,
    mix: Mix,
    seed: u64,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Recording {
    let mut rng = fastrand::Rng::with_seed(seed ^ client.rotate_left(32) ^ round);
    let mut recording = Recording::new();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let key = key_of(round, rng.u64(..mix.keys));
        // Every value is somebody's own, so that a read says whose it was.
        let action = action(&mut rng, mix, &format!("{client}.{number}."));
        let is_acknowledged = one(caller, client, Input { key, action }, &mut recording);
        acknowledged.fetch_add(u64::from(is_acknowledged), Ordering::Relaxed);
        if !mix.pause.is_zero() {
            std::thread::sleep(mix.pause);
        }
    }
    recording
}

/// How many requests in a row without a reply say that none of the others will have one: each waits for as long as a client has patience.
const UNANSWERED: u32 = 2;

/// Does that with every key of a round once, and records it; not with the rest of them where nobody answers.
fn with_each(caller: &mut dyn Caller, client: u64, round: u64, mix: Mix, action: &Action) -> Recording {
    let mut recording = Recording::new();
    let mut unanswered = 0;
    for key in 0..mix.keys {
        let refused = recording.refused.0;
        let is_acknowledged = one(caller, client, Input { key: key_of(round, key), action: action.clone() }, &mut recording);
        let is_answered = is_acknowledged || recording.refused.0 > refused;
        unanswered = if is_answered { 0 } else { unanswered + 1 };
        if unanswered == UNANSWERED {
            break;
        }
    }
    recording
}

/// Reads every key of a round once: what is left at its end is part of its history.
pub fn audit(caller: &mut dyn Caller, client: u64, round: u64, mix: Mix) -> Recording {
    with_each(caller, client, round, mix, &Action::Get)
}

/// Removes every key of a round. One that a request without a reply writes later stays.
pub fn remove(caller: &mut dyn Caller, client: u64, round: u64, mix: Mix) {
    with_each(caller, client, round, mix, &Action::Delete);
}

fn key_of(round: u64, key: u64) -> Bytes {
    Bytes::from(&format!("r{round}:k{key}"))
}

fn action(rng: &mut fastrand::Rng, mix: Mix, own: &str) -> Action {
    if rng.u8(..100) < mix.reads {
        return Action::Get;
    }
    let value = || {
        let mut value = own.as_bytes().to_vec();
        value.resize(value.len().max(mix.value_bytes), b'.');
        Bytes::from(&value)
    };
    match rng.u8(..100) {
        0..70 => Action::Put(value()),
        70..80 => Action::Delete,
        80..90 => Action::Append(own.into()),
        _ => Action::CompareAndSwap { expected: None, new: value() },
    }
}

/// Makes a request. Returns whether it was acknowledged.
fn one(caller: &mut dyn Caller, client: u64, input: Input, recording: &mut Recording) -> bool {
    let called = clock::now();
    let reply = caller.call(&input);
    let at = clock::now();
    let outcome = match reply {
        Reply::Output(output) => {
            let latencies = if input.action == Action::Get { &mut recording.reads } else { &mut recording.changes };
            latencies.record(at.since(called)).expect("auto-resizing");
            Ending::Returned { at_ns: at.0, output }
        }
        // A read without a reply says nothing.
        Reply::Unknown if input.action == Action::Get => return false,
        Reply::Unknown => Ending::Unknown,
        Reply::Refused(why) => {
            recording.refused = (recording.refused.0 + 1, Some(why));
            return false;
        }
    };
    let is_acknowledged = outcome != Ending::Unknown;
    recording.history.push(Operation { client, called_ns: called.0, input, outcome });
    is_acknowledged
}

/// Runs the clients, each on a thread of its own, while `meanwhile` runs here. Returns what they recorded and what `meanwhile` returned; the
/// clients come back for the next round.
pub fn round<C: Caller + Send, T>(
    callers: &mut [C],
    round: u64,
    mix: Mix,
    seed: u64,
    meanwhile: impl FnOnce(&AtomicU64) -> Outcome<T>,
) -> Outcome<(Vec<Recording>, T)> {
    let stop = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    let begin = Barrier::new(callers.len() + 1);
    let first_reader = (callers.len() - mix.readers.min(callers.len())) as u64 + 1;
    std::thread::scope(|scope| {
        let threads: Vec<_> = callers
            .iter_mut()
            .zip(1..)
            .map(|(caller, client)| {
                let (stop, begin, acknowledged) = (&stop, &begin, &acknowledged);
                let mix = if client < first_reader { mix } else { Mix { reads: 100, ..mix } };
                scope.spawn(move || {
                    // Without it the latencies are worse, and still true.
                    let _ = clients::hurry();
                    begin.wait();
                    drive(caller, client, round, mix, seed, stop, acknowledged)
                })
            })
            .collect();
        begin.wait();
        let result = meanwhile(&acknowledged);
        stop.store(true, Ordering::Relaxed);
        let recordings = threads.into_iter().map(|thread| thread.join().map_err(|_| Fail::failed("a client panicked")));
        let recordings = recordings.collect::<Outcome<Vec<_>>>()?;
        Ok((recordings, result?))
    })
}

/// Judges what all clients saw in a round.
pub fn judge(recordings: &[Recording], seed: u64) -> Outcome<usize> {
    let history: Vec<Op> = recordings.iter().flat_map(|recording| recording.history.iter().cloned()).collect();
    match check(&Store, &history) {
        Verdict::Linearizable => Ok(history.len()),
        Verdict::Violation(violation) => Err(Fail::wrong(format_args!("the store is not linearizable (seed {seed}):\n{violation}"))),
        Verdict::Undecided { key, steps } => {
            Err(Fail::wrong(format_args!("no order was found for the replies on key {key:?} within {steps} steps (seed {seed})")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use martlet_cluster::fail::Kind;
    use martlet_sim::linearizability::Model as _;
    use martlet_sim::linearizability::kv::Output;

    use super::*;

    type Held = Arc<Mutex<BTreeMap<Bytes, Option<Bytes>>>>;

    /// A store behind a lock; the sick one forgets a write now and then.
    struct InMemory {
        held: Held,
        sick: bool,
        calls: u64,
    }

    impl Caller for InMemory {
        fn call(&mut self, input: &Input) -> Reply {
            self.calls += 1;
            let mut held = self.held.lock().expect("not poisoned");
            let state = held.entry(input.key.clone()).or_default();
            let outputs = match &input.action {
                Action::Get => vec![Output::Value(state.clone())],
                Action::Put(_) => vec![Output::Done],
                Action::Append(more) => vec![Output::Length((state.as_ref().map_or(0, |s| s.0.len()) + more.0.len()) as u64)],
                _ => vec![Output::Changed(true), Output::Changed(false)],
            };
            let (output, next) =
                outputs.into_iter().find_map(|output| Some((output.clone(), Store.step(state, input, Some(&output))?))).expect("one fits");
            if !(self.sick && self.calls.is_multiple_of(50)) {
                *state = next;
            }
            Reply::Output(output)
        }
    }

    fn run(sick: bool) -> Outcome<usize> {
        let held = Held::default();
        let mut callers: Vec<InMemory> = (0..3).map(|_| InMemory { held: Arc::clone(&held), sick, calls: 0 }).collect();
        let mix = Mix { keys: 8, reads: 50, readers: 1, pause: Duration::ZERO, value_bytes: 16 };
        let (mut recordings, ()) = round(&mut callers, 1, mix, 42, |acknowledged| {
            // On a busy machine the client that only reads may be the only one that runs for a while.
            let is_written = || held.lock().expect("not poisoned").values().any(Option::is_some);
            while acknowledged.load(Ordering::Relaxed) < 6_000 || !is_written() {
                std::thread::yield_now();
            }
            Ok(())
        })?;
        let reads = |recording: &Recording| recording.history.iter().all(|op| op.input.action == Action::Get);
        let (reader, others) = recordings.split_last().expect("three");
        assert!(reads(reader), "the last one only reads");
        assert!(!others.iter().all(reads), "and the others do not");
        recordings.push(audit(&mut callers[0], 9, 1, mix));
        judge(&recordings, 42)
    }

    #[test]
    fn a_sound_store_passes() {
        assert!(run(false).expect("linearizable") >= 6_000);
    }

    /// The canary: a store that loses acknowledged writes must not pass.
    #[test]
    fn a_store_that_forgets_is_found_out() {
        let fail = run(true).expect_err("writes are lost");
        assert_eq!(fail.kind(), Kind::Wrong);
        assert!(fail.to_string().contains("seed 42"), "{fail}");
    }

    /// A cluster that does not answer, but for one request of so many.
    struct Silent {
        one_of: u64,
        answer: fn() -> Reply,
        calls: u64,
    }

    impl Caller for Silent {
        fn call(&mut self, _: &Input) -> Reply {
            self.calls += 1;
            if self.calls.is_multiple_of(self.one_of) { (self.answer)() } else { Reply::Unknown }
        }
    }

    #[test]
    fn the_rest_of_the_keys_is_not_asked_about_where_nobody_answers() {
        let mix = Mix { keys: 24, reads: 50, readers: 0, pause: std::time::Duration::ZERO, value_bytes: 8 };
        let answers: [fn() -> Reply; 2] = [|| Reply::Output(Output::Value(None)), || Reply::Refused("nobody leads".into())];
        for answer in answers {
            for (one_of, asked) in [(u64::MAX, 2), (2, 24), (1, 24)] {
                let mut silent = Silent { one_of, answer, calls: 0 };
                audit(&mut silent, 0, 1, mix);
                assert_eq!(silent.calls, asked, "one of {one_of} is answered");
            }
        }
    }
}
