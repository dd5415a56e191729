//! A server that has descriptors of its own besides its clients', in three replicas.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Service, python};
use crate::martlet::TempDir;

struct Client(BufReader<TcpStream>);

impl Client {
    fn ask(&mut self, line: &str) -> String {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("the connection stands");
        let mut answer = String::new();
        assert!(self.0.read_line(&mut answer).expect("the connection stands") > 0, "{line}: the connection has ended");
        answer.trim_end().to_owned()
    }

    /// Sends a line that the server answers by ending the connection.
    fn ask_for_the_end(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("the connection stands");
        self.assert_ended();
    }

    /// Checks that the server has closed the connection.
    fn assert_ended(&mut self) {
        let mut rest = String::new();
        match self.0.read_line(&mut rest) {
            Ok(count) => assert_eq!((count, rest.as_str()), (0, "")),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    fn numbers(&mut self, line: &str) -> BTreeSet<i32> {
        self.ask(line).split(' ').map(|fd| fd.parse().expect("a number")).collect()
    }
}

/// What the server finds after this text has been put there.
fn found(text: &str) -> String {
    let pairs = (0..40).map(|number| format!("{text}{number} ")).collect::<String>();
    format!("{pairs}{text} second {text}again 2 {text}")
}

/// The numbers of a process's descriptors, without those of connections and of the library. They should be these. The library opens some for a moment, for
/// instance to look at another process: those are open at one look and not at all looks. But a process that is kept from running has them open for as long.
fn numbers_of(pid: i32, own: &BTreeSet<i32>) -> BTreeSet<i32> {
    let look = || -> BTreeSet<i32> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(|fd| *fd < 160).collect()
    };
    let mut all = look();
    for _ in 0..2_000 {
        if all == *own {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        all = &all & &look();
    }
    all
}

#[test]
fn a_servers_own_descriptors_have_their_numbers_and_their_content_at_every_replica() {
    let Some(mut service) = python::server("descriptors.py", &[]) else { return };
    let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")));
    // What it has had from its start.
    client.ask("put first");
    assert_eq!(client.ask("take"), found("first").replace("again 2", "again 5"));
    let numbers = client.ask("open");
    client.ask("close");
    client.ask("put kept");
    // The followers are forked anew while there is something in the descriptors.
    let runs = |pid: &i32| Path::new(&format!("/proc/{pid}/exe")).exists();
    for _ in 0..2 {
        let oldest = service.replicas.iter().copied().find(|pid| *pid != service.leader && runs(pid)).expect("three run");
        kill_process(Pid::from_raw(oldest).expect("a process"), Signal::KILL).expect("it lives");
        service.await_replicas();
    }
    for text in ["kept", "last"] {
        let own = client.numbers("own");
        service.replicas.iter().filter(|pid| runs(pid)).for_each(|pid| assert_eq!(numbers_of(*pid, &own), own, "process {pid}"));
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        assert_eq!(client.ask("take"), found(text));
        assert_eq!(client.ask("open"), numbers);
        assert_eq!(client.ask("close"), "closed");
        assert_eq!(client.ask("timer"), "1");
        assert_eq!(client.ask("alien"), "EDESTADDRREQ");
        service.await_replicas();
        client.ask("put last");
    }
    client.ask("take");
    drop(client);
    service.stop();
}

/// The server used to replace descriptors that its replica cannot do without, such as the one that waits for its clients.
#[test]
fn a_server_that_wants_a_number_of_the_librarys_or_of_a_connections_is_told_that_there_is_none() {
    let Some(mut service) = python::server("descriptors.py", &[]) else { return };
    let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")));
    // A descriptor that it had there before there were replicas is its own.
    assert_eq!([client.ask("onto 199"), client.ask("drop 199"), client.ask("onto 199")], ["199 199", "closed", "EBADF EBADF"]);
    let early = client.numbers("early");
    for _ in 0..2 {
        // Free numbers first, with which nothing breaks.
        for free in [253, 254, 255, 300, 16_639].into_iter().filter(|fd| !early.contains(fd)) {
            assert_eq!(client.ask(&format!("onto {free}")), "EBADF EBADF", "{free}");
        }
        let open = std::fs::read_dir(format!("/proc/{}/fd", service.leader)).expect("it runs");
        let open = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(|fd| (160..256).contains(fd));
        // It may have inherited some from this process.
        let of_library: BTreeSet<i32> = open.filter(|fd| !early.contains(fd)).collect();
        assert!(of_library.len() > 3, "{of_library:?}");
        for fd in of_library {
            assert_eq!(client.ask(&format!("onto {fd}")), "EBADF EBADF", "{fd}");
        }
        // It may have other numbers, at every replica.
        for own in [150, 159, 16_700] {
            assert_eq!(client.ask(&format!("onto {own}")), format!("{own} {own}"));
        }
        assert_eq!([client.ask("above 100"), client.ask("above 200"), client.ask("close")], ["100", "16640", "closed"]);
        client.ask("put kept");
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        let taken = client.ask("take");
        assert!([found("kept"), found("kept").replace("again 2", "again 5")].contains(&taken), "{taken}");
        service.await_replicas();
    }
    drop(client);
    service.stop();
}

/// The numbers of those of a process's descriptors that the library keeps open for as long as the process lives. What is not of these kinds, such as memory and
/// sockets, may be of a peer: the library closes that when a peer has joined, or is gone, at any time.
fn of_library(pid: i32, early: &BTreeSet<i32>) -> BTreeSet<i32> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").filter_map(Result::ok);
    let kept = open.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| {
            to.to_str().is_some_and(|to| to == "anon_inode:[eventpoll]" || to == "anon_inode:[eventfd]" || to.starts_with("pipe:"))
        })
    });
    let numbers = kept.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| (160..256).contains(fd) && !early.contains(fd)).collect()
}

