//! Invitations, as they are kept in the directory of the host that has given them: `DIR/invitations/NUMBER.toml`, readable only by its owner.

use std::net::SocketAddr;
use std::time::Duration;

use martlet_node::config::{Cluster, Key, Secret};
use serde::{Deserialize, Serialize};

use super::{Token, answers_at, hex, keeper, now_s};
use crate::directory::Directory;
use crate::fail::{Context as _, Fail, Outcome};

/// How long an expired invitation can still be told apart from one that never existed, in seconds.
const REMEMBERED_S: u64 = 7 * 24 * 3600;

/// One invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Invitation {
    secret: Secret,
    /// When it expires, in seconds of the wall clock.
    expires_s: u64,
    /// The host that has taken it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken: Option<Taken>,
}

/// A newcomer that has been given a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Taken {
    pub(super) address: SocketAddr,
    pub(super) number: u16,
    /// Whether the newcomer has said that it has everything.
    pub(super) complete: bool,
}

impl Invitation {
    /// Reads an invitation, if there is one.
    ///
    /// # Errors
    /// Why there is none that can be taken, for the host that asks with it.
    pub(super) fn find(directory: &Directory, id: &str) -> Result<Invitation, String> {
        let unknown = || "it has no such invitation, or gave it long ago; `martlet host invite` there gives a new one".to_owned();
        // It becomes part of a path, so it must be hexadecimal.
        hex::decode::<8>(id).ok_or_else(unknown)?;
        let text = directory.invitation(id).ok_or_else(unknown)?;
        toml::from_str(&text).map_err(|error| format!("the invitation's file there cannot be read: {}", error.to_string().trim_end()))
    }

    pub(super) fn secret(&self) -> Result<[u8; 16], String> {
        hex::decode(&self.secret.0).ok_or_else(|| "the invitation's file there holds no secret".to_owned())
    }

    /// Whether a host at this address may take it now; a host that has begun to take it may continue.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, address: Option<SocketAddr>) -> Result<(), String> {
        match &self.taken {
            Some(Taken { address: by, number, complete: true }) => {
                Err(format!("the invitation has been used by {by}, which is node {number}. `martlet host invite` gives another one"))
            }
            Some(taken) if address.is_some_and(|address| address != taken.address) => {
                Err(format!("the invitation is being used by {}. `martlet host invite` gives another one", taken.address))
            }
            _ if now_s() >= self.expires_s => {
                let ago = now_s() - self.expires_s;
                Err(format!("the invitation expired {ago} s ago, by the clock there. `martlet host invite` gives another one"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn write(&self, directory: &Directory, id: &str) -> Outcome {
        directory.write_invitation(id, &toml::to_string(self).expect("a plain table of numbers and texts has a TOML form"))
    }
}

/// Makes an invitation that one host can take within that time. Needs no lock, since it changes no existing file.
///
/// # Errors
/// When this host is not the one that keeps the list of nodes, or its node does not answer other hosts.
pub fn invite(directory: &Directory, cluster: &Cluster, own: u16, valid: Duration) -> Outcome<Token> {
    let first = keeper(cluster);
    let at = answers_at(first)
        .ok_or_else(|| Fail::failed(format_args!("node {} has no address at which it could answer other hosts", first.number)))?;
    if first.number != own {
        return Err(Fail::usage(format_args!(
            "this host's node is {own}; only the host of node {}, at {}, can invite others, since it keeps the list of nodes",
            first.number,
            at.ip()
        )));
    }
    for id in directory.invitations()? {
        // A file that cannot be read is not ours to remove.
        if Invitation::find(directory, &id).is_ok_and(|invitation| invitation.expires_s + REMEMBERED_S < now_s()) {
            directory.forget_invitation(&id)?;
        }
    }
    let chance = Key::generate().context("no random numbers")?;
    let (invitation, rest) = chance.bytes().split_first_chunk::<8>().expect("32 bytes");
    let secret: [u8; 16] = rest[..16].try_into().expect("24 bytes");
    let expires_s = now_s() + valid.as_secs();
    Invitation { secret: hex::encode(&secret).into(), expires_s, taken: None }.write(directory, &hex::encode(invitation))?;
    Ok(Token { at, invitation: *invitation, secret })
}
