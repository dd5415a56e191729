//! What has been handed over to the log's thread, and which of it is next. Pure: the time is an argument.
//!
//! There are two lines. One holds what makes up the log: frames, and the places at which a snapshot begins. The other holds what may wait: the parts of
//! snapshots, their ends, and errands. The log goes before the rest, so that a commit waits at most for the one slice that is being written when it arrives. A
//! snapshot makes progress all the same: when a slice of it is due, the log has one turn, with all that has gathered, and then it is the slice's turn.

use std::collections::VecDeque;

use martlet_protocol::basics::Time;

use super::error::WalError;
use super::log::SLICE_BYTES;

/// A frame that has more bytes than this takes no further append.
const FRAME_BYTES: usize = 4 << 20;
/// A frame is gathered in pieces of so many bytes. A single growing buffer would be moved each time that it is doubled: megabytes of it when the disk has made
/// the log wait, into memory that the kernel has to clear first. That is where a leader spent 2 ms of a turn.
const PIECE_BYTES: usize = 64 << 10;
/// How many buffers of each kind are kept for what comes next: the pieces of a whole frame, and as many parts as a node has on their way, plus those of a
/// slice.
const SPARE_PIECES: usize = FRAME_BYTES / PIECE_BYTES;
const SPARE_PARTS: usize = 24;
/// A buffer that has grown beyond so many bytes is not kept: some parts are as long as the longest value.
const LONGEST_SPARE_BYTES: usize = 1 << 20;

/// A task for the disk that belongs to the log but is not written into it.
pub(super) type Errand = Box<dyn FnOnce() -> Result<(), WalError> + Send>;

/// What is handed over.
pub(super) enum Job {
    /// Bytes of the log, and how many appends there have been, including these.
    Append {
        count: u64,
        bytes: Vec<u8>,
    },
    /// A new segment begins here, and a snapshot with it.
    Begin,
    Later(Later),
}

/// What lets the log go first.
pub(super) enum Later {
    Part(Vec<u8>),
    Finish(Vec<u8>),
    Abandon,
    Errand(Errand),
}

enum Entry {
    Frame(Frame),
    Begin,
}

/// Appends that become a frame.
#[derive(Default)]
pub(super) struct Frame {
    /// How many appends there have been, including these.
    pub count: u64,
    /// Their bytes, in order.
    pub pieces: Vec<Vec<u8>>,
    bytes: usize,
}

impl Frame {
    fn extend(&mut self, count: u64, mut bytes: &[u8], spares: &mut Vec<Vec<u8>>) {
        self.count = count;
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            let room = self.pieces.last().map_or(0, |piece| PIECE_BYTES - piece.len());
            if room == 0 {
                self.pieces.push(spares.pop().unwrap_or_else(|| Vec::with_capacity(PIECE_BYTES)));
                continue;
            }
            let (here, rest) = bytes.split_at(room.min(bytes.len()));
            if let Some(piece) = self.pieces.last_mut() {
                piece.extend_from_slice(here);
            }
            bytes = rest;
        }
    }
}

/// What is to be done next.
pub(super) enum Next {
    Frame(Frame),
    Begin,
    /// To stage these parts, and write a slice of what is staged.
    Slice(Vec<Vec<u8>>),
    Finish(Vec<u8>),
    Abandon,
    Errand(Errand),
    /// Nothing, until something is handed over or, if a time is given, a slice is due.
    Wait(Option<Time>),
    /// Nothing any more.
    End,
}

/// Both lines.
#[derive(Default)]
pub(super) struct Queue {
    log: VecDeque<Entry>,
    /// Each with the number of entries that had been handed over before it in the log's line: it must not overtake any of them.
    later: VecDeque<(u64, Later)>,
    handed: u64,
    taken: u64,
    /// The log has had its turn since the last slice.
    log_was_next: bool,
    spare_pieces: Vec<Vec<u8>>,
    spare_parts: Vec<Vec<u8>>,
    closed: bool,
}

impl Queue {
    /// Takes something. Returns how many parts this makes superfluous.
    pub fn hand(&mut self, job: Job) -> u64 {
        match job {
            Job::Append { count, bytes } => self.append(count, &bytes),
            Job::Begin => {
                self.push(Entry::Begin);
                return self.drop_unfinished();
            }
            Job::Later(later) => {
                let dropped = if matches!(later, Later::Abandon) { self.drop_unfinished() } else { 0 };
                self.later.push_back((self.handed, later));
                return dropped;
            }
        }
        0
    }

