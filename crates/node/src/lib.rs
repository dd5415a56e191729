//! Everything that runs: threads, clocks, process watch, bootstrap, configuration, counters. The decisions are made in `martlet-protocol`.
//!
//! # Embedding
//! Most programs use [`embed`], which takes calls from any thread, and gives a program turns on the node's own thread if it wants them. A program that decides
//! itself what is proposed and how it is executed supplies a [`StateMachine`](martlet_protocol::replica::StateMachine) and an
//! [`Application`](martlet_protocol::replica::Application), and gives a thread to [`run`]:
//!
//! ```no_run
//! use martlet_node::{Hooks, config::Settings, run};
//! use martlet_protocol::replica::Application;
//!
//! fn serve<A: Application>(app: A, empty: A::Machine) -> Result<(), Box<dyn std::error::Error>> {
//!     let settings = Settings::load("node.toml".as_ref())?;
//!     let hooks = Hooks::new()?;
//!     hooks.stop.on_signals()?;
//!     run(&settings, app, empty, hooks)?;
//!     Ok(())
//! }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`embed`] | replication for a program's own state |
//! | [`config`] | the configuration, validated once |
//! | `runner` | [`run`]: the thread, its sleep, the lives of a node one after another, its orderly end |
//! | `acting` | the threads that act for a node's process; a thread may join them at any time |
//! | `warden` | the warden of the host, by which other hosts learn that a node is gone |
//! | `agent`, `instruments` | the duty cycle (`protocol`), with a clock, counters and a timeline around it |
//! | [`backend`] | what the parts of a node need of the fabric they run on, beyond its contract |
//! | `durable` | what a node writes to its disk while it runs, and what it returns with after a restart |
//! | `rehearsal` | a failover played through in advance, on memory of its own |
//! | `founding` | which node founds the cluster |
//! | [`connections`] | clients' connections that outlive the process that serves them |
//! | [`client`] | an endpoint for clients, which reads what nodes show |
//! | [`counters`] | counters and the timeline of failovers, in shared memory |
//! | [`wal`] | a replica's log on disk |
//! | `os` | this host's kernel: [`clock`], [`idle`] (sleep), [`sched`] (cores and classes), [`stop`] and [`signals`], `warm` (what a failover must not wait for), `undertaker` (the memory of a process that died) |

mod acting;
mod agent;
pub mod backend;
pub mod client;
pub mod config;
pub mod connections;
pub mod counters;
mod durable;
pub mod embed;
mod engine;
mod founding;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod instruments;
mod os;
mod rehearsal;
mod runner;
#[cfg(feature = "fuzzing")]
pub mod samples;
pub mod version;
pub mod wal;
mod warden;

const _: () =
    assert!(!martlet_fabric::probe::BUILT_IN, "a node must not hold a simulator's canaries or marks: build it without those features");

pub use acting::{ActingError, ActingThread, ActingThreads};
pub use durable::{DiskError, OnDisk, on_disk};
use os::undertaker;
pub use os::{clock, cpu, idle, sched, signals, stop, warm};
pub use runner::{Ended, Hooks, LONGEST_END, Milestone, OnMilestone, OnStart, ProcessPolicy, RunError, Started, descriptors_needed, run};
pub use warden::application_of;
