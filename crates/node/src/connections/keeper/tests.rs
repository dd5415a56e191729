//! Keepers of this process, and of one that runs this test's program.

use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::service::{Ending, Service, kind};
use super::*;

/// A keeper's static state belongs to the whole process, so one test at a time uses it.
static TURN: Mutex<()> = Mutex::new(());
/// The descriptors of other tests are below this number.
const ABOVE_OTHERS: RawFd = 300;

/// A keeper of a process that lives and has let go of its connections, which are many descriptors of one connection.
struct Kept {
    name: String,
    keeper: i32,
    sockets: Vec<OwnedFd>,
    _listener: TcpListener,
    _turn: MutexGuard<'static, ()>,
}

impl Kept {
    /// So many sockets, and a keeper to which the kernel's limit on descriptors in flight applies, as it does to one of any user but root.
    fn new(kind: &str, count: usize) -> Kept {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (accepted, _) = listener.accept().expect("it has connected");
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("as many as it may have");
        // The successor is this process, too: what it is given has lower numbers, and is not given again.
        let lowest = ABOVE_OTHERS + count as RawFd;
        let sockets: Vec<OwnedFd> = (0..count).map(|_| fcntl_dupfd_cloexec(&accepted, lowest).expect("a descriptor")).collect();
        drop((accepted, client));
        SERVICE.store(listener.as_raw_fd(), Ordering::SeqCst);
        HIGHEST.fetch_max(sockets.iter().map(AsRawFd::as_raw_fd).max().unwrap_or(0), Ordering::SeqCst);
        LET_GO.store(true, Ordering::SeqCst);
        let name = name_of(&format!("{kind}-test"), Holder { node: 0, pid: std::process::id() as i32, started: 0 });
        let (own, (tell, started)) = (name.clone(), std::sync::mpsc::channel());
        // The keeper shares that thread's own storage.
        std::thread::spawn(move || {
            drop_privileges();
            start(&own, Keeps::Service).expect("a keeper");
            let children = std::fs::read_to_string("/proc/thread-self/children").expect("the kernel lists them");
            tell.send(children.trim().parse().expect("one child")).expect("it is waited for");
            loop {
                std::thread::park();
            }
        });
        let keeper = started.recv().expect("it starts");
        Kept { name, keeper, sockets, _listener: listener, _turn: turn }
    }

    /// The number of the system call in which the keeper waits; `None`: it runs.
    fn waits_in(&self) -> Option<libc::c_long> {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.keeper)).expect("it lives");
        call.split(' ').next()?.parse().ok()
    }

    /// Asks, but takes nothing. Returns when the keeper has done what it can.
    fn ask_and_take_nothing(&self) -> Left {
        let left = begin_to_ask(&self.name).expect("it listens");
        await_first(&left);
        while self.waits_in().is_none() {
            std::thread::yield_now();
        }
        left
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        SERVICE.store(-1, Ordering::SeqCst);
        LET_GO.store(false, Ordering::SeqCst);
        SUCCEEDED.store(false, Ordering::SeqCst);
        // SAFETY: a plain system call. It is this process's child, which nothing has waited for.
        unsafe { libc::syscall(libc::SYS_kill, self.keeper, libc::SIGKILL) };
    }
}

/// Removes this thread's privileges to exceed limits and to administer the system.
fn drop_privileges() {
    const VERSION: u32 = 0x2008_0522;
    const SYS_ADMIN: u32 = 21;
    const SYS_RESOURCE: u32 = 24;
    let mut header = [VERSION, 0];
    // The effective, permitted and inheritable sets; their upper halves follow.
    let mut data = [[0u32; 3]; 2];
    // SAFETY: the pointers are to what the kernel reads and writes in this version of the call.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()), 0);
        data[0][0] &= !(1 << SYS_ADMIN | 1 << SYS_RESOURCE);
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_mut_ptr(), data.as_ptr()), 0);
    }
}

