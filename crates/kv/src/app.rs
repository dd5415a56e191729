//! The application that a node hosts: the store with both front ends.

use std::os::fd::BorrowedFd;

use martlet_fabric::{Completion, Fabric};
use martlet_node::connections::service::Service;
use martlet_protocol::basics::Time;
use martlet_protocol::basics::layout::Sizes;
use martlet_protocol::replica::{Application, HandOverState, MadeUpClient, Replica, Standing};

use crate::client::Rehearser;
use crate::commands::{Clock, CpuClock, Ctx, Shared};
use crate::config::{ConfigError, KvConfig};
use crate::frontend::fabric::FabricFront;
use crate::frontend::redis::{ListenError, RedisFront};
use crate::stats::KvStats;
use crate::store::{Effect, KvMachine, Seed};
use crate::turn::{Released, Turn};

/// Tells the time, in nanoseconds of Unix time. Only expiry and what is shown to people depend on it.
pub type WallClock = Box<dyn Fn() -> u64 + Send>;

/// Why the application cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("the store's setting {0}")]
    Config(#[from] ConfigError),
    /// A socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// The key-value store as a node hosts it.
pub struct KvApp {
    shared: Shared,
    redis: RedisFront,
    fabric: FabricFront,
    clock: Clock,
    seed: Seed,
    reign: u64,
    is_primary: bool,
    /// Leadership is being handed over, and the outcome is not known yet.
    handing_over: bool,
    /// Whether the most recent requests of this reign came over the fabric.
    heard_in_memory: bool,
    /// Keys may be due that the last turn had no budget to delete.
    expiring: bool,
    /// Removed keys have yet to be freed.
    untidy: bool,
}

impl std::fmt::Debug for KvApp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvApp").field("reign", &self.reign).field("stats", &self.shared.stats).finish_non_exhaustive()
    }
}

impl KvApp {
    /// Listens where the configuration says. `chance` must be drawn from the system's secure source: should this node be the cluster's first primary, the seed
    /// that protects against hash flooding comes from it.
    pub fn new(config: KvConfig, wall: WallClock, chance: [u64; 2]) -> Result<KvApp, StartError> {
        config.check()?;
        let redis = RedisFront::new(&config)?;
        let mut clock = Clock::new(wall);
        let mut shared = Shared::new(config, clock.now_ms(), chance[0] ^ chance[1].rotate_left(32));
        // Show the port that was actually bound.
        if let Some(address) = redis.address() {
            shared.env.config.listen = Some(address);
        }
        let fabric = FabricFront::new(shared.env.config.sizes);
        // A seed of zeros means "no seed".
        let seed = Seed(chance[0] | 1, chance[1]);
        Ok(KvApp {
            shared,
            redis,
            fabric,
            clock,
            seed,
            reign: 0,
            is_primary: false,
            handing_over: false,
            heard_in_memory: true,
            expiring: false,
            untidy: false,
        })
    }

    /// Serves the cluster's service as well, whenever this node leads: one address that all nodes of this host share, with connections that outlive each node.
    ///
    /// # Errors
    /// [`StartError::Listen`], when no descriptor is left.
    pub fn with_service(mut self, service: Service) -> Result<KvApp, StartError> {
        let address = service.address;
        self.redis.serve_service(service).map_err(|source| ListenError::Tcp { address, source })?;
        Ok(self)
    }

    /// Lets INFO report how much processor time this process has used.
    #[must_use]
    pub fn with_cpu_clock(mut self, cpu: CpuClock) -> KvApp {
        self.shared.cpu = Some(cpu);
        self
    }

    /// The TCP address it listens on, with the actual port if 0 was asked for.
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        self.redis.address()
    }

    /// Counters, as of now.
    pub fn stats(&self) -> KvStats {
        self.shared.stats
    }

    /// An epoll instance that becomes readable when a socket needs attention, for a node that parks. An event that the node itself adds under
    /// [`NODES_OWN`](martlet_protocol::replica::NODES_OWN) ends a sleep and means nothing else.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.redis.events()
    }

    /// Whether nothing is left to do until [`KvApp::events`] is readable, a ticket is released, or a lane of the fabric changes.
    pub fn is_idle(&self) -> bool {
        self.redis.is_idle() && self.fabric.is_idle() && !self.expiring && !self.untidy
    }

    /// Takes note of a change of view or reign. When the reign changes, replies that wait become void.
    fn refresh<R: Replica<Machine = KvMachine>>(&mut self, replica: &mut R) {
        self.shared.env.refresh(replica);
        self.shared.keep_alive(replica.pulse());
        if replica.reign() == self.reign {
            return;
        }
        self.reign = replica.reign();
        self.is_primary = replica.standing() == Standing::Primary;
        // Clients of the fabric turn to a new primary at once, and are noticed then; clients of sockets have to connect first.
        self.heard_in_memory = false;
        invariant_empty(&self.shared);
        self.redis.reign_changed(&mut self.shared);
        self.fabric.reign_changed(replica, &mut self.shared);
    }

    /// FAILOVER was answered when the hand-over began, so its outcome goes to the node's log.
    fn tell_of_hand_over(&mut self, state: Option<HandOverState>) {
        match state {
            Some(HandOverState::UnderWay) => return,
            Some(HandOverState::Done) => tracing::info!("leadership has been handed over"),
            Some(HandOverState::SuccessorLost) => tracing::warn!("leadership is not handed over: the successor was lost"),
            Some(HandOverState::Overtaken(Some(leader))) => tracing::warn!(%leader, "leadership was lost before it was handed over"),
            Some(HandOverState::Overtaken(None)) | None => tracing::warn!("leadership was lost before it was handed over"),
        }
        self.handing_over = false;
    }
}

