//! Patterns of keys.

use martlet_fabric::Pulse;

/// How many byte comparisons the patterns of one request may take. A pattern of a star and `n` more bytes is compared at each position of a key, and a key may
/// be as long as a value.
const COMPARISONS_MOST: usize = 200_000_000;

/// A request's pattern, and the comparisons it has cost so far.
#[derive(Debug)]
pub(super) struct Pattern<'a> {
    pattern: &'a [u8],
    pulse: &'a Pulse,
    left: usize,
}

impl<'a> Pattern<'a> {
    pub(super) fn new(pattern: &'a [u8], pulse: &'a Pulse) -> Pattern<'a> {
        Pattern { pattern, pulse, left: COMPARISONS_MOST }
    }

    /// Whether `text` matches, by Redis's rules: `*`, `?`, `[a-c]`, `[^a]`, and `\` to take the next byte literally. Once all comparisons are used up, the
    /// answer means nothing.
    ///
    /// Takes time in proportion to at most the product of the lengths: it goes back only to the last star, never further.
    pub(super) fn matches(&mut self, text: &[u8]) -> bool {
        let (pattern, mut p, mut t) = (self.pattern, 0, 0);
        let mut star: Option<(usize, usize)> = None;
        while self.left > 0 {
            if p < pattern.len() && pattern[p] == b'*' {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            if t == text.len() {
                return pattern[p..].iter().all(|&c| c == b'*');
            }
            let (hit, taken) = one(&pattern[p..], text[t]);
            self.left = self.left.saturating_sub(taken.max(1));
            self.pulse.worked(4 * taken.max(1));
            if hit {
                p += taken;
                t += 1;
            } else if let Some((after, from)) = star {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            } else {
                return false;
            }
        }
        false
    }

    /// How many comparisons there have been.
    pub(super) fn used(&self) -> usize {
        COMPARISONS_MOST - self.left
    }

    /// An error, if the comparisons are used up and the answers mean nothing.
    pub(super) fn exhausted(&self) -> Option<String> {
        (self.left == 0).then(|| format!("ERR the pattern needs more than {COMPARISONS_MOST} comparisons of bytes: use a simpler one"))
    }
}

/// Whether the pattern's first part matches `c`, and how long that part is; 0 at the pattern's end.
fn one(pattern: &[u8], c: u8) -> (bool, usize) {
    match pattern {
        [] => (false, 0),
        [b'?', ..] => (true, 1),
        [b'[', class @ ..] => {
            let (hit, len) = in_class(class, c);
            (hit, 1 + len)
        }
        [b'\\', quoted, ..] => (*quoted == c, 2),
        [plain, ..] => (*plain == c, 1),
    }
}

/// Whether `c` is in the class, and how long its text is. A class that does not close ends with the pattern.
fn in_class(class: &[u8], c: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut hit = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => break,
            [b'\\', quoted, ..] => {
                hit |= *quoted == c;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [a, b'-', b, ..] => {
                hit |= (*a.min(b)..=*a.max(b)).contains(&c);
                at += 3;
            }
            [plain, ..] => {
                hit |= *plain == c;
                at += 1;
            }
        }
    }
    (hit != negated, at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("key:*", "key:1", true),
            ("*a*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern:?} {text:?}");
        }
    }

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        Pattern::new(pattern, &Pulse::default()).matches(text)
    }

    /// Comparisons are counted, not time.
    #[test]
    fn many_stars_cost_a_few_times_the_text() {
        let used = |n: usize| {
            let (pulse, text) = (Pulse::default(), vec![b'a'; n]);
            let mut pattern = Pattern::new(b"*a*a*a*a*b", &pulse);
            assert!(!pattern.matches(&text));
            pattern.used()
        };
        let (once, ten_times) = (used(1_000), used(10_000));
        assert!(once < 4_000 && ten_times < 11 * once, "{once} for n, {ten_times} for 10 n");
    }

    #[test]
    fn a_pattern_that_takes_the_square_of_a_long_key_is_given_up() {
        let (pulse, text) = (Pulse::default(), vec![b'a'; 1_000_000]);
        let long = [&b"*"[..], &text[..500_000], b"b"].concat();
        let mut pattern = Pattern::new(&long, &pulse);
        assert!(!pattern.matches(&text));
        assert_eq!(
            pattern.exhausted().as_deref(),
            Some("ERR the pattern needs more than 200000000 comparisons of bytes: use a simpler one")
        );
        let class = [&b"*["[..], &vec![b'b'; 1_000_000], b"]"].concat();
        let mut pattern = Pattern::new(&class, &pulse);
        assert!(!pattern.matches(&text) && pattern.exhausted().is_some(), "a class is as long as it is");
        assert!(Pattern::new(b"*b", &pulse).exhausted().is_none());
    }

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in prop::collection::vec(prop::sample::select(&b"*?[]^-\\ab"[..]), 0..12), text in "[ab]{0,8}") {
            let _ = matches(&pattern, text.as_bytes());
            prop_assert!(matches(b"*", text.as_bytes()));
        }
    }
}
