//! What the clients saw has an order: the checker is [`linearizability`](crate::linearizability), which porcupine cross-checks.
//!
//! Requests without a reply cost the checker time: each may have taken effect at any moment since, or never. Where a history has so many that the
//! search would take too long, the committed log says which writes never took effect, and those are left out. A history that is undecided
//! even then is counted, and is no violation.

use crate::linearizability::kv::{Action, Input, Output, Store};
use crate::linearizability::{DEFAULT_STEPS, Operation, Outcome, Verdict, check_within};

/// Steps of a first look: more than all but a few histories need, and done in some milliseconds.
const FIRST_STEPS: u64 = 200_000;

/// One operation of a client, with its number at that client.
pub type Recorded = (u64, Operation<Input, Output>);

/// Judges a history of all clients. `took_effect` says of a client's write whether it stands in the committed log, if all of that is known.
/// Returns whether the history was decided.
pub fn judge(history: &[Recorded], took_effect: Option<impl Fn(u64, u64) -> bool>) -> Result<bool, String> {
    let without_reply = |operation: &Operation<Input, Output>| matches!(operation.outcome, Outcome::Unknown);
    // A read without a reply says nothing.
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
