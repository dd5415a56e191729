//! The process that started this one and wants to hear about its state, as systemd does for a service of `Type=notify`.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::fail::{Context as _, Outcome};

/// The variable in which systemd gives the socket at which it listens to a service.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The socket at which it listens, if there is one.
#[derive(Debug)]
pub struct Starter(Option<SocketAddr>);

impl Starter {
    /// The one that the environment names.
    ///
    /// # Errors
    /// When what the environment says is no address.
    pub fn from_environment() -> Outcome<Starter> {
        let Some(name) = std::env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) else { return Ok(Starter(None)) };
        let address = address(Path::new(&name)).context(format_args!("cannot understand {NOTIFY_SOCKET}={}", name.display()))?;
        Ok(Starter(Some(address)))
    }

    /// Tells it something, without waiting. It is no error if it no longer listens: the service does not depend on it.
    pub fn tell(&self, text: &str) {
        let Some(address) = &self.0 else { return };
        let told = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to_addr(text.as_bytes(), address)
        });
        if let Err(error) = told {
            tracing::warn!(%error, "cannot tell the service manager {text:?} at {NOTIFY_SOCKET}");
        }
    }
}

/// The address with that name, which is abstract if it begins with an @.
fn address(name: &Path) -> io::Result<SocketAddr> {
    match name.as_os_str().as_encoded_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it begins with neither / nor @")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starter_hears_at_a_path_or_an_abstract_name() {
        let path = std::env::temp_dir().join(format!("martlet-notify-{}", std::process::id()));
        let abstract_name = format!("@martlet-notify-{}", std::process::id());
        let names = [path.as_path(), Path::new(&abstract_name)];
        for name in names {
            let address = address(name).expect("an address");
            let socket = UnixDatagram::bind_addr(&address).expect("it is free");
            Starter(Some(address)).tell("READY=1");
            let mut heard = [0; 16];
            let len = socket.recv(&mut heard).expect("it was told");
            assert_eq!(&heard[..len], b"READY=1");
        }
        std::fs::remove_file(&path).expect("it is there");
        assert!(address(Path::new("vsock:2:1")).is_err());
    }
}
