//! The commands, a file each.

mod abbreviation;
mod cluster;
mod completions;
mod demo;
mod doctor;
mod host;
mod judge;
mod key;
mod man;
mod members;
mod metrics;
mod node;
mod plan;
mod run;
mod status;
mod top;
mod torture;
mod warden;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use martlet_cluster::fail::{self, Fail, Kind, Outcome};
use martlet_cluster::interrupt::was_signalled;
use martlet_cluster::log;
use martlet_cluster::output::{self, BAD, Format, styled};

/// A replicated key-value store that outlives kill -9.
///
/// Martlet keeps a service up through crashes, at the speed of the memory it lives in: replicas on one host write into each other's memory,
/// see a death within microseconds, agree on who is in charge, and answer again.
#[derive(Debug, Parser)]
#[command(name = "martlet", version, after_help = fail::EXIT_CODES, max_term_width = 110, propagate_version = true, infer_subcommands = true)]
pub struct Cli {
    /// Print one JSON object per line instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    #[command(subcommand)]
    Cluster(cluster::Command),
    #[command(subcommand)]
    Host(host::Command),
    Status(status::Arguments),
    Members(members::Arguments),
    Top(top::Arguments),
    Metrics(metrics::Arguments),
    Get(key::Get),
    Set(key::Set),
    Del(key::Del),
    Node(node::Arguments),
    Run(run::Arguments),
    Bench(martlet_bench::Arguments),
    Model(martlet_bench::commands::model::Arguments),
    Plan(plan::Arguments),
    #[command(subcommand)]
    Warden(warden::Command),
    Doctor(doctor::Arguments),
    Torture(torture::Arguments),
    Judge(judge::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
    #[command(flatten)]
    Helper(martlet_bench::Helper),
}

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// The cluster's directory.
    #[arg(long, value_name = "DIR", env = "MARTLET_DIR", default_value = "martlet-cluster")]
    pub dir: PathBuf,
}

/// Runs the command that the process was called with.
pub fn run() -> ExitCode {
    // Where a file that is printed to may not grow, that is an error like a full disk. Without this the signal ends the process, as it would anyway.
    let _ = martlet_node::signals::ignore_file_size_signal();
    // To read the command line takes more of it than some limits leave.
    if let Err(why) = martlet_fabric::limits::check_stack() {
        return told(&Fail::failed(why));
    }
    let ended = match parse(std::env::args_os()) {
        Ok(cli) => {
            let format = if cli.json { Format::Json } else { Format::Text };
            dispatch(cli.command, format)
        }
        Err(error) if error.use_stderr() => match ambiguous(&error) {
            Some(fail) => Err(fail),
            None => {
                output::complain(error.render().ansi().to_string().trim_end());
                return Fail::usage("").code();
            }
        },
        // Help, or the version: what was asked for.
        Err(error) => {
            output::coloured(error.render().ansi());
            Ok(())
        }
    };
    let code = match (ended, output::check()) {
        (Ok(()), Ok(())) => ExitCode::SUCCESS,
        // A terminal's Ctrl-C goes to our children too: what their deaths then made fail was not what happened.
        (Err(fail), _) if fail.kind() == Kind::Failed && was_signalled() => Fail::interrupted().code(),
        // It has ended early for that.
        (Err(fail), Err(unwritten)) if fail.kind() == Kind::Interrupted && !was_signalled() => told(&unwritten),
        (Err(fail), _) if fail.kind() == Kind::Interrupted => fail.code(),
        (Err(fail), _) | (Ok(()), Err(fail)) => told(&fail),
    };
    log::finish();
    code
}

/// Reads a command line.
fn parse<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    let mut matches = command().try_get_matches_from(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
}

