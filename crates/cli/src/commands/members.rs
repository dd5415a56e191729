//! `martlet members`

use std::time::Duration;

use clap::Args;
use martlet_protocol::membership::View;
use serde_json::json;

use super::Which;
use crate::directory::Directory;
use crate::fail::{Context as _, Fail, Outcome};
use crate::interrupt::Interrupt;
use crate::observer::{self, Observer};
use crate::output::{DIM, Format, GOOD, Table, styled};

/// Show who is in the present view, and why others are not.
///
/// Example: martlet members --watch
#[derive(Debug, Args)]
pub struct Arguments {
    /// Show each new view as it comes, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    which: Which,
}

/// How long to wait for somebody to show a view.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let interrupt = Interrupt::install().context("cannot watch for Ctrl-C")?;
    let directory = Directory::new(&arguments.which.dir);
    let mut observer = Observer::open(&directory.existing_cluster()?)?;
    let mut shown = 0;
    loop {
        let newer = |sights: &[_]| observer::newest_view(sights).is_some_and(|view| view.number.0 > shown);
        // Ctrl-C is how watching ends.
        let found = match observer.wait_for(PATIENCE, &interrupt, newer) {
            Err(_) if arguments.watch && interrupt.is_raised() => return Ok(()),
            found => found?,
        };
        match found {
            Ok(sights) => {
                if let Some(view) = observer::newest_view(&sights) {
                    shown = view.number.0;
                    show(view, format);
                }
            }
            Err(_) if shown == 0 && !arguments.watch => {
                return Err(Fail::absent(format_args!(
                    "no node of the cluster in {} shows a view; is it running?",
                    directory.path().display()
                )));
            }
            Err(_) => {}
        }
        if !arguments.watch {
            return Ok(());
        }
    }
}

fn show(view: &View, format: Format) {
    let primary = view.primary().map(|member| member.id);
    let mut table = Table::new(["member", "roles", "redis", ""]);
    for member in &view.members {
        let leads = if Some(member.id) == primary { styled(GOOD, "leads") } else { String::new() };
        table.row([member.id.to_string(), member.roles.to_string(), member.address.clone(), leads]);
    }
    let departed: Vec<String> = view.departed.iter().map(|d| format!("{} {}", d.id, d.evidence)).collect();
    let gone =
        if departed.is_empty() { String::new() } else { format!("\n{}", styled(DIM, format_args!("gone: {}", departed.join(", ")))) };
    let compatible = if view.compatible { ", compatible with the one before" } else { "" };
    format.print(format_args!("view {}, lease {} ms{compatible}\n{table}{gone}\n", view.number, view.lease_ns / 1_000_000), || {
        json!({
            "event": "view",
            "view": view.number.0,
            "lease_ns": view.lease_ns,
            "compatible": view.compatible,
            "members": view.members.iter().map(|m| json!({
                "id": m.id.to_string(),
                "node": m.id.node.0,
                "incarnation": m.id.incarnation.0,
                "roles": m.roles.to_string(),
                "redis": m.address,
                "leads": Some(m.id) == primary,
            })).collect::<Vec<_>>(),
            "departed": view.departed.iter().map(|d| json!({
                "id": d.id.to_string(),
                "node": d.id.node.0,
                "incarnation": d.id.incarnation.0,
                "evidence": d.evidence.to_string(),
            })).collect::<Vec<_>>(),
        })
    });
}
