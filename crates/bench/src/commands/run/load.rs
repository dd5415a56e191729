//! Clients of a server over TCP, on one thread: as many requests as they get answers for, or so many a second at moments of their own.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_kv::client::Value;
use martlet_node::clock;
use martlet_protocol::basics::Time;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;

/// Keys that are read and written.
const KEYS: u64 = 10_000;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 64;
/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the user wants an end.
const LOOK_NS: u64 = 20_000_000;

/// Clients, half of whose requests are SET and half GET.
pub struct Load {
    clients: Vec<Client>,
    /// Those without a request.
    idle: Vec<usize>,
    /// Which of them have replies.
    replies: OwnedFd,
    rng: fastrand::Rng,
    value: String,
}

struct Client {
    stream: TcpStream,
    /// What has come of a reply.
    reply: Vec<u8>,
    /// Since when its request is counted.
    since: Time,
}

/// What has been measured for a while.
pub struct Measured {
    /// From request to reply, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// How long it has taken, in nanoseconds.
    pub ns: u64,
}

impl Load {
    /// Connects so many clients, and sets all keys.
    pub fn open(address: SocketAddr, clients: u16) -> Outcome<Load> {
        // It sleeps between requests; by default the kernel lets it sleep 50 us longer than it wants.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).context("cannot ask to be woken in time")?;
        let replies = epoll::create(CreateFlags::CLOEXEC).context("cannot make an epoll instance")?;
        let mut load =
            Load { clients: Vec::new(), idle: Vec::new(), replies, rng: fastrand::Rng::with_seed(1), value: "v".repeat(VALUE_BYTES) };
        for number in 0..usize::from(clients) {
            let stream = TcpStream::connect(address).context(format_args!("cannot connect with {address}"))?;
            stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).context("cannot set a connection up")?;
            epoll::add(&load.replies, &stream, EventData::new_u64(number as u64), EventFlags::IN).context("cannot wait for replies")?;
            load.clients.push(Client { stream, reply: Vec::new(), since: Time(0) });
            load.idle.push(number);
        }
        let words: Vec<String> = (0..KEYS).map(|key| format!("key:{key} {}", load.value)).collect();
        for words in words.chunks(100) {
            load.ask(0, &format!("MSET {}\r\n", words.join(" ")), clock::now())?;
            while !load.take(0)? {
                if load.await_replies(PATIENCE)?.is_empty() {
                    return Err(Fail::wrong(format_args!("no reply within {} s", PATIENCE.as_secs())));
                }
            }
        }
        Ok(load)
    }

    /// Measures for so long: `rate` requests a second, at random moments; without it each client has one under way all the time.
    ///
    /// A request whose moment comes while all clients wait for replies is counted from that moment on; others from when they are sent, since this thread may be woken late.
    pub fn run(&mut self, rate: Option<f64>, duration: Duration, interrupt: &Interrupt) -> Outcome<Measured> {
        let mut latencies = Histogram::new(3).expect("three digits are supported");
        let start = clock::now();
        let end = start.after(duration.as_nanos() as u64);
        let (mut next, mut looked) = (start, start);
        let mut due: VecDeque<Time> = VecDeque::new();
        loop {
            let now = clock::now();
            if now.since(looked) > LOOK_NS {
                interrupt.check()?;
                looked = now;
            }
            if now < end {
                match rate {
                    None => due.resize(self.idle.len(), now),
                    Some(rate) => {
                        while next <= now {
                            due.push_back(if due.len() < self.idle.len() { now } else { next });
                            next = next.after((-(1.0 - self.rng.f64()).ln() * 1e9 / rate) as u64 + 1);
                        }
                    }
                }
            } else if due.is_empty() && self.idle.len() == self.clients.len() {
                return Ok(Measured { latencies, ns: clock::now().since(start) });
            }
            while !due.is_empty()
                && let Some(client) = self.idle.pop()
            {
                let since = due.pop_front().expect("it is not empty");
                let request = self.request();
                self.ask(client, &request, since)?;
            }
            let paced = rate.is_some() && now < end;
            let wait = if paced { Duration::from_nanos(next.since(clock::now())) } else { PATIENCE };
            let ready = self.await_replies(wait)?;
            if ready.is_empty() && !paced {
                return Err(Fail::wrong(format_args!("no reply within {} s", PATIENCE.as_secs())));
            }
            for client in ready {
                if self.take(client)? {
                    latencies.record(clock::now().since(self.clients[client].since)).expect("auto-resizing");
                    self.idle.push(client);
                }
            }
        }
    }

    fn request(&mut self) -> String {
        let key = self.rng.u64(..KEYS);
        if self.rng.bool() { format!("GET key:{key}\r\n") } else { format!("SET key:{key} {}\r\n", self.value) }
    }

    fn ask(&mut self, client: usize, request: &str, since: Time) -> Outcome {
        let client = &mut self.clients[client];
        client.since = since;
        client.stream.write_all(request.as_bytes()).context("cannot send a request")
    }

    /// Those that have something to read, at most so long after. A signal does not end the wait, as it would when the benchmark is stopped and goes on.
    fn await_replies(&self, patience: Duration) -> Outcome<Vec<usize>> {
        let mut events = Vec::with_capacity(self.clients.len());
        let began = Instant::now();
        loop {
            let wait = patience.saturating_sub(began.elapsed());
            let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            match epoll::wait(&self.replies, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) => return Ok(events.iter().map(|event| event.data.u64() as usize).collect()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error)).context("cannot wait for replies"),
            }
        }
    }

    /// Reads what has come. Returns whether that is a reply as a whole.
    fn take(&mut self, client: usize) -> Outcome<bool> {
        let Client { stream, reply, .. } = &mut self.clients[client];
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return Err(Fail::wrong("the server has closed a connection")),
            Ok(count) => reply.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot read a reply"),
        }
        match Value::parse(reply) {
            None => return Ok(false),
            Some(Value::Simple(b"OK")) => {}
            Some(Value::Bulk(value)) if value == self.value.as_bytes() => {}
            Some(_) => return Err(Fail::wrong(format_args!("a wrong reply: {}", reply.escape_ascii()))),
        }
        reply.clear();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_benchmark_that_is_stopped_and_goes_on_still_waits_for_replies() {
        let replies = epoll::create(CreateFlags::CLOEXEC).expect("an epoll instance");
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(silent.local_addr().expect("it is bound")).expect("it listens");
        let clients = vec![Client { stream, reply: Vec::new(), since: Time(0) }];
        let load = Load { clients, idle: Vec::new(), replies, rng: fastrand::Rng::with_seed(1), value: String::new() };
        // This process, with all its tests.
        let script = format!("sleep 0.1; kill -STOP {0}; sleep 0.1; kill -CONT {0}", std::process::id());
        let mut stopping = Command::new("sh").args(["-c", &script]).spawn().expect("a shell");
        let (began, patience) = (Instant::now(), Duration::from_secs(1));
        assert!(load.await_replies(patience).expect("nothing fails").is_empty());
        assert!(began.elapsed() >= patience, "it has waited for {:?} only", began.elapsed());
        assert!(stopping.wait().expect("it ends").success());
    }
}
