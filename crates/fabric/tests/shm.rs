//! The shared-memory backend between real processes, and their real deaths.
//!
//! A child is this executable again, running only [`be_a_child`], with its part in an environment variable.

#![cfg(all(target_os = "linux", target_endian = "little", target_pointer_width = "64"))]

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use martlet_fabric::host::probe::{self, DeathProbe, Pastime, VictimPlan};
use martlet_fabric::host::{OWNER_DIED, WAITERS, WakeReason};
use martlet_fabric::shm::{ParkWord, ShmConfig, ShmFabric};
use martlet_fabric::{
    Fabric, Identity, Incarnation, LocalRegion, NodeId, OpError, PeerEvent, PeerId, PeerKind, Region, RegionName, RegionSpec, Remote, Token,
};

const KEY: &[u8] = b"the key of the tests' cluster";
const PART: &str = "MARTLET_TEST_PART";

/// Words that processes use to tell each other things.
const LIFE: RegionName = RegionName(1);
/// Words that only their owner writes: the first says whether it has been written, and the others are death words.
const SIGNS: RegionName = RegionName(2);
const LANE: RegionName = RegionName(16);
/// The death words of a child: one for each watcher, with other words between them.
const DEATH: [usize; 3] = [8, 16, 32];
const LIFE_WORDS: usize = 64;
/// Records of [`RECORD`] words in the lane.
const RECORDS: u64 = 64;
const RECORD: usize = 8;

fn spec() -> RegionSpec {
    RegionSpec {
        public: vec![(LIFE, LIFE_WORDS * 8), (SIGNS, LIFE_WORDS * 8)],
        owned: vec![SIGNS],
        member_lanes: vec![(LANE, RECORDS as usize * RECORD * 8)],
        client_lanes: vec![(LANE, 64)],
    }
}

fn start(cluster: &str, node: u16, kind: PeerKind) -> ShmFabric {
    let identity = Identity { node: NodeId(node), incarnation: Incarnation(u64::from(std::process::id())), kind };
    let clients = RegionSpec { public: vec![(LIFE, 64)], member_lanes: vec![(LANE, 64)], ..RegionSpec::default() };
    // A member opens once it has said what it has to say.
    let closed = kind == PeerKind::Member;
    ShmFabric::start(ShmConfig { closed, ..ShmConfig::new(cluster, KEY, identity, spec(), clients) }).expect("started")
}

fn unique_cluster() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("real-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// These tests look at what the whole process holds, and some need both processors, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn up(fabric: &mut ShmFabric) -> (PeerId, Identity) {
    match until(|| fabric.event()) {
        PeerEvent::Up { peer, identity } => (peer, identity),
        gone => panic!("{gone:?}"),
    }
}

fn life(peer: PeerId, word: usize) -> Remote {
    Remote { peer, region: Region::Public(LIFE), offset: word * 8 }
}

fn sign(peer: PeerId, word: usize) -> Remote {
    Remote { region: Region::Public(SIGNS), ..life(peer, word) }
}

fn read(fabric: &mut ShmFabric, at: Remote) -> u64 {
    fabric.read_word(at, Token(0));
    until(|| fabric.poll()).result.expect("readable")
}

fn write(fabric: &mut ShmFabric, at: Remote, value: u64) {
    fabric.write(at, &value.to_le_bytes(), Token(0));
    assert_eq!(until(|| fabric.poll()).result, Ok(0));
}

/// A child process; killed when dropped.
struct Process(Child);

impl Process {
    fn command(part: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("our own path"));
        command.args(["--ignored", "--exact", "be_a_child", "--nocapture"]).env(PART, part);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn start(part: &str) -> Process {
        Process(Process::command(part).spawn().expect("started"))
    }

    fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may already be dead and gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child's side of every test.
#[test]
#[ignore = "it is started by other tests, as a process of its own"]
fn be_a_child() {
    let part = std::env::var(PART).expect("only as a child: MARTLET_TEST_PART is not set");
    // So that it does not outlive a test that fails.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("asked for");
    let words: Vec<&str> = part.split(' ').collect();
    let number = |at: usize| words[at].parse::<u16>().expect("a number");
    match words[0] {
        "mortal" => mortal(words[1], number(2), number(3), words[4] == "spin"),
        "scribbler" => scribbler(words[1], words[2]),
        "guest" => guest(words[1], words[2]),
        "writer" => writer(words[1], number(2), number(3)),
        "victim" => {
            let pastime = match words[2] {
                "spin" => Pastime::Spin,
                "walk" => Pastime::Walk,
                _ => Pastime::Sleep,
            };
            let plan = VictimPlan { pastime, cpu: None, resident_bytes: usize::from(number(3)) << 20 };
            let Err(error) = probe::victim(i32::from(number(1)), plan);
            panic!("{error}");
        }
        other => panic!("no such part: {other}"),
    }
}

/// A member that registers death words, says 4711 and waits for its end.
fn mortal(cluster: &str, node: u16, others: u16, spin: bool) {
    let mut fabric = start(cluster, node, PeerKind::Member);
    let _held = fabric.own_region(SIGNS).expect("declared").register_death_words(&DEATH).expect("registered");
    fabric.memory(LocalRegion::Public(LIFE)).expect("declared")[1].store(4711, Ordering::Release);
    fabric.open();
    for other in (0..others).filter(|other| *other != node) {
        fabric.connect(NodeId(other));
    }
    let mut connected = 0;
    loop {
        if let Some(PeerEvent::Up { .. }) = fabric.event() {
            connected += 1;
            fabric.memory(LocalRegion::Public(LIFE)).expect("declared")[2].store(connected, Ordering::Release);
        }
        if !spin {
            fabric.park(&[], None, |_| false);
        }
    }
}

#[test]
fn sigkill_marks_every_death_word_and_leaves_a_zombie() {
    let _alone = alone();
    for manner in ["spin", "sleep"] {
        let cluster = unique_cluster();
        let mut watcher = start(&cluster, 0, PeerKind::Member);
        let child = Process::start(&format!("mortal {cluster} 1 1 {manner}"));
        watcher.connect(NodeId(1));
        let (peer, _) = up(&mut watcher);
        let alive = read(&mut watcher, sign(peer, DEATH[0]));
        assert_eq!(alive & WAITERS, WAITERS);
        assert_eq!(alive & OWNER_DIED, 0);
        assert_ne!(alive & 0x3fff_ffff, 0, "a thread of the child holds it");
        assert_eq!(watcher.event(), None);
        let pid = rustix::process::Pid::from_raw(child.0.id() as i32).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        // The kernel marks the words unasked.
        for word in DEATH {
            let word = &watcher.peer_memory(peer, SIGNS).expect("mapped")[word];
            while word.load(Ordering::Relaxed) & OWNER_DIED == 0 {
                std::thread::yield_now();
            }
            assert_eq!(u64::from(word.load(Ordering::Relaxed) as u32), OWNER_DIED | WAITERS);
        }
        assert_eq!(until(|| watcher.event()), PeerEvent::Gone { peer, certain: true });
        child.kill();
        // Its memory is still there, for reading, writing and swapping.
        assert_eq!(read(&mut watcher, life(peer, 1)), 4711);
        write(&mut watcher, life(peer, 3), 5);
        watcher.compare_and_swap(life(peer, 4), 0, 6, Token(1));
        assert_eq!(until(|| watcher.poll()).result, Ok(0));
        assert_eq!((read(&mut watcher, life(peer, 3)), read(&mut watcher, life(peer, 4))), (5, 6));
        assert_eq!(watcher.event(), None, "it went once");
    }
}

/// A member with a stray pointer, by which it stores where it must not: into `what` of node 0.
fn scribbler(cluster: &str, what: &str) {
    let mut fabric = start(cluster, 1, PeerKind::Member);
    fabric.connect(NodeId(0));
    let (peer, _) = up(&mut fabric);
    // As an operation, this is refused, and no process dies of it.
    fabric.write(sign(peer, 0), &[1; 8], Token(1));
    assert_eq!(until(|| fabric.poll()).result, Err(OpError::AccessLost));
    fabric.compare_and_swap(sign(peer, 0), 0, 1, Token(2));
    assert_eq!(until(|| fabric.poll()).result, Err(OpError::AccessLost));
    let region = if what == "shared" { LIFE } else { SIGNS };
    fabric.peer_memory(peer, region).expect("mapped")[0].store(13, Ordering::SeqCst);
    fabric.peer_memory(peer, LIFE).expect("mapped")[1].store(14, Ordering::SeqCst);
    loop {
        fabric.park(&[], None, |_| false);
    }
}

/// TRAPS 57.
#[test]
fn trap_57_a_stray_store_into_what_a_peer_alone_writes_is_its_doer_s_end_and_nobody_else_s() {
    use std::os::unix::process::ExitStatusExt as _;
    let _alone = alone();
    for what in ["owned", "shared"] {
        let cluster = unique_cluster();
        let mut node = start(&cluster, 0, PeerKind::Member);
        let words = node.own_region(SIGNS).expect("declared");
        words.memory()[1].store(5, Ordering::Release);
        let _held = words.register_death_words(&DEATH).expect("registered");
        node.open();
        let bystander = Process::start(&format!("mortal {cluster} 2 1 sleep"));
        let (other, _) = up(&mut node);
        let mut scribbler = Process::start(&format!("scribbler {cluster} {what}"));
        let (peer, _) = up(&mut node);
        if what == "shared" {
            // What peers are meant to write can be written in this way: so it is the region that makes the difference, and not the way.
            let life = node.own_region(LIFE).expect("declared");
            until(|| (life.memory()[1].load(Ordering::Acquire) == 14).then_some(()));
            assert_eq!(life.memory()[0].load(Ordering::Acquire), 13);
            scribbler.kill();
        } else {
            assert_eq!(scribbler.0.wait().expect("it ends").signal(), Some(libc::SIGSEGV));
        }
        assert_eq!(until(|| node.event()), PeerEvent::Gone { peer, certain: true });
        assert_eq!((words.memory()[0].load(Ordering::Acquire), words.memory()[1].load(Ordering::Acquire)), (0, 5), "nothing has changed");
        assert_eq!(read(&mut node, life(other, 1)), 4711, "and the others go on");
        assert_eq!(node.event(), None);
        bystander.kill();
    }
}

/// A robust mutex that a program has in a file of its own, mapped shared.
struct RobustMutex(*mut libc::pthread_mutex_t);

impl RobustMutex {
    fn map(path: &str) -> RobustMutex {
        use std::os::fd::AsRawFd as _;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the file");
        // SAFETY: the kernel chooses where the file's page is mapped.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        RobustMutex(at.cast())
    }

