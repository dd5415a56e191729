//! A node of the exchange as its clients see it, by both arrangements of threads.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use martlet::config::{Cluster, ClusterConfig, Key, NodeEntry, Pin, ThreadsConfig};
use martlet::{Builder, Replica, Role, Stop};
use martlet_exchange::load::leader;
use martlet_exchange::market::Market;
use martlet_exchange::server;
use martlet_exchange::wire::{Request, Response, first_frame};

fn node(name: &str) -> Builder {
    let key = Some(Key::generate().expect("chance").to_hex().into());
    let name = format!("exchange-{name}-{}", std::process::id());
    let config = ClusterConfig { key, ..ClusterConfig::new(name, vec![NodeEntry::new(0)]) };
    // It shares its core with the clients.
    let threads = ThreadsConfig { pin: Pin::None, ..ThreadsConfig::default() };
    Replica::builder().cluster(Cluster::new(config).expect("a good configuration")).node(0).threads(threads)
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// A node that leads and serves its clients on its replica's thread.
fn direct(name: &str) -> (SocketAddr, Stop, JoinHandle<()>) {
    let (listener, address) = listener();
    let direct = node(name).direct(Market::default()).expect("it can be prepared");
    let stop = direct.stop_handle();
    let thread = std::thread::spawn(move || {
        let mut server = server::direct::Server::new(listener).expect("descriptors");
        direct.watch(server.events()).expect("watched");
        direct.run(|here| server.turn(here).expect("it goes on")).expect("it ends in order");
        server.finish();
    });
    assert_eq!(leader(&[address]), address);
    (address, stop, thread)
}

/// One that hands their requests over to it.
fn handover(name: &str) -> (SocketAddr, Replica<Market>) {
    let (listener, address) = listener();
    let replica = node(name).start(Market::default()).expect("it starts");
    assert!(replica.roles().any(|change| change.role == Role::Leader), "who is alone leads");
    let served = replica.clone();
    // It waits for further clients until this process ends.
    std::thread::spawn(move || server::handover::serve(&served, &listener));
    (address, replica)
}

/// Sends many requests before it reads, of which only so many may be under way at once.
fn many_at_once(address: SocketAddr) {
    const MANY: u64 = 20_000;
    let mut frames = Vec::new();
    (0..MANY).for_each(|tag| Request::Best(0).encode(tag, &mut frames));
    let mut client = TcpStream::connect(address).expect("it listens");
    let mut writing = client.try_clone().expect("a descriptor");
    let writer = std::thread::spawn(move || {
        writing.write_all(&frames).expect("all of it is read");
        // Nothing comes after it, and everything is answered.
        writing.shutdown(Shutdown::Write).expect("connected");
    });
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).expect("it ends the connection when all is answered");
    writer.join().expect("no panic");
    let (mut rest, mut tags) = (&answers[..], Vec::new());
    while let Some((body, bytes)) = first_frame(rest).expect("frames") {
        let (tag, response) = Response::decode(body).expect("a response");
        assert_eq!(response, Response::Done(&[0; 16]), "there are no orders");
        tags.push(tag);
        rest = &rest[bytes..];
    }
    tags.sort_unstable();
    assert!(rest.is_empty() && tags.into_iter().eq(0..MANY));
}

/// Sends what is no request, whole or in part: it is cut off, and nobody else is.
fn nonsense(address: SocketAddr) {
    let mut good = Vec::new();
    Request::Digest.encode(7, &mut good);
    let mut neighbour = TcpStream::connect(address).expect("it listens");
    for sent in [&[3, 0, 0, 0, 9, 9, 9][..], &[0xff; 8], &[200, 0, 0, 0, 1]] {
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(sent).expect("it is read");
        client.shutdown(Shutdown::Write).expect("connected");
        // That the connection was reset says the same.
        let answer = client.read(&mut [0]);
        assert!(matches!(answer, Ok(0) | Err(_)), "{answer:?} to {sent:?}");
        neighbour.write_all(&good).expect("it is read");
        let mut frame = [0; 4 + 9 + 16];
        neighbour.read_exact(&mut frame).expect("it is answered");
        assert!(matches!(Response::decode(&frame[4..]), Some((7, Response::Done(_)))));
    }
}

/// Goes before it has its answers. All that it leaves behind is less than may wait for a replica: who comes next is not too many.
fn gone(address: SocketAddr) {
    for _ in 0..20 {
        let mut frames = Vec::new();
        (0..100).for_each(|tag| Request::Best(0).encode(tag, &mut frames));
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(&frames).expect("it is read");
    }
    nonsense(address);
}

#[test]
fn clients_that_ask_for_much_or_for_nonsense_or_go_are_served_on_the_replicas_thread() {
    let (address, stop, thread) = direct("direct");
    [many_at_once, nonsense, gone, many_at_once].iter().for_each(|client| client(address));
    stop.request();
    thread.join().expect("no panic");
}

#[test]
fn clients_that_ask_for_much_or_for_nonsense_or_go_are_served_by_threads_of_their_own() {
    let (address, replica) = handover("handover");
    [many_at_once, nonsense, gone, many_at_once].iter().for_each(|client| client(address));
    replica.stop().expect("it ends in order");
}

#[test]
fn one_that_has_asked_in_time_has_its_answer_before_the_end() {
    let (address, stop, thread) = direct("end");
    let mut client = TcpStream::connect(address).expect("it listens");
    let mut frame = Vec::new();
    Request::Open.encode(1, &mut frame);
    client.write_all(&frame).expect("it is read");
    let (told, tells) = channel();
    std::thread::spawn(move || {
        let mut answers = Vec::new();
        let _ = client.read_to_end(&mut answers);
        told.send(answers).expect("awaited");
    });
    // A client that is answered here asked after the other.
    assert_eq!(leader(&[address]), address);
    stop.request();
    thread.join().expect("no panic");
    let answers = tells.recv().expect("sent");
    let (body, _) = first_frame(&answers).expect("a frame").expect("whole");
    assert!(matches!(Response::decode(body), Some((1, Response::Done(name))) if name.len() == 8), "{answers:?}");
}