/// The command. Whatever takes a value takes a number below zero for one, and says what it may be; else such a number would be taken for a flag that there is not.
/// A variable of the environment that is set to nothing is as good as none: a script that empties one means that.
fn command() -> clap::Command {
    fn adjusted(command: clap::Command) -> clap::Command {
        let own = command.mut_args(|argument| {
            let takes_values = argument.get_action().takes_values();
            let is_empty = argument.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
            let argument = if is_empty { argument.env(None::<&'static str>) } else { argument };
            argument.allow_negative_numbers(takes_values)
        });
        own.mut_subcommands(adjusted)
    }
    adjusted(Cli::command())
}

/// What to say instead where a command's name was shortened too much.
fn ambiguous(error: &clap::Error) -> Option<Fail> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let mut command = command();
    command.build();
    abbreviation::ambiguous(&command, std::env::args_os().skip(1))
}

fn told(fail: &Fail) -> ExitCode {
    output::complain(format_args!("{} {fail}", styled(BAD, "error:")));
    fail.code()
}

fn dispatch(command: Command, format: Format) -> Outcome {
    match command {
        Command::Demo(arguments) => demo::run(&arguments, format),
        Command::Get(arguments) => key::get(&arguments, format),
        Command::Set(arguments) => key::set(&arguments, format),
        Command::Del(arguments) => key::del(&arguments, format),
        Command::Node(arguments) => node::run(&arguments),
        Command::Run(arguments) => run::run(&arguments, format),
        Command::Torture(arguments) => torture::run(&arguments, format),
        Command::Judge(arguments) => judge::run(&arguments, format),
        Command::Cluster(command) => cluster::run(&command, format),
        Command::Host(command) => host::run(&command, format),
        Command::Status(arguments) => status::run(&arguments, format),
        Command::Members(arguments) => members::run(&arguments, format),
        Command::Top(arguments) => top::run(&arguments, format),
        Command::Metrics(arguments) => metrics::run(&arguments, format),
        Command::Bench(arguments) => martlet_bench::run(&arguments, format),
        Command::Model(arguments) => martlet_bench::commands::model::run(&arguments, format),
        Command::Plan(arguments) => plan::run(&arguments, format),
        Command::Warden(command) => warden::run(&command, format),
        Command::Doctor(arguments) => doctor::run(&arguments, format),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
        Command::Helper(helper) => martlet_bench::run_helper(&helper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "`{}` says nothing about itself", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "`{}` of `{}` says nothing about itself", argument.get_id(), command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    /// Every value that a flag or an argument takes is refused, if it is, with its name, the value and what is allowed: a number below zero like any other.
    #[test]
    fn a_refused_value_is_refused_with_what_is_allowed() {
        fn check(command: &clap::Command, path: &[String]) -> u32 {
            let mut refused = 0;
            // What stands behind `--` is a server's command line.
            for argument in command.get_arguments().filter(|argument| argument.get_action().takes_values() && !argument.is_last_set()) {
                let said = |value: &str| {
                    let mut words = path.to_vec();
                    words.extend(argument.get_long().map(|long| format!("--{long}")));
                    words.push(value.into());
                    let error = parse(&words).err()?;
                    assert_ne!(error.kind(), ErrorKind::UnknownArgument, "{words:?}: {error}");
                    [ErrorKind::ValueValidation, ErrorKind::InvalidValue].contains(&error.kind()).then(|| error.to_string())
                };
                let Some(text) = said("no such thing") else {
                    said("-1");
                    continue;
                };
                refused += 1;
                assert!(text.contains("allowed") || text.contains("possible values"), "{path:?} {argument}: {text}");
                for value in ["-1", "-1.5"] {
                    let text = said(value).unwrap_or_else(|| panic!("{path:?} {argument} takes {value}"));
                    assert!(text.contains(&format!("'{value}' for '")), "{path:?} {argument}: {text}");
                    assert!(text.contains("allowed") || text.contains("possible values"), "{path:?} {argument}: {text}");
                    let name = argument.get_long().map_or_else(String::new, |long| format!("--{long}"));
                    assert!(text.contains(&name), "{path:?} {argument}: {text}");
                }
            }
            let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            refused + visible.map(|sub| check(sub, &[path, &[sub.get_name().to_owned()]].concat())).sum::<u32>()
        }
        let refused = check(&command(), &["martlet".to_owned()]);
        assert!(refused > 50, "{refused} arguments take no text but certain ones");
    }
}
