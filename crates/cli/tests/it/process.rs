//! What the system does to a node's process.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::cluster::Cluster;
use crate::martlet::{command, run};

#[track_caller]
fn set(cluster: &Cluster, value: &str) {
    cluster.run(&["set", "key", value, "--timeout", "120000"]).ok();
}

fn alone(more: &[&str]) -> Cluster {
    let cluster = Cluster::new();
    cluster.up_with(&[&["--replicas", "1", "--coordinators", "1"], more].concat()).ok();
    set(&cluster, "value");
    cluster.run(&["cluster", "down"]).ok();
    cluster
}

#[test]
fn nothing_listens_beyond_this_host_without_a_password_unless_it_is_told_to() {
    let cluster = alone(&[]);
    let file = format!("{}/node-0.toml", cluster.dir);
    let text = fs::read_to_string(&file).expect("its file");
    let with = |lines: &str| {
        fs::write(&file, text.replace("listen = \"127.0.0.1\"\n", lines).replace("protected_mode = true\n", "")).expect("ours")
    };
    let refused = |lines: &str, more: &[&str]| {
        with(lines);
        let ran = run(&[&["node", "--config", &file], more].concat()).code(2);
        assert!(
            ran.err.contains("beyond this host, and redis.requirepass is not set") && ran.err.contains("--protected-mode false"),
            "{}",
            ran.err
        );
    };
    let serves = |lines: &str, more: &[&str]| {
        with(lines);
        let mut node = command(&[&["node", "--config", &file], more].concat()).stderr(Stdio::piped()).spawn().expect("built");
        let mut log = BufReader::new(node.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("serving the Redis protocol") {
            assert!(log.read_line(&mut said).expect("UTF-8") > 0, "{said}");
        }
        node.kill().and_then(|()| node.wait()).expect("ours");
    };
    refused("listen = \"0.0.0.0\"\n", &[]);
    refused("listen = \"::\"\n", &[]);
    refused("listen = \"0.0.0.0\"\nprotected_mode = false\n", &["--protected-mode", "true"]);
    serves("listen = \"0.0.0.0\"\nrequirepass = \"open sesame\"\n", &[]);
    serves("listen = \"0.0.0.0\"\nprotected_mode = false\n", &[]);
    serves("listen = \"0.0.0.0\"\n", &["--protected-mode", "false"]);
    serves("listen = \"127.0.0.1\"\n", &[]);

    let listen = |address: &str, more: &[&str]| run(&[&["metrics", "--dir", &cluster.dir, "--listen", address], more].concat());
    let refused = listen("0.0.0.0:0", &[]).code(2).err;
    assert!(refused.contains("--listen is 0.0.0.0:0, beyond this host") && refused.contains("--protected-mode false"), "{refused}");
    listen("[::ffff:10.0.0.1]:0", &[]).code(2);
}
