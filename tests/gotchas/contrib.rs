//! Operators that ONNX Runtime adds to ONNX's: they are lowered like ONNX's own, and what comes out runs there.

use crate::runtime::{Feed, exec_models, f32s, uniform};
use crate::support::{Ask, Decided, module_with, options, rewrite};
use ampc::ir::{DType, Module, Node};

const OPSETS: &str = "ai.onnx=21, com.microsoft=1";

fn module(graph: &str) -> Module {
    module_with(OPSETS, graph)
}

/// A graph that reads `x : f32[2, 4, 8]` through a product, so that operators of class infer have low operands.
fn around(nodes: &str) -> String {
    format!(
        "input %x : f32[2, 4, 8]
         const %w : f32[8, 8] = random(1, 0.5)
         const %wide : f32[8, 24] = random(2, 0.5)
         const %wide_bias : f32[24] = random(3, 0.5)
         const %g : f32[8] = [1.0, 0.5, 0.75, 1.25, 1.0, 1.5, 0.5, 1.0]
         const %b : f32[8] = random(4, 0.5)
         const %skip : f32[2, 4, 8] = random(5)
         const %ids : i32[2, 4] = [0, 1, 2, 3, 4, 5, 6, 7]
         const %positions : i64[2, 4] = [0, 1, 2, 3, 0, 1, 2, 3]
         const %turns : f32[16, 2] = random(6)
         %h = MatMul(%x, %w) : ?
         {nodes}"
    )
}

fn feeds() -> Vec<Feed> {
    vec![f32s("x", &[2, 4, 8], &uniform(7, 64, 1.0))]
}

