//! What a successor reads in the ledger of another process that is dead or has let go of its connections.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use super::{
    COOKIE, END, HEADER, INPUT, LARGE_BYTES, LINE_BYTES, LINES, Ledger, MOST_STATE_BYTES, NONE, ORIGIN, OUTPUT, RECEIVED, SCRATCH,
    SCRATCH_BYTES, SCRATCH_FROM, SCRATCH_OF, SETTLED, SLOTS, STATE, Settled, USED, WHICH, WORDS, state_room, where_is,
};

/// What another process has left, for its successor.
#[derive(Debug)]
pub struct Remains {
    file: File,
    scratch_of: u64,
    scratch_from: u64,
    lines: HashMap<u64, (u32, [u64; WORDS])>,
}

/// A connection as it was left.
#[derive(Debug, PartialEq, Eq)]
pub struct Remainder {
    /// How far it is settled: by the ledger, or by the log if that says more.
    pub settled: Settled,
    /// The state that holds at that place.
    pub state: Vec<u8>,
    /// What its client has sent from there on and what had been read from the kernel.
    pub input: Vec<u8>,
    /// What is to be sent and the kernel has not got yet.
    pub output: Vec<u8>,
}

impl Remains {
    /// Reads which lines there are. `file` is a ledger's.
    ///
    /// # Errors
    /// When it is not a ledger's, or cannot be read.
    pub fn read(file: OwnedFd) -> io::Result<Remains> {
        let file = File::from(file);
        if file.metadata()?.len() != END as u64 {
            return Err(io::Error::other("it is no ledger of this build"));
        }
        let mut header = [0; LINES];
        file.read_exact_at(&mut header, HEADER as u64)?;
        let word = |at: usize| u64::from_le_bytes(header[8 * at..8 * at + 8].try_into().expect("8 bytes"));
        let used = (word(USED) as usize).min(SLOTS);
        let mut bytes = vec![0; used * LINE_BYTES];
        file.read_exact_at(&mut bytes, LINES as u64)?;
        let mut lines = HashMap::new();
        for (slot, line) in bytes.chunks_exact(LINE_BYTES).enumerate() {
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(line.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
            if words[COOKIE] != 0 {
                lines.insert(words[COOKIE], (slot as u32, words));
            }
        }
        Ok(Remains { file, scratch_of: word(SCRATCH_OF), scratch_from: word(SCRATCH_FROM), lines })
    }

    /// Whether there is a line of that connection.
    pub fn has(&self, cookie: u64) -> bool {
        self.lines.contains_key(&cookie)
    }

    /// A connection. The kernel says that so many bytes have been read and written, and the log says that the connection is executed up to `mark`: an offset in
    /// its input, and one in its output.
    ///
    /// # Errors
    /// When this does not fit what is noted: the connection cannot be continued.
    pub fn of(&self, cookie: u64, (read, written): (u64, u64), mark: Option<(u64, u64)>) -> io::Result<Remainder> {
        let wrong = |why: String| Err(io::Error::other(why));
        let Some((slot, words)) = self.lines.get(&cookie) else { return wrong("nothing is noted of it".into()) };
        let at = SETTLED + 3 * (words[WHICH] as usize & 1);
        let mut settled = Settled { input: words[at], output: words[at + 1], sent: words[at + 2] };
        if let Some((input, output)) = mark.filter(|(input, _)| *input > settled.input) {
            settled = Settled { input, output, sent: output };
        }
        if written > settled.sent || read < settled.input {
            return wrong(format!(
                "{read} bytes were read and {written} written, and it is settled up to {} and {}",
                settled.input, settled.sent
            ));
        }
        let states = (0..2).map(|at| (words[STATE + 2 * at], at)).filter(|(from, _)| *from != NONE && *from <= settled.input);
        let Some((_, state)) = states.max() else { return wrong("its state is not noted".into()) };
        let mut text = vec![0; (words[STATE + 2 * state + 1] as usize).min(MOST_STATE_BYTES)];
        self.file.read_exact_at(&mut text, state_room(*slot, state) as u64)?;
        let received = words[RECEIVED];
        let mut input = self.stream(*slot, INPUT, words[ORIGIN + INPUT], settled.input, received.max(settled.input).min(read))?;
        let missing = read.saturating_sub(received) as usize;
        if missing > 0 {
            if (self.scratch_of, self.scratch_from) != (cookie, received) || missing > SCRATCH_BYTES {
                return wrong(format!("{missing} bytes that were read of it are not there"));
            }
            let before = input.len();
            input.resize(before + missing, 0);
            self.file.read_exact_at(&mut input[before..], SCRATCH as u64)?;
        }
        let output = self.stream(*slot, OUTPUT, words[ORIGIN + OUTPUT], written, settled.sent)?;
        Ok(Remainder { settled, state: text, input, output })
    }

    fn stream(&self, slot: u32, which: usize, origin: u64, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; to.saturating_sub(from).min(LARGE_BYTES as u64) as usize];
        let (mut place, mut done) = (from, 0);
        while done < bytes.len() {
            let (at, most) = where_is(slot, which, origin, place);
            let now = most.min(bytes.len() - done);
            self.file.read_exact_at(&mut bytes[done..done + now], at as u64)?;
            (place, done) = (place + now as u64, done + now);
        }
        Ok(bytes)
    }
}

/// A duplicate of the file of a process's own ledger, for [`Remains::read`].
///
/// # Errors
/// When no descriptor is left.
pub fn own_file(ledger: &Ledger) -> io::Result<OwnedFd> {
    ledger.file.try_clone().map(OwnedFd::from)
}
