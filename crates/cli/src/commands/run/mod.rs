//! `martlet run`

mod host;
mod library;
mod memcached;
mod nginx;
mod program;
mod redis;
mod replicas;
mod service;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::named::server_engine;
use martlet_cluster::number::number;
use martlet_cluster::output::{self, Format};
use martlet_cluster::starter::{NOTIFY_SOCKET, Starter};
use martlet_node::config::EngineKind;
use martlet_node::descriptors_needed;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Signal, WaitOptions, WaitStatus};
use rustix::time::Timespec;
use serde_json::json;

use self::library::Library;
use self::replicas::{Ended, Left, Line, Replicas, Said};

/// How often what needs no message is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// For how long a request may have a server of which nothing is known, in seconds.
const LONGEST_REQUEST_S: u32 = 600;
/// The longest message of a replica.
const MESSAGE_BYTES: usize = 1024;
/// How long replicas may take to follow their leader when it has ended by itself.
const END_PATIENCE: Duration = Duration::from_millis(500);
/// How long a server may take to end when it is told to, beside one request that it is at.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// After how long it is said that a server that was started has no replicas yet. A server may read a large file before it serves.
const UNBORN: Duration = Duration::from_secs(10);
/// How long the service may be without a leader before it is given up, where enough live to go on: beside a request that they may have to finish first.
const LEADERLESS: Duration = Duration::from_secs(30);
/// The same where they are too few. They are by the last word of the leader that has died, which may not have come to say that one more counts: that one then says that it will lead, for which
/// this is a long time.
const HOPELESS: Duration = Duration::from_secs(5);

