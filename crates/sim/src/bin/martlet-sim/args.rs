//! The command line.

use std::ops::Range;
use std::time::Duration;

use clap::Parser;
use martlet_sim::cluster::{Blow, Canary, Changes, KINDS, Kind, Masks, PHASES, Phase, Plan, SPECIAL};
use martlet_sim::hunt::Cast;

/// Simulate whole clusters in virtual time, one life for each seed: the production state machines under every fault. The run stops at the first life in
/// which a property is violated. It looks for a smaller life with the same violation, tells its story, and says how to repeat it.
#[derive(Debug, Parser)]
#[command(name = "martlet-sim", bin_name = "cargo xtask sim", version, after_help = EXAMPLES)]
pub struct Args {
    /// How many seeds [default: 1000; with --seed: 1; with --minutes: no limit]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,

    /// The seed, or the first of several
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// End after so many minutes
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,

    /// How many threads simulate, each one life at a time [default: one for each core]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,

    /// The kinds of cluster; each of them lives every seed [default: the seed chooses one of the first ten, in turn]
    #[arg(long, value_name = "KIND", value_delimiter = ',', long_help = clusters())]
    cluster: Vec<&'static Kind>,

    /// Crash, and then pause, each node at every single step of these phases of the protocol
    #[arg(long, value_name = "PHASE", value_delimiter = ',', value_parser = phases, long_help = every_step())]
    every_step: Vec<Phases>,

    /// With --every-step: take only every Nth step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), requires = "every_step")]
    pub stride: u64,

    /// With --every-step: tell the story of a single crash or pause, such as n1/crash/57
    #[arg(long, value_name = "BLOW", requires = "every_step")]
    pub blow: Option<Blow>,

    /// Tell the story of each life: a line for every view, fault, takeover and so on
    #[arg(long)]
    pub trace: bool,

    /// Print a line for each life
    #[arg(long, conflicts_with = "trace")]
    pub verbose: bool,

    /// Let clocks drift far beyond their bounds. That is outside the model, so nothing is promised: what goes wrong shows what the bounds are for
    #[arg(long, conflicts_with = "every_step")]
    pub out_of_model: bool,

    /// Write the scenes in `crates/sim/testdata` again, as they are told today
    #[arg(long, exclusive = true)]
    pub bless: bool,

    /// Print the summary as one JSON object
    #[arg(long, conflicts_with = "trace")]
    pub json: bool,

    /// Tell the story of the life that went wrong, without looking for a smaller one
    #[arg(long)]
    pub no_shrink: bool,

    /// How many lives may be tried in the search for a smaller one
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub shrink_lives: u32,

    /// How many lines from the end of its story to show when a life went wrong
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub lines: usize,

    /// Leave out kinds of faults, or single faults: `pause`, or `pause/3` for the fourth pause, or `all`
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    without: Vec<Masks>,

    /// How long faults go on, in virtual nanoseconds
    #[arg(long, value_name = "NS")]
    trouble_ns: Option<u64>,

    /// The most requests that clients make while faults go on
    #[arg(long, value_name = "N")]
    operations: Option<u64>,

    /// The most nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: Option<u16>,

    /// The most clients
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    clients: Option<u64>,

    /// The most keys
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
        None => Err(format!("allowed are {}, and all", phase_names())),
    }
}

fn phase_names() -> String {
    PHASES.iter().map(|phase| phase.name).collect::<Vec<_>>().join(", ")
}

fn every_step() -> String {
    format!("Crash, and then pause, each node at every single step of these phases of the protocol: {}; or all", phase_names())
}

fn clusters() -> String {
    let line = |kind: &Kind| format!("\n  {:<22} {}", kind.name, kind.about);
    let kinds: String = KINDS.iter().chain(SPECIAL).map(line).collect();
    format!(
        "The kinds of cluster; each of them lives every seed [default: the seed chooses one of the first {}, in turn]:{kinds}",
        KINDS.len()
    )
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
        // Where it is narrow, lines are broken.
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_told = |kind: &Kind| words.contains(&format!(" {} {}", kind.name, kind.about));
        assert!(KINDS.iter().chain(SPECIAL).all(is_told), "{help}");
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
