//! An opened device: which one, which port of it, and under which address it is known.

use std::ffi::{CStr, c_int};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::events::{About, DeviceEvent};
use super::ffi::{self, AsyncEvent, DeviceAttr, Library, PortAttr};

/// Which RDMA hardware of a host to use. The default finds it by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device's name, as `ibv_devices` shows it. `None`: the first device with an active port.
    pub name: Option<String>,
    /// The port, from 1.
    pub port: u8,
    /// The index of the address in the port's table. `None`: RoCE v2 over IPv4 before RoCE v2 over IPv6; on InfiniBand, the first.
    pub gid_index: Option<u8>,
}

impl Default for DeviceChoice {
    fn default() -> DeviceChoice {
        DeviceChoice { name: None, port: 1, gid_index: None }
    }
}

/// Why there is no device to use.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// libibverbs is missing or not usable.
    #[error("{0}")]
    Library(&'static str),
    /// The kernel has no RDMA at all.
    #[error("the kernel has no RDMA support ({0}); load the driver of the network card, or rdma_rxe for software RDMA")]
    Kernel(io::Error),
    /// No device, or none that will do.
    #[error("{0}")]
    NoDevice(String),
    /// The device lacks something.
    #[error("device {device}: {why}")]
    Unfit {
        /// Its name.
        device: String,
        /// What it lacks.
        why: String,
    },
    /// The device refuses something.
    #[error("device {device}: {what}: {source}")]
    System {
        /// Its name.
        device: String,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// An opened device with its two protection domains.
///
/// There are two so that the card itself keeps the planes apart: the key for writing a lane belongs to the domain of the lanes' queue pairs, and a
/// request with that key on any other queue pair fails.
pub(super) struct Device {
    pub(super) library: &'static Library,
    pub(super) name: String,
    context: *mut ffi::Context,
    /// The domain of the background plane: public memory, reading.
    pub(super) background: *mut ffi::Opaque,
    /// The domain of the replication plane: writing into lanes.
    pub(super) lanes: *mut ffi::Opaque,
    pub(super) limits: Limits,
    pub(super) port: Port,
}

// SAFETY: libibverbs' objects may be used by any thread; the library locks where that is needed.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("port", &self.port).finish_non_exhaustive()
    }
}

/// What the device can do at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) completions: u32,
    pub(super) requests: u32,
    /// READs and CASes that may be under way on one queue pair, as requester and as responder.
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    /// How many multicast groups its queue pairs may be attached to, and how many queue pairs may be attached to one group.
    pub(super) groups: u32,
    pub(super) group_members: u32,
}

/// A port and its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    /// 1 to 5, for 256 to 4096 bytes.
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) is_roce: bool,
    pub(super) gid_index: u8,
    /// In the byte order that it has in memory.
    pub(super) gid: [u64; 2],
}

/// The IPv6 form of an address in its memory form.
fn ip(gid: [u64; 2]) -> Ipv6Addr {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gid[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&gid[1].to_ne_bytes());
    Ipv6Addr::from(bytes)
}

/// The memory form of an address in its IPv6 form.
pub(super) fn gid(ip: Ipv6Addr) -> [u64; 2] {
    let bytes = ip.octets();
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    [word(0), word(8)]
}

impl Port {
    /// Its address. An address of an IPv4 network is returned as an IPv4 address.
    pub(super) fn ip(&self) -> IpAddr {
        ip(self.gid).to_canonical()
    }

    /// The most bytes that one packet carries.
    pub(super) fn mtu_bytes(&self) -> usize {
        128 << self.mtu
    }
}

/// The names of this host's RDMA devices.
///
/// # Errors
/// When there is no library or no kernel support.
pub fn devices() -> Result<Vec<String>, DeviceError> {
    let library = ffi::library().map_err(DeviceError::Library)?;
    with_list(library, |list| list.iter().map(|device| name_of(library, *device)).collect())
}

