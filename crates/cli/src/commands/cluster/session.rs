//! What commands have in common that change a cluster while it runs.

use std::time::Duration;

use martlet_cluster::directory::{Directory, Life, Lock};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::hosts;
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output::Format;
use martlet_cluster::process::Activity;
use martlet_cluster::watch::observer::{self, Observer, Sight};
use martlet_cluster::watch::standing::{self, Standing};
use martlet_node::config::Cluster;
use martlet_node::counters::Counter;
use martlet_protocol::membership::{Roles, View};
use serde_json::json;

use crate::commands::Which;

/// For how long what stands against a change may pass by itself: whoever has just died is about to be removed.
const SECOND_THOUGHTS: Duration = Duration::from_secs(2);

/// What is to be said to one who means a server that `martlet run` runs.
pub const OF_A_SERVICE: &str = "martlet run looks after its replicas by itself: it keeps three, and starts a new one for each that dies. SIGTERM to martlet run ends the server";

/// The command itself, where it goes on from where it was broken off.
pub const SAME_COMMAND: &str = "the same command";

/// A command that changes a cluster.
pub struct Session {
    /// Where the cluster's files are.
    pub directory: Directory,
    /// What the cluster's file said when the command had its turn.
    pub cluster: Cluster,
    /// Ctrl-C.
    pub interrupt: Interrupt,
    /// How long to wait for the cluster, at each step.
    pub patience: Duration,
    /// How to tell what happens.
    pub format: Format,
    /// It is the only one of those that take turns.
    turn: Option<Lock>,
}

impl Session {
    /// For a command that changes the set of nodes, from here to its end the only one: waits for the directory's lock, and finds the cluster as the command
    /// before has left it.
    ///
    /// # Errors
    /// When there is no cluster.
    pub fn open(which: &Which, patience_s: u64, format: Format) -> Outcome<Session> {
        let mut session = Session::begin(which, patience_s, format)?;
        let lock = session.directory.lock()?;
        session.cluster = hosts::up_to_date(&session.directory, &session.directory.existing_cluster()?, Some(&lock))?;
        session.turn = Some(lock);
        Ok(session)
    }

    /// For a command that asks nodes that run for something: it waits for no other command, which may itself wait for what this one is to bring about.
    ///
    /// # Errors
    /// When there is no cluster. A directory without one gets no lock file.
    pub fn open_beside(which: &Which, patience_s: u64, format: Format) -> Outcome<Session> {
        let session = Session::begin(which, patience_s, format)?;
        let cluster = hosts::up_to_date(&session.directory, &session.cluster, None)?;
        Ok(Session { cluster, ..session })
    }

    fn begin(which: &Which, patience_s: u64, format: Format) -> Outcome<Session> {
        let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
        let directory = Directory::new(&which.dir);
        let cluster = directory.existing_cluster()?;
        directory.refuse_a_service(OF_A_SERVICE)?;
        Ok(Session { directory, cluster, interrupt, patience: Duration::from_secs(patience_s), format, turn: None })
    }

    /// The same for a command about one node, which has to be one of the cluster's.
    ///
    /// # Errors
    /// When there is no cluster, or no such node.
    pub fn open_for(which: &Which, node: u16, patience_s: u64, format: Format) -> Outcome<Session> {
        let session = Session::open(which, patience_s, format)?;
        Directory::check_listed(&session.cluster, node)?;
        session.directory.adopt(node)?;
        Ok(session)
    }

    /// For a command that starts nodes, which has to run as the user that the cluster belongs to.
    ///
    /// # Errors
    /// When root means another user's.
    pub fn check_user(&self) -> Outcome {
        self.directory.refuse_as_root(&self.cluster, "start its nodes")
    }

    fn running(&self, cluster: &Cluster) -> Outcome<Vec<u16>> {
        let mut running = Vec::new();
        for node in &cluster.config().nodes {
            if self.directory.activity(node.number)? == Activity::Running {
                running.push(node.number);
            }
        }
        Ok(running)
    }

    /// The nodes that are started from other hosts than this one: whether they run, only a look at them can tell.
    pub fn elsewhere(&self, cluster: &Cluster) -> Vec<u16> {
        let here = self.directory.nodes_here(cluster);
        cluster.config().nodes.iter().map(|node| node.number).filter(|number| !here.contains(number)).collect()
    }

