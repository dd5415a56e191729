//! How long operations take, by the LogGP model as DARE modifies it (section 2.3), and what requests take at least by it (section 3.3.3).
//!
//! Times are in nanoseconds, sizes in bytes. `o` is what the processor does to issue an operation, `L` the latency of the way, `G` the gap for each byte, `Gm`
//! the gap for each byte beyond the first `m`, and `op` what it takes to collect a completion.

/// The parameters of one kind of operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// The overhead `o`.
    pub overhead: f64,
    /// The latency `L`.
    pub latency: f64,
    /// The gap `G`, for each byte.
    pub gap: f64,
    /// The gap `Gm`, for each byte beyond the first `m`.
    pub long_gap: f64,
}

impl Operation {
    /// What all bytes but the first take.
    fn bytes(&self, bytes: f64, m: f64) -> f64 {
        (bytes.min(m) - 1.0) * self.gap + (bytes - m).max(0.0) * self.long_gap
    }

    /// A read or write of so many bytes, from its issue until its completion has been collected (equation 1).
    pub fn access(&self, bytes: f64, m: f64, collect: f64) -> f64 {
        self.overhead + self.latency + self.bytes(bytes, m) + collect
    }

    /// A datagram of so many bytes, from its sender's program to its receiver's (equation 2).
    pub fn datagram(&self, bytes: f64, m: f64) -> f64 {
        2.0 * self.overhead + self.latency + self.bytes(bytes, m)
    }
}

/// A kind of operation whose short ones carry their data inline, where it has such.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Short {
    /// The most bytes of a short one.
    pub most_bytes: f64,
    /// What it takes.
    pub operation: Operation,
}

/// Operations of one kind, the short and the long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operations {
    /// The short ones, where they differ.
    pub short: Option<Short>,
    /// All others.
    pub long: Operation,
}

impl Operations {
    /// What an operation of so many bytes takes.
    pub fn of(&self, bytes: f64) -> &Operation {
        match &self.short {
            Some(short) if bytes <= short.most_bytes => &short.operation,
            _ => &self.long,
        }
    }
}

/// The parameters of a network (Table 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Reads of memory.
    pub read: Operations,
    /// Writes into memory.
    pub write: Operations,
    /// Datagrams.
    pub datagram: Operations,
    /// To collect a completion: `op`.
    pub collect: f64,
    /// From how many bytes on the gap is another one: `m`.
    pub m: f64,
}

/// Microseconds, and microseconds for a KiB, as the paper has them.
const fn paper(overhead: f64, latency: f64, gap: f64, long_gap: f64) -> Operation {
    Operation { overhead: overhead * 1e3, latency: latency * 1e3, gap: gap * 1e3 / 1024.0, long_gap: long_gap * 1e3 / 1024.0 }
}

/// The most bytes that the paper's system sends inline, which it does not say: what the NIC of its machines takes.
const PAPER_INLINE_BYTES: f64 = 256.0;

/// Table 1: twelve nodes, QDR InfiniBand. Where it has no `Gm` nothing is longer than `m`.
pub const PAPER: Network = Network {
    read: Operations { short: None, long: paper(0.29, 1.38, 0.75, 0.26) },
    write: Operations {
        short: Some(Short { most_bytes: PAPER_INLINE_BYTES, operation: paper(0.36, 0.93, 2.21, 2.21) }),
        long: paper(0.26, 1.61, 0.76, 0.25),
    },
    datagram: Operations {
        short: Some(Short { most_bytes: PAPER_INLINE_BYTES, operation: paper(0.47, 0.54, 1.92, 1.92) }),
        long: paper(0.62, 0.85, 0.77, 0.77),
    },
    collect: 70.0,
    m: 4096.0,
};

/// A group of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u16);

impl Group {
    /// The servers of a quorum, the leader among them: `q`.
    pub fn quorum(self) -> u16 {
        self.0 / 2 + 1
    }

    /// How many may fail: `f`.
    pub fn faulty(self) -> u16 {
        self.0.saturating_sub(1) / 2
    }

    fn others(self) -> f64 {
        f64::from(self.quorum() - 1)
    }
}

/// The size of a control packet (section 2.3).
const CONTROL_BYTES: f64 = 1.0;

impl Network {
    /// The request and its reply as datagrams: one carries data, the other is short.
    pub fn client(&self, bytes: f64) -> f64 {
        let of = |bytes: f64| self.datagram.of(bytes).datagram(bytes, self.m);
        of(CONTROL_BYTES) + of(bytes)
    }

    /// What the leader's accesses for a read take at least: it reads the terms of the others.
    pub fn read_bound(&self, group: Group) -> f64 {
        let (o, latency) = (self.read.of(CONTROL_BYTES).overhead, self.read.of(CONTROL_BYTES).latency);
        group.others() * o + (f64::from(group.faulty()) * o).max(latency) + group.others() * self.collect
    }

