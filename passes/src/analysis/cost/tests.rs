use super::*;
use ampc_ir::Node;
use ampc_ir::infer::infer_module;
use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};

/// One operation or byte takes one picosecond in fp32; launches take 100, casts 10.
const UNIT: &str = r#"{
  "schema": "ampc-target/1", "name": "unit", "description": "",
  "matmul": {"fp32": {"value": 1000000, "source": "s"}, "fp16": {"value": 4000000, "source": "s"},
             "bf16": {"value": 2000000, "source": "s"}},
  "elementwise": {"fp32": {"value": 1000000, "source": "s"}, "fp16": {"value": 2000000, "source": "s"},
                  "bf16": {"value": 1000000, "source": "s"}},
  "memory": {"value": 1000000, "source": "s"},
  "launch": {"node": {"value": 100, "source": "s"}, "cast": {"value": 10, "source": "s"}},
  "kernels": {"fp16": {"except": ["Erf"], "source": "s"}},
  "fp32_inside": {"ops": ["Softmax"], "source": "s"},
  "views": {"ops": ["Reshape"], "source": "s"},
  "fusions": [{"from": ["@elementwise"], "to": ["Relu"], "source": "s"}]
}"#;

fn unit() -> Profile {
    Profile::from_json(UNIT).unwrap()
}

fn module_of(text: &str) -> Module {
    let mut module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    module
}

fn module(lines: &str) -> Module {
    module_of(&format!("module ir=10\nopset ai.onnx=22\nopset com.microsoft=1\n\ngraph {{\n{lines}}}\n"))
}

/// All nodes, in the order of [`flow::nodes`].
fn of_kind(module: &Module, kind: OpKind) -> Node {
    let is_it = |node: &Node| module.node(*node).schema().is_some_and(|s| s.kind == kind);
    flow::nodes(module).into_iter().find(is_it).unwrap()
}

fn var(node: Node) -> Var {
    Var { node, var: 0 }
}

/// The time of the first variable of the first node of a kind.
fn time(lines: &str, kind: OpKind, profile: &Profile) -> (i64, i64) {
    let module = module(lines);
    let model = CostModel::new(&module, profile, DType::F16, Objective::Time);
    let NodeTime { full, low } = model.node_time(var(of_kind(&module, kind)));
    (full, low)
}

const MATMUL: &str =
    "  input %a : f32[2, 3, 4]\n  input %b : f32[4, 5]\n  %y = MatMul(%a, %b) : ?\n  output %y\n";

#[test]
fn a_product_takes_a_launch_its_operations_and_its_bytes() {
    // 2·3·5 results of 4 products, and 24 + 20 + 30 elements.
    let (operations, elements) = (2 * 30 * 4, 24 + 20 + 30);
    let expected = (100 + operations + 4 * elements, 100 + operations / 4 + 2 * elements);
    assert_eq!(time(MATMUL, OpKind::MatMul, &unit()), expected);
    let squared = "  input %a : f32[4, 4]\n  %y = MatMul(%a, %a) : ?\n  output %y\n";
    // An operand that is read twice counts once.
    assert_eq!(time(squared, OpKind::MatMul, &unit()), (100 + 128 + 4 * 32, 100 + 32 + 2 * 32));
}

/// Every number of a profile is part of some cost.
#[test]
fn every_rate_changes_a_cost() {
    let before = costs(&unit());
    for (field, value) in [("4000000", "8000000"), ("2000000", "8000000"), ("100,", "200,"), ("10,", "20,")] {
        let other = UNIT.replace(&format!("\"value\": {field}"), &format!("\"value\": {value}"));
        assert_ne!(other, UNIT, "{field}");
        assert_ne!(costs(&Profile::from_json(&other).unwrap()), before, "{field}");
    }
    for part in ["\"matmul\": {\"fp32\"", "\"elementwise\": {\"fp32\"", "\"memory\""] {
        let other = UNIT.replace(&format!("{part}: {{\"value\": 1"), &format!("{part}: {{\"value\": 3"));
        assert_ne!(other, UNIT, "{part}");
        assert_ne!(costs(&Profile::from_json(&other).unwrap()), before, "{part}");
    }
}

