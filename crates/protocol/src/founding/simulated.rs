//! A simulated [`Ground`] with everything that a founder asks for, for tests and the simulator.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use martlet_fabric::NodeId;

use super::Ground;

/// The name on a simulated host, which one process at a time can hold. Clones are the same name.
#[derive(Clone, Debug, Default)]
pub struct Lock(Rc<Cell<bool>>);

/// The claim of the one process that may found the cluster. If the claim always belongs to the same node, there is no name behind it.
#[derive(Debug)]
pub struct Claim(Option<Lock>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.iter().for_each(|lock| lock.0.set(false));
    }
}

/// What the system tells one process. On one host: which process holds the name, and which nodes run. On a network, the first node has the claim, and
/// no node is known not to be running.
#[derive(Debug)]
pub struct Place<'a, const HOST: bool> {
    /// The node whose process asks.
    pub me: NodeId,
    /// The host's name.
    pub lock: &'a Lock,
    /// Whether each node is running, by node number.
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
