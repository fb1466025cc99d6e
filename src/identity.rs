//! The identity of a training step: a hash of its content, which its states have as well.
//!
//! Every file form of a step has the same identity: the hash is made of operators, attributes, constants, the
//! names and types of inputs, the names of outputs and the metadata of the step. Names of nodes and of other
//! values, the order of nodes, Identity nodes and unused nodes are no part of it. Each value has the hash of the
//! node that computes it, which includes the hashes of the operands.

use crate::error::{Error, unreadable};
use crate::onnx::sparse::{MAX_DENSE, densified};
use ampc_ir::attr::AttrValue;
use ampc_ir::module::{Def, Op, Payload};
use ampc_ir::op::OpKind;
use ampc_ir::tensor::{SparseData, TensorError};
use ampc_ir::verify::name_of;
use ampc_ir::{FunctionId, GraphId, Module, Node, TensorData, Type, Value};
use ampc_passes::step::inference::FORWARD;
use ampc_passes::step::state::{IDENTITY, METADATA, SCALER_METADATA};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::ControlFlow;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

/// Gives a step the hash of its content as identity, which its states have as well.
pub(crate) fn identify(step: &mut Module) -> Result<(), Error> {
    let identity = content_hash(step).map_err(unreadable)?;
    let entry = step.header.metadata.iter_mut().find(|(key, _)| key == IDENTITY);
    match entry {
        Some((_, known)) => *known = identity,
        None => step.header.set_metadata(IDENTITY, identity),
    }
    Ok(())
}

/// Gives a step that has an identity the identity of its present content, if its constants can be read. A dump has
/// no constants; readers of the dump compute the identity as well.
pub(crate) fn identify_again(step: &mut Module) {
    if is_step(step) && step.header.metadata.iter().any(|(key, _)| key == IDENTITY) {
        let _ = identify(step);
    }
}

/// The identity of a step: the hash of its content. The metadata says only if the step has an identity, because a step
/// that was changed is another step.
///
/// # Errors
/// If a constant cannot be read.
pub fn identity_of(step: &Module) -> Result<Option<String>, Error> {
    let is_there = step.header.metadata.iter().any(|(key, _)| key == IDENTITY);
    let identity = is_there.then(|| content_hash(step)).transpose();
    identity.map_err(unreadable)
}

/// Refuses the state at `path`, which has the identity `found`, for a step of the [identity](identity_of) `expected`, if
/// it is that of another step. A step or a state without identity may have any origin.
///
/// # Errors
/// If they differ.
pub fn refuse_state_of_other(expected: Option<&str>, found: Option<&str>, path: &Path) -> Result<(), Error> {
    match (expected, found) {
        (Some(expected), Some(found)) if expected != found => Err(Error::Data {
            path: path.to_owned(),
            reason: format!(
                "expected the state of this step (`{IDENTITY}` {expected}), found that of another step ({found}): take both \
                 from one run of `train-step`, and the step as that run wrote it; `train --init` takes only weights of \
                 another state"
            ),
        }),
        _ => Ok(()),
    }
}

/// True if a model is a training step.
pub fn is_step(module: &Module) -> bool {
    module.header.metadata.iter().any(|(key, _)| key == METADATA)
}

/// The hash of the content of a step.
///
/// # Errors
/// If a constant cannot be read.
fn content_hash(step: &Module) -> Result<String, TensorError> {
    let mut content = Content {
        module: step,
        known: FxHashMap::default(),
        functions: Vec::new(),
        seen: FxHashSet::default(),
    };
    let mut digest = Digest::new("step");
    digest.number(content.graph(step.main(), None, 0)?);
    let (mut functions, mut at) = (Vec::new(), 0);
    while let Some(&function) = content.functions.get(at) {
        functions.push(content.function(function)?);
        at += 1;
    }
    functions.sort_unstable();
    digest.numbers(&functions);
    for key in [METADATA, FORWARD, SCALER_METADATA] {
        let text = step.header.metadata.iter().find(|(known, _)| known == key).map(|(_, text)| text);
        digest.text(text.map_or("", String::as_str));
    }
    Ok(format!("{:032x}", digest.end()))
}

