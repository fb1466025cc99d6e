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
/// The lengths of lists in a message, and in a message that would be too long with them.
const LENGTHS: [Lengths; 2] = [Lengths { whole: 24, start: 12 }, Lengths { whole: 5, start: 3 }];
/// The depth of brackets in which lists are shortened.
const DEPTH: usize = 8;

/// The items of a list that are shown.
#[derive(Clone, Copy)]
struct Lengths {
    /// Lists of up to this many items are shown whole.
    whole: usize,
    /// The items of a longer list that are shown before the rest is counted; the last one is shown as well.
    start: usize,
}

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

/// A message on one line: names in it are cut, of each long list the start and the end are shown, and the whole is bounded.
pub(crate) fn message(text: &str) -> String {
    let text = names(text);
    let [usual, short] = LENGTHS;
    let mut shown = lists(&text, usual);
    if cut(&shown, MESSAGE).is_some() {
        // Shorter lists leave room for the words around them.
        shown = lists(&text, short);
    }
    match cut(&shown, MESSAGE) {
        Some((start, more)) => format!("{}… and {more} more characters", escape_hidden(start, |_| false)),
        None => escape_hidden(&shown, |_| false).into_owned(),
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

/// Shortens each list of a message by itself, and no sentence that has commas.
///
/// A list is a run of items with commas between them: of names in backquotes, numbers and single words, each with what is in
/// brackets behind it. A piece of a sentence is no item, and bounds the run: in ``into `a`, `b`, which are trained: `c`, `d```
/// there are two lists, and `which are trained` stays however long they are.
fn lists(text: &str, lengths: Lengths) -> String {
    let mut open = vec![List::new(None)];
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let list = open.last_mut().expect("the sentence itself is never closed");
        let mut len = c.len_utf8();
        match c {
            '`' if opens(text[..text.len() - rest.len()].chars().next_back(), rest[1..].chars().next()) => {
                let quoted = &rest[1..];
                let end = backquote(quoted, closes).map_or(quoted.len(), |end| end + 1);
                len += end;
                list.push_name(&rest[..len]);
            }
            ',' if rest[1..].starts_with(' ') => {
                len = 2;
                list.pieces.push(Piece::default());
            }
            '[' | '(' => {
                list.push(c, rest[1..].chars().next());
                if open.len() <= DEPTH {
                    open.push(List::new(Some(if c == '[' { ']' } else { ')' })));
                }
            }
            c if list.end == Some(c) => {
                let inner = open.pop().map(|list| list.shortened(lengths)).unwrap_or_default();
                if let Some(outer) = open.last_mut() {
                    outer.push_name(&inner);
                    outer.push(c, None);
                }
            }
            c => list.push(c, rest[len..].chars().next()),
        }
        rest = &rest[len..];
    }
    // Brackets that are not closed.
    while let Some(list) = open.pop() {
        let shown = list.shortened(lengths);
        match open.last_mut() {
            Some(outer) => outer.push_name(&shown),
            None => return shown,
        }
    }
    String::new()
}

/// The pieces between the commas of a sentence, or of what is in brackets.
struct List {
    pieces: Vec<Piece>,
    /// The bracket that closes it.
    end: Option<char>,
}

/// A piece between commas.
#[derive(Default)]
struct Piece {
    text: String,
    /// The number of words with letters outside of names and brackets.
    words: usize,
    /// True within such a word.
    in_word: bool,
    /// True if a sentence or a part of it ends in the piece.
    has_end: bool,
}

impl List {
    fn new(end: Option<char>) -> List {
        List { pieces: vec![Piece::default()], end }
    }

    fn piece(&mut self) -> &mut Piece {
        if self.pieces.is_empty() {
            self.pieces.push(Piece::default());
        }
        let last = self.pieces.len() - 1;
        &mut self.pieces[last]
    }

    /// Adds a name, or what is in brackets.
    fn push_name(&mut self, name: &str) {
        self.piece().text.push_str(name);
    }

    /// Adds a character, which another one follows.
    fn push(&mut self, c: char, next: Option<char>) {
        let piece = self.piece();
        piece.text.push(c);
        if c.is_whitespace() {
            piece.in_word = false;
        } else if c.is_alphabetic() && !piece.in_word {
            piece.in_word = true;
            piece.words += 1;
        }
        piece.has_end |= matches!(c, '.' | ':' | ';') && next.is_some_and(char::is_whitespace);
    }

    /// The text with long runs of items shortened.
    fn shortened(self, Lengths { whole, start }: Lengths) -> String {
        let last = self.pieces.len().saturating_sub(1);
        let is_item = |piece: &Piece| self.end == Some(']') || piece.words <= 1 && !piece.has_end;
        let bounds =
            self.pieces.iter().enumerate().filter(|&(i, piece)| i == 0 || i == last || !is_item(piece));
        let bounds: Vec<usize> = bounds.map(|(i, _)| i).collect();
        let mut shown: Vec<Cow<'_, str>> = Vec::new();
        for (n, &from) in bounds.iter().enumerate() {
            let to = bounds.get(n + 1).copied().unwrap_or(self.pieces.len());
            let run = &self.pieces[from..to];
            // With the piece that bounds it.
            let kept = if run.len() + 1 > whole { start } else { run.len() };
            shown.extend(run.iter().take(kept).map(|piece| Cow::Borrowed(piece.text.as_str())));
            if kept < run.len() {
                shown.push(Cow::Owned(format!("… and {} more", run.len() - kept)));
            }
        }
        shown.join(", ")
    }
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

    #[test]
    fn each_list_is_shortened_and_no_sentence() {
        let names =
            |start: &str, n: usize| (0..n).map(|i| format!("`{start}{i}`")).collect::<Vec<_>>().join(", ");
        let short = |start: &str, n: usize| format!("{}, … and {} more", names(start, 12), n - 13);
        let text = |a: &str, b: &str| {
            format!(
                "norms are not trained, since the exporter has folded them into {a}, which are trained as products: {b}. \
                 Export with `x=False, y=True`, which keeps every parameter, and has norms train (docs/training.md)"
            )
        };
        // The clause behind the first list bounds it, and so counts as its last piece.
        let folded = message(&text(&names("conv", 31), &names("norm", 40)));
        let wanted = text(
            &format!("{}, … and 19 more", names("conv", 12)),
            &format!("{}, `norm39`", short("norm", 40)),
        );
        assert_eq!(folded, wanted);
        let whole = text(&names("conv", 20), &names("norm", 20));
        assert_eq!(message(&whole), whole);
        // With longer names shorter lists leave the advice.
        let long =
            message(&text(&names(&"features.block.".repeat(3), 23), &names(&"features.norm.".repeat(3), 23)));
        assert!(long.contains("… and 20 more, which are trained as products: "), "{long}");
        assert!(long.ends_with("norm.22`. Export with `x=False, y=True`, which keeps every parameter, and has norms train (docs/training.md)"), "{long}");
        // Names with what is in brackets behind them, and lists in brackets.
        let computed = (0..30).map(|i| format!("`p{i}` (in `v{i}`, `w{i}`)")).collect::<Vec<_>>().join(", ");
        assert!(
            message(&format!("computed from them: {computed}. Export"))
                .contains("`p11` (in `v11`, `w11`), … and 17 more, `p29` (in `v29`, `w29`). Export")
        );
        let in_brackets = message(&format!("no parameters ({}), but one, two, three", names("p", 30)));
        assert_eq!(in_brackets, format!("no parameters ({}, `p29`), but one, two, three", short("p", 30)));
        let counts = (0..30).map(|i| format!("{i} × Op{i}")).collect::<Vec<_>>().join(", ");
        assert!(message(&counts).ends_with("11 × Op11, … and 17 more, 29 × Op29"));
        let clauses = vec!["and it is a part of a sentence"; 40].join(", ");
        assert_eq!(message(&clauses), clauses);
    }

    #[test]
    fn brackets_need_not_match() {
        for text in
            ["a) b, c", "a (b, c", "[a (b] c), d", "((((((((((((a, b))))))))))))", "a]", "`a [b` (c", ""]
        {
            assert_eq!(message(text), text);
        }
        let (deep, open) = ("(".repeat(1 << 20), "[a, ".repeat(1 << 18));
        assert!(message(&deep).len() < 2100 && message(&open).len() < 2100);
        assert!(message(&format!("{deep}{}", "a, )".repeat(1 << 18))).len() < 2100);
    }
}
