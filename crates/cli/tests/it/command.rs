//! What all commands have in common.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::martlet::{TempDir, command, fabric, ran, run};

#[test]
fn wrong_usage_has_a_code_of_its_own() {
    run(&["frobnicate"]).code(2);
    run(&["bench", "detect", "--kills", "0"]).code(2);
    run(&["cluster", "kill", "1", "--signal", "LOUD"]).code(2);
    run(&["top", "--every", "49"]).code(2);
    assert!(run(&["metrics", "--listen", "here"]).code(2).err.contains("allowed is an IP address and a port"));
    run(&["--help"]).ok();
    assert!(run(&["--version"]).ok().out.starts_with("martlet "));
}

#[test]
fn a_usage_names_the_flag_that_may_stand_in_an_arguments_place() {
    for usage in [
        run(&["cluster", "restart", "--help"]).ok().out,
        run(&["cluster", "restart"]).code(2).err,
        run(&["cluster", "restart", "1", "--all"]).code(2).err,
    ] {
        assert!(usage.contains("martlet cluster restart") && usage.contains("<NODE|--all>"), "{usage}");
    }
    assert!(run(&["host", "start"]).code(2).err.contains("<NAME|--dir <DIR>>"));
    assert!(run(&["warden", "monitor"]).code(2).err.contains("|--pid <PID>>"));
}

#[test]
fn ports_that_mean_nothing_or_that_two_would_have_are_refused_before_anything_is_made() {
    let temp = TempDir::new();
    let dir = temp.join("c");
    let refused = |more: &[&str]| run(&[&["cluster", "up", "--dir", &dir], more].concat()).code(2).err;
    let why = refused(&["--service-port", "7712"]);
    assert!(why.contains("--service-port is 7712, which is node 1's own: --redis-port is 7711"), "{why}");
    if fabric().is_empty() {
        let why = refused(&["--fabric-port", "7611"]);
        assert!(
            why.contains("--fabric-port is 7611, but the fabric is shm, whose nodes need no port to meet")
                && why.contains("--fabric-port with --fabric "),
            "{why}"
        );
    }
    assert!(!std::path::Path::new(&dir).exists(), "nothing is made");
}

