//! Groups of element-wise operators have the bits of their nodes one by one.
//!
//! A run without an observer joins nodes; an observed run does not. Both run the same graph.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{Cpu, DataRef, HostTensor, Runtime};
use std::fmt::Write;

/// Random numbers that a seed says.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        usize::try_from((self.next() >> 11) % n as u64).unwrap()
    }
    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// An observer that looks at nothing: no nodes are joined for it.
struct Blind;

impl NodeObserver for Blind {
    fn value(&mut self, _: ampc_ir::Node, _: usize, _: DataRef<'_>) {}
}

/// Elements with NaNs, infinities, zeros and subnormal numbers among them.
fn elements(random: &mut Random, dtype: DType, dims: &[u64]) -> HostTensor {
    let n: u64 = dims.iter().product();
    let mut bytes = Vec::new();
    for _ in 0..n {
        let (kind, bits, small) = (random.below(40), random.next(), random.below(4000));
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let number = (small as f32 - 2000.0) / 500.0;
        let special =
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0, 1e-41, 3e-6, 7e4][random.below(8)];
        let number = if kind == 0 { special } else { number };
        #[expect(clippy::cast_possible_truncation, reason = "some bits")]
        match dtype {
            DType::F16 if kind == 1 => bytes.extend((bits as u16).to_le_bytes()),
            DType::BF16 if kind == 1 => bytes.extend((bits as u16).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(number).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(number).to_le_bytes()),
            DType::F32 => bytes.extend(number.to_le_bytes()),
            DType::I64 => bytes.extend((bits >> 60).to_le_bytes()),
            _ => bytes.push((bits & 1) as u8),
        }
    }
    HostTensor::from_bytes(dtype, dims, &bytes).unwrap()
}

/// The bits of a tensor, of NaNs but that they are NaNs.
fn bits(tensor: &HostTensor) -> Vec<u64> {
    let bytes = tensor.bytes().unwrap();
    let two = |c: &[u8]| u16::from_le_bytes([c[0], c[1]]);
    match tensor.dtype() {
        DType::F32 => bytes
            .chunks(4)
            .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
            .map(|x| if x.is_nan() { u64::MAX } else { x.to_bits().into() })
            .collect(),
        DType::F16 => {
            let numbers = bytes.chunks(2).map(|c| half::f16::from_bits(two(c)));
            numbers.map(|x| if x.is_nan() { u64::MAX } else { x.to_bits().into() }).collect()
        }
        DType::BF16 => {
            let numbers = bytes.chunks(2).map(|c| half::bf16::from_bits(two(c)));
            numbers.map(|x| if x.is_nan() { u64::MAX } else { x.to_bits().into() }).collect()
        }
        _ => bytes.iter().map(|&b| b.into()).collect(),
    }
}

/// The number of groups of several nodes in the plan of a graph, whose outputs are the same with groups and without.
fn same(text: &str, inputs: &[HostTensor]) -> usize {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let refs: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
    let mut groups = 0;
    for threads in [1, 2] {
        let mut session = Runtime::from(Cpu::new(threads)).prepare(&module).unwrap();
        let want = session.run_observed(&refs, Some(&mut Blind)).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let most = session.arena_bytes();
        for _ in 0..2 {
            let got = session.run(&refs).unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let (got, want) = (bits(got.tensor().unwrap()), bits(want.tensor().unwrap()));
                let at = got.iter().zip(&want).position(|(a, b)| a != b);
                assert_eq!(at, None, "output {i}, {threads} threads\n{}\n{text}", session.plan_text());
            }
        }
        assert!(session.arena_bytes() <= most, "the arena grows\n{}\n{text}", session.plan_text());
        groups =
            session.plan_text().lines().filter(|line| line.contains('+') && line.contains(" = ")).count();
    }
    groups
}

const HEAD: &str = "module ir=10\nopset ai.onnx=22, com.microsoft=1\n\n";

