//! The command line of `cargo xtask net`.

use std::fmt;
use std::time::Duration;

use super::mangling::Mangling;
use crate::number::number;

pub const USAGE: &str = "\
Usage: cargo xtask net [--engine NAME] [--rounds N | --seconds S] [--flood N | WIRE] [--release] [-- COMMAND]
       cargo xtask net --rejoins N [--engine NAME] [--flood N | WIRE] [--release]
       cargo xtask net --torture [--engine NAME] [--seconds S] [WIRE] [--release]
       cargo xtask net --one-host [--flood N] [WIRE] [--release] -- COMMAND

A cluster of three hosts, each a network namespace of its own, on the fabric `ethernet`. Each round resets a host's TCP connections ten times, which may change no
view, kills its node and starts it again, then cuts its link and mends it; a write has to be acknowledged after each, the cluster has to be whole within 10 s after
each fault's end, and nothing that was acknowledged may be lost. Behind `--`: a command that runs on the first host instead, with the cluster's directory in
MARTLET_DIR.

--rejoins N: instead, N times the node that leads is killed and started again, and N times the host of the one that leads is cut off and its link mended: its node has
to be one of the cluster's again by itself each time.

--torture: instead, `martlet torture` in a namespace of its own: clients count, nodes are killed, paused, restarted, added and removed, and what clients have seen has to
be linearizable. All its nodes and clients have one address there, 127.0.0.1; each packet between them takes the wire. It is repeated, with the next seed, until S
seconds have passed.

--one-host: instead of a cluster, the command behind `--` in such a namespace, where what it sends to 127.0.0.1 takes the wire; `martlet bench fabric --fabric ethernet`
for example.

--flood N: meanwhile a fourth host, which has no key but hears all that the others say, sends them N packets a second, or as many as it can: noise, packets for no
connection, real ones once more, real ones with a wrong bit, and by ICMP that ports are not to be reached. With --one-host: one who has no key sends them there, to all UDP
ports that are bound, three in four in bundles; without any option of the wire, on the loopback device itself, with no relay. It says too what sockets did not take.

WIRE: [--loss PERCENT] [--reorder PERCENT] [--repeat PERCENT] [--corrupt PERCENT] [--delay-us N] [--seed N]
A relay in the place of switch and cables, which drops, holds back for up to 2 ms, repeats or corrupts so many packets each way, of UDP and TCP, and delays all of them.
A corrupted UDP packet reaches its program, with no check sum; one of TCP is dropped by the kernel, as it would be anywhere. The relay does not limit the rate, and
does not cut packets in parts. Without any of these options the wire is a good one.

--release: Martlet as built for release. By default it is built as tests are, without optimisation.
";

/// The options of the command.
#[derive(Debug, PartialEq)]
pub struct Wanted {
    pub engine: String,
    pub rounds: usize,
    pub lasting: Option<Duration>,
    pub rejoins: Option<usize>,
    pub torture: bool,
    /// Whether there is no cluster, and the command has a namespace to itself.
    pub one_host: bool,
    pub flood: Option<u64>,
    wire: Mangling,
    pub seed: u64,
    pub command: Vec<String>,
    pub release: bool,
}

