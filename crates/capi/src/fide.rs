//! Failure detection by the warden of the host: the calls of FiDe's Listing 1.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use martlet_warden::client::{ActError, Acting, Error, Failure as HowFailed, Handler, Threads, Warden};
use martlet_warden::{AppId, Resources, place};

use crate::bytes::{slice, text};
use crate::options::{Grows, sized};
use crate::status::martlet_status::{MARTLET_BUSY, MARTLET_FAILED, MARTLET_OK, MARTLET_TOO_LONG};
use crate::status::{Failure, bad, call, martlet_status, null};

/// The largest message that martlet_fide_piggyback takes, in bytes.
pub const MARTLET_MAX_PIGGYBACK_BYTES: u32 = 1418;
const _: () = assert!(MARTLET_MAX_PIGGYBACK_BYTES == martlet_warden::MAX_PIGGYBACK_BYTES, "the header says what is so");

/// A program's registration with the warden of its host. It is used by one thread at a time; a call beside another ends with MARTLET_BUSY.
pub struct martlet_fide {
    warden: Mutex<Warden>,
    threads: Threads,
}

thread_local! {
    /// The calling thread's death words, one a registration, given back when the thread ends in order.
    static ACTING: RefCell<Vec<Acting>> = const { RefCell::new(Vec::new()) };
}

/// What is asked of an application that is monitored, and what is granted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct martlet_resources {
    /// How large messages it may send, in bytes.
    pub pbsize: u32,
    /// Zero.
    pub reserved: u32,
    /// How long its host may be silent before it is presumed dead, in nanoseconds; 0 asks for the shortest. Granted is 0 on one host: nothing is presumed there.
    pub timeout_ns: u64,
}

/// How it is known that an application has failed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum martlet_evidence {
    /// Certain: the kernel marked the words of all threads that acted for it.
    MARTLET_BY_WORDS = 1,
    /// Certain: the kernel says that its process has ended.
    MARTLET_BY_PROCESS = 2,
    /// Certain: the warden of its host says so, and proves that the application had chosen it.
    MARTLET_BY_CERTIFICATE = 3,
    /// Presumed: its host has been silent for longer than planned.
    MARTLET_BY_SILENCE = 4,
    /// Certain: programs inside the kernel marked the death of all threads that acted for it, or of its process, before the kernel's own words said so.
    MARTLET_BY_MARKS = 5,
}

/// How an application has failed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct martlet_failure {
    /// How that is known.
    pub evidence: martlet_evidence,
    /// 1: it does nothing any more. 0: it may.
    pub is_certain: u32,
    /// When the warden of this host learned it, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Which life of the application it was.
    pub incarnation: u64,
    /// For versions to come; zero.
    pub reserved: [u64; 4],
}

/// What a program is told, inside of martlet_fide_poll. Any but the size may be zero. A callback may call what takes a handle.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct martlet_fide_callbacks {
    /// sizeof(martlet_fide_callbacks). Must be set.
    pub size: usize,
    /// Handed to every callback.
    pub context: *mut c_void,
    /// An application that this program monitors has failed. It is monitored no longer.
    pub on_failure: Option<unsafe extern "C" fn(context: *mut c_void, appid: c_int, failure: *const martlet_failure)>,
    /// An application that this program monitors sends a message. Numbers that are left out are messages that were lost.
    pub on_piggyback_rcv: Option<unsafe extern "C" fn(context: *mut c_void, appid: c_int, seq: u64, message: *const u8, length: usize)>,
    /// The timeout of an application that this program monitors is another one. 0: it has quit, and is monitored no longer.
    pub on_timeout_changed: Option<unsafe extern "C" fn(context: *mut c_void, appid: c_int, timeout_ns: u64)>,
    /// This application is monitored by one more, which asks for messages of this size; by 0 that is no application itself.
    pub on_monitor_req: Option<unsafe extern "C" fn(context: *mut c_void, appid: c_int, pbsize: u32)>,
    /// How large this application's messages may be from now on.
    pub on_pbsize_changed: Option<unsafe extern "C" fn(context: *mut c_void, pbsize: u32)>,
    /// Of the two paths to that host one is lost: another failure of the network would be taken for its death.
    pub on_redundancy_lost: Option<unsafe extern "C" fn(context: *mut c_void, host: u16, path: u8)>,
    /// It is back.
    pub on_redundancy_recovered: Option<unsafe extern "C" fn(context: *mut c_void, host: u16, path: u8)>,
    /// The warden is gone. Ends of processes of this host are still told, later.
    pub on_warden_lost: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// There is a warden again, and this program has registered there; with another status than MARTLET_OK it refuses something, which `why` says.
    pub on_warden_back: Option<unsafe extern "C" fn(context: *mut c_void, registered: martlet_status, why: *const c_char)>,
}

