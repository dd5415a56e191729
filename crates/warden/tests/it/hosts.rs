//! Two hosts: two wardens in this process that hear each other over two paths of the loopback device.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;

use martlet_protocol::detector::wardens::HostId;
use martlet_warden::Resources;
use martlet_warden::board::{Evidence, State};
use martlet_warden::client::Warden;
use martlet_warden::daemon::{self, Party};
use martlet_warden::neighbours::{Neighbour, Neighbours};
use martlet_warden::wire::HostStatus;

use crate::child::{Process, without_starts};
use crate::world::{Diary, Told, app, is_readable, scratch, state};

/// So long that a heartbeat is not late even on a busy machine: the tests check what is told, not how soon.
const TIMEOUT_NS: u64 = 3_000_000_000;

struct Host {
    socket: PathBuf,
    party: Party,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn start(&mut self) {
        let options = daemon::Options { socket: self.socket.clone(), mode: 0o600, party: Some(self.party.clone()), marks: false };
        let warden = daemon::Warden::new(&options).expect("the place and the ports are free");
        let (stop, stopped) = UnixStream::pair().expect("sockets");
        self.stop = Some(stop);
        self.thread = Some(std::thread::spawn(move || warden.run(stopped.as_fd(), |_| ()).expect("it serves")));
    }

    /// Ends its warden, whose ports and place the next one can have then.
    fn stop(&mut self) {
        let _without_copies = without_starts();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends well");
        }
    }

    fn connect(&self) -> Warden {
        Warden::connect(&self.socket, "test").expect("a warden")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
        // A warden in a process of its own is killed, and leaves its socket behind.
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(self.socket.with_extension("sock.lock"));
        // The last one of a test finds it empty.
        let _ = std::fs::remove_dir(self.socket.parent().expect("a directory"));
    }
}

/// Addresses for two paths of two hosts, which no other test or process uses. The loopback device has all of 127.0.0.0/8, so the process id yields addresses
/// for this process alone.
fn addresses() -> [[SocketAddr; 2]; 2] {
    static NEXT: AtomicU16 = AtomicU16::new(7_100);
    let [_, first, second, third] = std::process::id().to_be_bytes();
    // Process ids have 22 bits.
    let ip = Ipv4Addr::new(127, first | 0x80, second, third);
    [[(); 2]; 2].map(|host| host.map(|()| SocketAddr::from((ip, NEXT.fetch_add(1, Ordering::Relaxed)))))
}

/// The configuration of one of two hosts: where it and the other one listen.
pub fn party(own: u16, listen: Vec<SocketAddr>, others: Vec<SocketAddr>, key: [u8; 32], interval_ns: u64) -> Party {
    let neighbours = Neighbours {
        host: HostId(own + 1),
        listen,
        interval_ns,
        timeout_ns: TIMEOUT_NS,
        hosts: vec![Neighbour { host: HostId(2 - own), addresses: others }],
        key_file: PathBuf::new(),
    };
    Party { neighbours, key }
}

fn hosts(keys: [[u8; 32]; 2]) -> [Host; 2] {
    hosts_every(1_000_000, keys)
}

/// Two hosts whose wardens send a heartbeat at this interval.
fn hosts_every(interval_ns: u64, keys: [[u8; 32]; 2]) -> [Host; 2] {
    let (addresses, dir) = (addresses(), scratch());
    let host = |own: usize| {
        let party = party(own as u16, addresses[own].to_vec(), addresses[1 - own].to_vec(), keys[own], interval_ns);
        let mut host = Host { socket: dir.join(format!("{own}.sock")), party, stop: None, thread: None };
        host.start();
        host
    };
    [host(0), host(1)]
}

#[test]
fn a_death_on_another_host_is_certain() {
    let [here, there] = hosts([[7; 32]; 2]);
    let mut warden = here.connect();
    warden.monitor(app(7), Resources { pbsize: 10, timeout_ns: 0 }).expect("awaited");
    let process = Process::start("joins 7", &there.socket);
    while state(&mut warden, app(7)) != State::Alive {
        std::thread::yield_now();
    }
    let granted = warden.monitor(app(7), Resources { pbsize: 10, timeout_ns: 1 }).expect("granted");
    assert_eq!(granted, Resources { pbsize: 0, timeout_ns: TIMEOUT_NS });
    process.kill();
    let (failed, failure) = Diary::hearing().failure(&mut warden);
    assert_eq!((failed, failure.evidence), (app(7), Evidence::Certificate));
    // And again, for the next life.
    warden.monitor(app(7), Resources::default()).expect("awaited");
    let mut process = Process::start("joins 7", &there.socket);
    process.order("quit");
    process.await_line("done");
    let mut diary = Diary::hearing();
    while !diary.0.contains(&Told::Left(app(7))) {
        assert!(!matches!(diary.0.last(), Some(Told::Failure(..))), "{:?}", diary.0);
        warden.poll(Some(std::time::Duration::from_secs(1)), &mut diary).expect("it waits");
    }
}

