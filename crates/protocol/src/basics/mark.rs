//! Marks at the transitions of the state machines: a simulated run has to reach them before the absence of findings means anything ([`probe`]).

use martlet_fabric::{probe, probes};

probes! {
    /// A transition that a simulator counts.
    pub enum Mark {
        /// A replica has met a peer again.
        ApusReconnected = "apus: meets a peer again",
        /// A peer's heart stands still.
        ApusPresumed = "apus: presumes a peer dead",
        /// It goes on, or it stands for leader.
        ApusRecovered = "apus: a peer's heart goes on",
        /// A peer is gone.
        ApusDead = "apus: a peer is gone",
        /// A peer that stays out of reach is given up.
        ApusGivenUp = "apus: gives up a peer that stays out of reach",
        /// A leader that gets nowhere stops its own heart.
        ApusHeartStopped = "apus: stops its own heart",
        /// A backup closes its leader's lane.
        ApusCloses = "apus: closes its leader's lane",
        /// A leader finds a backup's lane closed.
        ApusClosed = "apus: a backup has closed its lane",
        /// A replica has looked at what a majority says of itself.
        ApusLooks = "apus: looks before it stands",
        /// A replica stands for leader.
        ApusStands = "apus: stands",
        /// A replica stands since a leader has handed over to it.
        ApusStandsAtOnce = "apus: stands, named by the leader",
        /// A replica agrees to another one's view, and its promise is kept.
        ApusAgrees = "apus: agrees",
        /// A replica finds a candidate's log to be less up to date than its own.
        ApusRefuses = "apus: refuses a log that is less up to date",
        /// A leader asks a backup to take its entries.
        ApusAsks = "apus: asks a backup to follow",
        /// A backup lets a leader in.
        ApusFollows = "apus: lets a leader in",
        /// A leader begins to write to a backup.
        ApusStarts = "apus: starts a backup",
        /// A backup's log becomes its leader's.
        ApusTakesOver = "apus: takes a leader's log over",
        /// Entries are cut off by that.
        ApusCutOff = "apus: a start cuts entries off",
        /// A leader finds that its log does not reach back to a backup's.
        ApusOverruns = "apus: has overrun a backup",
        /// A backup is told so.
        ApusOverrun = "apus: was overrun",
        /// A leader leads, and found nothing uncommitted.
        ApusLeads = "apus: leads a level log",
        /// A leader leads, having committed what it found.
        ApusLeadsTail = "apus: leads, having recovered entries",
        /// A candidate has waited in vain.
        ApusTimedOut = "apus: stands in vain",
        /// A reign ends, since a later view has been promised.
        ApusOutdated = "apus: is outdated",
        /// A candidacy ends for another one, or for a leader.
        ApusSuperseded = "apus: is superseded",
        /// A reign ends, since nothing could be committed.
        ApusStuck = "apus: gets nowhere",
        /// A reign ends, since the leader has handed over.
        ApusHandedOver = "apus: has handed over",
        /// A leader hands over.
        ApusHandsOver = "apus: hands over",
        /// The replica that was to lead next is lost.
        ApusSuccessorLost = "apus: loses its successor",
        /// A process is taken into the group.
        ApusGrows = "apus: takes a process into the group",
        /// A process is removed from the group.
        ApusShrinks = "apus: removes a process from the group",
        /// A replica asks for the state.
        ApusRequests = "apus: asks for the state",
        /// A replica begins to send its state.
        ApusSends = "apus: begins to send its state",
        /// A transfer cannot go on.
        ApusSendingBroken = "apus: breaks a transfer off",
        /// A replica holds the whole state again.
        ApusLearned = "apus: holds the state again",
        /// What is proposed waits until more is committed.
        ApusNoRoom = "apus: the log has no room",
        /// A backup gets the rest later.
        ApusLaneFull = "apus: a backup's lane is full",
        /// The commit index travels by itself.
        ApusFlushes = "apus: flushes its commit index",
        /// A turn without proposals probes a backup's lane.
        ApusProbes = "apus: probes a lane",
        /// A server has met a peer again.
        DareReconnected = "dare: meets a peer again",
        /// A peer's heart stands still.
        DarePresumed = "dare: presumes a peer dead",
        /// It goes on, or it stands for leader.
        DareRecovered = "dare: a peer's heart goes on",
        /// A peer is gone.
        DareDead = "dare: a peer is gone",
        /// A peer that stays out of reach is given up.
        DareGivenUp = "dare: gives up a peer that stays out of reach",
        /// A leader that gets nowhere stops its own heart.
        DareHeartStopped = "dare: stops its own heart",
        /// A server takes exclusive access to its log.
        DareRevoked = "dare: takes its log away",
        /// A server has looked at what a majority says of itself.
        DareLooks = "dare: looks before it stands",
        /// A server stands for leader.
        DareStands = "dare: stands",
        /// A server stands since a leader has handed over to it.
        DareStandsAtOnce = "dare: stands, named by the leader",
        /// A server votes.
        DareVotes = "dare: votes",
        /// A server finds a candidate's log to be older than its own.
        DareRefuses = "dare: refuses an older log",
        /// A server gives a leader access that it has not voted for, or gives it anew.
        DareSupports = "dare: supports a leader",
        /// A leader asks for access.
        DareAsks = "dare: asks for access",
        /// A leader adjusts a log.
        DareAdjusts = "dare: adjusts a log",
        /// An adjustment cuts entries off.
        DareCutOff = "dare: an adjustment cuts entries off",
        /// A leader finds that its log does not reach back to another one.
        DareOverruns = "dare: has overrun a server",
        /// A server is told that it has been overrun.
        DareOverrun = "dare: was overrun",
        /// A leader leads, and found nothing uncommitted.
        DareLeads = "dare: leads a level log",
        /// A leader leads, having committed what it found.
        DareLeadsTail = "dare: leads, having recovered entries",
        /// A follower has taken its access back.
        DareAccessLost = "dare: a follower has taken its access back",
        /// A candidate has waited in vain.
        DareTimedOut = "dare: stands in vain",
        /// A reign ends, since a higher term has been seen.
        DareOutdated = "dare: is outdated",
        /// A reign or a candidacy ends for another one.
        DareSuperseded = "dare: is superseded",
        /// A reign ends, since nothing could be committed.
        DareStuck = "dare: gets nowhere",
        /// A reign ends, since the leader has handed over.
        DareHandedOver = "dare: has handed over",
        /// A leader hands over.
        DareHandsOver = "dare: hands over",
        /// The successor is lost.
        DareSuccessorLost = "dare: loses its successor",
        /// A process is taken into the group.
        DareGrows = "dare: takes a process into the group",
        /// A process is removed from the group.
        DareShrinks = "dare: removes a process from the group",
        /// It lets a process recover for which there is no place yet.
        DareExtends = "dare: extends a full group",
        /// It stabilises a group without the one that was to come.
        DareGivesUpJoiner = "dare: gives up a process that was to come",
        /// It has decreased the number of places.
        DareDecreases = "dare: decreases the group",
        /// It notes how many places an operator wants.
        DareResizes = "dare: is asked for another size",
        /// A server asks for the state.
        DareWishes = "dare: asks for the state",
        /// A server begins to give its state.
        DareServes = "dare: begins to give its state",
        /// A server cannot go on giving it.
        DareServiceBroken = "dare: breaks a transfer off",
        /// A server goes on with its own log from the state that it has read.
        DareRejoins = "dare: goes on with its own log",
        /// A server begins its log behind the state that it has read.
        DareJoins = "dare: begins its log behind a state",
        /// The log has no room for what was proposed.
        DareNoRoom = "dare: the log has no room",
        /// A follower's lane is full.
        DareLaneFull = "dare: a follower's lane is full",
        /// A leader tells the others of its head.
        DarePrunes = "dare: prunes",
        /// A leader tells by itself what is committed.
        DareFlushes = "dare: flushes its commit pointer",
        /// A leader reads terms for replies that wait.
        DareChecks = "dare: reads the others' terms",
        /// A server has died to whose log a leader may go on writing.
        DareZombies = "dare: has a zombie",
        /// A leader counts zombies, since those that live do not suffice.
        DareZombiesCount = "dare: counts zombies",
        /// A zombie's time is over.
        DareZombieEnds = "dare: lets go of a zombie",
        /// A proposer's prepare phase is won, and nothing had been accepted.
        CasPrepared = "cas: prepared",
        /// A majority has promised, and others that have to have not.
        CasAwaits = "cas: awaits those that are required",
        /// A slot that was prepared ahead has been promised to somebody else since.
        CasOvertaken = "cas: overtaken",
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
        /// The memory of a process that is of no use to anybody is given up.
        Forgot = "membership: forgets a process",
        /// A newcomer is told that this incarnation will not be taken in.
        Refused = "membership: refuses a newcomer",
        /// A process learns that its incarnation will not be taken in.
        WasRefused = "membership: is refused",
        /// A newcomer is told that its program cannot work at the view's feature level.
        Unsuited = "membership: a newcomer's program does not suit",
        /// A process learns that its program cannot work at the view's feature level.
        WasUnsuited = "membership: does not suit",
        /// A view of a higher feature level is learned.
        LevelRaised = "membership: the feature level has risen",
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
        /// A view that waited for answers is not proposed any more, since nobody wishes for it.
        Withdrew = "membership: takes back a view that waited",
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
        /// A clock has jumped: the lease is given up, and asked for anew.
        ClockDistrusted = "lease: given up after a jump of the clock",
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
        /// A round of questions begins since replies wait for what it proves.
        RoundAsked = "lease: a round is asked for",
        /// A lease is given back.
        LeaseGivenBack = "lease: given back",
        /// A process that might hold an older lease shows by its lease word that it does not.
        LeaseWordReleased = "lease: a lease word releases",
        /// The warden of another host has certified a death.
        Certified = "detector: a certificate of a death is believed",
        /// This process hears its own certificate.
        CertifiedAlive = "detector: hears that it is dead itself",
        /// A process that might hold an older lease is certainly gone.
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
        /// The lane of a departed process is taken away before another one takes over from it.
        DepartedFenced = "backup: fences the departed",
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
        /// The log waits for a learner from here on.
        LearnerAwaited = "primary: has overrun a learner too often, and waits for it",
        /// A lane that must get an entry is full.
        LaneFull = "primary: a lane is full",
        /// An entry is longer than a record.
        Fragmented = "primary: an entry goes in fragments",
        /// The commit index travels by itself.
        Flushed = "primary: flushes its commit index",
        /// Nothing is released, since the view is not known to be active.
        CheckFailed = "primary: the check before replies fails",
        /// Replies that wait for a majority of the coordinators are released.
        VouchedFor = "primary: a round vouches for reads",
        /// A lane cannot be written any more.
        LaneBroken = "primary: a lane is lost",
        /// A peer's counter stands still, or cannot be read.
        MuPresumed = "mu: presumes a peer dead",
        /// A peer that was presumed dead is alive.
        MuRecovered = "mu: a peer's heart goes on",
        /// A peer is gone for good, or its connection is.
        MuDead = "mu: a peer is gone",
        /// A peer whose connection was lost is connected anew.
        MuReconnected = "mu: meets a peer again",
        /// A peer has been without a connection for too long.
        MuGivenUp = "mu: gives up who stays out of reach",
        /// The replication plane is stuck, and the heart stops with it.
        MuHeartStopped = "mu: stops its own heart",
        /// A reign begins: somebody's permission is asked for.
        MuAsked = "mu: asks for permission",
        /// A follower grants its permission to another process.
        MuGranted = "mu: grants its permission",
        /// A process grants its permission to itself.
        MuGrantedSelf = "mu: grants itself",
        /// Somebody's permission is revoked for somebody else's request.
        MuRevoked = "mu: revokes a permission",
        /// A follower has granted its permission, and its numbers are known.
        MuConfirmed = "mu: confirms a follower",
        /// A reign finds a better log than its own, and reads it.
        MuCatchesUp = "mu: reads a better log",
        /// A better log is not read before what an earlier reign has asked for of another one has come home.
        MuAwaitsStray = "mu: awaits a log that an earlier reign has asked for",
        /// It has read it, and taken it over.
        MuAdopted = "mu: adopts a better log",
        /// A follower that is confirmed after the majority has a better log.
        MuLooksAgain = "mu: finds a better log late",
        /// The proposal number stands at a majority.
        MuPrepared = "mu: prepared",
        /// A reign is complete, and nothing uncommitted was found.
        MuLeads = "mu: leads a level log",
        /// A reign is complete, with entries that nobody knew to be committed.
        MuLeadsTail = "mu: leads, having recovered entries",
        /// A reign ends since a write has lost its permission.
        MuAccessLost = "mu: aborts, since a follower has granted another",
        /// A reign ends since this process grants somebody else.
        MuGrantedAway = "mu: aborts, having granted another",
        /// A reign ends since this process does not take itself for the leader any more.
        MuStepsAside = "mu: aborts for a lower id",
        /// A reign ends since a follower has promised a higher number.
        MuOutbid = "mu: aborts, outbid",
        /// A reign ends since the best log cannot be read.
        MuCatchUpFailed = "mu: aborts, unable to read a log",
        /// A reign ends since the others' logs begin behind the end of its own.
        MuTooOld = "mu: aborts, too far behind",
        /// A reign ends since this process is out of the group.
        MuRemoved = "mu: aborts, removed",
        /// A follower gets the log behind a base that it knows to be committed.
        MuStarts = "mu: starts a follower",
        /// A follower gets the log from what is committed on, since it lacks what comes before.
        MuJumps = "mu: starts a follower that was overrun",
        /// A follower's log becomes the leader's.
        MuStarted = "mu: a start takes effect",
        /// Entries of a follower are superseded.
        MuCutOff = "mu: a start cuts entries off",
        /// A change of the group that takes somebody in is proposed.
        MuGrows = "mu: takes a process into the group",
        /// A change of the group that removes somebody is proposed.
        MuShrinks = "mu: removes a process from the group",
        /// A replica that lacks the state asks for it.
        MuWishes = "mu: asks to be taught",
        /// A teacher begins.
        MuTeaches = "mu: begins to teach",
        /// A teacher cannot go on.
        MuTeachingBroken = "mu: breaks a lesson off",
        /// A learner holds the whole state.
        MuLearned = "mu: holds the state again",
        /// A follower that lacked the state holds it, and counts for commits.
        MuStateBack = "mu: a follower counts again",
        /// What is proposed waits until more is committed.
        MuNoRoom = "mu: the log has no room",
        /// A follower gets the rest later.
        MuLaneFull = "mu: a follower's lane is full",
        /// The commit index travels by itself.
        MuFlushed = "mu: flushes its commit index",
        /// A turn without proposals asks a follower whether it still gives its permission.
        MuProbed = "mu: asks whether the permission stands",
        /// A leader that is to hand over names its successor in the log.
        MuNamed = "mu: names its successor",
        /// It steps aside, since its successor has heard that it is named.
        MuHandedOver = "mu: hands over",
        /// The replica that was to lead next is lost before it is named.
        MuSuccessorLost = "mu: loses its successor",
        /// The replica that is named does not lead, and is waited for no longer.
        MuNamedInVain = "mu: leads, since the one named does not",
    }
}

impl Mark {
    /// Counts that this mark has been reached. Without the feature `marks` it does nothing.
    #[inline(always)]
    pub fn reach(self) {
        probe::reach(self as usize);
    }
}
