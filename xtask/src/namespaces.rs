//! Hosts that are network namespaces, with bridges between them as switches. This needs the right to make namespaces, and `ip`.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Namespaces whose names begin alike: one for each host, and one with the switches. They stay until they are removed.
pub struct Namespaces {
    /// The beginning of their names.
    pub prefix: String,
    /// How many hosts there are.
    pub hosts: usize,
    /// The switches, each by the first three bytes of its addresses. A host has a cable to each; `eth0` goes to the first.
    pub networks: &'static [&'static str],
}

/// Runs `ip`.
///
/// # Errors
/// What `ip` prints.
pub fn ip(arguments: &[&str]) -> Result<(), String> {
    // In a process group of its own, so that Ctrl-C at the terminal does not stop a removal half-way.
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

    /// The switch's end of the cable between them.
    pub fn port(host: usize, switch: usize) -> String {
        format!("port{host}.{switch}")
    }

    /// The names of those that exist, whatever made them.
    pub fn existing(&self) -> Vec<String> {
        let names = (0..self.hosts).map(|host| self.host(host)).chain([self.switches()]);
        names.filter(|name| Path::new("/run/netns").join(name).exists()).collect()
    }

    /// Makes all of them.
    ///
    /// # Errors
    /// What `ip` prints, in which case none of them exists; or that some existed before, which stay.
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

    /// Disconnects a host's cable from a switch (`down`), or connects it (`up`).
    ///
    /// # Errors
    /// What `ip` prints.
    pub fn link(&self, host: usize, switch: usize, state: &str) -> Result<(), String> {
        ip(&["-n", &self.switches(), "link", "set", &Namespaces::port(host, switch), state])
    }

    /// Removes those that exist. What still runs in a namespace goes on, without a network.
    ///
    /// # Errors
    /// The first error of `ip`, after everything has been tried.
    pub fn remove(&self) -> Result<(), String> {
        let removed: Vec<_> = self.existing().iter().map(|name| ip(&["netns", "del", name])).collect();
        removed.into_iter().collect()
    }
}