/// Operators of one number; `@` stands for the operand.
const ONE: &[&str] = &[
    "Abs(@)",
    "Neg(@)",
    "Relu(@)",
    "Exp(@)",
    "Log(@)",
    "Sqrt(@)",
    "Reciprocal(@)",
    "Tanh(@)",
    "Sigmoid(@)",
    "Erf(@)",
    "Softplus(@)",
    "Softsign(@)",
    "Sign(@)",
    "Gelu(@)",
    "Gelu(@) {approximate=\"tanh\"}",
    "Mish(@)",
    "HardSwish(@)",
    "HardSigmoid(@) {alpha=0.3}",
    "LeakyRelu(@) {alpha=0.2}",
    "Elu(@) {alpha=0.7}",
    "Celu(@) {alpha=0.7}",
    "Selu(@)",
    "ThresholdedRelu(@) {alpha=0.4}",
    "Shrink(@) {bias=0.1, lambd=0.3}",
    "Ceil(@)",
    "Floor(@)",
    "Round(@)",
    "Sin(@)",
    "Cos(@)",
    "Tan(@)",
    "Asin(@)",
    "Acos(@)",
    "Atan(@)",
    "Sinh(@)",
    "Cosh(@)",
    "Asinh(@)",
    "Acosh(@)",
    "Atanh(@)",
    "Pow(@, %two)",
    "com.microsoft::QuickGelu(@) {alpha=1.7}",
    "Identity(@)",
];

/// Operators of two numbers, the second of them broadcast to the first.
const TWO: &[&str] =
    &["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu", "Mod", "com.microsoft::BiasGelu"];

