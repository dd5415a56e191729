//! The replicas of a server, as the process that started it knows them: what they say, that they die, and what is to be done about it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use martlet_fabric::Peer;

/// Replicas that a server has.
pub const WANTED: usize = 3;
/// Numbers that replicas may have.
const NUMBERS: u16 = 16;
/// For how long a fork is waited for that has been asked for.
const FORK_PATIENCE: Duration = Duration::from_secs(10);

/// What a replica says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is there: its number and its process.
    Hello { number: u16, pid: i32 },
    /// It is the next leader, by the word of all that have to agree, and executes what may be left to execute before it leads.
    Succeeds { number: u16 },
    /// It leads, with so many connections.
    Leads { number: u16, connections: u64 },
    /// Its keeper has died, and been replaced or not.
    Keeper { number: u16, replaced: bool },
    /// These count for commits, and of them these have not been told all so far: a bit for each number.
    Group { group: u64, lacking: u64 },
}

impl Said {
    /// Reads a message.
    pub fn parse(text: &str) -> Option<Said> {
        let mut words = text.split(' ');
        let verb = words.next()?;
        if verb == "keeper" {
            let number = words.next()?.parse().ok()?;
            return match words.next()? {
                "replaced" => Some(Said::Keeper { number, replaced: true }),
                "lost" => Some(Said::Keeper { number, replaced: false }),
                _ => None,
            };
        }
        let mut number = || words.next()?.parse::<u64>().ok();
        match verb {
            "hello" => Some(Said::Hello { number: u16::try_from(number()?).ok()?, pid: i32::try_from(number()?).ok()? }),
            "succeeds" => Some(Said::Succeeds { number: u16::try_from(number()?).ok()? }),
            "leads" => Some(Said::Leads { number: u16::try_from(number()?).ok()?, connections: number()? }),
            "group" => Some(Said::Group { group: number()?, lacking: number()? }),
            _ => None,
        }
    }
}

/// A connection from a replica, or from any process of this host: its name is no secret.
#[derive(Debug)]
pub struct Line<C> {
    /// The connection.
    pub connection: C,
    /// Which process it is.
    speaker: Peer,
    /// Which replica that is, once it has said so.
    pub number: Option<u16>,
}

impl<C> Line<C> {
    /// A new connection.
    pub fn new(connection: C, speaker: Peer) -> Line<C> {
        Line { connection, speaker, number: None }
    }

    /// Whether this replica, which is that process, speaks here: the line of one that is dead stands for as long as its keeper does, and its number may be another one's by then.
    pub fn is_of(&self, number: u16, pid: i32) -> bool {
        self.number == Some(number) && self.speaker.pid == pid
    }

    /// Takes what was said. Only a process of this `user` may call itself a replica, and no other process; it says the rest in its own name.
    ///
    /// # Errors
    /// When nothing that is said here can be believed, and why.
    pub fn hear(&mut self, said: Said, user: u32, replicas: &Replicas) -> Result<(), String> {
        let Peer { pid, uid } = self.speaker;
        if uid != user {
            return Err(format!("process {pid} belongs to user {uid}, but the server belongs to user {user}"));
        }
        match (said, self.number) {
            (Said::Hello { number, pid: its }, None) => {
                if its != pid {
                    return Err(format!("process {pid} calls process {its} a replica"));
                }
                if number >= NUMBERS {
                    return Err(format!("process {pid} calls itself replica {number}; allowed are numbers below {NUMBERS}"));
                }
                if let Some(other) = replicas.living.get(&number) {
                    return Err(format!("process {pid} calls itself replica {number}, which is process {other}"));
                }
                self.number = Some(number);
                Ok(())
            }
            (Said::Succeeds { number } | Said::Leads { number, .. } | Said::Keeper { number, .. }, Some(own)) if number == own => Ok(()),
            (Said::Group { group, lacking }, Some(_)) if group >> NUMBERS == 0 && lacking & !group == 0 => Ok(()),
            _ => Err(format!("process {pid} sent a message that no replica sends: {said:?}")),
        }
    }
}

