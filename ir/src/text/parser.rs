//! From text to the syntax tree of its lines.
//!
//! Recursive descent, except that bodies nest by a list of open nodes, so that no text can use up the stack.
//! Names are interned, types and constants are made at once; `build` resolves names to values and operators.
//!
//! After an error the parser continues at the next line; if the line opened a region, after the region. Values
//! that a broken line defines are remembered, so that their readers are not errors too.

use super::ast::{FunctionAst, Lines, Name, Open, Step};

use super::lexer::{Kind, Lexer, Span, Token};
use super::quote::unquote;
use crate::dtype::DType;
use crate::entity::{GraphId, Symbol};
use crate::module::{Module, is_own_key};
use crate::op::OpSchema;
use crate::tensor::TensorData;
use crate::text::options::{DataResolver, MAX_DEPTH, ParseError, ParseErrors, ParseOptions, ParseSubject};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::fmt;

/// The IR version of a text without `module` line.
const DEFAULT_IR_VERSION: i64 = 10;

/// A line could not be read; the error is noted.
#[derive(Debug)]
pub(super) struct Broken;

pub(super) type Parsed<T> = Result<T, Broken>;

/// An error before lines and columns are counted.
pub(super) struct RawError {
    span: Span,
    expected: String,
    found: String,
    about: ParseSubject,
}

pub(super) struct Parser<'a, 'r> {
    lexer: Lexer<'a>,
    pub(super) tok: Token<'a>,
    /// Braces open before `tok`.
    pub(super) depth: u32,
    /// The end of the token before `tok`.
    last_end: u32,
    /// True if the token before `tok` is `{`.
    after_brace: bool,
    pub(super) module: Module,
    pub(super) errors: Vec<RawError>,
    pub(super) resolver: &'r dyn DataResolver,
    pub(super) options: ParseOptions,
    pub(super) resolved: FxHashMap<(Symbol, DType, Vec<u64>, Option<u128>), TensorData>,
    pub(super) lines: FxHashMap<GraphId, Lines>,
    pub(super) functions: Vec<FunctionAst>,
    /// The operators of no table, by domain and name.
    pub(super) signatures: FxHashMap<(Symbol, Symbol), &'static OpSchema>,
    /// The values that the present line defines so far, and whether these are all.
    pub(super) defining: Vec<Name>,
    pub(super) defined: bool,
    /// The lines of the header that a text has once and that were read.
    header_lines: FxHashSet<&'static str>,
    /// The keys of ampc in the metadata of the model.
    own_keys: FxHashSet<String>,
}

impl<'a, 'r> Parser<'a, 'r> {
    /// A parser at the beginning of a text.
    pub(super) fn new(
        text: &'a str,
        resolver: &'r dyn DataResolver,
        options: &ParseOptions,
    ) -> Parser<'a, 'r> {
        let mut lexer = Lexer::new(text);
        let mut module = Module::new();
        module.header.ir_version = DEFAULT_IR_VERSION;
        Parser {
            tok: lexer.token(),
            lexer,
            depth: 0,
            last_end: 0,
            after_brace: false,
            module,
            errors: Vec::new(),
            resolver,
            options: *options,
            resolved: FxHashMap::default(),
            lines: FxHashMap::default(),
            functions: Vec::new(),
            signatures: FxHashMap::default(),
            defining: Vec::new(),
            defined: false,
            header_lines: FxHashSet::default(),
            own_keys: FxHashSet::default(),
        }
    }
}

