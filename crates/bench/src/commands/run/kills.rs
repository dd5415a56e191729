//! Kills of the leader, and what clients that were connected before see of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_kv::client::Value as Reply;
use martlet_node::clock;
use martlet_protocol::basics::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::service::Service;
use crate::report::reference::{Probe, Victim};
use crate::report::{Figure, Report, Unit};

/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A client's requests before a kill, in nanoseconds, at most: the moment is a random one of these.
const BEFORE_NS: u64 = 10_000_000;
/// How long a client that counts among others waits from one request to the next: three replicas execute all of them on a few cores, and are replaced meanwhile.
const PACE: Duration = Duration::from_millis(5);

/// One client that counts, always on the same connection.
struct Counter {
    stream: TcpStream,
    reply: Vec<u8>,
    counted: i64,
    is_asked: bool,
}

impl Counter {
    fn open(address: SocketAddr) -> Outcome<Counter> {
        let stream = TcpStream::connect(address).context(format_args!("cannot connect with {address}"))?;
        stream.set_nodelay(true).context("cannot set a connection up")?;
        Ok(Counter { stream, reply: Vec::new(), counted: 0, is_asked: false })
    }

    fn ask(&mut self) -> Outcome {
        if !std::mem::replace(&mut self.is_asked, true) {
            self.stream.write_all(b"INCR counted\r\n").context("cannot send a request")?;
        }
        Ok(())
    }

    /// Reads what has come: each request was executed once.
    fn hear(&mut self) -> Outcome {
        let mut bytes = [0; 64];
        match self.stream.read(&mut bytes).context("the connection is broken")? {
            0 => return Err(Fail::wrong("the connection was closed")),
            count => self.reply.extend_from_slice(&bytes[..count]),
        }
        match Reply::parse(&self.reply) {
            None => return Ok(()),
            Some(Reply::Int(number)) if number == self.counted + 1 => self.counted = number,
            Some(_) => return Err(Fail::wrong(format_args!("the reply after {} is {}", self.counted, self.reply.escape_ascii()))),
        }
        self.reply.clear();
        self.is_asked = false;
        Ok(())
    }
}

/// From the kill of the leader to the next byte on a connection that was there before, `kills` times, each beside one bare death probe.
///
/// A successor sends nothing before its predecessor is dead. So the byte is the first that comes when the kernel has told of the death, and what came before that has been read.
pub fn to_the_next_byte(kills: u32, service: &mut Service, address: SocketAddr, report: &mut Report) -> Outcome {
    let figure = |metric: &str| Figure::new("run", metric, Unit::Microseconds);
    let (mut dead, mut answered, mut bare) =
        (figure("kill to end of the process"), figure("kill to next byte on an old connection"), figure("bare death probe, in turn"));
    let mut probe = Probe::new()?;
    let mut client = Counter::open(address)?;
    let mut rng = fastrand::Rng::new();
    let progress = report.progress("kills", u64::from(kills));
    for _ in 0..kills {
        service.await_whole()?;
        bare.record(probe.kill_one(Victim::SPINNING)?);
        let until = clock::now().after(rng.u64(..BEFORE_NS));
        // The last request is under way, unless it has just been answered.
        while clock::now() < until {
            client.ask()?;
            if is_readable(&client, until)? {
                client.hear()?;
            }
        }
        let (struck, death) = service.kill_leader()?;
        client.ask()?;
        let mut ended: Option<Time> = None;
        loop {
            let mut waits = vec![PollFd::new(&client.stream, PollFlags::IN)];
            if ended.is_none() {
                waits.push(PollFd::new(&death, PollFlags::IN));
            }
            let wait = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            if poll(&mut waits, Some(&wait)).context("cannot wait for a reply")? == 0 {
                return Err(Fail::wrong(format_args!("no reply within {} s of a kill", PATIENCE.as_secs())));
            }
            let now = clock::now();
            let [has_come, has_ended] = [0, 1].map(|at| waits.get(at).is_some_and(|wait| !wait.revents().is_empty()));
            if has_come {
                client.hear()?;
                if ended.is_some() {
                    answered.record(now.since(struck));
                    break;
                }
                client.ask()?;
            }
            if has_ended {
                ended = Some(now);
                dead.record(now.since(struck));
            }
        }
        match service.await_leader()? {
            1 => {}
            count => return Err(Fail::wrong(format_args!("the successor has {count} connections"))),
        }
        progress.step();
    }
    drop(progress);
    [dead, answered, bare].into_iter().for_each(|figure| report.add(figure));
    Ok(())
}

