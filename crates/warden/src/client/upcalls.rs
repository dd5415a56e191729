//! What a program is told, and how [`Warden::poll`] finds it out.

use martlet_protocol::detector::wardens::Secret;

use super::{Ended, Error, Monitored, Warden};
use crate::board::{Evidence, Seen, State};
use crate::process::has_ended;
use crate::wire::Answer;
use crate::{AppId, Resources};

/// How an application failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How that is known.
    pub evidence: Evidence,
    /// When the warden of this host learned of it, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Which of the application's lives it was; 0 if the warden had not said so yet.
    pub incarnation: u64,
    /// The secret that this life had left with its warden, if the warden has revealed it, which it does only after a certain failure. A process that knows the
    /// secret's digest need trust no other warden. It is missing if this program has seen the end itself: of the process, or in the death words, which a
    /// program that polls reads.
    pub secret: Option<Secret>,
}

/// What a program is told: the upcalls of Listing 1, and others for what the paper leaves out. All but one have defaults.
pub trait Handler {
    /// An application that this program monitored has failed. It is no longer monitored.
    fn on_failure(&mut self, app: AppId, failure: Failure);
    /// An application that this program monitors has sent a message. A gap in the numbers means that messages were lost.
    fn on_piggyback_rcv(&mut self, app: AppId, seq: u64, message: &[u8]) {
        let _ = (app, seq, message);
    }
    /// The timeout of an application that this program monitors has changed, in nanoseconds. 0: the application has quit, and is no longer monitored.
    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        let _ = (app, timeout_ns);
    }
    /// One more program monitors this application, and asks for messages of this size; `by` is `None` if that program is not an application.
    fn on_monitor_req(&mut self, by: Option<AppId>, pbsize: u32) {
        let _ = (by, pbsize);
    }
    /// The maximum size of this application's messages has changed.
    fn on_pbsize_changed(&mut self, pbsize: u32) {
        let _ = pbsize;
    }
    /// One of the two paths to that host is lost: another failure of the network would be taken for the host's death.
    fn on_redundancy_lost(&mut self, host: u16, path: u8) {
        let _ = (host, path);
    }
    /// The path is back.
    fn on_redundancy_recovered(&mut self, host: u16, path: u8) {
        let _ = (host, path);
    }
    /// The warden of this host is gone. Deaths of processes of this host are still reported, but later.
    fn on_warden_lost(&mut self) {}
    /// There is a warden again, and this program has registered with it. If it refuses some part of that, this is called once for each such part, with the
    /// reason.
    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        let _ = registered;
    }
}

impl Warden {
    /// Reports what there is to report now.
    pub(super) fn tell(&mut self, look_at_descriptors: bool, look_at_words: bool, handler: &mut dyn Handler) -> usize {
        let mut told = 0;
        let look_at_descriptors = self.was_stirred() || look_at_descriptors;
        if self.link.as_ref().is_some_and(|link| link.board.warden_died()) {
            self.unlink();
        }
        if self.link.is_none() {
            told += self.look_for_warden(handler);
        }
        // Ends are looked for before the messages are taken, and reported after them: what an application sent before its end is reported before the end.
        let changes = self.link.as_ref().map_or(0, |link| link.board.changes());
        let has_changed = self.link.as_mut().is_some_and(|link| std::mem::replace(&mut link.seen_changes, changes) != changes);
        let over = self.ends(look_at_descriptors, look_at_words, has_changed);
        let has_changed = has_changed || !over.is_empty();
        if let Some(link) = &mut self.link {
            let mail = link.board.mail(link.seat);
            if look_at_descriptors || mail != link.seen_mail {
                link.seen_mail = mail;
                self.take_mail();
            }
        }
        while let Some(answer) = self.untold.pop_front() {
            told += self.tell_answer(answer, handler);
        }
        if look_at_descriptors || has_changed {
            told += self.tell_ends(over, handler);
            self.fetch_pidfds();
        }
        told
    }

