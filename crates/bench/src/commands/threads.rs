//! Flags for how the nodes of a benchmark run.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use martlet_cluster::number::number;
use martlet_node::config::{Idle, Pin, Priority, ThreadsConfig};
use martlet_node::sched;

/// Which threads do what on which core.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How nodes run")]
pub struct Threads {
    /// What a node does when it has no work.
    #[arg(long, value_parser = idle())]
    idle: Option<Idle>,
    /// With adaptive idling: how long a node spins before it parks, in microseconds.
    #[arg(long, value_name = "US", value_parser = number::<u64>(..=1_000_000))]
    spin_us: Option<u64>,
    /// How the scheduler treats a node's thread.
    #[arg(long, value_parser = priority())]
    priority: Option<Priority>,
    /// Cores to bind nodes to: none, auto, or a list such as 0,1.
    #[arg(long, value_parser = pin)]
    pin: Option<Pin>,
    /// How often the backup that would succeed the primary rehearses a takeover, in microseconds; 0: never.
    #[arg(long, value_name = "US", value_parser = rehearsals)]
    rehearse_every_us: Option<u64>,
    /// How long cores may take to wake up, in microseconds: the kernel is asked for that during the run. 0: they do not halt. Needs the privilege to ask.
    #[arg(long, value_name = "US", value_parser = number::<u32>(..=1_000_000))]
    wake_latency_us: Option<u32>,
}

/// What a node does without work, by its name; the names stand in help texts and completions.
pub fn idle() -> impl TypedValueParser<Value = Idle> {
    PossibleValuesParser::new(Idle::ALL.map(Idle::name)).try_map(|name| name.parse())
}

/// How the scheduler treats a thread, likewise.
fn priority() -> impl TypedValueParser<Value = Priority> {
    PossibleValuesParser::new(Priority::ALL.map(Priority::name)).try_map(|name| name.parse())
}

/// Which cores, as far as nodes may use them, which run on this host.
fn pin(text: &str) -> Result<Pin, String> {
    let pin = text.parse()?;
    let allowed = sched::allowed_cores().map_err(|error| format!("cannot tell the cores: {error}"))?;
    match sched::names_others(&pin, &allowed) {
        true => Err(format!("the cores are {text:?}; allowed are {}", sched::allowed_pins(&allowed))),
        false => Ok(pin),
    }
}

/// How often takeovers are rehearsed, as a node's file may say it.
fn rehearsals(text: &str) -> Result<u64, String> {
    let every = number::<u64>(200..=10_000_000)(text);
    if text == "0" { Ok(0) } else { every.map_err(|why| format!("{why}, or 0 for never")) }
}

impl Threads {
    /// As a node's file has it: what no flag names stays as it is by default.
    pub fn config(&self) -> ThreadsConfig {
        let default = ThreadsConfig::default();
        ThreadsConfig {
            idle: self.idle.unwrap_or(default.idle),
            spin_us: self.spin_us.unwrap_or(default.spin_us),
            priority: self.priority.unwrap_or(default.priority),
            pin: self.pin.clone().unwrap_or(default.pin),
            plan: default.plan,
            rehearse_every_us: self.rehearse_every_us.unwrap_or(default.rehearse_every_us),
            wake_latency_us: self.wake_latency_us,
        }
    }

    /// One line of it, for the settings of a report.
    pub fn describe(&self) -> String {
        let ThreadsConfig { idle, spin_us, priority, pin, rehearse_every_us, wake_latency_us, .. } = self.config();
        let wakes = wake_latency_us.map(|us| format!(", cores wake up within {us} us")).unwrap_or_default();
        format!("idle {idle:?}, spin {spin_us} us, priority {priority:?}, pin {pin:?}, rehearsals every {rehearse_every_us} us{wakes}")
            .to_lowercase()
    }
}