/// Costs of a product, a sum and a cast, in both formats.
fn costs(profile: &Profile) -> Vec<i64> {
    let module =
        module("  input %a : f32[4, 4]\n  %b = MatMul(%a, %a) : ?\n  %c = Add(%b, %a) : ?\n  output %c\n");
    let mut costs = Vec::new();
    for format in [DType::F16, DType::BF16] {
        let model = CostModel::new(&module, profile, format, Objective::Time);
        for node in flow::nodes(&module) {
            let NodeTime { full, low } = model.node_time(var(node));
            costs.extend([full, low]);
            let value = module.node(node).result(0).unwrap();
            costs.push(model.cast_cost(value, module.main(), DType::F32, format));
        }
    }
    costs
}

/// Returns the operations of products and the operations on elements.
fn work_of(lines: &str, kind: OpKind) -> (u64, u64) {
    let module = module(lines);
    let view = NodeView::new(&module, of_kind(&module, kind)).unwrap();
    let sizes = Sizes::default();
    let Amount { product, elementwise } = amount(&view, Extents { module: &module, sizes: &sizes });
    (product, elementwise)
}

#[test]
fn products() {
    let cases: &[(OpKind, &str, &str, u64)] = &[
        (OpKind::Gemm, "f32[4, 3], f32[4, 5]", "{transA=1}", 2 * 15 * 4),
        (OpKind::Gemm, "f32[3, 4], f32[5, 4]", "{transB=1}", 2 * 15 * 4),
        // 2·8·6·6 results, each of 4 channels in one of two groups, 3·3.
        (OpKind::Conv, "f32[2, 8, 8, 8], f32[8, 4, 3, 3]", "{group=2}", 2 * (2 * 8 * 36) * (4 * 9)),
        // Each of 2·3·4·4 elements is multiplied by 5 channels of 2·2.
        (OpKind::ConvTranspose, "f32[2, 3, 4, 4], f32[3, 5, 2, 2]", "", 2 * (2 * 3 * 16) * (5 * 4)),
        (OpKind::Einsum, "f32[2, 3, 4], f32[2, 4, 5]", "{equation=\"bij,bjk->bik\"}", 2 * (2 * 3 * 4 * 5)),
        (OpKind::Einsum, "f32[7, 3, 4], f32[1, 4, 5]", "{equation=\"...ij,...jk->...ik\"}", 2 * (7 * 60)),
        (OpKind::Einsum, "f32[3, 3]", "{equation=\"ii->\"}", 2 * 3),
        // 7 steps of 2 sequences, by weights of 1·12·3 and 1·12·4 (GRU).
        (OpKind::GRU, "f32[7, 2, 3], f32[1, 12, 3], f32[1, 12, 4]", "{hidden_size=4}", 2 * 14 * (36 + 48)),
        (OpKind::LSTM, "f32[7, 2, 3], f32[1, 16, 3], f32[1, 16, 4]", "{hidden_size=4}", 2 * 14 * (48 + 64)),
        (
            OpKind::RNN,
            "f32[7, 2, 3], f32[2, 4, 3], f32[2, 4, 4]",
            "{hidden_size=4, direction=\"bidirectional\"}",
            2 * 14 * (24 + 32),
        ),
        (OpKind::ContribFusedMatMul, "f32[4, 3], f32[4, 5]", "{transA=1}", 2 * 15 * 4),
    ];
    for &(kind, operands, attrs, expected) in cases {
        let mut lines = String::new();
        let mut names = Vec::new();
        for (i, ty) in operands.split("], ").enumerate() {
            let ty = ty.trim_end_matches(']');
            lines += &format!("  input %o{i} : {ty}]\n");
            names.push(format!("%o{i}"));
        }
        let domain = if kind.domain().is_empty() { String::new() } else { format!("{}::", kind.domain()) };
        let names = names.join(", ");
        lines += &format!("  %y = {domain}{}({names}) {attrs} : ?\n  output %y\n", kind.name());
        assert_eq!(work_of(&lines, kind), (expected, 0), "{lines}");
    }
}

