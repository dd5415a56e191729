//! What a simulated node serves: it takes requests, and replies when the replies may be sent.

use std::collections::VecDeque;

use martlet_protocol::basics::{LogIndex, ProcessId};
use martlet_protocol::replica::{Application, Execution, Replica, Standing, Ticket};

use super::machine::{MOST_EFFECTS, Machine};
use crate::canaries::Careless;
use crate::linearizability::kv::{Action, Output};

/// A client's request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client that asks.
    pub client: usize,
    /// Which of its requests.
    pub number: u64,
    /// The key.
    pub key: u64,
    /// What to do with it.
    pub action: Action,
    /// A read that is answered only after a majority has been asked.
    pub by_quorum: bool,
}

/// A node's reply to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The client that asked.
    pub client: usize,
    /// Which of its requests.
    pub number: u64,
    /// The result. If the node has not executed the request: the leader, as far as the node knows it.
    pub result: Result<Output, Option<ProcessId>>,
    /// For a write that this node has proposed itself: where, and under which fencing token.
    pub proposed: Option<(LogIndex, u64)>,
}

/// A reply that waits for its ticket.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    by_quorum: bool,
    reply: Reply,
    /// Where a leader executes on commit: what to ask the machine once the ticket is released.
    asks: Option<Asks>,
}

/// What the machine is asked once everything proposed before has been applied.
#[derive(Debug)]
enum Asks {
    /// What a key holds.
    Key(u64),
    /// The outcome of the client's write.
    Write,
}

/// The requests and replies of one life of a node.
#[derive(Debug, Default)]
pub struct Server {
    /// Requests that have arrived.
    pub inbox: VecDeque<Request>,
    /// How often a request had to wait because the log was full.
    pub refused: u64,
    /// Replies that are to be sent.
    pub outbox: Vec<Reply>,
    /// It never asks whether there is room in the log.
    pub heedless: bool,
    waiting: VecDeque<Waiting>,
    reign: u64,
    effects: Vec<u8>,
}

impl Application for Server {
    type Machine = Machine;

    const ON_COMMIT: bool = true;

    /// Takes requests and executes them, each write once (TRAPS 19). A write that has been executed before gets the same reply again. A request is dropped if
    /// its client has moved on to a later one.
    fn poll<R: Replica<Machine = Machine>>(&mut self, replica: &mut R) -> usize {
        self.note_reign(replica);
        let mut taken = 0;
        while let Some(request) = self.inbox.front() {
            let Request { client, number, by_quorum, .. } = *request;
            match replica.standing() {
                Standing::Primary => {
                    if !self.heedless && !replica.has_room(MOST_EFFECTS) {
                        self.refused += 1;
                        return taken;
                    }
                    let newest = replica.machine().session(client as u64).filter(|(newest, _)| number <= *newest);
                    let on_commit = replica.execution() == Execution::Committed;
                    if on_commit && newest.is_none() && !Careless::ProposedTwice.is_planted() {
                        // The outcome of the write under way decides what the session will say about this request.
                        match self.waiting.iter().find(|w| w.reply.client == client && matches!(w.asks, Some(Asks::Write))) {
                            Some(same) if same.reply.number == number => {
                                self.inbox.pop_front();
                                taken += 1;
                                continue;
                            }
                            Some(_) => return taken,
                            None => {}
                        }
                    }
                    let (mut proposed, mut asks) = (None, None);
                    let output = match newest {
                        Some((newest, output)) => (newest == number).then_some(output),
                        None if on_commit && matches!(request.action, Action::Get) => {
                            asks = Some(Asks::Key(request.key));
                            Some(Output::Done)
                        }
                        None if on_commit => {
                            self.effects.clear();
                            Machine::encode_request((client as u64, number), request.key, &request.action, &mut self.effects);
                            let index = replica.propose(&self.effects).expect("it is primary, and had room");
                            proposed = Some((index, replica.fencing_token().expect("it is primary")));
                            asks = Some(Asks::Write);
                            Some(Output::Done)
                        }
                        None => {
                            self.effects.clear();
                            let (id, key) = ((client as u64, number), request.key);
                            let output = replica.machine_mut().execute(id, key, &request.action, &mut self.effects);
                            if !self.effects.is_empty() {
                                let index = replica.propose(&self.effects).expect("it is primary, and had room");
                                assert!(index > LogIndex(0));
                                replica.machine_mut().note_proposed(index, &self.effects);
                                proposed = Some((index, replica.fencing_token().expect("it is primary")));
                            }
                            Some(output)
                        }
                    };
                    if let Some(output) = output {
                        let ticket = if by_quorum { replica.ticket_by_quorum() } else { replica.ticket() };
                        self.waiting.push_back(Waiting {
                            ticket,
                            by_quorum,
                            reply: Reply { client, number, result: Ok(output), proposed },
                            asks,
                        });
                    }
                }
                Standing::Backup { primary } => self.outbox.push(Reply { client, number, result: Err(primary), proposed: None }),
                Standing::Excluded => self.outbox.push(Reply { client, number, result: Err(None), proposed: None }),
            }
            self.inbox.pop_front();
            taken += 1;
        }
        taken
    }

    /// Sends the replies that have been released.
    fn release<R: Replica<Machine = Machine>>(&mut self, replica: &mut R) -> usize {
        self.note_reign(replica);
        let (released, by_quorum) = (replica.released(), replica.released_by_quorum());
        let released = |waiting: &Waiting| waiting.ticket <= if waiting.by_quorum { by_quorum } else { released };
        let mut sent = 0;
        while self.waiting.front().is_some_and(released) {
            let Waiting { mut reply, asks, .. } = self.waiting.pop_front().expect("checked");
            match asks {
                Some(Asks::Key(key)) => {
                    let request = (reply.client as u64, reply.number);
                    reply.result = Ok(replica.machine_mut().execute(request, key, &Action::Get, &mut Vec::new()));
                }
                Some(Asks::Write) => {
                    let newest = replica.machine().session(reply.client as u64).filter(|(newest, _)| *newest == reply.number);
                    let (_, output) = newest.expect("its ticket was released, so it has been applied, and its client's next waits for it");
                    reply.result = Ok(output);
                }
                None => {}
            }
            self.outbox.push(reply);
            sent += 1;
        }
        sent
    }
}

impl Server {
    /// How many requests and replies wait here.
    pub fn held(&self) -> usize {
        self.inbox.len() + self.outbox.len() + self.waiting.len()
    }

    /// Replies of an earlier reign may report what never came to be, so their clients hear nothing.
    fn note_reign<R: Replica>(&mut self, replica: &R) {
        if self.reign != replica.reign() {
            self.reign = replica.reign();
            self.waiting.clear();
        }
    }
}
