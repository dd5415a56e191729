//! A cluster whose nodes reach each other as ordinary hosts do: by sealed packets, here over the loopback device.

use crate::cluster::Cluster;

#[test]
fn a_cluster_over_udp_outlives_each_of_its_nodes() {
    for engine in ["mu", "primary-backup"] {
        let cluster = Cluster::with_room_for(3);
        let (redis, meeting) = (cluster.port.to_string(), (cluster.port + 3).to_string());
        let ports = ["--redis-port", &redis, "--fabric-port", &meeting];
        let up = ["cluster", "up", "--patience", "120", "--fabric", "ethernet", "--engine", engine];
        cluster.run(&[&up[..], &ports[..]].concat()).ok();
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
