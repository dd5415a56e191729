//! The command as users run it.

mod bench;
#[path = "../../../martlet/tests/it/built.rs"]
mod built;
mod cluster;
mod command;
mod containers;
mod durable;
mod ethernet;
mod hosts;
mod limits;
mod martlet;
mod nodes;
mod process;
mod recover;
mod run;
mod service;
mod terminal;
mod trial;
mod unwritten;
mod upgrade;
mod users;
mod watch;
mod zombies;
