//! Clusters for tests in this process, and a machine to replicate.

use martlet::config::{Cluster, ThreadsConfig};
use martlet::{LogIndex, StateMachine};

use crate::config::config;

pub fn cluster(name: &str, count: u16) -> Cluster {
    Cluster::new(config(name, count)).expect("a good configuration")
}

/// Several replicas share this process and its cores with other tests.
pub fn threads() -> ThreadsConfig {
    ThreadsConfig { pin: martlet::config::Pin::None, ..ThreadsConfig::default() }
}

/// Appends each command, and replies with how long the whole is.
#[derive(Default)]
pub struct Text(pub Vec<u8>);

impl StateMachine for Text {
    fn apply(&mut self, _: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        assert_ne!(command, b"panic", "as it was told");
        self.0.extend_from_slice(command);
        reply.extend_from_slice(self.0.len().to_string().as_bytes());
    }
    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(query);
        reply.extend_from_slice(&self.0);
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn restore(&mut self, snapshot: &[u8]) {
        self.0 = snapshot.to_vec();
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}
