//! What a cluster may have left behind. Whatever dies by SIGKILL leaves no process, file, segment or socket (TRAPS 31).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use martlet_node::connections::service::HELD;

/// How long what is on its way out may take: the memory of a process that was killed is taken down a little after its end, by a process of
/// the same command line.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The same where the cluster has an address of its own: its connections are kept for a while for a node that may come.
pub const PATIENCE_OF_SERVICE: Duration = HELD.saturating_add(Duration::from_secs(3));

/// Everything that still belongs to the cluster of that name in that directory, in words, and stays for so long. Empty when nothing was left behind.
pub fn of_cluster(name: &str, directory: &Path, patience: Duration) -> Vec<String> {
    let until = Instant::now() + patience;
    loop {
        let left = look(name, directory);
        if left.is_empty() || Instant::now() >= until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn look(name: &str, directory: &Path) -> Vec<String> {
    let mut left = Vec::new();
    left.extend(processes(directory));
    left.extend(sockets(name));
    left.extend(segments());
    if directory.exists() {
        left.push(format!("directory {}", directory.display()));
    }
    left
}

/// Processes whose command line names the directory; not ourselves.
fn processes(directory: &Path) -> Vec<String> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    numbered("/proc")
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(needle.len()).any(|window| window == needle)
        })
        .map(|pid| format!("process {pid}"))
        .collect()
}

/// Unix sockets, abstract ones included, with the cluster's name in theirs.
fn sockets(name: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut found: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7))
        .filter(|path| path.contains(name))
        .map(|path| format!("socket {path}"))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Files of ours in /dev/shm. There never are any: memory is passed as descriptors without a name.
fn segments() -> Vec<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_name().to_string_lossy().contains("martlet"))
        .map(|entry| format!("segment {}", entry.path().display()))
        .collect()
}

fn numbered(dir: &str) -> impl Iterator<Item = u32> {
    fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use martlet_cluster::scratch::Scratch;

    use super::*;

    #[test]
    fn what_is_left_is_found_and_nothing_else() {
        let scratch = Scratch::new("leftovers").expect("a directory");
        let directory = scratch.path().join("cluster");
        let name = format!("leftovers-test-{}", std::process::id());
        assert_eq!(of_cluster(&name, &directory, PATIENCE), Vec::<String>::new());

        fs::create_dir(&directory).expect("made");
        let address = SocketAddr::from_abstract_name(format!("{name}/0")).expect("an address");
        let socket = UnixListener::bind_addr(&address).expect("bound");
        let mut child = std::process::Command::new("tail")
            .arg("-f")
            .arg("/dev/null")
            .arg(directory.join("x"))
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("tail is there");
        let left = of_cluster(&name, &directory, PATIENCE);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(left.contains(&format!("process {}", child.id())), "{left:?}");
        assert!(left.iter().any(|thing| thing.starts_with("socket ") && thing.contains(&name)), "{left:?}");
        assert!(left.contains(&format!("directory {}", directory.display())), "{left:?}");
        drop(socket);
        fs::remove_dir(&directory).expect("empty");
        assert_eq!(of_cluster(&name, &directory, PATIENCE), Vec::<String>::new());
    }
}