    fn tell_answer(&mut self, answer: Answer, handler: &mut dyn Handler) -> usize {
        match answer {
            Answer::Piggybacked { app, seq, bytes } if self.monitored.contains_key(&app) => handler.on_piggyback_rcv(app, seq, &bytes),
            Answer::TimeoutChanged { app, timeout_ns } => match self.monitored.get_mut(&app) {
                Some(monitored) => {
                    monitored.granted.timeout_ns = timeout_ns;
                    self.is_alive(app);
                    handler.on_timeout_changed(app, timeout_ns);
                }
                None => return 0,
            },
            Answer::MonitorRequested { by, pbsize } => handler.on_monitor_req(AppId::new(i64::from(by)).ok(), pbsize),
            Answer::PbsizeChanged { pbsize } => handler.on_pbsize_changed(pbsize),
            Answer::Redundancy { host, path, is_lost: true } => handler.on_redundancy_lost(host, path),
            Answer::Redundancy { host, path, is_lost: false } => handler.on_redundancy_recovered(host, path),
            _ => return 0,
        }
        1
    }

    /// Applications that have quit, or that have failed, and how.
    fn ends(&mut self, look_at_descriptors: bool, look_at_words: bool, has_changed: bool) -> Vec<(AppId, Option<Failure>)> {
        let mut over = Vec::new();
        for (app, monitored) in &mut self.monitored {
            // The words before the board: if the program has quit, the board says so before its threads end.
            let witness = monitored.witness.as_mut().filter(|_| look_at_words);
            let has_died = witness.is_some_and(|witness| witness.has_seen_the_end(look_at_descriptors));
            if !(look_at_descriptors || has_changed || has_died) {
                continue;
            }
            // The process before the board: what it told the warden before its end is on the board by then.
            let has_ended = look_at_descriptors && monitored.pidfd.as_ref().is_some_and(has_ended);
            let seen = self.link.as_ref().and_then(|link| link.board.look(monitored.slot));
            if let Some(Seen { incarnation, .. }) = seen.filter(|seen| seen.incarnation != 0) {
                monitored.incarnation = incarnation;
            }
            let incarnation = monitored.incarnation;
            match seen {
                Some(Seen { state: State::Failed, evidence: Some(evidence), at_ns, secret, .. }) => {
                    // The time is stored right after the state, and then the bell rings.
                    if at_ns == 0 && !has_ended {
                        continue;
                    }
                    let at_ns = if at_ns == 0 { crate::now_ns() } else { at_ns };
                    over.push((*app, Some(Failure { evidence, at_ns, incarnation, secret })));
                }
                Some(Seen { state: State::Left, .. }) => over.push((*app, None)),
                // If its end has been reported, the warden is about to see it too.
                Some(Seen { state: State::Alive, .. })
                    if has_died && self.ended.get(app).is_none_or(|ended| ended.incarnation != incarnation) =>
                {
                    over.push((*app, Some(Failure { evidence: Evidence::Words, at_ns: crate::now_ns(), incarnation, secret: None })));
                }
                _ if has_ended => {
                    over.push((*app, Some(Failure { evidence: Evidence::Process, at_ns: crate::now_ns(), incarnation, secret: None })));
                }
                _ => {}
            }
        }
        over
    }

    /// Reports the applications that have failed or quit.
    fn tell_ends(&mut self, over: Vec<(AppId, Option<Failure>)>, handler: &mut dyn Handler) -> usize {
        let mut told = 0;
        for (app, failure) in over {
            let monitored = self.monitored.remove(&app).expect("just seen");
            let known = self.ended.get(&app).map_or(0, |ended| ended.incarnation);
            if monitored.incarnation != 0 && monitored.incarnation == known {
                // This has been reported before: a restarted warden has heard of it again from another host, or this program had seen it before its warden.
                self.forget(&monitored);
                let next = Monitored { incarnation: 0, pidfd: None, witness: None, ..monitored };
                if let Err(Error::Refused(why)) = self.monitor_as_before(app, next) {
                    handler.on_warden_back(Err(&Error::Refused(why)));
                    told += 1;
                }
                continue;
            }
            // A presumption may be withdrawn; then the same life is monitored again.
            match failure {
                Some(Failure { evidence, .. }) if !evidence.is_certain() => _ = self.presumed.insert(app, monitored.incarnation),
                _ => _ = self.ended.insert(app, Ended { incarnation: monitored.incarnation, has_failed: failure.is_some() }),
            }
            match failure {
                Some(failure) => handler.on_failure(app, failure),
                None => handler.on_timeout_changed(app, 0),
            }
            // Only afterwards, since it wakes the warden.
            self.forget(&monitored);
            told += 1;
        }
        told
    }

