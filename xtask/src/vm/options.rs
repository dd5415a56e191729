//! The command line of `cargo xtask vm`.

use std::path::PathBuf;
use std::time::Duration;

/// What is printed for `--help`, and after a mistake.
pub const USAGE: &str = "\
Usage: cargo xtask vm [OPTION]... -- COMMAND [ARG]...
       cargo xtask vm --prepare

Runs COMMAND in a virtual machine that has two software RDMA devices, rxe0 (10.99.0.1) and rxe1 (10.99.0.2), joined by a pair of
network interfaces, ve0 and ve1. It runs in the current directory and sees this machine's files; what it writes is lost with the machine.
Kernel, QEMU and tools come from Debian's packages at the first run and stay in target/vm.

Options:
  --loss PERCENT    Lose that share of the packets, each way (0 to 100; `5%` or `5`)
  --delay TIME      Delay every packet by that much, each way (`2ms`, `150us`, `1s`)
  --ipv6            Give the devices addresses of IPv6, fd99::1 and fd99::2, instead
  --share DIR       Let the command write below DIR for good
  --cpus N          Processors, 1 to 16 (default 2)
  --memory MIB      Memory in MiB, 512 to 65536 (default 2048)
  --timeout SECS    End the machine after so many seconds (default 300)
  --accel KIND      `kvm`, `tcg` (emulation), or `auto`: kvm where it works (default)
  --prepare         Only fetch and unpack what a run needs

Exit status: the command's own; 124 when time ran out; 125 when the machine broke; 77 when it cannot be had here, with the reason.
MARTLET_*, RUST_BACKTRACE and RUST_LOG are handed to the command.
";

/// How the processor is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// KVM if it works, otherwise emulation.
    Auto,
    /// The processor's own virtualization.
    Kvm,
    /// QEMU's emulation.
    Tcg,
}

/// A machine's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Two RDMA devices, joined by a pair of network interfaces.
    Rdma,
    /// One interface with this IPv4 address, for a network that QEMU is told of.
    Wire(String),
}

/// A checked command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The command to run; empty for `--prepare`.
    pub command: Vec<String>,
    /// Packets lost, in thousandths of a per cent.
    pub loss: Option<u32>,
    /// The delay of every packet.
    pub delay: Option<Duration>,
    /// Whether the devices have IPv6 addresses.
    pub ipv6: bool,
    /// A directory of this machine that the command may write to.
    pub share: Option<PathBuf>,
    /// How many processors the machine has.
    pub cpus: u32,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// After how long to give up.
    pub timeout: Duration,
    /// How to provide the processor.
    pub accel: Accel,
    /// Whether to stop after the preparations.
    pub prepare: bool,
    /// Printed before each line of output, for machines that run beside each other.
    pub label: &'static str,
    /// Its network.
    pub network: Network,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            command: Vec::new(),
            loss: None,
            delay: None,
            ipv6: false,
            share: None,
            cpus: 2,
            memory_mib: 2048,
            timeout: Duration::from_secs(300),
            accel: Accel::Auto,
            prepare: false,
            label: "",
            network: Network::Rdma,
        }
    }
}

/// Reads the arguments after `vm`. `Ok(None)` asks for help.
///
/// # Errors
/// What is wrong: the option, the given value, and what is allowed.
pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            options.command = args.collect();
            break;
        }
        // Accepts both `--loss 5%` and `--loss=5%`.
        let (name, joined) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (arg, None),
        };
        let mut value = |allowed: &str| {
            let value = joined.clone().or_else(|| args.next());
            value.ok_or_else(|| format!("{name}: a value is missing; allowed is {allowed}"))
        };
        match name.as_str() {
            "--loss" => options.loss = Some(loss(&value(LOSS)?)?),
            "--delay" => options.delay = Some(delay(&value(DELAY)?)?),
            "--share" => options.share = Some(PathBuf::from(value("a directory")?)),
            "--cpus" => options.cpus = number("--cpus", &value("1 to 16")?, 1, 16)?,
            "--memory" => options.memory_mib = number("--memory", &value("512 to 65536")?, 512, 65536)?,
            "--timeout" => {
                options.timeout = Duration::from_secs(number("--timeout", &value("1 to 86400")?, 1, 86400)?.into());
            }
            "--accel" => {
                options.accel = match value("kvm, tcg or auto")?.as_str() {
                    "kvm" => Accel::Kvm,
                    "tcg" => Accel::Tcg,
                    "auto" => Accel::Auto,
                    other => return Err(format!("--accel: `{other}`; allowed are kvm, tcg and auto")),
                }
            }
            "--prepare" | "--ipv6" | "--help" | "-h" if joined.is_some() => return Err(format!("{name} takes no value")),
            "--prepare" => options.prepare = true,
            "--ipv6" => options.ipv6 = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("`{other}`: no such option; the command to run follows `--`")),
        }
    }
    match (options.prepare, options.command.is_empty()) {
        (false, true) => Err("no command: it follows `--`, or say --prepare".into()),
        (true, false) => Err("--prepare runs no command".into()),
        _ => Ok(Some(options)),
    }
}