    /// The directory's lock, which a session that changes the set of nodes has.
    pub fn lock(&self) -> &Lock {
        self.turn.as_ref().expect("it was opened to change the set of nodes")
    }

    /// Whether this is a host's directory, of a cluster whose hosts keep one list of nodes.
    pub fn answers_hosts(&self, cluster: &Cluster) -> bool {
        hosts::own(&self.directory, cluster).is_some()
    }

    /// Waits until somebody leads, which a change of the set of nodes needs.
    pub fn await_leader(&self, cluster: &Cluster) -> Outcome {
        let dir = self.directory.path().display();
        if self.running(cluster)?.is_empty() && self.elsewhere(cluster).is_empty() {
            return Err(Fail::absent(format_args!(
                "no node of the cluster in {dir} is running; `martlet cluster up --dir {dir}` starts them"
            )));
        }
        self.leader(&mut Observer::open(cluster)?).map(|_| ())
    }

    /// The node that leads, once one does, and what all nodes show then.
    ///
    /// # Errors
    /// When no node leads within the patience.
    pub fn leader(&self, observer: &mut Observer) -> Outcome<(u16, Vec<Sight>)> {
        let found = observer.wait_for(self.patience, &self.interrupt, |sights| observer::primary(sights).is_some())?;
        let none = |sights: &[Sight]| observer::not_ready(&format!("no node led within {} s", self.patience.as_secs()), sights);
        let sights = found.map_err(|sights| none(&sights))?;
        let leader = observer::primary(&sights).map(|sight| sight.node).ok_or_else(|| none(&sights))?;
        Ok((leader, sights))
    }

    /// Makes sure that the others can do without a node. `whatfor` is to be done with it.
    pub fn check_dispensable(&self, cluster: &Cluster, node: u16, whatfor: &str) -> Outcome {
        let (running, elsewhere) = (self.running(cluster)?, self.elsewhere(cluster));
        let (engine, fabric) = (cluster.config().engine, cluster.config().fabric);
        let mut why = None;
        if running.iter().chain(&elsewhere).any(|other| *other != node) {
            let found = Observer::open(cluster)?.wait_for(SECOND_THOUGHTS, &self.interrupt, |sights| {
                why = Standing::of(sights, &with_seen(&running, &elsewhere, sights), engine, fabric)
                    .map_or_else(|| Some("no node shows a view".into()), |standing| standing.objection(node));
                why.is_none()
            })?;
            if found.is_ok() {
                return Ok(());
            }
        }
        let why = why.unwrap_or_else(|| "no other node is running".into());
        Err(Fail::failed(format_args!(
            "node {node} is needed, so it has not been {whatfor}: {why}. --force does it anyway, whatever is lost"
        )))
    }

    /// Whether a node of another host shows that it runs.
    pub fn is_seen(&self, cluster: &Cluster, node: u16) -> Outcome<bool> {
        let found =
            Observer::open(cluster)?.wait_for(SECOND_THOUGHTS, &self.interrupt, |sights| !with_seen(&[], &[node], sights).is_empty())?;
        Ok(found.is_ok())
    }

    /// Ends a node if it runs, and waits until nobody counts on it.
    pub fn dismiss(&self, cluster: &Cluster, node: u16, grace: Duration, force: bool) -> Outcome {
        let elsewhere = self.elsewhere(cluster);
        if elsewhere.contains(&node) && self.is_seen(cluster, node)? {
            return Err(Fail::failed(format_args!(
                "node {node} is running on another host; stop it there first (`martlet cluster down`, or its service manager), then run this command again"
            )));
        }
        let how = super::down::stop(&self.directory, node, grace)?;
        self.format.print(format_args!("node {node} {how}"), || json!({"event": "stopped", "node": node, "how": how}));
        let live = self.running(cluster)?;
        if live.is_empty() && elsewhere.is_empty() && force {
            return Ok(());
        }
        let engine = cluster.config().engine;
        let done = |sights: &[Sight]| {
            observer::is_whole(sights, &with_seen(&live, &elsewhere, sights)) && standing::is_without(sights, node, engine)
        };
        match Observer::open(cluster)?.wait_for(self.patience, &self.interrupt, done)? {
            Ok(_) => Ok(()),
            Err(_) if force => {
                self.format.say(format_args!("the other nodes still rely on node {node}; continuing because of --force"));
                Ok(())
            }
            Err(sights) => {
                let what = format!(
                    "node {node} has ended, but the others were not seen to go on without it within {} s; it still belongs to the cluster, and the \
                     same command continues from here",
                    self.patience.as_secs()
                );
                Err(observer::not_ready(&what, &sights))
            }
        }
    }

