//! Developers' commands. `cargo xtask ci` has to pass before a change lands; `cargo xtask tidy` is the part of it that reads the sources.

#![forbid(unsafe_code)]

mod apt;
mod beside;
mod chosen;
mod ci;
mod deb;
mod deny;
mod failed;
mod family;
mod fuzz;
mod guests;
mod header;
mod hosts;
mod limit;
mod miri;
mod namespaces;
mod net;
mod number;
mod peers;
mod redis;
mod step;
mod tidy;
mod tools;
mod upgrade;
mod vm;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Developers' commands.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything that has to hold before a change lands: format, tidiness, header, lints, docs, dependencies, loom, fuzzing, canaries, coverage, tests, the
    /// Debian package, the upgrade from the last release, RDMA, Miri.
    Ci,
    /// Dependency direction, purity of `protocol`, unsafe code, leftovers, file sizes, licences, engines and fabrics that too many files name.
    Tidy,
    /// Compares the samples of all encodings with what is recorded of their versions, as a test does.
    Encodings {
        /// Record them instead, after a version was raised or samples were added.
        #[arg(long)]
        record: bool,
    },
    /// `martlet bench`, built for release.
    Bench(Forwarded),
    /// Lives of simulated clusters, built to be fast; `cargo xtask sim --help` says more.
    Sim {
        /// Instead, known bugs planted one at a time, all or those named: each has to be found.
        #[arg(long)]
        canaries: bool,
        #[command(flatten)]
        forwarded: Forwarded,
    },
    Net(net::Wanted),
    Peers(peers::Wanted),
    #[command(subcommand)]
    Hosts(hosts::Wanted),
    Vm(vm::options::Options),
    Guests(guests::Wanted),
    Fuzz(fuzz::Wanted),
    /// Writes the header of the C ABI, crates/capi/include/martlet.h.
    Header,
    /// Undefined behaviour in the parts that Miri can run, where its component is installed.
    Miri,
    /// The tests that need RDMA devices, in the machine of `cargo xtask vm`, on a good link and on bad ones.
    Rdma,
    RedisSuite(redis::suite::Wanted),
    Clients(redis::clients::Wanted),
    /// Clusters that are upgraded to this build from the last release, which is built from its tag.
    Upgrade {
        /// Instead of the last release: another revision, or the path of a `martlet` command.
        from: Option<String>,
    },
    /// The Debian package; and installed, used and removed in a fresh root, where that can be made.
    Deb {
        /// The profile of cargo that its programs are built with.
        #[arg(long, value_name = "NAME", default_value = "release")]
        profile: String,
    },
    /// The memory orders of shared memory, in every execution that the memory model allows.
    Loom,
    #[command(hide = true)]
    Step(step::Part),
    #[command(hide = true)]
    Work(step::Part),
    #[command(hide = true)]
    Bare(peers::bare::Place),
}

/// Words for another command, `--help` among them.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct Forwarded {
    /// What is passed on.
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

fn main() -> ExitCode {
    let root = workspace_root();
    match parse(std::env::args_os()).unwrap_or_else(|error| error.exit()).command {
        Command::Ci => ci::run(),
        Command::Tidy => tidy::run(&root),
        Command::Encodings { record } => {
            let mut encodings = ci::cargo(&root);
            encodings.args(["run", "--quiet", "--package", "martlet-fuzz", "--bin", "encodings", "--"]);
            exit_of(encodings.args(record.then_some("--record")))
        }
        Command::Bench(Forwarded { words }) => {
            exit_of(ci::cargo(&root).args(["run", "--release", "--package", "martlet-cli", "--", "bench"]).args(words))
        }
        Command::Sim { canaries: true, forwarded } => exit_of(ci::canaries(&root).args(forwarded.words)),
        Command::Sim { canaries: false, forwarded } => {
            let mut sim = ci::cargo(&root);
            sim.args(["run", "--profile", "sim", "--package", "martlet-sim", "--features", "marks", "--"]);
            exit_of(sim.args(forwarded.words))
        }
        Command::Net(wanted) => exit_with(net::run(&root, &wanted)),
        Command::Peers(wanted) => exit_with(peers::run(&root, &wanted)),
        Command::Hosts(wanted) => exit_with(hosts::run(&root, &wanted)),
        Command::Vm(options) => vm::run(&root, &options).into(),
        Command::Guests(wanted) => guests::run(&root, &wanted),
        Command::Fuzz(wanted) => exit_with(fuzz::run(&root, &wanted)),
        Command::Header => exit_with(header::write(&root)),
        Command::Miri => tell(ci::one_by_one(miri::check(&root), chosen::finish)),
        Command::Rdma => vm::check::command(&root),
        Command::RedisSuite(wanted) => exit_with(redis::suite::run(&root, &wanted)),
        Command::Clients(wanted) => exit_with(redis::clients::run(&root, &wanted)),
        Command::Upgrade { from } => tell(upgrade::run(&root, from.as_deref())),
        Command::Deb { profile } => tell(deb::run(&root, deb::Programs::Build(&profile))),
        Command::Loom => tell(ci::one_by_one(Ok(ci::loom(&root).into()), ci::finish)),
        // Parts of `ci` and of `peers`, which start this program again.
        Command::Step(part) => step::keep(&part),
        Command::Work(part) => step::work(&root, &part),
        Command::Bare(place) => exit_with(peers::bare::serve(&place)),
    }
}

