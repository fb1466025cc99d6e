//! What holds for every graph: properties over random ones.
//!
//! A graph is made of steps over matrices of four by four, so that every value can be read by every step; steps are
//! operators of every class, constants that do not fit, casts of the author, bodies, custom operators, and values
//! that are read more than once and leave the graph in the middle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc::onnx::{ReadOptions, read_bytes, to_bytes};
use ampc::options::Opset;
use ampc::{Model, RewriteOptions, rewrite};
use ampc_ir::eq::same_module;
use ampc_ir::module::Provenance;
use ampc_ir::op::{Class, OpKind};
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::policy::Pin;
use ampc_passes::simplify_casts::is_exact;
use ampc_passes::{Paths, Policy};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// A line of a graph: what it defines, what it reads, its text.
#[derive(Clone, Debug)]
struct Line {
    defines: Vec<String>,
    reads: Vec<String>,
    text: String,
}

#[derive(Clone, Debug)]
struct Graph {
    lines: Vec<Line>,
    outputs: Vec<String>,
}

/// A step by number and what it reads by number, made to fit.
type Step = (u8, u16, u16);

fn graphs() -> impl Strategy<Value = Graph> {
    let steps = prop::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 1..24);
    (steps, prop::collection::vec(any::<u16>(), 1..4))
        .prop_map(|(steps, outputs)| Graph::new(&steps, &outputs))
}

const UNARY: &[&str] =
    &["Relu", "Tanh", "Sigmoid", "Exp", "Sqrt", "Floor", "Neg", "Softmax", "Identity", "Erf", "Dropout"];
const BINARY: &[&str] =
    &["Add", "Sub", "Mul", "Div", "Max", "Sum", "MatMul", "MatMul", "MatMul", "PRelu", "Mod"];
const CONSTANTS: &[&str] = &["half", "big", "tiny", "eps", "mask", "bias"];

/// Functions that call one another, one with a body.
const FUNCTIONS: &str = "
function local::Ffn {
  opset ai.onnx=22
  input %v : ?
  input %k : ?
  %a = MatMul(%v, %k) : ?
  %half = Constant() {value_float=0.5} : f32
  %b = Mul(%a, %half) : ?
  %c = Tanh(%b) : ?
  %d = MatMul(%c, %k) : ?
  output %d
}

function local::Norm {
  opset ai.onnx=22
  input %v : ?
  %a = Abs(%v) : ?
  %b = Sqrt(%a) : ?
  %c = Add(%b, %v) : ?
  output %c
}

function local::Nest {
  opset ai.onnx=22, local=1
  input %v : ?
  input %k : ?
  %a = local::Norm(%v) : ?
  %true = Constant() {value_int=1} : i64
  %t = Cast(%true) {to=9} : bool
  %b = If(%t; %a, %k) {
    then_branch: graph (%a, %k) {
      %f = local::Ffn(%a, %k) : ?
      output %f
    },
    else_branch: graph (%a) {
      %g = Neg(%a) : ?
      output %g
    }
  } : ?
  output %b
}
";

/// The lines of a body that computes something of what it captures or is handed.
struct Body {
    text: String,
    out: String,
    captures: Vec<String>,
}

impl Body {
    fn new(name: &str, reads: &[&str; 2], pick: usize, depth: usize) -> Body {
        const M: &str = ": f32[4, 4]";
        let [a, b] = *reads;
        let (i, out) = (format!("{name}bi"), format!("{name}bo"));
        let (text, used): (String, &[&str]) = match pick % 9 {
            0 => (format!("%{out} = Exp(%{a}) {M}"), &[a]),
            1 => (format!("%{out} = MatMul(%{a}, %{b}) {M}"), &[a, b]),
            2 => (format!("%{i} = MatMul(%{a}, %w) {M}\n %{out} = Add(%{i}, %{b}) {M}"), &[a, b, "w"]),
            3 => (format!("const %{i} : f32 = 0.1\n %{out} = Mul(%{a}, %{i}) {M}"), &[a]),
            4 => {
                (format!("%{i} = Cast(%{a}) {{to=10}} : f16[4, 4]\n %{out} = Cast(%{i}) {{to=1}} {M}"), &[a])
            }
            5 => (format!("%{out} = local::Ffn(%{a}, %{b}) {M}"), &[a, b]),
            6 => (
                format!("%{i} = Transpose(%{b}) {{perm=[1, 0]}} {M}\n %{out} = MatMul(%{i}, %w) {M}"),
                &[b, "w"],
            ),
            7 => (format!("%{out} = Identity(%{a}) {M}"), &[a]),
            _ if depth == 0 => (format!("%{out} = Relu(%{b}) {M}"), &[b]),
            _ => {
                let then = Body::new(&format!("{name}x"), &[a, b], pick / 9, depth - 1);
                let other = Body::new(&format!("{name}y"), &[b, a], pick / 81, depth - 1);
                let text = branches(&out, &then, &other);
                let mut captures = vec!["c".to_owned()];
                for capture in then.captures.into_iter().chain(other.captures) {
                    if !captures.contains(&capture) {
                        captures.push(capture);
                    }
                }
                return Body { text, out, captures };
            }
        };
        let mut captures: Vec<String> = Vec::new();
        for used in used {
            if !captures.iter().any(|c| c == used) {
                captures.push((*used).to_owned());
            }
        }
        Body { text, out, captures }
    }

