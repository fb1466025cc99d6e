//! The lines of a graph: declarations and nodes.

use super::ast::{CaptureAst, Decided, Lines, Name, NodeAst, Open, SourceAst, Step};
use super::lexer::Kind;
use super::parser::{Broken, Parsed, Parser, clip};
use crate::attr::{Attr, AttrValue};
use crate::entity::{GraphId, Symbol};
use crate::module::Provenance;
use crate::ty::Type;
use smallvec::SmallVec;
use std::fmt::Display;
use std::str::FromStr;

impl Parser<'_, '_> {
    /// Reads a line of `graph`; `root` is the main graph or function around it.
    pub(super) fn line(&mut self, graph: GraphId, root: GraphId) -> Parsed<Option<Step>> {
        let in_function = graph == root && graph != self.module.main();
        match (self.tok.kind, self.tok.text) {
            (Kind::Word, "input") => self.source(graph, |lines, source| lines.inputs.push(source)),
            (Kind::Word, "const") => self.source(graph, |lines, source| lines.constants.push(source)),
            (Kind::Word, "output") => self.output(graph),
            (Kind::Word, "state") => self.state(graph),
            (Kind::Word, "role") => self.role(graph),
            (Kind::Word, "opset" | "doc" | "meta" | "attr") if in_function => {
                self.function_line()?;
                self.line_end()?;
                return Ok(None);
            }
            (Kind::Word, "meta") => self.graph_metadata(graph),
            (Kind::Value | Kind::Word | Kind::Str, _) => return self.node(graph).map(Some),
            _ => {
                self.defined = false;
                self.fail_here(
                    "`input`, `const`, `output`, `state`, `role`, a node such as `%y = Relu(%x) : f32`, or `}`",
                )
            }
        }?;
        self.line_end()?;
        Ok(None)
    }

    /// The name of the value that the line defines.
    fn defined_value(&mut self) -> Parsed<Name> {
        self.defined = false;
        let name = self.value()?;
        self.defining.push(name);
        self.defined = true;
        Ok(name)
    }

    /// `input %x : f32[N] = default`, `const %w : f32[2] = [1.0, 2.0]`
    fn source(&mut self, graph: GraphId, add: impl FnOnce(&mut Lines, SourceAst)) -> Parsed<()> {
        let is_const = self.advance().text == "const";
        let name = self.defined_value()?;
        self.expect(b':')?;
        let ty = self.ty(0)?;
        let payload = if self.at(b'=') || is_const {
            self.expect(b'=')?;
            Some(self.payload(&ty)?)
        } else {
            None
        };
        let metadata = if self.at_word("meta") && !self.tok.first {
            self.advance();
            self.metadata_list()?
        } else {
            Vec::new()
        };
        add(self.lines_of(graph), SourceAst { name, ty, payload, metadata });
        Ok(())
    }

    /// `meta key = "value"`
    fn graph_metadata(&mut self, graph: GraphId) -> Parsed<()> {
        self.advance();
        let (key, value) = self.key_value()?;
        let entry = (self.module.intern(&key), self.module.intern(&value));
        self.lines_of(graph).metadata.push(entry);
        Ok(())
    }

    /// `output %y : f32[N]`
    fn output(&mut self, graph: GraphId) -> Parsed<()> {
        self.advance();
        let name = self.value()?;
        let declared = if self.eat(b':') { self.ty(0)? } else { Type::Unknown };
        self.lines_of(graph).outputs.push((name, declared));
        Ok(())
    }

    /// `state %w -> %w_next`
    fn state(&mut self, graph: GraphId) -> Parsed<()> {
        self.advance();
        let input = self.value()?;
        if self.tok.kind != Kind::Arrow {
            return self.fail("`->`");
        }
        self.advance();
        let next = self.value()?;
        self.lines_of(graph).states.push((input, next));
        Ok(())
    }

    /// `role grad(%w, %dw)`
    fn role(&mut self, graph: GraphId) -> Parsed<()> {
        self.advance();
        let role = self.word_symbol("a role")?;
        self.expect(b'(')?;
        let mut values = Vec::new();
        while !self.eat(b')') {
            if !values.is_empty() {
                self.expect(b',')?;
            }
            values.push(self.value()?);
        }
        self.lines_of(graph).roles.push((role, values));
        Ok(())
    }

    fn function_line(&mut self) -> Parsed<()> {
        let keyword = self.tok.text;
        if keyword == "opset" {
            let opsets = self.opsets()?;
            self.functions.last_mut().ok_or(Broken)?.opsets.extend(opsets);
            return Ok(());
        }
        let span = self.advance().span;
        match keyword {
            "doc" => {
                let doc = self.string("a quoted text")?.into_owned();
                let before = self.functions.last_mut().ok_or(Broken)?.doc_string.replace(doc);
                if before.is_some() {
                    self.error(span, "one `doc` line per function", "a second one");
                }
            }
            "meta" => {
                let (key, value) = self.key_value()?;
                let entry = (self.module.intern(&key), self.module.intern(&value));
                self.functions.last_mut().ok_or(Broken)?.metadata.push(entry);
            }
            _ => {
                let span = self.tok.span;
                let name = self.word_symbol("the name of an attribute")?;
                if !self.functions.last_mut().ok_or(Broken)?.known_attrs.insert(name) {
                    let found = format!("a second `{}`", clip(self.module.text(name)));
                    self.error(span, "every attribute once", found);
                }
                if self.eat(b'=') {
                    let value = self.attr_value()?;
                    let default = Attr { name, value, dirty: true };
                    self.functions.last_mut().ok_or(Broken)?.attr_defaults.push(default);
                } else {
                    self.functions.last_mut().ok_or(Broken)?.attrs.push(name);
                }
            }
        }
        Ok(())
    }

