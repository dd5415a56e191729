//! Elections (DARE sections 3.2 and 4.2.2), a test for each rule.

use martlet_fabric::LocalRegion;
use martlet_fabric::primitive::Ordering;
use martlet_fabric::sim::Faults;

use super::world::{Cluster, alike, id, led, others, tell_view, tiny};
use crate::basics::layout::LOG_LANE;
use crate::basics::{LogIndex, sealed};
use crate::engine::Engine as _;
use crate::engine::dare::access::Purpose;
use crate::engine::dare::layout::{CONTROL_LANE, Request, WORDS, choice, control, lane, vote_of, words};
use crate::engine::dare::{Config, Dare};
use crate::engine::{Event, test_cluster};
use crate::replica::{HandOverState, Standing};

/// The request of `by` as it is in the memory of `at`, which knows this term.
fn request(cluster: &Cluster, at: usize, by: usize, term: u64) -> Option<Request> {
    let lane = cluster.memory(at, LocalRegion::Lane { writer: cluster.peer(at, by), name: CONTROL_LANE });
    Request::read(&lane[control::REQUEST..control::REQUEST + control::REQUEST_WORDS], term)
}

/// As if `by` had asked `at` for its vote.
fn ask(cluster: &Cluster, at: usize, by: usize, request: Request) {
    let lane = cluster.memory(at, LocalRegion::Lane { writer: cluster.peer(at, by), name: CONTROL_LANE });
    let mut encoded = Vec::new();
    request.encode(&mut encoded);
    sealed::store(&lane[control::REQUEST..control::REQUEST + control::REQUEST_WORDS], &encoded);
}

#[test]
fn dare_3_2_leads_after_votes_of_a_majority_and_not_of_all() {
    let mut cluster = Cluster::new(5, tiny());
    cluster.kill(3);
    cluster.kill(4);
    let leader = cluster.until_led();
    cluster.write_through(leader);
    let mut alone = Cluster::new(3, tiny());
    alone.kill(1);
    alone.kill(2);
    alone.run(5_000_000);
    assert_eq!(alone.leader(), None, "its own vote is no majority");
    assert!(alone.nodes[0].engine.term() <= 1, "a server that cannot reach a majority raises no term");
}

#[test]
fn dare_3_2_one_server_stands_where_all_logs_are_alike() {
    let (mut cluster, leader) = led(5);
    let index = cluster.write_through(leader);
    cluster.until("all have it", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
    cluster.kill(leader);
    let next = cluster.until_led();
    assert_eq!(cluster.nodes[next].engine.term(), 2, "nobody else has stood, although all have seen the death at one time");
}

#[test]
fn dare_3_2_2_a_voter_takes_its_log_away_before_it_answers() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    // Two servers lose the leader, which does not know of it.
    cluster.world.pause(leader);
    cluster.until("another leader", |c| c.leads(one) || c.leads(other));
    let next = if cluster.leads(one) { one } else { other };
    cluster.write_through(next);
    cluster.world.resume(leader);
    let before = cluster.acknowledged.len();
    if cluster.leads(leader) {
        cluster.write(leader).expect("it leads, and has room");
        cluster.read(leader);
    }
    cluster.until("the old leader follows", |c| !c.leads(leader) && c.nodes[leader].engine.term() == c.nodes[next].engine.term());
    assert_eq!(
        (cluster.acknowledged.len(), cluster.nodes[leader].reads),
        (before, 0),
        "an outdated leader answers neither writes nor reads"
    );
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_3_2_3_a_decision_stands_at_a_majority_before_the_answer() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    cluster.kill(leader);
    let decided = |c: &Cluster, by: usize, at: usize| c.control(at, by, control::PRIVATE);
    let (mut votes, mut requests) = (false, false);
    cluster.until("another leader", |c| {
        for (voter, candidate) in [(one, other), (other, one)] {
            // Of the terms in which either is after the first; the decision of an older term is no longer anywhere.
            let term = c.nodes[voter].engine.term();
            if term > 1 && c.control(candidate, voter, control::VOTE) == vote_of(term) {
                assert_eq!(decided(c, voter, candidate), vote_of(term) | (candidate as u64 + 1), "it votes, and nobody knows");
                votes = true;
            }
            let term = c.nodes[candidate].engine.term();
            if term > 1 && c.control(voter, candidate, control::REQUEST) == term {
                assert_eq!(decided(c, candidate, voter), vote_of(term) | (candidate as u64 + 1), "a candidate's own vote is as durable");
                requests = true;
            }
        }
        c.leads(one) || c.leads(other)
    });
    assert!(votes && requests);
}

