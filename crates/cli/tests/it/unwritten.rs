//! Output has nowhere to go: the disk is full, the reader has gone, or it never reads.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, pipe};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Stdio};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::martlet::{command, fabric, ran};

/// A file that accepts nothing, and reports that the disk is full.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("Linux").into()
}

/// A pipe whose reading end is closed.
fn closed() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

/// A pipe that accepts nothing until it is read.
fn stuffed() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().expect("a pipe");
    let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("as small as there are");
    let stuffing = vec![b'.'; size];
    assert_eq!(rustix::io::write(&writer, &stuffing), Ok(size));
    (reader, writer)
}

/// Commands that print something, whatever runs.
const ANYWHERE: [&[&str]; 6] = [
    &["--help"],
    &["help", "cluster"],
    &["cluster", "up", "--help"],
    &["--version"],
    &["completions", "bash"],
    &["doctor", "--seconds", "1", "--fence-trials", "2"],
];
/// Commands that print something about a cluster that runs.
const OF_A_CLUSTER: [&[&str]; 11] = [
    &["status"],
    &["status", "--json"],
    &["status", "--counters"],
    &["members"],
    &["members", "--watch", "--json"],
    &["top", "--once"],
    &["top", "--json"],
    &["metrics", "--once"],
    &["get", "greeting"],
    &["set", "greeting", "hello", "--json"],
    &["cluster", "up"],
];

#[test]
fn a_command_whose_output_is_lost_says_so_and_one_that_is_not_read_ends_quietly() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    greet(&cluster);
    let of_a_cluster = OF_A_CLUSTER.iter().map(|arguments| [arguments, &["--dir", cluster.dir.as_str()][..]].concat());
    for arguments in ANYWHERE.iter().map(|arguments| arguments.to_vec()).chain(of_a_cluster) {
        let of = |out: Stdio, err: Stdio| {
            ran(command(&arguments).stdout(out).stderr(err).spawn().and_then(Child::wait_with_output).expect("built"))
        };
        let lost = of(full(), Stdio::piped());
        let why = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((lost.code, lost.err.as_str()), (Some(1), why), "{arguments:?}");
        assert_eq!(of(full(), full()).code, Some(1), "{arguments:?}: nothing can be said, and the code says it");
        assert_eq!(of(full(), closed()).code, Some(1), "{arguments:?}");
        let unread = of(closed(), Stdio::piped());
        // Some do more than print, and are cut short.
        let is_cut_short = arguments[0] == "doctor" || arguments.contains(&"--watch") || arguments.starts_with(&["top", "--json"]);
        let code = if is_cut_short { 130 } else { 0 };
        assert_eq!((unread.code, unread.err.as_str()), (Some(code), ""), "{arguments:?}");
    }
    let complaints = |arguments: &[&str]| command(arguments).stderr(full()).status().expect("built").code();
    assert_eq!(complaints(&["frobnicate"]), Some(2));
    assert_eq!(complaints(&["status", "--dir", "/nonexistent"]), Some(3));
}

/// Like the reader `head -1`: a command that watches ends when its output is no longer read, even if there is nothing new that it could fail to write.
#[test]
fn what_watches_ends_with_its_reader_and_not_with_the_next_change() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    greet(&cluster);
    for arguments in [&["members", "--watch"][..], &["members", "--watch", "--json"], &["top", "--json", "--every", "3600000"]] {
        let mut watching = command(&[arguments, &["--dir", &cluster.dir]].concat());
        let mut watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
        let mut out = BufReader::new(watching.stdout.take().expect("piped"));
        if arguments[0] == "members" {
            let mut line = String::new();
            assert!(out.read_line(&mut line).expect("UTF-8") > 0, "{arguments:?}");
        }
        drop(out);
        let ended = ran(watching.wait_with_output().expect("ours"));
        assert_eq!((ended.code, ended.err.as_str()), (Some(130), ""), "{arguments:?}");
    }
}

/// A node in the foreground, as a service manager runs it. It ends when the value is dropped.
struct Node(Child);

impl Node {
    fn start(cluster: &Cluster, number: u16, log: Stdio) -> Node {
        let config = format!("{}/node-{number}.toml", cluster.dir);
        Node(command(&["node", "--config", &config]).stdout(full()).stderr(log).spawn().expect("the command is built"))
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("ours").is_some()
    }

    /// Ends it in order. Returns its code.
    fn end(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("our own child");
        self.0.wait().expect("ours").code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Returns once a node serves.
fn greet(cluster: &Cluster) {
    let greeted = || cluster.run(&["set", "greeting", "hello", "--timeout", "120000"]);
    loop {
        let ran = greeted();
        if ran.code != Some(3) {
            ran.ok();
            return;
        }
    }
}

/// Three nodes whose logs go nowhere survive the loss of their primary, and end in order.
fn serves_without_a_log(log: impl Fn() -> Stdio) {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    cluster.run(&["cluster", "down"]).ok();
    let mut nodes: Vec<Node> = (0..3).map(|number| Node::start(&cluster, number, log())).collect();
    greet(&cluster);
    let holds_the_data = |member: &&Value| member["roles"].as_str().is_some_and(|roles| roles.contains("replica"));
    let whole =
        || cluster.run(&["members"]).ok().objects()[0]["members"].as_array().expect("a list").iter().filter(holds_the_data).count() == 3;
    while !whole() {
        assert!(!nodes.iter_mut().any(Node::has_ended));
    }
    let primary: usize = cluster.primary().parse().expect("a number");
    drop(nodes.remove(primary));
    assert_eq!(cluster.run(&["get", "greeting", "--timeout", "120000"]).ok().objects()[0]["value"], "hello");
    for node in &mut nodes {
        assert!(!node.has_ended());
        assert_eq!(node.end(), Some(0), "it ends in order");
    }
}

#[test]
fn nodes_whose_logs_are_on_a_full_disk_serve_and_fail_over() {
    serves_without_a_log(full);
}

#[test]
fn nodes_whose_log_readers_have_gone_serve_and_fail_over() {
    serves_without_a_log(closed);
}

#[test]
fn nodes_whose_logs_are_never_read_serve_and_fail_over() {
    let held: RefCell<Vec<PipeReader>> = RefCell::default();
    serves_without_a_log(|| {
        let (reader, writer) = stuffed();
        held.borrow_mut().push(reader);
        writer.into()
    });
}

#[test]
fn what_is_missing_in_a_log_is_told_once_it_can_be_written() {
    if !fabric().is_empty() {
        eprintln!("SKIPPED: a log does not depend on the fabric");
        return;
    }
    let cluster = Cluster::new();
    cluster.up_with(&["--replicas", "1", "--coordinators", "1"]).ok();
    cluster.run(&["cluster", "down"]).ok();
    // The pipe is not read while the node starts, and then it is.
    let path = cluster.temp.path().join("log");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a directory of ours");
    let open = |options: &mut OpenOptions| options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path).expect("ours");
    let before = open(File::options().read(true));
    let log = File::options().write(true).open(&path).expect("it has a reader");
    drop(before);
    let mut node = Node::start(&cluster, 0, log.into());
    greet(&cluster);
    let reader = open(File::options().read(true));
    assert_eq!(node.end(), Some(0));
    let mut text = String::new();
    BufReader::new(reader).read_to_string(&mut text).expect("UTF-8");
    let first = text.lines().next().expect("a line");
    assert!(first.contains(" WARN ") && first.contains(" are missing here: ") && first.contains("Broken pipe"), "{text}");
    assert!(text.contains("ended left="), "{text}");
}