/// Run an unmodified server in three replicas; connections outlive kill -9.
///
/// All replicas are on this host. The server starts once and is forked twice. One replica leads and talks to the clients. What they send is
/// replicated before it is executed, and the other two replicas execute the same. When the leader dies, another replica goes on with its connections, at the
/// very byte, and a new replica is forked. The command stays in the foreground and ends with the server's exit code. SIGTERM and Ctrl-C are passed on to the
/// server.
///
/// So far this works for Redis 7.0, Valkey, memcached, and nginx that serves files. docs/run.md says what is promised, and what is not.
///
/// Example: martlet run -- redis-server --port 6379
#[derive(Debug, Args)]
#[command(override_usage = "martlet run [OPTIONS] [--] SERVER [ARGUMENT]...")]
pub struct Arguments {
    /// The library to load into the server [default: the one that this program carries, or the one beside it or in ../lib].
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Replication engine [default: mu]. With mu, dare or apus, two of the three replicas have to live; with hsuc or huc, one has to.
    #[arg(long, value_name = "NAME", value_parser = server_engine())]
    engine: Option<EngineKind>,
    /// How long one request may take, in seconds [default: 600; 30 for nginx and memcached, whose requests are short]. A replica that works on a request for
    /// longer is given up, and no replica executes the request. A shorter request is waited for, as with the server alone: every client waits meanwhile.
    #[arg(long, value_name = "SECONDS", value_parser = number::<u32>(1..=86_400))]
    longest_request: Option<u32>,
    /// A directory for `martlet status --dir` and `martlet top --dir`, which show the replicas. It exists for as long as the server runs.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Run a server that Martlet does not know. It must execute its requests on one thread, and wait with epoll, poll or select.
    #[arg(long)]
    untried: bool,
    /// The server and its arguments. What follows the server's name is the server's, also where `--` is left out.
    #[arg(trailing_var_arg = true, required = true, value_name = "SERVER [ARGUMENT]...")]
    server: Vec<String>,
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let [name, rest @ ..] = &arguments.server[..] else { return Err(Fail::usage("which server?")) };
    let engine = service::engine(arguments.engine);
    let path = program::find(name)?;
    program::check(&path)?;
    let library = Library::find(arguments.preload.as_deref())?;
    let profile = program::profile(&path);
    if profile.is_none() && !arguments.untried {
        let path = path.display();
        return Err(Fail::usage(format_args!(
            "{path} is not a server that Martlet knows; known are redis-server, valkey-server, nginx and memcached; --untried runs it anyway"
        )));
    }
    let pid_file = profile.as_ref().map(|profile| (profile.check)(&path, rest)).transpose()?.flatten();
    let starter = Starter::from_environment()?;
    // Replicas go on without this process. So it must not end before they have, which takes them some time.
    let interrupt = Interrupt::install_without_end().context("cannot watch for Ctrl-C")?;
    let longest = arguments.longest_request.or(profile.as_ref().map(|profile| profile.longest_request)).unwrap_or(LONGEST_REQUEST_S);
    let needs_majority = engine.traits().commits_by_majority();
    let mut supervisor = Supervisor::new(format, starter, needs_majority, Duration::from_secs(longest.into()))?;
    let mut command = Command::new(&path);
    command.args(rest);
    if let Some(profile) = profile {
        command.args(profile.arguments);
        if let Some(refused) = profile.refused {
            command.env("MARTLET_RUN_REFUSED", refused());
        }
        if let Some(wording) = profile.wording {
            command.env("MARTLET_RUN_WORDING", wording.lines());
        }
        if profile.takes_turns {
            command.env("MARTLET_RUN_TURNSTILE", "1");
        }
        supervisor.say(
            format_args!("{} runs {}", path.display(), profile.says),
            || json!({"event": "started", "server": path, "profile": profile.says}),
        );
    }
    let config = service::config(&supervisor.name, engine)?;
    check_descriptors(config.nodes.len())?;
    let _shown =
        arguments.dir.as_deref().map(|path| service::Shown::write(path, &config, &service::as_typed(&arguments.server))).transpose()?;
    command.env("MARTLET_RUN_CLUSTER", config.to_toml());
    command.env("MARTLET_RUN_LONGEST_S", longest.to_string());
    // What a terminal sends to a group of processes is this one's to pass on.
    command.env("MARTLET_RUN", &supervisor.name).env("LD_PRELOAD", library.path()).process_group(0);
    if format == Format::Json {
        command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned().context("cannot pass standard error on")?));
    }
    // It is this process that says how the service is.
    command.env_remove(NOTIFY_SOCKET);
    let _noted = pid_file.map(host::PidFile::write).transpose()?;
    library.check()?;
    let first = command.spawn().context(format_args!("cannot start {}", path.display()))?;
    (supervisor.first, supervisor.started) = (i32::try_from(first.id()).ok(), Some(Instant::now()));
    let ended = supervisor.supervise(&interrupt);
    supervisor.end_all();
    ended
}

/// Refuses a limit with which replicas could not start, before the server says that it is ready.
fn check_descriptors(nodes: usize) -> Outcome {
    let (most, needed) = (rustix::process::getrlimit(Resource::Nofile).maximum, descriptors_needed(nodes));
    match most.filter(|most| *most < needed) {
        Some(most) => Err(Fail::usage(format_args!(
            "the limit of file descriptors (ulimit -Hn) is {most}; a server in replicas needs at least {needed}, and two more for each client"
        ))),
        None => Ok(()),
    }
}

/// Starts, watches, replaces and ends the replicas. It is not in the way of requests.
struct Supervisor {
    format: Format,
    /// The process that wants to hear how the service is.
    starter: Starter,
    /// A majority of the replicas has to live, and not one only.
    needs_majority: bool,
    name: String,
    /// For how long a request may have the server.
    longest: Duration,
    listener: OwnedFd,
    /// Replicas' connections.
    lines: Vec<Line<OwnedFd>>,
    replicas: Replicas,
    /// How many replicas the service has, as was last said.
    whole: Option<usize>,
    /// The process that was started, until it says which replica it is.
    first: Option<i32>,
    /// When that was, until it has been said that this takes long.
    started: Option<Instant>,
    /// How the server has ended by itself.
    ended: Ended,
    /// When it was seen that it has.
    ended_at: Option<Instant>,
    /// Whether it has been said that standard output takes nothing more.
    is_silenced: bool,
    /// Whether what was left then has been ended from here.
    ended_all: bool,
    /// When it was told to end.
    stopping: Option<Instant>,
    /// The leader that has been told so.
    told: Option<u16>,
}

