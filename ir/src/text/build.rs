//! From lists of lines to a module.
//!
//! Graphs are built from a worklist, bodies after their owning node, so that captures are made by the usual
//! edit verbs. A name means a value of its own graph, which is defined by an input, capture or constant, or by
//! a node above.

use super::ast::{CaptureAst, Decided, FunctionAst, Lines, Name, NodeAst, SourceAst, Tail};
use super::lexer::Span;
use super::options::{DataResolver, ParseErrors, ParseOptions};
use super::parser::{Parser, clip, located};
use crate::attr::AttrValue;
use crate::edit::{NewNode, Position};
use crate::entity::{FunctionId, GraphId, Node, Symbol, Value};
use crate::module::{Decision, FunctionData, Module, Op, Reason, Role};
use crate::op::{Class, Lookup, lookup_overload};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// The values of a graph by name; `None` for values of broken lines.
type Scope = FxHashMap<Symbol, Option<Value>>;

type OpsetImports = Rc<[(Symbol, u16)]>;

/// A graph to be built.
struct Work {
    graph: GraphId,
    opsets: OpsetImports,
    /// For bodies.
    owner: Option<Owner>,
}

/// The owner of a body.
#[derive(Clone)]
struct Owner {
    node: Node,
    /// The number of operands to capture.
    n_captures: usize,
    /// The first of each name.
    by_name: Rc<FxHashMap<Symbol, u32>>,
}

/// Reads a text and builds its module.
pub(super) fn parse(
    text: &str,
    resolver: &dyn DataResolver,
    options: &ParseOptions,
) -> Result<Module, ParseErrors> {
    let mut parser = Parser::new(text, resolver, options);
    if u32::try_from(text.len()).is_ok_and(|n| n < u32::MAX) {
        parser.file();
        build(&mut parser);
    } else {
        parser.error(Span::default(), "a text of less than 4 GiB", "a longer one");
    }
    if parser.errors.is_empty() { Ok(parser.module) } else { Err(located(text, parser.errors)) }
}

/// Builds the module of `parser` from its lines; problems become errors of `parser`.
fn build(parser: &mut Parser<'_, '_>) {
    let opsets: OpsetImports = parser.module.header.opsets.as_slice().into();
    let mut builder =
        Builder { parser, functions: FxHashMap::default(), work: Vec::new(), reasons: FxHashMap::default() };
    let mut roots = vec![Work { graph: builder.parser.module.main(), opsets, owner: None }];
    for function in std::mem::take(&mut builder.parser.functions) {
        let opsets: OpsetImports = function.opsets.as_slice().into();
        roots.push(Work { graph: function.graph, opsets, owner: None });
        builder.function(function);
    }
    roots.reverse();
    builder.work = roots;
    while let Some(work) = builder.work.pop() {
        builder.graph(&work);
    }
}

fn has_name_twice(attrs: &[(Symbol, AttrValue)]) -> bool {
    let mut names: SmallVec<[Symbol; 8]> = attrs.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// Which of the captured operands has a name; of several the first.
fn slots_by_name(captures: &[Option<Name>]) -> FxHashMap<Symbol, u32> {
    let mut by_name = FxHashMap::default();
    for (slot, name) in (0u32..).zip(captures) {
        if let Some(name) = name {
            by_name.entry(name.symbol).or_insert(slot);
        }
    }
    by_name
}

struct Builder<'p, 'a, 'r> {
    parser: &'p mut Parser<'a, 'r>,
    functions: FxHashMap<(Symbol, Symbol, Symbol), FunctionId>,
    work: Vec<Work>,
    /// Nodes with the same reason share it.
    reasons: FxHashMap<(String, String), Arc<Reason>>,
}