/// What is known.
#[derive(Debug, Default)]
pub struct Replicas {
    /// The living, by number.
    pub living: BTreeMap<u16, i32>,
    /// The leader, if it lives.
    pub leader: Option<u16>,
    /// The one that is about to lead, if it lives.
    pub successor: Option<u16>,
    /// Nobody has led since then: since a leader or its successor was seen dead, or since a successor has said that it is one.
    pub leaderless: Option<Instant>,
    /// The replicas that count for commits, as the leader says: a bit for each number. The dead do until they are removed.
    pub group: u64,
    /// Those of them that have not been told all so far.
    pub lacking: u64,
    /// A fork that has been asked for, and when.
    asked: Option<(u16, Instant)>,
}

impl Replicas {
    /// A replica is there.
    pub fn hello(&mut self, number: u16, pid: i32) {
        self.living.insert(number, pid);
        self.asked.take_if(|(asked, _)| *asked == number);
    }

    /// A process has ended. Returns which replica it was, and whether it led, or was about to: from then on it executes what nobody has executed before it.
    pub fn ended(&mut self, pid: i32, now: Instant) -> Option<(u16, bool)> {
        let number = self.living.iter().find(|(_, other)| **other == pid).map(|(number, _)| *number)?;
        self.living.remove(&number);
        let led =
            self.leader.take_if(|leader| *leader == number).is_some() | self.successor.take_if(|successor| *successor == number).is_some();
        if led {
            self.leaderless = Some(now);
        }
        Some((number, led))
    }

    /// A replica is about to lead. It may be long at what is left to execute, and tells of no group meanwhile: the next one is waited for as if it had led.
    pub fn succeeds(&mut self, number: u16, now: Instant) {
        self.successor = Some(number);
        self.leaderless = Some(now);
    }

    /// A replica leads.
    pub fn leads(&mut self, number: u16) {
        (self.leader, self.successor, self.leaderless) = (Some(number), None, None);
    }

    /// What is left of those that could go on without a leader that has died. It is by that leader's last word: it may have had a replica count in its last moment and not said so, and
    /// then that one leads soon, or says that it will.
    pub fn left(&self, needs_majority: bool) -> Left {
        let counting = self.group.count_ones() as usize;
        // A newborn that counts for nothing so far can neither lead nor let another one lead.
        let living = |bits: u64| self.living.keys().filter(|number| bits >> **number & 1 != 0).count();
        let (count, holding) = (living(self.group), living(self.group & !self.lacking));
        let suffices = if needs_majority { holding > 0 && count > counting / 2 } else { holding > 0 };
        Left { holding, counting, suffices: suffices || self.successor.is_some() }
    }

    /// How many replicas the service has, once those that count are those that live, and there are as many as it is to have: a dead one may be counted no more before another one has
    /// been started in its place, and then the next death is one too many.
    pub fn whole(&self) -> Option<usize> {
        let living = self.living.keys().fold(0, |bits, number| bits | 1_u64 << number);
        let are_all = self.living.len() >= WANTED && living == self.group && self.lacking == 0;
        (self.leader.is_some() && are_all).then_some(self.living.len())
    }

