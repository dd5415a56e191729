//! The header of the C ABI, generated from the sources of `crates/capi`. The committed one has to agree with them.

use std::fs;
use std::path::Path;

use crate::ci::Outcome;

/// The header's path from the workspace's root.
const HEADER: &str = "crates/capi/include/martlet.h";
/// The sources that it is generated from, in the order of their items in it.
const SOURCES: [&str; 10] = ["status", "bytes", "machine", "options", "replica", "propose", "read", "role", "metrics", "fide"];

const PREAMBLE: &str = "\
/* Martlet: replication for a program's own state. See docs/embedding.md.
 *
 * Generated from the sources of crates/capi by `cargo xtask header`: change those. Whatever is said under \"Safety\" is the caller's promise. */";

fn generate(root: &Path) -> Result<String, String> {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        include_guard: Some("MARTLET_H".into()),
        header: Some(PREAMBLE.into()),
        style: cbindgen::Style::Both,
        line_length: 140,
        tab_width: 4,
        documentation_style: cbindgen::DocumentationStyle::C99,
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        ..cbindgen::Config::default()
    };
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join("crates/capi/src").join(source).with_extension("rs"));
    }
    let bindings = builder.generate().map_err(|error| error.to_string())?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).map_err(|error| error.to_string())
}

/// Writes the header.
pub fn write(root: &Path) -> Result<(), String> {
    fs::write(root.join(HEADER), generate(root)?).map_err(|error| format!("cannot write {HEADER}: {error}"))
}

/// Compares the header with its sources.
pub fn check(root: &Path) -> Outcome {
    let found = fs::read_to_string(root.join(HEADER)).map_err(|error| format!("cannot read {HEADER}: {error}"));
    match (generate(root), found) {
        (Ok(wanted), Ok(found)) if wanted == found => Outcome::Passed,
        (Ok(_), Ok(_)) => Outcome::Failed(format!("{HEADER} is not what its sources say: run `cargo xtask header`")),
        (Err(why), _) | (_, Err(why)) => Outcome::Failed(why),
    }
}
