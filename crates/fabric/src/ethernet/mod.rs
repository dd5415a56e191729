//! The fabric of ordinary hosts: one-sided memory over sealed UDP.
//!
//! | file | what stands there |
//! |---|---|
//! | `packet` | what packets look like |
//! | `seal` | keys, encryption, and what is refused as forged or repeated |
//! | `requester`, `responder` | the two halves of a flow, as pure state machines |
//! | `canary` | known bugs that the model tests have to find |

mod canary;
mod packet;
mod requester;
mod responder;
mod seal;
#[cfg(test)]
mod tests;
