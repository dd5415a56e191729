//! A crowd of clients, each with one request under way. One thread drives them all: clients with threads of their own would take few cores from each other, and
//! measure that.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::output::complain;
use martlet_node::clock;
use martlet_node::config::Cluster;

/// How long a request may take before something is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many turns without a reply before the core is offered to others, in memory: the node that is to answer may need it. Elsewhere a turn is so many system calls that
/// one is enough.
const TURNS: u32 = 1024;
/// How many keys there are.
const KEYS: usize = 64;
/// How the keys begin that a crowd has in a cluster of others. No user has such keys.
pub const PREFIX: &str = "martlet:bench:";

/// What the clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How many requests in a hundred read.
    pub reads: u8,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// The clients. They are not bound to a core: the caller's thread is.
pub struct Crowd {
    clients: Vec<FabricClient>,
    keys: Vec<Vec<u8>>,
    rng: fastrand::Rng,
    /// So many turns without a reply before the core is offered to others.
    turns: u32,
}

fn late() -> Fail {
    Fail::failed(format_args!("no reply within {} s", PATIENCE.as_secs()))
}

/// A client's next request.
fn ask(client: &mut FabricClient, keys: &[Vec<u8>], rng: &mut fastrand::Rng, load: Load, value: &[u8]) -> Outcome {
    let key = &keys[rng.usize(..keys.len())];
    if rng.u8(..100) < load.reads { client.send(&[b"GET", key]) } else { client.send(&[b"SET", key, value]) }
}

impl Crowd {
    /// So many clients of a cluster that is ours and of which that many nodes run, whose keys have that many bytes. Each key has a value when this returns.
    ///
    /// # Errors
    /// When a client does not start, or gets no reply.
    pub fn open(cluster: &Cluster, nodes: usize, count: u16, key_bytes: usize) -> Outcome<Crowd> {
        let keys = (0..KEYS).map(|key| format!("{key:0key_bytes$}").into_bytes()).collect();
        let mut crowd = Crowd::connected(cluster, nodes, count, keys)?;
        for at in 0..KEYS {
            if !crowd.of_first(at, |key| vec![b"SET", key, b"v"], |reply| reply.starts_with(b"+"))? {
                return Err(Fail::failed("the store took no first value"));
            }
        }
        Ok(crowd)
    }

    /// So many clients of a cluster that holds keys of others. Their own keys begin with [`PREFIX`] and a random number, and no key that is there is touched.
    /// Each has a value when this returns, and stays until [`and_without_keys`](Crowd::and_without_keys).
    ///
    /// # Errors
    /// When a client does not start, or gets no reply, or one of the keys exists. What has been set is removed.
    pub fn open_as_guest(cluster: &Cluster, count: u16) -> Outcome<Crowd> {
        let mine = fastrand::u64(..) >> 4;
        let keys = (0..KEYS).map(|key| format!("{PREFIX}{mine:015x}:{key:02}").into_bytes()).collect();
        // One node tells of the others: a cluster serves while some of them are down.
        let mut crowd = Crowd::connected(cluster, 1, count, keys)?;
        for at in 0..KEYS {
            let reply = crowd.of_first(at, |key| vec![b"SET", key, b"v", b"NX"], <[u8]>::to_vec);
            let (taken, why) = match reply {
                Ok(reply) if reply.starts_with(b"+") => continue,
                Ok(reply) if reply.starts_with(b"-") => (false, Fail::failed(reply[1..].trim_ascii().escape_ascii())),
                Ok(_) => {
                    (true, Fail::failed(format_args!("the cluster has a key {}; the next run takes others", crowd.keys[at].escape_ascii())))
                }
                Err(why) => (false, why),
            };
            // Where the reply says nothing of the key, it may have been set all the same.
            crowd.keys.truncate(at + usize::from(!taken));
            return crowd.and_without_keys(Err(why));
        }
        Ok(crowd)
    }

    /// Removes the keys, and returns how everything ended: that it failed, or else whether the keys are gone.
    ///
    /// # Errors
    /// That with which it ended, or that no reply came, in which case some of the keys may still be there; it names them.
    pub fn and_without_keys<T>(mut self, ended: Outcome<T>) -> Outcome<T> {
        match (self.remove_keys(), ended) {
            (Ok(()), ended) => ended,
            (Err(left), Ok(_)) => Err(left),
            (Err(left), Err(why)) => {
                complain(left);
                Err(why)
            }
        }
    }

    fn remove_keys(&mut self) -> Outcome {
        for at in 0..self.keys.len() {
            let told = |reply: &[u8]| if reply.starts_with(b":") { Ok(()) } else { Err(Fail::failed(reply.trim_ascii().escape_ascii())) };
            self.of_first(at, |key| vec![b"DEL", key], told).flatten().map_err(|why| {
                let (next, last) = (self.keys[at].escape_ascii(), self.keys[self.keys.len() - 1].escape_ascii());
                Fail::failed(format_args!("keys from {next} to {last} may be left in the cluster: {why}"))
            })?;
        }
        Ok(())
    }

