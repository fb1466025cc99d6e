//! `specialize-functions`: gives every call its own copy of the function.
//!
//! A function that several nodes call has one body, but one call may read it in low precision and another not.
//! This pass gives every call a copy, so that the passes after it decide about calls and not about functions,
//! and [`share-functions`](crate::functions::share_functions) merges equal copies. The result has one function per
//! precision signature that occurs.
//!
//! ```text
//! y = F(x); z = F(m)  ──specialize──→  y = F(x); z = F.2(m)  ──passes, share──→  y = F(x); z = F__f16(m)
//! ```
//!
//! Copies cost as much as inlining, which a file of a few lines can make as large as it likes. So copies are counted
//! before the first copy is made: a model whose copies would have more nodes than [`SMALL`] and [`MAX_RATIO`] times the
//! nodes of the model, or more than [`MAX_INLINED`], keeps one body per function for all its calls, which is as sound:
//! operands that only some calls make low arrive in fp32. The parts of nodes and functions have a limit too
//! ([`SMALL_PARTS`]): a copy has all inputs and default attributes of the function, also where a call leaves them out.

use crate::graph::flow;
use crate::graph::instances::spelling;
pub use crate::graph::instances::{MAX_DEPTH, instances};
use crate::graph::metadata::INSTANCE_OF;
use crate::pass::options::Spelled;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::attr::AttrValue;
use ampc_ir::module::{GraphOwner, Op, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::{FunctionId, GraphId, Module, Node, Symbol, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Copies of functions that have no more nodes than this together are made whatever the size of the model. A copy
/// counts as one more, as do the calls in it.
pub const SMALL: u64 = 1 << 14;

/// Copies of functions that have no more parts than this together are made whatever the size of the model. Parts are
/// operands, results, constants, attributes and their elements, and of a function its inputs, outputs and default
/// attributes.
pub const SMALL_PARTS: u64 = 1 << 17;

/// Copies of functions that have no more nodes, and no more parts, than this many times those of the model are made.
pub const MAX_RATIO: u64 = 4;

/// A model with more nodes than this once its functions are inlined keeps one body per function. Constants and casts
/// that an earlier run inserted do not count, so that a rewritten model is treated as its source was.
pub const MAX_INLINED: u64 = 1 << 17;

/// A model with more nodes than this once its functions are inlined is refused: runtimes inline functions.
pub const MAX_EXPANDED: u64 = 1 << 24;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecializeFunctions;

impl Spelled for SpecializeFunctions {
    const NAME: &'static str = "specialize-functions";
    const ABOUT: &'static str = "gives every call its own copy of the function";
    fn blank() -> Self {
        SpecializeFunctions
    }
}

impl Pass for SpecializeFunctions {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if module.functions().next().is_none() {
            return Ok(Changed::No);
        }
        let size = Inlined::of(module);
        if size.nodes > MAX_EXPANDED {
            let function =
                size.most.map_or_else(String::new, |f| module.text(module.function(f).name).to_owned());
            return Err(PassError::Expansion { function, times: size.times, limit: MAX_EXPANDED });
        }
        if size.nodes > MAX_INLINED || size.depth > MAX_DEPTH || !size.is_affordable() {
            return Ok(Changed::No);
        }
        let dead = flow::dead_functions(module);
        let mut names = Names::new(module);
        let mut changed = false;
        // Callers first: what is called in a copy is called once more.
        for function in size.order {
            changed |= specialize(module, function, &dead, &mut names);
        }
        if changed {
            module.order_calls();
        }
        Ok(Changed::when(changed))
    }
}

/// Gives all calls of a function but the first a copy each; the first too, if functions that are never called call it
/// as well.
fn specialize(
    module: &mut Module,
    function: FunctionId,
    dead: &FxHashSet<GraphId>,
    names: &mut Names,
) -> bool {
    let is_live = |&call: &Node| !dead.contains(&module.root(module.node(call).graph));
    let (live, others): (Vec<Node>, Vec<Node>) = module.calls(function).iter().copied().partition(is_live);
    let own = usize::from(others.is_empty());
    let spelled = spelling(module, module.function(function));
    for &call in live.get(own..).unwrap_or_default() {
        let (domain, base, overload) = {
            let data = module.function(function);
            (data.domain, data.name, data.overload)
        };
        let name = names.fresh(module, domain, base, overload);
        let copy = module.copy_function(function, name, overload);
        module.set_function_entry(copy, INSTANCE_OF, Some(&spelled));
        module.set_callee(call, copy);
    }
    live.len() > own
}

/// Size of a model when its functions are inlined.
struct Inlined {
    /// Nodes, other than constants and inserted casts.
    nodes: u64,
    /// The number of nodes that copies per call would add, including nested calls and one node per copy.
    copies: u64,
    /// Nodes of the model as it is, counted alike.
    own: u64,
    /// The parts that copies per call would add.
    copied_parts: u64,
    /// The parts of the model as it is.
    own_parts: u64,
    /// The longest chain of calls.
    depth: u32,
    /// The function that is there most often, and how often.
    most: Option<FunctionId>,
    times: u64,
    /// The functions, callers first.
    order: Vec<FunctionId>,
}

impl Inlined {
    fn of(module: &Module) -> Inlined {
        let mut order = flow::functions_callees_first(module);
        order.reverse();
        // How often the inside of a function is there, and how deep.
        let mut times: FxHashMap<FunctionId, (u64, u32)> = FxHashMap::default();
        let mut found = Inlined {
            nodes: 0,
            copies: 0,
            own: 0,
            copied_parts: 0,
            own_parts: 0,
            depth: 0,
            most: None,
            times: 0,
            order: Vec::new(),
        };
        for graph in std::iter::once(module.main()).chain(order) {
            let (count, depth) = match module.graph(graph).owner {
                GraphOwner::Function(function) => {
                    found.order.push(function);
                    times.get(&function).copied().unwrap_or_default()
                }
                GraphOwner::Main | GraphOwner::Body { .. } | GraphOwner::Erased => (1, 0),
            };
            let Content { nodes: own, parts, called } = Content::of(module, graph);
            found.nodes = found.nodes.saturating_add(count.saturating_mul(own));
            let whole = own.saturating_add(called.len() as u64).saturating_add(1);
            found.copies = found.copies.saturating_add(count.saturating_sub(1).saturating_mul(whole));
            found.own = found.own.saturating_add(if count > 0 { whole } else { 0 });
            found.copied_parts =
                found.copied_parts.saturating_add(count.saturating_sub(1).saturating_mul(parts));
            found.own_parts = found.own_parts.saturating_add(if count > 0 { parts } else { 0 });
            found.depth = found.depth.max(depth);
            if count > found.times && found.order.last().is_some() {
                (found.most, found.times) = (found.order.last().copied(), count);
            }
            for callee in called.into_iter().filter(|_| count > 0) {
                let (n, at) = times.entry(callee).or_default();
                *n = n.saturating_add(count);
                *at = (*at).max(depth + 1);
            }
        }
        found
    }

    /// True if the copies are small, or not much larger than the model.
    fn is_affordable(&self) -> bool {
        self.copies <= self.own.saturating_mul(MAX_RATIO).max(SMALL)
            && self.copied_parts <= self.own_parts.saturating_mul(MAX_RATIO).max(SMALL_PARTS)
    }
}

/// The content of a graph and its bodies.
struct Content {
    nodes: u64,
    parts: u64,
    /// The functions that it calls.
    called: Vec<FunctionId>,
}

impl Content {
    fn of(module: &Module, graph: GraphId) -> Content {
        let mut content = Content { nodes: 0, parts: 0, called: Vec::new() };
        if let GraphOwner::Function(function) = module.graph(graph).owner {
            let data = module.function(function);
            let lists = [data.opsets.len(), data.attrs.len(), data.metadata.len(), bytes(&data.doc_string)];
            content.add(lists.iter().sum());
            data.attr_defaults.iter().for_each(|attr| content.add(elements(&attr.value)));
        }
        let mut work = vec![graph];
        while let Some(graph) = work.pop() {
            let data = module.graph(graph);
            content.add(data.inputs().len() + data.captures().len() + data.outputs().len());
            content.add(data.constants().iter().filter(|&&value| is_unread(module, value)).count());
            for node in module.nodes(graph) {
                work.extend(module.node(node).bodies());
                content.node(module, node);
            }
        }
        content
    }

    /// Casts and constants that an earlier run may have added are free, so that a rewritten model is treated as its
    /// source was. The operands that read them count.
    fn node(&mut self, module: &Module, node: Node) {
        let data = module.node(node);
        let mut own = data.operands().len() + data.results().len() + data.metadata.len();
        match data.op {
            Op::Call(function) => self.called.push(function),
            Op::Schema(_) if data.provenance == Provenance::Inserted => return,
            Op::Schema(schema) if schema.kind == OpKind::Constant => {
                own = data.results().iter().flatten().filter(|&&value| is_unread(module, value)).count();
            }
            Op::Schema(_) | Op::Custom { .. } => self.nodes += 1,
        }
        self.add(own);
        data.attrs().iter().for_each(|attr| self.add(elements(&attr.value)));
    }

    fn add(&mut self, parts: usize) {
        self.parts = self.parts.saturating_add(parts as u64);
    }
}

/// True if a constant has no readers. Such a constant is of the author: passes remove those that lost their readers.
fn is_unread(module: &Module, value: Value) -> bool {
    module.uses(value).next().is_none()
}

/// The elements of a list; 1 for other values.
fn elements(value: &AttrValue) -> usize {
    match value {
        AttrValue::Floats(list) => list.len(),
        AttrValue::Ints(list) => list.len(),
        AttrValue::String(text) => 1 + bytes(text),
        AttrValue::Strings(list) => list.iter().map(|text| 1 + bytes(text)).sum(),
        AttrValue::Tensors(list) => list.len(),
        AttrValue::SparseTensors(list) => list.len(),
        AttrValue::Types(list) => list.len(),
        AttrValue::Graphs(list) => list.len(),
        AttrValue::Float(_)
        | AttrValue::Int(_)
        | AttrValue::Tensor(_)
        | AttrValue::SparseTensor(_)
        | AttrValue::Graph(_)
        | AttrValue::Type(_)
        | AttrValue::Reference { .. } => 1,
    }
}

/// Text counts as integers of the same size.
fn bytes(text: impl AsRef<[u8]>) -> usize {
    text.as_ref().len() / size_of::<i64>()
}

/// The names of functions, and which number to try next for each.
struct Names {
    taken: FxHashSet<(Symbol, Symbol, Symbol)>,
    last: FxHashMap<Symbol, u64>,
}

impl Names {
    fn new(module: &Module) -> Names {
        let taken = module.functions().map(|(_, f)| (f.domain, f.name, f.overload)).collect();
        Names { taken, last: FxHashMap::default() }
    }

    /// `base.2`, `base.3` …, whichever is free first.
    fn fresh(&mut self, module: &mut Module, domain: Symbol, base: Symbol, overload: Symbol) -> Symbol {
        let last = self.last.entry(base).or_insert(1);
        loop {
            *last += 1;
            let name = format!("{}.{last}", module.text(base));
            let name = module.intern(&name);
            if self.taken.insert((domain, name, overload)) {
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;
    use crate::pipeline::Pipeline;
    use ampc_ir::text::{NoData, parse};

    /// The number of functions after the pass, for `n` calls of a function of one node.
    fn functions(n: usize, attrs: &str, body: &str) -> usize {
        let mut text =
            "module ir=10\nopset ai.onnx=21, local=1\n\ngraph @main {\n  input %x0 : f32[4]\n".to_owned();
        for i in 0..n {
            text += &format!("  %x{} = local::F(%x{i}) : f32[4]\n", i + 1);
        }
        text += &format!(
            "  output %x{n} : f32[4]\n}}\n\nfunction local::F {{\n  opset ai.onnx=21\n{attrs}  input %a : ?\n\
             {body}  %b = Relu(%a) : ?\n  output %b\n}}\n"
        );
        let mut module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        let pipeline = Pipeline::parse("specialize-functions", &Policy::preset).expect("a pipeline");
        pipeline.run(&mut module, true, &mut ()).expect("it copies or does not");
        module.functions().count()
    }

    fn repeated(n: usize, line: impl Fn(usize) -> String) -> String {
        (0..n).map(line).collect()
    }

    /// Copies are made as long as they are small, whatever they are large of.
    #[test]
    fn parts_of_copies_have_a_limit() {
        let constants = |n| repeated(n, |i| format!("  %c{i} = Constant() {{value_float=1.0}} : ?\n"));
        let elements = |n| {
            let list = vec!["1"; n].join(", ");
            format!("  %c = Constant() {{value_ints=[{list}]}} : ?\n")
        };
        let defaults = |n| repeated(n, |i| format!("  attr k{i} = 1\n"));
        for (n, made) in [(200, 300), (600, 1)] {
            assert_eq!(functions(300, "", &constants(n)), made, "{n} constants");
            assert_eq!(functions(300, "", &elements(n)), made, "{n} elements");
            assert_eq!(functions(300, &defaults(n), ""), made, "{n} defaults");
        }
    }

    /// Calls may leave out operands, but a copy has all inputs of its function.
    #[test]
    fn inputs_that_calls_leave_out_are_copied_too() {
        let left_out = |n| repeated(n, |i| format!("  input %left{i} : ?\n"));
        assert_eq!(functions(300, "", &left_out(200)), 300);
        assert_eq!(functions(300, "", &left_out(600)), 1);
    }
}