#[test]
fn dare_3_2_3_a_candidate_with_an_older_log_is_refused() {
    let (mut cluster, leader) = led(3);
    let [one, other] = others(leader);
    cluster.until("both follow", |c| [one, other].iter().all(|n| c.nodes[*n].engine.committed() == c.nodes[leader].engine.committed()));
    // Its memory would take what is written there.
    cluster.part(leader, other);
    cluster.world.pause(other);
    cluster.write_through(leader);
    // The one that has missed it is the first to see that the leader is gone.
    cluster.world.pause(one);
    cluster.kill(leader);
    cluster.world.resume(other);
    cluster.run(200_000);
    assert!(!cluster.leads(other));
    cluster.world.resume(one);
    assert_eq!(cluster.until_led(), one);
    cluster.until("level", |c| c.is_level());
}

#[test]
fn dare_3_2_2_a_false_suspicion_of_one_server_deposes_nobody() {
    let (mut cluster, leader) = led(3);
    let [_, other] = others(leader);
    cluster.part(leader, other);
    cluster.run(10_000_000);
    assert!(cluster.leads(leader));
    assert_eq!(cluster.nodes[leader].engine.term(), 1, "it has looked, and raised no term");
    assert_eq!(cluster.word(other, words::TERM), 1);
}

#[test]
fn dare_3_2_servers_stay_idle_as_long_as_a_leader_exists() {
    let (mut cluster, leader, _) = alike(5);
    let asked = |c: &Cluster| (0..5).map(|n| c.events(n, |event| matches!(event, Event::AskedPermission))).sum::<usize>();
    let before = asked(&cluster);
    cluster.run(20_000_000);
    assert_eq!((asked(&cluster), cluster.nodes[leader].engine.term()), (before, 1));
    for follower in (0..5).filter(|n| *n != leader) {
        assert_eq!(cluster.nodes[follower].engine.standing(), Standing::Backup { primary: Some(id(leader)) });
    }
}

#[test]
fn dare_3_2_no_server_votes_twice_in_a_term() {
    let (mut cluster, leader, last) = alike(5);
    let [voter, first, second, silent] = [1, 2, 3, 4].map(|by| (leader + by) % 5);
    [first, second, silent].into_iter().for_each(|n| cluster.world.pause(n));
    cluster.kill(leader);
    let wish = Request { term: 9, last_term: 1, last, quorum: 3 };
    ask(&cluster, voter, first, wish);
    cluster.until("it votes", |c| c.control(first, voter, control::VOTE) == vote_of(9));
    ask(&cluster, voter, second, wish);
    cluster.until("it stands itself", |c| c.word(voter, words::TERM) > 9);
    assert!(cluster.control(second, voter, control::VOTE) < vote_of(9));
}

/// On a network, where nothing is stored in a log once its owner has closed it; on a host it may be, but does not count.
#[test]
fn dare_3_2_1_what_is_closed_to_a_leader_is_the_log_and_not_the_control_data() {
    let mut cluster = test_cluster::Cluster::<Dare, false>::new(3, tiny());
    let leader = cluster.until_led();
    let last = cluster.write_through(leader);
    cluster.until("all have it", |c| c.nodes.iter().all(|node| node.engine.committed() >= last));
    cluster.world.pause(leader);
    cluster.until("another leader", |c| others(leader).into_iter().any(|n| c.leads(n)));
    let log = |c: &test_cluster::Cluster<Dare, false>, n: usize| -> Vec<u64> {
        let lane = c.memory(n, LocalRegion::Lane { writer: c.peer(n, leader), name: LOG_LANE });
        lane[lane::CUT..].iter().map(|word| word.load(Ordering::Acquire)).collect()
    };
    let before = others(leader).map(|n| log(&cluster, n));
    cluster.world.resume(leader);
    cluster.write(leader).expect("it takes itself for the leader, and has room");
    cluster.until("it follows", |c| !c.leads(leader) && c.word(leader, words::SUPPORTS) == 2);
    for (n, before) in others(leader).into_iter().zip(before) {
        let changed: Vec<_> = before.iter().zip(log(&cluster, n)).enumerate().filter(|(_, (was, is))| **was != *is).collect();
        assert!(changed.is_empty(), "it has written into the log of {n}: {changed:?}");
    }
    let reigns = |c: &test_cluster::Cluster<Dare, false>| others(leader).map(|n| c.control(n, leader, control::BEAT) & 1);
    cluster.until("its word that it leads no more has arrived", |c| reigns(c) == [0, 0]);
}