    /// As [`Queue::hand`] with an append, whose bytes are copied.
    pub fn append(&mut self, count: u64, bytes: &[u8]) {
        match self.log.back_mut() {
            Some(Entry::Frame(frame)) if frame.bytes + bytes.len() <= FRAME_BYTES => frame.extend(count, bytes, &mut self.spare_pieces),
            _ => {
                let mut frame = Frame::default();
                frame.extend(count, bytes, &mut self.spare_pieces);
                self.push(Entry::Frame(frame));
            }
        }
    }

    fn push(&mut self, entry: Entry) {
        self.handed += 1;
        self.log.push_back(entry);
    }

    /// Drops the parts of a snapshot whose end has not been handed over.
    fn drop_unfinished(&mut self) -> u64 {
        let whole = self.later.iter().rposition(|(_, later)| matches!(later, Later::Finish(_))).map_or(0, |at| at + 1);
        let before = self.later.len();
        let mut at = 0;
        self.later.retain(|(_, later)| {
            at += 1;
            at <= whole || !matches!(later, Later::Part(_))
        });
        (before - self.later.len()) as u64
    }

    /// Nothing more will come. What has been handed over is still done, at once, except for a snapshot whose end was not handed over: it could never be whole.
    pub fn close(&mut self) {
        self.closed = true;
        self.drop_unfinished();
    }

    /// What is next at `now`, when the next slice is `due` and so many bytes of the snapshot are `staged`.
    pub fn next(&mut self, now: Time, due: Time, staged: usize) -> Next {
        let wanted = self.wanted(due, staged);
        let begins = matches!(self.log.front(), Some(Entry::Begin));
        // A snapshot whose end has been handed over must become valid, so it is finished before another takes its place.
        if begins && self.is_next_in_order() {
            return self.take_later(staged);
        }
        let is_due = wanted.is_some_and(|due| due <= now || self.closed);
        if is_due && (self.log_was_next || self.log.is_empty()) {
            self.log_was_next = false;
            return self.take_later(staged);
        }
        if let Some(entry) = self.log.pop_front() {
            self.taken += 1;
            self.log_was_next = true;
            return match entry {
                Entry::Frame(frame) => Next::Frame(frame),
                Entry::Begin => Next::Begin,
            };
        }
        if self.closed && self.later.is_empty() { Next::End } else { Next::Wait(wanted) }
    }

    /// Whether everything of the log that the first waiting entry must not overtake has been taken.
    fn is_next_in_order(&self) -> bool {
        self.later.front().is_some_and(|(after, _)| *after <= self.taken)
    }

    /// When something in the waiting line could be done, if there is anything.
    fn wanted(&self, due: Time, staged: usize) -> Option<Time> {
        let first = self.later.front().filter(|_| self.is_next_in_order());
        match first {
            Some((_, Later::Part(_) | Later::Finish(_))) => Some(due),
            Some((_, Later::Abandon | Later::Errand(_))) => Some(Time(0)),
            // On closing, what will not be finished is not written either.
            None => (staged > 0 && !self.closed).then_some(due),
        }
    }

    fn take_later(&mut self, staged: usize) -> Next {
        let mut parts = Vec::new();
        // These need nothing of what is staged, which may be the rest of a long part that is no longer wanted.
        if self.is_next_in_order() {
            match self.later.pop_front() {
                Some((_, Later::Abandon)) => return Next::Abandon,
                Some((_, Later::Errand(errand))) => return Next::Errand(errand),
                Some(other) => self.later.push_front(other),
                None => {}
            }
        }
        let mut bytes = staged;
        while bytes < SLICE_BYTES && self.is_next_in_order() {
            match self.later.pop_front() {
                Some((_, Later::Part(part))) => {
                    bytes += part.len();
                    parts.push(part);
                }
                Some((_, Later::Finish(last))) if parts.is_empty() => return Next::Finish(last),
                Some(other) => {
                    self.later.push_front(other);
                    break;
                }
                None => break,
            }
        }
        Next::Slice(parts)
    }

    /// An empty buffer for a part; one that has come back has room already.
    pub fn spare_part(&mut self) -> Vec<u8> {
        self.spare_parts.pop().unwrap_or_default()
    }

    /// Takes the buffers of a frame back.
    pub fn give_back_pieces(&mut self, pieces: Vec<Vec<u8>>) {
        give_back(&mut self.spare_pieces, pieces, SPARE_PIECES);
    }

    /// Takes the buffers of parts back.
    pub fn give_back_parts(&mut self, parts: Vec<Vec<u8>>) {
        give_back(&mut self.spare_parts, parts, SPARE_PARTS);
    }
}