#[test]
fn attention_is_two_products_and_a_softmax() {
    let module = module_of(
        "module ir=11\nopset ai.onnx=23\n\ngraph {\n  input %q : f32[2, 3, 4, 8]\n  input %k : f32[2, 3, 6, 8]
  input %v : f32[2, 3, 6, 10]\n  %y = Attention(%q, %k, %v) : ?\n  output %y\n}\n",
    );
    let view = NodeView::new(&module, of_kind(&module, OpKind::Attention)).unwrap();
    let sizes = Sizes::default();
    let found = amount(&view, Extents { module: &module, sizes: &sizes });
    // 2·3 heads of 4 queries and 6 keys, of 8 elements on the way in and 10 on the way out.
    let scores = 2 * 3 * 4 * 6;
    assert_eq!(found, Amount { product: 2 * scores * (8 + 10), elementwise: 8 * scores });
}

#[test]
fn work_on_elements() {
    let one =
        |line: &str| format!("  input %x : f32[2, 3, 4]\n  input %s : f32[4]\n  {line} : ?\n  output %y\n");
    assert_eq!(work_of(&one("%y = Add(%x, %s)"), OpKind::Add), (0, 24));
    assert_eq!(work_of(&one("%y = Tanh(%x)"), OpKind::Tanh), (0, 8 * 24));
    // A sum reads more than it makes.
    assert_eq!(work_of(&one("%y = ReduceSum(%x) {keepdims=0}"), OpKind::ReduceSum), (0, 24));
    assert_eq!(work_of(&one("%y = Transpose(%x)"), OpKind::Transpose), (0, 0));
    let pool = "  input %x : f32[1, 1, 6, 6]\n  %y = MaxPool(%x) {kernel_shape=[3, 3]} : ?\n  output %y\n";
    assert_eq!(work_of(pool, OpKind::MaxPool), (0, 36 * 9));
    let pool = pool.replace("3]}", "3], strides=[3, 3]}");
    assert_eq!(work_of(&pool, OpKind::MaxPool), (0, 36));
}

#[test]
fn kernel_facts() {
    let one = |line: &str| format!("  input %x : f32[4, 4]\n  {line} : ?\n  output %y\n");
    let of = |line: &str, kind| time(&one(line), kind, &unit());
    assert_eq!(of("%y = Relu(%x)", OpKind::Relu), (100 + 16 + 128, 100 + 8 + 64));
    // Without a kernel: the time in fp32, and a cast of 10 and 6 bytes per element on either side.
    let full = 100 + 8 * 16 + 128;
    assert_eq!(of("%y = Erf(%x)", OpKind::Erf), (full, full + 2 * (10 + 6 * 16)));
    // With fp32 arithmetic inside, only the bytes are halved.
    assert_eq!(of("%y = Softmax(%x)", OpKind::Softmax), (full, full - 64));
    // A view takes no time.
    let view =
        "  input %x : f32[4, 4]\n  const %s : i64[1] = [16]\n  %y = Reshape(%x, %s) : ?\n  output %y\n";
    assert_eq!(time(view, OpKind::Reshape, &unit()), (0, 0));
    // A Gather reads no more of a large table than it writes.
    let gather = "  input %x : f32[1000, 4]\n  input %i : i64[2]\n  %y = Gather(%x, %i) : ?\n  output %y\n";
    assert_eq!(time(gather, OpKind::Gather, &unit()), (100 + 2 * 4 * 8, 100 + 2 * 2 * 8));
}

