//! How a node's process answers other hosts, on threads of its own that never hold the node up.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use martlet_fabric::host::process::stand_aside;
use martlet_fabric::{Levels, Protocol};
use martlet_node::config::{Cluster, NodeEntry, Settings};
use martlet_node::version;

use super::channel::{Channel, Hello};
use super::conversations::{Conversations, Place};
use super::invitation::{self, Invitation, Taken};
use super::list::{self, Own};
use super::newcomer::Welcome;
use super::restart::Restart;
use super::turn::Holder;
use super::{Answer, NodeList, Request, TalkError, VERSION, answers_at, keeper};
use crate::directory::{Directory, Lock};
use crate::fail::{Context as _, Fail, Outcome};

/// How long one conversation may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a host asks for the list of nodes, and how long that may take.
const LIST_EVERY: Duration = Duration::from_secs(5);
const LIST_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before accepting again after an error, such as a shortage of descriptors.
const REST: Duration = Duration::from_millis(100);

/// Answers other hosts, from [`Service::start`] to the end of the process.
#[derive(Clone, Debug)]
pub struct Service {
    directory: Directory,
    /// This host's node, as it was listed when it was started.
    own: NodeEntry,
    /// The handle that restarts it.
    restart: Restart,
    /// Held by the thread that changes the directory. Other threads of this process wait for it. No thread waits for another command, since that command may be
    /// waiting for this host's answer.
    changing: Arc<Mutex<()>>,
    /// The command that has the turn to restart nodes, if any; others are refused.
    turn: Arc<Mutex<Holder>>,
}

/// The lock of the directory, within the process and beyond it.
type Changing<'a> = (MutexGuard<'a, ()>, Lock);

