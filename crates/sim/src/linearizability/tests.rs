//! Known histories, good and bad, and the checker compared with one that tries every order.

use super::kv::{Action, Bytes, Input, Output, Store};
use super::{Model, Operation, OperationOf, Outcome, Verdict, Violation, check, check_within};

type Op = OperationOf<Store>;

fn op(client: u64, called_ns: u64, key: &str, action: Action, outcome: Outcome<Output>) -> Op {
    Operation { client, called_ns, input: Input { key: key.into(), action }, outcome }
}

fn returned(at_ns: u64, output: Output) -> Outcome<Output> {
    Outcome::Returned { at_ns, output }
}

fn put(client: u64, from: u64, to: u64, value: &str) -> Op {
    op(client, from, "k", Action::Put(value.into()), returned(to, Output::Done))
}

fn lost_put(client: u64, from: u64, value: &str) -> Op {
    op(client, from, "k", Action::Put(value.into()), Outcome::Unknown)
}

fn get(client: u64, from: u64, to: u64, value: Option<&str>) -> Op {
    op(client, from, "k", Action::Get, returned(to, Output::Value(value.map(Into::into))))
}

fn good(history: &[Op]) {
    let verdict = check(&Store, history);
    assert!(verdict.is_linearizable(), "{verdict:?}");
}

