//! What is known of Redis and Valkey: how they are told to run as they can be captured, and what in their configuration cannot be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use martlet_cluster::fail::{Fail, Outcome};

use super::program::{Profile, Wording};

/// One thread executes requests. What concerns the service as a whole, its process above all, is `martlet run`'s.
pub const PROFILE: Profile = Profile {
    arguments: &["--daemonize", "no", "--supervised", "no", "--pidfile", "", "--syslog-enabled", "no", "--io-threads", "1"],
    says: "in the foreground, with one thread for requests, and writes no log to syslog",
    check: |_, arguments| check(arguments),
    refused: Some(refused),
    // What is freed beside, by `UNLINK` for one, is freed at another moment by each replica: it is told of by these parts of `INFO`, and by `MEMORY STATS`. As their words are not
    // of the same length, what replicas count of their output, and of the buffers for it, differs from then on. A script may answer with them.
    wording: Some(Wording {
        asking: &["info", "memory", "eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro"],
        marks: &["# Clients\r", "# Memory\r", "# Stats\r", "peak.allocated\r"],
    }),
    takes_turns: false,
    longest_request: 600,
};

/// How deep configuration files may include each other.
const DEPTH: u32 = 16;

/// What cannot be captured, by the name of a setting: the values that are harmless, and why others are not and what to do.
const REFUSED: [(&str, &[&str], &str); 7] = [
    (
        "tls-port",
        &["0"],
        "replicas would draw different keys: terminate TLS in front of the server, with stunnel for example, and give it only `port`",
    ),
    (
        "cluster-enabled",
        &["no"],
        "nodes of a Redis Cluster talk to each other over connections that they open, which are not captured: run it without",
    ),
    (
        "replicaof",
        &["no one"],
        "a Redis replica opens a connection to its master, which is not captured: `martlet run` has its own replicas",
    ),
    ("slaveof", &["no one"], "a Redis replica opens a connection to its master, which is not captured: `martlet run` has its own replicas"),
    ("loadmodule", &[], "what a module does is not captured: run it without"),
    (
        "maxmemory-policy",
        &["noeviction"],
        "replicas use different amounts of memory, so they would evict different keys: it has to be noeviction",
    ),
    ("sentinel", &[], "a sentinel opens connections, which are not captured: run it beside, not under, `martlet run`"),
];

/// Requests that cannot be captured beside those that would change such a setting, as above.
const REFUSED_REQUESTS: [(&str, &[&str], &str); 8] = [
    ("replicaof", &["no one"], "martlet run has its own replicas"),
    ("slaveof", &["no one"], "martlet run has its own replicas"),
    ("failover", &[], "martlet run has its own replicas"),
    ("sync", &[], "a Redis replica gets the data from a child process through a pipe, which is not captured"),
    ("psync", &[], "a Redis replica gets the data from a child process through a pipe, which is not captured"),
    ("migrate", &[], "each replica would open a connection"),
    ("module load", &[], "what a module does is not captured"),
    ("module loadex", &[], "what a module does is not captured"),
];

/// All requests that are refused while the server serves: a line each.
fn refused() -> String {
    let settings = REFUSED.iter().map(|(name, harmless, why)| (format!("config set {name}"), harmless, why));
    let requests = REFUSED_REQUESTS.iter().map(|(words, harmless, why)| ((*words).to_owned(), harmless, why));
    let line = |(words, harmless, why): (String, &&[&str], &&str)| format!("{words}\t{}\t{why}\n", harmless.join("|"));
    settings.chain(requests).map(line).collect()
}

/// The settings of a server, the last of each, by name.
#[derive(Debug, Default)]
struct Settings(BTreeMap<String, String>);

impl Settings {
    fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_ascii_lowercase(), value.trim().trim_matches(['"', '\'']).to_owned());
    }

    /// A line of a configuration file. What cannot be read the server says itself.
    fn line(&mut self, line: &str, depth: u32) {
        let line = line.trim();
        let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if name.eq_ignore_ascii_case("include") {
            self.file(Path::new(value.trim().trim_matches(['"', '\''])), depth + 1);
        } else if !line.is_empty() && !line.starts_with('#') {
            self.set(name, value);
        }
    }

    fn file(&mut self, path: &Path, depth: u32) {
        if depth < DEPTH
            && let Ok(text) = fs::read_to_string(path)
        {
            text.lines().for_each(|line| self.line(line, depth));
        }
    }
}

