//! Wardens in a simulated network that loses, delays, duplicates and keeps back packets, with hosts that die, wardens that stall or are restarted,
//! and forgers.

use std::collections::BTreeSet;

use super::*;

const HB: u64 = 1_000_000;
const LATENCY: u64 = 50_000;
const JITTER: u64 = 200_000;
const TIMEOUT: u64 = HB + LATENCY + 2 * JITTER;

/// Not a cryptographic hash, but not inverted by accident either.
fn digest(secret: &Secret) -> Digest {
    let mut digest = [0; 32];
    for (at, byte) in secret.iter().enumerate() {
        digest[at] = byte.wrapping_mul(167).wrapping_add(at as u8 ^ 0x5a);
        digest[at + 16] = byte.rotate_left(3) ^ 0xc3;
    }
    digest
}

fn config(life: u64) -> Config {
    Config { life, interval_ns: HB, paths: 2, digest }
}

const fn app(app: u32, incarnation: u64) -> AppLife {
    AppLife { app, incarnation }
}

fn secret(incarnation: u64) -> Secret {
    u128::from(incarnation).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes()
}

/// A packet in flight.
struct UnderWay {
    arrives: u64,
    from: u16,
    to: u16,
    path: u8,
    packet: Packet,
}

/// Two hosts, each with a warden, and a network between them.
struct World {
    now: u64,
    rng: fastrand::Rng,
    wardens: [Option<Wardens>; 2],
    /// The time until which a warden is stalled.
    asleep: [u64; 2],
    /// When each warden last did anything.
    turned: [u64; 2],
    /// What waits in the sockets of a stalled warden.
    queued: [Vec<UnderWay>; 2],
    under_way: Vec<UnderWay>,
    kept: Vec<UnderWay>,
    is_cut: [bool; 2],
    lossy: u8,
    /// What each warden has reported.
    told: [Vec<(u64, Event)>; 2],
    /// For each life of an application: when it ended, if it has, and whether it quit.
    lives: BTreeMap<(u16, AppLife), (Option<u64>, bool)>,
    next_life: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let wardens = [0, 1].map(|host: u16| Some(Wardens::new(Time(0), config(100 + u64::from(host)), &[(HostId(1 - host), TIMEOUT)])));
        let mut world = World {
            now: 0,
            rng: fastrand::Rng::with_seed(seed),
            wardens,
            asleep: [0; 2],
            turned: [0; 2],
            queued: [vec![], vec![]],
            under_way: vec![],
            kept: vec![],
            is_cut: [false; 2],
            lossy: 0,
            told: [vec![], vec![]],
            lives: BTreeMap::new(),
            next_life: 1_000,
        };
        world.run(3 * HB);
        assert_eq!([world.events(0), world.events(1)], [[Event::Heard(HostId(1))], [Event::Heard(HostId(0))]]);
        world.told = [vec![], vec![]];
        world
    }

    fn begin(&mut self, host: u16, life: AppLife) {
        self.lives.insert((host, life), (None, false));
        if let Some(warden) = &mut self.wardens[usize::from(host)] {
            warden.begin(Time(self.now), life, secret(life.incarnation));
        }
    }

    fn end(&mut self, host: u16, life: AppLife, failed: bool) {
        self.lives.insert((host, life), (Some(self.now), !failed));
        if let Some(warden) = &mut self.wardens[usize::from(host)] {
            warden.end(Time(self.now), life, failed);
        }
    }

    /// The warden dies and another one begins, with which the living applications register again.
    fn restart(&mut self, host: u16) {
        self.next_life += 1_000;
        let mut warden = Wardens::new(Time(self.now), config(self.next_life), &[(HostId(1 - host), TIMEOUT)]);
        for ((_, life), _) in self.lives.iter().filter(|((at, _), (ended, _))| *at == host && ended.is_none()) {
            warden.begin(Time(self.now), *life, secret(life.incarnation));
        }
        self.wardens[usize::from(host)] = Some(warden);
        self.queued[usize::from(host)].clear();
    }

    fn deliver(&mut self, under_way: UnderWay) {
        let to = usize::from(under_way.to);
        let Some(warden) = &mut self.wardens[to] else { return };
        if self.asleep[to] > self.now {
            self.queued[to].push(under_way);
            return;
        }
        let _ = warden.handle(Time(self.now), HostId(under_way.from), under_way.path, &under_way.packet);
    }

    /// Lets this much time pass.
    fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.now < until {
            self.now += 10_000;
            for host in 0..2usize {
                if self.asleep[host] != 0 && self.asleep[host] <= self.now {
                    self.asleep[host] = 0;
                    // Its sockets are drained before it judges silence, and its own stall is forgiven.
                    for packet in std::mem::take(&mut self.queued[host]) {
                        self.deliver(packet);
                    }
                    if let Some(warden) = &mut self.wardens[host] {
                        warden.forgive(Time(self.now), self.now - self.turned[host]);
                    }
                }
            }
            let (now, all) = (self.now, std::mem::take(&mut self.under_way));
            let (due, rest) = all.into_iter().partition(|packet| packet.arrives <= now);
            self.under_way = rest;
            let due: Vec<UnderWay> = due;
            due.into_iter().for_each(|packet| self.deliver(packet));
            for host in 0..2u16 {
                self.turn(host);
            }
            self.check();
        }
    }

    fn turn(&mut self, host: u16) {
        let at = usize::from(host);
        if self.asleep[at] > self.now {
            return;
        }
        self.turned[at] = self.now;
        let Some(warden) = &mut self.wardens[at] else { return };
        warden.poll(Time(self.now));
        while let Some(output) = warden.take_output() {
            match output {
                Output::Told(event) => self.told[at].push((self.now, event)),
                Output::Send(to, packet) => {
                    for path in 0..2u8 {
                        if self.is_cut[usize::from(path)] || self.rng.u8(..100) < self.lossy {
                            continue;
                        }
                        let arrives = self.now + LATENCY + self.rng.u64(..=JITTER);
                        let send = || UnderWay { arrives, from: host, to: to.0, path, packet: packet.clone() };
                        self.under_way.push(send());
                        if self.rng.u8(..20) == 0 {
                            self.under_way.push(UnderWay { arrives: arrives + self.rng.u64(..5_000_000), ..send() });
                        }
                        if self.rng.u8(..50) == 0 {
                            self.kept.push(send());
                        }
                    }
                }
            }
        }
    }

    /// Nothing certain is reported of a life that is still alive, of one that quit, or before the failure happened.
    fn check(&mut self) {
        for (host, told) in self.told.iter().enumerate() {
            for (at, event) in told {
                if let Event::Failed(of, life, Certainty::Certified(proof)) = event {
                    let (ended, quit) = self.lives[&(of.0, *life)];
                    assert!(
                        ended.is_some_and(|ended| ended <= *at) && !quit,
                        "host {host} was told of {life:?}, which is {ended:?} {quit}"
                    );
                    assert_eq!(*proof, secret(life.incarnation));
                }
            }
        }
    }

    fn events(&self, host: usize) -> Vec<Event> {
        self.told[host].iter().map(|(_, event)| *event).collect()
    }
}

