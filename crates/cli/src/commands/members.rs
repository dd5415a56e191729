//! `martlet members`

use std::time::Duration;

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::{Interrupt, was_signalled};
use martlet_cluster::output::{DIM, Format, GOOD, Table, styled};
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_node::counters::Counter;
use martlet_protocol::basics::ProcessId;
use martlet_protocol::membership::View;
use serde_json::json;

use super::Which;

/// Show the members of the present view, and which of them leads.
///
/// It also shows why other nodes are gone, and which nodes have to hold a request before it is acknowledged.
///
/// Example: martlet members --watch
#[derive(Debug, Args)]
pub struct Arguments {
    /// Show each change as it comes, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    which: Which,
}

/// How long to wait for somebody to show a view.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let interrupt = if arguments.watch { interrupt.for_watching() } else { interrupt };
    let directory = Directory::new(&arguments.which.dir);
    let cluster = directory.existing_cluster()?;
    let by_majority = cluster.config().engine.traits().commits_by_majority();
    let mut observer = Observer::open(&cluster)?;
    let mut shown = None;
    loop {
        let newer = |sights: &[_]| Seen::of(sights).is_some_and(|seen| shown.as_ref().is_none_or(|shown| seen.follows(shown)));
        // Ctrl-C is how watching ends.
        let found = match observer.wait_for(PATIENCE, &interrupt, newer) {
            Err(_) if arguments.watch && was_signalled() => return Ok(()),
            found => found?,
        };
        match found {
            Ok(sights) => {
                if let Some(seen) = Seen::of(&sights) {
                    show(&seen, by_majority, format);
                    shown = Some(seen);
                }
            }
            Err(_) if shown.is_none() && !arguments.watch => {
                return Err(Fail::absent(format_args!(
                    "no node of the cluster in {} shows a view; is it running?",
                    directory.path().display()
                )));
            }
            Err(_) => {}
        }
        if !arguments.watch {
            return Ok(());
        }
    }
}

/// What is shown of a cluster.
#[derive(PartialEq, Eq)]
struct Seen {
    view: View,
    /// Which node leads.
    leader: Option<u16>,
    /// The nodes that count for commits: a majority of them where that is enough, or all.
    group: Vec<u16>,
}

impl Seen {
    fn of(sights: &[Sight]) -> Option<Seen> {
        let view = observer::newest_view(sights)?.clone();
        // The leader knows best; everybody else has heard of it.
        let newest = || sights.iter().filter(|sight| sight.reading.is_some()).max_by_key(|sight| sight.counter(Counter::View));
        let knows = observer::primary(sights).or_else(newest);
        let leader = knows.and_then(|sight| u16::try_from(sight.counter(Counter::Primary)).ok()?.checked_sub(1));
        let group = knows.map_or(0, |sight| sight.counter(Counter::Group));
        Some(Seen { view, leader, group: (0..64).filter(|node| group >> node & 1 == 1).collect() })
    }

    /// Whether it is worth showing after the other one.
    fn follows(&self, other: &Seen) -> bool {
        self.view.number >= other.view.number && self != other
    }
}

fn show(seen: &Seen, by_majority: bool, format: Format) {
    let Seen { view, leader, group } = seen;
    let leads = |id: ProcessId| *leader == Some(id.node.0);
    let mut table = Table::new(["member", "roles", "redis", ""]);
    for member in &view.members {
        let leads = if leads(member.id) { styled(GOOD, "leads") } else { String::new() };
        table.row([member.id.to_string(), member.roles.to_string(), member.address.clone(), leads]);
    }
    let departed: Vec<String> = view.departed.iter().map(|d| format!("{} {}", d.id, d.evidence)).collect();
    let gone =
        if departed.is_empty() { String::new() } else { format!("\n{}", styled(DIM, format_args!("gone: {}", departed.join(", ")))) };
    let counts: Vec<String> = group.iter().map(ToString::to_string).collect();
    let who = if by_majority { "a majority" } else { "each" };
    let counts =
        if group.is_empty() { String::new() } else { format!("\n{who} of nodes {} has to hold what is acknowledged", counts.join(", ")) };
    let compatible = if view.compatible { ", compatible with the one before" } else { "" };
    format.print(format_args!("view {}, lease {} ms{compatible}\n{table}{counts}{gone}\n", view.number, view.lease_ns / 1_000_000), || {
        json!({
            "event": "view",
            "view": view.number.0,
            "lease_ns": view.lease_ns,
            "compatible": view.compatible,
            "members": view.members.iter().map(|m| json!({
                "id": m.id.to_string(),
                "node": m.id.node.0,
                "incarnation": m.id.incarnation.0,
                "roles": m.roles.to_string(),
                "redis": m.address,
                "leads": leads(m.id),
            })).collect::<Vec<_>>(),
            "group": group,
            "departed": view.departed.iter().map(|d| json!({
                "id": d.id.to_string(),
                "node": d.id.node.0,
                "incarnation": d.id.incarnation.0,
                "evidence": d.evidence.to_string(),
            })).collect::<Vec<_>>(),
        })
    });
}