/// The time of integers and fp64 does not depend on the format; a constant is cast when the model is loaded.
#[test]
fn what_stays_and_what_is_constant() {
    let of = |ty: &str| {
        let lines = format!("  input %x : {ty}[4, 4]\n  %y = Abs(%x) : ?\n  output %y\n");
        time(&lines, OpKind::Abs, &unit())
    };
    assert_eq!(of("f32"), (100 + 16 + 128, 100 + 8 + 64));
    assert_eq!(of("f16"), of("f32"));
    assert_eq!(of("f64"), (100 + 16 + 256, 100 + 16 + 256));
    assert_eq!(of("i32"), (100 + 16 + 128, 100 + 16 + 128));
    let full = 100 + 8 * 4 + 32;
    let constant = "  const %x : f32[4] = [1, 2, 3, 4]\n  %y = Erf(%x) : ?\n  output %y\n";
    assert_eq!(time(constant, OpKind::Erf, &unit()), (full, full + 10 + 6 * 4));
    let node = "  %x = Constant() {value_floats=[1.0, 2.0, 3.0, 4.0]} : ?\n  %y = Erf(%x) : ?\n  output %y\n";
    assert_eq!(time(node, OpKind::Erf, &unit()), (full, full + 10 + 6 * 4));
    assert_eq!(time(node, OpKind::Constant, &unit()), (0, 0));
}

#[test]
fn nodes_with_many_operands_take_linear_time() {
    let operands: Vec<String> = (0..50_000).map(|i| format!("%x{i}")).collect();
    let inputs: String = operands.iter().map(|name| format!("  input {name} : f32[1]\n")).collect();
    let lines = format!("{inputs}  %y = Sum({}) : ?\n  output %y\n", operands.join(", "));
    // 50,000 operands and a result of one element, which is one operation.
    assert_eq!(time(&lines, OpKind::Sum, &unit()), (100 + 1 + 4 * 50_001, 100 + 1 + 2 * 50_001));
}

#[test]
fn computing_is_charged_to_one_variable_and_bytes_to_each() {
    let module = module(
        "  input %x : f32[2, 3, 4]\n  input %s : f32[3]\n  input %m : f32[3]\n  %y = BatchNormalization(%x, %s, %s, %m, %m) : ?\n  output %y\n",
    );
    let profile = unit();
    let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
    let node = of_kind(&module, OpKind::BatchNormalization);
    let times: Vec<(i64, i64)> =
        flow::vars(&module, node).map(|var| model.node_time(var)).map(|t| (t.full, t.low)).collect();
    // T: x and y; T1: scale; T2: mean.
    assert_eq!(times, [(100 + 8 * 24 + 4 * 48, 100 + 4 * 24 + 2 * 48), (12, 6), (12, 6)]);
}

#[test]
fn casts() {
    let module = module("  input %x : f32[4, 4]\n  %y = Tanh(%x) : ?\n  %z = Relu(%y) : ?\n  output %z\n");
    let (profile, main) = (unit(), module.main());
    let y = module.node(of_kind(&module, OpKind::Tanh)).result(0).unwrap();
    let relu = of_kind(&module, OpKind::Relu);
    let of = |objective| {
        let model = CostModel::new(&module, &profile, DType::F16, objective);
        let narrow = model.cast_cost(y, main, DType::F32, DType::F16);
        assert_eq!(narrow, model.cast_cost(y, main, DType::F16, DType::F32));
        assert_eq!(model.cast_cost(y, main, DType::F32, DType::F32), 0);
        let node = model.node_time(var(relu));
        assert_eq!(node == NodeTime::default(), objective != Objective::Time);
        (narrow, model.copy_cost(y))
    };
    assert_eq!(of(Objective::Time), (10 + 16 * 6, 16 * 2));
    assert_eq!(of(Objective::Casts), (1, 0));
    assert_eq!(of(Objective::Bytes), (16 * 6, 16 * 2));
}

