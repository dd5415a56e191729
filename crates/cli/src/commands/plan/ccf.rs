//! `martlet plan ccf`

use std::path::PathBuf;

use clap::Args;
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, HEAD, Table, styled};
use martlet_cluster::plan::critical::{Links, Probabilities, years};
use martlet_cluster::plan::{Plan, fat_tree, outline, topology::Topology};
use serde_json::json;

/// Estimate how often both multicast trees fail at once, so that silence looks like a death.
///
/// Without FILE, it does so for fat trees of heights 1 to 3, beside what the FiDe paper says. With FILE, it does so for each request of that network, with the trees that
/// `martlet plan` finds and the probabilities in its [failures]. "bound" is the paper's; "worst case" is the same for links that fail independently of each other.
///
/// Example: martlet plan ccf --processes 3
#[derive(Debug, Args)]
pub struct Arguments {
    /// The network, as a TOML file.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Without FILE: the number of hosts that send and receive.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = number::<u64>(2..=32), conflicts_with = "file")]
    processes: u64,
    /// Plan as if this had failed: a switch or a host by its name, or a link as NAME:NAME. May be given several times.
    #[arg(long, value_name = "WHAT", requires = "file")]
    without: Vec<String>,
}

/// What Table 3 and appendix C say for two processes: probability, and one in so many years.
const PAPER: [(f64, f64); 3] = [(0.044, 22.7), (0.089, 11.3), (0.17, 6.0)];

pub fn run(arguments: &Arguments, format: Format) -> Outcome {
    match &arguments.file {
        Some(file) => of_file(&super::read(file, &arguments.without)?, format),
        None => of_fat_trees(arguments.processes, format),
    }
}

fn every(probability: f64) -> String {
    years(probability).map_or_else(|| "never".into(), |years| format!("{years:.1}"))
}

fn of_fat_trees(processes: u64, format: Format) -> Outcome {
    let p = Probabilities::MEASURED;
    let mut table = Table::new(["height", "trunk links", "core links", "bound", "worst case", "one in years", "paper", "paper, years"]);
    for (height, paper) in (1..).zip(PAPER) {
        let links = Links::of_fat_tree(height, processes);
        let (bound, worst) = (p.bound(&[links; 2]), p.worst_case(&[links; 2]));
        let paper = Some(paper).filter(|_| processes == 2);
        let theirs = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| value.to_string());
        table.row([
            height.to_string(),
            links.trunk.to_string(),
            links.core.to_string(),
            format!("{bound:.4}"),
            format!("{worst:.4}"),
            every(bound),
            theirs(paper.map(|(probability, _)| probability)),
            theirs(paper.map(|(_, years)| years)),
        ]);
        format.object(|| {
            json!({
                "event": "height",
                "height": height,
                "processes": processes,
                "trunk_links": links.trunk,
                "core_links": links.core,
                "bound": bound,
                "worst_case": worst,
                "years": years(bound),
                "paper_probability": paper.map(|(probability, _)| probability),
                "paper_years": paper.map(|(_, years)| years),
            })
        });
        format.say(styled(HEAD, format_args!("height {height}: the first of two trees from one host")));
        format.say(drawn(height, processes)?);
    }
    format.say(table);
    Ok(())
}

/// A tree in the fat tree of this height.
fn drawn(height: u64, processes: u64) -> Outcome<String> {
    let name = PathBuf::from(format!("fat tree of height {height}"));
    let topology = Topology::parse(&name, &fat_tree::file(height, processes)).map_err(Fail::failed)?;
    let plan = Plan::new(&topology).map_err(Fail::failed)?;
    let first = &plan.planned[0];
    Ok(format!("  {}\n", outline::lines(&topology, first.request.sender, &first.trees[0], |_| String::new()).join("\n  ")))
}

fn of_file(topology: &Topology, format: Format) -> Outcome {
    let plan = Plan::new(topology).map_err(Fail::failed)?;
    let p = topology.failures;
    let mut table = Table::new(["request", "sender", "trunk links", "core links", "bound", "worst case", "one in years"]);
    for (number, planned) in (1..).zip(&plan.planned) {
        let links = planned.links(topology);
        // With one tree a single failure is enough: there is no compound.
        let redundant = links.len() > 1;
        let sender = topology.name(planned.request.sender);
        let (bound, worst) = (p.bound(&links), p.worst_case(&links));
        let of = |kind: fn(&Links) -> u64| links.iter().map(|links| kind(links).to_string()).collect::<Vec<_>>().join(" + ");
        let shown = |text: String| if redundant { text } else { "no second tree".into() };
        table.row([
            number.to_string(),
            sender.into(),
            of(|links| links.trunk),
            of(|links| links.core),
            shown(format!("{bound:.4}")),
            shown(format!("{worst:.4}")),
            shown(every(bound)),
        ]);
        format.object(|| {
            json!({
                "event": "request",
                "request": number,
                "sender": sender,
                "trees": links.iter().map(|links| json!({"trunk_links": links.trunk, "core_links": links.core})).collect::<Vec<_>>(),
                "bound": redundant.then_some(bound),
                "worst_case": redundant.then_some(worst),
                "years": years(bound).filter(|_| redundant),
            })
        });
    }
    format.say(table);
    Ok(())
}
