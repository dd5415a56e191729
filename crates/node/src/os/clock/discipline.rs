//! What corrects this host's clock, and how fast it may do so: for an operator who has to choose a bound (`clock_drift_ppm`).
//!
//! The kernel lets a privileged process run all of the host's clocks fast or slow, within limits of its own ([`KERNEL_PPM`]). Which daemon does so, and what
//! its configuration allows, is read from `/proc` and `/etc`, as far as they can be seen from here: in a container, they are the container's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// By how much the kernel lets any process correct a clock, in parts per million: `tick` from 9,000 to 11,000, `freq` and `adjtime` 500 each (adjtimex(2)).
pub const KERNEL_PPM: u64 = 101_000;
/// By how much a clock that is not corrected may be off, in parts per million.
pub const CRYSTAL_PPM: u64 = 200;

/// chrony's `maxslewrate` when its file has none, in parts per million (chrony.conf(5): 83333.333).
const CHRONY_PPM: u64 = 83_334;
/// By how much the kernel's own loop, and adjtime(3), slew, in parts per million.
const NTP_PPM: u64 = 500;
/// At most so many files are read when files include each other.
const MAX_FILES: usize = 64;

/// How the kernel runs the clock now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// By how much it is corrected at the moment, in parts per million.
    pub corrected_ppm: f64,
    /// Whether a daemon keeps it right, as the kernel has been told.
    pub synchronized: bool,
}

/// How the kernel runs the clock now.
///
/// # Errors
/// When the kernel refuses; reading requires no privilege.
pub fn rate() -> io::Result<Rate> {
    // SAFETY: an all-zero timex is a valid value: it changes nothing (`modes` 0).
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live timex, which the call fills in.
    if unsafe { libc::adjtimex(&raw mut timex) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Rate {
        // 100 ticks a second, of 10,000 us each; `freq` has 16 binary digits after the point.
        corrected_ppm: (timex.tick as f64 - 10_000.0) * 100.0 + timex.freq as f64 / 65_536.0,
        synchronized: timex.status & libc::STA_UNSYNC == 0,
    })
}

/// A daemon that corrects the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrector {
    /// The daemon's name.
    pub name: &'static str,
    /// By how much it may run the clock fast or slow, in parts per million.
    pub slews_ppm: u64,
    /// The source of that number: a file and line, or that it is the daemon's default.
    pub by: String,
}

/// The daemons that run here and may correct the clock.
pub fn correctors() -> Vec<Corrector> {
    correctors_in(Path::new("/"), &running())
}

/// What may correct a clock, and by how much, given a file system that begins at `root` and processes of these names.
fn correctors_in(root: &Path, running: &[String]) -> Vec<Corrector> {
    let runs = |names: &[&str]| running.iter().any(|name| names.contains(&name.as_str()));
    let usual = |name, slews_ppm| Corrector { name, slews_ppm, by: "its usual".into() };
    let mut found = Vec::new();
    if runs(&["chronyd"]) {
        found.push(chrony(root));
    }
    if runs(&["ntpd"]) {
        found.push(usual("ntpd", 2 * NTP_PPM));
    }
    // The kernel keeps 15 bytes of a name.
    if runs(&["systemd-timesyn"]) {
        found.push(usual("systemd-timesyncd", NTP_PPM));
    }
    if runs(&["phc2sys", "ptp4l", "ts2phc", "timemaster"]) {
        found.push(Corrector { name: "linuxptp", slews_ppm: KERNEL_PPM, by: "the kernel's limit".into() });
    }
    found
}

/// The names of all processes that can be seen.
fn running() -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let comm = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
    processes.flatten().filter_map(comm).map(|name| name.trim_end().to_owned()).collect()
}

/// chrony: the last `maxslewrate` in its files applies.
fn chrony(root: &Path) -> Corrector {
    let usual = Corrector { name: "chronyd", slews_ppm: CHRONY_PPM, by: "its usual maxslewrate".into() };
    let first = ["etc/chrony/chrony.conf", "etc/chrony.conf"].map(|path| root.join(path)).into_iter().find(|path| path.exists());
    let Some(first) = first else { return usual };
    let mut rate = None;
    let mut files = 0;
    if let Err(error) = read_chrony(root, &first, &mut files, &mut rate) {
        // A file that cannot be read may say anything.
        return Corrector { slews_ppm: KERNEL_PPM, by: format!("the kernel's limit, since {error}"), ..usual };
    }
    let Some((ppm, by)) = rate else { return usual };
    // The kernel allows no more than that.
    Corrector { slews_ppm: ppm.min(KERNEL_PPM), by, ..usual }
}