    /// What the first client is answered that asks this of a key, while no other request of its is under way.
    fn of_first<T>(&mut self, key: usize, ask: impl FnOnce(&[u8]) -> Vec<&[u8]>, told: impl FnOnce(&[u8]) -> T) -> Outcome<T> {
        let Crowd { clients, keys, .. } = self;
        clients[0].request(&ask(&keys[key]), |answer| told(answer.reply))?.ok_or_else(late)
    }

    fn connected(cluster: &Cluster, nodes: usize, count: u16, keys: Vec<Vec<u8>>) -> Outcome<Crowd> {
        let open = |_| {
            let mut client = FabricClient::open(cluster, Waiting::PATIENT, PATIENCE)?;
            client.await_nodes(nodes)?;
            Ok(client)
        };
        let clients = (0..count).map(open).collect::<Outcome<Vec<_>>>()?;
        if clients.is_empty() {
            return Err(Fail::usage("a crowd of no clients"));
        }
        let turns = if cluster.config().fabric.traits().answers_in_turns { 1 } else { TURNS };
        Ok(Crowd { clients, keys, rng: fastrand::Rng::with_seed(u64::from(count)), turns })
    }

    /// Has the first client make one request, and waits for the reply as a program does that has nothing else to do: it spins a little, then sleeps. Returns how
    /// long that took, in nanoseconds.
    ///
    /// # Errors
    /// When the request is refused, or no reply comes in a minute.
    pub fn put(&mut self, value: &[u8]) -> Outcome<u64> {
        let Crowd { clients, keys, rng, .. } = self;
        let key = &keys[rng.usize(..keys.len())];
        let asked = clock::now();
        match clients[0].request(&[b"SET", key, value], |answer| answer.reply.starts_with(b"+"))? {
            Some(true) => Ok(clock::now().since(asked)),
            Some(false) => Err(Fail::failed("a node refused a request")),
            None => Err(late()),
        }
    }

    /// Has the first `count` clients make requests, each the next one when it has the reply to the last. After each interval `each` is told how many replies
    /// came in it, and when it began, and says whether to go on. When this returns no request is under way, unless no reply came in a minute.
    ///
    /// # Errors
    /// When a request is refused, or no reply comes in a minute.
    pub fn run(&mut self, count: u16, load: Load, interval: Duration, each: impl FnMut(Instant, u64) -> ControlFlow<()>) -> Outcome {
        self.run_timed(count, load, interval, |_| {}, each)
    }

    /// The same; `replied` is told how long each reply took, in nanoseconds.
    ///
    /// # Errors
    /// As above.
    pub fn run_timed(
        &mut self,
        count: u16,
        load: Load,
        interval: Duration,
        mut replied: impl FnMut(u64),
        mut each: impl FnMut(Instant, u64) -> ControlFlow<()>,
    ) -> Outcome {
        let Crowd { clients, keys, rng, turns: patient } = self;
        let clients = &mut clients[..usize::from(count)];
        let value = vec![b'v'; load.value_bytes];
        let mut asked = Vec::with_capacity(clients.len());
        for client in clients.iter_mut() {
            asked.push(clock::now());
            ask(client, keys, rng, load, &value)?;
        }
        let interval_ns = interval.as_nanos() as u64;
        let (mut began, mut ends) = (Instant::now(), clock::now().after(interval_ns));
        let (mut replies, mut turns, mut last_reply) = (0u64, 0u32, Instant::now());
        let (mut goes_on, mut refused) = (true, Ok(()));
        let mut idle = vec![false; clients.len()];
        while goes_on || idle.contains(&false) {
            let before = replies;
            for ((client, idle), asked) in clients.iter_mut().zip(&mut idle).zip(&mut asked) {
                if *idle {
                    continue;
                }
                match client.receive() {
                    Ok(true) => {}
                    Ok(false) => continue,
                    // The replies to the others are awaited: what is done to the keys next must come after their requests.
                    Err(why) => {
                        (refused, goes_on, *idle) = (Err(why), false, true);
                        continue;
                    }
                }
                let now = clock::now();
                replied(now.since(*asked));
                replies += 1;
                if goes_on {
                    *asked = now;
                    ask(client, keys, rng, load, &value)?;
                } else {
                    *idle = true;
                }
            }
            if goes_on && clock::now() >= ends {
                let now = Instant::now();
                // What came late came in the interval before, which was longer by that.
                let per_interval = replies as f64 * interval.as_secs_f64() / now.duration_since(began).as_secs_f64();
                goes_on = each(began, per_interval.round() as u64).is_continue();
                (began, ends, replies) = (now, clock::now().after(interval_ns), 0);
                continue;
            }
            if replies > before {
                (turns, last_reply) = (0, Instant::now());
                continue;
            }
            turns += 1;
            if turns.is_multiple_of(*patient) {
                if last_reply.elapsed() > PATIENCE {
                    clients.iter_mut().for_each(FabricClient::abandon);
                    return refused.and(Err(late()));
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        refused
    }
}
