//! The elementwise operators against inference, for every operator of the table: the result of an elementwise one has
//! the shape that its operands broadcast to, and what else has that shape is named here.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be read fails it")]

mod nodes;

use ampc_ir::DType;
use ampc_ir::op::{Arity, OpKind, OpSchema, is_elementwise};
use nodes::{NodeText, infer, spell_all};

/// Operators whose result has the shape of the operands here, though its elements depend on others, on a scale of the
/// axis that they are on, or on chance; and those of ai.onnx.ml.
const OTHERS: &[&str] = &[
    "Bernoulli",
    "DequantizeLinear",
    "Dropout",
    "GatherElements",
    "Hardmax",
    "LayerNormalization",
    "LogSoftmax",
    "LpNormalization",
    "OptionalGetElement",
    "QuantizeLinear",
    "RMSNormalization",
    "RandomNormalLike",
    "RandomUniformLike",
    "Scatter",
    "ScatterElements",
    "SimplifiedLayerNormalization",
    "Softmax",
    "Squeeze",
    "TensorScatter",
    "Trilu",
    "MlBinarizer",
    "MlCategoryMapper",
    "MlImputer",
    "MlNormalizer",
    "MlScaler",
    "TrainingGradient",
    "ContribDequantizeLinear",
    "ContribInverse",
    "ContribQuantizeLinear",
    "ContribRotaryEmbedding",
    "ContribSkipLayerNormalization",
    "ContribSkipSimplifiedLayerNormalization",
];

/// The last characters of the type of the result.
const RESULT: &str = "[4,2,3]";

/// The type of the first result for these dims of the operands, if inference knows it.
fn result(schema: &'static OpSchema, dims: &dyn Fn(usize) -> &'static str) -> Option<String> {
    // A variadic operand is there twice.
    let last = schema.inputs.last().is_some_and(|formal| matches!(formal.arity, Arity::Variadic { .. }));
    let count =
        schema.inputs.iter().filter(|formal| formal.arity != Arity::Optional).count() + usize::from(last);
    let dtype = |i: usize| {
        let dtypes: Vec<DType> = schema.types_of(schema.input(i)?).tensor_dtypes().collect();
        let preferred = [DType::F32, DType::U8, DType::I32, DType::Bool].into_iter();
        preferred.chain(dtypes.first().copied()).find(|dtype| dtypes.contains(dtype))
    };
    let operands = (0..count).map(|i| Some(format!("{}[{}]", dtype(i)?, dims(i))));
    let operands = operands.collect::<Option<Vec<_>>>()?.join(";");
    let attrs = match schema.kind {
        OpKind::BitShift => "direction=s:LEFT",
        OpKind::BitCast | OpKind::Cast => "to=i:1",
        _ => "",
    };
    let opset = schema.since;
    let case =
        NodeText { domain: schema.domain, op: schema.name, opset, operands: &operands, attrs, results: 1 };
    let (module, types) = infer(case).ok()?;
    Some(spell_all(&module, &types))
}

/// True if the result has the shape of the operands: the second operand is broadcast, or all have one shape.
fn has_shape_of_operands(schema: &'static OpSchema) -> bool {
    let broadcast = |i: usize| if i == 0 { "4,2,3" } else { "2,1" };
    let fits = |found: Option<String>| found.is_some_and(|ty| ty.ends_with(RESULT));
    fits(result(schema, &broadcast)) || fits(result(schema, &|_| "4,2,3"))
}

#[test]
fn elementwise_operators_have_the_shape_of_their_operands() {
    let mut others = Vec::new();
    for &kind in OpKind::ALL {
        let Some(schema) = kind.versions().iter().rev().find(|schema| !schema.is_gone()) else { continue };
        let same = has_shape_of_operands(schema);
        assert!(same || !is_elementwise(kind), "{kind:?} is no elementwise operator");
        if same && !is_elementwise(kind) {
            others.push(format!("{kind:?}"));
        }
    }
    assert_eq!(others, OTHERS);
}

/// All but a few broadcast each operand to the others, as NumPy does.
#[test]
fn operands_broadcast_from_both_sides() {
    let both = |i: usize| if i == 0 { "4,1,3" } else { "2,1" };
    let one_sided: Vec<String> = OpKind::ALL
        .iter()
        .filter(|&&kind| is_elementwise(kind))
        .filter_map(|kind| kind.versions().iter().rev().find(|schema| !schema.is_gone()))
        .filter(|schema| schema.inputs.iter().filter(|formal| formal.arity != Arity::Optional).count() > 1)
        .filter(|schema| result(schema, &both).is_none_or(|ty| !ty.ends_with(RESULT)))
        .map(|schema| format!("{:?}", schema.kind))
        .collect();
    assert_eq!(one_sided, ["CastLike", "PRelu", "SwiGLU", "ContribBiasAdd", "ContribBiasGelu"]);
}
