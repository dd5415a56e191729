//! What a device reports by itself: that a port has gone down, or that a queue pair or the device has broken. Nothing depends on these events, since
//! requests end anyway; but an operator who looks for the cause of time-outs finds it in the log.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::device::Device;
use super::ffi;

/// Where a device's events arrive. One thread reads them.
pub(super) struct Events {
    device: Arc<Device>,
    /// No further event can be read.
    over: bool,
}

/// An event that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceEvent {
    pub(super) kind: c_int,
    pub(super) about: About,
}

/// The object that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Device,
    Port(c_int),
    /// By its number.
    QueuePair(u32),
    /// A completion queue, or something that we do not use.
    Other,
}

/// How much the event concerns an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Trouble,
    News,
    Detail,
}

impl Events {
    pub(super) fn of(device: &Arc<Device>) -> Events {
        let mut events = Events { device: Arc::clone(device), over: false };
        if let Err(error) = rustix::io::ioctl_fionbio(device.events(), true) {
            events.end(&error.into());
        }
        events
    }

    /// Readable when there is an event.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.over).then(|| self.device.events())
    }

    /// Takes the events that have arrived, and logs them.
    pub(super) fn log(&mut self) {
        while !self.over {
            match self.device.event() {
                Ok(event) => {
                    let (text, device) = (describe(event), &self.device.name);
                    match weight(event.kind) {
                        Weight::Trouble => tracing::error!("RDMA device {device}: {text}"),
                        Weight::News => tracing::info!("RDMA device {device}: {text}"),
                        Weight::Detail => tracing::debug!("RDMA device {device}: {text}"),
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    // Asking again and again would keep this thread busy for ever.
                    _ => self.end(&error),
                },
            }
        }
    }

    fn end(&mut self, error: &io::Error) {
        tracing::warn!(%error, "RDMA device {}: what becomes of it will not stand here any more", self.device.name);
        self.over = true;
    }
}

fn weight(kind: c_int) -> Weight {
    match kind {
        ffi::EVENT_CQ_ERR
        | ffi::EVENT_QP_FATAL
        | ffi::EVENT_QP_REQ_ERR
        | ffi::EVENT_QP_ACCESS_ERR
        | ffi::EVENT_DEVICE_FATAL
        | ffi::EVENT_PORT_ERR => Weight::Trouble,
        ffi::EVENT_PORT_ACTIVE | ffi::EVENT_LID_CHANGE | ffi::EVENT_GID_CHANGE => Weight::News,
        _ => Weight::Detail,
    }
}

/// An event in words.
fn describe(event: DeviceEvent) -> String {
    let what = match event.kind {
        ffi::EVENT_CQ_ERR => "a completion queue has overrun or broken",
        ffi::EVENT_QP_FATAL => "broken",
        ffi::EVENT_QP_REQ_ERR => "a request that it cannot make sense of has come in",
        ffi::EVENT_QP_ACCESS_ERR => "a request without the right to what it asks for has come in",
        ffi::EVENT_DEVICE_FATAL => "the device has broken down",
        ffi::EVENT_PORT_ACTIVE => "up",
        ffi::EVENT_PORT_ERR => "down",
        ffi::EVENT_LID_CHANGE => "it has another local identifier",
        ffi::EVENT_GID_CHANGE => "its table of addresses has changed",
        kind => return format!("event {kind} about {:?}", event.about),
    };
    match event.about {
        About::Port(port) => format!("port {port}: {what}"),
        About::QueuePair(number) => format!("queue pair {number}: {what}"),
        About::Device | About::Other => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_named_by_what_they_are_about() {
        let of = |kind, about| describe(DeviceEvent { kind, about });
        assert_eq!(of(ffi::EVENT_PORT_ERR, About::Port(1)), "port 1: down");
        assert_eq!(of(ffi::EVENT_QP_FATAL, About::QueuePair(17)), "queue pair 17: broken");
        assert_eq!(of(ffi::EVENT_DEVICE_FATAL, About::Device), "the device has broken down");
        assert_eq!(of(77, About::Other), "event 77 about Other");
        assert_eq!([ffi::EVENT_PORT_ERR, ffi::EVENT_PORT_ACTIVE, 77].map(weight), [Weight::Trouble, Weight::News, Weight::Detail]);
    }
}
