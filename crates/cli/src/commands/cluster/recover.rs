//! `martlet cluster recover`

use std::fs;
use std::io::{BufRead as _, IsTerminal as _};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use martlet_cluster::directory::{Directory, Life};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{BAD, Format, GOOD, Table, WARN, styled};
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_cluster::watch::standing::Standing;
use martlet_fabric::NodeId;
use martlet_node::config::{Cluster, ClusterConfig, RecoveryConfig, Role, Settings};
use martlet_node::on_disk;
use martlet_protocol::basics::layout::MAX_MEMBERS;
use martlet_protocol::founding::{Returned, refound};
use rustix::process::Signal;
use serde_json::json;

use super::session::OF_A_SERVICE;
use crate::commands::Which;
use crate::watch::holding::Holding;
use crate::watch::known::Known;

/// How long a process may take to end, and its memory to be torn down.
const RELEASE: Duration = Duration::from_secs(10);

/// Found a cluster again from one node, when a majority of it is lost for good.
///
/// Without --from, the command only shows what each node holds, in memory if it is running and otherwise on its disk: up to which entry, as of when, and what
/// may be lost by going on from it.
///
/// With --from, the cluster is founded again with that node's data, as a new generation. All other nodes are ended, drop what they hold, and receive the data
/// from that node. Whatever they had acknowledged and that node does not hold is lost. The command asks for confirmation, unless --yes is given.
///
/// Use it only for a cluster that cannot come back by itself: while a majority is left, `martlet cluster up` starts the rest.
///
/// Example: martlet cluster recover --from 2 --yes
#[derive(Debug, Args)]
pub struct Arguments {
    /// The node whose data the cluster goes on with.
    #[arg(long, value_name = "NODE", value_parser = number::<u16>(..MAX_MEMBERS as u64))]
    from: Option<u16>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// Do it even if the cluster goes on, or would come back, by itself.
    #[arg(long)]
    force: bool,
    /// How long to wait for the cluster, at each step, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = number::<u64>(..))]
    patience: u64,
    #[command(flatten)]
    which: Which,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let directory = Directory::new(&arguments.which.dir);
    directory.existing_cluster()?;
    directory.refuse_a_service(OF_A_SERVICE)?;
    let _lock = directory.lock()?;
    let cluster = directory.existing_cluster()?;
    let (sights, known) = look(&directory, &cluster, &interrupt)?;
    let holdings = holdings(&directory, &cluster, &sights, &known)?;
    show(&holdings, format);

    let Some(from) = arguments.from else {
        let able: Vec<u16> = holdings.iter().filter(|holding| holding.can_be_gone_on_from()).map(|holding| holding.node).collect();
        let hint = match able[..] {
            [] => "no node holds the whole state: there is nothing to go on from".to_owned(),
            _ => format!("nothing has been changed; choose one of nodes {able:?} with --from"),
        };
        return if able.is_empty() { Err(Fail::absent(hint)) } else { Err(Fail::usage(hint)) };
    };
    directory.refuse_as_root(&cluster, "start its nodes")?;
    let chosen = holdings.iter().find(|holding| holding.node == from).ok_or_else(|| {
        let nodes: Vec<u16> = holdings.iter().map(|holding| holding.node).collect();
        Fail::usage(format_args!("--from is {from}; allowed are the cluster's nodes: {nodes:?}"))
    })?;
    if !chosen.can_be_gone_on_from() {
        return Err(Fail::failed(format_args!("the cluster cannot go on from node {from}: {}", chosen.why_not())));
    }
    if !cluster.config().nodes.iter().any(|node| node.number == from && node.roles.contains(&Role::Replica)) {
        return Err(Fail::failed(format_args!("node {from} is not a replica")));
    }
    if !arguments.force {
        check_stuck(&cluster, &sights, &known, &holdings)?;
    }
    consent(arguments, &cluster, chosen, &holdings, format)?;

