//! Ranges are sound: in runs of random graphs on random inputs, no value is outside of its range.
//! `AMPC_RANGE_GRAPHS=10000` looks at so many graphs, each on 100 inputs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/random_gradients.rs"]
mod random_gradients;
#[path = "common/random_graphs.rs"]
#[expect(dead_code, reason = "tests of rewrites read files and reorder lines")]
mod random_graphs;

use ampc::execute::{prepare, views};
use ampc_ir::text::{NoData, parse};
use ampc_ir::verify::name_of;
use ampc_ir::views::resolve_captures;
use ampc_ir::{DType, Module, Node};
use ampc_passes::guard::Statistics;
use ampc_passes::input_ranges::InputRanges;
use ampc_passes::ranges::{Range, Ranges};
use ampc_runtime::session::NodeObserver;
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Runtime, Session};
use std::fmt::Write as _;

/// Graphs that the gate looks at, and the inputs of each.
const QUICK: (u64, u64) = (500, 4);
/// Inputs of each graph in a longer run.
const INPUTS: u64 = 100;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
    fn step(&mut self) -> (u8, u16, u16) {
        let bytes = self.next().to_le_bytes();
        (bytes[0], u16::from_le_bytes([bytes[1], bytes[2]]), u16::from_le_bytes([bytes[3], bytes[4]]))
    }
    fn bits(&mut self) -> f32 {
        let bytes = self.next().to_le_bytes();
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// A number of a range: an end, 0, of any magnitude, or any of them alike.
    fn between(&mut self, lo: f32, hi: f32) -> f32 {
        let share = |bits: u64| f32::from(u16::try_from(bits & 0xffff).unwrap()) / 65535.0;
        let number = match self.below(12) {
            0 => lo,
            1 => hi,
            2 => 0.0,
            3 => self.bits(),
            _ => lo + (hi - lo) * share(self.next()),
        };
        if number.is_nan() { lo } else { number.clamp(lo, hi) }
    }
}

/// Ranges of inputs; without a range an input may be any number, infinite or NaN.
const GIVEN: [Option<(f32, f32)>; 9] = [
    Some((-1.0, 1.0)),
    Some((-4.0, 4.0)),
    Some((0.0, 1.0)),
    Some((0.5, 3.0)),
    Some((-1000.0, 1000.0)),
    Some((-1e20, 1e20)),
    Some((-3e38, 3e38)),
    Some((-1e-40, 1e-39)),
    None,
];

/// Constants of the steps below.
const CONSTANTS: &str = "
  const %three : f32 = 3.0
  const %minus_two : f32 = -2.0
  const %big : f32 = 1e30
  const %small : f32 = 1e-30
  const %mask : f32[4] = [-1e9, 0.0, -3.4028234663852886e38, 0.0]
  const %point : i8 = -3
  const %steps : i64[3] = [4, 1, 4]
  const %weights4 : f32[1, 16, 4] = random(11)
  const %weights3 : f32[1, 12, 4] = random(12)
  const %positive : f32[4] = [0.5, 1e-3, 2.0, 4.0]
  const %scale1 : f32[1] = [3.0]
  const %kernel : f32[2, 1, 3, 3] = random(13)
  const %pair : f32[2] = [0.25, -1.0]
";

