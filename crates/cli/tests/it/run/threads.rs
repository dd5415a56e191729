//! Servers with more threads than the one that waits for clients, in three replicas.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use super::{Service, python};
use crate::martlet::TempDir;

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(service: &Service) -> Client {
        Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")))
    }

    fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).expect("the connection stands");
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        let mut answer = String::new();
        assert!(self.0.read_line(&mut answer).expect("the connection stands") > 0, "the connection has ended");
        answer.trim_end().to_owned()
    }
}

#[test]
fn a_server_whose_threads_end_goes_on_and_is_forked() {
    let Some(mut service) = python::server("threads.py", &["brief"]) else { return };
    let mut client = Client::connect(&service);
    for kill in 0..2 {
        for line in 0..5 {
            assert_eq!(client.ask("end"), format!("{}:", 5 * kill + line + 1));
        }
        assert_eq!(service.kill_leader(), 1, "no connection is lost");
        service.await_replicas();
    }
    assert_eq!(client.ask("end"), "11:");
    drop(client);
    service.stop();
}

#[test]
fn a_server_that_answers_on_another_thread_ends_with_the_reason() {
    let Some((mut command, port)) = python::command("threads.py", &["brief"]) else { return };
    let log = TempDir::new();
    command.stderr(File::create(log.path().join("log")).expect("a file"));
    let mut service = Service::begin(command, port);
    Client::connect(&service).send("other");
    let code = service.command.wait().expect("ours").code();
    let said = std::fs::read_to_string(log.path().join("log")).expect("it has written");
    assert!(code != Some(0) && said.contains("uses a client's connection on another thread"), "{code:?}: {said}");
}

#[test]
fn a_server_whose_other_thread_never_rests_is_not_replicated_and_ends_with_the_reason() {
    let Some((mut command, _)) = python::command("threads.py", &["busy"]) else { return };
    let ran = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("the server cannot be replicated: of its threads python"), "{said}");
}
