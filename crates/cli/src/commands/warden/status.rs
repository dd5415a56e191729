//! `martlet warden status`

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::output::{BAD, DIM, Format, GOOD, Table, WARN, styled};
use martlet_warden::board::{Marking, State};
use serde_json::json;

use super::Place;

/// Show the applications that this host's warden knows. Exit code 3 when there is no warden.
///
/// Example: martlet warden status --json | jq 'select(.state == "failed")'
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let mut warden = arguments.place.connect()?;
    let (mut apps, hosts) = warden.status().map_err(Fail::failed)?;
    apps.sort_by_key(|app| app.app);
    let (life, marking) = warden.board().map_or((0, Marking::Nothing), |board| (board.life(), board.marking()));
    let socket = arguments.place.path().display().to_string();
    let (marks, says) = match marking {
        Marking::Nothing => ("none", "no marks; its log says why"),
        Marking::Threads => ("threads", "marks of threads"),
        Marking::Processes => ("processes", "marks of threads and of processes"),
    };
    format.print(
        format_args!("warden {life:016x} at {socket}: {says}\n"),
        || json!({"event": "warden", "socket": socket, "life": format!("{life:016x}"), "marks": marks, "applications": apps.len()}),
    );
    let mut table = Table::new(["application", "host", "process", "name", "state", "seen by", "words", "monitors"]);
    for app in &apps {
        let style = match app.state {
            State::Alive => GOOD,
            State::Failed => BAD,
            State::Left => DIM,
            State::Awaited | State::Free => WARN,
        };
        let evidence = app.evidence.map(|evidence| evidence.to_string());
        let host = if app.host == 0 { "-".into() } else { app.host.to_string() };
        let process = if app.pid == 0 { "-".into() } else { app.pid.to_string() };
        let seen = evidence.clone().unwrap_or_else(|| "-".into());
        let state = styled(style, app.state);
        table.row([app.app.to_string(), host, process, app.name.clone(), state, seen, app.words.to_string(), app.monitors.to_string()]);
        format.object(|| {
            json!({
                "event": "application",
                "application": app.app.get(),
                "state": app.state.to_string(),
                "evidence": evidence,
                "host": app.host,
                "pid": app.pid,
                "uid": app.uid,
                "name": app.name,
                "words": app.words,
                "monitors": app.monitors,
                "incarnation": format!("{:016x}", app.incarnation),
                "at_ns": app.at_ns,
            })
        });
    }
    match apps.is_empty() {
        true => format.say("no application has joined, and none is monitored"),
        false => format.say(table),
    }
    for host in &hosts {
        let lost: Vec<usize> = (0..2).filter(|path| host.is_path_lost[*path]).collect();
        let state = match (host.is_silent, lost.is_empty()) {
            (true, _) => styled(BAD, "silent"),
            (false, false) => styled(WARN, format_args!("heard, without path {}", lost[0])),
            (false, true) => styled(GOOD, "heard"),
        };
        format.print(
            format_args!("host {}: {state}; presumed dead after {:.3} ms of silence", host.host, host.timeout_ns as f64 / 1e6),
            || json!({"event": "host", "host": host.host, "silent": host.is_silent, "lost_paths": lost, "timeout_ns": host.timeout_ns}),
        );
    }
    Ok(())
}
