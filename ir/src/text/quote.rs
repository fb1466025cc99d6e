//! Words and quoted strings.
//!
//! A name that is a plain word stands as it is; every other name, and every string, is quoted. Between quotes
//! stand UTF-8 text as it is and escapes for the rest: `\"`, `\\`, `\n`, `\r`, `\t`, and `\xNN` for any one
//! byte, so that bytes that are not UTF-8 survive too. Characters that a terminal would act on or not show
//! (controls, directional marks, zero-width spaces) are escaped.

use std::borrow::Cow;
use std::fmt::Write;

/// Words that begin a line: an operator, domain or function of such a name is quoted.
const KEYWORDS: [&str; 16] = [
    "attr", "capture", "const", "doc", "domain", "function", "graph", "input", "meta", "module", "opset",
    "output", "producer", "role", "state", "version",
];

/// True if a byte may stand in a bare name.
pub(super) fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'.'
}

/// True if `text` may follow `%` or `@` without quotes.
fn is_plain_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_name_byte)
}

/// True if `text` may stand for itself as a key, dim, domain or rule.
fn is_plain_word(text: &str) -> bool {
    is_plain_name(text) && !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') && text != "_"
}

/// Writes a name after its sigil.
pub(super) fn write_name(out: &mut String, sigil: char, name: &str) {
    out.push(sigil);
    if is_plain_name(name) { out.push_str(name) } else { write_quoted(out, name.as_bytes()) }
}

/// Writes a key: bare if plain.
pub(super) fn write_word(out: &mut String, word: &str) {
    if is_plain_word(word) { out.push_str(word) } else { write_quoted(out, word.as_bytes()) }
}

/// Writes a part of an operator's name: bare if plain and no keyword.
pub(super) fn write_op_word(out: &mut String, word: &str) {
    if is_plain_word(word) && !KEYWORDS.contains(&word) {
        out.push_str(word);
    } else {
        write_quoted(out, word.as_bytes());
    }
}

/// Writes bytes as a quoted string.
pub(super) fn write_quoted(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if is_hidden(c) => write_hex(out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.push(c),
            }
        }
        write_hex(out, chunk.invalid());
    }
    out.push('"');
}

/// True if a terminal would act on a character or not show it: controls, line separators, interlinear annotations, and the
/// characters with Unicode's property `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt), such as fillers, variation
/// selectors, tags, and marks that change the writing direction.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// A text in which hidden characters ([`is_hidden`]), but for those to keep, are spelled `\u{1b}`, as people and not
/// parsers are to read it.
pub fn escape_hidden(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |c: char| is_hidden(c) && !keep(c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// A JSON text in which hidden characters ([`is_hidden`]) of its strings are spelled `\u202e`: another spelling of the
/// same JSON, which a terminal shows. Line breaks and other white space between its values stay.
pub fn escape_hidden_in_json(json: &str) -> Cow<'_, str> {
    // Controls below the space are white space here: a string of JSON has none.
    let is_escaped = |c: char| c >= ' ' && is_hidden(c);
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    for b in bytes {
        out.push_str("\\x");
        for nibble in [b >> 4, b & 15] {
            out.extend(char::from_digit(u32::from(nibble), 16));
        }
    }
}

/// The bytes that a quoted string, quotes included, stands for; or the offset of the escape that is none.
pub(super) fn unquote(token: &str) -> Result<Cow<'_, [u8]>, usize> {
    let inner = &token.as_bytes()[1..token.len() - 1];
    if !inner.contains(&b'\\') {
        return Ok(Cow::Borrowed(inner));
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut i = 0;
    while i < inner.len() {
        if inner[i] != b'\\' {
            out.push(inner[i]);
            i += 1;
            continue;
        }
        let (byte, len) = escape(&inner[i + 1..]).ok_or(i + 1)?;
        out.push(byte);
        i += 1 + len;
    }
    Ok(Cow::Owned(out))
}

/// The byte that an escape stands for, and the length of the escape after its backslash.
fn escape(rest: &[u8]) -> Option<(u8, usize)> {
    let byte = match rest.first()? {
        b'"' => b'"',
        b'\\' => b'\\',
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'x' => {
            let digit = |i: usize| char::from(*rest.get(i)?).to_digit(16);
            return Some((u8::try_from(digit(1)? * 16 + digit(2)?).ok()?, 3));
        }
        _ => return None,
    };
    Some((byte, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = String::new();
        write_quoted(&mut text, &all);
        assert_eq!(unquote(&text).unwrap().as_ref(), all);
        assert!(!text.contains('\n'));
    }

    #[test]
    fn text_stays_readable_and_marks_are_escaped() {
        let mut text = String::new();
        write_quoted(&mut text, "größe \u{202e}\"x\"".as_bytes());
        assert_eq!(text, r#""größe \xe2\x80\xae\"x\"""#);
    }

    #[test]
    fn hidden_characters_are_spelled_for_people() {
        assert_eq!(escape_hidden("größe\u{1b}\u{2060}\n", |c| c == '\n'), "größe\\u{1b}\\u{2060}\n");
    }

    #[test]
    fn json_with_escapes_is_the_same_json() {
        let text = "[\n  \"größe \u{7f}\u{85}\u{9b}\u{2028}\u{202e}\u{200b}\u{e0041}\"\n]";
        let shown = "[\n  \"größe \\u007f\\u0085\\u009b\\u2028\\u202e\\u200b\\udb40\\udc41\"\n]";
        assert_eq!(escape_hidden_in_json(text), shown);
        assert_eq!(escape_hidden_in_json(shown), shown);
    }

    #[test]
    fn wrong_escapes_are_found() {
        assert_eq!(unquote(r#""ab\q""#), Err(3));
        assert_eq!(unquote(r#""\x1""#), Err(1));
        assert_eq!(unquote(r#""\xag""#), Err(1));
    }

    #[test]
    fn keywords_are_no_operators() {
        let mut text = String::new();
        write_op_word(&mut text, "graph");
        write_op_word(&mut text, "Relu");
        write_word(&mut text, "graph");
        assert_eq!(text, "\"graph\"Relugraph");
    }
}
