//! One boot: from a command to its status.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::image::{self, Image};
use super::options::{Accel, Network, Options};
use super::packages;

/// The guest's network.
const NETWORK: &str = include_str!("network.sh");
/// How long a machine may take to show that KVM works. Booting takes a few seconds.
const PROBE: Duration = Duration::from_secs(40);
/// How often to check whether the machine has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How many lines of the kernel's log are shown when the machine breaks.
const LOG_LINES: usize = 40;

/// How a machine ended.
#[derive(Debug)]
pub enum Ended {
    /// The command ended with this status.
    WithStatus(u8),
    /// Time ran out.
    Late,
    /// It ended without a status.
    Broken {
        /// QEMU's own status.
        status: String,
        /// The end of the kernel's log.
        log: String,
    },
}

/// Boots, runs the command, and ends.
///
/// # Errors
/// When the machine cannot be started.
pub fn run(image: &Image, options: &Options) -> Result<Ended, String> {
    boot(image, options, chosen(image, options.accel)?, Stdio::inherit())
}

/// Decides how to run: with KVM where it works.
///
/// # Errors
/// When that cannot be tried.
pub fn chosen(image: &Image, accel: Accel) -> Result<Accel, String> {
    Ok(match accel {
        Accel::Auto if kvm_works(image)? => Accel::Kvm,
        Accel::Auto => Accel::Tcg,
        chosen => chosen,
    })
}

/// Whether a guest boots under KVM here. If the device is there, only a try tells. The answer is kept until this machine restarts.
fn kvm_works(image: &Image) -> Result<bool, String> {
    // Of machines that start together, one tries and the others wait for the answer.
    static TRYING: Mutex<()> = Mutex::new(());
    let _one = TRYING.lock().unwrap_or_else(PoisonError::into_inner);
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(false);
    }
    let this_boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let kept = image.root.join("kvm");
    if let Some(answer) = fs::read_to_string(&kept).ok().and_then(|text| text.strip_prefix(&this_boot).map(|rest| rest == "works")) {
        return Ok(answer);
    }
    let try_it = Options { command: vec!["true".into()], timeout: PROBE, ..Options::default() };
    let works = matches!(boot(image, &try_it, Accel::Kvm, Stdio::null())?, Ended::WithStatus(0));
    let word = if works { "works" } else { "fails" };
    println!("vm: KVM {word} here{}", if works { "" } else { "; emulating" });
    fs::write(&kept, format!("{this_boot}{word}")).map_err(|e| format!("cannot write {}: {e}", kept.display()))?;
    Ok(works)
}

/// Boots. QEMU's own messages go to `complaints`.
fn boot(image: &Image, options: &Options, accel: Accel, complaints: Stdio) -> Result<Ended, String> {
    let mut machine = Machine::start(image, options, accel, &[], complaints)?;
    let output = machine.output();
    let label = options.label;
    let copy = std::thread::spawn(move || hand_on(output, label));
    let late = Instant::now() + options.timeout;
    let ended = loop {
        match machine.ended()? {
            Some(ended) => break ended,
            None if Instant::now() >= late => break Ended::Late,
            None => std::thread::sleep(LOOK),
        }
    };
    // Ends the machine if necessary, and so the output.
    drop(machine);
    // The reader of our output may be gone. The command's status counts all the same.
    let _ = copy.join();
    Ok(ended)
}

/// A machine that runs. It is ended when this is dropped.
pub struct Machine {
    child: Running,
    job: Job,
}

