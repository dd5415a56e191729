//! A server under `martlet run`, started by a benchmark: what is said of its replicas, and their deaths.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::scratch::Scratch;
use martlet_node::clock;
use martlet_node::config::EngineKind;
use martlet_protocol::basics::Time;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;

/// How long the service may take to be whole, or to end, before something is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Lines of the server's own output that are kept for an error.
const LINES_KEPT: usize = 20;

/// A redis-server in three replicas. It ends with the value.
pub struct Service {
    command: Child,
    events: Receiver<Value>,
    /// The last lines of standard error.
    said: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    interrupt: Interrupt,
    port: u16,
    leader: Option<Pid>,
    /// Replicas that hold the state, once all that live do.
    whole: u64,
    /// Replicas that live.
    living: Vec<u32>,
    /// Connections that the leader had when it began to lead.
    connections: u64,
    /// The process group of the replicas, and of what keeps their connections.
    group: Option<Pid>,
    /// The servers' directory.
    _scratch: Scratch,
}

impl Service {
    /// Starts one, with that engine or the usual one, and waits until three replicas hold the state.
    pub fn start(port: u16, engine: Option<EngineKind>, preload: Option<&Path>, interrupt: &Interrupt) -> Outcome<Service> {
        // Debian's setpriv lets the kernel end it with us, should we be killed; it then ends the replicas.
        let own = own_command()?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(own.get_program()).args(["run", "--json"]);
        if let Some(engine) = engine {
            command.args(["--engine", engine.name()]);
        }
        if let Some(file) = preload {
            command.arg("--preload").arg(file);
        }
        // Not where the benchmark was started: a server loads the data that it finds there.
        let scratch = Scratch::new("bench-run").context("cannot make a temporary directory")?;
        command.args(["--", "redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
        command.arg("--dir").arg(scratch.path());
        let mut command =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start setpriv")?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (tell, events) = channel();
        let output = command.stdout.take().expect("piped");
        let errors = command.stderr.take().expect("piped");
        let keep = Arc::clone(&said);
        let readers = vec![
            each_line(output, move |line| {
                // An event that is none ends the benchmark where it waits for one.
                let _ = serde_json::from_str(&line).map(|event| tell.send(event));
            }),
            each_line(errors, move |line| {
                let mut kept = keep.lock().expect("nobody panics with it");
                kept.push_back(line);
                let surplus = kept.len().saturating_sub(LINES_KEPT);
                kept.drain(..surplus);
            }),
        ];
        let interrupt = interrupt.clone();
        let mut service = Service {
            command,
            events,
            said,
            readers,
            interrupt,
            port,
            leader: None,
            whole: 0,
            living: Vec::new(),
            connections: 0,
            group: None,
            _scratch: scratch,
        };
        service.await_whole()?;
        Ok(service)
    }

    /// The process that leads.
    pub fn leader(&self) -> Outcome<Pid> {
        self.leader.ok_or_else(|| Fail::wrong("no replica leads"))
    }

    /// The processes of the replicas that live.
    pub fn replicas(&self) -> Vec<u32> {
        self.living.clone()
    }

    /// Waits until three replicas hold the state.
    pub fn await_whole(&mut self) -> Outcome {
        self.until("three replicas hold the state", |service| service.leader.is_some() && service.whole == 3)
    }

    /// Waits until somebody leads. Returns how many connections it had then.
    pub fn await_leader(&mut self) -> Outcome<u64> {
        self.until("a replica leads", |service| service.leader.is_some())?;
        Ok(self.connections)
    }

    /// Kills the leader. Returns when, and a descriptor that says when it is dead.
    pub fn kill_leader(&mut self) -> Outcome<(Time, OwnedFd)> {
        self.listen()?;
        let leader = self.leader()?;
        let handle = pidfd_open(leader, PidfdFlags::empty()).context("the leader has gone by itself")?;
        (self.leader, self.whole) = (None, 0);
        let struck = clock::now();
        pidfd_send_signal(&handle, Signal::KILL).context("cannot kill the leader")?;
        Ok((struck, handle))
    }

    /// Takes what has been said.
    fn listen(&mut self) -> Outcome {
        while let Ok(event) = self.events.try_recv() {
            self.hear(&event)?;
        }
        Ok(())
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Service) -> bool) -> Outcome {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            self.interrupt.check()?;
            match self.events.recv_timeout(LOOK) {
                Ok(event) => self.hear(&event)?,
                Err(RecvTimeoutError::Disconnected) => return Err(self.broken("martlet run has ended")),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    return Err(self.broken(&format!("not within {} s: {what}", PATIENCE.as_secs())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Ok(())
    }

    fn broken(&self, why: &str) -> Fail {
        let said = self.said.lock().expect("nobody panics with it");
        Fail::wrong(format_args!("{why}\n{}", said.iter().map(String::as_str).collect::<Vec<_>>().join("\n")))
    }

    fn hear(&mut self, event: &Value) -> Outcome {
        let number = |key: &str| event[key].as_u64().ok_or_else(|| Fail::wrong(format_args!("martlet run says {event}")));
        let process = || Ok(i32::try_from(number("pid")?).ok().and_then(Pid::from_raw));
        match event["event"].as_str() {
            Some("replica") => {
                self.whole = 0;
                self.living.push(number("pid")? as u32);
                // The first one's, which the others are forked into.
                if self.group.is_none() {
                    self.group = process()?;
                }
            }
            Some("leads") => (self.leader, self.connections) = (process()?, number("connections")?),
            Some("replicas") => self.whole = number("replicas")?,
            Some("ended") => {
                self.whole = 0;
                let ended = process()?;
                let pid = number("pid")?;
                self.living.retain(|living| u64::from(*living) != pid);
                self.leader.take_if(|leader| Some(*leader) == ended);
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends it in order. Returns what it has left behind.
    pub fn end(mut self) -> Outcome<Vec<String>> {
        self.finish();
        let status = self.command.wait().context("cannot wait for martlet run")?;
        if !status.success() {
            return Err(self.broken(&format!("martlet run: {status}")));
        }
        let mut left = Vec::new();
        if let Some(group) = self.group
            && rustix::process::test_kill_process_group(group).is_ok()
        {
            left.push(format!("processes of group {}", group.as_raw_nonzero()));
        }
        if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
            left.push(format!("port {}", self.port));
        }
        Ok(left)
    }

    fn finish(&mut self) {
        if let Ok(None) = self.command.try_wait() {
            // It may have ended by itself.
            let _ = kill_process(Pid::from_child(&self.command), Signal::TERM);
            let _ = self.command.wait();
        }
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.finish();
    }
}

fn each_line(source: impl Read + Send + 'static, mut take: impl FnMut(String) + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || BufReader::new(source).lines().map_while(Result::ok).for_each(&mut take))
}
