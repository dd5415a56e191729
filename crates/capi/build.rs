//! Gives the shared library the name by which programs look for it when they run: with as much of the version as tells interfaces apart.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name: &str| env::var(name).expect("cargo tells a package its version");
    // As everywhere in cargo: below 1.0 the second number is what the first is later.
    let interface = match part("CARGO_PKG_VERSION_MAJOR").as_str() {
        "0" => format!("0.{}", part("CARGO_PKG_VERSION_MINOR")),
        major => major.to_owned(),
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmartlet.so.{interface}");
}
