//! The engine against a model so simple that it can be believed: one list of orders, searched from end to end for the best.

use martlet_exchange::book::{MAX_FILLS, MAX_ORDERS};
use martlet_exchange::command::{Command, Fill, MAX_PRICE, MAX_QUANTITY, OrderId, Outcome, Price, Quantity, Reject, Side, Symbol};
use martlet_exchange::market::Market;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    symbol: Symbol,
    id: OrderId,
    account: u32,
    side: Side,
    price: Price,
    quantity: Quantity,
}

#[derive(Default)]
struct Model {
    orders: Vec<Order>,
    accepted: std::collections::BTreeMap<Symbol, u64>,
}

impl Model {
    fn execute(&mut self, command: &Command) -> Outcome {
        match *command {
            Command::Limit { price, .. } if price == 0 || price > MAX_PRICE => Outcome::Rejected(Reject::Price),
            Command::Limit { quantity, .. } | Command::Market { quantity, .. } if quantity == 0 || quantity > MAX_QUANTITY => {
                Outcome::Rejected(Reject::Quantity)
            }
            Command::Limit { symbol, account, side, price, quantity } => {
                if self.orders.iter().filter(|o| o.symbol == symbol).count() == MAX_ORDERS {
                    return Outcome::Rejected(Reject::BookFull);
                }
                self.order(symbol, account, side, Some(price), quantity)
            }
            Command::Market { symbol, account, side, quantity } => self.order(symbol, account, side, None, quantity),
            Command::Cancel { symbol, account, order } => {
                match self.orders.iter().position(|o| (o.symbol, o.account, o.id) == (symbol, account, order)) {
                    Some(at) => Outcome::Cancelled { quantity: self.orders.remove(at).quantity },
                    None => Outcome::Rejected(Reject::NoSuchOrder),
                }
            }
        }
    }

    /// The place of the order that trades next with a taker: the best price, then the earliest.
    fn best(&self, symbol: Symbol, taker: Side, limit: Option<Price>) -> Option<usize> {
        let makers = self.orders.iter().enumerate().filter(|(_, o)| o.symbol == symbol && o.side != taker);
        match taker {
            Side::Buy => makers.filter(|(_, o)| limit.is_none_or(|l| o.price <= l)).min_by_key(|(_, o)| (o.price, o.id)),
            Side::Sell => {
                makers.filter(|(_, o)| limit.is_none_or(|l| o.price >= l)).min_by_key(|(_, o)| (std::cmp::Reverse(o.price), o.id))
            }
        }
        .map(|(at, _)| at)
    }

    fn order(&mut self, symbol: Symbol, account: u32, side: Side, limit: Option<Price>, quantity: Quantity) -> Outcome {
        let id = self.accepted.entry(symbol).or_default();
        *id += 1;
        let id = *id;
        let (mut left, mut fills) = (quantity, Vec::new());
        while left > 0 && fills.len() < MAX_FILLS {
            let Some(at) = self.best(symbol, side, limit) else { break };
            let maker = &mut self.orders[at];
            let quantity = left.min(maker.quantity);
            fills.push(Fill { maker: maker.id, price: maker.price, quantity });
            maker.quantity -= quantity;
            left -= quantity;
            if maker.quantity == 0 {
                self.orders.remove(at);
            }
        }
        let rests = left > 0 && limit.is_some() && self.best(symbol, side, limit).is_none();
        if let Some(price) = limit.filter(|_| rests) {
            self.orders.push(Order { symbol, id, account, side, price, quantity: left });
        }
        let resting = if rests { left } else { 0 };
        Outcome::Accepted { order: id, resting, dropped: left - resting, fills }
    }
}

/// Few symbols, accounts, prices and numbers, so that orders meet.
fn command() -> impl Strategy<Value = Command> {
    let side = || prop_oneof![Just(Side::Buy), Just(Side::Sell)];
    let quantity = || prop_oneof![20 => 1..20u64, 1 => Just(0u64), 1 => Just(MAX_QUANTITY), 1 => Just(MAX_QUANTITY + 1)];
    let price = prop_oneof![20 => 95..106u64, 1 => Just(0u64), 1 => Just(1u64), 1 => Just(MAX_PRICE), 1 => Just(MAX_PRICE + 1)];
    prop_oneof![
        6 => (0..3u16, 0..3u32, side(), price, quantity())
            .prop_map(|(symbol, account, side, price, quantity)| Command::Limit { symbol, account, side, price, quantity }),
        1 => (0..3u16, 0..3u32, side(), quantity())
            .prop_map(|(symbol, account, side, quantity)| Command::Market { symbol, account, side, quantity }),
        3 => (0..4u16, 0..3u32, 0..60u64).prop_map(|(symbol, account, order)| Command::Cancel { symbol, account, order }),
    ]
}

fn resting(market: &Market) -> Vec<Order> {
    let mut orders: Vec<Order> = market
        .books()
        .flat_map(|(symbol, book)| {
            book.orders().map(move |o| Order { symbol, id: o.id, account: o.account, side: o.side, price: o.price, quantity: o.quantity })
        })
        .collect();
    orders.sort_by_key(|o| (o.symbol, o.id));
    orders
}