    end_others(&directory, &cluster, from, format)?;
    if cluster.config().fabric.traits().spans_hosts {
        // A primary on another host that has lost its coordinators a moment ago serves until its lease has run out.
        std::thread::sleep(2 * Duration::from_nanos(cluster.lease_ns()));
    }
    let recovery = RecoveryConfig { generation: cluster.generation() + 1, from };
    let cluster = write(&directory, &recovery)?;
    let patience = Duration::from_secs(arguments.patience);
    found(&directory, &cluster, from, patience, &interrupt)?;
    format.print(
        format_args!(
            "{} of the cluster begins with the data of node {from}",
            styled(GOOD, format_args!("generation {}", recovery.generation))
        ),
        || json!({"event": "recovered", "from": from, "generation": recovery.generation}),
    );
    let here = directory.nodes_here(&cluster);
    for node in here.iter().copied().filter(|node| *node != from) {
        directory.start(node, Life::OfItsOwn)?;
        format.print(format_args!("node {node} starts over"), || json!({"event": "started", "node": node}));
    }
    let elsewhere: Vec<u16> = cluster.config().nodes.iter().map(|node| node.number).filter(|node| !here.contains(node)).collect();
    if !elsewhere.is_empty() {
        // They read it in their own hosts' files, where nobody has written it so far.
        let RecoveryConfig { generation, from } = recovery;
        format.print(
            format_args!(
                "nodes {elsewhere:?} belong to other hosts and have not been started: write `[recovery]` with `generation = {generation}` and `from = {from}` into their \
                 cluster.toml, and start them there"
            ),
            || json!({"event": "elsewhere", "nodes": elsewhere}),
        );
        return Ok(());
    }
    super::up::await_whole(&directory, &cluster, patience, &interrupt)?;
    format.print("every node holds the data", || json!({"event": "whole", "nodes": cluster.config().nodes.len()}));
    Ok(())
}

/// What can be seen of the nodes.
fn look(directory: &Directory, cluster: &Cluster, interrupt: &Interrupt) -> Outcome<(Vec<Sight>, Vec<Known>)> {
    let nodes = &cluster.config().nodes;
    nodes.iter().try_for_each(|node| directory.adopt(node.number))?;
    let known: Vec<Known> = nodes.iter().map(|node| Known::of(directory, cluster, node.number)).collect::<Outcome<_>>()?;
    let perhaps: Vec<u16> = known.iter().filter(|known| known.activity != Some(Activity::Gone)).map(|known| known.node).collect();
    let sights = if perhaps.is_empty() { Vec::new() } else { Observer::open(cluster)?.connect(&perhaps, interrupt)? };
    Ok((sights, known))
}

fn holdings(directory: &Directory, cluster: &Cluster, sights: &[Sight], known: &[Known]) -> Outcome<Vec<Holding>> {
    let mut holdings = Vec::new();
    for known in known {
        let sight = sights.iter().find(|sight| sight.node == known.node && sight.reading.is_some());
        let runs = sight.is_some() || !matches!(known.activity, Some(Activity::Gone));
        holdings.push(match sight {
            Some(sight) => Holding::in_memory(sight, cluster.generation(), known.activity),
            None if runs => Holding::unreadable(known.node, known.activity),
            None => {
                let settings = Settings::load(&directory.node_file(known.node)).map_err(Fail::failed)?;
                Holding::on_disk(known.node, on_disk(&settings).map_err(|error| error.to_string()))
            }
        });
    }
    Ok(holdings)
}