/// The server used to close what waits for clients, what holds the log, and what connections are handed over through.
#[test]
fn a_server_that_closes_a_range_of_numbers_closes_its_own_and_its_connections_alone() {
    let Some(mut service) = python::server("descriptors.py", &[]) else { return };
    let connect = |service: &Service| Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")));
    let mut client = connect(&service);
    let early = client.numbers("early");
    for _ in 0..2 {
        let before = of_library(service.leader, &early);
        assert!(before.len() > 3, "{before:?}");
        let has_all = |service: &Service| assert_eq!(of_library(service.leader, &early), before);
        // In this range it had only those descriptors of its own that it had before there were replicas.
        let own: usize = client.ask("each 160 255").parse().expect("a number");
        assert!(own <= early.len());
        has_all(&service);
        for (range, answer) in [
            ("160 255 0", "closed"),
            ("160 255 4", "closed"),
            ("160 255 2", "closed"),
            ("9 8 0", "EINVAL"),
            ("16640 16650 8", "EINVAL"),
            ("4294967290 4294967295 0", "closed"),
        ] {
            assert_eq!(client.ask(&format!("range {range}")), answer, "{range}");
            has_all(&service);
        }
        // It closes what it has opened for itself, under the numbers that it has at every replica.
        let numbers = client.ask("open");
        for _ in 0..2 {
            assert_eq!([client.ask("above 16700"), client.ask("range 16640 4294967295 0")], ["16700", "closed"]);
        }
        let own = numbers.split(' ').map(|fd| fd.parse::<i32>().expect("a number")).collect::<BTreeSet<_>>();
        own.iter().for_each(|fd| assert_eq!(client.ask(&format!("range {fd} {fd} 0")), "closed"));
        assert_eq!([client.ask("open"), client.ask("close")], [numbers, "closed".to_owned()]);
        // A connection of one number, which then goes to the next connection; and all others.
        let [mut one, mut other] = [connect(&service), connect(&service)];
        let number = one.ask("self");
        assert_eq!(other.ask(&format!("range {number} {number} 0")), "closed");
        one.assert_ended();
        let mut next = connect(&service);
        assert_eq!(next.ask("self"), number);
        other.ask_for_the_end("from 160");
        next.assert_ended();
        client.assert_ended();
        client = connect(&service);
        has_all(&service);
        client.ask_for_the_end("each 160 16639");
        client = connect(&service);
        client.ask("put kept");
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        client.ask("take");
        service.await_replicas();
    }
    drop(client);
    service.stop();
}

