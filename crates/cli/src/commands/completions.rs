//! `martlet completions`

use clap::{Arg, Args, ValueHint};
use clap_complete::Shell;
use martlet_cluster::fail::Outcome;
use martlet_cluster::output;

/// Print completions for a shell.
///
/// Example: martlet completions bash > ~/.local/share/bash-completion/completions/martlet
#[derive(Debug, Args)]
pub struct Arguments {
    /// The shell.
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Outcome {
    output::raw(&script(arguments.shell));
    Ok(())
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&super::command()), "martlet", &mut script);
    script
}

/// The same command without what is hidden in it, as far as completions look at it. `clap_complete` offers what is hidden too, and from a command of clap's
/// nothing can be taken away, so this is another one.
fn shown(command: &clap::Command) -> clap::Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).map(shown_argument);
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(shown);
    let mut seen = clap::Command::new(kept(command.get_name())).args(arguments).subcommands(subcommands);
    seen = seen.visible_aliases(command.get_visible_aliases().map(kept).collect::<Vec<_>>());
    if let Some(about) = command.get_about() {
        seen = seen.about(about.clone());
    }
    // Without one, clap makes no flag that shows it.
    if let Some(version) = command.get_version() {
        seen = seen.version(kept(version));
    }
    seen.propagate_version(command.is_propagate_version_set())
}

/// An argument without its relations to others, some of which may be hidden.
fn shown_argument(argument: &Arg) -> Arg {
    let mut seen = Arg::new(kept(argument.get_id().as_str()))
        .long(argument.get_long().map(kept))
        .short(argument.get_short())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone())
        .value_hint(value_hint(argument))
        .value_delimiter(argument.get_value_delimiter())
        .required(argument.is_required_set())
        .global(argument.is_global_set())
        .last(argument.is_last_set())
        .trailing_var_arg(argument.is_trailing_var_arg_set())
        .allow_hyphen_values(argument.is_allow_hyphen_values_set());
    if let Some(help) = argument.get_help() {
        seen = seen.help(help.clone());
    }
    if let Some(number) = argument.get_num_args() {
        seen = seen.num_args(number);
    }
    match argument.get_value_names() {
        Some(names) => seen.value_names(names.iter().map(|name| kept(name)).collect::<Vec<_>>()),
        None => seen,
    }
}

/// What a shell offers where there are no names to offer. By default that is files, also for numbers.
fn value_hint(argument: &Arg) -> ValueHint {
    let is_a_command_line = argument.is_trailing_var_arg_set() || argument.is_last_set();
    match argument.get_value_hint() {
        ValueHint::Unknown if argument.get_action().takes_values() && !is_a_command_line => ValueHint::Other,
        hint => hint,
    }
}

/// For as long as this process lives, which only prints the script.
fn kept(text: &str) -> &'static str {
    text.to_owned().leak()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    fn hidden(command: &clap::Command) -> Vec<String> {
        let own = command.get_subcommands().filter(|sub| sub.is_hide_set()).map(|sub| sub.get_name().to_owned());
        let flags = command.get_arguments().filter(|argument| argument.is_hide_set()).filter_map(Arg::get_long);
        let within = command.get_subcommands().filter(|sub| !sub.is_hide_set()).flat_map(hidden);
        own.chain(flags.map(|long| format!("--{long}"))).chain(within).collect()
    }

    fn visible(command: &clap::Command) -> Vec<String> {
        let own = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(|sub| sub.get_name().to_owned());
        let flags = command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(Arg::get_long);
        let within = command.get_subcommands().filter(|sub| !sub.is_hide_set()).flat_map(visible);
        own.chain(flags.map(str::to_owned)).chain(within).collect()
    }

    #[test]
    fn completions_offer_everything_but_what_is_hidden() {
        let command = super::super::command();
        let (hidden, visible) = (hidden(&command), visible(&command));
        assert!(hidden.contains(&"victim".to_owned()) && hidden.len() > 3, "{hidden:?}");
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).expect("UTF-8");
            let words: std::collections::BTreeSet<&str> = script
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
                .flat_map(|word| [word, word.trim_start_matches('-')])
                .collect();
            for name in &hidden {
                assert!(
                    visible.iter().any(|seen| seen == name.trim_start_matches('-')) || !words.contains(name.as_str()),
                    "{shell}: {name}"
                );
            }
            // The script for fish offers no command that is three deep.
            for name in visible.iter().filter(|_| *shell != Shell::Fish) {
                assert!(words.contains(name.as_str()), "{shell}: {name}");
            }
        }
    }

    #[test]
    fn a_shell_offers_the_names_that_a_flag_takes_and_files_only_where_one_is_meant() {
        let bash = String::from_utf8(script(Shell::Bash)).expect("UTF-8");
        let offered = |flag: &str| {
            let case = format!("                {flag})\n");
            let after: Vec<&str> = bash.split(case.as_str()).skip(1).map(|after| after.split(";;").next().expect("one at least")).collect();
            assert!(!after.is_empty(), "{flag}");
            after
        };
        let all = |flag: &str, what: &str| offered(flag).iter().all(|case| case.contains(what));
        for (flag, names) in [
            ("--fabric", "shm verbs"),
            ("--durability", "memory async sync"),
            ("--signal", "HUP INT "),
            ("--idle", "spin "),
            ("--marks", "auto off"),
        ] {
            assert!(all(flag, &format!("compgen -W \"{names}")), "{flag}: {:?}", offered(flag));
        }
        assert!(all("--engine", "compgen -W") && all("--engines", "compgen -W \"primary-backup mu "), "{:?}", offered("--engine"));
        assert!(all("--config", "compgen -f") && all("--svg", "compgen -f"));
        assert!(offered("--timeout").iter().chain(&offered("--pin")).all(|case| !case.contains("compgen")), "{:?}", offered("--pin"));
    }
}
