//! What this build says of itself whenever it meets another process.

use martlet_fabric::Protocol;
use martlet_protocol::version::{LEVELS, VERSION};

/// What this build speaks, and what it is called.
pub fn protocol() -> Protocol {
    #[cfg(feature = "another-build")]
    if let Some(protocol) = pretended() {
        return protocol;
    }
    Protocol { version: VERSION, levels: LEVELS, build: concat!("martlet ", env!("CARGO_PKG_VERSION")).into() }
}

/// For tests, which have only one build: pretends to be another one, as the environment variable `MARTLET_TEST_BUILD` describes it, with its version, its
/// lowest level, and its highest.
///
/// # Panics
/// When the variable is set and says anything else.
#[cfg(feature = "another-build")]
fn pretended() -> Option<Protocol> {
    let text = std::env::var("MARTLET_TEST_BUILD").ok()?;
    let numbers: Vec<u32> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [version, least, most] = numbers[..] else { panic!("MARTLET_TEST_BUILD is {text:?}; allowed are three numbers") };
    let levels = martlet_fabric::Levels::of(least as u8, most as u8).expect("a range of levels");
    Some(Protocol { version, levels, build: format!("martlet of test {text}").into() })
}
