//! Three replicas of an application, each a process: the one that measures, and two that follow.

use martlet_cluster::directory::Plan;
use martlet_cluster::fail::{Context as _, Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::watch::observer;
use martlet_node::config::Idle;
use martlet_node::sched;

use super::super::super::alone::NODES;
use super::application::Application;
use super::node::Threading;
use super::series::Measured;
use crate::trial::testbed::{PATIENCE, Testbed};

/// The leader: the first to be there, and the lowest.
const LEADER: u16 = 0;
/// The file in which it leaves what it has measured.
const MEASURED: &str = "measured";

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

/// Starts a replica.
fn spawn(testbed: &mut Testbed, number: u16, task: &Task) -> Outcome {
    let leads = number == LEADER;
    let core = if leads { task.cores.leader } else { task.cores.followers };
    let idle = match core {
        // On a single core everybody has to give way, and nobody may sleep through what is due.
        None => Idle::Yield,
        Some(_) if leads => Idle::Spin,
        Some(_) => Idle::Adaptive,
    };
    let record = testbed.file(MEASURED);
    testbed.spawn_as(number, "attached-node", |command| {
        command.args(["--application", task.application.flag(), "--idle", idle.name()]);
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        if leads {
            command.args(["--measure", task.threading.name(), "--samples", &task.samples.to_string()]);
            command.arg("--record").arg(record);
            if let Some(core) = task.cores.caller {
                command.args(["--caller-core", &core.to_string()]);
            }
        }
    })
}

/// Starts a cluster that looks like that, lets its leader measure, and ends it.
pub fn measure(plan: &Plan, task: &Task, interrupt: &Interrupt) -> Outcome<Measured> {
    let mut testbed = Testbed::prepare(plan, interrupt)?;
    spawn(&mut testbed, LEADER, task)?;
    testbed.await_that(PATIENCE, "nobody led", |sights| observer::primary(sights).is_some())?;
    (1..NODES).try_for_each(|number| spawn(&mut testbed, number, task))?;
    let numbers = testbed.running();
    // It may have measured before anybody has looked.
    testbed.await_that_or_end(Some(LEADER), PATIENCE, "the cluster was not whole", |sights| observer::is_whole(sights, &numbers))?;
    // Nobody looks on while it measures.
    testbed.look_away();
    testbed.await_own_end(LEADER)?;
    let file = testbed.file(MEASURED);
    let measured = Measured::load(&file).context(format_args!("cannot read {}", file.display()))?;
    let measured = measured.ok_or_else(|| Fail::failed(format_args!("{} was cut short", file.display())))?;
    (1..NODES).try_for_each(|number| testbed.end_node(number))?;
    let left = testbed.end()?;
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
