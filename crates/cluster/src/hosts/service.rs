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
/// How often a host asks whose node has started before another host has answered. It may have been removed.
const UNHEARD_EVERY: Duration = Duration::from_secs(1);
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
    /// Begins to answer, and to ask for the list of nodes: once before this returns, so that a node that has been removed does not join.
    ///
    /// # Errors
    /// When the node's files are not those of a host, the address cannot be listened on, or the node has been removed.
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
        let (answering, listing) = (service.clone(), service.clone());
        // Hosts that start at the same time answer each other.
        begin("martlet-hosts", Box::new(move || answering.listen(&listener)))?;
        let is_heard = service.begin_to_follow()?;
        begin("martlet-list", Box::new(move || listing.follow_the_list(is_heard)))?;
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

    /// Asks for the list before the node starts. Returns whether any other host has answered.
    ///
    /// # Errors
    /// When the node has been removed.
    fn begin_to_follow(&self) -> Outcome<bool> {
        let cluster = self.directory.existing_cluster()?;
        let Some(list) = list::heard(&cluster, self.own.number) else { return Ok(cluster.config().nodes.len() == 1) };
        if list.number > cluster.config().list && !list.has(self.own.number) {
            // The command that has started this process may have the lock. The list is then written at the next start.
            let _ = self.change().map(|_changing| list::take(&self.directory, &list));
            return Err(list::removed(&self.directory, self.own.number, &list));
        }
        Ok(true)
    }

    /// Keeps this host's list of nodes equal to that of the host that keeps the list. `is_heard`: whether another host has answered before.
    fn follow_the_list(&self, mut is_heard: bool) {
        while !is_heard {
            thread::sleep(UNHEARD_EVERY);
            let list = self.cluster().ok().and_then(|cluster| list::heard(&cluster, self.own.number));
            // What cannot be written now is asked for again below.
            is_heard = list.is_some_and(|list| self.take(&list).is_ok());
        }
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

    /// Takes the list, if it is newer. A node that is no longer on it ends, even while another command keeps the list from being written.
    fn take(&self, list: &NodeList) -> Result<(), String> {
        if list.number <= self.cluster()?.config().list {
            return Ok(());
        }
        let numbers = list.numbers();
        let written = self.change().map_err(|error| error.to_string()).and_then(|_changing| list::take(&self.directory, list));
        let own = Own::in_list(list, &self.own);
        if own != Own::Removed && !written? {
            return Ok(());
        }
        tracing::info!(?numbers, "the cluster's nodes have changed");
        match own {
            Own::Listed => {}
            Own::Elsewhere(address) => tracing::warn!(
                "node {} has the address {address} in the newest list of nodes, but this node has {}: another host has taken its number",
                self.own.number,
                self.own.address
            ),
            Own::Removed => {
                tracing::warn!(
                    "node {} has been removed from the cluster, whose nodes are now {numbers:?}, so it ends. {}",
                    self.own.number,
                    list::join_again(&self.directory)
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

#[cfg(test)]
mod tests {
    use martlet_node::config::FabricKind;
    use martlet_node::stop::Stop;

    use super::super::restart::Successor;
    use super::*;
    use crate::directory::{FabricPlan, Plan};
    use crate::scratch::Scratch;

    /// The directory of a host whose node is that one, of three.
    fn host(scratch: &Scratch, name: &str, own: u16) -> (Directory, Service) {
        let (directory, service) = all_here(scratch, name, own);
        for node in (0..3).filter(|node| *node != own) {
            std::fs::remove_file(directory.node_file(node)).expect("it was there");
        }
        let file = std::fs::read_to_string(directory.node_file(own)).expect("there");
        std::fs::write(directory.node_file(own), format!("answers_hosts = true\n{file}")).expect("written");
        (directory, service)
    }

    /// The directory of a cluster whose three nodes are all started from there.
    fn all_here(scratch: &Scratch, name: &str, own: u16) -> (Directory, Service) {
        let directory = Directory::new(&scratch.path().join(name));
        std::fs::create_dir(directory.path()).expect("made");
        let fabric = FabricPlan { port: Some(7600), ..FabricPlan::new(FabricKind::between_ordinary_hosts()) };
        let mut cluster = directory.create(&Plan { fabric, redis_port: Some(7711), ..Plan::new("shop", 3) }).expect("made");
        // Loopback addresses that no other process uses.
        let [.., a, b] = std::process::id().to_be_bytes();
        for number in 0..3 {
            let mut entry = cluster.config().nodes.iter().find(|node| node.number == number).expect("listed").clone();
            entry.address = format!("127.{}.{b}.{}:{}", a | 64, number + 1, 7600 + 2 * number);
            cluster = directory.list_entry(&cluster, &entry).expect("changed");
        }
        let entry = cluster.config().nodes.iter().find(|node| node.number == own).expect("listed").clone();
        let stop = Stop::new().expect("a handle");
        let restart = Successor::prepare(&stop).expect("a thread").handle();
        let service = Service { directory: directory.clone(), own: entry, restart, changing: Arc::default(), turn: Arc::default() };
        (directory, service)
    }

    #[test]
    fn a_node_that_has_been_removed_finds_out_before_it_starts_and_ends_whoever_has_the_lock() {
        let scratch = Scratch::new("removed").expect("a directory");
        let (lost, returned) = host(&scratch, "lost", 0);
        let (other, answers) = host(&scratch, "other", 1);
        // The two have one key.
        std::fs::copy(lost.path().join("cluster.key"), other.path().join("cluster.key")).expect("copied");
        let cluster = |directory: &Directory| directory.existing_cluster().expect("there");
        let lock = lost.lock().expect("nobody else has it");
        let same = list::before_start(&lost, &cluster(&lost), 0, &lock).expect("no other host is reached");
        assert_eq!(same.config(), cluster(&lost).config());
        assert!(!returned.begin_to_follow().expect("it starts"), "nobody was heard");

        let at = answers_at(&answers.own).expect("an address");
        let listener = TcpListener::bind(at).expect("a free port");
        thread::spawn(move || answers.listen(&listener));
        assert!(returned.begin_to_follow().expect("it is listed"), "one was heard");
        let without = other.unlist_node(&cluster(&other), 0).expect("removed");

        // The command that starts the node has the lock.
        let why = returned.begin_to_follow().expect_err("removed").to_string();
        assert!(why.starts_with("node 0 has been removed from the cluster, whose nodes are now [1, 2], so it does not start. "), "{why}");
        assert!(why.contains("`martlet cluster down --purge --dir ") && why.contains("`martlet host join` with a token"), "{why}");
        assert!(returned.take(&NodeList::of(&without)).is_ok(), "it ends although it cannot write the list");
        let ends = returned.restart.check().expect_err("it ends");
        assert!(ends.contains("about to end"), "{ends}");
        assert_eq!(cluster(&lost).config().nodes.len(), 3, "not written so far");
        let why = list::before_start(&lost, &cluster(&lost), 0, &lock).expect_err("removed").to_string();
        assert!(why.contains("has been removed from the cluster"), "{why}");
        assert_eq!(cluster(&lost).config().nodes, without.config().nodes, "the list is written");
        let why = list::before_start(&lost, &cluster(&lost), 0, &lock).expect_err("still removed").to_string();
        assert!(why.contains("has been removed from the cluster"), "{why}");
    }

    #[test]
    fn a_command_knows_the_hosts_that_have_just_joined() {
        let scratch = Scratch::new("joined").expect("a directory");
        let (here, _) = host(&scratch, "here", 1);
        let (elsewhere, _) = all_here(&scratch, "elsewhere", 1);
        let (first, answers) = host(&scratch, "first", 0);
        std::fs::copy(here.path().join("cluster.key"), first.path().join("cluster.key")).expect("copied");
        let cluster = |directory: &Directory| directory.existing_cluster().expect("there");
        let numbers = |cluster: &Cluster| NodeList::of(cluster).numbers();
        let fourth = NodeEntry { address: "127.0.0.1:7700".into(), redis: "127.0.0.1:7702".into(), ..NodeEntry::new(3) };
        first.list_entry(&cluster(&first), &fourth).expect("it joins");
        let asked = |lock| list::up_to_date(&here, &cluster(&here), lock).expect("valid");
        assert_eq!(numbers(&asked(None)), [0, 1, 2], "no other host answers");

        let listener = TcpListener::bind(answers_at(&answers.own).expect("an address")).expect("a free port");
        thread::spawn(move || answers.listen(&listener));
        assert_eq!(list::own(&elsewhere, &cluster(&elsewhere)), None, "it is no host's");
        assert_eq!(list::own(&here, &cluster(&here)), Some(1));
        let lock = here.lock().expect("nobody else has it");
        assert_eq!((numbers(&asked(None)), numbers(&cluster(&here))), (vec![0, 1, 2, 3], vec![0, 1, 2]), "to look changes nothing");
        assert_eq!((numbers(&asked(Some(&lock))), numbers(&cluster(&here))), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
    }
}
