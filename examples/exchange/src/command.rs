//! What a client may ask for, the outcome, and the bytes of both.
//!
//! All numbers are little-endian. A command is 1 byte for its kind, followed by its fields in the order in which they are declared; so is an outcome. Every
//! command has exactly one form in bytes, and bytes that are no command are refused, never guessed at.

use crate::bytes::Bytes;

/// Which instrument.
pub type Symbol = u16;
/// The account that trades. Only its own account can cancel an order.
pub type Account = u32;
/// The number of an order of one symbol. Orders are counted from 1 on in the order of acceptance, so a lower number is an earlier order.
pub type OrderId = u64;
/// A price in ticks, from 1 to [`MAX_PRICE`].
pub type Price = u64;
/// A number of units, from 1 to [`MAX_QUANTITY`].
pub type Quantity = u64;

/// The highest price. A price times a quantity stays below 2^96.
pub const MAX_PRICE: Price = (1 << 48) - 1;
/// The largest quantity of one order.
pub const MAX_QUANTITY: Quantity = (1 << 48) - 1;

/// Which side of the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// Wants to buy: a bid.
    Buy = 0,
    /// Wants to sell: an ask.
    Sell = 1,
}

impl Side {
    /// The opposite side, with which it trades.
    pub fn opposite(self) -> Side {
        match self {
            Side::Buy => Side::Sell,
            Side::Sell => Side::Buy,
        }
    }

    fn from_byte(byte: u8) -> Option<Side> {
        match byte {
            0 => Some(Side::Buy),
            1 => Some(Side::Sell),
            _ => None,
        }
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Trades at `price` or better; what is left rests in the book.
    Limit {
        /// Which instrument.
        symbol: Symbol,
        /// For whom.
        account: Account,
        /// Buy or sell.
        side: Side,
        /// The worst price that is accepted, in ticks.
        price: Price,
        /// How many units.
        quantity: Quantity,
    },
    /// Trades at any price; what is left is dropped.
    Market {
        /// Which instrument.
        symbol: Symbol,
        /// For whom.
        account: Account,
        /// Buy or sell.
        side: Side,
        /// How many units.
        quantity: Quantity,
    },
    /// Takes what is left of a resting order out of the book.
    Cancel {
        /// Which instrument.
        symbol: Symbol,
        /// Whose order it is.
        account: Account,
        /// The order.
        order: OrderId,
    },
}

const LIMIT: u8 = 1;
const MARKET: u8 = 2;
const CANCEL: u8 = 3;

impl Command {
    /// The longest command, in bytes.
    pub const MAX_BYTES: usize = 24;

    /// Which instrument it is about.
    pub fn symbol(&self) -> Symbol {
        match *self {
            Command::Limit { symbol, .. } | Command::Market { symbol, .. } | Command::Cancel { symbol, .. } => symbol,
        }
    }

    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut head = |kind: u8, symbol: Symbol, account: Account| {
            out.push(kind);
            out.extend_from_slice(&symbol.to_le_bytes());
            out.extend_from_slice(&account.to_le_bytes());
        };
        match *self {
            Command::Limit { symbol, account, side, price, quantity } => {
                head(LIMIT, symbol, account);
                out.push(side as u8);
                out.extend_from_slice(&price.to_le_bytes());
                out.extend_from_slice(&quantity.to_le_bytes());
            }
            Command::Market { symbol, account, side, quantity } => {
                head(MARKET, symbol, account);
                out.push(side as u8);
                out.extend_from_slice(&quantity.to_le_bytes());
            }
            Command::Cancel { symbol, account, order } => {
                head(CANCEL, symbol, account);
                out.extend_from_slice(&order.to_le_bytes());
            }
        }
    }

    /// Reads the bytes of one command. `None` when they are not one. Whether its numbers are allowed is checked when it is executed.
    pub fn decode(bytes: &[u8]) -> Option<Command> {
        let mut bytes = Bytes(bytes);
        let (kind, symbol, account) = (bytes.u8()?, bytes.u16()?, bytes.u32()?);
        let command = match kind {
            LIMIT => {
                let side = Side::from_byte(bytes.u8()?)?;
                Command::Limit { symbol, account, side, price: bytes.u64()?, quantity: bytes.u64()? }
            }
            MARKET => {
                let side = Side::from_byte(bytes.u8()?)?;
                Command::Market { symbol, account, side, quantity: bytes.u64()? }
            }
            CANCEL => Command::Cancel { symbol, account, order: bytes.u64()? },
            _ => return None,
        };
        bytes.end(command)
    }
}

/// A trade, at the price of the order that was in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The resting order.
    pub maker: OrderId,
    /// The price.
    pub price: Price,
    /// How many units changed hands.
    pub quantity: Quantity,
}

/// Why a command had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Reject {
    /// The bytes were no command.
    #[error("not a command")]
    Malformed = 1,
    /// The price is out of range.
    #[error("the price must be 1 to {MAX_PRICE}")]
    Price = 2,
    /// The quantity is out of range.
    #[error("the quantity must be 1 to {MAX_QUANTITY}")]
    Quantity = 3,
    /// The book holds no such order of this account.
    #[error("no such order of this account is in the book")]
    NoSuchOrder = 4,
    /// The book holds as many orders as it may.
    #[error("the book is full")]
    BookFull = 5,
}

