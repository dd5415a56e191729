//! Addresses of nodes, as Redis writes them.

/// Host and port of an address `host:port` as a node's configuration has it. There an IPv6 address is in brackets, which separate its colons from the port's.
/// Redis writes it without brackets, and so do we: clients look for the port behind the last colon, and expect no brackets.
pub(super) fn split(address: &str) -> (&str, u16) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    (bare.unwrap_or(host), port.parse().unwrap_or(0))
}

/// `host:port` as in `MOVED` and `CLUSTER NODES`.
pub(super) fn told(address: &str) -> String {
    let (host, port) = split(address);
    format!("{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_told_without_brackets() {
        for (address, host, port, text) in [
            ("127.0.0.1:7711", "127.0.0.1", 7711, "127.0.0.1:7711"),
            ("[::1]:7711", "::1", 7711, "::1:7711"),
            ("[fd00::2%eth0]:7711", "fd00::2%eth0", 7711, "fd00::2%eth0:7711"),
            ("db.example.org:7711", "db.example.org", 7711, "db.example.org:7711"),
        ] {
            assert_eq!(split(address), (host, port));
            assert_eq!(told(address), text);
        }
    }
}