fn with_list<T>(library: &Library, use_it: impl FnOnce(&[*mut ffi::Opaque]) -> T) -> Result<T, DeviceError> {
    let mut count: c_int = 0;
    // SAFETY: the library writes one number.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(DeviceError::Kernel(io::Error::last_os_error()));
    }
    // SAFETY: the library returned an array of that many pointers, which is valid until it is freed below.
    let out = use_it(unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) });
    // SAFETY: it came from `get_device_list` and is freed once; opened devices stay valid.
    unsafe { (library.free_device_list)(list) };
    Ok(out)
}

fn name_of(library: &Library, device: *mut ffi::Opaque) -> String {
    // SAFETY: `device` is of a list that has not been freed; its name ends with a NUL and lives as long as the list.
    unsafe { CStr::from_ptr((library.get_device_name)(device)) }.to_string_lossy().into_owned()
}

impl Device {
    /// Opens the device that fits the choice.
    pub(super) fn open(choice: &DeviceChoice) -> Result<Arc<Device>, DeviceError> {
        let library = ffi::library().map_err(DeviceError::Library)?;
        with_list(library, |list| {
            let names: Vec<String> = list.iter().map(|device| name_of(library, *device)).collect();
            if names.is_empty() {
                return Err(DeviceError::NoDevice("this host has no RDMA device".into()));
            }
            if let Some(wanted) = &choice.name {
                let Some(at) = names.iter().position(|name| name == wanted) else {
                    return Err(DeviceError::NoDevice(format!("no RDMA device `{wanted}`; there are {}", names.join(", "))));
                };
                return Device::open_one(library, list[at], &names[at], choice);
            }
            let mut last = None;
            for (device, name) in list.iter().zip(&names) {
                match Device::open_one(library, *device, name, choice) {
                    Ok(device) => return Ok(device),
                    Err(error) => last = Some(error),
                }
            }
            Err(last.expect("the list is not empty"))
        })?
        .map(Arc::new)
    }

    fn open_one(library: &'static Library, device: *mut ffi::Opaque, name: &str, choice: &DeviceChoice) -> Result<Device, DeviceError> {
        let system = |what| {
            let device = name.to_owned();
            move |source| DeviceError::System { device, what, source }
        };
        let unfit = |why: String| DeviceError::Unfit { device: name.to_owned(), why };
        // SAFETY: `device` is of a list that has not been freed.
        let context = unsafe { (library.open_device)(device) };
        if context.is_null() {
            return Err(system("cannot be opened")(io::Error::last_os_error()));
        }
        // From here on, dropping it closes what is open.
        let mut opened = Device {
            library,
            name: name.to_owned(),
            context,
            background: std::ptr::null_mut(),
            lanes: std::ptr::null_mut(),
            limits: Limits { completions: 0, requests: 0, reads_out: 0, reads_in: 0, groups: 0, group_members: 0 },
            port: Port { number: choice.port, mtu: 0, lid: 0, is_roce: false, gid_index: 0, gid: [0; 2] },
        };
        // SAFETY: a structure of plain numbers, for which zeros are values.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `attr` is the structure that the library fills.
        ffi::check(unsafe { (library.query_device)(context, &raw mut attr) }).map_err(system("cannot be queried"))?;
        if attr.atomic_cap == ffi::ATOMIC_NONE {
            return Err(unfit("it has no atomic operations".into()));
        }
        if choice.port == 0 || choice.port > attr.phys_port_cnt {
            return Err(unfit(format!("it has no port {}; allowed are 1 to {}", choice.port, attr.phys_port_cnt)));
        }
        let small = |limit: c_int| u8::try_from(limit.clamp(1, 16)).expect("clamped");
        opened.limits = Limits {
            completions: u32::try_from(attr.max_cqe).unwrap_or(0),
            requests: u32::try_from(attr.max_qp_wr).unwrap_or(0),
            reads_out: small(attr.max_qp_init_rd_atom),
            reads_in: small(attr.max_qp_rd_atom),
            groups: u32::try_from(attr.max_mcast_grp).unwrap_or(0),
            group_members: u32::try_from(attr.max_mcast_qp_attach).unwrap_or(0),
        };
        opened.port = opened.query_port(choice)?;
        for domain in [0, 1] {
            // SAFETY: the context is open.
            let pd = unsafe { (library.alloc_pd)(context) };
            if pd.is_null() {
                return Err(system("cannot make a protection domain")(io::Error::last_os_error()));
            }
            *(if domain == 0 { &mut opened.background } else { &mut opened.lanes }) = pd;
        }
        Ok(opened)
    }

