//! The Debian package. cargo-deb builds it from what `crates/cli` says of it. Then it is installed, used and removed in a fresh root that mmdebstrap makes.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ci::{Outcome, Scratch, cargo, finish, on_path, target_directory};
use crate::tools::Tool;

const DEB: Tool = Tool { name: "cargo-deb", version: "3.8.0" };
/// What a user of the package does: see the script.
const TRIAL: &str = include_str!("deb.sh");
/// The package's file name among its build products.
const PACKAGE: &str = "martlet.deb";
/// Shells, and the file names of their completions.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "martlet.bash"), ("zsh", "_martlet"), ("fish", "martlet.fish")];

/// The programs that the package is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs<'a> {
    /// Programs that are built for it, with this profile of cargo.
    Build(&'a str),
    /// Those of the workspace's debug build, which exists already.
    Debug,
}

/// Builds the package and tries it.
pub fn run(root: &Path, programs: Programs<'_>) -> Outcome {
    let package = match build(root, programs) {
        Ok(package) => package,
        Err(outcome) => return outcome,
    };
    println!("   the package is {}", package.display());
    let mut skipped = Vec::new();
    match verify_units(root) {
        Ok(None) => {}
        Ok(Some(why)) => skipped.push(why),
        Err(why) => return Outcome::Failed(why),
    }
    match try_it(&package) {
        Ok(None) => {}
        Ok(Some(why)) => skipped.push(format!("it was not installed in a fresh root: {why}")),
        Err(why) => return Outcome::Failed(why),
    }
    if skipped.is_empty() { Outcome::Passed } else { Outcome::Partly(skipped.join("; ")) }
}

/// Builds the programs, their manual pages and completions, and the package with them.
fn build(root: &Path, programs: Programs<'_>) -> Result<PathBuf, Outcome> {
    let tool = DEB.find(root).map_err(|why| Outcome::Skipped(format!("NOT CHECKED: {why}")))?;
    pack(root, &tool, programs).map_err(Outcome::Failed)
}

fn pack(root: &Path, tool: &Path, programs: Programs<'_>) -> Result<PathBuf, String> {
    let profile = match programs {
        Programs::Build(profile) => {
            // The package contains the library as a file, so the command need not contain it as well.
            let mut command = cargo(root);
            command.args(["build", "--locked", "--profile", profile, "--package", "martlet-cli", "--package", "martlet-preload"]);
            done(command.arg("--no-default-features"))?;
            profile
        }
        Programs::Debug => "dev",
    };
    // The directory of the profile `dev` has another name.
    let built = target_directory(root).join(if profile == "dev" { "debug" } else { profile });
    // Programs of any profile are put where cargo-deb looks for those of releases.
    let target = target_directory(root).join("package");
    let staged = target.join("release");
    // Otherwise, manual pages of commands that no longer exist would be packed too.
    if staged.exists() {
        fs::remove_dir_all(&staged).map_err(|error| format!("{}: {error}", staged.display()))?;
    }
    let martlet = staged.join("martlet");
    done(Command::new(built.join("martlet")).arg("man").arg(staged.join("man")))?;
    for program in ["martlet", "libmartlet_preload.so"] {
        fs::copy(built.join(program), staged.join(program)).map_err(|error| format!("{}: {error}", built.join(program).display()))?;
    }
    for (shell, name) in COMPLETIONS {
        let file = staged.join(name);
        let written = fs::File::create(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        done(Command::new(&martlet).args(["completions", shell]).stdout(written))?;
    }
    let package = target.join(PACKAGE);
    let mut command = Command::new(tool);
    command.current_dir(root).env("CARGO_TARGET_DIR", &target).args([
        "deb",
        "--locked",
        "--no-build",
        "--package",
        "martlet-cli",
        "--output",
    ]);
    // Compressing a package of debug builds well would take longer than trying it.
    command.arg(&package).args((profile == "dev").then_some("--fast"));
    done(&mut command)?;
    Ok(package)
}

/// Has systemd check the units. Returns the reason if that was not done.
fn verify_units(root: &Path) -> Result<Option<String>, String> {
    if !on_path("systemd-analyze") {
        return Ok(Some("systemd-analyze is not installed (Debian's systemd): the units were not verified".into()));
    }
    for (folder, name) in [("redis", "martlet-redis.service"), (".", "martlet@.service")] {
        let unit = root.join("crates/cli/packaging").join(folder).join(name);
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&unit)
            .output()
            .map_err(|error| format!("systemd-analyze: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        // A template is checked as an instance of it. It is no fault of the units that their programs are not installed here.
        let stem = name.trim_end_matches(".service");
        let complaints: Vec<&str> = said.lines().filter(|line| line.contains(stem) && !line.contains("is not executable")).collect();
        if !complaints.is_empty() {
            return Err(complaints.join("\n"));
        }
    }
    Ok(None)
}

/// Installs, uses and removes the package. Returns the reason if that was not done.
fn try_it(package: &Path) -> Result<Option<String>, String> {
    for (tool, debian) in [("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux")] {
        if !on_path(tool) {
            return Ok(Some(format!("{tool} is not installed (Debian's {debian})")));
        }
    }
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        return Ok(Some("that needs root".into()));
    }
    let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let Some(suite) = about.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")) else {
        return Ok(Some("/etc/os-release names no release of Debian whose C library it was linked with".into()));
    };
    let scratch = Scratch::new("deb").map_err(|error| format!("cannot make a directory: {error}"))?;
    let fresh = scratch.path().join("root");
    println!("   a fresh root of {suite} with redis-server");
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--mode=root", "--variant=minbase", "--include=redis-server", suite]).arg(&fresh);
    if let Outcome::Failed(why) = finish(&mut make) {
        return Ok(Some(format!("mmdebstrap could not make one: {why}")));
    }
    let put = |name: &str, from: &[u8]| fs::write(fresh.join(name), from).map_err(|error| format!("{name}: {error}"));
    put(PACKAGE, &fs::read(package).map_err(|error| format!("{}: {error}", package.display()))?)?;
    put("trial.sh", TRIAL.as_bytes())?;
    // The root shares this host's network.
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|error| format!("no port: {error}"))?.port();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(format!("--root={}", fresh.display()));
    command.args(["bash", "/trial.sh", &port.to_string()]).stdin(Stdio::null());
    // Nothing in this user's environment may help.
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive");
    done(&mut command).map(|()| None)
}

fn done(command: &mut Command) -> Result<(), String> {
    match finish(command) {
        Outcome::Failed(why) => Err(format!("{}: {why}", command.get_program().display())),
        _ => Ok(()),
    }
}
