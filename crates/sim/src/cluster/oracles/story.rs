//! The story of a life, for people who want to understand it: one line for everything that matters.

use std::cell::RefCell;
use std::fmt::Write;

use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::{Milestone, View};

thread_local! {
    /// The story of the life that this thread is running, and the virtual time of its last line: it survives a broken invariant.
    static TOLD: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// The story of the life that this thread ran last, and the virtual time of its last line.
pub fn told_so_far() -> (u64, String) {
    TOLD.with_borrow(Clone::clone)
}

/// Whether the story is told.
#[derive(Debug, Default)]
pub struct Story {
    is_told: bool,
}

impl Story {
    /// Begins a new life: forgets the story of the previous one, and tells this one if that is wanted.
    pub fn begin(&mut self, is_told: bool) {
        TOLD.with_borrow_mut(|(at, told)| {
            *at = 0;
            told.clear();
        });
        self.is_told = is_told;
    }

    /// Whether the story is told.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// Tells something that has happened.
    pub fn tell(&mut self, at_ns: u64, what: impl FnOnce() -> String) {
        if self.is_told {
            let what = what();
            TOLD.with_borrow_mut(|(at, told)| {
                *at = at_ns;
                let _ = writeln!(told, "{:>6}.{:03} us  {what}", at_ns / 1000, at_ns % 1000);
            });
        }
    }

    /// Tells of a step towards a view.
    pub fn step(&mut self, at_ns: u64, by: ProcessId, milestone: Milestone) {
        match milestone {
            Milestone::DeathSeen(process, evidence) => self.tell(at_ns, || format!("{by} sees {process} to be {evidence}")),
            Milestone::Proposed(view) => self.tell(at_ns, || format!("{by} proposes view {view}")),
            Milestone::Decided(view) => self.tell(at_ns, || format!("{by} has got view {view} decided")),
            // The oracles tell what follows from these.
            Milestone::Acknowledged(_) | Milestone::Active(_) => {}
        }
    }

    /// Tells of a view that no process knew before.
    pub fn learned(&mut self, at_ns: u64, by: ProcessId, view: &View) {
        self.tell(at_ns, || {
            let members: Vec<String> = view.members.iter().map(|m| format!("{} {}", m.id, m.roles)).collect();
            let departed: Vec<String> = view.departed.iter().map(|d| format!("{} {}", d.id, d.evidence)).collect();
            let departed = if departed.is_empty() { String::new() } else { format!("; departed: {}", departed.join(", ")) };
            format!("{by} is the first to learn view {}: {}{departed}", view.number, members.join(", "))
        });
    }
}