/// Waits for the first message, and leaves it there.
fn await_first(left: &Left) {
    let mut wait = libc::pollfd { fd: left.keeper.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one value.
    assert_eq!(unsafe { libc::syscall(libc::SYS_poll, &mut wait, 1, -1) }, 1);
}

#[test]
fn a_successor_is_given_all_sockets_though_the_kernel_refuses_to_have_more_on_their_way() {
    /// More than the keeper's own descriptors, and fewer than wait for a successor at once.
    const LIMIT: u64 = 24;
    let kept = Kept::new("refused", 60);
    let keeper = connect(&kept.name).expect("it listens");
    // By then the keeper has accepted the connection before, and needs no further descriptor.
    assert!(ask_for_listener(&kept.name).expect("it answers").is_some());
    let limit = libc::rlimit64 { rlim_cur: LIMIT, rlim_max: LIMIT };
    // SAFETY: the pointer is to a limit; the process is a child of this one.
    sys::checked(unsafe { libc::syscall(libc::SYS_prlimit64, kept.keeper, libc::RLIMIT_NOFILE, &limit, 0usize) }).expect("its limit");
    // SAFETY: the pointer is to one byte.
    sys::checked(unsafe { libc::syscall(libc::SYS_write, keeper.as_raw_fd(), &CONNECTIONS, 1) }).expect("it is there");
    let left = Left { keeper, sockets: Vec::new() };
    await_first(&left);
    while kept.waits_in().is_none() {
        std::thread::yield_now();
    }
    let left = left.receive().expect("it answers").expect("it has let go");
    assert_eq!(left.sockets.len(), kept.sockets.len());
    left.dismiss();
    while !SUCCEEDED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn a_keeper_serves_the_next_successor_while_the_one_before_it_takes_nothing() {
    /// The kernel counts more for a message, however short it is.
    const LEAST_BYTES: usize = 512;
    let room = std::fs::read_to_string("/proc/sys/net/core/wmem_default").expect("the kernel says it");
    let messages = room.trim().parse::<usize>().expect("a number") / LEAST_BYTES + 2;
    let kept = Kept::new("stopped", messages * SOCKETS_A_MESSAGE);
    // As of a successor that has died, and whose own keeper holds its descriptors.
    let first = kept.ask_and_take_nothing();
    let name = kept.name.clone();
    // Not joined if this fails: it might wait for ever.
    let asks = std::thread::spawn(move || ask(&name).expect("it answers").expect("it has let go"));
    while !asks.is_finished() {
        assert_ne!(kept.waits_in(), Some(libc::SYS_sendmsg), "the keeper waits for one that takes nothing, and another one asks");
        std::thread::yield_now();
    }
    assert_eq!(asks.join().expect("no panic").sockets.len(), kept.sockets.len());
    drop(first);
}

/// Whether a keeper of this process waits for what one other process says, and for nothing else.
fn is_in_read() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the kernel lists threads").flatten();
    let children: Vec<String> = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
    let mut children = children.iter().flat_map(|line| line.split_ascii_whitespace());
    let read = format!("{} ", libc::SYS_read);
    let begins =
        |pid: &str, file: &str, with: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).is_ok_and(|text| text.starts_with(with));
    children.any(|pid| begins(pid, "comm", "martlet-keeper") && begins(pid, "syscall", &read))
}

#[test]
fn a_keeper_serves_the_next_successor_while_the_one_before_it_has_said_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("martlet-keeper-test-{}", std::process::id());
    let (own, (tell, started)) = (name.clone(), std::sync::mpsc::channel());
    // The keeper shares that thread's own storage.
    std::thread::spawn(move || {
        tell.send(start(&own, Keeps::All)).expect("it is waited for");
        loop {
            std::thread::park();
        }
    });
    started.recv().expect("it starts").expect("a keeper");
    assert!(ask(&name).expect("it answers").is_none(), "its process lives, and has let go of nothing");
    LET_GO.store(true, Ordering::SeqCst);
    // As of successors that have died, and whose own keepers hold their descriptors: some died before they could ask, more than there is room for, and some
    // before they had everything.
    let mut silent: Vec<Connection> = Vec::new();
    for _ in 0..=MOST_SILENT {
        // Until the keeper has accepted those before, there may be no room.
        silent.push(loop {
            match Connection::new(&name) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                connection => break connection.expect("it listens"),
            }
        });
    }
    let answered = std::thread::scope(|scope| {
        let asks = scope.spawn(|| [(); 2].map(|()| ask(&name).expect("it answers").expect("it has let go")));
        while !asks.is_finished() {
            assert!(!is_in_read(), "the keeper waits for one that may say nothing, and another one asks");
            std::thread::yield_now();
        }
        asks.join().expect("no panic")
    });
    assert!(!SUCCEEDED.load(Ordering::SeqCst), "none has said that it has all");
    let [first, second] = answered;
    drop((first, second));
    assert!(silent.remove(0).begin_to_ask().and_then(Left::receive).is_err(), "it has made room for others");
    let by_it = silent.pop().expect("some").begin_to_ask().and_then(Left::receive);
    by_it.expect("it answers").expect("it has let go").dismiss();
    while !SUCCEEDED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(silent);
    LET_GO.store(false, Ordering::SeqCst);
    SUCCEEDED.store(false, Ordering::SeqCst);
}

