//! Servers in Python, run in three replicas.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::{Service, library};

/// The executable of Python itself, not a script that starts it. `None`: there is none, and that is printed.
pub fn executable() -> Option<String> {
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output();
    let python = asked.ok().and_then(|asked| String::from_utf8(asked.stdout).ok()).filter(|python| !python.is_empty());
    if python.is_none() {
        std::io::stderr().write_all(b"\nSKIPPED: no server in Python was run in replicas: there is none\n\n").expect("standard error");
    }
    python
}

/// A command that runs this script from this directory, and the port that the script gets after its other arguments.
pub fn command(script: &str, arguments: &[&str]) -> Option<(Command, u16)> {
    let python = executable()?;
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    command.args(["run", "--json", "--untried", "--preload"]).arg(library()).args(["--", &python]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/run").join(script)).args(arguments).arg(port.to_string());
    Some((command, port))
}

/// The same, as a complete service.
pub fn server(script: &str, arguments: &[&str]) -> Option<Service> {
    let (command, port) = command(script, arguments)?;
    Some(Service::begin(command, port))
}
