//! Redis in replicas, tried with other projects' programs: its own test suite (`cargo xtask redis-suite`), and client libraries (`cargo xtask clients`).
//!
//! | file | contents |
//! |---|---|
//! | `server` | a redis-server, plain or in replicas whose leader is killed |
//! | `suite` | the test suite |
//! | `clients` | the client libraries |

pub mod clients;
mod server;
pub mod suite;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ci::{cargo, target_directory};

/// The Martlet programs that a server is run with.
struct Programs {
    martlet: PathBuf,
    library: PathBuf,
}

impl Programs {
    /// Builds them, with cargo's output silenced.
    fn build(root: &Path) -> Result<Programs, String> {
        let mut command = cargo(root);
        command.args(["build", "--quiet", "--package", "martlet-cli", "--package", "martlet-preload"]);
        if !command.status().is_ok_and(|status| status.success()) {
            return Err("`martlet` and its library do not build".into());
        }
        let built = target_directory(root).join("debug");
        Ok(Programs { martlet: built.join("martlet"), library: built.join("libmartlet_preload.so") })
    }
}

/// The message when something cannot be done with a file or a directory.
fn trouble(what: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", what.display())
}

/// Reads `2s`, `500ms`, `10m`, for `value_parser`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number = digits.parse().ok().filter(|number: &u64| *number > 0);
    let duration = number.and_then(|number| match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    });
    duration.ok_or_else(|| "allowed are milliseconds, seconds and minutes: 500ms, 2s, 10m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let read =
            ["2s", "500ms", "10m", "2", "s", "0s", "2h", "-2s", ""].map(|text| duration(text).ok().map(|duration| duration.as_millis()));
        assert_eq!(read, [Some(2_000), Some(500), Some(600_000), None, None, None, None, None, None]);
    }
}
