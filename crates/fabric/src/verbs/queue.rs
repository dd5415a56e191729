//! Queue pairs and completion queues.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::device::{Device, Port};
use super::ffi::{self, AhAttr, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Wc};
use super::memory::Plane;

/// How long a request waits for its acknowledgement, and how often it is sent again.
///
/// An unanswered request fails after about `4.096 us * 2^timeout * (retries + 1)`, and at most four times that. If the device says nothing at all in
/// four times that, or in a second if that is more, it has forgotten the request, and the peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The wait before a request is sent again, as an exponent: 1 to 31.
    pub timeout: u8,
    /// How often it is sent again: 1 to 6. In the interface, 7 would mean for ever (TRAPS 34).
    pub retries: u8,
}

/// No request is considered forgotten sooner than this, since a device may round a short time-out up.
const LEAST_WAIT: Duration = Duration::from_secs(1);

impl Default for Patience {
    /// 67 ms and 6 times: half a second.
    fn default() -> Patience {
        Patience { timeout: 14, retries: 6 }
    }
}

impl Patience {
    /// When a device should have ended a request of so many packets, each of which may be lost, with time to spare.
    pub(super) fn longest(self, packets: u32) -> Duration {
        let timeout = Duration::from_nanos(4096 << self.timeout);
        let once = (timeout * 4 * (u32::from(self.retries) + 1)).max(LEAST_WAIT);
        once.saturating_add(timeout.saturating_mul(packets))
    }

    pub(super) fn check(self) -> Result<(), String> {
        if !(1..=31).contains(&self.timeout) {
            return Err(format!("timeout exponent {}; allowed are 1 to 31", self.timeout));
        }
        if !(1..=6).contains(&self.retries) {
            return Err(format!("{} retries; allowed are 1 to 6 (7 would be for ever)", self.retries));
        }
        Ok(())
    }
}

/// Where a queue pair of a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) gid: [u64; 2],
    pub(super) lid: u16,
    pub(super) mtu: u8,
}

impl Address {
    pub(super) fn of(port: &Port) -> Address {
        Address { gid: port.gid, lid: port.lid, mtu: port.mtu }
    }

    /// The packet size on the way from `port`, as the interface numbers it.
    fn path_mtu(self, port: &Port) -> u8 {
        port.mtu.min(self.mtu)
    }

    /// Bytes that one packet on the way from `port` carries.
    pub(super) fn packet_bytes(self, port: &Port) -> u32 {
        128 << self.path_mtu(port)
    }

    pub(super) fn vector(self, port: &Port) -> AhAttr {
        let (is_global, hop_limit) = if port.is_roce { (1, 64) } else { (0, 0) };
        AhAttr {
            dgid: self.gid,
            sgid_index: port.gid_index,
            hop_limit,
            dlid: self.lid,
            is_global,
            port_num: port.number,
            ..AhAttr::default()
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    cq: *mut ffi::Cq,
    /// How many completions it holds.
    pub(super) depth: u32,
    device: Arc<Device>,
}

// SAFETY: the library locks a completion queue where it must.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(device: &Arc<Device>, depth: u32) -> io::Result<Arc<CompletionQueue>> {
        let depth = depth.min(device.limits.completions);
        let entries = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the context is open; no channel, no context of ours.
        let cq = unsafe { (device.library.create_cq)(device.context(), entries, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
        if cq.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(CompletionQueue { cq, depth, device: device.clone() }))
    }

    /// Takes completions. Returns how many there were.
    #[inline]
    pub(super) fn poll(&self, into: &mut [Wc]) -> usize {
        // SAFETY: the queue is ours and open; at most as many completions are written as there is room for.
        let count = unsafe { ((*(*self.cq).context).ops().poll_cq)(self.cq, into.len() as c_int, into.as_mut_ptr()) };
        crate::invariant!(count >= 0, "the completion queue of {} has overrun: {count}", self.device.name);
        count as usize
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their completion queue by an `Arc`, so none uses it any more.
        let status = unsafe { (self.device.library.destroy_cq)(self.cq) };
        crate::invariant!(status == 0, "a completion queue cannot be given back: {status}");
    }
}

/// What a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// Reliable, connected to the queue pair of one peer.
    Connected,
    /// Datagrams.
    Datagram,
}

