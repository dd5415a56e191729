//! The page on the Redis protocol lists exactly the commands that exist.

use std::collections::BTreeSet;

#[test]
fn the_page_lists_every_command_and_no_other() {
    let page = include_str!("../../../../docs/redis.md");
    let section = page.split("## ").find(|section| section.starts_with("Commands")).expect("a section on commands");
    // Each line of the list names a family of commands, and then the commands between backquotes.
    let lines = section.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(": "));
    let words = lines.flat_map(|(family, commands)| {
        let most = if family == "Martlet's own" { 1 } else { usize::MAX };
        commands.split('`').skip(1).step_by(2).take(most)
    });
    let named: Vec<String> = words.map(str::to_ascii_lowercase).collect();
    let listed: BTreeSet<&str> = named.iter().map(String::as_str).collect();
    assert_eq!(listed.len(), named.len(), "a command is listed twice");
    assert_eq!(listed, martlet_kv::commands::all().iter().map(|command| command.name).collect::<BTreeSet<_>>());
}
