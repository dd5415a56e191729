//! Patterns of keys.

/// Whether `text` matches `pattern`, as Redis matches: `*`, `?`, `[a-c]`, `[^a]`, and `\` to take the next byte as it is.
///
/// Takes time in proportion to the product of the lengths at most: it goes back to the last star only, never further.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t == text.len() {
            return pattern[p..].iter().all(|&c| c == b'*');
        }
        match one(&pattern[p..], text[t]) {
            Some(taken) if p < pattern.len() => {
                p += taken;
                t += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
}

/// Whether the pattern's first part matches `c`, and how long that part is.
fn one(pattern: &[u8], c: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (hit, len) = in_class(class, c);
            hit.then_some(1 + len)
        }
        [b'\\', quoted, ..] => (*quoted == c).then_some(2),
        [plain, ..] => (*plain == c).then_some(1),
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

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in prop::collection::vec(prop::sample::select(&b"*?[]^-\\ab"[..]), 0..12), text in "[ab]{0,8}") {
            let _ = matches(&pattern, text.as_bytes());
            prop_assert!(matches(b"*", text.as_bytes()));
        }
    }
}