/// A hash of a list of texts and numbers.
struct Digest(Xxh3);

impl Digest {
    fn new(kind: &str) -> Digest {
        let mut digest = Digest(Xxh3::new());
        digest.text(kind);
        digest
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn number(&mut self, number: u128) {
        self.0.update(&number.to_le_bytes());
    }

    fn numbers(&mut self, numbers: &[u128]) {
        self.number(numbers.len() as u128);
        numbers.iter().for_each(|&number| self.number(number));
    }

    fn int(&mut self, int: i64) {
        self.0.update(&int.to_le_bytes());
    }

    fn end(self) -> u128 {
        self.0.digest128()
    }
}

struct Content<'m> {
    module: &'m Module,
    /// The hashes of values.
    known: FxHashMap<Value, u128>,
    /// The called functions, in the order in which calls are found.
    functions: Vec<FunctionId>,
    seen: FxHashSet<FunctionId>,
}

impl Content<'_> {
    fn graph(&mut self, graph: GraphId, owner: Option<Node>, depth: u128) -> Result<u128, TensorError> {
        let (module, is_main) = (self.module, graph == self.module.main());
        let data = module.graph(graph);
        let mut digest = Digest::new("graph");
        digest.numbers(&[data.inputs().len() as u128, data.outputs().len() as u128]);
        for (index, &input) in data.inputs().iter().enumerate() {
            let mut formal = Digest::new("input");
            if is_main {
                self.input(&mut formal, input)?;
            } else {
                formal.numbers(&[depth, index as u128]);
            }
            let hash = formal.end();
            digest.number(hash);
            self.known.insert(input, hash);
        }
        for &capture in data.captures() {
            let Def::Capture { slot } = module.value(capture).def else { continue };
            let operand = owner.and_then(|node| module.node(node).operand(slot as usize));
            let hash = self.value(operand)?;
            self.known.insert(capture, hash);
        }
        for node in module.nodes(graph) {
            self.node(node, depth)?;
        }
        for output in data.outputs() {
            if is_main {
                digest.text(&name_of(module, output.value));
            }
            digest.number(self.value(Some(output.value))?);
        }
        Ok(digest.end())
    }

    fn function(&mut self, function: FunctionId) -> Result<u128, TensorError> {
        let (module, data) = (self.module, self.module.function(function));
        let mut digest = Digest::new("function");
        for name in [data.domain, data.name, data.overload] {
            digest.text(module.text(name));
        }
        let mut defaults: Vec<_> =
            data.attr_defaults.iter().map(|attr| (module.text(attr.name), &attr.value)).collect();
        defaults.sort_by_key(|(name, _)| *name);
        digest.number(defaults.len() as u128);
        for (name, value) in defaults {
            digest.text(name);
            self.attr(&mut digest, value, None, 0)?;
        }
        digest.number(self.graph(data.graph, None, 0)?);
        Ok(digest.end())
    }

    /// An input of the main graph: name, type and default.
    fn input(&self, digest: &mut Digest, input: Value) -> Result<(), TensorError> {
        let data = self.module.value(input);
        digest.text(&name_of(self.module, input));
        if let Type::Tensor(tensor) = &data.ty {
            digest.int(i64::from(tensor.dtype.number()));
            let dims = tensor.shape.dims().unwrap_or_default();
            let dims: Vec<u128> = dims.iter().map(|dim| dim.known().map_or(u128::MAX, u128::from)).collect();
            digest.numbers(&dims);
        }
        match &data.def {
            Def::Input { default: Some(payload), .. } => digest.number(payload_hash(payload)?),
            _ => digest.number(0),
        }
        Ok(())
    }

    /// The hash of an operand or output; 0 if it is absent.
    fn value(&mut self, value: Option<Value>) -> Result<u128, TensorError> {
        let Some(value) = value else { return Ok(0) };
        if let Some(&hash) = self.known.get(&value) {
            return Ok(hash);
        }
        let hash = match self.module.constant(value) {
            Some(payload) => payload_hash(payload)?,
            None => 0,
        };
        self.known.insert(value, hash);
        Ok(hash)
    }

    fn node(&mut self, node: Node, depth: u128) -> Result<(), TensorError> {
        let (module, data) = (self.module, self.module.node(node));
        // Writers add Identity nodes, such as for an input that is an output.
        if data.schema().is_some_and(|schema| schema.kind == OpKind::Identity) {
            let hash = self.value(data.operand(0))?;
            self.known.extend(data.result(0).map(|result| (result, hash)));
            return Ok(());
        }
        let mut digest = Digest::new("node");
        let [domain, name, overload] = match data.op {
            // A file without signatures has a custom operator instead.
            Op::Schema(schema) => [schema.domain, schema.name, ""],
            Op::Custom { domain, name, overload } => [domain, name, overload].map(|s| module.text(s)),
            Op::Call(function) => {
                if self.seen.insert(function) {
                    self.functions.push(function);
                }
                digest.text("call");
                let function = module.function(function);
                [function.domain, function.name, function.overload].map(|s| module.text(s))
            }
        };
        digest.text(if domain == "ai.onnx" { "" } else { domain });
        digest.text(name);
        digest.text(overload);
        let mut attrs: Vec<_> =
            data.attrs().iter().map(|attr| (module.text(attr.name), &attr.value)).collect();
        attrs.sort_by_key(|(name, _)| *name);
        digest.number(attrs.len() as u128);
        for (name, value) in attrs {
            digest.text(name);
            self.attr(&mut digest, value, Some(node), depth)?;
        }
        let operands = data.formal_operands();
        let given = operands.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        digest.number(given as u128);
        for &operand in &operands[..given] {
            digest.number(self.value(operand)?);
        }
        let hash = digest.end();
        for (slot, result) in data.results().iter().enumerate() {
            let Some(result) = *result else { continue };
            let mut digest = Digest::new("result");
            digest.numbers(&[hash, slot as u128]);
            self.known.insert(result, digest.end());
        }
        Ok(())
    }

    fn attr(
        &mut self,
        digest: &mut Digest,
        value: &AttrValue,
        node: Option<Node>,
        depth: u128,
    ) -> Result<(), TensorError> {
        digest.text(&format!("{:?}", value.kind()));
        digest.number(length(value) as u128);
        match value {
            AttrValue::Float(number) => digest.number(number.to_bits().into()),
            AttrValue::Int(number) => digest.int(*number),
            AttrValue::String(text) => digest.bytes(text),
            AttrValue::Tensor(data) => digest.number(tensor_hash(data)?),
            AttrValue::SparseTensor(data) => digest.number(sparse_hash(data)?),
            AttrValue::Type(ty) => digest.text(&ampc_ir::infer::describe(ty)),
            AttrValue::Floats(list) => list.iter().for_each(|number| digest.number(number.to_bits().into())),
            AttrValue::Ints(list) => list.iter().for_each(|number| digest.int(*number)),
            AttrValue::Strings(list) => list.iter().for_each(|text| digest.bytes(text)),
            AttrValue::Tensors(list) => {
                list.iter().try_for_each(|data| tensor_hash(data).map(|hash| digest.number(hash)))?;
            }
            AttrValue::SparseTensors(list) => {
                list.iter().try_for_each(|data| sparse_hash(data).map(|hash| digest.number(hash)))?;
            }
            AttrValue::Types(list) => {
                list.iter().for_each(|ty| digest.text(&ampc_ir::infer::describe(ty)));
            }
            AttrValue::Graph(_) | AttrValue::Graphs(_) => {
                for &body in value.graphs() {
                    digest.number(self.graph(body, node, depth + 1)?);
                }
            }
            AttrValue::Reference { name, .. } => {
                digest.text("reference");
                digest.text(self.module.text(*name));
            }
        }
        Ok(())
    }
}