#[test]
fn what_is_fused_takes_no_launch_and_no_memory() {
    let profile = unit();
    let of = |rest: &str| {
        let lines = "  input %x : f32[4, 4]\n  %y = Tanh(%x) : ?\n  %z = Relu(%y) : ?\n  output %z\n";
        let module = module(&format!("{lines}{rest}"));
        let (tanh, relu) = (of_kind(&module, OpKind::Tanh), of_kind(&module, OpKind::Relu));
        let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
        let times = [tanh, relu].map(|node| model.node_time(var(node))).map(|time| (time.full, time.low));
        let cast = model.fused_cast_cost(module.node(tanh).result(0).unwrap(), DType::F32, DType::F16);
        (times, cast)
    };
    // A launch for each, 8 operations and 1 for each element, and the bytes of x or z alone.
    let (first, second) =
        ((100 + 8 * 16 + 4 * 16, 100 + 4 * 16 + 2 * 16), (100 + 16 + 4 * 16, 100 + 8 + 2 * 16));
    assert_eq!(of(""), ([first, second], 16));
    // y is an output, so it is written too.
    assert_eq!(of("  output %y\n"), ([(first.0 + 4 * 16, first.1 + 2 * 16), second], 16));
    // Casts and their bytes are in the file, whatever kernels a target makes of the operators.
    let module = module("  input %x : f32[4, 4]\n  %y = Tanh(%x) : ?\n  %z = Relu(%y) : ?\n  output %z\n");
    for (objective, fuses) in [(Objective::Time, true), (Objective::Casts, false), (Objective::Bytes, false)]
    {
        let model = CostModel::new(&module, &profile, DType::F16, objective);
        assert_eq!(model.fusions().reads(of_kind(&module, OpKind::Relu), 0), fuses);
    }
}

const BODIES: &str = "  input %c : bool
  input %x : f32[4, 4]
  const %n : i64 = 5
  %y = If(%c; %c, %x, %n) {
    then_branch: graph (%c, %x, %n) {
      %a = Loop(%n, _, %x) {
        body: graph {
          input %i : i64
          input %go : bool
          input %h : f32[4, 4]
          %t = Tanh(%h) : f32[4, 4]
          output %go
          output %t
        }
      } : f32[4, 4]
      output %a
    },
    else_branch: graph (%c, %x, %n) {
      %a = If(%c; %x) {
        then_branch: graph (%x) {
          %t = Relu(%x) : f32[4, 4]
          output %t
        },
        else_branch: graph (%x) {
          output %x
        }
      } : f32[4, 4]
      output %a
    }
  } : f32[4, 4]
  output %y
";

#[test]
fn branches_run_every_other_time_and_loops_as_often_as_they_say() {
    let module = module(BODIES);
    let profile = unit();
    let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
    let runs = |kind| model.executions(module.node(of_kind(&module, kind)).graph);
    // Two branches deep: a run counts four times.
    assert_eq!((model.scale(), model.executions(module.main())), (4, 4));
    assert_eq!((runs(OpKind::Loop), runs(OpKind::Tanh), runs(OpKind::Relu)), (2, 10, 1));
    assert_eq!(model.node_time(var(of_kind(&module, OpKind::Relu))).full, 100 + 16 + 128);
    assert_eq!(model.node_time(var(of_kind(&module, OpKind::Tanh))).full, 10 * (100 + 128 + 128));
    let relu = of_kind(&module, OpKind::Relu);
    let x = module.graph(module.main()).inputs()[1];
    let inside = model.cast_cost(x, module.node(relu).graph, DType::F32, DType::F16);
    assert_eq!(model.cast_cost(x, module.main(), DType::F32, DType::F16), 4 * inside);
    assert_eq!(model.assumptions(), [Assumption::Branches { count: 2 }]);
    let casts = CostModel::new(&module, &profile, DType::F16, Objective::Casts);
    assert_eq!((casts.scale(), casts.executions(module.node(relu).graph)), (1, 1));
}

fn loop_of(trips: &str, condition: &str) -> i64 {
    let lines = format!(
        "  input %n : i64\n  input %x : f32[4]\n{trips}  %y = Loop(%m, _, %x) {{
    body: graph {{
      input %i : i64\n      input %go : bool\n      input %h : f32[4]
      %t = Tanh(%h) : f32[4]\n{condition}      output %on\n      output %t
    }}
  }} : f32[4]\n  output %y\n"
    );
    let module = module(&lines);
    let profile = unit();
    let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
    let runs = model.executions(module.node(of_kind(&module, OpKind::Tanh)).graph);
    let assumed = model.assumptions().contains(&Assumption::Trips { count: 1, trips: 8 });
    assert_eq!(assumed, runs == 8);
    runs
}

