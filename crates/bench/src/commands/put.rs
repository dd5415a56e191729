//! `martlet bench put`: how long clients of the fabric wait for a PUT to a cluster that runs.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::Outcome;
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;

use crate::report::{Figure, Report, Unit};
use crate::trial::clients;
use crate::trial::crowd::{Crowd, Load};

/// Measure how long clients on the fabric wait for a PUT to a running cluster.
///
/// Each client sends its next request when it has the reply to the last. A single client waits as `martlet set` does; several clients share a thread, which
/// spins. Each request sets one of 64 keys at random. Before the measurement, clients warm up for a tenth of its time.
///
/// The keys are the command's own: `martlet:bench:`, a random number, and 00 to 63. No other key is written, and none that exists. They are removed at the end,
/// also after Ctrl-C. If no node answers then, or a second Ctrl-C ends the command at once, they stay. Meanwhile the cluster's other clients wait longer.
///
/// Example: martlet bench put --clients 50 --dir /var/lib/martlet/shop
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of clients.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u16>(1..=64))]
    clients: u16,
    /// How long to measure, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = number::<u64>(1..=86_400))]
    seconds: u64,
    /// Size of a value, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = number::<u32>(1..=60_000))]
    value_bytes: u32,
    /// The cluster's directory.
    #[arg(long, value_name = "DIR", env = "MARTLET_DIR", default_value = "martlet-cluster")]
    dir: PathBuf,
}

/// How often it is looked whether it is time to end.
const LOOK: Duration = Duration::from_millis(10);

pub fn run(arguments: &Arguments, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let directory = Directory::new(&arguments.dir);
    let cluster = directory.existing_cluster()?;
    directory.refuse_a_service("`martlet bench run` measures such a service")?;
    report.set("engine", cluster.config().engine.to_string());
    report.set("fabric", cluster.config().fabric.to_string());
    report.set("value_bytes", arguments.value_bytes);
    report.set("client thread", clients::hurry()?);
    let count = arguments.clients;
    let mut crowd = Crowd::open_as_guest(&cluster, count)?;
    let measured = measure(arguments, &mut crowd, interrupt);
    let figures = crowd.and_without_keys(measured)?;
    figures.into_iter().for_each(|figure| report.add(figure));
    Ok(())
}

fn measure(arguments: &Arguments, crowd: &mut Crowd, interrupt: &Interrupt) -> Outcome<[Figure; 2]> {
    let (count, lasting) = (arguments.clients, Duration::from_secs(arguments.seconds));
    put(arguments, crowd, lasting / 10, interrupt, |_| {})?;
    let crowd_of = if count == 1 { "one client".to_owned() } else { format!("{count} clients") };
    let figure = |metric, unit| Figure::new("put", metric, unit).with("clients", count);
    let mut took = figure(format!("PUT on the fabric, {crowd_of}"), Unit::Microseconds);
    let (mut done, began) = (0_u64, Instant::now());
    put(arguments, crowd, lasting, interrupt, |one| {
        done += 1;
        took.record(one);
    })?;
    let per_s = done as f64 / began.elapsed().as_secs_f64();
    let mut rate = figure(format!("PUTs on the fabric, {crowd_of}"), Unit::PerSecond);
    rate.record(per_s as u64);
    Ok([took, rate])
}

/// PUTs for that long. `took` is told how long each took, in nanoseconds.
fn put(arguments: &Arguments, crowd: &mut Crowd, lasting: Duration, interrupt: &Interrupt, mut took: impl FnMut(u64)) -> Outcome {
    let (value_bytes, began) = (arguments.value_bytes as usize, Instant::now());
    if arguments.clients == 1 {
        let value = vec![b'v'; value_bytes];
        while began.elapsed() < lasting {
            interrupt.check()?;
            took(crowd.put(&value)?);
        }
        return Ok(());
    }
    let load = Load { reads: 0, value_bytes };
    let goes_on = || began.elapsed() < lasting && interrupt.check().is_ok();
    let each = |_, _| if goes_on() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    crowd.run_timed(arguments.clients, load, LOOK, took, each)?;
    interrupt.check()
}
