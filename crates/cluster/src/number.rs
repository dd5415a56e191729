//! Numbers on the command line.

use std::fmt::Display;
use std::ops::{Bound, RangeBounds};

/// A parser for whole numbers within a range, for `value_parser`. Its errors say what is allowed.
///
/// # Panics
/// The parser panics when the range is empty.
pub fn number<T: TryFrom<u64> + Display>(
    allowed: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let most = u64::MAX >> (64 - 8 * size_of::<T>().min(8));
    let from = match allowed.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(below) => below + 1,
        Bound::Unbounded => 0,
    };
    let to = match allowed.end_bound() {
        Bound::Included(to) => *to,
        Bound::Excluded(above) => above - 1,
        Bound::Unbounded => most,
    };
    move |text| {
        let parsed = text.parse::<u64>().ok().filter(|number| (from..=to).contains(number)).and_then(|number| T::try_from(number).ok());
        parsed.ok_or_else(|| format!("allowed is a whole number from {from} to {to}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_the_range_is_refused_with_the_range() {
        let parse = number::<u16>(3..8);
        assert_eq!((parse("3"), parse("7")), (Ok(3), Ok(7)));
        for text in ["2", "8", "-1", "x", "", "3.5", "70000", "99999999999999999999999"] {
            assert_eq!(parse(text), Err("allowed is a whole number from 3 to 7".into()), "{text:?}");
        }
    }

    #[test]
    fn a_range_without_an_end_ends_where_the_type_does() {
        assert_eq!(number::<u16>(1..)("65535"), Ok(65_535));
        assert_eq!(number::<u16>(1..)("65536"), Err("allowed is a whole number from 1 to 65535".into()));
        assert_eq!(number::<u64>(..)("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(number::<u64>(..)("x"), Err("allowed is a whole number from 0 to 18446744073709551615".into()));
    }
}
