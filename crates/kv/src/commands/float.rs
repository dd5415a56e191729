//! The numbers of INCRBYFLOAT: the x86's extended precision with a mantissa of 64 bits, which Redis uses and Rust lacks.
//!
//! With `f64` instead, `0.1 + 0.2` would read `0.30000000000000004`, where Redis says `0.3`.

use std::cmp::Ordering;

/// The largest exponent of a number's leading bit.
const MAX_EXPONENT: i64 = 16383;
/// Below this, a number is 0.
const MIN_EXPONENT: i64 = -16445;
/// Decimal exponents beyond this are out of range, whatever the digits; texts with more digits than this are refused.
const MAX_DECIMAL: i64 = 5120;

/// A number: `mantissa * 2^exponent`, the mantissa's top bit set unless it is 0; or infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extended {
    negative: bool,
    infinite: bool,
    mantissa: u64,
    exponent: i64,
}

impl Extended {
    pub(super) const ZERO: Extended = Extended { negative: false, infinite: false, mantissa: 0, exponent: 0 };

    /// Parses `text`, rounding to nearest. Returns `None` when it is not a number or out of range.
    pub(super) fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() as i64 > MAX_DECIMAL {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended { negative, infinite: true, ..Extended::ZERO });
        }
        let (mut digits, mut scale, mut seen, mut point) = (Big::default(), 0i64, false, false);
        let mut at = 0;
        while let Some(&c) = rest.get(at) {
            match c {
                b'0'..=b'9' => {
                    digits.mul_add(10, u32::from(c - b'0'));
                    scale -= i64::from(point);
                    seen = true;
                }
                b'.' if !point => point = true,
                _ => break,
            }
            at += 1;
        }
        if !seen {
            return None;
        }
        match &rest[at..] {
            [] => {}
            [b'e' | b'E', exponent @ ..] => {
                let exponent = exponent.strip_prefix(b"+").unwrap_or(exponent);
                let n: i64 = std::str::from_utf8(exponent).ok()?.parse().ok()?;
                scale = scale.checked_add(n)?;
            }
            _ => return None,
        }
        if digits.is_zero() {
            return Some(Extended { negative, ..Extended::ZERO });
        }
        if scale.abs() > 2 * MAX_DECIMAL {
            return None;
        }
        let mut denominator = Big::from(1);
        let scaled = if scale >= 0 { &mut digits } else { &mut denominator };
        for _ in 0..scale.abs() {
            scaled.mul_add(10, 0);
        }
        Extended::rounded(negative, digits, denominator, 0)
    }

    /// `numerator / denominator * 2^exponent`, rounded to nearest, ties to even. `None` when out of range.
    fn rounded(negative: bool, mut numerator: Big, mut denominator: Big, exponent: i64) -> Option<Extended> {
        if numerator.is_zero() {
            return Some(Extended::ZERO);
        }
        // Makes the quotient 65 or 66 bits long.
        let shift = 65 + denominator.bits() as i64 - numerator.bits() as i64;
        if shift >= 0 {
            numerator.shl(shift as usize)
        } else {
            denominator.shl(-shift as usize)
        }
        denominator.shl(67);
        let mut quotient = 0u128;
        for _ in 0..=67 {
            quotient <<= 1;
            if numerator.cmp(&denominator) != Ordering::Less {
                numerator.sub(&denominator);
                quotient |= 1;
            }
            denominator.shr1();
        }
        let extra = 128 - quotient.leading_zeros() - 64;
        let low = quotient & ((1 << extra) - 1);
        let half = 1u128 << (extra - 1);
        let mut mantissa = quotient >> extra;
        let sticky = !numerator.is_zero();
        if low > half || (low == half && (sticky || mantissa & 1 == 1)) {
            mantissa += 1;
        }
        let mut exponent = exponent - shift + i64::from(extra);
        if mantissa >> 64 != 0 {
            mantissa >>= 1;
            exponent += 1;
        }
        if !(MIN_EXPONENT..=MAX_EXPONENT).contains(&(exponent + 63)) {
            return None;
        }
        Some(Extended { negative, infinite: false, mantissa: mantissa as u64, exponent })
    }

    /// The sum, or `None` when it is not finite.
    pub(super) fn add(self, other: Extended) -> Option<Extended> {
        if self.infinite || other.infinite {
            return None;
        }
        let (a, b) =
            if (self.mantissa != 0 && self.exponent >= other.exponent) || other.mantissa == 0 { (self, other) } else { (other, self) };
        // A number that lies 130 bits lower cannot change the rounding.
        if b.mantissa == 0 || a.exponent - b.exponent > 130 {
            return Some(a);
        }
        let (mut high, mut low) = (Big::from(a.mantissa), Big::from(b.mantissa));
        high.shl((a.exponent - b.exponent) as usize);
        let mut negative = a.negative;
        if a.negative == b.negative {
            high.add(&low);
        } else if high.cmp(&low) == Ordering::Less {
            low.sub(&high);
            (high, negative) = (low, b.negative);
        } else {
            high.sub(&low);
        }
        Extended::rounded(negative, high, Big::from(1), b.exponent)
    }

    /// The number in decimal, with up to 17 digits behind the point and no trailing zeros: `%.17Lf`, trimmed.
    pub(super) fn format(self) -> String {
        const PLACES: usize = 17;
        let mut n = Big::from(self.mantissa);
        for _ in 0..PLACES {
            n.mul_add(10, 0);
        }
        if self.exponent >= 0 {
            n.shl(self.exponent as usize)
        } else {
            n.shr_rounding(-self.exponent as usize)
        }
        let mut digits = n.decimal();
        while digits.len() <= PLACES {
            digits.insert(0, '0');
        }
        digits.insert(digits.len() - PLACES, '.');
        let text = digits.trim_end_matches('0').trim_end_matches('.');
        if self.negative && text != "0" { format!("-{text}") } else { text.to_owned() }
    }
}