    /// What the leader's accesses for a write take at least: in each log the entry, the tail pointer, and the commit pointer, for whose completion nothing
    /// waits.
    pub fn write_bound(&self, group: Group, bytes: f64) -> f64 {
        let (pointer, entry) = (self.write.of(CONTROL_BYTES), self.write.of(bytes));
        let (others, o) = (group.others(), entry.overhead);
        let pointers = 2.0 * others * pointer.overhead + pointer.latency + 2.0 * others * self.collect;
        pointers + others * o + (f64::from(group.faulty()) * o).max(entry.latency + entry.bytes(bytes, self.m))
    }

    /// What the accesses for a read take where one begins when the one before is done, as stores and loads of one core do.
    pub fn read_in_turn(&self, group: Group) -> f64 {
        f64::from(group.0 - 1) * self.read.of(8.0).access(8.0, self.m, self.collect)
    }

    /// What the accesses for a write take where one begins when the one before is done: to each other server the entry, of so many bytes with its headers, and
    /// its pointers, which are of `pointer_bytes`.
    pub fn write_in_turn(&self, group: Group, entry_bytes: f64, pointer_bytes: f64) -> f64 {
        let one = |bytes: f64| self.write.of(bytes).access(bytes, self.m, self.collect);
        f64::from(group.0 - 1) * (one(entry_bytes) + one(pointer_bytes))
    }
}

/// A line through measured points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// At 0.
    pub start: f64,
    /// For each unit.
    pub slope: f64,
}

impl Line {
    /// The line whose relative errors have the least sum of squares, so that small values count as much as large ones. `None`: less than two different places,
    /// or a value that is not above zero.
    pub fn through(points: &[(f64, f64)]) -> Option<Line> {
        if points.iter().any(|(_, y)| *y <= 0.0) {
            return None;
        }
        let sum = |of: fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(*x, *y) / (y * y)).sum::<f64>();
        let (n, x, y, xx, xy) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|_, y| y), sum(|x, _| x * x), sum(|x, y| x * y));
        let spread = n * xx - x * x;
        // Relative to what it is the difference of.
        if spread <= n * xx * 1e-12 {
            return None;
        }
        let slope = (n * xy - x * y) / spread;
        Some(Line { start: (y - slope * x) / n, slope })
    }

    /// Its value there.
    pub fn at(&self, x: f64) -> f64 {
        self.start + self.slope * x
    }
}

/// How much of what the measured values differ by the model explains: the coefficient of determination. Of pairs of measured and predicted values.
pub fn determination(pairs: &[(f64, f64)]) -> f64 {
    let mean = pairs.iter().map(|(measured, _)| measured).sum::<f64>() / pairs.len() as f64;
    let square = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(|pair| of(pair).powi(2)).sum::<f64>();
    1.0 - square(&|(measured, predicted)| measured - predicted) / square(&|(measured, _)| measured - mean)
}

/// What was measured of operations of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Their size.
    pub bytes: f64,
    /// To issue one.
    pub issue: f64,
    /// From its issue until its completion has been collected; of a datagram, until its receiver has it.
    pub whole: f64,
    /// To collect its completion, or to receive it.
    pub collect: f64,
}