/// The number of items of a list; 1 for other values.
fn length(value: &AttrValue) -> usize {
    match value {
        AttrValue::Floats(list) => list.len(),
        AttrValue::Ints(list) => list.len(),
        AttrValue::Strings(list) => list.len(),
        AttrValue::Tensors(list) => list.len(),
        AttrValue::SparseTensors(list) => list.len(),
        AttrValue::Types(list) => list.len(),
        AttrValue::Graph(_) | AttrValue::Graphs(_) => value.graphs().len(),
        _ => 1,
    }
}

fn payload_hash(payload: &Payload) -> Result<u128, TensorError> {
    match payload {
        Payload::Dense(data) => tensor_hash(data),
        // The reader of ONNX makes sparse constants dense.
        Payload::Sparse(data) => {
            let mut left = MAX_DENSE;
            densified(data, &mut left).map_or_else(|_| sparse_hash(data), |dense| tensor_hash(&dense))
        }
    }
}

/// The hash of element type, dims and elements after pending conversions.
fn tensor_hash(data: &TensorData) -> Result<u128, TensorError> {
    let mut digest = Digest::new("tensor");
    digest.int(i64::from(data.dtype().number()));
    digest.numbers(&data.dims().iter().copied().map(u128::from).collect::<Vec<_>>());
    digest.number(match data.pending() {
        [] => data.content_hash()?,
        _ => {
            let mut hash = Xxh3::new();
            data.visit_converted(|chunk| {
                hash.update(chunk);
                ControlFlow::Continue(())
            })?;
            hash.digest128()
        }
    });
    Ok(digest.end())
}