    fn query_port(&self, choice: &DeviceChoice) -> Result<Port, DeviceError> {
        let unfit = |why: String| DeviceError::Unfit { device: self.name.clone(), why };
        // SAFETY: a structure of plain numbers, for which zeros are values.
        let mut attr: PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `attr` is at least as long as what the library fills.
        ffi::check(unsafe { (self.library.query_port)(self.context, choice.port, &raw mut attr) })
            .map_err(|source| DeviceError::System { device: self.name.clone(), what: "its port cannot be queried", source })?;
        if attr.state != ffi::PORT_ACTIVE {
            return Err(unfit(format!("port {} is not active (state {})", choice.port, attr.state)));
        }
        let is_roce = attr.link_layer == ffi::LINK_LAYER_ETHERNET;
        let table = self.gids(choice.port, attr.gid_tbl_len);
        let gid = match choice.gid_index {
            Some(wanted) => table.iter().find(|gid| gid.index == wanted).ok_or_else(|| {
                let there: Vec<String> = table.iter().map(|gid| gid.index.to_string()).collect();
                unfit(format!("port {} has no address at index {wanted}; there are {}", choice.port, there.join(", ")))
            })?,
            None => choose(&table, is_roce).ok_or_else(|| {
                unfit(format!("port {} has no address for RoCE v2; give its network interface an IP address", choice.port))
            })?,
        };
        let mtu = u8::try_from(attr.active_mtu.clamp(1, 5)).expect("clamped");
        Ok(Port { number: choice.port, mtu, lid: attr.lid, is_roce, gid_index: gid.index, gid: gid.raw })
    }

    /// The addresses in a port's table that are in use.
    fn gids(&self, port: u8, len: c_int) -> Vec<Gid> {
        let indexes = 0..u8::try_from(len.clamp(0, 255)).expect("clamped");
        indexes
            .filter_map(|index| {
                let mut raw = [0; 2];
                // SAFETY: the context is open, and the library writes the 16 bytes of an address.
                let status = unsafe { (self.library.query_gid)(self.context, port, index.into(), &raw mut raw) };
                let kind = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", self.name);
                // Entries that are not in use have no type.
                let kind = fs::read_to_string(kind).unwrap_or_default();
                (status == 0 && raw != [0; 2]).then(|| Gid { index, raw, roce_v2: kind.trim() == "RoCE v2" })
            })
            .collect()
    }

    /// The index of the network interface that the port's address belongs to.
    pub(super) fn interface(&self) -> io::Result<u32> {
        let Port { number, gid_index, .. } = self.port;
        let name = fs::read_to_string(format!("/sys/class/infiniband/{}/ports/{number}/gid_attrs/ndevs/{gid_index}", self.name))?;
        let index = fs::read_to_string(format!("/sys/class/net/{}/ifindex", name.trim()))?;
        index.trim().parse().map_err(io::Error::other)
    }

