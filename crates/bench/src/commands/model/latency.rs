//! `martlet model latency`: LogGP's parameters of the fabric in use, and the latency of requests that they predict, beside the measured one (DARE sections 2.3
//! and 3.3.3).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use martlet_cluster::directory::{FabricFlags, FabricPlan};
use martlet_cluster::fail::{Fail, Outcome};
use martlet_cluster::interrupt::Interrupt;
use martlet_cluster::number::number;
use martlet_cluster::output::{Format, Table};
use martlet_fabric::with_fabric;
use martlet_node::config::DurabilityKind;
use martlet_protocol::engine::Engine as _;
use serde_json::json;

use super::super::alone::{self, Alone as _, Modelled, Replica};
use super::super::endpoint::{Endpoint, Place};
use super::super::operations::{self, Kind, Samples, Timing};
use crate::model::loggp::{Group, Network, Operation, Operations, PAPER, Point, determination, fit};
use crate::report::plot::{Axis, Plot, Series};
use crate::report::{Progress, stolen};

/// Fit LogGP's parameters to the fabric, and compare predicted with measured latency.
///
/// It covers DARE's Table 1, Figure 1 and section 3.3.3. Writes, reads and datagrams between endpoints of this process are timed by size. Every other size is
/// fitted, and the rest says how good the fit is. Then a leader of the engine dare replies to requests without clients, and each reply's median stands beside
/// two forms of the model. In the paper's form, issuing one operation overlaps with the travel of another: it is a lower bound. In the other form, one
/// operation begins when the one before is done, as stores and loads of one core do. Either form is increased by what the program itself takes, some for a
/// request and some for each follower. That is fitted once for writes and once for reads, at 64 B in the two smallest groups.
///
/// Example: martlet model latency --servers 3,5,7 --plot operations.svg
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of samples of each size, a fifth of them in each of five rounds.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = number::<u32>(50..=1_000_000))]
    samples: u32,
    /// Group sizes, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "3,5,7", value_parser = number::<u16>(3..=7))]
    servers: Vec<u16>,
    /// Also draw the operations into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Also draw the requests into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot_requests: Option<PathBuf>,
    #[command(flatten)]
    fabric: FabricFlags,
}

/// From here on the gap is another one: the paper's MTU, and a page of memory.
const M: f64 = 4096.0;
/// Sizes of operations; the first and every other one are fitted.
const SIZES: [usize; 13] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
/// Sizes of proposals.
const REQUESTS: [usize; 5] = [16, 64, 256, 1024, 2048];
/// The size at which is fitted what the program itself takes.
const FITTED_AT: usize = 64;
/// All is measured in so many rounds, so that what else the machine does, and how fast its cores are just then, is in every figure alike.
const ROUNDS: u32 = 5;
/// Requests before those that are measured.
const WARM_UP: u32 = 50;
/// How many of the longest requests come one after the other while the logs are filled: a few pages, for which there is room. To wait for the followers after each
/// is what takes long where they have few cores.
const IN_A_ROW: usize = 64;
/// A follower's tail pointer and commit pointer, which are written at once.
const POINTER_BYTES: f64 = 16.0;

/// A fitted kind of operation.
struct Fitted {
    kind: Kind,
    points: Vec<Point>,
    operation: Operation,
    collect: f64,
}

impl Fitted {
    fn predicts(&self, bytes: f64) -> f64 {
        match self.kind {
            Kind::Datagram => self.operation.datagram(bytes, M),
            Kind::Write | Kind::Read => self.operation.access(bytes, M, self.collect),
        }
    }

    /// Measured and predicted, of the sizes that were not fitted.
    fn held_out(&self) -> impl Iterator<Item = (f64, f64)> {
        self.points.iter().skip(1).step_by(2).map(|point| (point.whole, self.predicts(point.bytes)))
    }

    fn determination(&self) -> f64 {
        determination(&self.points.iter().map(|point| (point.whole, self.predicts(point.bytes))).collect::<Vec<_>>())
    }

    fn worst_held_out(&self) -> f64 {
        self.held_out().map(|(measured, predicted)| (predicted / measured - 1.0).abs()).fold(0.0, f64::max)
    }
}