/// Tells a process that it is to have a keeper, and no further descriptor.
const FULL: &str = "MARTLET_TEST_FULL";

/// A process that [`FULL`] names, and that process's keeper.
struct Full {
    name: String,
    process: std::process::Child,
    keeper: libc::pid_t,
}

impl Full {
    /// This test's program, which runs that one test, and whose keeper keeps this.
    fn new(test: &str, keeps: Keeps) -> Full {
        let name = format!("martlet-keeper-full-{keeps:?}-{}", std::process::id());
        let program = std::env::current_exe().expect("the kernel says it");
        let (module, _) = std::any::type_name::<Full>().rsplit_once("::").expect("a path");
        let (_, module) = module.split_once("::").expect("the crate");
        let mut process = std::process::Command::new(program)
            .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
            .env(FULL, &name)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = std::io::BufReader::new(process.stdout.take().expect("a pipe"));
        let mut lines = std::io::BufRead::lines(said).map_while(Result::ok);
        let keeper = lines.find_map(|line| line.split_once("keeper ")?.1.trim().parse().ok()).expect("it says that it is full");
        Full { name, process, keeper }
    }

    /// What such a process does. All its descriptors are of a connection to its service.
    fn fill(name: &str) -> ! {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(64);
        setrlimit(Resource::Nofile, limit).expect("less is always allowed");
        HOLDS.store(true, Ordering::SeqCst);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _client = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (one, _) = listener.accept().expect("it has connected");
        SERVICE.store(listener.as_raw_fd(), Ordering::SeqCst);
        let keeps = if name.contains("Service") { Keeps::Service } else { Keeps::All };
        start(name, keeps).expect("a keeper");
        let children = std::fs::read_to_string("/proc/thread-self/children").expect("the kernel lists them");
        let mut all = Vec::new();
        while let Ok(another) = one.try_clone() {
            HIGHEST.fetch_max(another.as_raw_fd(), Ordering::SeqCst);
            all.push(another);
        }
        println!("keeper {children}");
        loop {
            std::thread::park();
        }
    }

    /// A number from the kernel's account of the keeper.
    fn count(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.keeper)).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("the kernel says it");
        line.trim_start_matches(':').trim().parse().expect("a number")
    }

    /// The keeper sleeps now and then. A keeper that tries over and over is busy all the time, and is never at rest by itself.
    fn assert_at_rest(&self) {
        let ticks = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.keeper)).expect("it lives");
            let times = stat.rsplit_once(')').expect("its name").1.split_ascii_whitespace().skip(11).take(2);
            times.map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>()
        };
        let (sleeps, before) = (self.count("voluntary_ctxt_switches"), ticks());
        while self.count("voluntary_ctxt_switches") < sleeps + 3 {
            assert!(ticks() < before + 100, "the keeper is at work all the time");
            std::thread::yield_now();
        }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // SAFETY: a plain system call; if the keeper has ended, no other process has its number so soon.
        unsafe { libc::syscall(libc::SYS_kill, self.keeper, libc::SIGKILL) };
    }
}

#[test]
fn a_keeper_whose_process_had_all_descriptors_that_it_may_have_serves_its_successors() {
    if let Ok(name) = std::env::var(FULL) {
        Full::fill(&name);
    }
    for keeps in [Keeps::All, Keeps::Service] {
        serves_successors_of_one_that_was_full(keeps);
    }
}

