//! Figure 9a: writes a second while servers join, fail and are removed, and the leader among them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use martlet_cluster::fail::{Fail, Outcome};
use martlet_node::config::EngineKind;
use rustix::process::Signal;

use super::super::raise::Raise;
use super::{KEY_BYTES, Subject, end};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Figure, Report, Unit};
use crate::trial::clients;
use crate::trial::crowd::{Crowd, Load};
use crate::trial::testbed::Testbed;

/// Servers at most; the group begins with all but two of them.
const SERVERS: u16 = 7;
const LATE: [u16; 2] = [5, 6];
/// Over which replies are counted, and how many of these are drawn as one: a gap is told to the millisecond, and 10 ms are the paper's.
const INTERVAL: Duration = Duration::from_millis(1);
const DRAWN_AS_ONE: usize = 10;
/// Between two events.
const REST: Duration = Duration::from_millis(300);
const BYTES: usize = 64;

/// What happens, in this order (section 6, Figure 9a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A server joins that was set aside, or has failed.
    Join,
    /// The leader is killed.
    LeaderFails,
    /// A server is killed that does not lead.
    ServerFails,
    /// A server leaves that does not lead: the group is smaller.
    Leave,
    /// The leader leaves.
    LeaderLeaves,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Join => "server joins",
            Step::LeaderFails => "leader fails",
            Step::ServerFails => "server fails",
            Step::Leave => "server removed",
            Step::LeaderLeaves => "leader removed",
        }
    }
}

/// Two join a group of five; the leader fails, and a server; two join; one is removed; the leader fails; one joins; and three are removed, the leader last.
const STEPS: [Step; 12] = [
    Step::Join,
    Step::Join,
    Step::LeaderFails,
    Step::ServerFails,
    Step::Join,
    Step::Join,
    Step::Leave,
    Step::LeaderFails,
    Step::Join,
    Step::Leave,
    Step::Leave,
    Step::LeaderLeaves,
];

/// An interval: when it began, and how many replies came in it.
type Sample = (Instant, u64);

/// A step: when it began, and when the group was whole again.
struct Event {
    step: Step,
    began: Instant,
    whole: Instant,
}

/// Measures the first engine that takes part: `dare`, if nothing else is said.
pub fn measure(subject: &Subject<'_>, report: &mut Report) -> Outcome<Plot> {
    let papers = || EngineKind::first_with(|traits| traits.name == "dare");
    let engine = subject.arguments.engines.first().copied().unwrap_or_else(papers);
    let mut testbed = subject.start(engine, SERVERS)?;
    // The clients know all servers, those too that join later.
    let mut crowd = Crowd::open(testbed.cluster(), testbed.running().len(), subject.arguments.clients, KEY_BYTES)?;
    LATE.into_iter().try_for_each(|number| testbed.set_aside(number))?;
    let progress = report.progress("steps", STEPS.len() as u64);
    let stop = AtomicBool::new(false);
    let (samples, events) = std::thread::scope(|scope| {
        let load = scope.spawn(|| drive(subject, &mut crowd, &stop));
        let events = {
            // However it ends, so do the clients.
            let _stop = Raise(&stop);
            STEPS
                .into_iter()
                .map(|step| {
                    subject.interrupt.sleep(REST)?;
                    if load.is_finished() {
                        return Err(Fail::failed("the clients have ended"));
                    }
                    let began = Instant::now();
                    take(step, &mut testbed)?;
                    progress.step();
                    Ok(Event { step, began, whole: Instant::now() })
                })
                .collect::<Outcome<Vec<Event>>>()
                .and_then(|events| subject.interrupt.sleep(REST).map(|()| events))
        };
        let samples = load.join().map_err(|_| Fail::failed("the clients' thread panicked"))?;
        // If the clients have failed, that is why the rest did.
        Ok::<_, Fail>((samples?, events?))
    })?;
    drop((progress, crowd));
    end(testbed)?;
    Ok(conclude(engine, &samples, &events, report))
}

