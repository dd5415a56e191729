//! One of the virtual machines, which can be paused and resumed.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::wire::Wire;
use crate::family::Family;
use crate::vm::image::Image;
use crate::vm::machine::{Ended, Machine};
use crate::vm::options::{Accel, Network, Options};

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine that runs.
pub struct Guest {
    machine: Machine,
    monitor: BufReader<UnixStream>,
}

impl Guest {
    /// Boots the machine of this number, which runs a shell script.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn boot(
        image: &Image,
        accel: Accel,
        wire: &Wire,
        directory: &Path,
        number: usize,
        script: &str,
        family: &Family,
    ) -> Result<Guest, String> {
        let options = Options {
            command: vec!["sh".into(), "-c".into(), script.into()],
            cpus: 1,
            memory_mib: 768,
            network: Network::Wire(ip_address(number)),
            ..Options::default()
        };
        let socket = directory.join(format!("monitor-{number}"));
        let mut more: Vec<OsString> = wire.arguments(number).map(OsString::from).to_vec();
        more.extend(["-qmp".into(), format!("unix:{},server=on,wait=off", socket.display()).into()]);
        let mut machine = Machine::start(image, &options, accel, &more, Stdio::inherit())?;
        let began = std::time::Instant::now();
        let stream = loop {
            family.check()?;
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if began.elapsed() < PATIENCE && machine.ended()?.is_none() => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(format!("the monitor of machine {number} cannot be reached: {error}")),
            }
        };
        stream.set_read_timeout(Some(PATIENCE)).map_err(|e| format!("machine {number}: {e}"))?;
        let mut guest = Guest { machine, monitor: BufReader::new(stream) };
        guest.tell("qmp_capabilities")?;
        Ok(guest)
    }

    /// Its output. May be taken once.
    pub fn output(&mut self) -> ChildStdout {
        self.machine.output()
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn ended(&mut self) -> Result<Option<Ended>, String> {
        self.machine.ended()
    }

    /// Sets how fast its clock goes: 10000 is the right speed, and a kernel allows 9000 to 11000.
    ///
    /// # Errors
    /// When the machine cannot be told.
    pub fn set_tick(&self, tick: u32) -> Result<(), String> {
        self.machine.write("tick", &tick.to_string())
    }

    /// Pauses it. When this returns, it is paused.
    ///
    /// # Errors
    /// When QEMU does not confirm that.
    pub fn stop(&mut self) -> Result<(), String> {
        self.tell("stop")
    }

    /// Resumes it.
    ///
    /// # Errors
    /// When QEMU does not confirm that.
    pub fn go_on(&mut self) -> Result<(), String> {
        self.tell("cont")
    }

    fn tell(&mut self, what: &str) -> Result<(), String> {
        let trouble = |e: std::io::Error| format!("a machine's monitor, told {what:?}: {e}");
        writeln!(self.monitor.get_mut(), "{}", json!({"execute": what})).map_err(trouble)?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.monitor.read_line(&mut line).map_err(trouble)? == 0 {
                return Err(format!("a machine's monitor has ended when told {what:?}"));
            }
            // QEMU also sends a greeting, and events.
            match serde_json::from_str::<Value>(&line) {
                Ok(said) if said.get("return").is_some() => return Ok(()),
                Ok(said) if said.get("error").is_some() => return Err(format!("a machine's monitor, told {what:?}: {line}")),
                _ => {}
            }
        }
    }
}

/// The address of a machine.
pub fn ip_address(number: usize) -> String {
    format!("10.88.0.{}", number + 1)
}
