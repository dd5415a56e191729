//! Shrinks a life that went wrong to a smaller one that goes wrong in the same way: a shorter life, with fewer faults, requests, clients, keys and nodes.
//!
//! When something is left out, the rest keeps its own source of randomness, so much of the life stays as it was. Still, a candidate proves itself only by
//! running: it is kept if the same property is violated.

use std::sync::atomic::{AtomicBool, Ordering};

use super::attempt::{Told, attempt};
use crate::cluster::{Fault, Kind, Mask, Plan, Property, Report};

/// The smallest life found.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The plan that repeats it.
    pub plan: Plan,
    /// What it comes to.
    pub report: Report,
    /// Its story.
    pub story: String,
    /// How many lives were run on the way.
    pub lives: u32,
}

struct Shrinker<'a> {
    kind: &'a Kind,
    property: Property,
    plan: Plan,
    report: Report,
    lives: u32,
    most: u32,
    stop: &'a AtomicBool,
}

/// Looks for a smaller life that violates the same property, in at most `most` lives, or until `stop` is set. If the life of `plan` itself no longer violates
/// anything, returns that life.
pub fn shrink(kind: &Kind, plan: &Plan, most: u32, stop: &AtomicBool) -> Shrunk {
    let plan = Plan { narrate: false, ..plan.clone() };
    let Told { report, .. } = attempt(kind, &plan);
    let (mut plan, mut lives) = (plan, 1);
    if let Some(violation) = &report.violation {
        let mut shrinker = Shrinker { kind, property: violation.property, plan, report, lives, most, stop };
        shrinker.run();
        (plan, lives) = (shrinker.plan, shrinker.lives);
    }
    plan.narrate = true;
    let Told { report, story } = attempt(kind, &plan);
    Shrunk { plan, report, story, lives: lives + 1 }
}

impl Shrinker<'_> {
    fn run(&mut self) {
        loop {
            let before = self.plan.changes.clone();
            self.shorten();
            self.leave_out_kinds();
            self.leave_out_single();
            self.have_fewer();
            if self.plan.changes == before || self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.lives >= self.most || self.stop.load(Ordering::Relaxed)
    }

    /// Runs a candidate, and keeps it if it goes wrong in the same way.
    fn try_out(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan);
        if plan.changes == self.plan.changes || self.is_over() {
            return false;
        }
        self.lives += 1;
        let Told { report, .. } = attempt(self.kind, &plan);
        let same = report.violation.as_ref().is_some_and(|violation| violation.property == self.property);
        if same {
            (self.plan, self.report) = (plan, report);
        }
        same
    }

    /// Ends the trouble at the violation, or a good deal earlier.
    fn shorten(&mut self) {
        loop {
            let at = self.report.violation.as_ref().map_or(0, |violation| violation.at_ns);
            let present = self.plan.changes.trouble_ns.unwrap_or(u64::MAX);
            if at < present && self.try_out(|plan| plan.changes.trouble_ns = Some(at)) {
                continue;
            }
            let present = self.plan.changes.trouble_ns.unwrap_or(at).min(at);
            let shorter = [present / 2, present / 4 * 3, present / 10 * 9];
            if !shorter.into_iter().any(|ns| self.try_out(|plan| plan.changes.trouble_ns = Some(ns))) {
                return;
            }
        }
    }

    fn leave_out_kinds(&mut self) {
        for fault in Fault::ALL {
            if !self.plan.changes.lacks(fault) {
                self.try_out(|plan| {
                    plan.changes.without.retain(|mask| mask.fault != fault);
                    plan.changes.without.push(Mask { fault, nth: None });
                });
            }
        }
    }

    /// Leaves out single faults, at first many at a time.
    fn leave_out_single(&mut self) {
        let struck = |report: &Report| -> Vec<Mask> {
            let single = |fault: Fault| (0..report.struck.of(fault) as u32).map(move |nth| Mask { fault, nth: Some(nth) });
            Fault::ALL.into_iter().filter(|fault| fault.is_event()).flat_map(single).collect()
        };
        let mut size = struck(&self.report).len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            loop {
                let changes = &self.plan.changes;
                let left: Vec<Mask> =
                    struck(&self.report).into_iter().filter(|mask| !changes.lacks_one(mask.fault, mask.nth.unwrap_or(0))).collect();
                let Some(some) = left.get(at..(at + size).min(left.len())).filter(|some| !some.is_empty()) else { break };
                let some = some.to_vec();
                if !self.try_out(|plan| plan.changes.without.extend(some)) {
                    at += size;
                }
                if self.is_over() {
                    return;
                }
            }
            size /= 2;
        }
    }

    /// Tries fewer nodes, clients, keys and requests.
    fn have_fewer(&mut self) {
        for nodes in 2..5 {
            if self.try_out(|plan| plan.changes.nodes = Some(plan.changes.nodes.unwrap_or(u16::MAX).min(nodes))) {
                break;
            }
        }
        for few in [1, 2, 3] {
            if self.try_out(|plan| plan.changes.clients = Some(plan.changes.clients.unwrap_or(u64::MAX).min(few))) {
                break;
            }
        }
        for few in [1, 2, 3] {
            if self.try_out(|plan| plan.changes.keys = Some(plan.changes.keys.unwrap_or(u64::MAX).min(few))) {
                break;
            }
        }
        loop {
            let present = self.plan.changes.operations.unwrap_or(self.report.replies + self.report.unknown);
            let fewer = [0, present / 2, present / 4 * 3, present.saturating_sub(1)];
            if !fewer.into_iter().filter(|n| *n < present).any(|n| self.try_out(|plan| plan.changes.operations = Some(n))) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Canary, KINDS};

    #[test]
    fn a_canary_is_shrunk_to_a_smaller_life_that_repeats() {
        let kind = &KINDS[0];
        let wrong = |seed| {
            let plan = Plan { canary: Some(Canary::FalseCertainty), ..Plan::new(seed) };
            let report = attempt(kind, &plan).report;
            let found = report.violation.as_ref().is_some_and(|violation| violation.property == Property::OneActiveView);
            (found && report.faults.events() >= 8).then_some((plan, report))
        };
        let (plan, before) = (0..300).find_map(wrong).expect("a canary that is found");
        let shrunk = shrink(kind, &plan, 300, &AtomicBool::new(false));
        let violation = shrunk.report.violation.as_ref().expect("the same violation");
        assert_eq!(violation.property, Property::OneActiveView);
        assert!(shrunk.lives > 10 && shrunk.lives <= 302, "{} lives", shrunk.lives);
        assert!(shrunk.report.faults.events() * 2 <= before.faults.events(), "{:?} of {:?}", shrunk.report.faults, before.faults);
        assert!(shrunk.report.length_ns <= before.length_ns && shrunk.report.replies < before.replies);
        assert!(shrunk.story.contains("VIOLATED one-active-view"), "{}", shrunk.story);
        // The shrunk plan alone must repeat the violation.
        let again = attempt(kind, &shrunk.plan);
        assert_eq!((again.report.digest, &again.story), (shrunk.report.digest, &shrunk.story));
    }
}
