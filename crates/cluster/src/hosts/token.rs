//! A newcomer's token: where to ask, and the secret that opens the answer.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::hex;

/// The beginning of a token of this layout. Another layout has another number.
const KIND: &str = "martlet1-";
const BYTES: usize = 16 + 2 + 8 + 16 + 4;

/// An invitation in the form in which it is carried from one host to another: a host that has it can join the cluster, once.
///
/// `martlet1-` is followed by 92 hexadecimal digits: 16 bytes of address (IPv4 mapped into IPv6) and 2 of port, the invitation's number (8), its secret (16),
/// and a CRC-32 of all that, little-endian. The CRC distinguishes a mistake in copying from an unknown token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The address at which the host that has given it answers other hosts.
    pub at: SocketAddr,
    /// The number of the invitation.
    pub invitation: [u8; 8],
    /// The secret that both ends prove to have.
    pub secret: [u8; 16],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(at {}, invitation {})", self.at, hex::encode(&self.invitation))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = match self.at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(ip.octets());
        bytes.extend(self.at.port().to_le_bytes());
        bytes.extend(self.invitation);
        bytes.extend(self.secret);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        write!(f, "{KIND}{}", hex::encode(&bytes))
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Token, String> {
        let text = text.trim();
        let Some(digits) = text.strip_prefix(KIND) else {
            let version =
                text.strip_prefix("martlet").and_then(|rest| rest.split_once('-')).and_then(|(number, _)| number.parse::<u32>().ok());
            return Err(match version {
                Some(version) => {
                    format!("the token has layout {version}, but this build reads layout 1: run the same build of martlet on both hosts")
                }
                None => format!("the token does not begin with \"{KIND}\"; allowed is what `martlet host invite` printed"),
            });
        };
        if digits.len() != 2 * BYTES {
            let length = digits.len();
            return Err(format!(
                "the token has {length} characters after \"{KIND}\"; allowed are {}: was only a part of it copied?",
                2 * BYTES
            ));
        }
        let damaged = || "the token is damaged; allowed is what `martlet host invite` printed, every character of it".to_owned();
        let bytes: [u8; BYTES] = hex::decode(digits).ok_or_else(damaged)?;
        let (body, check) = bytes.split_at(BYTES - 4);
        if crc32fast::hash(body).to_le_bytes() != check {
            return Err(damaged());
        }
        let ip: [u8; 16] = body[..16].try_into().expect("its length");
        let port = u16::from_le_bytes(body[16..18].try_into().expect("its length"));
        Ok(Token {
            at: SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port),
            invitation: body[18..26].try_into().expect("its length"),
            secret: body[26..].try_into().expect("its length"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_way_and_a_bad_one_says_what_is_wrong() {
        for at in ["10.0.0.1:7601", "[fd00::7]:65535"] {
            let token = Token { at: at.parse().expect("an address"), invitation: [7; 8], secret: [9; 16] };
            let text = token.to_string();
            assert_eq!(format!(" {text}\n").parse::<Token>(), Ok(token.clone()));
            assert!(!format!("{token:?}").contains("0909"), "logs do not show the secret");
            let refused = |text: &str| text.parse::<Token>().expect_err("refused");
            for at in KIND.len()..text.len() {
                let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
                assert!(refused(&format!("{}{other}{}", &text[..at], &text[at + 1..])).contains("damaged"));
                assert!(refused(&text[..at]).contains("a part of it copied"));
            }
            assert!(refused(&text.replace("martlet1", "martlet2")).contains("layout 2"));
            assert!(refused("hello").contains("does not begin with"));
            assert!(refused(&format!("{KIND}{}", "ü".repeat(BYTES))).contains("damaged"));
        }
    }
}
