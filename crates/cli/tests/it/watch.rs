//! Watching a cluster from outside, while its nodes die and come back.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::martlet::{command, fabric, ran, run};

/// A command that runs until it is told to end.
struct Watching {
    child: Option<Child>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(arguments: &[&str], cluster: &Cluster) -> Watching {
        let arguments = [arguments, &["--json", "--dir", &cluster.dir]].concat();
        let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command is built");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Watching { child: Some(child), lines }
    }

    fn next(&mut self) -> Value {
        let line = self.lines.next().expect("it goes on").expect("UTF-8");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The first object for which `enough` is true.
    fn until(&mut self, mut enough: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let object = self.next();
            if enough(&object) {
                return object;
            }
        }
    }

    /// Ends it with a signal, on which it should end successfully.
    fn end(mut self, signal: &str) {
        let child = self.child.take().expect("it runs");
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill").success());
        // It may be about to print.
        self.lines.by_ref().for_each(drop);
        assert_eq!(ran(child.wait_with_output().expect("our own child")).ok().err, "");
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn of_node(object: &Value, node: &str) -> Value {
    let node: u64 = node.parse().expect("a number");
    let nodes = object["nodes"].as_array().expect("nodes");
    nodes.iter().find(|found| found["node"] == node).expect("each node is shown, whatever became of it").clone()
}

#[test]
fn a_page_is_printed_where_nothing_can_be_drawn() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let primary = cluster.primary();
    for more in [&[][..], &["--once"]] {
        let page = run(&[&["top", "--every", "50", "--dir", &cluster.dir][..], more].concat()).ok();
        assert!(!page.out.contains('\u{1b}'), "no terminal, no colours: {:?}", page.out);
        assert!(page.out.contains(&format!("node {primary} leads, for ")) && page.out.contains("data held by 3 nodes"), "{}", page.out);
        let rows: Vec<&str> = page.out.lines().filter(|line| line.contains("  running  ")).collect();
        assert_eq!(rows.len(), 3, "{}", page.out);
        assert_eq!(rows.iter().filter(|row| row.contains("  primary  ")).count(), 1, "{}", page.out);
    }
    let objects = cluster.run(&["top", "--once", "--every", "50"]).ok().objects();
    assert_eq!((objects.len(), &objects[0]["event"]), (1, &Value::from("top")));
    assert!(of_node(&objects[0], &primary)["requests_per_s"].is_number(), "{objects:?}");
    assert_eq!(objects[0]["replicas"], 3);

    cluster.run(&["cluster", "down"]).ok();
    let ran = cluster.run(&["top", "--once"]).code(3);
    assert!(ran.err.contains("no node of the cluster in"), "{}", ran.err);
}

#[test]
fn a_node_that_dies_stays_in_sight_and_its_successor_tells_of_it() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let primary = cluster.primary();
    let mut top = Watching::start(&["top", "--every", "50"], &cluster);
    let before = top.until(|object| of_node(object, &primary)["role"] == "primary");
    assert_eq!(before["leader"].to_string(), primary);
    let pid = of_node(&before, &primary)["pid"].clone();
    cluster.run(&["cluster", "kill", &primary]).ok();
    cluster.run(&["set", "k", "v", "--timeout", "120000"]).ok();
    let after = top.until(|object| {
        let change = &object["changes"][0];
        object["leader"].is_u64() && change["to"] == object["leader"] && change["first_reply_us"].is_number()
    });
    let change = &after["changes"][0];
    assert_eq!(change["from"].to_string(), primary, "{after}");
    // Over RDMA no death is certain.
    assert!(change["cause"] == "death" || (!fabric().is_empty() && change["cause"] == "silence"), "{after}");
    let step = |name: &str| change[name].as_f64().unwrap_or_else(|| panic!("no {name}: {after}"));
    assert!(step("view_decided_us") <= step("took_over_us") && step("took_over_us") <= step("first_reply_us"), "{after}");
    let gone = top.until(|object| of_node(object, &primary)["state"] == "gone");
    assert!(of_node(&gone, &primary)["requests_per_s"].is_null() && of_node(&gone, &primary)["role"].is_null());
    cluster.up_again().ok();
    let back = top.until(|object| of_node(object, &primary)["role"] == "backup" && of_node(object, &primary)["requests_per_s"].is_number());
    let again = of_node(&back, &primary);
    assert!(again["state"] == "running" && again["pid"] != pid, "{back}");
    assert!(again["requests_per_s"].as_f64() >= Some(0.0), "{back}");
    assert!(back["changes"].as_array().is_some_and(|changes| !changes.is_empty()), "it is remembered: {back}");
    top.end("-INT");
}