/// Counts lines and columns.
pub(super) fn located(text: &str, mut errors: Vec<RawError>) -> ParseErrors {
    errors.sort_by_key(|e| (e.span.start, e.span.end));
    let (mut line, mut column, mut at) = (1, 1, 0);
    let errors = errors.into_iter().map(|error| {
        let start = (error.span.start as usize).min(text.len());
        for c in text[at..start].chars() {
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        at = start;
        let span = start..(error.span.end as usize).min(text.len());
        ParseError { line, column, span, expected: error.expected, found: error.found, about: error.about }
    });
    ParseErrors(errors.collect())
}

impl<'a> Parser<'a, '_> {
    pub(super) fn error(&mut self, span: Span, expected: impl Into<String>, found: impl Into<String>) {
        let (expected, found) = (expected.into(), found.into());
        self.errors.push(RawError { span, expected, found, about: ParseSubject::Text });
    }

    /// Notes that data has another hash than the text says.
    pub(super) fn hash_error(&mut self, span: Span, expected: u128, found: u128) {
        let (expected, found) = (format!("data of hash 0x{expected:032x}"), format!("0x{found:032x}"));
        self.errors.push(RawError { span, expected, found, about: ParseSubject::DataHash });
    }

    /// Notes that something else than the present token was expected.
    pub(super) fn fail<T>(&mut self, expected: impl fmt::Display) -> Parsed<T> {
        let mut tok = self.tok;
        let found = match tok.kind {
            Kind::End => "the end of the text".to_owned(),
            _ if tok.first => {
                tok.span = Span { start: self.last_end, end: self.last_end };
                "the end of the line".to_owned()
            }
            Kind::Bad(reason) => {
                let found = clip(tok.text);
                self.error(tok.span, reason, format!("`{found}`"));
                return Err(Broken);
            }
            Kind::Value => format!("`%{}`", clip(tok.text)),
            Kind::At => format!("`@{}`", clip(tok.text)),
            Kind::Word | Kind::Number | Kind::Str | Kind::Punct(_) | Kind::Path | Kind::Arrow => {
                format!("`{}`", clip(tok.text))
            }
        };
        self.error(tok.span, expected.to_string(), found);
        Err(Broken)
    }

    /// As [`fail`](Self::fail), where the first token of a line stands for itself and not for the end of the
    /// line before.
    pub(super) fn fail_here<T>(&mut self, expected: impl fmt::Display) -> Parsed<T> {
        let first = std::mem::replace(&mut self.tok.first, false);
        let result = self.fail(expected);
        self.tok.first = first;
        result
    }

    /// True if a colon, and not `::`, stands right behind the present token.
    pub(super) fn colon_follows(&self) -> bool {
        self.lexer.rest().starts_with(':') && !self.lexer.rest().starts_with("::")
    }

    pub(super) fn advance(&mut self) -> Token<'a> {
        let token = std::mem::replace(&mut self.tok, self.lexer.token());
        self.last_end = token.span.end;
        self.after_brace = token.kind == Kind::Punct(b'{');
        match token.kind {
            Kind::Punct(b'{') => self.depth += 1,
            Kind::Punct(b'}') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        token
    }

    pub(super) fn at(&self, punct: u8) -> bool {
        self.tok.kind == Kind::Punct(punct)
    }

    pub(super) fn at_word(&self, word: &str) -> bool {
        self.tok.kind == Kind::Word && self.tok.text == word
    }

    pub(super) fn eat(&mut self, punct: u8) -> bool {
        let there = self.at(punct);
        if there {
            self.advance();
        }
        there
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let there = self.at_word(word);
        if there {
            self.advance();
        }
        there
    }

    pub(super) fn expect(&mut self, punct: u8) -> Parsed<()> {
        if self.eat(punct) { Ok(()) } else { self.fail(format!("`{}`", char::from(punct))) }
    }

    /// The end of a line: the next token begins another line or closes a region.
    pub(super) fn line_end(&mut self) -> Parsed<()> {
        if self.tok.first || self.at(b'}') { Ok(()) } else { self.fail("the end of the line") }
    }

    /// The bytes of a quoted token.
    fn unquoted(&mut self, token: Token<'a>) -> Parsed<Cow<'a, [u8]>> {
        match unquote(token.text) {
            Ok(bytes) => Ok(bytes),
            Err(offset) => {
                // The offset counts from behind the first quote to behind the backslash.
                let start = token.span.end - u32::try_from(token.text.len()).unwrap_or(0);
                let start = start + u32::try_from(offset).unwrap_or(0);
                let span = Span { start, end: start + 1 };
                self.error(span, r#"one of the escapes \" \\ \n \r \t \xNN"#, "another one");
                Err(Broken)
            }
        }
    }

    /// The text of a token that is bare or quoted.
    pub(super) fn text_of(&mut self, token: Token<'a>) -> Parsed<Cow<'a, str>> {
        if !token.text.starts_with('"') {
            return Ok(Cow::Borrowed(token.text));
        }
        let text = match self.unquoted(token)? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).ok(),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).ok(),
        };
        if text.is_none() {
            self.error(token.span, "UTF-8", "other bytes");
        }
        text.ok_or(Broken)
    }

    /// A quoted string of any bytes.
    pub(super) fn bytes(&mut self, expected: &str) -> Parsed<Cow<'a, [u8]>> {
        if self.tok.kind != Kind::Str {
            return self.fail(expected);
        }
        let token = self.advance();
        self.unquoted(token)
    }

    /// A quoted string of UTF-8.
    pub(super) fn string(&mut self, expected: &str) -> Parsed<Cow<'a, str>> {
        if self.tok.kind != Kind::Str {
            return self.fail(expected);
        }
        let token = self.advance();
        self.text_of(token)
    }

    /// A bare word or a quoted string.
    pub(super) fn word(&mut self, expected: &str) -> Parsed<Cow<'a, str>> {
        if !matches!(self.tok.kind, Kind::Word | Kind::Str) {
            return self.fail(expected);
        }
        let token = self.advance();
        self.text_of(token)
    }

    pub(super) fn word_symbol(&mut self, expected: &str) -> Parsed<Symbol> {
        let word = self.word(expected)?;
        Ok(self.module.intern(&word))
    }

    fn named(&mut self, kind: Kind, expected: &str) -> Parsed<Name> {
        if self.tok.kind != kind {
            return self.fail(expected);
        }
        let token = self.advance();
        let text = self.text_of(token)?;
        Ok(Name { symbol: self.module.intern(&text), span: token.span })
    }

    /// `%name`
    pub(super) fn value(&mut self) -> Parsed<Name> {
        self.named(Kind::Value, "a value such as `%x`")
    }

    /// `@name`
    pub(super) fn at_name(&mut self) -> Parsed<Name> {
        self.named(Kind::At, "a name such as `@main`")
    }

    /// A number that fits.
    pub(super) fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Parsed<T> {
        if self.tok.kind == Kind::Number
            && let Ok(value) = self.tok.text.parse()
        {
            self.advance();
            return Ok(value);
        }
        self.fail(expected)
    }

    /// Recovers from an error in a region that began at brace depth `depth` and byte `start`.
    fn recover(&mut self, start: u32, depth: u32, in_region: bool) {
        if self.tok.span.start == start {
            self.advance();
        }
        let mut region = in_region;
        loop {
            match self.tok.kind {
                Kind::End => return,
                _ if self.tok.first && self.depth <= depth => return,
                _ if self.tok.first && !region => {
                    region = self.after_brace;
                    if !region {
                        // A brace left open within a line was forgotten, not meant.
                        self.depth = depth;
                        return;
                    }
                }
                Kind::Punct(b'}') if self.depth <= depth => return,
                _ => {}
            }
            self.advance();
        }
    }

    pub(super) fn file(&mut self) {
        let mut main = false;
        while self.tok.kind != Kind::End {
            let start = self.tok.span.start;
            if self.at_word("graph") {
                if main {
                    self.error(self.tok.span, "one `graph` outside functions and bodies", "a second one");
                }
                main = true;
            }
            if self.top_level().is_err() {
                self.recover(start, 0, false);
            }
        }
        if !main {
            self.error(self.tok.span, "a `graph`", "the end of the text");
        }
    }

    fn top_level(&mut self) -> Parsed<()> {
        match (self.tok.kind, self.tok.text) {
            (Kind::Word, "graph") => {
                self.advance();
                let main = self.module.main();
                self.graph_head(main)?;
                self.lines.insert(main, Lines::default());
                self.block(main);
                self.line_end()
            }
            (Kind::Word, "function") => self.function(),
            (Kind::Word, "signature") => self.signature(),
            (Kind::Word, "module") => {
                self.header_line("module");
                if !self.eat_word("ir") {
                    return self.fail("`ir=`");
                }
                self.expect(b'=')?;
                self.module.header.ir_version = self.number("a version number")?;
                self.line_end()
            }
            (Kind::Word, "version") => {
                self.header_line("version");
                self.module.header.model_version = self.number("a version number")?;
                self.line_end()
            }
            (Kind::Word, "producer") => {
                self.header_line("producer");
                self.module.header.producer_name = self.string("a quoted name")?.into_owned();
                self.module.header.producer_version = self.string("a quoted version")?.into_owned();
                self.line_end()
            }
            (Kind::Word, "domain") => {
                self.header_line("domain");
                self.module.header.domain = self.string("a quoted domain")?.into_owned();
                self.line_end()
            }
            (Kind::Word, "doc") => {
                self.header_line("doc");
                self.module.header.doc_string = self.string("a quoted text")?.into_owned();
                self.line_end()
            }
            (Kind::Word, "meta") => {
                self.advance();
                let span = self.tok.span;
                let (key, value) = self.key_value()?;
                if is_own_key(&key) && !self.own_keys.insert(key.clone().into_owned()) {
                    let found = format!("a second `{}`", clip(&key));
                    self.error(span, "every key of ampc once", found);
                }
                self.module.header.metadata.push((key.into_owned(), value.into_owned()));
                self.line_end()
            }
            (Kind::Word, "opset") => {
                let opsets = self.opsets()?;
                self.module.header.opsets.extend(opsets);
                self.line_end()
            }
            _ => self.fail_here(
                "`module`, `producer`, `version`, `domain`, `doc`, `meta`, `opset`, `signature`, `graph` or `function`",
            ),
        }
    }

    /// Steps over the first word of a line that the header has once.
    fn header_line(&mut self, word: &'static str) {
        if !self.header_lines.insert(word) {
            self.error(self.tok.span, format!("one `{word}` line"), "a second one");
        }
        self.advance();
    }

    pub(super) fn key_value(&mut self) -> Parsed<(Cow<'a, str>, Cow<'a, str>)> {
        let key = self.word("a key")?;
        self.expect(b'=')?;
        Ok((key, self.string("a quoted value")?))
    }

    /// `opset ai.onnx=21, com.example=1`
    pub(super) fn opsets(&mut self) -> Parsed<Vec<(Symbol, u16)>> {
        self.advance();
        let mut opsets = Vec::new();
        loop {
            let bare = self.tok.kind == Kind::Word;
            let domain = self.word("a domain such as `ai.onnx`")?;
            let domain = if bare && domain == "ai.onnx" { "" } else { &*domain };
            let domain = self.module.intern(domain);
            self.expect(b'=')?;
            opsets.push((domain, self.number("a version number")?));
            if !self.eat(b',') {
                return Ok(opsets);
            }
        }
    }

    fn function(&mut self) -> Parsed<()> {
        let span = self.advance().span;
        let (domain, name, overload) = self.op_name()?;
        let empty = self.module.intern("");
        let graph = self.module.new_graph(empty);
        self.graph_head(graph)?;
        self.functions.push(FunctionAst {
            span,
            domain,
            name,
            overload,
            graph,
            opsets: Vec::new(),
            attrs: Vec::new(),
            attr_defaults: Vec::new(),
            known_attrs: FxHashSet::default(),
            doc_string: None,
            metadata: Vec::new(),
        });
        self.lines.insert(graph, Lines::default());
        self.block(graph);
        self.line_end()
    }

    /// `domain::name:overload`
    pub(super) fn op_name(&mut self) -> Parsed<(Symbol, Symbol, Symbol)> {
        let mut domain = self.module.intern("");
        let mut name = self.word_symbol("an operator")?;
        if self.tok.kind == Kind::Path {
            self.advance();
            domain = std::mem::replace(&mut name, self.word_symbol("an operator after `::`")?);
        }
        let overload =
            if self.eat(b':') { self.word_symbol("an overload after `:`")? } else { self.module.intern("") };
        Ok((domain, name, overload))
    }

    /// `@name {`
    fn graph_head(&mut self, graph: GraphId) -> Parsed<()> {
        if self.tok.kind == Kind::At {
            let name = self.at_name()?;
            self.module.set_graph_name(graph, name.symbol);
        }
        self.expect(b'{')
    }

    /// Reads lines up to the brace that closes `root`, including the lines of all bodies within.
    fn block(&mut self, root: GraphId) {
        let mut open: Vec<Box<Open>> = Vec::new();
        let mut graph = root;
        loop {
            let start = self.tok.span.start;
            let mut depth = self.depth;
            let in_region = self.at(b'}') && !open.is_empty();
            self.defining.clear();
            self.defined = true;
            let step = if self.tok.kind == Kind::End {
                let _ = self.fail::<()>("`}`");
                return;
            } else if self.eat(b'}') {
                let Some(owner) = open.pop() else { return };
                graph = owner.graph;
                depth = owner.start_depth;
                self.defining.extend(owner.node.results.iter().flatten());
                self.body_closed(*owner)
            } else {
                self.line(graph, root)
            };
            match step {
                Ok(Some(Step::Body(next))) => {
                    self.lines.entry(next.body).or_default();
                    graph = next.body;
                    open.push(next);
                }
                Ok(Some(Step::Done(node))) => self.lines_of(graph).nodes.push(node),
                Ok(None) => {}
                Err(Broken) => {
                    let lost = std::mem::take(&mut self.defining);
                    let defined = self.defined;
                    let lines = self.lines_of(graph);
                    lines.lost.extend(lost);
                    lines.lost_unknown |= !defined;
                    self.recover(start, depth, in_region);
                }
            }
            if open.len() > MAX_DEPTH {
                self.error(self.tok.span, format!("at most {MAX_DEPTH} nested bodies"), "more");
                while self.tok.kind != Kind::End {
                    self.advance();
                }
                return;
            }
        }
    }

    pub(super) fn lines_of(&mut self, graph: GraphId) -> &mut Lines {
        self.lines.entry(graph).or_default()
    }
}

/// A text short enough for a message.
pub(super) fn clip(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}
