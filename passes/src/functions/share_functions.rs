//! `share-functions`: merges equal functions again.
//!
//! The copies that [`specialize-functions`](crate::functions::specialize_functions) made of a function are compared with
//! it and with each other. Two functions are equal if ONNX would write the same body for both: operators,
//! attributes, constants and edges. Names do not count, nor do types, which functions of ONNX do not have.
//!
//! The form with the fewest 16-bit values keeps the name; the others get a name with their format: `F__f16`.
//! The overloads of IR version 10 are not used: ONNX Runtime 1.31 ignores overloads of calls in the body of a
//! function, and takes the function without overload or does not load the model.

use crate::graph::flow;
use crate::graph::instances::{original, spelling};
use crate::graph::metadata::INSTANCE_OF;
use crate::pass::invariants::Invariants;
use crate::pass::options::Spelled;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::attr::AttrValue;
use ampc_ir::entity::EntityRef;
use ampc_ir::module::{Def, GraphOwner, Op};
use ampc_ir::op::Class;
use ampc_ir::{DType, FunctionId, GraphId, Module, Payload, Symbol, TensorData, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Constants of at most so many bytes are compared by their elements.
const SMALL: u64 = 1 << 10;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShareFunctions;

impl Spelled for ShareFunctions {
    const NAME: &'static str = "share-functions";
    const ABOUT: &'static str = "merges equal functions";
    fn blank() -> Self {
        ShareFunctions
    }
}

impl Pass for ShareFunctions {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn revokes(&self) -> Invariants {
        // What is decided in a function that several calls share is about one of them.
        Invariants::LOWERED
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let families = families(module);
        if families.is_empty() {
            return Ok(Changed::No);
        }
        let class = classes(module, &families);
        let mut gone = Vec::new();
        for family in families.values() {
            let kept = share(module, family, &class, &mut gone);
            name(module, &kept);
        }
        // Only now does nothing call them: those that go call each other.
        gone.into_iter().for_each(|function| module.erase_function(function));
        module.order_calls();
        Ok(Changed::Yes)
    }
}

/// Functions that were made of one, which comes first, by its spelling; every function is of one family at most. The
/// claims of functions about themselves may come from a file: copies of copies are one family, and so are functions that say that
/// they are copies of each other.
fn families(module: &Module) -> BTreeMap<String, Vec<FunctionId>> {
    let by_spelling: FxHashMap<String, FunctionId> =
        module.functions().map(|(id, f)| (spelling(module, f), id)).collect();
    let copies: FxHashMap<FunctionId, &str> =
        module.functions().filter_map(|(id, f)| Some((id, original(module, f)?))).collect();
    let mut families: BTreeMap<String, Vec<FunctionId>> = BTreeMap::new();
    let mut known: FxHashMap<FunctionId, String> = FxHashMap::default();
    let mut members: Vec<FunctionId> = module.functions().map(|(id, _)| id).collect();
    members.sort_by_key(|id| (copies.contains_key(id), *id));
    for id in members {
        // On to the original of the original, until one is not a copy, not there, of a known family, or met again.
        let (mut at, mut path) = (id, FxHashSet::default());
        let family = loop {
            if let Some(family) = known.get(&at) {
                break family.clone();
            }
            let Some(&of) = copies.get(&at) else { break spelling(module, module.function(at)) };
            if !path.insert(at) {
                break circle(module, &copies, &by_spelling, at);
            }
            match by_spelling.get(of) {
                Some(&source) => at = source,
                None => break of.to_owned(),
            }
        };
        known.extend(path.into_iter().chain([id]).map(|function| (function, family.clone())));
        families.entry(family).or_default().push(id);
    }
    families.retain(|_, members| members.iter().any(|id| copies.contains_key(id)));
    families
}

/// The least spelling of functions of which each says that it is a copy of the next.
fn circle(
    module: &Module,
    copies: &FxHashMap<FunctionId, &str>,
    by_spelling: &FxHashMap<String, FunctionId>,
    start: FunctionId,
) -> String {
    let of = |function: &FunctionId| by_spelling.get(copies[function]).copied().filter(|&f| f != start);
    let all = std::iter::successors(Some(start), of);
    all.map(|function| spelling(module, module.function(function))).min().unwrap_or_default()
}

/// A number for every function of a family, equal for equal ones.
fn classes(module: &Module, families: &BTreeMap<String, Vec<FunctionId>>) -> FxHashMap<FunctionId, usize> {
    let mut family: FxHashMap<FunctionId, usize> = FxHashMap::default();
    for (at, members) in families.values().enumerate() {
        family.extend(members.iter().map(|&member| (member, at)));
    }
    let mut classes: FxHashMap<FunctionId, usize> = FxHashMap::default();
    let mut known: FxHashMap<(usize, String), usize> = FxHashMap::default();
    for graph in flow::functions_callees_first(module) {
        let GraphOwner::Function(function) = module.graph(graph).owner else { continue };
        let Some(&family) = family.get(&function) else { continue };
        let next = known.len();
        let content = Content::of(module, graph, &classes);
        classes.insert(function, *known.entry((family, content)).or_insert(next));
    }
    classes
}

/// Redirects the calls of a family to the first function of each class, and returns these.
fn share(
    module: &mut Module,
    family: &[FunctionId],
    class: &FxHashMap<FunctionId, usize>,
    gone: &mut Vec<FunctionId>,
) -> Vec<FunctionId> {
    let mut members: BTreeMap<usize, Vec<FunctionId>> = BTreeMap::new();
    for &function in family {
        members.entry(class[&function]).or_default().push(function);
    }
    let mut kept = Vec::new();
    for same in members.into_values() {
        let first = same[0];
        kept.push(first);
        module.set_function_entry(first, INSTANCE_OF, None);
        // A function of nothing but such operators as have every format is shared by calls that decide otherwise:
        // what is said of it is what holds where the least is low, for the strictest reason.
        let least =
            same.iter().copied().min_by_key(|&f| (Low::of(module, f).values, Reverse(strictness(module, f))));
        copy_decisions(module, least.unwrap_or(first), first);
        for &function in &same[1..] {
            for call in module.calls(function).to_vec() {
                module.set_callee(call, first);
            }
            gone.push(function);
        }
    }
    kept.sort_unstable();
    kept
}

/// The classes of everything in a function.
fn strictness(module: &Module, function: FunctionId) -> Vec<Class> {
    let inside = flow::nodes_in(module, module.function(function).graph);
    inside.into_iter().flat_map(|node| module.node(node).decisions.iter().map(|d| d.class)).collect()
}

/// Copies the decisions about a function, and its calls, to a function of the same content.
fn copy_decisions(module: &mut Module, from: FunctionId, to: FunctionId) {
    if from == to {
        return;
    }
    let nodes = |module: &Module, function: FunctionId| {
        let inside = flow::nodes_in(module, module.function(function).graph);
        let call = module.calls(function).first().copied();
        call.into_iter().chain(inside).collect::<Vec<_>>()
    };
    for (from, to) in nodes(module, from).into_iter().zip(nodes(module, to)) {
        let decisions = module.node(from).decisions.clone();
        *module.node_mut(to).decisions = decisions;
    }
}

/// Names the remaining functions of a family, the original first. Calls of the function with the original's
/// name are unchanged then.
fn name(module: &mut Module, kept: &[FunctionId]) {
    let Some(&first) = kept.first() else { return };
    let (domain, name, overload) = {
        let data = module.function(first);
        (data.domain, data.name, data.overload)
    };
    // By what is in them, not by which call came first.
    let mut order: Vec<(Low, FunctionId)> = kept.iter().map(|&f| (Low::of(module, f), f)).collect();
    order.sort_by_key(|&(low, function)| (low.values, low.nodes, function));
    let mut taken: FxHashSet<(Symbol, Symbol)> = module
        .functions()
        .filter(|(id, f)| f.domain == domain && !kept.contains(id))
        .map(|(_, f)| (f.name, f.overload))
        .collect();
    taken.insert((name, overload));
    for (at, &(low, function)) in order.iter().enumerate() {
        if at == 0 {
            module.rename_function(function, name, overload);
            for call in module.calls(function).to_vec() {
                module.node_mut(call).dirty.callee = false;
            }
            continue;
        }
        let suffix = low.format.unwrap_or(DType::F32).to_string();
        let numbered = std::iter::once(suffix.clone()).chain((2u64..).map(|n| format!("{suffix}_{n}")));
        for suffix in numbered {
            let name = format!("{}__{suffix}", module.text(name));
            let name = module.intern(&name);
            if taken.insert((name, overload)) {
                module.rename_function(function, name, overload);
                break;
            }
        }
    }
}

/// The number of values of a function in a 16-bit format.
#[derive(Clone, Copy, Default)]
struct Low {
    /// The format of the first such value.
    format: Option<DType>,
    values: usize,
    nodes: usize,
}

impl Low {
    fn of(module: &Module, function: FunctionId) -> Low {
        let mut low = Low::default();
        let mut work = vec![module.function(function).graph];
        while let Some(graph) = work.pop() {
            let dtypes = module.defined(graph).filter_map(|value| module.value(value).ty.dtype());
            for dtype in dtypes.filter(|dtype| dtype.is_low()) {
                low.format.get_or_insert(dtype);
                low.values += 1;
            }
            low.nodes += module.nodes(graph).count();
            work.extend(module.nodes(graph).flat_map(|node| module.node(node).bodies()));
        }
        low
    }
}

/// Printed content of a function in ONNX: equal content means equal bodies.
struct Content<'m> {
    module: &'m Module,
    classes: &'m FxHashMap<FunctionId, usize>,
    numbers: FxHashMap<Value, usize>,
    work: Vec<GraphId>,
    text: String,
}

