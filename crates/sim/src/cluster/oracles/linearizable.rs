//! What the clients saw has an order. The checker is [`linearizability`](crate::linearizability), which is cross-checked with porcupine.
//!
//! Requests without a reply cost the checker time: each may have taken effect at any moment since, or never. Where a history has so many of them that the
//! search would take too long, the committed log says which writes never took effect, and those are left out. If a history is undecided even then, it is
//! counted, but is no violation.

use crate::linearizability::kv::{Action, Input, Output, Store};
use crate::linearizability::{DEFAULT_STEPS, Operation, Outcome, Verdict, check_within};

/// How many steps a first attempt may take: all but a few histories need no more, and it is done in some milliseconds.
const FIRST_STEPS: u64 = 200_000;

/// One operation of a client, with the number that the client gave it.
pub type Recorded = (u64, Operation<Input, Output>);

/// Judges a history of all clients. `took_effect` says whether a client's write is in the committed log; it is given only if the whole committed log is known.
/// Returns whether the history was decided.
pub fn judge(history: &[Recorded], took_effect: Option<impl Fn(u64, u64) -> bool>) -> Result<bool, String> {
    let without_reply = |operation: &Operation<Input, Output>| matches!(operation.outcome, Outcome::Unknown);
    // A read without a reply carries no information.
    let says_nothing = |operation: &Operation<Input, Output>| without_reply(operation) && operation.input.action == Action::Get;
    let told: Vec<&Recorded> = history.iter().filter(|(_, operation)| !says_nothing(operation)).collect();
    let operations = |kept: &[&Recorded]| kept.iter().map(|(_, operation)| operation.clone()).collect::<Vec<_>>();
    let verdict = match (check_within(&Store, &operations(&told), FIRST_STEPS), took_effect) {
        (Verdict::Undecided { .. }, Some(took_effect)) => {
            let happened = |(number, operation): &&&Recorded| !without_reply(operation) || took_effect(operation.client, *number);
            let kept: Vec<&Recorded> = told.iter().filter(happened).copied().collect();
            check_within(&Store, &operations(&kept), DEFAULT_STEPS / 10)
        }
        (verdict, _) => verdict,
    };
    match verdict {
        Verdict::Linearizable => Ok(true),
        Verdict::Violation(why) => Err(format!("what clients saw has no order: {why}")),
        Verdict::Undecided { .. } => Ok(false),
    }
}
