//! Hosts for trying things by hand: namespaces with two switches, and the files of a warden for each. They stay until they are removed.

use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::namespaces::Namespaces;
use crate::number::number;

const PREFIX: &str = "martlet-hosts";
/// The most hosts: as many as a cluster can have members.
const MOST: usize = 16;
/// The port of wardens.
const PORT: u16 = 7100;
/// The file with the key that all wardens share.
const KEY: &str = "warden.key";

/// Hosts to try wardens on by hand: network namespaces with two switches.
///
/// Their names are `martlet-hosts-0`, with the addresses 10.1.0.1 and 10.2.0.1, and so on. They need the right to make namespaces, and `ip`.
#[derive(Debug, Subcommand)]
pub enum Wanted {
    /// Make the hosts, and write the files of a warden for each, and their key, into target/hosts.
    Up {
        /// Number of hosts.
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = number::<usize>(2..=MOST))]
        hosts: usize,
    },
    /// Remove the namespaces and the files.
    Down,
}

/// Runs the command.
///
/// # Errors
/// What could not be made.
pub fn run(root: &Path, wanted: &Wanted) -> Result<(), String> {
    let directory = root.join("target/hosts");
    match wanted {
        Wanted::Up { hosts } => up(&namespaces(*hosts), &directory),
        Wanted::Down => down(&directory),
    }
}

fn namespaces(hosts: usize) -> Namespaces {
    Namespaces { prefix: PREFIX.into(), hosts, networks: &["10.1.0", "10.2.0"] }
}

fn up(hosts: &Namespaces, directory: &Path) -> Result<(), String> {
    if directory.exists() {
        return Err(format!("{} is there: `cargo xtask hosts down` removes what was made before", directory.display()));
    }
    write_files(hosts, directory).map_err(|e| format!("cannot write the wardens' files: {e}"))?;
    if let Err(why) = hosts.make() {
        fs::remove_dir_all(directory).map_err(|e| format!("{why}; and cannot remove {}: {e}", directory.display()))?;
        return Err(why);
    }
    let [(host, file, socket), (next, next_file, next_socket)] =
        [0, 1].map(|host| (hosts.host(host), file(directory, host), socket(directory, host)));
    println!(
        "{} hosts, {} to {}, with the switches in {}. For instance:\n\
         \n  ip netns exec {host} martlet warden run --neighbours {} --socket {}\
         \n  ip netns exec {next} martlet warden run --neighbours {} --socket {}\
         \n  martlet warden status --socket {}\
         \n  ip -n {} link set {} down       # one of the two paths of {host}\
         \n  cargo xtask hosts down",
        hosts.hosts,
        hosts.host(0),
        hosts.host(hosts.hosts - 1),
        hosts.switches(),
        file.display(),
        socket.display(),
        next_file.display(),
        next_socket.display(),
        socket.display(),
        hosts.switches(),
        Namespaces::port(0, 1),
    );
    Ok(())
}

fn down(directory: &Path) -> Result<(), String> {
    // As many as there can be: the files may be gone before the namespaces.
    let hosts = namespaces(MOST);
    if hosts.existing().is_empty() && !directory.exists() {
        return Err(format!("there is nothing to remove: neither {} nor a network namespace {PREFIX}-*", directory.display()));
    }
    hosts.remove()?;
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(|e| format!("cannot remove {}: {e}", directory.display()))?;
    }
    Ok(())
}

fn file(directory: &Path, host: usize) -> PathBuf {
    directory.join(format!("warden-{host}.toml"))
}

fn socket(directory: &Path, host: usize) -> PathBuf {
    directory.join(format!("warden-{host}.sock"))
}

fn write_files(hosts: &Namespaces, directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    write_key(&directory.join(KEY))?;
    (0..hosts.hosts).try_for_each(|host| fs::write(file(directory, host), neighbours(hosts, host)))
}

/// Writes a new key that only its user may read.
pub fn write_key(path: &Path) -> std::io::Result<()> {
    let mut chance = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut chance)?;
    let key: String = chance.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(path, key)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// The file of a host's warden. Hosts are numbered from 1 in it, as in addresses.
fn neighbours(hosts: &Namespaces, host: usize) -> String {
    let mut file = format!("host = {}\nkey_file = \"{KEY}\"\ninterval_us = 1000\n", host + 1);
    let addresses = |of: usize| (0..hosts.networks.len()).map(move |switch| format!("{}:{PORT}", hosts.address(of, switch)));
    for address in addresses(host) {
        file += &format!("\n[[path]]\nlisten = \"{address}\"\nlatency_us = 10\njitter_us = 2000\n");
    }
    for peer in (0..hosts.hosts).filter(|peer| *peer != host) {
        let addresses: Vec<String> = addresses(peer).map(|address| format!("\"{address}\"")).collect();
        file += &format!("\n[[peer]]\nhost = {}\naddresses = [{}]\n", peer + 1, addresses.join(", "));
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warden_is_told_of_all_others_at_both_switches() {
        let text = neighbours(&namespaces(3), 1);
        let file: toml::Table = text.parse().expect("it is TOML");
        assert_eq!(file["host"].as_integer(), Some(2));
        let paths = file["path"].as_array().expect("paths");
        assert_eq!(paths.iter().map(|path| path["listen"].as_str()).collect::<Vec<_>>(), [Some("10.1.0.2:7100"), Some("10.2.0.2:7100")]);
        let peers = file["peer"].as_array().expect("peers");
        assert_eq!(peers.iter().map(|peer| peer["host"].as_integer()).collect::<Vec<_>>(), [Some(1), Some(3)]);
        assert_eq!(peers[1]["addresses"].as_array().map(Vec::len), Some(2));
        assert_eq!(peers[1]["addresses"][1].as_str(), Some("10.2.0.3:7100"));
    }
}
