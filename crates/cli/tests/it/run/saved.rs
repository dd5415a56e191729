//! The files that a server writes, through kills of the leader: there is one of each, where the server's settings have it, and it is whole.

use std::path::{Path, PathBuf};

use super::{Client, Service};

/// A directory for a server's files, which goes with the test.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Home {
        let path = std::env::temp_dir().join(format!("martlet-run-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory");
        Home(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("Unicode")
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = names_in(&self.0);
        names.sort();
        names
    }
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("Unicode")).collect()
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fill(client: &mut Client, from: usize, to: usize) {
    for at in from..to {
        client.send_words(&["SET", &format!("key {at}"), &format!("value {at}")]);
        if at % 100 == 99 || at + 1 == to {
            (0..(at % 100) + 1).for_each(|_| assert_eq!(client.answer(), "OK"));
        }
    }
}

/// A line of `INFO persistence`.
fn info(client: &mut Client, name: &str) -> String {
    let all = client.call(&["INFO", "persistence"]);
    let line = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {all}")).trim().to_owned()
}

#[test]
fn a_save_in_the_background_outlives_the_leader_that_began_it_and_is_loaded_by_all() {
    let home = Home::new("saved");
    let log = home.0.join("log");
    let arguments = [
        "--dir",
        home.path(),
        "--logfile",
        log.to_str().expect("Unicode"),
        "--pidfile",
        "own.pid",
        "--loglevel",
        "notice",
        "--rdb-key-save-delay",
        "200",
    ];
    let Some(mut service) = Service::start_with(&arguments) else { return };
    assert_eq!(std::fs::read_to_string(home.0.join("own.pid")).expect("it is written").trim(), service.command.id().to_string());
    let mut client = service.connect();
    fill(&mut client, 0, 4_000);
    // A leader dies while its child saves, which takes nearly a second.
    let before = client.call(&["LASTSAVE"]);
    assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
    assert_eq!(info(&mut client, "rdb_bgsave_in_progress"), "1");
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    fill(&mut client, 4_000, 4_100);
    while info(&mut client, "rdb_bgsave_in_progress") == "1" {}
    assert_eq!((info(&mut client, "rdb_last_bgsave_status"), client.call(&["LASTSAVE"]) >= before), ("ok".into(), true));
    service.await_replicas();
    assert_eq!(home.names(), ["dump.rdb", "log", "own.pid"], "one of each, and nothing else");
    // Another one, at the new leader, and one that the server makes itself.
    for word in ["BGSAVE", "SAVE"] {
        client.call(&[word]);
        while info(&mut client, "rdb_bgsave_in_progress") == "1" {}
        assert_eq!(info(&mut client, "rdb_last_bgsave_status"), "ok");
    }
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    service.await_replicas();
    assert_eq!(client.call(&["DBSIZE"]), "4100");
    drop(client);
    service.stop();
    assert_eq!(home.names(), ["dump.rdb", "log"]);
    let said = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(said.matches("Ready to accept connections").count(), 1, "one log, in which everything stands once: {said}");
    assert_eq!(said.matches("DB saved on disk").count(), 3, "{said}");
    // What was saved is loaded once, and all replicas have it.
    let Some(mut service) = Service::start_with(&arguments[..8]) else { return };
    let mut client = service.connect();
    for _ in 0..2 {
        assert_eq!((client.call(&["DBSIZE"]), client.call(&["GET", "key 4099"])), ("4100".into(), "value 4099".into()));
        service.kill_leader();
        service.await_replicas();
    }
    drop(client);
    service.stop();
}

#[test]
fn a_client_that_asks_for_what_only_a_process_knows_keeps_its_connection() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    for _ in 0..3 {
        let all = client.call(&["INFO", "everything"]);
        assert!(all.contains("process_id:") && all.contains("used_cpu_sys:"), "{all}");
        client.call(&["MEMORY", "STATS"]);
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        service.await_replicas();
    }
    assert_eq!(client.call(&["PING"]), "PONG");
    drop(client);
    service.stop();
}
