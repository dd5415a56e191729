//! Figure 9b: requests to other replicated applications over TCP, beside the same requests to the engines: one client, five servers.

use martlet_cluster::clients::redis::{Connection, Value};
use martlet_cluster::fail::{Context as _, Fail, Outcome};

use super::super::redis_server::RedisGroup;
use super::etcd::Etcd;
use super::latency::{Measured, PATIENCE, Request, SERVERS, SIZES, of_engines};
use super::{KEY_BYTES, Subject, paper};
use crate::report::Report;
use crate::report::plot::{Axis, Plot, Series};

/// Replicas that have a write of Redis before it counts as done: a majority, the primary included.
const ACKNOWLEDGING: u16 = SERVERS / 2;

/// Measures the engines, and what is installed of the others.
pub fn measure(subject: &Subject<'_>, report: &mut Report) -> Outcome<Plot> {
    let engines = of_engines(subject, report)?;
    let (mut others, key) = (Vec::new(), vec![b'k'; KEY_BYTES]);
    match etcd(subject, &key)? {
        Some(measured) => others.push(measured),
        None => report.set("etcd", "skipped: not installed"),
    }
    match redis(subject, &key)? {
        Some(measured) => others.push(measured),
        None => report.set("redis", "skipped: not installed"),
    }
    let title = "Latency by size, one client, five servers (DARE, Figure 9b)";
    let mut plot = Plot::new(title, Axis::log("bytes of an object"), Axis::log("latency, us"));
    for (name, write, read) in paper::APPLICATIONS {
        for (kind, us) in [("write", Some(write)), ("read", read)] {
            let Some(us) = us else { continue };
            let mut series = Series::trace(format!("paper: {name}, {kind}"));
            SIZES.iter().for_each(|size| series.push(*size as f64, us));
            plot = plot.with(series);
        }
    }
    for series in engines.iter().chain(&others).flat_map(Measured::series) {
        plot = plot.with(series);
    }
    for (engine, other) in engines.iter().flat_map(|engine| others.iter().map(move |other| (engine, other))) {
        for request in Request::ALL {
            let ratio = other.median(request, 64) / engine.median(request, 64);
            report.set(&format!("p50_{}_64B_{}_to_{}", request.name(), other.name, engine.name), format!("{ratio:.1}"));
        }
    }
    engines.into_iter().for_each(|engine| engine.report(|_| None, report));
    for other in others {
        let of_paper = paper::APPLICATIONS.into_iter().find(|(name, ..)| *name == other.name);
        let us = |request| of_paper.and_then(|(_, write, read)| if request == Request::Write { Some(write) } else { read });
        other.report(us, report);
    }
    Ok(plot)
}

/// Five servers of etcd, whose leader is asked.
fn etcd(subject: &Subject<'_>, key: &[u8]) -> Outcome<Option<Measured>> {
    let Some(mut etcd) = Etcd::start(SERVERS, subject.arguments.port, subject.interrupt)? else { return Ok(None) };
    let mut measured = Measured::new("etcd");
    measured.time(subject, |request, object| match request {
        Request::Write => etcd.put(key, object).context("etcd"),
        Request::Read => match etcd.get(key).context("etcd")? {
            true => Ok(()),
            false => Err(Fail::failed("etcd has lost a key")),
        },
    })?;
    Ok(Some(measured))
}

/// A redis-server with four replicas, each write acknowledged by two of them. It elects nobody, and its reads are of the primary alone.
fn redis(subject: &Subject<'_>, key: &[u8]) -> Outcome<Option<Measured>> {
    // Behind etcd's ports.
    let port = subject.arguments.port + 2 * SERVERS;
    let Some(servers) = RedisGroup::start(port, SERVERS - 1)? else { return Ok(None) };
    let mut connection = Connection::open(servers.primary().address(), PATIENCE).context("cannot reach redis-server")?;
    let (some, patience) = (ACKNOWLEDGING.to_string(), PATIENCE.as_millis().to_string());
    let mut measured = Measured::new("redis");
    measured.time(subject, |request, object| match request {
        Request::Write => {
            let [set, wait] =
                connection.commands([&[b"SET", key, object], &[b"WAIT", some.as_bytes(), patience.as_bytes()]]).context("redis-server")?;
            match (&set, &wait) {
                (Value::Simple(_), Value::Integer(there)) if *there >= i64::from(ACKNOWLEDGING) => Ok(()),
                _ => Err(Fail::failed(format_args!("redis-server: {set:?}, {wait:?}"))),
            }
        }
        Request::Read => match connection.command(&[b"GET", key]).context("redis-server")? {
            Value::Bulk(Some(found)) if found.len() == object.len() => Ok(()),
            other => Err(Fail::failed(format_args!("redis-server: {other:?}"))),
        },
    })?;
    Ok(Some(measured))
}
