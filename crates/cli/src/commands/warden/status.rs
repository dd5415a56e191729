//! `martlet warden status`

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::output::{BAD, DIM, Format, GOOD, Table, WARN, styled};
use martlet_warden::board::{Marking, State};
use martlet_warden::wire::HostStatus;
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
        table.row([
            app.app.to_string(),
            host,
            process,
            app.name.escape_debug().to_string(),
            state,
            seen,
            app.words.to_string(),
            app.monitors.to_string(),
        ]);
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
        format.print(of_host(host), || json_of_host(host));
    }
    Ok(())
}

fn lost_paths(host: &HostStatus) -> Vec<usize> {
    (0..2).filter(|path| host.is_path_lost[*path]).collect()
}

fn of_host(host: &HostStatus) -> String {
    let lost = lost_paths(host);
    let state = match (host.has_left, host.is_silent, lost.is_empty()) {
        (true, ..) => styled(DIM, "left, its warden has ended in order"),
        (_, true, _) => styled(BAD, "silent"),
        (_, false, false) => styled(WARN, format_args!("heard, without path {}", lost[0])),
        (_, false, true) => styled(GOOD, "heard"),
    };
    let unauthenticated = match host.unauthenticated {
        0 => String::new(),
        packets => {
            let question = if host.is_silent { ": has its warden another key?" } else { "" };
            styled(WARN, format_args!("; {packets} packets from its addresses did not authenticate{question}"))
        }
    };
    format!("host {}: {state}; presumed dead after {:.3} ms of silence{unauthenticated}", host.host, host.timeout_ns as f64 / 1e6)
}

fn json_of_host(host: &HostStatus) -> serde_json::Value {
    json!({
        "event": "host",
        "host": host.host,
        "silent": host.is_silent,
        "left": host.has_left,
        "lost_paths": lost_paths(host),
        "timeout_ns": host.timeout_ns,
        "unauthenticated_packets": host.unauthenticated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_shown_as_its_warden_is() {
        let heard =
            HostStatus { host: 2, is_silent: false, has_left: false, is_path_lost: [false; 2], timeout_ns: 1_500_000, unauthenticated: 0 };
        let shown = |host: HostStatus| anstream::adapter::strip_str(&of_host(&host)).to_string();
        assert_eq!(shown(heard), "host 2: heard; presumed dead after 1.500 ms of silence");
        let left = HostStatus { has_left: true, ..heard };
        assert_eq!(shown(left), "host 2: left, its warden has ended in order; presumed dead after 1.500 ms of silence");
        assert_eq!((json_of_host(&left)["left"].clone(), json_of_host(&heard)["left"].clone()), (true.into(), false.into()));
        let strange = HostStatus { is_silent: true, unauthenticated: 7, ..heard };
        assert_eq!(
            shown(strange),
            "host 2: silent; presumed dead after 1.500 ms of silence; 7 packets from its addresses did not authenticate: has its warden another key?"
        );
        let mended = HostStatus { unauthenticated: 7, ..heard };
        assert_eq!(
            shown(mended),
            "host 2: heard; presumed dead after 1.500 ms of silence; 7 packets from its addresses did not authenticate"
        );
        assert_eq!(json_of_host(&strange)["unauthenticated_packets"], 7);
    }
}