#[test]
fn a_death_is_told_once_within_one_latency_and_certified() {
    let mut world = World::new(1);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    assert_eq!(world.events(1), [Event::Alive(HostId(0), app(7, 1))]);
    let died = world.now;
    world.end(0, app(7, 1), true);
    world.run(5 * HB);
    let [_, (at, event)] = world.told[1][..] else { panic!("{:?}", world.told[1]) };
    assert_eq!(event, Event::Failed(HostId(0), app(7, 1), Certainty::Certified(secret(1))));
    assert!(at - died <= 10_000 + LATENCY + JITTER + 10_000, "{} ns", at - died);
    let warden = world.wardens[0].as_ref().expect("it lives");
    assert_eq!((warden.peers[&HostId(1)].heard, warden.change), (2, 2), "and it knows that it was heard");
    assert!(warden.wake_at() >= Time(world.now), "so it repeats nothing");
}

#[test]
fn a_life_that_is_over_before_it_is_heard_of_is_told_of_once_with_its_proof() {
    let mut world = World::new(12);
    world.begin(0, app(7, 1));
    world.end(0, app(7, 1), true);
    world.begin(0, app(8, 2));
    world.end(0, app(8, 2), false);
    world.run(5 * HB);
    let told = [Event::Failed(HostId(0), app(7, 1), Certainty::Certified(secret(1))), Event::Left(HostId(0), app(8, 2))];
    assert_eq!(world.events(1), told);
    // Another warden takes over on the receiving host, and is told of the applications that are over as well.
    world.told[1].clear();
    world.restart(1);
    world.run(5 * HB);
    assert_eq!(world.events(1), [&[Event::Heard(HostId(0))], &told[..]].concat());
}

