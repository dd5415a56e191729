//! The book of one symbol: price-time priority.
//!
//! Orders of one price are in a list in the order of their numbers, which is the order of their acceptance. Prices are in a map, best first. Adding an order,
//! trading with one and cancelling one each cost a search in a map and a constant number of links.

use std::collections::BTreeMap;

use crate::bytes::Bytes;
use crate::command::{Account, Fill, MAX_PRICE, MAX_QUANTITY, OrderId, Outcome, Price, Quantity, Reject, Side};

/// The most trades of one order. The part of an order that would need more is dropped, so that no command takes long and no outcome is long.
pub const MAX_FILLS: usize = 1024;
/// The most orders in one book. This bounds the largest part of the state that is sent to a replica at once: 2.25 MiB.
pub const MAX_ORDERS: usize = 1 << 16;
/// No order gets this number: at a million a second it would take years. Numbers below it can be added up over all symbols.
const NO_ORDER: OrderId = 1 << 47;

/// In a link: there is no order.
const NONE: u32 = u32::MAX;

/// An order that rests in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resting {
    /// Its number.
    pub id: OrderId,
    /// The account that it belongs to.
    pub account: Account,
    /// Its side.
    pub side: Side,
    /// Its price.
    pub price: Price,
    /// What is left of it.
    pub quantity: Quantity,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    order: Resting,
    earlier: u32,
    later: u32,
}

/// The orders of one price and side.
#[derive(Clone, Copy, Debug)]
struct Level {
    first: u32,
    last: u32,
    quantity: u128,
}

/// The book of one symbol.
#[derive(Clone, Debug)]
pub struct Book {
    /// By side, and within a side by how good the price is: see [`rank`].
    levels: [BTreeMap<u64, Level>; 2],
    nodes: Vec<Node>,
    free: Vec<u32>,
    places: BTreeMap<OrderId, u32>,
    next: OrderId,
}

impl Default for Book {
    fn default() -> Self {
        Book { levels: Default::default(), nodes: Vec::new(), free: Vec::new(), places: BTreeMap::new(), next: 1 }
    }
}

/// Lower is better.
fn rank(side: Side, price: Price) -> u64 {
    match side {
        Side::Buy => !price,
        Side::Sell => price,
    }
}

fn price_of(side: Side, rank: u64) -> Price {
    match side {
        Side::Buy => !rank,
        Side::Sell => rank,
    }
}

impl Book {
    /// A book that has accepted this many orders, of which these rest.
    ///
    /// # Panics
    /// When they do not come in the order of their numbers.
    pub fn of(accepted: u64, resting: impl IntoIterator<Item = Resting>) -> Book {
        let mut book = Book { next: accepted + 1, ..Book::default() };
        let mut last = 0;
        for order in resting {
            assert!(order.id > last && order.id <= accepted, "order {} behind {last}, of {accepted}", order.id);
            last = order.id;
            book.enter(order);
        }
        book
    }

    /// Enters an order with a worst price. The part that does not trade rests.
    pub fn limit(&mut self, account: Account, side: Side, price: Price, quantity: Quantity) -> Outcome {
        if !(1..=MAX_PRICE).contains(&price) {
            return Outcome::Rejected(Reject::Price);
        }
        self.accept(account, side, Some(price), quantity)
    }

    /// Enters an order at any price. The part that does not trade is dropped.
    pub fn market(&mut self, account: Account, side: Side, quantity: Quantity) -> Outcome {
        self.accept(account, side, None, quantity)
    }

    fn accept(&mut self, account: Account, side: Side, limit: Option<Price>, quantity: Quantity) -> Outcome {
        if !(1..=MAX_QUANTITY).contains(&quantity) {
            return Outcome::Rejected(Reject::Quantity);
        }
        // Refused beforehand, although trading may make room: whether an order is accepted must not depend on how far it gets.
        if limit.is_some() && self.places.len() >= MAX_ORDERS {
            return Outcome::Rejected(Reject::BookFull);
        }
        let order = self.next;
        self.next += 1;
        let (fills, left) = self.trade(side.opposite(), limit, quantity);
        let whole = fills.len() < MAX_FILLS || !self.crosses(side.opposite(), limit);
        let resting = match limit {
            Some(price) if left > 0 && whole => {
                self.enter(Resting { id: order, account, side, price, quantity: left });
                left
            }
            _ => 0,
        };
        Outcome::Accepted { order, resting, dropped: left - resting, fills }
    }