/// Refuses what cannot be captured, and returns where the service's process is to be noted.
fn check(arguments: &[String]) -> Outcome<Option<PathBuf>> {
    let mut settings = Settings::default();
    let mut rest = arguments;
    if let [file, options @ ..] = arguments
        && !file.starts_with("--")
    {
        if file == "-" {
            return Err(Fail::failed("the server's configuration comes from standard input, which cannot be checked: put it into a file"));
        }
        settings.file(Path::new(file), 0);
        rest = options;
    }
    // `--name value...`, as the server reads it.
    for option in rest.chunk_by(|_, next| !next.starts_with("--")) {
        if let [name, values @ ..] = option {
            settings.set(name.trim_start_matches("--"), &values.join(" "));
        }
    }
    for (name, harmless, why) in REFUSED {
        if let Some(value) = settings.0.get(name).filter(|value| !harmless.iter().any(|harmless| harmless.eq_ignore_ascii_case(value))) {
            return Err(Fail::failed(format_args!("the server cannot be captured with `{name} {value}`: {why}")));
        }
    }
    // It is written when the server is where its files are.
    let directory = settings.0.get("dir").map(PathBuf::from).unwrap_or_default();
    Ok(settings.0.get("pidfile").filter(|name| !name.is_empty()).map(|name| directory.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        check(&arguments).map_or_else(|fail| fail.to_string(), |_| String::new())
    }

    /// A client is shown so much of an argument of a request that Redis does not know.
    const SHOWN_BYTES: usize = 128;

    #[test]
    fn a_client_is_shown_the_whole_reason_of_a_refusal() {
        for line in refused().lines() {
            let (_, why) = line.rsplit_once('\t').expect("three parts");
            assert!(why.len() <= SHOWN_BYTES, "{} bytes: {why}", why.len());
        }
    }

    #[test]
    fn settings_that_cannot_be_captured_are_refused_by_name() {
        for (arguments, name) in [
            (&["--port", "0", "--tls-port", "6379"][..], "tls-port 6379"),
            (&["--cluster-enabled", "yes"], "cluster-enabled yes"),
            (&["--replicaof", "host", "6379"], "replicaof host 6379"),
            (&["--loadmodule", "/x.so", "argument"], "loadmodule /x.so argument"),
            (&["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"], "maxmemory-policy allkeys-lru"),
            (&["/nowhere.conf", "--sentinel"], "sentinel"),
            (&["-"], "standard input"),
        ] {
            let why = refuses(arguments);
            assert!(why.contains(name), "{arguments:?}: {why:?}");
        }
        for arguments in [
            &[][..],
            &["--port", "6379", "--tls-port", "0", "--save", ""],
            &["--replicaof", "no", "one"],
            &["--maxmemory", "1gb"],
            &["--tls-port", "7", "--tls-port", "0"],
            &["/nowhere.conf"],
        ] {
            assert_eq!(refuses(arguments), "", "{arguments:?}");
        }
    }

    #[test]
    fn a_configuration_file_is_looked_through_with_those_that_it_includes() {
        let path = |name: &str| std::env::temp_dir().join(format!("martlet-run-{name}-{}.conf", std::process::id()));
        let (outer, inner) = (path("outer"), path("inner"));
        fs::write(&inner, "# tls-port 1\n\n  TLS-Port   7777 \n").expect("a file");
        fs::write(&outer, format!("port 1\ninclude \"{}\"\ninclude {}\n", inner.display(), outer.display())).expect("a file");
        let outer_name = outer.to_str().expect("Unicode");
        let (whole, overridden) = (refuses(&[outer_name]), refuses(&[outer_name, "--tls-port", "0"]));
        let _ = (fs::remove_file(&outer), fs::remove_file(&inner));
        assert!(whole.contains("tls-port 7777"), "{whole:?}");
        let noted =
            |arguments: &[&str]| check(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>()).expect("allowed");
        assert_eq!(noted(&["--pidfile", "Own.pid", "--dir", "/var/lib/x"]), Some("/var/lib/x/Own.pid".into()));
        assert_eq!(noted(&["--pidfile", "/run/x.pid", "--dir", "/var/lib/x"]), Some("/run/x.pid".into()));
        assert_eq!((noted(&["--pidfile", ""]), noted(&[])), (None, None));
        assert_eq!(overridden, "");
    }
}
