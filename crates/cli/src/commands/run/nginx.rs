//! What is known of nginx: how it is told to run as it can be captured, and what in its configuration cannot be.

use std::path::{Path, PathBuf};
use std::process::Command;

use martlet_cluster::fail::{Context as _, Fail, Outcome};

use super::program::Profile;

/// One process does all.
pub const PROFILE: Profile = Profile {
    arguments: &["-g", "daemon off; master_process off;"],
    says: "in the foreground, with one process for all requests",
    check,
    refused: None,
    wording: None,
    takes_turns: false,
    longest_request: 30,
};

/// Why what needs a connection of the server's own is refused.
const CONNECTS: &str = "the server would open connections, which are not captured: let it serve files and answers of its own";
/// Why what `martlet run` says itself is refused.
const OURS: &str = "martlet run sets that itself: one process, in the foreground";

/// Directives that cannot be captured: the values that are harmless, and why others are not.
const REFUSED: [(&str, &[&str], &str); 15] = [
    ("ssl_certificate", &[], "replicas would draw different keys: terminate TLS in front of it, with stunnel for example"),
    ("aio", &["off"], "what other threads read reaches each replica at another moment"),
    ("daemon", &[], OURS),
    ("master_process", &[], OURS),
    ("proxy_pass", &[], CONNECTS),
    ("fastcgi_pass", &[], CONNECTS),
    ("uwsgi_pass", &[], CONNECTS),
    ("scgi_pass", &[], CONNECTS),
    ("grpc_pass", &[], CONNECTS),
    ("memcached_pass", &[], CONNECTS),
    ("auth_http", &[], CONNECTS),
    ("resolver", &[], CONNECTS),
    ("perl_modules", &[], "what a module does is not captured"),
    ("lua_package_path", &[], "what a module does is not captured"),
    ("timer_resolution", &[], "it would interrupt each replica at another moment"),
];

/// Looks through the configuration, as the server itself prints it.
fn check(program: &Path, arguments: &[String]) -> Outcome<Option<PathBuf>> {
    if let Some(other) = arguments.iter().find(|argument| ["-g", "-s", "-t", "-T", "-v", "-V", "-h", "-?"].contains(&argument.as_str())) {
        return Err(Fail::usage(format_args!("nginx cannot be given `{other}`: {OURS}; allowed are -c, -e, -p and -q")));
    }
    let printed = Command::new(program).args(arguments).arg("-T").output().context(format_args!("cannot run {}", program.display()))?;
    if !printed.status.success() {
        let said = String::from_utf8_lossy(&printed.stderr);
        return Err(Fail::failed(format_args!("nginx does not accept its configuration: {}", said.trim())));
    }
    match refusal(&String::from_utf8_lossy(&printed.stdout)) {
        Some(why) => Err(Fail::failed(format_args!("the server cannot be captured with {why}"))),
        None => Ok(None),
    }
}

/// The first directive that cannot be captured, and why.
fn refusal(configuration: &str) -> Option<String> {
    let code = configuration.lines().map(|line| line.split('#').next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    code.split([';', '{', '}']).find_map(|statement| {
        let mut words = statement.split_ascii_whitespace();
        let (name, value) = (words.next()?, words.collect::<Vec<_>>().join(" "));
        let (_, _, why) = REFUSED.iter().find(|(refused, harmless, _)| *refused == name && !harmless.contains(&value.as_str()))?;
        Some(format!("`{name} {value}`: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_that_cannot_be_captured_are_refused_by_name() {
        let refuses = |configuration: &str, text: &str| {
            let why = refusal(configuration).unwrap_or_default();
            assert!(why.starts_with(text), "{why:?}");
        };
        refuses("http { server { listen 443 ssl; ssl_certificate /x.pem; } }", "`ssl_certificate /x.pem`: replicas");
        refuses("http { server { location / {\n proxy_pass http://a; } } }", "`proxy_pass http://a`: the server would open");
        refuses("daemon on;", "`daemon on`");
        refuses("http { aio threads; }", "`aio threads`");
        assert_eq!(
            refusal("events { worker_connections 100; }\n# proxy_pass http://a;\nhttp { aio off; root /proxy_pass; sendfile on; }"),
            None
        );
    }
}
