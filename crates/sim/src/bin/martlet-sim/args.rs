//! The command line.

use std::ops::Range;
use std::time::Duration;

use clap::Parser;
use martlet_sim::cluster::{Blow, Canary, Changes, Kind, Masks, PHASES, Phase, Plan};
use martlet_sim::hunt::Cast;

/// Lives whole clusters in virtual time, one seed a life: the production state machines under every fault. Stops at the first life in which a
/// property is violated, makes it small, tells it, and says how to repeat it.
#[derive(Debug, Parser)]
#[command(name = "martlet-sim", bin_name = "cargo xtask sim", version, after_help = EXAMPLES)]
pub struct Args {
    /// How many seeds [default: 1000; with --seed 1; with --minutes no end].
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,

    /// The seed, or the first of several.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Ends after so many minutes.
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,

    /// Threads, each with one life at a time [default: one a core].
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,

    /// The kinds of cluster, each of which lives every seed [default: the one of the first ten that the seed says, in turn]: host (shared memory) and
    /// network (one-sided operations between hosts), with primary-backup; mu and mu-network, with mu; dare and dare-network, with dare; apus and apus-network, with apus; hsuc and hsuc-network, with hsuc; huc and huc-network, with huc, and hsuc-on-commit, hsuc-on-commit-network, mu-on-commit and
    /// mu-on-commit-network, whose leaders execute what is committed; mu-disks, mu-disks-network, apus-disks and apus-disks-network, whose nodes lose their power, and are asked to end all at once, and have disks; two-end, where two of three of them are asked to end; hsuc-all-but-one and huc-all-but-one, where four of five are killed within a millisecond; dare-contest, where processes of dare are stopped at any single step, again and again; dare-zombies, where the memory of the dead counts for a while; dare-parted-resize, where a group is parted while it gets fewer places; dare-parted-removal, where it is parted when one of those that go knows that; dare-parted-read, where a leader that another one has succeeded is asked for a read; dare-removed, where those for which there is no place outlive the leader; dare-asked-again, where a successor is asked for what its predecessor had in its hands; wardens, where each host has one, and certificates of deaths are forged; clocks, where a primary is stopped just after it has renewed its lease; stopped-clock, where its clock stops with it, and it
    /// is then asked for a read by quorum.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    cluster: Vec<&'static Kind>,

    /// Crashes, and then pauses, each node at every single step of a phase of the protocol: failover, takeover, revocation, view-change, join,
    /// network-takeover, mu-leader-change, mu-hand-over, dare-failover, dare-election, dare-join, dare-resize; or of all of them.
    #[arg(long, value_name = "PHASE", value_delimiter = ',', value_parser = phases)]
    every_step: Vec<Phases>,

    /// With --every-step: only every so manyth step.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), requires = "every_step")]
    pub stride: u64,

    /// With --every-step: the story of a single blow, as n1/crash/57.
    #[arg(long, value_name = "BLOW", requires = "every_step")]
    pub blow: Option<Blow>,

    /// Tells each life, a line for every view, fault, takeover and so on.
    #[arg(long)]
    pub trace: bool,

    /// A line for each life.
    #[arg(long, conflicts_with = "trace")]
    pub verbose: bool,

    /// Clocks drift far beyond their bounds: out of the model, so nothing is promised, and what goes wrong then says what the bounds are for.
    #[arg(long, conflicts_with = "every_step")]
    pub out_of_model: bool,

    /// Writes the scenes in `crates/sim/testdata` anew, as they are told today.
    #[arg(long, exclusive = true)]
    pub bless: bool,

    /// The summary as one JSON object.
    #[arg(long, conflicts_with = "trace")]
    pub json: bool,

    /// Tells the life that went wrong as it is, without looking for a smaller one.
    #[arg(long)]
    pub no_shrink: bool,

    /// How many lives may be lived on the way to a smaller one.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub shrink_lives: u32,

    /// How many lines at the end of a story are shown when a life went wrong.
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub lines: usize,

    /// Leaves out kinds of faults, or single ones: `pause`, or `pause/3` for the fourth, or `all`.
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    without: Vec<Masks>,

    /// Trouble lasts exactly so many virtual nanoseconds.
    #[arg(long, value_name = "NS")]
    trouble_ns: Option<u64>,

    /// Clients make at most so many requests while there is trouble.
    #[arg(long, value_name = "N")]
    operations: Option<u64>,

    /// At most so many nodes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: Option<u16>,

    /// At most so many clients.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    clients: Option<u64>,

    /// At most so many keys.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keys: Option<u64>,
}

/// A phase as a word on the command line, or `all`.
type Phases = &'static [Phase];