impl<'m> Content<'m> {
    fn of(module: &'m Module, graph: GraphId, classes: &'m FxHashMap<FunctionId, usize>) -> String {
        let mut content = Content {
            module,
            classes,
            numbers: FxHashMap::default(),
            work: vec![graph],
            text: String::new(),
        };
        if let GraphOwner::Function(function) = module.graph(graph).owner {
            content.put(format_args!("{:?}", module.function(function).opsets));
        }
        while let Some(graph) = content.work.pop() {
            content.graph(graph);
        }
        content.text
    }

    /// Writing to a string does not fail.
    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        self.text.write_fmt(what).expect("strings grow");
        self.text.push(' ');
    }

    fn define(&mut self, value: Value) {
        let next = self.numbers.len();
        self.numbers.insert(value, next);
    }

    fn graph(&mut self, graph: GraphId) {
        let module = self.module;
        let data = module.graph(graph);
        let is_body = matches!(data.owner, GraphOwner::Body { .. });
        self.put(format_args!("{{{}", data.inputs().len()));
        for &value in data.inputs().iter().chain(data.captures()).chain(data.constants()) {
            self.define(value);
            match &module.value(value).def {
                Def::Capture { slot } => self.put(format_args!("^{slot}")),
                Def::Constant(payload) | Def::Input { default: Some(payload), .. } => self.payload(payload),
                // The inputs of bodies are typed.
                Def::Input { default: None, .. } if is_body => self.dtype(&module.value(value).ty),
                Def::Input { default: None, .. } | Def::Result { .. } | Def::Erased => {}
            }
        }
        for node in module.nodes(graph) {
            let data = module.node(node);
            self.operator(&data.op);
            self.put(format_args!("{:?} {:?}", data.provenance, data.metadata));
            for operand in data.operands() {
                let number = operand.map(|value| self.numbers.get(&value).copied());
                self.put(format_args!("{number:?}"));
            }
            self.put(format_args!("/ {}", data.n_formal()));
            for attr in data.attrs() {
                self.put(format_args!("{:?}=", attr.name));
                self.attr(&attr.value);
            }
            self.work.extend(data.bodies().collect::<Vec<_>>().into_iter().rev());
            for result in data.results() {
                self.put(format_args!("{}", if result.is_some() { '>' } else { '_' }));
                result.iter().for_each(|&value| self.define(value));
            }
        }
        for output in data.outputs() {
            let number = self.numbers.get(&output.value).copied();
            self.put(format_args!("< {number:?}"));
            if is_body {
                self.dtype(&output.declared);
            }
        }
        self.put(format_args!("}}"));
    }

    fn dtype(&mut self, ty: &Type) {
        self.put(format_args!("{:?}", ty.element_dtype()));
    }

    fn operator(&mut self, op: &Op) {
        match *op {
            Op::Call(function) => match self.classes.get(&function) {
                Some(class) => self.put(format_args!("; call class {class}")),
                None => self.put(format_args!("; call {}", function.index())),
            },
            Op::Schema(schema) => {
                self.put(format_args!("; {:?} {} {}", schema.domain, schema.name, schema.since));
            }
            Op::Custom { domain, name, overload } => {
                self.put(format_args!("; custom {domain:?} {name:?} {overload:?}"));
            }
        }
    }

    fn attr(&mut self, value: &AttrValue) {
        match value {
            AttrValue::Tensor(data) => self.tensor(data),
            AttrValue::Tensors(list) => list.iter().for_each(|data| self.tensor(data)),
            AttrValue::SparseTensor(data) => {
                self.payload(&Payload::Sparse(data.clone()));
            }
            AttrValue::SparseTensors(list) => {
                list.iter().for_each(|data| self.payload(&Payload::Sparse(data.clone())));
            }
            AttrValue::Float(value) => self.put(format_args!("{}", value.to_bits())),
            AttrValue::Floats(list) => {
                let bits: Vec<u32> = list.iter().map(|value| value.to_bits()).collect();
                self.put(format_args!("{bits:?}"));
            }
            AttrValue::Graph(_) | AttrValue::Graphs(_) => {
                self.put(format_args!("bodies {}", value.graphs().len()));
            }
            AttrValue::Int(_)
            | AttrValue::Ints(_)
            | AttrValue::String(_)
            | AttrValue::Strings(_)
            | AttrValue::Type(_)
            | AttrValue::Types(_)
            | AttrValue::Reference { .. } => self.put(format_args!("{value:?}")),
        }
    }

    fn payload(&mut self, payload: &Payload) {
        match payload {
            Payload::Dense(data) => self.tensor(data),
            Payload::Sparse(data) => {
                self.put(format_args!("sparse {:?}", data.dims));
                self.tensor(&data.values);
                self.tensor(&data.indices);
            }
        }
    }

    /// Small tensors are equal if their elements are, others if they are the elements of one constant.
    fn tensor(&mut self, data: &TensorData) {
        self.put(format_args!("{:?} {:?}", data.dtype(), data.dims()));
        match data.small_bytes(SMALL) {
            Some(bytes) => self.put(format_args!("{bytes:?}")),
            None => self.put(format_args!(
                "{:?} {:?} {:?}",
                data.stored_dtype(),
                data.pending(),
                data.storage().place()
            )),
        }
    }
}