const LOSS: &str = "0 to 100 per cent";
const DELAY: &str = "a number with us, ms or s, up to 10s";

fn number(name: &str, text: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| format!("{name}: `{text}`; allowed are {least} to {most}"))
}

/// A decimal number without sign or exponent, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.len() <= 9 && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<3}").parse().ok()?;
    Some(whole.parse::<u64>().ok()? * 1000 + fraction)
}

fn loss(text: &str) -> Result<u32, String> {
    let loss = thousandths(text.strip_suffix('%').unwrap_or(text)).filter(|loss| *loss <= 100_000);
    loss.map(|loss| loss as u32).ok_or_else(|| format!("--loss: `{text}`; allowed is {LOSS}"))
}

fn delay(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let micros = units.into_iter().find_map(|(unit, micros)| Some(thousandths(text.strip_suffix(unit)?)? * micros / 1000));
    let delay = micros.map(Duration::from_micros).filter(|delay| *delay <= Duration::from_secs(10));
    delay.ok_or_else(|| format!("--delay: `{text}`; allowed is {DELAY}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Option<Options>, String> {
        parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    fn options(args: &[&str]) -> Options {
        parsed(args).expect("good").expect("no help")
    }

    #[test]
    fn what_follows_the_dashes_is_the_command() {
        let found = options(&["--", "ls", "--loss", "--"]);
        assert_eq!(found.command, ["ls", "--loss", "--"]);
        assert_eq!(found, Options { command: found.command.clone(), ..Options::default() });
    }

    #[test]
    fn options_are_read_in_both_forms() {
        let found = options(&["--loss", "5%", "--delay=2ms", "--cpus=4", "--memory", "1024", "--timeout=9", "--accel", "tcg", "--", "x"]);
        assert_eq!((found.loss, found.delay), (Some(5000), Some(Duration::from_millis(2))));
        assert!(!found.ipv6 && options(&["--ipv6", "--", "x"]).ipv6);
        assert_eq!((found.cpus, found.memory_mib, found.timeout, found.accel), (4, 1024, Duration::from_secs(9), Accel::Tcg));
    }

    #[test]
    fn loss_and_delay_have_fractions_and_units() {
        assert_eq!(loss("0.25"), Ok(250));
        assert_eq!(loss("100%"), Ok(100_000));
        assert_eq!(delay("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(delay("150us"), Ok(Duration::from_micros(150)));
        assert_eq!(delay("1s"), Ok(Duration::from_secs(1)));
        for bad in ["", "%", "-1", "101", "1e1", "5.", ".5", "0.1234", "99999999999"] {
            assert!(loss(bad).expect_err("bad").contains(LOSS), "{bad}");
        }
        for bad in ["", "5", "ms", "-1ms", "11s", "2 ms", "1m"] {
            assert!(delay(bad).expect_err("bad").contains(DELAY), "{bad}");
        }
    }

    #[test]
    fn mistakes_name_the_option_the_value_and_what_is_allowed() {
        for (args, why) in [
            (&["--cpus", "0", "--", "x"][..], "--cpus: `0`; allowed are 1 to 16"),
            (&["--accel", "fast", "--", "x"], "--accel: `fast`; allowed are kvm, tcg and auto"),
            (&["--los", "5", "--", "x"], "`--los`: no such option"),
            (&["ls"], "the command to run follows `--`"),
            (&["--loss"], "--loss: a value is missing; allowed is 0 to 100 per cent"),
            (&[], "no command"),
            (&["--"], "no command"),
            (&["--prepare", "--", "ls"], "--prepare runs no command"),
            (&["--prepare=yes"], "--prepare takes no value"),
            (&["--ipv6=no", "--", "x"], "--ipv6 takes no value"),
        ] {
            let error = parsed(args).expect_err("a mistake");
            assert!(error.contains(why), "{args:?}: {error}");
        }
    }

    #[test]
    fn help_and_preparations_need_no_command() {
        assert_eq!(parsed(&["--help"]), Ok(None));
        assert!(options(&["--prepare"]).prepare);
    }
}
