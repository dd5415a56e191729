//! How soon the cores of this host wake up.
//!
//! A core without work halts. In a virtual machine, or in a server's deep sleep states, it then takes tens of microseconds before it runs the thread that is
//! woken: each step of a failover that crosses processes pays for that. The kernel can be asked for less, for as long as a file is held open
//! (`Documentation/power/pm_qos_interface.rst`). All cores of the host then wait for work awake, which costs power, so this is done only if it is configured.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

const DEVICE: &str = "/dev/cpu_dma_latency";

/// A request that no core of this host take longer than this to wake up. It ends when this value is dropped, and with the process.
#[derive(Debug)]
pub struct WakeLatency {
    _request: File,
}

impl WakeLatency {
    /// Requests at most so many microseconds; with 0, cores do not halt at all. Of several requests the kernel heeds the strictest.
    ///
    /// # Errors
    /// When this process may not make the request, or the kernel takes no such requests; the error names the device.
    pub fn at_most(us: u32) -> io::Result<WakeLatency> {
        WakeLatency::ask(Path::new(DEVICE), us)
    }

    fn ask(device: &Path, us: u32) -> io::Result<WakeLatency> {
        let told = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", device.display()));
        let value = i32::try_from(us).unwrap_or(i32::MAX);
        let mut request = OpenOptions::new().write(true).open(device).map_err(told)?;
        request.write_all(&value.to_ne_bytes()).map_err(told)?;
        Ok(WakeLatency { _request: request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_number_as_the_kernel_reads_it() {
        let path = std::env::temp_dir().join(format!("martlet-latency-{}", std::process::id()));
        std::fs::write(&path, []).expect("a file");
        for (us, value) in [(0, 0), (25, 25), (u32::MAX, i32::MAX)] {
            std::fs::write(&path, []).expect("a file");
            WakeLatency::ask(&path, us).expect("taken");
            assert_eq!(std::fs::read(&path).expect("a file"), i32::to_ne_bytes(value), "of {us} us");
        }
        std::fs::remove_file(&path).expect("a file");
        let error = WakeLatency::ask(&path, 0).expect_err("no such device").to_string();
        assert!(error.contains(&*path.to_string_lossy()), "{error}");
    }
}
