//! Inference never panics, whatever a file says: every operator at every version with hostile shapes and attributes.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be read fails it")]

use ampc_ir::infer::infer_module;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Arity, AttrKind, OpSchema, all};
use ampc_ir::{
    AttrValue, DType, Dim, Module, NewNode, Op, Payload, Position, Shape, TensorData, Type, Value,
};

/// A small generator with a fixed seed: the test is the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
    fn one_of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

const INTS: &[i64] = &[i64::MIN, -2, -1, 0, 0, 1, 1, 2, 3, 4, 1 << 40, i64::MAX];
const FLOATS: &[f32] = &[f32::NAN, f32::INFINITY, -1.0, 0.0, 0.5, 1.0, 2.5, f32::MAX];
const STRINGS: &[&str] = &[
    "",
    "NOTSET",
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "none",
    "mean",
    "bidirectional",
    "...ij,jk->...ik",
    "ij->",
    "->",
    "LEFT",
    "RGB",
    "not_larger",
    "tf_crop_and_resize",
    "gated",
    "\u{fffd}",
];

fn dim(draw: &mut Draw, module: &mut Module) -> Dim {
    match draw.below(8) {
        0 => Dim::Unknown,
        1 => Dim::Sym(module.intern("N")),
        2 => Dim::Known(draw.one_of(&[u64::MAX, 1 << 62, 1 << 32])),
        _ => Dim::Known(u64::try_from(draw.below(6)).unwrap()),
    }
}

fn operand(draw: &mut Draw, module: &mut Module, name: &str, dtype: DType) -> Value {
    let main = module.main();
    let name = module.intern(name);
    if dtype == DType::I64 && draw.below(2) == 0 {
        let n = draw.below(6);
        let values: Vec<i64> = (0..n).map(|_| draw.one_of(INTS)).collect();
        let dims = [u64::try_from(n).unwrap()];
        let dims: &[u64] = if n == 1 && draw.below(2) == 0 { &[] } else { &dims };
        let data = TensorData::from_i64(dims, &values).unwrap();
        return module.add_constant(main, name, Payload::Dense(data.into()));
    }
    if dtype == DType::F32 && draw.below(4) == 0 {
        let n = draw.below(6);
        let values: Vec<f32> = (0..n).map(|_| draw.one_of(FLOATS)).collect();
        let data = TensorData::from_f32(&[u64::try_from(n).unwrap()], &values).unwrap();
        return module.add_constant(main, name, Payload::Dense(data.into()));
    }
    let shape = match draw.below(8) {
        0 => Shape::unknown(),
        _ => {
            let rank = draw.below(7);
            Shape::of((0..rank).map(|_| dim(draw, module)).collect::<Vec<_>>())
        }
    };
    module.add_input(main, name, Type::tensor(dtype, shape), None)
}

fn attr(draw: &mut Draw, kind: AttrKind) -> Option<AttrValue> {
    let n = draw.below(6);
    Some(match kind {
        AttrKind::Int => AttrValue::Int(draw.one_of(INTS)),
        AttrKind::Float => AttrValue::Float(draw.one_of(FLOATS)),
        AttrKind::String => AttrValue::String(draw.one_of(STRINGS).as_bytes().into()),
        AttrKind::Ints => AttrValue::Ints((0..n).map(|_| draw.one_of(INTS)).collect()),
        AttrKind::Floats => AttrValue::Floats((0..n).map(|_| draw.one_of(FLOATS)).collect()),
        AttrKind::Strings => {
            AttrValue::Strings((0..n).map(|_| draw.one_of(STRINGS).as_bytes().into()).collect())
        }
        AttrKind::Tensor
        | AttrKind::Graph
        | AttrKind::SparseTensor
        | AttrKind::Type
        | AttrKind::Tensors
        | AttrKind::Graphs
        | AttrKind::SparseTensors
        | AttrKind::Types => return None,
    })
}

fn node(draw: &mut Draw, schema: &'static OpSchema) -> Module {
    let mut module = Module::new();
    let main = module.main();
    let most = schema.n_inputs.1.min(6).max(schema.n_inputs.0) as usize;
    let n = schema.n_inputs.0 as usize + draw.below(most - schema.n_inputs.0 as usize + 1);
    // One element type per type variable, so that most nodes get as far as their shapes.
    let mut by_var: Vec<Option<DType>> = vec![None; schema.type_vars.len()];
    let mut operands = smallvec::SmallVec::new();
    for i in 0..n {
        let formal = schema.input(i).unwrap();
        let absent = formal.arity == Arity::Optional && draw.below(4) == 0;
        let dtypes: Vec<DType> = schema.types_of(formal).tensor_dtypes().collect();
        let preferred = [DType::F32, DType::I64, DType::U8, DType::I32].into_iter();
        let preferred = preferred.filter(|d| dtypes.contains(d)).collect::<Vec<_>>();
        let mut dtype = draw.one_of(if preferred.is_empty() { &[DType::F32] } else { &preferred });
        if let ampc_ir::op::FormalType::Var(var) = formal.ty {
            dtype = *by_var[usize::from(var)].get_or_insert(dtype);
        }
        operands.push((!absent).then(|| operand(draw, &mut module, &format!("x{i}"), dtype)));
    }
    let mut attrs = Vec::new();
    for a in schema.attrs {
        if draw.below(3) > 0
            && let Some(value) = attr(draw, a.kind)
        {
            attrs.push((module.intern(a.name), value));
        }
    }
    let most = schema.n_outputs.1.min(5).max(schema.n_outputs.0) as usize;
    let m = schema.n_outputs.0 as usize + draw.below(most - schema.n_outputs.0 as usize + 1);
    let results = (0..m).map(|i| Some((module.intern(&format!("y{i}")), Type::Unknown))).collect();
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands,
        attrs,
        results,
        provenance: Provenance::User,
    };
    module.add_node(main, Position::Last, new);
    module
}

#[test]
fn inference_never_panics() {
    let mut draw = Draw(20);
    let (mut accepted, mut refused) = (0, 0);
    for schema in all() {
        if schema.deprecated || schema.attrs.iter().any(|a| a.kind == AttrKind::Graph && a.required) {
            continue;
        }
        for _ in 0..300 {
            match infer_module(&mut node(&mut draw, schema)) {
                Ok(_) => accepted += 1,
                Err(errors) => {
                    refused += 1;
                    assert!(!errors[0].to_string().is_empty());
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}