    /// `%y, _ = domain::Op:overload(%x, _; %captured) {attrs} : types tail`
    fn node(&mut self, graph: GraphId) -> Parsed<Step> {
        let (mut span, start_depth) = (self.tok.span, self.depth);
        let results = self.results()?;
        let (domain, op, overload) = self.op_name()?;
        self.expect(b'(')?;
        let mut operands = SmallVec::new();
        let mut captures = Vec::new();
        let mut captured = false;
        while !self.at(b')') {
            if !captured && self.eat(b';') {
                captured = true;
            } else if !operands.is_empty() {
                self.expect(b',')?;
            }
            let operand = self.operand()?;
            if captured {
                captures.push(operand)
            } else {
                operands.push(operand)
            }
            while captured && !self.at(b')') {
                self.expect(b',')?;
                captures.push(self.operand()?);
            }
        }
        span.end = self.tok.span.end;
        self.expect(b')')?;
        let (attrs, types, name, tail) = (Vec::new(), SmallVec::new(), None, None);
        let node =
            NodeAst { span, results, domain, op, overload, operands, captures, attrs, types, name, tail };
        if !self.tok.first && self.eat(b'{') {
            return self.attrs(node, graph, start_depth);
        }
        self.rest(node)
    }

    fn results(&mut self) -> Parsed<SmallVec<[Option<Name>; 2]>> {
        let mut results = SmallVec::new();
        if self.tok.kind != Kind::Value && !self.at_word("_") {
            return Ok(results);
        }
        self.defined = false;
        loop {
            let result = self.operand()?;
            self.defining.extend(result);
            results.push(result);
            if !self.eat(b',') {
                self.expect(b'=')?;
                self.defined = true;
                return Ok(results);
            }
        }
    }

    /// `%x` or `_`
    fn operand(&mut self) -> Parsed<Option<Name>> {
        if self.eat_word("_") {
            return Ok(None);
        }
        if self.tok.kind != Kind::Value {
            return self.fail("a value such as `%x`, or `_`");
        }
        self.value().map(Some)
    }

    /// Attributes from a key, or the closing brace, on.
    fn attrs(&mut self, mut node: NodeAst, graph: GraphId, start_depth: u32) -> Parsed<Step> {
        loop {
            if self.eat(b'}') {
                return self.rest(node);
            }
            let attr = self.attr_key()?;
            if !self.eat(b'=') && !self.eat(b':') {
                return self.fail("`=` or `:`");
            }
            let list = self.eat(b'[');
            if self.at_word("graph") {
                let body = self.body()?;
                let list = list.then(Vec::new);
                return Ok(Step::Body(Box::new(Open { node, graph, attr, list, body, start_depth })));
            }
            let value = if list { self.attr_list()? } else { self.attr_value()? };
            node.attrs.push((attr, value));
            self.attr_end()?;
        }
    }

    fn attr_key(&mut self) -> Parsed<Symbol> {
        // Attributes of a node with bodies stand on lines of their own.
        self.tok.first = false;
        self.word_symbol("an attribute or `}`")
    }

    /// A comma, or the closing brace, which is left.
    fn attr_end(&mut self) -> Parsed<()> {
        if self.at(b'}') || self.eat(b',') { Ok(()) } else { self.fail("`,` or `}`") }
    }

    /// `graph @name(%captured) {`
    fn body(&mut self) -> Parsed<GraphId> {
        self.advance();
        let empty = self.module.intern("");
        let body = self.module.new_graph(empty);
        if self.tok.kind == Kind::At {
            let name = self.at_name()?;
            self.module.set_graph_name(body, name.symbol);
        }
        let mut captures = Vec::new();
        if self.eat(b'(') {
            while !self.eat(b')') {
                if !captures.is_empty() {
                    self.expect(b',')?;
                }
                let name = self.value()?;
                let slot = if self.eat(b'=') { Some(self.number("a capture operand")?) } else { None };
                let ty = if self.eat(b':') { Some(self.ty(0)?) } else { None };
                captures.push(CaptureAst { name, slot, ty });
            }
        }
        self.expect(b'{')?;
        self.lines_of(body).captures = captures;
        Ok(body)
    }