fn is_readable(client: &Counter, until: Time) -> Outcome<bool> {
    let mut waits = [PollFd::new(&client.stream, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: until.since(clock::now()) as i64 };
    Ok(poll(&mut waits, Some(&wait)).context("cannot wait for a reply")? > 0)
}

/// Kills the leader `kills` times while clients count, each by a key of its own and by one that all share: each reply is the one that follows the one before, and the shared key is
/// in the end what has been acknowledged.
pub fn while_clients_count(
    kills: u32,
    clients: u16,
    service: &mut Service,
    address: SocketAddr,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    let (stop, counted) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rng = fastrand::Rng::new();
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Connection::open(address, PATIENCE).context("cannot connect")?);
    }
    let mut slowest = Figure::new("run", format!("longest wait of {clients} clients that count, a kill"), Unit::Microseconds);
    let longest_ns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (1..)
            .zip(connections)
            .map(|(number, mut connection)| {
                let (stop, counted, longest_ns) = (&stop, &counted, &longest_ns);
                scope.spawn(move || count(number, &mut connection, stop, counted, longest_ns))
            })
            .collect();
        let progress = report.progress("kills while clients count", u64::from(kills));
        let mut strike = || -> Outcome {
            for _ in 0..kills {
                service.await_whole()?;
                std::thread::sleep(Duration::from_nanos(rng.u64(..BEFORE_NS)));
                longest_ns.store(0, Ordering::Relaxed);
                let before = counted.load(Ordering::Relaxed);
                service.kill_leader()?;
                service.await_leader()?;
                // Each has had a reply since.
                while counted.load(Ordering::Relaxed) < before + 4 * clients.len() as u64 {
                    interrupt.check()?;
                    if clients.iter().any(|client| client.is_finished()) {
                        return Ok(());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                slowest.record(longest_ns.load(Ordering::Relaxed));
                progress.step();
            }
            Ok(())
        };
        let struck = strike();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| Fail::failed("a client panicked"))??;
        }
        struck
    })?;
    let mut connection = Connection::open(address, PATIENCE).context("cannot connect")?;
    let shared = connection.command(&[b"GET", b"shared"]).context("cannot read the shared key")?;
    let acknowledged = counted.load(Ordering::Relaxed) / 2;
    if shared != Value::Bulk(Some(acknowledged.to_string().into_bytes())) {
        return Err(Fail::wrong(format_args!("{acknowledged} requests were acknowledged, and the key says {shared:?}")));
    }
    report.set("counted_exactly", acknowledged);
    report.add(slowest);
    Ok(())
}

/// Counts until it is told to stop.
fn count(number: u64, connection: &mut Connection, stop: &AtomicBool, counted: &AtomicU64, longest_ns: &AtomicU64) -> Outcome {
    let own = format!("own:{number}");
    let mut shared = 0;
    for round in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        for (key, expected) in [(own.as_bytes(), Some(round)), (b"shared", None)] {
            let asked = clock::now();
            let reply = connection.command(&[b"INCR", key]).context("a client has lost its connection")?;
            longest_ns.fetch_max(clock::now().since(asked), Ordering::Relaxed);
            match (reply, expected) {
                (Value::Integer(told), Some(expected)) if told == expected => {}
                (Value::Integer(told), None) if told > shared => shared = told,
                (reply, _) => return Err(Fail::wrong(format_args!("client {number} has counted to {round}, and is told {reply:?}"))),
            }
            counted.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(PACE);
    }
    Ok(())
}