    /// Whether an order with this limit would trade with the best of `makers`.
    fn crosses(&self, makers: Side, limit: Option<Price>) -> bool {
        let Some((&best, _)) = self.levels[makers as usize].first_key_value() else { return false };
        limit.is_none_or(|limit| best <= rank(makers, limit))
    }

    /// Trades with the side `makers`: best price first, and within a price earliest order first. Returns the trades and the quantity that is left.
    fn trade(&mut self, makers: Side, limit: Option<Price>, mut left: Quantity) -> (Vec<Fill>, Quantity) {
        let mut fills = Vec::new();
        while left > 0 && fills.len() < MAX_FILLS && self.crosses(makers, limit) {
            let mut entry = self.levels[makers as usize].first_entry().expect("it crosses");
            let at = entry.get().first;
            let order = &mut self.nodes[at as usize].order;
            let quantity = left.min(order.quantity);
            order.quantity -= quantity;
            left -= quantity;
            entry.get_mut().quantity -= u128::from(quantity);
            fills.push(Fill { maker: order.id, price: order.price, quantity });
            if order.quantity == 0 {
                self.leave(at);
            }
        }
        (fills, left)
    }

    /// Takes an order of this account out of the book.
    pub fn cancel(&mut self, account: Account, order: OrderId) -> Outcome {
        let Some(&at) = self.places.get(&order).filter(|at| self.nodes[**at as usize].order.account == account) else {
            return Outcome::Rejected(Reject::NoSuchOrder);
        };
        let quantity = self.nodes[at as usize].order.quantity;
        self.leave(at);
        Outcome::Cancelled { quantity }
    }

    /// Puts in a new order, which is later than all others, after those of its price.
    fn enter(&mut self, order: Resting) {
        let level =
            self.levels[order.side as usize].entry(rank(order.side, order.price)).or_insert(Level { first: NONE, last: NONE, quantity: 0 });
        let node = Node { order, earlier: level.last, later: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        match level.last {
            NONE => level.first = at,
            last => self.nodes[last as usize].later = at,
        }
        level.last = at;
        level.quantity += u128::from(order.quantity);
        self.places.insert(order.id, at);
    }

    fn leave(&mut self, at: u32) {
        let Node { order, earlier, later } = self.nodes[at as usize];
        let key = rank(order.side, order.price);
        let level = self.levels[order.side as usize].get_mut(&key).expect("the level of an order that rests");
        level.quantity -= u128::from(order.quantity);
        match earlier {
            NONE => level.first = later,
            before => self.nodes[before as usize].later = later,
        }
        match later {
            NONE => level.last = earlier,
            after => self.nodes[after as usize].earlier = earlier,
        }
        if level.first == NONE {
            self.levels[order.side as usize].remove(&key);
        }
        self.places.remove(&order.id);
        self.free.push(at);
    }

    /// How many orders rest.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no order rests.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How many orders have been accepted.
    pub fn accepted(&self) -> u64 {
        self.next - 1
    }

    /// The resting orders, in the order of their acceptance.
    pub fn orders(&self) -> impl Iterator<Item = &Resting> {
        self.places.values().map(|at| &self.nodes[*at as usize].order)
    }

    /// The best prices of a side, best first, each with the quantity that is wanted or offered there.
    pub fn depth(&self, side: Side) -> impl Iterator<Item = (Price, u128)> + '_ {
        self.levels[side as usize].iter().map(move |(&rank, level)| (price_of(side, rank), level.quantity))
    }