    /// Continues a node after the brace that closes a body.
    pub(super) fn body_closed(&mut self, open: Open) -> Parsed<Option<Step>> {
        let Open { mut node, graph, attr, list, body, start_depth } = open;
        let value = match list {
            None => AttrValue::Graph(body),
            Some(mut bodies) => {
                bodies.push(body);
                if self.eat(b',') {
                    if !self.at_word("graph") {
                        return self.fail("`graph`");
                    }
                    let body = self.body()?;
                    let list = Some(bodies);
                    return Ok(Some(Step::Body(Box::new(Open {
                        node,
                        graph,
                        attr,
                        list,
                        body,
                        start_depth,
                    }))));
                }
                self.expect(b']')?;
                AttrValue::Graphs(bodies)
            }
        };
        node.attrs.push((attr, value));
        self.attr_end()?;
        self.attrs(node, graph, start_depth).map(Some)
    }

    /// Types and tail.
    fn rest(&mut self, mut node: NodeAst) -> Parsed<Step> {
        if !node.results.is_empty() {
            self.expect(b':')?;
            for i in 0..node.results.len() {
                if i > 0 && !self.eat(b',') {
                    return self.fail(format!("{} types, one per result", node.results.len()));
                }
                let absent = node.results[i].is_none();
                if absent && !self.at_word("_") {
                    return self.fail("`_`, as the result is absent");
                }
                node.types.push(if absent { None } else { Some(self.ty(0)?) });
                if absent {
                    self.advance();
                }
            }
        }
        self.tail(&mut node)?;
        self.line_end()?;
        Ok(Step::Done(node))
    }

    fn tail(&mut self, node: &mut NodeAst) -> Parsed<()> {
        let mut seen: SmallVec<[&str; 6]> = SmallVec::new();
        while !self.tok.first {
            let word = match self.tok.kind {
                Kind::At => "@",
                Kind::Word => self.tok.text,
                _ => return Ok(()),
            };
            if seen.contains(&word) {
                let expected = match word {
                    "@" => "one name such as `@add` per node".to_owned(),
                    word => format!("one `{word}` per node"),
                };
                self.error(self.tok.span, expected, "a second one");
            } else if matches!(word, "@" | "class" | "prec" | "why" | "cast" | "meta") {
                seen.push(word);
            }
            if self.tok.kind == Kind::At {
                node.name = Some(self.at_name()?.symbol);
                continue;
            }
            let keyword = word;
            let tail = match keyword {
                "class" | "prec" | "why" | "cast" | "meta" => node.tail.get_or_insert_default(),
                _ => return Ok(()),
            };
            self.advance();
            match keyword {
                "class" => tail.class = self.decided(|p| p.spelled("a class such as `allow` or `deny`"))?,
                "prec" => tail.prec = self.decided(Self::dtype)?,
                "why" => tail.why = self.decided(Self::reason)?,
                "cast" => tail.provenance = self.provenance()?,
                _ => tail.metadata.extend(self.metadata_list()?),
            }
        }
        Ok(())
    }

    fn provenance(&mut self) -> Parsed<Provenance> {
        self.expect(b'=')?;
        if self.eat_word("inserted") {
            return Ok(Provenance::Inserted);
        }
        if self.eat_word("user") { Ok(Provenance::User) } else { self.fail("`inserted` or `user`") }
    }

    /// `{key="value", ...}`
    fn metadata_list(&mut self) -> Parsed<Vec<(Symbol, Symbol)>> {
        let mut metadata = Vec::new();
        self.expect(b'{')?;
        let mut first = true;
        while !self.eat(b'}') {
            if !std::mem::take(&mut first) {
                self.expect(b',')?;
            }
            let (key, value) = self.key_value()?;
            metadata.push((self.module.intern(&key), self.module.intern(&value)));
        }
        Ok(metadata)
    }

    /// A word that `T` reads.
    pub(super) fn spelled<T: FromStr<Err: Display>>(&mut self, expected: &str) -> Parsed<T> {
        if self.tok.kind == Kind::Word
            && let Ok(value) = self.tok.text.parse()
        {
            self.advance();
            return Ok(value);
        }
        self.fail(expected)
    }

    /// `rule` or `rule("evidence")`
    fn reason(&mut self) -> Parsed<(String, String)> {
        let rule = self.word("a rule such as `table`")?.into_owned();
        let mut evidence = String::new();
        if self.eat(b'(') {
            evidence = self.string("the quoted evidence")?.into_owned();
            self.expect(b')')?;
        }
        Ok((rule, evidence))
    }

    /// `=item`, or `=T:item,U:item`
    fn decided<T>(&mut self, what: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<Decided<T>>> {
        self.expect(b'=')?;
        let mut decided = Vec::new();
        loop {
            let span = self.tok.span;
            let var = self.type_var()?;
            let all = var.is_none();
            decided.push(Decided { var, what: what(self)?, span });
            if all || !self.eat(b',') {
                return Ok(decided);
            }
        }
    }

    /// Parses `T:` if it comes next; only type variables have a colon behind their first token.
    fn type_var(&mut self) -> Parsed<Option<Symbol>> {
        if !matches!(self.tok.kind, Kind::Word | Kind::Number) || !self.colon_follows() {
            return Ok(None);
        }
        let token = self.advance();
        self.expect(b':')?;
        Ok(Some(self.module.intern(token.text)))
    }
}