    /// What it captures, but for what is handed in.
    fn capture_list(&self, formals: &[&str]) -> Vec<String> {
        self.captures.iter().filter(|c| !formals.contains(&c.as_str())).cloned().collect()
    }
}

fn list(before: &str, values: &[String]) -> String {
    let spelled: Vec<String> = values.iter().map(|v| format!("%{v}")).collect();
    if values.is_empty() { String::new() } else { format!("{before}{}", spelled.join(", ")) }
}

fn parenthesised(values: &[String]) -> String {
    if values.is_empty() { String::new() } else { format!("({})", list("", values)) }
}

/// An If on the input `c`.
fn branches(name: &str, then: &Body, other: &Body) -> String {
    let mut captures = then.captures.clone();
    captures.extend(other.captures.iter().filter(|c| !then.captures.contains(c)).cloned());
    let branch = |attr: &str, body: &Body| {
        format!(
            "{attr}: graph {} {{\n {}\n output %{} }}",
            parenthesised(&body.captures),
            body.text,
            body.out
        )
    };
    format!(
        "%{name} = If(%c{}) {{ {},\n {} }} : f32[4, 4]",
        list("; ", &captures),
        branch("then_branch", then),
        branch("else_branch", other)
    )
}

impl Graph {
    fn new(steps: &[Step], outputs: &[u16]) -> Graph {
        let mut graph = Graph { lines: Vec::new(), outputs: Vec::new() };
        let mut values = vec!["x".to_owned(), "y".to_owned()];
        for &(kind, a, b) in steps {
            let at = |i: u16| {
                // The last ones more often: long chains.
                let n = values.len();
                values[n - 1 - usize::from(i) % n.min(if i & 256 == 0 { 3 } else { n })].clone()
            };
            let (a, b, pick) = (at(a), at(b), usize::from(b));
            let name = format!("v{}", values.len());
            let made = graph.step(kind, &name, &a, &b, pick);
            values.extend(made);
        }
        for &i in outputs {
            // Inputs that leave at once are a case of their own, not one in ten.
            let i = usize::from(i) % values.len();
            graph.outputs.push(values[i.max(2).min(values.len() - 1)].clone());
        }
        graph
    }

    fn line(&mut self, name: &str, op: &str, reads: &[&str], rest: &str) {
        let operands: Vec<String> = reads.iter().map(|r| format!("%{r}")).collect();
        self.lines.push(Line {
            defines: vec![name.to_owned()],
            reads: reads.iter().map(|&r| r.to_owned()).collect(),
            text: format!("%{name} = {op}({}) {rest} @n_{name}", operands.join(", ")),
        });
    }

