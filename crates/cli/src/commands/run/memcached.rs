//! What is known of memcached: how it is told to run as it can be captured, and which of its options cannot be.

use std::path::{Path, PathBuf};

use martlet_cluster::fail::{Fail, Outcome};

use super::program::Profile;

/// Its threads take turns: one accepts connections, one executes requests, and the others keep the memory in order.
pub const PROFILE: Profile = Profile {
    arguments: &["-t", "1", "-U", "0"],
    says: "in the foreground, with one worker, all its threads one at a time, and without UDP",
    check,
    refused: None,
    wording: None,
    takes_turns: true,
    longest_request: 30,
};

/// Options that cannot be captured, their long names, and why.
const REFUSED: [(&str, &str, &str); 7] = [
    ("-d", "--daemon", "martlet run keeps it in the foreground"),
    ("-P", "--pidfile", "each replica is a process of its own; watch the process of martlet run instead"),
    ("-u", "--user", "replicas and martlet run know each other by their user: start martlet run as that user"),
    ("-e", "--memory-file", "all replicas would share one file: leave it out, since the memory outlives a replica without it"),
    ("-Z", "--enable-ssl", "replicas would draw different keys: terminate TLS in front of it, with stunnel for example"),
    ("-S", "--enable-sasl", "what its library does is not captured"),
    ("-A", "--enable-shutdown", "send SIGTERM to martlet run"),
];

/// Settings of `-o` that cannot be captured, and why.
const REFUSED_SETTINGS: [(&str, &str); 5] = [
    ("ext_", "what threads read from a disk reaches each replica at another moment"),
    ("idle_timeout", "the thread that it starts keeps time by itself"),
    ("proxy_", "the server would open connections, which are not captured"),
    ("ssl_", "replicas would draw different keys"),
    ("drop_privileges", "replicas could not be forked any more"),
];

fn check(_: &Path, arguments: &[String]) -> Outcome<Option<PathBuf>> {
    match refusal(arguments) {
        Some(why) => Err(Fail::failed(format_args!("the server cannot be captured with {why}"))),
        None => Ok(None),
    }
}

/// The first option that cannot be captured, and why.
fn refusal(arguments: &[String]) -> Option<String> {
    let mut settings = Vec::new();
    for (at, argument) in arguments.iter().enumerate() {
        let next = || arguments.get(at + 1).map_or("", String::as_str);
        let name = argument.split('=').next().unwrap_or_default();
        // The one that a process of root is allowed changes nothing.
        if (name == "-u" && next() == "root") || argument == "-uroot" {
            continue;
        }
        let is = |short: &str, long: &str| name == long || (argument.starts_with(short) && !argument.starts_with("--"));
        if let Some((_, _, why)) = REFUSED.iter().find(|(short, long, _)| is(short, long)) {
            return Some(format!("`{argument}`: {why}"));
        }
        if is("-o", "--extended") {
            let own = argument
                .strip_prefix("--extended=")
                .or_else(|| argument.strip_prefix("-o"))
                .filter(|own| !own.is_empty() && *own != "--extended");
            settings.push(own.unwrap_or_else(next));
        }
    }
    let mut settings = settings.into_iter().flat_map(|settings| settings.split(','));
    settings.find_map(|setting| {
        let (_, why) = REFUSED_SETTINGS.iter().find(|(start, _)| setting.starts_with(start))?;
        Some(format!("`-o {setting}`: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_be_captured_are_refused_by_name() {
        let refuses = |line: &str, text: &str| {
            let why = refusal(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap_or_default();
            assert!(why.starts_with(text), "{line}: {why:?}");
        };
        refuses("-m 64 -d", "`-d`: martlet run");
        refuses("-u nobody", "`-u`: replicas and");
        refuses("--user=nobody", "`--user=nobody`: replicas and");
        refuses("-o modern,ext_path=/x:1G", "`-o ext_path=/x:1G`: what threads");
        refuses("-oidle_timeout=5", "`-o idle_timeout=5`");
        refuses("--extended=proxy_config=x.lua", "`-o proxy_config=x.lua`");
        let taken = "-u root -m 64 -p 11211 -l 127.0.0.1 -o modern,no_hashexpand -c 100 -t 4";
        assert_eq!(refusal(&taken.split(' ').map(str::to_owned).collect::<Vec<_>>()), None);
    }
}
