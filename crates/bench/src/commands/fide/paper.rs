//! What the paper says of its own measurements (FiDe section 6): six servers of a datacentre, Intel E5-2680 v4 at 2.4 GHz, 10 Gbit/s Ethernet, a core of the kernel's for FiDe.

/// Table 2, from the crash of an application to the upcall, in microseconds: on average.
pub const APPLICATION_AVERAGE_US: f64 = 4.58;
/// And at most.
pub const APPLICATION_MOST_US: f64 = 26.54;
/// The same of uKharon's detector, on average.
pub const UKHARON_AVERAGE_US: f64 = 17.39;
/// And at most.
pub const UKHARON_MOST_US: f64 = 193.56;
/// Table 2, from the end of a host, which is also the bound of Figure 3: no packet took longer.
pub const HOST_US: f64 = 45.0;
/// Figure 3: the longest that a packet took by RDMA.
pub const RDMA_MOST_US: f64 = 243.0;
/// Figure 3: the longest with X-Lane.
pub const X_LANE_MOST_US: f64 = 550.0;
/// Figure 3: over so many packets.
pub const PACKETS: f64 = 2.3e12;
/// Figure 4: the least timeout without a false positive.
pub const ACCURATE_US: f64 = 48.0;
/// Figure 4: the same of uKharon's detector, and of X-Lane.
pub const OTHERS_ACCURATE_US: f64 = 800.0;
/// Section 6.4: how many clients, and how many requests.
pub const CLIENTS: u32 = 50;
/// And how many requests.
pub const REQUESTS: u32 = 1_000_000;
/// Figure 6a: by how much HUC has a higher throughput than RedisRaft, on average.
pub const HUC_TO_RAFT: f64 = 1.22;
/// And at most.
pub const HUC_TO_RAFT_MOST: f64 = 1.7;
/// Table 3: latency of a SET with two processes, HSUC and HUC, in microseconds.
pub const HSUC_SET_US: f64 = 531.0;
/// Of HUC.
pub const HUC_SET_US: f64 = 518.0;