fn bad(history: &[Op]) -> Violation<Store> {
    match check(&Store, history) {
        Verdict::Violation(violation) => *violation,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_empty_history_is_fine() {
    good(&[]);
}

#[test]
fn a_read_sees_the_last_write() {
    good(&[put(1, 0, 10, "a"), get(2, 20, 30, Some("a")), put(1, 40, 50, "b"), get(2, 60, 70, Some("b"))]);
}

#[test]
fn a_stale_read_is_found() {
    let history = [put(1, 0, 10, "a"), put(1, 20, 30, "b"), get(2, 40, 50, Some("a")), put(1, 60, 70, "c"), get(2, 80, 90, Some("c"))];
    let violation = bad(&history);
    assert_eq!(violation.prefix.len(), 3, "the prefix ends with the stale read");
    assert_eq!(violation.prefix[violation.culprit], history[2]);
    assert_eq!(violation.state, Some("b".into()));
    assert_eq!(violation.left_out().collect::<Vec<_>>(), [&history[2]]);
}

#[test]
fn a_lost_acknowledged_write_is_found() {
    bad(&[put(1, 0, 10, "a"), get(2, 20, 30, None)]);
}

#[test]
fn overlapping_operations_have_either_order() {
    good(&[put(1, 0, 100, "a"), put(2, 0, 100, "b"), get(3, 110, 120, Some("a"))]);
    good(&[put(1, 0, 100, "a"), put(2, 0, 100, "b"), get(3, 110, 120, Some("b"))]);
    good(&[put(1, 0, 100, "a"), get(2, 10, 20, None), get(2, 30, 40, Some("a"))]);
}

#[test]
fn reads_do_not_go_back() {
    bad(&[put(1, 0, 5, "a"), put(1, 10, 100, "b"), get(2, 20, 30, Some("b")), get(3, 40, 50, Some("a"))]);
}

#[test]
fn two_readers_agree_on_the_order_of_writes() {
    let writes = [put(1, 0, 100, "a"), put(2, 0, 100, "b")];
    let reads = [get(3, 10, 20, Some("a")), get(3, 30, 40, Some("b")), get(4, 10, 25, Some("b")), get(4, 30, 45, Some("a"))];
    bad(&[&writes[..], &reads[..]].concat());
}

#[test]
fn a_touching_return_and_call_count_as_overlapping() {
    // The clock's granularity must not cause a false alarm.
    good(&[put(1, 0, 10, "a"), put(2, 10, 20, "b"), get(3, 30, 40, Some("a"))]);
}

#[test]
fn a_write_without_a_reply_may_have_happened_or_not() {
    good(&[put(1, 0, 10, "a"), lost_put(2, 20, "b"), get(1, 30, 40, Some("a"))]);
    good(&[put(1, 0, 10, "a"), lost_put(2, 20, "b"), get(1, 30, 40, Some("b"))]);
    good(&[put(1, 0, 10, "a"), lost_put(2, 20, "b"), get(1, 30, 40, Some("a")), get(1, 500, 510, Some("b"))]);
}

#[test]
fn a_write_without_a_reply_happens_at_most_once_and_not_before_its_call() {
    bad(&[lost_put(2, 20, "b"), get(1, 30, 40, Some("b")), put(1, 50, 60, "c"), get(1, 70, 80, Some("b"))]);
    bad(&[get(1, 0, 10, Some("b")), lost_put(2, 20, "b")]);
}

#[test]
fn a_repeated_increment_is_found() {
    let add = |from, to, sum| op(1, from, "k", Action::Add(1), returned(to, Output::Number(sum)));
    good(&[add(0, 10, 1), add(20, 30, 2)]);
    bad(&[add(0, 10, 1), add(20, 30, 3)]);
    good(&[add(0, 10, 1), op(2, 5, "k", Action::Add(1), Outcome::Unknown), add(20, 30, 3)]);
}

#[test]
fn every_action_has_its_meaning() {
    let step = |state: Option<&str>, action: Action| {
        let input = Input { key: "k".into(), action };
        let state = state.map(Bytes::from);
        let outputs = [Output::Done, Output::Changed(true), Output::Changed(false), Output::Refused, Output::Number(7), Output::Length(3)];
        let found: Vec<_> = outputs.iter().filter_map(|output| Some((output.clone(), Store.step(&state, &input, Some(output))?))).collect();
        assert_eq!(found.len(), 1, "exactly one of these replies fits");
        found.into_iter().next().expect("one")
    };
    let swap = |expected: Option<&str>, new: &str| Action::CompareAndSwap { expected: expected.map(Bytes::from), new: new.into() };
    assert_eq!(step(None, Action::Delete), (Output::Changed(false), None));
    assert_eq!(step(Some("a"), Action::Delete), (Output::Changed(true), None));
    assert_eq!(step(Some("a"), swap(Some("a"), "b")), (Output::Changed(true), Some("b".into())));
    assert_eq!(step(Some("a"), swap(None, "b")), (Output::Changed(false), Some("a".into())));
    assert_eq!(step(None, swap(None, "b")), (Output::Changed(true), Some("b".into())));
    assert_eq!(step(Some("4"), Action::Add(3)), (Output::Number(7), Some("7".into())));
    assert_eq!(step(Some("x"), Action::Add(3)), (Output::Refused, Some("x".into())));
    assert_eq!(step(Some("9223372036854775807"), Action::Add(1)), (Output::Refused, Some("9223372036854775807".into())));
    assert_eq!(step(Some("a"), Action::Append("bc".into())), (Output::Length(3), Some("abc".into())));
    assert_eq!(step(None, Action::Put("a".into())), (Output::Done, Some("a".into())));
}

#[test]
fn keys_are_judged_by_themselves() {
    let on = |key: &str, mut op: Op| {
        op.input.key = key.into();
        op
    };
    good(&[on("a", put(1, 0, 10, "1")), on("b", get(2, 20, 30, None))]);
    let violation = bad(&[on("a", put(1, 0, 10, "1")), on("b", put(1, 0, 10, "1")), on("b", get(2, 20, 30, None))]);
    assert_eq!(violation.key, "b".into());
}

#[test]
fn the_explanation_names_the_reply_that_nothing_explains() {
    let text = bad(&[put(1, 0, 1000, "a"), put(1, 2000, 3000, "b"), get(2, 4000, 5000, Some("a"))]).to_string();
    assert_eq!(
        text,
        "no order explains the replies for key \"k\"; times are microseconds from the key's first call\n\
         the first 3 operations have an order only without the reply to\n  \
         [4.0 .. 5.0] client 2: Get -> Value(Some(\"a\"))\n\
         the longest order holds 2 of them\n  \
         [0.0 .. 1.0] client 1: Put(\"a\") -> Done\n  \
         [2.0 .. 3.0] client 1: Put(\"b\") -> Done\n\
         after which the key holds Some(\"b\"), and these cannot follow\n  \
         [4.0 .. 5.0] client 2: Get -> Value(Some(\"a\"))\n"
    );
}

#[test]
fn giving_up_is_not_a_verdict() {
    let history: Vec<Op> = (0..20).map(|i| put(i, 0, 1000, &i.to_string())).chain([get(99, 2000, 2001, Some("absent"))]).collect();
    assert!(matches!(check_within(&Store, &history, 50), Verdict::Undecided { steps: 50, .. }));
}

/// Plays a history on one true store. Each client's operation takes effect at a random instant inside its interval; some operations never get a reply.
fn play(rng: &mut fastrand::Rng, operations: usize, clients: u64, keys: usize, crash: f64) -> Vec<Op> {
    let mut free_at = vec![0u64; clients as usize];
    let mut planned: Vec<(u64, u64, u64, u64, Input, bool)> = Vec::new();
    for number in 0..operations {
        let client = rng.u64(..clients);
        let called = free_at[client as usize] + rng.u64(1..50);
        let effect = called + rng.u64(..40);
        let end = effect + rng.u64(..40);
        free_at[client as usize] = end + 1;
        let value = Bytes::from(number.to_string().as_bytes());
        let action = match rng.u8(..10) {
            0..4 => Action::Get,
            4..7 => Action::Put(value),
            7 => Action::Add(1),
            8 => Action::Delete,
            _ => Action::Append("1".into()),
        };
        let lost = rng.f64() < crash;
        let effect = if lost { called + rng.u64(..5000) } else { effect };
        let key = Bytes::from(rng.usize(..keys).to_string().as_bytes());
        planned.push((effect, client, called, end, Input { key, action }, lost));
    }
    planned.sort_by_key(|p| p.0);
    let mut store: std::collections::BTreeMap<Bytes, Option<Bytes>> = std::collections::BTreeMap::new();
    let mut history = Vec::new();
    for (_, client, called_ns, end, input, lost) in planned {
        if lost && rng.bool() {
            history.push(Operation { client, called_ns, input, outcome: Outcome::Unknown });
            continue;
        }
        let held = store.entry(input.key.clone()).or_default();
        let (next, output) = super::kv::execute(held, &input.action);
        *held = next;
        let outcome = if lost { Outcome::Unknown } else { returned(end, output) };
        history.push(Operation { client, called_ns, input, outcome });
    }
    history
}

#[test]
fn true_histories_pass() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let history = play(&mut rng, 300, 5, 3, 0.05);
        let verdict = check(&Store, &history);
        assert!(verdict.is_linearizable(), "seed {seed}: {verdict:?}");
    }
}

