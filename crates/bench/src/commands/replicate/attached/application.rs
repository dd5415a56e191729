//! What is replicated: the key-value store's state, and the books of an order matching engine.

use clap::ValueEnum;
use fastrand::Rng;
use martlet_exchange::command::{Command, Outcome};
use martlet_exchange::load::{Executed, Orders};
use martlet_exchange::market::Market;
use martlet_kv::store::{Effect, Effects, KvMachine};
use martlet_node::embed::StateMachine;
use martlet_protocol::basics::LogIndex;
use martlet_protocol::replica::{self, UnreadablePart};

/// An application, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Application {
    /// The key-value store.
    Store,
    /// The order matching engine.
    Exchange,
}

impl Application {
    pub const ALL: [Application; 2] = [Application::Store, Application::Exchange];

    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Application::Store => "store",
            Application::Exchange => "matching engine",
        }
    }

    /// As it stands on a command line.
    pub fn flag(self) -> &'static str {
        match self {
            Application::Store => "store",
            Application::Exchange => "exchange",
        }
    }

    /// How long its requests may be, in bytes.
    pub fn payloads(self) -> &'static [usize] {
        match self {
            Application::Store => &super::super::PAYLOADS,
            Application::Exchange => &[Command::MAX_BYTES],
        }
    }
}

/// A state machine with requests for it.
pub trait Attached: StateMachine + Default {
    type Requests: Requests;
}

/// What a client asks for, one request after the other.
pub trait Requests {
    /// Of so many bytes each, or at most, as the application has it.
    fn new(payload: usize) -> Self;

    /// Puts the next one in place of the last.
    fn next(&mut self, into: &mut Vec<u8>);

    /// The reply to that one.
    fn note(&mut self, reply: &[u8]);
}

/// The store's state, whose commands are effects. It has no sessions: those of embedding do.
#[derive(Default)]
pub struct Store(KvMachine);

/// The store's cursors from here on speak of sessions.
const SESSIONS: u64 = 1 << 63;

impl StateMachine for Store {
    fn apply(&mut self, index: LogIndex, command: &[u8], reply: &mut Vec<u8>) {
        replica::StateMachine::apply(&mut self.0, index, command);
        reply.extend_from_slice(b"+OK\r\n");
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        self.transfer(0, usize::MAX, out);
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), UnreadablePart> {
        replica::StateMachine::install(&mut self.0, snapshot)
    }

    fn clear(&mut self) {
        replica::StateMachine::clear(&mut self.0);
    }

    fn transfer(&self, cursor: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        replica::StateMachine::transfer(&self.0, cursor, budget, out).filter(|next| *next < SESSIONS)
    }

    fn digest(&self) -> u64 {
        replica::StateMachine::digest(&self.0)
    }
}

impl Attached for Store {
    type Requests = Puts;
}

/// How many keys there are, of 8 bytes each.
const KEYS: u64 = 10_000;
/// What a request holds beside its key and its value: a byte for its kind, and their lengths.
const SHORT_HEADER_BYTES: usize = 3;
/// From so many bytes on a value's length takes a byte more.
const LONG_VALUE_BYTES: usize = 128;

/// Puts a value to a key by chance. The whole is as long as is asked for.
pub struct Puts {
    effects: Effects,
    value: Vec<u8>,
    chance: Rng,
}

impl Requests for Puts {
    fn new(payload: usize) -> Puts {
        let value = payload.saturating_sub(SHORT_HEADER_BYTES + 8);
        let value = if value < LONG_VALUE_BYTES { value } else { value - 1 };
        Puts { effects: Effects::default(), value: vec![b'v'; value], chance: Rng::with_seed(payload as u64) }
    }

    fn next(&mut self, into: &mut Vec<u8>) {
        let key = self.chance.u64(..KEYS).to_be_bytes();
        self.effects.clear();
        self.effects.push(Effect::Put { key: &key, value: &self.value, expiry: None });
        into.clear();
        into.extend_from_slice(self.effects.bytes());
    }

    fn note(&mut self, _: &[u8]) {}
}

impl Attached for Market {
    type Requests = OfTrader;
}

/// Orders and cancellations around a price that does not move, so that many of them trade.
pub struct OfTrader {
    orders: Orders,
    last: Command,
}

impl Requests for OfTrader {
    fn new(_: usize) -> OfTrader {
        let mut orders = Orders::new(1, 1, 1);
        let last = orders.next_command();
        OfTrader { orders, last }
    }

    fn next(&mut self, into: &mut Vec<u8>) {
        self.last = self.orders.next_command();
        into.clear();
        self.last.encode(into);
    }

    fn note(&mut self, reply: &[u8]) {
        if let Some(outcome) = Outcome::decode(reply) {
            self.orders.note(&Executed { command: self.last, outcome, latency_ns: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_to_the_store_are_as_long_as_is_asked_for_and_take_effect() {
        for payload in Application::Store.payloads() {
            let (mut store, mut requests, mut request) = (Store::default(), Puts::new(*payload), Vec::new());
            let empty = store.digest();
            for number in 1..100 {
                requests.next(&mut request);
                assert_eq!(request.len(), *payload);
                let mut reply = Vec::new();
                store.apply(LogIndex(number), &request, &mut reply);
                assert_eq!(reply, b"+OK\r\n");
            }
            assert_ne!(store.digest(), empty);
            // A replica that joins is taught the same, in however many parts.
            let (mut learner, mut cursor) = (Store::default(), Some(0));
            while let Some(at) = cursor {
                let mut part = Vec::new();
                cursor = store.transfer(at, 100, &mut part);
                learner.install(&part).expect("a part");
            }
            assert_eq!(learner.digest(), store.digest());
        }
    }

    #[test]
    fn orders_are_no_longer_than_is_said_and_many_trade() {
        let payload = Application::Exchange.payloads()[0];
        let (mut market, mut requests, mut request) = (Market::default(), OfTrader::new(payload), Vec::new());
        let mut traded = 0;
        for _ in 0..1000 {
            requests.next(&mut request);
            assert!(request.len() <= payload);
            let mut reply = Vec::new();
            Market::apply(&mut market, &request, &mut reply);
            traded += u32::from(matches!(Outcome::decode(&reply), Some(Outcome::Accepted { fills, .. }) if !fills.is_empty()));
            requests.note(&reply);
        }
        market.check();
        assert!(traded > 100, "{traded} of 1000");
    }
}