    /// Which replica is to fork another one now, and that one's number: a follower that lacks nothing, or else the leader. Only once somebody leads: until then what a dead leader has left is still needed under its number.
    /// Numbers are given in turn, so that a message about one is not taken for one about another.
    pub fn fork_wanted(&mut self, now: Instant) -> Option<(u16, u16)> {
        let leader = self.leader?;
        if self.living.len() >= WANTED || self.asked.is_some_and(|(_, since)| now.duration_since(since) < FORK_PATIENCE) {
            return None;
        }
        // The number of one that is dead and still counts would be taken for that one.
        let free = |number: &u16| !self.living.contains_key(number) && self.group >> number & 1 == 0;
        let number = (leader..NUMBERS).find(free).or_else(|| (0..leader).find(free))?;
        // A newcomer hands on only what it knows itself: a fork of one that lacks rounds lacks them too, and its forks would in turn, until no replica has them any more.
        let is_level = |number: u16| (self.group & !self.lacking) >> number & 1 != 0;
        let from = self.living.keys().copied().find(|other| *other != leader && is_level(*other)).unwrap_or(leader);
        self.asked = Some((number, now));
        Some((from, number))
    }
}

/// What is left of the replicas when a leader has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Living replicas that count and hold the state.
    pub holding: usize,
    /// Replicas that count, the dead that have not been removed among them.
    pub counting: usize,
    /// Those that live are enough for one of them to lead.
    pub suffices: bool,
}

/// How the server has ended by itself: as the replica that led has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ended {
    /// The code, and whether it is a leader's.
    known: Option<(i32, bool)>,
}

impl Ended {
    /// A replica has ended by itself with this code. While nobody leads, and the server is to end, it counts as well, until a leader's is known: one that succeeds may execute the end before
    /// it has said that it leads. Returns whether it counts.
    pub fn note(&mut self, code: i32, led: bool, may_succeed: bool) -> bool {
        match self.known {
            Some((_, true)) => false,
            Some((_, false)) if !led => false,
            _ if led || may_succeed => {
                self.known = Some((code, led));
                true
            }
            _ => false,
        }
    }