#[test]
fn a_hundred_thousand_operations_with_crashes_pass() {
    let mut rng = fastrand::Rng::with_seed(7);
    good(&play(&mut rng, 120_000, 8, 200, 0.01));
    // One hot key, with many replies lost.
    good(&play(&mut rng, 20_000, 8, 1, 0.005));
}

/// The canary on a hot key: writes whose replies were lost could explain almost anything, but not a value that was never written.
#[test]
fn lost_writes_do_not_excuse_a_value_that_nobody_wrote() {
    for seed in 0..5 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = play(&mut rng, 4_000, 6, 1, 0.02);
        history.retain(|op| matches!(op.input.action, Action::Put(_)));
        let lost = history.iter().filter(|op| op.outcome == Outcome::Unknown).count();
        assert!(lost > 10, "there are lost writes");
        good(&history);
        let end = history.iter().map(|op| op.called_ns).max().expect("not empty") + 10_000;
        let mut read = get(5, end, end + 1, Some("nobody's"));
        read.input.key = history[0].input.key.clone();
        history.push(read.clone());
        let violation = bad(&history);
        assert_eq!(violation.prefix[violation.culprit], read);
    }
}

#[test]
fn one_slow_operation_does_not_slow_the_search() {
    let mut history = vec![get(9, 0, 10_000_000, None)];
    history.extend((0..50_000).map(|i| put(1, 10 + i * 20, 20 + i * 20, &i.to_string())));
    good(&history);
}