/// Whichever call opens it.
#[test]
fn what_a_server_opens_when_all_low_numbers_are_taken_has_one_behind_the_connections() {
    let Some(mut service) = python::server("descriptors.py", &[]) else { return };
    let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")));
    for _ in 0..2 {
        // The first number belongs to what took the last low one.
        assert_eq!(client.ask("high"), "16641 16642 16643");
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        assert_eq!(client.ask("close"), "closed");
        service.await_replicas();
    }
    drop(client);
    service.stop();
}

/// The process that hands its connections over shares its table of descriptors.
#[test]
fn a_server_that_wants_a_table_of_descriptors_for_one_of_its_threads_is_told_that_there_is_none() {
    let Some(mut service) = python::server("descriptors.py", &[]) else { return };
    let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")));
    assert_eq!(client.ask("unshare"), "EINVAL");
    // With no other thread beside it, it has the table to itself anyway.
    assert_eq!(client.ask("range 9000 9000 2"), "closed");
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    service.await_replicas();
    assert_eq!([client.ask("thread"), client.ask("range 9000 9000 2")], ["0", "EINVAL"]);
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    assert_eq!([client.ask("unshare"), client.ask("range 9000 9000 2"), client.ask("range 9000 9000 0")], ["EINVAL", "EINVAL", "closed"]);
    drop(client);
    service.stop();
}

/// What the C library reads and writes for a stream is not seen.
#[test]
fn a_server_that_makes_a_stream_of_a_connection_ends_with_the_reason() {
    let Some((mut command, port)) = python::command("descriptors.py", &[]) else { return };
    let log = TempDir::new();
    let file = std::fs::File::create(log.path().join("log")).expect("a file");
    command.stderr(file);
    let mut service = Service::begin(command, port);
    let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("the server listens")));
    client.ask_for_the_end("stream");
    let code = service.command.wait().expect("ours").code();
    let said = std::fs::read_to_string(log.path().join("log")).expect("it has written");
    assert!(
        code != Some(0) && said.contains("the server calls fdopen on a connection, which this version does not capture"),
        "{code:?}: {said}"
    );
}

/// A successor is handed each connection beside the one that it makes of it.
#[test]
fn a_kill_costs_no_connection_though_the_server_has_asked_for_few_descriptors() {
    /// More than half of what is free of the soft limit.
    const CLIENTS: usize = 440;
    let Some((command, port)) = Service::command(&[], None, &["--maxclients", "600"]) else { return };
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 700 && exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    let mut service = Service::begin(limited, port);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| service.connect()).collect();
    assert_eq!(service.kill_leader(), CLIENTS as u64, "no connection is lost");
    for (count, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask("INCR shared"), format!(":{}\r\n", count + 1));
    }
    service.stop();
}

#[test]
fn a_server_that_may_have_too_few_descriptors_is_refused_and_told_how_many_it_needs() {
    let Some((command, _)) = python::command("descriptors.py", &[]) else { return };
    for (limit, says) in [
        (
            "-n 300",
            "error: the limit of file descriptors (ulimit -Hn) is 300; a server in replicas needs at least 304, and two more for each client",
        ),
        ("-Sn 200", "may have 200 descriptors (RLIMIT_NOFILE): it needs more than 256 in replicas"),
    ] {
        let mut limited = Command::new("sh");
        let script = format!("ulimit {limit} && exec \"$@\"");
        limited.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
        let output = limited.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{limit}: {said}");
    }
}
