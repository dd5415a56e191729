//! `martlet lives-on`: a program that lives on through what is no death. Not for people, so it is hidden.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use clap::Args;
use martlet_cluster::directory::own_command;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::output;
use martlet_fabric::host::process::{PARENT, disable_core_dumps, end_with_parent};
use martlet_warden::AppId;
use martlet_warden::client::Warden;

/// Live on, until killed.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Arguments {
    /// The socket of the warden that it registers with.
    #[arg(long, value_name = "PATH", requires = "app")]
    socket: Option<PathBuf>,
    /// As which application.
    #[arg(long, value_name = "N", requires = "socket")]
    app: Option<i64>,
    /// Its first thread acts for it, and each thread that it starts.
    #[arg(long, requires = "socket")]
    acts: bool,
    /// It handles SIGTERM.
    #[arg(long)]
    handles: bool,
}

/// It says this once it is what it was started as.
pub(super) const READY: &str = "ready";
/// It says this when it has obeyed.
pub(super) const DONE: &str = "done";
/// To answer.
pub(super) const ANSWER: &str = "answer";
/// To answer once it has handled a SIGTERM more.
pub(super) const HANDLE: &str = "handle";
/// To have a thread begin and end.
pub(super) const END_THREAD: &str = "end a thread";
/// To become the same program once more.
pub(super) const EXEC: &str = "exec";
/// The same, by another thread than the first.
pub(super) const EXEC_BY_ANOTHER: &str = "exec by another thread";

fn say(what: &str) {
    output::raw(format!("{what}\n").as_bytes());
}

/// Does what it is told on standard input, a line each.
///
/// # Errors
/// When it cannot begin, or is told something else.
pub fn run(arguments: &Arguments) -> Outcome {
    end_with_parent().context("cannot tie ourselves to our parent")?;
    disable_core_dumps().context("cannot turn core dumps off")?;
    let handler = arguments.handles.then(Interrupt::install_without_end).transpose().context("cannot handle signals")?;
    let mut warden = None;
    if let (Some(socket), Some(app)) = (&arguments.socket, arguments.app) {
        let mut found = Warden::connect(socket, "lives on").map_err(Fail::failed)?;
        found.join(AppId::new(app).map_err(Fail::usage)?).map_err(Fail::failed)?;
        warden = Some(found);
    }
    let threads = warden.as_ref().filter(|_| arguments.acts).map(Warden::threads);
    let _acting = threads.as_ref().map(|threads| threads.act()).transpose().map_err(Fail::failed)?;
    say(READY);
    for line in std::io::stdin().lines() {
        match line.context("cannot hear orders")?.as_str() {
            ANSWER => {}
            HANDLE => {
                let handler = handler.as_ref().ok_or_else(|| Fail::usage("without --handles no signal is handled"))?;
                // It has been sent: the handler runs before this thread, or another one that has been given it, goes on.
                while !handler.take() {
                    std::thread::yield_now();
                }
            }
            END_THREAD => {
                let threads = threads.clone();
                let thread = std::thread::spawn(move || {
                    // It ends without giving its word back: it dies.
                    threads.map(|threads| threads.act().map(std::mem::forget)).transpose()
                });
                thread.join().map_err(|_| Fail::failed("a thread has panicked"))?.map_err(Fail::failed)?;
            }
            EXEC => exec()?,
            EXEC_BY_ANOTHER => std::thread::spawn(exec).join().map_err(|_| Fail::failed("a thread has panicked"))??,
            other => return Err(Fail::usage(format_args!("no such order: {other}"))),
        }
        say(DONE);
    }
    Ok(())
}

/// Becomes the same program once more, with the same arguments.
fn exec() -> Outcome {
    // Its parent stays the same.
    Err(own_command()?.env_remove(PARENT).args(std::env::args_os().skip(1)).exec()).context("cannot become the same program once more")
}