/// A request that the leader replied to.
struct Request {
    group: Group,
    /// Bytes of a proposal; 0: it reads.
    bytes: usize,
    /// The median until its reply was released, in nanoseconds.
    measured: f64,
    /// How many one-sided operations it took.
    operations: u16,
}

/// A form of the model, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The paper's bound: issuing and travelling overlap.
    Overlapping,
    /// One operation after the other.
    InTurn,
}

impl Form {
    const ALL: [Form; 2] = [Form::Overlapping, Form::InTurn];

    fn name(self) -> &'static str {
        match self {
            Form::Overlapping => "overlapping, as in the paper",
            Form::InTurn => "one after the other",
        }
    }

    fn of(self, network: &Network, request: &Request) -> f64 {
        let (group, bytes) = (request.group, request.bytes);
        match (self, bytes) {
            (Form::Overlapping, 0) => network.read_bound(group),
            (Form::InTurn, 0) => network.read_in_turn(group),
            (Form::Overlapping, _) => network.write_bound(group, bytes as f64),
            (Form::InTurn, _) => network.write_in_turn(group, Modelled::record_bytes(bytes) as f64, POINTER_BYTES),
        }
    }
}

/// How many of the samples are in each round.
fn rounds(samples: u32) -> impl Iterator<Item = u32> {
    (0..ROUNDS).map(move |round| samples / ROUNDS + u32::from(round < samples % ROUNDS))
}

pub fn run(arguments: &Arguments, format: Format, interrupt: &Interrupt) -> Outcome {
    let stolen = stolen::Watch::start();
    let plan = arguments.fabric.plan(None)?;
    let mut groups = arguments.servers.clone();
    groups.sort_unstable();
    groups.dedup();
    let mut timed = Timed::default();
    let mut replies: Vec<Reply> = groups.into_iter().flat_map(|servers| Reply::all(Group(servers))).collect();
    let steps = ROUNDS as usize * (Kind::ALL.len() + replies.len());
    let progress = Progress::start(format, "kinds of operations and requests", steps as u64);
    for samples in rounds(arguments.samples) {
        with_fabric!(plan.kind, F => time::<F>(&plan, samples, &mut timed, &progress, interrupt))?;
        for of_group in replies.chunk_by_mut(|one, other| one.group == other.group) {
            with_fabric!(plan.kind, F => reply::<F>(&plan, samples, of_group, &progress, interrupt))?;
        }
    }
    drop(progress);
    let [write, read, datagram] = timed.fit()?;
    let of = |fitted: &Fitted| Operations { short: None, long: fitted.operation };
    let network =
        Network { read: of(&read), write: of(&write), datagram: of(&datagram), collect: (write.collect + read.collect) / 2.0, m: M };
    let fitted = [write, read, datagram];
    say_parameters(&fitted, &plan, format);
    let plot = draw_operations(&fitted);
    super::say_and_save(&plot, arguments.plot.as_deref(), format)?;
    let requests: Vec<Request> = replies.iter().map(Reply::conclude).collect();
    say_requests(&network, &requests, format);
    if let Some(warning) = stolen.percent().and_then(stolen::warning) {
        format.say(warning);
    }
    let plot = draw_requests(&network, &requests);
    super::say_and_save(&plot, arguments.plot_requests.as_deref(), format)
}

/// What operations of each kind have taken, by size.
#[derive(Default)]
struct Timed([Vec<(usize, Timing)>; Kind::ALL.len()]);

impl Timed {
    /// Fits each kind.
    fn fit(&self) -> Outcome<[Fitted; Kind::ALL.len()]> {
        let mut fitted = Vec::new();
        for (kind, timed) in Kind::ALL.into_iter().zip(&self.0) {
            let point = |(bytes, timing): &(usize, Timing)| Point {
                bytes: *bytes as f64,
                issue: timing.issue.median(),
                whole: timing.whole.median(),
                collect: timing.collect.median(),
            };
            let points: Vec<Point> = timed.iter().map(point).collect();
            let half: Vec<Point> = points.iter().copied().step_by(2).collect();
            let (operation, collect) = fit(&half, M, kind == Kind::Datagram)
                .ok_or_else(|| Fail::failed(format_args!("{}s took no time that could be measured", kind.name())))?;
            fitted.push(Fitted { kind, points, operation, collect });
        }
        Ok(fitted.try_into().unwrap_or_else(|_| unreachable!("one of each kind")))
    }
}

