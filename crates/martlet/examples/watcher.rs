//! Two programs that watch each other through the warden of their host. Start `martlet warden run`, then start this program twice, as `watcher 1 2` and
//! `watcher 2 1`, and kill one of them. Each prints what the warden tells it, and once a second sends the other how many seconds it has been running.

use std::time::Duration;

use martlet::fide::{AppId, Error, Failure, Handler, Resources, Warden, default_socket};

#[derive(Default)]
struct Watcher {
    has_failed: bool,
}

impl Handler for Watcher {
    fn on_failure(&mut self, app: AppId, failure: Failure) {
        let certainty = if failure.evidence.is_certain() { "certainly" } else { "presumably" };
        println!("{app} has {certainty} failed: {}", failure.evidence);
        self.has_failed = true;
    }
    fn on_piggyback_rcv(&mut self, app: AppId, seq: u64, message: &[u8]) {
        println!("{app} sends message {seq}: {}", String::from_utf8_lossy(message));
    }
    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        match timeout_ns {
            0 => println!("{app} has quit"),
            _ => println!("{app} is presumed dead from now on after {timeout_ns} ns of silence"),
        }
    }
    fn on_monitor_req(&mut self, by: Option<AppId>, pbsize: u32) {
        let by = by.map_or_else(|| "some program".into(), |by| by.to_string());
        println!("monitored by {by}, which takes {pbsize} bytes");
    }
    fn on_warden_lost(&mut self) {
        println!("the warden is gone");
    }
    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        println!("there is a warden again: {registered:?}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<i64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [own, other] = numbers[..] else { return Err("usage: watcher OWN OTHER".into()) };
    let (own, other) = (AppId::new(own)?, AppId::new(other)?);
    let mut warden = Warden::connect(&default_socket(), "watcher")?;
    warden.join(own)?;
    // This thread acts for the program: if the thread dies, the program counts as dead.
    let _acting = warden.threads().act()?;
    let want = Resources { pbsize: 64, timeout_ns: 0 };
    warden.monitor(other, want)?;
    let mut watcher = Watcher::default();
    for second in 0u64.. {
        warden.poll(Some(Duration::from_secs(1)), &mut watcher)?;
        if std::mem::take(&mut watcher.has_failed) {
            // Wait for the next life of that program.
            warden.monitor(other, want)?;
        }
        // If no program takes it, or there is no warden, the next second is another try.
        let _ = warden.piggyback(second.to_string().as_bytes());
    }
    Ok(())
}
