//! Inference of nodes that make no sense: it may refuse them, it never panics and never asks for much memory.
//!
//! Every operator at every version, with operands of random legal types, extreme extents and extreme integers, and
//! random attributes. The generator is fixed, so a failure stays.

#![expect(clippy::unwrap_used, reason = "what cannot be built fails the test")]

use ampc_ir::attr::AttrValue;
use ampc_ir::infer::infer_module;
use ampc_ir::module::Provenance;
use ampc_ir::op::{AttrKind, OpSchema, all};
use ampc_ir::{DType, Dim, Module, NewNode, Op, Payload, Position, Shape, TensorData, Type, Value};
use std::sync::Arc;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
    fn int(&mut self) -> i64 {
        self.pick(&[0, 1, 2, 3, 4, -1, -2, -3, 7, 100, i64::MAX, i64::MIN, i64::MAX - 1, 1 << 31, -(1 << 31)])
    }
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(5)).map(|_| item(self)).collect()
    }
}

fn random_shape(r: &mut Random, module: &mut Module) -> Shape {
    if r.below(8) == 0 {
        return Shape::unknown();
    }
    let symbol = module.intern("N");
    let dims = [
        Dim::Known(0),
        Dim::Known(1),
        Dim::Known(2),
        Dim::Known(3),
        Dim::Known(4),
        Dim::Known(u64::MAX),
        Dim::Known(1 << 62),
        Dim::Known(1 << 32),
        Dim::Sym(symbol),
        Dim::Unknown,
    ];
    Shape::of(r.list(|r| r.pick(&dims)))
}

fn random_constant(r: &mut Random, dtype: DType) -> TensorData {
    let ints = r.list(Random::int);
    let n = ints.len() as u64;
    let dims: &[u64] = if n == 1 && r.below(2) == 0 { &[] } else { &[n] };
    if dtype == DType::I64 {
        return TensorData::from_i64(dims, &ints).unwrap();
    }
    let floats: Vec<f32> =
        ints.iter().map(|_| r.pick(&[0.0, 1.0, -2.5, f32::MAX, f32::NAN, f32::INFINITY])).collect();
    TensorData::from_f32(dims, &floats).unwrap()
}

fn random_operand(r: &mut Random, module: &mut Module, schema: &OpSchema, i: usize) -> Option<Value> {
    let formal = schema.input(i)?;
    let set = schema.types_of(formal);
    let graph = module.main();
    let name = module.intern(&format!("x{i}"));
    for dtype in [DType::I64, DType::F32] {
        if set.has_tensor(dtype) && r.below(3) == 0 {
            let data = Arc::new(random_constant(r, dtype));
            return Some(module.add_constant(graph, name, Payload::Dense(data)));
        }
    }
    let dtypes: Vec<DType> = set.tensor_dtypes().collect();
    let tensor = |dtype, shape| Type::tensor(dtype, shape);
    let shape = random_shape(r, module);
    let ty = match r.below(10) {
        0 => return None,
        1 => Type::Unknown,
        2 | 3 if set.sequence != 0 => Type::Sequence(Box::new(tensor(DType::F32, shape))),
        4 | 5 if set.optional != 0 => Type::Optional(Box::new(tensor(DType::F32, shape))),
        _ if !dtypes.is_empty() => tensor(if r.below(2) == 0 { dtypes[0] } else { r.pick(&dtypes) }, shape),
        _ if set.sequence != 0 => Type::Sequence(Box::new(tensor(DType::F32, shape))),
        _ => Type::Unknown,
    };
    Some(module.add_input(graph, name, ty, None))
}

fn random_attr(r: &mut Random, kind: AttrKind) -> Option<AttrValue> {
    let bytes = |s: &str| s.as_bytes().to_vec().into_boxed_slice();
    let strings = [
        "constant",
        "none",
        "SAME_UPPER",
        "VALID",
        "NOTSET",
        "linear",
        "FLOAT",
        "a,b->ab",
        "...ij->",
        "\u{e9}",
    ];
    Some(match kind {
        AttrKind::Int => AttrValue::Int(r.int()),
        AttrKind::Ints => AttrValue::Ints(r.list(Random::int)),
        AttrKind::Float => AttrValue::Float(r.pick(&[0.0, -1.0, f32::NAN, f32::MAX])),
        AttrKind::Floats => AttrValue::Floats(r.list(|r| r.pick(&[0.0, 0.5, f32::INFINITY]))),
        AttrKind::String => AttrValue::String(bytes(r.pick(&strings))),
        AttrKind::Strings => AttrValue::Strings(r.list(|r| bytes(r.pick(&strings)))),
        AttrKind::Tensor => AttrValue::Tensor(Arc::new(random_constant(r, DType::I64))),
        AttrKind::Type => AttrValue::Type(Type::tensor(DType::F32, Shape::unknown())),
        AttrKind::Graph
        | AttrKind::Graphs
        | AttrKind::SparseTensor
        | AttrKind::SparseTensors
        | AttrKind::Tensors
        | AttrKind::Types => return None,
    })
}

fn try_one(r: &mut Random, schema: &'static OpSchema) -> bool {
    let mut module = Module::new();
    let (least, most) = schema.n_inputs;
    let n =
        usize::try_from(least).unwrap() + r.below(usize::try_from(most.min(least + 3) - least + 1).unwrap());
    let operands = (0..n).map(|i| random_operand(r, &mut module, schema, i)).collect();
    let mut attrs = Vec::new();
    for attr in schema.attrs {
        if attr.required || r.below(2) == 0 {
            attrs.extend(random_attr(r, attr.kind).map(|value| (module.intern(attr.name), value)));
        }
    }
    let n_results = usize::try_from(schema.n_outputs.0.max(1)).unwrap() + r.below(3);
    let results = (0..n_results).map(|i| Some((module.intern(&format!("y{i}")), Type::Unknown))).collect();
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands,
        attrs,
        results,
        provenance: Provenance::User,
    };
    module.add_node(module.main(), Position::Last, new);
    infer_module(&mut module).is_ok()
}

#[test]
fn inference_never_panics() {
    let mut accepted = 0;
    for (i, schema) in (0u64..).zip(all()).filter(|(_, s)| !s.deprecated) {
        for round in 0..200 {
            let mut r = Random(i << 32 | round);
            accepted += u32::from(try_one(&mut r, schema));
        }
    }
    assert!(accepted > 5000, "only {accepted} nodes were accepted: the generator is too wild");
}
