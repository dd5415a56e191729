//! A place where everything that a founder asks for is simulated, for tests and the simulator.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use martlet_fabric::NodeId;

use super::Ground;

/// The name on a simulated host that one process at a time can have. Clones are the same name.
#[derive(Clone, Debug, Default)]
pub struct Lock(Rc<Cell<bool>>);

/// Held by the one process that may found the cluster. Where that is always the same node, no name stands behind it.
#[derive(Debug)]
pub struct Claim(Option<Lock>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.iter().for_each(|lock| lock.0.set(false));
    }
}

/// What the system says to one process: on one host who has the name, and which nodes run; on a network the first node has the claim, and of nobody it is known
/// that it does not run.
#[derive(Debug)]
pub struct Place<'a, const HOST: bool> {
    /// Whose process asks.
    pub me: NodeId,
    /// The host's name.
    pub lock: &'a Lock,
    /// By node.
    pub running: Vec<bool>,
}

impl<const HOST: bool> Ground for Place<'_, HOST> {
    type Claim = Claim;
    type Error = Infallible;

    const FIXED: bool = !HOST;

    fn claim(&self) -> Result<Option<Claim>, Infallible> {
        Ok(match HOST {
            true => (!self.lock.0.replace(true)).then(|| Claim(Some(self.lock.clone()))),
            false => (self.me == NodeId(0)).then_some(Claim(None)),
        })
    }

    fn is_absent(&self, node: NodeId) -> Result<bool, Infallible> {
        Ok(HOST && !self.running[usize::from(node.0)])
    }

    fn strangers(&self) -> Result<Vec<NodeId>, Infallible> {
        Ok((0..self.running.len()).filter(|node| HOST && self.running[*node]).map(|node| NodeId(node as u16)).collect())
    }
}
