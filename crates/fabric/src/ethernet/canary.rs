//! Known bugs of this fabric's two halves, kept as canaries ([`probe`](crate::probe)): the model tests have to find each.

#![cfg_attr(not(all(test, feature = "canaries")), allow(dead_code))]

use crate::canaries;

canaries! {
    /// A bug that a test can plant.
    pub enum Canary {
        /// A write under an earlier grant takes effect under a later one.
        LateEpoch = "late-epoch",
        /// An answer counts a part that was refused as done, and does not say so.
        ForgottenRefusal = "forgotten-refusal",
        /// A part that comes again is executed again.
        ExecutedTwice = "executed-twice",
        /// What stands behind a READ is sent before all of it has come.
        ReadOvertaken = "read-overtaken",
        /// A response that begins beyond what is confirmed is believed.
        GapBelieved = "gap-believed",
        /// A peer that does not answer for a while is taken for one that has got nothing.
        SilenceIsLoss = "silence-is-loss",
        /// What is sent behind it puts off when the first part is sent again.
        SendingIsNews = "sending-is-news",
        /// Nothing of what was lost is sent again while the window is full.
        FullWindowBlocks = "full-window-blocks",
        /// What was lost in a large packet goes out again in a large one.
        LargeAgain = "large-again",
        /// A path that has carried large packets is believed to carry them for ever.
        PathIsForEver = "path-is-for-ever",
    }
}
