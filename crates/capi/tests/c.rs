//! The library as programs in C use it: the example, and a program that calls every function. Both are compiled with the system's compiler against the
//! committed header, and linked with the shared library, as it is installed, and with the static one. The example runs as three processes, which are killed,
//! told to end, and lose their disks.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use martlet::config::{ClusterConfig, DetectorConfig, EngineKind, NodeConfig, Pin, Priority};

#[path = "../../martlet/tests/it/built.rs"]
mod built;
#[path = "../../martlet/tests/it/config.rs"]
mod config;
#[path = "../../martlet/tests/it/counter.rs"]
mod counter;

/// What the linker needs besides the static library: the output of `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm"];
/// The version, and the part of it that is in the name that a linked program looks for.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const INTERFACE: &str = "0.1";

/// The directory of this build's libraries.
fn libraries() -> PathBuf {
    built::build("martlet-capi", &["--lib"])
}

/// A directory of this test's own.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("our own directory");
    dir
}

/// Installs the shared library as docs/embedding.md says.
fn installed(into: &Path) {
    let (file, interface) = (format!("libmartlet.so.{VERSION}"), format!("libmartlet.so.{INTERFACE}"));
    let page = include_str!("../../../docs/embedding.md");
    assert!(page.contains(&format!("ln -s {file} PREFIX/lib/{interface}")), "docs/embedding.md does not say how {file} is installed");
    fs::copy(libraries().join("libmartlet.so"), into.join(&file)).expect("it was built");
    symlink(&file, into.join(&interface)).expect("our own directory");
    symlink(&interface, into.join("libmartlet.so")).expect("our own directory");
}

/// Whether there is a compiler. Prints a line if not.
fn has_compiler() -> bool {
    let there = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("cc").is_file()));
    if !there {
        eprintln!("skipped: no C compiler (cc) on the path");
    }
    there
}

/// Compiles a source of this package.
fn compile(source: &str, program: &Path, link: &[&str]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-I"])
        .arg(here.join("include"))
        .arg(here.join(source))
        .arg("-o")
        .arg(program)
        .args(link)
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The same with the shared library.
fn compile_shared(source: &str, dir: &Path) -> PathBuf {
    installed(dir);
    let program = dir.join("program");
    compile(source, &program, &[&format!("-L{}", dir.display()), &format!("-Wl,-rpath,{}", dir.display()), "-lmartlet", "-lpthread"]);
    // A package of programs ships no file without a version in its name.
    fs::remove_file(dir.join("libmartlet.so")).expect("our own directory");
    program
}

#[test]
fn the_example_with_the_shared_library_counts_exactly_once_through_kills_and_ends_in_order() {
    if has_compiler() {
        let dir = scratch("counter-shared");
        let program = compile_shared("examples/counter.c", &dir);
        for engine in EngineKind::ALL {
            counter::counts_exactly_once_through_kills(&format!("c-shared-{engine}"), engine, &program);
            counter::ends_in_order_when_it_is_told_to(&format!("c-ends-{engine}"), engine, &program);
        }
        counter::leaves_when_its_disk_takes_no_more("c-disk", &program);
        fs::remove_dir_all(dir).expect("our own directory");
    }
}

#[test]
fn the_example_with_the_static_library_counts_exactly_once_through_kills() {
    if has_compiler() {
        let dir = scratch("counter-static");
        let (program, library) = (dir.join("program"), libraries().join("libmartlet.a").display().to_string());
        let mut link = vec![library.as_str()];
        link.extend(SYSTEM_LIBRARIES);
        compile("examples/counter.c", &program, &link);
        for engine in EngineKind::ALL {
            counter::counts_exactly_once_through_kills(&format!("c-static-{engine}"), engine, &program);
        }
        fs::remove_dir_all(dir).expect("our own directory");
    }
}

/// The names that arguments follow, outside of comments.
fn called(text: &str) -> BTreeSet<&str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim_start().starts_with(['*', '/']));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = code.flat_map(|line| line.match_indices('(').map(|(at, _)| &line[..at]));
    let names = names.map(|before| &before[before.rfind(|c| !is_of_name(c)).map_or(0, |at| at + 1)..]);
    names.filter(|name| name.starts_with("martlet_")).collect()
}

#[test]
fn every_function_of_the_header_is_called_and_does_what_it_says() {
    let declared = called(include_str!("../include/martlet.h"));
    assert!(declared.contains("martlet_start") && declared.len() > 25, "{declared:?}");
    let called = &called(include_str!("calls.c")) | &called(include_str!("fide.c"));
    assert_eq!(declared.difference(&called).collect::<Vec<_>>(), [] as [&&str; 0], "neither calls.c nor fide.c calls these");
    if !has_compiler() {
        return;
    }
    let dir = scratch("calls");
    let program = compile_shared("tests/calls.c", &dir);
    let cluster = ClusterConfig { detector: DetectorConfig::default(), ..config::config("calls", 1) };
    fs::write(dir.join("cluster.toml"), cluster.to_toml()).expect("our own directory");
    let mut node = NodeConfig::new(0, "cluster.toml");
    (node.threads.pin, node.threads.priority) = (Pin::None, Priority::Normal);
    fs::write(dir.join("node.toml"), node.to_toml()).expect("our own directory");
    for engine in EngineKind::ALL {
        let mut calls = Command::new(&program);
        calls.arg(dir.join("cluster.toml")).arg(dir.join("node.toml")).arg(engine.name()).arg(dir.join("data"));
        let output = calls.output().expect("it was just compiled");
        assert!(output.status.success(), "{engine}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    fs::remove_dir_all(dir).expect("our own directory");
}

#[test]
fn every_function_of_failure_detection_does_what_it_says() {
    if !has_compiler() {
        return;
    }
    let dir = scratch("fide");
    let program = compile_shared("tests/fide.c", &dir);
    let options = martlet_warden::daemon::Options { socket: dir.join("warden.sock"), mode: 0o600, party: None, marks: false };
    let warden = martlet_warden::daemon::Warden::new(&options).expect("the place is free");
    let (stop, stopped) = std::os::unix::net::UnixStream::pair().expect("sockets");
    std::thread::scope(|scope| {
        scope.spawn(|| warden.run(std::os::fd::AsFd::as_fd(&stopped), |_| ()).expect("it serves"));
        let output = Command::new(&program).arg(&options.socket).output().expect("it was just compiled");
        drop(stop);
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    });
    fs::remove_dir_all(dir).expect("our own directory");
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
