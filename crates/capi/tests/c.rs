//! The example in C: compiled with the system's compiler against the committed header, linked with the shared and with the static library, and
//! run as three processes, one of which is killed again and again.

use std::path::{Path, PathBuf};
use std::process::Command;

use martlet::config::EngineKind;

#[path = "../../martlet/tests/it/config.rs"]
mod config;
#[path = "../../martlet/tests/it/counter.rs"]
mod counter;

/// What the linker needs beside the static library: what `rustc --print native-static-libs` names.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm"];

/// Where this build's libraries stand.
fn libraries() -> PathBuf {
    counter::build("martlet-capi", &["--lib"])
}

/// Whether there is a compiler; says so if not.
fn has_compiler() -> bool {
    let there = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("cc").is_file()));
    if !there {
        eprintln!("skipped: no C compiler (cc) on the path");
    }
    there
}

fn compile(name: &str, link: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-I"])
        .arg(here.join("include"))
        .arg(here.join("examples/counter.c"))
        .arg("-o")
        .arg(&program)
        .args(link)
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn through_kills(name: &str, program: &Path) {
    for engine in EngineKind::ALL {
        counter::counts_exactly_once_through_kills(&format!("{name}-{engine}"), engine, program);
    }
}

#[test]
fn the_example_with_the_shared_library_counts_exactly_once_through_kills() {
    if has_compiler() {
        let dir = libraries();
        let (search, path) = (format!("-L{}", dir.display()), format!("-Wl,-rpath,{}", dir.display()));
        let program = compile("counter-shared", &[&search, &path, "-l:libmartlet.so", "-lpthread"]);
        through_kills("c-shared", &program);
    }
}

#[test]
fn the_example_with_the_static_library_counts_exactly_once_through_kills() {
    if has_compiler() {
        let library = libraries().join("libmartlet.a").display().to_string();
        let mut link = vec![library.as_str()];
        link.extend(SYSTEM_LIBRARIES);
        let program = compile("counter-static", &link);
        through_kills("c-static", &program);
    }
}

#[test]
fn the_header_is_one_for_cpp_as_well() {
    let compiler = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("c++").is_file()));
    if !compiler {
        eprintln!("skipped: no C++ compiler (c++) on the path");
        return;
    }
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/martlet.h");
    let output = Command::new("c++").args(["-x", "c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(header).output();
    let output = output.expect("c++ runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