/// A program that is told of an end asks for the next one a moment later. By then that end may already have happened.
#[test]
fn a_life_that_joins_and_quits_before_it_is_asked_for_is_told_of_where_one_before_it_was() {
    let [here, there] = hosts([[7; 32]; 2]);
    let (mut warden, mut other) = (here.connect(), here.connect());
    let mut diary = Diary::hearing();
    warden.monitor(app(7), Resources::default()).expect("awaited");
    Process::start("joins 7", &there.socket).kill();
    assert_eq!(diary.failure(&mut warden).0, app(7));
    let mut process = Process::start("joins 7", &there.socket);
    process.order("quit");
    process.await_line("done");
    while state(&mut other, app(7)) != State::Left {
        std::thread::yield_now();
    }
    warden.monitor(app(7), Resources::default()).expect("it has quit");
    assert_eq!(diary.next(&mut warden), Told::Left(app(7)));
    // A client that has heard of no end waits for the next one, and so does a client that has heard of this one.
    for monitor in [&mut warden, &mut other] {
        monitor.monitor(app(7), Resources::default()).expect("awaited");
    }
    assert_eq!(state(&mut other, app(7)), State::Awaited);
    Process::start("joins 7", &there.socket).kill();
    for monitor in [&mut warden, &mut other] {
        assert_eq!(Diary::hearing().failure(monitor).0, app(7));
    }
}

#[test]
fn each_life_on_another_host_is_told_of_once_however_soon_it_ends() {
    let [here, there] = hosts([[7; 32]; 2]);
    let mut warden = here.connect();
    let mut seen = Vec::new();
    for _ in 0..20 {
        warden.monitor(app(7), Resources::default()).expect("granted");
        Process::start("joins 7", &there.socket).kill();
        let (failed, failure) = Diary::hearing().failure(&mut warden);
        assert_eq!((failed, failure.evidence), (app(7), Evidence::Certificate));
        assert!(failure.incarnation != 0 && !seen.contains(&failure.incarnation), "{failure:?}");
        seen.push(failure.incarnation);
    }
}

