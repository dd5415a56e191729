//! An order matching engine: price-time priority; limit orders, market orders and cancellations; whole numbers only.
//!
//! | module | what stands there |
//! |---|---|
//! | [`command`] | what a client may ask for, what comes of it, and the bytes of both |
//! | [`book`] | the book of one symbol |
//! | [`market`] | all books: the state that is replicated |
//!
//! None of the three reads a clock, draws a random number or does I/O, so every replica that executes the same commands holds the same books.

#![forbid(unsafe_code)]

pub mod book;
mod bytes;
pub mod command;
pub mod market;
