//! Requests that crash Redis, which reports a crash as it does by default: it ends its own threads and then wants to test its memory.

use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::{Ends, Service};

/// Sends a request that crashes the server. Its client is told nothing except that its connection has ended.
fn crash(service: &mut Service, poison: &str) {
    let (before, mut client) = (service.crashed, service.connect());
    client.send(format!("{poison}\r\n").as_bytes());
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    service.await_leader();
    service.await_replicas();
    assert_eq!(service.crashed, before + 1, "{poison:?} has crashed one replica");
}

#[test]
fn a_request_that_crashes_the_server_costs_one_replica_and_is_not_executed_again() {
    const CLIENTS: usize = 4;
    let Some(mut service) = Service::start_with(&["--enable-debug-command", "yes"]) else { return };
    let (done, mut last) = (AtomicBool::new(false), service.connect());
    let acknowledged: u64 = std::thread::scope(|scope| {
        let _ends = Ends(&done);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (mut client, done) = (service.connect(), &done);
                scope.spawn(move || {
                    let mut got = 0;
                    while !done.load(Ordering::Relaxed) {
                        client.send(b"INCR shared\r\n");
                        client.number();
                        got += 1;
                    }
                    got
                })
            })
            .collect();
        // One fault that the processor finds, two that the server finds, and one in a script that was sent along with other requests.
        let poisons = [
            "DEBUG SEGFAULT",
            "DEBUG ASSERT",
            "DEBUG PANIC",
            "INCR poisoned\r\nDEBUG SEGFAULT\r\nINCR poisoned",
            "MULTI\r\nINCR poisoned\r\nDEBUG SEGFAULT\r\nEXEC",
        ];
        for poison in poisons {
            crash(&mut service, poison);
        }
        // The same signal, sent from outside, says nothing about what is being executed.
        assert_eq!(service.kill_leader_with(Signal::SEGV), CLIENTS as u64 + 1, "no connection is lost");
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    last.send(b"GET shared\r\n");
    assert_eq!(last.bulk(), acknowledged.to_string().as_bytes());
    assert_eq!(last.ask("EXISTS poisoned"), ":0\r\n", "nothing of what came along with it was executed");
    service.stop();
}

/// The first replica's threads are those that the server has started. All others are forks, and their threads have other ids than the server knows.
#[test]
fn each_kind_of_crash_costs_one_replica_wherever_it_happens() {
    for poison in ["DEBUG SEGFAULT", "DEBUG PANIC", "DEBUG ASSERT"] {
        let mut service = loop {
            let Some(service) = Service::start_with(&["--enable-debug-command", "yes"]) else { return };
            if service.leader == service.replicas[0] {
                break service;
            }
        };
        let mut client = service.connect();
        // At the first replica, then at one that was forked before the service began, then at one that was forked since.
        for count in 1..=3 {
            crash(&mut service, poison);
            assert_eq!(client.ask("INCR shared"), format!(":{count}\r\n"), "another client goes on, on its connection");
        }
        assert_eq!(service.replicas.len(), 6, "{poison} costs one replica, which is replaced");
        drop(client);
        service.stop();
    }
}