/// A graph of so many random nodes, and its inputs.
fn graph(random: &mut Random, n_nodes: usize, dims: [u64; 3]) -> (String, Vec<HostTensor>) {
    let [a, b, c] = dims;
    let shapes: [&[u64]; 7] = [&dims, &dims, &[], &[1], &[c], &[b, 1], &[a, 1, c]];
    let numbers = [DType::F32, DType::F16, DType::BF16];
    let (mut text, mut inputs) = (format!("{HEAD}graph @main {{\n"), Vec::new());
    // The names of whole tensors, and of all that can be broadcast to them.
    let mut whole: Vec<(String, DType)> = Vec::new();
    let mut all: Vec<(String, DType)> = Vec::new();
    let ty = |dtype: DType, dims: &[u64]| {
        format!("{dtype}[{}]", dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
    };
    for (i, shape) in shapes.iter().enumerate() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Bool, DType::I64] {
            let name = format!("%in{i}_{dtype}");
            writeln!(
                text,
                "  input {name} : {}",
                if shape.is_empty() { dtype.to_string() } else { ty(dtype, shape) }
            )
            .unwrap();
            inputs.push(elements(random, dtype, shape));
            if shape.len() == 3 && shape[1] == b {
                whole.push((name.clone(), dtype));
            }
            all.push((name, dtype));
        }
    }
    writeln!(text, "  const %two : f32 = 2.0").unwrap();
    let mut body = String::new();
    for i in 0..n_nodes {
        let pick = |random: &mut Random, list: &[(String, DType)], dtype: DType| {
            // Nearer values are more likely, so that chains become long.
            let fitting: Vec<&String> =
                list.iter().filter(|(_, d)| *d == dtype).map(|(name, _)| name).collect();
            let late = fitting.len() - 1 - random.below(fitting.len().min(3));
            fitting[if random.below(3) > 0 { late } else { random.below(fitting.len()) }].clone()
        };
        let dtype = random.of(&numbers);
        let x = pick(random, &whole, dtype);
        let (call, made) = match random.below(16) {
            0..6 => {
                let form = random.of(ONE);
                // These are defined for f32 alone, or not for bf16.
                let is_left =
                    ["two", "Celu", "Shrink", "com.microsoft"].iter().any(|part| form.contains(part));
                let form = if is_left && dtype != DType::F32 { "Abs(@)" } else { form };
                (form.replace('@', &x), dtype)
            }
            6..10 => {
                let other = pick(random, &all, dtype);
                let op = random.of(TWO);
                // The first operand of these has the dims of the result.
                let is_first = matches!(op, "PRelu" | "com.microsoft::BiasGelu") || random.below(2) == 0;
                let op = if op.contains("com.microsoft") && dtype == DType::BF16 { "Mul" } else { op };
                let attrs = if op == "Mod" { " {fmod=1}" } else { "" };
                let (p, q) = if is_first { (&x, &other) } else { (&other, &x) };
                (format!("{op}({p}, {q}){attrs}"), dtype)
            }
            10 => {
                let other = pick(random, &all, dtype);
                let op = random.of(&["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"]);
                (format!("{op}({x}, {other})"), DType::Bool)
            }
            11 => {
                let (c, y) = (pick(random, &all, DType::Bool), pick(random, &all, dtype));
                (format!("Where({c}, {x}, {y})"), dtype)
            }
            12 => {
                let (p, q) = (pick(random, &whole, DType::Bool), pick(random, &all, DType::Bool));
                let op = random.of(&["And", "Or", "Xor", "Equal", "Not"]);
                (if op == "Not" { format!("Not({p})") } else { format!("{op}({p}, {q})") }, DType::Bool)
            }
            13 => {
                let from = random.of(&[DType::F32, DType::F16, DType::BF16, DType::Bool, DType::I64]);
                let to = random.of(&[DType::F32, DType::F16, DType::BF16, DType::Bool]);
                (format!("Cast({}) {{to={}}}", pick(random, &whole, from), to.number()), to)
            }
            14 => {
                let of_three = [pick(random, &all, dtype), pick(random, &all, dtype)];
                match random.below(3) {
                    0 => (format!("Sum({x}, {}, {})", of_three[0], of_three[1]), dtype),
                    1 => (format!("Clip({x}, %in2_{dtype}, %in3_{dtype})"), dtype),
                    _ => (format!("{}({x})", random.of(&["IsNaN", "IsInf"])), DType::Bool),
                }
            }
            _ => {
                let (p, q) = (pick(random, &whole, DType::I64), pick(random, &all, DType::I64));
                (format!("{}({p}, {q})", random.of(&["Add", "Mul", "Max"])), DType::I64)
            }
        };
        let name = format!("%v{i}");
        writeln!(body, "  {name} = {call} : {}", ty(made, &dims)).unwrap();
        if random.below(6) == 0 || i + 1 == n_nodes {
            writeln!(body, "  output {name} : {}", ty(made, &dims)).unwrap();
        }
        whole.push((name.clone(), made));
        all.push((name, made));
    }
    // Outputs stand behind all nodes.
    let (outputs, nodes): (Vec<&str>, Vec<&str>) =
        body.lines().partition(|line| line.starts_with("  output"));
    let lines = nodes.into_iter().chain(outputs);
    lines.for_each(|line| writeln!(text, "{line}").unwrap());
    text.push_str("}\n");
    (text, inputs)
}

#[test]
fn random_graphs_have_the_bits_of_their_nodes() {
    let mut groups = 0;
    for seed in 1..150 {
        let mut random = Random::new(seed);
        let n_nodes = 3 + random.below(30);
        let dims = random.of(&[[3, 5, 7], [1, 1, 1], [2, 9, 130], [1, 4, 1], [2, 0, 3]]);
        let (text, inputs) = graph(&mut random, n_nodes, dims);
        groups += same(&text, &inputs);
    }
    assert!(groups > 100, "{groups} groups");
}

