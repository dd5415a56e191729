//! Clients of a cluster.

pub mod redis;

use std::time::{Duration, Instant};

use martlet_fabric::with_fabric;
use martlet_kv::client::{Answer, Client, ClientConfig};
use martlet_node::backend::Backend;
use martlet_node::client::ClientEndpoint;
use martlet_node::clock;
use martlet_node::config::Cluster;
use martlet_protocol::basics::Time;

use crate::fail::{Fail, Outcome};

/// The longest sleep of a client: a lost wake-up costs this much and no more.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// What a client does while it waits for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// For how long it spins before it sleeps.
    pub spin: Duration,
}

impl Waiting {
    /// Spins a little, then leaves the core to others.
    pub const PATIENT: Waiting = Waiting { spin: Duration::from_micros(20) };
    /// Spins until the reply is there: for a core of its own.
    pub const SPINNING: Waiting = Waiting { spin: Duration::MAX };
}

/// A client on the fabric. The backend is decided once per request; while a reply is awaited there is no dynamic dispatch.
pub struct FabricClient(Box<dyn Asking>);

impl FabricClient {
    /// A client of that cluster. A call gives up after `patience`.
    ///
    /// # Errors
    /// When the fabric does not start.
    pub fn open(cluster: &Cluster, waiting: Waiting, patience: Duration) -> Outcome<FabricClient> {
        let open = || -> Outcome<Box<dyn Asking>> {
            Ok(with_fabric!(cluster.config().fabric, F => Box::new(ClientOn::<F>::open(cluster, waiting, patience)?)))
        };
        open().map(FabricClient)
    }

