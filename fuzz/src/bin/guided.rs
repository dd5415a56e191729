//! `MARTLET_FUZZ_TARGET=NAME fuzz-guided [libFuzzer's options] [DIRECTORY]...`: one target under libFuzzer.
//!
//! Built by `cargo xtask fuzz`, with the flags that let libFuzzer see which code an input reaches. They are flags of the stable compiler. No sanitizer is used,
//! since what is fuzzed here is safe Rust.

#![no_main]

use std::sync::OnceLock;

use martlet_fuzz::Target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    let name = std::env::var("MARTLET_FUZZ_TARGET").unwrap_or_default();
    let names: Vec<&str> = martlet_fuzz::TARGETS.iter().map(|target| target.name).collect();
    martlet_fuzz::find(&name).unwrap_or_else(|| {
        eprintln!("fuzz-guided: MARTLET_FUZZ_TARGET is {name:?}; allowed are {}", names.join(", "));
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(chosen);
    if data.len() <= target.max_bytes {
        (target.run)(data);
    }
});
