//! The results. Machines and moments differ, so ratios are taken within a round, and then the median over the rounds.

use std::collections::BTreeMap;

use serde_json::json;

use super::Wanted;

/// One way to ask, with a number of clients, in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub p50_us: f64,
    pub p99_us: f64,
    pub per_s: f64,
}

/// All results.
pub struct Figures {
    /// The ways to ask, in the order in which they are shown. The others are compared with the first two.
    names: Vec<&'static str>,
    samples: BTreeMap<(u32, &'static str), BTreeMap<u32, Sample>>,
    skipped: Vec<(String, String)>,
    /// The file system that "disk" stands for.
    disk: Option<String>,
}

/// A line of the result. The ratios are the latencies divided by those of the first two ways to ask, where these were measured.
#[derive(Debug, PartialEq)]
struct Line {
    name: &'static str,
    clients: u32,
    median: Sample,
    ratios: [Option<(f64, f64)>; COMPARED],
}

const COMPARED: usize = 2;

impl Figures {
    /// Results for these ways to ask.
    pub fn new(names: impl Iterator<Item = &'static str>) -> Figures {
        Figures { names: names.collect(), samples: BTreeMap::new(), skipped: Vec::new(), disk: None }
    }

    pub fn add(&mut self, round: u32, name: &'static str, clients: u32, sample: Sample) {
        self.samples.entry((clients, name)).or_default().insert(round, sample);
    }

    /// Sets the file system that "disk" stands for.
    pub fn name_disk(&mut self, file_system: Option<String>) {
        self.disk = file_system;
    }

    /// Notes that something is not measured. This is said once, and again at the end.
    pub fn skip(&mut self, what: &str, why: &str) {
        if !self.skipped.iter().any(|(skipped, _)| skipped == what) {
            eprintln!("SKIPPED: {what}: {why}");
            self.skipped.push((what.into(), why.into()));
        }
    }

    fn lines(&self, clients: &[u32]) -> Vec<Line> {
        let of = |clients: u32, name| self.samples.get(&(clients, name));
        let line = |clients: u32, name| {
            let own = of(clients, name)?;
            let all = |part: fn(&Sample) -> f64| median(own.values().map(part).collect());
            let ratios = std::array::from_fn(|with| {
                let with = of(clients, self.names[with])?;
                let by = |part: fn(&Sample) -> f64| {
                    median(own.iter().filter_map(|(round, sample)| Some(part(sample) / part(with.get(round)?))).collect())
                };
                Some((by(|sample| sample.p50_us)?, by(|sample| sample.p99_us)?))
            });
            let median =
                Sample { p50_us: all(|sample| sample.p50_us)?, p99_us: all(|sample| sample.p99_us)?, per_s: all(|sample| sample.per_s)? };
            Some(Line { name, clients, median, ratios })
        };
        clients.iter().flat_map(|&clients| self.names.iter().filter_map(move |name| line(clients, name))).collect()
    }

    /// Prints everything.
    pub fn print(&self, wanted: &Wanted) {
        let lines = self.lines(&wanted.clients);
        if wanted.json {
            let cores = std::thread::available_parallelism().map_or(0, usize::from);
            println!(
                "{}",
                json!({"event": "run", "rounds": wanted.rounds, "seconds": wanted.seconds, "value_bytes": wanted.bytes, "cores": cores, "disk": self.disk})
            );
            for Line { name, clients, median: Sample { p50_us, p99_us, per_s }, ratios } in &lines {
                let [to_put, to_set] = ratios.map(|ratio| ratio.map(|(p50, p99)| json!({"p50": p50, "p99": p99})));
                println!(
                    "{}",
                    json!({"event": "figure", "name": name, "clients": clients, "p50_us": p50_us, "p99_us": p99_us, "per_s": per_s, "to_put": to_put, "to_set": to_set})
                );
            }
            self.skipped.iter().for_each(|(what, why)| println!("{}", json!({"event": "skipped", "what": what, "why": why})));
            return;
        }
        let ratio =
            |ratio: Option<(f64, f64)>| ratio.map_or(["-".into(), "-".into()], |(p50, p99)| [p50, p99].map(|by| format!("{by:.2}")));
        for &clients in &wanted.clients {
            println!(
                "\n{:<30} {:>9} {:>9} {:>9}   by PUT: p50   p99   by SET: p50   p99",
                format!("{clients} client(s)"),
                "p50 us",
                "p99 us",
                "1/s"
            );
            for line in lines.iter().filter(|line| line.clients == clients) {
                let Sample { p50_us, p99_us, per_s } = line.median;
                let [[put50, put99], [set50, set99]] = line.ratios.map(ratio);
                println!("{:<30} {p50_us:>9.1} {p99_us:>9.1} {per_s:>9.0} {put50:>13} {put99:>5} {set50:>13} {set99:>5}", line.name);
            }
        }
        println!("\ndisk: {}", self.disk.as_deref().unwrap_or("unknown"));
        self.skipped.iter().for_each(|(what, why)| println!("SKIPPED: {what}: {why}"));
    }
}

/// `None` if there are no values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_one_round_and_then_the_median() {
        let mut figures = Figures::new(["put", "set", "other"].into_iter());
        // In the second round the machine is ten times slower: the ratio of the medians would be 50.
        for (round, put, other) in [(0, 10.0, 50.0), (1, 100.0, 500.0), (2, 10.0, 500.0)] {
            let sample = |us| Sample { p50_us: us, p99_us: 2.0 * us, per_s: 1.0 / us };
            figures.add(round, "put", 1, sample(put));
            figures.add(round, "other", 1, sample(other));
        }
        let lines = figures.lines(&[1, 50]);
        assert_eq!(lines.iter().map(|line| line.name).collect::<Vec<_>>(), ["put", "other"], "nobody has asked for the others");
        assert_eq!(lines[0].ratios, [Some((1.0, 1.0)), None]);
        assert_eq!(lines[1].ratios, [Some((5.0, 5.0)), None]);
        assert_eq!(lines[1].median.p50_us, 500.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
