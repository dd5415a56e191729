//! The command line of `cargo xtask guests`.

use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args, ValueEnum};

use crate::number::number;

/// What is done to the host of the leading node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its machine is paused.
    Stop,
    /// It and the other nodes' hosts do not hear each other.
    Part,
}

impl Fault {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Stop => "stop",
            Fault::Part => "part",
        }
    }
}

/// Which faults there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Faults {
    /// The machine of the node that leads stands still. It does not notice: its clock stands still as well.
    Stop,
    /// Nothing passes between the host of the node that leads and those of the other nodes. Clients reach all of them.
    Part,
    /// Both in turn.
    Both,
}

/// Three hosts that are virtual machines, with a kernel and a clock each.
///
/// They have a cluster on the fabric `ethernet`. A fourth machine has the clients, whose history is checked for linearizability in each round (`martlet judge`).
/// Before each fault the clock of the host whose node leads is slowed by a tenth, and those of the others are quickened by a tenth, which is as much as a kernel
/// allows. Where machines stand still, reads under a lease may be stale, as docs/ethernet.md says; where clocks merely run apart they may not.
///
/// It needs what `cargo xtask vm` needs. Without KVM machines are emulated, and all timeouts are ten times as long as by default. Exit status 77 when machines
/// cannot be had here.
#[derive(Debug, PartialEq, Eq, Args)]
pub struct Wanted {
    /// Number of rounds, with a fault each.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number::<usize>(1..=100_000))]
    pub rounds: usize,
    /// The faults.
    #[arg(long = "fault", value_name = "KIND", default_value = "both")]
    pub faults: Faults,
    /// How many seconds each fault lasts.
    #[arg(long, value_name = "S", default_value = "10", value_parser = number::<u64>(1..=60).map(Duration::from_secs))]
    pub lasting: Duration,
    /// The replication engine.
    #[arg(long, value_name = "NAME", default_value = "primary-backup")]
    pub engine: String,
    /// How nodes read; by default as the cluster's file has it by default.
    #[arg(long, value_name = "HOW", value_parser = ["quorum", "lease"])]
    pub reads: Option<String>,
    /// Seed of the clients.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u64>(1..=u64::MAX))]
    pub seed: u64,
}

impl Wanted {
    /// The fault in a round; rounds are counted from 0.
    pub fn fault(&self, round: usize) -> Fault {
        match self.faults {
            Faults::Stop => Fault::Stop,
            Faults::Part => Fault::Part,
            Faults::Both => [Fault::Stop, Fault::Part][round % 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::tests::words;

    #[test]
    fn faults_come_in_turn_unless_one_is_named() {
        for (args, faults) in [
            ("guests", [Fault::Stop, Fault::Part, Fault::Stop]),
            ("guests --fault both", [Fault::Stop, Fault::Part, Fault::Stop]),
            ("guests --fault part", [Fault::Part; 3]),
            ("guests --fault stop", [Fault::Stop; 3]),
        ] {
            let Command::Guests(wanted) = words(args) else { panic!("{args}") };
            assert_eq!([0, 1, 2].map(|round| wanted.fault(round)), faults, "{args}");
        }
    }
}
