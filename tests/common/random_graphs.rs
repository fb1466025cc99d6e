//! Random graphs, made from numbers that a strategy of proptest or the bytes of a fuzzer give.
//!
//! A graph is made of steps over matrices of four by four, so that every value can be read by every step; steps are
//! operators of every class, constants that do not fit, casts of the author, bodies, sequences and optionals, custom operators,
//! and values that are read more than once and leave the graph in the middle.

use ampc::Model;
use ampc::onnx::{ReadOptions, read_bytes, to_bytes};
use ampc_ir::Module;
use ampc_ir::text::{NoData, parse};
use std::fmt::Write as _;

/// A line of a graph: what it defines, what it reads, its text.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) defines: Vec<String>,
    pub(crate) reads: Vec<String>,
    pub(crate) text: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) lines: Vec<Line>,
    pub(crate) outputs: Vec<String>,
    /// Sequences of matrices of four by four that may be read.
    pub(crate) sequences: Vec<String>,
}

/// A step by number and what it reads by number, made to fit.
pub(crate) type Step = (u8, u16, u16);

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
        let (text, used): (String, &[&str]) = match pick % 10 {
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
            8 => {
                // A cast that may leave a loop.
                let (to, low) = if pick.is_multiple_of(3) { (11, "f64") } else { (10, "f16") };
                let casts =
                    format!("%{i} = Cast(%{b}) {{to={to}}} : {low}[4, 4]\n %{i}f = Cast(%{i}) {{to=1}} {M}");
                (format!("{casts}\n %{out} = Mul(%{i}f, %{a}) {M}"), &[a, b])
            }
            _ if depth == 0 => (format!("%{out} = Relu(%{b}) {M}"), &[b]),
            _ => {
                let then = Body::new(&format!("{name}x"), &[a, b], pick / 10, depth - 1);
                let other = Body::new(&format!("{name}y"), &[b, a], pick / 100, depth - 1);
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

    /// The captures of the body, without its formals.
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
    pub(crate) fn new(steps: &[Step], outputs: &[u16]) -> Graph {
        let mut graph = Graph { lines: Vec::new(), outputs: Vec::new(), sequences: Vec::new() };
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
        match kind % 40 {
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
                let inner_type = if pick.is_multiple_of(4) {
                    format!("{{to=1}} {M}")
                } else {
                    "{to=10} : f16[4, 4]".into()
                };
                self.line(&inner, "Cast", &[a], &inner_type);
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
            38 | 39 => self.moved_casts(name, a, pick),
            37 if pick.is_multiple_of(2) => {
                // What a cast of the author makes of integers, or of booleans.
                let (to, dtype) = [(7, "i64"), (9, "bool")][pick / 2 % 2];
                self.line(&inner, "Cast", &[a], &format!("{{to={to}}} : {dtype}[4, 4]"));
                self.line(name, "Cast", &[&inner], &format!("{{to=1}} {M}"));
            }
            30..=36 => return self.sequence_step(kind % 40 - 30, name, [a, b], pick),
            _ => {
                self.line(&inner, "Transpose", &["m"], ": f32[4, 4]");
                self.line(name, "MatMul", &[a, &inner], M);
            }
        }
        vec![name.to_owned()]
    }

    /// Casts of the author before, between and behind what only moves numbers, less or more of them.
    fn moved_casts(&mut self, name: &str, a: &str, pick: usize) {
        let (to, dtype) = [(10, "f16"), (11, "f64"), (16, "bf16")][pick % 3];
        let steps =
            [("Slice", "from, half_shape", [2, 4]), ("Tile", "twice", [4, 4]), ("Transpose", "", [4, 4])];
        let (mut value, mut now, mut shape) = (a.to_owned(), "f32", [4, 4]);
        for (at, (op, operands, made)) in steps.into_iter().enumerate() {
            if pick / 3 % 4 == at {
                let cast = format!("{name}c{at}");
                self.line(&cast, "Cast", &[&value], &format!("{{to={to}}} : {dtype}{shape:?}"));
                (value, now) = (cast, dtype);
            }
            if now == dtype && pick / 12 % 4 == at {
                let cast = format!("{name}d{at}");
                self.line(&cast, "Cast", &[&value], &format!("{{to=1}} : f32{shape:?}"));
                (value, now) = (cast, "f32");
            }
            let moved = format!("{name}m{at}");
            let reads: Vec<&str> =
                [value.as_str()].into_iter().chain(operands.split(", ").filter(|o| !o.is_empty())).collect();
            self.line(&moved, op, &reads, &format!(": {now}{made:?}"));
            (value, shape) = (moved, made);
        }
        self.line(name, "Cast", &[&value], "{to=1} : f32[4, 4]");
    }

    /// A step that has to do with sequences and optionals.
    fn sequence_step(&mut self, kind: u8, name: &str, [a, b]: [&str; 2], pick: usize) -> Vec<String> {
        const M: &str = ": f32[4, 4]";
        const S: &str = ": seq(f32[4, 4])";
        let (seq, inner) = (format!("{name}q"), format!("{name}i"));
        let known = match self.sequences.len() {
            0 => {
                let known = format!("{name}p");
                self.line(&known, "SequenceConstruct", &[b, a], S);
                self.sequences.push(known.clone());
                known
            }
            n => self.sequences[pick % n].clone(),
        };
        match kind {
            0 => self.line(&seq, "SequenceConstruct", &[a, b], S),
            1 => self.line(&seq, "SequenceInsert", &[&known, a], S),
            2 => {
                // Its elements are of another shape.
                self.line(&inner, "SplitToSequence", &[a, "one"], "{axis=0, keepdims=1} : seq(f32[1, 4])");
                let joined = format!("{name}j");
                self.line(&joined, "ConcatFromSequence", &[&inner], "{axis=0} : f32[?, 4]");
                self.line(name, "Reshape", &[&joined, "shape"], M);
                return vec![name.to_owned()];
            }
            3 => {
                let text = format!(
                    "%{seq} = If(%c; %{known}, %{a}, %{b}) {{ then_branch: graph (%{known}, %{a}) {{\n %{name}t = \
                     SequenceInsert(%{known}, %{a}) {S}\n output %{name}t }},\n else_branch: graph (%{b}) {{\n \
                     %{inner} = MatMul(%{b}, %{b}) {M}\n %{name}e = SequenceConstruct(%{inner}) {S}\n \
                     output %{name}e }} }} {S} @n_{seq}"
                );
                let reads = [&known, a, b].map(|v: &str| v.to_owned()).to_vec();
                self.lines.push(Line { defines: vec![seq.clone()], reads, text });
            }
            4 => {
                let (state, filled) = (format!("{name}h"), format!("{name}f"));
                let body = Body::new(name, &[&state, b], pick, 1);
                let captures = body.capture_list(&[&state]);
                let text = format!(
                    "%{inner}, %{seq} = Loop(%n, _, %{a}, %{known}{}) {{ body: graph {} {{\n input %{name}k : i64\n \
                     input %{name}g : bool\n input %{state} : f32[4, 4]\n input %{filled} {S}\n \
                     %{name}go = Identity(%{name}g) : bool\n {}\n \
                     %{name}r = SequenceInsert(%{filled}, %{out}) {S}\n output %{name}go\n output %{out}\n \
                     output %{name}r }} }} : f32[4, 4], seq(f32[4, 4]) @n_{seq}",
                    list("; ", &captures),
                    parenthesised(&captures),
                    body.text,
                    out = body.out,
                );
                let reads = [a.to_owned(), known.clone()].into_iter().chain(captures).collect();
                self.lines.push(Line { defines: vec![inner.clone(), seq.clone()], reads, text });
            }
            5 => {
                let (empty, got) = (format!("{name}e"), format!("{name}g"));
                self.line(&empty, "SequenceEmpty", &[], ": seq(f32[*])");
                self.line(&inner, "SequenceInsert", &[&empty, a], ": seq(f32[*])");
                self.line(&got, "SequenceAt", &[&inner, "zero"], ": f32[*]");
                self.line(name, "Reshape", &[&got, "shape"], M);
                return vec![name.to_owned()];
            }
            _ => {
                match pick % 4 {
                    0 => self.line(&inner, "com.example::Op", &[&known], M),
                    1 => {
                        self.line(&inner, "Optional", &[a], ": optional(f32[4, 4])");
                        self.line(name, "OptionalGetElement", &[&inner], M);
                        return vec![name.to_owned()];
                    }
                    _ => self.line(&inner, "Optional", &[&known], ": optional(seq(f32[4, 4]))"),
                }
                if pick.is_multiple_of(4) {
                    return vec![inner];
                }
                self.line(&seq, "OptionalGetElement", &[&inner], S);
            }
        }
        self.sequences.push(seq.clone());
        if pick.is_multiple_of(5) {
            let joined = format!("{name}j");
            self.line(&joined, "ConcatFromSequence", &[&seq], "{axis=0} : f32[?, 4]");
            self.line(name, "Slice", &[&joined, "from", "shape", "axes"], ": f32[?, 4]");
            let shaped = format!("{name}s");
            self.line(&shaped, "Reshape", &[name, "shape"], M);
            return vec![shaped];
        }
        self.line(name, "SequenceAt", &[&seq, "zero"], M);
        vec![name.to_owned()]
    }

    pub(crate) fn module(&self) -> Module {
        let mut text = String::from(
            "module ir=10\nopset ai.onnx=22, com.example=1, local=1\n\ngraph @main {\n  input %x : f32[4, 4]\n  \
             input %y : f32[4, 4]\n  input %c : bool\n  input %i : i64[4]\n  const %half : f32 = 0.5\n  \
             const %big : f32 = 1e9\n  const %tiny : f32 = 1e-9\n  const %eps : f32 = 1e-5\n  \
             const %mask : f32[4] = [-65504.0, 0.0, 0.0, 0.0]\n  const %bias : f32[4] = random(3)\n  \
             const %scale : f32[4] = random(4)\n  const %w : f32[4, 4] = random(1)\n  \
             const %m : f32[4, 4] = random(2)\n  const %shape : i64[2] = [4, 4]\n  const %n : i64 = 2\n  \
             const %zero : i64 = 0\n  const %one : i64 = 1\n  const %from : i64[2] = [0, 0]\n  \
             const %half_shape : i64[2] = [2, 4]\n  const %twice : i64[2] = [2, 1]\n  \
             const %axes : i64[2] = [0, 1]\n",
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
    pub(crate) fn model(&self) -> Model {
        from_bytes(to_bytes(&self.module(), None).unwrap().0)
    }
}

pub(crate) fn from_bytes(bytes: Vec<u8>) -> Model {
    let (module, source, warnings) = read_bytes("random", bytes, &ReadOptions::default()).unwrap();
    Model { source: Some(source), warnings, ..Model::from(module) }
}

pub(crate) fn bytes_of(model: &Model) -> Vec<u8> {
    to_bytes(&model.module, model.source.as_ref()).unwrap().0
}

pub(crate) fn text_of(module: &Module) -> String {
    module.to_text().unwrap()
}
