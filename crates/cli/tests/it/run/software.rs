//! What software uses of Redis, while leaders are killed: state that belongs to a connection, and answers that have to be the same at every replica.

use super::Service;

/// Kills the leader, and waits until another one leads and another replica is in the dead one's place.
fn kill(service: &mut Service) {
    service.kill_leader();
    service.await_replicas();
}

#[test]
fn what_a_connection_has_set_up_is_there_after_a_kill() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    let sha = client.call(&["SCRIPT", "LOAD", "redis.call('INCRBY', KEYS[1], ARGV[1]); return redis.call('GET', KEYS[1])"]);
    client.call(&["CLIENT", "SETNAME", "someone"]);
    for database in 0..16 {
        client.call(&["SELECT", &database.to_string()]);
        client.call(&["SET", "own", &database.to_string()]);
    }
    kill(&mut service);
    assert_eq!(client.call(&["GET", "own"]), "15", "it is still in the database that it chose last");
    for database in 0..16 {
        client.call(&["SELECT", &database.to_string()]);
        assert_eq!(client.call(&["GET", "own"]), database.to_string());
    }
    assert_eq!(client.call(&["CLIENT", "GETNAME"]), "someone");
    assert_eq!(client.call(&["EVALSHA", &sha, "1", "counter", "5"]), "5", "a script that was loaded before");

    client.call(&["SELECT", "0"]);
    client.call(&["SET", "counter", "5"]);
    // A transaction that is half sent, and one whose keys are watched.
    let mut watching = service.connect();
    watching.call(&["WATCH", "counter"]);
    client.call(&["MULTI"]);
    assert_eq!(client.call(&["INCR", "counter"]), "QUEUED");
    kill(&mut service);
    assert_eq!(client.call(&["INCR", "counter"]), "QUEUED");
    assert_eq!(client.call(&["EXEC"]), "[6 7]");
    kill(&mut service);
    watching.call(&["MULTI"]);
    watching.call(&["INCR", "counter"]);
    assert_eq!(watching.call(&["EXEC"]), "nil", "the key has changed since it was watched");
    drop((client, watching));
    service.stop();
}

#[test]
fn data_of_every_kind_and_its_order_are_the_same_at_each_replica() {
    let Some(mut service) = Service::start_with(&["--enable-debug-command", "yes"]) else { return };
    let mut client = service.connect();
    for at in 0..2_000 {
        let at = at.to_string();
        client.send_words(&["HSET", "hash", &at, &at]);
        client.send_words(&["SADD", "set", &format!("member {at}")]);
        client.send_words(&["RPUSH", "list", &at]);
        client.send_words(&["ZADD", "sorted", &at, &at]);
        client.send_words(&["XADD", "stream", "*", "field", &at]);
        client.send_words(&["SET", &format!("key {at}"), &at]);
        client.send_words(&["SET", &format!("brief {at}"), &at, "PX", "300"]);
        (0..7).for_each(|_| drop(client.answer()));
    }
    client.call(&["XGROUP", "CREATE", "stream", "group", "0"]);
    client.call(&["XREADGROUP", "GROUP", "group", "consumer", "COUNT", "10", "STREAMS", "stream", ">"]);
    // Answers that depend on hash tables, random generators and clocks.
    let look = |client: &mut super::Client| {
        let mut seen =
            vec![client.call(&["HGETALL", "hash"]), client.call(&["SMEMBERS", "set"]), client.call(&["XPENDING", "stream", "group"])];
        let mut cursor = "0".to_owned();
        loop {
            let page = client.call(&["SCAN", &cursor, "COUNT", "100", "MATCH", "key *"]);
            cursor = page[1..].split(' ').next().expect("a cursor").into();
            seen.push(page);
            if cursor == "0" {
                break;
            }
        }
        seen
    };
    // Until all short-lived keys are gone, also those that no client asks for.
    while client.call(&["DBSIZE"]) != "2005" {}
    let (seen, digest) = (look(&mut client), client.call(&["DEBUG", "DIGEST"]));
    for _ in 0..3 {
        kill(&mut service);
        assert!(look(&mut client) == seen, "the same in the same order");
        assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    }
    // Random choices are the same, too: what one replica has drawn, every other has drawn.
    (0..200).for_each(|_| drop(client.call(&["SPOP", "set"])));
    let after = (client.call(&["SMEMBERS", "set"]), client.call(&["DEBUG", "DIGEST"]));
    kill(&mut service);
    assert!((client.call(&["SMEMBERS", "set"]), client.call(&["DEBUG", "DIGEST"])) == after, "the same were drawn");
    drop(client);
    service.stop();
}

#[test]
fn one_that_waits_for_data_is_given_it_after_a_kill() {
    let Some(mut service) = Service::start() else { return };
    let mut client = service.connect();
    let mut waiting: Vec<_> = (0..3).map(|_| service.connect()).collect();
    client.call(&["XADD", "stream", "1-1", "field", "old"]);
    waiting[0].send_words(&["BLPOP", "list", "0"]);
    waiting[1].send_words(&["XREAD", "BLOCK", "0", "STREAMS", "stream", "$"]);
    waiting[2].send_words(&["BLPOP", "never", "0.5"]);
    // Waits until both are known to be blocked.
    while !client.call(&["INFO", "clients"]).contains("blocked_clients:3")
        && !client.call(&["INFO", "clients"]).contains("blocked_clients:2")
    {}
    kill(&mut service);
    assert_eq!(client.call(&["RPUSH", "list", "given"]), "1");
    assert_eq!(waiting[0].answer(), "[list given]");
    assert_eq!(client.call(&["LLEN", "list"]), "0", "once");
    kill(&mut service);
    client.call(&["XADD", "stream", "2-1", "field", "new"]);
    assert_eq!(waiting[1].answer(), "[[stream [[2-1 [field new]]]]]");
    assert_eq!(waiting[2].answer(), "nil", "its time is over, by the replicas' clock");
    drop((client, waiting));
    service.stop();
}

#[test]
fn a_subscriber_to_keyspace_events_hears_each_once_and_in_order_through_kills() {
    const EVENTS: usize = 3_000;
    const KILLS: usize = 5;
    let Some(mut service) = Service::start_with(&["--notify-keyspace-events", "K$"]) else { return };
    let (mut client, mut subscriber) = (service.connect(), service.connect());
    assert_eq!(subscriber.call(&["PSUBSCRIBE", "__keyspace@*__:*"]), "[psubscribe __keyspace@*__:* 1]");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for at in 0..EVENTS {
                assert_eq!(subscriber.answer(), format!("[pmessage __keyspace@*__:* __keyspace@0__:key:{at} set]"));
            }
        });
        for at in 0..EVENTS {
            client.send_words(&["SET", &format!("key:{at}"), "value"]);
            if at % (EVENTS / KILLS) == EVENTS / KILLS / 2 {
                // While the request is under way.
                kill(&mut service);
            }
            assert_eq!(client.answer(), "OK");
        }
    });
    drop(client);
    service.stop();
}
