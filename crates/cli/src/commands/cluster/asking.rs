//! Asking a node of the cluster for something, by its Redis port, as an operator's client would.

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_node::config::{Cluster, Settings};

/// Where a node serves the Redis protocol.
pub fn address<'a>(cluster: &'a Cluster, node: u16, doing: &str) -> Outcome<&'a str> {
    let entry = cluster.config().nodes.iter().find(|entry| entry.number == node).filter(|entry| !entry.redis.is_empty());
    entry
        .map(|entry| entry.redis.as_str())
        .ok_or_else(|| Fail::failed(format_args!("{doing}: node {node} does not serve the Redis protocol")))
}

/// Sends a request to a node, and says what it answered where that is an error.
pub fn ask(directory: &Directory, cluster: &Cluster, node: u16, request: &[&[u8]], doing: &str, patience: Duration) -> Outcome {
    answer(directory, cluster, node, request, doing, patience).map(drop)
}

/// What a node answers, where that is no error.
pub fn answer(directory: &Directory, cluster: &Cluster, node: u16, request: &[&[u8]], doing: &str, patience: Duration) -> Outcome<Value> {
    let server = address(cluster, node, doing)?.to_socket_addrs().context(doing)?.next().ok_or_else(|| Fail::failed(doing))?;
    let mut connection = Connection::open(server, patience).context(doing)?;
    // The file of a node of another host is there; this host's has the same password, where it was made like the others'.
    let file = [node].into_iter().chain(directory.nodes_here(cluster)).map(|number| directory.node_file(number)).find(|file| file.exists());
    let settings = Settings::load(&file.unwrap_or_else(|| directory.node_file(node))).map_err(Fail::failed)?;
    if let Some(password) = &settings.node().redis.requirepass {
        said(connection.command(&[b"AUTH", password.0.as_bytes()]).context(doing)?, doing)?;
    }
    said(connection.command(request).context(doing)?, doing)
}

fn said(reply: Value, doing: &str) -> Outcome<Value> {
    match reply {
        Value::Error(text) => Err(Fail::failed(format_args!("{doing}: {text}"))),
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_whom_was_asked_and_what_it_said() {
        let refused = said(Value::Error("ERR no such replica holds the state".into()), "cannot ask node 0, which leads");
        let text = refused.expect_err("an error").to_string();
        assert_eq!(text, "cannot ask node 0, which leads: ERR no such replica holds the state");
        assert!(said(Value::Simple("OK".into()), "").is_ok());
    }
}