    /// In a new file.
    fn make(path: &str) -> RobustMutex {
        std::fs::write(path, [0; 4096]).expect("a file");
        let mutex = RobustMutex::map(path);
        let mut kind = std::mem::MaybeUninit::uninit();
        // SAFETY: the first call initialises what the others use, and no other code knows the mutex yet.
        unsafe {
            assert_eq!(libc::pthread_mutexattr_init(kind.as_mut_ptr()), 0);
            assert_eq!(libc::pthread_mutexattr_setpshared(kind.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED), 0);
            assert_eq!(libc::pthread_mutexattr_setrobust(kind.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST), 0);
            assert_eq!(libc::pthread_mutex_init(mutex.0, kind.as_ptr()), 0);
        }
        mutex
    }

    fn lock(&self) -> i32 {
        // SAFETY: the mutex has been made, and stays mapped.
        unsafe { libc::pthread_mutex_lock(self.0) }
    }
}

/// A program that holds robust mutexes of its own: one since before its thread had death words, and one since after that.
fn guest(cluster: &str, path: &str) {
    assert_eq!(RobustMutex::map(&format!("{path}.before")).lock(), 0);
    let mut fabric = start(cluster, 1, PeerKind::Member);
    let _held = fabric.own_region(SIGNS).expect("declared").register_death_words(&DEATH).expect("registered");
    assert_eq!(RobustMutex::map(&format!("{path}.after")).lock(), 0);
    fabric.open();
    loop {
        fabric.park(&[], None, |_| false);
    }
}

/// TRAPS 56.
#[test]
fn a_guest_s_robust_mutexes_and_its_death_words_are_all_marked() {
    let _alone = alone();
    let cluster = unique_cluster();
    let path = std::env::temp_dir().join(&cluster).to_str().expect("a plain path").to_owned();
    let files = ["before", "after"].map(|which| format!("{path}.{which}"));
    let mutexes = files.each_ref().map(|file| RobustMutex::make(file));
    let mut watcher = start(&cluster, 0, PeerKind::Member);
    let child = Process::start(&format!("guest {cluster} {path}"));
    watcher.connect(NodeId(1));
    let (peer, _) = up(&mut watcher);
    assert_eq!(read(&mut watcher, sign(peer, DEATH[0])) & OWNER_DIED, 0);
    child.kill();
    for mutex in &mutexes {
        assert_eq!(mutex.lock(), libc::EOWNERDEAD, "what the program itself relies on");
    }
    for word in DEATH {
        assert_eq!(u64::from(read(&mut watcher, sign(peer, word)) as u32), OWNER_DIED | WAITERS, "what we rely on");
    }
    files.iter().for_each(|file| std::fs::remove_file(file).expect("ours"));
}

#[test]
fn a_sleeper_that_watches_a_death_word_is_woken_by_the_kernel() {
    let _alone = alone();
    let cluster = unique_cluster();
    let mut watcher = start(&cluster, 0, PeerKind::Member);
    let child = Process::start(&format!("mortal {cluster} 1 1 spin"));
    watcher.connect(NodeId(1));
    let (peer, _) = up(&mut watcher);
    let alive = read(&mut watcher, sign(peer, DEATH[1]));
    let word = ParkWord { at: sign(peer, DEATH[1]), expected: alive as u32 };
    let killer = std::thread::spawn(move || child.kill());
    // Without a time limit: only the kernel can end this sleep, by the word or, if that were to fail, by the later event.
    let reason = loop {
        match watcher.park(&[word], None, |_| false) {
            WakeReason::Nudged => {}
            reason => break reason,
        }
    };
    assert_eq!(reason, WakeReason::Word(0), "the word comes before the event");
    killer.join().expect("killed");
    assert_eq!(until(|| watcher.event()), PeerEvent::Gone { peer, certain: true });
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("our descriptors").count()
}

fn mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our mappings");
    maps.lines().filter(|line| line.contains("memfd:martlet")).map(str::to_owned).collect()
}

