//! Tokens of the text form, found on demand, each with its place and a flag for the first token of a line.

use super::quote::is_name_byte;

/// A range of bytes of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// Kind of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A bare word: a keyword, a key, an operator, `_`.
    Word,
    /// Anything that begins like a number.
    Number,
    /// A quoted string.
    Str,
    /// `%name`.
    Value,
    /// `@name`.
    At,
    /// One of ``( ) [ ] { } , : ; = ? *``.
    Punct(u8),
    /// `::`
    Path,
    /// `->`
    Arrow,
    /// The end of the text.
    End,
    /// A character that begins no token; names the expected token.
    Bad(&'static str),
}

/// A token: kind, text, place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    /// Its text; for names without the sigil, for strings with the quotes.
    pub(super) text: &'a str,
    pub(super) span: Span,
    /// True if it is the first token of its line.
    pub(super) first: bool,
}

/// The tokens of a text of less than 4 GiB.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    first: bool,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, first: true }
    }

    /// The next token; [`Kind::End`] for ever at the end.
    pub(super) fn token(&mut self) -> Token<'a> {
        self.skip_blank();
        let bytes = self.text.as_bytes();
        let start = self.at;
        let first = std::mem::take(&mut self.first);
        let Some(&byte) = bytes.get(start) else {
            return Token { kind: Kind::End, text: "", span: self.span(start), first: true };
        };
        let next = bytes.get(start + 1).copied().unwrap_or(0);
        let (kind, skip) = match byte {
            b'%' => (self.name(Kind::Value, "a name after `%`"), 1),
            b'@' => (self.name(Kind::At, "a name after `@`"), 1),
            b'"' => (self.string(), 0),
            b':' if next == b':' => (self.take(2, Kind::Path), 0),
            b'-' if next == b'>' => (self.take(2, Kind::Arrow), 0),
            b'-' if next.is_ascii_alphanumeric() => (self.number(), 0),
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b',' | b':' | b';' | b'=' | b'?' | b'*' => {
                (self.take(1, Kind::Punct(byte)), 0)
            }
            b'0'..=b'9' => (self.number(), 0),
            b if b.is_ascii_alphabetic() || b == b'_' => (self.word(), 0),
            _ => {
                let len = self.text[start..].chars().next().map_or(1, char::len_utf8);
                (self.take(len, Kind::Bad("a name, a number, a string or punctuation")), 0)
            }
        };
        let skip = if matches!(kind, Kind::Bad(_)) { 0 } else { skip };
        Token { kind, text: &self.text[start + skip..self.at], span: self.span(start), first }
    }

    /// The text behind the last token.
    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn span(&self, start: usize) -> Span {
        let at = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
        Span { start: at(start), end: at(self.at) }
    }

    /// Skips blanks, line ends and comments.
    fn skip_blank(&mut self) {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                Some(b'\n') => {
                    self.first = true;
                    self.at += 1;
                }
                Some(b' ' | b'\t' | b'\r') => self.at += 1,
                Some(b'/') if bytes.get(self.at + 1) == Some(&b'/') => {
                    let rest = &bytes[self.at..];
                    self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn take(&mut self, len: usize, kind: Kind) -> Kind {
        self.at += len;
        kind
    }

    fn take_while(&mut self, mut want: impl FnMut(u8) -> bool) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|&b| !want(b)).unwrap_or(rest.len());
    }

    fn word(&mut self) -> Kind {
        self.take_while(is_name_byte);
        Kind::Word
    }

    fn name(&mut self, kind: Kind, expected: &'static str) -> Kind {
        self.at += 1;
        match self.text.as_bytes().get(self.at) {
            Some(b'"') => match self.string() {
                Kind::Str => kind,
                bad => bad,
            },
            Some(&b) if is_name_byte(b) => {
                self.take_while(is_name_byte);
                kind
            }
            _ => Kind::Bad(expected),
        }
    }

    /// A sign, and then digits, letters, dots, and the sign of a decimal exponent.
    fn number(&mut self) -> Kind {
        self.at += 1;
        let hex = self.text.as_bytes().get(self.at) == Some(&b'x');
        let mut before = 0;
        self.take_while(|b| {
            let sign = !hex && matches!(b, b'+' | b'-') && matches!(before, b'e' | b'E');
            before = b;
            sign || is_name_byte(b)
        });
        Kind::Number
    }

    fn string(&mut self) -> Kind {
        self.at += 1;
        let mut escaped = false;
        self.take_while(|b| {
            let end = b == b'\n' || (b == b'"' && !escaped);
            escaped = b == b'\\' && !escaped;
            !end
        });
        if self.text.as_bytes().get(self.at) == Some(&b'"') {
            return self.take(1, Kind::Str);
        }
        Kind::Bad("`\"` at the end of the string")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| Some(lexer.token()).filter(|t| t.kind != Kind::End))
            .map(|t| (t.kind, t.text))
            .collect()
    }

    #[test]
    fn tokens_of_a_node() {
        let found = kinds("%y.2, _ = a.b::Op(%\"a b\") {k=-1e-5} // rest\n -> f16 @7");
        let texts: Vec<&str> = found.iter().map(|t| t.1).collect();
        assert_eq!(
            texts,
            [
                "y.2", ",", "_", "=", "a.b", "::", "Op", "(", "\"a b\"", ")", "{", "k", "=", "-1e-5", "}",
                "->", "f16", "7"
            ]
        );
        assert_eq!(found[13].0, Kind::Number);
        assert_eq!(found[15].0, Kind::Arrow);
    }

    #[test]
    fn what_is_no_token_is_bad_and_ends() {
        assert!(matches!(kinds("%")[..], [(Kind::Bad(_), "%")]));
        assert!(matches!(kinds("\"a\nb")[..], [(Kind::Bad(_), "\"a"), (Kind::Word, "b")]));
        assert!(matches!(kinds("é-")[..], [(Kind::Bad(_), "é"), (Kind::Bad(_), "-")]));
        assert_eq!(kinds("-inf 0xff"), [(Kind::Number, "-inf"), (Kind::Number, "0xff")]);
    }

    #[test]
    fn lines_begin_where_they_begin() {
        let mut lexer = Lexer::new("a b\n// c\n  d");
        let firsts: Vec<bool> = (0..3).map(|_| lexer.token().first).collect();
        assert_eq!(firsts, [true, false, true]);
    }
}