fn give_back(spares: &mut Vec<Vec<u8>>, buffers: Vec<Vec<u8>>, most: usize) {
    let room = most - spares.len();
    let kept = buffers.into_iter().filter(|buffer| buffer.capacity() <= LONGEST_SPARE_BYTES).take(room);
    spares.extend(kept.map(|mut buffer| {
        buffer.clear();
        buffer
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Time = Time(1000);
    const EARLY: Time = Time(999);

    fn append(queue: &mut Queue, count: u64) {
        queue.append(count, &[count as u8; 10]);
    }

    fn part(queue: &mut Queue, bytes: usize) {
        queue.hand(Job::Later(Later::Part(vec![7; bytes])));
    }

    fn finish(queue: &mut Queue) {
        queue.hand(Job::Later(Later::Finish(Vec::new())));
    }

    /// What is next, in words.
    fn next(queue: &mut Queue, now: Time, staged: usize) -> String {
        match queue.next(now, DUE, staged) {
            Next::Frame(frame) => format!("frame to {}", frame.count),
            Next::Begin => "begin".into(),
            Next::Slice(parts) => format!("slice with {} parts", parts.len()),
            Next::Finish(_) => "finish".into(),
            Next::Abandon => "abandon".into(),
            Next::Errand(_) => "errand".into(),
            Next::Wait(due) => format!("wait {:?}", due.map(|due| due.0)),
            Next::End => "end".into(),
        }
    }

    fn begun() -> Queue {
        let mut queue = Queue::default();
        queue.hand(Job::Begin);
        assert_eq!(next(&mut queue, EARLY, 0), "begin");
        queue
    }

    #[test]
    fn what_comes_for_the_log_while_a_slice_is_written_goes_before_the_next_slice() {
        let mut queue = begun();
        (0..20).for_each(|_| part(&mut queue, 64 << 10));
        assert_eq!(next(&mut queue, DUE, 0), "slice with 4 parts");
        append(&mut queue, 1);
        append(&mut queue, 2);
        assert_eq!(next(&mut queue, DUE, 0), "frame to 2", "both, before a slice that is due");
        append(&mut queue, 3);
        assert_eq!(next(&mut queue, DUE, 0), "slice with 4 parts", "a log that is never done does not keep a snapshot from being written");
        assert_eq!(next(&mut queue, DUE, 0), "frame to 3");
    }

    #[test]
    fn the_log_is_not_paced_and_a_slice_waits_until_it_is_due() {
        let mut queue = begun();
        part(&mut queue, 64 << 10);
        assert_eq!(next(&mut queue, EARLY, 0), "wait Some(1000)");
        for count in 1..5 {
            append(&mut queue, count);
            assert_eq!(next(&mut queue, EARLY, 0), format!("frame to {count}"));
        }
        assert_eq!(next(&mut queue, EARLY, 0), "wait Some(1000)");
        assert_eq!(next(&mut queue, DUE, 0), "slice with 1 parts");
        assert_eq!(next(&mut queue, DUE, 0), "wait None");
    }

    #[test]
    fn a_slice_takes_no_more_parts_than_it_needs_and_a_long_part_takes_many_slices() {
        let mut queue = begun();
        part(&mut queue, 10 * SLICE_BYTES);
        finish(&mut queue);
        assert_eq!(next(&mut queue, DUE, 0), "slice with 1 parts");
        for slices in 1..=9 {
            append(&mut queue, slices);
            assert_eq!(next(&mut queue, DUE, (10 - slices as usize) * SLICE_BYTES), format!("frame to {slices}"));
            assert_eq!(next(&mut queue, DUE, (10 - slices as usize) * SLICE_BYTES), "slice with 0 parts");
        }
        assert_eq!(next(&mut queue, DUE, 100), "finish", "which writes what is left");
    }

    #[test]
    fn what_nobody_wants_any_more_is_not_written_first() {
        let mut queue = begun();
        part(&mut queue, 10 * SLICE_BYTES);
        assert_eq!(next(&mut queue, DUE, 0), "slice with 1 parts");
        queue.hand(Job::Later(Later::Abandon));
        assert_eq!(next(&mut queue, EARLY, 9 * SLICE_BYTES), "abandon", "whatever of a long part is staged");
        queue.hand(Job::Later(Later::Errand(Box::new(|| Ok(())))));
        assert_eq!(next(&mut queue, EARLY, 9 * SLICE_BYTES), "errand");
    }

    #[test]
    fn buffers_that_have_grown_long_are_not_kept() {
        let mut queue = begun();
        queue.give_back_parts(vec![Vec::with_capacity(LONGEST_SPARE_BYTES + 1), Vec::with_capacity(1000)]);
        assert!((1000..=LONGEST_SPARE_BYTES).contains(&queue.spare_part().capacity()));
        assert_eq!(queue.spare_part().capacity(), 0);
    }

    #[test]
    fn a_snapshot_s_end_follows_everything_that_was_appended_before_it() {
        let mut queue = begun();
        append(&mut queue, 1);
        // More than one frame holds.
        queue.append(2, &vec![0; FRAME_BYTES]);
        finish(&mut queue);
        append(&mut queue, 3);
        assert_eq!(next(&mut queue, DUE, 0), "frame to 1");
        assert_eq!(next(&mut queue, DUE, 0), "frame to 2");
        assert_eq!(next(&mut queue, DUE, 0), "finish");
        assert_eq!(next(&mut queue, DUE, 0), "frame to 3");
    }

    #[test]
    fn parts_are_not_written_before_their_snapshot_has_begun() {
        let mut queue = Queue::default();
        append(&mut queue, 1);
        queue.hand(Job::Begin);
        append(&mut queue, 2);
        part(&mut queue, 5);
        let order: Vec<String> = (0..4).map(|_| next(&mut queue, DUE, 0)).collect();
        assert_eq!(order, ["frame to 1", "begin", "frame to 2", "slice with 1 parts"]);
    }

    #[test]
    fn a_stop_in_the_middle_of_a_snapshot_writes_the_log_and_no_more_of_the_snapshot() {
        let mut queue = begun();
        (0..20).for_each(|_| part(&mut queue, 64 << 10));
        assert_eq!(next(&mut queue, DUE, 0), "slice with 4 parts");
        append(&mut queue, 1);
        queue.hand(Job::Later(Later::Errand(Box::new(|| Ok(())))));
        queue.close();
        let order: Vec<String> = (0..3).map(|_| next(&mut queue, EARLY, 200)).collect();
        assert_eq!(order, ["frame to 1", "errand", "end"]);
    }

    #[test]
    fn a_stop_after_a_snapshot_s_end_was_handed_over_waits_for_no_slice_to_be_due() {
        let mut queue = begun();
        (0..5).for_each(|_| part(&mut queue, 64 << 10));
        finish(&mut queue);
        part(&mut queue, 5);
        queue.close();
        let order: Vec<String> = (0..4).map(|_| next(&mut queue, EARLY, 0)).collect();
        assert_eq!(order, ["slice with 4 parts", "slice with 1 parts", "finish", "end"]);
    }

    #[test]
    fn what_is_given_up_is_not_written() {
        let mut queue = begun();
        (0..20).for_each(|_| part(&mut queue, 64 << 10));
        assert_eq!(queue.hand(Job::Later(Later::Abandon)), 20);
        assert_eq!(next(&mut queue, EARLY, 300), "abandon", "at once");

        (0..3).for_each(|_| part(&mut queue, 5));
        assert_eq!(queue.hand(Job::Begin), 3, "another one takes its place");
        assert_eq!(next(&mut queue, DUE, 0), "begin");
    }

    #[test]
    fn a_whole_snapshot_is_finished_before_another_one_begins() {
        let mut queue = begun();
        part(&mut queue, 5);
        finish(&mut queue);
        assert_eq!(queue.hand(Job::Begin), 0);
        part(&mut queue, 6);
        let order: Vec<String> = (0..4).map(|_| next(&mut queue, EARLY, 0)).collect();
        assert_eq!(order, ["slice with 1 parts", "finish", "begin", "wait Some(1000)"], "the log is held up by it, so it is not paced");
    }

    #[test]
    fn buffers_come_back() {
        let mut queue = begun();
        queue.give_back_parts(vec![vec![1; 100]; 2 * SPARE_PARTS]);
        assert_eq!(queue.spare_parts.len(), SPARE_PARTS);
        let spare = queue.spare_part();
        assert!(spare.is_empty() && spare.capacity() >= 100);
    }

    #[test]
    fn a_frame_is_gathered_in_pieces_none_of_which_is_ever_moved() {
        let mut queue = Queue::default();
        let bytes: Vec<u8> = (0..5 * PIECE_BYTES / 2).map(|n| (n % 251) as u8).collect();
        let mut moved = Vec::new();
        for (count, append) in (1..).zip(bytes.chunks(1000)) {
            queue.append(count, append);
            let Some(Entry::Frame(frame)) = queue.log.back() else { panic!("one frame") };
            assert!(frame.pieces.iter().all(|piece| piece.capacity() == PIECE_BYTES));
            moved.push(frame.pieces[0].as_ptr());
        }
        assert!(moved.iter().all(|place| *place == moved[0]));
        let Next::Frame(frame) = queue.next(EARLY, DUE, 0) else { panic!("one frame") };
        assert_eq!((frame.pieces.len(), frame.pieces.concat()), (3, bytes));
        queue.give_back_pieces(frame.pieces);
        append(&mut queue, 9);
        assert_eq!(queue.spare_pieces.len(), 2, "one of them is in use again");
    }
}