#[test]
fn trip_counts() {
    let (goes_on, asks) = (
        "      %on = Identity(%go) : bool\n",
        "      %r = ReduceMax(%h) {keepdims=0} : f32\n      %on = Cast(%r) {to=9} : bool\n",
    );
    assert_eq!(loop_of("  const %m : i64 = 50\n", goes_on), 50);
    assert_eq!(loop_of("  const %m : i64 = 0\n", goes_on), 0);
    // The trip count is only a bound, as exporters write it for `while`.
    assert_eq!(loop_of("  const %m : i64 = 9223372036854775807\n", asks), 8);
    assert_eq!(loop_of("  const %m : i64 = 3\n", asks), 3);
    assert_eq!(loop_of("  %m = Identity(%n) : i64\n", goes_on), 8);
}

#[test]
fn a_scan_runs_as_often_as_its_axis_is_long() {
    let of = |attrs: &str, scanned: &str| {
        let lines = format!(
            "  input %s : f32[4]\n  input %x : {scanned}\n  %y = Scan(%s, %x) {{num_scan_inputs=1{attrs},
    body: graph {{
      input %h : f32[4]\n      input %e : f32[4]
      %t = Add(%h, %e) : f32[4]\n      output %t
    }}
  }} : f32[4]\n  output %y\n"
        );
        let module = module(&lines);
        let profile = unit();
        let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
        model.executions(module.node(of_kind(&module, OpKind::Add)).graph)
    };
    assert_eq!(of("", "f32[7, 4]"), 7);
    assert_eq!(of(", scan_input_axes=[-1]", "f32[4, 9]"), 9);
}

#[test]
fn a_function_runs_as_often_as_all_its_calls() {
    let module = module_of(
        "module ir=10\nopset ai.onnx=20\nopset local=1\n\ngraph {\n  input %x : f32[4]\n  %a = local::F(%x) : f32[4]
  %b = local::F(%a) : f32[4]\n  output %b\n}\n\nfunction local::F {\n  opset ai.onnx=20\n  input %a : f32[4]
  %b = Relu(%a) : f32[4]\n  output %b\n}\n\nfunction local::Unused {\n  opset ai.onnx=20\n  input %a : f32[4]
  %b = Tanh(%a) : f32[4]\n  output %b\n}\n",
    );
    let profile = unit();
    let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
    let runs = |kind| model.executions(module.node(of_kind(&module, kind)).graph);
    assert_eq!((runs(OpKind::Relu), runs(OpKind::Tanh)), (2, 1));
    let call = module.nodes(module.main()).next().unwrap();
    assert_eq!(model.node_time(var(call)), NodeTime::default());
}

#[test]
fn what_is_open_is_assumed_and_said() {
    let module = module(
        "  input %x : f32[batch_size, tokens, 4]\n  input %n : i64\n  %e = Relu(%x) : ?\n  %u = NonZero(%e) : ?\n  output %u\n",
    );
    let profile = unit();
    let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
    assert_eq!(model.node_time(var(of_kind(&module, OpKind::Relu))).full, 100 + 9 * 128 * 4);
    let said: Vec<String> = model.assumptions().iter().map(ToString::to_string).collect();
    let expected = ["the batch is 1", "dimension `tokens` is 128", "unknown dimensions (1) are 128"];
    assert_eq!(said, expected);
    let named = BTreeMap::from([("tokens".to_owned(), 3)]);
    let sizes = Sizes { named, batch: 2, ..Sizes::default() };
    let model = CostModel::with_sizes(&module, &profile, DType::F16, Objective::Time, sizes);
    assert_eq!(model.node_time(var(of_kind(&module, OpKind::Relu))).full, 100 + 9 * 2 * 3 * 4);
}

