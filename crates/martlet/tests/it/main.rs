//! What a program that embeds a replica sees: alone in this process, with others in it, and as processes that are killed.

mod alone;
mod built;
mod cluster;
mod config;
mod counter;
mod direct;
mod durable;
mod guest;
mod names;
mod quorum;
mod together;

use martlet::config::EngineKind;

fn program(example: &str) -> std::path::PathBuf {
    built::build("martlet", &["--example", example]).join("examples").join(example)
}

#[test]
fn the_example_counts_exactly_once_through_kills() {
    counts_exactly_once_through_kills("counter");
}

#[test]
fn the_example_with_its_clients_on_the_replicas_thread_counts_exactly_once_through_kills() {
    counts_exactly_once_through_kills("counter_direct");
}

fn counts_exactly_once_through_kills(example: &str) {
    for engine in EngineKind::ALL {
        counter::counts_exactly_once_through_kills(&format!("{}-{engine}", example.replace('_', "-")), engine, &program(example));
    }
}

#[test]
fn the_example_ends_in_order_when_it_is_told_to() {
    for engine in EngineKind::ALL {
        counter::ends_in_order_when_it_is_told_to(&format!("ends-{engine}"), engine, &program("counter"));
    }
}

#[test]
fn the_example_leaves_when_its_disk_takes_no_more() {
    counter::leaves_when_its_disk_takes_no_more("disk", &program("counter"));
}

/// Lines that are neither blank nor a comment's.
fn lines_of_code(source: &str) -> usize {
    let is_comment = |line: &str| line.starts_with(" * ") || ["//", "/*"].iter().any(|start| line.trim_start().starts_with(start));
    source.lines().filter(|line| !line.trim().is_empty() && !is_comment(line)).count()
}

#[test]
fn the_examples_are_as_short_as_the_page_says() {
    let rust = lines_of_code(include_str!("../../examples/counter.rs"));
    let c = lines_of_code(include_str!("../../../capi/examples/counter.c"));
    let wanted = format!("That takes {rust} lines of code in Rust and {c} in C");
    assert!(include_str!("../../../../docs/embedding.md").contains(&wanted), "{wanted}");
}

#[test]
#[should_panic(expected = "has ended")]
fn a_counter_that_does_not_run_is_not_waited_for() {
    counter::counts_exactly_once_through_kills("ended", EngineKind::PrimaryBackup, std::path::Path::new("false"));
}
