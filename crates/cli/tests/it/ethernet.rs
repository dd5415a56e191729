//! A cluster whose nodes reach each other as ordinary hosts do: by sealed packets, here over the loopback device.

use serde_json::Value;

use crate::cluster::Cluster;

#[test]
fn a_cluster_over_udp_outlives_each_of_its_nodes() {
    for engine in ["mu", "primary-backup"] {
        let cluster = Cluster::with_room_for(3);
        let (redis, meeting) = (cluster.port.to_string(), (cluster.port + 3).to_string());
        let ports = ["--redis-port", &redis, "--fabric-port", &meeting];
        let up = ["cluster", "up", "--patience", "120", "--fabric", "ethernet", "--engine", engine];
        cluster.run(&[&up[..], &ports[..]].concat()).ok();
        if engine == "mu" {
            the_doctor_finds_all_but_the_dead(&cluster);
            clients_measure_their_puts(&cluster);
        }
        let value = |n: u16| format!("value {n} of {engine}");
        for victim in 0..3 {
            let key = format!("key{victim}");
            cluster.run(&["set", &key, &value(victim), "--timeout", "120000"]).ok();
            cluster.run(&["cluster", "kill", &victim.to_string()]).ok();
            for n in 0..=victim {
                let got = cluster.run(&["get", &format!("key{n}"), "--timeout", "120000"]).ok();
                assert_eq!(got.objects()[0]["value"], value(n), "{engine}: after the death of node {victim}");
            }
            cluster.up_again().ok();
        }
        if engine == "mu" {
            // A majority of the coordinators is dead, so that the last one is needed until the end: nobody is left to need it.
            cluster.run(&["cluster", "kill", "1"]).ok();
            cluster.run(&["cluster", "kill", "2"]).ok();
        }
        for stopped in cluster.run(&["cluster", "down"]).ok().objects() {
            assert_eq!(stopped["how"], "ended", "{engine}: {stopped}");
        }
    }
}

/// Clients of a running cluster say how long they wait, and have set what they say.
fn clients_measure_their_puts(cluster: &Cluster) {
    for (clients, crowd_of) in [("1", "one client"), ("3", "3 clients")] {
        let put = ["bench", "--no-reference", "put", "--seconds", "1", "--value-bytes", "77", "--clients", clients];
        let figures = cluster.run(&put).ok().objects();
        let of = |what: &str| figures.iter().find(|figure| figure["metric"] == what).unwrap_or_else(|| panic!("no {what}: {figures:?}"));
        let took = of(&format!("PUT on the fabric, {crowd_of}"));
        let rate = of(&format!("PUTs on the fabric, {crowd_of}"))["p50"].as_f64().expect("a rate");
        let n = took["n"].as_f64().expect("how many");
        assert!(n > 0.0 && rate <= n && took["p50"].as_f64() > Some(0.0), "more a second than there were: {figures:?}");
    }
    let set = (0..64).map(|key| cluster.run(&["get", &format!("{key:08}")]).ok().objects()[0]["value"].clone());
    let longest = set.filter_map(|value| value.as_str().map(str::len)).max();
    assert_eq!(longest, Some(77), "no key has a value of that length");
}

/// What a running cluster shows to this host, and what is said of a node that does not run.
fn the_doctor_finds_all_but_the_dead(cluster: &Cluster) {
    let doctor = ["doctor", "--peers", "--seconds", "1"];
    let objects = cluster.run(&doctor).ok().objects();
    let of = |objects: &[Value], event: &str| objects.iter().filter(|object| object["event"] == event).cloned().collect::<Vec<_>>();
    let peers = of(&objects, "peer");
    assert_eq!(peers.len(), 3, "{objects:?}");
    for peer in &peers {
        let least = |value: &Value, least: u64| assert!(value.as_u64() >= Some(least), "{value}: {peer}");
        least(&peer["looks"], 10);
        least(&peer["round_trip_us"]["p50"], 1);
        least(&peer["beat_us"]["max"], 500);
    }
    let settings = &of(&objects, "settings")[0];
    for setting in ["heartbeat_us", "missed", "lease_us", "broadcast_timeout_us"] {
        assert!(settings[setting].as_u64() > Some(0) && settings["now"][setting].as_u64() > Some(0), "{setting}: {settings}");
    }
    cluster.run(&["cluster", "kill", "1"]).ok();
    let ran = cluster.run(&doctor).code(1);
    assert!(ran.err.contains("not measured: nodes [1]"), "{}", ran.err);
    let peers = of(&ran.objects(), "peer");
    assert_eq!(peers.iter().map(|peer| peer["measured"] == true).collect::<Vec<_>>(), [true, false, true], "{peers:?}");
    assert!(peers[1]["detail"].as_str().is_some_and(|why| why.contains("does its node run?")), "{}", peers[1]);
    cluster.up_again().ok();
}