impl Reject {
    fn from_byte(byte: u8) -> Option<Reject> {
        [Reject::Malformed, Reject::Price, Reject::Quantity, Reject::NoSuchOrder, Reject::BookFull].into_iter().find(|r| *r as u8 == byte)
    }
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An order was accepted.
    Accepted {
        /// Its number.
        order: OrderId,
        /// How much of it rests in the book now.
        resting: Quantity,
        /// How much of it was dropped: of a market order the part that found no other side, of any order the part that would have needed more than
        /// [`MAX_FILLS`](crate::book::MAX_FILLS) trades.
        dropped: Quantity,
        /// Its trades, in order.
        fills: Vec<Fill>,
    },
    /// An order was cancelled.
    Cancelled {
        /// How much of it was still in the book.
        quantity: Quantity,
    },
    /// Nothing has changed.
    Rejected(Reject),
}

const ACCEPTED: u8 = 1;
const CANCELLED: u8 = 2;
const REJECTED: u8 = 3;

impl Outcome {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Outcome::Accepted { order, resting, dropped, fills } => {
                out.push(ACCEPTED);
                for number in [*order, *resting, *dropped] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                for fill in fills {
                    for number in [fill.maker, fill.price, fill.quantity] {
                        out.extend_from_slice(&number.to_le_bytes());
                    }
                }
            }
            Outcome::Cancelled { quantity } => {
                out.push(CANCELLED);
                out.extend_from_slice(&quantity.to_le_bytes());
            }
            Outcome::Rejected(why) => out.extend_from_slice(&[REJECTED, *why as u8]),
        }
    }

    /// Reads the bytes of one outcome. `None` when they are not one.
    pub fn decode(bytes: &[u8]) -> Option<Outcome> {
        let mut bytes = Bytes(bytes);
        let outcome = match bytes.u8()? {
            ACCEPTED => {
                let (order, resting, dropped) = (bytes.u64()?, bytes.u64()?, bytes.u64()?);
                let mut fills = Vec::with_capacity(bytes.0.len() / 24);
                while !bytes.0.is_empty() {
                    fills.push(Fill { maker: bytes.u64()?, price: bytes.u64()?, quantity: bytes.u64()? });
                }
                Outcome::Accepted { order, resting, dropped, fills }
            }
            CANCELLED => Outcome::Cancelled { quantity: bytes.u64()? },
            REJECTED => Outcome::Rejected(Reject::from_byte(bytes.u8()?)?),
            _ => return None,
        };
        bytes.end(outcome)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn side() -> impl Strategy<Value = Side> {
        prop_oneof![Just(Side::Buy), Just(Side::Sell)]
    }

    fn command() -> impl Strategy<Value = Command> {
        prop_oneof![
            (any::<Symbol>(), any::<Account>(), side(), any::<Price>(), any::<Quantity>())
                .prop_map(|(symbol, account, side, price, quantity)| Command::Limit { symbol, account, side, price, quantity }),
            (any::<Symbol>(), any::<Account>(), side(), any::<Quantity>()).prop_map(|(symbol, account, side, quantity)| Command::Market {
                symbol,
                account,
                side,
                quantity
            }),
            (any::<Symbol>(), any::<Account>(), any::<OrderId>()).prop_map(|(symbol, account, order)| Command::Cancel {
                symbol,
                account,
                order
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_command_comes_back_from_its_bytes(command in command()) {
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            prop_assert!(bytes.len() <= Command::MAX_BYTES);
            prop_assert_eq!(Command::decode(&bytes), Some(command));
            bytes.push(0);
            prop_assert_eq!(Command::decode(&bytes), None, "one byte too many");
        }

        #[test]
        fn whatever_is_read_has_one_form(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(command) = Command::decode(&bytes) {
                let mut again = Vec::new();
                command.encode(&mut again);
                prop_assert_eq!(&again, &bytes);
            }
            if let Some(outcome) = Outcome::decode(&bytes) {
                let mut again = Vec::new();
                outcome.encode(&mut again);
                prop_assert_eq!(&again, &bytes);
            }
        }

        #[test]
        fn an_outcome_comes_back_from_its_bytes(order: u64, resting: u64, fills in prop::collection::vec(any::<(u64, u64, u64)>(), 0..5)) {
            let fills = fills.into_iter().map(|(maker, price, quantity)| Fill { maker, price, quantity }).collect();
            for outcome in [
                Outcome::Accepted { order, resting, dropped: order ^ resting, fills },
                Outcome::Cancelled { quantity: resting },
                Outcome::Rejected(Reject::NoSuchOrder),
            ] {
                let mut bytes = Vec::new();
                outcome.encode(&mut bytes);
                prop_assert_eq!(Outcome::decode(&bytes), Some(outcome));
                prop_assert_eq!(Outcome::decode(&bytes[..bytes.len() - 1]), None, "one byte too few");
            }
        }
    }
}
