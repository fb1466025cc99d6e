//! Requirements of schemas: G19, G20, G25 to G28.

use crate::proto::{bytes, load};
use crate::runtime::{exec, exec_models, f32s, uniform};
use crate::support::{
    Ask, Decided, lower, lower_to, lower_with, module_at, module_with, options, pin_f32, policy, rewrite,
};
use ampc::ir::DType;
use ampc::ir::op::{self, Arity, AttrKind, FormalType, Legality, OpSchema, TypeSet};
use ampc::ir::verify::name_of;
use ampc::passes::policy::{ListedBy, Pin};
use ampc::{Model, RewriteOptions};
use std::fmt::Write;

/// A type of a set, in text form: f32 where it is admitted.
fn a_type(set: &TypeSet) -> Option<String> {
    let preferred = [DType::F32, DType::I64, DType::Bool];
    let tensor = preferred.into_iter().chain(set.tensor_dtypes()).find(|&d| set.has_tensor(d));
    let contained = |mask: u32, d: DType| mask & (1 << d.number()) != 0;
    let of = |mask: u32| preferred.into_iter().find(|&d| contained(mask, d));
    tensor
        .map(|d| format!("{d}[*]"))
        .or_else(|| of(set.sequence).map(|d| format!("seq({d}[*])")))
        .or_else(|| of(set.optional).map(|d| format!("optional({d}[*])")))
}

/// A valid value of a required attribute.
fn a_value(op: &OpSchema, attr: &str, kind: AttrKind) -> Option<&'static str> {
    match (op.name, attr) {
        ("BitShift", _) => return Some("\"LEFT\""),
        ("Cast" | "RandomNormal" | "RandomUniform", "to" | "dtype") if kind == AttrKind::String => {
            return Some("\"FLOAT\"");
        }
        ("Einsum", _) => return Some("\"...,...->...\""),
        ("BitCast", _) => return Some("6"),
        ("Constant", _) => return Some("tensor(f32 = 0.5)"),
        ("Upsample", "scales") => return Some("[1.0, 1.0]"),
        _ => {}
    }
    match kind {
        AttrKind::Int => Some("1"),
        AttrKind::Float => Some("1.0"),
        AttrKind::String => Some("\"\""),
        AttrKind::Ints => Some("[1, 1]"),
        AttrKind::Floats => Some("[1.0, 1.0]"),
        AttrKind::Strings => Some("[\"\"]"),
        AttrKind::Tensor => Some("tensor(f32 = 0.5)"),
        _ => None,
    }
}

