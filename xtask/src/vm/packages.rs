//! What is fetched from Debian. It is unpacked beside the workspace's build and never installed, so that no step needs root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::{Apt, run};

/// The meta package that names the current kernel. Not the cloud kernel: it has no `rdma_rxe`.
const KERNEL: &str = "linux-image-amd64";
/// The package of the emulator.
const QEMU: &str = "qemu-system-x86";
/// What the guest needs besides what this machine has: a shell for its first steps, network and RDMA tools, and the verbs library.
const GUEST: [&str; 6] = ["busybox-static", "iproute2", "ibverbs-providers", "ibverbs-utils", "libibverbs1", "xz-utils"];

/// A text that names everything that determines a tree of packages.
pub fn description() -> String {
    format!("{KERNEL} {QEMU} {}", GUEST.join(" "))
}

/// Fetches all packages and unpacks them: the kernel below `into/kernel`, everything else below `into/tools`.
///
/// # Errors
/// The reason why the packages cannot be fetched here.
pub fn fetch(into: &Path) -> Result<(), String> {
    let apt = Apt::new(&into.join("apt"))?;
    println!("vm: fetching Debian's package lists");
    apt.run("apt-get", ["--quiet=2", "update"])?;
    let kernel = apt.kernel()?;
    let mut names = apt.missing_for(&[QEMU].into_iter().chain(GUEST).collect::<Vec<_>>())?;
    names.push(kernel.clone());
    println!("vm: fetching {} packages: {}", names.len(), names.join(" "));
    let files = into.join("packages");
    fs::create_dir_all(&files).map_err(|e| format!("cannot make {}: {e}", files.display()))?;
    apt.download(&files, &names)?;
    let (mut count, mut bytes) = (0, 0);
    for entry in fs::read_dir(&files).map_err(|e| format!("cannot list {}: {e}", files.display()))?.filter_map(Result::ok) {
        let of_kernel = entry.file_name().to_string_lossy().starts_with("linux-image-");
        let tree = into.join(if of_kernel { "kernel" } else { "tools" });
        fs::create_dir_all(&tree).map_err(|e| format!("cannot make {}: {e}", tree.display()))?;
        run(Command::new("dpkg-deb").arg("--extract").arg(entry.path()).arg(&tree))?;
        count += 1;
        bytes += entry.metadata().map_or(0, |m| m.len());
    }
    println!("vm: unpacked {count} packages, {} MB, into {}", bytes / 1_000_000, into.display());
    for leftover in [files, into.join("apt")] {
        fs::remove_dir_all(&leftover).map_err(|e| format!("cannot remove {}: {e}", leftover.display()))?;
    }
    merge_usr(&into.join("tools")).map_err(|e| format!("cannot arrange the unpacked tools: {e}"))
}

/// Older packages ship `/lib` and `/bin`. On Debian these are links into `/usr`, and a directory of ours would hide them in the guest.
fn merge_usr(tree: &Path) -> io::Result<()> {
    for top in ["bin", "sbin", "lib", "lib64"] {
        let from = tree.join(top);
        if from.exists() {
            move_into(&from, &tree.join("usr").join(top))?;
        }
    }
    Ok(())
}

fn move_into(from: &Path, to: &Path) -> io::Result<()> {
    let is_directory = fs::symlink_metadata(from)?.is_dir();
    if !is_directory || !to.exists() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        return fs::rename(from, to);
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        move_into(&entry.path(), &to.join(entry.file_name()))?;
    }
    fs::remove_dir(from)
}

impl Apt {
    /// The package of the current kernel.
    fn kernel(&self) -> Result<String, String> {
        let depends = self.run("apt-cache", ["depends", KERNEL])?;
        first_dependency(&depends).ok_or_else(|| format!("{KERNEL} names no kernel in `apt-cache depends`:\n{depends}"))
    }

    /// The wanted packages, and everything that they depend on that is not installed here.
    fn missing_for(&self, wanted: &[&str]) -> Result<Vec<String>, String> {
        let mut names: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let args = ["install", "--simulate", "--no-install-recommends", "--no-remove"];
        let plan = self.run("apt-get", args.iter().chain(wanted))?;
        for name in planned(&plan) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn download(&self, into: &Path, names: &[String]) -> Result<(), String> {
        run(self.command("apt-get").args(["--quiet=2", "download"]).args(names).current_dir(into)).map(drop)
    }
}

/// The first package that `apt-cache depends` names.
fn first_dependency(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).map(|name| name.trim().to_owned())
}

/// The packages that `apt-get --simulate` would install.
fn planned(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next()).map(str::to_owned).collect()
}

/// A program: the unpacked one, otherwise the one on the path.
pub fn program(tools: &Path, name: &str) -> PathBuf {
    let unpacked = tools.join("usr/bin").join(name);
    if unpacked.exists() { unpacked } else { PathBuf::from(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_first_dependency() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n  Depends: other\n";
        assert_eq!(first_dependency(text).as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(first_dependency("linux-image-amd64\n"), None);
    }

    #[test]
    fn only_packages_to_be_installed_are_fetched() {
        let text = "NOTE: a simulation\nInst ipxe-qemu (1.0 Debian:12.0/stable [all])\nInst bash [5.2] (5.3 Debian)\nConf bash (5.3)\n";
        assert_eq!(planned(text), ["ipxe-qemu", "bash"]);
    }

    #[test]
    fn trees_are_merged_into_usr() {
        let tree = std::env::temp_dir().join(format!("martlet-merge-{}", std::process::id()));
        for (path, text) in [("lib/x/a", "a"), ("usr/lib/x/b", "b"), ("bin/c", "c")] {
            let path = tree.join(path);
            fs::create_dir_all(path.parent().expect("in the tree")).expect("made");
            fs::write(path, text).expect("written");
        }
        merge_usr(&tree).expect("merged");
        for (path, text) in [("usr/lib/x/a", "a"), ("usr/lib/x/b", "b"), ("usr/bin/c", "c")] {
            assert_eq!(fs::read_to_string(tree.join(path)).expect(path), text);
        }
        assert!(!tree.join("lib").exists() && !tree.join("bin").exists());
        fs::remove_dir_all(&tree).expect("removed");
    }
}