/// Reads a command line.
fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    let cli = Cli::from_arg_matches(&command().try_get_matches_from(words)?)?;
    if let Command::Net(wanted) = &cli.command {
        wanted.check()?;
    }
    Ok(cli)
}

/// The command. An option takes a number below zero for its value, and says what it may be; else such a number would be taken for an option that there is not.
fn command() -> clap::Command {
    fn numbers_are_values(command: clap::Command) -> clap::Command {
        let own = command.mut_args(|argument| {
            let takes_values = argument.get_action().takes_values();
            argument.allow_negative_numbers(takes_values)
        });
        own.mut_subcommands(numbers_are_values)
    }
    numbers_are_values(Cli::command())
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the workspace").to_path_buf()
}

/// Reports the outcome of a step that was run by itself.
fn tell(outcome: ci::Outcome) -> ExitCode {
    match outcome {
        ci::Outcome::Passed => ExitCode::SUCCESS,
        ci::Outcome::Failed(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
        ci::Outcome::Skipped(why) | ci::Outcome::Partly(why) => {
            println!("skipped: {why}");
            ExitCode::SUCCESS
        }
    }
}

/// Reports the outcome of a command that says why it failed.
fn exit_with(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn exit_of(command: &mut process::Command) -> ExitCode {
    let status = command.status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::error::ErrorKind;

    use super::*;

    /// What a command line that is allowed asks for.
    pub fn words(line: &str) -> Command {
        parse(format!("xtask {line}").split_whitespace()).unwrap_or_else(|error| panic!("`{line}`: {error}")).command
    }

    /// What is said of a command line that is not allowed.
    pub fn refusal(line: &str) -> String {
        let error = parse(format!("xtask {line}").split_whitespace()).err().unwrap_or_else(|| panic!("`{line}` is allowed"));
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    }

    #[test]
    fn the_command_line_holds_together() {
        command().debug_assert();
    }

    #[test]
    fn what_is_for_another_command_is_passed_on_untouched() {
        let Command::Sim { canaries, forwarded } = words("sim --seed 4 --help --canaries -- -1") else { panic!() };
        assert_eq!((canaries, forwarded.words), (false, ["--seed", "4", "--help", "--canaries", "--", "-1"].map(OsString::from).into()));
        let Command::Sim { canaries, forwarded } = words("sim --canaries late-fence@mu --known-first") else { panic!() };
        assert_eq!((canaries, forwarded.words), (true, ["late-fence@mu", "--known-first"].map(OsString::from).into()));
        let Command::Bench(forwarded) = words("bench --help") else { panic!() };
        assert_eq!(forwarded.words, ["--help"]);
    }

    #[test]
    fn a_refused_value_is_refused_with_what_is_allowed() {
        for (line, why) in [
            ("fuzz --seconds 0", "invalid value '0' for '--seconds <N>': allowed are 1 to 4294967295"),
            ("net --rounds -1", "invalid value '-1' for '--rounds <N>': allowed are 1 to 1000000"),
            ("net --seed x", "invalid value 'x' for '--seed <N>': allowed are 0 to 18446744073709551615"),
            ("peers --clients 1,65", "invalid value '65' for '--clients <N,...>': allowed are 1 to 64"),
            ("hosts up --hosts -1", "invalid value '-1' for '--hosts <N>': allowed are 2 to 16"),
            ("vm --cpus 0 -- x", "invalid value '0' for '--cpus <N>': allowed are 1 to 16"),
            ("vm --loss 101 -- x", "invalid value '101' for '--loss <PERCENT>': allowed are 0 to 100 per cent"),
            ("vm --delay 1m -- x", "invalid value '1m' for '--delay <TIME>': allowed is a number with us, ms or s, up to 10s"),
            ("vm --accel fast -- x", "[possible values: auto, kvm, tcg]"),
            ("guests --fault fire", "[possible values: stop, part, both]"),
            ("guests --reads none", "[possible values: quorum, lease]"),
            ("redis-suite --kill-every often", "invalid value 'often' for '--kill-every <TIME>': allowed are milliseconds"),
            ("clients --languages cobol", "[possible values: python, node, go, java]"),
            ("step no-step file", "invalid value 'no-step' for '<STEP>': allowed is the name of a step"),
        ] {
            let said = refusal(line);
            assert!(said.contains(why), "{line}: {said}");
        }
    }

    #[test]
    fn the_commands_that_documents_quote_are_understood() {
        let root = workspace_root();
        let documents = fs::read_dir(root.join("docs")).expect("documents").map(|entry| entry.expect("an entry").path());
        let documents = documents.chain(["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| root.join(name)));
        let mut quoted = 0;
        for path in documents.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
            let text = fs::read_to_string(&path).expect("readable");
            for (at, name) in text.match_indices("cargo xtask ") {
                // Between backticks, or a line of a block with a comment behind it.
                let ends: &[char] = if text[..at].ends_with('`') { &['`'] } else { &['\n', '#', '`'] };
                let line = text[at + name.len()..].split(ends).next().unwrap_or_default();
                // Words that stand for others.
                let line = line.split(" [").next().unwrap_or_default().replace(" N ", " 1 ");
                if let Err(error) = parse(format!("xtask {line}").split_whitespace()) {
                    // The bare name of a command stands also for one that needs more.
                    let is_name = error.kind() == ErrorKind::MissingRequiredArgument && line.split_whitespace().count() == 1;
                    assert!(is_name, "{}: `{line}`: {error}", path.display());
                }
                quoted += 1;
            }
        }
        assert!(quoted > 50, "{quoted} commands are quoted");
    }
}
