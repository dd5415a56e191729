//! What clients and servers write into each other's lanes.

pub(super) fn run(data: &[u8]) {
    martlet_kv::fuzz::lane_record(data);
}
