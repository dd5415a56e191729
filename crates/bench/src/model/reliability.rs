//! How likely a group loses what it holds, or ceases to serve: the fine-grained failure model of DARE (section 5).
//!
//! Components fail independently, with exponential lifetimes. Time is cut into epochs; a component that fails in one epoch is back, as a new one, by the end of
//! the next. What is wanted is often less than 1e-14, so probabilities of failure are summed as such, and never as one less those of success.

/// Hours of a year, as the paper counts them.
pub const YEAR_HOURS: f64 = 8760.0;

/// A component, or a whole server, and how many of a hundred fail in a year.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component {
    /// Its name in Table 2.
    pub name: &'static str,
    /// Annual failure rate; more than 1 is possible.
    pub afr: f64,
    /// Mean time to failure that Table 2 gives, in hours.
    pub paper_mttf_hours: f64,
    /// Reliability over 24 hours that Table 2 gives, in nines.
    pub paper_nines: u32,
}

/// Table 2: the worst that the paper's authors found in the literature.
pub const TABLE_2: [Component; 5] = [
    Component { name: "network", afr: 0.010, paper_mttf_hours: 876_000.0, paper_nines: 4 },
    Component { name: "NIC", afr: 0.010, paper_mttf_hours: 876_000.0, paper_nines: 4 },
    Component { name: "DRAM", afr: 0.395, paper_mttf_hours: 22_177.0, paper_nines: 2 },
    Component { name: "CPU", afr: 0.419, paper_mttf_hours: 20_906.0, paper_nines: 2 },
    Component { name: "server", afr: 0.479, paper_mttf_hours: 18_304.0, paper_nines: 2 },
];

/// Failures an hour of a component with that annual failure rate.
pub fn rate(afr: f64) -> f64 {
    afr / YEAR_HOURS
}

/// The probability to fail in an epoch, of what was there at its beginning: with an exponential lifetime it is the same in each.
pub fn hazard(rate: f64, epoch_hours: f64) -> f64 {
    -(-rate * epoch_hours).exp_m1()
}

/// A probability of failure as the number of nines of the probability of success.
pub fn nines(failure: f64) -> f64 {
    -failure.log10()
}

/// A server, by what it consists of: failures an hour of each part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Server {
    /// Of its processor, or its operating system.
    pub cpu: f64,
    /// Of its memory.
    pub memory: f64,
    /// Of its NIC, and of the network between it and the others.
    pub link: f64,
}

impl Server {
    /// Of parts with these annual failure rates.
    pub fn new(cpu_afr: f64, memory_afr: f64, nic_afr: f64, network_afr: f64) -> Server {
        Server { cpu: rate(cpu_afr), memory: rate(memory_afr), link: rate(nic_afr) + rate(network_afr) }
    }

    /// Of anything.
    pub fn any(&self) -> f64 {
        self.cpu + self.reach()
    }

    /// Of what others need to reach its memory.
    pub fn reach(&self) -> f64 {
        self.memory + self.link
    }

    /// Which share of its failures makes a zombie of it, whose memory still answers: those of its processor.
    pub fn zombie_share(&self) -> f64 {
        self.cpu / self.any()
    }
}

fn binomial(n: usize, k: usize) -> f64 {
    (0..k).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64)
}

/// The probability of `k` failures among `n`.
fn of_failures(n: usize, k: usize, hazard: f64) -> f64 {
    binomial(n, k) * hazard.powi(k as i32) * (1.0 - hazard).powi((n - k) as i32)
}

/// How many of `count` components fail in an epoch, once what the first epochs began with is forgotten: the probability of each number.
fn failing(count: usize, hazard: f64) -> Vec<f64> {
    let mut now: Vec<f64> = (0..=count).map(|x| of_failures(count, x, hazard)).collect();
    // Each step takes into account one epoch more. What is left to gain shrinks by the hazard at least; a thousand steps are enough for any below 0.98.
    for _ in 0..1_000 {
        let next: Vec<f64> = (0..=count).map(|x| (x..=count).map(|k| now[count - k] * of_failures(k, x, hazard)).sum()).collect();
        let moved = now.iter().zip(&next).map(|(a, b)| (a - b).abs() / a.max(f64::MIN_POSITIVE)).fold(0.0, f64::max);
        now = next;
        if moved < 1e-13 {
            break;
        }
    }
    now
}

/// The probability that in an epoch more than `tolerated` of `count` components are unavailable: those that failed in it, and in the one before (section 5).
pub fn lost(count: usize, tolerated: usize, hazard: f64) -> f64 {
    let before = failing(count, hazard);
    let unavailable = |u: usize| -> f64 { (0..=u).map(|x| before[x] * of_failures(count - x, u - x, hazard)).sum() };
    // The smallest first, so that they are not lost in the sum.
    (tolerated + 1..=count).rev().map(unavailable).sum()
}

/// A group of servers that replicates in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// How many.
    pub servers: usize,
    /// What each is like.
    pub server: Server,
    /// The length of an epoch, in hours.
    pub epoch_hours: f64,
}

impl Group {
    /// The servers of a quorum.
    pub fn quorum(&self) -> usize {
        self.servers / 2 + 1
    }

    /// The probability to lose what a quorum held: as many memories fail as a quorum has. This is what Figure 7 draws.
    pub fn loses_data(&self) -> f64 {
        lost(self.servers, self.quorum() - 1, hazard(self.server.memory, self.epoch_hours))
    }

    /// The probability that too few servers live for a quorum: nobody is elected, and nothing is served.
    pub fn loses_service(&self) -> f64 {
        lost(self.servers, self.servers - self.quorum(), hazard(self.server.any(), self.epoch_hours))
    }

