//! `martlet plan`

mod ccf;
mod example;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::output::{DIM, Format, GOOD, HEAD, Table, WARN, styled};
use martlet_cluster::plan::topology::OVERHEAD_BYTES;
use martlet_cluster::plan::{Plan, Planned, Topology, map, outline};
use serde_json::json;

/// Plan a network for heartbeats: multicast trees, packet sizes, periods and timeouts.
///
/// FILE describes the network, and which hosts want to hear from which others. docs/fide.md has every key; `martlet plan example` prints a file to begin with.
/// For each request the command finds the best multicast trees that share no switch. It says how large and how frequent packets may be, when they arrive, and
/// which timeout follows: interval + latency + twice the jitter. It only computes: it touches no switch and no host.
///
/// Example: martlet plan example > net.toml; martlet plan net.toml --svg net.svg
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The network, as a TOML file.
    #[arg(required = true, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Plan as if this had failed: a switch or a host by its name, or a link as NAME:NAME. May be given several times.
    #[arg(long, value_name = "WHAT")]
    without: Vec<String>,
    /// Also draw the trees on a map of the network, into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ccf(ccf::Arguments),
    Example(example::Arguments),
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    match (&arguments.command, &arguments.file) {
        (Some(Command::Ccf(arguments)), _) => ccf::run(arguments, format),
        (Some(Command::Example(arguments)), _) => example::run(arguments),
        (None, Some(file)) => {
            if let Some(svg) = arguments.svg.as_deref().filter(|svg| is_one_file(svg, file)) {
                let (svg, file) = (svg.display(), file.display());
                return Err(Fail::usage(format_args!(
                    "--svg is {svg}, the same file as {file}, which describes the network; allowed is any other file"
                )));
            }
            let topology = read(file, &arguments.without)?;
            let plan = Plan::new(&topology).map_err(Fail::failed)?;
            show(&topology, &plan, format);
            if let Some(svg) = &arguments.svg {
                std::fs::write(svg, map::svg(&topology, &plan)).context(format_args!("cannot write {}", svg.display()))?;
                format.say(styled(DIM, format_args!("drawn in {}", svg.display())));
            }
            Ok(())
        }
        (None, None) => Err(Fail::usage("plan needs a FILE; allowed are a file, `ccf` and `example`")),
    }
}

/// Whether two paths lead to one file, by links too.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

fn read(file: &Path, without: &[String]) -> Outcome<Topology> {
    let mut topology = Topology::read(file).map_err(Fail::usage)?;
    for what in without {
        topology = topology.without(what).map_err(Fail::usage)?;
    }
    Ok(topology)
}

fn microseconds(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

fn show(topology: &Topology, plan: &Plan, format: Format) {
    if plan.planned.is_empty() {
        format.say(format_args!("{} asks for nothing: it has no [[request]]", topology.file.display()));
    }
    for (number, planned) in (1..).zip(&plan.planned) {
        show_request(topology, number, planned, format);
    }
    let mut table = Table::new(["from", "to", "trees", "queued B", "of B", "bandwidth %"]);
    for load in &plan.loads {
        let arc = &topology.arcs[load.arc];
        let (from, to) = (topology.name(arc.from), topology.name(arc.to));
        let room = load.room_bytes.map_or_else(|| "-".into(), |room| room.to_string());
        table.row([
            from.into(),
            to.into(),
            load.trees.to_string(),
            load.queued_bytes.to_string(),
            room,
            format!("{:.2}", load.share as f64 / 100.0),
        ]);
        format.object(|| {
            json!({
                "event": "link",
                "from": from,
                "to": to,
                "trees": load.trees,
                "queued_bytes": load.queued_bytes,
                "room_bytes": load.room_bytes,
                "bandwidth_percent": load.share as f64 / 100.0,
            })
        });
    }
    if !plan.loads.is_empty() {
        format.say(format_args!("{}\n{table}", styled(HEAD, "links that carry trees")));
    }
}

fn show_request(topology: &Topology, number: usize, planned: &Planned, format: Format) {
    let request = &planned.request;
    let names = |nodes: &[usize]| nodes.iter().map(|&node| topology.name(node)).collect::<Vec<_>>();
    let asked_payload = request.packet_bytes - OVERHEAD_BYTES;
    let sender = topology.name(request.sender);
    format.print(styled(HEAD, format_args!("request {number}: {sender} to {}", names(&request.receivers).join(", "))), || {
        json!({
            "event": "request",
            "request": number,
            "sender": sender,
            "receivers": names(&request.receivers),
            "payload_bytes": planned.payload_bytes(),
            "asked_payload_bytes": asked_payload,
            "period_ns": planned.period_ns,
            "asked_period_ns": request.period_ns,
            "search": planned.search.name(),
            "cost_ns": planned.cost_ns,
        })
    });
    let granted = |is: String, asked: String| if is == asked { styled(GOOD, is) } else { format!("{} (asked: {asked})", styled(WARN, is)) };
    format.say(format_args!(
        "payload up to {} bytes, one packet every {} us",
        granted(planned.payload_bytes().to_string(), asked_payload.to_string()),
        granted(microseconds(planned.period_ns), microseconds(request.period_ns)),
    ));
    for (at, tree) in planned.trees.iter().enumerate() {
        let label = |node: usize| {
            let receiver = request.receivers.iter().position(|&receiver| receiver == node);
            receiver.map_or_else(String::new, |receiver| {
                let path = planned.paths[receiver][at];
                styled(DIM, format_args!("  {} to {} us", microseconds(path.latency_ns), microseconds(path.latest_ns())))
            })
        };
        let lines = outline::lines(topology, request.sender, tree, label);
        format.say(format_args!("\n  tree {}\n    {}", at + 1, lines.join("\n    ")));
        format.object(|| {
            let links = tree.arcs.iter().map(|&arc| &topology.arcs[arc]);
            let links: Vec<_> = links.map(|arc| json!({"from": topology.name(arc.from), "to": topology.name(arc.to)})).collect();
            json!({"event": "tree", "request": number, "tree": at + 1, "links": links})
        });
    }
    let mut table = Table::new(["receiver", "latency us", "jitter us", "timeout us"]);
    for (at, &receiver) in request.receivers.iter().enumerate() {
        let (bounds, timeout) = (planned.bounds(at), planned.timeout_ns(at));
        table.row([topology.name(receiver).into(), microseconds(bounds.latency_ns), microseconds(bounds.jitter_ns), microseconds(timeout)]);
        format.object(|| {
            json!({
                "event": "path",
                "request": number,
                "receiver": topology.name(receiver),
                "latency_ns": bounds.latency_ns,
                "jitter_ns": bounds.jitter_ns,
                "timeout_ns": timeout,
            })
        });
    }
    format.say(format_args!("\n{table}\n"));
}
