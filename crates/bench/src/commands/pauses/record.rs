//! What a node saw of its own turns and of its proposals, on its way to the benchmark: kept in memory, and written into a file at the end.

use std::io;
use std::path::Path;

/// How many samples of each kind are kept. At 20,000 proposals a second that is over three minutes.
const KEPT: usize = 1 << 22;

/// A stretch of time with a number to it, in nanoseconds on the host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub at: u64,
    /// How long it lasted.
    pub ns: u64,
    /// Of a gap: for how much of it, at most, the thread could have run and was not let. Of a proposal: 0.
    pub waited_ns: u64,
}

impl Span {
    /// When it ended.
    pub fn end(&self) -> u64 {
        self.at + self.ns
    }
}

/// Spans of both kinds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// From the moment at which a proposal was due to the one at which its reply could go out.
    pub proposals: Vec<Span>,
    /// Between two turns of the node's thread.
    pub gaps: Vec<Span>,
    /// There were more than are kept.
    pub overflowed: bool,
}

impl Record {
    /// With memory that is there already: the first touch of a page takes its time.
    pub fn new() -> Record {
        let kept = || {
            let mut spans = vec![Span { at: 1, ns: 1, waited_ns: 1 }; KEPT];
            spans.clear();
            spans
        };
        Record { proposals: kept(), gaps: kept(), overflowed: false }
    }

    /// Adds to one of the lists, as long as it needs no more memory.
    pub fn keep(spans: &mut Vec<Span>, overflowed: &mut bool, span: Span) {
        if spans.len() < spans.capacity() {
            spans.push(span);
        } else {
            *overflowed = true;
        }
    }

    /// Writes it all.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(24 * (self.proposals.len() + self.gaps.len()) + 24);
        let mut put = |words: [u64; 3]| words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        put([self.proposals.len() as u64, self.gaps.len() as u64, u64::from(self.overflowed)]);
        self.proposals.iter().chain(&self.gaps).for_each(|span| put([span.at, span.ns, span.waited_ns]));
        std::fs::write(file, bytes)
    }

    /// Reads what [`Record::save`] wrote. `None`: it was cut short.
    pub fn load(file: &Path) -> io::Result<Option<Record>> {
        let bytes = std::fs::read(file)?;
        let word = |at: usize| bytes.get(8 * at..8 * at + 8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        Ok((|| {
            let (proposals, gaps) = (usize::try_from(word(0)?).ok()?, usize::try_from(word(1)?).ok()?);
            let span = |i: usize| Some(Span { at: word(3 * i + 3)?, ns: word(3 * i + 4)?, waited_ns: word(3 * i + 5)? });
            Some(Record {
                proposals: (0..proposals).map(span).collect::<Option<_>>()?,
                gaps: (proposals..proposals.checked_add(gaps)?).map(span).collect::<Option<_>>()?,
                overflowed: word(2)? != 0,
            })
        })())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_from_its_file_and_half_of_it_is_none() {
        let dir = martlet_cluster::scratch::Scratch::new("record").expect("a directory");
        let file = dir.path().join("record");
        let span = |at| Span { at, ns: at + 1, waited_ns: at + 2 };
        let record = Record { proposals: vec![span(1), span(5)], gaps: vec![span(9)], overflowed: true };
        record.save(&file).expect("written");
        assert_eq!(Record::load(&file).expect("there"), Some(record));
        let bytes = std::fs::read(&file).expect("there");
        std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("written");
        assert_eq!(Record::load(&file).expect("there"), None);
    }

    #[test]
    fn what_is_too_much_is_not_kept_and_said() {
        let (mut spans, mut overflowed) = (Vec::with_capacity(1), false);
        let room = spans.capacity();
        (0..room).for_each(|_| Record::keep(&mut spans, &mut overflowed, Span::default()));
        assert!(!overflowed);
        Record::keep(&mut spans, &mut overflowed, Span::default());
        assert!(overflowed && spans.len() == room);
    }
}