    /// The probability that a leader which lives cannot write to a quorum, where it counts the memories of servers whose processor is dead.
    pub fn loses_service_with_zombies(&self) -> f64 {
        lost(self.servers, self.servers - self.quorum(), hazard(self.server.reach(), self.epoch_hours))
    }
}

/// An array of disks that outlives the failure of some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Raid {
    /// How many disks may fail: 1 for RAID-5, 2 for RAID-6.
    pub tolerated: u32,
    /// Disks of the array, those for parity among them.
    pub disks: u32,
    /// Annual failure rate of a disk.
    pub disk_afr: f64,
    /// How long it takes to replace a disk and to restore what it held, in hours.
    pub repair_hours: f64,
}

impl Raid {
    /// Mean time to the loss of data, in hours, where only disks fail, each by itself (Chen et al., "RAID: High-Performance, Reliable Secondary Storage", 1994,
    /// section 3.4).
    pub fn mean_time_to_loss(&self) -> f64 {
        let life = YEAR_HOURS / self.disk_afr;
        (0..=self.tolerated).fold(self.repair_hours, |mean, failed| mean * life / (f64::from(self.disks - failed) * self.repair_hours))
    }

    /// The probability to lose data in so many hours.
    pub fn loses_data(&self, hours: f64) -> f64 {
        hazard(1.0 / self.mean_time_to_loss(), hours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the parts of Table 2 over 24 hours.
    fn group(servers: usize) -> Group {
        let [network, nic, memory, cpu, _] = TABLE_2.map(|component| component.afr);
        Group { servers, server: Server::new(cpu, memory, nic, network), epoch_hours: 24.0 }
    }

    #[track_caller]
    fn close(found: f64, wanted: f64, relative: f64) {
        assert!((found / wanted - 1.0).abs() <= relative, "{found:e} is not {wanted:e}");
    }

    #[test]
    fn dare_table_2_mttf_and_nines_follow_from_the_failure_rates() {
        for component in TABLE_2 {
            close(YEAR_HOURS / component.afr, component.paper_mttf_hours, 1e-3);
            assert_eq!(nines(hazard(rate(component.afr), 24.0)) as u32, component.paper_nines, "{component:?}");
        }
    }

    #[test]
    fn dare_5_zombies_are_roughly_half_of_the_failures() {
        close(group(5).server.zombie_share(), 0.5, 0.02);
    }

    /// The values of the printed formula, by another program.
    #[test]
    fn dare_5_data_is_lost_with_the_probability_of_the_printed_formula() {
        for (servers, wanted) in [(3, 1.4e-5), (5, 1.0e-7), (6, 3.3e-10), (7, 7.6e-10), (11, 4.7e-14)] {
            close(group(servers).loses_data(), wanted, 0.05);
        }
    }

    #[test]
    fn dare_figure_7_an_odd_server_more_makes_a_group_less_reliable() {
        for servers in (4..=14).step_by(2) {
            let [less, even, more] = [servers - 1, servers, servers + 1].map(|servers| group(servers).loses_data());
            assert!(even < less && even < more, "{servers}: {less:e} {even:e} {more:e}");
        }
    }

    #[test]
    fn dare_figure_7_seven_servers_overpass_raid_5_and_eleven_raid_6() {
        for disk_afr in [0.02, 0.03, 0.04] {
            for disks in 5..=10 {
                let raid = |tolerated| Raid { tolerated, disks, disk_afr, repair_hours: 24.0 }.loses_data(24.0);
                assert!(group(7).loses_data() < raid(1) && group(11).loses_data() < raid(2), "{disk_afr} {disks}");
            }
        }
    }

    #[test]
    fn raid_has_the_mean_times_of_its_closed_formulas() {
        let raid = |tolerated| Raid { tolerated, disks: 8, disk_afr: 0.03, repair_hours: 24.0 };
        let life = YEAR_HOURS / 0.03;
        close(raid(1).mean_time_to_loss(), life * life / (8.0 * 7.0 * 24.0), 1e-12);
        close(raid(2).mean_time_to_loss(), life * life * life / (8.0 * 7.0 * 6.0 * 24.0 * 24.0), 1e-12);
    }

    #[test]
    fn a_dead_processor_s_memory_keeps_a_group_going_longer() {
        for servers in 3..=14 {
            let group = group(servers);
            assert!(group.loses_service_with_zombies() < group.loses_service());
            // For an odd group losing the data and losing the service take as many failures.
            assert!(servers % 2 == 0 || group.loses_data() <= group.loses_service());
        }
    }

    /// The formula against failures drawn one by one, where they are frequent enough to be counted.
    #[test]
    fn failures_drawn_by_chance_lose_a_group_as_often_as_the_formula_says() {
        const EPOCHS: u32 = 1_000_000;
        let mut rng = fastrand::Rng::with_seed(5);
        for (servers, tolerated, hazard) in [(3, 1, 0.2), (5, 2, 0.2), (7, 3, 0.25), (6, 3, 0.3)] {
            let (mut before, mut lost_epochs) = (0, 0u32);
            for _ in 0..EPOCHS {
                let failed = (0..servers - before).filter(|_| rng.f64() < hazard).count();
                lost_epochs += u32::from(before + failed > tolerated);
                before = failed;
            }
            close(f64::from(lost_epochs) / f64::from(EPOCHS), lost(servers, tolerated, hazard), 0.01);
        }
    }

    #[test]
    fn probabilities_of_all_numbers_add_up_to_one() {
        for hazard in [1e-6, 0.01, 0.3, 0.9] {
            let sum: f64 = failing(9, hazard).iter().sum();
            close(sum, 1.0, 1e-9);
            close(lost(9, 0, hazard) + failing(9, hazard)[0] * (1.0 - hazard).powi(9), 1.0, 1e-9);
        }
    }
}
