//! What a lease cache shows (uKharon section 6.3): one word, which proves to its readers that a view was still current after they last looked.

use crate::basics::ViewNumber;
use crate::basics::layout::LAST_VIEW;

/// A lease cache's word: the view that it asks the coordinators about, and a count of its rounds of questions. The count is odd while a round is
/// under way, and goes up by one both when a round begins and when it has been confirmed. The words of one cache only grow, also when compared as
/// integers.
///
/// Readers need not trust the cache's clock, nor know how old the word is. A process that has read a word, and later reads one that has gone through
/// a whole round since, knows that the coordinators were asked after its first reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheWord(pub u64);

/// Bits of the count. At one round every 5 microseconds they last for a day on one view.
const COUNT_BITS: u32 = 35;
/// The last count of a confirmed round. A cache that reaches it stops: its count never wraps (TRAPS 4).
const LAST_COUNT: u64 = (1 << COUNT_BITS) - 2;

const _: () = assert!(LAST_VIEW < 1 << (64 - COUNT_BITS), "a view's number fits beside the count");

impl CacheWord {
    /// No round about this view has begun.
    pub fn new(view: ViewNumber) -> CacheWord {
        CacheWord(view.0 << COUNT_BITS)
    }

    /// The view.
    pub fn view(self) -> ViewNumber {
        ViewNumber(self.0 >> COUNT_BITS)
    }

    fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }

    /// The word after a round begins; the new round replaces one that was under way and has been given up. `None` when the count has run out.
    pub fn begun(self) -> Option<CacheWord> {
        (self.count() < LAST_COUNT).then_some(CacheWord(self.0 | 1))
    }

    /// The word after the round under way is confirmed.
    pub fn confirmed(self) -> CacheWord {
        debug_assert!(self.0 & 1 == 1, "no round is under way");
        CacheWord(self.0 + 1)
    }

    /// Whether this word proves that a round about `view` has been confirmed which began after the same cache's word was read as `before`.
    ///
    /// A round that was already under way at that reading does not count: it may have asked before it.
    pub fn proves(self, view: ViewNumber, before: CacheWord) -> bool {
        // The cache asked nothing about this view before its word named it.
        let counted = if before.view() == view { before.count() } else { 0 };
        let needed = (counted + 3) & !1;
        self.view() == view && before.view() <= view && self.count() >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIEW: ViewNumber = ViewNumber(7);

    fn word(count: u64) -> CacheWord {
        CacheWord(CacheWord::new(VIEW).0 + count)
    }

    #[test]
    fn only_a_round_that_began_after_the_first_reading_proves_anything() {
        let proves = |later: u64, before: u64| word(later).proves(VIEW, word(before));
        assert_eq!([4, 5, 6, 7].map(|later| proves(later, 4)), [false, false, true, true], "nothing was under way");
        assert_eq!([5, 6, 7, 8].map(|later| proves(later, 5)), [false, false, false, true], "a round was, and may have asked before");
    }

    #[test]
    fn a_word_about_an_older_view_was_read_before_the_first_round_and_one_about_a_newer_proves_nothing() {
        let older = CacheWord(CacheWord::new(ViewNumber(6)).0 + 99);
        assert_eq!([0, 1, 2].map(|count| word(count).proves(VIEW, older)), [false, false, true]);
        assert!(!CacheWord(CacheWord::new(ViewNumber(8)).0 + 99).proves(VIEW, word(4)));
        assert!(!word(99).proves(ViewNumber(8), word(4)));
    }

    #[test]
    fn rounds_are_counted_and_one_that_is_given_up_is_not() {
        let begun = CacheWord::new(VIEW).begun().unwrap();
        assert_eq!((begun, begun.begun(), begun.confirmed()), (word(1), Some(word(1)), word(2)));
    }

    #[test]
    fn trap_4_a_count_that_has_run_out_does_not_wrap() {
        let last = word(LAST_COUNT - 2).begun().unwrap().confirmed();
        assert_eq!((last.view(), last.begun()), (VIEW, None));
        assert!(last < CacheWord::new(VIEW.next()));
        assert_eq!(CacheWord::new(ViewNumber(LAST_VIEW)).view(), ViewNumber(LAST_VIEW));
    }
}
