//! A file that a server appends to, in three replicas, while leaders are killed, the file is truncated or moved away, and there is no room for more.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use super::{Service, python};
use crate::martlet::TempDir;

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, lines: &str) {
        self.0.get_mut().write_all(lines.as_bytes()).expect("the connection stands");
    }

    fn answer(&mut self) -> String {
        let mut answer = String::new();
        assert!(self.0.read_line(&mut answer).expect("the connection stands") > 0, "the connection has ended");
        answer.trim_end().to_owned()
    }

    /// Has a line appended.
    fn append(&mut self, line: &str) {
        self.send(&format!("append {line}\n"));
        assert_eq!(self.answer(), (line.len() + 1).to_string());
    }
}

#[test]
fn a_file_that_is_appended_to_has_each_line_once_and_never_a_hole() {
    let directory = TempDir::new();
    let path = directory.path().join("lines");
    fs::write(&path, "from before\n").expect("a file");
    let Some(mut service) = python::server("appended.py", &[path.to_str().expect("Unicode")]) else { return };
    let content = || fs::read_to_string(&path).expect("it is there");
    let cut = || File::options().write(true).open(&path).and_then(|file| file.set_len(0)).expect("it is truncated");
    let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")));
    client.append("first");
    // A write has room for a part, or for nothing, and the server cuts that off.
    for (room, told) in [(10, "10"), (0, "File too large")] {
        for how in ["descriptor", "path"] {
            client.send(&format!("fill {room} {how}\n"));
            assert_eq!(client.answer(), told);
            client.append(how);
        }
    }
    let mut expected = "from before\nfirst\ndescriptor\npath\ndescriptor\npath\n".to_owned();
    assert_eq!(content(), expected);
    // The next leader goes on where that has left the file.
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    service.await_replicas();
    client.append("second");
    expected += "second\n";
    assert_eq!(content(), expected);
    // A leader dies while it appends.
    for round in 0..3 {
        let lines: Vec<String> = (0..2_000).map(|number| format!("{round}.{number}")).collect();
        client.send(&lines.iter().map(|line| format!("append {line}\n")).collect::<String>());
        while content().len() == expected.len() {}
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        lines.iter().for_each(|line| assert_eq!(client.answer(), (line.len() + 1).to_string()));
        service.await_replicas();
        lines.iter().for_each(|line| expected.extend([line, "\n"]));
        assert!(content() == expected, "not each line once, in order");
    }
    // Others truncate it.
    cut();
    client.append("third");
    assert_eq!(content(), "third\n");
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    client.append("fourth");
    assert_eq!(content(), "third\nfourth\n");
    service.await_replicas();
    cut();
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    client.append("fifth");
    assert_eq!(content(), "fifth\n");
    service.await_replicas();
    // Others append to it.
    File::options().append(true).open(&path).and_then(|mut file| file.write_all(b"another's\n")).expect("it is there");
    client.append("sixth");
    assert_eq!(content(), "fifth\nanother's\nsixth\n");
    // Others move it away: the leader goes on with it, and its successor makes a new one.
    let moved = directory.path().join("moved");
    fs::rename(&path, &moved).expect("it is there");
    client.append("seventh");
    assert_eq!(service.kill_leader(), 1, "no connection is lost");
    client.append("eighth");
    assert_eq!((content().as_str(), fs::read_to_string(&moved).expect("there").lines().last()), ("eighth\n", Some("seventh")));
    service.await_replicas();
    assert_eq!(service.replicas.len(), 3 + 7, "a replica has ended that was not killed");
    drop(client);
    service.stop();
}

/// A disk of a few megabytes, which is unmounted with the test.
struct Disk<'a>(&'a Path);

impl Disk<'_> {
    /// `None`: this user may not mount one, and that is printed.
    fn mount(at: &Path) -> Option<Disk<'_>> {
        if mount("size=3m", at) {
            return Some(Disk(at));
        }
        std::io::stderr().write_all(b"\nSKIPPED: no disk was full: only root can mount a small one\n\n").expect("standard error");
        None
    }
}

fn mount(options: &str, at: &Path) -> bool {
    Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).output().is_ok_and(|done| done.status.success())
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn an_aof_that_a_full_disk_has_cut_off_is_whole_when_there_is_room_again() {
    let directory = TempDir::new();
    let Some(disk) = Disk::mount(directory.path()) else { return };
    let arguments = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0", "--dir", disk.0.to_str().expect("Unicode")];
    let Some(mut service) = Service::start_with(&arguments) else { return };
    let mut client = service.connect();
    let value = "v".repeat(100_000);
    let aof = disk.0.join("appendonlydir/appendonly.aof.1.incr.aof");
    let (mut stored, mut kills) = (0, 0);
    for size in ["size=6m", "size=30m"] {
        let refused = loop {
            assert!(stored < 100, "more than the disk has room for");
            match client.call(&["SET", &format!("key {stored}"), &value]) {
                answer if answer == "OK" => stored += 1,
                answer => break answer,
            }
        };
        assert!(refused.contains("No space left on device"), "{refused}");
        // Once a leader dies while there is no room.
        if kills > 0 {
            assert_eq!(service.kill_leader(), 1, "no connection is lost");
            kills += 1;
            service.await_replicas();
        }
        assert!(mount(&format!("remount,{size}"), disk.0), "it is mounted");
        // Redis looks again each second.
        while client.call(&["SET", &format!("key {stored}"), "after"]) != "OK" {}
        stored += 1;
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        kills += 1;
        assert_eq!(client.call(&["SET", &format!("key {stored}"), "after a kill"]), "OK");
        stored += 1;
        assert!(!fs::read(&aof).expect("it is there").contains(&0), "it has a hole");
        service.await_replicas();
    }
    // Each value whose write failed was stored, all the same: Redis says so only from the next write on.
    assert_eq!(client.call(&["DBSIZE"]), stored.to_string());
    drop(client);
    service.stop();
    let Some(service) = Service::start_with(&arguments) else { return };
    let mut client = service.connect();
    assert_eq!(client.call(&["DBSIZE"]), stored.to_string());
    assert_eq!(client.call(&["GET", &format!("key {}", stored - 1)]), "after a kill");
    drop(client);
    service.stop();
}