    /// Appends the bytes of the whole book: how many orders were accepted, how many rest, and the resting orders, earliest first.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&(self.places.len() as u32).to_le_bytes());
        for order in self.orders() {
            for number in [order.id, order.price, order.quantity] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&order.account.to_le_bytes());
            out.push(order.side as u8);
        }
    }

    /// Reads the bytes of a book. `None` when they are not one, or one that trading cannot produce: commands rely on what trading produces.
    pub(crate) fn decode(bytes: &mut Bytes<'_>) -> Option<Book> {
        let next = bytes.u64().filter(|next| (1..NO_ORDER).contains(next))?;
        let mut book = Book { next, ..Book::default() };
        let mut last = 0;
        for _ in 0..bytes.u32().filter(|orders| *orders as usize <= MAX_ORDERS)? {
            let (id, price, quantity, account) = (bytes.u64()?, bytes.u64()?, bytes.u64()?, bytes.u32()?);
            let side = [Side::Buy, Side::Sell].into_iter().nth(bytes.u8()?.into())?;
            let sane = (1..=MAX_PRICE).contains(&price) && (1..=MAX_QUANTITY).contains(&quantity);
            if id <= last || id >= book.next || !sane {
                return None;
            }
            last = id;
            book.enter(Resting { id, account, side, price, quantity });
        }
        (!book.is_crossed()).then_some(book)
    }

    fn is_crossed(&self) -> bool {
        let best = |side| self.depth(side).next().map(|(price, _)| price);
        best(Side::Buy).zip(best(Side::Sell)).is_some_and(|(bid, ask)| bid >= ask)
    }

    /// Panics if redundant parts of the book disagree, or if it is crossed. Slow: for tests.
    pub fn check(&self) {
        assert!(!self.is_crossed(), "crossed");
        let mut seen = 0;
        for side in [Side::Buy, Side::Sell] {
            for (&key, level) in &self.levels[side as usize] {
                let (mut at, mut earlier, mut quantity, mut last) = (level.first, NONE, 0u128, 0);
                assert_ne!(at, NONE, "an empty level");
                while at != NONE {
                    let node = &self.nodes[at as usize];
                    assert_eq!((node.order.side, rank(side, node.order.price), node.earlier), (side, key, earlier));
                    assert!(node.order.id > last && node.order.quantity > 0, "{:?} behind {last}", node.order);
                    assert_eq!(self.places.get(&node.order.id), Some(&at));
                    (last, quantity, seen) = (node.order.id, quantity + u128::from(node.order.quantity), seen + 1);
                    (earlier, at) = (at, node.later);
                }
                assert_eq!((level.last, level.quantity), (earlier, quantity));
            }
        }
        assert_eq!(seen, self.places.len());
        assert_eq!(self.nodes.len(), self.places.len() + self.free.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(outcome: Outcome) -> (OrderId, Quantity, Quantity, Vec<(OrderId, Price, Quantity)>) {
        match outcome {
            Outcome::Accepted { order, resting, dropped, fills } => {
                (order, resting, dropped, fills.iter().map(|f| (f.maker, f.price, f.quantity)).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_better_price_trades_first_and_at_one_price_the_earlier_order() {
        let mut book = Book::default();
        for (account, price, quantity) in [(1, 102, 5), (2, 101, 5), (3, 101, 5), (4, 103, 5)] {
            book.limit(account, Side::Sell, price, quantity);
        }
        let taken = accepted(book.limit(9, Side::Buy, 102, 12));
        assert_eq!(taken, (5, 0, 0, vec![(2, 101, 5), (3, 101, 5), (1, 102, 2)]));
        book.check();
        assert_eq!(book.depth(Side::Sell).collect::<Vec<_>>(), [(102, 3), (103, 5)]);
    }

    #[test]
    fn a_limit_rests_with_what_is_left_and_never_trades_beyond_its_price() {
        let mut book = Book::default();
        book.limit(1, Side::Sell, 100, 5);
        book.limit(1, Side::Sell, 101, 5);
        assert_eq!(accepted(book.limit(2, Side::Buy, 100, 8)), (3, 3, 0, vec![(1, 100, 5)]));
        assert_eq!(book.depth(Side::Buy).collect::<Vec<_>>(), [(100, 3)]);
        assert_eq!(book.depth(Side::Sell).collect::<Vec<_>>(), [(101, 5)]);
        book.check();
    }

    #[test]
    fn a_market_order_takes_any_price_and_never_rests() {
        let mut book = Book::default();
        book.limit(1, Side::Buy, 7, 5);
        book.limit(1, Side::Buy, 9, 5);
        assert_eq!(accepted(book.market(2, Side::Sell, 12)), (3, 0, 2, vec![(2, 9, 5), (1, 7, 5)]));
        assert!(book.is_empty());
        assert_eq!(accepted(book.market(2, Side::Sell, 1)), (4, 0, 1, vec![]));
        book.check();
    }

    #[test]
    fn a_partly_filled_order_keeps_its_place() {
        let mut book = Book::default();
        book.limit(1, Side::Sell, 50, 10);
        book.limit(2, Side::Sell, 50, 10);
        book.market(3, Side::Buy, 4);
        assert_eq!(accepted(book.market(3, Side::Buy, 8)).3, [(1, 50, 6), (2, 50, 2)]);
        book.check();
    }

    #[test]
    fn only_its_account_cancels_an_order_and_only_once() {
        let mut book = Book::default();
        for account in 1..=3 {
            book.limit(account, Side::Buy, 10, 5);
        }
        assert_eq!(book.cancel(1, 2), Outcome::Rejected(Reject::NoSuchOrder));
        assert_eq!(book.cancel(2, 2), Outcome::Cancelled { quantity: 5 });
        assert_eq!(book.cancel(2, 2), Outcome::Rejected(Reject::NoSuchOrder));
        assert_eq!(accepted(book.market(9, Side::Sell, 10)).3, [(1, 10, 5), (3, 10, 5)], "the middle of a list");
        assert_eq!(book.cancel(1, 1), Outcome::Rejected(Reject::NoSuchOrder), "it has been filled");
        book.check();
    }

    #[test]
    fn numbers_out_of_range_are_refused_and_take_no_number() {
        let mut book = Book::default();
        for (price, why) in [(0, Reject::Price), (MAX_PRICE + 1, Reject::Price)] {
            assert_eq!(book.limit(1, Side::Buy, price, 1), Outcome::Rejected(why));
        }
        for quantity in [0, MAX_QUANTITY + 1] {
            assert_eq!(book.limit(1, Side::Buy, 1, quantity), Outcome::Rejected(Reject::Quantity));
            assert_eq!(book.market(1, Side::Buy, quantity), Outcome::Rejected(Reject::Quantity));
        }
        assert_eq!(book.accepted(), 0);
        assert_eq!(accepted(book.limit(1, Side::Buy, MAX_PRICE, MAX_QUANTITY)).1, MAX_QUANTITY);
    }

    #[test]
    fn an_order_has_so_many_trades_and_no_more_and_leaves_the_book_uncrossed() {
        let mut book = Book::default();
        for _ in 0..=MAX_FILLS {
            book.limit(1, Side::Sell, 5, 1);
        }
        let (_, resting, dropped, fills) = accepted(book.limit(2, Side::Buy, 6, 5_000));
        assert_eq!((resting, dropped as usize, fills.len()), (0, 5_000 - MAX_FILLS, MAX_FILLS));
        assert_eq!(book.len(), 1);
        book.check();
        // The maximum number of trades, with nothing left to trade with: the rest may stay.
        for _ in 1..MAX_FILLS {
            book.limit(1, Side::Sell, 5, 1);
        }
        let (_, resting, dropped, fills) = accepted(book.limit(2, Side::Buy, 6, 5_000));
        assert_eq!((resting as usize, dropped, fills.len()), (5_000 - MAX_FILLS, 0, MAX_FILLS));
        book.check();
    }

    #[test]
    fn a_full_book_refuses_limits_and_still_trades() {
        let mut book = Book::default();
        for _ in 0..MAX_ORDERS {
            book.limit(1, Side::Buy, 5, 1);
        }
        assert_eq!(book.limit(1, Side::Buy, 5, 1), Outcome::Rejected(Reject::BookFull));
        assert_eq!(accepted(book.market(2, Side::Sell, 1)).3.len(), 1);
        assert_eq!(accepted(book.limit(1, Side::Buy, 5, 1)).1, 1);
    }
}
