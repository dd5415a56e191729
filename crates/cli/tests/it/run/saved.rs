//! The files that a server writes, while leaders are killed: there is one of each, where the server's settings place it, and it is whole.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Client, Service};

/// A directory for a server's files, which is deleted with the test.
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
    // Another save, at the new leader, and one that the server does in the foreground.
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

/// What followers are told of the reads of a round must have room on the board until they come to that round, which is when the leader has finished it.
#[test]
fn many_rewrites_of_a_long_configuration_in_one_round_end_no_replica() {
    const LINES: usize = 900;
    const LINE_BYTES: usize = 1_000;
    /// How often each client asks. What one client's requests read takes more bytes to tell than the board keeps.
    const TIMES: usize = 45;
    let home = Home::new("rewrites");
    let configuration = home.0.join("redis.conf").to_str().expect("Unicode").to_owned();
    let line = format!("#{}\n", "c".repeat(LINE_BYTES - 2));
    std::fs::write(&configuration, line.repeat(LINES)).expect("a file");
    let Some(mut service) = Service::start_from(&[], Some(&configuration), &[]) else { return };
    let mut clients: Vec<Client> = (0..2).map(|_| service.connect()).collect();
    for client in &mut clients {
        client.send("CONFIG REWRITE\r\n".repeat(TIMES).as_bytes());
    }
    for client in &mut clients {
        (0..TIMES).for_each(|_| assert_eq!(client.answer(), "OK"));
    }
    clients[0].send_words(&["INCR", "rewrites"]);
    assert_eq!(clients[0].number(), 1);
    assert_eq!(service.kill_leader(), 2, "no connection is lost");
    clients[1].send_words(&["INCR", "rewrites"]);
    assert_eq!(clients[1].number(), 2);
    service.await_replicas();
    assert_eq!(service.replicas.len(), 4, "a replica has ended that was not killed");
    let written = std::fs::read_to_string(&configuration).expect("it is there");
    assert_eq!(written.matches(&line).count(), LINES, "nothing of it is lost");
    drop(clients);
    service.stop();
}