/// The parameters of one kind of operation as measured, and what it takes to collect one's completion. `m`: from there on the gap is another one. `None`: there
/// are too few points.
///
/// The overhead is that of the smallest; what is left of the line's start is the latency. Where a datagram's receiver has another overhead than its sender, `o`
/// is their mean.
pub fn fit(points: &[Point], m: f64, datagrams: bool) -> Option<(Operation, f64)> {
    let smallest = points.iter().min_by(|a, b| a.bytes.total_cmp(&b.bytes))?;
    let short: Vec<(f64, f64)> = points.iter().filter(|p| p.bytes <= m).map(|p| (p.bytes - 1.0, p.whole)).collect();
    let line = Line::through(&short)?;
    let at_m = line.at(m - 1.0);
    // Through the end of the first line: one parameter, by least relative squares.
    let (above, below) = points.iter().filter(|p| p.bytes > m).fold((0.0, 0.0), |(above, below), p| {
        let (beyond, rest, weight) = (p.bytes - m, p.whole - at_m, 1.0 / (p.whole * p.whole));
        (above + beyond * rest * weight, below + beyond * beyond * weight)
    });
    let long_gap = if below > 0.0 { above / below } else { line.slope };
    let issue = if datagrams { (smallest.issue + smallest.collect) / 2.0 } else { smallest.issue };
    let (ends, collect) = if datagrams { (2.0, 0.0) } else { (1.0, smallest.collect) };
    // Operations that are issued one by one may be issued sooner than those of a batch: there is no latency below zero.
    let overhead = issue.min(((line.start - collect) / ends).max(0.0));
    let latency = line.start - collect - ends * overhead;
    Some((Operation { overhead, latency, gap: line.slope, long_gap }, smallest.collect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(found: f64, wanted: f64, by: f64) {
        assert!((found - wanted).abs() <= by, "{found} is not {wanted}");
    }

    /// What equations 1 and 2 give with Table 1, to the nanosecond, by hand.
    #[test]
    fn dare_2_3_the_equations_with_the_paper_s_parameters() {
        let Network { read, write, collect, m, .. } = PAPER;
        close(read.of(1.0).access(1.0, m, collect), 290.0 + 1380.0 + 70.0, 1e-9);
        close(read.long.access(4096.0, m, collect), 1740.0 + 4095.0 * 750.0 / 1024.0, 1e-9);
        close(read.long.access(8192.0, m, collect), 1740.0 + 4095.0 * 750.0 / 1024.0 + 4.0 * 260.0, 1e-9);
        close(write.of(64.0).access(64.0, m, collect), 360.0 + 930.0 + 70.0 + 63.0 * 2210.0 / 1024.0, 1e-9);
        close(write.of(1024.0).access(1024.0, m, collect), 260.0 + 1610.0 + 70.0 + 1023.0 * 760.0 / 1024.0, 1e-9);
        close(PAPER.datagram.of(64.0).datagram(64.0, m), 2.0 * 470.0 + 540.0 + 63.0 * 1920.0 / 1024.0, 1e-9);
    }

    /// The bounds of section 3.3.3 for five servers and 64 B, which Figure 8a draws below what was measured: less than 8 us, and 15 us.
    #[test]
    fn dare_3_3_3_the_bounds_lie_below_what_the_paper_measured() {
        let group = Group(5);
        close(PAPER.read_bound(group), 2.0 * 290.0 + 1380.0 + 2.0 * 70.0, 1e-9);
        let entry = 930.0 + 63.0 * 2210.0 / 1024.0;
        close(PAPER.write_bound(group, 64.0), 4.0 * 360.0 + 930.0 + 4.0 * 70.0 + 2.0 * 360.0 + entry, 1e-6);
        close(PAPER.client(64.0) + PAPER.read_bound(group), 5_178.0, 1.0);
        close(PAPER.client(64.0) + PAPER.write_bound(group, 64.0), 7_514.0, 1.0);
        for bytes in [8.0, 64.0, 512.0, 2048.0] {
            assert!(
                PAPER.client(bytes) + PAPER.read_bound(group) < 8_000.0 && PAPER.client(bytes) + PAPER.write_bound(group, bytes) < 15_000.0
            );
        }
    }

    /// With many servers the overhead of issuing hides the latency of the last that is needed.
    #[test]
    fn dare_3_3_3_overhead_and_latency_overlap() {
        let (few, many) = (Group(5), Group(15));
        assert_eq!((few.quorum(), few.faulty(), many.quorum(), many.faulty(), Group(6).quorum(), Group(6).faulty()), (3, 2, 8, 7, 4, 2));
        close(PAPER.read_bound(many), 7.0 * 290.0 + 7.0 * 290.0 + 7.0 * 70.0, 1e-9);
        close(PAPER.read_in_turn(few), 4.0 * (290.0 + 1380.0 + 70.0 + 7.0 * 750.0 / 1024.0), 1e-9);
    }

    #[test]
    fn a_fit_finds_the_parameters_that_made_the_points() {
        let (made, m, collect) = (PAPER.read.long, 4096.0, 70.0);
        let points: Vec<Point> = (3..17)
            .map(|power| f64::from(1 << power))
            .map(|bytes| Point { bytes, issue: made.overhead, whole: made.access(bytes, m, collect), collect })
            .collect();
        let (found, collected) = fit(&points, m, false).expect("enough points");
        close(found.overhead, made.overhead, 1e-6);
        close(found.latency, made.latency, 1e-6);
        close(found.gap, made.gap, 1e-9);
        close(found.long_gap, made.long_gap, 1e-9);
        close(collected, collect, 1e-9);
        let pairs: Vec<(f64, f64)> = points.iter().map(|p| (p.whole, found.access(p.bytes, m, collect))).collect();
        close(determination(&pairs), 1.0, 1e-12);
        // A datagram's two ends differ: their mean is its overhead.
        let made = Operation { overhead: 500.0, latency: 540.0, gap: 2.0, long_gap: 2.0 };
        let points = [8.0, 64.0, 512.0].map(|bytes| Point { bytes, issue: 700.0, whole: made.datagram(bytes, m), collect: 300.0 });
        let (found, _) = fit(&points, m, true).expect("enough points");
        close(found.overhead, 500.0, 1e-9);
        close(found.latency, 540.0, 1e-6);
        // What a batch takes longer to issue than one by itself is no latency below zero.
        let points = [8.0, 64.0, 512.0].map(|bytes| Point { bytes, issue: 90.0, whole: 90.0 + bytes - 1.0, collect: 10.0 });
        let (found, _) = fit(&points, m, false).expect("enough points");
        close(found.overhead, 80.0, 1e-9);
        close(found.latency, 0.0, 1e-9);
    }

    #[test]
    fn a_line_needs_two_places_and_small_values_count_as_large_ones() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Line::through(&[(1.0, 0.0), (2.0, 3.0)]), None);
        let line = Line::through(&[(0.0, 10.0), (1.0, 12.0), (1000.0, 2200.0)]).expect("three places");
        assert!((line.at(0.0) - 10.0).abs() < 1.0, "{line:?}");
        // What explains nothing is worth 0, what is worse than the mean less.
        close(determination(&[(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]), 0.0, 1e-12);
        assert!(determination(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]) < 0.0);
    }
}
