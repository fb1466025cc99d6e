//! Text of models, files and arguments as a terminal may see it: nothing in it moves the cursor, changes a color, turns
//! the direction of writing or makes a line of its own, and nothing is longer than people read.
//!
//! Models name nodes, values and files as they like, and name as many as they like in one message. All text for
//! people goes through here: the words of problems, the cells of tables and single lines one by one
//! ([`message`], [`name`]), and everything once more on its way out ([`guarded`]), where only line breaks and
//! the colors of this program may pass. Files are written as they are.

use ampc::ir::text::{escape_hidden, is_hidden};
use std::borrow::Cow;

/// Characters of a name that are shown.
const NAME: usize = 160;
/// Characters of a message that are shown.
const MESSAGE: usize = 2000;
/// Items of a list that are shown before the rest is counted, and at the end.
const ITEMS: usize = 12;
/// Lists of up to this many items are shown whole.
const WHOLE: usize = 24;

/// The start of a text, if it has more than `most` characters, and how many are left out.
fn cut(text: &str, most: usize) -> Option<(&str, usize)> {
    let (at, _) = text.char_indices().nth(most)?;
    Some((&text[..at], text[at..].chars().count()))
}

/// A name, or a word of the model, on one line.
pub(crate) fn name(text: &str) -> String {
    match cut(text, NAME) {
        Some((start, more)) => format!("{}… and {more} more characters", escape_hidden(start, |_| false)),
        None => escape_hidden(text, |_| false).into_owned(),
    }
}

/// A message on one line: names in it are cut, of long lists the start and the end are shown, and the whole is bounded.
pub(crate) fn message(text: &str) -> String {
    let text = lists(&names(text));
    match cut(&text, MESSAGE) {
        Some((start, more)) => format!("{}… and {more} more characters", escape_hidden(start, |_| false)),
        None => escape_hidden(&text, |_| false).into_owned(),
    }
}

/// Cuts text between backquotes. A name may have some itself: one opens where a word may begin, and closes
/// where one may end.
fn names(text: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = backquote(rest, opens) {
        let (before, quoted) = rest.split_at(start + 1);
        shown.push_str(before);
        let end = backquote(quoted, closes).unwrap_or(quoted.len());
        match cut(&quoted[..end], NAME) {
            Some((start, more)) => shown.push_str(&format!("{start}… and {more} more characters")),
            None => shown.push_str(&quoted[..end]),
        }
        // With what closes it, which opens nothing.
        let after = (end + 1).min(quoted.len());
        shown.push_str(&quoted[end..after]);
        rest = &quoted[after..];
    }
    shown + rest
}

/// Where the first backquote is for which the test of its neighbours is true.
fn backquote(text: &str, test: fn(Option<char>, Option<char>) -> bool) -> Option<usize> {
    let neighbours = |at: usize| (text[..at].chars().next_back(), text[at + 1..].chars().next());
    let mut places = text.match_indices('`').map(|(at, _)| at);
    places.find(|&at| {
        let (before, after) = neighbours(at);
        test(before, after)
    })
}

fn opens(before: Option<char>, after: Option<char>) -> bool {
    before.is_none_or(|c| !c.is_alphanumeric() && c != '`') && after.is_some_and(|c| !c.is_whitespace())
}

fn closes(_: Option<char>, after: Option<char>) -> bool {
    after.is_none_or(|c| !c.is_alphanumeric() && c != '`')
}

/// Cuts lists between brackets, then the remaining lists.
fn lists(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once('[') {
        shown.push_str(before);
        shown.push('[');
        let (list, after) =
            inside.split_once(']').map_or((inside, ""), |(list, _)| (list, &inside[list.len()..]));
        shown.push_str(&list_of(list));
        rest = after;
    }
    shown.push_str(rest);
    list_of(&shown)
}

fn list_of(text: &str) -> String {
    let n = text.matches(", ").count() + 1;
    if n <= WHOLE {
        return text.to_owned();
    }
    let start: Vec<&str> = text.split(", ").take(ITEMS).collect();
    let last = text.rsplit(", ").next().unwrap_or_default();
    format!("{}, … and {} more, {last}", start.join(", "), n - ITEMS - 1)
}