/// The canary: one stale read hidden in a long history with crashes must be found, and the prefix must end with it.
#[test]
fn a_stale_read_hidden_in_a_long_history_is_found() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = play(&mut rng, 5_000, 6, 4, 0.01);
        let end = history.iter().map(|op| op.called_ns).max().expect("not empty") + 10_000;
        let mid = end / 2;
        // A quiet client writes and reads a key of its own, and once reads a value that it has already overwritten.
        for i in 0..50 {
            let at = mid + i * 100;
            history.push(op(77, at, "own", Action::Put(Bytes::from(&i.to_string())), returned(at + 10, Output::Done)));
            let seen = if i == 40 { i - 1 } else { i };
            let seen = Output::Value(Some(Bytes::from(&seen.to_string())));
            history.push(op(77, at + 50, "own", Action::Get, returned(at + 60, seen)));
        }
        rng.shuffle(&mut history);
        let violation = bad(&history);
        assert_eq!(violation.key, "own".into());
        assert_eq!(violation.prefix.len(), 82, "41 writes and 41 reads");
        assert_eq!(violation.culprit, 81);
    }
}

/// Tries every order. The checker must agree with it on small histories.
fn brute_force(history: &[Op]) -> bool {
    fn go(history: &[Op], placed: u32, state: &Option<Bytes>) -> bool {
        let open = |at: usize| placed & (1 << at) == 0;
        let ends = |op: &Op| if let Outcome::Returned { at_ns, .. } = op.outcome { at_ns } else { u64::MAX };
        let replied = |op: &Op| matches!(op.outcome, Outcome::Returned { .. });
        if (0..history.len()).all(|at| !open(at) || !replied(&history[at])) {
            return true;
        }
        let earliest = (0..history.len()).filter(|&at| open(at)).map(|at| ends(&history[at])).min().expect("one is open");
        (0..history.len()).filter(|&at| open(at) && history[at].called_ns <= earliest).any(|at| {
            let output = if let Outcome::Returned { output, .. } = &history[at].outcome { Some(output) } else { None };
            Store.step(state, &history[at].input, output).is_some_and(|next| go(history, placed | 1 << at, &next))
        })
    }
    go(history, 0, &None)
}

#[test]
fn the_search_agrees_with_trying_every_order() {
    let (mut yes, mut no) = (0, 0);
    for seed in 0..3000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = play(&mut rng, 8, 3, 1, 0.25);
        // Spoil one reply in most of them.
        if rng.u8(..4) > 0 {
            let at = rng.usize(..history.len());
            if let Outcome::Returned { output, .. } = &mut history[at].outcome {
                *output = match output {
                    Output::Value(_) => Output::Value(rng.bool().then(|| Bytes::from(&rng.u8(..8).to_string()))),
                    Output::Changed(changed) => Output::Changed(!*changed),
                    Output::Number(n) => Output::Number(*n + 1),
                    Output::Length(n) => Output::Length(*n + 1),
                    _ => Output::Done,
                };
            }
        }
        let expected = brute_force(&history);
        match check(&Store, &history) {
            Verdict::Linearizable => assert!(expected, "seed {seed}: {history:?}"),
            Verdict::Violation(violation) => {
                assert!(!expected, "seed {seed}: {violation}");
                assert!(!brute_force(&violation.prefix), "seed {seed}: the prefix has an order: {violation}");
            }
            Verdict::Undecided { .. } => panic!("seed {seed}: gave up"),
        }
        if expected { yes += 1 } else { no += 1 }
    }
    assert!(yes > 300 && no > 300, "both kinds were tried: {yes} and {no}");
}
