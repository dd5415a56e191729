//! The promises of the [contract](crate::contract) as tests, which every backend runs.
//!
//! A backend implements [`Harness`] and names it in [`conformance_suite!`](crate::conformance_suite), which makes one `#[test]` for each
//! promise. The suite waits by counting [`Harness::pass`]es, never by a clock, so it runs under virtual time as under real time.

mod cluster;
mod datagrams;
mod handover;
mod lanes;
mod lifecycle;
mod order;
#[cfg(target_os = "linux")]
mod processes;
mod revocation;
mod ring;
mod swap;
mod words;

pub use cluster::{LANDING, LANE, LANE_BYTES, OWNED, PUBLIC, PUBLIC_BYTES, RING, RING_CAPACITY, client_spec, spec};
pub use datagrams::*;
pub use handover::*;
pub use lanes::*;
pub use lifecycle::*;
pub use order::*;
#[cfg(target_os = "linux")]
pub use processes::{Backend, Processes, be_a_bystander, unique_cluster};
pub use revocation::*;
pub use ring::*;
pub use swap::*;
pub use words::*;

use crate::contract::{Fabric, Identity, RegionSpec};

/// What a task of [`Harness::run`] wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To be called again.
    More,
    /// Not to be called again: it has finished.
    Done,
}

/// One process's part of a test: called again and again with the process's endpoint until it says [`Step::Done`].
pub type Task<'a, F> = Box<dyn FnMut(&mut F) -> Step + Send + 'a>;

/// Makes connected processes on a backend. Processes are numbered from 0 in the order in which they were made, never reused.
pub trait Harness: Sized {
    /// The backend.
    type Fabric: Fabric;

    /// How often each test is run; `round` tells the runs apart. A backend with randomness uses it as a seed.
    const ROUNDS: u64 = 1;

    /// How many passes without success make a test fail. A real-time backend sets it so high that only a hang reaches it.
    const PATIENCE: usize = 1_000_000;

    /// How many acts an order of hand-overs has ([`no_order_of_writes_and_hand_overs_loses_what_succeeded`]). Each additional act multiplies the
    /// number of orders by four, so a backend on which an act takes long has fewer acts, but no fewer than four.
    fn hand_over_acts() -> usize {
        7
    }

    /// Starts `members` processes that all offer `spec` and all connect to each other. Their `Up` events may still be to come.
    fn start(round: u64, members: usize, spec: &RegionSpec) -> Self;

    /// Adds a client that offers `spec` to the members; `None` if the backend has no clients.
    fn client(&mut self, spec: &RegionSpec) -> Option<usize>;

    /// Adds a member that offers the same regions as the others and otherwise does nothing, possibly as another operating system process:
    /// [`Harness::fabric`] is not called for it. With `after`, it is a later life of that process's node, which has crashed. `None` if the backend
    /// cannot do this; the promises about crashes are then not tested.
    fn bystander(&mut self, after: Option<usize>) -> Option<usize>;

    /// Ends a bystander as SIGKILL would.
    fn crash(&mut self, bystander: usize);

    /// The identity of a process.
    fn identity(&self, process: usize) -> Identity;

    /// A process's endpoint.
    fn fabric(&mut self, process: usize) -> &mut Self::Fabric;

    /// Lets a little time pass: virtual time, or a turn of the threads that run beside the endpoints.
    fn pass(&mut self);

    /// Runs the tasks side by side until all have finished. Here they take turns. A backend with real memory overrides this with a thread for each
    /// task, since only true concurrency tests its memory orders.
    fn run(&mut self, mut tasks: Vec<(usize, Task<'_, Self::Fabric>)>) {
        for _ in 0..Self::PATIENCE {
            tasks.retain_mut(|(process, task)| task(self.fabric(*process)) == Step::More);
            if tasks.is_empty() {
                return;
            }
            self.pass();
        }
        panic!("{} tasks have not finished after {} passes", tasks.len(), Self::PATIENCE);
    }
}

/// Makes one `#[test]` for each promise of the contract: `conformance_suite!(MyHarness)` in an otherwise empty module.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:ty) => {
        $crate::conformance_suite! { @each $harness;
            writes_take_effect_in_order,
            completions_come_in_posting_order,
            reads_follow_the_writes_posted_before_them,
            a_completed_write_is_visible_to_the_owner,
            a_completed_write_comes_before_later_reads,
            words_never_tear,
            long_transfers_arrive_whole_in_the_end,
            addresses_outside_a_region_are_refused,
            swap_reports_the_word_as_found,
            swap_is_atomic_with_the_owner_included,
            revocation_keeps_whole_writes_and_loses_the_others,
            a_grant_after_a_revocation_opens_the_lane_again,
            revocation_spares_other_writers_and_regions,
            no_order_of_writes_and_hand_overs_loses_what_succeeded,
            what_only_its_owner_writes_peers_can_read_and_not_change,
            lanes_are_apart_for_each_writer,
            lanes_are_fresh_for_each_life,
            clients_and_members_have_lanes_for_each_other,
            every_peer_comes_up_once,
            peer_numbers_are_never_reused,
            a_crash_is_reported_once,
            a_dead_peers_memory_is_a_zombie_or_lost,
            forgetting_a_peer_drops_its_lanes_only,
            datagrams_are_whole_and_come_from_peers,
            multicast_reaches_members_but_not_the_sender,
            a_nudge_changes_nothing,
            a_ring_carries_records_through_a_lane,
            a_ring_through_a_revocation_keeps_what_completed,
            a_planted_record_is_no_record,
        }
    };
    (@each $harness:ty; $($promise:ident),+ $(,)?) => {
        $(
            #[test]
            fn $promise() {
                for round in 0..<$harness as $crate::conformance::Harness>::ROUNDS {
                    $crate::conformance::$promise::<$harness>(round);
                }
            }
        )+
    };
}
