//! What a newcomer asks the host that keeps the list.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use martlet_node::config::{ClusterConfig, Key, NodeConfig};
use martlet_node::version;
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::{Answer, Request, TalkError, Token, hex};
use crate::fail::{Fail, Outcome};

/// What a newcomer is given.
#[derive(Serialize, Deserialize)]
pub struct Welcome {
    /// Its number.
    pub number: u16,
    pub(super) cluster: String,
    pub(super) key: String,
    pub(super) node: String,
}

impl std::fmt::Debug for Welcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Welcome(node {})", self.number)
    }
}

impl Welcome {
    /// The cluster's file, its key, and the newcomer's own file.
    ///
    /// # Errors
    /// When what was given is not valid.
    pub fn files(&self) -> Outcome<(ClusterConfig, Key, NodeConfig)> {
        let senseless = |what: &str, why: &str| Fail::failed(format_args!("the host sent {what} that makes no sense: {why}"));
        let cluster = ClusterConfig::from_toml(&self.cluster).map_err(|why| senseless("a cluster's file", &why))?;
        let node = NodeConfig::from_toml(&self.node).map_err(|why| senseless("a node's file", &why))?;
        let key = hex::decode(&self.key).map(Key::new).ok_or_else(|| senseless("a key", "it is not 64 hexadecimal digits"))?;
        Ok((cluster, key, node))
    }
}

/// A newcomer's conversation with the host that has invited it.
#[derive(Debug)]
pub struct Joining {
    channel: Channel,
    at: SocketAddr,
    from: IpAddr,
}

impl Joining {
    /// Connects to the host that has given the token.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses the token.
    pub fn begin(token: &Token, patience: Duration) -> Outcome<Joining> {
        let build = version::protocol().build;
        let channel =
            Channel::ask(token.at, Some(&token.invitation), &token.secret, &build, patience).map_err(|error| failed(token.at, &error))?;
        let from = channel.local_ip().map_err(|error| failed(token.at, &error.into()))?;
        Ok(Joining { channel, at: token.at, from })
    }

    /// The address from which this host reaches the other one.
    pub fn own_ip(&self) -> IpAddr {
        self.from
    }

    /// Asks to become a node that the others reach at `address` and clients at `redis`.
    /// If `redis` is `None`, clients reach it at that address, on the port that the asked host uses for its own node.
    ///
    /// # Errors
    /// When it refuses.
    pub fn join(&mut self, address: SocketAddr, redis: Option<String>) -> Outcome<Welcome> {
        let ours = version::protocol();
        let join = Request::Join { address, redis, version: ours.version, least_level: ours.levels.least, most_level: ours.levels.most };
        match self.ask(&join)? {
            Answer::Welcome(welcome) => Ok(*welcome),
            other => Err(failed(self.at, &unexpected(other))),
        }
    }

    /// Says that everything has arrived and been written: from now on the token is useless.
    ///
    /// # Errors
    /// When the other host does not hear this.
    pub fn complete(mut self) -> Outcome {
        match self.ask(&Request::Joined)? {
            Answer::Noted => Ok(()),
            other => Err(failed(self.at, &unexpected(other))),
        }
    }

    fn ask(&mut self, request: &Request) -> Outcome<Answer> {
        self.channel.send(request).and_then(|()| self.channel.receive()).map_err(|error| failed(self.at, &error))
    }
}

fn failed(at: SocketAddr, error: &TalkError) -> Fail {
    match error {
        TalkError::Broken(error) => Fail::failed(format_args!(
            "the host that gave the token cannot be reached at {at}: {error}. Is its node running, and does TCP to port {} pass the firewalls between here and there?",
            at.port()
        )),
        TalkError::Refused(why) => Fail::failed(format_args!("the host at {at} refuses: {why}")),
        error => Fail::failed(format_args!("the host at {at}: {error}")),
    }
}

pub(super) fn unexpected(answer: Answer) -> TalkError {
    match answer {
        Answer::Refused(why) => TalkError::Refused(why),
        Answer::Welcome(_) | Answer::Noted | Answer::List(_) | Answer::Invited(_) => {
            TalkError::Senseless("an answer to another question".into())
        }
    }
}