proptest! {
    #[test]
    fn every_outcome_and_every_book_is_the_models(commands in prop::collection::vec(command(), 1..200)) {
        let (mut market, mut model) = (Market::default(), Model::default());
        for command in &commands {
            prop_assert_eq!(market.execute(command), model.execute(command), "{:?}", command);
            market.check();
        }
        let mut expected = model.orders.clone();
        expected.sort_by_key(|o| (o.symbol, o.id));
        prop_assert_eq!(resting(&market), expected);
    }

    #[test]
    fn every_unit_is_traded_or_rests_or_was_cancelled_or_dropped(commands in prop::collection::vec(command(), 1..200)) {
        let mut market = Market::default();
        let (mut ordered, mut gone) = (0u128, 0u128);
        for command in &commands {
            match (market.execute(command), command) {
                (Outcome::Accepted { dropped, fills, .. }, Command::Limit { quantity, .. } | Command::Market { quantity, .. }) => {
                    ordered += u128::from(*quantity);
                    // A trade takes its quantity from both.
                    gone += u128::from(dropped) + 2 * fills.iter().map(|f| u128::from(f.quantity)).sum::<u128>();
                }
                (Outcome::Cancelled { quantity }, _) => gone += u128::from(quantity),
                _ => {}
            }
        }
        let rests: u128 = resting(&market).iter().map(|o| u128::from(o.quantity)).sum();
        prop_assert_eq!(ordered, gone + rests);
    }

    #[test]
    fn one_that_joins_while_commands_go_on_ends_with_the_same_books(
        before in prop::collection::vec(command(), 0..100),
        during in prop::collection::vec(prop::collection::vec(command(), 0..20), 8),
        budget in 1..200usize,
    ) {
        let (mut market, mut learner) = (Market::default(), Market::default());
        before.iter().for_each(|c| drop(market.execute(c)));
        let (mut cursor, mut during) = (Some(0), during.into_iter());
        while let Some(from) = cursor {
            let mut part = Vec::new();
            cursor = market.transfer(from, budget, &mut part);
            learner.install(&part).expect("a part");
            for command in during.next().into_iter().flatten() {
                market.execute(&command);
                learner.execute(&command);
            }
        }
        prop_assert_eq!(learner.digest(), market.digest());
        prop_assert_eq!(resting(&learner), resting(&market));
        learner.check();
        // And goes on like the other.
        for command in &before {
            prop_assert_eq!(learner.execute(command), market.execute(command));
        }
    }
}

#[test]
fn the_last_symbol_is_taught_too() {
    let mut market = Market::default();
    for symbol in [0, 7, u16::MAX] {
        market.execute(&Command::Limit { symbol, account: 1, side: Side::Buy, price: 5, quantity: 5 });
    }
    let mut learner = Market::default();
    learner.execute(&Command::Limit { symbol: 9, account: 1, side: Side::Buy, price: 5, quantity: 5 });
    let (mut cursor, mut parts) = (Some(0), 0);
    while let Some(from) = cursor {
        let mut part = Vec::new();
        cursor = market.transfer(from, 1, &mut part);
        learner.install(&part).expect("a part");
        parts += 1;
    }
    assert_eq!((learner.digest(), parts), (market.digest(), 3), "a book that the other does not have is gone");
}

/// Of a replica with another program, say. What is refused changes nothing, and what is not leaves books on which commands can be executed.
#[test]
fn any_bytes_are_a_part_or_refused() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut market = Market::default();
    for n in 0..60 {
        let side = if n % 2 == 0 { Side::Buy } else { Side::Sell };
        market.execute(&Command::Limit { symbol: n % 3, account: 1, side, price: 50 + u64::from(n % 7) * 10, quantity: 5 });
    }
    let (mut whole, mut refused) = (Vec::new(), 0);
    assert_eq!(market.transfer(0, usize::MAX, &mut whole), None);
    for round in 0..20_000 {
        let mut part = whole.clone();
        match round % 4 {
            0 => part = (0..rng.usize(0..80)).map(|_| rng.u8(..)).collect(),
            1 => part.truncate(rng.usize(..part.len())),
            _ => (0..rng.usize(1..4)).for_each(|_| {
                let at = rng.usize(..part.len());
                part[at] = if rng.bool() { u8::MAX * rng.u8(0..2) } else { rng.u8(..) };
            }),
        }
        let mut learner = Market::default();
        learner.execute(&Command::Limit { symbol: 1, account: 1, side: Side::Buy, price: 5, quantity: 5 });
        let before = learner.digest();
        if learner.install(&part).is_none() {
            refused += 1;
            assert_eq!(learner.digest(), before);
        }
        learner.check();
        for symbol in 0..3 {
            learner.execute(&Command::Market { symbol, account: 1, side: Side::Sell, quantity: MAX_QUANTITY });
            learner.execute(&Command::Limit { symbol, account: 1, side: Side::Buy, price: MAX_PRICE, quantity: MAX_QUANTITY });
        }
        let _ = learner.accepted();
        learner.check();
    }
    assert!((10_000..20_000).contains(&refused), "{refused} refused");
}

#[test]
fn any_bytes_have_an_outcome() {
    let mut market = Market::default();
    let mut reply = Vec::new();
    market.apply(&[1, 2, 3], &mut reply);
    assert_eq!(Outcome::decode(&reply), Some(Outcome::Rejected(Reject::Malformed)));
}
