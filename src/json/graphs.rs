//! Graphs and nodes from JSON.

use super::reader::{Owner, Reader, Scope, Work, clip};
use super::tape::{At, Token};
use ampc_ir::module::{Decision, Provenance, Reason, Role};
use ampc_ir::op::{Lookup, lookup_overload};
use ampc_ir::text::MAX_DEPTH;
use ampc_ir::verify::name_of;
use ampc_ir::{GraphId, NewNode, Node, Op, Position, Symbol, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

/// The fields of a node.
const NODE_FIELDS: [&str; 14] = [
    "path",
    "name",
    "domain",
    "op",
    "overload",
    "version",
    "operands",
    "captures",
    "results",
    "types",
    "attributes",
    "decisions",
    "inserted",
    "metadata",
];

impl Reader<'_, '_> {
    pub(super) fn graph(&mut self, work: &Work) {
        if work.depth > MAX_DEPTH {
            return self.error(work.at, format!("bodies at most {MAX_DEPTH} deep"), "a deeper one");
        }
        let names =
            ["name", "metadata", "inputs", "captures", "constants", "nodes", "outputs", "states", "roles"];
        let Some([name, metadata, inputs, captures, constants, nodes, outputs, states, roles]) =
            self.fields(work.at, names)
        else {
            return;
        };
        let name = self.symbol_or_empty(name);
        self.module.set_graph_name(work.graph, name);
        let metadata = self.metadata(metadata);
        self.module.set_graph_metadata(work.graph, metadata);
        let mut scope = Scope::default();
        for at in self.items(inputs, "inputs") {
            self.source(work, &mut scope, at, false);
        }
        for at in self.items(captures, "captured values") {
            self.capture(work, &mut scope, at);
        }
        for at in self.items(constants, "constants") {
            self.source(work, &mut scope, at, true);
        }
        let mut bodies = Vec::new();
        for at in self.items(nodes, "nodes") {
            self.node(work, &mut scope, at, &mut bodies);
        }
        // The last work is done first: bodies in their order.
        bodies.reverse();
        self.work.extend(bodies);
        for at in self.items(outputs, "outputs") {
            let Some([name, ty]) = self.fields(at, ["name", "type"]) else { continue };
            let Some(name) = self.required(at, name, "name") else { continue };
            let declared = ty.map_or(Type::Unknown, |ty| self.ty(ty));
            if let Some(value) = self.value(&scope, name) {
                self.module.add_output(work.graph, value, declared);
            }
        }
        self.graph_end(work.graph, &scope, states, roles);
    }

    fn graph_end(&mut self, graph: GraphId, scope: &Scope, states: Option<At>, roles: Option<At>) {
        let (mut pairs, mut known) = (Vec::new(), FxHashSet::default());
        for at in self.items(states, "states") {
            let Some([input, next]) = self.fields(at, ["input", "next"]) else { continue };
            let (input, next) = (self.required(at, input, "input"), self.required(at, next, "next"));
            let place = input;
            let input = input.and_then(|at| self.value(scope, at));
            if let (Some(at), Some(value)) = (place, input)
                && !known.insert(value)
            {
                let found = format!("a second \"{}\"", clip(&name_of(&self.module, value)));
                self.error(at, "every state once", found);
            }
            pairs.extend(input.zip(next.and_then(|at| self.value(scope, at))));
        }
        let mut found = Vec::new();
        for at in self.items(roles, "roles") {
            let Some([name, values]) = self.fields(at, ["name", "values"]) else { continue };
            let name = self.symbol_or_empty(name);
            let values = self.items(values, "names of values");
            let values = values.into_iter().filter_map(|at| self.value(scope, at)).collect();
            found.push(Role { name, values });
        }
        let (all_roles, all_states) = self.module.graph_roles_mut(graph);
        *all_roles = found;
        *all_states = pairs;
    }

    fn define(&mut self, scope: &mut Scope, at: At, name: Symbol, value: Option<Value>) {
        if scope.insert(name, value).is_some_and(|known| known.is_some()) {
            let found = format!("a second \"{}\"", clip(self.module.text(name)));
            self.error(at, "a name that the graph does not have yet", found);
        }
    }

    /// A value by name.
    fn value(&mut self, scope: &Scope, at: At) -> Option<Value> {
        let name = self.string(at, "the name of a value")?;
        let known = self.module.symbol(&name).and_then(|symbol| scope.get(&symbol));
        match known {
            Some(&value) => value,
            None => {
                self.wrong(at, "a value that this graph defines above or captures");
                None
            }
        }
    }

    /// Names or null.
    fn values(&mut self, scope: &Scope, at: Option<At>) -> SmallVec<[Option<Value>; 4]> {
        let items = self.items(at, "names of values");
        items
            .into_iter()
            .map(|at| if self.tape.token(at) == Token::Null { None } else { self.value(scope, at) })
            .collect()
    }

    /// An input or constant.
    fn source(&mut self, work: &Work, scope: &mut Scope, at: At, constant: bool) {
        let Some([name, ty, value, metadata]) = self.fields(at, ["name", "type", "value", "metadata"]) else {
            return;
        };
        let Some(name_at) = self.required(at, name, "name") else { return };
        let Some(name) = self.symbol(name_at, "a name") else { return };
        let declared = ty.map(|ty| self.ty(ty));
        let payload = match value {
            Some(value) => self.payload(value),
            None if constant => self.required(at, None, "value").and(None),
            None => None,
        };
        let value = match (constant, payload) {
            (false, payload) => {
                Some(self.module.add_input(work.graph, name, declared.unwrap_or_default(), payload))
            }
            (true, Some(payload)) => {
                let value = self.module.add_constant(work.graph, name, payload);
                // A constant's type is that of its payload, unless a pass says otherwise.
                if let Some(ty) = declared.filter(|ty| self.module.value(value).ty != *ty) {
                    self.module.set_type(value, ty);
                }
                Some(value)
            }
            (true, None) => None,
        };
        let metadata = self.metadata(metadata);
        if let Some(value) = value {
            self.module.set_value_metadata(value, metadata);
        }
        self.define(scope, name_at, name, value);
    }

    /// A name, or an object if the name does not say which operand it stands for.
    fn capture(&mut self, work: &Work, scope: &mut Scope, at: At) {
        let (name_at, slot, ty) = match self.tape.token(at) {
            Token::Object => {
                let Some([name, slot, ty]) = self.fields(at, ["name", "operand", "type"]) else { return };
                let Some(name) = self.required(at, name, "name") else { return };
                let index = slot.map(|at| self.int::<usize>(at, "the number of a captured operand"));
                if index == Some(None) {
                    return;
                }
                (name, index.flatten(), ty.map(|ty| self.ty(ty)))
            }
            _ => (at, None, None),
        };
        let Some(name) = self.symbol(name_at, "the name of a captured value") else { return };
        let Some(owner) = &work.owner else {
            return self.error(at, "captures in bodies only", "one in a graph that has nothing around it");
        };
        let slot = slot.or_else(|| owner.by_name.get(&name).copied());
        let Some(slot) = slot.filter(|&slot| slot < owner.n_captures) else {
            self.wrong(name_at, "one of the node's \"captures\"");
            scope.insert(name, None);
            return;
        };
        let value = self.module.add_capture(work.graph, self.module.node(owner.node).n_formal() + slot);
        if let Some(ty) = ty {
            self.module.set_type(value, ty);
        }
        self.define(scope, name_at, name, Some(value));
    }

    fn node(&mut self, work: &Work, scope: &mut Scope, at: At, bodies: &mut Vec<Work>) {
        let Some(fields) = self.fields(at, NODE_FIELDS) else { return };
        let [_, name, domain, op, overload, version, operands, captures, results, types, attrs, ..] = fields;
        let [.., decisions, inserted, metadata] = fields;
        let operands = self.values(scope, operands);
        let captured = self.values(scope, captures);
        let by_name = self.slots_by_name(captures);
        let results = self.results(at, results, types);
        let name = name.and_then(|at| self.symbol(at, "a string"));
        let mut graphs = Vec::new();
        let mut new_attrs = Vec::new();
        for (name, value) in self.entries(attrs, "attributes") {
            let name = self.module.intern(&name);
            new_attrs.extend(self.attr(value, &mut graphs).map(|value| (name, value)));
        }
        let op = self.op(work, at, op, [domain, overload], version);
        let Some(op) = op else {
            for &(at, name, _) in results.iter().flatten() {
                self.define(scope, at, name, None);
            }
            return;
        };
        let provenance = self.provenance(inserted);
        let defined = results.iter().map(|r| r.as_ref().map(|(_, name, ty)| (*name, ty.clone()))).collect();
        let new = NewNode { op, name, operands, attrs: new_attrs, results: defined, provenance };
        let node = self.module.add_node(work.graph, Position::Last, new);
        let n_captures = captured.len();
        for value in captured {
            self.module.add_capture_operand(node, value);
        }
        let values: SmallVec<[Option<Value>; 2]> = self.module.node(node).results().iter().copied().collect();
        for (result, value) in results.iter().zip(values) {
            if let Some((at, name, _)) = result {
                self.define(scope, *at, *name, value);
            }
        }
        self.decisions(node, decisions);
        let metadata = self.metadata(metadata);
        *self.module.node_mut(node).metadata = metadata;
        let owner = Owner { node, n_captures, by_name: Rc::new(by_name) };
        bodies.extend(graphs.into_iter().map(|(graph, at)| Work {
            graph,
            at,
            opsets: work.opsets.clone(),
            owner: Some(owner.clone()),
            depth: work.depth + 1,
        }));
    }

    /// Which of the captured operands has a name; of several the first.
    fn slots_by_name(&mut self, captures: Option<At>) -> FxHashMap<Symbol, usize> {
        let mut by_name = FxHashMap::default();
        for (slot, at) in self.items(captures, "names of values").into_iter().enumerate() {
            if let Token::Text(name) = self.tape.token(at)
                && let Some(symbol) = self.module.symbol(&name)
            {
                by_name.entry(symbol).or_insert(slot);
            }
        }
        by_name
    }

    fn provenance(&mut self, inserted: Option<At>) -> Provenance {
        match inserted.map(|at| (at, self.tape.token(at))) {
            None | Some((_, Token::Bool(false))) => Provenance::User,
            Some((_, Token::Bool(true))) => Provenance::Inserted,
            Some((at, _)) => {
                self.wrong(at, "true or false");
                Provenance::User
            }
        }
    }

    /// Place, name and type of each result.
    fn results(
        &mut self,
        node: At,
        results: Option<At>,
        types: Option<At>,
    ) -> Vec<Option<(At, Symbol, Type)>> {
        let names = self.items(results, "names of values");
        let typed = types.is_some();
        let type_ats = self.items(types, "types");
        if typed && names.len() != type_ats.len() {
            self.error(
                node,
                format!("{} types, one for each result", names.len()),
                type_ats.len().to_string(),
            );
        }
        self.untyped |= !typed && !names.is_empty();
        let mut type_ats = type_ats.into_iter();
        names
            .into_iter()
            .map(|at| {
                let ty = type_ats.next();
                if self.tape.token(at) == Token::Null {
                    return None;
                }
                let name = self.symbol(at, "the name of a value, or null")?;
                Some((at, name, ty.map_or(Type::Unknown, |ty| self.ty(ty))))
            })
            .collect()
    }

    /// Resolves an operator name: a function of the model, else an operator with a signature or of the table,
    /// else a custom operator.
    fn op(
        &mut self,
        work: &Work,
        node: At,
        op: Option<At>,
        [domain, overload]: [Option<At>; 2],
        version: Option<At>,
    ) -> Option<Op> {
        let op_at = self.required(node, op, "op")?;
        let name = self.symbol(op_at, "the name of an operator")?;
        let (domain, overload) = (self.symbol_or_empty(domain), self.symbol_or_empty(overload));
        if let Some(&function) = self.functions.get(&(domain, name, overload)) {
            return Some(Op::Call(function));
        }
        if let Some(&schema) = self.signatures.get(&(domain, name))
            && self.module.text(overload).is_empty()
        {
            return Some(Op::Schema(schema));
        }
        let canonical = |domain: Symbol| match self.module.text(domain) {
            "ai.onnx" => "",
            text => text,
        };
        let wanted = canonical(domain).to_owned();
        let imported = work.opsets.iter().find(|(d, _)| canonical(*d) == wanted);
        let opset = imported.map(|&(_, version)| version);
        let shown = if wanted.is_empty() { "ai.onnx" } else { &wanted };
        let text = self.module.text(name);
        let overload_text = self.module.text(overload);
        let (expected, found) = match lookup_overload(&wanted, text, overload_text, opset.unwrap_or(u16::MAX))
        {
            Lookup::UnknownDomain => return Some(Op::Custom { domain, name, overload }),
            _ if opset.is_none() => (format!("an entry of `{shown}` in \"opsets\""), "none".to_owned()),
            Lookup::Found(_) if !overload_text.is_empty() => (
                "a function of the model, as an overload is named".to_owned(),
                format!("an operator of `{shown}`"),
            ),
            Lookup::Found(schema) => {
                self.check_version(version, schema.since, opset?);
                return Some(Op::Schema(schema));
            }
            Lookup::TooNew { since } => {
                (format!("an operator of `{shown}` {}", opset?), format!("one that came with {since}"))
            }
            Lookup::Removed { since, by } => (
                format!("an operator of `{shown}` {}", opset?),
                format!("one that {since} deprecated, replaced by {by}"),
            ),
            Lookup::UnknownOp => {
                let found = format!("\"{}\"", clip(text));
                (format!("an operator of `{shown}`, or a function of the model"), found)
            }
        };
        self.error(op_at, expected, found);
        None
    }

    /// That a node says the version of its operator that its opset has, if it says one.
    fn check_version(&mut self, version: Option<At>, since: u16, opset: u16) {
        let Some(at) = version else { return };
        if self.int::<u16>(at, "the version of an operator").is_some_and(|said| said != since) {
            self.wrong(at, format!("version {since} of the operator, which opset {opset} has"));
        }
    }

    fn decisions(&mut self, node: Node, at: Option<At>) {
        let Some(list) = at else { return };
        let typed = self.module.node(node).schema().is_some();
        let vars = if typed { self.module.var_names(node) } else { SmallVec::new() };
        let mut decisions = SmallVec::new();
        // The variables of a node with bodies are its ports, which follow from its bodies.
        let has_bodies = self.module.node(node).attrs().iter().any(|attr| !attr.value.graphs().is_empty());
        let most = if typed && !has_bodies { vars.len() } else { usize::MAX };
        for (index, at) in self.items(Some(list), "decisions").into_iter().enumerate() {
            if index == most {
                let s = if most == 1 { "" } else { "s" };
                self.wrong(at, format!("{most} decision{s}, as many as the operator has type variables"));
                break;
            }
            let Some([var, class, precision, rule, evidence]) =
                self.fields(at, ["var", "class", "precision", "rule", "evidence"])
            else {
                continue;
            };
            if let Some(var) = var
                && let Some(name) = self.string(var, "the name of a type variable")
                && vars.get(index).is_none_or(|known| *known != name)
            {
                let expected = match vars.get(index) {
                    Some(known) => {
                        format!("the type variable \"{known}\": decisions are in the schema's order")
                    }
                    None => "no type variable".to_owned(),
                };
                self.wrong(var, expected);
            }
            let class = self
                .required(at, class, "class")
                .and_then(|at| self.word(at, "allow, clear, infer, promote, discrete, deny or fixed"));
            let Some(class) = class else { continue };
            let precision = precision.and_then(|at| self.dtype(at));
            let key = (self.text_or_empty(rule), self.text_or_empty(evidence));
            let reason = self
                .reasons
                .entry(key)
                .or_insert_with_key(|(rule, evidence)| Arc::new(Reason::parse(rule, evidence)));
            decisions.push(Decision { class, precision, reason: reason.clone() });
        }
        *self.module.node_mut(node).decisions = decisions;
    }
}