/// Steps beside those of graphs with gradients: `A` and `B` are what they read, `V` what they define.
const STEPS: &[&str] = &[
    "V = Exp(A)",
    "V = Log(A)",
    "V = Sqrt(A)",
    "V = Reciprocal(A)",
    "V = Neg(A)",
    "V = Sign(A)",
    "V = Ceil(A)",
    "V = Round(A)",
    "V = Cos(A)",
    "V = Asin(A)",
    "V = Acos(A)",
    "V = Elu(A) {alpha=-0.5}",
    "V = Selu(A)",
    "V = Celu(A) {alpha=0.25}",
    "V = Shrink(A) {bias=0.5, lambd=0.25}",
    "V = ThresholdedRelu(A) {alpha=-0.5}",
    "V = HardSigmoid(A)",
    "V = LeakyRelu(A) {alpha=-2.0}",
    "V = Swish(A) {alpha=2.0}",
    "V = Gelu(A) {approximate=\"tanh\"}",
    "V = Hardmax(A)",
    "V = LpNormalization(A) {p=1}",
    "V = Div(A, B)",
    "V = Mul(A, B)",
    "V = Mul(A, A)",
    "V = Pow(A, B)",
    "V = Pow(A, %three)",
    "V = Pow(A, %minus_two)",
    "V = Pow(A, %half)",
    "V = Mod(A, B) {fmod=1}",
    "V = Mul(A, %big)",
    "V = Mul(A, %small)",
    "V = Sub(A, A)",
    "Va = Mul(A, %big)\nV = Sub(Va, Va)",
    "Va = Mul(A, %big)\nVb = Neg(Va)\nV = Sum(Va, Vb, B)",
    "V = Add(A, %mask)",
    "V = Add(A, %big)",
    "V = PRelu(A, B)",
    "V = Clip(A, %minus_two)",
    "V = Clip(A, _, %three)",
    "Va = Cast(A) {to=6} : i32[4, 4]\nVb = Mul(Va, Va)\nVc = Add(Vb, Va)\nV = Cast(Vc) {to=1}",
    "Va = Cast(A) {to=7} : i64[4, 4]\nVb = Abs(Va)\nVc = Mod(Vb, %steps4)\nV = Cast(Vc) {to=1}",
    "Va = Cast(A) {to=3} : i8[4, 4]\nVb = Neg(Va)\nVc = Div(Vb, %point)\nV = Cast(Vc) {to=1}",
    "Va = Cast(A) {to=10} : f16[4, 4]\nVb = Mul(Va, Va)\nVc = Exp(Vb)\nV = Cast(Vc) {to=1}",
    "Va = Cast(A) {to=16} : bf16[4, 4]\nVb = Add(Va, Va)\nVc = Sigmoid(Vb)\nV = Cast(Vc) {to=1}",
    "Va = Cast(A) {to=11} : f64[4, 4]\nVb = Mul(Va, Va)\nVc = Exp(Va)\nVd = Add(Vb, Vc)\nV = Cast(Vd) {to=1}",
    "Va = Cast(A) {to=9} : bool[4, 4]\nV = Cast(Va) {to=1}",
    "Va = IsNaN(A)\nV = Where(Va, B, A)",
    "Va = Exp(A)\nVb = ReduceSum(Va, %one)\nV = Div(Va, Vb)",
    "Va = ReduceMax(A, %one)\nVb = Sub(A, Va)\nVc = Exp(Vb)\nVd = ReduceSum(Vc, %one)\nV = Div(Vc, Vd)",
    "Va = ReduceMax(A, %one) {keepdims=0}\nV = Sub(A, Va)",
    "Va = Relu(A)\nVb = ReduceSum(Va, %one) {keepdims=0}\nV = Div(Va, Vb)",
    "Va = ReduceMin(A, %zero)\nV = Sub(A, Va)",
    "Va = ReduceL1(A, %one)\nV = Add(Va, B)",
    "Va = ReduceL2(A)\nV = Div(A, Va)",
    "Va = ReduceSumSquare(A)\nV = Add(A, Va)",
    "Va = ReduceLogSumExp(A, %one)\nV = Sub(A, Va)",
    "Va = ReduceLogSum(A, %one)\nV = Sub(A, Va)",
    "Va = Sigmoid(A)\nVb = ReduceProd(Va, %one)\nV = Add(Vb, B)",
    "Va = ReduceMean(A)\nV = Mul(A, Va)",
    "Va = Softmax(A)\nV = MatMul(Va, B)",
    "Va = Softmax(A) {axis=0}\nV = MatMul(Va, B)",
    "Va = Softmax(A)\nVb = Transpose(Va)\nV = MatMul(Vb, B)",
    "Va = Add(A, %mask)\nVb = Softmax(Va)\nVc = Dropout(Vb)\nV = MatMul(Vc, B)",
    "V = MatMul(A, B)",
    "V = MatMul(%weights, A)",
    "V = Gemm(A, %weights, %row) {transB=1, alpha=-3.0, beta=2.0}",
    "V = Gemm(%weights, A) {transA=1}",
    "V = Gemm(A, %weights, B) {transA=1}",
    "V = BatchNormalization(A, %row, %bias, %mean, %positive)",
    "Va = Reshape(A, %image)\nVb = InstanceNormalization(Va, %scale1, %scale1) {epsilon=1e-12}\nV = Reshape(Vb, %square)",
    "V = LayerNormalization(A, %row, %bias) {epsilon=1e-12}",
    "V = RMSNormalization(A, %row) {epsilon=0.0, axis=0}",
    "Va = Reshape(A, %deep)\nVb = LRN(Va) {size=3}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %deep)\nVb = GlobalAveragePool(Va)\nVc = Mul(Va, Vb)\nV = Reshape(Vc, %square)",
    "Va = Reshape(A, %image)\nVb = AveragePool(Va) {kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = MaxPool(Va) {kernel_shape=[2, 2], dilations=[3, 3], pads=[1, 1, 2, 2]}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = Conv(Va, %kernel, %pair) {pads=[1, 1, 1, 1]}\nVc = ReduceMax(Vb, %one)\nV = Reshape(Vc, %square)",
    "Va = Reshape(A, %image)\nVb = Reshape(B, %image)\nVc = Conv(Va, Vb) {pads=[1, 2, 2, 1]}\nV = Reshape(Vc, %square)",
    "Va = QuantizeLinear(A, %half, %point)\nV = DequantizeLinear(Va, %half, %point)",
    "Va = ArgMax(A) {axis=1}\nVb = Cast(Va) {to=1}\nV = Add(A, Vb)",
    "Va = Reshape(A, %steps)\nVb, Vc = LSTM(Va, %weights4, %weights4) {hidden_size=4}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %steps)\nVb, Vc = GRU(Va, %weights3, %weights3) {hidden_size=4}\nV = Reshape(Vb, %square)",
    "V = Pad(A, %nothing, %big)",
    "Va = ConstantOfShape(%square) {value=tensor(f32[1] = [7.0])}\nV = Min(A, Va, B)",
    "V = Max(A, %three)",
    "V = Identity(A)",
];

