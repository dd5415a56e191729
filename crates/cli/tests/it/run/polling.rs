//! Servers that wait for their clients by `poll`, by `select`, and by `epoll` and `poll` in turn, in three replicas.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::{Service, library, python};

/// More than a connection's window and the kernel's buffers hold.
const LONG_BYTES: usize = 6 << 20;

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(service: &Service) -> Client {
        Client(BufReader::new(TcpStream::connect(("127.0.0.1", service.port)).expect("the server listens")))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("the connection stands");
    }

    /// Waits for the first bytes of an answer.
    fn begin_answer(&mut self) {
        assert!(!self.0.fill_buf().expect("the connection stands").is_empty(), "the connection has ended");
    }

    /// The count in an answer, and the length of the data that came with it.
    fn answer(&mut self) -> (u64, usize) {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).expect("the connection stands") > 0, "the connection has ended");
        let (count, rest) = line.trim_end().split_once(':').unwrap_or_else(|| panic!("{line:?}"));
        assert!(rest.bytes().all(|byte| byte == b'x'));
        (count.parse().unwrap_or_else(|_| panic!("{line:?}")), rest.len())
    }
}

#[test]
fn servers_that_wait_by_poll_and_select_go_on_with_their_clients_connections_and_counts() {
    for how in ["poll", "select", "both"] {
        let Some(mut service) = python::server("polling.py", &[how]) else { return };
        let mut clients = [Client::connect(&service), Client::connect(&service)];
        let mut count = 0;
        for _ in 0..2 {
            for client in &mut clients {
                client.send("1\n2\n");
                assert_eq!([client.answer(), client.answer()], [(count + 1, 1), (count + 2, 2)], "{how}");
                count += 2;
            }
            // When the leader dies, one request is half received, and one answer is half sent.
            clients[0].send("1");
            clients[1].send(&format!("{LONG_BYTES}\n"));
            assert_eq!(service.kill_leader(), 2, "{how}: no connection is lost");
            assert_eq!(clients[1].answer(), (count + 1, LONG_BYTES), "{how}");
            clients[0].send("0\n");
            assert_eq!(clients[0].answer(), (count + 2, 10), "{how}");
            count += 2;
            service.await_replicas();
        }
        let [gone, mut left] = clients;
        drop(gone);
        // Some connect while the server waits only for room to write. It accepts one connection at a time, and answers the first one while another is not
        // accepted yet.
        left.send(&format!("{LONG_BYTES}\n"));
        left.begin_answer();
        let mut queued = [(); 3].map(|()| {
            let mut client = Client::connect(&service);
            client.send("0\n");
            client
        });
        assert_eq!(left.answer(), (count + 1, LONG_BYTES), "{how}");
        let counts = queued.each_mut().map(Client::answer);
        assert_eq!(counts, [(count + 2, 0), (count + 3, 0), (count + 4, 0)], "{how}");
        drop(queued);
        let ask_how_many = || {
            left.send("clients\n");
            left.answer().1
        };
        // Until the server has heard that the others have gone.
        assert!(std::iter::repeat_with(ask_how_many).any(|clients| clients == 1));
        assert_eq!(service.kill_leader(), 1, "{how}: one has gone");
        service.await_replicas();
        service.stop();
    }
}

#[test]
fn a_signal_comes_while_the_server_waits_with_the_mask_that_it_waits_with() {
    for how in ["ppoll", "pselect"] {
        let Some(service) = python::server("masks.py", &[how]) else { return };
        let mut client = Client::connect(&service);
        client.send("0\n");
        assert_eq!(client.answer(), (0, 0), "{how}: none has come");
        kill_process(Pid::from_child(&service.command), Signal::TERM).expect("it runs");
        let ask = || {
            client.send("3\n");
            client.answer()
        };
        assert!(std::iter::repeat_with(ask).any(|answer| answer == (1, 3)), "{how}");
        drop(client);
        // The second signal, which ends it.
        service.stop();
    }
}

#[test]
fn a_server_whose_threads_take_turns_polls_what_it_polls_checked() {
    let Some(python) = python::executable() else { return };
    let cluster = format!("name = \"run-none\"\nkey = \"{}\"\n[[node]]\nnumber = 0\n", "5a".repeat(32));
    let asked = Command::new(python)
        .args(["-c", include_str!("checked.py")])
        .envs([("MARTLET_RUN", "none"), ("MARTLET_RUN_CLUSTER", cluster.as_str()), ("MARTLET_RUN_TURNSTILE", "1")])
        .env("LD_PRELOAD", library())
        .output()
        .expect("it runs");
    let (said, errors) = (String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
    assert_eq!(said, "ppoll EINVAL, __ppoll_chk 0, poll EINVAL, __poll_chk 0\n", "{errors}");
}
