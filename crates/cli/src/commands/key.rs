//! `martlet get`, `martlet set` and `martlet del`

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use martlet_cluster::clients::{FabricClient, Waiting};
use martlet_cluster::directory::Directory;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::{self, Format};
use martlet_cluster::process::Activity;
use martlet_kv::client::Value;
use serde_json::{Value as Json, json};

use super::Which;
use crate::watch::known::Known;

/// Print the value of a key. Exit code 3 when it has none.
///
/// Example: martlet get greeting
#[derive(Debug, Args)]
pub struct Get {
    /// The key.
    key: OsString,
    #[command(flatten)]
    patience: Patience,
}

/// Set a key to a value.
///
/// Example: martlet set greeting hello
#[derive(Debug, Args)]
pub struct Set {
    /// The key.
    key: OsString,
    /// The value.
    value: OsString,
    /// Only if the key has no value. Exit code 3 when it has one.
    #[arg(long, conflicts_with = "if_holds")]
    if_absent: bool,
    /// Only if the key has this value. Exit code 3 when it has another, or none.
    #[arg(long, value_name = "VALUE")]
    if_holds: Option<OsString>,
    #[command(flatten)]
    patience: Patience,
}

/// Remove keys. Exit code 3 when none of them exists.
///
/// Example: martlet del greeting farewell
#[derive(Debug, Args)]
pub struct Del {
    /// The keys.
    #[arg(required = true)]
    keys: Vec<OsString>,
    #[command(flatten)]
    patience: Patience,
}

#[derive(Debug, Args)]
struct Patience {
    /// How long to wait for a reply, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = number::<u64>(..))]
    timeout: u64,
    #[command(flatten)]
    which: Which,
}

/// A reply that owns what it holds.
enum Replied {
    Nothing,
    Done,
    Number(i64),
    Bytes(Vec<u8>),
}

pub fn get(arguments: &Get, format: Format) -> Outcome {
    let key = arguments.key.as_bytes();
    match request(&arguments.patience, &[b"GET", key])? {
        Replied::Bytes(value) => {
            match format {
                Format::Text => output::raw(&[&value, &b"\n"[..]].concat()),
                Format::Json => format.object(|| json!({"key": text(key), "value": text(&value)})),
            }
            Ok(())
        }
        _ => {
            format.object(|| json!({"key": text(key), "value": null}));
            Err(Fail::absent(format_args!("the key {} has no value", shown(key))))
        }
    }
}

pub fn set(arguments: &Set, format: Format) -> Outcome {
    let (key, value) = (arguments.key.as_bytes(), arguments.value.as_bytes());
    let args: &[&[u8]] = match &arguments.if_holds {
        Some(expected) => &[b"CAS", key, b"=", expected.as_bytes(), value],
        None if arguments.if_absent => &[b"CAS", key, b"NX", value],
        None => &[b"SET", key, value],
    };
    let changed = !matches!(request(&arguments.patience, args)?, Replied::Number(0) | Replied::Nothing);
    format.print(if changed { "OK" } else { "not set" }, || json!({"key": text(key), "changed": changed}));
    let why = if arguments.if_absent { "already has a value" } else { "does not have the expected value" };
    if changed { Ok(()) } else { Err(Fail::absent(format_args!("the key {} {why}", shown(key)))) }
}

pub fn del(arguments: &Del, format: Format) -> Outcome {
    let mut args: Vec<&[u8]> = vec![b"DEL"];
    args.extend(arguments.keys.iter().map(|key| key.as_bytes()));
    let Replied::Number(removed) = request(&arguments.patience, &args)? else {
        return Err(Fail::failed("the node's reply does not fit DEL"));
    };
    format.print(removed, || json!({"removed": removed}));
    if removed > 0 { Ok(()) } else { Err(Fail::absent("none of the keys exists")) }
}

fn request(patience: &Patience, args: &[&[u8]]) -> Outcome<Replied> {
    let directory = Directory::new(&patience.which.dir);
    let cluster = directory.existing_cluster()?;
    directory
        .refuse_a_service("Ask that server itself, at its own port: redis-cli -p PORT GET, SET and DEL, if it speaks the Redis protocol")?;
    let mut may_run = false;
    for node in &cluster.config().nodes {
        // One that is stopped serves nothing; one of which nothing is known may run elsewhere.
        may_run |= matches!(Known::of(&directory, &cluster, node.number)?.activity, Some(Activity::Running) | None);
    }
    if !may_run {
        return Err(Fail::absent(format_args!("no node of the cluster in {} is running", directory.path().display())));
    }
    let timeout = Duration::from_millis(patience.timeout);
    let mut client = FabricClient::open(&cluster, Waiting::PATIENT, timeout)?;
    let replied = client.request(args, |answer| match Value::parse(answer.reply) {
        Some(Value::Null) => Ok(Replied::Nothing),
        Some(Value::Simple(_)) => Ok(Replied::Done),
        Some(Value::Int(number)) => Ok(Replied::Number(number)),
        Some(Value::Bulk(bytes)) => Ok(Replied::Bytes(bytes.to_vec())),
        Some(Value::Error(error)) => Err(Fail::failed(String::from_utf8_lossy(error))),
        _ => Err(Fail::failed(format_args!("the node's reply makes no sense: {}", answer.reply.escape_ascii()))),
    })?;
    replied.unwrap_or_else(|| {
        if !client.was_sent() {
            return Err(not_sent(&client.connected(), timeout, &patience.which.dir));
        }
        Err(Fail::failed(format_args!("no reply within {} ms; whether the request takes effect is unknown", timeout.as_millis())))
    })
}

/// The error for a request that has reached no leader. `reached`: the nodes that were connected all the same.
fn not_sent(reached: &[u16], timeout: Duration, dir: &Path) -> Fail {
    let ms = timeout.as_millis();
    if reached.is_empty() {
        return Fail::absent(format_args!("no node of the cluster could be reached within {ms} ms; the request was not sent"));
    }
    let which = if let [node] = reached { format!("node {node} was") } else { format!("nodes {reached:?} were") };
    Fail::failed(format_args!(
        "no node leads, as far as could be seen from here within {ms} ms: {which} reached, and named no leader. A cluster of which too few nodes reach each other has none. The \
         request was not sent; `martlet status --dir {}` shows the nodes",
        dir.display()
    ))
}

/// As text where it is text; otherwise as an array of bytes.
fn text(bytes: &[u8]) -> Json {
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

fn shown(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

#[cfg(test)]
mod tests {
    use martlet_cluster::fail::Kind;

    use super::*;

    #[test]
    fn a_node_that_is_reached_and_knows_no_leader_is_told_from_none_that_is_reached() {
        let of = |reached: &[u16]| {
            let fail = not_sent(reached, Duration::from_secs(1), Path::new("d"));
            (fail.kind(), fail.to_string())
        };
        let none = of(&[]);
        assert_eq!(none, (Kind::Absent, "no node of the cluster could be reached within 1000 ms; the request was not sent".into()));
        let (kind, one) = of(&[2]);
        assert_eq!(kind, Kind::Failed, "3 would read as a key without a value");
        assert!(
            one.starts_with("no node leads, as far as could be seen from here within 1000 ms: node 2 was reached, and named no leader."),
            "{one}"
        );
        assert!(one.contains("The request was not sent; `martlet status --dir d`"), "{one}");
        assert!(of(&[0, 2]).1.contains("nodes [0, 2] were reached"));
    }
}
