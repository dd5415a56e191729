//! What the kernel's programs have marked about whole processes: that they have ended, and that none of their threads runs any more while they dump core.

use martlet_fabric::host::marks::{Marks, Moment, Wish};
use rustix::time::Timespec;

use super::Desk;
use super::lives::Life;
use crate::board::{Evidence, State};
use crate::process::{is_over, numbers_of};

/// When to look again after some thread of a process was found dead and another one was not: that one may be about to die.
pub(super) const LOOKS_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// How often to look again.
const LOOKS: u8 = 20;

/// How marks identify a process, and what the bell rings for.
#[derive(Debug)]
pub(super) struct MarkedAs {
    process: u32,
    /// A moment at which the process already had that number.
    since: Moment,
    wishes: Vec<Wish>,
}

/// What the marks say about a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Nothing,
    /// Its first thread has died.
    Partial,
    Over,
}

fn judge(marks: &Marks, life: &Life) -> Verdict {
    let Some(MarkedAs { process, since, .. }) = life.marked_as.as_ref().filter(|_| life.state == State::Alive) else {
        return Verdict::Nothing;
    };
    if marks.has_ended(*process, *since) {
        return Verdict::Over;
    }
    match marks.has_died(*process, *since) {
        // Either the number is still this process's own, or this process has ended: in both cases it is over.
        true if is_over(*process) => Verdict::Over,
        true => Verdict::Partial,
        false => Verdict::Nothing,
    }
}

impl Desk {
    /// Sets what the bell rings for in a life of this host: the end of its process if no words tell that its threads have died, and whatever delays its words.
    pub(super) fn suit_wishes(&mut self, index: u16) {
        let (Some(marker), Some(life)) = (self.marker.clone(), self.lives.get_mut(&index)) else { return };
        let program = life.program.and_then(|program| self.programs.get(&program));
        let has_words = program.is_some_and(|program| !program.words.is_empty());
        let wanted: &[Wish] = match life.state {
            State::Alive if life.host != 0 => &[],
            State::Alive if has_words => &[Wish::Dump],
            State::Alive => &[Wish::Dump, Wish::End],
            State::Free | State::Awaited | State::Failed | State::Left => &[],
        };
        if life.marked_as.is_none() && !wanted.is_empty() && life.pid != 0 && numbers_of(life.pid) == Some(1) {
            let (process, since) = (life.pid, marker.marks().now());
            life.marked_as = Some(MarkedAs { process, since, wishes: Vec::new() });
        }
        let Some(known) = &mut life.marked_as else { return };
        for wish in wanted.iter().filter(|wish| !known.wishes.contains(wish)) {
            marker.wish(known.process, *wish);
        }
        for wish in known.wishes.iter().filter(|wish| !wanted.contains(wish)) {
            marker.unwish(known.process, *wish);
        }
        wanted.clone_into(&mut known.wishes);
        if wanted.is_empty() {
            life.marked_as = None;
        }
    }

    /// The bell no longer rings for a slot's life.
    pub(super) fn unwish(&mut self, index: u16) {
        let (Some(marker), Some(life)) = (&self.marker, self.lives.get_mut(&index)) else { return };
        if let Some(known) = life.marked_as.take() {
            known.wishes.iter().for_each(|wish| marker.unwish(known.process, *wish));
        }
    }

    /// Ends the lives that have ended according to the marks. `heard`: the bell may have rung.
    pub(super) fn look_at_marks(&mut self, heard: bool) {
        let Some(marker) = self.marker.clone().filter(|_| heard || self.looks > 0) else { return };
        let verdicts: Vec<(u16, Verdict)> = self.lives.iter().map(|(index, life)| (*index, judge(marker.marks(), life))).collect();
        self.looks = match verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Partial) {
            true if heard => LOOKS,
            true => self.looks - 1,
            false => 0,
        };
        if self.looks == 0 {
            // Its first thread alone has ended, or the process runs another program: it is watched again from the beginning.
            for (index, _) in verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Partial) {
                if let Some(known) = self.lives.get_mut(index).and_then(|life| life.marked_as.as_mut()) {
                    known.since = marker.marks().now();
                }
            }
        }
        for (index, _) in verdicts.into_iter().filter(|(_, verdict)| *verdict == Verdict::Over) {
            match self.lives.get(&index).and_then(|life| life.program) {
                // What it sent last has to be taken first.
                Some(program) => self.process_ended(program, Evidence::Marks),
                None => self.end(index, State::Failed, Some(Evidence::Marks)),
            }
        }
    }
}
