//! A redis-server, plain or in replicas, in a directory of its own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Programs, trouble};
use crate::family::Family;

/// How often to check what is waited for.
pub const LOOK: Duration = Duration::from_millis(20);
/// How long a server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many replicas a server has.
const WANTED: u64 = 3;
/// How long a server's remaining processes may take to go after it has ended.
const GOING: Duration = Duration::from_secs(5);

/// A server that runs. If it is dropped without [`Server::stop`], the family ends it.
pub struct Server {
    process: Child,
    /// The port at which it listens, at 127.0.0.1.
    pub port: u16,
    replicas: Option<Replicas>,
}

/// Its replicas, as `martlet run` reports them.
struct Replicas {
    events: BufReader<File>,
    /// The beginning of an event that has not been written completely.
    begun: String,
    leader: Option<i32>,
    whole: bool,
    killed: BTreeSet<i32>,
    /// How many killed replicas have not been reported as ended yet. Until they are, what is reported of the others may be older.
    dying: usize,
    lost: Vec<String>,
}

impl Server {
    /// Starts one, in replicas if there are programs for that, with more arguments for `martlet run` and for the server. Its output goes to `server.log` and
    /// `events` in the directory, and its data below `data`.
    ///
    /// # Errors
    /// When it does not start to serve.
    /// When it does not come to serve.
    pub fn start(
        programs: Option<(&Programs, &[String])>,
        arguments: &[&str],
        directory: &Path,
        family: &Family,
    ) -> Result<Server, String> {
        let data = directory.join("data");
        fs::create_dir_all(&data).map_err(trouble(&data))?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|e| format!("no port: {e}"))?.port();
        let (log, events) = (directory.join("server.log"), directory.join("events"));
        let said = File::create(&log).map_err(trouble(&log))?;
        let mut command = match programs {
            None => Command::new("redis-server"),
            Some((programs, own)) => {
                let mut command = Command::new(&programs.martlet);
                command.args(["run", "--json", "--preload"]).arg(&programs.library).args(own).args(["--", "redis-server"]);
                command
            }
        };
        command.args(["--port", &port.to_string(), "--dir"]).arg(&data).args(arguments).current_dir(&data).stdin(Stdio::null());
        let output = match programs {
            None => said.try_clone().map_err(trouble(&log))?,
            Some(_) => File::create(&events).map_err(trouble(&events))?,
        };
        let name = command.get_program().display().to_string();
        let process = command.stdout(output).stderr(said).spawn().map_err(|e| format!("{name} does not run: {e}"))?;
        let replicas = match programs {
            None => None,
            Some(_) => Some(Replicas {
                events: BufReader::new(File::open(&events).map_err(trouble(&events))?),
                begun: String::new(),
                leader: None,
                whole: false,
                killed: BTreeSet::new(),
                dying: 0,
                lost: Vec::new(),
            }),
        };
        let mut server = Server { process, port, replicas };
        server.wait(family, "serves", |server| server.replicas.as_ref().is_none_or(|replicas| replicas.whole) && server.answers())?;
        Ok(server)
    }

    fn answers(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 7];
            stream.read_exact(&mut answer).map(|()| answer == *b"+PONG\r\n")
        };
        ask().unwrap_or(false)
    }

    /// Waits until the condition holds.
    fn wait(&mut self, family: &Family, what: &str, mut is_so: impl FnMut(&mut Server) -> bool) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            family.check()?;
            self.look();
            if is_so(self) {
                return Ok(());
            }
            if self.has_ended() {
                return Err(format!("the server has ended before it {what}"));
            }
            if Instant::now() >= end {
                return Err(format!("it takes the server more than {} s until it {what}", PATIENCE.as_secs()));
            }
            thread::sleep(LOOK);
        }
    }

    /// Reads what has been reported about its replicas.
    pub fn look(&mut self) {
        if let Some(replicas) = &mut self.replicas {
            replicas.read();
        }
    }

    /// Whether it has ended. A server in replicas ends when too few of them are left.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills the leading replica, if all replicas hold the state. Returns whether it did.
    pub fn kill_leader(&mut self) -> bool {
        self.look();
        let Some(replicas) = self.replicas.as_mut().filter(|replicas| replicas.whole) else { return false };
        let Some(leader) = replicas.leader.take() else { return false };
        replicas.whole = false;
        replicas.killed.insert(leader);
        replicas.dying += 1;
        Pid::from_raw(leader).is_some_and(|leader| kill_process(leader, Signal::KILL).is_ok())
    }

    /// How many replicas [`Server::kill_leader`] has killed.
    pub fn kills(&self) -> usize {
        self.replicas.as_ref().map_or(0, |replicas| replicas.killed.len())
    }

    /// The replicas that have ended without being killed by [`Server::kill_leader`], and how.
    pub fn lost(&self) -> &[String] {
        self.replicas.as_ref().map_or(&[], |replicas| &replicas.lost)
    }

    /// Ends it, and makes sure that nothing of it is left. Returns what was left.
    ///
    /// # Errors
    /// When the command is interrupted meanwhile.
    pub fn stop(mut self, family: &Family) -> Result<Vec<String>, String> {
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()).filter(|_| !self.has_ended()) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
        let ended = self.wait(family, "has ended", Server::has_ended);
        family.check()?;
        // What the kernel is still taking down goes by itself.
        let end = Instant::now() + GOING;
        let mut left = family.describe();
        while !left.is_empty() && Instant::now() < end {
            thread::sleep(LOOK);
            left = family.describe();
        }
        if let Err(why) = ended {
            left.insert(0, why);
        }
        family.end();
        Ok(left)
    }
}

impl Replicas {
    fn read(&mut self) {
        while self.events.read_line(&mut self.begun).is_ok_and(|read| read > 0) && self.begun.ends_with('\n') {
            let line = std::mem::take(&mut self.begun);
            // The server's own output is elsewhere, so a line that is no event can be ignored.
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            self.hear(&event);
        }
    }

    fn hear(&mut self, event: &Value) {
        let pid = || event["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        match event["event"].as_str() {
            Some("leads") => self.leader = pid(),
            // This is also reported when two replicas hold the state and the third is not there yet.
            Some("replicas") => self.whole = event["replicas"] == WANTED && self.dying == 0,
            Some("ended") => {
                self.whole = false;
                let pid = pid();
                if self.leader == pid {
                    self.leader = None;
                }
                if pid.is_some_and(|pid| self.killed.contains(&pid)) {
                    self.dying = self.dying.saturating_sub(1);
                } else {
                    self.lost.push(format!("replica {}: {}", event["replica"], event["how"].as_str().unwrap_or("in an unknown way")));
                }
            }
            _ => {}
        }
    }
}
