//! Figure 3: how long the slowest heartbeat so far took.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_node::config::{Idle, Priority};
use martlet_node::{clock, sched};
use martlet_protocol::basics::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;

use super::hogs::Hogs;
use super::paper;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};

/// Figure 3: how long the slowest heartbeat took, by the number of heartbeats.
///
/// One thread sends a numbered packet over two paths of the loopback device, at moments of an absolute clock, as wardens send their heartbeats; another one
/// sleeps until one comes. The copy that arrives first counts. Both threads are SCHED_FIFO, if that is allowed, or of the ordinary class. Beside them nothing
/// runs, or one thread for each core that never sleeps. Both threads read the same clock. The paper sent 2.3e12 packets over weeks, between servers whose
/// kernels kept a core for that.
///
/// Example: martlet bench fide figure3 --beats 600000 --plot stability.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of heartbeats of each kind.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number::<u32>(100..))]
    beats: u32,
    /// Time between two heartbeats, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1_000, value_parser = number::<u64>(20..=1_000_000))]
    interval_us: u64,
    /// Also draw it into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// After how long without any packet the rest is taken for lost, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let mut plot = Plot::new("Longest heartbeat so far (FiDe, Figure 3)", Axis::log("heartbeats"), Axis::log("one way, us"));
    let progress = report.progress("kinds of heartbeats", 4);
    for is_busy in [false, true] {
        for priority in [Priority::Fifo, Priority::Normal] {
            let hogs = is_busy.then(Hogs::start).transpose()?;
            let measured = beats(arguments, priority, interrupt)?;
            drop(hogs);
            let kind = format!("{}, {}", measured.class, if is_busy { "busy cores" } else { "idle cores" });
            let of = |what: &str| {
                let figure = Figure::new("fide", format!("{what}, {kind}"), Unit::Microseconds);
                figure.with("interval_us", arguments.interval_us).with("paper_max_us", paper::HOST_US).with("paper_packets", paper::PACKETS)
            };
            let (mut latency, mut gap) = (of("heartbeat, one way"), of("from one heartbeat to the next"));
            let mut series = Series::line(kind.clone());
            let (mut most, mut next) = (0, 1.0);
            for (number, ns) in (1u32..).zip(&measured.latencies) {
                latency.record(*ns);
                most = most.max(*ns);
                if f64::from(number) >= next || number as usize == measured.latencies.len() {
                    series.push(f64::from(number), most as f64 / 1e3);
                    // Some points in each decade are as many as can be told apart.
                    next = (f64::from(number) * 1.3).max(next + 1.0);
                }
            }
            measured.gaps.iter().for_each(|ns| gap.record(*ns));
            report.add(latency.with("lost", measured.lost));
            report.add(gap);
            plot = plot.with(series);
            progress.step();
        }
    }
    drop(progress);
    for (name, us) in [("paper: FiDe", paper::HOST_US), ("paper: RDMA", paper::RDMA_MOST_US), ("paper: X-Lane", paper::X_LANE_MOST_US)] {
        let mut series = Series::trace(name);
        [1.0, f64::from(arguments.beats)].into_iter().for_each(|beats| series.push(beats, us));
        plot = plot.with(series);
    }
    report.draw_and_save(plot, arguments.plot.as_deref())
}

/// What became of the heartbeats of one kind.
struct Measured {
    class: String,
    /// Of each that arrived, in order.
    latencies: Vec<u64>,
    gaps: Vec<u64>,
    lost: u64,
}

fn beats(arguments: &Arguments, priority: Priority, interrupt: &Interrupt) -> Outcome<Measured> {
    let socket = || UdpSocket::bind(("127.0.0.1", 0)).context("cannot bind a socket");
    let (listening, sending) = ([socket()?, socket()?], [socket()?, socket()?]);
    for (from, to) in sending.iter().zip(&listening) {
        from.connect(to.local_addr().context("cannot name a socket")?).context("cannot connect a socket")?;
        to.set_nonblocking(true).context("cannot set a socket up")?;
    }
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let heard = scope.spawn(|| hear(&listening, arguments, priority, &stopped));
        let sent = scope.spawn(|| send(&sending, arguments, priority, interrupt));
        let sent = sent.join().expect("it does not panic");
        // Without the last of them the other one would wait for long.
        stopped.store(sent.is_err(), Ordering::Relaxed);
        let heard = heard.join().expect("it does not panic");
        sent?;
        heard
    })
}

fn send(paths: &[UdpSocket; 2], arguments: &Arguments, priority: Priority, interrupt: &Interrupt) -> Outcome {
    sched::place_current_thread(None, priority, Idle::Park).context("cannot place the sending thread")?;
    let mut next = clock::now();
    for number in 0..u64::from(arguments.beats) {
        if number % 1_000 == 0 {
            interrupt.check()?;
        }
        next = next.after(arguments.interval_us * 1_000);
        let until = Timespec { tv_sec: (next.0 / 1_000_000_000) as i64, tv_nsec: (next.0 % 1_000_000_000) as i64 };
        // A signal cuts the sleep short, and the heartbeat is early.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
        let mut packet = [0; 16];
        packet[..8].copy_from_slice(&number.to_le_bytes());
        packet[8..].copy_from_slice(&clock::now().0.to_le_bytes());
        for path in paths {
            // What one path does not take is sent over the other.
            let _ = path.send(&packet);
        }
    }
    Ok(())
}

fn hear(paths: &[UdpSocket; 2], arguments: &Arguments, priority: Priority, stopped: &AtomicBool) -> Outcome<Measured> {
    let (beats, interval_ns) = (arguments.beats, arguments.interval_us * 1_000);
    let placement = sched::place_current_thread(None, priority, Idle::Park).context("cannot place the listening thread")?;
    let class = match placement.class {
        sched::Class::Fifo => "SCHED_FIFO",
        sched::Class::Slice | sched::Class::Normal => "ordinary class",
    };
    let mut measured = Measured { class: class.into(), latencies: Vec::with_capacity(beats as usize), gaps: Vec::new(), lost: 0 };
    let (mut awaited, mut last): (u64, Option<Time>) = (0, None);
    let mut packet = [0; 16];
    let mut waited_since = clock::now();
    while awaited < u64::from(beats) && !stopped.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(&paths[0], PollFlags::IN), PollFd::new(&paths[1], PollFlags::IN)];
        let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = poll(&mut fds, Some(&look));
        let mut has_heard = false;
        for path in paths {
            while let Ok(16) = path.recv(&mut packet) {
                has_heard = true;
                let word = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().expect("eight bytes"));
                let (number, sent, now) = (word(0), Time(word(8)), clock::now());
                // The copy that came over the other path.
                if number < awaited {
                    continue;
                }
                measured.lost += number - awaited;
                awaited = number + 1;
                measured.latencies.push(now.since(sent));
                last.into_iter().for_each(|last| measured.gaps.push(now.since(last)));
                last = Some(now);
            }
        }
        let now = clock::now();
        if has_heard {
            waited_since = now;
        } else if now.since(waited_since) > PATIENCE_NS + interval_ns {
            break;
        }
    }
    measured.lost += u64::from(beats) - awaited;
    if measured.gaps.is_empty() && !stopped.load(Ordering::Relaxed) {
        return Err(Fail::failed("no two heartbeats arrived"));
    }
    Ok(measured)
}
