//! The part of libibverbs' binary interface that we use, loaded at run time.
//!
//! It is written down here and not taken from a binding: bindings that load the library at run time need libclang, cmake and a network at build time
//! to read its headers, and this interface is a few structures that have not changed since rdma-core 1 (`docs/rdma.md`). Names are the header's,
//! without `ibv_`. Sizes and offsets below are those that a C compiler gives for `<infiniband/verbs.h>` on 64-bit machines.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::OnceLock;

/// An object of the library that we only point to.
#[repr(C)]
pub(super) struct Opaque {
    _private: [u8; 0],
}

/// `struct ibv_context`, as far as we look into it.
#[repr(C)]
pub(super) struct Context {
    device: *mut Opaque,
    ops: ContextOps,
    cmd_fd: c_int,
    /// Readable when an event of the device has arrived.
    pub(super) async_fd: c_int,
}

type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `struct ibv_context_ops`: what the header's inline functions call.
#[repr(C)]
pub(super) struct ContextOps {
    unused_before_poll: [*mut c_void; 11],
    pub(super) poll_cq: PollCq,
    unused_before_send: [*mut c_void; 13],
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
    unused_after: [*mut c_void; 5],
}

impl Context {
    pub(super) fn ops(&self) -> &ContextOps {
        &self.ops
    }
}

/// `struct ibv_qp`, as far as we look into it.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    unused: [*mut c_void; 5],
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_cq`, as far as we look into it.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: Element,
    pub(super) event_type: c_int,
}

/// The object that an event concerns; its type says which of these.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Element {
    pub(super) qp: *const Qp,
    pub(super) port_num: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Opaque,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    fw_ver: [u8; 64],
    guids: [u64; 2],
    max_mr_size: u64,
    page_size_cap: u64,
    ids: [u32; 3],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    device_cap_flags: u32,
    max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    unused: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_int,
    unused_limits: [c_int; 5],
    pub(super) max_mcast_grp: c_int,
    pub(super) max_mcast_qp_attach: c_int,
    more_unused_limits: [c_int; 7],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
    tail: [u32; 1],
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PortAttr {
    pub(super) state: c_int,
    max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    port_cap_flags: u32,
    max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    unused: [u8; 8],
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Opaque,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`. `wr` is the header's union, word by word: see [`SendWr::rdma`] and its like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: u32,
    pub(super) imm_data: u32,
    pub(super) wr: [u64; 4],
    pub(super) unused: [u64; 7],
}

impl SendWr {
    /// An empty request.
    pub(super) const EMPTY: SendWr = SendWr {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: [0; 4],
        unused: [0; 7],
    };

    /// Makes it address memory at the peer, for a READ or WRITE.
    pub(super) fn rdma(&mut self, remote: u64, rkey: u32) {
        self.wr = [remote, rkey.into(), 0, 0];
    }

    /// Makes it a compare-and-swap of memory at the peer.
    pub(super) fn atomic(&mut self, remote: u64, rkey: u32, expected: u64, new: u64) {
        self.wr = [remote, expected, new, rkey.into()];
    }

    /// Addresses a datagram.
    pub(super) fn datagram(&mut self, ah: *mut Opaque, qp_num: u32, qkey: u32) {
        self.wr = [ah as u64, u64::from(qkey) << 32 | u64::from(qp_num), 0, 0];
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

impl Wc {
    /// An empty completion, to be filled in.
    pub(super) const EMPTY: Wc = Wc {
        wr_id: 0,
        status: 0,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: 0,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
}

const _: () = {
    assert!(offset_of!(Context, ops) == 8 && size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88 && offset_of!(ContextOps, post_send) == 200 && offset_of!(ContextOps, post_recv) == 208);
    assert!(offset_of!(Context, async_fd) == 268);
    assert!(size_of::<AsyncEvent>() == 16 && offset_of!(AsyncEvent, event_type) == 8);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<Mr>() == 48 && offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp) == 108 && offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144 && offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(DeviceAttr, max_mcast_grp) == 188 && offset_of!(DeviceAttr, max_mcast_qp_attach) == 192);
    assert!(offset_of!(DeviceAttr, atomic_cap) == 164 && offset_of!(DeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, lid) == 34 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, cap) == 32 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, dlid) == 24 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56 && offset_of!(QpAttr, max_rd_atomic) == 126);
    assert!(offset_of!(QpAttr, port_num) == 129 && offset_of!(QpAttr, retry_cnt) == 131 && offset_of!(QpAttr, rate_limit) == 136);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, opcode) == 28 && offset_of!(SendWr, wr) == 40);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Sge>() == 16);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, byte_len) == 20);
};

pub(super) const QPS_RESET: c_int = 0;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;

pub(super) const QPT_RC: c_int = 2;
pub(super) const QPT_UD: c_int = 4;

pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_QKEY: c_int = 1 << 6;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WR_ATOMIC_CMP_AND_SWP: c_int = 5;

pub(super) const SEND_SIGNALED: u32 = 1 << 1;
pub(super) const SEND_INLINE: u32 = 1 << 3;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;

pub(super) const WC_SUCCESS: c_int = 0;
pub(super) const WC_WR_FLUSH_ERR: c_int = 5;
pub(super) const WC_REM_INV_REQ_ERR: c_int = 9;
pub(super) const WC_REM_ACCESS_ERR: c_int = 10;

pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const ATOMIC_NONE: c_int = 0;