impl Grows for martlet_fide_callbacks {
    const LEAST_BYTES: usize = size_of::<martlet_fide_callbacks>();
}

fn of_error(error: Error) -> Failure {
    let status = match &error {
        Error::TooLong(_) => MARTLET_TOO_LONG,
        Error::Process { .. } => return bad("pid", format_args!(": {error}")),
        Error::Connect { .. } | Error::Gone(_) | Error::Refused(_) | Error::Strange { .. } | Error::System { .. } => MARTLET_FAILED,
    };
    Failure(status, error.to_string())
}

fn app(number: c_int) -> Result<AppId, Failure> {
    AppId::new(i64::from(number)).map_err(|error| bad("appid", format_args!(": {error}")))
}

fn number(app: AppId) -> c_int {
    c_int::try_from(app.get()).expect("no application has a larger number")
}

/// Runs a call on the registration behind a handle.
///
/// # Safety
/// `fide` is null or one that martlet_fide_open gave and martlet_fide_close has not had.
unsafe fn with(fide: *const martlet_fide, body: impl FnOnce(&mut Warden) -> Result<(), Failure>) -> Result<(), Failure> {
    // SAFETY: the caller's promise; the value is only ever shared.
    let fide = unsafe { fide.as_ref() }.ok_or_else(|| null("fide"))?;
    match fide.warden.try_lock() {
        Ok(mut warden) => body(&mut warden),
        Err(TryLockError::Poisoned(held)) => body(&mut held.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure(MARTLET_BUSY, "another thread uses this registration just now".into())),
    }
}

/// Connects to the warden of this host, and gives a handle. `socket` is where it listens; NULL: what MARTLET_WARDEN in the environment says, or
/// /run/martlet/warden.sock. `name` is what people are shown; NULL: what the system calls the process.
///
/// # Safety
/// The texts are null or end with a NUL; `fide` points to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_open(socket: *const c_char, name: *const c_char, fide: *mut *mut martlet_fide) -> martlet_status {
    call(|| {
        if fide.is_null() {
            return Err(null("fide"));
        }
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { fide.write(std::ptr::null_mut()) };
        // SAFETY: by the caller's promise.
        let (socket, name) = unsafe { (text(socket, "socket")?, text(name, "name")?) };
        let socket = socket.map_or_else(place::default_socket, PathBuf::from);
        let warden = Warden::connect(&socket, name.unwrap_or("")).map_err(of_error)?;
        let threads = warden.threads();
        let handle = Box::into_raw(Box::new(martlet_fide { warden: Mutex::new(warden), threads }));
        // SAFETY: as above.
        unsafe { fide.write(handle) };
        Ok(())
    })
}

/// Ends a registration. An application that has not quit stays watched, and its end will be a failure. Null is allowed.
///
/// # Safety
/// `fide` is null or one that martlet_fide_open gave; no call uses it, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_close(fide: *mut martlet_fide) {
    call(|| {
        if !fide.is_null() {
            // SAFETY: martlet_fide_open made it of a box, and by the caller's promise it is closed once.
            drop(unsafe { Box::from_raw(fide) });
        }
        Ok(())
    });
}

/// The program is this application from now on: its monitors are told when it fails. Numbers are 1 to 1073741823.
///
/// # Safety
/// As martlet_fide_quit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_join(fide: *const martlet_fide, appid: c_int) -> martlet_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { with(fide, |warden| warden.join(app(appid)?).map(drop).map_err(of_error)) })
}

/// The application leaves: its end is no failure.
///
/// # Safety
/// `fide` is one that martlet_fide_open gave and martlet_fide_close has not had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_quit(fide: *const martlet_fide) -> martlet_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { with(fide, |warden| warden.quit().map_err(of_error)) })
}

