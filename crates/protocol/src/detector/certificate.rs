//! Certificates of death: how a process on another host is known for certain to be gone (FiDe sections 3.1 and 3.4; `docs/fide.md`).
//!
//! The kernel's word on a process reaches only the process's own host, where a warden hears it. Each incarnation of a process draws a secret,
//! deposits it with the warden of its host, and shows all others its [`Pledge`]: a digest of the secret, among its signs of life. When the kernel
//! says that the process is gone, the warden reveals the secret. So a process that can show the secret has it, directly or not, from the warden that
//! the dead process chose; any process may repeat it; and it belongs to no other incarnation.
//!
//! A warden that lies can end the processes that have chosen it, and no others.

use super::wardens::Digest;

/// What others recognise a process's secret by: the first half of its digest. Finding a match for half of SHA-256 takes 2^128 attempts, as many as
/// guessing the secret itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pledge([u64; Pledge::WORDS]);

impl Pledge {
    /// How many words a pledge takes.
    pub const WORDS: usize = 2;

    /// The pledge for a secret with this digest.
    pub fn of(digest: &Digest) -> Pledge {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| digest[8 * at + byte]));
        Pledge(std::array::from_fn(word))
    }

    /// The words that represent it in memory.
    pub fn words(self) -> [u64; Pledge::WORDS] {
        self.0
    }

    /// The pledge that these words represent; `None` if the process has pledged nothing.
    pub fn from_words(words: [u64; Pledge::WORDS]) -> Option<Pledge> {
        (words != [0; Pledge::WORDS]).then_some(Pledge(words))
    }
}

/// What one process knows of another's pledge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pledged {
    /// Not read yet, or not completely.
    #[default]
    Unread,
    /// It has pledged nothing: no certificate of its death is believed.
    Nothing,
    /// It has pledged this.
    This(Pledge),
}

/// The words of a pledge, as they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading([Option<u64>; Pledge::WORDS]);

impl Reading {
    /// One of the words has been read.
    pub fn note(&mut self, word: usize, value: u64) {
        self.0[word % Pledge::WORDS] = Some(value);
    }

    /// What the words say together.
    pub fn pledged(&self) -> Pledged {
        let [Some(first), Some(second)] = self.0 else { return Pledged::Unread };
        Pledge::from_words([first, second]).map_or(Pledged::Nothing, Pledged::This)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pledge_survives_memory_and_half_of_one_is_none() {
        let pledge = Pledge::of(&std::array::from_fn(|byte| byte as u8));
        assert_eq!(pledge.words(), [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let mut reading = Reading::default();
        assert_eq!(reading.pledged(), Pledged::Unread);
        reading.note(1, pledge.words()[1]);
        assert_eq!(reading.pledged(), Pledged::Unread);
        reading.note(0, pledge.words()[0]);
        assert_eq!(reading.pledged(), Pledged::This(pledge));
    }

    #[test]
    fn one_that_shows_no_pledge_has_pledged_nothing() {
        let mut reading = Reading::default();
        (0..Pledge::WORDS).for_each(|word| reading.note(word, 0));
        assert_eq!(reading.pledged(), Pledged::Nothing);
    }
}
