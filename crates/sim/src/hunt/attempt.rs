//! One life that may break an invariant: a broken invariant ends the life as any violation does.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::cluster::{Kind, Plan, Property, Report, Violation, told_so_far};

/// A life and its story.
#[derive(Clone, Debug)]
pub struct Told {
    /// What it came to. After a broken invariant the report says only that.
    pub report: Report,
    /// The story, if the plan asks for it.
    pub story: String,
}

thread_local! {
    /// The message of the panic that is unwinding this thread; `None` outside of a life.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// While a thread runs a life, its panics are noted and not printed.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let noted = PANIC.with_borrow_mut(|panic| panic.as_mut().map(|noted| *noted = info.to_string()).is_some());
            if !noted {
                usual(info);
            }
        }));
    });
}

/// Calls `what`. If it panics, returns the panic's message, with the virtual time and the story up to that point.
pub(super) fn catch<R>(what: impl FnOnce() -> R) -> Result<R, (u64, String, String)> {
    note_panics();
    PANIC.set(Some(String::new()));
    let done = catch_unwind(AssertUnwindSafe(what));
    let panic = PANIC.take().unwrap_or_default();
    done.map_err(|_| {
        let (at_ns, mut story) = told_so_far();
        story += &format!("VIOLATED {}: {panic}\n", Property::Invariant);
        (at_ns, panic, story)
    })
}

/// Runs the life of a plan. Needs a build in which panics unwind.
pub fn attempt(kind: &Kind, plan: &Plan) -> Told {
    match catch(|| kind.live(plan)) {
        Ok((report, story)) => Told { report, story },
        Err((at_ns, what, story)) => {
            let violation = Some(Violation { at_ns, property: Property::Invariant, what });
            let story = if plan.narrate { story } else { String::new() };
            Told { report: Report { seed: plan.seed, violation, ..Report::default() }, story }
        }
    }
}
