//! The `martlet` command.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    martlet_cli::run()
}
