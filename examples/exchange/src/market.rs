//! All books: the state that is replicated.
//!
//! A command concerns the book of one symbol only. That is why a replica that joins can receive one book after the other while commands go on. A command on a
//! book that the replica has not received yet changes something that will be replaced as a whole. A command on a book that it has received does there what it
//! does everywhere.

use std::collections::BTreeMap;

use crate::book::Book;
use crate::bytes::Bytes;
use crate::command::{Command, Outcome, Reject, Symbol};

/// All books.
#[derive(Clone, Debug, Default)]
pub struct Market {
    books: BTreeMap<Symbol, Book>,
}

impl FromIterator<(Symbol, Book)> for Market {
    fn from_iter<T: IntoIterator<Item = (Symbol, Book)>>(books: T) -> Self {
        Market { books: books.into_iter().collect() }
    }
}

impl Market {
    /// Executes a command.
    pub fn execute(&mut self, command: &Command) -> Outcome {
        match *command {
            Command::Limit { symbol, account, side, price, quantity } => {
                self.books.entry(symbol).or_default().limit(account, side, price, quantity)
            }
            Command::Market { symbol, account, side, quantity } => self.books.entry(symbol).or_default().market(account, side, quantity),
            Command::Cancel { symbol, account, order } => match self.books.get_mut(&symbol) {
                Some(book) => book.cancel(account, order),
                None => Outcome::Rejected(Reject::NoSuchOrder),
            },
        }
    }

    /// Executes the bytes of a command, and appends the bytes of its outcome. Accepts any bytes.
    pub fn apply(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        let outcome = Command::decode(command).map_or(Outcome::Rejected(Reject::Malformed), |command| self.execute(&command));
        outcome.encode(reply);
    }

    /// The book of a symbol, if it has ever been traded.
    pub fn book(&self, symbol: Symbol) -> Option<&Book> {
        self.books.get(&symbol)
    }

    /// All books with their symbols.
    pub fn books(&self) -> impl Iterator<Item = (Symbol, &Book)> {
        self.books.iter().map(|(symbol, book)| (*symbol, book))
    }

    /// How many orders have been accepted.
    pub fn accepted(&self) -> u64 {
        self.books.values().map(Book::accepted).sum()
    }

    /// Appends the books from the symbol `from` on: as many as fit into `budget` bytes, but at least one. In front of them it writes the range of symbols of
    /// which these are all the books. Returns the symbol to go on from, or `None` when that was all. A symbol is at most 65535, so 65536 is after all of them.
    pub fn transfer(&self, from: u64, budget: usize, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        let first = Symbol::try_from(from).ok()?;
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&Symbol::MAX.to_le_bytes());
        for (&symbol, book) in self.books.range(first..) {
            out.extend_from_slice(&symbol.to_le_bytes());
            book.encode(out);
            if out.len() - start >= budget && symbol < Symbol::MAX {
                out[start + 2..start + 4].copy_from_slice(&symbol.to_le_bytes());
                return Some(u64::from(symbol) + 1);
            }
        }
        None
    }

    /// Takes a part that [`Market::transfer`] wrote: its books replace all in its range. `None`: the bytes are no such part, and nothing has changed.
    #[must_use]
    pub fn install(&mut self, part: &[u8]) -> Option<()> {
        let mut bytes = Bytes(part);
        if part.is_empty() {
            return Some(()); // behind the last symbol
        }
        let range = bytes.u16()?..=bytes.u16()?;
        let mut books = BTreeMap::new();
        while !bytes.0.is_empty() {
            let symbol = bytes.u16().filter(|symbol| range.contains(symbol))?;
            books.insert(symbol, Book::decode(&mut bytes)?);
        }
        self.books.retain(|symbol, _| !range.contains(symbol));
        self.books.extend(books);
        Some(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.books.clear();
    }

    /// Equal for equal books, and, with a probability of all but 2^-64, only for these: FNV-1a over all their bytes. Slow.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for (symbol, book) in &self.books {
            bytes.clear();
            bytes.extend_from_slice(&symbol.to_le_bytes());
            book.encode(&mut bytes);
            digest = bytes.iter().fold(digest, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        }
        digest
    }

    /// Panics if a book is not sound. Slow: for tests.
    pub fn check(&self) {
        self.books.values().for_each(Book::check);
    }
}
