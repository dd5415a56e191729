//! What a program that embeds a replica sees: alone in this process, with others in it, and as processes that are killed.

mod alone;
mod cluster;
mod config;
mod counter;
mod durable;
mod together;

use martlet::config::EngineKind;

#[test]
fn the_example_counts_exactly_once_through_kills() {
    let program = counter::build("martlet", &["--example", "counter"]).join("examples/counter");
    for engine in EngineKind::ALL {
        counter::counts_exactly_once_through_kills(&format!("counter-{engine}"), engine, &program);
    }
}

#[test]
#[should_panic(expected = "has ended")]
fn a_counter_that_does_not_run_is_not_waited_for() {
    counter::counts_exactly_once_through_kills("ended", EngineKind::PrimaryBackup, std::path::Path::new("false"));
}