/// Times each kind of operation.
fn time<F: Endpoint>(plan: &FabricPlan, samples: u32, timed: &mut Timed, progress: &Progress, interrupt: &Interrupt) -> Outcome {
    let place = Place::new("model-latency", plan, 2)?;
    operations::among::<F, _>(&place, 1, |prober| {
        for (kind, timed) in Kind::ALL.into_iter().zip(&mut timed.0) {
            let sizes = SIZES.into_iter().filter(|bytes| *bytes <= kind.most_bytes());
            timed.resize_with(sizes.clone().count(), Default::default);
            for (bytes, (size, timing)) in sizes.zip(timed) {
                interrupt.check()?;
                *size = bytes;
                timing.extend(prober.time(kind, bytes, samples)?);
            }
            progress.step();
        }
        Ok(())
    })
}

/// How long a leader took to reply to requests of one form.
struct Reply {
    group: Group,
    /// Bytes of a proposal; 0: it reads.
    bytes: usize,
    taken: Samples,
}

impl Reply {
    /// All that is asked of a group.
    fn all(group: Group) -> impl Iterator<Item = Reply> {
        [0].into_iter().chain(REQUESTS).map(move |bytes| Reply { group, bytes, taken: Samples::default() })
    }

    fn conclude(&self) -> Request {
        // A read looks at the term of each of the others; a write is an entry and the pointers to each.
        let operations = (self.group.0 - 1) * if self.bytes == 0 { 1 } else { 2 };
        Request { group: self.group, bytes: self.bytes, measured: self.taken.median(), operations }
    }
}

/// Has a leader reply to requests of one group.
fn reply<F: Endpoint>(plan: &FabricPlan, samples: u32, replies: &mut [Reply], progress: &Progress, interrupt: &Interrupt) -> Outcome {
    let servers = replies[0].group.0;
    let place = Place::new(&format!("model-latency-{servers}"), plan, servers)?;
    let data = (DurabilityKind::Memory, Path::new(""));
    let held: Vec<AtomicU64> = (1..servers).map(|_| AtomicU64::new(0)).collect();
    alone::among::<F, Modelled, _>(
        &place,
        servers,
        data,
        |nth, follower| held[nth].store(follower.engine.last().0, Ordering::Relaxed),
        |mut leader| {
            let level = |leader: &mut Replica<F, Modelled>| {
                let last = leader.engine.last().0;
                leader.until("the others have taken all", |_| held.iter().all(|held| held.load(Ordering::Relaxed) >= last))
            };
            // Every page of the logs is there then. Where the kernel has yet to make it, that is most of what a long request takes.
            let longest = vec![9u8; REQUESTS[REQUESTS.len() - 1]];
            let lap = Modelled::settings(0, data.0, place.fabric).log_ring_bytes;
            for request in 0..lap.div_ceil(longest.len()) {
                interrupt.check()?;
                leader.reply(Some(&longest))?;
                if request % IN_A_ROW == 0 {
                    level(&mut leader)?;
                }
            }
            for Reply { bytes, taken, .. } in replies {
                interrupt.check()?;
                let effects = vec![9u8; *bytes];
                let proposes = (*bytes > 0).then_some(&effects[..]);
                for sample in 0..samples + WARM_UP {
                    // The model is of one request by itself. Where the next came at once the followers, which share a core, would fall behind, and it would wait for room.
                    level(&mut leader)?;
                    match leader.reply(proposes)? {
                        Some(ns) if sample >= WARM_UP => taken.0.push(ns as f64),
                        // The first ones warm the caches; and where the lead was lost, that was no reply.
                        _ => {}
                    }
                }
                progress.step();
            }
            Ok(())
        },
    )
}

