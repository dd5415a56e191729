//! What is measured: servers on three hosts, and programs that ask them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::figures::{Figures, Sample};
use super::{CLIENTS, Wanted};
use crate::net::cluster::{Cluster, NODES};
use crate::net::rig::Rig;

/// The programs that are run.
pub struct Programs {
    pub martlet: PathBuf,
    /// `xtask/peers`, where it could be built.
    pub peers: Option<PathBuf>,
}

/// Servers that are measured together.
pub struct System {
    pub name: &'static str,
    /// Whether they, or all programs that ask them, belong to `xtask/peers`.
    pub needs_peers: bool,
    /// The ways to ask them.
    pub asked: &'static [Asked],
    kind: Kind,
}

/// A way to ask, which is one line of the result.
pub struct Asked {
    pub name: &'static str,
    by: By,
}

enum By {
    /// `martlet bench put`.
    Martlet,
    /// `peers put` with this word.
    Peers(&'static str),
}

enum Kind {
    Martlet,
    Raft,
    /// With its files in a directory below this one, or below the rig's.
    Etcd(Option<&'static str>),
    /// [`super::bare`].
    Bare,
}

/// The system that others are compared with comes first, with its own client and over the Redis protocol.
pub const SYSTEMS: [System; 5] = [
    System {
        name: "Martlet",
        needs_peers: false,
        asked: &[
            Asked { name: "Martlet, PUT by its client", by: By::Martlet },
            Asked { name: "Martlet, SET over Redis' TCP", by: By::Peers("redis") },
        ],
        kind: Kind::Martlet,
    },
    System {
        name: "hashicorp/raft",
        needs_peers: true,
        asked: &[Asked { name: "hashicorp/raft, log in memory", by: By::Peers("raft") }],
        kind: Kind::Raft,
    },
    System {
        name: "etcd with its files in memory",
        needs_peers: true,
        asked: &[Asked { name: "etcd, files in memory", by: By::Peers("etcd") }],
        kind: Kind::Etcd(Some(MEMORY)),
    },
    System {
        name: "etcd with its files on disk",
        needs_peers: true,
        asked: &[Asked { name: "etcd, files on disk, fsync", by: By::Peers("etcd") }],
        kind: Kind::Etcd(None),
    },
    System {
        name: "bare packets",
        needs_peers: true,
        asked: &[Asked { name: "bare packets, nothing kept", by: By::Peers("redis") }],
        kind: Kind::Bare,
    },
];

/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// The ports of the others. Servers reach each other at this one; the port for clients is the next.
const PORT: u16 = 2380;

/// The reason why a system does not run.
pub enum Trouble {
    /// It cannot run here.
    Absent(String),
    Failed(String),
}

impl System {
    /// Starts its servers.
    ///
    /// # Errors
    /// The reason why they do not run.
    pub fn start<'a>(&'static self, rig: &'a Rig, programs: &Programs, round: u32) -> Result<Running<'a>, Trouble> {
        let mut running = Running { system: self, addresses: Vec::new(), martlet: None, servers: Vec::new(), files: None };
        let address = |host: usize, port: u16| format!("{}:{port}", rig.namespaces.address(host, 0));
        let of_peers = || programs.peers.as_deref().expect("what needs it is not started without it");
        let all = |port: u16| (0..NODES).map(|host| address(host, port)).collect::<Vec<_>>();
        match &self.kind {
            Kind::Martlet => {
                let mut cluster = Cluster::make(rig, &programs.martlet, &format!("martlet-{round}"), "mu").map_err(Trouble::Failed)?;
                cluster.start_all().map_err(Trouble::Failed)?;
                running.addresses = cluster.redis_addresses();
                running.martlet = Some(cluster);
            }
            Kind::Raft => {
                running.addresses = all(PORT + 1);
                for host in 0..NODES {
                    running.spawn(rig, of_peers(), host, &["raft".into(), host.to_string(), all(PORT).join(",")])?;
                }
            }
            Kind::Etcd(parent) => {
                let files = match parent {
                    None => rig.directory.join("etcd"),
                    Some(parent) => {
                        if file_system(Path::new(parent)).as_deref() != Some("tmpfs") {
                            return Err(Trouble::Absent(format!("{parent} is no tmpfs")));
                        }
                        Path::new(parent).join(format!("{}-etcd", rig.namespaces.prefix))
                    }
                };
                running.files = Some(files.clone());
                running.addresses = all(PORT + 1);
                let peers: Vec<_> = (0..NODES).map(|host| format!("n{host}=http://{}", address(host, PORT))).collect();
                for host in 0..NODES {
                    let [peer, client] = [PORT, PORT + 1].map(|port| format!("http://{}", address(host, port)));
                    let options = [
                        format!("--name=n{host}"),
                        format!("--data-dir={}", files.join(format!("n{host}")).display()),
                        format!("--listen-peer-urls={peer}"),
                        format!("--initial-advertise-peer-urls={peer}"),
                        format!("--listen-client-urls={client}"),
                        format!("--advertise-client-urls={client}"),
                        format!("--initial-cluster={}", peers.join(",")),
                        "--log-level=error".into(),
                    ];
                    running.spawn(rig, of_peers(), host, &[&["etcd".into()][..], &options].concat())?;
                }
            }
            Kind::Bare => {
                let own = std::env::current_exe().map_err(|e| Trouble::Failed(format!("this program's own file: {e}")))?;
                running.addresses = vec![address(0, PORT)];
                for host in 0..NODES {
                    running.spawn(rig, &own, host, &["bare".into(), host.to_string(), all(PORT).join(",")])?;
                }
            }
        }
        Ok(running)
    }
}

/// Servers that run. They are ended when this is dropped, and the files of etcd, which allocates some 64 MB for each server, are removed.
pub struct Running<'a> {
    system: &'static System,
    /// The addresses for clients.
    addresses: Vec<String>,
    martlet: Option<Cluster<'a>>,
    servers: Vec<Child>,
    files: Option<PathBuf>,
}

impl Running<'_> {
    fn spawn(&mut self, rig: &Rig, program: &Path, host: usize, arguments: &[String]) -> Result<(), Trouble> {
        let log = rig.directory.join(format!("{}-{host}.log", self.system.name.replace(['/', ' '], "-")));
        let output = fs::File::create(&log).map_err(|e| Trouble::Failed(format!("{}: {e}", log.display())))?;
        let mut command = rig.on(host, program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let server = command.spawn().map_err(|e| Trouble::Failed(format!("it does not run on host {host}: {e}")))?;
        self.servers.push(server);
        Ok(())
    }

    /// Measures each way to ask them with each number of clients, and notes the results.
    ///
    /// # Errors
    /// When a client fails, or the command is interrupted.
    pub fn measure(mut self, rig: &Rig, programs: &Programs, wanted: &Wanted, round: u32, figures: &mut Figures) -> Result<(), String> {
        for asked in self.system.asked {
            for clients in &wanted.clients {
                let Some(command) = self.client(rig, programs, &asked.by, *clients, wanted) else { continue };
                let said = self.wait(rig, command).map_err(|why| format!("{}, {clients} clients: {why}", asked.name))?;
                let sample = asked.by.read(&said, wanted.seconds).ok_or_else(|| format!("{}: no figures in {said:?}", asked.name))?;
                figures.add(round, asked.name, *clients, sample);
            }
        }
        Ok(())
    }

    /// A command that asks in this way. `None`: it could not be built, which has been reported.
    fn client(&self, rig: &Rig, programs: &Programs, by: &By, clients: u32, wanted: &Wanted) -> Option<Command> {
        let common = [clients.to_string(), wanted.seconds.to_string(), wanted.bytes.to_string()];
        match by {
            By::Martlet => {
                let cluster = self.martlet.as_ref().expect("Martlet's client asks no other server");
                let mut command = rig.on(CLIENTS, &programs.martlet);
                command.args(["bench", "--json", "--no-reference", "put", "--dir"]).arg(cluster.directory());
                for (option, value) in ["--clients", "--seconds", "--value-bytes"].iter().zip(&common) {
                    command.args([option, value.as_str()]);
                }
                Some(command)
            }
            By::Peers(word) => {
                let mut command = rig.on(CLIENTS, programs.peers.as_ref()?);
                command.args(["put", word, &self.addresses.join(",")]).args(&common);
                Some(command)
            }
        }
    }

    /// A command's output, once it has ended successfully.
    fn wait(&mut self, rig: &Rig, mut command: Command) -> Result<String, String> {
        let (out, err) = (rig.directory.join("client.out"), rig.directory.join("client.err"));
        let trouble = |e| format!("the client does not run: {e}");
        command.stdin(Stdio::null()).stdout(fs::File::create(&out).map_err(trouble)?).stderr(fs::File::create(&err).map_err(trouble)?);
        let mut client = command.spawn().map_err(trouble)?;
        let status = loop {
            if let Some(status) = client.try_wait().map_err(trouble)? {
                break status;
            }
            rig.family.check()?;
            if let Some(cluster) = &mut self.martlet {
                cluster.check_nodes()?;
            }
            for (host, server) in self.servers.iter_mut().enumerate() {
                if let Some(status) = server.try_wait().map_err(trouble)? {
                    return Err(format!("the server on host {host} has ended ({status}): {}", self.last_words(rig, host)));
                }
            }
            std::thread::sleep(crate::net::rig::LOOK);
        };
        // If Ctrl-C has ended the child as well, the child has not failed.
        rig.family.check()?;
        if !status.success() {
            return Err(format!("the client has ended with {status}: {}", fs::read_to_string(&err).unwrap_or_default().trim()));
        }
        fs::read_to_string(&out).map_err(trouble)
    }

    fn last_words(&self, rig: &Rig, host: usize) -> String {
        let log = rig.directory.join(format!("{}-{host}.log", self.system.name.replace(['/', ' '], "-")));
        let said = fs::read_to_string(log).unwrap_or_default();
        said.lines().last().unwrap_or("it has said nothing").to_owned()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        if let Some(files) = &self.files {
            let _ = fs::remove_dir_all(files);
        }
    }
}

/// The kind of file system that a directory is on.
pub fn file_system(directory: &Path) -> Option<String> {
    let output = Command::new("stat").args(["--file-system", "--format=%T"]).arg(directory).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl By {
    /// Reads the output of such a client after this many seconds.
    fn read(&self, said: &str, seconds: u32) -> Option<Sample> {
        let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        match self {
            By::Martlet => {
                let of = |unit: &str, key: &str| lines.iter().find(|figure| figure["unit"] == unit)?[key].as_f64();
                Some(Sample { p50_us: of("us", "p50")?, p99_us: of("us", "p99")?, per_s: of("1/s", "p50")? })
            }
            By::Peers(_) => {
                let of = |key: &str| lines.first()?[key].as_f64();
                Some(Sample { p50_us: of("p50_ns")? / 1e3, p99_us: of("p99_ns")? / 1e3, per_s: of("requests")? / f64::from(seconds) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_each_program_says_them() {
        let put = "{\"bench\":\"put\",\"metric\":\"PUT\",\"n\":9,\"p50\":40.5,\"p99\":90.0,\"unit\":\"us\"}\n\
                   {\"bench\":\"put\",\"metric\":\"PUTs\",\"n\":1,\"p50\":20000.0,\"p99\":20000.0,\"unit\":\"1/s\"}\n";
        assert_eq!(By::Martlet.read(put, 2), Some(Sample { p50_us: 40.5, p99_us: 90.0, per_s: 20_000.0 }));
        assert_eq!(By::Martlet.read("interrupted\n", 2), None);
        let said = "{\"p50_ns\":150500,\"p99_ns\":900000,\"requests\":3000}\n";
        assert_eq!(By::Peers("raft").read(said, 2), Some(Sample { p50_us: 150.5, p99_us: 900.0, per_s: 1500.0 }));
        assert_eq!(By::Peers("raft").read("", 2), None);
    }
}