    /// Starts a node if it does not run, and waits until it holds the data and counts. Whatever was under way with it is over then. `again` is the command that waits for it again
    /// where patience with it ends.
    pub fn welcome(&self, cluster: &Cluster, node: u16, again: &str) -> Outcome {
        let directory = &self.directory;
        directory.adopt(node)?;
        let started = directory.activity(node)? == Activity::Gone;
        if started {
            directory.start(node, Life::OfItsOwn)?;
        }
        let pid = directory.process(node)?.map(|process| process.pid);
        let how = if started { "started" } else { "was running" };
        let pid_text = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        self.format.print(
            format_args!("node {node} {how}{pid_text}"),
            || json!({"event": "started", "node": node, "pid": pid, "started": started}),
        );
        let (live, elsewhere) = (self.running(cluster)?, self.elsewhere(cluster));
        let engine = cluster.config().engine;
        let (mut died, mut shown) = (false, Stage::Starting);
        let found = Observer::open(cluster)?.wait_for(self.patience, &self.interrupt, |sights| {
            let stage = Stage::of(sights, node);
            if stage > shown {
                shown = stage;
                let view = observer::newest_view(sights).map(|view| view.number.0);
                self.format.print(
                    format_args!("node {node} {}", stage.text()),
                    || json!({"event": "progress", "node": node, "stage": stage.name(), "view": view}),
                );
            }
            died = matches!(directory.activity(node), Ok(Activity::Gone));
            died || observer::is_whole(sights, &with_seen(&live, &elsewhere, sights)) && standing::is_settled(sights, engine)
        })?;
        if died {
            let log = directory.log_file(node);
            return Err(Fail::failed(format_args!(
                "node {node} ended; the end of its log, {}:\n{}",
                log.display(),
                directory.log_tail(node, 8)
            )));
        }
        found.map_err(|sights| {
            let what = format!(
                "node {node} was not seen to hold the data as a full member within {} s; it keeps running, and {again} waits for it again",
                self.patience.as_secs()
            );
            observer::not_ready(&what, &sights)
        })?;
        directory.end_change(node)
    }
}

/// The nodes that run: those of this host, and of the others those that show something just now.
fn with_seen(running: &[u16], elsewhere: &[u16], sights: &[Sight]) -> Vec<u16> {
    let seen = sights.iter().filter(|sight| sight.reading.is_some() && elsewhere.contains(&sight.node)).map(|sight| sight.node);
    running.iter().copied().chain(seen).collect()
}

/// How far a node has come that is on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Starting,
    Asking,
    Learning,
    Counting,
}

impl Stage {
    fn of(sights: &[Sight], node: u16) -> Stage {
        let Some(sight) = sights.iter().find(|sight| sight.node == node && sight.reading.is_some()) else { return Stage::Starting };
        let incarnation = sight.counter(Counter::Incarnation);
        let listed = |view: &View| {
            let member = view.members.iter().find(|m| m.id.node.0 == node && m.id.incarnation.0 == incarnation)?;
            Some(member.roles.has(Roles::LEARNER))
        };
        match observer::newest_view(sights).and_then(listed) {
            None => Stage::Asking,
            Some(true) => Stage::Learning,
            Some(false) => Stage::Counting,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Asking => "asking",
            Stage::Learning => "learning",
            Stage::Counting => "counting",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Stage::Starting => "is starting",
            Stage::Asking => "is connected and asks to join",
            Stage::Learning => "has joined and is receiving the data",
            Stage::Counting => "is a full member",
        }
    }
}
