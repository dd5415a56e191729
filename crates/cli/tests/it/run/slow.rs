//! Requests that take long.

use super::Service;

#[test]
fn a_request_that_takes_longer_than_a_replica_may_be_silent_costs_none() {
    /// Longer than a replica may go without a sign of life.
    const SECONDS: u64 = 7;
    // With one engine the followers elect a leader, with the other a view names it. Both run at once, since they only wait.
    std::thread::scope(|scope| {
        for engine in ["mu", "hsuc"] {
            scope.spawn(move || outlive_a_long_request(engine, SECONDS));
        }
    });
}

fn outlive_a_long_request(engine: &str, seconds: u64) {
    let Some(mut service) = Service::start_as(&["--engine", engine], &["--enable-debug-command", "yes"]) else { return };
    let (mut slow, mut other) = (service.connect(), service.connect());
    slow.send(format!("DEBUG SLEEP {seconds}\r\n").as_bytes());
    assert_eq!(other.ask("INCR shared"), ":1\r\n", "it waits for its turn");
    assert_eq!(slow.line(), "+OK\r\n");
    let entry = other.call(&["SLOWLOG", "GET", "1"]);
    let took = entry.split(' ').nth(2).and_then(|took| took.parse::<u64>().ok());
    assert!(took.is_some_and(|took| took >= seconds * 1_000_000), "{entry}");
    // Its followers are still executing the request, except with an engine in which each has to acknowledge what came after. Should the leader die, one of them
    // goes on when it has finished.
    assert_eq!(service.replicas.len(), 3, "{engine}: a replica was lost");
    service.kill_leader();
    assert_eq!(other.ask("INCR shared"), ":2\r\n");
    service.await_replicas();
    assert_eq!(service.replicas.len(), 4, "{engine}: a replica has ended that was not killed");
    service.stop();
}

#[test]
fn a_script_that_runs_for_ever_is_killed_by_a_client_also_when_the_leader_is_killed_meanwhile() {
    let Some(mut service) = Service::start_with(&["--busy-reply-threshold", "100"]) else { return };
    let (mut script, mut other) = (service.connect(), service.connect());
    for round in 1..=2 {
        script.send_words(&["EVAL", "while true do end", "0"]);
        while !other.ask("PING").starts_with("-BUSY") {}
        if round == 2 {
            assert_eq!(service.kill_leader(), 2, "no connection is lost");
            assert!(other.ask("PING").starts_with("-BUSY"), "it runs on");
        }
        assert_eq!(other.ask("SCRIPT KILL"), "+OK\r\n");
        let answer = script.answer();
        assert!(answer.starts_with("ERR Script killed by user"), "{answer}");
        assert_eq!(script.ask("INCR shared"), format!(":{round}\r\n"));
    }
    service.await_replicas();
    assert_eq!(service.replicas.len(), 4, "a replica has ended that was not killed");
    service.stop();
}