fn phases(name: &str) -> Result<Phases, String> {
    let one = |at: usize| &PHASES[at..=at];
    match PHASES.iter().position(|phase| phase.name == name) {
        Some(at) => Ok(one(at)),
        None if name == "all" => Ok(PHASES),
        None => {
            let names: Vec<&str> = PHASES.iter().map(|phase| phase.name).collect();
            Err(format!("allowed are {}, and all", names.join(", ")))
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask sim                                  a thousand lives, of every kind of cluster
  cargo xtask sim --seeds 100000 --jobs 2          some more
  cargo xtask sim --minutes 10 --cluster mu,mu-network
  cargo xtask sim --seed 4711 --trace              the story of one
  cargo xtask sim --every-step failover,join       a crash and a pause at each step
  cargo xtask sim --out-of-model                   what clocks beyond their bounds break
  cargo xtask sim --bless                          the scenes in testdata, told anew
  cargo xtask sim --seed 4711 --trace --without kill,pause/3 --nodes 3";

impl Args {
    /// The seeds.
    pub fn seeds(&self) -> Range<u64> {
        let first = self.seed.unwrap_or(0);
        let count = self.seeds.unwrap_or(match (self.minutes, self.seed) {
            (Some(_), _) => u64::MAX,
            (None, Some(_)) => 1,
            (None, None) => 1000,
        });
        first..first.saturating_add(count)
    }

    /// The clusters that live them.
    pub fn cast(&self) -> Cast {
        if self.cluster.is_empty() { Cast::Dealt } else { Cast::Each(self.cluster.clone()) }
    }

    /// The phases to be lived step by step.
    pub fn every_step(&self) -> Vec<&'static Phase> {
        self.every_step.iter().copied().flatten().collect()
    }

    /// When the run is to end in any case.
    pub fn most(&self) -> Option<Duration> {
        self.minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(Duration::MAX))
    }

    /// Threads.
    pub fn jobs(&self) -> usize {
        self.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }

    /// The mistake in all lives.
    pub fn canary(&self) -> Option<Canary> {
        self.out_of_model.then_some(Canary::WildClocks)
    }

    /// What is different from what the seeds say.
    pub fn changes(&self) -> Changes {
        Changes {
            without: self.without.iter().flat_map(|masks| masks.0.clone()).collect(),
            trouble_ns: self.trouble_ns,
            operations: self.operations,
            nodes: self.nodes,
            clients: self.clients,
            keys: self.keys,
        }
    }
}

/// The command line that lives this life again and tells it.
pub fn again(kind: &Kind, plan: &Plan) -> String {
    let wild = if plan.canary == Some(Canary::WildClocks) { " --out-of-model" } else { "" };
    format!("cargo xtask sim --cluster {kind} --seed {} --trace{wild}{}", plan.seed, plan.changes.flags())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_a_shrunk_life_is_repeated_with_is_read_as_it_was_written() {
        let changes = Changes {
            without: vec!["kill".parse().expect("a fault"), "pause/3".parse().expect("a fault")],
            trouble_ns: Some(17),
            operations: Some(0),
            nodes: Some(2),
            clients: Some(1),
            keys: None,
        };
        for canary in [None, Some(Canary::WildClocks)] {
            let plan = Plan { changes: changes.clone(), canary, ..Plan::new(9) };
            let line = again(Kind::named("mu-network").expect("a kind"), &plan);
            let given = line.strip_prefix("cargo xtask ").expect("what developers call it by");
            let args = Args::try_parse_from(given.split(' ')).expect("flags that it says itself");
            assert_eq!((args.changes(), args.seeds(), args.canary(), args.trace), (changes.clone(), 9..10, canary, true));
            assert_eq!(args.cast().of(9).iter().map(|kind| kind.name).collect::<Vec<_>>(), ["mu-network"]);
        }
        let args = Args::try_parse_from(["martlet-sim", "--without", "all"]).expect("a word for it");
        assert_eq!(args.changes().flags(), " --without all");
    }

    #[test]
    fn without_a_kind_of_cluster_each_seed_says_which() {
        let args = Args::try_parse_from(["martlet-sim"]).expect("nothing has to be given");
        let of = |seed| args.cast().of(seed).iter().map(|kind| kind.name).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(2), of(3)), (vec!["host"], vec!["network"], vec!["mu"], vec!["mu-network"]));
        assert_eq!((of(4), of(5)), (vec!["dare"], vec!["dare-network"]));
        assert_eq!((of(6), of(7)), (vec!["apus"], vec!["apus-network"]));
        assert_eq!((of(8), of(9), of(10)), (vec!["hsuc"], vec!["hsuc-network"], vec!["host"]));
        let args = Args::try_parse_from(["martlet-sim", "--cluster", "host,mu"]).expect("two kinds");
        assert_eq!(args.cast().of(3).iter().map(|kind| kind.name).collect::<Vec<_>>(), ["host", "mu"]);
    }

    #[test]
    fn phases_have_names_and_one_for_all_of_them() {
        let of = |given| Args::try_parse_from(["martlet-sim", "--every-step", given]).expect("names").every_step();
        let names = |phases: Vec<&'static Phase>| phases.into_iter().map(|phase| phase.name).collect::<Vec<_>>();
        assert_eq!(names(of("join,mu-hand-over")), ["join", "mu-hand-over"]);
        assert_eq!(names(of("all")), PHASES.iter().map(|phase| phase.name).collect::<Vec<_>>());
        let help = Args::command().render_long_help().to_string();
        assert!(PHASES.iter().all(|phase| help.contains(phase.name)), "{help}");
    }

    #[test]
    fn bad_input_names_what_is_allowed() {
        for (given, named) in [
            ("--cluster moon", "host"),
            ("--without kil", "kill"),
            ("--jobs 0", "1..=1024"),
            ("--without drop/1", "drop"),
            ("--every-step fall", "failover"),
        ] {
            let line = format!("martlet-sim {given}");
            let why = Args::try_parse_from(line.split(' ')).expect_err("refused").to_string();
            assert!(why.contains(named), "{why}");
        }
    }
}