    /// Adds lines and says which values may be read.
    fn step(&mut self, kind: u8, name: &str, a: &str, b: &str, pick: usize) -> Vec<String> {
        const M: &str = ": f32[4, 4]";
        let inner = format!("{name}i");
        let unary = UNARY[pick % UNARY.len()];
        let binary = BINARY[pick % BINARY.len()];
        let constant = CONSTANTS[pick % CONSTANTS.len()];
        match kind % 30 {
            0..=4 => self.line(name, unary, &[a], M),
            5..=9 => {
                let attrs = if binary == "Mod" { "{fmod=1} " } else { "" };
                self.line(name, binary, &[a, b], &format!("{attrs}{M}"));
            }
            10 => self.line(name, ["Add", "Mul", "Sub", "Div"][pick % 4], &[a, constant], M),
            11 => self.line(name, "Gather", &["w", "i"], M),
            12 => self.line(name, "Reshape", &[a, "shape"], M),
            13 => self.line(name, "Transpose", &[a], &format!("{{perm=[1, 0]}} {M}")),
            14 => {
                self.line(&inner, "Greater", &[a, b], ": bool[4, 4]");
                self.line(name, "Where", &[&inner, b, a], M);
            }
            15 => {
                self.line(&inner, "Concat", &[a, b], "{axis=0} : f32[8, 4]");
                let second = format!("{name}s");
                self.lines.push(Line {
                    defines: vec![name.to_owned(), second.clone()],
                    reads: vec![inner.clone()],
                    text: format!(
                        "%{name}, %{second} = Split(%{inner}) {{axis=0, num_outputs=2}} : f32[4, 4], f32[4, 4] \
                         @n_{name}"
                    ),
                });
                return vec![name.to_owned(), second];
            }
            16 => {
                // Casts of the author, one of which may become idle.
                self.line(&inner, "Cast", &[a], "{to=10} : f16[4, 4]");
                self.line(name, "Cast", &[&inner], &format!("{{to=1}} {M}"));
            }
            17 => {
                self.line(&inner, "ReduceMean", &[a], ": f32[1, 1]");
                self.line(name, "Sub", &[a, &inner], M);
            }
            18 => self.line(name, "LayerNormalization", &[a, "scale"], M),
            19 => self.line(name, "com.example::Op", &[a], M),
            20 | 21 => {
                let then = Body::new(name, &[a, b], pick, 2);
                let other = Body::new(&format!("{name}e"), &[b, a], pick / 7, 2);
                let text = branches(name, &then, &other);
                let mut reads = then.captures;
                reads.extend(other.captures);
                self.lines.push(Line { defines: vec![name.to_owned()], reads, text });
            }
            22 | 23 => {
                // One state; what was made in each iteration leaves as well.
                let state = format!("{name}h");
                let body = Body::new(name, &[&state, b], pick, 2);
                let captures = body.capture_list(&[&state]);
                let text = format!(
                    "%{name}, %{name}all = Loop(%n, _, %{a}{}) {{ body: graph {} {{\n input %{name}k : i64\n \
                     input %{name}g : bool\n input %{state} : f32[4, 4]\n %{name}go = Identity(%{name}g) : bool\n \
                     {}\n output %{name}go\n output %{out}\n output %{out} }} }} : f32[4, 4], f32[2, 4, 4] \
                     @n_{name}",
                    list("; ", &captures),
                    parenthesised(&captures),
                    body.text,
                    out = body.out,
                );
                let reads = [a.to_owned()].into_iter().chain(captures).collect();
                self.lines.push(Line { defines: vec![name.to_owned()], reads, text });
            }
            24 => {
                let (state, slice) = (format!("{name}h"), format!("{name}e"));
                let body = Body::new(name, &[&state, b], pick, 1);
                let captures = body.capture_list(&[&state]);
                let text = format!(
                    "%{name}, %{name}s = Scan(%{a}, %{b}{}) {{ body: graph {} {{\n input %{state} : f32[4, 4]\n \
                     input %{slice} : f32[4]\n {}\n %{name}t = Mul(%{slice}, %{slice}) : f32[4]\n output %{}\n \
                     output %{name}t }}, num_scan_inputs=1 }} : f32[4, 4], f32[4, 4] @n_{name}",
                    list("; ", &captures),
                    parenthesised(&captures),
                    body.text,
                    body.out
                );
                let reads = [a, b].map(str::to_owned).into_iter().chain(captures).collect();
                let defines = vec![name.to_owned(), format!("{name}s")];
                self.lines.push(Line { defines: defines.clone(), reads, text });
                return defines;
            }
            25 | 26 => self.line(name, ["local::Ffn", "local::Nest"][pick % 2], &[a, b], M),
            27 => self.line(name, "local::Norm", &[a], M),
            28 => self.line(name, "Gemm", &[a, b, "bias"], M),
            29 => {
                self.line(&inner, "Constant", &[], "{value_float=0.1} : f32");
                self.line(name, "Mul", &[a, &inner], M);
            }
            _ => {
                self.line(&inner, "Transpose", &["m"], ": f32[4, 4]");
                self.line(name, "MatMul", &[a, &inner], M);
            }
        }
        vec![name.to_owned()]
    }