/// Kills the leader `kills` times while `redis-benchmark -c 50` counts, again and again: it ends without an error, has the same sockets before and after each kill, and the counter is
/// what it has asked for.
pub fn under_redis_benchmark(
    kills: u32,
    requests: u32,
    service: &mut Service,
    address: SocketAddr,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    let mut done = 0;
    let mut runs = 0;
    let mut rng = fastrand::Rng::new();
    let mut rates = Figure::new("run", "INCR by redis-benchmark -c 50, through kills", Unit::PerSecond);
    let progress = report.progress("kills under redis-benchmark", u64::from(kills));
    while done < kills {
        let mut benchmark = Benchmark::start(requests, address)?;
        runs += 1;
        let started = clock::now();
        let Some(sockets) = benchmark.await_connections(interrupt)? else {
            return Err(Fail::failed(format_args!(
                "redis-benchmark has ended before all its clients were seen: {requests} requests are too few"
            )));
        };
        while done < kills && benchmark.runs()? {
            interrupt.check()?;
            std::thread::sleep(Duration::from_nanos(rng.u64(..BEFORE_NS)));
            if !benchmark.has(&sockets) {
                break;
            }
            service.kill_leader()?;
            let connections = service.await_leader()?;
            if connections < CLIENTS as u64 && benchmark.has(&sockets) {
                return Err(Fail::wrong(format_args!("the successor has {connections} connections")));
            }
            done += 1;
            progress.step();
            service.await_whole()?;
        }
        benchmark.await_end(&sockets)?;
        rates.record(u64::from(requests) * 1_000_000_000 / clock::now().since(started).max(1));
    }
    drop(progress);
    let mut connection = Connection::open(address, PATIENCE).context("cannot connect")?;
    let counted = connection.command(&[b"GET", b"counter:__rand_int__"]).context("cannot read the counter")?;
    let asked = u64::from(requests) * runs;
    if counted != Value::Bulk(Some(asked.to_string().into_bytes())) {
        return Err(Fail::wrong(format_args!("redis-benchmark has counted {asked} times, and the counter says {counted:?}")));
    }
    report.set("kills_under_redis_benchmark", done);
    report.add(rates);
    Ok(())
}

/// Clients of redis-benchmark.
const CLIENTS: usize = 50;

/// A run of redis-benchmark.
struct Benchmark(Child);

impl Benchmark {
    fn start(requests: u32, address: SocketAddr) -> Outcome<Benchmark> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-t", "incr", "--csv"]);
        command.args(["-n", &requests.to_string(), "-c", &CLIENTS.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        command.spawn().map(Benchmark).context("cannot run redis-benchmark")
    }

    /// Its sockets once all its clients have one, or `None` when it has ended.
    fn await_connections(&mut self, interrupt: &Interrupt) -> Outcome<Option<BTreeSet<String>>> {
        while self.runs()? {
            interrupt.check()?;
            let sockets = self.sockets();
            if sockets.len() == CLIENTS {
                return Ok(Some(sockets));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    fn runs(&mut self) -> Outcome<bool> {
        Ok(self.0.try_wait().context("cannot look at redis-benchmark")?.is_none())
    }

    /// As the kernel names them.
    fn sockets(&self) -> BTreeSet<String> {
        let Ok(files) = fs::read_dir(format!("/proc/{}/fd", self.0.id())) else { return BTreeSet::new() };
        let names = files.filter_map(|file| Some(fs::read_link(file.ok()?.path()).ok()?.to_string_lossy().into_owned()));
        names.filter(|name| name.starts_with("socket:")).collect()
    }

    /// Whether it has all of these still: it closes them when it ends.
    fn has(&self, sockets: &BTreeSet<String>) -> bool {
        self.sockets().is_superset(sockets)
    }

    /// Waits for its end, and looks until then that it has no other sockets.
    fn await_end(&mut self, sockets: &BTreeSet<String>) -> Outcome {
        loop {
            let now = self.sockets();
            if let Some(status) = self.0.try_wait().context("cannot wait for redis-benchmark")? {
                return if status.success() { Ok(()) } else { Err(Fail::wrong(format_args!("redis-benchmark: {status}"))) };
            }
            if let Some(other) = now.difference(sockets).next() {
                return Err(Fail::wrong(format_args!("redis-benchmark has connected again: {other}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Benchmark {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
