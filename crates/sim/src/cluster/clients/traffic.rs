//! What travels between clients and processes. A message may be late or sent again, but is lost only together with the process.

use crate::cluster::engine::Engine;
use crate::cluster::life::{Cluster, Due};
use crate::cluster::node::server::{Reply, Request};
use crate::linearizability::kv::Output;

/// Something on its way between a client and a process.
#[derive(Debug)]
pub enum Message {
    Request { process: usize, request: Request },
    Reply(Reply),
}

impl<E: Engine, const HOST: bool> Cluster<E, HOST> {
    pub(in crate::cluster) fn send(&mut self, message: Message) {
        let client = match &message {
            Message::Request { request, .. } => request.client,
            Message::Reply(reply) => reply.client,
        };
        let slot = self.free_messages.pop().unwrap_or_else(|| {
            self.messages.push(None);
            self.messages.len() - 1
        });
        self.messages[slot] = Some(message);
        let at = self.world.now() + self.clients[client].chance().u64(100..5_000);
        self.enter(at, Due::Arrive { slot });
    }

    pub(in crate::cluster) fn arrive(&mut self, slot: usize) {
        self.free_messages.push(slot);
        match self.messages[slot].take().expect("on its way") {
            Message::Request { process, request } => {
                if let Some(node) = &mut self.nodes[process] {
                    node.server.inbox.push_back(request);
                    self.world.wake(process);
                }
            }
            Message::Reply(Reply { client, number, result, .. }) => match result {
                Ok(output) => self.take(client, number, output),
                Err(leader) => {
                    let nodes = self.settings.nodes;
                    let chance = self.clients[client].chance();
                    let target = match leader {
                        Some(leader) if chance.u8(..8) != 0 => leader.node.0,
                        _ => chance.u16(..nodes),
                    };
                    let at = self.world.now() + chance.u64(500..10_000);
                    self.clients[client].target = target;
                    self.enter(at, Due::Send { client, number });
                }
            },
        }
    }

    fn take(&mut self, client: usize, number: u64, output: Output) {
        let is_write = !matches!(output, Output::Value(_));
        if let Some(operation) = self.clients[client].take(self.world.now(), number, output) {
            if is_write {
                self.oracles.acknowledged.note(client as u64, number);
            }
            self.history.push((number, operation));
            self.replies += 1;
            self.call_later(client);
        }
    }

    fn call_later(&mut self, client: usize) {
        let span = self.settings.think;
        let at = self.world.now() + self.clients[client].chance().u64(span.0..=span.1.max(span.0));
        self.enter(at, Due::Call { client });
    }

    pub(in crate::cluster) fn call(&mut self, client: usize) {
        let now = self.world.now();
        let done = self.closing || self.requests >= self.settings.most_requests;
        if self.clients[client].is_waiting() || (done && self.clients[client].wanted.is_empty()) {
            return;
        }
        self.values += 1;
        self.requests += 1;
        self.clients[client].call(now, self.values);
        let number = self.clients[client].number();
        self.enter(now + self.settings.patience_ns, Due::GiveUp { client, number });
        self.enter(now + self.settings.resend_ns, Due::Resend { client, number });
        self.send_request(client, number);
    }

    /// Sends a client's open request, if it is still open, to the node that the client takes for the leader.
    pub(in crate::cluster) fn send_request(&mut self, client: usize, number: u64) {
        let Some(request) = self.clients[client].request().filter(|r| r.number == number).cloned() else { return };
        let target = self.clients[client].target;
        match self.current[usize::from(target)] {
            Some(process) => self.send(Message::Request { process, request }),
            None => {
                let nodes = self.settings.nodes;
                let chance = self.clients[client].chance();
                let (target, later) = (chance.u16(..nodes), chance.u64(500..10_000));
                self.clients[client].target = target;
                self.enter(self.world.now() + later, Due::Send { client, number });
            }
        }
    }

    /// There is no reply yet: sends the same request once more, to any node. The first copy may still be on its way, or may have been executed.
    pub(in crate::cluster) fn resend(&mut self, client: usize, number: u64) {
        if self.clients[client].request().is_none_or(|request| request.number != number) {
            return;
        }
        self.clients[client].target = {
            let nodes = self.settings.nodes;
            self.clients[client].chance().u16(..nodes)
        };
        self.send_request(client, number);
        self.enter(self.world.now() + self.settings.resend_ns, Due::Resend { client, number });
    }

    pub(in crate::cluster) fn give_up(&mut self, client: usize, number: u64) {
        if let Some(operation) = self.clients[client].give_up(number) {
            self.history.push((number, operation));
            let nodes = self.settings.nodes;
            self.clients[client].target = self.clients[client].chance().u16(..nodes);
            self.call_later(client);
        }
    }
}