fn say_parameters(fitted: &[Fitted], plan: &FabricPlan, format: Format) {
    let mut table = Table::new(["operation", "o, ns", "L, ns", "G, ns/KiB", "Gm, ns/KiB", "op, ns", "R2", "worst error, sizes not fitted"]);
    for of in fitted {
        let Operation { overhead, latency, gap, long_gap } = of.operation;
        let (r2, worst) = (of.determination(), of.worst_held_out());
        table.row([
            format!("{}, here", of.kind.name()),
            format!("{overhead:.0}"),
            format!("{latency:.0}"),
            format!("{:.0}", gap * 1024.0),
            format!("{:.0}", long_gap * 1024.0),
            format!("{:.0}", of.collect),
            format!("{r2:.4}"),
            format!("{:.1} %", worst * 100.0),
        ]);
        format.object(|| {
            let points: Vec<_> = of
                .points
                .iter()
                .map(|p| json!({"bytes": p.bytes, "issue_ns": p.issue, "p50_ns": p.whole, "predicted_ns": of.predicts(p.bytes)}))
                .collect();
            json!({
                "model": "latency", "operation": of.kind.name(), "fabric": plan.kind.to_string(), "o_ns": overhead, "l_ns": latency,
                "g_ns_per_byte": gap, "gm_ns_per_byte": long_gap, "op_ns": of.collect, "r2": r2, "worst_error_held_out": worst, "points": points,
            })
        });
    }
    let short = |of: &Operations| of.short.map(|short| short.operation);
    let of_paper = [
        ("write", Some(PAPER.write.long)),
        ("inline write", short(&PAPER.write)),
        ("read", Some(PAPER.read.long)),
        ("datagram", Some(PAPER.datagram.long)),
        ("inline datagram", short(&PAPER.datagram)),
    ];
    for (name, operation) in of_paper.into_iter().filter_map(|(name, operation)| Some((name, operation?))) {
        table.row([
            format!("{name}, paper"),
            format!("{:.0}", operation.overhead),
            format!("{:.0}", operation.latency),
            format!("{:.0}", operation.gap * 1024.0),
            format!("{:.0}", operation.long_gap * 1024.0),
            format!("{:.0}", PAPER.collect),
            String::new(),
            String::new(),
        ]);
    }
    format.say(table);
}

/// What the program itself takes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rest {
    request: f64,
    follower: f64,
}

impl Rest {
    /// Of these groups and what was measured beyond a form of the model there.
    fn through(beyond: &[(Group, f64)]) -> Rest {
        match *beyond {
            [(smaller, less), (larger, more), ..] => {
                let follower = (more - less) / f64::from(larger.0 - smaller.0);
                Rest { request: less - follower * f64::from(smaller.0 - 1), follower }
            }
            [(_, all)] => Rest { request: all, follower: 0.0 },
            [] => Rest { request: 0.0, follower: 0.0 },
        }
    }

    fn of(self, group: Group) -> f64 {
        self.request + self.follower * f64::from(group.0 - 1)
    }
}

/// The requests at which is fitted what the program itself takes, of reads or of writes: in the two smallest groups.
fn fitted_at(requests: &[Request], reads: bool) -> Vec<usize> {
    let is_such = |request: &Request| request.bytes == if reads { 0 } else { FITTED_AT };
    (0..requests.len()).filter(|at| is_such(&requests[*at])).take(2).collect()
}

/// What the program itself takes, by a form.
fn rest(form: Form, network: &Network, requests: &[Request], reads: bool) -> Rest {
    let beyond = |at: usize| (requests[at].group, requests[at].measured - form.of(network, &requests[at]));
    Rest::through(&fitted_at(requests, reads).into_iter().map(beyond).collect::<Vec<_>>())
}

