//! `martlet status`

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output::{BAD, Format, GOOD, Table, WARN, styled};
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer, Role, Sight};
use martlet_cluster::watch::service::Service;
use martlet_cluster::watch::standing::Standing;
use martlet_node::clock;
use martlet_node::config::Cluster;
use martlet_node::counters::Counter;
use martlet_protocol::membership::{Roles, View};
use serde_json::{Value, json};

use super::Which;
use crate::watch::holders::Holders;
use crate::watch::known::{Doing, Known, runner_json};

/// Show the state of a cluster: its view, its leader, and what each node says of itself.
///
/// The command reads the nodes' memory, so no node is asked. It does not matter how they were started: it also shows the nodes of a service manager, programs
/// that embed a replica, and over RDMA nodes of other hosts. Exit code 3 when no node is running.
///
/// Example: martlet status --json | jq 'select(.event == "node")'
#[derive(Debug, Args)]
pub struct Arguments {
    /// Show every counter of every node.
    #[arg(long)]
    counters: bool,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let directory = Directory::new(&arguments.which.dir);
    let mut cluster = directory.existing_cluster()?;
    let mut look = Look::at(&directory, &cluster, &interrupt)?;
    if look.shows_others_than(&cluster) {
        let newer = hosts::up_to_date(&directory, &cluster, None)?;
        if newer.config().nodes != cluster.config().nodes {
            cluster = newer;
            look = Look::at(&directory, &cluster, &interrupt)?;
        }
    }
    let Look { known, sights, misfit } = look;
    let seen = |number: u16| sights.iter().any(|sight| sight.node == number && sight.reading.is_some());
    let doing = |known: &Known| Doing::of(known.activity, seen(known.node));
    let is_down = known.iter().all(|known| matches!(doing(known), Doing::Gone | Doing::Unreached));
    let view = observer::newest_view(&sights);
    let server = directory.server();
    if let Some(server) = &server {
        let service = Service::of(sights.iter(), clock::now());
        let told = service.map_or_else(|| styled(BAD, "no replica serves"), |service| service.to_string());
        let runner = directory.runner();
        let by = runner.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
        let warning = runner.lack().map_or_else(String::new, |lack| format!("\n{}", styled(BAD, lack)));
        format.print(format_args!("server {server}, run by martlet run{by}\n{told}{warning}\n"), || {
            let service = service.map(|service| service.json());
            json!({"event": "server", "server": server, "runner": runner_json(&runner), "service": service})
        });
    }
    let runs = |number: u16| known.iter().find(|known| known.node == number).map_or_else(|| Doing::of_unlisted(&cluster), doing).runs();
    let holders = view.map(|view| {
        let sight = |number: u16| sights.iter().find(|sight| sight.node == number);
        (view, Holders::of(view, runs, sight))
    });
    let running: Vec<u16> = known.iter().filter(|known| doing(known) == Doing::Running).map(|known| known.node).collect();
    let stuck = Standing::of(&sights, &running, cluster.config().engine, cluster.config().fabric).and_then(|standing| standing.is_stuck());
    summarise(&directory, &cluster, &sights, holders.as_ref(), stuck.as_deref(), format);
    if let Some(why) = misfit {
        format.print(styled(WARN, format_args!("{why}\n")), || json!({"event": "refused", "why": why}));
    }
    let mut table = Table::new(["node", "process", "state", "role", "view", "applied", "committed", "redis"]);
    for (known, node) in known.iter().zip(&cluster.config().nodes) {
        let (number, doing) = (known.node, doing(known));
        // A server's replicas have three of these numbers, and one that takes a dead one's place has another.
        if server.is_some() && doing == Doing::Gone {
            continue;
        }
        let sight = sights.iter().find(|sight| sight.node == number).filter(|_| doing != Doing::Gone);
        let shown = || sight.map(|sight| sight.counter(Counter::Pid)).and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
        let pid = known.pid.or_else(shown);
        let role = sight.and_then(|sight| observer::role(&sights, sight.node));
        let colour = match doing {
            Doing::Running => GOOD,
            Doing::Stopped | Doing::Unreached | Doing::Unlisted => WARN,
            Doing::Gone => BAD,
        };
        let state = doing.name();
        let counter = |counter| sight.map_or_else(|| "-".into(), |sight| sight.counter(counter).to_string());
        table.row([
            number.to_string(),
            pid.map_or_else(|| "-".into(), |pid| pid.to_string()),
            styled(colour, state),
            role.map_or("-", Role::name).into(),
            counter(Counter::View),
            counter(Counter::AppliedIndex),
            counter(Counter::CommittedIndex),
            node.redis.clone(),
        ]);
        format.object(|| {
            json!({
                "event": "node",
                "node": number,
                "pid": pid,
                "state": state,
                "role": role.map(Role::name),
                "redis": node.redis,
                "awaits": sight.map(Sight::awaited),
                "counters": sight.and_then(counters),
            })
        });
    }
    format.say(table);
    let waiting: Vec<_> = sights.iter().map(|sight| (sight.node, sight.awaited())).filter(|(_, awaited)| !awaited.is_empty()).collect();
    awaited(&waiting, &running, view.is_some(), cluster.config().fabric.traits().spans_hosts).iter().for_each(|line| format.say(line));
    if server.is_none() && !is_down && observer::primary(&sights).is_none() {
        let dir = directory.path().display();
        format.say(format_args!(
            "no node leads: `martlet cluster up --dir {dir}` starts the nodes that are not running; if a majority is lost for good, `martlet cluster recover --dir {dir}` shows what the cluster can go on from"
        ));
    }
    if cluster.config().durability.writes() {
        say_disks(&cluster, &sights, format);
    }
    if arguments.counters {
        for sight in sights.iter().filter(|sight| sight.reading.is_some()) {
            let mut table = Table::new(["counter", "value", "meaning"]);
            for counter in Counter::ALL {
                table.row([counter.name().into(), sight.counter(*counter).to_string(), counter.help().into()]);
            }
            format.say(format_args!("\nnode {}\n{table}", sight.node));
        }
    }
    if is_down {
        let runs = if known.iter().any(|known| doing(known) == Doing::Unreached) { "can be reached from here" } else { "is running" };
        return Err(Fail::absent(format_args!("no node of the cluster in {} {runs}", directory.path().display())));
    }
    Ok(())
}

