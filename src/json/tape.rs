//! JSON as a tape: where every value starts, in the order of the text, and where every container ends.
//!
//! Reading costs four bytes per value and eight per container, for any text, and nothing recurses: an endlessly
//! nested text, or a list of a hundred million zeros, is refused or read in bounded memory. Strings and numbers
//! are decoded only on demand.

use ampc_ir::text::MAX_DEPTH;
use std::borrow::Cow;
use std::fmt::Write;

/// Containers may nest this deep: enough for bodies within bodies, as deep as they may be.
const MAX_NESTING: usize = 8 * MAX_DEPTH;

/// Lists, objects and their items are numbered by `u32`.
const MAX_BYTES: usize = 1 << 31;

/// A syntax error and its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) offset: usize,
    pub(super) expected: String,
    pub(super) found: String,
}

/// A value of the text: its place on the tape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At(u32);

/// A value, one level deep.
#[derive(Debug, PartialEq)]
pub(super) enum Token<'t> {
    Null,
    Bool(bool),
    Number(&'t str),
    Text(Cow<'t, str>),
    List,
    Object,
}

/// A text whose syntax is right.
#[derive(Debug)]
pub(super) struct Tape<'t> {
    text: &'t str,
    /// The offset of every value; behind that of a container the index behind its last value.
    tape: Vec<u32>,
}

impl<'t> Tape<'t> {
    /// Reads a text; of syntax only the first error is known.
    pub(super) fn new(text: &'t str) -> Result<Tape<'t>, Broken> {
        if text.len() > MAX_BYTES {
            let (expected, found) = (format!("at most {MAX_BYTES} bytes"), text.len().to_string());
            return Err(Broken { offset: 0, expected, found });
        }
        let mut scan = Scan { text, bytes: text.as_bytes(), at: 0, tape: Vec::new(), open: Vec::new() };
        scan.run()?;
        Ok(Tape { text, tape: scan.tape })
    }

    /// The value that is the whole text.
    pub(super) fn root(&self) -> At {
        At(0)
    }

    /// The first byte of a value.
    pub(super) fn offset(&self, at: At) -> usize {
        self.tape[at.0 as usize] as usize
    }

    fn container(&self, at: At) -> bool {
        matches!(self.text.as_bytes()[self.offset(at)], b'{' | b'[')
    }

    fn after(&self, at: At) -> At {
        if self.container(at) { At(self.tape[at.0 as usize + 1]) } else { At(at.0 + 1) }
    }

    /// The values right inside a container: of an object names and values in turn.
    fn inside(&self, at: At) -> impl Iterator<Item = At> + '_ {
        let (mut next, end) = if self.container(at) { (At(at.0 + 2), self.after(at)) } else { (at, at) };
        std::iter::from_fn(move || {
            let at = next;
            (at.0 < end.0).then(|| {
                next = self.after(at);
                at
            })
        })
    }

    /// The items of a list.
    pub(super) fn items(&self, at: At) -> impl Iterator<Item = At> + '_ {
        self.inside(at)
    }

    /// The fields of an object: name and value.
    pub(super) fn fields(&self, at: At) -> impl Iterator<Item = (At, At)> + '_ {
        let mut inside = self.inside(at);
        std::iter::from_fn(move || Some((inside.next()?, inside.next()?)))
    }

    /// The bytes of a scalar, or the first byte of a container.
    pub(super) fn raw(&self, at: At) -> &'t str {
        let start = self.offset(at);
        let rest = &self.text[start..];
        let end = match rest.as_bytes()[0] {
            b'{' | b'[' => 1,
            b'"' => string_end(rest.as_bytes(), 0).unwrap_or(rest.len()),
            _ => rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(rest.len()),
        };
        &rest[..end]
    }

    pub(super) fn token(&self, at: At) -> Token<'t> {
        let raw = self.raw(at);
        match raw.as_bytes()[0] {
            b'{' => Token::Object,
            b'[' => Token::List,
            b'"' => Token::Text(decoded(raw).unwrap_or_default()),
            b'n' => Token::Null,
            b't' | b'f' => Token::Bool(raw == "true"),
            _ => Token::Number(raw),
        }
    }

    /// The path of a value, such as `graph.nodes[3].op`; empty for the whole text.
    pub(super) fn path(&self, wanted: At) -> String {
        let mut path = String::new();
        let mut at = self.root();
        while at != wanted {
            let object = self.text.as_bytes()[self.offset(at)] == b'{';
            let mut key = None;
            let inner = self.inside(at).enumerate().find(|&(i, inner)| {
                if object && i % 2 == 0 {
                    key = Some(inner);
                }
                inner.0 <= wanted.0 && wanted.0 < self.after(inner).0
            });
            let Some((index, inner)) = inner else { break };
            match key.map(|key| self.token(key)) {
                Some(Token::Text(name)) => {
                    path.push_str(if path.is_empty() { "" } else { "." });
                    path.extend(name.chars().take(80));
                }
                _ => {
                    let _ = write!(path, "[{index}]");
                }
            }
            at = inner;
        }
        path
    }
}

/// The text between quotes, escapes resolved.
fn decoded(raw: &str) -> Option<Cow<'_, str>> {
    if raw.contains('\\') {
        return serde_json::from_str(raw).ok().map(Cow::Owned);
    }
    raw.strip_prefix('"')?.strip_suffix('"').map(Cow::Borrowed)
}

/// The offset behind the quote that ends the string at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

