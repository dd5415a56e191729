//! What the kernel announces about its devices: here, that a virtual machine has a new generation number (`drivers/virt/vmgenid.c`, Linux 6.9).

use std::os::fd::OwnedFd;

use martlet_fabric::host::descriptors::open;
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

/// The group of the kernel's own events; those that udev passes on have another.
const KERNEL: u32 = 1;
/// The variable in the event.
const GENERATION: &[u8] = b"NEW_VMGENID=1";
/// The most events that are taken at one look, so that a storm of them does not hold up the thread.
const EVENTS_A_LOOK: usize = 16;
/// The kernel's own bound on an event's variables is 2 KiB.
const MAX_BYTES: usize = 4096;

/// A socket that receives the events.
#[derive(Debug)]
pub(super) struct Uevents {
    socket: OwnedFd,
}

impl Uevents {
    /// Listens from now on. This takes no privilege.
    ///
    /// # Errors
    /// When the kernel, or a container's filter of system calls, does not allow it.
    pub fn listen() -> Result<Uevents, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = open(|| socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT)))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Uevents { socket })
    }

    /// Whether the events since the last look report a new generation. If some events were lost, the answer is yes, because they may have.
    pub fn tell_of_a_generation(&mut self) -> bool {
        let mut bytes = [0; MAX_BYTES];
        let mut told = false;
        for _ in 0..EVENTS_A_LOOK {
            match recvfrom(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, len, _)) => told |= is_generation(&bytes[..len.min(MAX_BYTES)]),
                Err(Errno::NOBUFS) => told = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        told
    }
}

/// An event is its action and device, and then its variables, each ended by a zero.
fn is_generation(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).skip(1).any(|variable| variable == GENERATION)
}

#[cfg(test)]
mod tests {
    use rustix::net::{SendFlags, sendto};

    use super::*;

    const EVENT: &[u8] = b"change@/devices/LNXSYSTM:00/VMGENCTR:00\0ACTION=change\0SUBSYSTEM=acpi\0NEW_VMGENID=1\0SEQNUM=4711\0";

    #[test]
    fn the_event_of_a_new_generation_is_told_from_others() {
        assert!(is_generation(EVENT));
        for other in
            [&b""[..], b"\0\0", b"NEW_VMGENID=1", b"add@/devices/x\0ACTION=add\0NEW_VMGENID=10\0", b"add@/devices/x\0X=NEW_VMGENID=1\0"]
        {
            assert!(!is_generation(other), "{other:?}");
        }
    }

    /// For a privileged process, the kernel sends an event to all that listen.
    #[test]
    fn an_event_that_is_sent_is_heard_once() {
        let Ok(mut heard) = Uevents::listen() else { return };
        heard.tell_of_a_generation();
        let sender = Uevents::listen().expect("a second one");
        match sendto(&sender.socket, EVENT, SendFlags::empty(), &SocketAddrNetlink::new(0, KERNEL)) {
            Ok(_) => {}
            Err(Errno::PERM | Errno::CONNREFUSED) => return, // it takes CAP_SYS_ADMIN
            Err(error) => panic!("{error}"),
        }
        assert!(heard.tell_of_a_generation());
        assert!(!heard.tell_of_a_generation());
    }
}