impl Machine {
    /// Boots a machine. `more` are further arguments for QEMU, whose own messages go to `complaints`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(image: &Image, options: &Options, accel: Accel, more: &[OsString], complaints: Stdio) -> Result<Machine, String> {
        let job = Job::new(options)?;
        let mut command = Command::new(packages::program(&image.tools, "qemu-system-x86_64"));
        command.args(qemu_arguments(image, options, accel, &job.0)).args(more).env("LD_LIBRARY_PATH", image::libraries(&image.tools));
        // QEMU reads no input, but some versions hang if it is closed.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(complaints);
        let child = command.spawn().map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
        Ok(Machine { child: Running(child), job })
    }

    /// The machine's output. May be taken once.
    pub fn output(&mut self) -> ChildStdout {
        self.child.0.stdout.take().expect("piped, and taken once")
    }

    /// Writes a file that its command finds in `/run/job`. The file may have existed before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.job.0.join(name);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn ended(&mut self) -> Result<Option<Ended>, String> {
        let Some(status) = self.child.0.try_wait().map_err(|e| format!("cannot wait for QEMU: {e}"))? else { return Ok(None) };
        let result = fs::read_to_string(self.job.0.join("status")).unwrap_or_default();
        Ok(Some(match result.trim().parse() {
            Ok(result) => Ended::WithStatus(result),
            Err(_) => {
                let log = fs::read(self.job.0.join("console")).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                let lines: Vec<&str> = log.lines().collect();
                Ended::Broken { status: status.to_string(), log: lines[lines.len().saturating_sub(LOG_LINES)..].join("\n") }
            }
        }))
    }
}

/// Passes the machine's output on: as it comes, or line by line after a label.
fn hand_on(mut output: impl Read, label: &str) -> io::Result<()> {
    if label.is_empty() {
        return io::copy(&mut output, &mut io::stdout()).map(|_| ());
    }
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut out = io::stdout().lock();
        out.write_all(label.as_bytes())?;
        out.write_all(&line)?;
        line.clear();
    }
    Ok(())
}

/// QEMU, which is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The directory through which a job reaches the guest. It is deleted when this is dropped.
struct Job(PathBuf);

