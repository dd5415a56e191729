//! A cluster of three hosts that are network namespaces on the Ethernet fabric, its nodes killed and its links cut one after another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::namespaces::Namespaces;
use crate::{ci, hosts};

const USAGE: &str = "\
Usage: cargo xtask net [--engine NAME] [--rounds N] [-- COMMAND]

A cluster of three hosts, each a network namespace of its own, on the fabric `ethernet`. Each round resets a host's TCP connections ten times, which may change no
view, kills its node and starts it again, then cuts its link and mends it; a write has to be acknowledged after each, and nothing that was acknowledged may be
lost. Behind `--`: a command that runs on the first host instead, with the cluster's directory in MARTLET_DIR.
";

/// How long anything may take that is waited for: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const HOSTS: usize = 3;
/// How often a host's TCP connections are reset in a row.
const RESETS: usize = 10;

/// What is wanted.
struct Wanted {
    engine: String,
    rounds: usize,
    command: Vec<String>,
}

impl Wanted {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Wanted, String> {
        let mut wanted = Wanted { engine: "mu".into(), rounds: 3, command: Vec::new() };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} takes a value\n\n{USAGE}"));
            match arg.as_str() {
                "--engine" => wanted.engine = value()?,
                "--rounds" => {
                    let rounds = value()?;
                    wanted.rounds = rounds.parse().map_err(|_| format!("--rounds is {rounds:?}; allowed is a number\n\n{USAGE}"))?;
                }
                "--" => wanted.command = args.by_ref().collect(),
                other => return Err(format!("unknown argument {other:?}\n\n{USAGE}")),
            }
        }
        Ok(wanted)
    }
}

/// The command.
///
/// # Errors
/// What did not hold, or could not be had.
pub fn run(root: &Path, args: impl Iterator<Item = String>) -> Result<(), String> {
    let mut args = args.peekable();
    if args.peek().is_some_and(|first| first == "--help") {
        print!("{USAGE}");
        return Ok(());
    }
    let wanted = Wanted::parse(args)?;
    let built = ci::cargo(root).args(["build", "--quiet", "--package", "martlet-cli"]).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("`martlet` does not build".into());
    }
    let mut hosts = Hosts::make(root, &wanted.engine)?;
    for host in 0..HOSTS {
        hosts.start(host)?;
    }
    let began = Instant::now();
    hosts.write(0)?;
    println!("three hosts serve after {} ms", began.elapsed().as_millis());
    if !wanted.command.is_empty() {
        let status = hosts.on(0, &wanted.command[0]).args(&wanted.command[1..]).env("MARTLET_DIR", &hosts.directory).status();
        let status = status.map_err(|e| format!("{:?} does not run: {e}", wanted.command[0]))?;
        return if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) };
    }
    for round in 0..wanted.rounds {
        let (victim, witness) = (round % HOSTS, (round + 1) % HOSTS);
        hosts.wait_until_whole(witness)?;
        let (before, mut longest) = (hosts.view(witness)?, Duration::ZERO);
        for _ in 0..RESETS {
            hosts.reset(victim)?;
            longest = longest.max(hosts.write(witness)?);
        }
        hosts.wait_until_whole(witness)?;
        let after = hosts.view(witness)?;
        if after != before {
            return Err(format!("the TCP connections of node {victim} were reset, and view {before} was followed by view {after}"));
        }
        println!(
            "the TCP connections of node {victim} reset {RESETS} times: view {before} goes on, a write takes {} ms at most",
            longest.as_millis()
        );
        hosts.kill(victim);
        let waited = hosts.write(witness)?;
        println!("node {victim} killed: the next write is acknowledged after {} ms", waited.as_millis());
        hosts.start(victim)?;
        hosts.wait_until_whole(witness)?;
        println!("node {victim} is back");
        hosts.namespaces.link(victim, 0, "down")?;
        let waited = hosts.write(witness)?;
        println!("the link of node {victim} cut: the next write is acknowledged after {} ms", waited.as_millis());
        hosts.namespaces.link(victim, 0, "up")?;
        hosts.wait_until_whole(witness)?;
        println!("node {victim} is back");
        hosts.check(victim)?;
    }
    println!("all {} keys are there", hosts.written);
    Ok(())
}

/// The namespaces, what runs in them, and the cluster's files. All of it goes with this value.
struct Hosts {
    namespaces: Namespaces,
    martlet: PathBuf,
    directory: PathBuf,
    nodes: [Option<Child>; HOSTS],
    written: usize,
}

impl Hosts {
    fn make(root: &Path, engine: &str) -> Result<Hosts, String> {
        let prefix = format!("martlet-{}", std::process::id());
        let directory = root.join("target").join(&prefix);
        let martlet = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("debug/martlet");
        let namespaces = Namespaces { prefix, hosts: HOSTS, networks: &["10.77.0"] };
        let hosts = Hosts { namespaces, martlet, directory, nodes: Default::default(), written: 0 };
        hosts.namespaces.make()?;
        hosts.write_files(engine).map_err(|e| format!("cannot write the cluster's files: {e}"))?;
        Ok(hosts)
    }

