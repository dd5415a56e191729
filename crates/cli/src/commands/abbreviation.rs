//! Commands by the beginning of their names.

use std::ffi::OsString;

use clap::Command;
use martlet_cluster::fail::Fail;

/// Why a command could not be found whose name was shortened, where more than one begins so: those are named.
pub fn ambiguous(mut command: &Command, words: impl IntoIterator<Item = OsString>) -> Option<Fail> {
    let shown = |of: &Command, word: &str| -> Vec<String> {
        let visible = of.get_subcommands().filter(|sub| !sub.is_hide_set());
        visible.map(|sub| sub.get_name().to_owned()).filter(|name| name.starts_with(word)).collect()
    };
    for word in words {
        let word = word.to_str()?;
        // No flag before a command takes a value.
        if word.starts_with('-') {
            continue;
        }
        let candidates = shown(command, word);
        let name = match &candidates[..] {
            _ if command.find_subcommand(word).is_some() => word,
            [one] => one,
            [] => return None,
            [most @ .., last] => {
                let (short, most) = (format!("{word:?}"), most.join(", "));
                return Some(Fail::usage(format_args!("the command {short} is ambiguous; allowed are {most} and {last}")));
            }
        };
        command = command.find_subcommand(name)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::commands::Cli;

    fn said(words: &[&str]) -> Option<String> {
        let mut command = Cli::command();
        command.build();
        ambiguous(&command, words.iter().map(OsString::from)).map(|fail| fail.to_string())
    }

    #[test]
    fn what_more_than_one_command_begins_with_is_said_with_all_of_them() {
        assert_eq!(said(&["t"]).as_deref(), Some("the command \"t\" is ambiguous; allowed are top and torture"));
        assert_eq!(
            said(&["--json", "cluster", "re"]).as_deref(),
            Some("the command \"re\" is ambiguous; allowed are restart, resize, remove, replace and recover")
        );
        assert!(said(&["cl", "r"]).is_some_and(|text| text.contains("restart, resize, remove, replace and recover")));
    }

    #[test]
    fn what_is_no_abbreviation_is_left_to_others() {
        for words in [&["top"][..], &["tor"], &["xyz"], &["cluster", "kill", "r"], &["get", "t"], &[]] {
            assert_eq!(said(words), None, "{words:?}");
        }
    }
}