#[test]
fn a_cluster_that_grows_is_shown_whole() {
    let cluster = Cluster::with_room_for(4);
    cluster.up_with(&[]).ok();
    let mut top = Watching::start(&["top", "--every", "50"], &cluster);
    let mut metrics = Watching::start(&["metrics", "--listen", "127.0.0.1:0"], &cluster);
    let address = metrics.next()["address"].as_str().expect("an address").to_owned();
    assert_eq!(top.next()["nodes"].as_array().map(Vec::len), Some(3));
    scraped(&address);
    cluster.run(&["cluster", "add", "--patience", "600"]).ok();
    // Nodes that have been there all the time are in every look and in every scrape.
    let page = scraped(&address);
    for node in 0..3 {
        assert_eq!(value(&page, "martlet_up", &format!("node=\"{node}\"")), Some(1.0), "{page}");
    }
    top.until(|object| {
        let nodes = object["nodes"].as_array().expect("nodes");
        assert!(nodes[..3].iter().all(|node| node["state"] != "gone"), "{object}");
        nodes.len() == 4 && nodes[3]["role"] == "backup"
    });
    top.end("-TERM");
    metrics.end("-TERM");
}

/// The answer to a request: its head and its body.
fn asked(address: &str, request: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // The server need not read what it does not want.
    let _ = stream.write_all(request);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an end, and no reset");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer:?}"));
    (head.to_owned(), body.to_owned())
}