    /// The graph with its lines in the order that `keys` prefer, as far as readers allow.
    fn reordered(&self, keys: &[u32]) -> Graph {
        let mut left: Vec<usize> = (0..self.lines.len()).collect();
        let mut lines = Vec::new();
        while !left.is_empty() {
            let pending: Vec<&String> = left.iter().flat_map(|&i| &self.lines[i].defines).collect();
            let ready = |&i: &usize| !self.lines[i].reads.iter().any(|r| pending.contains(&r));
            let next = left.iter().copied().filter(ready).min_by_key(|&i| (keys[i % keys.len()], i)).unwrap();
            left.retain(|&i| i != next);
            lines.push(self.lines[next].clone());
        }
        Graph { lines, outputs: self.outputs.clone() }
    }

    fn module(&self) -> Module {
        let mut text = String::from(
            "module ir=10\nopset ai.onnx=22, com.example=1, local=1\n\ngraph @main {\n  input %x : f32[4, 4]\n  \
             input %y : f32[4, 4]\n  input %c : bool\n  input %i : i64[4]\n  const %half : f32 = 0.5\n  \
             const %big : f32 = 1e9\n  const %tiny : f32 = 1e-9\n  const %eps : f32 = 1e-5\n  \
             const %mask : f32[4] = [-65504.0, 0.0, 0.0, 0.0]\n  const %bias : f32[4] = random(3)\n  \
             const %scale : f32[4] = random(4)\n  const %w : f32[4, 4] = random(1)\n  \
             const %m : f32[4, 4] = random(2)\n  const %shape : i64[2] = [4, 4]\n  const %n : i64 = 2\n",
        );
        for line in &self.lines {
            writeln!(text, "  {}", line.text).unwrap();
        }
        for output in &self.outputs {
            writeln!(text, "  output %{output} : f32[4, 4]").unwrap();
        }
        text.push_str("}\n");
        text.push_str(FUNCTIONS);
        parse(&text, &NoData).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    /// The model, written and read: with a source, as from a file.
    fn model(&self) -> Model {
        from_bytes(to_bytes(&self.module(), None).unwrap().0)
    }
}

fn from_bytes(bytes: Vec<u8>) -> Model {
    let (module, source, warnings) = read_bytes("random", bytes, &ReadOptions::default()).unwrap();
    Model { source: Some(source), warnings, ..Model::from(module) }
}

fn bytes_of(model: &Model) -> Vec<u8> {
    to_bytes(&model.module, model.source.as_ref()).unwrap().0
}

fn text_of(module: &Module) -> String {
    print(module, &PrintOptions::default()).text
}

fn options() -> impl Strategy<Value = RewriteOptions> {
    let format = prop_oneof![Just(DType::F16), Just(DType::BF16)];
    let policy = prop_oneof![4 => Just("safe"), 1 => Just("all")];
    let keep_io = prop_oneof![3 => Just(KeepIo::All), 1 => Just(KeepIo::None)];
    let opset = prop_oneof![3 => Just(Opset::Keep), 1 => Just(Opset::Auto), 1 => Just(Opset::To(26))];
    (format, policy, keep_io, opset).prop_map(|(to, policy, keep_io, opset)| RewriteOptions {
        to,
        keep_io,
        opset,
        policy: Arc::new(Policy::preset(policy).unwrap()),
        verify_each: true,
        ..RewriteOptions::default()
    })
}

/// A cast and what it casts.
struct Cast {
    node: Node,
    from: Value,
    to: Value,
    inserted: bool,
}

fn casts(module: &Module) -> Vec<Cast> {
    module
        .graph_ids()
        .flat_map(|graph| module.nodes(graph))
        .filter(|&n| module.node(n).schema().is_some_and(|s| s.kind == OpKind::Cast))
        .map(|node| {
            let data = module.node(node);
            let inserted = data.provenance == Provenance::Inserted;
            Cast { node, from: data.operand(0).unwrap(), to: data.result(0).unwrap(), inserted }
        })
        .collect()
}

/// What was decided for every node of the source: class and precision of each variable.
fn decisions(module: &Module) -> BTreeMap<String, Vec<(Class, Option<DType>)>> {
    let paths = Paths::new(module);
    module
        .graph_ids()
        .flat_map(|graph| module.nodes(graph))
        // The ports of a function belong to the first of its calls.
        .filter(|&n| module.node(n).provenance == Provenance::User && module.node(n).schema().is_some())
        .map(|n| {
            let decided = module.node(n).decisions.iter().map(|d| (d.class, d.precision)).collect();
            (paths.path(n).to_owned(), decided)
        })
        .collect()
}

proptest! {
    // `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for more, and for others.
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// What comes out is a valid model without findings, and its text says all of it.
    #[test]
    fn a_rewrite_is_valid(graph in graphs(), options in options()) {
        let mut rewritten = rewrite(graph.model(), &options).unwrap().model;
        let text = text_of(&rewritten.module);
        same_module(&rewritten.module, &parse(&text, &NoData).unwrap()).unwrap();
        let findings = ampc::check(&mut rewritten.module);
        prop_assert!(findings.is_empty(), "{findings:?}\n{text}");
    }

    /// Rewriting what was rewritten changes no byte.
    #[test]
    fn a_rewrite_is_a_fixed_point(graph in graphs(), options in options()) {
        let once = rewrite(graph.model(), &options).unwrap().model;
        let bytes = bytes_of(&once);
        let twice = rewrite(from_bytes(bytes.clone()), &options).unwrap().model;
        prop_assert!(
            bytes == bytes_of(&twice),
            "{}\n{}", text_of(&from_bytes(bytes).module), text_of(&twice.module)
        );
    }

    /// Every cast that was inserted is there for something.
    #[test]
    fn no_cast_is_idle(graph in graphs(), options in options()) {
        let module = rewrite(graph.model(), &options).unwrap().model.module;
        let text = text_of(&module);
        let all = casts(&module);
        // What a custom operator makes has no known type.
        let dtype = |v: Value| module.value(v).ty.dtype().unwrap_or(DType::F32);
        let mut seen = BTreeMap::new();
        for cast in &all {
            if !cast.inserted {
                continue;
            }
            let twin = seen.insert((cast.from, module.value(cast.to).ty.dtype()), cast.node);
            prop_assert!(twin.is_none(), "twins of {}\n{text}", cast.from);
            // What leaves a body must be made there.
            let made_here = module.is_output(cast.to) && module.producer(cast.from).is_none();
            prop_assert!(made_here || dtype(cast.from) != dtype(cast.to), "an identity\n{text}");
            let readers: Vec<Node> = module.uses(cast.to).map(|(n, _)| n).collect();
            prop_assert!(!readers.is_empty() || module.is_output(cast.to), "nobody reads {}\n{text}", cast.to);
            // Narrowed only to be widened again.
            let narrows = dtype(cast.to).is_low() && !is_exact(dtype(cast.from), dtype(cast.to));
            let undone = |n: &Node| {
                all.iter().any(|c| c.node == *n && c.inserted && is_exact(dtype(c.from), dtype(c.to)))
            };
            prop_assert!(
                !(narrows && !module.is_output(cast.to) && readers.iter().all(undone)),
                "narrowed to be widened\n{text}"
            );
            // An exact cast of an exact cast.
            let behind = all.iter().find(|c| c.to == cast.from);
            prop_assert!(
                !behind.is_some_and(|c| is_exact(dtype(c.from), dtype(c.to))),
                "a cast of an exact cast\n{text}"
            );
        }
    }

    /// Nothing is done to a model in which everything is pinned.
    #[test]
    fn pinned_to_fp32_is_untouched(graph in graphs(), to in prop_oneof![Just(DType::F16), Just(DType::BF16)]) {
        let mut policy = Policy::preset("safe").unwrap();
        policy.pin("*", Pin::To(DType::F32)).unwrap();
        let options = RewriteOptions { to, policy: Arc::new(policy), ..RewriteOptions::default() };
        let model = graph.model();
        let before = bytes_of(&model);
        prop_assert!(before == bytes_of(&rewrite(model, &options).unwrap().model));
    }

    /// The order of nodes decides nothing.
    #[test]
    fn order_decides_nothing(
        graph in graphs(),
        keys in prop::collection::vec(any::<u32>(), 1..60),
        options in options(),
    ) {
        let other = graph.reordered(&keys);
        let [one, two] = [&graph, &other].map(|g| rewrite(g.model(), &options).unwrap().model.module);
        prop_assert_eq!(decisions(&one), decisions(&two), "{}\n{}", text_of(&one), text_of(&two));
        let [m, n] = [&one, &two].map(|m| casts(m).len());
        prop_assert_eq!(m, n, "{}\n{}", text_of(&one), text_of(&two));
    }

    /// A report is a policy that repeats its decisions.
    #[test]
    fn reports_replay(graph in graphs(), options in options()) {
        let once = rewrite(graph.model(), &options).unwrap();
        let report = serde_json::to_string(&once.report).unwrap();
        let policy = Arc::new(Policy::from_json(&report).unwrap());
        let again = rewrite(graph.model(), &RewriteOptions { policy, ..options }).unwrap().model;
        prop_assert!(
            bytes_of(&once.model) == bytes_of(&again),
            "{}\n{}", text_of(&once.model.module), text_of(&again.module)
        );
    }

    /// Emulation computes in fp32 and keeps the interface.
    #[test]
    fn emulation_is_fp32(graph in graphs(), options in options()) {
        let low = rewrite(graph.model(), &options).unwrap().model;
        let interface = |module: &Module| {
            let graph = module.graph(module.main());
            let named = |v: Value| (ampc_ir::verify::name_of(module, v), module.value(v).ty.dtype());
            let inputs: Vec<_> = graph.inputs().iter().map(|&v| named(v)).collect();
            let outputs: Vec<_> = graph.outputs().iter().map(|o| named(o.value)).collect();
            (inputs, outputs)
        };
        let before = interface(&low.module);
        let emulated = ampc::emulate(low).unwrap().module;
        let text = text_of(&emulated);
        prop_assert_eq!(before, interface(&emulated), "{}", text);
        for node in emulated.nodes(emulated.main()) {
            let data = emulated.node(node);
            if data.schema().is_none_or(|s| s.kind == OpKind::Cast) {
                continue;
            }
            // What reads what a custom operator makes gets everything as it was.
            let known = |v: &Option<Value>| v.is_none_or(|v| emulated.value(v).ty != ampc_ir::Type::Unknown);
            if !data.formal_operands().iter().all(known) {
                continue;
            }
            let values = data.operands().iter().chain(data.results()).flatten();
            let low = values.copied().find(|&v| emulated.value(v).ty.dtype().is_some_and(DType::is_low));
            prop_assert!(low.is_none(), "{low:?}\n{text}");
        }
    }
}

/// Writes random models, rewritten and emulated, for judges that are not ours: `tests/judge/random_graphs.py`.
#[test]
fn models_for_other_judges() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let Some(folder) = std::env::var_os("AMPC_RANDOM_DIR").map(std::path::PathBuf::from) else {
        println!("skipped: AMPC_RANDOM_DIR says where the models go");
        return;
    };
    let number = |name: &str, or: u64| {
        std::env::var_os(name).map_or(or, |text| text.to_str().unwrap().parse().unwrap())
    };
    let seed = RngSeed::Fixed(number("AMPC_RANDOM_SEED", 1));
    let mut runner = TestRunner::new(ProptestConfig { rng_seed: seed, ..ProptestConfig::default() });
    let mut written = 0;
    while written < number("AMPC_RANDOM_COUNT", 200) {
        let graph = graphs().new_tree(&mut runner).unwrap().current();
        let source = graph.model();
        // Nobody but its author can run a custom operator.
        if text_of(&source.module).contains("com.example::") {
            continue;
        }
        let to = if written % 2 == 0 { DType::F16 } else { DType::BF16 };
        let options = RewriteOptions { to, ..RewriteOptions::default() };
        let low = rewrite(graph.model(), &options).unwrap().model;
        let write = |kind: &str, bytes: Vec<u8>| {
            std::fs::write(folder.join(format!("{written}.{to}.{kind}.onnx")), bytes).unwrap();
        };
        write("source", bytes_of(&source));
        write("low", bytes_of(&low));
        write("emulated", bytes_of(&ampc::emulate(from_bytes(bytes_of(&low))).unwrap()));
        written += 1;
    }
}