fn show(holdings: &[Holding], format: Format) {
    let mut table = Table::new(["node", "process", "holds", "up to", "committed", "as of", "going on from it may lose"]);
    let now = SystemTime::now();
    for holding in holdings {
        let loss = holding.loss(holdings);
        let colour = if !holding.can_be_gone_on_from() || loss.is_some_and(|entries| entries > 0) { WARN } else { GOOD };
        let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |number| number.to_string());
        table.row([
            holding.node.to_string(),
            holding.process().into(),
            holding.place.name().into(),
            number(holding.last),
            number(holding.committed),
            holding.age(now).map_or_else(|| "-".into(), |age| format!("{age:.1?} ago")),
            styled(colour, holding.words_of_loss(holdings)),
        ]);
        format.object(|| {
            json!({
                "event": "holds",
                "node": holding.node,
                "process": holding.process(),
                "in": holding.place.known(),
                "generation": holding.generation,
                "last": holding.last,
                "committed": holding.committed,
                "as_of_ms": holding.as_of.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|at| at.as_millis() as u64),
                "whole": holding.can_be_gone_on_from(),
                "loses": loss,
                "why": holding.why.clone(),
            })
        });
    }
    format.say(table);
    let unseen: Vec<u16> = holdings.iter().filter(|holding| holding.last.is_none()).map(|holding| holding.node).collect();
    if !unseen.is_empty() {
        format.say(format_args!(
            "what nodes {unseen:?} held cannot be seen: whichever node you choose, what only they had acknowledged is lost too"
        ));
    }
}

/// Nothing is to be given up that comes back by itself.
fn check_stuck(cluster: &Cluster, sights: &[Sight], known: &[Known], holdings: &[Holding]) -> Outcome {
    let config = cluster.config();
    let refused = |why: String| Err(Fail::failed(format_args!("{why}. --force does it anyway, and what the others hold is lost")));
    let stopped = |node: u16| known.iter().any(|known| known.node == node && known.activity == Some(Activity::Stopped));
    let running: Vec<u16> = sights.iter().filter(|sight| sight.reading.is_some() && !stopped(sight.node)).map(|sight| sight.node).collect();
    if let Some(standing) = Standing::of(sights, &running, config.engine, config.fabric)
        && standing.is_stuck().is_none()
    {
        return refused(format!("nodes {running:?} go on by themselves; `martlet cluster up` starts the others"));
    }
    let present: Vec<_> = holdings.iter().filter(|holding| holding.generation == Some(cluster.generation())).collect();
    let present: Vec<(_, Returned)> = present.into_iter().filter_map(|holding| holding.log.clone()).collect();
    if running.is_empty()
        && let Ok(again) = refound(&present)
    {
        let nodes: Vec<u16> = again.members.iter().map(|id| id.node.0).collect();
        return refused(format!(
            "the disks of nodes {nodes:?} are a majority of the newest log's group: `martlet cluster up` brings back what is on them"
        ));
    }
    Ok(())
}

/// Asks, unless it has been said.
fn consent(arguments: &Arguments, cluster: &Cluster, chosen: &Holding, holdings: &[Holding], format: Format) -> Outcome {
    let others: Vec<u16> = holdings.iter().map(|holding| holding.node).filter(|node| *node != chosen.node).collect();
    let apart = match cluster.config().fabric.traits().spans_hosts {
        false => "",
        true => {
            " Nodes on other hosts are not ended from here. End them first: a majority of them that is still running would go on serving."
        }
    };
    let what = format!(
        "The cluster will go on with what node {} holds ({}); nodes {others:?} will drop what they hold and start over.{apart}",
        chosen.node,
        chosen.words_of_loss(holdings)
    );
    if arguments.yes {
        return Ok(());
    }
    if format == Format::Text && std::io::stdin().is_terminal() {
        format.say(format_args!("\n{}\nContinue? Type yes:", styled(WARN, what)));
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
        return if answer.trim() == "yes" { Ok(()) } else { Err(Fail::failed("nothing has been changed")) };
    }
    Err(Fail::failed(format_args!("{what} Nothing has been changed; use --yes to do it")))
}

