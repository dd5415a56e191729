//! What a program that embeds a replica sees: alone in this process, with others in it, and as processes that are killed.

mod alone;
mod cluster;
mod config;
mod counter;
mod direct;
mod durable;
mod names;
mod together;

use martlet::config::EngineKind;

#[test]
fn the_example_counts_exactly_once_through_kills() {
    counts_exactly_once_through_kills("counter");
}

#[test]
fn the_example_with_its_clients_on_the_replicas_thread_counts_exactly_once_through_kills() {
    counts_exactly_once_through_kills("counter_direct");
}

fn counts_exactly_once_through_kills(example: &str) {
    let program = counter::build("martlet", &["--example", example]).join("examples").join(example);
    for engine in EngineKind::ALL {
        counter::counts_exactly_once_through_kills(&format!("{}-{engine}", example.replace('_', "-")), engine, &program);
    }
}

#[test]
#[should_panic(expected = "has ended")]
fn a_counter_that_does_not_run_is_not_waited_for() {
    counter::counts_exactly_once_through_kills("ended", EngineKind::PrimaryBackup, std::path::Path::new("false"));
}