/// What is known of a cluster's nodes, and what they show.
struct Look {
    known: Vec<Known>,
    sights: Vec<Sight>,
    /// Why nothing can be read, if builds do not understand each other.
    misfit: Option<String>,
}

impl Look {
    fn at(directory: &Directory, cluster: &Cluster, interrupt: &Interrupt) -> Outcome<Look> {
        let known: Vec<Known> =
            cluster.config().nodes.iter().map(|node| Known::of(directory, cluster, node.number)).collect::<Outcome<_>>()?;
        let perhaps: Vec<u16> = known.iter().filter(|known| known.activity != Some(Activity::Gone)).map(|known| known.node).collect();
        if perhaps.is_empty() {
            return Ok(Look { known, sights: Vec::new(), misfit: None });
        }
        let mut observer = Observer::open(cluster)?;
        let sights = observer.connect(&perhaps, interrupt)?;
        Ok(Look { known, sights, misfit: observer.misfit() })
    }

    /// Whether the view has a node that the cluster's list does not: a host may have joined since this one last asked for the list.
    fn shows_others_than(&self, cluster: &Cluster) -> bool {
        observer::newest_view(&self.sights).is_some_and(|view| view.members.iter().any(|member| cluster.node(member.id.node).is_none()))
    }
}

/// Whom nodes without a view wait for, and what to do about it. `running` are the nodes that are seen running from here; `has_view`: a node shows a view.
fn awaited(waiting: &[(u16, Vec<u16>)], running: &[u16], has_view: bool, spans_hosts: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_any_missing = false;
    for (node, awaited) in waiting {
        let (run, missing): (Vec<u16>, Vec<u16>) = awaited.iter().partition(|awaited| running.contains(awaited));
        if !missing.is_empty() {
            is_any_missing = true;
            lines.push(format!(
                "node {node} waits for nodes {missing:?} to found the cluster: it does not see them, but they may be running"
            ));
        }
        if !run.is_empty() {
            // What a node shows may be old: one that is kept from running shows what was so before.
            let does = if has_view { "has not joined the cluster yet" } else { "waits to found the cluster" };
            lines.push(format!("node {node} {does}: when it last looked, it did not see nodes {run:?}, which are running"));
        }
    }
    if !waiting.is_empty() {
        let claim = if spans_hosts {
            ""
        } else {
            ". If every node of the cluster runs in one network namespace, or meets in one rendezvous directory, `martlet node --all-here` does not wait for them \
             (docs/containers.md)"
        };
        let advice = if is_any_missing { "start them, or make sure" } else { "if that stays so, make sure" };
        lines.push(format!("{advice} that they reach each other{claim}"));
    }
    lines
}

