//! What a simulated node serves: requests in, replies out when they may go.

use std::collections::VecDeque;

use martlet_protocol::basics::{LogIndex, ProcessId};
use martlet_protocol::engine::PrimaryBackup;
use martlet_protocol::replica::{Standing, Ticket};

use super::machine::Machine;
use crate::linearizability::kv::{Action, Output};

/// A client's request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks.
    pub client: usize,
    /// Which of its requests.
    pub number: u64,
    /// The key.
    pub key: u64,
    /// What to do with it.
    pub action: Action,
}

/// What a node says to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Who asked.
    pub client: usize,
    /// Which of its requests.
    pub number: u64,
    /// The result, or who leads, as far as the node knows: then it has done nothing.
    pub result: Result<Output, Option<ProcessId>>,
}

/// Requests and replies of one life.
#[derive(Debug, Default)]
pub struct Server {
    /// Requests that have arrived.
    pub inbox: VecDeque<Request>,
    /// Replies that go out.
    pub outbox: Vec<Reply>,
    waiting: VecDeque<(Ticket, Reply)>,
    reign: u64,
    effects: Vec<u8>,
}

impl Server {
    /// Takes requests and executes them.
    pub fn poll(&mut self, engine: &mut PrimaryBackup, machine: &mut Machine) {
        self.note_reign(engine);
        while let Some(request) = self.inbox.front() {
            let Request { client, number, .. } = *request;
            match engine.standing() {
                Standing::Primary => {
                    if !engine.has_room(4096) {
                        return;
                    }
                    self.effects.clear();
                    let output = machine.execute(request.key, &request.action, &mut self.effects);
                    if !self.effects.is_empty() {
                        let index = engine.propose(&self.effects);
                        assert!(index > LogIndex(0));
                    }
                    self.waiting.push_back((engine.ticket(), Reply { client, number, result: Ok(output) }));
                }
                Standing::Backup { primary } => self.outbox.push(Reply { client, number, result: Err(primary) }),
                Standing::Excluded => self.outbox.push(Reply { client, number, result: Err(None) }),
            }
            self.inbox.pop_front();
        }
    }

    /// Sends what has been released.
    pub fn release(&mut self, engine: &PrimaryBackup) {
        self.note_reign(engine);
        while self.waiting.front().is_some_and(|(ticket, _)| *ticket <= engine.released()) {
            let (_, reply) = self.waiting.pop_front().expect("checked");
            self.outbox.push(reply);
        }
    }

    /// Replies of an earlier reign say what may never have been: their clients hear nothing.
    fn note_reign(&mut self, engine: &PrimaryBackup) {
        if self.reign != engine.reign() {
            self.reign = engine.reign();
            self.waiting.clear();
        }
    }
}
