//! Words of pipelines, and lists of them.
//!
//! A word of letters, digits and most signs is written bare; a word that is empty or contains a space, a control
//! character or one of `, { } + " \` is written in double quotes, in which `\"`, `\\` and `\u{…}` stand for
//! characters: `"a,b"+c` names `a,b` and `c`.

/// A word as pipelines spell it, in quotes if it needs them.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !r#",{}+"\"#.contains(c);
    if !word.is_empty() && word.chars().all(is_plain) { word.to_owned() } else { in_quotes(word) }
}

/// Quotes a word that would mean something else in a pipeline without quotes.
pub fn in_quotes(word: &str) -> String {
    let mut text = String::from('"');
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            // Line ends among them: a pipeline is one line.
            _ if c.is_control() || c.is_whitespace() && c != ' ' => text.extend(c.escape_unicode()),
            _ => text.push(c),
        }
    }
    text.push('"');
    text
}

/// The words of a value; `None` if the quotes make no sense.
pub(crate) fn words(value: &str) -> Option<Vec<String>> {
    list(value, '+')
}

/// Words, in quotes or not, with a sign between them; `None` if the quotes make no sense.
pub fn list(value: &str, between: char) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = value;
    loop {
        let (word, behind) = if rest.starts_with('"') {
            let (inside, behind) = rest.split_at(quotes(rest)?);
            (unquoted(inside)?, behind)
        } else {
            let (word, behind) = rest.split_at(rest.find(between).unwrap_or(rest.len()));
            (word.to_owned(), behind)
        };
        words.push(word);
        match behind.strip_prefix(between) {
            Some(next) => rest = next,
            None => return behind.is_empty().then_some(words),
        }
    }
}

/// The word that a whole value is; outside of quotes it may have a `+`.
pub(crate) fn word(value: &str) -> Option<String> {
    if value.starts_with('"') {
        return unquoted(value).filter(|_| quotes(value) == Some(value.len()));
    }
    Some(value.to_owned())
}

/// The length of the quoted text at the beginning of a text, with its quotes; `None` if they do not end.
pub(crate) fn quotes(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The text between quotes, which are the first and the last character.
fn unquoted(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut word = String::new();
    while let Some((before, escape)) = rest.split_once('\\') {
        word.push_str(before);
        if let Some(code) = escape.strip_prefix("u{") {
            let (digits, behind) = code.split_once('}')?;
            word.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
            rest = behind;
        } else {
            let c = escape.chars().next().filter(|c| r#""\"#.contains(*c))?;
            word.push(c);
            rest = &escape[c.len_utf8()..];
        }
    }
    word.push_str(rest);
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let all =
            ["", "a", "a+b", "a,b", "a}{b", "a b", "é\u{a0}", "\"", "\\", "\\u{a}", "a\nb\u{7f}", "a=b"];
        for (one, two) in all.iter().flat_map(|one| all.map(|two| (*one, two))) {
            assert_eq!(word(&quoted(one)).as_deref(), Some(one));
            let list = format!("{}+{}", quoted(one), quoted(two));
            assert_eq!(words(&list).unwrap(), [one, two], "{list}");
        }
    }

    #[test]
    fn quotes_that_make_no_sense_are_refused() {
        for value in ["\"a", "\"a\"b", "\"\\n\"", "\"\\u{110000}\"", "\"\\u{a\"", "\"", "\"\\\""] {
            assert_eq!((word(value), words(value)), (None, None), "{value}");
        }
    }
}
