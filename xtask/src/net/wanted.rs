//! The command line of `cargo xtask net`.

use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser as _;
use clap::error::ErrorKind;

use super::mangling::Mangling;
use crate::number::number;

/// Three hosts that are network namespaces, with a cluster on the fabric `ethernet`.
///
/// Each round resets a host's TCP connections ten times, which may change no view, kills its node and starts it again, then cuts its link and mends it. A write
/// has to be acknowledged after each, the cluster has to be whole within 10 s after each fault's end, and nothing that was acknowledged may be lost.
///
/// A bad wire is a relay in the place of switch and cables. It does not limit the rate, and does not cut packets in parts.
#[derive(Debug, PartialEq, Args)]
pub struct Wanted {
    /// The replication engine.
    #[arg(long, value_name = "NAME", default_value = "mu")]
    pub engine: String,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<usize>(1..=1_000_000))]
    pub rounds: usize,
    /// Instead of so many rounds, or of one run with --torture: as many as begin within so many seconds.
    #[arg(long = "seconds", value_name = "S", value_parser = number::<u64>(1..=604_800).map(Duration::from_secs))]
    pub lasting: Option<Duration>,
    /// Instead of rounds, N times the node that leads is killed and started again, and N times the host of the one that leads is cut off and its link mended: its
    /// node has to be one of the cluster's again by itself each time.
    #[arg(long, value_name = "N", value_parser = number::<usize>(1..=1_000_000), conflicts_with_all = ["torture", "command"])]
    pub rejoins: Option<usize>,
    /// Instead of rounds, `martlet torture` in a namespace of its own: clients count, nodes are killed, paused, restarted, added and removed, and what clients
    /// have seen has to be linearizable. All its nodes and clients have one address there, 127.0.0.1; each packet between them takes the wire. It is repeated,
    /// with the next seed, until the seconds have passed.
    #[arg(long, conflicts_with = "command")]
    pub torture: bool,
    /// Instead of a cluster, the command behind `--` in such a namespace, where what it sends to 127.0.0.1 takes the wire; `martlet bench fabric --fabric
    /// ethernet` for example.
    #[arg(long, requires = "command")]
    pub one_host: bool,
    /// Meanwhile a fourth host, which has no key but hears all that the others say, sends them N packets a second, or as many as it can: noise, packets for no
    /// connection, real ones once more, real ones with a wrong bit, and by ICMP that ports are not to be reached. With --one-host: a program that has no key
    /// sends them there, to all UDP ports that are bound, three in four in bundles; without any option of the wire, on the loopback device itself, with no
    /// relay. It says too what sockets did not take.
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=10_000_000), conflicts_with = "torture")]
    pub flood: Option<u64>,
    /// Seed of the wire, of the flood and of `martlet torture`.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Martlet as built for release. By default it is built as tests are, without optimisation.
    #[arg(long)]
    pub release: bool,
    /// Instead of rounds, a command that runs on the first host, with the cluster's directory in MARTLET_DIR.
    #[arg(last = true)]
    pub command: Vec<String>,
    #[command(flatten, next_help_heading = "Wire")]
    wire: Mangling,
}

impl Wanted {
    /// Refuses options that do not go together, as far as their attributes do not say so.
    pub fn check(&self) -> Result<(), clap::Error> {
        if self.flood.is_some() && !self.one_host && self.mangling().is_some() {
            let why = "--flood over a bad wire: allowed only with --one-host; between hosts, no fourth host would hear what is said\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, why));
        }
        Ok(())
    }

    /// What the wire does, unless it is a good one.
    pub fn mangling(&self) -> Option<Mangling> {
        Some(self.wire).filter(|wire| *wire != Mangling::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::tests::{refusal, words};

    fn parse(args: &str) -> Wanted {
        match words(&format!("net {args}")) {
            Command::Net(wanted) => wanted,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_wanted_is_understood_and_else_refused() {
        let wanted = parse("--loss 5 --reorder 10 --repeat 2 --corrupt 0.5 --delay-us 2000 --seed 0 --seconds 120");
        let wire = Mangling { lost: 5.0, reordered: 10.0, repeated: 2.0, corrupted: 0.5, delay: Duration::from_millis(2) };
        assert_eq!((wanted.mangling(), wanted.seed, wanted.lasting), (Some(wire), 0, Some(Duration::from_secs(120))));
        let flooded = parse("--one-host --flood 1000000 --loss 1 -- true --loss");
        assert_eq!((flooded.one_host, flooded.flood, flooded.mangling().is_some()), (true, Some(1_000_000), true));
        assert_eq!(flooded.command, ["true", "--loss"]);
        let wanted = parse("--rejoins 100 --release");
        assert_eq!((wanted.rejoins, wanted.mangling(), wanted.release), (Some(100), None, true));
        for (bad, why) in [
            ("--loss 51", "invalid value '51' for '--loss <PERCENT>': allowed are 0 to 50"),
            ("--loss NaN", "allowed are 0 to 50"),
            ("--torture --rejoins 3", "'--torture' cannot be used with '--rejoins <N>'"),
            ("--flood 1000 --loss 1", "--flood over a bad wire: allowed only with --one-host"),
            ("--torture --flood 1000", "cannot be used with '--flood <N>'"),
            ("--one-host --loss 5", "-- <COMMAND>..."),
            ("--one-host --torture -- true", "'--torture' cannot be used with"),
        ] {
            let said = refusal(&format!("net {bad}"));
            assert!(said.contains(why), "{bad}: {said}");
        }
    }
}