/// Whatever a client asks for that makes the server read or write files, each replica does the same, even when it gets there after the leader has been asked
/// for more.
#[test]
fn no_request_that_touches_files_ends_a_replica() {
    /// About as many bytes as the comments of Redis's own configuration file.
    const COMMENTS: usize = 100_000;
    let home = Home::new("walk");
    let path = |name: &str| home.0.join(name).to_str().expect("Unicode").to_owned();
    let (configuration, users) = (path("redis.conf"), path("users.acl"));
    std::fs::write(&configuration, format!("{}hz 11\naclfile {users}\n", "# as it comes\n".repeat(COMMENTS / 14))).expect("a file");
    std::fs::write(&users, "").expect("a file");
    ["first", "second"].iter().for_each(|name| std::fs::create_dir(home.0.join(name)).expect("a directory"));
    let permit = ["--enable-debug-command", "yes", "--enable-protected-configs", "yes", "--rdbcompression", "no"];
    let arguments = [&["--dir", home.path()], &permit[..]].concat();
    let Some(mut service) = Service::start_from(&[], Some(&configuration), &arguments) else { return };
    let mut client = service.connect();
    fill(&mut client, 0, 1_000);
    let ok = |client: &mut Client, words: &[&str]| assert_eq!(client.call(words), "OK", "{words:?}");
    let settle = |client: &mut Client| {
        let busy = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled"];
        while busy.iter().any(|name| info(client, name) == "1") {}
        for name in ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"] {
            assert_eq!(info(client, name), "ok", "{name}");
        }
    };
    for (round, name) in ["first", "second"].into_iter().enumerate() {
        // Sent at once: followers read the first file after the last has been written.
        let rewrites: Vec<String> = (1..=5).map(|at| format!("CONFIG SET hz {}\r\nCONFIG REWRITE\r\n", 20 + 10 * round + at)).collect();
        client.send(rewrites.concat().as_bytes());
        (0..2 * rewrites.len()).for_each(|_| assert_eq!(client.answer(), "OK"));
        ok(&mut client, &["CONFIG", "SET", "dir", &path(name)]);
        ok(&mut client, &["CONFIG", "SET", "dbfilename", &format!("{name}.rdb")]);
        ok(&mut client, &["SAVE"]);
        ok(&mut client, &["CONFIG", "SET", "appendonly", "yes"]);
        settle(&mut client);
        client.send_words(&["INCR", "rounds"]);
        assert_eq!(client.number(), round as u64 + 1);
        client.call(&["BGREWRITEAOF"]);
        settle(&mut client);
        ok(&mut client, &["DEBUG", "LOADAOF"]);
        ok(&mut client, &["CONFIG", "SET", "appendonly", "no"]);
        client.call(&["BGSAVE"]);
        settle(&mut client);
        ok(&mut client, &["DEBUG", "RELOAD"]);
        ok(&mut client, &["ACL", "SETUSER", name, "on", ">secret", "~*", "+@all"]);
        ok(&mut client, &["ACL", "SAVE"]);
        ok(&mut client, &["ACL", "LOAD"]);
        ok(&mut client, &["CONFIG", "REWRITE"]);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest, "{round}");
        assert_eq!((client.call(&["DBSIZE"]), client.call(&["GET", "key 999"])), ("1001".into(), "value 999".into()));
        ok(&mut client, &["CONFIG", "REWRITE"]);
        service.await_replicas();
        assert_eq!(service.replicas.len(), 4 + round, "a replica has ended that was not killed");
        assert!(home.0.join(name).join(format!("{name}.rdb")).exists());
    }
    let written = std::fs::read_to_string(&configuration).expect("it is there");
    for line in ["hz 35", &format!("dir \"{}\"", path("second")), "dbfilename \"second.rdb\""] {
        assert!(
            written.lines().any(|written| written.replace('"', "") == line.replace('"', "")),
            "{line:?} in {}",
            &written[COMMENTS - 100..]
        );
    }
    assert_eq!(written.matches("# as it comes\n").count(), COMMENTS / 14, "nothing of it is lost");
    // More than is told of a file, so each replica reads it itself.
    ok(&mut client, &["SET", "long", &"x".repeat(3 << 20)]);
    ok(&mut client, &["DEBUG", "RELOAD"]);
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    assert_eq!(client.call(&["STRLEN", "long"]), (3 << 20).to_string());
    service.await_replicas();
    assert_eq!(service.replicas.len(), 6, "a replica has ended that was not killed");
    drop(client);
    service.stop();
    assert!(
        names_in(&home.0).iter().all(|name| ["redis.conf", "users.acl", "first", "second"].contains(&name.as_str())),
        "{:?}",
        home.names()
    );
    // A service starts from what has been written.
    let Some(service) = Service::start_from(&[], Some(&configuration), &[]) else { return };
    let mut client = service.connect();
    assert_eq!((client.call(&["DBSIZE"]), client.call(&["ACL", "USERS"])), ("1002".into(), "[default first second]".into()));
    assert_eq!(client.call(&["CONFIG", "GET", "hz"]), "[hz 35]");
    drop(client);
    service.stop();
}

#[test]
fn a_client_that_asks_for_memory_while_some_is_freed_keeps_its_connection() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    let fill = "for at = 1, 200000 do redis.call('SADD', KEYS[1], 'member ' .. at) end";
    for freed in [&["UNLINK", "large"][..], &["FLUSHALL", "ASYNC"]] {
        assert_eq!(client.call(&["EVAL", fill, "1", "large"]), "nil");
        // All at once, so that the answers are computed while memory is being freed.
        client.send_words(freed);
        let asks = [&["INFO"][..], &["MEMORY", "STATS"], &["INFO", "memory"], &["INFO", "stats"], &["INFO", "clients"]];
        asks.iter().for_each(|words| client.send_words(words));
        client.answer();
        let all = client.answer();
        assert!(["used_memory:", "lazyfreed_objects:", "total_net_output_bytes:"].iter().all(|name| all.contains(name)), "{all}");
        asks[1..].iter().for_each(|_| assert!(client.answer().len() > 100));
        for _ in 0..2 {
            service.kill_leader();
            assert_eq!(client.call(&["DBSIZE"]), "0", "its connection stands");
            service.await_replicas();
        }
    }
    drop(client);
    service.stop();
}