/// Every operator with an expression, before an operator that makes a group of it.
#[test]
fn every_operator_has_the_bits_of_its_kernel() {
    let mut random = Random::new(7);
    let one = ONE.iter().filter(|form| **form != "Identity(@)").map(|form| form.replace('@', "%x"));
    let two = TWO.iter().filter(|op| **op != "Mod").map(|op| format!("{op}(%x, %y)"));
    let others =
        ["Clip(%x, %s, %t)", "Clip(%x, %s)", "Sum(%x, %y, %x)", "Mean(%x, %y, %x)", "Where(%c, %x, %y)"];
    let others = others.iter().chain(&["com.microsoft::FastGelu(%x, %y)", "com.microsoft::Gelu(%x)"]);
    for call in one.chain(two).chain(others.map(|&call| call.to_owned())) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let is_left =
                ["two", "Celu", "QuickGelu", "microsoft::Gelu"].iter().any(|part| call.contains(part));
            let is_no_bf16 = ["Shrink", "BiasGelu"].iter().any(|part| call.contains(part));
            if dtype != DType::F32 && is_left || dtype == DType::BF16 && is_no_bf16 {
                continue;
            }
            let text = format!(
                "{HEAD}graph @main {{\n  input %x : {dtype}[6, 700]\n  input %y : {dtype}[700]\n  input %s : {dtype}\n  \
                 input %t : {dtype}\n  input %c : bool[6, 1]\n  const %two : f32 = 2.0\n  \
                 %r = {call} : {dtype}[6, 700]\n  %n = Neg(%r) : {dtype}[6, 700]\n  output %r\n  output %n\n}}\n"
            );
            let dims: [(&[u64], DType); 5] =
                [(&[6, 700], dtype), (&[700], dtype), (&[], dtype), (&[], dtype), (&[6, 1], DType::Bool)];
            let inputs: Vec<HostTensor> =
                dims.iter().map(|(dims, dtype)| elements(&mut random, *dtype, dims)).collect();
            assert_eq!(same(&text, &inputs), 1, "{call} of {dtype}");
        }
    }
}

/// More elements than one thread takes, in blocks of which the last is not whole.
#[test]
fn pieces_have_the_bits_of_their_nodes() {
    for seed in 1..4 {
        let mut random = Random::new(seed);
        let (text, inputs) = graph(&mut random, 20, [3, 171, 130]);
        same(&text, &inputs);
    }
}