    /// The code.
    pub fn code(self) -> Option<i32> {
        self.known.map(|(code, _)| code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_anything_else_is_none() {
        assert_eq!(Said::parse("hello 3 1234"), Some(Said::Hello { number: 3, pid: 1234 }));
        assert_eq!(Said::parse("succeeds 2"), Some(Said::Succeeds { number: 2 }));
        assert_eq!(Said::parse("leads 1 50"), Some(Said::Leads { number: 1, connections: 50 }));
        assert_eq!(Said::parse("group 7 2"), Some(Said::Group { group: 7, lacking: 2 }));
        assert_eq!(Said::parse("keeper 1 replaced"), Some(Said::Keeper { number: 1, replaced: true }));
        assert_eq!(Said::parse("keeper 1 lost"), Some(Said::Keeper { number: 1, replaced: false }));
        for text in [
            "",
            "keeper 1",
            "keeper x lost",
            "keeper 1 found",
            "group 7",
            "hello",
            "hello 3",
            "hello 70000 1",
            "succeeds",
            "leads x 1",
            "bye 1",
        ] {
            assert_eq!(Said::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_process_itself_may_say_that_it_is_a_replica() {
        let hello = |number, pid| Said::Hello { number, pid };
        let line = || Line::new((), Peer { pid: 100, uid: 7 });
        let mut replicas = Replicas::default();
        replicas.hello(1, 55);
        let refuses = |said, text: &str| {
            let why = line().hear(said, 7, &replicas).expect_err("it is not to be believed");
            assert!(why.contains(text), "{why}");
        };
        refuses(hello(0, 101), "calls process 101 a replica");
        refuses(hello(16, 100), "below 16");
        refuses(hello(64, 100), "below 16");
        refuses(hello(1, 100), "which is process 55");
        refuses(Said::Leads { number: 1, connections: 0 }, "no replica sends");
        refuses(Said::Group { group: 1, lacking: 0 }, "no replica sends");
        assert!(line().hear(hello(0, 100), 8, &replicas).expect_err("another user").contains("belongs to user 7"));
        let mut line = line();
        assert_eq!(line.hear(hello(0, 100), 7, &replicas), Ok(()));
        assert_eq!(line.number, Some(0));
        assert_eq!([(0, 100), (1, 100), (0, 101)].map(|(number, pid)| line.is_of(number, pid)), [true, false, false]);
        assert_eq!(line.hear(Said::Leads { number: 0, connections: 3 }, 7, &replicas), Ok(()));
        assert_eq!(line.hear(Said::Succeeds { number: 0 }, 7, &replicas), Ok(()));
        assert!(line.hear(Said::Leads { number: 1, connections: 3 }, 7, &replicas).is_err(), "not in another one's name");
        assert!(line.hear(Said::Keeper { number: 1, replaced: true }, 7, &replicas).is_err(), "not in another one's name");
        assert_eq!(line.hear(Said::Keeper { number: 0, replaced: true }, 7, &replicas), Ok(()));
        assert!(line.hear(Said::Succeeds { number: 1 }, 7, &replicas).is_err(), "not in another one's name");
        assert_eq!(line.hear(Said::Group { group: 0b111, lacking: 0b100 }, 7, &replicas), Ok(()));
        assert!(line.hear(Said::Group { group: 1 << 16, lacking: 0 }, 7, &replicas).is_err(), "there are no such replicas");
        assert!(line.hear(hello(2, 100), 7, &replicas).is_err(), "it is one already");
    }

    #[test]
    fn the_dead_are_replaced_by_a_follower_under_numbers_in_turn() {
        let now = Instant::now();
        let mut replicas = Replicas::default();
        (0..3).for_each(|number| replicas.hello(number, 100 + i32::from(number)));
        (replicas.leader, replicas.group) = (Some(0), 0b111);
        assert_eq!((replicas.whole(), replicas.fork_wanted(now)), (Some(3), None));
        replicas.lacking = 0b100;
        assert_eq!((replicas.whole(), replicas.fork_wanted(now)), (None, None), "it counts, and has not been taught");
        replicas.lacking = 0;
        assert_eq!(replicas.ended(100, now), Some((0, true)));
        assert_eq!(replicas.fork_wanted(now), None, "nobody leads");
        replicas.leader = Some(1);
        assert_eq!(replicas.whole(), None, "one that is dead counts");
        replicas.group = 0b110;
        assert_eq!(replicas.whole(), None, "it counts no more, and has not been replaced");
        replicas.group = 0b111;
        assert_eq!(replicas.fork_wanted(now), Some((2, 3)));
        assert_eq!(replicas.fork_wanted(now), None, "it is on its way");
        assert_eq!(replicas.fork_wanted(now + FORK_PATIENCE), Some((2, 3)), "it has not come");
        replicas.hello(3, 103);
        assert_eq!(replicas.ended(102, now), Some((2, false)));
        assert_eq!(replicas.ended(103, now), Some((3, false)));
        replicas.group = 0b110;
        assert_eq!(replicas.fork_wanted(now), Some((1, 3)), "the leader, if there is no other one; 2 is dead and counts");
        assert_eq!(replicas.ended(7, now), None, "none of them");
    }

    #[test]
    fn one_that_has_not_been_told_all_is_not_forked() {
        let now = Instant::now();
        let living = BTreeMap::from([(1, 101), (3, 103)]);
        let replicas = |group, lacking| Replicas { living: living.clone(), leader: Some(1), group, lacking, ..Replicas::default() };
        assert_eq!(replicas(0b0110, 0).fork_wanted(now), Some((1, 4)), "it does not count so far");
        assert_eq!(replicas(0b1010, 0b1000).fork_wanted(now), Some((1, 2)), "it counts, and lacks rounds");
        assert_eq!(replicas(0b1010, 0).fork_wanted(now), Some((3, 2)));
    }

    #[test]
    fn a_newborn_that_counts_for_nothing_is_none_that_is_left_to_lead() {
        let left = |living: &[u16], group, lacking, needs_majority| {
            let living = living.iter().map(|number| (*number, 100 + i32::from(*number))).collect();
            let left = Replicas { living, group, lacking, ..Replicas::default() }.left(needs_majority);
            (left.holding, left.counting, left.suffices)
        };
        // Replica 0 has led and is dead, and so is 2, for which 3 has been born.
        assert_eq!(left(&[1, 3], 0b0111, 0b0100, true), (1, 3, false), "a dead one has not been removed");
        assert_eq!(left(&[1, 3], 0b0011, 0, true), (1, 2, false), "it has");
        assert_eq!(left(&[1, 3], 0b1011, 0, true), (2, 3, true), "the newborn counts");
        assert_eq!(left(&[1, 3], 0b1011, 0b1000, true), (1, 3, true), "it votes before it has been taught");
        assert_eq!(left(&[1, 3], 0b1111, 0b0100, true), (2, 4, false), "two are dead and count");
        assert_eq!(left(&[3], 0b1011, 0b1000, true), (0, 3, false));
        assert_eq!(left(&[1, 3], 0b0011, 0, false), (1, 2, true), "one is enough");
        assert_eq!(left(&[3], 0b0001, 0, false), (0, 1, false), "not one that holds nothing");
        assert_eq!(left(&[3], 0b1001, 0b1000, false), (0, 2, false), "nor one that is still taught");
        // One that has been let lead without the supervisor's having been told that it counts.
        let mut replicas = Replicas { living: BTreeMap::from([(3, 103)]), group: 1, successor: Some(3), ..Replicas::default() };
        assert!(replicas.left(false).suffices && replicas.left(true).suffices);
        replicas.ended(103, Instant::now());
        assert!(!replicas.left(false).suffices && !replicas.left(true).suffices);
    }

    #[test]
    fn one_that_was_about_to_lead_is_followed_as_one_that_led() {
        let (now, later, at_last) = (Instant::now(), Instant::now() + Duration::from_secs(60), Instant::now() + Duration::from_secs(90));
        let living = BTreeMap::from([(0, 100), (1, 101), (2, 102)]);
        let mut replicas = Replicas { living, leader: Some(0), group: 0b111, ..Replicas::default() };
        assert_eq!((replicas.ended(100, now), replicas.leaderless), (Some((0, true)), Some(now)));
        // It is long at what the dead one has left, and has told of no group.
        replicas.succeeds(1, later);
        assert_eq!((replicas.leaderless, replicas.left(true).suffices), (Some(later), true));
        assert_eq!(
            (replicas.ended(101, at_last), replicas.leaderless),
            (Some((1, true)), Some(at_last)),
            "the next one has its time from here"
        );
        replicas.leads(2);
        assert_eq!((replicas.ended(102, at_last), replicas.leaderless), (Some((2, true)), Some(at_last)));
    }

    #[test]
    fn the_servers_code_is_its_leaders() {
        // Of replicas that end: the code, whether it led, and whether nobody leads while the server is to end.
        let of = |ends: &[(i32, bool, bool)]| {
            let mut ended = Ended::default();
            ends.iter().for_each(|(code, led, may_succeed)| {
                ended.note(*code, *led, *may_succeed);
            });
            ended.code()
        };
        assert_eq!(of(&[(3, false, false)]), None, "a follower's is its own");
        assert_eq!(of(&[(3, false, false), (0, true, false), (4, false, true)]), Some(0));
        assert_eq!(of(&[(3, false, true), (0, false, true)]), Some(3), "one that succeeded, and had not said so");
        assert_eq!(of(&[(3, false, true), (0, true, false)]), Some(0));
        assert_eq!(of(&[(0, true, false), (5, true, false)]), Some(0));
    }

    #[test]
    fn numbers_begin_again_when_they_are_used_up() {
        let mut replicas = Replicas { living: BTreeMap::from([(14, 1), (15, 2)]), leader: Some(15), group: 3 << 14, ..Replicas::default() };
        assert_eq!(replicas.fork_wanted(Instant::now()), Some((14, 0)));
    }
}