struct Scan<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    tape: Vec<u32>,
    /// Containers that are not closed yet.
    open: Vec<usize>,
}

impl Scan<'_> {
    fn run(&mut self) -> Result<(), Broken> {
        self.blanks();
        loop {
            if self.value()? {
                continue;
            }
            if self.rest()? {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fail<T>(&self, expected: impl Into<String>) -> Result<T, Broken> {
        let found = match self.text[self.at..].chars().next() {
            Some(c) => format!("`{c}`"),
            None => "the end of the text".to_owned(),
        };
        Err(Broken { offset: self.at, expected: expected.into(), found })
    }

    fn push(&mut self, offset: usize) {
        self.tape.push(u32::try_from(offset).expect("texts are shorter than 2^32 bytes"));
    }

    /// Reads a value; true if it is a container with something in it, whose first value comes next.
    fn value(&mut self) -> Result<bool, Broken> {
        let start = self.at;
        match self.peek() {
            Some(open @ (b'{' | b'[')) => {
                if self.open.len() == MAX_NESTING {
                    return self.fail(format!("lists and objects at most {MAX_NESTING} deep"));
                }
                self.open.push(self.tape.len());
                self.push(start);
                self.push(0);
                self.at += 1;
                self.blanks();
                if self.peek() == Some(if open == b'{' { b'}' } else { b']' }) {
                    return Ok(false);
                }
                if open == b'{' {
                    self.key()?;
                }
                return Ok(true);
            }
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => {
                let rest = &self.bytes[start..];
                let word = ["null", "true", "false"].into_iter().find(|w| rest.starts_with(w.as_bytes()));
                let Some(word) = word else { return self.fail("a JSON value") };
                self.at += word.len();
            }
        }
        self.push(start);
        Ok(false)
    }

    /// Reads the text behind a value: ends of containers, then a comma. True at the end of the text.
    fn rest(&mut self) -> Result<bool, Broken> {
        loop {
            self.blanks();
            let Some(&container) = self.open.last() else {
                return if self.at == self.bytes.len() { Ok(true) } else { self.fail("the end of the text") };
            };
            let object = self.bytes[self.tape[container] as usize] == b'{';
            match (self.peek(), object) {
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.open.pop();
                    self.tape[container + 1] =
                        u32::try_from(self.tape.len()).expect("texts have fewer than 2^32 values");
                    self.at += 1;
                }
                (Some(b','), _) => {
                    self.at += 1;
                    self.blanks();
                    if object {
                        self.key()?;
                    }
                    return Ok(false);
                }
                (_, true) => return self.fail("`,` or `}`"),
                (_, false) => return self.fail("`,` or `]`"),
            }
        }
    }

    fn key(&mut self) -> Result<(), Broken> {
        if self.peek() != Some(b'"') {
            return self.fail("the quoted name of a field");
        }
        let start = self.at;
        self.string()?;
        self.push(start);
        self.blanks();
        if self.peek() != Some(b':') {
            return self.fail("`:`");
        }
        self.at += 1;
        self.blanks();
        Ok(())
    }

    fn string(&mut self) -> Result<(), Broken> {
        let start = self.at;
        let Some(end) = string_end(self.bytes, start) else {
            self.at = self.bytes.len();
            return self.fail("`\"`");
        };
        let raw = &self.text[start..end];
        if let Some(control) = raw.bytes().position(|b| b < b' ') {
            self.at = start + control;
            let found = format!("the control character 0x{:02x}", self.bytes[self.at]);
            let expected = "a string without raw control characters".to_owned();
            return Err(Broken { offset: self.at, expected, found });
        }
        if decoded(raw).is_none() {
            let expected = "escapes of JSON, surrogates in pairs".to_owned();
            return Err(Broken { offset: start, expected, found: "others".into() });
        }
        self.at = end;
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Broken> {
        if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return self.fail("a digit");
        }
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Broken> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
            if self.peek().is_some_and(|b| b.is_ascii_digit()) {
                return self.fail("no digit behind a leading zero");
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_again() {
        let tape = Tape::new(r#" {"a": [1, {}, -2.5e3], "b\u0041": "x\"y", "c": null} "#).unwrap();
        let fields: Vec<(Token<'_>, Token<'_>)> =
            tape.fields(tape.root()).map(|(k, v)| (tape.token(k), tape.token(v))).collect();
        assert_eq!(fields[0], (Token::Text("a".into()), Token::List));
        assert_eq!(fields[1], (Token::Text("bA".into()), Token::Text("x\"y".into())));
        assert_eq!(fields[2].1, Token::Null);
        let list = tape.fields(tape.root()).next().unwrap().1;
        let items: Vec<At> = tape.items(list).collect();
        assert_eq!(tape.token(items[2]), Token::Number("-2.5e3"));
        assert_eq!(tape.path(items[2]), "a[2]");
    }

    #[test]
    fn broken_syntax_is_placed() {
        for (text, offset) in [
            ("", 0),
            ("[1,]", 3),
            ("{\"a\" 1}", 5),
            ("[1 2]", 3),
            ("[01]", 2),
            ("\"\\ud800\"", 0),
            ("[\"a\n\"]", 3),
            ("\"a", 2),
            ("\"\\", 2),
            ("1 1", 2),
            ("[NaN]", 1),
            ("-", 1),
            ("[1}", 2),
        ] {
            assert_eq!(Tape::new(text).unwrap_err().offset, offset, "{text}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(Tape::new(&deep).unwrap_err().offset, MAX_NESTING);
    }
}