/// Such a warden used to forgive all silence each time, so it never presumed such a host dead.
#[test]
fn a_warden_that_is_late_again_and_again_finds_a_silent_host_all_the_same() {
    let mut world = World::new(14);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    world.wardens[0] = None;
    world.wardens[1].as_mut().expect("it lives").peers.get_mut(&HostId(0)).expect("known").timeout_ns = 10 * HB;
    for _ in 0..20 {
        world.asleep[1] = world.now + HB * 11 / 10;
        world.run(5 * HB);
    }
    let silent = [Event::Silent(HostId(0)), Event::Failed(HostId(0), app(7, 1), Certainty::Presumed)];
    assert_eq!(world.events(1)[1..], silent);
}

#[test]
fn what_a_packet_repeats_of_another_one_is_not_told_again() {
    let mut world = World::new(13);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    // The other warden cannot say what it hears: packets go only one way for a moment.
    let (mut sent, mut told) = (0, vec![]);
    for number in 8..12 {
        world.end(0, app(number - 1, u64::from(number) - 7), true);
        world.begin(0, app(number, u64::from(number) - 6));
        let (now, [Some(from), Some(to)]) = (Time(world.now), &mut world.wardens) else { panic!("both live") };
        from.poll(now);
        while let Some(output) = from.take_output() {
            if let Output::Send(_, packet) = output {
                sent += packet.entries.len();
                to.handle(now, HostId(0), 0, &packet).expect("fresh");
            }
        }
        while let Some(output) = to.take_output() {
            told.extend(if let Output::Told(event) = output { Some(event) } else { None });
        }
    }
    assert!(sent > 8, "{sent} entries: none was repeated");
    assert_eq!(told.iter().filter(|event| matches!(event, Event::Failed(..))).count(), 4, "{told:?}");
    assert_eq!(told.len(), 8, "{told:?}");
}

#[test]
fn a_death_is_repeated_until_it_is_heard() {
    let mut world = World::new(2);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    world.lossy = 95;
    world.end(0, app(7, 1), true);
    world.run(400 * HB);
    assert!(world.events(1).iter().any(|event| matches!(event, Event::Failed(_, life, Certainty::Certified(_)) if *life == app(7, 1))));
}

#[test]
fn one_path_that_is_cut_costs_no_heartbeat_and_is_told_of() {
    let mut world = World::new(3);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    world.is_cut[1] = true;
    world.run(50 * HB);
    world.is_cut[1] = false;
    world.run(5 * HB);
    assert_eq!(world.events(1), [Event::Alive(HostId(0), app(7, 1)), Event::PathLost(HostId(0), 1), Event::PathBack(HostId(0), 1)]);
}

#[test]
fn a_silent_host_is_presumed_dead_by_its_planned_timeout_and_withdrawn_when_it_is_heard() {
    let mut world = World::new(4);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    world.told[1].clear();
    let cut = world.now;
    world.is_cut = [true; 2];
    world.run(3 * HB);
    let silent: Vec<u64> = world.told[1].iter().map(|(at, _)| *at - cut).collect();
    assert_eq!(world.events(1), [Event::Silent(HostId(0)), Event::Failed(HostId(0), app(7, 1), Certainty::Presumed)]);
    assert!(silent.iter().all(|after| *after <= TIMEOUT + LATENCY + JITTER + 20_000), "{silent:?}");
    world.told[1].clear();
    world.is_cut = [false; 2];
    world.run(2 * HB);
    assert_eq!(world.events(1), [Event::Heard(HostId(0)), Event::Alive(HostId(0), app(7, 1))]);
}

#[test]
fn no_heartbeat_misses_the_planned_timeout_while_the_bounds_hold() {
    let mut world = World::new(5);
    world.begin(0, app(7, 1));
    world.run(2_000 * HB);
    assert_eq!(world.events(1), [Event::Alive(HostId(0), app(7, 1))]);
}

