//! Messages between applications, and what is told of monitors.

use martlet_warden::board::State;
use martlet_warden::client::{Failure, Handler, Warden};
use martlet_warden::{AppId, Resources};

use crate::child::Process;
use crate::world::{Diary, Told, World, app, state};

#[test]
fn messages_reach_every_monitor_in_order_and_before_the_failure() {
    let world = World::new();
    let mut sender = Process::start("joins 7", &world.socket);
    let mut wardens = [world.connect(), world.connect()];
    for warden in &mut wardens {
        warden.monitor(app(7), Resources { pbsize: 100, timeout_ns: 0 }).expect("granted");
    }
    for number in 1..=20 {
        sender.order(&format!("send message {number}"));
        sender.await_line("done");
    }
    sender.kill();
    for warden in &mut wardens {
        let mut diary = Diary::default();
        for number in 1..=20 {
            assert_eq!(diary.next(warden), Told::Message(app(7), number, format!("message {number}").into_bytes()));
        }
        assert!(matches!(diary.next(warden), Told::Failure(failed, _) if failed == app(7)));
    }
}

/// Of two messages, lets the sender send the second and die while the first is being told.
struct Hasty {
    sender: Option<Process>,
    other: Warden,
    told: Diary,
}

impl Handler for Hasty {
    fn on_failure(&mut self, app: AppId, failure: Failure) {
        self.told.on_failure(app, failure);
    }
    fn on_piggyback_rcv(&mut self, from: AppId, seq: u64, message: &[u8]) {
        self.told.on_piggyback_rcv(from, seq, message);
        if let Some(mut sender) = self.sender.take() {
            sender.order("send second");
            sender.await_line("done");
            sender.kill();
            while state(&mut self.other, from) != State::Failed {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_message_that_came_while_another_was_told_is_told_before_the_failure() {
    let world = World::new();
    let mut sender = Process::start("joins 7", &world.socket);
    let mut warden = world.connect();
    warden.monitor(app(7), Resources { pbsize: 100, timeout_ns: 0 }).expect("granted");
    sender.order("send first");
    sender.await_line("done");
    let mut hasty = Hasty { sender: Some(sender), other: world.connect(), told: Diary::default() };
    while !matches!(hasty.told.0.last(), Some(Told::Failure(..))) {
        warden.poll(Some(std::time::Duration::from_secs(1)), &mut hasty).expect("it waits");
    }
    let [first, second] = [(1, "first"), (2, "second")].map(|(seq, text)| Told::Message(app(7), seq, text.into()));
    assert_eq!(hasty.told.0[..2], [first, second]);
}

#[test]
fn an_application_learns_who_monitors_it_and_how_much_it_may_send() {
    let world = World::new();
    let (mut watched, mut diary) = (world.connect(), Diary::default());
    let mut early = world.connect();
    early.monitor(app(7), Resources { pbsize: 10, timeout_ns: 0 }).expect("awaited");
    watched.join(app(7)).expect("free");
    assert_eq!(diary.next(&mut watched), Told::MonitorReq(None, 10));
    assert_eq!(diary.next(&mut watched), Told::Pbsize(10));
    let mut other = world.connect();
    other.join(app(8)).expect("free");
    other.monitor(app(7), Resources { pbsize: 200, timeout_ns: 0 }).expect("granted");
    assert_eq!(diary.next(&mut watched), Told::MonitorReq(Some(app(8)), 200));
    assert_eq!(diary.next(&mut watched), Told::Pbsize(200));
    watched.piggyback(&[1; 200]).expect("allowed");
    other.unmonitor(app(7));
    assert_eq!(diary.next(&mut watched), Told::Pbsize(10));
    drop(early);
    assert_eq!(diary.next(&mut watched), Told::Pbsize(0));
}

#[test]
fn a_monitor_that_polls_memory_alone_is_told_as_well() {
    let world = World::new();
    let mut sender = Process::start("joins 7", &world.socket);
    let (mut warden, mut diary) = (world.connect(), Diary::default());
    warden.monitor(app(7), Resources { pbsize: 100, timeout_ns: 0 }).expect("granted");
    sender.order("send hello");
    sender.await_line("done");
    sender.kill();
    while diary.0.len() < 2 {
        warden.poll(Some(std::time::Duration::ZERO), &mut diary).expect("it does not wait");
    }
    assert!(matches!(&diary.0[..], [Told::Message(..), Told::Failure(..)]), "{:?}", diary.0);
}