pub(super) const EVENT_CQ_ERR: c_int = 0;
pub(super) const EVENT_QP_FATAL: c_int = 1;
pub(super) const EVENT_QP_REQ_ERR: c_int = 2;
pub(super) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(super) const EVENT_COMM_EST: c_int = 4;
pub(super) const EVENT_SQ_DRAINED: c_int = 5;
pub(super) const EVENT_PATH_MIG: c_int = 6;
pub(super) const EVENT_PATH_MIG_ERR: c_int = 7;
pub(super) const EVENT_DEVICE_FATAL: c_int = 8;
pub(super) const EVENT_PORT_ACTIVE: c_int = 9;
pub(super) const EVENT_PORT_ERR: c_int = 10;
pub(super) const EVENT_LID_CHANGE: c_int = 11;
pub(super) const EVENT_PKEY_CHANGE: c_int = 12;
pub(super) const EVENT_SM_CHANGE: c_int = 13;
pub(super) const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
pub(super) const EVENT_CLIENT_REREGISTER: c_int = 17;
pub(super) const EVENT_GID_CHANGE: c_int = 18;

/// The bytes that the library leaves free before a datagram, where the packet's global route goes.
pub(super) const GRH_BYTES: usize = 40;

macro_rules! library {
    ($($field:ident: $symbol:literal => fn($($arg:ty),*) $(-> $ret:ty)?;)+) => {
        /// The library's functions.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)+
        }

        impl Library {
            fn resolve(handle: *mut c_void) -> Result<Library, String> {
                Ok(Library {
                    $($field: {
                        let found = symbol(handle, $symbol)?;
                        // SAFETY: the library's function of that name has this type, by its header; its version is the newest one, which
                        // programs have been linked with since 2008.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)+
                })
            }
        }
    };
}

library! {
    get_device_list: c"ibv_get_device_list" => fn(*mut c_int) -> *mut *mut Opaque;
    free_device_list: c"ibv_free_device_list" => fn(*mut *mut Opaque);
    get_device_name: c"ibv_get_device_name" => fn(*mut Opaque) -> *const c_char;
    open_device: c"ibv_open_device" => fn(*mut Opaque) -> *mut Context;
    close_device: c"ibv_close_device" => fn(*mut Context) -> c_int;
    query_device: c"ibv_query_device" => fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port: c"ibv_query_port" => fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid: c"ibv_query_gid" => fn(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int;
    alloc_pd: c"ibv_alloc_pd" => fn(*mut Context) -> *mut Opaque;
    dealloc_pd: c"ibv_dealloc_pd" => fn(*mut Opaque) -> c_int;
    reg_mr: c"ibv_reg_mr" => fn(*mut Opaque, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr: c"ibv_dereg_mr" => fn(*mut Mr) -> c_int;
    create_cq: c"ibv_create_cq" => fn(*mut Context, c_int, *mut c_void, *mut Opaque, c_int) -> *mut Cq;
    destroy_cq: c"ibv_destroy_cq" => fn(*mut Cq) -> c_int;
    create_qp: c"ibv_create_qp" => fn(*mut Opaque, *mut QpInitAttr) -> *mut Qp;
    modify_qp: c"ibv_modify_qp" => fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp" => fn(*mut Qp) -> c_int;
    attach_mcast: c"ibv_attach_mcast" => fn(*mut Qp, *const [u64; 2], u16) -> c_int;
    detach_mcast: c"ibv_detach_mcast" => fn(*mut Qp, *const [u64; 2], u16) -> c_int;
    create_ah: c"ibv_create_ah" => fn(*mut Opaque, *mut AhAttr) -> *mut Opaque;
    destroy_ah: c"ibv_destroy_ah" => fn(*mut Opaque) -> c_int;
    get_async_event: c"ibv_get_async_event" => fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: c"ibv_ack_async_event" => fn(*mut AsyncEvent);
}

const NAME: &CStr = c"libibverbs.so.1";

/// The loader's latest complaint.
fn complaint() -> String {
    // SAFETY: it returns null or a text that stays until this thread's next call to the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: not null, so it is that text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: `handle` is of the loaded library, and the name ends with a NUL.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() { Err(format!("libibverbs has no {}: {}", name.to_string_lossy(), complaint())) } else { Ok(found) }
}

/// The library, loaded once for the process.
///
/// # Errors
/// When it is not installed, or is not what we expect.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| {
        // SAFETY: the library's constructors register device drivers and nothing else; the name ends with a NUL. It is never unloaded.
        let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!(
                "{} cannot be loaded ({}); install rdma-core's libraries (Debian: libibverbs1 and ibverbs-providers)",
                NAME.to_string_lossy(),
                complaint()
            ));
        }
        Library::resolve(handle)
    });
    loaded.as_ref().map_err(String::as_str)
}

/// Checks the result of a call that returns an error number; some calls set `errno` and return -1.
pub(super) fn check(status: c_int) -> std::io::Result<()> {
    match status {
        0 => Ok(()),
        failed if failed > 0 => Err(std::io::Error::from_raw_os_error(failed)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_layout_of_the_headers_unions() {
        let mut wr = SendWr::EMPTY;
        wr.rdma(1, 2);
        assert_eq!(wr.wr, [1, 2, 0, 0]);
        wr.atomic(1, 2, 3, 4);
        assert_eq!(wr.wr, [1, 3, 4, 2]);
        wr.datagram(std::ptr::without_provenance_mut(8), 5, 6);
        assert_eq!(wr.wr, [8, (6 << 32) | 5, 0, 0]);
    }
}