/// Products and convolutions: the call, the dims of its operands and of its result. A block and a tile of the result are
/// not whole.
type ProductCase = (&'static str, &'static [&'static [u64]], &'static [u64]);
const PRODUCTS: &[ProductCase] = &[
    ("MatMul(%a, %b)", &[&[7, 9], &[9, 150]], &[7, 150]),
    ("MatMul(%a, %b)", &[&[2, 3, 40, 9], &[9, 50]], &[2, 3, 40, 50]),
    ("MatMul(%a, %b)", &[&[3, 65, 4], &[3, 4, 70]], &[3, 65, 70]),
    ("MatMul(%a, %b)", &[&[260, 20], &[20, 300]], &[260, 300]),
    ("Gemm(%a, %b, %c) {transB=1, alpha=0.5, beta=2.0}", &[&[33, 9], &[150, 9], &[150]], &[33, 150]),
    ("Gemm(%a, %b)", &[&[5, 9], &[9, 1]], &[5, 1]),
    ("Conv(%a, %b, %c) {pads=[1, 1, 1, 1]}", &[&[2, 3, 30, 31], &[5, 3, 3, 3], &[5]], &[2, 5, 30, 31]),
    ("Conv(%a, %b) {strides=[2, 2]}", &[&[1, 4, 21, 40], &[6, 2, 3, 2], &[]], &[1, 6, 10, 20]),
    ("Conv(%a, %b, %c)", &[&[2, 8, 40, 33], &[5, 8, 1, 1], &[5]], &[2, 5, 40, 33]),
    ("Conv(%a, %b)", &[&[2, 4, 700], &[3, 4, 5]], &[2, 3, 696]),
    (
        "Conv(%a, %b, %c) {group=6, pads=[1, 1, 1, 1]}",
        &[&[2, 6, 50, 51], &[6, 1, 3, 3], &[6]],
        &[2, 6, 50, 51],
    ),
    ("Conv(%a, %b) {group=3, strides=[2, 2]}", &[&[1, 3, 99, 99], &[6, 1, 3, 3]], &[1, 6, 49, 49]),
    ("Conv(%a, %b) {pads=[1, 1, 1, 1]}", &[&[1, 70, 15, 16], &[130, 70, 3, 3]], &[1, 130, 15, 16]),
];

#[test]
fn products_have_the_bits_of_their_nodes() {
    let mut random = Random::new(3);
    let ty = |dtype: DType, dims: &[u64]| {
        format!("{dtype}[{}]", dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
    };
    for (call, operands, dims) in PRODUCTS {
        let groups =
            if call.contains("strides=[2, 2]") && !call.contains("group=3") { " {group=2, " } else { " {" };
        let call = call.replace(" {", groups);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for round in 0..3 {
                let (mut text, mut inputs) = (format!("{HEAD}graph @main {{\n"), Vec::new());
                let mut input = |name: &str, dtype: DType, dims: &[u64]| {
                    inputs.push(elements(&mut random, dtype, dims));
                    format!("  input %{name} : {}\n", ty(dtype, dims))
                };
                for (name, dims) in ["a", "b", "c"].iter().zip(*operands).filter(|(_, dims)| !dims.is_empty())
                {
                    text += &input(name, dtype, dims);
                }
                // Along the axis of the bias.
                let bias_axis = if call.starts_with("Conv") { 1 } else { dims.len() - 1 };
                let mut of_bias = vec![1; dims.len()];
                of_bias[bias_axis] = dims[bias_axis];
                text += &input("bias", dtype, &of_bias);
                text += &input("residual", dtype, dims);
                text += &input("wide", DType::F32, dims);
                let whole = ty(dtype, dims);
                writeln!(text, "  %p = {call} : {whole}").unwrap();
                match round {
                    // The last node has the type of the product, another float type, or truth values.
                    0 => {
                        writeln!(
                            text,
                            "  %s = Add(%p, %bias) : {whole}\n  %t = Add(%residual, %s) : {whole}"
                        )
                        .unwrap();
                        writeln!(text, "  %y = Relu(%t) : {whole}\n  output %y").unwrap();
                    }
                    1 => {
                        writeln!(text, "  %g = Sigmoid(%p) : {whole}\n  %s = Mul(%p, %g) : {whole}").unwrap();
                        writeln!(text, "  %w = Cast(%s) {{to=1}} : {}", ty(DType::F32, dims)).unwrap();
                        writeln!(text, "  %y = Mul(%w, %wide) : {}\n  output %y", ty(DType::F32, dims))
                            .unwrap();
                    }
                    _ => {
                        writeln!(text, "  %y = Less(%p, %bias) : {}\n  output %y", ty(DType::Bool, dims))
                            .unwrap();
                    }
                }
                text.push_str("}\n");
                let groups = same(&text, &inputs);
                // A result of f32 beside the scratch memory of a convolution may not fit.
                let is_wider = round == 1 && dtype != DType::F32 && call.starts_with("Conv");
                assert!(groups == 1 || is_wider, "{groups} groups\n{text}");
            }
        }
    }
}

/// The product stays by itself where its result is read outside of the group, or is an output.
#[test]
fn products_that_are_read_elsewhere_are_stored() {
    let mut random = Random::new(5);
    let head = format!(
        "{HEAD}graph @main {{\n  input %a : f16[40, 9]\n  input %b : f16[9, 50]\n  %p = MatMul(%a, %b) : f16[40, 50]\n  %s = Neg(%p) : f16[40, 50]\n  %y = Relu(%s) : f16[40, 50]\n"
    );
    for end in [
        "  output %y\n  output %p\n}\n",
        "  %t = Transpose(%p) : f16[50, 40]\n  output %y\n  output %t\n}\n",
        "  output %y\n  output %s\n}\n",
    ] {
        let text = format!("{head}{end}");
        let inputs =
            [elements(&mut random, DType::F16, &[40, 9]), elements(&mut random, DType::F16, &[9, 50])];
        assert_eq!(same(&text, &inputs), 1, "{text}");
    }
}