    /// Makes one request. `None`: no reply came in time; whether the request takes effect is unknown, unless it [was not sent](FabricClient::was_sent).
    ///
    /// # Errors
    /// When the request cannot be sent at all, because it is too long, for example.
    pub fn request<T>(&mut self, args: &[&[u8]], reply: impl FnOnce(&Answer<'_>) -> T) -> Outcome<Option<T>> {
        let (mut reply, mut made) = (Some(reply), None);
        self.0.request(args, &mut |answer| made = reply.take().map(|reply| reply(answer)))?;
        Ok(made)
    }

    /// Makes one request without waiting for its reply: [`receive`](FabricClient::receive) takes that.
    ///
    /// # Errors
    /// When the request cannot be sent at all, because it is too long, for example.
    pub fn send(&mut self, args: &[&[u8]]) -> Outcome {
        self.0.send(args)
    }

    /// Takes the next reply that has arrived, if there is one, and makes sure that outstanding requests reach the leader. Must be called again and again.
    ///
    /// # Errors
    /// When the reply is an error, which is included.
    pub fn receive(&mut self) -> Outcome<bool> {
        self.0.receive()
    }

    /// Gives up all outstanding requests: nothing of theirs is received any more, and whether they take effect is unknown.
    pub fn abandon(&mut self) {
        self.0.abandon();
    }

    /// Whether the last request was sent to a node. If it was not, it has not been executed and never will be.
    pub fn was_sent(&mut self) -> bool {
        self.0.was_sent()
    }

    /// The nodes that are connected, in the order of their numbers.
    pub fn connected(&self) -> Vec<u16> {
        self.0.connected()
    }

    /// When a waiting request last turned to another node because that node had said that it leads.
    pub fn turned_at(&mut self) -> Time {
        self.0.turned_at()
    }

    /// Waits until this many nodes are connected. Call it while no reply is awaited.
    ///
    /// # Errors
    /// When they do not connect in time.
    pub fn await_nodes(&mut self, count: usize) -> Outcome {
        self.0.await_nodes(count)
    }

    /// Makes the same request `count` times, up to `outstanding` of them at a time, and waits for all replies.
    ///
    /// # Errors
    /// When one is refused, or a reply does not come in time.
    pub fn pipelined(&mut self, args: &[&[u8]], outstanding: u32, count: u32) -> Outcome {
        self.0.pipelined(args, outstanding, count)
    }
}

/// A client on any backend; see [`FabricClient`].
trait Asking: Send {
    /// Calls `reply` once if there is an answer, and not at all if none came in time.
    fn request(&mut self, args: &[&[u8]], reply: &mut dyn FnMut(&Answer<'_>)) -> Outcome;
    fn send(&mut self, args: &[&[u8]]) -> Outcome;
    fn receive(&mut self) -> Outcome<bool>;
    fn abandon(&mut self);
    fn was_sent(&self) -> bool;
    fn connected(&self) -> Vec<u16>;
    fn turned_at(&self) -> Time;
    fn await_nodes(&mut self, count: usize) -> Outcome;
    fn pipelined(&mut self, args: &[&[u8]], outstanding: u32, count: u32) -> Outcome;
}

/// A client on one backend.
struct ClientOn<F: Backend> {
    client: Client<F>,
    waiting: Waiting,
    /// After how many looks to read the clock.
    looks: u32,
    patience: Duration,
    /// The number of the last request; 0 before the first.
    last: u64,
    turned_at: Time,
}

impl<F: Backend> ClientOn<F> {
    fn open(cluster: &Cluster, waiting: Waiting, patience: Duration) -> Outcome<ClientOn<F>> {
        let fabric = ClientEndpoint::<F>::open(cluster).map_err(Fail::failed)?.into_fabric();
        let config = ClientConfig { sizes: cluster.sizes(), ..ClientConfig::new(fabric.identity().incarnation.0) };
        // Where other processes have to answer, each look is a system call anyway.
        let looks = if cluster.config().fabric.traits().answers_in_turns { 1 } else { 64 };
        Ok(ClientOn { client: Client::new(fabric, config), waiting, looks, patience, last: 0, turned_at: Time(0) })
    }
}

impl<F: Backend> Asking for ClientOn<F> {
    fn send(&mut self, args: &[&[u8]]) -> Outcome {
        self.last = self.client.post(args).map_err(Fail::usage)?;
        Ok(())
    }

    fn receive(&mut self) -> Outcome<bool> {
        match self.client.poll(clock::now()) {
            Some(answer) if answer.reply.starts_with(b"-") => Err(Fail::failed(answer.reply.escape_ascii())),
            answer => Ok(answer.is_some()),
        }
    }

    fn abandon(&mut self) {
        self.client.abandon();
    }

    fn was_sent(&self) -> bool {
        self.client.was_sent(self.last)
    }

    fn connected(&self) -> Vec<u16> {
        let mut connected: Vec<u16> = self.client.connected().map(|node| node.0).collect();
        connected.sort_unstable();
        connected
    }

    fn turned_at(&self) -> Time {
        self.turned_at
    }

    fn request(&mut self, args: &[&[u8]], reply: &mut dyn FnMut(&Answer<'_>)) -> Outcome {
        self.last = self.client.post(args).map_err(Fail::usage)?;
        let mut asked = self.client.primary();
        let start = Instant::now();
        let mut turns = 0u32;
        loop {
            if let Some(answer) = self.client.poll(clock::now()) {
                reply(&answer);
                return Ok(());
            }
            if self.client.primary() != asked {
                asked = self.client.primary();
                self.turned_at = clock::now();
            }
            turns = turns.wrapping_add(1);
            if !turns.is_multiple_of(self.looks) {
                std::hint::spin_loop();
                continue;
            }
            let waited = start.elapsed();
            if waited >= self.patience {
                self.client.abandon();
                if self.client.connected().next().is_none()
                    && let Some(why) = self.client.fabric().misfit(Duration::from_secs(2))
                {
                    // The request has reached no node, and this is the reason.
                    return Err(Fail::failed(why));
                }
                return Ok(());
            }
            if waited < self.waiting.spin {
                continue;
            }
            // Between the announcement and the sleep, the client itself looks once more.
            self.client.fabric().announce();
            if let Some(answer) = self.client.poll(clock::now()) {
                reply(&answer);
                self.client.fabric().stay_awake();
                return Ok(());
            }
            self.client.fabric().sleep_until_told(LONGEST_SLEEP);
        }
    }

    fn await_nodes(&mut self, count: usize) -> Outcome {
        let start = Instant::now();
        loop {
            // No reply is awaited; this only notices which nodes came and went.
            let unasked = self.client.poll(clock::now()).is_some();
            martlet_fabric::invariant!(!unasked, "a reply to no request");
            let connected = self.client.connected().count();
            if connected >= count {
                return Ok(());
            }
            if start.elapsed() >= self.patience {
                let patience = self.patience.as_secs();
                return Err(Fail::failed(format_args!("only {connected} of {count} nodes are connected after {patience} s")));
            }
            std::thread::yield_now();
        }
    }

    fn pipelined(&mut self, args: &[&[u8]], outstanding: u32, count: u32) -> Outcome {
        let (mut posted, mut answered) = (0, 0);
        let start = Instant::now();
        let mut turns = 0u32;
        while answered < count {
            while posted < count && posted - answered < outstanding {
                self.client.post(args).map_err(Fail::usage)?;
                posted += 1;
            }
            if self.receive()? {
                answered += 1;
                continue;
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1024) {
                if start.elapsed() >= self.patience {
                    self.client.abandon();
                    return Err(Fail::failed(format_args!("no reply within {} s", self.patience.as_secs())));
                }
                // The node that has to answer may need this core.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
