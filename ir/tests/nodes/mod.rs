//! Modules of one node, written as text: what the tests of inference share.
//!
//! Operands and attributes are separated by `;`. Operands: `_` is an absent one, `f32[2,N,?]` and `f32[*]` are
//! inputs, `i64[2]={1,2}` is a constant. Attributes: `name=i:1`, `f:0.5`, `s:text`, `is:1,2`, `fs:0.5,1`.

use ampc_ir::infer::infer_module;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Lookup, lookup};
use ampc_ir::tensor::Storage;
use ampc_ir::{
    AttrValue, DType, Dim, Module, NewNode, Op, Payload, Position, Shape, TensorData, TensorType, Type, Value,
};
use std::sync::Arc;

/// One node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeText<'a> {
    pub(crate) domain: &'a str,
    pub(crate) op: &'a str,
    pub(crate) opset: u16,
    pub(crate) operands: &'a str,
    pub(crate) attrs: &'a str,
    pub(crate) results: usize,
}

/// The types of the results, in the module whose symbols they name.
pub(crate) fn infer(case: NodeText<'_>) -> Result<(Module, Vec<Type>), String> {
    let found = lookup(case.domain, case.op, case.opset);
    let Lookup::Found(schema) = found else { return Err(format!("{found:?}")) };
    let mut module = Module::new();
    let main = module.main();
    let mut operands = smallvec::SmallVec::new();
    for (i, text) in split(case.operands).iter().enumerate() {
        operands.push((text != "_").then(|| operand(&mut module, i, text)));
    }
    let attrs = split(case.attrs).iter().map(|text| attr(&mut module, text)).collect();
    let results = (0..case.results).map(|i| Some((module.intern(&format!("y{i}")), Type::Unknown))).collect();
    let new = NewNode {
        op: Op::Schema(schema),
        name: None,
        operands,
        attrs,
        results,
        provenance: Provenance::default(),
    };
    let node = module.add_node(main, Position::Last, new);
    infer_module(&mut module).map_err(|errors| errors[0].to_string())?;
    let types = module.node(node).results().iter().map(|r| module.value(r.unwrap()).ty.clone()).collect();
    Ok((module, types))
}

/// The parts between `;`; none of the empty text.
pub(crate) fn split(text: &str) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(';').map(str::to_owned).collect() }
}

fn operand(module: &mut Module, i: usize, text: &str) -> Value {
    let main = module.main();
    let name = module.intern(&format!("x{i}"));
    let Some((ty, values)) = text.split_once('=') else {
        let ty = parse_type(module, text);
        return module.add_input(main, name, ty, None);
    };
    let Type::Tensor(TensorType { dtype, shape }) = parse_type(module, ty) else { panic!("{text}") };
    let values = values.trim_matches(['{', '}']);
    let bytes: Vec<u8> = values.split(',').filter(|v| !v.is_empty()).flat_map(|v| encode(dtype, v)).collect();
    let data = TensorData::new(dtype, shape.to_known().unwrap(), Storage::Bytes(bytes.into())).unwrap();
    module.add_constant(main, name, Payload::Dense(Arc::new(data)))
}

fn encode(dtype: DType, value: &str) -> Vec<u8> {
    if dtype == DType::F32 {
        value.parse::<f32>().unwrap().to_le_bytes().to_vec()
    } else if dtype == DType::F64 {
        value.parse::<f64>().unwrap().to_le_bytes().to_vec()
    } else {
        // Two's complement: the low bytes of the number.
        let bytes = dtype.bits().expect("a number") as usize / 8;
        value.parse::<i64>().unwrap().to_le_bytes()[..bytes].to_vec()
    }
}

fn attr(module: &mut Module, text: &str) -> (ampc_ir::Symbol, AttrValue) {
    let (name, value) = text.split_once('=').unwrap();
    let (kind, value) = value.split_once(':').unwrap();
    let items = || value.split(',').filter(|v| !v.is_empty());
    let value = match kind {
        "i" => AttrValue::Int(value.parse().unwrap()),
        "f" => AttrValue::Float(value.parse().unwrap()),
        "s" => AttrValue::String(value.as_bytes().into()),
        "is" => AttrValue::Ints(items().map(|v| v.parse().unwrap()).collect()),
        "fs" => AttrValue::Floats(items().map(|v| v.parse().unwrap()).collect()),
        other => panic!("attribute kind {other}"),
    };
    (module.intern(name), value)
}

pub(crate) fn parse_type(module: &mut Module, text: &str) -> Type {
    if text == "?" {
        return Type::Unknown;
    }
    let inside = |prefix: &str| text.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(element) = inside("seq(") {
        return Type::Sequence(Box::new(parse_type(module, element)));
    }
    if let Some(element) = inside("optional(") {
        return Type::Optional(Box::new(parse_type(module, element)));
    }
    let (dtype, dims) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let dtype = dtype.parse().unwrap();
    if dims == "*" {
        return Type::tensor(dtype, Shape::unknown());
    }
    let dims = dims.split(',').filter(|d| !d.is_empty()).map(|d| match d.parse::<i64>() {
        Ok(n) => u64::try_from(n).map_or(Dim::Unknown, Dim::Known),
        Err(_) if d == "?" => Dim::Unknown,
        Err(_) => Dim::Sym(module.intern(d)),
    });
    let shape = Shape::of(dims);
    Type::tensor(dtype, shape)
}

pub(crate) fn spell_all(module: &Module, types: &[Type]) -> String {
    types.iter().map(|t| spell(module, t)).collect::<Vec<_>>().join(";")
}

fn spell(module: &Module, ty: &Type) -> String {
    match ty {
        Type::Tensor(t) => match t.shape.dims() {
            None => format!("{}[*]", t.dtype),
            Some(dims) => {
                let dims: Vec<String> = dims
                    .iter()
                    .map(|d| match d {
                        Dim::Known(n) => n.to_string(),
                        Dim::Sym(s) => module.text(*s).to_owned(),
                        Dim::Unknown => "?".to_owned(),
                    })
                    .collect();
                format!("{}[{}]", t.dtype, dims.join(","))
            }
        },
        Type::Sequence(t) => format!("seq({})", spell(module, t)),
        Type::Optional(t) => format!("optional({})", spell(module, t)),
        Type::Unknown | Type::Sparse(_) | Type::Map { .. } | Type::Opaque { .. } => "?".to_owned(),
    }
}
