//! The clients of workloads: how they reach the store, and how their threads are scheduled.

use std::time::Duration;

use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::fail::{Context as _, Outcome};
use martlet_kv::client::{UNCERTAIN, Value};
use martlet_node::config::{Cluster, Idle, Priority};
use martlet_node::sched;
use martlet_sim::linearizability::kv::{Action, Bytes, Input, Output};

use super::caller::{AnyCaller, Caller, Reply};
use super::redis::ClusterClient;

/// How a client reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Requests written into the nodes' memory.
    Fabric,
    /// The Redis protocol on TCP.
    Redis,
}

/// How long a workload's client waits for a reply before it counts the request as one without.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a cluster's nodes serve the Redis protocol.
pub fn redis_addresses(cluster: &Cluster) -> Vec<&str> {
    cluster.config().nodes.iter().map(|node| node.redis.as_str()).filter(|address| !address.is_empty()).collect()
}

/// So many clients of a cluster.
pub fn open(cluster: &Cluster, count: u16, via: Via) -> Outcome<Vec<AnyCaller>> {
    let one = || -> Outcome<AnyCaller> {
        Ok(match via {
            Via::Fabric => Box::new(FabricClient::open(cluster, Waiting::PATIENT, PATIENCE)?),
            Via::Redis => Box::new(ClusterClient::new(&redis_addresses(cluster), PATIENCE).context("cannot resolve the nodes' addresses")?),
        })
    };
    (0..count).map(|_| one()).collect()
}

/// Gives the calling thread a short time slice, as nodes have it: a client that is woken then gets a core soon, whatever else runs here.
/// Returns how it is scheduled from now on, for a report.
pub fn hurry() -> Outcome<String> {
    sched::place_current_thread(None, Priority::Slice, Idle::Park)
        .map(|placement| placement.to_string())
        .context("cannot place a client's thread")
}

/// While this lives, the calling thread comes before ordinary ones whenever it has something to do, where that is allowed; then it is as [`hurry`] left it. For a client that sleeps
/// while it waits, beside nodes that come first as well: on a host of its own it would wait for none of their helpers.
#[derive(Debug)]
pub struct Foremost {
    /// A thread's class is its own.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Foremost {
    /// From here on.
    pub fn begin() -> Foremost {
        martlet_fabric::host::process::come_first();
        Foremost { _not_send: std::marker::PhantomData }
    }
}

impl Drop for Foremost {
    fn drop(&mut self) {
        // It could be had before.
        let _ = hurry();
    }
}

impl Caller for FabricClient {
    fn call(&mut self, input: &Input) -> Reply {
        let key: &[u8] = &input.key.0;
        let number;
        let args: &[&[u8]] = match &input.action {
            Action::Get => &[b"GET", key],
            Action::Put(value) => &[b"SET", key, &value.0],
            Action::Delete => &[b"DEL", key],
            Action::CompareAndSwap { expected: Some(expected), new } => &[b"CAS", key, b"=", &expected.0, &new.0],
            Action::CompareAndSwap { expected: None, new } => &[b"CAS", key, b"NX", &new.0],
            Action::Add(by) => {
                number = by.to_string();
                &[b"INCRBY", key, number.as_bytes()]
            }
            Action::Append(more) => &[b"APPEND", key, &more.0],
        };
        match self.request(args, |answer| output(&input.action, answer.reply)) {
            Ok(Some(reply)) => reply,
            Ok(None) => Reply::Unknown,
            // It was given up, and why is known; a node may have it all the same.
            Err(_) if self.was_sent() => Reply::Unknown,
            Err(refused) => Reply::Refused(refused.to_string()),
        }
    }
}

fn output(action: &Action, reply: &[u8]) -> Reply {
    match (action, Value::parse(reply)) {
        (Action::Get, Some(Value::Null)) => Reply::Output(Output::Value(None)),
        (Action::Get, Some(Value::Bulk(held))) => Reply::Output(Output::Value(Some(Bytes::from(held)))),
        (Action::Put(_), Some(Value::Simple(_))) => Reply::Output(Output::Done),
        (Action::Delete | Action::CompareAndSwap { .. }, Some(Value::Int(n))) => Reply::Output(Output::Changed(n != 0)),
        (Action::Add(_), Some(Value::Int(n))) => Reply::Output(Output::Number(n)),
        (Action::Append(_), Some(Value::Int(n))) => Reply::Output(Output::Length(n as u64)),
        (Action::Add(_), Some(Value::Error(text))) if text.windows(7).any(|part| part == b"integer") => Reply::Output(Output::Refused),
        (_, Some(Value::Error(text))) if text.split(|byte| *byte == b' ').next() == Some(UNCERTAIN.as_bytes()) => Reply::Unknown,
        // A wrong kind of reply must not pass for a right one: no model returns it.
        _ => Reply::Refused(format!("an unfit reply: {}", reply.escape_ascii())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store is not blamed for what it never denied: an error that leaves open what has happened is no refusal.
    #[test]
    fn only_a_refusal_says_that_nothing_has_happened() {
        let put = Action::Put("v".into());
        assert_eq!(output(&put, b"+OK\r\n"), Reply::Output(Output::Done));
        assert_eq!(output(&put, format!("-{UNCERTAIN} your session ended\r\n").as_bytes()), Reply::Unknown);
        assert!(matches!(output(&put, b"-OOM no memory\r\n"), Reply::Refused(_)));
        assert!(matches!(output(&put, format!("-{UNCERTAIN}LY what\r\n").as_bytes()), Reply::Refused(_)));
    }
}