fn names(cluster: &str) -> usize {
    let table = std::fs::read_to_string("/proc/net/unix").expect("the kernel's sockets");
    table.lines().filter(|line| line.contains(&format!("@martlet/{cluster}/"))).count()
}

#[test]
fn nothing_is_left_when_all_are_killed() {
    let _alone = alone();
    let shm = || {
        std::fs::read_dir("/dev/shm").map_or(0, |dir| dir.flatten().filter(|e| e.file_name().to_string_lossy().contains("martlet")).count())
    };
    let (fds_before, shm_before) = (descriptors(), shm());
    for _ in 0..3 {
        let cluster = unique_cluster();
        let mut watcher = start(&cluster, 3, PeerKind::Member);
        watcher.open();
        let children: Vec<_> = (0..3).map(|node| Process::start(&format!("mortal {cluster} {node} 4 sleep"))).collect();
        let peers: Vec<_> = (0..3).map(|_| up(&mut watcher).0).collect();
        // Each is connected to all others before the end comes.
        for peer in &peers {
            while read(&mut watcher, life(*peer, 2)) < 3 {
                std::thread::yield_now();
            }
        }
        assert!(names(&cluster) >= 4);
        children.into_iter().for_each(Process::kill);
        for _ in &peers {
            assert!(matches!(until(|| watcher.event()), PeerEvent::Gone { certain: true, .. }));
        }
        peers.into_iter().for_each(|peer| watcher.forget(peer));
        drop(watcher);
        assert_eq!(names(&cluster), 0);
        assert_eq!(mappings(), Vec::<String>::new());
        assert_eq!((descriptors(), shm()), (fds_before, shm_before));
        // The names can be taken again immediately.
        for node in 0..4 {
            drop(start(&cluster, node, PeerKind::Member));
        }
    }
}

