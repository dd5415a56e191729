//! Clients as workloads see them: one request at a time, and an honest word on what came of it.

use martlet_sim::linearizability::kv::{Input, Output};

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The store's reply.
    Output(Output),
    /// None came: the request may have taken effect, may still do so, or never.
    Unknown,
    /// It has certainly not taken effect, and will not.
    Refused(String),
}

/// A client of the store.
pub trait Caller {
    /// Makes one request and waits for what comes of it, not for ever.
    fn call(&mut self, input: &Input) -> Reply;
}

/// A client, whichever way it reaches the store.
pub type AnyCaller = Box<dyn Caller + Send>;

impl<C: Caller + ?Sized> Caller for Box<C> {
    fn call(&mut self, input: &Input) -> Reply {
        (**self).call(input)
    }
}