fn serves_successors_of_one_that_was_full(keeps: Keeps) {
    let mut full = Full::new("a_keeper_whose_process_had_all_descriptors_that_it_may_have_serves_its_successors", keeps);
    // As of followers that connect in advance. The process, which lives, has no descriptors for them.
    let beforehand = [(); 2].map(|()| Connection::new(&full.name).expect("there is room to wait"));
    full.assert_at_rest();
    full.process.kill().expect("it lives");
    full.process.wait().expect("it is killed");
    let [first, second] = beforehand;
    let left = first.begin_to_ask().and_then(Left::receive).expect("it answers").expect("its process is dead");
    assert!(left.sockets.len() > 40, "{} sockets", left.sockets.len());
    // One after the other, and more than there are spares.
    drop(left);
    let mut last = second.begin_to_ask().and_then(Left::receive).expect("it answers").expect("its process is dead");
    for _ in 0..2 * SPARES {
        last = ask(&full.name).expect("it answers").expect("its process is dead");
    }
    last.dismiss();
}

#[test]
fn those_that_say_nothing_stand_in_the_order_in_which_they_came_and_the_first_makes_room() {
    let mut silent = [-1; MOST_SILENT];
    for client in 0..MOST_SILENT as RawFd {
        assert_eq!(queue(&mut silent, 100 + client), -1);
    }
    assert!(silent.iter().copied().eq(100..100 + MOST_SILENT as RawFd));
    assert_eq!(queue(&mut silent, 200), 100, "all places are taken");
    // One in the middle has asked.
    silent[3] = -1;
    assert_eq!(queue(&mut silent, 201), -1);
    assert!(silent.iter().copied().eq([101, 102, 103].into_iter().chain(105..100 + MOST_SILENT as RawFd).chain([200, 201])));
}

/// Names the service in which a process of this test's program is to take part: its cluster's name and its address.
const PART: &str = "MARTLET_KEEPER_TEST_PART";

/// A process that takes part in a service and holds connections, and its keeper's name.
struct Part {
    process: std::process::Child,
    keeper: String,
}

impl Part {
    fn new(test: &str, cluster: &str, address: std::net::SocketAddr) -> Part {
        let program = std::env::current_exe().expect("the kernel says it");
        let (module, _) = std::any::type_name::<Part>().rsplit_once("::").expect("a path");
        let (_, module) = module.split_once("::").expect("the crate");
        let mut process = std::process::Command::new(program)
            .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
            .env(PART, format!("{cluster} {address}"))
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = std::io::BufReader::new(process.stdout.take().expect("a pipe"));
        let mut lines = std::io::BufRead::lines(said).map_while(Result::ok);
        let keeper = lines.find_map(|line| Some(line.split_once("kept by ")?.1.trim().to_owned())).expect("it takes part");
        Part { process, keeper }
    }

    /// What such a process does.
    fn live(part: &str) -> ! {
        let (cluster, address) = part.split_once(' ').expect("two words");
        let service = Service::open(cluster, address.parse().expect("an address"), 0).expect("it takes part");
        HOLDS.store(true, Ordering::SeqCst);
        println!("kept by {}", service.keeper_of(service.holder));
        loop {
            std::thread::park();
        }
    }

    fn kill(&mut self) {
        self.process.kill().expect("it lives");
        self.process.wait().expect("it is killed");
    }

    fn is_kept(&self) -> bool {
        connect(&self.keeper).is_ok()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        is_over(&self.keeper);
    }
}