/// How the nodes' disks keep up.
fn say_disks(cluster: &Cluster, sights: &[Sight], format: Format) {
    let mut table = Table::new(["node", "stable", "waits for the disk", "syncs", "snapshots", "disk"]);
    for sight in sights.iter().filter(|sight| sight.reading.is_some()) {
        let counter = |counter| sight.counter(counter).to_string();
        let disk = match sight.counter(Counter::DiskErrno) {
            0 => styled(GOOD, "good"),
            number => styled(BAD, std::io::Error::from_raw_os_error(i32::try_from(number).unwrap_or(0)).to_string()),
        };
        table.row([
            sight.node.to_string(),
            counter(Counter::StableIndex),
            format!("{} bytes", sight.counter(Counter::DiskPendingBytes)),
            counter(Counter::DiskSyncs),
            counter(Counter::DiskSnapshots),
            disk,
        ]);
    }
    let durability = &cluster.config().durability;
    format.say(format_args!("\ndurability {}, in {}\n{table}", durability.mode, cluster.data_directory().display()));
}

fn counters(sight: &Sight) -> Option<Value> {
    let reading = sight.reading.as_ref()?;
    Some(
        Counter::ALL
            .iter()
            .map(|counter| (counter.name().to_owned(), json!(reading.get(*counter))))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    )
}

/// What a cluster without a replica can hope for.
fn what_is_left(on_disk: bool) -> &'static str {
    if on_disk {
        ". `martlet cluster down` and `up` bring back what is on the disks; `--purge` would remove it"
    } else {
        ", and the data with it. `martlet cluster down` and `up` start an empty cluster"
    }
}

/// What there is to say of feature levels: nothing while there is only one.
fn levels(view: &View) -> String {
    let most = view.members.iter().map(|member| member.levels.most).min().unwrap_or(view.level);
    match (view.level, most) {
        (1, 1) => String::new(),
        (level, most) if most > level => {
            format!("; feature level {level}, and all members can work at {most} (`martlet cluster level --raise`)")
        }
        (level, _) => format!("; feature level {level}"),
    }
}

fn summarise(
    directory: &Directory,
    cluster: &Cluster,
    sights: &[Sight],
    holders: Option<&(&View, Holders)>,
    stuck: Option<&str>,
    format: Format,
) {
    let Some((view, holders)) = holders else {
        format.print(
            format_args!("cluster in {}: no node shows a view\n", directory.path().display()),
            || json!({"event": "cluster", "view": null}),
        );
        return;
    };
    let primary = observer::primary(sights);
    let learners = view.with_roles(Roles::LEARNER).count();
    let caches = view.with_roles(Roles::LEASE_CACHE).count();
    let up_ms = primary.map(|sight| clock::now().0.saturating_sub(sight.counter(Counter::StartedNs)) / 1_000_000);
    format.print(
        format_args!(
            "view {}, lease {} ms; {}; data held by {}{}{}{}{}\n",
            view.number,
            view.lease_ns / 1_000_000,
            primary.map_or_else(|| styled(BAD, "no node leads"), |sight| format!("node {} leads", sight.node)),
            // A view drops its last replica only when that one is certainly gone.
            holders.text(|| format!("no node: the last replica has died{}", what_is_left(cluster.config().durability.writes()))),
            if learners > 0 { format!(", {learners} more receiving it") } else { String::new() },
            if caches > 0 { format!("; lease caches: {caches}") } else { String::new() },
            levels(view),
            stuck.map_or_else(String::new, |why| format!(
                "\n{}",
                styled(BAD, format_args!("as seen from here, the cluster does not go on by itself: {why}"))
            )),
        ),
        || {
            json!({
                "event": "cluster",
                "view": view.number.0,
                "lease_ns": view.lease_ns,
                "primary": primary.map(|sight| sight.node),
                "primary_up_ms": up_ms,
                "replicas": holders.live.len(),
                "replicas_missing": holders.missing(),
                "stuck": stuck,
                "learners": learners,
                "lease_caches": caches,
                "level": view.level,
                "level_most": view.members.iter().map(|member| member.levels.most).min(),
            })
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_start_nodes_that_are_seen_running() {
        let waiting = [(0, vec![1, 2])];
        let [waits, advice] = &awaited(&waiting, &[0], false, true)[..] else { panic!("two lines") };
        assert_eq!(waits, "node 0 waits for nodes [1, 2] to found the cluster: it does not see them, but they may be running");
        assert_eq!(advice, "start them, or make sure that they reach each other");
        let said = awaited(&waiting, &[0, 1, 2], true, true);
        let joins = "node 0 has not joined the cluster yet: when it last looked, it did not see nodes [1, 2], which are running";
        assert_eq!(said, [joins, "if that stays so, make sure that they reach each other"]);
        let said = awaited(&waiting, &[0, 2], false, false);
        assert!(
            said[0].starts_with("node 0 waits for nodes [1] ") && said[1].contains("did not see nodes [2], which are running"),
            "{said:?}"
        );
        assert!(said[2].starts_with("start them") && said[2].contains("--all-here"), "{said:?}");
        assert_eq!(awaited(&[], &[0], false, false), Vec::<String>::new());
    }
}