impl Service {
    /// Begins to answer. If this host is not the one that keeps the list of nodes, also begins to ask for it.
    ///
    /// # Errors
    /// When the node's files are not those of a host, or the address cannot be listened on.
    pub fn start(settings: &Settings, restart: Restart) -> Outcome<SocketAddr> {
        let file = settings.cluster().file().unwrap_or(Path::new("<cluster>"));
        let directory = Directory::new(file.parent().unwrap_or(Path::new(".")));
        if directory.cluster_file() != file {
            return Err(Fail::usage(format_args!(
                "answers_hosts is true, but the cluster's file is {}; allowed is a file called cluster.toml, in the host's directory",
                file.display()
            )));
        }
        let entry = settings.entry();
        let at = answers_at(entry).ok_or_else(|| {
            Fail::usage(format_args!(
                "answers_hosts is true, but node {} has the address {:?} in {}; allowed is an IP address and a port up to 65534, since other hosts are answered on the port after it",
                entry.number,
                entry.address,
                file.display()
            ))
        })?;
        let listener = TcpListener::bind(at).context(format_args!("cannot answer other hosts at {at}"))?;
        let service = Service { directory, own: entry.clone(), restart, changing: Arc::default(), turn: Arc::default() };
        let begin = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let spawned = thread::Builder::new().name(name.into()).spawn(|| {
                stand_aside();
                run();
            });
            spawned.context("cannot start a thread that answers other hosts")
        };
        let listing = service.clone();
        begin("martlet-hosts", Box::new(move || service.listen(&listener)))?;
        begin("martlet-list", Box::new(move || listing.follow_the_list()))?;
        Ok(at)
    }

    fn listen(&self, listener: &TcpListener) {
        let conversations = Conversations::default();
        loop {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept another host for now");
                    thread::sleep(REST);
                    continue;
                }
            };
            let place = match conversations.begin(&stream) {
                Ok(Some(place)) => place,
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(%error, %from, "cannot answer another host for now");
                    continue;
                }
            };
            let service = self.clone();
            // Where no thread can be started, the other end sees its connection end.
            let _ = thread::Builder::new().name("martlet-host".into()).spawn(move || {
                stand_aside();
                if let Err(error) = service.hear(stream, &place) {
                    tracing::debug!(%error, %from, "another host was not answered");
                }
            });
        }
    }

    fn cluster(&self) -> Result<Cluster, String> {
        self.directory.existing_cluster().map_err(|error| error.to_string())
    }

    /// Gets the right to change the directory.
    ///
    /// # Errors
    /// When another command has it.
    fn change(&self) -> Outcome<Changing<'_>> {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((changing, self.directory.try_lock()?))
    }

    /// Holds one conversation.
    fn hear(&self, stream: TcpStream, place: &Place) -> Result<(), TalkError> {
        let mut invitation = None;
        let mut channel = Channel::answer(stream, PATIENCE, |hello| self.secret(hello, &mut invitation))?;
        loop {
            let request = channel.receive()?;
            place.keep();
            let answer = match (request, &invitation) {
                (Request::Join { address, redis, version, least_level, most_level }, Some(id)) => {
                    let levels = Levels::of(least_level, most_level);
                    let joined = match levels.map(|levels| Protocol { version, levels, build: "this build".into() }) {
                        Some(theirs) => self.welcome(id, address, redis, &theirs),
                        None => Err(format!("feature levels {least_level} to {most_level} are no range")),
                    };
                    joined.map_or_else(Answer::Refused, |welcome| Answer::Welcome(Box::new(welcome)))
                }
                (Request::Joined, Some(id)) => {
                    let answer = self.note_complete(id).map_or_else(Answer::Refused, |()| Answer::Noted);
                    channel.send(&answer)?;
                    return Ok(());
                }
                (Request::List, None) => self.cluster().map_or_else(Answer::Refused, |cluster| Answer::List(NodeList::of(&cluster))),
                (Request::Invite { valid_s }, None) => self.invite(valid_s).map_or_else(Answer::Refused, Answer::Invited),
                (Request::Unlist { number }, None) => self.unlist(number).map_or_else(Answer::Refused, Answer::List),
                (Request::Take(list), None) => self.take(&list).map_or_else(Answer::Refused, |()| Answer::Noted),
                (Request::Turn { id, by, valid_s }, None) => {
                    let taken = self.turn.lock().unwrap_or_else(PoisonError::into_inner).take(
                        &id,
                        &by,
                        Duration::from_secs(valid_s),
                        Instant::now(),
                    );
                    taken.map_or_else(Answer::Refused, |()| Answer::Noted)
                }
                (Request::Restart, None) => {
                    // Answer first: the process ends soon after it has been asked to restart.
                    let can = self.restart.check();
                    channel.send(&can.clone().map_or_else(Answer::Refused, |()| Answer::Noted))?;
                    if can.is_ok() {
                        self.restart.ask();
                    }
                    return Ok(());
                }
                (
                    Request::List
                    | Request::Restart
                    | Request::Turn { .. }
                    | Request::Invite { .. }
                    | Request::Unlist { .. }
                    | Request::Take(_),
                    Some(_),
                ) => Answer::Refused("an invitation is for joining, and for nothing else".into()),
                (Request::Join { .. } | Request::Joined, None) => Answer::Refused("joining needs an invitation".into()),
            };
            channel.send(&answer)?;
        }
    }

    /// The secret that the asker means.
    fn secret(&self, hello: &Hello, invitation: &mut Option<String>) -> Result<Vec<u8>, String> {
        if hello.version != VERSION {
            let Protocol { build, .. } = version::protocol();
            return Err(format!(
                "{} speaks version {} of the protocol between hosts, but {build} here speaks version {VERSION}: run the same build on both",
                shown(&hello.build),
                hello.version
            ));
        }
        match &hello.invitation {
            None => Ok(self.cluster()?.key().bytes().to_vec()),
            Some(id) => {
                let found = Invitation::find(&self.directory, id)?;
                found.check(None)?;
                *invitation = Some(id.clone());
                Ok(found.secret()?.to_vec())
            }
        }
    }

    /// Makes the newcomer a node of the cluster.
    fn welcome(&self, id: &str, address: SocketAddr, redis: Option<String>, theirs: &Protocol) -> Result<Welcome, String> {
        let ours = version::protocol();
        if !ours.suits(theirs) {
            return Err(format!(
                "the newcomer's build has protocol version {}, feature levels {}; this host runs {ours}: run the same build on both",
                theirs.version, theirs.levels
            ));
        }
        self.admit(id, address, redis)
    }

    fn admit(&self, id: &str, address: SocketAddr, redis: Option<String>) -> Result<Welcome, String> {
        let told = |error: Fail| error.to_string();
        let _changing = self.change().map_err(told)?;
        let cluster = self.cluster()?;
        let first = keeper(&cluster).number;
        if first != self.own.number {
            return Err(format!("the host of node {first} invites others now, since it keeps the list of nodes"));
        }
        let mut invitation = Invitation::find(&self.directory, id)?;
        invitation.check(Some(address))?;
        let number = match &invitation.taken {
            Some(taken) => taken.number,
            None => self.directory.free_number(&cluster).map_err(told)?,
        };
        let others = || cluster.config().nodes.iter().filter(|node| node.number != number);
        if let Some(other) = others().find(|node| node.meeting_point() == Some(address)) {
            return Err(format!("node {} already has the address {address}; choose another one with --listen", other.number));
        }
        let redis = redis.unwrap_or_else(|| {
            let own = cluster.config().nodes.iter().find(|node| node.number == self.own.number);
            own.and_then(NodeEntry::redis_host_port).map_or_else(String::new, |(_, port)| SocketAddr::new(address.ip(), port).to_string())
        });
        let entry = NodeEntry { redis, address: address.to_string(), ..NodeEntry::new(number) };
        let nodes = others().cloned().chain([entry.clone()]).collect();
        Directory::check_nodes(&cluster, nodes).map_err(told)?;
        // The number first: otherwise a node could be listed that is in no invitation, and that would never come.
        invitation.taken = Some(Taken { address, number, complete: false });
        invitation.write(&self.directory, id).map_err(told)?;
        let listed = cluster.config().nodes.contains(&entry);
        let cluster = if listed { cluster } else { self.directory.list_entry(&cluster, &entry).map_err(told)? };
        tracing::info!(node = number, %address, "a host joins");
        let mut own = self.directory.node_like_others(&cluster, number).map_err(told)?;
        own.answers_hosts = true;
        if let Some((host, _)) = entry.redis_host_port() {
            host.trim_start_matches('[').trim_end_matches(']').clone_into(&mut own.redis.listen);
        }
        let mut config = cluster.config().clone();
        (config.key, config.key_file) = (None, Some("cluster.key".into()));
        Ok(Welcome { number, cluster: config.to_toml(), key: cluster.key().to_hex(), node: own.to_toml() })
    }

    fn note_complete(&self, id: &str) -> Result<(), String> {
        let told = |error: Fail| error.to_string();
        let _changing = self.change().map_err(told)?;
        let mut invitation = Invitation::find(&self.directory, id)?;
        let Some(taken) = &mut invitation.taken else { return Err("no host has taken the invitation".into()) };
        taken.complete = true;
        invitation.write(&self.directory, id).map_err(told)
    }

    /// Keeps this host's list of nodes equal to that of the host that keeps the list.
    fn follow_the_list(&self) {
        let mut said = String::new();
        loop {
            let followed = self.follow_once();
            let why = followed.err().unwrap_or_default();
            if why != said && !why.is_empty() {
                tracing::warn!("the list of the cluster's nodes could not be updated: {why}");
            }
            said = why;
            thread::sleep(LIST_EVERY);
        }
    }

    fn follow_once(&self) -> Result<(), String> {
        match list::newer(&self.cluster()?, self.own.number, LIST_PATIENCE)? {
            Some(list) => self.take(&list),
            None => Ok(()),
        }
    }

    /// Takes the list, if it is newer. A node that is no longer on it ends.
    fn take(&self, list: &NodeList) -> Result<(), String> {
        let numbers: Vec<u16> = list.nodes.iter().map(|node| node.number).collect();
        {
            let _changing = self.change().map_err(|error| error.to_string())?;
            if !list::take(&self.directory, list)? {
                return Ok(());
            }
        }
        tracing::info!(?numbers, "the cluster's nodes have changed");
        match Own::in_list(list, &self.own) {
            Own::Listed => {}
            Own::Elsewhere(address) => tracing::warn!(
                "node {} has the address {address} in the newest list of nodes, but this node has {}: another host has taken its number",
                self.own.number,
                self.own.address
            ),
            Own::Removed => {
                tracing::warn!(
                    "node {} has been removed from the cluster, whose nodes are now {numbers:?}, so it ends. To come back, its host has to join again",
                    self.own.number
                );
                self.restart.end();
            }
        }
        Ok(())
    }

    /// Gives an invitation at the request of another host.
    fn invite(&self, valid_s: u64) -> Result<String, String> {
        let told = |error: Fail| error.to_string();
        let token = invitation::invite(&self.directory, &self.cluster()?, self.own.number, Duration::from_secs(valid_s)).map_err(told)?;
        Ok(token.to_string())
    }

    fn unlist(&self, number: u16) -> Result<NodeList, String> {
        let told = |error: Fail| error.to_string();
        let _changing = self.change().map_err(told)?;
        let cluster = self.cluster()?;
        let first = keeper(&cluster).number;
        if first != self.own.number || number == first {
            return Err(format!("the host of node {first} keeps the list of nodes now, and this is the host of node {}", self.own.number));
        }
        tracing::info!(node = number, "a node has been removed from the cluster");
        self.directory.unlist_node(&cluster, number).map(|cluster| NodeList::of(&cluster)).map_err(told)
    }
}

/// Makes what a stranger has sent fit for a message.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}