/// Says that the calling thread acts for the program, until it ends or calls martlet_fide_rest. When all acting threads of a program have been killed, the
/// application has failed, which is known sooner than by its process. Any thread may call this at any time; one that acts for this registration already is left as it is.
///
/// # Safety
/// As martlet_fide_quit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_act(fide: *const martlet_fide) -> martlet_status {
    call(|| {
        // SAFETY: the caller's promise; the value is only ever shared.
        let fide = unsafe { fide.as_ref() }.ok_or_else(|| null("fide"))?;
        if ACTING.with_borrow(|held| held.iter().any(|acting| acting.is_by(&fide.threads))) {
            return Ok(());
        }
        let acting = fide.threads.act().map_err(|error| {
            let status = if matches!(error, ActError::Many) { MARTLET_BUSY } else { MARTLET_FAILED };
            Failure(status, error.to_string())
        })?;
        ACTING.with_borrow_mut(|held| held.push(acting));
        Ok(())
    })
}

/// The calling thread acts no more, for no registration.
#[unsafe(no_mangle)]
pub extern "C" fn martlet_fide_rest() {
    call(|| {
        drop(ACTING.take());
        Ok(())
    });
}

/// Asks to be told when an application fails; one that has not joined yet is waited for. What is granted is put where `granted` points, if it is not null.
///
/// # Safety
/// As martlet_fide_quit; `granted` is null or points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_monitor(
    fide: *const martlet_fide,
    appid: c_int,
    wanted: martlet_resources,
    granted: *mut martlet_resources,
) -> martlet_status {
    let want = Resources { pbsize: wanted.pbsize, timeout_ns: wanted.timeout_ns };
    let body = |warden: &mut Warden| {
        let given = warden.monitor(app(appid)?, want).map_err(of_error)?;
        if !granted.is_null() {
            // SAFETY: it is not null, and by the caller's promise there is room.
            unsafe { granted.write(martlet_resources { pbsize: given.pbsize, reserved: 0, timeout_ns: given.timeout_ns }) };
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    call(|| unsafe { with(fide, body) })
}

/// Asks to be told when a process of this host ends, which need not know of wardens. The number by which it is told of is put where `appid` points.
///
/// # Safety
/// As martlet_fide_quit; `appid` points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_monitor_process(fide: *const martlet_fide, pid: c_int, appid: *mut c_int) -> martlet_status {
    let body = |warden: &mut Warden| {
        if appid.is_null() {
            return Err(null("appid"));
        }
        let given = warden.monitor_process(pid).map_err(of_error)?;
        // SAFETY: it is not null, and by the caller's promise there is room.
        unsafe { appid.write(number(given)) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    call(|| unsafe { with(fide, body) })
}

/// To be told of that application no more.
///
/// # Safety
/// As martlet_fide_quit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_unmonitor(fide: *const martlet_fide, appid: c_int) -> martlet_status {
    let body = |warden: &mut Warden| {
        warden.unmonitor(app(appid)?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    call(|| unsafe { with(fide, body) })
}

/// Sends a message to all who monitor this application. Its number, from 1 on, is put where `seq` points, if it is not null.
///
/// # Safety
/// As martlet_fide_quit; `message` points to `length` bytes; `seq` is null or points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_piggyback(
    fide: *const martlet_fide,
    message: *const u8,
    length: usize,
    seq: *mut u64,
) -> martlet_status {
    let body = |warden: &mut Warden| {
        // SAFETY: by the caller's promise.
        let message = unsafe { slice(message, length, "message") }?;
        let sent = warden.piggyback(message).map_err(of_error)?;
        if !seq.is_null() {
            // SAFETY: it is not null, and by the caller's promise there is room.
            unsafe { seq.write(sent) };
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    call(|| unsafe { with(fide, body) })
}

/// A descriptor that is readable when martlet_fide_poll has something to do; it stands until martlet_fide_close. -1: the argument is null. While there is no warden,
/// poll every few milliseconds.
///
/// # Safety
/// As martlet_fide_quit, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_fd(fide: *const martlet_fide) -> c_int {
    let mut fd = -1;
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            with(fide, |warden| {
                fd = warden.fd().as_raw_fd();
                Ok(())
            })
        }
    });
    fd
}

/// What is to be told, until the registration is free again and callbacks may use it.
enum Told {
    Failure(AppId, HowFailed),
    Message(AppId, u64, Vec<u8>),
    Timeout(AppId, u64),
    MonitorReq(Option<AppId>, u32),
    Pbsize(u32),
    Redundancy { host: u16, path: u8, is_lost: bool },
    Lost,
    Back(martlet_status, std::ffi::CString),
}

#[derive(Default)]
struct Queue(Vec<Told>);

impl Handler for Queue {
    fn on_failure(&mut self, app: AppId, failure: HowFailed) {
        self.0.push(Told::Failure(app, failure));
    }
    fn on_piggyback_rcv(&mut self, app: AppId, seq: u64, message: &[u8]) {
        self.0.push(Told::Message(app, seq, message.into()));
    }
    fn on_timeout_changed(&mut self, app: AppId, timeout_ns: u64) {
        self.0.push(Told::Timeout(app, timeout_ns));
    }
    fn on_monitor_req(&mut self, by: Option<AppId>, pbsize: u32) {
        self.0.push(Told::MonitorReq(by, pbsize));
    }
    fn on_pbsize_changed(&mut self, pbsize: u32) {
        self.0.push(Told::Pbsize(pbsize));
    }
    fn on_redundancy_lost(&mut self, host: u16, path: u8) {
        self.0.push(Told::Redundancy { host, path, is_lost: true });
    }
    fn on_redundancy_recovered(&mut self, host: u16, path: u8) {
        self.0.push(Told::Redundancy { host, path, is_lost: false });
    }
    fn on_warden_lost(&mut self) {
        self.0.push(Told::Lost);
    }
    fn on_warden_back(&mut self, registered: Result<(), &Error>) {
        let (status, why) = registered.map_or_else(|error| (MARTLET_FAILED, error.to_string()), |()| (MARTLET_OK, String::new()));
        self.0.push(Told::Back(status, std::ffi::CString::new(why.replace('\0', " ")).unwrap_or_default()));
    }
}

impl martlet_fide_callbacks {
    /// Calls what is set for this.
    ///
    /// # Safety
    /// The callbacks may be called with the context.
    unsafe fn tell(&self, told: &Told) {
        use martlet_evidence::{MARTLET_BY_CERTIFICATE, MARTLET_BY_MARKS, MARTLET_BY_PROCESS, MARTLET_BY_SILENCE, MARTLET_BY_WORDS};
        use martlet_warden::board::Evidence;
        match told {
            Told::Failure(app, failure) => {
                let evidence = match failure.evidence {
                    Evidence::Words => MARTLET_BY_WORDS,
                    Evidence::Process => MARTLET_BY_PROCESS,
                    Evidence::Certificate => MARTLET_BY_CERTIFICATE,
                    Evidence::Silence => MARTLET_BY_SILENCE,
                    Evidence::Marks => MARTLET_BY_MARKS,
                };
                let HowFailed { at_ns, incarnation, .. } = *failure;
                let is_certain = u32::from(failure.evidence.is_certain());
                let failure = martlet_failure { evidence, is_certain, at_ns, incarnation, reserved: [0; 4] };
                if let Some(call) = self.on_failure {
                    // SAFETY: the caller's promise; the pointer is to a live value.
                    unsafe { call(self.context, number(*app), &raw const failure) };
                }
            }
            Told::Message(app, seq, message) => {
                if let Some(call) = self.on_piggyback_rcv {
                    // SAFETY: the caller's promise; the pointer is to so many live bytes.
                    unsafe { call(self.context, number(*app), *seq, message.as_ptr(), message.len()) };
                }
            }
            Told::Timeout(app, timeout_ns) => {
                if let Some(call) = self.on_timeout_changed {
                    // SAFETY: the caller's promise.
                    unsafe { call(self.context, number(*app), *timeout_ns) };
                }
            }
            Told::MonitorReq(by, pbsize) => {
                if let Some(call) = self.on_monitor_req {
                    // SAFETY: the caller's promise.
                    unsafe { call(self.context, by.map_or(0, number), *pbsize) };
                }
            }
            Told::Pbsize(pbsize) => {
                if let Some(call) = self.on_pbsize_changed {
                    // SAFETY: the caller's promise.
                    unsafe { call(self.context, *pbsize) };
                }
            }
            Told::Redundancy { host, path, is_lost } => {
                if let Some(call) = if *is_lost { self.on_redundancy_lost } else { self.on_redundancy_recovered } {
                    // SAFETY: the caller's promise.
                    unsafe { call(self.context, *host, *path) };
                }
            }
            Told::Lost => {
                if let Some(call) = self.on_warden_lost {
                    // SAFETY: the caller's promise.
                    unsafe { call(self.context) };
                }
            }
            Told::Back(status, why) => {
                if let Some(call) = self.on_warden_back {
                    // SAFETY: the caller's promise; the text is live and ends with a NUL.
                    unsafe { call(self.context, *status, why.as_ptr()) };
                }
            }
        }
    }
}

/// Calls back for what has happened. Waits for something to tell for up to `timeout_us` microseconds; negative: without end. 0 mostly reads memory and makes no system
/// call. How much was told is put where `told` points, if it is not null.
///
/// # Safety
/// As martlet_fide_quit; `callbacks` points to what it says, and its callbacks may be called with their context; `told` is null or points to room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn martlet_fide_poll(
    fide: *const martlet_fide,
    timeout_us: i64,
    callbacks: *const martlet_fide_callbacks,
    told: *mut usize,
) -> martlet_status {
    call(|| {
        // SAFETY: by the caller's promise; null functions are a value of an option.
        let callbacks = unsafe { sized(callbacks, "callbacks") }?;
        let at_most = u64::try_from(timeout_us).ok().map(Duration::from_micros);
        let mut queue = Queue::default();
        // SAFETY: the caller's promise.
        unsafe { with(fide, |warden| warden.poll(at_most, &mut queue).map(drop).map_err(of_error)) }?;
        for one in &queue.0 {
            // SAFETY: the caller's promise.
            unsafe { callbacks.tell(one) };
        }
        if !told.is_null() {
            // SAFETY: it is not null, and by the caller's promise there is room.
            unsafe { told.write(queue.0.len()) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsFd as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::net::UnixStream;

    use martlet_warden::daemon;

    use super::*;

    #[test]
    fn a_thread_that_acted_for_a_registration_that_was_closed_acts_for_the_next_one_as_well() {
        let dir = std::env::temp_dir().join(format!("martlet-capi-{}", std::process::id()));
        let options = daemon::Options { socket: dir.join("warden.sock"), mode: 0o600, party: None, marks: false };
        let warden = daemon::Warden::new(&options).expect("the place is free");
        let (stop, stopped) = UnixStream::pair().expect("sockets");
        let thread = std::thread::spawn(move || warden.run(stopped.as_fd(), |_| ()).expect("it serves"));
        let socket = CString::new(options.socket.as_os_str().as_bytes()).expect("no NUL");
        let mut observer = Warden::connect(&options.socket, "observer").expect("a warden");
        for _ in 0..2 {
            let mut fide = std::ptr::null_mut();
            // SAFETY: everything points to what it says, and the handle is closed last.
            let done = unsafe {
                [
                    martlet_fide_open(socket.as_ptr(), std::ptr::null(), &mut fide),
                    martlet_fide_join(fide, 7),
                    martlet_fide_act(fide),
                    martlet_fide_act(fide),
                    // Answered after the warden has taken what was said before.
                    martlet_fide_monitor(fide, 9, martlet_resources::default(), std::ptr::null_mut()),
                ]
            };
            assert_eq!(done, [MARTLET_OK; 5]);
            let (apps, _) = observer.status().expect("it answers");
            let words: Vec<_> = apps
                .iter()
                .filter(|one| one.app.get() == 7 && one.state == martlet_warden::board::State::Alive)
                .map(|one| one.words)
                .collect();
            assert_eq!(words, [1]);
            // SAFETY: it was opened above, and is used no more.
            unsafe { martlet_fide_close(fide) };
        }
        martlet_fide_rest();
        drop((stop, observer));
        thread.join().expect("it ends well");
        std::fs::remove_dir_all(dir).expect("our own");
    }
}