impl Wanted {
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
        let mut wanted = Wanted {
            engine: "mu".into(),
            rounds: 3,
            lasting: None,
            rejoins: None,
            torture: false,
            one_host: false,
            flood: None,
            wire: Mangling::default(),
            seed: 1,
            command: Vec::new(),
            release: false,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} takes a value\n\n{USAGE}"));
            match arg.as_str() {
                "--engine" => wanted.engine = value()?,
                "--rounds" => wanted.rounds = number(&arg, &value()?, 1_000_000, USAGE)?,
                "--seconds" => wanted.lasting = Some(Duration::from_secs(number(&arg, &value()?, 604_800, USAGE)?)),
                "--rejoins" => wanted.rejoins = Some(number(&arg, &value()?, 1_000_000, USAGE)?),
                "--torture" => wanted.torture = true,
                "--one-host" => wanted.one_host = true,
                "--release" => wanted.release = true,
                "--flood" => wanted.flood = Some(number(&arg, &value()?, 10_000_000, USAGE)?),
                "--loss" => wanted.wire.lost = percent(&arg, &value()?)?,
                "--reorder" => wanted.wire.reordered = percent(&arg, &value()?)?,
                "--repeat" => wanted.wire.repeated = percent(&arg, &value()?)?,
                "--corrupt" => wanted.wire.corrupted = percent(&arg, &value()?)?,
                "--delay-us" => wanted.wire.delay = Duration::from_micros(number(&arg, &value()?, 1_000_000, USAGE)?),
                "--seed" => {
                    let seed = value()?;
                    wanted.seed = seed.parse().map_err(|_| format!("--seed is {seed:?}; allowed is a number\n\n{USAGE}"))?;
                }
                "--" => {
                    wanted.command = args.by_ref().collect();
                    if wanted.command.is_empty() {
                        return Err(format!("no command behind `--`\n\n{USAGE}"));
                    }
                }
                other => return Err(format!("unknown argument {other:?}\n\n{USAGE}")),
            }
        }
        let ways = [wanted.rejoins.is_some(), wanted.torture, !wanted.command.is_empty()];
        if ways.iter().filter(|is| **is).count() > 1 {
            return Err(format!("allowed is one of --rejoins, --torture and a command behind `--`\n\n{USAGE}"));
        }
        if wanted.one_host && wanted.command.is_empty() {
            return Err(format!("--one-host takes a command behind `--`\n\n{USAGE}"));
        }
        if wanted.flood.is_some() && (wanted.torture || !wanted.one_host && wanted.mangling().is_some()) {
            return Err(format!(
                "allowed is no --flood with --torture, nor between hosts over a bad wire, where no fourth host hears what is said\n\n{USAGE}"
            ));
        }
        Ok(wanted)
    }

    /// What the wire does, unless it is a good one.
    pub fn mangling(&self) -> Option<Mangling> {
        Some(self.wire).filter(|wire| *wire != Mangling::default())
    }
}

/// Reads a percentage of at most half: nothing gets through a wire that loses more.
fn percent(option: &str, text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=50.0).contains(percent));
    percent.ok_or_else(|| format!("{option} is {text:?}; allowed are 0 to 50 percent\n\n{USAGE}"))
}

impl fmt::Display for Mangling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mangling { lost, reordered, repeated, corrupted, delay } = self;
        write!(
            f,
            "{lost} % lost, {reordered} % late by up to 2 ms, {repeated} % repeated, {corrupted} % corrupted each way, all delayed by {delay:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Wanted, String> {
        Wanted::parse(args.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_wanted_is_understood_and_else_refused_with_what_is_allowed() {
        let wanted = parse("--loss 5 --reorder 10 --repeat 2 --corrupt 0.5 --delay-us 2000 --seed 0 --seconds 120").expect("good");
        let wire = Mangling { lost: 5.0, reordered: 10.0, repeated: 2.0, corrupted: 0.5, delay: Duration::from_millis(2) };
        assert_eq!((wanted.mangling(), wanted.seed, wanted.lasting), (Some(wire), 0, Some(Duration::from_secs(120))));
        assert_eq!(parse("--flood 50000 --rounds 2").map(|wanted| (wanted.flood, wanted.rounds)), Ok((Some(50_000), 2)));
        let flooded = parse("--one-host --flood 1000000 --loss 1 -- true").expect("good");
        assert_eq!((flooded.one_host, flooded.flood, flooded.mangling().is_some()), (true, Some(1_000_000), true));
        assert_eq!(
            parse("--rejoins 100 --release").map(|wanted| (wanted.rejoins, wanted.mangling(), wanted.release)),
            Ok((Some(100), None, true))
        );
        for (bad, why) in [
            ("--loss 51", "--loss is \"51\"; allowed are 0 to 50 percent"),
            ("--loss NaN", "--loss is \"NaN\""),
            ("--rounds 0", "--rounds is \"0\"; allowed are 1 to 1000000"),
            ("--seed x", "--seed is \"x\"; allowed is a number"),
            ("--torture --rejoins 3", "allowed is one of --rejoins, --torture and a command"),
            ("--flood 1000 --loss 1", "allowed is no --flood with --torture, nor between hosts over a bad wire"),
            ("--torture --flood 1000", "allowed is no --flood with --torture"),
            ("--one-host --loss 5", "--one-host takes a command behind `--`"),
            ("--one-host --torture -- true", "allowed is one of --rejoins, --torture and a command"),
            ("--nodes 3", "unknown argument \"--nodes\""),
            ("--loss", "--loss takes a value"),
            ("--rounds 2 --", "no command behind `--`"),
        ] {
            let said = parse(bad).expect_err("it is refused");
            assert!(said.starts_with(why), "{said}");
        }
    }
}
