//! What the store counts.

/// Counters since the start; each only grows, except where its comment says otherwise. One thread writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Commands executed, those of transactions included.
    pub commands: u64,
    /// Replies to requests that were not executed because another node leads.
    pub redirects: u64,
    /// Lookups of keys that were there.
    pub keyspace_hits: u64,
    /// Lookups of keys that were not.
    pub keyspace_misses: u64,
    /// Keys deleted because they were due.
    pub expired_keys: u64,
    /// Entries handed to the engine.
    pub proposals: u64,
    /// Their total bytes.
    pub proposed_bytes: u64,
    /// Connections accepted over TCP and Unix sockets.
    pub connections_received: u64,
    /// Connections refused because there were too many, or because no descriptor was left.
    pub connections_rejected: u64,
    /// Connections open now (a gauge).
    pub connections: u64,
    /// Connections closed because their output limit was reached.
    pub output_limit_disconnections: u64,
    /// Connections closed, or clients notified, because this node ceased to be primary before their replies could be sent.
    pub voided_connections: u64,
    /// Connections that this node has taken over from others.
    pub connections_taken_over: u64,
    /// Connections that it could not take over, and ended.
    pub connections_lost: u64,
    /// Requests that broke the protocol.
    pub protocol_errors: u64,
    /// Bytes read from sockets.
    pub input_bytes: u64,
    /// Bytes written to sockets.
    pub output_bytes: u64,
    /// Clients connected over the fabric now (a gauge).
    pub fabric_clients: u64,
    /// Requests taken from clients on the fabric.
    pub fabric_requests: u64,
    /// Repeated requests that were answered from a session, or were settled already.
    pub fabric_repeats: u64,
    /// Error replies.
    pub errors: u64,
}
