//! The system's randomness.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes that no other process can guess.
///
/// # Errors
/// When the system has none to give.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_bytes_are_drawn() {
        // More than the system gives at once to a caller that a signal interrupts.
        let drawn: [u8; 4096] = random().expect("the system has randomness");
        assert!(drawn.chunks(64).all(|part| part.iter().any(|byte| *byte != 0)));
        assert_ne!(drawn, random().expect("the system has randomness"));
    }
}
