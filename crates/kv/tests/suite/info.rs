//! What a node says about itself, its clients and the time.

use std::sync::atomic::Ordering;

use martlet_kv::KvConfig;

use crate::rig::Rig;

#[test]
fn client_list_shows_the_request_that_asks_for_it() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    rig.call(&mut client, "ECHO what-has-been-sent-waits-no-more");
    client.send(&mut rig, b"*2\r\n$6\r\nclient\r\n$4\r\nlist\r\n");
    let list = rig.reply(&mut client);
    assert!(list.contains(" qbuf=26 ") && list.contains(" argv-mem=10 ") && list.contains(" cmd=client|list "), "{list}");
    assert!(list.contains(" obl=0 ") && !list.contains(" fd=-1 "), "{list}");
    let mut other = rig.connect();
    other.send(&mut rig, b"*2\r\n$3\r\nGET\r\n");
    while rig.turn() > 0 {}
    let list = rig.call(&mut client, "CLIENT LIST TYPE normal");
    assert!(list.contains(" qbuf=13 "), "half a request waits: {list}");
}

/// The client reads its clock before it sends the request. So a key may not have longer to live than was asked for, whenever the node last looked at its own
/// clock.
#[test]
fn a_commands_time_is_that_of_its_execution() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    // No time passes on the monotonic clock.
    rig.turn_ns = 0;
    for _ in 0..100 {
        let now = rig.wall.fetch_add(1, Ordering::Relaxed) + 1;
        let at = now + 10_000;
        client.send(&mut rig, format!("SET k v\r\nPEXPIREAT k {at}\r\nPTTL k\r\nTIME\r\n").as_bytes());
        assert_eq!([rig.reply(&mut client), rig.reply(&mut client)], ["+OK\r\n", ":1\r\n"]);
        assert_eq!(rig.reply(&mut client), ":10000\r\n");
        let (s, us) = ((now / 1000).to_string(), (now % 1000 * 1000).to_string());
        assert_eq!(rig.reply(&mut client), format!("*2\r\n$10\r\n{s}\r\n${}\r\n{us}\r\n", us.len()));
    }
}

#[test]
fn info_counts_calls_and_errors_and_measures_what_they_take() {
    let mut rig = Rig::new(KvConfig::default());
    let mut client = rig.connect();
    for request in
        ["SET k v", "GET k", "GET nope", "GET", "INCR k", "NOSUCH", "CLIENT GETNAME", "CLIENT NOPE", "MULTI", "GET k", "INCR k", "EXEC"]
    {
        rig.call(&mut client, request);
    }
    rig.call(&mut client, "EXEC");
    let stats = rig.call(&mut client, "INFO commandstats");
    let line = |name: &str| {
        stats.lines().find(|l| l.starts_with(&format!("cmdstat_{name}:"))).unwrap_or_else(|| panic!("{name}: {stats}")).to_owned()
    };
    for (name, calls, rejected, failed) in
        [("set", 1, 0, 0), ("get", 3, 1, 0), ("incr", 2, 0, 2), ("client|getname", 1, 0, 0), ("multi", 1, 0, 0), ("exec", 2, 0, 1)]
    {
        let line = line(name);
        assert!(line.contains(&format!(":calls={calls},usec=")), "{line}");
        assert!(line.ends_with(&format!(",rejected_calls={rejected},failed_calls={failed}")), "{line}");
    }
    assert!(!stats.contains("cmdstat_info:"), "it is counted when it has ended");
    assert!(rig.call(&mut client, "INFO commandstats").contains("\r\ncmdstat_info:calls=1,"));
    assert!(rig.call(&mut client, "INFO errorstats").contains("# Errorstats\r\nerrorstat_ERR:count=6\r\n"), "one of them in a transaction");
    assert!(rig.call(&mut client, "INFO stats").contains("total_error_replies:6\r\n"));
    assert!(rig.call(&mut client, "INFO latencystats").contains("\r\nlatency_percentiles_usec_get:p50="));
    assert!(rig.call(&mut client, "INFO cpu").contains("used_cpu_sys:0.000002\r\nused_cpu_user:1.000001\r\n"));
    let default = rig.call(&mut client, "INFO");
    assert!(default.contains("# CPU") && default.contains("# Errorstats") && !default.contains("# Commandstats"), "as in Redis");
    let all = rig.call(&mut client, "INFO everything");
    assert!(["# Commandstats", "# Latencystats", "# Martlet"].iter().all(|section| all.contains(section)));
    rig.call(&mut client, "CONFIG RESETSTAT");
    let stats = rig.call(&mut client, "INFO commandstats");
    assert!(stats.contains("cmdstat_config|resetstat:calls=1,") && !stats.contains("cmdstat_get:"), "{stats}");
    assert!(rig.call(&mut client, "INFO errorstats").ends_with("# Errorstats\r\n\r\n"));
}
