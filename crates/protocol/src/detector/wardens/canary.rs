//! Known bugs in what a warden concludes from packets, kept as canaries ([`probe`](martlet_fabric::probe)): the fuzz target `wardens` has to find each. Numbers in brackets are those of
//! `docs/traps.md`.

use martlet_fabric::canaries;

canaries! {
    /// A bug that a test can plant.
    pub enum Canary {
        /// A certificate of a failure is believed whatever secret it shows (29).
        UncheckedProof = "unchecked-proof",
        /// A certificate is held against the digest that comes along with it, not against the one that was told while the application lived (29).
        OwnDigest = "own-digest",
        /// A packet that was kept since an earlier life of its sender is believed (28).
        KeptIsFresh = "kept-is-fresh",
        /// Of a new life of a warden, what its predecessor had told up to some change counts as told (28).
        ChangesOfEarlierLife = "changes-of-earlier-life",
        /// Changes are taken although others before them have not been heard.
        GapTaken = "gap-taken",
        /// What stands behind a certificate that proves nothing counts as heard.
        SkippedWithDoubt = "skipped-with-doubt",
        /// Another warden is believed to have heard of more changes than there have been.
        HeardTooMuch = "heard-too-much",
        /// An end that comes again is told again.
        EndAgain = "end-again",
        /// A host is presumed dead when one heartbeat is late, though its plan allows for that.
        OneBeatIsAll = "one-beat-is-all",
        /// The time for which a warden itself stood still counts as silence of the others.
        StallIsSilence = "stall-is-silence",
        /// Silence of a warden that has ended in order is a sign of a failure (28).
        ByeIsSilence = "bye-is-silence",
    }
}