#[test]
fn a_client_cannot_make_its_mapping_of_public_memory_writable() {
    let _alone = alone();
    let cluster = unique_cluster();
    let child = Process::start(&format!("mortal {cluster} 0 0 sleep"));
    let mut user = start(&cluster, 1, PeerKind::Client);
    user.connect(NodeId(0));
    let (peer, _) = up(&mut user);
    assert_eq!(read(&mut user, life(peer, 1)), 4711);
    user.write(life(peer, 1), &[0; 8], Token(1));
    assert_eq!(until(|| user.poll()).result, Err(OpError::AccessLost));
    let theirs = user.peer_memory(peer, LIFE).expect("mapped").as_ptr();
    // SAFETY: it asks for another protection of a whole page of a mapping; even if that were granted, nothing would be written.
    let rc = unsafe { libc::mprotect(theirs.cast_mut().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!((rc, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EACCES)));
    let line = format!("{:x}-", theirs as usize);
    let mapped = mappings().into_iter().find(|map| map.starts_with(&line)).expect("our mapping of it");
    assert!(mapped.contains(" r--s "), "{mapped}");
    child.kill();
}

/// Where the writer and the owner of its lane talk to each other, in the writer's memory.
mod talk {
    /// How many rounds the owner has begun: in each it grants the lane, and revokes it.
    pub const BEGUN: usize = 1;
    /// How many rounds the writer has ended, having seen the loss.
    pub const ENDED: usize = 2;
    /// The last record that completed `Ok` in the round that has ended.
    pub const LAST_OK: usize = 3;
    /// How many records have been posted in all rounds; none after `LAST_OK` has completed `Ok`.
    pub const POSTED: usize = 4;
}

/// Writes records into its lane as fast as it can, up to four under way, until it loses access. Then it reports how far it came.
fn writer(cluster: &str, node: u16, owner: u16) {
    let mut fabric = start(cluster, node, PeerKind::Member);
    fabric.connect(NodeId(owner));
    let (peer, _) = up(&mut fabric);
    let lane = Remote { peer, region: Region::Lane(LANE), offset: 0 };
    let own = fabric.own_regions();
    let words = own.memory(LIFE).expect("declared");
    let mut posted = 0u64;
    for round in 1.. {
        while words[talk::BEGUN].load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
        let (mut last_ok, mut lost, mut under_way) = (posted, false, 0);
        // A loss, and then some more attempts, each of which must fail too.
        let mut more = 20;
        while more > 0 || under_way > 0 {
            if more > 0 && under_way < 4 {
                posted += 1;
                let mut record = [0; RECORD * 8];
                record.as_chunks_mut::<8>().0.fill(posted.to_le_bytes());
                fabric.write(Remote { offset: (posted % RECORDS) as usize * RECORD * 8, ..lane }, &record, Token(posted));
                under_way += 1;
                if lost {
                    more -= 1;
                }
                // So that what is under way when the loss comes differs in length.
                if posted % 7 < 3 {
                    continue;
                }
            }
            let Some(done) = fabric.poll() else { continue };
            under_way -= 1;
            match done.result {
                Ok(_) => {
                    assert!(!lost, "record {:?} went through after the loss", done.token);
                    assert_eq!(done.token.0, last_ok + 1);
                    last_ok = done.token.0;
                }
                Err(error) => {
                    assert_eq!(error, OpError::AccessLost);
                    lost = true;
                }
            }
        }
        words[talk::LAST_OK].store(last_ok, Ordering::Relaxed);
        words[talk::POSTED].store(posted, Ordering::Relaxed);
        words[talk::ENDED].store(round, Ordering::Release);
    }
}

/// Promise 6 between processes, thousands of times.
#[test]
fn revocations_under_a_running_writer_lose_nothing_that_was_confirmed() {
    const ROUNDS: u64 = 4000;
    let _alone = alone();
    let cluster = unique_cluster();
    let mut owner = start(&cluster, 0, PeerKind::Member);
    owner.open();
    let child = Process::start(&format!("writer {cluster} 1 0"));
    let (peer, _) = up(&mut owner);
    let region = LocalRegion::Lane { writer: peer, name: LANE };
    let snapshot = |owner: &ShmFabric| -> Vec<u64> {
        let lane = owner.memory(region).expect("not forgotten");
        let copy = lane.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        fence(Ordering::Acquire);
        copy
    };
    let (mut before, mut confirmed, mut unconfirmed_seen) = (0, 0, 0);
    for round in 1..=ROUNDS {
        if round > 1 {
            owner.grant(peer, LANE);
        }
        write(&mut owner, life(peer, talk::BEGUN), round);
        // Revoke at many different moments: from at once to after a few laps.
        for _ in 0..(round * 37) % 4096 {
            std::hint::spin_loop();
        }
        if round % 16 == 0 {
            std::thread::yield_now();
        }
        owner.revoke(peer, LANE, Token(round));
        assert_eq!(until(|| owner.poll()).result, Ok(0));
        let at_revocation = snapshot(&owner);
        while read(&mut owner, life(peer, talk::ENDED)) < round {
            std::thread::yield_now();
        }
        let (last_ok, posted) = (read(&mut owner, life(peer, talk::LAST_OK)), read(&mut owner, life(peer, talk::POSTED)));
        let record = |memory: &[u64], number: u64| -> Vec<u64> {
            let at = (number % RECORDS) as usize * RECORD;
            memory[at..at + RECORD].to_vec()
        };
        // Everything confirmed in this round, as far as the lane has room for it, was there when the revocation completed. Up to four records were
        // under way when the loss came, and may have been stored over the oldest ones.
        for number in (before + 1).max(last_ok.saturating_sub(RECORDS - 5))..=last_ok {
            assert_eq!(record(&at_revocation, number), [number; RECORD], "round {round}: record {number} of {last_ok} was confirmed");
            confirmed += 1;
        }
        // What was posted after the writer had seen its loss has not been stored: four records were under way, and the last twenty came later.
        let after = snapshot(&owner);
        for number in last_ok + 1..=posted {
            let stored = record(&after, number).contains(&number);
            assert!(!stored || number <= last_ok + 4, "round {round}: record {number} was stored without a grant, {last_ok} was the last");
            unconfirmed_seen += u64::from(stored);
        }
        before = posted;
    }
    assert!(confirmed > ROUNDS, "{confirmed} confirmed: the writer ran while its access was taken ({unconfirmed_seen} unconfirmed)");
    child.kill();
}

#[test]
fn the_bare_probe_sees_deaths_of_all_manners() {
    let _alone = alone();
    let mut probe = DeathProbe::new().expect("made");
    for (manner, resident) in [("spin", 0), ("sleep", 0), ("sleep", 16), ("walk", 4)] {
        for _ in 0..3 {
            let mut command = Process::command(&format!("victim {} {manner} {resident}", probe.fd_number()));
            let victim = probe.spawn(&mut command).expect("ready");
            let timing = victim.kill().expect("seen");
            assert!(timing.seen_ns >= timing.kill_ns && timing.kill_ns > 0, "{timing:?}");
        }
    }
    // A thread that sleeps until then sees it too, and one that cannot prepare itself is reported. The victim is dead either way.
    for _ in 0..3 {
        let mut command = Process::command(&format!("victim {} spin 0", probe.fd_number()));
        assert!(probe.spawn(&mut command).expect("ready").kill_before_heir(|| Ok(())).expect("seen") > 0);
        let victim = probe.spawn(&mut command).expect("ready");
        let pid = victim.pid();
        let error = victim.kill_before_heir(|| Err(io::Error::other("no place"))).expect_err("nobody sleeps");
        assert_eq!(error.to_string(), "no place");
        // SAFETY: signal 0 only asks whether there is such a process.
        assert_eq!(unsafe { libc::kill(pid as i32, 0) }, -1, "it is gone, and has been waited for");
    }
    // A victim that does not get that far is an error, not a hang.
    let error = probe.spawn(Process::command("victim 0 spin 0").stderr(Stdio::null())).expect_err("no memory at descriptor 0");
    assert!(error.to_string().contains("before it was ready"), "{error}");
}
