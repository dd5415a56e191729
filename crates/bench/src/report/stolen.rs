//! The time that a hypervisor kept from this machine's cores. While it runs another guest nobody here runs, spins or dies, and no figure says why it is long.

/// What the kernel has counted for all cores together, in its ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    /// Something ran.
    ran: u64,
    /// Something was to run, and the hypervisor ran something else.
    stolen: u64,
}

impl Ticks {
    /// Out of /proc/stat. `None`: it has no such line.
    fn parse(stat: &str) -> Option<Ticks> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        // What guests of ours ran is part of user and nice.
        let &[user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = &ticks[..] else { return None };
        Some(Ticks { ran: user + nice + system + irq + softirq, stolen })
    }

    fn now() -> Option<Ticks> {
        Ticks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }
}

/// Watches for stolen time from its making on.
#[derive(Debug)]
pub struct Watch(Option<Ticks>);

impl Watch {
    /// Begins.
    pub fn start() -> Watch {
        Watch(Ticks::now())
    }

    /// How much of the time in which this machine's cores had something to run went to others, in per cent. `None`: the kernel does not say.
    pub fn percent(&self) -> Option<u64> {
        Some(percent(self.0?, Ticks::now()?))
    }
}

fn percent(since: Ticks, now: Ticks) -> u64 {
    let stolen = now.stolen.saturating_sub(since.stolen);
    let wanted = now.ran.saturating_sub(since.ran) + stolen;
    (stolen * 100).checked_div(wanted).unwrap_or(0)
}

/// What that means for figures, once it is enough to see: `None` below 2 %.
pub fn warning(percent: u64) -> Option<String> {
    (percent >= 2).then(|| {
        format!(
            "the hypervisor withheld {percent} % of the time that these cores wanted: other guests are busy. Trust no absolute time here; ratios between \
             figures of this run that were taken in turn still hold"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_had_is_a_share_of_what_was_wanted() {
        let before = Ticks::parse("cpu  100 10 50 1000 5 1 4 20 3 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").expect("a line");
        assert_eq!(before, Ticks { ran: 165, stolen: 20 });
        let now = Ticks { ran: 165 + 60, stolen: 20 + 40 };
        assert_eq!(percent(before, now), 40, "of 100 ticks that were wanted; those that nobody wanted count for nothing");
        assert_eq!(percent(before, before), 0, "nobody wanted any");
        assert_eq!(percent(now, before), 0, "counters that went back");
    }

    #[test]
    fn a_kernel_that_does_not_count_it_is_not_believed_to_say_none() {
        assert_eq!(Ticks::parse("cpu  100 10 50 1000 5 1 4\n"), None);
        assert_eq!(Ticks::parse("intr 5\n"), None);
        assert_eq!(Watch(None).percent(), None);
    }

    #[test]
    fn only_what_can_be_seen_in_figures_is_warned_of() {
        assert_eq!(warning(1), None);
        assert!(warning(38).is_some_and(|text| text.starts_with("the hypervisor withheld 38 % ")));
    }
}
