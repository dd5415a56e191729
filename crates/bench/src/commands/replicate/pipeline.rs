//! Throughput against latency (Mu, Figure 7): batches in one record, and several records on their way at once.

use std::collections::VecDeque;

use martlet_cluster::fail::Outcome;
use martlet_cluster::interrupt::Interrupt;
use martlet_node::clock;
use martlet_protocol::basics::{LogIndex, Time};

use super::super::alone::Alone;
use super::super::endpoint::Endpoint;
use super::Leader;
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};

/// Requests in a record, as in Mu's Figure 7.
const BATCHES: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Records on their way at once, as there.
const OUTSTANDING: [usize; 4] = [1, 2, 4, 8];
/// Bytes of a request, as there.
const PAYLOAD: usize = 64;
/// The rate is a sample for so many nanoseconds.
const INTERVAL_NS: u64 = 500_000;

impl<F: Endpoint, E: Alone> Leader<'_, F, E> {
    /// Figure 7: a line for each number of outstanding records, a point for each size of batch.
    pub(super) fn pipelines(&mut self, samples: u64, report: &mut Report, interrupt: &Interrupt) -> Outcome<Plot> {
        let (x, y) = (Axis::linear("requests per us"), Axis::log("latency of a batch, p50, us"));
        let mut plot = Plot::new("Throughput against latency, batches of 1 to 128 requests of 64 B (Mu, Figure 7)", x, y);
        let progress = report.progress("batches by size and number", (OUTSTANDING.len() * BATCHES.len()) as u64);
        for outstanding in OUTSTANDING {
            let mut line = Series::line(format!("{outstanding} outstanding"));
            for batch in BATCHES {
                let (latency, rate) = self.pipeline(batch, outstanding, samples, interrupt)?;
                line.push(rate.percentile(50.0) / 1e6, latency.percentile(50.0) / 1e3);
                report.add(latency);
                report.add(rate);
                progress.step();
            }
            plot = plot.with(line);
        }
        Ok(plot)
    }

    /// Proposes `samples` batches of `batch` requests, at most `outstanding` of which are not committed. Latency is from the first of a batch
    /// being proposed to the last being seen committed.
    fn pipeline(&mut self, batch: usize, outstanding: usize, samples: u64, interrupt: &Interrupt) -> Outcome<(Figure, Figure)> {
        let name = |what: &str| format!("{batch} x {PAYLOAD} B in one record, {outstanding} outstanding, {what}");
        let figure = |what, unit| {
            let figure = Figure::new("replicate", name(what), unit);
            figure.with("batch", batch).with("outstanding", outstanding)
        };
        let (mut latency, mut rate) = (figure("committed", Unit::Nanoseconds), figure("requests", Unit::PerSecond));
        let request = [9u8; PAYLOAD];
        let mut waiting: VecDeque<(Time, LogIndex)> = VecDeque::with_capacity(outstanding);
        let (mut begun, mut ended) = (0, 0);
        let warm = samples / 10;
        let (mut since, mut committed) = (clock::now(), 0);
        let mut reign = self.replica.engine.reign();
        while ended < samples + warm {
            while begun < samples + warm && waiting.len() < outstanding && self.replica.engine.has_room((PAYLOAD + 4) * batch) {
                let start = clock::now();
                let mut last = LogIndex(0);
                for _ in 0..batch {
                    last = self.replica.engine.propose(&request).expect("it leads, and has room");
                }
                self.replica.engine.post(start, &mut self.replica.fabric, &mut self.replica.machine);
                waiting.push_back((start, last));
                begun += 1;
            }
            // Takes what has completed, and looks after what else is due: with the figures, since it takes its share of the time.
            self.replica.turn();
            if self.replica.engine.reign() != reign {
                self.lost += 1;
                waiting.clear();
                begun = ended;
                interrupt.check()?;
                self.replica.until("it leads again", |leader| leader.engine.has_room((PAYLOAD + 4) * batch))?;
                (reign, since, committed) = (self.replica.engine.reign(), clock::now(), 0);
                continue;
            }
            let now = clock::now();
            let reached = self.replica.engine.committed();
            while let Some((start, _)) = waiting.front().filter(|(_, last)| *last <= reached) {
                if ended >= warm {
                    latency.record(now.since(*start));
                }
                waiting.pop_front();
                (ended, committed) = (ended + 1, committed + batch as u64);
            }
            if now.since(since) >= INTERVAL_NS || ended == samples + warm {
                interrupt.check()?;
                if ended >= warm && committed > 0 {
                    rate.record(committed * 1_000_000_000 / now.since(since).max(1));
                }
                (since, committed) = (now, 0);
            }
        }
        Ok((latency, rate))
    }
}