/// A graph of one node of an operator, f32 wherever it may be, in text form. `None` for operators with bodies and
/// for those that nothing can be given to.
fn one_node(schema: &'static OpSchema, all_operands: bool) -> Option<String> {
    let mut graph = String::new();
    let mut operands = Vec::new();
    for i in 0..schema.inputs.len() {
        let formal = schema.input(i)?;
        let present = match formal.arity {
            Arity::Single => true,
            Arity::Optional => all_operands,
            Arity::Variadic { min, .. } => all_operands || min > 0,
        };
        if !present {
            operands.push("_".to_owned());
            continue;
        }
        let n = if let Arity::Variadic { min, .. } = formal.arity { min.max(2) } else { 1 };
        for k in 0..n {
            writeln!(graph, "input %i{i}_{k} : {}", a_type(&schema.types_of(formal))?).unwrap();
            operands.push(format!("%i{i}_{k}"));
        }
    }
    while operands.last().is_some_and(|o| o == "_") && operands.len() > schema.n_inputs.0 as usize {
        operands.pop();
    }
    let mut attrs = Vec::new();
    for attr in schema.attrs.iter().filter(|a| a.required) {
        attrs.push(format!("{}={}", attr.name, a_value(schema, attr.name, attr.kind)?));
    }
    // What schemas do not say is required, and inference does.
    match (schema.name, schema.since) {
        ("Constant", _) if attrs.is_empty() => attrs.push("value=tensor(f32 = 0.5)".into()),
        ("BatchNormalization", 14..) if all_operands => attrs.push("training_mode=1".into()),
        ("ImageScaler", _) => attrs.push("bias=[1.0, -1.0]".into()),
        ("LinearAttention", _) if !all_operands => attrs.push("update_rule=\"linear\"".into()),
        ("Split", 18..) if !all_operands => attrs.push("num_outputs=1".into()),
        ("Optional", _) if !all_operands => attrs.push("type=type(f32[*])".into()),
        _ => {}
    }
    let single = |f: &&op::Formal| all_operands || matches!(f.arity, Arity::Single);
    let least = usize::try_from(schema.n_outputs.0).unwrap();
    let n = schema.outputs.iter().filter(single).count().max(1).max(least);
    let results: Vec<String> = (0..n).map(|i| format!("%o{i}")).collect();
    let types = vec!["?"; n].join(", ");
    let domain = if schema.domain.is_empty() { String::new() } else { format!("{}::", schema.domain) };
    writeln!(
        graph,
        "{} = {domain}{}({}) {{{}}} : {types} @node",
        results.join(", "),
        schema.name,
        operands.join(", "),
        attrs.join(", ")
    )
    .unwrap();
    for result in results {
        writeln!(graph, "output {result}").unwrap();
    }
    Some(graph)
}

/// Lowers all of one node that its schema admits, and says what went wrong.
fn lower_one(schema: &'static OpSchema, to: DType, graph: &str, lowered: &mut u32) -> Result<(), String> {
    // ONNX Runtime's own operators do not ask for an opset; casts to bf16 do.
    let opsets = match (schema.domain, schema.name) {
        ("", "SimplifiedLayerNormalization") => "ai.onnx=22".to_owned(),
        ("", "LayerNormalization") if schema.since == 1 => "ai.onnx=16".to_owned(),
        ("", _) => format!("ai.onnx={}", schema.since),
        (domain, _) => format!("ai.onnx=22, {domain}={}", schema.since),
    };
    let text = format!("module ir=10\nopset {opsets}\n\ngraph @main {{\n{graph}\n}}\n");
    let mut module =
        ampc::ir::text::parse(&text, &ampc::ir::text::NoData).map_err(|e| format!("text: {e}"))?;
    let found = ampc::check(&mut module);
    if !found.is_empty() {
        return Err(format!("source: {found:?}"));
    }
    let node = module.nodes(module.main()).next().unwrap();
    // Bit patterns, and what goes into a public sequence or optional or comes out of one.
    let values = module.node(node).operands().iter().chain(module.node(node).results()).flatten();
    let immovable =
        schema.name == "BitCast" || values.into_iter().any(|&v| module.value(v).ty.as_tensor().is_none());
    let before: Vec<_> =
        module.node(node).operands().iter().map(|v| Some(module.value((*v)?).ty.clone())).collect();
    let mut options = options(to);
    policy(&mut options).pin("node", Pin::To(to)).unwrap();
    let mut done = ampc::rewrite(module.into(), &options).map_err(|e| e.to_string())?;
    let found = ampc::check(&mut done.model.module);
    if !found.is_empty() {
        return Err(format!("result: {found:?}"));
    }
    let module = done.module();
    let Some(node) = module.nodes(module.main()).find(|&n| {
        module.op_name(n).1 == schema.name && module.node(n).name.is_some_and(|s| module.text(s) == "node")
    }) else {
        return Err("the node is gone".into());
    };
    for (i, (value, then)) in module.node(node).operands().iter().zip(before).enumerate() {
        let (Some(value), Some(then)) = (*value, then) else { continue };
        let now = &module.value(value).ty;
        let may = match schema.input(i).unwrap().ty {
            FormalType::Var(var) => {
                !immovable && op::legality_at(schema, var, to, schema.since) == Legality::Legal
            }
            FormalType::Is(_) => false,
        };
        let was_f32 = then.dtype() == Some(DType::F32);
        let expected = if may && was_f32 { Some(to) } else { then.element_dtype() };
        if now.element_dtype() != expected {
            return Err(format!("operand {i}: {now:?} instead of {expected:?}"));
        }
        *lowered += u32::from(may && was_f32);
    }
    // What was decided is what the values are.
    for (i, value) in module.node(node).results().iter().enumerate() {
        let (Some(value), FormalType::Var(var)) = (*value, schema.output(i).unwrap().ty) else { continue };
        let (ty, decided) = (&module.value(value).ty, &module.node(node).decisions[usize::from(var)]);
        if ty.dtype().is_some_and(DType::is_float) && ty.dtype() != decided.precision {
            return Err(format!("result {i}: {ty:?}, decided {decided:?}"));
        }
    }
    Ok(())
}

