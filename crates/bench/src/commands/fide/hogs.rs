//! Others who want the cores.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use martlet_cluster::fail::{Context as _, Outcome};
use martlet_node::sched;

/// A thread of the ordinary class for each core, which walks through memory and never sleeps. They end with the value.
pub struct Hogs {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Bytes that each of them walks through: more than the nearest caches hold.
const BYTES: usize = 4 << 20;

impl Hogs {
    /// Starts them.
    pub fn start() -> Outcome<Hogs> {
        let ends = Arc::new(AtomicBool::new(false));
        let cores = sched::allowed_cores().context("cannot see which cores there are")?;
        let start = |_| {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || {
                let mut bytes = vec![0u8; BYTES];
                while !ends.load(Ordering::Relaxed) {
                    bytes.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                    black_box(&mut bytes);
                }
            })
        };
        let threads = cores.iter().map(start).collect();
        Ok(Hogs { ends, threads })
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
