//! Random graphs of element-wise nodes, and their inputs: for tests that a group has the bits of its nodes.

use ampc_ir::DType;
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{DataRef, HostTensor};
use std::fmt::Write;

/// Random numbers that a seed says.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from((self.next() >> 11) % n as u64).unwrap()
    }
    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// An observer that looks at nothing: no nodes are joined for it.
pub(crate) struct Blind;

impl NodeObserver for Blind {
    fn value(&mut self, _: ampc_ir::Node, _: usize, _: DataRef<'_>) {}
}

/// Elements with NaNs, infinities, zeros and subnormal numbers among them.
pub(crate) fn elements(random: &mut Random, dtype: DType, dims: &[u64]) -> HostTensor {
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
pub(crate) fn bits(tensor: &HostTensor) -> Vec<u64> {
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

pub(crate) const HEAD: &str = "module ir=10\nopset ai.onnx=22, com.microsoft=1\n\n";

/// Operators of one number; `@` stands for the operand.
pub(crate) const ONE: &[&str] = &[
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
pub(crate) const TWO: &[&str] =
    &["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu", "Mod", "com.microsoft::BiasGelu"];

/// A graph of so many random nodes, and its inputs.
pub(crate) fn graph(random: &mut Random, n_nodes: usize, dims: [u64; 3]) -> (String, Vec<HostTensor>) {
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