impl Job {
    fn new(options: &Options) -> Result<Job, String> {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir().join(format!("martlet-vm-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed)));
        let trouble = |e: io::Error| format!("cannot make the job in {}: {e}", dir.display());
        fs::create_dir_all(&dir).map_err(trouble)?;
        let job = Job(dir.clone());
        let share = match &options.share {
            Some(share) => fs::canonicalize(share).map_err(|e| format!("--share: `{}`: {e}", share.display()))?,
            None => PathBuf::new(),
        };
        let here = std::env::current_dir().map_err(|e| format!("the current directory is gone: {e}"))?;
        let settings = std::env::vars().filter(|(name, _)| is_handed_on(name)).collect::<Vec<_>>();
        fs::write(dir.join("share"), share.as_os_str().as_encoded_bytes()).map_err(trouble)?;
        fs::write(dir.join("run"), script(options, &here, &settings)).map_err(trouble)?;
        File::create(dir.join("status")).map_err(trouble)?;
        Ok(job)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // If the directory cannot be removed, nothing better can be done.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether the command gets this variable of our environment.
fn is_handed_on(name: &str) -> bool {
    matches!(name, "PATH" | "HOME" | "RUST_BACKTRACE" | "RUST_LOG") || name.starts_with("MARTLET_")
}

/// The script for the guest's shell.
fn script(options: &Options, here: &Path, settings: &[(String, String)]) -> String {
    let mut script = match &options.network {
        Network::Rdma => format!("family={}\n{NETWORK}", if options.ipv6 { 6 } else { 4 }),
        Network::Wire(address) => format!("ip link set lo up && ip address add {address}/24 dev eth0 && ip link set eth0 up || exit 125\n"),
    };
    if let Some(netem) = netem(options) {
        for device in ["ve0", "ve1"] {
            script.push_str(&format!("tc qdisc add dev {device} root netem {netem} || exit 125\n"));
        }
    }
    for (name, value) in settings {
        script.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    script.push_str(&format!("cd {} || exit 125\n", quoted(&here.display().to_string())));
    let command: Vec<String> = options.command.iter().map(|word| quoted(word)).collect();
    script.push_str(&command.join(" "));
    script.push('\n');
    script
}

/// What the link is told to do to packets. The limit is on packets under way, and is more than any test has.
fn netem(options: &Options) -> Option<String> {
    let delay = options.delay.map(|delay| format!(" delay {}us", delay.as_micros()));
    let loss = options.loss.map(|loss| format!(" loss {}.{:03}%", loss / 1000, loss % 1000));
    (delay.is_some() || loss.is_some()).then(|| format!("limit 100000{}{}", delay.unwrap_or_default(), loss.unwrap_or_default()))
}

/// Quotes a word for the shell, whatever it contains.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn qemu_arguments(image: &Image, options: &Options, accel: Accel, job: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    // microvm with all processor features does not boot this kernel; q35 does.
    add(&["-machine", "q35", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"]);
    match accel {
        Accel::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
        // Without the two features, the kernel copies memory word by word. With them it uses an instruction that the emulator executes byte by byte, so that
        // other processors see torn words, as they never do on real hardware.
        Accel::Auto | Accel::Tcg => add(&["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm"]),
    }
    add(&["-m", &options.memory_mib.to_string(), "-smp", &options.cpus.to_string()]);
    for firmware in ["usr/share/qemu", "usr/share/seabios"] {
        let dir = image.tools.join(firmware);
        if dir.exists() {
            add(&["-L", &dir.display().to_string()]);
        }
    }
    add(&["-kernel", &image.kernel.display().to_string(), "-initrd", &image.ramdisk.display().to_string()]);
    // An emulator that gets no processor time misses the few ticks in which the kernel wants to see its timer work, and the kernel then panics. So it is told
    // not to check.
    add(&["-append", "console=ttyS0 quiet panic=-1 oops=panic rdinit=/init mitigations=off nokaslr no_timer_check"]);
    add(&["-serial", &format!("file:{}", job.join("console").display())]);
    add(&["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
    for (port, path) in [("output", PathBuf::from("/dev/stdout")), ("status", job.join("status"))] {
        add(&["-chardev", &format!("file,id={port},append=on,path={}", path.display())]);
        add(&["-device", &format!("virtserialport,chardev={port},name={port}")]);
    }
    let mut filesystem = |tag: &str, path: &Path, access: &str| {
        add(&["-fsdev", &format!("local,id={tag},path={},security_model=none,multidevs=remap{access}", path.display())]);
        add(&["-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
    };
    filesystem("root", Path::new("/"), ",readonly=on");
    filesystem("tools", &image.tools, ",readonly=on");
    filesystem("job", job, ",readonly=on");
    if let Some(share) = &options.share {
        filesystem("share", share, "");
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(command: &[&str]) -> Options {
        Options { command: command.iter().map(|word| (*word).to_owned()).collect(), ..Options::default() }
    }

    #[test]
    fn the_shell_sees_words_as_they_were_given() {
        let words = ["sh", "-c", "echo \"$1\" '$2' \\ ;", "it's", "", "a b", "*"];
        let script = script(&options(&words), Path::new("/a b"), &[("RUST_LOG".into(), "a=b c".into())]);
        let last = script.lines().last().expect("lines");
        // The shell itself decides.
        let printed = Command::new("sh").args(["-c", &format!("printf '%s\\n' {last}")]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&printed.stdout).lines().collect::<Vec<_>>(), words);
        assert!(script.contains("cd '/a b' || exit 125\n"));
        assert!(script.contains("export RUST_LOG='a=b c'\n"));
    }

    #[test]
    fn loss_and_delay_are_for_both_ends() {
        assert_eq!(netem(&options(&[])), None);
        let lossy = Options { loss: Some(5250), delay: Some(Duration::from_millis(2)), ..options(&["true"]) };
        assert_eq!(netem(&lossy).as_deref(), Some("limit 100000 delay 2000us loss 5.250%"));
        let script = script(&lossy, Path::new("/"), &[]);
        for device in ["ve0", "ve1"] {
            assert!(script.contains(&format!("dev {device} root netem limit 100000 delay")), "{script}");
        }
    }

    #[test]
    fn only_chosen_settings_are_handed_on() {
        assert!(["PATH", "MARTLET_ROUNDS", "RUST_LOG"].into_iter().all(is_handed_on));
        assert!(!["LD_LIBRARY_PATH", "SECRET", "TMPDIR"].into_iter().any(is_handed_on));
    }
}
