//! `martlet warden watch`

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::Format;
use martlet_warden::AppId;
use serde_json::json;

use super::{Place, application};

/// Have the warden watch a process that knows nothing of wardens.
///
/// The warden watches it until it ends, under an application's number. Programs monitor it by that number, like an application that joined by itself. The process runs on
/// unchanged.
///
/// Example: martlet warden watch --pid $(pidof redis-server) --app 7
#[derive(Debug, Args)]
pub struct Arguments {
    /// The process to watch.
    #[arg(long, value_name = "PID", value_parser = number::<i32>(1..=i32::MAX as u64))]
    pid: i32,
    /// The number by which others monitor it, from 1 to 1073741823.
    #[arg(long, value_name = "APP", value_parser = application)]
    app: AppId,
    #[command(flatten)]
    place: Place,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let Arguments { pid, app, place } = arguments;
    place.connect()?.adopt(*app, *pid).map_err(Fail::failed)?;
    format.print(
        format_args!("process {pid} is watched as application {app}"),
        || json!({"event": "watched", "application": app.get(), "pid": pid}),
    );
    Ok(())
}