/// The capacity of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) sends: u32,
    pub(super) receives: u32,
    /// Bytes that a request may carry in itself; fewer if the device cannot carry as many.
    pub(super) inline: u32,
}

/// A queue pair; destroyed when dropped, or by [`QueuePair::end`].
#[derive(Debug)]
pub(super) struct QueuePair {
    /// Null once it is destroyed.
    qp: *mut ffi::Qp,
    pub(super) number: u32,
    /// Bytes that a request may carry in itself.
    pub(super) inline: u32,
    device: Arc<Device>,
    _completions: Arc<CompletionQueue>,
}

// SAFETY: the library locks a queue pair where it must.
unsafe impl Send for QueuePair {}

/// The inline sizes that are asked for, the largest first.
const INLINE_STEPS: [u32; 4] = [220, 124, 60, 0];

impl QueuePair {
    pub(super) fn new(
        device: &Arc<Device>,
        plane: Plane,
        completions: &Arc<CompletionQueue>,
        transport: Transport,
        shape: Shape,
    ) -> io::Result<QueuePair> {
        let qp_type = if transport == Transport::Connected { ffi::QPT_RC } else { ffi::QPT_UD };
        let mut error = io::Error::from(io::ErrorKind::Unsupported);
        for inline in INLINE_STEPS.into_iter().filter(|step| *step <= shape.inline || *step == 0) {
            let cap = QpCap {
                max_send_wr: shape.sends.min(device.limits.requests),
                max_recv_wr: shape.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            let mut attr = QpInitAttr {
                qp_context: std::ptr::null_mut(),
                send_cq: completions.cq,
                recv_cq: completions.cq,
                srq: std::ptr::null_mut(),
                cap,
                qp_type,
                sq_sig_all: 0,
            };
            // SAFETY: domain and completion queue are of this device and open; `attr` is the structure that the library reads and updates.
            let qp = unsafe { (device.library.create_qp)(plane.domain(device), &raw mut attr) };
            if qp.is_null() {
                error = io::Error::last_os_error();
                continue;
            }
            // SAFETY: not null, so it is a queue pair, whose number does not change.
            let number = unsafe { (*qp).qp_num };
            let inline = attr.cap.max_inline_data;
            return Ok(QueuePair { qp, number, inline, device: device.clone(), _completions: completions.clone() });
        }
        Err(error)
    }

    /// Destroys the queue pair, which is a fence in both directions: no request that came in on it is at work any more, and nothing that we asked for
    /// on it lands in our memory any more. From then on it cannot be used.
    pub(super) fn end(&mut self) {
        let qp = std::mem::replace(&mut self.qp, std::ptr::null_mut());
        if qp.is_null() {
            return;
        }
        // SAFETY: made by `create_qp`, and destroyed once. Requests that are still under way are not reported; a caller that needs to know drains
        // them first.
        let status = unsafe { (self.device.library.destroy_qp)(qp) };
        crate::invariant!(status == 0, "a queue pair cannot be given back: {status}");
    }

    fn modify(&self, attr: &mut QpAttr, mask: c_int) -> io::Result<()> {
        crate::invariant!(!self.qp.is_null(), "queue pair {} has been destroyed", self.number);
        // SAFETY: the queue pair is ours and open; `attr` is the structure that the library reads.
        ffi::check(unsafe { (self.device.library.modify_qp)(self.qp, attr, mask) })
    }

    fn state(state: c_int) -> QpAttr {
        // SAFETY: a structure of plain numbers, for which zeros are values.
        let attr: QpAttr = unsafe { std::mem::zeroed() };
        QpAttr { qp_state: state, ..attr }
    }

    /// Drops its connection, so that it can be connected again. **No fence** for what the peer has sent.
    pub(super) fn reset(&self) -> io::Result<()> {
        self.modify(&mut QueuePair::state(ffi::QPS_RESET), ffi::QP_STATE)
    }

    /// Stops sending: all requests that have not completed end with an error. **No fence** for what the peer has sent, answers included.
    pub(super) fn fail(&self) -> io::Result<()> {
        self.modify(&mut QueuePair::state(ffi::QPS_ERR), ffi::QP_STATE)
    }

    /// Takes all rights from the peer. **No fence** for what the peer has sent.
    pub(super) fn forbid(&self) -> io::Result<()> {
        self.modify(&mut QueuePair::state(ffi::QPS_RTS), ffi::QP_STATE | ffi::QP_ACCESS_FLAGS)
    }

    /// Makes it answer the peer's queue pair `number` within `rights`. `psn` is the peer's first packet number.
    pub(super) fn answer(&self, to: Address, number: u32, psn: u32, rights: c_int) -> io::Result<()> {
        let port = &self.device.port;
        let mut init = QpAttr { port_num: port.number, qp_access_flags: rights.cast_unsigned(), ..QueuePair::state(ffi::QPS_INIT) };
        self.modify(&mut init, ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_ACCESS_FLAGS)?;
        let mut ready = QpAttr {
            path_mtu: to.path_mtu(port).into(),
            dest_qp_num: number,
            rq_psn: psn,
            max_dest_rd_atomic: self.device.limits.reads_in,
            min_rnr_timer: 12,
            ah_attr: to.vector(port),
            ..QueuePair::state(ffi::QPS_RTR)
        };
        let mask = ffi::QP_STATE
            | ffi::QP_AV
            | ffi::QP_PATH_MTU
            | ffi::QP_DEST_QPN
            | ffi::QP_RQ_PSN
            | ffi::QP_MAX_DEST_RD_ATOMIC
            | ffi::QP_MIN_RNR_TIMER;
        self.modify(&mut ready, mask)
    }

    /// Lets it send too, after [`QueuePair::answer`]. `reads` is how many READs the peer answers at once.
    pub(super) fn send(&self, psn: u32, reads: u8, patience: Patience) -> io::Result<()> {
        let mut attr = QpAttr {
            sq_psn: psn,
            timeout: patience.timeout,
            retry_cnt: patience.retries,
            // Only messages that need a receive buffer can find a receiver that is not ready, and there are none here.
            rnr_retry: 6,
            max_rd_atomic: self.device.limits.reads_out.min(reads),
            ..QueuePair::state(ffi::QPS_RTS)
        };
        let mask = ffi::QP_STATE | ffi::QP_TIMEOUT | ffi::QP_RETRY_CNT | ffi::QP_RNR_RETRY | ffi::QP_SQ_PSN | ffi::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask)
    }