#[test]
fn a_cluster_that_is_not_there_is_said_to_be_absent() {
    let dir = TempDir::new();
    let nowhere = dir.join("nowhere");
    let changes = [&["cluster", "add"][..], &["cluster", "remove", "0"], &["cluster", "replace", "0"]];
    for arguments in [
        &["status"][..],
        &["members"],
        &["top"],
        &["top", "--once"],
        &["metrics"],
        &["metrics", "--once"],
        &["cluster", "kill", "0"],
        &["cluster", "status"],
    ]
    .into_iter()
    .chain(changes)
    {
        let arguments = [arguments, &["--dir", &nowhere]].concat();
        let ran = run(&arguments).code(3);
        assert!(ran.err.contains("there is no cluster in") && ran.err.contains("martlet cluster up"), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
    let down = run(&["cluster", "down", "--dir", &nowhere]).ok();
    assert_eq!(down.out, format!("there is no cluster in {nowhere}\n"));
    let objects = run(&["cluster", "down", "--json", "--dir", &nowhere]).ok().objects();
    assert!(objects.len() == 1 && objects[0]["event"] == "nothing to stop" && objects[0]["cluster"] == false, "{objects:?}");
    assert!(!dir.path().join("nowhere").exists(), "looking makes nothing");
}

#[test]
fn what_is_refused_leaves_no_directory_and_a_directory_without_a_cluster_as_it_was() {
    let dir = TempDir::new();
    let fresh = dir.join("fresh");
    for arguments in [
        &["cluster", "up", "--fabric", "ethernet", "--service-port", "7700"][..],
        &["cluster", "up", "--durability", "sync", "--engine", "primary-backup"],
        &["cluster", "up", "--replicas", "15", "--coordinators", "15", "--redis-port", "65530"],
    ] {
        let ran = run(&[arguments, &["--dir", &fresh]].concat()).code(2);
        assert!(ran.err.contains("allowed") && !dir.path().join("fresh").exists(), "{arguments:?}: {}", ran.err);
        run(&[arguments, &["--dir", dir.path().to_str().expect("UTF-8")]].concat()).code(2);
        assert_eq!(std::fs::read_dir(dir.path()).expect("it stays").count(), 0, "{arguments:?}");
    }
    let path = dir.path().to_str().expect("UTF-8");
    let down = run(&["cluster", "down", "--purge", "--json", "--dir", path]).ok().objects();
    assert!(down.len() == 1 && down[0]["event"] == "nothing to stop", "{down:?}");
}

#[test]
fn a_number_below_zero_is_a_value_that_is_refused_like_any_other() {
    for (arguments, wanted) in [
        (&["torture", "--kills", "-1"][..], "invalid value '-1' for '--kills <N>': allowed is a whole number from 0 to 4294967295"),
        (&["top", "--every", "-3"], "invalid value '-3' for '--every <MS>': allowed is a whole number from 50 to"),
        (&["cluster", "kill", "-1"], "invalid value '-1' for '<NODE>': allowed is a whole number from 0 to"),
        (&["bench", "kv", "--pin", "-1"], "invalid value '-1' for '--pin <PIN>': the cores are"),
    ] {
        let said = run(arguments).code(2).err;
        assert!(said.contains(wanted), "{said}\nwanted: {wanted}");
    }
    // A word that begins with a dash and is no number is a flag, and this flag does not exist.
    assert!(run(&["torture", "--kills", "-x"]).code(2).err.contains("unexpected argument '-x'"));
}

#[test]
fn what_follows_the_name_of_a_server_is_the_servers_with_and_without_a_separator() {
    for arguments in [
        &["run", "no-such-server", "--port", "7000"][..],
        &["run", "--", "no-such-server", "--port", "7000"],
        &["run", "--", "no-such-server"],
    ] {
        let said = run(arguments).code(3).err;
        assert!(said.contains("there is no program \"no-such-server\" in PATH"), "{arguments:?}: {said}");
    }
    // What stands before the name is the command's own.
    for arguments in [&["run", "--replicas", "3", "no-such-server"][..], &["run", "--port", "7000"]] {
        let said = run(arguments).code(2).err;
        assert!(said.contains(&format!("unexpected argument '{}'", arguments[1])), "{arguments:?}: {said}");
    }
}

#[test]
fn the_doctor_says_what_this_host_can_do() {
    let objects = run(&["doctor", "--json", "--seconds", "1", "--fence-trials", "2"]).ok().objects();
    let of = |event: &str| objects.iter().filter(|object| object["event"] == event).collect::<Vec<_>>();
    assert!(!of("jitter").is_empty() && of("timeouts")[0]["lease_us"].as_u64() > Some(0), "{objects:?}");
    assert_eq!((of("clock").len(), of("clock_drift").len()), (1, 1), "{objects:?}");
    // The usual bound between hosts is more than the kernel lets any daemon correct a clock by.
    assert_eq!((&of("clock_drift")[0]["allowed_ppm"], &of("clock_drift")[0]["holds"]), (&101_200.into(), &true.into()), "{objects:?}");
    let usable = |name: &str| of("fabric").iter().any(|fabric| fabric["fabric"] == name && fabric["usable"] == true);
    assert!(usable("shm"), "{objects:?}");
    let details: std::collections::BTreeSet<&str> = of("fabric")
        .iter()
        .filter(|fabric| ["shm", "ethernet"].iter().any(|name| fabric["fabric"] == *name))
        .filter_map(|fabric| fabric["detail"].as_str())
        .collect();
    assert_eq!(details.len(), 2, "each says what was found of it: {details:?}");
    for corrector in of("corrector").iter().filter(|corrector| corrector["name"].is_null()) {
        assert_eq!(corrector["hidden_slews_ppm"], 101_000, "as the text says");
    }
    // Where the tests run over RDMA, its devices are there, and after a revocation on them nothing is stored.
    for device in fabric().last().iter().flat_map(|devices| devices.split(',')) {
        assert!(usable(&format!("verbs, device {device}")), "{device}: {objects:?}");
        let (fences, groups) = (of("fence"), of("multicast"));
        assert!(groups.iter().any(|group| group["device"] == device), "{device}: {objects:?}");
        let fences: Vec<_> = fences.iter().filter(|fence| fence["device"] == device).collect();
        assert_eq!(fences.len(), 4, "{device}: {objects:?}");
        let chosen = fences.iter().find(|fence| fence["chosen"] == true).expect("one of them");
        assert_eq!((&chosen["rounds"], &chosen["late"]), (&Value::from(2), &Value::from(0)), "{device}: {objects:?}");
    }
}

/// A terminal sends the signal to the command and to its children, some of which end because of it.
#[test]
fn ctrl_c_is_what_a_command_ends_of_even_where_its_children_end_first() {
    let mut command = command(&["bench", "detect", "--json"]);
    let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command is built");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a first figure");
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().expect("kill").success());
    let ran = ran(child.wait_with_output().expect("our own child")).code(130);
    assert_eq!(ran.err, "");
}

