//! Tells code from comments and literals, so that a sentence about code does not trigger a rule about it.

/// One source line, taken apart. Each of the three parts has the line's columns, with blanks for what belongs to another part.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Line {
    /// Code, with the contents of literals blanked.
    pub code: String,
    /// Comments, including their slashes.
    pub comment: String,
    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub test: bool,
}

#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    BlockComment(u32),
    /// In a string. Its closing quote is followed by this many `#`; `None`: the string has escapes.
    String(Option<usize>),
}

/// Takes a Rust source apart.
pub fn lines(source: &str) -> Vec<Line> {
    let chars: Vec<char> = source.chars().collect();
    let mut out = vec![Line::default()];
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if c == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            out.push(Line::default());
            i += 1;
            continue;
        }
        let line = out.last_mut().expect("never empty");
        let next = chars.get(i + 1).copied();
        match state {
            State::Code => match (c, next) {
                ('/', Some('/')) => {
                    state = State::LineComment;
                    put(line, c, false);
                }
                ('/', Some('*')) => {
                    state = State::BlockComment(1);
                    put(line, c, false);
                    put(line, '*', false);
                    i += 1;
                }
                ('"', _) => {
                    put(line, c, true);
                    state = State::String(raw_hashes(&chars, i));
                }
                ('\'', _) if char_literal(&chars, i).is_some() => {
                    let end = char_literal(&chars, i).expect("just seen");
                    put(line, '\'', true);
                    for _ in i + 1..end {
                        put(line, ' ', true);
                    }
                    put(line, '\'', true);
                    i = end;
                }
                _ => put(line, c, true),
            },
            State::LineComment => put(line, c, false),
            State::BlockComment(depth) => {
                put(line, c, false);
                if c == '*' && next == Some('/') {
                    put(line, '/', false);
                    i += 1;
                    state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                } else if c == '/' && next == Some('*') {
                    put(line, '*', false);
                    i += 1;
                    state = State::BlockComment(depth + 1);
                }
            }
            State::String(hashes) => match hashes {
                None if c == '\\' => {
                    put(line, ' ', true);
                    if next.is_some_and(|n| n != '\n') {
                        put(line, ' ', true);
                        i += 1;
                    }
                }
                None if c == '"' => {
                    put(line, c, true);
                    state = State::Code;
                }
                Some(n) if c == '"' && chars[i + 1..].iter().take_while(|&&h| h == '#').count() >= n => {
                    put(line, c, true);
                    state = State::Code;
                }
                _ => put(line, ' ', true),
            },
        }
        i += 1;
    }
    mark_tests(&mut out);
    out
}

fn put(line: &mut Line, c: char, code: bool) {
    line.code.push(if code { c } else { ' ' });
    line.comment.push(if code { ' ' } else { c });
}

/// For the quote at `at`: the number of `#` before it, if an `r` precedes them.
fn raw_hashes(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[..at].iter().rev().take_while(|&&c| c == '#').count();
    let r = at.checked_sub(hashes + 1)?;
    if chars[r] != 'r' {
        return None;
    }
    let before = r.checked_sub(1).map(|i| chars[i]);
    let prefix = before.is_none_or(|c| !(c.is_alphanumeric() || c == '_') || c == 'b' || c == 'c');
    prefix.then_some(hashes)
}

/// The closing quote of the character literal that opens at `at`. `None` when it is a lifetime.
fn char_literal(chars: &[char], at: usize) -> Option<usize> {
    if chars.get(at + 1) == Some(&'\\') {
        return (at + 3..chars.len().min(at + 13)).find(|&i| chars[i] == '\'');
    }
    (chars.get(at + 2) == Some(&'\'')).then_some(at + 2)
}

/// Marks the lines of every item under `#[cfg(test)]` (or a `cfg(all(test, ...))`): from the attribute to the item's end.
fn mark_tests(lines: &mut [Line]) {
    let mut at = 0;
    while at < lines.len() {
        let code = lines[at].code.replace(' ', "");
        if !(code.contains("#[cfg(test)]") || code.contains("#[cfg(all(test,")) {
            at += 1;
            continue;
        }
        let (mut depth, mut begun) = (0i32, false);
        'item: while at < lines.len() {
            lines[at].test = true;
            let code = lines[at].code.clone();
            // The attribute itself may contain brackets, but neither braces nor semicolons.
            for c in code.chars() {
                match c {
                    '{' => {
                        depth += 1;
                        begun = true;
                    }
                    '}' => depth -= 1,
                    ';' if !begun => break 'item,
                    _ => {}
                }
                if begun && depth == 0 {
                    break 'item;
                }
            }
            at += 1;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> Vec<String> {
        lines(source).into_iter().map(|line| line.code.trim_end().to_owned()).collect()
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g"), ["a".to_owned(), format!("c{}g", " ".repeat(19))]);
        assert_eq!(lines("a // b")[0].comment.trim(), "// b");
    }

    #[test]
    fn contents_of_literals_are_blanked() {
        assert_eq!(code(r#"x("//\" c", 'y', '\'') z"#), [r#"x("      ", ' ', '  ') z"#]);
        assert_eq!(code("r#\"a\"b\"# c"), ["r#\"   \"# c"]);
        assert_eq!(code("br\"\\\" c"), ["br\" \" c"]);
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(code("fn f<'a>(x: &'a str) // c"), ["fn f<'a>(x: &'a str)"]);
    }

    #[test]
    fn strings_span_lines() {
        assert_eq!(code("\"a\nb\" c"), ["\"", " \" c"]);
    }

    #[test]
    fn test_items_are_marked() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { {} }\n}\nfn c() {}\n#[cfg(test)]\nuse x;\nfn d() {}";
        let marks: Vec<bool> = lines(source).into_iter().map(|line| line.test).collect();
        assert_eq!(marks, [false, true, true, true, true, false, true, true, false]);
    }
}
