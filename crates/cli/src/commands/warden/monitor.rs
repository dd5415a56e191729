//! `martlet warden monitor`

use std::time::Duration;

use clap::{ArgGroup, Args};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{BAD, Format, WARN, styled};
use martlet_warden::client::{Error, Failure, Handler};
use martlet_warden::{AppId, MAX_PIGGYBACK_BYTES, Resources};
use serde_json::json;

use super::{Place, application};

/// Wait for applications or processes to fail, and print a line for each.
///
/// The command ends when all of them have failed or quit. An application that has not joined yet is waited for.
///
/// Example: martlet warden monitor 7 && systemctl start standby
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whom").args(["apps", "pid"]).required(true).multiple(true))]
pub struct Arguments {
    /// The numbers of the applications to monitor.
    #[arg(value_name = "APP", value_parser = application)]
    apps: Vec<AppId>,
    /// A process to monitor, which need not know of wardens. May be given several times.
    #[arg(long, value_name = "PID", value_parser = number::<i32>(1..=i32::MAX as u64))]
    pid: Vec<i32>,
    #[command(flatten)]
    place: Place,
}

struct Printer {
    format: Format,
    /// What is still waited for, with the process where that is all that is known.
    left: Vec<(AppId, Option<i32>)>,
}

impl Printer {
    /// What it is, for people, and its process; it is waited for no longer.
    fn take(&mut self, app: AppId) -> (String, Option<i32>) {
        let at = self.left.iter().position(|(one, _)| *one == app);
        let pid = at.and_then(|at| self.left.swap_remove(at).1);
        (pid.map_or_else(|| format!("application {app}"), |pid| format!("process {pid}")), pid)
    }
}

impl Handler for Printer {
    fn on_failure(&mut self, app: AppId, failure: Failure) {
        let (what, pid) = self.take(app);
        let evidence = failure.evidence;
        let certainty = if evidence.is_certain() { "certain" } else { "presumed" };
        self.format.print(format_args!("{what} {} ({certainty}: {evidence})", styled(BAD, "has failed")), || {
            json!({
                "event": "failed",
                "application": app.get(),
                "pid": pid,
                "evidence": evidence.to_string(),
                "certain": evidence.is_certain(),
                "at_ns": failure.at_ns,
                "incarnation": format!("{:016x}", failure.incarnation),
            })
        });
    }

    fn on_piggyback_rcv(&mut self, app: AppId, seq: u64, message: &[u8]) {
        let text = String::from_utf8_lossy(message);
        self.format.print(
            format_args!("application {app} says {text:?}"),
            || json!({"event": "message", "application": app.get(), "seq": seq, "text": text}),
        );
    }

    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        if timeout_ns == 0 {
            let (what, _) = self.take(app);
            self.format.print(format_args!("{what} has quit"), || json!({"event": "left", "application": app.get()}));
        }
    }

    fn on_warden_lost(&mut self) {
        self.format.print(styled(WARN, "the warden is gone; waiting for the next one"), || json!({"event": "warden-lost"}));
    }

    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        match registered {
            Ok(()) => self.format.print("there is a warden again", || json!({"event": "warden-back"})),
            Err(why) => self.format.print(styled(WARN, why), || json!({"event": "refused", "why": why.to_string()})),
        }
    }
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?.for_watching();
    let mut warden = arguments.place.connect()?;
    let mut printer = Printer { format, left: Vec::new() };
    for app in &arguments.apps {
        warden.monitor(*app, Resources { pbsize: MAX_PIGGYBACK_BYTES, timeout_ns: 0 }).map_err(Fail::failed)?;
        printer.left.push((*app, None));
    }
    for pid in &arguments.pid {
        let app = warden.monitor_process(*pid).map_err(Fail::failed)?;
        printer.left.push((app, Some(*pid)));
    }
    format.object(|| json!({"event": "monitoring", "count": printer.left.len()}));
    while !printer.left.is_empty() {
        interrupt.check()?;
        // Ctrl-C interrupts the wait; one that comes right before it is seen soon.
        warden.poll(Some(Duration::from_millis(200)), &mut printer).map_err(Fail::failed)?;
    }
    Ok(())
}