/// Effects of a turn never outlive it, so none are left over from another reign.
fn invariant_empty(shared: &Shared) {
    martlet_fabric::invariant!(shared.effects.is_empty(), "effects of an earlier turn were not proposed");
}

impl Application for KvApp {
    type Machine = KvMachine;

    fn poll<R: Replica<Machine = KvMachine>>(&mut self, replica: &mut R) -> usize {
        self.refresh(replica);
        self.clock.forget();
        let budget = self.shared.env.config.commands_per_turn;
        let work = self.shared.work();
        let mut turn = Turn {
            replica,
            shared: &mut self.shared,
            clock: &mut self.clock,
            budget,
            executed: 0,
            replied: 0,
            work,
            changed: false,
            mark: None,
        };
        if self.is_primary && !turn.replica.machine().is_seeded() {
            turn.perform(Effect::Seed(self.seed));
        }
        self.fabric.poll(&mut turn);
        let over_fabric = turn.executed;
        self.redis.poll(&mut turn);
        if turn.executed > 0 {
            self.heard_in_memory = over_fabric > 0;
        }
        self.expiring = false;
        if self.is_primary && turn.replica.machine().expiring() > 0 && turn.takes(0) {
            let most = turn.shared.env.config.expire_per_turn;
            let slot = self.fabric.slot(turn.shared);
            turn.clock.forget();
            let mut ctx = Ctx { machine: turn.replica.machine_mut(), shared: turn.shared, slot, clock: turn.clock };
            self.expiring = ctx.expire_some(most);
        }
        turn.propose();
        if let Some(to) = turn.shared.hand_over.take() {
            match turn.replica.hand_over(to) {
                Ok(()) => self.handing_over = true,
                Err(error) => tracing::warn!(%error, "leadership is not handed over"),
            }
        }
        if let Some(process) = turn.shared.evict.take() {
            tracing::warn!(%process, "a client has asked for its removal, by CLUSTER FORGET");
            turn.replica.evict(process);
        }
        if let Some(places) = turn.shared.resize.take()
            && let Err(error) = turn.replica.resize(places)
        {
            tracing::warn!(%error, "the group's size is not changed");
        }
        if let Some(level) = turn.shared.raise_level.take()
            && let Err(error) = turn.replica.raise_level(level)
        {
            tracing::warn!(%error, "the feature level is not raised");
        }
        self.untidy = turn.replica.machine_mut().tidy();
        let executed = turn.executed;
        if self.handing_over {
            self.tell_of_hand_over(replica.hand_over_state());
        }
        // A node that sleeps is not woken again for what it has been told already, such as the rest of a long request.
        executed + usize::from(!self.is_idle())
    }

    fn release<R: Replica<Machine = KvMachine>>(&mut self, replica: &mut R) -> usize {
        self.refresh(replica);
        let released = if self.is_primary {
            Released { usual: replica.released(), by_quorum: replica.released_by_quorum() }
        } else {
            Released::default()
        };
        self.fabric.release(released, replica) + self.redis.release(released, &mut self.shared)
    }

    fn malformed_requests(&self) -> u64 {
        self.shared.stats.protocol_errors
    }

    /// SHUTDOWN.
    fn wants_end(&self) -> bool {
        self.shared.shutdown
    }

    fn sleep(&mut self, at_most_ns: u64) -> bool {
        self.redis.sleep(at_most_ns)
    }

    fn deadline(&self) -> Time {
        self.redis.deadline()
    }

    fn is_heard_in_memory(&self) -> bool {
        self.heard_in_memory
    }

    fn complete<R: Replica<Machine = KvMachine>>(&mut self, replica: &mut R, completion: Completion) {
        self.fabric.complete(replica, completion);
    }
    fn has_clients_in_memory(&self) -> bool {
        self.fabric.has_clients()
    }

    fn expect_to_lead<F: Fabric>(&self, fabric: &F) {
        self.fabric.expect_to_lead(fabric);
    }

    /// The understudy's wall clock stands still, so nothing expires there.
    fn understudy(&self, sizes: Sizes) -> Option<(KvApp, KvMachine)> {
        let config = KvConfig { listen: None, unix_socket: None, sizes, ..self.shared.env.config.clone() };
        let app = KvApp::new(config, Box::new(|| 0), [self.seed.0, self.seed.1]);
        // It has no sockets to listen on, so this fails only for lack of descriptors.
        let app =
            app.inspect_err(|error| tracing::warn!(%error, "cannot set up rehearsals: this node does not rehearse takeovers")).ok()?;
        Some((app, KvMachine::new()))
    }

    fn made_up_client<F: Fabric + 'static>(&self, endpoint: F, sizes: Sizes) -> Option<Box<dyn MadeUpClient>> {
        Some(Box::new(Rehearser::new(endpoint, sizes)))
    }
}