#[test]
fn dare_3_2_2_a_candidate_takes_its_log_away_before_it_asks() {
    let (mut cluster, leader, _) = alike(3);
    let [one, other] = others(leader);
    cluster.world.pause(leader);
    let mut asked = false;
    cluster.until("another leader", |c| {
        for (candidate, voter) in [(one, other), (other, one)] {
            if c.control(voter, candidate, control::REQUEST) == 2 {
                let access = &c.nodes[candidate].engine.access;
                assert_ne!(access.holder, Some(c.peer(candidate, leader)), "the old leader may write there");
                assert_eq!(access.revoking, 0);
                asked = true;
            }
        }
        c.leads(one) || c.leads(other)
    });
    assert!(asked);
}

#[test]
fn dare_3_2_2_a_request_has_the_term_and_the_last_entry_and_goes_to_every_server() {
    let (mut cluster, leader, last) = alike(5);
    cluster.kill(leader);
    let next = cluster.until_led();
    let voters: Vec<usize> = (0..5).filter(|n| ![leader, next].contains(n)).collect();
    cluster.until("all have it", |c| voters.iter().all(|n| c.control(*n, next, control::REQUEST) == 2));
    for voter in voters {
        assert_eq!(request(&cluster, voter, next, 1), Some(Request { term: 2, last_term: 1, last, quorum: 3 }));
    }
}