#[test]
fn a_stored_value_that_looks_like_what_replicas_word_differently_is_read_as_any_other() {
    /// One answer to each of so many clients is more than is kept of what leaders say.
    const READERS: usize = 320;
    /// Their answers are more than one round may keep of what leaders say, and no more than followers may lag behind by, however little processor time they
    /// get.
    const ASKERS: usize = 60;
    const LONG: usize = 10;
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    let text = client.call(&["INFO"]);
    // As long as the output that is searched, and longer.
    let [short, long] = [120 << 10, 1 << 20].map(|bytes| text.repeat(bytes / text.len()));
    assert_eq!(client.call(&["SET", "short", &short]), "OK");
    assert_eq!(client.call(&["SET", "long", &long]), "OK");
    let mut readers: Vec<Client> = (0..READERS).map(|_| service.connect()).collect();
    for count in [READERS, ASKERS] {
        let readers = &mut readers[..count];
        // While the server is busy with this they all ask, so that it answers them in one round.
        client.send_words(&["EVAL", "for at = 1, 5e7 do end", "0"]);
        readers.iter_mut().for_each(|reader| reader.send_words(&["GET", "short"]));
        assert_eq!(client.answer(), "nil");
        readers.iter_mut().for_each(|reader| assert!(reader.answer() == short, "something else, of {count}"));
        // From here on these clients are sent the leader's words.
        readers.iter_mut().take(ASKERS).for_each(|reader| assert!(reader.call(&["INFO"]).contains("used_memory:")));
    }
    readers.iter_mut().take(LONG).for_each(|reader| reader.send_words(&["GET", "long"]));
    assert_eq!(service.kill_leader(), READERS as u64 + 1, "no connection is lost");
    readers.iter_mut().take(LONG).for_each(|reader| assert!(reader.answer() == long, "something else"));
    service.await_replicas();
    assert_eq!(service.replicas.len(), 4, "a replica has ended that was not killed");
    drop((client, readers));
    service.stop();
}

#[test]
fn a_follower_that_gets_no_core_for_a_moment_is_waited_for_before_it_has_missed_what_the_leader_said() {
    /// So many answers are twice as much as is kept of what leaders say.
    const ANSWERS: usize = 550;
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    let text = client.call(&["INFO"]);
    let value = text.repeat((120 << 10) / text.len());
    assert_eq!(client.call(&["SET", "value", &value]), "OK");
    let pid = service.replicas.iter().copied().find(|pid| *pid != service.leader).expect("three run");
    let follower = Pid::from_raw(pid).expect("a process");
    kill_process(follower, Signal::STOP).expect("it lives");
    std::thread::scope(|scope| {
        let ((tell, done), value) = (channel(), &value);
        scope.spawn(move || {
            client.send("GET value\r\n".repeat(ANSWERS).as_bytes());
            (0..ANSWERS).for_each(|_| assert!(client.answer() == *value, "something else"));
            tell.send(client).expect("it is waited for");
        });
        // Either the leader has gone on without the follower, which is the bug, or it waits for it.
        let early = done.recv_timeout(Duration::from_secs(1)).ok();
        kill_process(follower, Signal::CONT).expect("it lives");
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        let mut client = early.unwrap_or_else(|| done.recv().expect("all is answered"));
        service.await_replicas();
        assert_eq!(service.replicas.len(), 4, "a replica has ended that was not killed");
        assert_eq!(client.call(&["STRLEN", "value"]), value.len().to_string());
    });
    service.stop();
}

#[test]
fn a_server_that_refuses_to_end_goes_on_and_is_told_each_time_that_it_is_to() {
    let home = Home::new("refused");
    let (data, log) = (home.0.join("dump.rdb"), home.0.join("log"));
    let arguments = ["--dir", home.path(), "--logfile", log.to_str().expect("Unicode"), "--save", "900 1"];
    let Some(mut service) = Service::start_with(&arguments) else { return };
    let mut client = service.connect();
    assert_eq!(client.call(&["SET", "kept", "1"]), "OK");
    // The server cannot save, because a directory has the file's name.
    std::fs::create_dir(&data).expect("a directory");
    let refused = || std::fs::read_to_string(&log).expect("a log").matches("can't exit").count();
    for times in 1..=2 {
        let pid = Pid::from_child(&service.command);
        kill_process(pid, Signal::TERM).expect("it runs");
        while refused() < times {
            // The server serves meanwhile.
            assert_eq!(client.call(&["GET", "kept"]), "1");
        }
    }
    // The next leader is told as well, and can refuse just the same.
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    service.await_replicas();
    while refused() < 3 {
        assert_eq!(client.call(&["GET", "kept"]), "1");
    }
    std::fs::remove_dir(&data).expect("it is empty");
    drop(client);
    service.stop();
    assert!(data.is_file(), "it has saved what it had");
}