/// The first axes of two inputs have names of their own; a length is not a batch, and neither is a name of another axis.
#[test]
fn an_open_batch_is_one_number_whatever_its_name() {
    let module = module(
        "  input %x : f32[s0, 4]\n  input %z : f32[unk__1, 4]\n  input %l : f32[seq_len, rows]\n  \
         input %r : f32[rows, 4]\n  %y = Relu(%x) : ?\n  %w = Tanh(%z) : ?\n  %v = Sigmoid(%l) : ?\n  output %y\n  output %w\n  output %v\n",
    );
    let said = |dims: &[(&str, u64)]| {
        let dims = dims.iter().map(|&(name, extent)| (name.to_owned(), extent)).collect();
        let profile = Profile { dims, ..unit() };
        let model = CostModel::new(&module, &profile, DType::F16, Objective::Time);
        let times =
            [OpKind::Relu, OpKind::Tanh].map(|kind| model.node_time(var(of_kind(&module, kind))).full);
        (model.assumptions().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "), times)
    };
    let (open, batch_1) = said(&[]);
    assert_eq!(open, "the batch is 1, dimension `rows` is 128, dimension `seq_len` is 128");
    // The size of one of the names holds for all of them.
    let (given, batch_8) = said(&[("unk__1", 8)]);
    assert_eq!(given, "the batch is 8, dimension `rows` is 128, dimension `seq_len` is 128");
    assert!(batch_8[0] > batch_1[0] && batch_8[1] > batch_1[1], "{batch_1:?} {batch_8:?}");
    assert_eq!(said(&[("rows", 3)]).0, "the batch is 1, dimension `rows` is 3, dimension `seq_len` is 128");
}

/// Neither a cost nor the sum of all costs overflows, whatever the shapes of a model.
#[test]
fn sizes_that_do_not_fit_cost_as_much_as_fits() {
    let huge = "4611686018427387904";
    let module = module(&format!(
        "  input %x : f32[{huge}, {huge}]\n  input %z : f32[{huge}, 0, {huge}, {huge}]\n  %y = MatMul(%x, %x) : ?\n  %t = Tanh(%y) : ?\n  %r = Relu(%z) : ?\n  output %t\n  output %r\n"
    ));
    for profile in [unit(), Profile::default()] {
        for objective in Objective::ALL {
            let model = CostModel::new(&module, &profile, DType::F16, objective);
            let mut sum: i64 = 0;
            for node in flow::nodes(&module) {
                let value = module.node(node).result(0).unwrap();
                let NodeTime { full, low } = model.node_time(var(node));
                let narrow = model.cast_cost(value, module.main(), DType::F32, DType::F16);
                let copy = model.copy_cost(value);
                for cost in [full, low, narrow, narrow, copy] {
                    assert!((0..=model.limit()).contains(&cost), "{cost}");
                    sum = sum.checked_add(cost).unwrap();
                }
            }
            assert!(objective != Objective::Time || sum > model.limit());
        }
    }
    let empty = module.node(of_kind(&module, OpKind::Relu)).result(0).unwrap();
    let model = CostModel::new(&module, &UNIT_ZERO, DType::F16, Objective::Bytes);
    assert_eq!(model.cast_cost(empty, module.main(), DType::F32, DType::F16), 0);
}

static UNIT_ZERO: std::sync::LazyLock<Profile> = std::sync::LazyLock::new(unit);

#[test]
fn low_products_are_faster_where_there_are_matrix_units() {
    let large =
        "  input %a : f32[256, 512]\n  input %b : f32[512, 1024]\n  %y = MatMul(%a, %b) : ?\n  output %y\n";
    for name in ["generic", "ort-cuda", "tensorrt", "v100", "a100", "h200"] {
        let (full, low) = time(large, OpKind::MatMul, &Profile::preset(name).unwrap());
        assert!(low < full, "{name}: {low} < {full}");
    }
    let (full, low) = time(large, OpKind::MatMul, &Profile::preset("ort-cpu").unwrap());
    assert!(low > full, "{low} > {full}");
    // Faster GPUs take less time.
    let of = |name| time(large, OpKind::MatMul, &Profile::preset(name).unwrap());
    assert!(of("h200").1 < of("a100").1 && of("a100").1 < of("v100").1);
}

#[test]
fn objectives() {
    assert_eq!("casts".parse(), Ok(Objective::Casts));
    let error = "cast".parse::<Objective>().unwrap_err().to_string();
    assert_eq!(error, "`cast` is not an objective: expected time, casts or bytes; did you mean `casts`?");
}
