//! Simulated clients. Each has one request open at a time, and remembers everything.

pub mod traffic;

use fastrand::Rng;

use super::node::machine::shown;
use super::node::server::Request;
use crate::linearizability::kv::{Action, Bytes, Input, Output};
use crate::linearizability::{Operation, Outcome};

/// A request that waits for its reply.
#[derive(Clone, Debug)]
struct Open {
    called_ns: u64,
    request: Request,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    id: usize,
    /// The node that it takes for the leader.
    pub target: u16,
    number: u64,
    open: Option<Open>,
    /// The last value it saw at each key, for compare-and-swaps that sometimes succeed.
    seen: Vec<Option<Bytes>>,
    /// The keys that it will ask for next, instead of random ones.
    pub wanted: Vec<u64>,
    /// Whether it writes them instead of reading them.
    pub puts: bool,
    chance: Rng,
    /// How many of its reads, per thousand, go by quorum, and the randomness for that alone.
    quorum_reads: u32,
    chance_of_quorum: Rng,
}

impl Client {
    /// A client that has asked for nothing yet, and will use keys 1 to `keys`.
    pub fn new(id: usize, keys: u64, target: u16, chance: Rng) -> Client {
        Client {
            id,
            target,
            number: 0,
            open: None,
            seen: vec![None; keys as usize + 1],
            wanted: Vec::new(),
            puts: false,
            chance,
            quorum_reads: 0,
            chance_of_quorum: Rng::with_seed(0),
        }
    }

    /// Lets this many of its reads, per thousand, go by quorum.
    pub fn read_by_quorum(&mut self, per_thousand: u32, chance: Rng) {
        (self.quorum_reads, self.chance_of_quorum) = (per_thousand, chance);
    }

    /// Its own source of randomness.
    pub fn chance(&mut self) -> &mut Rng {
        &mut self.chance
    }

    /// Whether a request is open.
    pub fn is_waiting(&self) -> bool {
        self.open.is_some()
    }

    /// The number of the open request.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Starts a request. `fresh` is a value that has never been written.
    pub fn call(&mut self, now: u64, fresh: u64) {
        let keys = self.seen.len() as u64 - 1;
        let chance = &mut self.chance;
        let (key, action) = match self.wanted.last() {
            Some(key) if self.puts => (*key, Action::Put(shown(fresh))),
            Some(key) => (*key, Action::Get),
            None => {
                let key = chance.u64(1..=keys);
                let action = match chance.u8(..10) {
                    0..4 => Action::Get,
                    4..8 => Action::Put(shown(fresh)),
                    8 => Action::Delete,
                    _ => Action::CompareAndSwap { expected: self.seen[key as usize].clone(), new: shown(fresh) },
                };
                (key, action)
            }
        };
        self.number += 1;
        let by_quorum = action == Action::Get && self.chance_of_quorum.u32(..1000) < self.quorum_reads;
        self.open = Some(Open { called_ns: now, request: Request { client: self.id, number: self.number, key, action, by_quorum } });
    }

    /// The open request, to be sent (again).
    pub fn request(&self) -> Option<&Request> {
        self.open.as_ref().map(|open| &open.request)
    }

    /// A result has come. `None` when the client no longer waits for it.
    pub fn take(&mut self, now: u64, number: u64, output: Output) -> Option<Operation<Input, Output>> {
        let open = self.open.take_if(|open| open.request.number == number)?;
        if let Output::Value(value) = &output {
            self.seen[open.request.key as usize] = value.clone();
        }
        if self.wanted.last() == Some(&open.request.key) {
            self.wanted.pop();
        }
        Some(self.operation(open, Outcome::Returned { at_ns: now, output }))
    }

    /// The client has waited long enough, or is asked to stop. Returns `None` when it was not waiting for that request.
    pub fn give_up(&mut self, number: u64) -> Option<Operation<Input, Output>> {
        let open = self.open.take_if(|open| open.request.number == number)?;
        Some(self.operation(open, Outcome::Unknown))
    }

    fn operation(&self, open: Open, outcome: Outcome<Output>) -> Operation<Input, Output> {
        let Request { key, action, .. } = open.request;
        Operation { client: self.id as u64, called_ns: open.called_ns, input: Input { key: shown(key), action }, outcome }
    }
}
