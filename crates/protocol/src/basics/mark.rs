//! Marks at the transitions of the state machines: where a simulated run has to come by before its silence means anything ([`probe`]).

use martlet_fabric::{probe, probes};

probes! {
    /// A transition that a simulator counts.
    pub enum Mark {
        /// A proposer's prepare phase is won, and nothing had been accepted.
        CasPrepared = "cas: prepared",
        /// A prepare phase is won, and an accepted value is there to be read.
        CasFetching = "cas: fetches an accepted value",
        /// An accepted value has been read and adopted.
        CasAdopted = "cas: adopts",
        /// The record of an accepted value is not to be had here: another acceptor is asked, or the attempt ends.
        CasFetchFailed = "cas: finds no record to adopt",
        /// A slot is decided.
        CasDecided = "cas: decided",
        /// An attempt cannot win its majority any more.
        CasAborted = "cas: aborted",
        /// A CAS finds another word than was predicted.
        CasMispredicted = "cas: mispredicted",
        /// A CAS is lost with its acceptor.
        CasLost = "cas: lost with its acceptor",
        /// A slot is being used for a later lap.
        CasSuperseded = "cas: superseded",
        /// A ballot no longer fits into a word: the proposer goes on by RPC.
        RpcBallot = "rpc: a ballot beyond the words",
        /// A proposer has frozen a word.
        RpcFroze = "rpc: freezes a word",
        /// A proposer finds a word frozen and asks by RPC at once.
        RpcFoundFrozen = "rpc: finds a word frozen",
        /// A request is asked again.
        RpcRepeated = "rpc: asks again",
        /// An attempt that somebody has refused ends before the others have answered: they may be dead.
        RpcGivenUp = "rpc: gives up an attempt",
        /// An acceptor takes over a frozen word.
        RpcOpened = "rpc: acceptor takes over a frozen word",
        /// The frozen word that an acceptor takes over names an accepted value.
        RpcOpenedAccepted = "rpc: acceptor takes over an accepted value",
        /// An acceptor promises.
        RpcPromised = "rpc: acceptor promises",
        /// An acceptor accepts.
        RpcAccepted = "rpc: acceptor accepts",
        /// An acceptor has promised a higher ballot.
        RpcRejected = "rpc: acceptor rejects",
        /// An acceptor is asked about a word that is not frozen.
        RpcNotFrozen = "rpc: acceptor's word is not frozen",
        /// A value that was accepted by RPC is adopted.
        RpcAdopted = "rpc: adopts",
        /// All acting threads of a process have been seen to go, not all of their own will.
        CertainDeath = "detector: certain death",
        /// Some acting threads of a process have gone and others live.
        PartialDeath = "detector: a part of a process is dead",
        /// All acting threads of a process have ended by themselves.
        CleanEnd = "detector: clean end",
        /// A counter has stood still for too long.
        HeartStopped = "detector: heartbeat stopped",
        /// A counter that had stood still goes on.
        HeartRecovered = "detector: heartbeat recovered",
        /// A peer has been silent for too long.
        Silent = "detector: silence",
        /// The detector itself was asleep and forgives everybody.
        Forgiven = "detector: forgives after its own stall",
        /// A cluster is founded.
        Founded = "membership: founded",
        /// A process asks to be taken in.
        AskedToJoin = "membership: asks to join",
        /// A member vouches for a newcomer.
        Vouched = "membership: vouches for a newcomer",
        /// A newcomer is told that this incarnation will not be taken in.
        Refused = "membership: refuses a newcomer",
        /// A process learns that its incarnation will not be taken in.
        WasRefused = "membership: is refused",
        /// A process has asked in vain for too long.
        LostPatience = "membership: loses patience",
        /// A process leaves of its own will.
        Left = "membership: leaves",
        /// A process is out.
        Excluded = "membership: excluded",
        /// A view is proposed.
        Proposed = "membership: proposes a view",
        /// A leader finishes what somebody else has proposed, without a proposal of its own.
        TookOverPending = "membership: takes over a pending view",
        /// What was decided is not what was proposed here.
        DecidedAnother = "membership: another's view is decided",
        /// A leader that keeps failing backs off.
        BackedOff = "membership: backs off",
        /// A view is learned that follows the one known.
        LearnedNext = "membership: learns the next view",
        /// A view is learned, and some before it never were.
        LearnedLater = "membership: learns a view and skips some",
        /// A view is learned from a board.
        LearnedFromBoard = "membership: learns from a board",
        /// A board's records are being written while they are read.
        TornBoard = "membership: finds a torn board",
        /// A view is pushed to everybody.
        Pushed = "membership: pushes a view",
        /// A view differs from its predecessor in the length of leases only, and the lease carries over.
        CarriedOver = "membership: a lease carries over",
        /// The members are cut down to those who all hear each other.
        Cut = "membership: cuts to a clique",
        /// Leases are confirmed by a majority of empty slots.
        LeaseConfirmed = "lease: confirmed",
        /// The next slot is taken: no lease on this view any more.
        LeaseRefused = "lease: the next slot is taken",
        /// A lease is extended on the word of a lease cache.
        LeaseBorrowed = "lease: extended through a cache",
        /// A lease cache has proved nothing for half a lease.
        CacheStands = "lease: a cache stands still",
        /// A lease cache knows a newer view.
        CacheAhead = "lease: a cache is ahead",
        /// A lease cache's round is confirmed.
        CacheConfirmed = "cache: confirms",
        /// A lease cache finds the next slot taken.
        CacheRefused = "cache: refuses",
        /// A slot that has been frozen ahead stops leases: another view is asked for.
        LeaseFrozen = "lease: the next slot is frozen",
        /// A first lease on a view begins.
        LeaseBegun = "lease: begins",
        /// A lease is lengthened.
        LeaseExtended = "lease: extended",
        /// A lease is given back.
        LeaseGivenBack = "lease: given back",
        /// Who might hold an older lease shows by its lease word that it does not.
        LeaseWordReleased = "lease: a lease word releases",
        /// Who might hold an older lease is certainly gone.
        DeathReleased = "lease: a certain death releases",
        /// Nobody waits any longer for older leases, since the longest has run its time.
        LeaseRanOut = "lease: the older ones have run their time",
        /// A backup's log switches to the lane of a new primary.
        LaneAdopted = "backup: follows a new primary",
        /// Entries that no primary took over are dropped.
        SuffixDropped = "backup: drops what was not taken over",
        /// A start comes after that of a later primary.
        StartTooLate = "backup: a start comes too late",
        /// The lane of a succeeded primary is read no further.
        LaneRetired = "backup: retires a lane",
        /// A learner's transfer begins.
        TransferBegun = "learner: a transfer begins",
        /// A learner's transfer begins anew in the same lane.
        TransferRestarted = "learner: a transfer begins anew",
        /// A part of the state is installed.
        PartInstalled = "learner: installs a part",
        /// A learner holds the whole state.
        TransferEnded = "learner: holds the whole state",
        /// A backup becomes a candidate.
        Candidate = "primary: candidate",
        /// A takeover begins, with nothing to replicate again.
        TookOverLevel = "primary: takes over a level log",
        /// A takeover begins with entries that have to be replicated again.
        TookOverTail = "primary: takes over uncommitted entries",
        /// A takeover is complete.
        Leads = "primary: leads",
        /// A newer view keeps the primary.
        LeadsOn = "primary: leads on in a newer view",
        /// A primary is excluded.
        Deposed = "primary: deposed",
        /// A learner counts for commits from now on.
        LearnerCounts = "primary: a learner counts",
        /// A learner has caught up.
        LearnerCaughtUp = "primary: a learner has caught up",
        /// The log has overrun a learner.
        LearnerOverrun = "primary: overruns a learner",
        /// A lane that must get an entry is full.
        LaneFull = "primary: a lane is full",
        /// An entry is longer than a record.
        Fragmented = "primary: an entry goes in fragments",
        /// The commit index travels by itself.
        Flushed = "primary: flushes its commit index",
        /// Nothing is released, since the view is not known to be active.
        CheckFailed = "primary: the check before replies fails",
        /// A lane cannot be written any more.
        LaneBroken = "primary: a lane is lost",
    }
}

impl Mark {
    /// Counts that it has been reached. Without the feature `marks`: nothing.
    #[inline(always)]
    pub fn reach(self) {
        probe::reach(self as usize);
    }
}