fn say_requests(network: &Network, requests: &[Request], format: Format) {
    let rests = Form::ALL.map(|form| [false, true].map(|reads| rest(form, network, requests, reads)));
    let mut worst = [0.0f64; 2];
    let mut table = Table::new([
        "request",
        "servers",
        "operations",
        "p50, ns",
        "overlapping, ns",
        "and the rest",
        "error",
        "in turn, ns",
        "and the rest",
        "error",
    ]);
    for (number, request) in requests.iter().enumerate() {
        let reads = request.bytes == 0;
        let name = if reads { "read".to_owned() } else { format!("write of {} B", request.bytes) };
        let said = Form::ALL.map(|form| form.of(network, request));
        let whole = [0, 1].map(|form| said[form] + rests[form][usize::from(reads)].of(request.group));
        let error = whole.map(|predicted| predicted / request.measured - 1.0);
        // What was fitted there says nothing.
        let was_fitted = fitted_at(requests, reads).contains(&number);
        if !was_fitted {
            worst.iter_mut().zip(error).for_each(|(worst, error)| *worst = worst.max(error.abs()));
        }
        let percent = |error: f64| if was_fitted { "fitted".to_owned() } else { format!("{:+.1} %", error * 100.0) };
        table.row([
            name.clone(),
            request.group.0.to_string(),
            request.operations.to_string(),
            format!("{:.0}", request.measured),
            format!("{:.0}", said[0]),
            format!("{:.0}", whole[0]),
            percent(error[0]),
            format!("{:.0}", said[1]),
            format!("{:.0}", whole[1]),
            percent(error[1]),
        ]);
        format.object(|| {
            json!({
                "model": "latency", "request": name, "servers": request.group.0, "operations": request.operations, "p50_ns": request.measured,
                "bound_ns": said[0], "predicted_ns": whole[0], "in_turn_ns": said[1], "in_turn_predicted_ns": whole[1], "fitted": was_fitted,
            })
        });
    }
    format.say(format_args!("\nReplies of a leader, without clients:\n{table}"));
    let better = usize::from(worst[1] < worst[0]);
    let [write, read] = rests[better];
    let text = format_args!(
        "The program itself takes {:.0} ns of a write and {:.0} more for each follower, {:.0} and {:.0} of a read.\nThe better form here: {}, wrong by {:.1} % at most where \
         nothing was fitted (the other: {:.1} %).",
        write.request,
        write.follower,
        read.request,
        read.follower,
        Form::ALL[better].name(),
        worst[better] * 100.0,
        worst[1 - better] * 100.0
    );
    format.print(text, || {
        json!({
            "model": "latency", "better_form": Form::ALL[better].name(), "worst_error": worst[better], "other_worst_error": worst[1 - better],
            "program_write_ns": write.request, "program_write_ns_per_follower": write.follower, "program_read_ns": read.request,
            "program_read_ns_per_follower": read.follower,
        })
    });
}

/// Figure 1.
fn draw_operations(fitted: &[Fitted]) -> Plot {
    let mut plot = Plot::new("Operations by size, and the model (DARE, Figure 1)", Axis::log("bytes"), Axis::log("ns"));
    for of in fitted {
        let (mut measured, mut model) = (Series::line(of.kind.name()), Series::trace(format!("{}, model", of.kind.name())));
        for point in &of.points {
            measured.push(point.bytes, point.whole);
            model.push(point.bytes, of.predicts(point.bytes));
        }
        plot = plot.with(measured).with(model);
    }
    plot
}

/// The model beside the measurement, as in Figure 8a, without clients.
fn draw_requests(network: &Network, requests: &[Request]) -> Plot {
    let mut plot = Plot::new("Writes by size, and the model (DARE, Figure 8a)", Axis::log("bytes"), Axis::log("ns"));
    let mut groups: Vec<Group> = requests.iter().map(|request| request.group).collect();
    groups.dedup();
    for group in groups {
        let mut measured = Series::line(format!("{} servers", group.0));
        let mut forms = Form::ALL.map(|form| Series::trace(format!("{} servers, {}", group.0, form.name())));
        for request in requests.iter().filter(|request| request.group == group && request.bytes > 0) {
            measured.push(request.bytes as f64, request.measured);
            for (form, series) in Form::ALL.into_iter().zip(&mut forms) {
                series.push(request.bytes as f64, form.of(network, request) + rest(form, network, requests, false).of(group));
            }
        }
        plot = plot.with(measured);
        plot = forms.into_iter().fold(plot, Plot::with);
    }
    plot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_as_many_samples_as_were_asked_for() {
        assert_eq!(rounds(52).collect::<Vec<_>>(), [11, 11, 10, 10, 10]);
        assert_eq!(rounds(1_000).sum::<u32>(), 1_000);
    }

    #[test]
    fn what_the_program_takes_is_split_where_two_groups_are_known() {
        let rest = Rest::through(&[(Group(3), 250.0), (Group(5), 450.0), (Group(7), 900.0)]);
        assert_eq!(rest, Rest { request: 50.0, follower: 100.0 });
        assert_eq!([3, 5, 7].map(|servers| rest.of(Group(servers))), [250.0, 450.0, 650.0]);
        assert_eq!(Rest::through(&[(Group(5), 80.0)]).of(Group(7)), 80.0);
        assert_eq!(Rest::through(&[]).of(Group(3)), 0.0);
    }
}
