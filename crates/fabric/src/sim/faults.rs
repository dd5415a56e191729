//! How long things take in a simulated world, and how often they go wrong.

use fastrand::Rng;

/// A range from the least to the most, both included. In nanoseconds, unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub u64, pub u64);

impl Span {
    pub(super) fn draw(self, chance: &mut Rng) -> u64 {
        if self.0 >= self.1 { self.0 } else { chance.u64(self.0..=self.1) }
    }
}

/// How a world behaves. Rates are per thousand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The time from posting to effect, and from effect to completion.
    pub latency: Span,
    /// How often one of those takes up to `spike_ns` more.
    pub spikes: u32,
    /// The longest spike.
    pub spike_ns: u64,
    /// How often a transfer of several words lands in pieces.
    pub tears: u32,
    /// The time between two pieces.
    pub tear_gap: Span,
    /// How long a datagram takes. Each has its own delay, so they can overtake each other.
    pub datagram: Span,
    /// How often a datagram is lost.
    pub drops: u32,
    /// How often a datagram is delivered once more.
    pub repeats: u32,
    /// The time from something happening at a process to its turn.
    pub turn: Span,
    /// How often a turn is up to `stall_ns` late because the scheduler took the core away.
    pub stalls: u32,
    /// The longest stall.
    pub stall_ns: u64,
    /// The time from the start of a process to its connection to another.
    pub connect: Span,
    /// For how long after a kill operations of the dead process can still take effect.
    pub last_gasp: Span,
    /// The time from the last gasp to each thread's death words (host only).
    pub death_words: Span,
    /// The time from the last gasp to the event that the process is gone: a pidfd, or a connection that times out.
    pub gone: Span,
    /// How often that event is lost. It then comes only when the connection is found to be dead, far too late (network only; a pidfd's event is never
    /// lost).
    pub lost_notices: u32,
    /// How long an operation on an unreachable peer is retried before it completes as lost. A partition shorter than this only delays.
    pub peer_lost_after_ns: u64,
}

impl Faults {
    /// A host or network in which nothing goes wrong.
    pub fn calm() -> Faults {
        Faults {
            latency: Span(100, 300),
            spikes: 0,
            spike_ns: 0,
            tears: 0,
            tear_gap: Span(10, 100),
            datagram: Span(500, 2_000),
            drops: 0,
            repeats: 0,
            turn: Span(50, 150),
            stalls: 0,
            stall_ns: 0,
            connect: Span(1_000, 5_000),
            last_gasp: Span(0, 300),
            death_words: Span(3_000, 10_000),
            gone: Span(60_000, 300_000),
            lost_notices: 0,
            peer_lost_after_ns: 100_000,
        }
    }

    /// Faults drawn at random. Each kind of trouble is absent in some worlds, since one can hide another.
    pub fn drawn(chance: &mut Rng) -> Faults {
        let mut rate = |most: u32| if chance.bool() { 0 } else { chance.u32(1..=most) };
        let (spikes, tears, drops, repeats, stalls) = (rate(100), rate(1000), rate(400), rate(300), rate(30));
        let lost_notices = rate(500);
        let most = |chance: &mut Rng, limits: Span| Span(0, limits.draw(chance));
        let calm = Faults::calm();
        Faults {
            latency: most(chance, Span(200, 4_000)),
            spikes,
            spike_ns: Span(1_000, 60_000).draw(chance),
            tears,
            tear_gap: most(chance, Span(10, 2_000)),
            datagram: most(chance, Span(1_000, 50_000)),
            drops,
            repeats,
            turn: most(chance, Span(100, 2_000)),
            stalls,
            stall_ns: Span(1_000, 200_000).draw(chance),
            connect: most(chance, Span(2_000, 50_000)),
            last_gasp: most(chance, Span(0, 5_000)),
            death_words: most(chance, Span(100, 30_000)),
            gone: Span(calm.gone.0, calm.gone.0 + Span(1_000, 1_000_000).draw(chance)),
            lost_notices,
            peer_lost_after_ns: Span(50_000, 500_000).draw(chance),
        }
    }

    pub(super) fn travel(&self, chance: &mut Rng, counts: &mut Counts) -> u64 {
        let spike = if happens(chance, self.spikes) { chance.u64(0..=self.spike_ns) } else { 0 };
        counts.spikes += u64::from(spike > 0);
        self.latency.draw(chance) + spike
    }

    pub(super) fn until_turn(&self, chance: &mut Rng, counts: &mut Counts) -> u64 {
        let stall = if happens(chance, self.stalls) { chance.u64(0..=self.stall_ns) } else { 0 };
        counts.stalls += u64::from(stall > 0);
        self.turn.draw(chance) + stall
    }
}

/// How often each kind of harm has been done in a world so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations, or completions, that were held up.
    pub spikes: u64,
    /// Transfers that landed in pieces.
    pub tears: u64,
    /// Datagrams lost.
    pub drops: u64,
    /// Datagrams that were delivered once more.
    pub repeats: u64,
    /// Turns that were late.
    pub stalls: u64,
    /// Ends of processes of which some peer was not told in time.
    pub lost_notices: u64,
    /// Operations that took effect although their poster was told that the peer is lost.
    pub lost_completions: u64,
    /// Those among them that were compare-and-swaps.
    pub lost_swaps: u64,
    /// Datagrams that arrived after one that was sent later between the same two processes.
    pub overtaken: u64,
    /// Deaths that the kernel reported later than it does if nothing goes wrong.
    pub late_deaths: u64,
    /// Writes that were on their way when their lane was revoked.
    pub writes_across_revocations: u64,
    /// Connections that two living processes lost and made anew.
    pub reconnections: u64,
}

/// Whether something with this rate, per thousand, happens now. If the rate is 0, no random number is drawn.
pub(super) fn happens(chance: &mut Rng, rate: u32) -> bool {
    rate > 0 && chance.u32(..1000) < rate
}
