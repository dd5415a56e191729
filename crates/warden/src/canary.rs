//! Known bugs in how a warden reads what comes from outside, and in what it lets programs do. They are kept as canaries ([`probe`](martlet_fabric::probe)): the
//! fuzz target `wardens` has to find each of them.

use martlet_fabric::canaries;

canaries! {
    /// A bug that a test can plant.
    pub enum Canary {
        /// What follows the last field of a program's message is not looked at.
        MessageGoesOn = "message-goes-on",
        /// What follows the last entry of a packet is not looked at.
        PacketGoesOn = "packet-goes-on",
        /// A packet with more entries than are allowed is taken.
        EntriesUncounted = "entries-uncounted",
        /// A packet opens by whichever path it comes.
        AnyPath = "any-path",
        /// A packet opens at whichever host it arrives.
        AnyHost = "any-host",
        /// A program that has not said who it is may ask.
        UngreetedAsks = "ungreeted-asks",
        /// An application that is alive may be joined by another program.
        JoinedTwice = "joined-twice",
        /// An application may send more than its monitors have asked for.
        UnaskedPiggyback = "unasked-piggyback",
        /// A program that has gone is still told of what it monitored.
        GoneIsTold = "gone-is-told",
        /// A warden's file may name a host twice.
        HostTwice = "host-twice",
        /// Of two paths, how late a heartbeat may be over the later one is left out of the timeout.
        FirstPathOnly = "first-path-only",
    }
}
