//! Hosts of our own: wardens that hear each other over two paths of the loopback device, each of which takes one part of the machine's processes for its host's.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_fabric::NodeId;
use martlet_node::application_of;
use martlet_node::config::Key;
use martlet_warden::AppId;
use martlet_warden::board::State;
use martlet_warden::client::Warden;
use martlet_warden::wire::HostStatus;
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take before something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A process of ours that does not outlive its name here.
pub struct Process(pub Child);

impl Process {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Outcome {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(pid, signal).context("cannot signal a process of this benchmark")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tries until it works, or patience is over.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> Outcome<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = attempt() {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(Fail::failed(format_args!("{what}: not within {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// How wardens hear each other.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// Between two heartbeats, in microseconds.
    pub interval_us: u64,
    /// By how much one may be late, in microseconds.
    pub jitter_us: u64,
}

/// A warden for each of some hosts, which are numbered from 0 on here. They run or not, and no longer than the thread that started them.
pub struct Wardens {
    dir: PathBuf,
    running: Vec<Process>,
    hosts: u16,
    /// Whether they may have the kernel mark deaths.
    marks: bool,
}

impl Wardens {
    /// Makes what they need, in a directory that is there: `N.toml` and `N.sock` are of host N.
    pub fn prepare(dir: &Path, hosts: u16, beat: Beat) -> Outcome<Wardens> {
        let key = dir.join("key");
        std::fs::write(&key, Key::generate().context("cannot make a key")?.to_hex()).context("cannot write a key")?;
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).context("cannot protect the key")?;
        // The loopback device has all of 127.0.0.0/8: an address that no other process takes.
        let [_, first, second, third] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, first | 0x80, second, third);
        let ports = |host: u16| [7100 + 2 * host, 7101 + 2 * host];
        for own in 0..hosts {
            let mut text = format!("host = {}\nkey_file = \"key\"\ninterval_us = {}\n", own + 1, beat.interval_us);
            for port in ports(own) {
                text += &format!("[[path]]\nlisten = \"{ip}:{port}\"\nlatency_us = 0\njitter_us = {}\n", beat.jitter_us);
            }
            for other in (0..hosts).filter(|other| *other != own) {
                let [one, two] = ports(other);
                text += &format!("[[peer]]\nhost = {}\naddresses = [\"{ip}:{one}\", \"{ip}:{two}\"]\n", other + 1);
            }
            std::fs::write(dir.join(format!("{own}.toml")), text).context("cannot write a warden's file")?;
        }
        Ok(Wardens { dir: dir.into(), running: Vec::new(), hosts, marks: true })
    }

    /// Has them do without marks, or with those that the kernel permits.
    pub fn with_marks(mut self, marks: bool) -> Wardens {
        self.marks = marks;
        self
    }

    /// The one host has so many nodes, which all find its warden.
    pub fn shared_by(self, nodes: u16) -> Outcome<Wardens> {
        for node in 1..nodes {
            std::os::unix::fs::symlink("0.sock", self.socket(node)).context("cannot make a link to the warden's socket")?;
        }
        Ok(self)
    }

    /// Where programs find the warden of a host.
    pub fn socket(&self, host: u16) -> PathBuf {
        self.dir.join(format!("{host}.sock"))
    }

    /// Starts them all, and waits until they hear each other.
    pub fn start(&mut self) -> Outcome {
        self.running = (0..self.hosts).map(|host| self.launch(host, true)).collect::<Outcome<_>>()?;
        for host in 0..self.hosts {
            let mut warden = self.connect(host)?;
            until("the wardens hear each other", || {
                let (_, hosts) = warden.status().ok()?;
                hosts.iter().all(HostStatus::is_heard).then_some(())
            })?;
        }
        Ok(())
    }

    /// Starts a warden at a host's socket, with its neighbours or alone.
    fn launch(&self, host: u16, has_neighbours: bool) -> Outcome<Process> {
        let mut command = own_command()?;
        command.args(["warden", "run", "--fifo", "--die-with-parent", "--marks", if self.marks { "auto" } else { "off" }]);
        command.arg("--socket").arg(self.socket(host));
        if has_neighbours {
            command.arg("--neighbours").arg(self.dir.join(format!("{host}.toml")));
        }
        let child = command.env("RUST_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Process(child.context("cannot start a warden")?))
    }

    /// Ends the warden of a host by a signal that does so.
    pub fn strike(&mut self, host: u16, signal: Signal) -> Outcome {
        let warden = &mut self.running[usize::from(host)];
        warden.signal(signal)?;
        warden.0.wait().map(|_| ()).context("cannot wait for a warden")
    }

    /// Starts the warden of a host again, which has ended.
    pub fn restart(&mut self, host: u16) -> Outcome {
        self.running[usize::from(host)] = self.launch(host, true)?;
        Ok(())
    }

    /// Puts another one in the place of a host's warden, which has ended: one that no other host hears, and that takes for an application whatever says that it is one.
    pub fn impostor(&self, host: u16) -> Outcome<Process> {
        self.launch(host, false)
    }

    /// A program that registers as an application with what stands at a host's socket, and waits to be killed.
    pub fn pretend(&self, host: u16, app: AppId) -> Outcome<Process> {
        let mut command = own_command()?;
        command.args(["victim", "--kind", "application", "--incarnation", &app.to_string(), "--cluster"]).arg(self.socket(host));
        Ok(Process(command.stdin(Stdio::null()).spawn().context("cannot start a program")?))
    }

    /// Registers a program with the warden of a host, once that is there.
    pub fn connect(&self, host: u16) -> Outcome<Warden> {
        let socket = self.socket(host);
        until("a warden", || Warden::connect(&socket, "bench").ok())
    }

    /// Whether they run.
    pub fn run(&self) -> bool {
        !self.running.is_empty()
    }

    /// Ends them in order.
    pub fn end(&mut self) -> Outcome {
        for mut process in self.running.drain(..) {
            process.signal(Signal::TERM)?;
            process.0.wait().context("cannot wait for a warden")?;
        }
        Ok(())
    }

    /// Sends the warden of a host a signal.
    pub fn signal(&self, host: u16, signal: Signal) -> Outcome {
        self.running.get(usize::from(host)).map_or(Ok(()), |process| process.signal(signal))
    }

    /// Waits until node N of a cluster is registered with the warden of host N, for all of them, and monitors the others there.
    pub fn await_nodes(&self, cluster: &str, nodes: &[u16]) -> Outcome {
        for host in nodes {
            let mut warden = self.connect(*host)?;
            until("the nodes have not registered with their wardens", || {
                let (apps, _) = warden.status().ok()?;
                let is_ready = |node: &u16| {
                    let app = application_of(cluster, NodeId(*node));
                    let found = apps.iter().find(|one| one.app == app && one.state == State::Alive);
                    found.is_some_and(|one| if node == host { one.words > 0 } else { one.monitors > 0 })
                };
                nodes.iter().all(is_ready).then_some(())
            })?;
        }
        Ok(())
    }
}