/// Reads one of chrony's files, and those that it includes, in their order.
fn read_chrony(root: &Path, file: &Path, files: &mut usize, rate: &mut Option<(u64, String)>) -> Result<(), String> {
    *files += 1;
    if *files > MAX_FILES {
        return Err(format!("{} is behind {MAX_FILES} others that include each other", file.display()));
    }
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        // Comments begin with one of these.
        let Some(directive) = words.next().filter(|word| !word.starts_with(['#', '%', ';', '!'])) else { continue };
        let of_root = |path: &str| root.join(path.trim_start_matches('/'));
        match directive.to_ascii_lowercase().as_str() {
            "maxslewrate" => {
                let value = words.next().unwrap_or_default();
                let ppm = value.parse::<f64>().ok().filter(|ppm| ppm.is_finite() && *ppm >= 0.0);
                let ppm = ppm.ok_or_else(|| format!("{}:{}: maxslewrate {value:?} is no rate", file.display(), number + 1))?;
                *rate = Some((ppm.ceil() as u64, format!("maxslewrate {value} in {}:{}", file.display(), number + 1)));
            }
            "include" => {
                for path in words {
                    for included in expand(&of_root(path)) {
                        read_chrony(root, &included, files, rate)?;
                    }
                }
            }
            // Of files of one name in several directories chrony takes the first. Looking at all of them does no harm here, since the last rate applies.
            "confdir" => {
                for path in words {
                    for included in expand(&of_root(path).join("*.conf")) {
                        read_chrony(root, &included, files, rate)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The files that match a pattern with at most one `*`, in its last component, in order; empty if there are none.
fn expand(pattern: &Path) -> Vec<PathBuf> {
    let (Some(name), Some(directory)) = (pattern.file_name().and_then(|name| name.to_str()), pattern.parent()) else { return Vec::new() };
    let Some((before, after)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let fits = |name: &str| name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after);
    let mut found: Vec<PathBuf> =
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(fits)).map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system that has exactly these files.
    struct Root(PathBuf);

    impl Root {
        fn of(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("martlet-discipline-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).expect("a directory");
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
                fs::write(path, text).expect("a file");
            }
            Root(root)
        }

        fn with(&self, running: &[&str]) -> Vec<(&'static str, u64, String)> {
            let running: Vec<String> = running.iter().map(|name| (*name).to_owned()).collect();
            correctors_in(&self.0, &running).into_iter().map(|c| (c.name, c.slews_ppm, c.by)).collect()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_clock_of_this_host_runs_within_the_kernels_limits() {
        let rate = rate().expect("it takes no right");
        assert!(rate.corrected_ppm.abs() <= KERNEL_PPM as f64, "{rate:?}");
    }

    #[test]
    fn a_daemon_that_does_not_run_corrects_nothing() {
        let root = Root::of("none", &[("etc/chrony/chrony.conf", "maxslewrate 1000\n")]);
        assert_eq!(root.with(&["sshd"]), []);
    }

    #[test]
    fn daemons_slew_as_they_usually_do() {
        let root = Root::of("usual", &[]);
        let found: Vec<(&str, u64)> =
            root.with(&["chronyd", "systemd-timesyn", "ntpd", "phc2sys"]).into_iter().map(|c| (c.0, c.1)).collect();
        assert_eq!(found, [("chronyd", 83_334), ("ntpd", 1_000), ("systemd-timesyncd", 500), ("linuxptp", 101_000)]);
    }

    #[test]
    fn chrony_slews_as_the_last_of_its_files_says() {
        let main = "# maxslewrate 1\npool pool.ntp.org iburst\nMaxSlewRate 1000.5\nconfdir /etc/chrony/conf.d\n";
        let root = Root::of(
            "chrony",
            &[
                ("etc/chrony/chrony.conf", main),
                ("etc/chrony/conf.d/20-b.conf", "maxslewrate 3000\n"),
                ("etc/chrony/conf.d/10-a.conf", "maxslewrate 2000"),
                ("etc/chrony/conf.d/x.txt", "maxslewrate 9"),
            ],
        );
        let [(name, ppm, by)] = &root.with(&["chronyd"])[..] else { panic!("one daemon") };
        assert_eq!((*name, *ppm), ("chronyd", 3_000));
        assert!(by.starts_with("maxslewrate 3000 in ") && by.ends_with("20-b.conf:1"), "{by}");
        let root = Root::of("chrony-fast", &[("etc/chrony.conf", "maxslewrate 1e9\n")]);
        assert_eq!(root.with(&["chronyd"])[0].1, KERNEL_PPM, "the kernel gives no more");
    }

    #[test]
    fn what_cannot_be_read_may_say_anything() {
        for (name, text) in
            [("rate", "maxslewrate fast\n"), ("missing", "include /etc/nowhere.conf\n"), ("loop", "include /etc/chrony.conf\n")]
        {
            let root = Root::of(name, &[("etc/chrony.conf", text)]);
            let [(_, ppm, by)] = &root.with(&["chronyd"])[..] else { panic!("one daemon") };
            assert_eq!(*ppm, KERNEL_PPM, "{name}");
            assert!(by.starts_with("the kernel's limit, since "), "{by}");
        }
    }
}