#[test]
fn a_warden_that_stood_still_presumes_nobody_dead_for_it() {
    let mut world = World::new(6);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    world.asleep[1] = world.now + 20 * HB;
    world.run(40 * HB);
    assert_eq!(world.events(1), [Event::Alive(HostId(0), app(7, 1))]);
    // The other warden has presumed it dead, and withdrawn that.
    assert_eq!(world.events(0), [Event::Silent(HostId(1)), Event::Heard(HostId(1))]);
}

#[test]
fn a_warden_that_ends_in_order_is_missed_by_nobody() {
    let mut world = World::new(7);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    world.wardens[0].as_mut().expect("it lives").leave(Time(world.now));
    world.run(HB / 2);
    world.wardens[0] = None;
    world.run(50 * HB);
    let ended = [Event::Alive(HostId(0), app(7, 1)), Event::Left(HostId(0), app(7, 1)), Event::WardenLeft(HostId(0))];
    assert_eq!(world.events(1), ended);
    world.restart(0);
    world.run(50 * HB);
    assert_eq!(world.events(1), [&ended[..], &[Event::Heard(HostId(0)), Event::Alive(HostId(0), app(7, 1))]].concat(), "it is back");
    world.is_cut = [true; 2];
    world.run(50 * HB);
    assert!(world.events(1).contains(&Event::Silent(HostId(0))), "and is judged again");
}

#[test]
fn of_a_restarted_warden_those_who_register_again_live_on_and_the_others_are_presumed_dead() {
    let mut world = World::new(8);
    world.begin(0, app(7, 1));
    world.begin(0, app(8, 2));
    world.run(5 * HB);
    world.told[1].clear();
    // It dies together with the warden: no warden can certify it.
    world.lives.insert((0, app(8, 2)), (Some(world.now), false));
    world.restart(0);
    world.run(200 * HB);
    assert_eq!(world.events(1), [Event::Failed(HostId(0), app(8, 2), Certainty::Presumed)]);
    world.end(0, app(7, 1), true);
    world.run(5 * HB);
    assert!(matches!(world.events(1)[..], [_, Event::Failed(_, _, Certainty::Certified(_))]));
}

#[test]
fn a_failure_without_its_secret_is_none() {
    let mut world = World::new(9);
    world.begin(0, app(7, 1));
    world.run(5 * HB);
    let entry = Entry { life: app(7, 1), digest: digest(&[9; 16]), standing: Standing::Failed([9; 16]) };
    let repeats = world.wardens[1].as_ref().expect("it lives").peers[&HostId(0)].meetings + 101;
    let (challenge, seq) = (100, 1 << 40);
    let packet = Packet { from_life: 100, challenge, repeats, seq, bye: false, heard: 0, after: 1, upto: 2, entries: vec![entry] };
    let warden = world.wardens[1].as_mut().expect("it lives");
    assert_eq!(warden.handle(Time(world.now), HostId(0), 0, &packet), Err(Disbelief::NoProof));
    assert!(warden.knows(HostId(0), app(7, 1)));
    assert_eq!(warden.handle(Time(world.now), HostId(9), 0, &packet), Err(Disbelief::Stranger));
}

#[test]
fn packets_that_were_kept_do_nothing_to_a_later_life() {
    let mut world = World::new(10);
    for incarnation in 1..200 {
        world.begin(0, app(7, incarnation));
        world.run(3 * HB);
        world.end(0, app(7, incarnation), incarnation % 2 == 0);
        world.run(2 * HB);
    }
    world.restart(1);
    world.begin(0, app(7, 200));
    world.run(5 * HB);
    world.told[1].clear();
    let kept: Vec<UnderWay> =
        std::mem::take(&mut world.kept).into_iter().filter(|packet| packet.to == 1 && packet.packet.repeats < 200).collect();
    assert!(kept.len() > 20);
    for old in kept {
        let warden = world.wardens[1].as_mut().expect("it lives");
        assert_eq!(warden.handle(Time(world.now), HostId(0), old.path, &old.packet), Err(Disbelief::NotFresh));
    }
    world.run(5 * HB);
    assert_eq!(world.events(1), []);
}