    /// Makes a datagram queue pair receive and send, for messages that carry `qkey`.
    pub(super) fn open_for_datagrams(&self, qkey: u32) -> io::Result<()> {
        let mut init = QpAttr { port_num: self.device.port.number, qkey, ..QueuePair::state(ffi::QPS_INIT) };
        self.modify(&mut init, ffi::QP_STATE | ffi::QP_PKEY_INDEX | ffi::QP_PORT | ffi::QP_QKEY)?;
        self.modify(&mut QueuePair::state(ffi::QPS_RTR), ffi::QP_STATE)?;
        self.modify(&mut QueuePair::state(ffi::QPS_RTS), ffi::QP_STATE | ffi::QP_SQ_PSN)
    }

    /// From now on, also receives what goes to a multicast group. For datagrams only; it has to be detached before it is destroyed.
    pub(super) fn attach(&self, group: [u64; 2]) -> io::Result<()> {
        crate::invariant!(!self.qp.is_null(), "queue pair {} has been destroyed", self.number);
        // SAFETY: the queue pair is ours and open; the library reads the 16 bytes of an address.
        ffi::check(unsafe { (self.device.library.attach_mcast)(self.qp, &raw const group, 0) })
    }

    /// Undoes [`QueuePair::attach`].
    pub(super) fn detach(&self, group: [u64; 2]) -> io::Result<()> {
        crate::invariant!(!self.qp.is_null(), "queue pair {} has been destroyed", self.number);
        // SAFETY: as for `attach`.
        ffi::check(unsafe { (self.device.library.detach_mcast)(self.qp, &raw const group, 0) })
    }

