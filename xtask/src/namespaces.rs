//! Hosts that are network namespaces, with switches between them that are bridges. It needs the right to make namespaces, and `ip`.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Namespaces with names that begin alike: a host each, and one with the switches. They stay until they are removed.
pub struct Namespaces {
    /// What their names begin with.
    pub prefix: String,
    /// How many hosts.
    pub hosts: usize,
    /// The switches, by the first three bytes of the addresses there. A host has a cable to each: `eth0` to the first.
    pub networks: &'static [&'static str],
}

/// Runs `ip`.
///
/// # Errors
/// What it says.
pub fn ip(arguments: &[&str]) -> Result<(), String> {
    // In a group of its own: a Ctrl-C at the terminal must not stop the removal half-way.
    let output = Command::new("ip").args(arguments).process_group(0).output().map_err(|e| format!("`ip` does not run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

impl Namespaces {
    /// The namespace of a host, by its number, from 0 on.
    pub fn host(&self, host: usize) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// The namespace with the switches.
    pub fn switches(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    /// The address of a host at a switch.
    pub fn address(&self, host: usize, switch: usize) -> String {
        format!("{}.{}", self.networks[switch], host + 1)
    }

    /// The end, at the switch, of the cable between them.
    pub fn port(host: usize, switch: usize) -> String {
        format!("port{host}.{switch}")
    }

    /// The names of those that are there, whoever made them.
    pub fn existing(&self) -> Vec<String> {
        let names = (0..self.hosts).map(|host| self.host(host)).chain([self.switches()]);
        names.filter(|name| Path::new("/run/netns").join(name).exists()).collect()
    }

    /// Makes all of it.
    ///
    /// # Errors
    /// What `ip` says, and nothing of it is there then; or that some of it has been there before, which stays.
    pub fn make(&self) -> Result<(), String> {
        let existing = self.existing();
        if !existing.is_empty() {
            return Err(format!("there already: the network namespaces {}", existing.join(", ")));
        }
        ip(&["netns", "add", &self.switches()])?;
        self.wire().inspect_err(|_| _ = self.remove())
    }

    fn wire(&self) -> Result<(), String> {
        let switches = self.switches();
        for switch in 0..self.networks.len() {
            let bridge = format!("bridge{switch}");
            ip(&["-n", &switches, "link", "add", &bridge, "type", "bridge"])?;
            ip(&["-n", &switches, "link", "set", &bridge, "up"])?;
        }
        for host in 0..self.hosts {
            let name = self.host(host);
            ip(&["netns", "add", &name])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            for switch in 0..self.networks.len() {
                let (port, card) = (Namespaces::port(host, switch), format!("eth{switch}"));
                ip(&["-n", &switches, "link", "add", &port, "type", "veth", "peer", "name", &card, "netns", &name])?;
                ip(&["-n", &switches, "link", "set", &port, "master", &format!("bridge{switch}"), "up"])?;
                ip(&["-n", &name, "addr", "add", &format!("{}/24", self.address(host, switch)), "dev", &card])?;
                ip(&["-n", &name, "link", "set", &card, "up"])?;
            }
        }
        Ok(())
    }

    /// Takes a host's cable out of a switch (`down`), or puts it in (`up`).
    ///
    /// # Errors
    /// What `ip` says.
    pub fn link(&self, host: usize, switch: usize, state: &str) -> Result<(), String> {
        ip(&["-n", &self.switches(), "link", "set", &Namespaces::port(host, switch), state])
    }

    /// Removes what is there of it. What still runs in a namespace runs on, without a network.
    ///
    /// # Errors
    /// The first thing that `ip` says, after all has been tried.
    pub fn remove(&self) -> Result<(), String> {
        let removed: Vec<_> = self.existing().iter().map(|name| ip(&["netns", "del", name])).collect();
        removed.into_iter().collect()
    }
}
