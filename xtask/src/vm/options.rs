//! The command line of `cargo xtask vm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args, ValueEnum};

use crate::number::number;

/// How the processor is provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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

/// A command in a virtual machine with two software RDMA devices.
///
/// The devices are rxe0 (10.99.0.1) and rxe1 (10.99.0.2), joined by a pair of network interfaces, ve0 and ve1. The command runs in the current directory and sees
/// this machine's files; what it writes is lost with the machine. MARTLET_*, RUST_BACKTRACE and RUST_LOG are handed to it. Kernel, QEMU and tools come from
/// Debian's packages at the first run and stay in target/vm.
///
/// Exit status: the command's own; 124 when time ran out; 125 when the machine broke; 77 when it cannot be had here, with the reason.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The command to run.
    #[arg(last = true, required_unless_present = "prepare")]
    pub command: Vec<String>,
    /// Lose that share of the packets, each way: `5%` or `5`.
    // In thousandths of a per cent.
    #[arg(long, value_name = "PERCENT", value_parser = loss)]
    pub loss: Option<u32>,
    /// Delay every packet by that much, each way: `2ms`, `150us`, `1s`.
    #[arg(long, value_name = "TIME", value_parser = delay)]
    pub delay: Option<Duration>,
    /// Give the devices addresses of IPv6, fd99::1 and fd99::2, instead.
    #[arg(long)]
    pub ipv6: bool,
    /// Let the command write below this directory for good.
    #[arg(long, value_name = "DIR")]
    pub share: Option<PathBuf>,
    /// Number of processors.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u32>(1..=16))]
    pub cpus: u32,
    /// Memory in MiB.
    #[arg(long = "memory", value_name = "MIB", default_value_t = 2048, value_parser = number::<u32>(512..=65536))]
    pub memory_mib: u32,
    /// End the machine after so many seconds.
    #[arg(long, value_name = "SECS", default_value = "300", value_parser = number::<u64>(1..=86400).map(Duration::from_secs))]
    pub timeout: Duration,
    /// How to provide the processor.
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub accel: Accel,
    /// Only fetch and unpack what a run needs.
    #[arg(long, conflicts_with = "command")]
    pub prepare: bool,
    /// Printed before each line of output, for machines that run beside each other.
    #[arg(skip)]
    pub label: &'static str,
    /// Its network.
    #[arg(skip = Network::Rdma)]
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
    loss.map(|loss| loss as u32).ok_or_else(|| "allowed are 0 to 100 per cent".into())
}

fn delay(text: &str) -> Result<Duration, String> {
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let micros = units.into_iter().find_map(|(unit, micros)| Some(thousandths(text.strip_suffix(unit)?)? * micros / 1000));
    let delay = micros.map(Duration::from_micros).filter(|delay| *delay <= Duration::from_secs(10));
    delay.ok_or_else(|| "allowed is a number with us, ms or s, up to 10s".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::tests::{refusal, words};

    fn options(args: &str) -> Options {
        match words(&format!("vm {args}")) {
            Command::Vm(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_the_dashes_is_the_command_and_all_else_is_as_by_default() {
        let found = options("-- ls --loss --");
        assert_eq!(found.command, ["ls", "--loss", "--"]);
        assert_eq!(found, Options { command: found.command.clone(), ..Options::default() });
    }

    #[test]
    fn options_have_units_and_limits() {
        let found = options("--loss 5% --delay=2ms --cpus=4 --memory 1024 --timeout=9 --accel tcg -- x");
        assert_eq!((found.loss, found.delay), (Some(5000), Some(Duration::from_millis(2))));
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
            assert!(loss(bad).is_err(), "{bad}");
        }
        for bad in ["", "5", "ms", "-1ms", "11s", "2 ms", "1m"] {
            assert!(delay(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_machine_has_either_a_command_or_nothing_to_do() {
        assert!(options("--prepare").prepare);
        for (args, why) in [
            ("vm", "-- <COMMAND>..."),
            ("vm --", "-- <COMMAND>..."),
            ("vm --prepare -- ls", "'--prepare' cannot be used with"),
            ("vm ls", "unexpected argument 'ls'"),
        ] {
            let said = refusal(args);
            assert!(said.contains(why), "{args}: {said}");
        }
    }
}