    /// Hands over a list of requests.
    ///
    /// # Safety
    /// `first` starts a list of requests whose buffers stay registered, and in place, until each has completed.
    #[inline]
    pub(super) unsafe fn post(&self, first: &mut SendWr) -> io::Result<()> {
        crate::invariant!(!self.qp.is_null(), "queue pair {} has been destroyed", self.number);
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is open; the caller vouches for the list.
        ffi::check(unsafe { ((*(*self.qp).context).ops().post_send)(self.qp, first, &raw mut bad) })
    }

    /// Hands over a buffer for a datagram.
    ///
    /// # Safety
    /// `wr` is a single request whose buffer stays registered, and in place, until it has completed.
    pub(super) unsafe fn post_receive(&self, wr: &mut RecvWr) -> io::Result<()> {
        crate::invariant!(!self.qp.is_null(), "queue pair {} has been destroyed", self.number);
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is open; the caller vouches for the buffer.
        ffi::check(unsafe { ((*(*self.qp).context).ops().post_recv)(self.qp, wr, &raw mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where datagrams for one peer go. A caller that hands over a datagram keeps its destination until the card is done with the datagram (module
/// `mailbox`): a card may look the address up only when it sends, and if it finds none then, the whole queue pair fails. Software RDMA has done so
/// since Linux 5.18.
#[derive(Debug)]
pub(super) struct Destination {
    handle: *mut ffi::Opaque,
    pub(super) gid: [u64; 2],
    device: Arc<Device>,
}

// SAFETY: the library accepts an address handle from any thread, and it is destroyed once, by the last owner that drops it.
unsafe impl Send for Destination {}
// SAFETY: an address handle is not changed once made, and a reference gives out no more than the handle.
unsafe impl Sync for Destination {}

impl Destination {
    pub(super) fn new(device: &Arc<Device>, to: Address) -> io::Result<Destination> {
        let mut attr = to.vector(&device.port);
        // SAFETY: the domain is open; `attr` is the structure that the library reads.
        let handle = unsafe { (device.library.create_ah)(device.background, &raw mut attr) };
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Destination { handle, gid: to.gid, device: device.clone() }) }
    }

    pub(super) fn handle(&self) -> *mut ffi::Opaque {
        self.handle
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: made by `create_ah`, destroyed once. The card has no datagram for this address any more: for each datagram, a mailbox keeps an
        // `Arc` of it until the datagram has completed or its queue pair is destroyed.
        let status = unsafe { (self.device.library.destroy_ah)(self.handle) };
        crate::invariant!(status == 0, "an address handle cannot be given back: {status}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_an_end() {
        assert_eq!(Patience::default().check(), Ok(()));
        let error = Patience { retries: 7, ..Patience::default() }.check().expect_err("for ever");
        assert!(error.contains("7 retries; allowed are 1 to 6"), "{error}");
        assert!(Patience { timeout: 0, ..Patience::default() }.check().expect_err("for ever").contains("allowed are 1 to 31"));
    }

    #[test]
    fn a_device_has_four_times_the_nominal_time_and_a_second_at_least() {
        assert_eq!(Patience::default().longest(0).as_millis(), 1879);
        assert_eq!(Patience::default().longest(10).as_millis(), 1879 + 671);
        assert_eq!(Patience { timeout: 1, retries: 1 }.longest(0), LEAST_WAIT);
        // The longest that is allowed, in days.
        assert_eq!(Patience { timeout: 31, retries: 6 }.longest(0).as_secs() / 86_400, 2);
    }
}
