//! An order matching engine: price-time priority; limit orders, market orders and cancellations; whole numbers only.
//!
//! | module | contents |
//! |---|---|
//! | [`command`] | what a client may ask for, the outcome, and the bytes of both |
//! | [`book`] | the book of one symbol |
//! | [`market`] | all books: the state that is replicated |
//! | [`wire`] | the binary protocol over TCP |
//! | [`server`] | a replica of the market that serves this protocol, on the thread that serves the clients or on a thread of its own |
//! | [`load`] | a client, a load of orders, and the books that must follow from the answers |
//!
//! None of the first three reads a clock, draws a random number or does I/O, so every replica that executes the same commands holds the same books.

#![forbid(unsafe_code)]

pub mod book;
mod bytes;
pub mod command;
pub mod load;
pub mod market;
pub mod server;
pub mod wire;