/// A natural number of any size, little-endian and without leading zeros, with just the arithmetic that is needed above.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Big(Vec<u32>);

impl From<u64> for Big {
    fn from(n: u64) -> Big {
        let mut big = Big(vec![n as u32, (n >> 32) as u32]);
        big.trim();
        big
    }
}

impl Big {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| self.0.len() * 32 - top.leading_zeros() as usize)
    }

    fn mul_add(&mut self, by: u32, plus: u32) {
        let mut carry = u64::from(plus);
        for limb in &mut self.0 {
            carry += u64::from(*limb) * u64::from(by);
            *limb = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    /// Divides by `by` and returns the remainder.
    fn div(&mut self, by: u32) -> u32 {
        let mut rest = 0u64;
        for limb in self.0.iter_mut().rev() {
            rest = rest << 32 | u64::from(*limb);
            *limb = (rest / u64::from(by)) as u32;
            rest %= u64::from(by);
        }
        self.trim();
        rest as u32
    }

    fn shl(&mut self, by: usize) {
        if self.is_zero() {
            return;
        }
        self.mul_add(1 << (by % 32), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, by / 32));
    }

    fn shr1(&mut self) {
        let mut carry = 0;
        for limb in self.0.iter_mut().rev() {
            let low = *limb & 1;
            *limb = *limb >> 1 | carry << 31;
            carry = low;
        }
        self.trim();
    }

    /// Shifts right, rounding to nearest, ties to even.
    fn shr_rounding(&mut self, by: usize) {
        if by == 0 {
            return;
        }
        if by > self.bits() {
            self.0.clear();
            return;
        }
        let bit = |n: &Big, i: usize| n.0.get(i / 32).is_some_and(|limb| limb >> (i % 32) & 1 == 1);
        let half = bit(self, by - 1);
        let sticky = (0..by - 1).any(|i| bit(self, i));
        let odd = bit(self, by);
        self.0.drain(..by / 32);
        for _ in 0..by % 32 {
            self.shr1();
        }
        if half && (sticky || odd) {
            self.add(&Big::from(1));
        }
    }

    fn cmp(&self, other: &Big) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn add(&mut self, other: &Big) {
        let mut carry = 0u64;
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (i, limb) in self.0.iter_mut().enumerate() {
            carry += u64::from(*limb) + u64::from(other.0.get(i).copied().unwrap_or(0));
            *limb = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    /// Subtracts a number that is not larger.
    fn sub(&mut self, other: &Big) {
        let mut borrow = 0i64;
        for (i, limb) in self.0.iter_mut().enumerate() {
            let n = i64::from(*limb) - i64::from(other.0.get(i).copied().unwrap_or(0)) + borrow;
            *limb = n as u32;
            borrow = n >> 32;
        }
        self.trim();
    }

    fn decimal(mut self) -> String {
        let mut groups = Vec::new();
        while !self.is_zero() {
            groups.push(self.div(1_000_000_000));
        }
        let mut text = groups.pop().unwrap_or(0).to_string();
        for group in groups.iter().rev() {
            text.push_str(&format!("{group:09}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        Some(Extended::parse(a.as_bytes())?.add(Extended::parse(b.as_bytes())?)?.format())
    }

    #[test]
    fn sums_read_as_in_redis() {
        // Each result was taken from Redis 7.0.15.
        for (a, b, expected) in [
            ("0", "0.1", "0.1"),
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "1.000000000000000005", "4.00000000000000001"),
            ("-1", "1", "0"),
            ("0", "-0.0", "0"),
            ("1e20", "1", "100000000000000000000"),
            ("1e-20", "0", "0"),
            (".5", "5.", "5.5"),
            ("1234567.1", "0.1", "1234567.20000000000004547"),
            ("99999999999999999999", "0.5", "100000000000000000000"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
        for bad in ["", " 1", "1 ", "a", "1e", "--1", ".", "1e99999", "1e-99999", "nan", "1.2.3"] {
            assert_eq!(Extended::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1e4932", "1e4932"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-+.e0-9]{0,12}", other in "-?[0-9]{1,25}(\\.[0-9]{0,25})?(e-?[0-9]{1,3})?") {
            if let (Some(a), Some(b)) = (Extended::parse(text.as_bytes()), Extended::parse(other.as_bytes())) {
                prop_assert_eq!(a.add(b), b.add(a));
            }
        }

        #[test]
        fn integers_are_exact(a in -1_000_000_000_000i64..1_000_000_000_000, b in -1_000_000_000_000i64..1_000_000_000_000) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), Some((a + b).to_string()));
        }
    }
}