/// G19: for every operator at every version, with all operands and with the required ones, what is forced low is
/// what the schema admits, formal by formal.
#[test]
fn g19_every_row_of_the_table() {
    let (mut lowered, mut nodes) = (0, 0);
    let mut failed = Vec::new();
    let mut left_out = std::collections::BTreeSet::new();
    let domains = ["", "com.microsoft"];
    for schema in op::all().iter().filter(|s| domains.contains(&s.domain) && !s.is_gone()) {
        for all_operands in [true, false] {
            // With all there is, these have types that their schema does not tie together.
            let odd = ["DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "MultiHeadAttention"];
            let odd = odd.contains(&schema.name) && all_operands;
            let Some(graph) = one_node(schema, all_operands).filter(|_| !odd) else {
                left_out.insert(schema.name);
                continue;
            };
            for to in [DType::F16, DType::BF16] {
                nodes += 1;
                // fp16 below opset 6 raises the model, and these nodes lack what that needs.
                let stuck = schema.since < 6
                    && to == DType::F16
                    && ["LpPool", "Reshape", "Split", "Tile"].contains(&schema.name);
                let lowered = lower_one(schema, to, &graph, &mut lowered);
                if let Err(why) = lowered.or_else(|why| match stuck && why.contains("opset 6 has no form") {
                    true => Ok(()),
                    false => Err(why),
                }) {
                    failed.push(format!("{} {} {to} all={all_operands}: {why}", schema.name, schema.since));
                }
            }
        }
    }
    println!("{nodes} nodes, {lowered} operands lowered, left out: {left_out:?}");
    assert!(failed.is_empty(), "{} of {nodes}:\n{}", failed.len(), failed.join("\n"));
    assert!(lowered > 1000, "{lowered}");
}

/// Operators with formals that stay beside formals that move.
const MIXED: &str = "input %x : f32[1, 2, 4, 4]
     input %grid : f32[1, 2, 2, 2]
     const %w : f32[2, 2, 1, 1] = [0.5, 1.0, -1.0, 0.25]
     const %s : f32[2] = [1.0, 2.0]
     const %scales : f32[4] = [1.0, 1.0, 2.0, 2.0]
     const %roi : f32[0] = []
     const %ratio : f32 = 0.5
     const %lo : f32 = -1.0
     %a = Conv(%x, %w) : ?
     %b = BatchNormalization(%a, %s, %s, %s, %s) : ?
     %c = Resize(%b, %roi, %scales) : ?
     %d = GridSample(%c, %grid) : ?
     %e, _ = Dropout(%d, %ratio, _) : ?, _
     %f = Clip(%e, %lo, _) : ?
     %y = Conv(%f, %w) : ?
     output %y : f32[1, 2, 2, 2]";

/// G19: statistics, coordinates and ratios keep their type whatever the policy.
#[test]
fn g19_statistics_coordinates_and_ratios_stay() {
    for preset in ["safe", "all"] {
        let done = lower_with(MIXED, |o| *policy(o) = ampc::passes::Policy::preset(preset).unwrap());
        let (low, full) = (Some(DType::F16), Some(DType::F32));
        assert_eq!(done.operand_dtypes("BatchNormalization"), [low, full, full, full, full], "{preset}");
        assert_eq!(done.operand_dtypes("Resize"), [low, full, full], "{preset}");
        assert_eq!(done.operand_dtypes("GridSample"), [low, full], "{preset}");
        assert_eq!(done.operand_dtypes("Dropout"), [low, full, None], "{preset}");
        assert_eq!(done.operand_dtypes("Clip"), [low, low, None], "a bound has the type of what it bounds");
    }
}

/// G20: random streams and tables keep their type attribute; what reads them is cast.
#[test]
fn g20_random_streams_do_not_change() {
    let graph = "input %x : f32[2, 4]
         const %w : f32[4, 4] = random(1, 1.0)
         const %shape : i64[2] = [4, 4]
         %normal = RandomNormal() {shape=[4, 4], seed=7.0, dtype=1} : ?
         %eye = EyeLike(%w) {dtype=1} : ?
         %fill = ConstantOfShape(%shape) {value=tensor(f32[1] = [0.5])} : ?
         %t = MatMul(%x, %normal) : ?
         %like = RandomUniformLike(%t) {seed=3.0} : ?
         %u = MatMul(%like, %eye) : ?
         %y = MatMul(%u, %fill) : ?
         output %normal : f32[4, 4]
         output %like : f32[2, 4]
         output %y : f32[2, 4]";
    for preset in ["safe", "all"] {
        for to in [DType::F16, DType::BF16] {
            let set = |o: &mut RewriteOptions| {
                *policy(o) = ampc::passes::Policy::preset(preset).unwrap();
            };
            let (done, runs) = exec(to, graph, &[f32s("x", &[2, 4], &uniform(5, 8, 1.0))], set);
            let dtype = |op: &str| {
                let node = done.module().node(done.node_of(op));
                let module = done.module();
                (module.value(node.result(0).unwrap()).ty.dtype(), node.attrs().len())
            };
            assert_eq!(dtype("RandomNormal"), (Some(DType::F32), 3), "{preset}");
            assert_eq!(dtype("RandomUniformLike"), (Some(DType::F32), 1), "{preset}");
            assert_eq!(done.operand_dtypes("RandomUniformLike"), [Some(DType::F32)]);
            if let Some(runs) = runs {
                for run in runs.lowered() {
                    assert_eq!(run[0], runs.source[0], "{preset} {to}");
                    assert_eq!(run[1], runs.source[1], "{preset} {to}");
                }
            }
        }
    }
}

/// Quantised operands of two products; everything is a multiple of a power of two that f16 holds.
const QUANTISED: &str = "input %x : f32[2, 4]
     const %s : f32 = 0.0625
     const %z : i8 = 0
     const %wq : i8[4, 4] = [1, 2, 3, 4, -1, -2, -3, -4, 4, 3, 2, 1, 0, 1, 0, 1]
     const %ws : f32 = 0.5
     %q = QuantizeLinear(%x, %s, %z) : ?
     %dq = DequantizeLinear(%q, %s, %z) : ?
     %w = DequantizeLinear(%wq, %ws, %z) : ?
     %t = MatMul(%dq, %w) : ?
     %q2 = QuantizeLinear(%t, %s, %z) : ?
     %dq2 = DequantizeLinear(%q2, %s, %z) : ?
     %y = MatMul(%dq2, %w) : ?
     output %y : f32[2, 4]";

/// G25: Q and DQ stay neighbours, scales stay fp32, no cast comes between a weight and its DQ, and none stands
/// behind one where the operator can make f16 itself. Nodes that compute in integers get no casts at all,
/// unless a pin asks for a low one.
#[test]
fn g25_quantisation_per_opset() {
    for (opset, preset) in [10, 13, 19, 21, 23].into_iter().flat_map(|o| [(o, "safe"), (o, "all")]) {
        let context = format!("opset {opset}, {preset}");
        let source = || Model::from(module_at(opset, QUANTISED));
        let x: Vec<f32> = (0..8u8).map(|i| f32::from(i) * 0.125 - 0.5).collect();
        let mut options = options(DType::F16);
        *policy(&mut options) = ampc::passes::Policy::preset(preset).unwrap();
        let (done, runs) = exec_models(source(), source(), &options, &[f32s("x", &[2, 4], &x)]);
        let module = done.module();
        for op in ["QuantizeLinear", "DequantizeLinear"] {
            for node in done.nodes_of(op) {
                let data = module.node(node);
                let scale = data.operand(1).unwrap();
                assert_eq!(module.value(scale).ty.dtype(), Some(DType::F32), "{context}");
                assert!(module.constant(scale).is_some(), "{context}: a scale is cast");
                if op == "DequantizeLinear" {
                    let from = data.operand(0).unwrap();
                    let direct = module.producer(from).map(|(n, _)| module.op_name(n).1);
                    assert!(matches!(direct, None | Some("QuantizeLinear")), "{context}: {direct:?}");
                }
            }
        }
        let asked = preset == "all";
        assert_eq!(done.precision("y"), if asked { "fp16" } else { "fp32" }, "{context}");
        // w, dq, t, dq2 and y: one per value; from 23 on w, dq and dq2 are made in f16.
        let made_low = asked && opset >= 23;
        let casts = if made_low { 2 } else { 5 };
        let casts = if asked { casts } else { 0 };
        assert_eq!(done.inserted().len(), casts, "{context}: {:?}", done.inserted());
        let low = if made_low { DType::F16 } else { DType::F32 };
        assert_eq!(["w", "dq", "dq2"].map(|v| done.dtype(v)), [low; 3], "{context}");
        let again = rewrite(load(bytes(&done.model)), &options);
        assert_eq!(bytes(&again.model), bytes(&done.model), "{context}");
        if let Some(runs) = runs {
            runs.are_within(0.0);
        }
    }
}

/// G26: what is f64 or an integer stays, blocked or not, and is not narrowed past f32.
#[test]
fn g26_f64_and_integers_are_left_alone() {
    let graph = "input %x : f32[2, 2]
         input %n : i64[2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %wd : f64[2, 2] = [0.1, 0.2, 0.3, 0.4]
         %d = Cast(%x) {to=11} : ?
         %m = MatMul(%d, %wd) : ?
         %e = Exp(%m) : ?
         %f = Cast(%e) {to=1} : ?
         %y = MatMul(%f, %w) : ?
         %i = Add(%n, %n) : ?
         output %y : f32[2, 2]
         output %m : f64[2, 2]
         output %i : i64[2]";
    for block in [None, Some("m"), Some("*")] {
        let done = lower_with(graph, |o| {
            if let Some(pattern) = block {
                pin_f32(o, pattern);
            }
        });
        assert_eq!(["d", "m", "e", "wd"].map(|v| done.dtype(v)), [DType::F64; 4]);
        assert_eq!((done.dtype("i"), done.dtype("f")), (DType::I64, DType::F32));
        assert_eq!(done.floats("wd"), [0.1, 0.2, 0.3, 0.4]);
        let narrowed: Vec<_> = done.inserted().into_iter().filter(|(_, _, to)| *to == DType::F16).collect();
        // f64 to f16 at once rounds another number than f64 to f32 to f16.
        let expected =
            if block == Some("*") { vec![] } else { vec![("f".to_owned(), DType::F32, DType::F16)] };
        assert_eq!(narrowed, expected);
    }
}

/// G27: an operator is its domain and its name: a custom Relu is an unknown operator.
#[test]
fn g27_a_custom_relu_is_not_relu() {
    let graph = "input %x : f32[2, 2]
         const %w : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %t = MatMul(%x, %w) : ?
         %c = com.example::Relu(%t) {alpha=0.5} : ?
         %u = MatMul(%x, %w) : ?
         %r = Relu(%u) : ?
         %v = MatMul(%r, %w) : ?
         output %c
         output %v : f32[2, 2]";
    let module = module_with("ai.onnx=21, com.example=1", graph);
    let done = rewrite(module.into(), &options(DType::F16));
    let custom =
        done.module().nodes(done.module().main()).find(|&n| done.module().op_name(n).0 == "com.example");
    let operand = done.module().node(custom.unwrap()).operand(0).unwrap();
    assert_eq!(done.module().value(operand).ty.dtype(), Some(DType::F32), "it reads what it always read");
    assert_eq!(done.precision("c"), "none");
    assert_eq!(done.precision("r"), "fp16");
    assert_eq!(name_of(done.module(), done.module().graph(done.module().main()).outputs()[0].value), "c");
    // A list that names Relu does not mean it either.
    let done = {
        let mut options = options(DType::F16);
        policy(&mut options).set_class("com.example::Relu", op::Class::Allow, ListedBy::Options).unwrap();
        rewrite(module_with("ai.onnx=21, com.example=1", graph).into(), &options)
    };
    assert_eq!(done.precision("c"), "none", "without a signature nobody knows its types");
}

/// G28: what is 16-bit already keeps its format, whatever the target; the rest is lowered to the target.
#[test]
fn g28_low_precision_models_keep_their_format() {
    for (there, target) in [("f16", DType::BF16), ("bf16", DType::F16), ("f16", DType::F16)] {
        let graph = format!(
            "input %x : {there}[2, 2]
             input %z : f32[2, 2]
             const %w : {there}[2, 2] = [0.5, 1.0, -1.0, 0.25]
             const %v : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
             %t = MatMul(%x, %w) : ?
             %r = Relu(%t) : ?
             %y = MatMul(%z, %v) : ?
             output %r : {there}[2, 2]
             output %y : f32[2, 2]"
        );
        let done = lower_to(target, &graph, |_| ());
        let there: DType = there.parse().unwrap();
        assert_eq!(["x", "w", "t", "r"].map(|v| done.dtype(v)), [there; 4]);
        assert_eq!(done.dtype("v"), target);
        assert_eq!(done.rule("t"), "already-low");
        let casts: Vec<_> = done.inserted().into_iter().map(|(_, from, to)| (from, to)).collect();
        assert_eq!(casts, [(DType::F32, target), (target, DType::F32)], "around %y alone");
    }
}

/// G28: a partly converted model: its casts are the author's, and the nodes in between may be lowered.
#[test]
fn g28_partially_converted_models() {
    let graph = "input %x : f32[2, 2]
         const %w : f16[2, 2] = [0.5, 1.0, -1.0, 0.25]
         const %v : f32[2, 2] = [0.5, 1.0, -1.0, 0.25]
         %x16 = Cast(%x) {to=10} : ?
         %t = MatMul(%x16, %w) : ?
         %t32 = Cast(%t) {to=1} : ?
         %y = MatMul(%t32, %v) : ?
         output %y : f32[2, 2]";
    let done = lower(graph);
    assert_eq!([done.precision("t"), done.precision("y")], ["fp16", "fp16"]);
    // The author's narrowing stays; the second product reads the first one's result without a way through fp32.
    assert_eq!(
        done.inserted(),
        [("y.f16".into(), DType::F16, DType::F32)],
        "the public name is the widened value's"
    );
    assert_eq!(done.module().node(done.nodes_of("MatMul")[1]).operand(0), Some(done.value("t")));
    assert!(done.nodes_of("Cast").len() <= 3);
}