/// When a server that gets no votes stands, after its first attempt: how long each attempt takes.
fn attempts(of: usize) -> Vec<u64> {
    let (mut cluster, leader, _) = alike(3);
    let candidate = others(leader)[of];
    // What is written into the other server's memory arrives there, but the server does not answer.
    cluster.world.pause(others(leader)[1 - of]);
    cluster.kill(leader);
    let (mut term, mut times) = (1, Vec::new());
    cluster.until("five attempts", |c| {
        if c.word(candidate, words::TERM) > term {
            term = c.word(candidate, words::TERM);
            times.push(c.world.now());
        }
        times.len() == 5
    });
    assert!(!cluster.leads(candidate));
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn dare_3_2_2_a_candidate_that_waits_in_vain_starts_again_after_a_time_of_its_own() {
    let both = [attempts(0), attempts(1)];
    let differ = both[0].iter().zip(&both[1]).any(|(one, other)| one.abs_diff(*other) > 10_000);
    assert!(differ, "candidates that are as one would be so for ever: {both:?}");
    for times in both {
        for (failures, ns) in times.into_iter().enumerate() {
            let least = tiny().election_ns << failures;
            // The rest is the look before the next attempt, and the turns that this takes.
            assert!((least..2 * least + 60_000).contains(&ns), "{ns} ns after {failures}");
        }
    }
}

#[test]
fn dare_3_2_2_candidates_that_stand_at_one_time_do_not_do_so_for_ever() {
    let mut split = 0;
    for seed in 1..=8 {
        // Without ranks all stand as soon as they see the death.
        let config = Config { shared: test_cluster::settings(), rank_ns: 0, ..tiny() };
        let mut cluster = Cluster::in_world(seed, 5, config, Faults::calm());
        let leader = cluster.until_led();
        cluster.write_through(leader);
        cluster.kill(leader);
        let mut at_once = 0;
        cluster.until("a leader", |c| {
            let stands = |n: &&usize| c.nodes[**n].engine.reign.as_ref().is_some_and(|reign| !reign.is_elected());
            let standing: Vec<usize> = (0..5).filter(|n| c.nodes[*n].alive).collect();
            at_once = at_once.max(standing.iter().filter(stands).count());
            c.leader().is_some()
        });
        split += usize::from(at_once > 1);
        let next = cluster.until_led();
        cluster.write_through(next);
    }
    assert!(split > 0, "none of them ever did");
}

#[test]
fn dare_3_2_2_a_candidate_supports_another_one_that_is_elected() {
    let (mut cluster, leader, _) = alike(3);
    let [candidate, elected] = others(leader);
    cluster.world.pause(elected);
    cluster.kill(leader);
    let lives = |c: &Cluster| c.memory(elected, LocalRegion::Public(WORDS))[words::HEARTBEAT].fetch_add(1, Ordering::Release);
    let waits = |c: &Cluster| c.nodes[candidate].engine.reign.as_ref().map(|reign| (reign.term, reign.until));
    // It waits longer the more often it has waited in vain.
    cluster.until("it waits for votes", |c| {
        lives(c);
        c.nodes[candidate].engine.election.failures == 4 && waits(c).is_some()
    });
    let (term, until) = waits(&cluster).expect("just seen");
    // As if that one had been elected in the same term.
    let lane = cluster.memory(candidate, LocalRegion::Lane { writer: cluster.peer(candidate, elected), name: CONTROL_LANE });
    lane[control::ASK].store(vote_of(term) + 1, Ordering::Release);
    lane[control::BEAT].store(term << 1 | 1, Ordering::Release);
    cluster.until("it supports that one", |c| {
        lives(c);
        c.control(elected, candidate, control::VOTE) == vote_of(term) + 1
    });
    let engine = &cluster.nodes[candidate].engine;
    assert!(engine.reign.is_none() && cluster.world.now() < until.0, "it waits no longer for votes");
    assert_eq!(engine.standing(), Standing::Backup { primary: Some(id(elected)) });
}

#[test]
fn dare_3_2_3_a_server_that_hears_a_leader_answers_no_request() {
    let (mut cluster, leader, last) = alike(3);
    let [voter, candidate] = others(leader);
    cluster.world.pause(candidate);
    ask(&cluster, voter, candidate, Request { term: 9, last_term: 1, last, quorum: 2 });
    cluster.run(1_000_000);
    assert!(cluster.leads(leader));
    assert_eq!((cluster.word(voter, words::TERM), cluster.word(voter, words::SUPPORTS)), (1, 1));
    assert!(cluster.control(candidate, voter, control::VOTE) < vote_of(9));
    // Once it hears none, it does.
    cluster.kill(leader);
    cluster.until("it votes", |c| c.control(candidate, voter, control::VOTE) == vote_of(9));
}

#[test]
fn dare_3_2_3_only_requests_of_a_higher_term_are_considered() {
    let (mut cluster, leader, last) = alike(3);
    let [voter, candidate] = others(leader);
    cluster.world.pause(candidate);
    ask(&cluster, voter, candidate, Request { term: 1, last_term: 0, last: LogIndex(last.0 + 9), quorum: 2 });
    cluster.kill(leader);
    let decided = cluster.control(candidate, voter, control::PRIVATE);
    cluster.until("it stands itself", |c| {
        let now = c.control(candidate, voter, control::PRIVATE);
        assert!([decided, choice(2, id(voter).node)].contains(&now), "{now:x}: it has considered that of its own term");
        let considers = matches!(c.nodes[voter].engine.access.purpose, Some(Purpose::Vote { .. }));
        assert!(!considers, "it considers that of its own term");
        now != decided
    });
}

#[test]
fn dare_3_2_3_logs_are_compared_by_the_term_and_then_by_the_index_of_the_last_entry() {
    for (last_term, more, is_recent) in [(0, 5, false), (1, -1, false), (1, 0, true), (1, 5, true), (2, -1, true)] {
        let (mut cluster, leader, last) = alike(3);
        let [voter, candidate] = others(leader);
        cluster.world.pause(candidate);
        cluster.kill(leader);
        ask(&cluster, voter, candidate, Request { term: 9, last_term, last: LogIndex(last.0.strict_add_signed(more)), quorum: 2 });
        cluster.until("it votes, or stands itself", |c| {
            c.control(candidate, voter, control::VOTE) == vote_of(9) || c.word(voter, words::TERM) > 9
        });
        assert_eq!(cluster.control(candidate, voter, control::VOTE) == vote_of(9), is_recent, "term {last_term}, {more:+}");
        assert!(cluster.word(voter, words::TERM) >= 9, "its term rises all the same");
    }
}

#[test]
fn dare_4_2_2_a_vote_gives_the_candidate_time_before_the_voter_stands() {
    let (mut cluster, leader, last) = alike(3);
    let [voter, candidate] = others(leader);
    cluster.world.pause(candidate);
    cluster.kill(leader);
    ask(&cluster, voter, candidate, Request { term: 9, last_term: 1, last, quorum: 2 });
    cluster.until("it votes", |c| c.control(candidate, voter, control::VOTE) == vote_of(9));
    let voted = cluster.world.now();
    cluster.until("it stands itself", |c| c.word(voter, words::TERM) > 9);
    let waited = cluster.world.now() - voted;
    assert!(waited > tiny().election_ns - 2_000, "{waited} ns");
}

#[test]
fn dare_4_2_2_a_voter_waits_no_longer_once_it_hears_the_leader_for_whom_it_has_voted() {
    let election_ns = 2_000_000;
    let mut cluster = Cluster::new(3, Config { election_ns, ..tiny() });
    let leader = cluster.until_led();
    let index = cluster.write_through(leader);
    cluster.until("both follow", |c| c.nodes.iter().all(|node| node.engine.committed() >= index));
    // Long before its voters would have given it up as a candidate.
    cluster.kill(leader);
    let killed = cluster.world.now();
    assert!(killed < election_ns / 4, "{killed} ns");
    cluster.until_led();
    let took = cluster.world.now() - killed;
    assert!(took < election_ns / 4, "{took} ns");
}

#[test]
fn dare_4_2_2_servers_take_the_term_of_the_leader_that_they_hear_and_say_that_they_support_it() {
    let (mut cluster, leader, _) = alike(5);
    let away = (leader + 1) % 5;
    cluster.world.pause(away);
    cluster.kill(leader);
    let next = cluster.until_led();
    cluster.write_through(next);
    cluster.world.resume(away);
    cluster.until("all support it", |c| {
        (0..5).filter(|n| *n != leader).all(|n| [words::TERM, words::SUPPORTS].map(|word| c.word(n, word)) == [2, 2])
    });
    assert!(cluster.control(next, away, control::PRIVATE) < vote_of(2), "it has not voted: a heartbeat told it");
}

#[test]
fn dare_4_2_2_an_outdated_leader_is_told_and_becomes_idle() {
    let (mut cluster, leader, _) = alike(3);
    cluster.world.pause(leader);
    cluster.until("another leader", |c| others(leader).into_iter().any(|n| c.leads(n)));
    cluster.until("it is told", |c| others(leader).into_iter().all(|n| c.control(leader, n, control::OUTDATED) == 2));
    // Of the successor it hears nothing else.
    let [one, other] = others(leader);
    cluster.part(leader, one);
    cluster.part(leader, other);
    cluster.world.resume(leader);
    let resumed = cluster.world.now();
    cluster.until("it is idle", |c| !c.leads(leader));
    assert!(cluster.world.now() - resumed < tiny().silence_ns / 10, "it need not find out that it gets nowhere");
}

#[test]
fn dare_4_2_2_every_server_suspects_those_that_stop_and_trusts_those_that_go_on() {
    let (mut cluster, leader, _) = alike(5);
    let [stopped, dead] = [1, 2].map(|by| (leader + by) % 5);
    let rest: Vec<usize> = (0..5).filter(|n| ![stopped, dead].contains(n)).collect();
    let trusts = |c: &Cluster, n: usize, other: usize| {
        let id = c.peer(n, other);
        c.nodes[n].engine.peer(id).is_some_and(|peer| peer.watch.is_alive())
    };
    let all_trust = |c: &Cluster, other: usize| rest.iter().all(|n| trusts(c, *n, other));
    let none_trusts = |c: &Cluster, other: usize| rest.iter().all(|n| !trusts(c, *n, other));
    cluster.world.pause(stopped);
    cluster.kill(dead);
    cluster.until("all suspect both", |c| none_trusts(c, stopped) && none_trusts(c, dead));
    cluster.world.resume(stopped);
    cluster.until("all trust it again", |c| all_trust(c, stopped));
    assert!(none_trusts(&cluster, dead));
    for one in &rest {
        assert!(rest.iter().all(|n| n == one || trusts(&cluster, *n, *one)));
    }
}

#[test]
fn dare_4_2_2_a_leader_that_reaches_nobody_stops() {
    let (mut cluster, leader) = led(3);
    others(leader).into_iter().for_each(|other| cluster.part(leader, other));
    cluster.write(leader).expect("it leads, and has room");
    cluster.until("another leader", |c| c.leader().is_some_and(|n| n != leader));
    cluster.until("it gets nowhere, and knows", |c| !c.leads(leader));
    assert!(cluster.acknowledged.is_empty());
}

#[test]
fn a_leader_hands_over_and_its_successor_leads_at_once() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    let [_, to] = others(leader);
    cluster.until("it can succeed", |c| c.nodes[leader].engine.hand_over(Some(id(to).node)).is_ok());
    cluster.until("it leads", |c| c.leads(to));
    cluster.until("the old one knows", |c| c.nodes[leader].engine.hand_over_state() == Some(HandOverState::Done));
    assert_eq!(cluster.nodes[to].engine.term(), 2, "nobody else has stood");
    cluster.write_through(to);
    cluster.until("all follow", |c| (0..3).all(|n| n == to || c.nodes[n].engine.standing() == Standing::Backup { primary: Some(id(to)) }));
}

