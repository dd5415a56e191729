//! What the paper says of its own measurements (DARE section 6), in its words: 12 machines, Intel E5-2609 at 2.4 GHz, QDR InfiniBand.

/// Median latency of a write, one client and five servers, up to 2 KiB, in microseconds.
pub const WRITE_US: f64 = 15.0;
/// Latency of a read, which is less than this.
pub const READ_US: f64 = 8.0;
/// With so many clients and three servers.
pub const CLIENTS: u16 = 9;
/// Replies to reads of 64 B a second, at least.
pub const READS_PER_S: f64 = 720_000.0;
/// Replies to writes of 64 B a second, at least.
pub const WRITES_PER_S: f64 = 460_000.0;
/// The most that reads of 2048 B transfer, in MiB a second.
pub const READ_MIB_PER_S: f64 = 760.0;
/// The most that writes of 2048 B transfer, in MiB a second.
pub const WRITE_MIB_PER_S: f64 = 470.0;
/// Latency of other applications with five servers, over TCP (Figure 9b): their names, of a write and of a read, in microseconds.
pub const APPLICATIONS: [(&str, f64, Option<f64>); 4] =
    [("ZooKeeper", 380.0, Some(120.0)), ("etcd", 50_000.0, Some(1_600.0)), ("PaxosSB", 2_600.0, None), ("Libpaxos", 320.0, None)];