/// The text of a graph of steps of both lists over values of four by four.
fn text_of_steps(random: &mut Random) -> String {
    let steps: Vec<_> = (0..1 + random.below(5)).map(|_| random.step()).collect();
    let text = random_gradients::graph(&steps).replace("f64", "f32").replace("ai.onnx=23", "ai.onnx=24");
    let inputs = |line: &str| match line.split(" = random").next() {
        Some(line @ ("  const %x : f32[4, 4]" | "  const %y : f32[4, 4]")) => line.replace("const", "input"),
        _ => line.to_owned(),
    };
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("role ")).map(inputs);
    let (outputs, nodes): (Vec<String>, Vec<String>) = lines.partition(|line| line.starts_with("  output"));
    let mut text = nodes.join("\n").trim_end_matches('}').replace(
        "graph @main {",
        &format!(
            "graph @main {{{CONSTANTS}  const %weights : f32[4, 4] = random(9)\n  const %steps4 : i64 = 4\n  \
             const %nothing : i64[4] = [0, 0, 0, 0]"
        ),
    );
    let mut values: Vec<String> = ["%x", "%y"].map(str::to_owned).to_vec();
    values.extend((0..steps.len()).map(|i| format!("%v{i}")));
    for i in 0..1 + random.below(8) {
        let pick = |random: &mut Random, values: &[String]| {
            let n = values.len();
            // The last values more often: long chains.
            values[if random.below(2) == 0 { n - 1 } else { random.below(n) }].clone()
        };
        let (a, b) = (pick(random, &values), pick(random, &values));
        let name = format!("%e{i}");
        for line in STEPS[random.below(STEPS.len())].lines() {
            let line = random_gradients::spelled(line, &a, &b, &name);
            let results = line.split(" = ").next().map_or(1, |results| results.split(", ").count());
            let types = if line.contains(" : ") {
                String::new()
            } else {
                format!(" : {}", vec!["?"; results].join(", "))
            };
            writeln!(text, "  {line}{types}").unwrap();
        }
        writeln!(text, "  output {name}").unwrap();
        values.push(name);
    }
    text + &outputs.join("\n") + "\n}\n"
}

/// A line of a graph with operators that the runtime has. Names of sequences end in p or q.
fn without_custom_operators(line: &str) -> String {
    let sequence = ["p)", "q)"].into_iter().find(|end| line.contains(&format!("{end} : f32[4, 4] @")));
    let line = match sequence.filter(|_| line.contains("com.example::Op(")) {
        Some(end) => {
            line.replace("com.example::Op(", "SequenceAt(").replace(end, &end.replace(')', ", %zero)"))
        }
        None => line.replace("com.example::Op(", "Identity("),
    };
    line + "\n"
}

/// A random graph as a module whose types are inferred.
fn random_module(random: &mut Random) -> (String, Module) {
    let text = if random.below(2) == 0 {
        let steps: Vec<_> = (0..1 + random.below(16)).map(|_| random.step()).collect();
        let outputs: Vec<u16> = (0..3).map(|_| random.step().1).collect();
        let text = random_graphs::text_of(&random_graphs::Graph::new(&steps, &outputs).module());
        text.lines().map(without_custom_operators).collect()
    } else {
        text_of_steps(random)
    };
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    (text, module)
}

/// Compares every value of a run with its range.
struct Watcher<'m> {
    module: &'m Module,
    ranges: &'m Ranges,
    seen: usize,
    finite: usize,
    outside: Vec<String>,
}