/// The source that a problem is drawn over, with every hidden character replaced by a character of as many
/// bytes.
pub(crate) fn source(text: String) -> String {
    if !text.contains(|c| is_hidden(c) && c != '\n') {
        return text;
    }
    let of_length = |c: char| match c.len_utf8() {
        1 => '?',
        2 => '¿',
        _ => '\u{fffd}',
    };
    text.chars().map(|c| if is_hidden(c) && c != '\n' { of_length(c) } else { c }).collect()
}

/// Lines on their way to a terminal or log: line breaks stay, and the colors of drawn problems.
pub(crate) fn guarded(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return escape_hidden(text, |c| c == '\n');
    }
    let mut parts = text.split('\u{1b}');
    let mut shown = escape_hidden(parts.next().unwrap_or_default(), |c| c == '\n').into_owned();
    for part in parts {
        let color = part.strip_prefix('[').and_then(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            rest[end..].starts_with('m').then_some(())
        });
        shown.push_str(if color.is_some() { "\u{1b}" } else { "\\u{1b}" });
        shown.push_str(&escape_hidden(part, |c| c == '\n'));
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hidden_is_left() {
        for c in (0..=0x1f).chain([
            0x7f, 0x85, 0x9b, 0x200b, 0x202a, 0x202e, 0x2028, 0x2066, 0x2069, 0xfeff, 0x61c, 0xad, 0xe0041,
            0xfe0f, 0x34f, 0x180b, 0x17b4, 0x1d173, 0xe0100, 0x115f, 0x3164, 0xffa0,
        ]) {
            let c = char::from_u32(c).unwrap();
            let expected = format!("a\\u{{{:x}}}b", u32::from(c));
            assert_eq!(name(&format!("a{c}b")), expected);
            assert_eq!(message(&format!("a{c}b")), expected);
        }
        assert_eq!(name("größe 😀"), "größe 😀");
    }

    #[test]
    fn only_colors_and_line_breaks_leave() {
        assert_eq!(guarded("a\n\u{1b}[31;1mb\u{1b}[0m"), "a\n\u{1b}[31;1mb\u{1b}[0m");
        assert_eq!(guarded("\u{1b}]0;title\u{7}\u{1b}[2J\r"), "\\u{1b}]0;title\\u{7}\\u{1b}[2J\\u{d}");
    }

    #[test]
    fn a_source_keeps_its_offsets() {
        let text = "a\u{1b}\u{9b}\u{202e}b\n";
        let shown = source(text.to_owned());
        assert_eq!((shown.len(), shown.as_str()), (text.len(), "a?¿\u{fffd}b\n"));
    }

    #[test]
    fn everything_is_bounded() {
        let dims = vec!["1"; 100_000].join(", ");
        let expected = format!("its dims [{}, … and 99987 more, 1] are wrong", ["1"; 12].join(", "));
        assert_eq!(message(&format!("its dims [{dims}] are wrong")), expected);
        let list = format!("needs a, {}, z: give them", vec!["b"; 200_000].join(", "));
        assert!(message(&list).ends_with("… and 199989 more, z: give them"), "{}", message(&list));
        let long = "n".repeat(1 << 20);
        assert!(message(&format!("`{long}` is read")).ends_with("… and 1048416 more characters` is read"));
        assert!(name(&long).len() < 200 && message(&long).len() < 2100);
        for odd in ["a`b", "`a", "a`", "``", "a` b", "a `b"] {
            let text = message(&format!("`{odd}` is read by `{long}`, which {}", "is ".repeat(100)));
            let (before, after) = text.split_once("… and 1048416 more characters`, which ").unwrap();
            assert!(before.starts_with(&format!("`{odd}` is read by `nnn")), "{before}");
            assert_eq!(after, "is ".repeat(100));
        }
        let short = "`a` has [1, 2, 3], b, c";
        assert_eq!(message(short), short);
    }
}
