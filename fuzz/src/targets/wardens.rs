//! Messages between programs and their warden, packets from wardens of other hosts, and a warden's file.

pub(super) fn run(data: &[u8]) {
    martlet_warden::fuzz::check(data);
}