impl Watcher<'_> {
    fn compare(&mut self, name: &str, range: Range, data: DataRef<'_>) {
        match data {
            DataRef::Tensor(tensor) => {
                self.seen += 1;
                self.finite += usize::from(range.is_finite());
                #[expect(clippy::cast_precision_loss, reason = "large integers have the range of their type")]
                let outside = match (tensor.f64s(), data.to_data().unwrap()) {
                    (Ok(mut floats), _) => floats.find(|&n| !range.contains(n)),
                    (Err(_), Data::Tensor(tensor)) => {
                        let mut ints = tensor.ints().into_iter().flatten().map(|n| n as f64);
                        ints.find(|&n| !range.contains(n))
                    }
                    _ => unreachable!("a tensor is copied as a tensor"),
                };
                self.outside.extend(outside.map(|n| format!("{name} has {n:e}, not in {range:?}")));
            }
            DataRef::Sequence(list) => {
                list.items().iter().for_each(|item| self.compare(name, range, item.view()));
            }
            DataRef::Optional(maybe) => {
                maybe.value.iter().for_each(|value| self.compare(name, range, value.view()));
            }
            DataRef::Device(_) => unreachable!("the model runs in host memory"),
        }
    }
}

impl NodeObserver for Watcher<'_> {
    fn value(&mut self, node: Node, slot: usize, data: DataRef<'_>) {
        let Some(value) = self.module.node(node).result(slot) else { return };
        let range = self.ranges.range(self.module, resolve_captures(self.module, value));
        let name = format!("{} of {}", name_of(self.module, value), self.module.op_name(node).1);
        self.compare(&name, range, data);
    }
}

/// A value for each input of a model, within its given range.
fn inputs(module: &Module, given: Option<(f32, f32)>, random: &mut Random) -> Vec<Option<Data>> {
    let tensor = |value| {
        let ty = module.value(value).ty.as_tensor().unwrap();
        let dims = ty.shape.to_known().unwrap();
        let n = usize::try_from(dims.iter().product::<u64>()).unwrap();
        let mut float = || match given {
            Some((lo, hi)) => random.between(lo, hi),
            None => random.bits(),
        };
        match ty.dtype {
            DType::F32 => HostTensor::from_slice(&dims, &(0..n).map(|_| float()).collect::<Vec<f32>>()),
            DType::I64 => HostTensor::from_slice(&dims, &(0..n).map(|i| i as i64).collect::<Vec<i64>>()),
            DType::Bool => HostTensor::from_bytes(DType::Bool, &dims, &vec![u8::from(float() > 0.5); n]),
            other => panic!("an input of {other}"),
        }
    };
    let inputs = module.graph(module.main()).inputs().to_vec();
    inputs.into_iter().map(tensor).map(|made| Some(Data::Tensor(made.unwrap()))).collect()
}

/// Runs a graph and returns how many values were compared, and how many of them were proved finite.
fn check(seed: u64, n_inputs: u64) -> (usize, usize) {
    let random = &mut Random(seed);
    let (text, mut module) = random_module(random);
    let mut session: Session = match prepare(&mut module, &Runtime::new(std::sync::Arc::new(Cpu::new(1)))) {
        Ok(session) => session,
        Err(error) => panic!("seed {seed}: {error}\n{text}"),
    };
    let given = GIVEN[random.below(GIVEN.len())];
    let of = |name: &str| given.map(|(lo, hi)| (name.to_owned(), (lo.into(), hi.into())));
    let ranges: InputRanges = ["x", "y"].into_iter().filter_map(of).collect();
    let ranges = Ranges::of(&module, &ranges, &mut Statistics::default());
    let mut watcher = Watcher { module: &module, ranges: &ranges, seen: 0, finite: 0, outside: Vec::new() };
    for _ in 0..n_inputs {
        let inputs = inputs(&module, given, random);
        if let Err(error) = session.run_observed(&views(&inputs), Some(&mut watcher)) {
            panic!("seed {seed}: {error}\n{text}");
        }
        assert!(
            watcher.outside.is_empty(),
            "seed {seed}, inputs in {given:?}: {:#?}\n{text}",
            watcher.outside
        );
    }
    (watcher.seen, watcher.finite)
}

#[test]
fn no_value_is_outside_of_its_range() {
    #[expect(clippy::disallowed_methods, reason = "the gate looks at fewer graphs than a release")]
    let asked = std::env::var("AMPC_RANGE_GRAPHS").ok().map(|n| (n.parse().unwrap(), INPUTS));
    let (n_graphs, n_inputs) = asked.unwrap_or(QUICK);
    let (mut seen, mut finite) = (0, 0);
    for seed in 0..n_graphs {
        let found = check(seed, n_inputs);
        (seen, finite) = (seen + found.0, finite + found.1);
    }
    // Most values are followed, not given up.
    assert!(finite * 3 > seen, "only {finite} of {seen} values are proved finite");
}
