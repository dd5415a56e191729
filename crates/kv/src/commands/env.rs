//! What commands know about the server around them.

use martlet_fabric::NodeId;
use martlet_protocol::basics::{ProcessId, ViewNumber};
use martlet_protocol::membership::{Member, Roles, View};
use martlet_protocol::replica::{Replica, Standing};

use super::address;
use crate::config::KvConfig;

/// The server as commands see it: its configuration, and what the cluster looked like at the start of the turn.
#[derive(Clone, Debug)]
pub struct Env {
    /// The configuration.
    pub config: KvConfig,
    /// Whether this node leads.
    pub is_primary: bool,
    /// Whether this node does not lead, and its state is one after some committed command. Such a state may be shown to clients that accept an older one.
    pub shows_committed: bool,
    /// Whether leadership can be handed over other than by leaving.
    pub hands_over: bool,
    /// Whether the group can have a number of places that differs from its members.
    pub resizes: bool,
    /// How many places it has, and is to have, unless that follows from its members.
    pub places: Option<(usize, usize)>,
    /// The leader, as far as this node knows.
    pub primary: Option<ProcessId>,
    /// The leader's address for Redis clients.
    pub primary_address: Option<String>,
    /// The newest view's number.
    pub view_number: ViewNumber,
    /// That view, if the replica shows it.
    pub view: Option<View>,
    /// When the server started, in milliseconds of Unix time.
    pub started_ms: u64,
    /// Changes of [`Replica::reign`] seen.
    pub reign: u64,
    standing: Option<Standing>,
}

impl Env {
    /// A server that has not met its replica yet.
    pub fn new(config: KvConfig, started_ms: u64) -> Env {
        Env {
            config,
            is_primary: false,
            shows_committed: false,
            hands_over: false,
            resizes: false,
            places: None,
            primary: None,
            primary_address: None,
            view_number: ViewNumber::default(),
            view: None,
            started_ms,
            reign: 0,
            standing: None,
        }
    }

    /// Takes in what has changed; cheap when nothing has.
    #[inline]
    pub fn refresh<R: Replica>(&mut self, replica: &R) {
        let (standing, view) = (replica.standing(), replica.view());
        self.places = replica.places();
        self.shows_committed = standing != Standing::Primary && replica.shows_committed();
        if self.standing == Some(standing) && self.view_number == view && self.reign == replica.reign() {
            return;
        }
        self.standing = Some(standing);
        self.reign = replica.reign();
        self.view_number = view;
        self.view = replica.current_view().cloned();
        self.is_primary = standing == Standing::Primary;
        self.hands_over = replica.hands_over();
        self.resizes = replica.resizes();
        self.primary = match standing {
            // This node: where the engine elects the leader itself, that need not be the view's first member.
            Standing::Primary => {
                let lives = self.view.iter().flat_map(|view| &view.members).filter(|m| m.id.node == self.config.node);
                lives.map(|m| m.id).max()
            }
            Standing::Backup { primary } => primary,
            Standing::Excluded => self.view.as_ref().and_then(View::primary).map(|m| m.id),
        };
        self.primary_address = self.primary.and_then(|p| replica.address_of(p)).filter(|address| !address.is_empty()).map(str::to_owned);
    }

    /// This node's number.
    pub fn me(&self) -> NodeId {
        self.config.node
    }

    /// The members of the view other than this node.
    pub fn others(&self) -> impl Iterator<Item = &Member> {
        self.view.iter().flat_map(|view| &view.members).filter(|member| member.id.node != self.me())
    }

    /// Whether no other replica holds the state, so that it would be lost if this node died.
    pub fn is_alone(&self) -> bool {
        self.is_primary && self.view.as_ref().is_some_and(|v| v.with_roles(Roles::REPLICA).count() <= 1)
    }

    /// The redirection for a client whose request's first key lies in `slot`.
    pub fn redirection(&self, slot: u16) -> String {
        match (&self.primary_address, self.config.cluster_mode) {
            (Some(address), true) => format!("MOVED {slot} {}", address::told(address)),
            (Some(address), false) => format!("READONLY You can't write against a read only replica. The primary is {address}"),
            (None, true) => "CLUSTERDOWN The cluster is down".to_owned(),
            (None, false) => "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.".to_owned(),
        }
    }
}