/// Operator, and nodes of which `%o` is the operator's first result.
const LOWERED: &[(&str, &str)] = &[
    ("Attention", "%o = com.microsoft::Attention(%h, %wide, %wide_bias) {num_heads=2} : ? @node"),
    (
        "MultiHeadAttention",
        "%o = com.microsoft::MultiHeadAttention(%h, %h, %h, %wide_bias) {num_heads=2} : ? @node",
    ),
    (
        "RotaryEmbedding",
        "%o = com.microsoft::RotaryEmbedding(%h, %positions, %turns, %turns) {num_heads=2} : ? @node",
    ),
    (
        "SkipLayerNormalization",
        "%o, _, _, %s = com.microsoft::SkipLayerNormalization(%h, %skip, %g, %b, %b) : ?, _, _, ? @node
         %z = MatMul(%s, %w) : ?
         output %z",
    ),
    (
        "SkipSimplifiedLayerNormalization",
        "%o = com.microsoft::SkipSimplifiedLayerNormalization(%h, %skip, %g) {epsilon=1e-6} : ? @node",
    ),
    (
        "EmbedLayerNormalization",
        "%o, _ = com.microsoft::EmbedLayerNormalization(%ids, %ids, %wide_rows, %w, %w, %g, %b) : ?, _ @node
         output %h",
    ),
    ("Gelu", "%o = com.microsoft::Gelu(%h) : ? @node"),
    ("FastGelu", "%o = com.microsoft::FastGelu(%h, %b) : ? @node"),
    ("QuickGelu", "%o = com.microsoft::QuickGelu(%h) {alpha=1.5} : ? @node"),
    ("BiasGelu", "%o = com.microsoft::BiasGelu(%h, %b) : ? @node"),
    ("FusedMatMul", "%o = com.microsoft::FusedMatMul(%h, %w) {transB=1, alpha=0.5} : ? @node"),
    ("TransposeMatMul", "%o = com.microsoft::TransposeMatMul(%h, %w) {transB=1} : ? @node"),
    (
        "FusedGemm",
        "%rows = Reshape(%h, %two) : ?
         %o = com.microsoft::FusedGemm(%rows, %w, %b) {activation=\"Relu\"} : ? @node",
    ),
    (
        "FusedConv",
        "%image = Reshape(%h, %four) : ?
         %o = com.microsoft::FusedConv(%image, %kernel) {activation=\"Relu\"} : ? @node",
    ),
    (
        "MatMulNBits",
        "%o = com.microsoft::MatMulNBits(%wide_h, %packed, %scales) {K=16, N=3, block_size=16, bits=4} : ? @node",
    ),
];

/// The constants that one of the operators needs.
const MORE: &str = "const %wide_rows : f32[8, 8] = random(8)
     const %two : i64[2] = [8, 8]
     const %four : i64[4] = [2, 2, 4, 4]
     const %kernel : f32[3, 2, 1, 1] = random(9)
     const %more : f32[8, 16] = random(10, 0.5)
     const %packed : u8[3, 1, 8] = [1, 35, 69, 103, 137, 171, 205, 239, 16, 50, 84, 118, 152, 186, 220, 254, 1, 2, 3, 4, 5, 6, 7, 8]
     const %scales : f32[3] = [0.1, 0.2, 0.05]";

fn graph_of(nodes: &str) -> String {
    let wide = if nodes.contains("%wide_h") { "%wide_h = MatMul(%h, %more) : ?" } else { "" };
    // What makes an output directly stays fp32 if it is of class infer.
    let after = if ["FusedConv", "NBits"].iter().any(|op| nodes.contains(op)) {
        "output %o"
    } else {
        "%after = MatMul(%o, %w) : ?\noutput %after"
    };
    around(&format!("{MORE}\n{wide}\n{nodes}\n{after}"))
}

/// The result of the operator, which leaves through a cast, is low, and the numbers are nearly the same.
#[test]
fn contrib_operators_are_lowered_and_run() {
    for (op, nodes) in LOWERED {
        let graph = graph_of(nodes);
        let (done, runs) =
            exec_models(module(&graph).into(), module(&graph).into(), &options(DType::F16), &feeds());
        assert_eq!(done.precision("node"), "fp16", "{op}: {}", done.rule("node"));
        let node = done.node_of(op);
        let result = done.module().node(node).result(0).unwrap();
        assert_eq!(done.module().value(result).ty.dtype(), Some(DType::F16), "{op}");
        if let Some(runs) = runs {
            println!("{op}: {}", if runs.low.is_some() { "ran" } else { "no kernel for fp16" });
            runs.are_within(1e-2);
        }
    }
}

/// BiasSoftmax is a softmax. The CPU has no kernel for it.
#[test]
fn contrib_softmax_stays_fp32() {
    let graph =
        graph_of("%o = com.microsoft::BiasSoftmax(%h, %skip) {axis=2, is_inner_broadcast=0} : ? @node");
    let done = rewrite(module(&graph).into(), &options(DType::F16));
    assert_eq!((done.precision("node"), done.rule("node")), ("fp32", "table"));
}

/// The bias of an attention may be a mask: with one that does not fit, the attention stays fp32.
#[test]
fn contrib_attention_is_as_safe_as_its_mask() {
    let attention = |mask: &str| {
        graph_of(&format!(
            "const %mask : f32[1, 1, 4, 4] = [0.0, {mask}, {mask}, {mask}, 0.0, 0.0, {mask}, {mask}, 0.0, 0.0, 0.0, {mask}, 0.0, 0.0, 0.0, 0.0]
             %o = com.microsoft::MultiHeadAttention(%h, %h, %h, _, _, %mask) {{num_heads=2}} : ? @node"
        ))
    };
    for (mask, precision) in [("-1e4", "fp16"), ("-3.4e38", "fp32")] {
        let graph = attention(mask);
        let (done, runs) =
            exec_models(module(&graph).into(), module(&graph).into(), &options(DType::F16), &feeds());
        assert_eq!(done.precision("node"), precision, "{mask}: {}", done.rule("node"));
        if let Some(runs) = runs {
            runs.are_within(1e-2);
        }
    }
}

/// A norm between products, whose result leaves through one more.
fn normed(opset: u16, norm: &str) -> Module {
    let graph = format!(
        "input %x : f32[2, 4, 8]
         const %w : f32[8, 8] = random(1, 0.5)
         const %g : f32[8] = [1.0, 0.5, 0.75, 1.25, 1.0, 1.5, 0.5, 1.0]
         const %b : f32[8] = random(4, 0.5)
         const %s : f32[2] = [1.0, 0.5]
         %h = MatMul(%x, %w) : ?
         {norm} @node
         %after = MatMul(%o, %w) : ?
         output %after"
    );
    module_with(&format!("ai.onnx={opset}"), &graph)
}

/// LayerNormalization below opset 17 is ONNX Runtime's, and GroupNormalization below 21 is deprecated: they are lowered
/// as their standard forms are, and run.
#[test]
fn norms_that_only_onnx_runtime_has_are_lowered_like_the_standard_ones() {
    let layer = "%o = LayerNormalization(%h, %g, %b) : ?";
    let old_group = "%o = GroupNormalization(%h, %s, %s) {num_groups=2} : ?";
    let new_group = "const %t : f32[4] = [1.0, 1.0, 0.5, 0.5]
         %o = GroupNormalization(%h, %t, %t) {num_groups=2} : ?";
    let simplified = "%o = SimplifiedLayerNormalization(%h, %g) : ?";
    for (name, old, new) in [
        ("LayerNormalization", normed(11, layer), normed(17, layer)),
        ("GroupNormalization", normed(18, old_group), normed(21, new_group)),
        ("SimplifiedLayerNormalization", normed(9, simplified), normed(21, simplified)),
    ] {
        let source = || old.clone().into();
        let (done, runs) = exec_models(source(), source(), &options(DType::F16), &feeds());
        let standard = rewrite(new.into(), &options(DType::F16));
        assert_eq!(done.precision("node"), "fp16", "{name}");
        assert_eq!(done.precision("node"), standard.precision("node"), "{name}");
        assert_eq!(done.rule("node"), standard.rule("node"), "{name}");
        assert_eq!(done.operand_dtypes(name), standard.operand_dtypes(name), "{name}");
        if let Some(runs) = runs {
            runs.are_within(1e-2);
        }
    }
}

/// ImageScaler is lowered like the Mul and Add that replace it.
#[test]
fn image_scalers_are_lowered_and_run() {
    let module = || {
        let graph = "input %x : f32[1, 2, 4, 4]
             const %w : f32[2, 2, 1, 1] = [0.5, 1.0, -1.0, 0.25]
             %h = Conv(%x, %w) : ?
             %o = ImageScaler(%h) {scale=0.5, bias=[0.25, -1.0]} : ? @node
             %after = Conv(%o, %w) : ?
             output %after";
        module_with("ai.onnx=9", graph)
    };
    let feeds = [f32s("x", &[1, 2, 4, 4], &uniform(7, 32, 1.0))];
    let (done, runs) = exec_models(module().into(), module().into(), &options(DType::F16), &feeds);
    assert_eq!(done.precision("node"), "fp16", "{}", done.rule("node"));
    if let Some(runs) = runs {
        runs.are_within(1e-2);
    }
}

/// A cache of keys and values is lowered with the query.
#[test]
fn contrib_group_query_attention_keeps_one_type() {
    let graph = "input %x : f32[1, 1, 16]
         input %past_k : f32[1, 2, 4, 8]
         input %past_v : f32[1, 2, 4, 8]
         const %w : f32[16, 16] = random(1, 0.5)
         const %lens : i32[1, 1] = [4]
         const %total : i32 = 5
         %h = MatMul(%x, %w) : ?
         %o, %k, %v = com.microsoft::GroupQueryAttention(%h, %h, %h, %past_k, %past_v, %lens, %total) {num_heads=2, kv_num_heads=2} : ?, ?, ? @node
         output %o
         output %k
         output %v";
    let feeds = [
        f32s("x", &[1, 1, 16], &uniform(1, 16, 1.0)),
        f32s("past_k", &[1, 2, 4, 8], &uniform(2, 64, 1.0)),
        f32s("past_v", &[1, 2, 4, 8], &uniform(3, 64, 1.0)),
    ];
    let (done, runs) = exec_models(module(graph).into(), module(graph).into(), &options(DType::F16), &feeds);
    let low = Some(DType::F16);
    let [.., past_k, past_v, _, _] = done.operand_dtypes("GroupQueryAttention")[..] else { panic!() };
    assert_eq!([past_k, past_v], [low; 2]);
    if let Some(runs) = runs {
        runs.are_within(1e-2);
    }
}

/// A node that does not fit its schema is kept with its types, and its results have no known type for readers.
#[test]
fn contrib_operators_that_do_not_fit_stay() {
    for (node, why) in [
        ("com.microsoft::Gelu(%h, %h) : ?", "1 operand of Gelu"),
        ("com.microsoft::Gelu(%h) {beta=1.0} : ?", "attribute `beta`"),
        ("com.microsoft::QuickGelu(%h) {alpha=1} : ?", "attribute `alpha`"),
        ("com.microsoft::Gelu(%ids) : ?", "a type that `X` of Gelu 1 may have"),
        ("com.microsoft::Attention(%h, %wide) : ?", "attribute `num_heads`"),
    ] {
        let graph = around(&format!("%o = {node} @node\n%y = MatMul(%o, %w) : ? @after\noutput %y"));
        let done = rewrite(module(&graph).into(), &options(DType::F16));
        assert_eq!(done.rule("after"), "type.unknown", "{node}");
        let warning = done.report.warnings.iter().find(|w| w.code == "operator.signature");
        let warning = warning.unwrap_or_else(|| panic!("{node}: {:?}", done.report.warnings));
        assert!(warning.message.contains(why), "{}", warning.message);
        let module = done.module();
        let named = |n: &Node| module.node(*n).name.is_some_and(|s| module.text(s) == "node");
        let node = module.nodes(module.main()).find(named).unwrap();
        let operands = module.node(node).operands().iter().flatten();
        assert!(operands.into_iter().all(|&v| module.value(v).ty.dtype() != Some(DType::F16)), "{node}");
    }
}

/// Other operators of the domain, and other versions of it, are as unknown as before.
#[test]
fn contrib_operators_that_are_not_in_the_table_stay() {
    for (opsets, op) in
        [("ai.onnx=21, com.microsoft=1", "Frobnicate"), ("ai.onnx=21, com.microsoft=2", "Gelu")]
    {
        let graph = around(&format!("%o = com.microsoft::{op}(%h) : ?\noutput %o"));
        let done = rewrite(module_with(opsets, &graph).into(), &options(DType::F16));
        assert!(done.module().node(done.node_of(op)).schema().is_none(), "{opsets} {op}");
    }
}

/// Quantisation in the domain of ONNX Runtime keeps its types, and so does a product of what is dequantized on both
/// sides; what is around it is lowered.
#[test]
fn contrib_quantisation_stays_and_runs() {
    let graph = around(
        "const %s : f32 = 0.03125
         const %z : u8 = 128
         const %qw : i8[8, 8] = [1, -2, 3, -4, 5, -6, 7, -8, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 0, -1, 0, 1, 0, -1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 0, 3, 0, 3, 0, 3, 0, -5, 5, -5, 5, -5, 5, -5, 5, 9, 8, 7, 6, 5, 4, 3, 2]
         const %zs : i8 = 0
         %q = com.microsoft::QuantizeLinear(%h, %s, %z) : ? @quantize
         %p = com.microsoft::QLinearMul(%q, %s, %z, %q, %s, %z, %s, %z) : ? @mul
         %d = com.microsoft::DequantizeLinear(%p, %s, %z) : ? @dequantize
         %e = com.microsoft::DequantizeLinear(%qw, %s, %zs) : ? @weight
         %y = MatMul(%d, %e) : ? @product
         %t = com.microsoft::DynamicQuantizeMatMul(%y, %qw, %s, %zs) : ? @dynamic
         %after = MatMul(%t, %w) : ? @after
         output %after",
    );
    let module = || module(&graph).into();
    let (done, runs) = exec_models(module(), module(), &options(DType::F16), &feeds());
    assert_eq!((done.precision("product"), done.precision("after")), ("fp32", "fp16"));
    for op in ["QuantizeLinear", "DequantizeLinear", "QLinearMul", "DynamicQuantizeMatMul"] {
        for node in done.nodes_of(op) {
            let values = done.module().node(node).operands().iter().flatten();
            let low = |&v: &_| done.module().value(v).ty.dtype() == Some(DType::F16);
            assert!(!values.into_iter().any(low), "{op}");
        }
    }
    assert!(done.report.warnings.iter().all(|w| w.code != "operator.signature"));
    if let Some(runs) = runs {
        // A step of a scale, where rounding to f16 leads to the next integer.
        runs.are_within(1e-1);
    }
}
