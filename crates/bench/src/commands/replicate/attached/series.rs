//! What a node has measured, on its way to the benchmark: in memory while it measures, in a file at the end.

use std::io;
use std::path::Path;

/// Requests of one length, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// How long they were, in bytes.
    pub payload: u64,
    /// How long all took together, with whatever was done between them, in nanoseconds.
    pub elapsed_ns: u64,
    /// How many came to nothing, since the lead was lost.
    pub lost: u64,
    /// How long each took, in nanoseconds.
    pub samples: Vec<u64>,
}

/// All that one node has measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Where the replica's thread ran, and how.
    pub placement: String,
    /// It lost the lead to another one, for good: the rest is not there.
    pub deposed: bool,
    /// Requests executed by the application's state alone.
    pub alone: Vec<Series>,
    /// Requests replicated.
    pub replicated: Vec<Series>,
}

impl Measured {
    /// Writes it all.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut put = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
        for list in [&self.alone, &self.replicated] {
            put(list.len() as u64);
            for series in list {
                [series.payload, series.elapsed_ns, series.lost, series.samples.len() as u64].into_iter().for_each(&mut put);
                series.samples.iter().copied().for_each(&mut put);
            }
        }
        put(u64::from(self.deposed));
        put(self.placement.len() as u64);
        bytes.extend_from_slice(self.placement.as_bytes());
        std::fs::write(file, bytes)
    }

    /// Reads what [`Measured::save`] wrote. `None`: it was cut short.
    pub fn load(file: &Path) -> io::Result<Option<Measured>> {
        Ok(Measured::parse(&std::fs::read(file)?))
    }

    fn parse(mut bytes: &[u8]) -> Option<Measured> {
        let mut word = || {
            let (first, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            Some(u64::from_le_bytes(*first))
        };
        let mut list = || {
            (0..word()?)
                .map(|_| {
                    let [payload, elapsed_ns, lost, samples] = [word()?, word()?, word()?, word()?];
                    Some(Series { payload, elapsed_ns, lost, samples: (0..samples).map(|_| word()).collect::<Option<_>>()? })
                })
                .collect::<Option<Vec<_>>>()
        };
        let (alone, replicated) = (list()?, list()?);
        let (deposed, length) = (word()? != 0, word()?);
        let placement = (bytes.len() as u64 == length).then(|| String::from_utf8_lossy(bytes).into_owned())?;
        Some(Measured { placement, deposed, alone, replicated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_comes_back_from_its_file_and_half_of_it_is_nothing() {
        let dir = martlet_cluster::scratch::Scratch::new("series").expect("a directory");
        let file = dir.path().join("measured");
        let series = |payload| Series { payload, elapsed_ns: 9, lost: 1, samples: vec![3, 4, 5] };
        let measured =
            Measured { placement: "core 1".into(), deposed: true, alone: vec![series(16)], replicated: vec![series(16), series(32)] };
        measured.save(&file).expect("written");
        assert_eq!(Measured::load(&file).expect("there"), Some(measured));
        let bytes = std::fs::read(&file).expect("there");
        for cut in 0..bytes.len() {
            assert_eq!(Measured::parse(&bytes[..cut]), None, "{cut} bytes");
        }
    }
}