#[test]
fn connections_are_kept_for_whoever_lives_and_not_once_the_last_has_ended_in_order() {
    if let Ok(part) = std::env::var(PART) {
        Part::live(&part);
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = format!("parts-{}", std::process::id());
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let test = "connections_are_kept_for_whoever_lives_and_not_once_the_last_has_ended_in_order";
    let [mut one, mut other] = [(); 2].map(|()| Part::new(test, &cluster, address));
    // This process ends in order, over and over.
    let end = || {
        HOLDS.store(true, Ordering::SeqCst);
        Ending { kind: kind(&cluster, address), own: "none".into() }.end();
        LEAVES.store(false, Ordering::SeqCst);
        HOLDS.swap(false, Ordering::SeqCst)
    };
    assert!(end() && one.is_kept() && other.is_kept(), "two live");
    one.kill();
    assert!(end() && one.is_kept() && other.is_kept(), "the other one may go on with what is kept");
    is_over(&other.keeper);
    assert!(other.is_kept(), "whatever is said of one that lives and does not end");
    other.kill();
    assert!(!end(), "nobody may");
    assert!(!one.is_kept() && !other.is_kept());
}

#[test]
fn a_process_of_another_pid_namespace_takes_no_part_in_a_service() {
    if let Ok(part) = std::env::var(PART) {
        Part::live(&part);
    }
    let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let unshare = |way: &&[&str]| {
        let mut command = std::process::Command::new("unshare");
        command.args(*way).args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command
    };
    let Some(way) = ways.into_iter().find(|way| unshare(way).arg("true").output().is_ok_and(|ran| ran.status.success())) else {
        eprintln!("SKIPPED: a process in a PID namespace of its own; this needs the right to make one (unshare --pid)");
        return;
    };
    let cluster = format!("apart-{}", std::process::id());
    let address: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let test = "a_process_of_another_pid_namespace_takes_no_part_in_a_service";
    let one = Part::new(test, &cluster, address);
    let (_, module) = module_path!().split_once("::").expect("the crate");
    let said = unshare(&way)
        .arg(std::env::current_exe().expect("the kernel says it"))
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(PART, format!("{cluster} {address}"))
        .output()
        .expect("it has just worked");
    let said = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.contains(&format!("Apart {{ address: {address}, process: {} }}", one.process.id())), "{said}");
}

#[test]
fn a_keeper_that_is_stopped_keeps_no_process_waiting_and_answers_when_it_goes_on() {
    let kept = Kept::new("frozen", 10);
    let keeper = Pid::from_raw(kept.keeper).expect("a process");
    rustix::process::kill_process(keeper, rustix::process::Signal::STOP).expect("ours");
    while !martlet_fabric::host::stat::Stat::of(kept.keeper).expect("it lives").is_stopped() {
        std::thread::yield_now();
    }
    let mut left = Connection::new(&kept.name).and_then(Connection::begin_to_ask).expect("it listens");
    for _ in 0..3 {
        left = match left.hear(Duration::from_millis(1)).expect("it is there") {
            Said::Less(left) => left,
            said => panic!("{said:?}"),
        };
    }
    assert!(ask_for_listener(&kept.name).is_err() && !ends(&kept.name), "nor does any other question wait for ever");
    // Its backlog fills.
    while let Ok(silent) = Connection::new(&kept.name) {
        std::mem::forget(silent);
    }
    assert!(begin_to_ask(&kept.name).is_err());
    rustix::process::kill_process(keeper, rustix::process::Signal::CONT).expect("ours");
    assert_eq!(left.receive().expect("it goes on").expect("it has let go").sockets.len(), kept.sockets.len());
}

#[test]
fn a_keeper_that_dies_is_replaced_and_leaves_nobody_waiting() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    LET_GO.store(false, Ordering::SeqCst);
    let name = format!("martlet-mended-test-{}", std::process::id());
    let own = name.clone();
    std::thread::spawn(move || {
        let child = || std::fs::read_to_string("/proc/thread-self/children").expect("the kernel lists them");
        start(&own, Keeps::All).expect("a keeper");
        let mut before = child();
        for _ in 0..3 {
            assert!(mend().is_none(), "it lives");
            let early = Connection::new(&own).expect("it listens");
            // They are accepted in their order.
            assert!(ask(&own).expect("it answers").is_none(), "its process lives");
            let keeper: i32 = before.trim().parse().expect("one child");
            rustix::process::kill_process(rustix::process::Pid::from_raw(keeper).expect("a process"), rustix::process::Signal::KILL)
                .expect("ours");
            let mended = loop {
                if let Some(mended) = mend() {
                    break mended;
                }
            };
            assert!(matches!(mended, Mended::Replaced), "{mended:?}");
            assert!(early.begin_to_ask().and_then(Left::receive).is_err(), "the dead one had accepted it, and nobody would answer");
            assert!(ask(&own).expect("another one answers").is_none());
            let after = child();
            assert_ne!(std::mem::replace(&mut before, after.clone()), after);
        }
    })
    .join()
    .expect("it does");
}
