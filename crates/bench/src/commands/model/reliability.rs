//! `martlet model reliability`: how likely a group loses its data or its service (DARE section 5, Figure 7 and Table 2).

use std::path::PathBuf;

use clap::Args;
use martlet_cluster::fail::Outcome;
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, Table};
use serde_json::json;

use crate::model::reliability::{Group, Raid, Server, TABLE_2, YEAR_HOURS, hazard, nines, rate};
use crate::report::plot::{Axis, Plot, Series};

/// Compute how likely a group loses its data or its service, by its size.
///
/// It covers DARE's Table 2 and Figure 7, beside disks in arrays. Processor, memory, NIC and network of a server fail independently, with exponential
/// lifetimes. What has failed is replaced by the end of the next epoch. Data is lost when as many memories fail as a quorum has. Service is lost when fewer
/// servers live than a quorum has. It would last longer if a leader could use the memory of servers whose processor is dead: that is shown beside, although
/// Martlet does not count such servers. Nines are those of the probability that an epoch passes without the loss. The failure rates are those of the paper, the
/// worst that its authors found: give your own.
///
/// Example: martlet model reliability --memory-afr 0.02 --cpu-afr 0.05 --plot reliability.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// Failures a year of a processor, or of its operating system.
    #[arg(long, value_name = "RATE", default_value_t = TABLE_2[3].afr, value_parser = afr)]
    cpu_afr: f64,
    /// Failures a year of a server's memory.
    #[arg(long, value_name = "RATE", default_value_t = TABLE_2[2].afr, value_parser = afr)]
    memory_afr: f64,
    /// Failures a year of a NIC.
    #[arg(long, value_name = "RATE", default_value_t = TABLE_2[1].afr, value_parser = afr)]
    nic_afr: f64,
    /// Failures a year of a server's network: links and switches.
    #[arg(long, value_name = "RATE", default_value_t = TABLE_2[0].afr, value_parser = afr)]
    network_afr: f64,
    /// Failures a year of a disk. The paper does not print the one that it uses.
    #[arg(long, value_name = "RATE", default_value_t = 0.03, value_parser = afr)]
    disk_afr: f64,
    /// Number of disks in an array, including those for parity.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::<u32>(4..=64))]
    disks: u32,
    /// Length of an epoch, in hours. By its end, whatever failed in the epoch before has been replaced, disks too.
    #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = number::<u32>(1..=720))]
    epoch_h: u32,
    /// The largest group.
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = number::<u16>(3..=31))]
    servers: u16,
    /// Also draw it into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// An annual failure rate: above 0, and not so high that hardly anything outlives an epoch.
fn afr(text: &str) -> Result<f64, String> {
    const ALLOWED: &str = "a number above 0, up to 10";
    text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= 10.0).ok_or_else(|| format!("allowed: {ALLOWED}"))
}

/// A probability as people read it.
fn probability(value: f64) -> String {
    format!("{value:.1e}")
}

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    let epoch_hours = f64::from(arguments.epoch_h);
    let server = Server::new(arguments.cpu_afr, arguments.memory_afr, arguments.nic_afr, arguments.network_afr);
    components(arguments, epoch_hours, format);
    let share = server.zombie_share();
    format.print(
        format_args!("\nOf a server's failures {:.0} % leave a zombie: a dead processor, and memory that answers.", share * 100.0),
        || json!({"model": "reliability", "zombie_share": share}),
    );
    let raids: Vec<(&str, f64)> = [("RAID-5", 1), ("RAID-6", 2)]
        .map(|(name, tolerated)| {
            let raid = Raid { tolerated, disks: arguments.disks, disk_afr: arguments.disk_afr, repair_hours: epoch_hours };
            (name, raid.loses_data(epoch_hours))
        })
        .to_vec();
    let groups: Vec<Group> = (3..=usize::from(arguments.servers)).map(|servers| Group { servers, server, epoch_hours }).collect();
    say_groups(&groups, &raids, arguments, format);
    let plot = draw(&groups, &raids, arguments);
    super::say_and_save(&plot, arguments.plot.as_deref(), format)
}

