//! Orders of the example exchange, and their frames. For any bytes, the outcome has exactly one form in bytes, books stay sound and uncrossed, no unit is lost,
//! and a replica that joins meanwhile ends with the same books. No bytes that are accepted as a part of the state make unsound books.

use martlet_exchange::command::{Command, Outcome, Side};
use martlet_exchange::market::Market;
use martlet_exchange::wire::{Request, Response, first_frame};
use martlet_fabric::fuzz::Input;

pub(super) fn run(data: &[u8]) {
    frames(data);
    install(data);
    let mut input = Input(data);
    let (mut market, mut learner) = (Market::default(), Market::default());
    // How far the transfer of the state to the learner has got. It is begun again and again.
    let mut cursor = Some(0);
    let (mut ordered, mut gone) = (0u128, 0u128);
    let mut bytes = Vec::new();
    while !input.is_empty() {
        bytes.clear();
        let choice = input.u8();
        match choice % 8 {
            0 => {
                let len = usize::from(input.u8()) % 32;
                bytes.extend_from_slice(input.bytes(len));
            }
            1 => {
                let mut part = Vec::new();
                cursor = market.transfer(cursor.unwrap_or(0), usize::from(choice), &mut part);
                learner.install(&part).expect("a part");
                continue;
            }
            _ => command(choice, &mut input).encode(&mut bytes),
        }
        let mut reply = Vec::new();
        market.apply(&bytes, &mut reply);
        learner.apply(&bytes, &mut Vec::new());
        let outcome = Outcome::decode(&reply).expect("an outcome has the form of one");
        let mut again = Vec::new();
        outcome.encode(&mut again);
        assert_eq!(again, reply);
        match (outcome, Command::decode(&bytes)) {
            (Outcome::Accepted { dropped, fills, .. }, Some(Command::Limit { quantity, .. } | Command::Market { quantity, .. })) => {
                ordered += u128::from(quantity);
                gone += u128::from(dropped) + 2 * fills.iter().map(|fill| u128::from(fill.quantity)).sum::<u128>();
            }
            (Outcome::Cancelled { quantity }, Some(Command::Cancel { .. })) => gone += u128::from(quantity),
            (Outcome::Rejected(_), _) => {}
            (outcome, command) => panic!("{command:?} came to {outcome:?}"),
        }
    }
    market.check();
    let rests: u128 = market.books().flat_map(|(_, book)| book.orders()).map(|order| u128::from(order.quantity)).sum();
    assert_eq!(ordered, gone + rests, "what was ordered is traded, rests, was cancelled or dropped");
    while let Some(from) = cursor {
        let mut part = Vec::new();
        cursor = market.transfer(from, 64, &mut part);
        learner.install(&part).expect("a part");
    }
    // A transfer that was complete before the last commands, or has just ended.
    if ordered > 0 {
        let mut fresh = Market::default();
        let mut part = Vec::new();
        assert_eq!(market.transfer(0, usize::MAX, &mut part), None);
        fresh.install(&part).expect("a part");
        assert_eq!(fresh.digest(), market.digest());
        fresh.check();
    }
    assert_eq!(learner.digest(), market.digest(), "who joins holds the same books");
    learner.check();
}

/// Takes any bytes as a part of the state. Either they are refused, or the books that they make can go on.
fn install(data: &[u8]) {
    let mut market = Market::default();
    let _ = market.install(data);
    market.check();
    for side in [Side::Buy, Side::Sell] {
        market.execute(&Command::Limit { symbol: 0, account: 1, side, price: 5, quantity: 5 });
    }
    let _ = market.accepted();
    market.check();
}

/// What comes over TCP: frames and bodies, each of which has exactly one form.
fn frames(data: &[u8]) {
    if let Ok(Some((body, taken))) = first_frame(data) {
        assert_eq!(body, &data[4..taken]);
    }
    let mut again = Vec::new();
    if let Some((tag, request)) = Request::decode(data) {
        request.encode(tag, &mut again);
        assert_eq!(&again[4..], data);
    }
    again.clear();
    if let Some((tag, response)) = Response::decode(data) {
        response.encode(tag, &mut again);
        assert_eq!(&again[4..], data);
    }
}

fn command(choice: u8, input: &mut Input<'_>) -> Command {
    let (symbol, account) = (u16::from(choice >> 3 & 3), u32::from(choice >> 5 & 1));
    let side = if choice >> 6 & 1 == 0 { Side::Buy } else { Side::Sell };
    match choice % 8 {
        2 => Command::Market { symbol, account, side, quantity: input.number() },
        3 => Command::Cancel { symbol, account, order: input.number() },
        _ => Command::Limit { symbol, account, side, price: input.number(), quantity: input.number() },
    }
}
