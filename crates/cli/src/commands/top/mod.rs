//! `martlet top`

mod history;
mod keys;
mod page;
mod screen;
mod terminal;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_cluster::interrupt::{Interrupt, was_signalled};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_cluster::watch::observer::Role;
use martlet_node::counters::Counter;
use martlet_protocol::membership::Roles;
use serde_json::{Value, json};

use super::Which;
use crate::watch::failovers::Reigns;
use crate::watch::holders::Holders;
use crate::watch::known::runner_json;
use crate::watch::lookout::{Look, Lookout, Node};
use history::History;
use page::Page;

/// Watch a cluster: its leader, what each node does, and the last failovers.
///
/// It shows which node leads and since when, what each node does, and how long the last failovers took. On a terminal it redraws the screen until q, Esc or
/// Ctrl-C. Otherwise, and with --once, it prints what it sees and ends. With --json it prints one object per interval until Ctrl-C. It reads the nodes' memory,
/// so no node is asked. Exit code 3 when no node is running.
///
/// Example: martlet top --json | jq '.nodes[].requests_per_s'
#[derive(Debug, Args)]
pub struct Arguments {
    /// Time between two looks, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = number::<u64>(50..=3_600_000))]
    every: u64,
    /// Print what it sees once, with rates over one interval, and end.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    which: Which,
}

/// How many changes of leadership an object holds at most.
const CHANGES: usize = 16;

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let every = Duration::from_millis(arguments.every);
    // A dumb terminal cannot be drawn on.
    let is_live =
        format == Format::Text && !arguments.once && io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| term != "dumb");
    let interrupt = if is_live { Interrupt::install_without_end() } else { Interrupt::install() }.context("cannot watch for Ctrl-C")?;
    let goes_on = !is_live && !arguments.once && format == Format::Json;
    let interrupt = if goes_on { interrupt.for_watching() } else { interrupt };
    let mut lookout = Lookout::open(Directory::new(&arguments.which.dir), &interrupt)?;
    if !lookout.connect()? {
        return Err(lookout.nobody_runs());
    }
    if is_live {
        return screen::run(&mut lookout, every, &interrupt);
    }
    // Rates need a look before.
    lookout.look();
    let mut next = Instant::now();
    loop {
        next = following(next, every);
        match interrupt.sleep(next.saturating_duration_since(Instant::now())) {
            // Ctrl-C is how watching ends.
            Err(_) if !arguments.once && was_signalled() => return Ok(()),
            slept => slept?,
        }
        let look = lookout.look();
        let page = || Page::new(&look, lookout.reigns(), &History::default(), None);
        format.print(page().as_text(), || object(&look, lookout.reigns()));
        if !goes_on {
            return Ok(());
        }
    }
}

/// When to look next; looks that were missed are left out.
fn following(last: Instant, every: Duration) -> Instant {
    (last + every).max(Instant::now())
}

/// Everything, as one object. `docs/operating.md` says what its fields mean.
fn object(look: &Look, reigns: &Reigns) -> Value {
    let held = |role| look.view.as_ref().map(|view| view.with_roles(role).count());
    let holders = look.view.as_ref().map(|view| look.holders(view));
    json!({
        "event": "top",
        "cluster": look.cluster,
        "time_ms": look.wall_ns / 1_000_000,
        "engine": look.engine.to_string(),
        "view": look.view.as_ref().map(|view| view.number.0),
        "lease_ns": look.view.as_ref().map(|view| view.lease_ns),
        "replicas": holders.as_ref().map(|holders| holders.live.len()),
        "replicas_missing": holders.as_ref().map(Holders::missing),
        "learners": held(Roles::LEARNER),
        "leader": look.leader,
        "leads_for_ms": look.leads_for.map(|leads_for| leads_for.as_millis() as u64),
        "server": look.server,
        "runner": look.runner.as_ref().map(runner_json),
        "service": look.service().map(|service| service.json()),
        "nodes": look.nodes.iter().map(|node| node_object(look, node)).collect::<Vec<_>>(),
        "changes": reigns.newest_first().take(CHANGES).map(|reign| reign.json(look.wall_ns)).collect::<Vec<_>>(),
    })
}

fn node_object(look: &Look, node: &Node) -> Value {
    let counter = |counter| node.counter(counter);
    json!({
        "node": node.number,
        "state": node.state.name(),
        "role": node.role.map(Role::name),
        "pid": counter(Counter::Pid),
        "view": counter(Counter::View),
        "requests_per_s": node.rates.map(|rates| rates.requests),
        "replies_per_s": node.rates.map(|rates| rates.replies),
        "applied_index": counter(Counter::AppliedIndex),
        "committed_index": counter(Counter::CommittedIndex),
        "lag": look.lag(node),
        "parks_per_s": node.rates.map(|rates| rates.parks),
        "stalls": counter(Counter::Stalls),
        "longest_gap_ns": counter(Counter::LongestGapNs),
        "active_checks_per_s": node.rates.map(|rates| rates.active_checks),
        "inactive_checks": counter(Counter::InactiveChecks),
        "cache_renewals": counter(Counter::CacheRenewals),
        "rehearsals": counter(Counter::Rehearsals),
        "rehearsals_cut": counter(Counter::RehearsalsCut),
        "disk_pending_bytes": counter(Counter::DiskPendingBytes),
        "clients": page::other_clients(node),
    })
}

#[cfg(test)]
pub(super) mod tests {
    pub use super::page::tests::after_a_failover;
}