fn sparse_hash(data: &SparseData) -> Result<u128, TensorError> {
    let mut digest = Digest::new("sparse");
    digest.numbers(&data.dims.iter().copied().map(u128::from).collect::<Vec<_>>());
    digest.number(tensor_hash(&data.values)?);
    digest.number(tensor_hash(&data.indices)?);
    Ok(digest.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: &str = "module ir=10\nmeta ampc.state = \"[]\"\nopset ai.onnx=21\n\ngraph @main {
  input %x : f32[N, 2]\n  const %c : f32[2] = [1.0, 2.0]
  %a = Add(%x, %c) : f32[N, 2]\n  %r = Relu(%a) : f32[N, 2] @r\n  %s = Sum(%r, %x) : f32[N, 2]
  output %s : f32[N, 2]\n}\n";

    fn hash(text: &str) -> String {
        let module = ampc_ir::text::parse(text, &ampc_ir::text::NoData);
        content_hash(&module.unwrap_or_else(|errors| panic!("{errors}"))).unwrap()
    }

    #[test]
    fn other_spellings_have_the_identity_and_other_contents_have_another() {
        let changed = |from: &str, to: &str| {
            assert!(STEP.contains(from), "{from}");
            hash(&STEP.replace(from, to))
        };
        for (from, to) in [
            (" @r\n", "\n"),
            ("%r", "%other"),
            ("@main", "@graph"),
            ("module ir=10\n", "module ir=10\nproducer \"x\" \"1\"\nmeta note = \"x\"\n"),
            ("  %r =", "  %unused = Neg(%a) : f32[N, 2]\n  %r ="),
            ("  %a = Add(%x, %c)", "  %i = Identity(%x) : f32[N, 2]\n  %a = Add(%i, %c)"),
        ] {
            assert_eq!(changed(from, to), hash(STEP), "{from} -> {to}");
        }
        for (from, to) in [
            ("Relu", "Sigmoid"),
            ("2.0]", "2.5]"),
            ("Add(%x, %c)", "Sub(%x, %c)"),
            ("Sum(%r, %x)", "Sum(%a, %x)"),
            ("input %x : f32[N, 2]", "input %x : f32[N, 2]\n  input %w : f32"),
            ("\"[]\"", "\"[ ]\""),
        ] {
            assert_ne!(changed(from, to), hash(STEP), "{from} -> {to}");
        }
    }
}
