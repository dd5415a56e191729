//! Numbers on the command lines of developers' commands.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A parser for the numbers of a range, for `value_parser`. Its errors say what is allowed.
pub fn number<T>(allowed: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Clone + Display + FromStr + PartialOrd + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| allowed.contains(number));
        number.ok_or_else(|| format!("allowed are {} to {}", allowed.start(), allowed.end()))
    }
}