    /// Readable when an event has arrived. A caller that opens a device without reading its events misses nothing but the log.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and its descriptor stays open as long as the context, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) }
    }

    /// Takes the next event. It waits for one, unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// Those of reading a descriptor; `WouldBlock` if no event has arrived.
    pub(super) fn event(&self) -> io::Result<DeviceEvent> {
        let mut event = AsyncEvent { element: ffi::Element { port_num: 0 }, event_type: 0 };
        // SAFETY: the context is open, and `event` is the structure that the library fills.
        if unsafe { (self.library.get_async_event)(self.context, &raw mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let kind = event.event_type;
        let about = match kind {
            ffi::EVENT_DEVICE_FATAL => About::Device,
            ffi::EVENT_PORT_ACTIVE
            | ffi::EVENT_PORT_ERR
            | ffi::EVENT_LID_CHANGE
            | ffi::EVENT_PKEY_CHANGE
            | ffi::EVENT_SM_CHANGE
            | ffi::EVENT_CLIENT_REREGISTER
            | ffi::EVENT_GID_CHANGE => {
                // SAFETY: for an event of a port, the library fills in the port's number.
                About::Port(unsafe { event.element.port_num })
            }
            ffi::EVENT_QP_FATAL
            | ffi::EVENT_QP_REQ_ERR
            | ffi::EVENT_QP_ACCESS_ERR
            | ffi::EVENT_COMM_EST
            | ffi::EVENT_SQ_DRAINED
            | ffi::EVENT_PATH_MIG
            | ffi::EVENT_PATH_MIG_ERR
            | ffi::EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: for an event of a queue pair, the library fills in a pointer to the queue pair, which stays valid until the event is
                // acknowledged below: another thread that destroys the queue pair meanwhile waits for that in the library.
                About::QueuePair(unsafe { (*event.element.qp).qp_num })
            }
            _ => About::Other,
        };
        // SAFETY: the event has been read, and is acknowledged once. Afterwards, only numbers taken from it are used.
        unsafe { (self.library.ack_async_event)(&raw mut event) };
        Ok(DeviceEvent { kind, about })
    }

    pub(super) fn context(&self) -> *mut ffi::Context {
        self.context
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for domain in [self.background, self.lanes] {
            if !domain.is_null() {
                // SAFETY: everything made in the domain holds this device by an `Arc`, so nothing is left in the domain.
                let status = unsafe { (self.library.dealloc_pd)(domain) };
                crate::invariant!(status == 0, "something of device {} is still in use: {status}", self.name);
            }
        }
        // SAFETY: nothing uses the context any more. A failure leaves a descriptor open until the process ends.
        unsafe { (self.library.close_device)(self.context) };
    }
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gid {
    index: u8,
    raw: [u64; 2],
    roce_v2: bool,
}

impl Gid {
    fn ip(&self) -> Ipv6Addr {
        ip(self.raw)
    }
}

/// The address to use if none was chosen. Link-local addresses come last: they reach no other subnet.
fn choose(table: &[Gid], is_roce: bool) -> Option<&Gid> {
    if !is_roce {
        return table.first();
    }
    let rank = |gid: &Gid| match gid.ip() {
        ip if ip.to_ipv4_mapped().is_some() => 0,
        ip if ip.is_unicast_link_local() => 2,
        _ => 1,
    };
    table.iter().filter(|gid| gid.roce_v2).min_by_key(|gid| (rank(gid), gid.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, ip: &str, roce_v2: bool) -> Gid {
        Gid { index, raw: super::gid(ip.parse().expect("an address")), roce_v2 }
    }

    #[test]
    fn roce_v2_over_ipv4_comes_first_and_link_local_last() {
        let table = [
            gid(0, "fe80::1", false),
            gid(1, "fe80::1", true),
            gid(2, "::ffff:10.0.0.1", false),
            gid(3, "fd00::1", true),
            gid(4, "::ffff:10.0.0.1", true),
        ];
        assert_eq!(table[4].ip().to_canonical(), IpAddr::from([10, 0, 0, 1]), "there and back");
        assert_eq!(choose(&table, true).map(|gid| gid.index), Some(4));
        assert_eq!(choose(&table[..4], true).map(|gid| gid.index), Some(3));
        assert_eq!(choose(&table[..2], true).map(|gid| gid.index), Some(1));
        assert_eq!(choose(&table[..1], true), None, "no RoCE v1");
        assert_eq!(choose(&table, false).map(|gid| gid.index), Some(0), "InfiniBand");
    }
}