#[test]
fn the_others_hold_back_for_a_successor_that_lives_and_is_held_up() {
    let (mut cluster, leader) = led(3);
    cluster.write_through(leader);
    let [_, to] = others(leader);
    cluster.until("it can succeed", |c| c.nodes[leader].engine.hand_over(Some(id(to).node)).is_ok());
    cluster.until("it is told", |c| !c.leads(leader));
    cluster.world.pause(to);
    let silence_ns = cluster.nodes[leader].engine.config.silence_ns;
    cluster.run(silence_ns / 2);
    assert!((0..3).all(|n| !cluster.leads(n)), "nobody overtakes it");
    cluster.world.resume(to);
    cluster.until("it leads", |c| c.leads(to));
    assert_eq!(cluster.nodes[to].engine.term(), 2, "nobody else has stood");

    // One that dies is not waited for.
    let last = others(to)[0];
    cluster.until("it can succeed", |c| c.nodes[to].engine.hand_over(Some(id(last).node)).is_ok());
    cluster.until("it is told", |c| !c.leads(to));
    cluster.kill(last);
    cluster.until("another one leads", |c| (0..3).any(|n| n != last && c.leads(n)));
}

#[test]
fn dare_3_4_a_server_that_was_removed_and_does_not_know_gets_no_vote_and_raises_no_term() {
    let (mut cluster, leader, _) = alike(5);
    let gone = (leader + 1) % 5;
    let rest: Vec<usize> = (0..5).filter(|n| *n != leader && *n != gone).collect();
    tell_view(&mut cluster, 2, 0..5);
    cluster.write_through(leader);
    cluster.part(leader, gone);
    tell_view(&mut cluster, 3, (0..5).filter(|n| *n != gone));
    cluster.until("the others know", |c| {
        rest.iter().all(|n| c.nodes[*n].engine.log.committed_group().is_some_and(|(_, group)| group.has_removed(id(gone))))
    });
    assert!(!cluster.nodes[gone].engine.is_removed());
    cluster.kill(leader);
    // It stands for a term that no other server reaches soon, with a log as good as any.
    const TERM: u64 = 100;
    let last = cluster.nodes[rest[0]].engine.log.tail().index;
    rest.iter().for_each(|n| ask(&cluster, *n, gone, Request { term: TERM, last_term: 1, last, quorum: 3 }));
    let next = cluster.until_led();
    assert_ne!(next, gone);
    cluster.write_through(next);
    for n in rest {
        assert!(cluster.control(gone, n, control::VOTE) < vote_of(2), "it has voted for a server that was removed");
        assert!(cluster.nodes[n].engine.term() < TERM, "one that was removed raises no term");
    }
}