impl Supervisor {
    fn new(format: Format, starter: Starter, needs_majority: bool, longest: Duration) -> Outcome<Supervisor> {
        // Replicas are forked by replicas; they become this process's children when those die.
        rustix::process::set_child_subreaper(Pid::from_raw(1)).map_err(io::Error::from).context("cannot take in the server's replicas")?;
        let name = format!("{}-{:08x}", std::process::id(), fastrand::u32(..));
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listening = || -> io::Result<OwnedFd> {
            let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
            rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(format!("martlet-run-{name}").as_bytes())?)?;
            rustix::net::listen(&listener, 16)?;
            Ok(listener)
        };
        let listener = listening().context("cannot listen for replicas")?;
        Ok(Supervisor {
            format,
            starter,
            needs_majority,
            name,
            longest,
            listener,
            lines: Vec::new(),
            replicas: Replicas::default(),
            whole: None,
            first: None,
            started: None,
            ended: Ended::default(),
            ended_at: None,
            is_silenced: false,
            ended_all: false,
            stopping: None,
            told: None,
        })
    }

    fn say(&self, text: impl std::fmt::Display, object: impl FnOnce() -> serde_json::Value) {
        match self.format {
            Format::Text => output::complain(format_args!("martlet: {text}")),
            Format::Json => self.format.object(object),
        }
    }

    fn supervise(&mut self, interrupt: &Interrupt) -> Outcome {
        loop {
            self.listen().context("cannot listen to replicas")?;
            self.reap()?;
            self.say_whole();
            self.say_if_unborn();
            if self.replicas.living.is_empty() && self.first.is_none() {
                return match self.ended.code() {
                    Some(0) => Ok(()),
                    Some(code) => Err(Fail::ended(code as u8, format_args!("the server has ended with code {code}"))),
                    None => Err(Fail::failed("all replicas have died")),
                };
            }
            // The last one has no majority to execute the end with.
            if self.ended_at.is_some_and(|since| since.elapsed() > END_PATIENCE) {
                self.ended_all = true;
                self.kill_all();
            }
            let left = self.replicas.left(self.needs_majority);
            // The next leader may have the same request to finish that the last one was at, and those without which it commits nothing.
            let patience = if left.suffices { LEADERLESS + 2 * self.longest } else { HOPELESS };
            if self.replicas.leaderless.is_some_and(|since| since.elapsed() > patience) {
                let Left { holding, counting, .. } = left;
                let live = if holding == 1 { "lives and holds" } else { "live and hold" };
                let needs =
                    if self.needs_majority { format!(", and the service needs a majority of the {counting}") } else { String::new() };
                return Err(Fail::failed(format_args!(
                    "no replica has led for {} s; of {counting} replicas {holding} {live} the state{needs}",
                    patience.as_secs()
                )));
            }
            if !self.is_silenced && output::is_broken() {
                self.is_silenced = true;
                output::complain("martlet: standard output takes no more events; the service goes on without printing them");
            }
            // Not when standard output takes nothing more, which is no reason to end a service.
            if interrupt.take() {
                if self.stopping.is_none() {
                    self.starter.tell("STOPPING=1");
                }
                self.say(
                    format_args!(
                        "told the server to end (SIGTERM); if it has not ended in {} s, it is killed",
                        (STOP_PATIENCE + self.longest).as_secs()
                    ),
                    || json!({"event": "told to end", "killed_after_s": (STOP_PATIENCE + self.longest).as_secs()}),
                );
                // A server may refuse to end, and be told again.
                (self.stopping, self.told) = (Some(Instant::now()), None);
            }
            if self.stopping.is_some() {
                self.stop();
            }
            let patience = STOP_PATIENCE + self.longest;
            if self.stopping.is_some_and(|since| since.elapsed() > patience) {
                return Err(Fail::failed(format_args!("the server has not ended within {} s of SIGTERM", patience.as_secs())));
            }
            // Also when it was told to end: it may refuse to, and go on.
            if self.ended_at.is_none()
                && let Some((from, number)) = self.replicas.fork_wanted(Instant::now())
            {
                // Should it not hear, another one is asked after a while.
                let _ = self.order(from, &format!("fork {number}"));
            }
        }
    }

    /// Takes what replicas have said, or waits for it for a while.
    fn listen(&mut self) -> io::Result<()> {
        let mut waits: Vec<PollFd<'_>> = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waits.extend(self.lines.iter().map(|line| PollFd::new(&line.connection, PollFlags::IN)));
        match poll(&mut waits, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(connection) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // What the kernel noted when it connected.
            if let Ok(peer) = martlet_fabric::peer(&connection) {
                self.lines.push(Line::new(connection, peer));
            }
        }
        // One that is not to be believed hears no more, and neither do we of it.
        for mut line in std::mem::take(&mut self.lines) {
            if self.take_from(&mut line) {
                self.lines.push(line);
            }
        }
        Ok(())
    }

    /// Takes what a replica has said. Returns whether more may come.
    fn take_from(&mut self, line: &mut Line<OwnedFd>) -> bool {
        let user = rustix::process::geteuid().as_raw();
        let mut buffer = [0; MESSAGE_BYTES];
        loop {
            match rustix::net::recv(&line.connection, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((bytes, _)) => {
                    let Some(said) = std::str::from_utf8(&buffer[..bytes]).ok().and_then(Said::parse) else { continue };
                    match line.hear(said, user, &self.replicas) {
                        Ok(()) => self.hear(said),
                        Err(why) => {
                            self.say(format_args!("rejected a message: {why}"), || json!({"event": "disbelieved", "why": why}));
                            return false;
                        }
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Hello { number, pid } => {
                self.first.take_if(|first| *first == pid);
                self.replicas.hello(number, pid);
                self.say(format_args!("replica {number} is process {pid}"), || json!({"event": "replica", "replica": number, "pid": pid}));
            }
            Said::Succeeds { number } => self.replicas.succeeds(number, Instant::now()),
            Said::Leads { number, connections } => {
                self.replicas.leads(number);
                let pid = self.replicas.living.get(&number).copied();
                self.starter.tell(&format!("READY=1\nSTATUS=replica {number} leads"));
                self.say(
                    format_args!("replica {number} leads, with {connections} connections"),
                    || json!({"event": "leads", "replica": number, "pid": pid, "connections": connections}),
                );
            }
            Said::Keeper { number, replaced } => {
                let what = match replaced {
                    true => "it has been replaced",
                    false => {
                        "the system refuses to start another one; martlet run tries again every second. If that replica leads and dies before then, its connections end"
                    }
                };
                self.say(
                    format_args!("the keeper of replica {number} has died; {what}"),
                    || json!({"event": "keeper", "replica": number, "replaced": replaced}),
                );
            }
            Said::Group { group, lacking } => (self.replicas.group, self.replicas.lacking) = (group, lacking),
        }
    }

    /// Says so once all replicas hold the state. The dead are to be known: a leader that has seen one of them die says that nobody lacks anything before this process is told of the
    /// death. An operator who kills the leader then, since all are there, would leave fewer than the service needs.
    fn say_whole(&mut self) {
        let whole = self.replicas.whole();
        if whole != std::mem::replace(&mut self.whole, whole)
            && let Some(count) = whole
        {
            self.say(format_args!("{count} replicas hold the state"), || json!({"event": "replicas", "replicas": count}));
        }
    }

    /// A server that has no replicas after a while serves nobody, and may say nothing.
    fn say_if_unborn(&mut self) {
        let Some(pid) = self.first else { return self.started = None };
        if self.started.take_if(|since| since.elapsed() > UNBORN).is_some() {
            self.say(
                format_args!(
                    "the server, process {pid}, has no replicas yet, and serves nobody: after {} s its first thread has not come to wait for clients while its other threads rest",
                    UNBORN.as_secs()
                ),
                || json!({"event": "not replicated yet", "pid": pid}),
            );
        }
    }

    /// Takes note of the dead.
    fn reap(&mut self) -> Outcome {
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error)).context("cannot wait for replicas"),
            };
            self.died(pid.as_raw_nonzero().get(), status)?;
        }
    }

    fn died(&mut self, pid: i32, status: WaitStatus) -> Outcome {
        let how = std::process::ExitStatus::from_raw(status.as_raw());
        if self.first.take_if(|first| *first == pid).is_some() {
            // What was wrong the server has said.
            let message = format!("the server has ended before it could be replicated ({how})");
            let left = children();
            return match status.exit_status() {
                // As one that was asked for its version.
                Some(0) if left.is_empty() => {
                    self.ended.note(0, true, false);
                    self.say(format_args!("{message}: nothing is running"), || json!({"event": "ended early", "code": 0}));
                    Ok(())
                }
                Some(0) => Err(Fail::failed(format_args!(
                    "{message} and left processes {left:?} behind, which are ended too. If the server leaves the foreground, tell it not to"
                ))),
                Some(code) => Err(Fail::ended(code as u8, message)),
                None => Err(Fail::failed(message)),
            };
        }
        let Some((number, led)) = self.replicas.ended(pid, Instant::now()) else { return Ok(()) };
        self.whole = None;
        // Not as one that was killed: an operator would look for what has done that.
        let how = if self.ended_all && how.signal().is_some() { "with the service".into() } else { how.to_string() };
        self.say(
            format_args!("replica {number}, process {pid}, has ended: {how}"),
            || json!({"event": "ended", "replica": number, "pid": pid, "how": how}),
        );
        // By itself, as it was asked to: so do the others, which execute the same.
        if let Some(code) = status.exit_status()
            && self.ended.note(code, led, self.replicas.leader.is_none() && self.stopping.is_some())
        {
            self.ended_at.get_or_insert(Instant::now());
        }
        Ok(())
    }

    /// For when nobody is being listened to: all lines are there. Returns whether it is on its way; else it is to be given again.
    fn order(&self, number: u16, order: &str) -> bool {
        let line = self.replicas.living.get(&number).and_then(|pid| self.lines.iter().find(|line| line.is_of(number, *pid)));
        // A replica that hears nothing any more is dead, or as good as that.
        line.is_some_and(|line| rustix::net::send(&line.connection, order.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok())
    }

    /// Passes the end on to the servers, all of which execute it. While nobody leads the next leader is told, unless there are no replicas so far; and so is each one whose leader has
    /// died of something else before it had all of them end.
    fn stop(&mut self) {
        match self.replicas.leader {
            Some(leader) if self.told != Some(leader) => {
                if self.order(leader, &format!("signal {}", Signal::TERM.as_raw())) {
                    self.told = Some(leader);
                }
            }
            None if self.replicas.living.is_empty() => self.kill_all(),
            Some(_) | None => {}
        }
    }

    fn kill_all(&self) {
        let all = self.replicas.living.values().copied().chain(self.first);
        for pid in all.filter_map(Pid::from_raw) {
            // It may have died by itself.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Leaves nothing behind: no replica, and no process that keeps a dead one's connections. Those become children of this process when the replicas die.
    fn end_all(&mut self) {
        self.kill_all();
        loop {
            for pid in children().into_iter().filter_map(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            if matches!(rustix::process::wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {
                return;
            }
        }
    }
}

/// The processes that are this one's to end: those that it has started, and theirs, once what has started them is dead.
fn children() -> Vec<i32> {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
