//! The demonstration, as a user runs it: three processes, kill -9, and every order and book checked by the program itself.

use std::process::Command;

fn every_order_is_executed_exactly_once(engine: &str, threading: &str) {
    let arguments = ["demo", "--orders", "2000", "--kills", "2", "--engine", engine, "--threading", threading];
    let demo = Command::new(env!("CARGO_BIN_EXE_exchange")).args(arguments).output().expect("it runs");
    let printed = String::from_utf8_lossy(&demo.stdout);
    assert!(demo.status.success(), "{printed}{}", String::from_utf8_lossy(&demo.stderr));
    assert_eq!(printed.matches("  killed node ").count(), 2, "{printed}");
    assert!(printed.contains("every order was executed exactly once: 6000 commands"), "{printed}");
    assert!(printed.contains(&format!("replicated by {engine}\nclients are served by {threading}\n")), "{printed}");
}

// One after the other, as each wants all cores.
#[test]
fn every_order_is_executed_exactly_once_through_kills_with_every_engine_direct_and_handed_over() {
    for engine in ["primary-backup", "mu"] {
        ["handover", "direct"].into_iter().for_each(|threading| every_order_is_executed_exactly_once(engine, threading));
    }
}

#[test]
fn a_bad_option_is_named() {
    let bad = Command::new(env!("CARGO_BIN_EXE_exchange"))
        .args(["load", "--servers", "127.0.0.1:1", "--clients", "0"])
        .output()
        .expect("it runs");
    assert!(!bad.status.success());
    assert!(String::from_utf8_lossy(&bad.stderr).contains("--clients"));
}