    /// Asks again about monitored applications whose descriptor it lacks, because they have joined only since.
    fn fetch_pidfds(&mut self) {
        let Some(link) = self.link.as_ref().filter(|_| !self.needs_secrets) else { return };
        let is_new = |monitored: &Monitored| {
            let seen = link.board.look(monitored.slot);
            monitored.pidfd.is_none() && seen.is_some_and(|seen| seen.state == State::Alive) && link.board.is_of_this_host(monitored.slot)
        };
        let new: Vec<_> = self.monitored.iter().filter(|(_, one)| is_new(one)).map(|(app, one)| (*app, one.want)).collect();
        for (app, want) in new {
            self.fetch_pidfd(app, want);
        }
    }

    fn fetch_pidfd(&mut self, app: AppId, want: Resources) {
        if let Ok((answer, fds)) = self.ask(&self.monitor_request(app, want, 0), &[]) {
            let _ = self.watching(app, want, answer, fds, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::daemon;
    use crate::words::death_word;

    #[derive(Default)]
    struct Ends(Vec<(AppId, bool)>);

    impl Handler for Ends {
        fn on_failure(&mut self, app: AppId, _: Failure) {
            self.0.push((app, true));
        }
        fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
            assert_eq!(timeout_ns, 0);
            self.0.push((app, false));
        }
    }

    /// Runs a test with a warden beside it.
    fn beside_a_warden(name: &str, test: impl FnOnce(&Path)) {
        let dir = std::env::temp_dir().join(format!("martlet-warden-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("our own directory");
        let socket = dir.join("warden.sock");
        let daemon = daemon::Warden::new(&daemon::Options { socket: socket.clone(), mode: 0o600, party: None, marks: false })
            .expect("the place is free");
        let (stop, stopped) = UnixStream::pair().expect("sockets");
        std::thread::scope(|scope| {
            scope.spawn(|| daemon.run(stopped.as_fd(), |_| ()).expect("it serves"));
            test(&socket);
            drop(stop);
        });
        std::fs::remove_dir_all(dir).expect("our own directory");
    }

    fn app() -> AppId {
        AppId::new(7).expect("in range")
    }

    fn connect(socket: &Path) -> Warden {
        Warden::connect(socket, "test").expect("a warden")
    }

    /// A program that monitors an application, and the application.
    fn monitored(socket: &Path) -> (Warden, Warden) {
        let (mut monitor, mut application) = (connect(socket), connect(socket));
        application.join(app()).expect("free");
        monitor.monitor(app(), Resources::default()).expect("granted");
        (monitor, application)
    }

    /// Lets a thread die whose death word the warden has not been told of yet.
    fn lose_a_thread(application: &Warden) {
        let page = application.words.page.clone();
        let dies = std::thread::spawn(move || std::mem::forget(page.register_death_words(&[death_word(3)]).expect("registered")));
        dies.join().expect("it ends well");
    }

    /// The warden once took the request for one about the next life, and the end of the one that had quit was never reported.
    #[test]
    fn an_application_that_quits_just_before_its_process_is_asked_for_is_told_of() {
        beside_a_warden("asked", |socket| {
            let (app, mut monitor, mut application, mut ends) = (app(), connect(socket), connect(socket), Ends::default());
            for life in 1..=2 {
                monitor.monitor(app, Resources::default()).expect("granted");
                application.join(app).expect("free");
                application.quit().expect("it has joined");
                // As it does if it still saw the application alive.
                monitor.fetch_pidfd(app, Resources::default());
                // A single look finds what is on the board.
                monitor.poll(Some(Duration::ZERO), &mut ends).expect("it looks");
                assert_eq!(ends.0, vec![(app, false); life]);
            }
        });
    }

    /// During each upcall, looks how many programs monitor the application that the upcall is about.
    struct Asks(Warden, Vec<u16>);

    impl Handler for Asks {
        fn on_failure(&mut self, app: AppId, _: Failure) {
            let (apps, _) = self.0.status().expect("it answers");
            self.1.extend(apps.iter().filter(|one| one.app == app).map(|one| one.monitors));
        }
    }

    /// Otherwise the warden would wake for it, and take a core while the program reacts to the failure.
    #[test]
    fn a_failure_is_told_of_before_the_warden_hears_that_it_is_monitored_no_longer() {
        beside_a_warden("told", |socket| {
            let (mut monitor, application) = monitored(socket);
            let mut asks = Asks(connect(socket), Vec::new());
            lose_a_thread(&application);
            while asks.1.is_empty() {
                monitor.poll(Some(Duration::ZERO), &mut asks).expect("it looks");
            }
            assert_eq!(asks.1, [1]);
        });
    }

    #[test]
    fn a_failure_that_a_program_sees_before_its_warden_is_told_of_once() {
        beside_a_warden("before", |socket| {
            let (mut monitor, mut application) = monitored(socket);
            let (app, mut ends) = (app(), Ends::default());
            lose_a_thread(&application);
            while ends.0.is_empty() {
                monitor.poll(Some(Duration::ZERO), &mut ends).expect("it looks");
            }
            assert_eq!(ends.0, [(app, true)]);
            // To the warden it is alive, and only later over.
            monitor.monitor(app, Resources::default()).expect("granted");
            for _ in 0..2 * super::super::DESCRIPTORS_EVERY {
                monitor.poll(Some(Duration::ZERO), &mut ends).expect("it looks");
            }
            application.quit().expect("for the warden it lives");
            monitor.poll(Some(Duration::ZERO), &mut ends).expect("it looks");
            assert_eq!(ends.0, [(app, true)]);
            // The next life can be monitored nevertheless.
            let mut next = connect(socket);
            next.join(app).expect("free");
            next.quit().expect("it has joined");
            monitor.poll(Some(Duration::ZERO), &mut ends).expect("it looks");
            assert_eq!(ends.0, [(app, true), (app, false)]);
        });
    }

    /// The state, according to the warden, of an application that this program asks for. The warden itself is asked because a client hides what it has already
    /// reported.
    fn state_of_what_is_granted(monitor: &mut Warden) -> Option<State> {
        let request = monitor.monitor_request(app(), Resources::default(), 0);
        let (Answer::Watching { slot, .. }, _) = monitor.ask(&request, &[]).expect("granted") else { panic!("it answers something else") };
        monitor.board().expect("a warden").look(slot).map(|seen| seen.state)
    }

    #[test]
    fn the_warden_shows_nobody_a_failure_of_which_they_say_that_they_were_told() {
        beside_a_warden("heard", |socket| {
            let (mut monitor, application) = monitored(socket);
            let (threads, mut ends) = (application.threads(), Ends::default());
            let dies = std::thread::spawn(move || std::mem::forget(threads.act().expect("there is room")));
            dies.join().expect("it ends well");
            while ends.0.is_empty() {
                monitor.poll(Some(Duration::from_secs(1)), &mut ends).expect("it waits");
            }
            assert_eq!(ends.0, [(app(), true)]);
            assert_eq!(state_of_what_is_granted(&mut connect(socket)), Some(State::Failed), "it has been told of nothing");
            assert_eq!(state_of_what_is_granted(&mut monitor), Some(State::Awaited), "the next life is waited for");
        });
    }
}
