//! A program that has its turns on the replica's thread: alone in its cluster, and with other threads that make calls too.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::Duration;

use martlet::config::{Execution, Idle, ThreadsConfig};
use martlet::counters::Counter;
use martlet::{CallError, Direct, Ended, Here, MAX_COMMAND_BYTES, Replica, Role, SessionCommand, StopError, Turn};

use crate::cluster::{Text, Way, cluster_that, in_every_way, threads};

in_every_way!(
    a_program_proposes_reads_and_is_told_in_order,
    a_callback_is_never_called_within_a_call,
    other_threads_call_as_well_and_wake_the_program,
    what_is_asked_for_at_the_end_is_told_so_before_the_run_returns,
    a_program_that_panics_ends_its_replica,
    as_many_calls_wait_as_may_and_in_order,
    handing_over_to_nobody_is_refused,
    a_handover_under_load_fails_nothing_but_what_it_tells_to_go_elsewhere,
);

fn direct(name: &str, way: Way) -> Direct<Text> {
    Replica::builder().cluster(cluster_that(name, way, 1)).node(0).threads(threads()).direct(Text::default()).expect("it can be prepared")
}

/// Runs it: `step` has a turn whenever this replica leads, until it says that it is done.
fn run(direct: Direct<Text>, mut step: impl FnMut(&mut Here<'_, Text>) -> bool) -> Result<Ended, StopError> {
    let stop = direct.stop_handle();
    direct.run(|here| {
        if here.leads() && step(here) {
            stop.request_once();
        }
        Turn::Idle
    })
}

/// What callbacks have heard.
type Heard<T> = Rc<RefCell<Vec<T>>>;

fn a_program_proposes_reads_and_is_told_in_order(way: Way) {
    let heard: Heard<(&str, Result<Vec<u8>, CallError>)> = Rc::default();
    let note = |what| {
        let heard = Rc::clone(&heard);
        move |result| heard.borrow_mut().push((what, result))
    };
    let session = Rc::new(RefCell::new(None));
    let mut step = 0;
    let ended = run(direct("direct", way), |here| {
        step += 1;
        match step {
            1 => {
                assert_eq!((here.role().role, here.machine().0.len()), (Role::Leader, 0));
                assert!(here.has_room(1000));
                let opened = Rc::clone(&session);
                here.open_session_with(move |name| *opened.borrow_mut() = Some(name.expect("it leads")));
                here.propose_with(b"ab", note("proposed"));
                // The command has been executed and may yet be lost, or it is executed only once it cannot be lost.
                assert_eq!(here.machine().0, if way.execution == Execution::Committed { &b""[..] } else { b"ab" });
                here.read_with(|text| text.0.clone(), note("read"));
                here.read_by_quorum_with(|text| text.0.clone(), note("read by quorum"));
                here.propose_with(b"c", note("proposed"));
            }
            // A session's command that still waits is not executed once the program has ended.
            _ if heard.borrow().len() == 8 => return true,
            _ if heard.borrow().len() < 4 || session.borrow().is_none() => {}
            _ => {
                let name = session.take().expect("opened");
                let command = |seq, command| SessionCommand { session: name, seq, confirmed: 0, command };
                here.propose_once_with(command(1, b"d"), note("once"));
                here.propose_once_with(command(1, b"d"), note("again"));
                here.propose_once_with(command(3, b"e"), note("too early"));
                here.close_session_with(name, |closed| assert_eq!(closed, Ok(())));
                here.propose_once_with(command(2, b"e"), note("closed"));
                assert!(here.metrics().is_ok());
            }
        }
        false
    });
    assert!(ended.is_ok(), "{ended:?}");
    let heard = heard.take();
    let told: Vec<_> = heard.iter().map(|(what, result)| (*what, result.as_deref().ok())).collect();
    let reply = |reply: &'static [u8]| Some(reply);
    let expected = [
        ("proposed", reply(b"2")),
        ("read", reply(b"ab")),
        ("read by quorum", reply(b"ab")),
        ("proposed", reply(b"3")),
        ("once", reply(b"4")),
        ("again", reply(b"4")),
        ("too early", None),
        ("closed", None),
    ];
    assert_eq!(told, expected);
    assert!(matches!(heard[6].1, Err(CallError::OutOfTurn { seq: 3, next: 2, .. })), "{:?}", heard[6]);
    assert!(matches!(heard[7].1, Err(CallError::SessionUnknown { .. })), "{:?}", heard[7]);
}

fn a_callback_is_never_called_within_a_call(way: Way) {
    let heard: Heard<Result<Vec<u8>, CallError>> = Rc::default();
    let direct = direct("within", way);
    let stop = direct.stop_handle();
    let mut asked = [false; 2];
    direct
        .run(|here| {
            // The callback that answers needs what the program is borrowing here.
            let seen = heard.borrow();
            let answers = Rc::clone(&heard);
            let note = move |result| answers.borrow_mut().push(result);
            if !std::mem::replace(&mut asked[0], true) {
                assert!(!here.leads(), "not from the first turn on");
                here.propose_with(b"x", note);
            } else if here.leads() && !std::mem::replace(&mut asked[1], true) {
                here.propose_with(&vec![0; MAX_COMMAND_BYTES + 1], note);
            } else if seen.len() == 2 {
                stop.request_once();
            }
            Turn::Worked
        })
        .expect("it ends in order");
    let too_long = CallError::TooLong { bytes: MAX_COMMAND_BYTES + 1, limit: MAX_COMMAND_BYTES };
    assert_eq!(heard.take(), [Err(CallError::NotLeader { leader: None }), Err(too_long)]);
}

fn other_threads_call_as_well_and_wake_the_program(way: Way) {
    const CALLS: u64 = 200;
    let idle = ThreadsConfig { idle: Idle::Park, ..threads() };
    let builder = Replica::builder().cluster(cluster_that("both", way, 1)).node(0).threads(idle);
    let direct = builder.direct(Text::default()).expect("it can be prepared");
    let waker = direct.waker();
    let (send, receive) = channel();
    let (asked, questions) = channel::<u64>();
    let other = std::thread::spawn(move || {
        let replica: Replica<Text> = receive.recv().expect("sent in the first turn");
        let mut roles = replica.roles();
        assert!(roles.any(|change| change.role == Role::Leader), "who is alone leads");
        for call in 1..=CALLS {
            // The program adds one as well, and only the waker tells it to.
            asked.send(call).expect("it runs");
            waker.wake();
            replica.propose(b"b").expect("it leads");
            while replica.read(|text| text.0.len() as u64) != Ok(2 * call) {
                std::thread::yield_now();
            }
        }
        replica.request_stop();
        assert!(matches!(replica.join(), Err(StopError::Elsewhere)), "who lends the thread waits");
        assert!(roles.any(|change| change.role == Role::Stopped), "and it ends");
    });
    let mut refused = None;
    direct
        .run(|here| {
            let replica = here.replica();
            if refused.is_none() {
                refused = Some((replica.propose(b"x"), replica.stop().is_err()));
                send.send(replica).expect("it is awaited");
            }
            questions.try_iter().for_each(|_| here.propose_with(b"a", |reply| drop(reply.expect("it leads"))));
            Turn::Idle
        })
        .expect("it ends in order");
    other.join().expect("no panic");
    assert_eq!(refused, Some((Err(CallError::OnReplicaThread), true)), "it would wait for itself");
}

fn what_is_asked_for_at_the_end_is_told_so_before_the_run_returns(way: Way) {
    let heard: Heard<Result<Vec<u8>, CallError>> = Rc::default();
    let asked = RefCell::new(0);
    let direct = direct("end", way);
    let stop = direct.stop_handle();
    let mut had_room = Vec::new();
    direct
        .run(|here| {
            if !here.leads() && stop.requests() == 0 {
                return Turn::Idle;
            }
            // One in time, and then another in every turn.
            if stop.requests() > 0 {
                had_room.push(here.has_room(1));
            }
            let answers = Rc::clone(&heard);
            here.propose_with(b"a", move |result| answers.borrow_mut().push(result));
            *asked.borrow_mut() += 1;
            stop.request_once();
            Turn::IdleFor(Duration::ZERO)
        })
        .expect("it ends in order");
    let heard = heard.take();
    assert_eq!(heard.len(), asked.take(), "each is told, and once");
    assert_eq!(heard[0], Ok(b"1".to_vec()));
    assert!(heard.len() > 1 && heard[1..].iter().all(|result| *result == Err(CallError::ShuttingDown)), "{heard:?}");
    assert!(had_room.iter().all(|room| !room), "{had_room:?}");
}

fn a_program_that_panics_ends_its_replica(way: Way) {
    let heard: Heard<Result<Vec<u8>, CallError>> = Rc::default();
    let answers = Rc::clone(&heard);
    let mut note = Some(move |result| answers.borrow_mut().push(result));
    let ended = run(direct("direct-panic", way), |here| {
        here.propose_with(b"a", note.take().expect("the first turn is the last"));
        panic!("as it was told");
    });
    assert!(matches!(ended, Err(StopError::Panicked(text)) if text.contains("as it was told")));
    assert_eq!(heard.take(), [Err(CallError::OutcomeUnknown)], "it was executed");
}

fn as_many_calls_wait_as_may_and_in_order(way: Way) {
    let cluster = cluster_that("direct-wait", way, 1);
    let direct = Replica::builder().cluster(cluster).node(0).threads(threads()).max_waiting(2).direct(Text::default());
    let heard: Heard<Result<usize, CallError>> = Rc::default();
    let mut asked = false;
    run(direct.expect("it can be prepared"), |here| {
        if !std::mem::replace(&mut asked, true) {
            // Two wait for their tickets, two for a place there, and the fifth is one too many.
            for _ in 0..5 {
                let heard = Rc::clone(&heard);
                here.propose_with(b"a", move |reply| heard.borrow_mut().push(reply.map(|reply| usize::from(reply[0] - b'0'))));
            }
            assert_eq!(here.machine().0.len(), if way.execution == Execution::Committed { 0 } else { 2 });
        }
        heard.borrow().len() == 5
    })
    .expect("it ends in order");
    let heard = heard.take();
    assert_eq!(heard[0], Err(CallError::Busy { waiting: 2 }), "a refusal waits for nothing");
    assert_eq!(heard[1..], [Ok(1), Ok(2), Ok(3), Ok(4)]);
}

fn handing_over_to_nobody_is_refused(way: Way) {
    let heard: Heard<Result<(), CallError>> = Rc::default();
    let mut asked = false;
    run(direct("direct-alone", way), |here| {
        if !std::mem::replace(&mut asked, true) {
            let heard = Rc::clone(&heard);
            here.transfer_leadership_with(None, move |result| heard.borrow_mut().push(result));
        }
        !heard.borrow().is_empty()
    })
    .expect("it ends in order");
    assert_eq!(heard.take(), [Err(CallError::NoSuccessor)]);
}

fn a_handover_under_load_fails_nothing_but_what_it_tells_to_go_elsewhere(way: Way) {
    const UNDER_WAY: usize = 32;
    /// What the first leader's program keeps track of.
    #[derive(Default)]
    struct Load {
        under_way: usize,
        taken: u64,
        refused: u64,
        handed_over: Option<Result<(), CallError>>,
    }
    let cluster = cluster_that("direct-load", way, 3);
    // All replicas are in this process, and the first founds the cluster without the others.
    let builder = move |node| Replica::builder().cluster(cluster.clone()).node(node).threads(threads()).all_here();
    let others: Vec<_> = [1, 2].map(|node| builder(node).direct(Text::default()).expect("it can be prepared")).into();
    let stops: Vec<_> = others.iter().map(Direct::stop_handle).collect();
    let (found, founded) = channel();
    // The first replica to be there leads, and it has the lowest number.
    let first = std::thread::spawn(move || {
        let load: Rc<RefCell<Load>> = Rc::default();
        let (mut asked, mut whole) = (false, false);
        let direct = builder(0).direct(Text::default()).expect("it can be prepared");
        let stop = direct.stop_handle();
        direct
            .run(|here| {
                if here.leads() {
                    let _ = found.send(());
                }
                whole |= here.leads() && here.metrics().is_ok_and(|metrics| metrics.get(Counter::Replicas) == 3);
                if !whole {
                    return Turn::Idle;
                }
                let mut now = load.borrow_mut();
                if now.refused >= 100 && now.handed_over.is_some() {
                    // Enough. Calls that are under way are answered too before it ends.
                    if now.under_way == 0 {
                        stop.request_once();
                    }
                    return Turn::Idle;
                }
                if let Some(Err(CallError::NotHandedOver { .. })) = now.handed_over
                    && here.leads()
                {
                    // A successor that gets no processor time can be overtaken, even by the replica that hands over. The caller is told so, and asks again.
                    (asked, now.handed_over) = (false, None);
                }
                if now.taken >= 500 && !std::mem::replace(&mut asked, true) {
                    let told = Rc::clone(&load);
                    let to = way.engine.traits().hands_over_by_name.then_some(2);
                    here.transfer_leadership_with(to, move |result| told.borrow_mut().handed_over = Some(result));
                }
                while now.under_way < UNDER_WAY {
                    now.under_way += 1;
                    let told = Rc::clone(&load);
                    here.propose_with(b"x", move |reply| {
                        let mut now = told.borrow_mut();
                        now.under_way -= 1;
                        match reply {
                            Ok(_) => now.taken += 1,
                            Err(CallError::NotLeader { .. }) => now.refused += 1,
                            Err(other) => panic!("{other}"),
                        }
                    });
                }
                Turn::Worked
            })
            .expect("it ends in order");
        Rc::into_inner(load).expect("everybody has been told").into_inner()
    });
    founded.recv().expect("it leads before it ends");
    let read = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for direct in others {
            let (read, first) = (&read, &first);
            scope.spawn(move || {
                let seen = Rc::new(RefCell::new(None));
                let stop = direct.stop_handle();
                let mut asked = false;
                direct
                    .run(|here| {
                        // The new leader reads the state linearizably, and then both may end.
                        if first.is_finished() && here.leads() && !std::mem::replace(&mut asked, true) {
                            let seen = Rc::clone(&seen);
                            here.read_with(|text| text.0.len() as u64, move |length| *seen.borrow_mut() = Some(length));
                        }
                        match seen.take() {
                            Some(Ok(length)) => {
                                *read.lock().expect("no panic") = Some(length);
                                stop.request_once();
                            }
                            // The other replica has read meanwhile, or leads now.
                            Some(Err(CallError::ShuttingDown)) => {}
                            Some(Err(CallError::NotLeader { .. })) => asked = false,
                            Some(Err(other)) => panic!("{other}"),
                            None => {}
                        }
                        Turn::IdleFor(Duration::from_millis(1))
                    })
                    .expect("it ends in order");
            });
        }
        while read.lock().expect("no panic").is_none() {
            std::thread::yield_now();
        }
        for stop in &stops {
            stop.request_once();
        }
    });
    let load = first.join().expect("no panic");
    let went = matches!(load.handed_over, Some(Ok(()) | Err(CallError::NotHandedOver { .. } | CallError::NotLeader { .. })));
    assert!(went, "{:?} after {} were taken and {} refused", load.handed_over, load.taken, load.refused);
    assert_eq!(read.into_inner().expect("no panic"), Some(load.taken), "what was answered, and nothing else");
}
