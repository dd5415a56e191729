//! The faults that hit the hosts, and what has to hold afterwards.

use std::time::{Duration, Instant};

use super::cluster::{Cluster, NODES};
use super::rig::Rig;

/// How often a host's TCP connections are reset in a row.
const RESETS: usize = 10;
/// How soon the cluster has to be whole again after a fault is over.
const WHOLE_WITHIN: Duration = Duration::from_secs(10);

/// Waits until the cluster is whole. Returns how long that took.
fn whole_again(hosts: &Cluster<'_>, witness: usize, after: &str) -> Result<u128, String> {
    let took = hosts.wait_until_whole(witness)?;
    if took > WHOLE_WITHIN {
        return Err(format!("{after}: the cluster was whole after {took:?}; allowed is {WHOLE_WITHIN:?}"));
    }
    Ok(took.as_millis())
}

/// Runs rounds of all faults, each on one host in turn: so many rounds, or for so long.
///
/// # Errors
/// What did not hold.
pub fn rounds(rig: &Rig, hosts: &mut Cluster<'_>, rounds: usize, lasting: Option<Duration>) -> Result<(), String> {
    let began = Instant::now();
    let goes_on = |round| lasting.map_or(round < rounds, |lasting| began.elapsed() < lasting);
    let mut round = 0;
    while goes_on(round) {
        let (victim, witness) = (round % NODES, (round + 1) % NODES);
        reset_connections(rig, hosts, victim, witness)?;
        hosts.kill(victim);
        let waited = hosts.write(witness)?;
        println!("node {victim} killed: the next write is acknowledged after {} ms", waited.as_millis());
        hosts.start(victim)?;
        println!("node {victim} is back after {} ms", whole_again(hosts, witness, "a node killed and started")?);
        rig.cut(victim, true)?;
        let waited = hosts.write(witness)?;
        println!("the link of node {victim} cut: the next write is acknowledged after {} ms", waited.as_millis());
        rig.cut(victim, false)?;
        println!("node {victim} is back after {} ms", whole_again(hosts, witness, "a link cut and mended")?);
        hosts.check(victim)?;
        round += 1;
    }
    println!("all {} keys are there after {round} rounds", hosts.written());
    Ok(())
}

fn reset_connections(rig: &Rig, hosts: &mut Cluster<'_>, victim: usize, witness: usize) -> Result<(), String> {
    hosts.wait_until_whole(witness)?;
    let (before, mut longest) = (hosts.view(witness)?, Duration::ZERO);
    for _ in 0..RESETS {
        // Ctrl-C ends `ss` as well, which has then reset nothing.
        hosts.reset(victim).or_else(|why| rig.family.check().and(Err(why)))?;
        longest = longest.max(hosts.write(witness)?);
    }
    hosts.wait_until_whole(witness)?;
    let after = hosts.view(witness)?;
    if after != before {
        return Err(format!("the TCP connections of node {victim} were reset, and view {before} was followed by view {after}"));
    }
    println!(
        "the TCP connections of node {victim} reset {RESETS} times: view {before} goes on, a write takes {} ms at most",
        longest.as_millis()
    );
    Ok(())
}

/// Does each of two things so many times: the leading node is killed and started again, and its host is cut off until the others go on. In the second case its
/// node has to come back by itself.
///
/// # Errors
/// What did not hold.
pub fn rejoins(rig: &Rig, hosts: &mut Cluster<'_>, count: usize) -> Result<(), String> {
    let mut witness = 0;
    hosts.wait_until_whole(witness)?;
    for (cuts, name) in [(false, "leaders killed"), (true, "hosts of leaders cut off")] {
        let (mut writes, mut returns) = (Vec::new(), Vec::new());
        for done in 0..count {
            let leader = hosts.leader(witness)?;
            witness = (leader + 1) % NODES;
            if cuts {
                rig.cut(leader, true)?;
            } else {
                hosts.kill(leader);
            }
            writes.push(hosts.write(witness)?.as_millis());
            if cuts {
                rig.cut(leader, false)?;
            } else {
                hosts.start(leader)?;
            }
            returns.push(whole_again(hosts, witness, &format!("{done} {name}, and one more"))?);
        }
        println!("{count} {name}: {count} nodes are back");
        println!("  the next write is acknowledged after   {}", spread(&mut writes));
        println!("  the cluster is whole after the fault's end {}", spread(&mut returns));
    }
    hosts.check(witness)?;
    println!("all {} keys are there", hosts.written());
    Ok(())
}

fn spread(all: &mut [u128]) -> String {
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent).div_ceil(100) - 1];
    format!("p50 {} ms, p99 {} ms, at most {} ms", at(50), at(99), at(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_times_the_second_longest_is_the_99th_percentile() {
        assert_eq!(spread(&mut (1..=100).rev().collect::<Vec<_>>()), "p50 50 ms, p99 99 ms, at most 100 ms");
        assert_eq!(spread(&mut [7]), "p50 7 ms, p99 7 ms, at most 7 ms");
    }
}