/// The clients write until they are told to stop.
fn drive(subject: &Subject<'_>, crowd: &mut Crowd, stop: &AtomicBool) -> Outcome<Vec<Sample>> {
    clients::hurry()?;
    let _core = subject.enter_client_core()?;
    let mut samples = Vec::new();
    crowd.run(subject.arguments.clients, Load { reads: 0, value_bytes: BYTES }, INTERVAL, |began, replies| {
        samples.push((began, replies));
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(samples)
}

/// Takes a step, and waits until the group is whole.
fn take(step: Step, testbed: &mut Testbed) -> Outcome {
    let (leader, _) = testbed.primary()?;
    let leader = leader.node.0;
    let other = testbed.running().into_iter().rfind(|number| *number != leader);
    let other = other.ok_or_else(|| Fail::failed("no server is left but the leader"))?;
    match step {
        // One that has failed before one that was never there: its number is free again.
        Step::Join => match testbed.numbers().into_iter().find(|number| !testbed.running().contains(number)) {
            Some(failed) => {
                testbed.spawn(failed)?;
                testbed.await_whole().map(|_| ())
            }
            None => testbed.take_in(),
        },
        Step::LeaderFails | Step::ServerFails => {
            let number = if step == Step::LeaderFails { leader } else { other };
            testbed.signal(number, Signal::KILL)?;
            testbed.await_end(number)?;
            testbed.await_whole().map(|_| ())
        }
        Step::Leave => testbed.set_aside(other),
        Step::LeaderLeaves => testbed.set_aside(leader),
    }
}

fn conclude(engine: EngineKind, samples: &[Sample], events: &[Event], report: &mut Report) -> Plot {
    let start = samples.first().map_or_else(Instant::now, |(began, _)| *began);
    let ms = |at: Instant| at.saturating_duration_since(start).as_secs_f64() * 1e3;
    let mut series = Series::trace(format!("{engine}: writes"));
    for drawn in samples.chunks_exact(DRAWN_AS_ONE) {
        let replies: u64 = drawn.iter().map(|(_, replies)| replies).sum();
        series.push(ms(drawn[0].0), replies as f64 / (INTERVAL * DRAWN_AS_ONE as u32).as_secs_f64());
    }
    let title = format!("Writes a second during reconfiguration, {engine} (DARE, Figure 9a)");
    let mut plot = Plot::new(title, Axis::linear("ms"), Axis::linear("writes a second")).with(series);
    let mut figures: Vec<(Step, Figure)> = Vec::new();
    for (number, event) in events.iter().enumerate() {
        plot.mark(ms(event.began), event.step.name());
        let until = events.get(number + 1).map(|next| next.began);
        let gap = longest_gap(samples, event.began, until);
        let at = figures.iter().position(|(step, _)| *step == event.step).unwrap_or_else(|| {
            let metric = format!("{engine}: longest gap without a reply, {}", event.step.name());
            figures.push((event.step, Figure::new("dare", metric, Unit::Microseconds)));
            figures.len() - 1
        });
        figures[at].1.record(gap.as_nanos() as u64);
    }
    for (step, figure) in figures {
        let whole = events.iter().filter(|event| event.step == step).map(|event| event.whole - event.began);
        let longest_ms = whole.max().map_or(0.0, |whole| (whole.as_secs_f64() * 1e3).round());
        report.add(figure.with("whole_again_ms_at_most", longest_ms).with("resolution_us", INTERVAL.as_micros() as u64));
    }
    plot
}

/// The longest time without a reply that ends after `from` and begins before `until`.
fn longest_gap(samples: &[Sample], from: Instant, until: Option<Instant>) -> Duration {
    let (mut longest, mut silent_since) = (Duration::ZERO, None);
    for (began, replies) in samples {
        if *replies > 0 {
            if let Some(since) = silent_since.take().filter(|_| *began >= from) {
                longest = longest.max(*began - since);
            }
        } else if silent_since.is_none() {
            if until.is_some_and(|until| *began >= until) {
                break;
            }
            silent_since = Some(*began);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_belongs_to_the_step_before_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let replies = [5, 0, 0, 5, 5, 0, 5, 0, 0, 0, 0, 5, 0];
        let samples: Vec<Sample> = replies.into_iter().zip(0..).map(|(replies, ms)| (at(ms), replies)).collect();
        assert_eq!(longest_gap(&samples, at(4), Some(at(7))), Duration::from_millis(1));
        assert_eq!(longest_gap(&samples, at(4), None), Duration::from_millis(4));
        // One that was there before the step and lasts into it counts: it may be the step's.
        assert_eq!(longest_gap(&samples, at(2), Some(at(4))), Duration::from_millis(2));
        assert_eq!(longest_gap(&[], at(0), None), Duration::ZERO);
    }

    #[test]
    fn the_steps_leave_a_group_of_three() {
        let mut running = SERVERS as usize - LATE.len();
        for step in STEPS {
            match step {
                Step::Join => running += 1,
                _ => running -= 1,
            }
            assert!((3..=SERVERS as usize).contains(&running), "{step:?}");
        }
        assert_eq!(running, 3);
    }
}
