//! A node and the warden of its host (`docs/fide.md`, "Nodes and wardens"). Through it others learn for certain that this node is gone, and this node learns
//! the same of them, on whatever host they are.
//!
//! A separate thread, which outlives the node's lives, talks to the warden, whose answers may take their time. It registers the present life with a secret of
//! that life, so that a certificate of an earlier life proves nothing. Threads that act for the node say so to the warden themselves
//! ([`acting`](crate::acting)).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use martlet_fabric::NodeId;
use martlet_fabric::host::LULL;
use martlet_fabric::host::process::{come_first, leave_core};
use martlet_protocol::detector::wardens::Secret;
use martlet_warden::client::{Error, Failure, Handler, Threads, Warden};
use martlet_warden::{AppId, Resources};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::config::{Settings, UseWarden};

/// How often to look for a warden that is not there, and to ask again when a warden refuses something.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// The application identity of a node, for wardens.
pub fn application_of(cluster: &str, node: NodeId) -> AppId {
    AppId::named(&format!("martlet node {node} of {cluster}"))
}

/// What the thread is told.
enum Command {
    /// A life of the node begins, with this secret; the function wakes the node.
    Begin(Secret, Box<dyn Fn() + Send>),
    /// These nodes' ends are to be reported as well.
    Watch(Vec<NodeId>),
    /// The node ends in order.
    End,
}

/// A node's registration with the warden of its host: with the one that is there, or with the next that comes.
#[derive(Debug)]
pub(crate) struct Registration {
    commands: Sender<Command>,
    certificates: Receiver<(NodeId, Secret)>,
    shared: Arc<Shared>,
    threads: Threads,
    watched: RefCell<Vec<NodeId>>,
    thread: Option<JoinHandle<()>>,
}

/// What both threads use.
#[derive(Debug)]
struct Shared {
    /// Wakes the thread that talks to the warden.
    stir: OwnedFd,
    /// There are certificates. Set with Release, after they have been sent.
    has_news: AtomicBool,
    is_registered: AtomicBool,
}

impl Registration {
    /// Registers, unless the node has no use for a warden: because it is told not to, or because it sees all deaths by itself and no warden is named. If
    /// registration is optional, a warden that is not there is waited for, and one that cannot be used is complained about.
    ///
    /// # Errors
    /// When it must register and cannot, and when the system has no descriptors or threads left.
    pub fn start(settings: &Settings) -> Result<Option<Registration>, Error> {
        let config = settings.node().warden.clone();
        let cluster = settings.cluster();
        let sees_deaths = cluster.config().fabric.traits().certain_deaths;
        if config.usage == UseWarden::Off || sees_deaths && config.usage == UseWarden::Auto && config.socket.is_none() {
            return Ok(None);
        }
        let socket = config.socket.unwrap_or_else(martlet_warden::place::default_socket);
        let name = format!("{}/{}", cluster.config().name, settings.id());
        let mut warden = match config.usage {
            UseWarden::On => Warden::connect(&socket, &name)?,
            UseWarden::Auto | UseWarden::Off => match Warden::expect(&socket, &name) {
                Ok(warden) => warden,
                Err(error @ Error::System { .. }) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the node goes on without the warden of its host: after a death over a network, a lease has to run out");
                    return Ok(None);
                }
            },
        };
        // An end that is reported without the secret proves nothing, neither to others nor to this node, and the warden would not report the application again
        // in that life.
        warden.need_secrets();
        let system = |what| move |error: io::Error| Error::System { what, error };
        let stir =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| system("cannot make a descriptor")(error.into()))?;
        let shared = Arc::new(Shared { stir, has_news: AtomicBool::new(false), is_registered: AtomicBool::new(false) });
        let (commands, told) = channel();
        let (sender, certificates) = channel();
        let threads = warden.threads();
        let post = Post {
            own: application_of(&cluster.config().name, settings.id()),
            cluster: cluster.config().name.clone(),
            warden,
            shared: Arc::clone(&shared),
            sender,
            bell: Box::new(|| {}),
            secret: None,
            nodes: BTreeMap::new(),
            complaint: String::new(),
        };
        let thread = std::thread::Builder::new().name("martlet-warden".into()).spawn(move || {
            leave_core();
            // What this thread passes on ends a wait for a lease, usually on a busy host.
            come_first();
            post.run(&told);
        });
        let thread = Some(thread.map_err(system("cannot start a thread that speaks with the warden"))?);
        Ok(Some(Registration { commands, certificates, shared, threads, watched: RefCell::default(), thread }))
    }

    /// The handle by which the node's threads say that they act for it.
    pub fn threads(&self) -> Threads {
        self.threads.clone()
    }

    /// A life of the node begins, with a secret that it has pledged. `bell` is rung when there are certificates.
    pub fn begin(&self, secret: Secret, bell: Box<dyn Fn() + Send>) {
        self.send(Command::Begin(secret, bell));
    }

    /// These nodes' ends are to be reported, besides those that are watched already.
    pub fn watch(&self, nodes: impl Iterator<Item = NodeId>) {
        let mut watched = self.watched.borrow_mut();
        let new: Vec<NodeId> = nodes.filter(|node| !watched.contains(node)).collect();
        if !new.is_empty() {
            watched.extend(&new);
            self.send(Command::Watch(new));
        }
    }

    /// Certificates that have come: the node, and the secret of the life that is over.
    #[inline]
    pub fn certificates(&self) -> impl Iterator<Item = (NodeId, Secret)> + '_ {
        // This acquire pairs with the release of the thread that has sent them.
        let has_news = self.shared.has_news.load(Ordering::Relaxed) && self.shared.has_news.swap(false, Ordering::Acquire);
        self.certificates.try_iter().take(if has_news { usize::MAX } else { 0 })
    }

    /// Whether a warden watches this life.
    pub fn is_registered(&self) -> bool {
        self.shared.is_registered.load(Ordering::Relaxed)
    }

    fn send(&self, command: Command) {
        // The thread ends only when it is told to.
        let _ = self.commands.send(command);
        let _ = rustix::io::write(&self.shared.stir, &1u64.to_ne_bytes());
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.send(Command::End);
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, that has been reported.
            let _ = thread.join();
        }
    }
}