#[test]
fn many_changes_at_once_come_in_parts_and_none_is_left_out() {
    let mut world = World::new(11);
    world.lossy = 30;
    for number in 1..=100 {
        world.begin(0, app(number, u64::from(number)));
    }
    world.run(60 * HB);
    // If both copies of a heartbeat are lost, all are presumed dead, and then alive again.
    let alive: BTreeSet<AppLife> =
        world.events(1).iter().filter_map(|event| if let Event::Alive(_, life) = event { Some(*life) } else { None }).collect();
    assert_eq!(alive.len(), 100);
    for number in 1..=100 {
        world.end(0, app(number, u64::from(number)), true);
    }
    world.run(100 * HB);
    assert_eq!(world.events(1).iter().filter(|event| matches!(event, Event::Failed(_, _, Certainty::Certified(_)))).count(), 100);
}

#[test]
fn no_end_is_dropped_from_the_roll_before_it_is_heard() {
    let mut world = World::new(14);
    let lives: Vec<AppLife> = (1..=MAX_ROLL as u32 + 100).map(|number| app(number, u64::from(number))).collect();
    lives.iter().for_each(|life| world.begin(0, *life));
    world.run(100 * HB);
    world.is_cut = [true; 2];
    world.run(10 * HB);
    lives.iter().for_each(|life| world.end(0, *life, true));
    world.run(10 * HB);
    (world.is_cut, world.told[1]) = ([false; 2], vec![]);
    world.run(100 * HB);
    let certain = world.events(1).iter().filter(|event| matches!(event, Event::Failed(_, _, Certainty::Certified(_)))).count();
    assert_eq!(certain, lives.len());
    // And entries that have been heard make room.
    (5_000..5_200).for_each(|number| world.begin(0, app(number, number.into())));
    assert_eq!(world.wardens[0].as_ref().expect("it lives").roll.len(), lives.len());
}

/// Two hosts with everything that may go wrong, from one seed each: nothing certain is reported that is not so, and once the network works again,
/// nothing stays unreported.
#[test]
fn lives_with_everything_that_goes_wrong() {
    for seed in 0..300 {
        let mut world = World::new(1_000 + seed);
        let mut incarnation = 1;
        let mut living: [Vec<AppLife>; 2] = [vec![], vec![]];
        for _ in 0..40 {
            let host = world.rng.u16(..2);
            let own = &mut living[usize::from(host)];
            match world.rng.u8(..12) {
                0..=2 => {
                    incarnation += 1;
                    let life = app(u32::from(world.rng.u8(1..6)), incarnation);
                    if !own.iter().any(|other| other.app == life.app) {
                        own.push(life);
                        world.begin(host, life);
                    }
                }
                3 | 4 if !own.is_empty() => {
                    let life = own.swap_remove(world.rng.usize(..own.len()));
                    let failed = world.rng.bool();
                    world.end(host, life, failed);
                }
                5 => world.lossy = world.rng.u8(..90),
                6 => world.lossy = 0,
                7 => {
                    let path = world.rng.usize(..2);
                    world.is_cut[path] = !world.is_cut[path];
                }
                8 => world.restart(host),
                9 => world.asleep[usize::from(host)] = world.now + world.rng.u64(..8 * HB),
                // A packet that was kept back is replayed.
                10 if !world.kept.is_empty() => {
                    let at = world.rng.usize(..world.kept.len());
                    let UnderWay { from, to, path, packet, .. } = world.kept.swap_remove(at);
                    let arrives = world.now;
                    world.under_way.push(UnderWay { arrives, from, to, path, packet });
                }
                _ => {}
            }
            let time = world.rng.u64(..3 * HB);
            world.run(time);
        }
        (world.lossy, world.is_cut) = (0, [false; 2]);
        world.run(400 * HB);
        for host in 0..2u16 {
            let other = world.wardens[usize::from(1 - host)].as_ref().expect("it lives");
            for ((at, life), (ended, _)) in world.lives.iter().filter(|((at, _), _)| *at == host) {
                let known = other.peers[&HostId(*at)].apps.get(life).filter(|app| !app.is_presumed);
                assert_eq!(known.is_some(), ended.is_none(), "seed {seed}: {life:?} of host {at}");
            }
        }
    }
}
