//! The warden of a host, and how programs use it (FiDe sections 3.1 and 3.4; `docs/fide.md`).
//!
//! A warden is a small process. Programs of its host register with it over a Unix socket, and say which other programs they monitor. The kernel tells the
//! warden when a thread or a process is gone, and the warden at once tells the programs that monitor it. The warden needs no privilege: registered threads hold
//! robust words, on which the kernel marks their death, and every process is watched through a descriptor, whether or not it knows about wardens.
//!
//! | module | what it contains |
//! |---|---|
//! | [`client`] | the calls of the paper's Listing 1, for programs |
//! | [`daemon`] | the warden itself |
//! | [`board`] | memory in which a warden shows its state to programs |
//! | [`words`] | the death words of a program's threads, on a page of the program's |
//! | [`wire`] | the messages between a program and its warden |
//! | [`place`] | where they meet |
//! | [`neighbours`] | which other hosts a warden listens to |
//! | `packet` | what wardens of several hosts send each other |
//! | `process` | processes, by their descriptors |

#![forbid(unsafe_code)]

pub mod board;
mod canary;
pub mod client;
pub mod daemon;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod neighbours;
mod packet;
pub mod place;
mod process;
pub mod wire;
pub mod words;

use martlet_protocol::detector::wardens::{Digest, Secret};
use sha2::{Digest as _, Sha256};

/// The digest by which a secret is recognised: SHA-256.
pub fn digest(secret: &Secret) -> Digest {
    Sha256::digest(secret).into()
}

/// The number that identifies an application: the paper's `appid`. Applications choose their own, from 1 to [`AppId::LAST_CHOSEN`]. The warden gives higher
/// numbers to programs that are watched without their help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(u32);

/// A number that no application can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("application {0}; allowed are 1 to {last}, and from there to {most} those that a warden gave", last = AppId::LAST_CHOSEN, most = AppId::MAX)]
pub struct BadAppId(pub i64);

impl AppId {
    /// The highest number that an application may choose.
    pub const LAST_CHOSEN: u32 = 0x3fff_ffff;
    /// The highest number of all: the paper's `int`.
    pub const MAX: u32 = i32::MAX as u32;

    /// The application with that number.
    ///
    /// # Errors
    /// When no application can have it.
    pub fn new(number: i64) -> Result<AppId, BadAppId> {
        u32::try_from(number).ok().filter(|number| (1..=AppId::MAX).contains(number)).map(AppId).ok_or(BadAppId(number))
    }

    /// The application with a name, for programs that are not given numbers: two names get the same number once in 2^30 times.
    pub fn named(name: &str) -> AppId {
        let digest: [u8; 32] = Sha256::digest(name).into();
        let [first, second, third, fourth, ..] = digest;
        AppId((u32::from_le_bytes([first, second, third, fourth]) & AppId::LAST_CHOSEN).max(1))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Whether an application may choose it.
    pub fn is_chosen(self) -> bool {
        self.0 <= AppId::LAST_CHOSEN
    }
}

impl std::fmt::Display for AppId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The largest message that can travel with a heartbeat, in bytes, over Ethernet (FiDe section 3.1: the piggyback's size).
pub const MAX_PIGGYBACK_BYTES: u32 = 1418;

/// What a program asks of an application that it monitors, and what it is granted: the paper's `struct resources`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// How large a message the monitored application may add to a heartbeat, in bytes: a request asks for at least this much, and up to [`MAX_PIGGYBACK_BYTES`]
    /// is granted.
    pub pbsize: u32,
    /// How long the application's host may be silent before the application is presumed dead, in nanoseconds. A request for 0 asks for the shortest time that
    /// the warden's plan allows. 0 is granted where both applications are on one host: no timeout is needed there, and nothing is ever presumed.
    pub timeout_ns: u64,
}

/// CLOCK_MONOTONIC, in nanoseconds: the clock by which a warden says when it learned of something.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Monotonic time is never negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A random number that is not 0, since 0 stands for "none".
pub(crate) fn random_number() -> std::io::Result<u64> {
    Ok(u64::from_le_bytes(martlet_fabric::host::random()?).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_application_can_have_are_refused_by_name() {
        assert_eq!(
            AppId::new(0).expect_err("none").to_string(),
            "application 0; allowed are 1 to 1073741823, and from there to 2147483647 those that a warden gave"
        );
        assert_eq!(AppId::new(1 << 31), Err(BadAppId(1 << 31)));
        assert_eq!(AppId::new(-1), Err(BadAppId(-1)));
        assert!(AppId::new(1).is_ok_and(AppId::is_chosen));
        assert!(!AppId::new(0x4000_0000).expect("the warden's").is_chosen());
    }
}