/// Ends all nodes but that one, and makes sure that none of them runs where it could be known: whatever they would still do belongs to a cluster that is over.
fn end_others(directory: &Directory, cluster: &Cluster, from: u16, format: Format) -> Outcome {
    let mut ours = Vec::new();
    for node in cluster.config().nodes.iter().map(|node| node.number).filter(|node| *node != from) {
        let doing = format!("cannot end node {node}");
        match directory.process(node)? {
            Some(process) => ours.push((node, process.open().context(&doing)?)),
            None => ours.push((node, None)),
        }
    }
    // First of all, so that nothing is ended where not all can be.
    for (node, _) in ours.iter().filter(|(_, handle)| handle.is_none()) {
        await_unseen(cluster, *node)?;
    }
    for (node, handle) in &ours {
        let Some(handle) = handle else { continue };
        let doing = format!("cannot end node {node}");
        handle.signal(Signal::KILL).context(&doing)?;
        if !handle.wait_gone(RELEASE).context(&doing)? {
            return Err(Fail::failed(format_args!("{doing}: its process does not end")));
        }
        await_unseen(cluster, *node)?;
        format.print(format_args!("node {node} has been killed"), || json!({"event": "stopped", "node": node, "how": "was killed"}));
    }
    Ok(())
}

/// Waits until no process of that node is seen, where that can be seen. The kernel gives a dead process's socket back when it has torn down its memory.
fn await_unseen(cluster: &Cluster, node: u16) -> Outcome {
    if cluster.config().fabric.traits().spans_hosts {
        return Ok(());
    }
    let (rendezvous, name) = (cluster.rendezvous(), cluster.fabric_name());
    let until = Instant::now() + RELEASE;
    while rendezvous.is_running(&name, NodeId(node)).context("cannot see which nodes are running")? {
        if Instant::now() >= until {
            return Err(Fail::failed(format_args!(
                "node {node} is running, but was not started from here. End it first, since it might go on serving in the cluster that is given up. Nothing has been changed"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn write(directory: &Directory, recovery: &RecoveryConfig) -> Outcome<Cluster> {
    let file = directory.cluster_file();
    let doing = format!("cannot change {}", file.display());
    let text = fs::read_to_string(&file).context(&doing)?;
    let changed = ClusterConfig::founded_again(&text, recovery).map_err(|why| Fail::failed(format_args!("{doing}: {why}")))?;
    directory.write_cluster(&changed)?;
    directory.existing_cluster()
}

/// Waits until that node leads the cluster's new generation. It is started if it does not run; if it does, it sees for itself what its file says.
fn found(directory: &Directory, cluster: &Cluster, from: u16, patience: Duration, interrupt: &Interrupt) -> Outcome {
    if directory.activity(from)? == Activity::Gone && !is_elsewhere(directory, cluster, from)? {
        directory.start(from, Life::OfItsOwn)?;
    }
    let mut observer = Observer::open(cluster)?;
    let mut died = false;
    let found = observer.wait_for(patience, interrupt, |sights| {
        died = matches!(directory.activity(from), Ok(Activity::Gone)) && directory.process(from).is_ok_and(|process| process.is_some());
        died || observer::primary(sights).is_some_and(|sight| sight.node == from)
    })?;
    let log = directory.log_file(from);
    match found {
        _ if died => Err(Fail::failed(format_args!(
            "node {from} ended; the end of its log, {}:\n{}",
            styled(BAD, log.display()),
            directory.log_tail(from, 8)
        ))),
        Ok(_) => Ok(()),
        Err(sights) => Err(observer::not_ready(
            &format!("node {from} was not seen to lead within {} s; the same command continues from here", patience.as_secs()),
            &sights,
        )),
    }
}

/// Whether it runs without having been started from here: in the generation that is over, as far as its file has not been seen by it.
fn is_elsewhere(directory: &Directory, cluster: &Cluster, node: u16) -> Outcome<bool> {
    let before = cluster.config().recovery.as_ref().map_or(0, |recovery| recovery.generation.saturating_sub(1));
    let known = Known::of(directory, cluster, node)?;
    if known.activity != Some(Activity::Gone) {
        return Ok(true);
    }
    let earlier = cluster.with(|config| {
        config.recovery = (before > 0).then_some(RecoveryConfig { generation: before, from: node });
    });
    let earlier = earlier.map_err(Fail::failed)?;
    Ok(Known::of(directory, &earlier, node)?.activity != Some(Activity::Gone))
}
