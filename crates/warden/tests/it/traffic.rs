//! Messages between applications, and what they are told of their monitors.

use martlet_warden::board::State;
use martlet_warden::client::{Failure, Handler, Warden};
use martlet_warden::{AppId, Resources};

use crate::child::Process;
use crate::world::{Diary, Told, World, app, is_readable, state};

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

/// When it is told the first of two messages, it lets the sender send the second and die.
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

/// While it is told a message, it lets an application join that it awaits, and another one quit.
struct Busy {
    joins: Warden,
    quits: Warden,
    other: Warden,
    told: Diary,
}

impl Handler for Busy {
    fn on_failure(&mut self, app: AppId, failure: Failure) {
        self.told.on_failure(app, failure);
    }
    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        self.told.on_timeout_changed(app, timeout_ns);
    }
    fn on_piggyback_rcv(&mut self, from: AppId, seq: u64, message: &[u8]) {
        self.told.on_piggyback_rcv(from, seq, message);
        self.joins.join(app(8)).expect("free");
        self.quits.quit().expect("it has joined");
        while state(&mut self.other, app(9)) != State::Left {
            std::thread::yield_now();
        }
    }
}

/// The word of an end arrives in front of the answer to a request that this program makes meanwhile, and is delivered with it.
#[test]
fn an_end_whose_word_is_taken_along_with_an_answer_is_told_or_wakes_the_program() {
    let world = World::new();
    let mut sender = Process::start("joins 7", &world.socket);
    let mut busy = Busy { joins: world.connect(), quits: world.connect(), other: world.connect(), told: Diary::default() };
    busy.quits.join(app(9)).expect("free");
    let mut warden = world.connect();
    for number in [7, 8, 9] {
        warden.monitor(app(number), Resources { pbsize: 100, timeout_ns: 0 }).expect("granted");
    }
    sender.order("send message");
    sender.await_line("done");
    while busy.told.0.is_empty() {
        warden.poll(Some(std::time::Duration::from_secs(1)), &mut busy).expect("it waits");
    }
    let message = Told::Message(app(7), 1, b"message".to_vec());
    assert!(busy.told.0 == [message, Told::Left(app(9))] || is_readable(&warden), "{:?}", busy.told.0);
}

/// A program that asked something and then waited for the descriptor used to sleep through it.
#[test]
fn the_descriptor_is_readable_for_what_came_along_with_an_answer() {
    let world = World::new();
    let mut process = Process::start("joins 7", &world.socket);
    let (mut warden, mut diary) = (world.connect(), Diary::default());
    warden.monitor(app(7), Resources::default()).expect("granted");
    process.order("quit");
    process.await_line("done");
    warden.status().expect("it answers");
    assert!(is_readable(&warden));
    assert_eq!(diary.next(&mut warden), Told::Left(app(7)));
    assert!(!is_readable(&warden), "all has been told");
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
