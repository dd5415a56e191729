//! Known bugs, kept as canaries. Each is placed where the mistake was made, or could have been made, and is inactive until a simulator plants it
//! ([`probe`](martlet_fabric::probe)). Numbers in brackets refer to `docs/traps.md`.

use martlet_fabric::canaries;

canaries! {
    /// A bug that a simulator can plant.
    pub enum Canary {
        /// A proposer that has adopted a value takes its own for the decided one (1).
        OwnProposal = "own-proposal",
        /// (n + 1) / 2 counts as a majority (2).
        HalfMajority = "half-majority",
        /// After a failed CAS the next attempt expects again what it expected before (uKharon App. A.5).
        ReusedPrediction = "reused-prediction",
        /// The prepare phase does not adopt what it finds accepted (uKharon Alg. 5).
        SkippedAdoption = "skipped-adoption",
        /// A view's record is taken although its checksum does not hold (14).
        TornView = "torn-view",
        /// An acceptor that is asked by RPC accepts whatever it has promised (uKharon App. A.6).
        ForgottenPromise = "forgotten-promise",
        /// Ballots wrap at the 16 bits of a slot's word instead of going on by RPC (4).
        WrappedBallot = "wrapped-ballot",
        /// A frozen slot counts as evidence that nothing was decided there (3, 4).
        FrozenIsEmpty = "frozen-is-empty",
        /// What an earlier round of questions has found counts for the present lease (3).
        StaleEvidence = "stale-evidence",
        /// A lease lasts from the moment of the answers, not from that of the questions (uKharon Alg. 2).
        LeaseFromAnswers = "lease-from-answers",
        /// A lease word says that a lease has been given back before that is so.
        EarlyGiveBack = "early-give-back",
        /// A first lease starts at once, whoever may still hold an older one (8).
        NoStartDelay = "no-start-delay",
        /// Nobody waits for the lease of a departed primary that is only presumed dead (8).
        UnawaitedPrimary = "unawaited-primary",
        /// Leases are used and waited for as if all clocks ran alike (uKharon App. C).
        NoClockMargin = "no-clock-margin",
        /// A jump of the clock is noticed, and the lease is kept (8).
        KeptLease = "kept-lease",
        /// The lease word is stored once the lease has begun, not before it is asked for (16).
        LateLeaseWord = "late-lease-word",
        /// A lease got through a cache lasts from the reading that proves it, not from the one before the cache's round (uKharon section 6.3).
        BorrowedFromAnswer = "borrowed-from-answer",
        /// A lease cache serves on without asking the coordinators (uKharon section 6.3).
        CacheServesOn = "cache-serves-on",
        /// A process is certainly dead when one of its threads is (32).
        OneThreadDead = "one-thread-dead",
        /// A process has no threads but those that it had when it was first looked at (32).
        ThreadsFixed = "threads-fixed",
        /// A certificate of a death is believed whatever secret it shows (29).
        UncheckedCertificate = "unchecked-certificate",
        /// What a node has pledged is read once, for all of its lives (28).
        PledgeOfNode = "pledge-of-node",
        /// Anybody's notice that a process is certainly dead, or has left, is believed (29).
        BelievedNotice = "believed-notice",
        /// A restarted process is taken for its earlier life (28).
        SameLife = "same-life",
        /// The feature level rises while a member cannot work at it.
        EarlyLevel = "early-level",
        /// Views are pushed once and never looked for (6).
        NoPull = "no-pull",
        /// Nobody asks whether the view is active before replies go out (7).
        UncheckedView = "unchecked-view",
        /// Replies go out on the strength of a check made before their requests were executed (7).
        NoSecondCheck = "no-second-check",
        /// The replies of a turn without proposals wait for none of the entries that they show (7).
        EagerRead = "eager-read",
        /// A read by quorum waits for the lease, as any other, and for no round of questions (uKharon App. B).
        UnaskedQuorum = "unasked-quorum",
        /// A round of questions vouches for reads that were executed while it was under way (7).
        EarlyRound = "early-round",
        /// An entry is committed as soon as one backup holds it (uKharon section 7.3).
        FastestBackup = "fastest-backup",
        /// A new primary reads its lanes while those who have departed may still write there (8, 16).
        LazyRevocation = "lazy-revocation",
        /// A new primary does not look into its lanes before it takes over (uKharon section 7.3).
        UnreadLanes = "unread-lanes",
        /// A new primary does not give the others what its predecessor left uncommitted.
        UnsharedTail = "unshared-tail",
        /// A learner is reported as caught up while the end of its transfer is still on its way (20).
        EarlyPromotion = "early-promotion",
        /// A learner that has been reported as caught up counts for no commit before a view promotes it.
        UncountedLearner = "uncounted-learner",
        /// A backup keeps what stands behind the base of a new primary.
        KeptSuffix = "kept-suffix",
        /// The lane of a primary that has been succeeded is read on, whatever it still stores there (16).
        UnretiredLane = "unretired-lane",
        /// The late start of a primary that has been succeeded is followed (16).
        SupersededStart = "superseded-start",
        /// Where a primary executes on commit, a learner applies what is not committed, and then takes a part of the state that does not show it.
        HsucEagerLearner = "hsuc-eager-learner",
        /// Where a primary executes on commit, a transfer begins although entries are under way that its state does not show.
        HsucUnheldStart = "hsuc-unheld-start",
        /// A primary of `hsuc` leaves out of the commit set whom it has lost, before a view excludes them (25).
        HsucSuspicionIsCrash = "hsuc-suspicion-is-crash",
        /// A primary of `hsuc` counts an entry as held when it has been written, whether or not its reader has taken it (TRAPS 20).
        HsucWrittenIsHeld = "hsuc-written-is-held",
        /// The commit index travels with entries only (13).
        NoFlush = "no-flush",
        /// A leader of `mu` waits for the permission of the whole group, not of a majority (10).
        MuWaitsForAll = "mu-waits-for-all",
        /// A leader of `mu` that was deposed goes on with the proposal number that it had, without preparing again (11).
        MuKeptFastPath = "mu-kept-fast-path",
        /// A new leader of `mu` does not catch up with the best log that it finds (12).
        MuNoCatchUp = "mu-no-catch-up",
        /// A leader of `mu` tells what is committed with the next entry only (13).
        MuNoFlush = "mu-no-flush",
        /// A leader of `mu` does not look whether there is room for what it places in the log (15).
        MuUncheckedSpace = "mu-unchecked-space",
        /// A follower of `mu` grants and acknowledges before the old holder's permission is gone (16).
        MuEarlyGrant = "mu-early-grant",
        /// A new leader of `mu` starts before its proposal number stands at a majority (Mu listing 2).
        MuUnprepared = "mu-unprepared",
        /// A replica that is taken into `mu`'s group passes for a leader before it knows that it belongs.
        MuUnawareMember = "mu-unaware-member",
        /// A process of `mu` that ends in order goes as soon as a view without it is decided, whether or not the group still counts on its vote.
        MuEarlyFarewell = "mu-early-farewell",
        /// A server of `dare` answers a vote request before the old leader's access is gone (DARE section 3.2.2).
        DareEarlyVote = "dare-early-vote",
        /// A server of `dare` votes for a candidate with an older log (DARE section 3.2.3).
        DareOldLog = "dare-old-log",
        /// A leader of `dare` writes behind whatever it finds, and cuts nothing off (DARE section 3.3.1).
        DareNoAdjust = "dare-no-adjust",
        /// A server of `dare` takes the pointers that an earlier reign has left in a lane (16).
        DareStaleTail = "dare-stale-tail",
        /// A server of `dare` that has to compare logs compares their last terms alone (DARE section 3.2.3).
        DareShortLog = "dare-short-log",
        /// A server of `dare` votes for every candidate of a term (DARE section 3.2).
        DareDoubleVote = "dare-double-vote",
        /// A server of `dare` answers a vote request before its decision stands in the memory of a majority (DARE section 3.2.3).
        DareUnkeptVote = "dare-unkept-vote",
        /// A server of `dare` that an entry leaves out of the group counts itself when it stands (DARE section 3.4).
        DareRemovedLeads = "dare-removed-leads",
        /// A leader of `dare` answers reads without a look at the terms of a majority (DARE section 3.3).
        DareBlindRead = "dare-blind-read",
        /// A leader of `dare` counts the group after a change of its size alone while that is under way (DARE section 3.4).
        DareOneMajority = "dare-one-majority",
        /// A leader of `dare` waits for what a dead server has yet to apply before it prunes (DARE section 5).
        DareZombieHead = "dare-zombie-head",
        /// A leader of `dare` counts writes that came too late, after its access was taken away (16).
        DareCountsRefused = "dare-counts-refused",
        /// A leader of `dare` commits as soon as one follower has an entry (2).
        DareFastestFollower = "dare-fastest-follower",
        /// A leader of `dare` cuts logs off behind what is known there to be committed, and not where they part from its own (DARE section 3.3.1).
        DareNaiveAdjust = "dare-naive-adjust",
        /// A server of `dare` believes the commit pointer before it has cut its log off (DARE section 3.3.1).
        DareHastyCommit = "dare-hasty-commit",
        /// A server of `dare` compares offsets in a ring that has come round (DARE section 3.1.1).
        DareCircularOffsets = "dare-circular-offsets",
        /// A leader of `dare` tells what is committed with the next entry only (13).
        DareNoFlush = "dare-no-flush",
        /// A process that is to come, and recovers, counts for a leader of `dare` like any other (DARE section 3.4).
        DareExtendedVotes = "dare-extended-votes",
        /// A leader of `dare` commits what stands at a majority although no entry of its own term does (`docs/dare.md`).
        DareOldTermCommit = "dare-old-term-commit",
        /// A server of `dare` has its log written over up to what it has taken, and not only to what it has applied (DARE section 3.3.2).
        DareEarlyApply = "dare-early-apply",
        /// A leader of `dare` changes the group again before the last change is committed (DARE section 3.4).
        DareHastyChange = "dare-hasty-change",
        /// A leader of `dare` leads, and changes the group, before an entry of its own term is committed (DARE section 3.4).
        DareEarlyConfig = "dare-early-config",
        /// A candidate of `dare` takes the dead for those that hear no leader and vote for it (DARE section 5).
        DareZombieVotes = "dare-zombie-votes",
        /// A leader of `dare` counts the memory of the dead for ever (20).
        DareForeverZombie = "dare-forever-zombie",
        /// A replica of `apus` acknowledges with durability `sync` what it has not kept (APUS section 4.1, B1 and B2).
        ApusEarlyAck = "apus-early-ack",
        /// A backup of `apus` acknowledges to a new leader only what it has not acknowledged to an earlier one (21).
        ApusMutedAcks = "apus-muted-acks",
        /// A replica of `apus` agrees to a candidate whose log is less up to date than its own (APUS section 4.4).
        ApusShortLog = "apus-short-log",
        /// A replica of `apus` agrees to a new view, and goes on taking and acknowledging the old leader's entries (41).
        ApusLateClose = "apus-late-close",
        /// A replica of `apus`, a deposed leader perhaps, commits by a leader's commit index before its log is that leader's (APUS section 4.1, B3).
        ApusForeignCommit = "apus-foreign-commit",
        /// A cluster is founded again of the best log's group alone, although none of that group has the log.
        BestLogLeftOut = "best-log-left-out",
        /// With `mu`'s durability `sync`, what a majority has in its memory is acknowledged, whether or not it is on stable storage (APUS section 4.1).
        MuUnsynced = "mu-unsynced",
    }
}
