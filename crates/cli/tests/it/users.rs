//! Root looks after a cluster that another user runs. This takes a test that root runs.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::martlet::{Ran, TempDir, command, free_ports, ran, run};

/// `nobody`, on most systems.
const USER: u32 = 65_534;

/// The command, run as that user.
fn as_user(arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.uid(USER).gid(USER).current_dir("/");
    command
}

fn ran_as_user(arguments: &[&str]) -> Ran {
    ran(as_user(arguments).output().expect("it runs"))
}

#[test]
fn root_looks_after_the_cluster_of_another_user_and_starts_none_of_its_nodes() {
    let temp = TempDir::new();
    if let Err(why) = chown(temp.path(), Some(USER), Some(USER)) {
        eprintln!("skipped: only root can make a directory another user's: {why}");
        return;
    }
    if let Err(why) = as_user(&["--version"]).output() {
        eprintln!("skipped: the other user cannot run the command where it is: {why}");
        return;
    }
    let (dir, port) = (temp.join("c"), free_ports(3).to_string());
    ran_as_user(&["cluster", "up", "--dir", &dir, "--redis-port", &port, "--patience", "600"]).ok();
    ran_as_user(&["set", "greeting", "hello", "--dir", &dir]).ok();

    let shown = run(&["status", "--dir", &dir, "--json"]).ok().objects();
    assert_eq!((&shown[0]["event"], &shown[0]["replicas"]), (&"cluster".into(), &3.into()), "{shown:?}");
    assert_eq!(run(&["get", "greeting", "--dir", &dir]).ok().out, "hello\n");
    let refused = |arguments: &[&str]| {
        let why = run(&[arguments, &["--dir", &dir]].concat()).code(1).err;
        assert!(why.contains("belongs to user 65534") && why.contains("this command runs as user 0 (root)"), "{arguments:?}: {why}");
        assert!(why.contains("sudo -u") && !why.contains("recover"), "{arguments:?}: {why}");
    };
    refused(&["cluster", "up"]);
    refused(&["cluster", "add"]);
    refused(&["cluster", "replace", "1"]);
    refused(&["cluster", "restart", "1"]);
    run(&["cluster", "kill", "1", "--dir", &dir]).ok();
    refused(&["cluster", "up"]);

    // What root changes stays the user's.
    run(&["cluster", "remove", "1", "--dir", &dir, "--patience", "600"]).ok();
    ran_as_user(&["cluster", "add", "--dir", &dir, "--patience", "600"]).ok();
    assert_eq!(ran_as_user(&["get", "greeting", "--dir", &dir]).ok().out, "hello\n");
    run(&["cluster", "down", "--purge", "--dir", &dir]).ok();
}