#[test]
fn a_warden_that_is_restarted_tells_what_ended_on_another_host_meanwhile_and_nothing_twice() {
    let [mut here, there] = hosts([[7; 32]; 2]);
    let (mut warden, mut diary) = (here.connect(), Diary::hearing());
    let (early, late) = (Process::start("joins 7", &there.socket), Process::start("joins 8", &there.socket));
    for number in [7, 8] {
        warden.monitor(app(number), Resources::default()).expect("granted");
        while state(&mut warden, app(number)) != State::Alive {
            std::thread::yield_now();
        }
    }
    early.kill();
    assert_eq!(diary.failure(&mut warden).0, app(7));
    warden.monitor(app(7), Resources::default()).expect("the next life");
    here.stop();
    late.kill();
    let (mut local, mark) = (there.connect(), Process::start("plain", &there.socket));
    // The other warden has heard of that death, and tells of it before anything that comes now.
    while state(&mut local, app(8)) != State::Failed {
        std::thread::yield_now();
    }
    local.adopt(app(9), mark.pid()).expect("it runs");
    here.start();
    let (failed, failure) = loop {
        match diary.next(&mut warden) {
            Told::Failure(failed, failure) => break (failed, failure),
            Told::WardenLost | Told::WardenBack(Ok(())) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((failed, failure.evidence), (app(8), Evidence::Certificate));
    while state(&mut warden, app(9)) != State::Alive {
        std::thread::yield_now();
    }
    // The other warden has told everything. Of the lives that were told of before, only the next one is waited for.
    while state(&mut warden, app(7)) != State::Awaited {
        warden.poll(Some(std::time::Duration::from_millis(1)), &mut diary).expect("it waits");
    }
    assert!(!diary.0.iter().any(|told| matches!(told, Told::Failure(..) | Told::Left(_))), "{:?}", diary.0);
}

#[test]
fn an_application_is_alive_on_one_host_only() {
    let [here, there] = hosts([[7; 32]; 2]);
    let _process = Process::start("joins 7", &there.socket);
    let mut warden = here.connect();
    while state(&mut warden, app(7)) != State::Alive {
        std::thread::yield_now();
    }
    let error = warden.join(app(7)).expect_err("it is alive").to_string();
    assert_eq!(error, "the warden refuses: application 7 is alive already, on host 2");
}

#[test]
fn a_warden_that_ends_in_order_and_one_that_is_restarted_fail_nobody() {
    let [here, mut there] = hosts([[7; 32]; 2]);
    let process = Process::start("joins 7", &there.socket);
    let mut warden = here.connect();
    warden.monitor(app(7), Resources::default()).expect("awaited");
    while state(&mut warden, app(7)) != State::Alive {
        std::thread::yield_now();
    }
    there.stop();
    let mut diary = Diary::hearing();
    while diary.0.last() != Some(&Told::Left(app(7))) {
        assert!(!matches!(diary.0.last(), Some(Told::Failure(..))), "{:?}", diary.0);
        warden.poll(Some(std::time::Duration::from_secs(1)), &mut diary).expect("it waits");
    }
    there.start();
    let mut local = there.connect();
    local.adopt(app(8), process.pid()).expect("it runs");
    warden.monitor(app(8), Resources::default()).expect("awaited");
    while state(&mut warden, app(8)) != State::Alive {
        std::thread::yield_now();
    }
    process.kill();
    assert_eq!(diary.failure(&mut warden).1.evidence, Evidence::Certificate);
}

/// What a node does when the warden of another host is killed. The node used to be told of the same presumption each time that it asked, or not at all, and of
/// no later life.
#[test]
fn one_that_is_presumed_dead_is_monitored_again_and_told_of_once_its_host_is_heard() {
    // A warden that is late by more than an interval, as on a busy machine, forgives some silence.
    let [here, mut there] = hosts_every(100_000_000, [[7; 32]; 2]);
    there.stop();
    let [own, other] =
        [&there, &here].map(|host| host.party.neighbours.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    let role = format!("warden-of-second {own} {other}");
    let killed = Process::start(&role, &there.socket);
    let process = Process::start("joins 7", &there.socket);
    let mut local = there.connect();
    local.join(app(8)).expect("free");
    let (mut warden, mut diary) = (here.connect(), Diary::hearing());
    for number in [7, 8] {
        warden.monitor(app(number), Resources::default()).expect("awaited");
        while state(&mut warden, app(number)) != State::Alive {
            std::thread::yield_now();
        }
    }
    killed.kill();
    process.kill();
    for _ in 0..2 {
        let (failed, failure) = diary.failure(&mut warden);
        assert_eq!(failure.evidence, Evidence::Silence);
        warden.monitor(failed, Resources::default()).expect("awaited");
        assert_eq!(state(&mut warden, failed), State::Awaited);
    }
    let mut next = Process::start(&role, &there.socket);
    let mut local_diary = Diary::hearing();
    while !local_diary.0.contains(&Told::WardenBack(Ok(()))) {
        assert!(next.is_running(), "the next warden has ended");
        local.poll(Some(std::time::Duration::from_millis(100)), &mut local_diary).expect("it waits");
    }
    // One goes on, and the other starts over.
    let process = Process::start("joins 7", &there.socket);
    for number in [7, 8] {
        while state(&mut warden, app(number)) != State::Alive {
            assert!(next.is_running(), "the next warden has ended");
            std::thread::yield_now();
        }
    }
    local.quit().expect("it has joined");
    process.kill();
    let mut told = Vec::new();
    while told.len() < 2 {
        match diary.next(&mut warden) {
            Told::Failure(failed, failure) => told.push((failed, Some(failure.evidence))),
            Told::Left(left) => told.push((left, None)),
            other => panic!("{other:?}"),
        }
    }
    told.sort();
    assert_eq!(told, [(app(7), Some(Evidence::Certificate)), (app(8), None)]);
    let mut late = here.connect();
    late.monitor(app(7), Resources::default()).expect("it has failed");
    assert!(is_readable(&late), "what was over before it asked");
    assert_eq!(diary.failure(&mut late).0, app(7));
}

#[test]
fn a_host_with_another_key_is_not_heard_and_neither_is_garbage() {
    let [here, there] = hosts([[7; 32], [8; 32]]);
    let process = Process::start("joins 7", &there.socket);
    let mut warden = here.connect();
    warden.monitor(app(7), Resources::default()).expect("awaited");
    let noise = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for (length, address) in (0..1_400).zip(here.party.neighbours.listen.iter().cycle()) {
        noise.send_to(&vec![2u8; length], address).expect("sent");
        let mut packet = vec![0x02, 0x57, 2, 0];
        packet.resize(length.max(4), 3);
        noise.send_to(&packet, address).expect("sent");
    }
    process.kill();
    // The warden answers this after it has read the messages before it.
    for _ in 0..100 {
        let (apps, hosts) = warden.status().expect("it answers");
        assert_eq!(apps.iter().map(|one| one.state).collect::<Vec<_>>(), [State::Awaited]);
        assert!(hosts[0].is_silent);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let status = |warden: &mut Warden| warden.status().expect("it answers").1[0];
    // The noise comes from no address of that host; its warden's heartbeats do.
    while status(&mut warden).unauthenticated < 10 {
        std::thread::yield_now();
    }
    let mut there = there.connect();
    while status(&mut there).unauthenticated == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn noise_from_elsewhere_is_not_counted_as_a_hosts_and_a_warden_that_has_ended_is_told_from_one_that_is_silent() {
    let [here, mut there] = hosts([[7; 32]; 2]);
    let mut warden = here.connect();
    let mut until = |what: fn(&HostStatus) -> bool| loop {
        let host = warden.status().expect("it answers").1[0];
        if what(&host) {
            return host;
        }
        std::thread::yield_now();
    };
    assert!(!until(HostStatus::is_heard).has_left);
    let noise = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for address in &here.party.neighbours.listen {
        noise.send_to(&[3; 100], address).expect("sent");
    }
    for _ in 0..3 {
        there.stop();
        assert!(!until(|host| host.has_left).is_heard());
        there.start();
        assert_eq!(until(HostStatus::is_heard).unauthenticated, 0);
    }
}