#[test]
fn a_network_is_planned_drawn_and_mended() {
    let dir = TempDir::new();
    let file = dir.join("net.toml");
    std::fs::write(&file, run(&["plan", "example", "--height", "2", "--hosts", "3"]).ok().out).expect("a file");
    let svg = dir.join("net.svg");
    let text = run(&["plan", &file, "--svg", &svg]).ok().out;
    assert!(text.contains("request 1: h1 to h2, h3") && text.contains("tree 2") && text.contains("└─ aggregation"), "{text}");
    let drawn = std::fs::read_to_string(&svg).expect("a drawing");
    assert!(drawn.starts_with("<svg ") && drawn.contains("edge1a") && drawn.ends_with("</svg>\n"), "{drawn}");
    let (link, hard) = (dir.join("link.svg"), dir.join("hard.svg"));
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    std::fs::hard_link(&file, &hard).expect("a link");
    let before = std::fs::read_to_string(&file).expect("a file");
    for same in [&file, &link, &hard] {
        let refused = run(&["plan", &file, "--svg", same]).code(2);
        assert!(refused.err.contains(&format!("--svg is {same}, the same file as {file}")) && refused.out.is_empty(), "{}", refused.err);
        assert_eq!(std::fs::read_to_string(&file).expect("it stays"), before);
    }
    let objects = run(&["plan", &file, "--json"]).ok().objects();
    let of = |event: &str| objects.iter().filter(|object| object["event"] == event).collect::<Vec<_>>();
    assert_eq!((of("request").len(), of("tree").len(), of("path").len()), (3, 6, 6), "{objects:?}");
    for path in of("path") {
        let request = &of("request")[path["request"].as_u64().expect("a number") as usize - 1];
        let number = |object: &Value, key: &str| object[key].as_u64().expect("a number");
        let timeout = number(request, "period_ns") + number(path, "latency_ns") + 2 * number(path, "jitter_ns");
        assert_eq!(path["timeout_ns"], timeout, "{path}");
    }
    run(&["plan", &file, "--without", "edge1a:aggregationa"]).ok();
    let refused = run(&["plan", &file, "--without", "aggregationa"]).code(1).err;
    assert!(refused.contains("request 1, trees is 2; allowed: at most 1"), "{refused}");
    let absent = run(&["plan", &dir.join("none.toml")]).code(2).err;
    assert!(absent.contains("none.toml: cannot be read"), "{absent}");
    run(&["plan"]).code(2);
    let heights = run(&["plan", "ccf", "--json"]).ok().objects();
    let bounds: Vec<f64> = heights.iter().map(|height| height["bound"].as_f64().expect("a number")).collect();
    for (ours, paper) in bounds.iter().zip([0.044, 0.089, 0.17]) {
        assert!((ours - paper).abs() < 0.005, "{bounds:?}");
    }
    let requests = run(&["plan", "ccf", &file, "--json"]).ok().objects();
    assert_eq!((requests.len(), requests[0]["trees"][0]["trunk_links"].as_u64()), (3, Some(6)), "{requests:?}");
}

#[test]
fn a_variable_that_is_set_to_nothing_is_as_good_as_none() {
    let temp = TempDir::new();
    let of = |arguments: &[&str], variable: &str| {
        ran(command(arguments).env(variable, "").current_dir(temp.path()).output().expect("the command is built")).code(3).err
    };
    for arguments in [&["status"][..], &["members"], &["get", "k"], &["cluster", "kill", "0"]] {
        let said = of(arguments, "MARTLET_DIR");
        assert!(said.contains("there is no cluster in martlet-cluster"), "{arguments:?}: {said}");
    }
    // As without the variable, whether or not this host has a warden.
    let mut without = command(&["warden", "status"]);
    without.env_remove("MARTLET_WARDEN");
    let without = ran(without.output().expect("the command is built"));
    let mut empty = command(&["warden", "status"]);
    let empty = ran(empty.env("MARTLET_WARDEN", "").output().expect("the command is built"));
    assert_eq!((empty.code, empty.err), (without.code, without.err));
}

#[test]
fn colours_are_for_terminals() {
    let coloured = |variables: &[(&str, &str)]| {
        let mut command = command(&["status", "--dir", "/nonexistent"]);
        command.envs(variables.iter().copied());
        ran(command.output().expect("the command is built")).err.contains('\u{1b}')
    };
    assert!(!coloured(&[]), "the output is no terminal");
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]), "asked for");
    assert!(!coloured(&[("NO_COLOR", "1")]), "asked against");
}

#[test]
fn manual_pages_and_completions_are_generated() {
    let dir = TempDir::new();
    run(&["man", &dir.join("man1")]).ok();
    let page = std::fs::read_to_string(dir.path().join("man1/martlet-cluster-kill.1")).expect("a page for each command");
    assert!(page.contains("SIGKILL"));
    assert!(!dir.path().join("man1/martlet-victim.1").exists(), "what is hidden has no page");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).ok().out.contains("martlet"), "{shell}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    use std::io::Read as _;
    let mut child =
        command(&["completions", "zsh"]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("built");
    drop(child.stdout.take());
    let mut complaints = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut complaints).expect("UTF-8");
    child.wait().expect("ours");
    assert!(!complaints.contains("panicked"), "{complaints}");
}
