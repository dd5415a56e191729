//! The command line of `cargo xtask guests`.

use std::time::Duration;

use crate::number::number;

pub const USAGE: &str = "\
Usage: cargo xtask guests [--rounds N] [--fault stop|part|both] [--lasting S] [--engine NAME] [--reads quorum|lease] [--seed N]

A cluster of three hosts with a kernel and a clock each: virtual machines on the fabric `ethernet`. A fourth machine has the clients, whose history is checked for
linearizability in each round (`martlet judge`). Before each fault the clock of the host whose node leads is slowed by a tenth, and those of the others are
quickened by a tenth, which is as much as a kernel allows. Then, in turn or as --fault says:

  stop    The machine of the node that leads stands still for S seconds (10, or --lasting). It does not notice: its clock stands still as well.
  part    For so long nothing passes between the host of the node that leads and those of the other nodes. Clients reach all of them.

Ten rounds, or --rounds. `primary-backup`, or the engine NAME; reads as the cluster's file has them by default, or as --reads says. Where machines stand still, reads under a
lease may be stale, as docs/ethernet.md says; where clocks merely run apart they may not.

It needs what `cargo xtask vm` needs. Without KVM machines are emulated, and all timeouts are ten times as long as by default. Exit status 77 when machines cannot be had here.
";

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

/// The options of the command.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub rounds: usize,
    /// The faults, in turn.
    pub faults: &'static [Fault],
    pub lasting: Duration,
    pub engine: String,
    pub reads: Option<String>,
    pub seed: u64,
}

impl Wanted {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
        const BOTH: &[Fault] = &[Fault::Stop, Fault::Part];
        let mut wanted =
            Wanted { rounds: 10, faults: BOTH, lasting: Duration::from_secs(10), engine: "primary-backup".into(), reads: None, seed: 1 };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} takes a value\n\n{USAGE}"));
            match arg.as_str() {
                "--rounds" => wanted.rounds = number(&arg, &value()?, 100_000, USAGE)?,
                "--lasting" => wanted.lasting = Duration::from_secs(number(&arg, &value()?, 60, USAGE)?),
                "--engine" => wanted.engine = value()?,
                "--seed" => wanted.seed = number(&arg, &value()?, u64::MAX, USAGE)?,
                "--reads" => {
                    let reads = value()?;
                    if !["quorum", "lease"].contains(&reads.as_str()) {
                        return Err(format!("--reads is {reads:?}; allowed are quorum and lease\n\n{USAGE}"));
                    }
                    wanted.reads = Some(reads);
                }
                "--fault" => {
                    wanted.faults = match value()?.as_str() {
                        "stop" => &BOTH[..1],
                        "part" => &BOTH[1..],
                        "both" => BOTH,
                        other => return Err(format!("--fault is {other:?}; allowed are stop, part and both\n\n{USAGE}")),
                    }
                }
                other => return Err(format!("unknown argument {other:?}\n\n{USAGE}")),
            }
        }
        Ok(wanted)
    }

    /// The fault in a round; rounds are counted from 0.
    pub fn fault(&self, round: usize) -> Fault {
        self.faults[round % self.faults.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Wanted, String> {
        Wanted::parse(args.iter().map(|&arg| arg.to_owned()))
    }

    #[test]
    fn what_is_wanted_is_understood_and_else_refused_with_what_is_allowed() {
        let wanted = parse(&["--rounds", "4", "--lasting", "2", "--engine", "mu", "--reads", "lease", "--seed", "9"]).expect("good");
        assert_eq!((wanted.rounds, wanted.lasting, wanted.seed), (4, Duration::from_secs(2), 9));
        assert_eq!((wanted.engine.as_str(), wanted.reads.as_deref()), ("mu", Some("lease")));
        assert_eq!([0, 1, 2].map(|round| wanted.fault(round)), [Fault::Stop, Fault::Part, Fault::Stop]);
        assert_eq!(parse(&["--fault", "part"]).expect("good").fault(0), Fault::Part);
        for (bad, why) in [
            (["--fault", "fire"], "--fault is \"fire\"; allowed are stop, part and both"),
            (["--reads", "none"], "--reads is \"none\"; allowed are quorum and lease"),
            (["--lasting", "61"], "--lasting is \"61\"; allowed are 1 to 60"),
            (["--hosts", "4"], "unknown argument \"--hosts\""),
        ] {
            assert!(parse(&bad).expect_err("bad").starts_with(why), "{bad:?}");
        }
    }
}
