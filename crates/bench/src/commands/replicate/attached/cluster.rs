//! Three replicas of an application, each a process: the one that measures, and two that follow.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use martlet_cluster::directory::{Directory, Plan};
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::scratch::Scratch;
use martlet_cluster::watch::observer::{self, Observer};
use martlet_node::config::{Cluster, Idle, ThreadsConfig};
use martlet_node::sched;
use rustix::process::{Pid, Signal, kill_process};

use super::super::super::alone::NODES;
use super::application::Application;
use super::node::Threading;
use super::series::Measured;
use crate::report::reference;
use crate::trial::leftovers;

/// How long the cluster may take to become whole.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often somebody looks whether a node has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Who leads: the first to be there, and the lowest.
const LEADER: u16 = 0;

/// Which core is whose; where there is only one, nobody is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The leader's.
    leader: Option<u16>,
    /// The followers', which share it.
    followers: Option<u16>,
    /// With handover, the application's.
    caller: Option<u16>,
}

impl Cores {
    /// Of those that this process may use.
    pub fn of_host() -> Cores {
        Cores::of(&sched::allowed_cores().unwrap_or_default())
    }

    fn of(allowed: &[u16]) -> Cores {
        match *allowed {
            // Followers have little to do, and nobody waits for them.
            [first, second] => Cores { leader: Some(first), followers: Some(second), caller: Some(second) },
            [first, second, third, ..] => Cores { leader: Some(first), followers: Some(third), caller: Some(second) },
            [] | [_] => Cores { leader: None, followers: None, caller: None },
        }
    }

    /// For a report.
    pub fn describe(&self) -> String {
        match (self.leader, self.followers, self.caller) {
            (Some(leader), Some(followers), Some(caller)) => {
                format!("leader on {leader}, both followers on {followers}; with handover the application on {caller}")
            }
            _ => "any".into(),
        }
    }
}

/// What a cluster is for.
pub struct Task {
    pub application: Application,
    pub threading: Threading,
    pub samples: u32,
    pub cores: Cores,
}

/// The cluster while it runs.
struct Running {
    directory: Directory,
    children: Vec<(u16, Child)>,
}

impl Running {
    fn spawn(&mut self, number: u16, task: &Task, scratch: &Scratch) -> Outcome {
        let doing = format!("cannot start node {number}");
        let log = self.directory.log_file(number);
        let out = File::options().create(true).append(true).open(&log).context(&doing)?;
        let err = out.try_clone().context(&doing)?;
        let leads = number == LEADER;
        let core = if leads { task.cores.leader } else { task.cores.followers };
        let idle = match core {
            // On a single core everybody has to give way, and nobody may sleep through what is due.
            None => Idle::Yield,
            Some(_) if leads => Idle::Spin,
            Some(_) => Idle::Adaptive,
        };
        let mut command = reference::own_command()?;
        command.arg("attached-node").arg("--config").arg(self.directory.node_file(number));
        command.args(["--application", task.application.flag(), "--idle", idle.name()]);
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        if leads {
            command.args(["--measure", task.threading.name(), "--samples", &task.samples.to_string()]);
            command.arg("--record").arg(scratch.path().join("measured"));
            if let Some(core) = task.cores.caller {
                command.args(["--caller-core", &core.to_string()]);
            }
        }
        // A group of its own: Ctrl-C at our terminal is for us, and we end it.
        let child = command.process_group(0).stdout(out).stderr(err).spawn().context(&doing)?;
        self.children.push((number, child));
        Ok(())
    }

    /// Whoever has ended, and how.
    fn ended(&mut self) -> Option<(u16, ExitStatus)> {
        self.children.iter_mut().find_map(|(number, child)| Some((*number, child.try_wait().ok()??)))
    }

    fn failed(&self, number: u16, status: ExitStatus) -> Fail {
        let said = self.directory.log_tail(number, 12);
        Fail::failed(format_args!("node {number} ended with {status}; the last it said:\n{said}"))
    }

    /// Waits until the leader has measured, and has ended.
    fn await_figures(&mut self, interrupt: &Interrupt) -> Outcome {
        loop {
            interrupt.check()?;
            match self.ended() {
                Some((LEADER, status)) if status.success() => return Ok(()),
                Some((number, status)) => return Err(self.failed(number, status)),
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Ends the followers in order.
    fn end(&mut self) -> Outcome {
        while let Some((number, mut child)) = self.children.pop() {
            let doing = format!("cannot end node {number}");
            if number != LEADER
                && let Some(pid) = Pid::from_raw(child.id() as i32)
            {
                kill_process(pid, Signal::TERM).context(&doing)?;
            }
            let status = child.wait().context(&doing)?;
            if !status.success() {
                return Err(self.failed(number, status));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            // What cannot be killed is gone; what cannot be waited for dies with us.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a cluster that looks like that, lets its leader measure, and ends it.
pub fn measure(plan: &Plan, task: &Task, interrupt: &Interrupt) -> Outcome<Measured> {
    let scratch = Scratch::new("bench-attached").context("cannot make a temporary directory")?;
    let directory = Directory::new(&scratch.path().join("cluster"));
    std::fs::create_dir(directory.path()).context("cannot make a temporary directory")?;
    let cluster: Cluster =
        directory.create(&Plan { replicas: NODES, coordinators: NODES, threads: ThreadsConfig::default(), ..plan.clone() })?;
    let path = directory.path().to_path_buf();
    let mut running = Running { directory, children: Vec::new() };
    running.spawn(LEADER, task, &scratch)?;
    let mut observer = Observer::open(&cluster)?;
    let mut ended = None;
    let found = observer.wait_for(PATIENCE, interrupt, |sights| {
        ended = running.ended();
        ended.is_some() || observer::primary(sights).is_some()
    })?;
    if let Some((number, status)) = ended {
        return Err(running.failed(number, status));
    }
    found.map_err(|sights| observer::not_ready(&format!("nobody leads after {} s", PATIENCE.as_secs()), &sights))?;
    for number in (0..NODES).filter(|number| *number != LEADER) {
        running.spawn(number, task, &scratch)?;
    }
    let numbers: Vec<u16> = (0..NODES).collect();
    let found = observer.wait_for(PATIENCE, interrupt, |sights| {
        ended = running.ended();
        ended.is_some() || observer::is_whole(sights, &numbers)
    })?;
    if ended.is_none() {
        found.map_err(|sights| observer::not_ready(&format!("the cluster was not whole within {} s", PATIENCE.as_secs()), &sights))?;
    }
    // Nobody looks on while it measures.
    drop(observer);
    running.await_figures(interrupt)?;
    let file = scratch.path().join("measured");
    let measured = Measured::load(&file).context(format_args!("cannot read {}", file.display()))?;
    let measured = measured.ok_or_else(|| Fail::failed(format_args!("{} was cut short", file.display())))?;
    running.end()?;
    drop(running);
    drop(scratch);
    let left = leftovers::of_cluster(&cluster.config().name, &path);
    if left.is_empty() { Ok(measured) } else { Err(Fail::wrong(format_args!("left behind: {}", left.join(", ")))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_has_a_core_of_its_own_wherever_there_are_two() {
        assert_eq!(Cores::of(&[3]).describe(), "any");
        assert_eq!(Cores::of(&[3, 5]).describe(), "leader on 3, both followers on 5; with handover the application on 5");
        assert_eq!(Cores::of(&[3, 5, 6, 7]).describe(), "leader on 3, both followers on 6; with handover the application on 5");
    }
}