/// Table 2, of the rates at hand.
fn components(arguments: &Arguments, epoch_hours: f64, format: Format) {
    let mut table =
        Table::new(["component", "AFR", "MTTF, h", "fails in an epoch", "nines", "paper: AFR", "paper: MTTF, h", "paper: nines in 24 h"]);
    let own = [arguments.network_afr, arguments.nic_afr, arguments.memory_afr, arguments.cpu_afr];
    for (number, component) in TABLE_2.iter().enumerate() {
        let paper =
            [format!("{:.1} %", component.afr * 100.0), format!("{:.0}", component.paper_mttf_hours), component.paper_nines.to_string()];
        // The last is a server as a whole, as others have counted: the model takes it apart.
        let here = own.get(number).map_or_else(Default::default, |afr| {
            let fails = hazard(rate(*afr), epoch_hours);
            format.object(|| {
                json!({
                    "model": "reliability", "component": component.name, "afr": afr, "mttf_hours": YEAR_HOURS / afr, "fails_in_epoch": fails,
                    "epoch_hours": epoch_hours, "paper_afr": component.afr, "paper_mttf_hours": component.paper_mttf_hours,
                    "paper_nines": component.paper_nines,
                })
            });
            [format!("{:.1} %", afr * 100.0), format!("{:.0}", YEAR_HOURS / afr), probability(fails), format!("{:.1}", nines(fails))]
        });
        let ([afr, mttf, fails, nines], [paper_afr, paper_mttf, paper_nines]) = (here, paper);
        table.row([component.name.into(), afr, mttf, fails, nines, paper_afr, paper_mttf, paper_nines]);
    }
    format.say(table);
}

fn say_groups(groups: &[Group], raids: &[(&str, f64)], arguments: &Arguments, format: Format) {
    let mut table = Table::new(["servers", "data lost", "nines", "beats", "service lost", "nines", "with zombies", "nines"]);
    for group in groups {
        let (data, service, zombies) = (group.loses_data(), group.loses_service(), group.loses_service_with_zombies());
        let beats: Vec<&str> = raids.iter().filter(|(_, lost)| data < *lost).map(|(name, _)| *name).collect();
        table.row([
            group.servers.to_string(),
            probability(data),
            format!("{:.1}", nines(data)),
            beats.join(", "),
            probability(service),
            format!("{:.1}", nines(service)),
            probability(zombies),
            format!("{:.1}", nines(zombies)),
        ]);
        format.object(|| {
            json!({
                "model": "reliability", "servers": group.servers, "data_lost": data, "service_lost": service, "service_lost_with_zombies": zombies,
                "beats": beats, "epoch_hours": group.epoch_hours,
            })
        });
    }
    format.say(format_args!("\nProbabilities in {} h:\n{table}", arguments.epoch_h));
    for (name, lost) in raids {
        let text = format_args!(
            "{name} of {} disks that fail {:.1} times in 100 years and are replaced within {} h loses data with probability {}: {:.1} nines.",
            arguments.disks,
            arguments.disk_afr * 100.0,
            arguments.epoch_h,
            probability(*lost),
            nines(*lost)
        );
        format.print(
            text,
            || json!({"model": "reliability", "array": name, "disks": arguments.disks, "disk_afr": arguments.disk_afr, "data_lost": lost}),
        );
    }
}

/// Figure 7.
fn draw(groups: &[Group], raids: &[(&str, f64)], arguments: &Arguments) -> Plot {
    let title = format!("Reliability over {} h by group size (DARE, Figure 7)", arguments.epoch_h);
    let mut plot = Plot::new(title, Axis::linear("servers"), Axis::linear("nines"));
    let filled = |mut series: Series, lost: &dyn Fn(&Group) -> f64| {
        groups.iter().for_each(|group| series.push(group.servers as f64, nines(lost(group))));
        series
    };
    plot = plot
        .with(filled(Series::line("data, in memory"), &Group::loses_data))
        .with(filled(Series::line("service"), &Group::loses_service))
        .with(filled(Series::line("service, zombies counted"), &Group::loses_service_with_zombies));
    for (name, lost) in raids {
        plot = plot.with(filled(Series::trace(format!("data, {name}")), &|_| *lost));
    }
    plot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_rate_is_a_number_above_zero() {
        assert_eq!(afr("0.395"), Ok(0.395));
        for wrong in ["0", "-1", "nan", "inf", "11", "1 %", ""] {
            assert!(afr(wrong).expect_err("no rate").contains("above 0, up to 10"), "{wrong}");
        }
    }
}