/// The thread that talks to the warden.
struct Post {
    own: AppId,
    cluster: String,
    warden: Warden,
    shared: Arc<Shared>,
    sender: Sender<(NodeId, Secret)>,
    bell: Box<dyn Fn() + Send>,
    /// The present life's.
    secret: Option<Secret>,
    nodes: BTreeMap<AppId, NodeId>,
    /// The last complaint.
    complaint: String,
}

/// What the warden tells in one answer.
#[derive(Default)]
struct Heard {
    failed: Vec<(AppId, Failure)>,
    complaint: Option<String>,
}

impl Handler for Heard {
    fn on_failure(&mut self, app: AppId, failure: Failure) {
        self.failed.push((app, failure));
    }

    fn on_warden_lost(&mut self) {
        tracing::warn!("the warden of this host is gone; the node waits for the next one");
    }

    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        match registered {
            Ok(()) => tracing::info!("registered with the warden of this host"),
            Err(error) => self.complaint = Some(error.to_string()),
        }
    }
}

impl Post {
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.shared.stir, &mut count);
            for command in commands.try_iter() {
                match command {
                    Command::Begin(secret, bell) => {
                        // The life before is over; that is no failure of it.
                        if self.secret.is_some() {
                            let _ = self.warden.quit();
                        }
                        (self.secret, self.bell) = (Some(secret), bell);
                        self.shared.is_registered.store(false, Ordering::Relaxed);
                    }
                    Command::Watch(nodes) => {
                        self.nodes.extend(nodes.into_iter().map(|node| (application_of(&self.cluster, node), node)));
                    }
                    Command::End => {
                        let _ = self.warden.quit();
                        return;
                    }
                }
            }
            let mut heard = Heard::default();
            // Long enough to look at everything once.
            if let Err(error) = self.warden.poll(Some(Duration::from_nanos(1)), &mut heard) {
                self.complain(&error.to_string());
            }
            self.tell(&heard);
            if let Some(why) = heard.complaint {
                self.complain(&why);
            }
            let wait = rest(!heard.failed.is_empty(), || self.warden.is_linked() && self.register());
            let wait = wait.map(|wait| Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) });
            let (news, stir) = (self.warden.fd(), self.shared.stir.as_fd());
            let _ = poll(&mut [PollFd::new(&news, PollFlags::IN), PollFd::new(&stir, PollFlags::IN)], wait.as_ref());
        }
    }

    /// Passes on the certificates among what was heard. Presumptions do not concern the node: it hears the others itself.
    fn tell(&self, heard: &Heard) {
        let certificate = |(app, failure): &(AppId, Failure)| Some((*self.nodes.get(app)?, failure.secret?));
        let mut is_news = false;
        for (node, secret) in heard.failed.iter().filter_map(certificate) {
            is_news |= self.sender.send((node, secret)).is_ok();
        }
        if is_news {
            self.shared.has_news.store(true, Ordering::Release);
            (self.bell)();
        }
    }

    /// Asks the warden for what this node has not got yet. Returns whether it has everything.
    fn register(&mut self) -> bool {
        let mut complaints = Vec::new();
        if let Some(secret) = self.secret
            && self.warden.joined() != Some(self.own)
            && let Err(error) = self.warden.join_with(self.own, secret)
        {
            complaints.push(error.to_string());
        }
        for app in self.nodes.keys() {
            if self.warden.slot(*app).is_none()
                && let Err(error) = self.warden.monitor(*app, Resources::default())
            {
                complaints.push(error.to_string());
            }
        }
        self.shared.is_registered.store(complaints.is_empty() && self.secret.is_some(), Ordering::Relaxed);
        complaints.iter().for_each(|why| self.complain(why));
        complaints.is_empty()
    }

    /// Says what is wrong, once.
    fn complain(&mut self, why: &str) {
        if self.complaint != why {
            tracing::warn!("the warden of this host: {why}");
            why.clone_into(&mut self.complaint);
        }
    }
}

/// How long the post waits for news. `settle` requests what is missing, and returns whether everything is there. If it `has_told` the node of a death, that
/// goes first: the warden, too, has bookkeeping to do that can wait.
fn rest(has_told: bool, settle: impl FnOnce() -> bool) -> Option<Duration> {
    if has_told {
        return Some(LULL);
    }
    if settle() { None } else { Some(LOOKS_EVERY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_cluster_and_of_another_one_are_different_applications() {
        let apps: Vec<AppId> = ["a", "b"].iter().flat_map(|cluster| (0..16).map(|node| application_of(cluster, NodeId(node)))).collect();
        assert!((1..apps.len()).all(|at| !apps[..at].contains(&apps[at])));
        assert_eq!(application_of("a", NodeId(1)), application_of("a", NodeId(1)), "all nodes find the same");
    }

    #[test]
    fn nothing_is_asked_of_the_warden_until_those_who_act_on_a_death_have_had_their_time() {
        assert_eq!(rest(true, || panic!("the warden is asked for something")), Some(LULL));
        assert_eq!(rest(false, || false), Some(LOOKS_EVERY));
        assert_eq!(rest(false, || true), None);
    }
}