impl Builder<'_, '_, '_> {
    fn function(&mut self, function: FunctionAst) {
        let FunctionAst { span, domain, name, overload, graph, .. } = function;
        let id = self.parser.module.add_function(FunctionData {
            domain,
            name,
            overload,
            graph,
            opsets: function.opsets,
            attrs: function.attrs,
            attr_defaults: function.attr_defaults,
            doc_string: function.doc_string.unwrap_or_default(),
            metadata: function.metadata,
            origin: None,
        });
        if self.functions.insert((domain, name, overload), id).is_some() {
            let found = format!("a second `{}`", self.op_text(domain, name, overload));
            self.parser.error(span, "functions of different names", found);
        }
    }

    fn op_text(&self, domain: Symbol, name: Symbol, overload: Symbol) -> String {
        let text = |s: Symbol| clip(self.parser.module.text(s)).into_owned();
        let (domain, name, overload) = (text(domain), text(name), text(overload));
        let domain = if domain.is_empty() { domain } else { format!("{domain}::") };
        let overload = if overload.is_empty() { overload } else { format!(":{overload}") };
        format!("{domain}{name}{overload}")
    }

    fn graph(&mut self, work: &Work) {
        let lines = self.parser.lines.remove(&work.graph).unwrap_or_default();
        let mut scope = Scope::default();
        scope.reserve(lines.inputs.len() + lines.constants.len() + lines.nodes.len());
        let lost_unknown = lines.lost_unknown;
        self.parser.module.set_graph_metadata(work.graph, lines.metadata);
        for SourceAst { name, ty, payload, metadata } in lines.inputs {
            let value = self.parser.module.add_input(work.graph, name.symbol, ty, payload);
            self.parser.module.set_value_metadata(value, metadata);
            self.define(&mut scope, name, Some(value));
        }
        for capture in lines.captures {
            self.capture(work, &mut scope, capture);
        }
        for source in lines.constants {
            self.constant(work.graph, &mut scope, source);
        }
        for name in lines.lost {
            scope.entry(name.symbol).or_insert(None);
        }
        let mut bodies = Vec::new();
        for node in lines.nodes {
            self.node(work, &mut scope, node, lost_unknown, &mut bodies);
        }
        // The last work is done first: bodies in their order.
        bodies.reverse();
        self.work.extend(bodies);
        let rest =
            Lines { outputs: lines.outputs, states: lines.states, roles: lines.roles, ..Lines::default() };
        self.graph_end(work.graph, &scope, rest, lost_unknown);
    }

    fn graph_end(&mut self, graph: GraphId, scope: &Scope, lines: Lines, lost_unknown: bool) {
        for (name, declared) in lines.outputs {
            if let Some(value) = self.value(scope, name, lost_unknown) {
                self.parser.module.add_output(graph, value, declared);
            }
        }
        let mut states = Vec::new();
        let mut known = FxHashSet::default();
        for (input, next) in lines.states {
            if !known.insert(input.symbol) {
                let found = format!("a second `%{}`", clip(self.parser.module.text(input.symbol)));
                self.parser.error(input.span, "every state once", found);
            }
            let pair = (self.value(scope, input, lost_unknown), self.value(scope, next, lost_unknown));
            if let (Some(input), Some(next)) = pair {
                states.push((input, next));
            }
        }
        let mut roles = Vec::new();
        for (name, values) in lines.roles {
            let values = values.into_iter().filter_map(|v| self.value(scope, v, lost_unknown)).collect();
            roles.push(Role { name, values });
        }
        let (all_roles, all_states) = self.parser.module.graph_roles_mut(graph);
        *all_roles = roles;
        *all_states = states;
    }

    fn define(&mut self, scope: &mut Scope, name: Name, value: Option<Value>) {
        if scope.insert(name.symbol, value).is_some_and(|known| known.is_some()) {
            let found = format!("a second `%{}`", clip(self.parser.module.text(name.symbol)));
            self.parser.error(name.span, "a name that the graph does not have yet", found);
        }
    }

    fn value(&mut self, scope: &Scope, name: Name, lost_unknown: bool) -> Option<Value> {
        match scope.get(&name.symbol) {
            Some(&value) => value,
            None if lost_unknown => None,
            None => {
                let found = format!("`%{}`", clip(self.parser.module.text(name.symbol)));
                self.parser.error(name.span, "a value that this graph defines above or captures", found);
                None
            }
        }
    }

    fn constant(&mut self, graph: GraphId, scope: &mut Scope, source: SourceAst) {
        // The payload is there: the parser asks for it.
        let SourceAst { name, ty, payload: Some(payload), metadata } = source else { return };
        let value = self.parser.module.add_constant(graph, name.symbol, payload);
        // A constant's type is that of its payload, unless a pass says otherwise.
        if self.parser.module.value(value).ty != ty {
            self.parser.module.set_type(value, ty);
        }
        self.parser.module.set_value_metadata(value, metadata);
        self.define(scope, name, Some(value));
    }

    fn capture(&mut self, work: &Work, scope: &mut Scope, capture: CaptureAst) {
        let CaptureAst { name, slot, ty } = capture;
        let Some(owner) = &work.owner else { return };
        let slot = slot.or_else(|| owner.by_name.get(&name.symbol).copied());
        let Some(slot) = slot.filter(|&slot| (slot as usize) < owner.n_captures) else {
            let found = format!("`%{}`", clip(self.parser.module.text(name.symbol)));
            self.parser.error(name.span, "one of the node's captured operands (those after `;`)", found);
            scope.insert(name.symbol, None);
            return;
        };
        let module = &mut self.parser.module;
        let value = module.add_capture(work.graph, module.node(owner.node).n_formal() + slot as usize);
        if let Some(ty) = ty {
            module.set_type(value, ty);
        }
        self.define(scope, name, Some(value));
    }

    fn node(
        &mut self,
        work: &Work,
        scope: &mut Scope,
        ast: NodeAst,
        lost_unknown: bool,
        bodies: &mut Vec<Work>,
    ) {
        let op = self.op(work, &ast);
        if has_name_twice(&ast.attrs) {
            self.parser.error(ast.span, "attributes of different names", "a name given twice");
        }
        let operands: SmallVec<[Option<Value>; 4]> =
            ast.operands.iter().map(|o| o.and_then(|name| self.value(scope, name, lost_unknown))).collect();
        let captured: Vec<Option<Value>> =
            ast.captures.iter().map(|o| o.and_then(|name| self.value(scope, name, lost_unknown))).collect();
        let Some(op) = op else {
            for &name in ast.results.iter().flatten() {
                self.define(scope, name, None);
            }
            return;
        };
        let results = ast.results.iter().zip(ast.types);
        let results = results.map(|(name, ty)| Some((name.as_ref()?.symbol, ty?))).collect();
        let module = &mut self.parser.module;
        let owned: Vec<GraphId> = ast.attrs.iter().flat_map(|(_, v)| v.graphs().to_vec()).collect();
        let node = module.add_node(
            work.graph,
            Position::Last,
            NewNode {
                op,
                name: ast.name,
                operands,
                attrs: ast.attrs,
                results,
                provenance: ast.tail.as_ref().map(|t| t.provenance).unwrap_or_default(),
            },
        );
        for value in captured {
            module.add_capture_operand(node, value);
        }
        let defined: SmallVec<[Option<Value>; 2]> = module.node(node).results().iter().copied().collect();
        for (name, value) in ast.results.iter().zip(defined) {
            if let Some(name) = name {
                self.define(scope, *name, value);
            }
        }
        if let Some(tail) = ast.tail {
            self.tail(node, *tail);
        }
        if owned.is_empty() {
            return;
        }
        let by_name = Rc::new(slots_by_name(&ast.captures));
        let owner = Owner { node, n_captures: ast.captures.len(), by_name };
        for graph in owned {
            bodies.push(Work { graph, opsets: work.opsets.clone(), owner: Some(owner.clone()) });
        }
    }

    /// Resolves an operator name: a function of the model, else an operator with a signature or of the table,
    /// else a custom operator.
    fn op(&mut self, work: &Work, ast: &NodeAst) -> Option<Op> {
        let (domain, name, overload) = (ast.domain, ast.op, ast.overload);
        if let Some(&function) = self.functions.get(&(domain, name, overload)) {
            return Some(Op::Call(function));
        }
        let module = &self.parser.module;
        let canonical = |d: Symbol| match module.text(d) {
            "ai.onnx" => "",
            other => other,
        };
        if let Some(&schema) = self.parser.signatures.get(&(domain, name))
            && module.text(overload).is_empty()
        {
            return Some(Op::Schema(schema));
        }
        let wanted = canonical(domain);
        let opset = work.opsets.iter().find(|(d, _)| canonical(*d) == wanted).map(|&(_, version)| version);
        let shown = if wanted.is_empty() { "ai.onnx" } else { wanted };
        let (name_text, overload_text) = (module.text(name), module.text(overload));
        let (expected, found) =
            match lookup_overload(wanted, name_text, overload_text, opset.unwrap_or(u16::MAX)) {
                Lookup::UnknownDomain => return Some(Op::Custom { domain, name, overload }),
                _ if opset.is_none() => (format!("an opset import of `{shown}`"), "none".to_owned()),
                Lookup::Found(schema) if overload_text.is_empty() => return Some(Op::Schema(schema)),
                Lookup::Found(_) => (
                    "a function of the model, as an overload is named".to_owned(),
                    format!("an operator of `{shown}`"),
                ),
                Lookup::TooNew { since } => {
                    (format!("an operator of `{shown}` {}", opset?), format!("one that came with {since}"))
                }
                Lookup::Removed { since, by } => (
                    format!("an operator of `{shown}` {}", opset?),
                    format!("one that {since} deprecated, replaced by {by}"),
                ),
                Lookup::UnknownOp => {
                    let found = format!("`{}`", self.op_text(domain, name, overload));
                    (format!("an operator of `{shown}`, or a function of the model"), found)
                }
            };
        self.parser.error(ast.span, expected, found);
        None
    }

    fn tail(&mut self, node: Node, tail: Tail) {
        *self.parser.module.node_mut(node).metadata = tail.metadata;
        let module = &self.parser.module;
        let named = !tail.class.is_empty() && module.node(node).schema().is_some();
        let vars = if named { module.var_names(node) } else { SmallVec::new() };
        let vars = &vars[..];
        let class = self.per_variable(vars, None, tail.class);
        let n = class.len();
        let prec = self.per_variable(vars, Some(n), tail.prec);
        let why = self.per_variable(vars, Some(n), tail.why);
        let mut decisions = SmallVec::new();
        for ((class, prec), why) in class.into_iter().zip(prec).zip(why) {
            let (rule, evidence) = why.unwrap_or_default();
            let reason = self
                .reasons
                .entry((rule, evidence))
                .or_insert_with_key(|(rule, evidence)| Arc::new(Reason::parse(rule, evidence)));
            let class = class.unwrap_or(Class::Fixed);
            decisions.push(Decision { class, precision: prec, reason: reason.clone() });
        }
        *self.parser.module.node_mut(node).decisions = decisions;
    }

    /// One entry per type variable. `n` is how many there are once the classes say so; without it every variable
    /// has to have an entry.
    fn per_variable<T: Clone>(
        &mut self,
        vars: &[Cow<'static, str>],
        n: Option<usize>,
        entries: Vec<Decided<T>>,
    ) -> Vec<Option<T>> {
        let n_all = n.unwrap_or(if entries.is_empty() { 0 } else { vars.len() });
        if let [Decided { var: None, what, span }] = &entries[..] {
            if n_all == 0 {
                let expected = if n.is_some() { "a `class=` too" } else { "an entry such as `0:fixed`" };
                self.parser.error(*span, expected, "none");
            }
            return vec![Some(what.clone()); n_all];
        }
        let mut all: Vec<Option<T>> = vec![None; n_all];
        let (mut by_name, last) = (false, entries.last().map(|e| e.span));
        for Decided { var, what, span } in entries {
            let text = var.map_or("", |var| self.parser.module.text(var));
            let named = vars.iter().position(|v| *v == text);
            by_name |= named.is_some();
            let index = named.or_else(|| text.parse().ok());
            match index {
                Some(index) if all.get(index).is_some_and(Option::is_some) => {
                    let found = format!("a second `{}`", clip(text));
                    self.parser.error(span, "every type variable once", found);
                }
                Some(index) if index < all.len() => all[index] = Some(what),
                // Classes by number may be more than the variables, one after the other.
                Some(index) if n.is_none() && index == all.len() => all.push(Some(what)),
                _ => {
                    let found = format!("`{}`", clip(text));
                    self.parser.error(span, "a type variable of the operator that has a class", found);
                }
            }
        }
        if let (None, Some(span)) = (n, last) {
            let present = all.iter().take_while(|c| c.is_some()).count();
            if (by_name && present < all.len()) || all[present..].iter().any(Option::is_some) {
                self.parser.error(span, "a class for every type variable", "fewer");
            }
            all.truncate(present);
        }
        all
    }
}
