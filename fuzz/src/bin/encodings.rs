//! Compares the samples of all encodings with the recorded digests, or records them, with `--record`.

#![forbid(unsafe_code)]

use std::fs;
use std::process::ExitCode;

use martlet_fuzz::encodings::{file, groups, problems, record};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (path, groups) = (file(), groups());
    let written = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    match std::env::args().nth(1).as_deref() {
        None => {
            let problems = problems(&groups, &written);
            if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
        }
        Some("--record") => {
            let text = record(&groups, &written)?;
            fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        }
        Some(other) => Err(format!("unknown argument {other:?}; allowed is --record")),
    }
}