fn scraped(address: &str) -> String {
    let (head, page) = asked(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: text/plain\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    page
}

/// The value of the series of this name that has these labels after the cluster's.
fn value(page: &str, name: &str, labels: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{cluster=\"")) && line.contains(&format!("{labels}}} ")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn metrics_are_scraped_before_and_after_a_kill() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let primary = cluster.primary();
    let mut metrics = Watching::start(&["metrics", "--listen", "127.0.0.1:0"], &cluster);
    let address = metrics.next()["address"].as_str().expect("an address").to_owned();
    let node = format!(",node=\"{primary}\"");
    let page = scraped(&address);
    assert_eq!((0..3).map(|node| value(&page, "martlet_up", &format!(",node=\"{node}\""))).collect::<Vec<_>>(), [Some(1.0); 3]);
    assert_eq!(value(&page, "martlet_role", &format!("{node},role=\"primary\"")), Some(1.0));
    assert_eq!(value(&page, "martlet_failover_seconds_count", ""), Some(0.0));

    cluster.run(&["cluster", "kill", &primary]).ok();
    cluster.run(&["set", "k", "v", "--timeout", "120000"]).ok();
    let page = loop {
        let page = scraped(&address);
        if value(&page, "martlet_up", &node) == Some(0.0) && value(&page, "martlet_failover_seconds_count", "") == Some(1.0) {
            break page;
        }
    };
    assert_eq!(value(&page, "martlet_view", &node), None, "of a node that is gone nothing is known");
    let took = value(&page, "martlet_last_failover_seconds", ",step=\"took_over\"").expect("there was one");
    assert_eq!(value(&page, "martlet_failover_seconds_sum", ""), Some(took));

    let printed = run(&["metrics", "--once", "--dir", &cluster.dir]).ok().out;
    assert_eq!(value(&printed, "martlet_up", &node), Some(0.0));
    cluster.up_again().ok();
    while value(&scraped(&address), "martlet_up", &node) != Some(1.0) {}
    metrics.end("-TERM");

    cluster.run(&["cluster", "down"]).ok();
    let printed = run(&["metrics", "--once", "--dir", &cluster.dir]).ok().out;
    assert_eq!(value(&printed, "martlet_up", &node), Some(0.0), "a cluster that is down is no error: it is what there is to tell");
}

#[test]
fn whatever_is_sent_to_the_metrics_port_does_it_no_harm() {
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let mut metrics = Watching::start(&["metrics", "--listen", "127.0.0.1:0"], &cluster);
    let address = metrics.next()["address"].as_str().expect("an address").to_owned();
    let status = |request: &[u8]| asked(&address, request).0.lines().next().unwrap_or_default().to_owned();
    let (head, body) = asked(&address, b"GET / HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.contains("/metrics") && body.lines().count() == 1, "{head}\n{body}");
    assert_eq!(status(b"GET /favicon.ico HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status(b"DELETE /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(status(b"*1\r\n$4\r\nPING\r\n"), "HTTP/1.1 400 Bad Request");
    assert_eq!(status(&[b"GET /metrics HTTP/1.1\r\nx: ".to_vec(), vec![b'y'; 100_000]].concat()).split(' ').nth(1), Some("431"));
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    let mut half = TcpStream::connect(&address).expect("it listens");
    half.write_all(b"GET /met").expect("it waits");
    half.shutdown(Shutdown::Both).expect("ours");
    assert!(scraped(&address).contains("martlet_up"));
    drop(silent);
    assert!(scraped(&address).contains("martlet_up"));

    let taken = run(&["metrics", "--listen", &address, "--dir", &cluster.dir]).code(1);
    assert!(taken.err.contains(&format!("cannot listen on {address}")) && taken.err.contains("in use"), "{}", taken.err);
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = other.local_addr().expect("bound").to_string();
    run(&["metrics", "--listen", &address, "--dir", &cluster.dir]).code(1);
    metrics.end("-INT");
}

#[test]
fn the_terminal_is_given_back_as_it_was() {
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: script, which makes a terminal, is not installed");
        return;
    }
    let cluster = Cluster::new();
    cluster.up_with(&[]).ok();
    let shell = |line: &str| {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", line, "/dev/null"]);
        script.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::piped()).stdout(Stdio::piped());
        script.spawn().expect("it is installed")
    };
    let martlet = env!("CARGO_BIN_EXE_martlet");
    let line = format!("stty rows 20 cols 100 -echo; '{martlet}' top --every 50 --dir '{}'; code=$?; stty -a; exit $code", cluster.dir);
    for key in [&b"q"[..], b"\x03", b"\x1b"] {
        let mut child = shell(&line);
        let mut out = child.stdout.take().expect("piped");
        let mut seen = Vec::new();
        // Blanks between words need not be sent.
        while !String::from_utf8_lossy(&seen).contains("backup") {
            let mut some = [0; 512];
            let read = out.read(&mut some).expect("it goes on");
            assert_ne!(read, 0, "it ended: {:?}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&some[..read]);
        }
        child.stdin.as_mut().expect("piped").write_all(key).expect("it listens");
        out.read_to_end(&mut seen).expect("an end");
        assert!(child.wait().expect("ours").success(), "{key:?}");
        let seen = String::from_utf8_lossy(&seen);
        let (drawn, after) = seen.rsplit_once("\u{1b}[?1049l").unwrap_or_else(|| panic!("the other screen was not left: {seen:?}"));
        assert!(drawn.contains("\u{1b}[?1049h") && drawn.contains("\u{1b}[38;5;2"), "drawn, and in colours: {drawn:?}");
        let place = |what: &str| seen.rfind(what);
        assert!(place("\u{1b}[?25h") > place("\u{1b}[?25l"), "the cursor is seen again: {seen:?}");
        let settings: Vec<&str> = after.split_whitespace().collect();
        assert!(settings.contains(&"icanon") && settings.contains(&"isig"), "{after:?}");
    }
}
