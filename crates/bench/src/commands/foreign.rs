//! Servers of others that are measured beside ours, where they are installed.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Context as _, Fail, Outcome};

/// How long a server may take to listen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a program is there.
pub fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// A server on this host. It ends with the value.
#[derive(Debug)]
pub struct ForeignServer {
    name: &'static str,
    child: Child,
    port: u16,
}

impl ForeignServer {
    /// Starts one that is to listen on that port.
    pub fn start(name: &'static str, arguments: &[String], port: u16) -> Outcome<ForeignServer> {
        // Another server that listens there would be measured in its place.
        drop(TcpListener::bind(("127.0.0.1", port)).context(format_args!("{name}'s port {port}"))?);
        // Debian's setpriv lets the kernel end it with us, should we be killed.
        let mut command = if installed("setpriv") {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", name]);
            command
        } else {
            Command::new(name)
        };
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context(format_args!("cannot start {name}"))?;
        Ok(ForeignServer { name, child, port })
    }

    /// Waits until it listens.
    pub fn await_listening(&mut self) -> Outcome {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address()).is_err() {
            if let Some(status) = self.child.try_wait().context(format_args!("cannot look at {}", self.name))? {
                return Err(Fail::failed(format_args!("{} ended: {status}", self.name)));
            }
            if Instant::now() > until {
                return Err(Fail::failed(format_args!("{} does not listen", self.name)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ForeignServer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _: io::Result<()> = self.child.kill();
        let _ = self.child.wait();
    }
}