    fn write_files(&self, engine: &str) -> std::io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        hosts::write_key(&self.directory.join("cluster.key"))?;
        let mut cluster =
            format!("name = \"net\"\nkey_file = \"cluster.key\"\nfabric = \"ethernet\"\nengine = \"{engine}\"\nlease_us = 100000\n");
        for host in 0..HOSTS {
            let at = self.namespaces.address(host, 0);
            cluster += &format!(
                "[[node]]\nnumber = {host}\naddress = \"{at}:7600\"\nredis = \"{at}:7711\"\nroles = [\"coordinator\", \"replica\"]\n"
            );
            let node = format!("number = {host}\ncluster = \"cluster.toml\"\n[redis]\nlisten = \"{at}\"\nprotected_mode = false\n");
            fs::write(self.directory.join(format!("node-{host}.toml")), node)?;
        }
        fs::write(self.directory.join("cluster.toml"), cluster)
    }

    fn on(&self, host: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces.host(host)]).arg(program);
        command
    }

    fn start(&mut self, host: usize) -> Result<(), String> {
        let log = self.directory.join(format!("node-{host}.log"));
        let log = fs::OpenOptions::new().create(true).append(true).open(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let config = self.directory.join(format!("node-{host}.toml"));
        let mut command = self.on(host, &self.martlet);
        command.args(["node", "--die-with-parent", "--config"]).arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.nodes[host] = Some(command.spawn().map_err(|e| format!("node {host} does not start: {e}"))?);
        Ok(())
    }

    /// As SIGKILL does: `ip` has become the node.
    fn kill(&mut self, host: usize) {
        if let Some(mut node) = self.nodes[host].take() {
            let _ = node.kill();
            let _ = node.wait();
        }
    }

    fn martlet(&self, host: usize, arguments: &[&str]) -> Result<Output, String> {
        let output = self.on(host, &self.martlet).args(arguments).env("MARTLET_DIR", &self.directory).output();
        output.map_err(|e| format!("martlet {}: {e}", arguments.join(" ")))
    }

    /// Resets all TCP connections between that host's node and others, as if each end had sent that to the other.
    fn reset(&self, host: usize) -> Result<(), String> {
        let output = self.on(host, "ss").args(["-HKt", "state", "established", "( sport = :7600 or dport = :7600 )"]).output();
        let output = output.map_err(|e| format!("ss: {e}"))?;
        if !output.status.success() || output.stdout.is_empty() {
            return Err(format!("`ss -K` has reset nothing on host {host}; the kernel needs CONFIG_INET_DIAG_DESTROY: {}", text(&output)));
        }
        Ok(())
    }

    /// The view's number, as that host sees it.
    fn view(&self, host: usize) -> Result<u64, String> {
        let output = self.martlet(host, &["status", "--json"])?;
        view_of(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| format!("no view is shown: {}", text(&output)))
    }

    /// Tries until it succeeds.
    fn until(&self, what: &str, mut done: impl FnMut() -> Result<Result<(), String>, String>) -> Result<Duration, String> {
        let began = Instant::now();
        loop {
            match done()? {
                Ok(()) => return Ok(began.elapsed()),
                Err(why) if began.elapsed() > PATIENCE => return Err(format!("{what}: not in {PATIENCE:?}: {why}")),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Writes one more key from that host; how long it took to be acknowledged.
    fn write(&mut self, host: usize) -> Result<Duration, String> {
        let (key, value) = (format!("key{}", self.written), format!("value{}", self.written));
        let waited = self.until("a write", || {
            let output = self.martlet(host, &["set", &key, &value])?;
            Ok(if output.status.success() { Ok(()) } else { Err(text(&output)) })
        })?;
        self.written += 1;
        Ok(waited)
    }

    /// Everything that was acknowledged is there, as that host sees it.
    fn check(&self, host: usize) -> Result<(), String> {
        for n in 0..self.written {
            let wanted = format!("value{n}");
            self.until("a read", || {
                let output = self.martlet(host, &["get", &format!("key{n}")])?;
                match output.status.code() {
                    Some(0) if String::from_utf8_lossy(&output.stdout).trim() == wanted => Ok(Ok(())),
                    Some(0 | 3) => Err(format!("key{n} was written, and is lost: {}", text(&output))),
                    _ => Ok(Err(text(&output))),
                }
            })?;
        }
        Ok(())
    }

    /// Waits until all three are members and none of them is catching up.
    fn wait_until_whole(&self, host: usize) -> Result<(), String> {
        let whole = || {
            let output = self.martlet(host, &["status", "--json"])?;
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(if is_whole(&shown) { Ok(()) } else { Err(text(&output)) })
        };
        self.until("the cluster is whole", whole).map(drop)
    }
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..HOSTS {
            self.kill(host);
        }
        // As much as was made.
        let _ = self.namespaces.remove();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The number of the view in what `martlet status --json` shows.
fn view_of(shown: &str) -> Option<u64> {
    let cluster = shown.lines().find(|line| line.contains("\"event\":\"cluster\""))?;
    let number = cluster.split_once("\"view\":")?.1;
    number[..number.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

/// Whether what `martlet status --json` shows are three nodes that lead or follow.
fn is_whole(shown: &str) -> bool {
    // One that is being taught calls itself a backup as well.
    let holds = shown.contains("\"learners\":0,") && shown.contains(&format!("\"replicas\":{HOSTS},"));
    holds && shown.matches("\"role\":\"primary\"").count() == 1 && shown.matches("\"role\":\"backup\"").count() == HOSTS - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_whole_when_one_leads_and_the_others_follow() {
        let node = |role: &str| format!("{{\"event\":\"node\",\"role\":\"{role}\"}}\n");
        let cluster =
            |learners, replicas| format!("{{\"event\":\"cluster\",\"learners\":{learners},\"replicas\":{replicas},\"view\":3}}\n");
        assert_eq!(view_of(&[node("primary"), cluster(0, 3)].concat()), Some(3));
        assert!(is_whole(&[cluster(0, 3), node("backup"), node("primary"), node("backup")].concat()));
        assert!(!is_whole(&[cluster(2, 1), node("backup"), node("primary"), node("backup")].concat()), "two are being taught");
        assert!(!is_whole(&[cluster(0, 3), node("backup"), node("primary")].concat()));
        assert!(!is_whole(&[cluster(0, 3), node("primary"), node("primary"), node("backup")].concat()));
    }
}
