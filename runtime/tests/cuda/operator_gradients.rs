//! The gradient of the operator Attention in 16 bits, as automatic differentiation writes it: two graphs of cuDNN,
//! which compute the attention again and its gradient.
//!
//! The reference and the tolerance are those of attentions that are written as nodes.

use crate::cases::{bools, random};
use crate::gradients::{Compared, per_score};
use ampc_ir::DType;
use ampc_runtime::HostTensor;
use ampc_runtime::cuda::{Cuda, CudaError, CudaOptions};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The memory layout of operands and results.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    /// Batch, heads, positions.
    Heads,
    /// Batch, positions, heads; Transposes exchange them.
    Positions,
    /// Rank 3.
    Packed,
}

/// Attentions of 2 batches.
#[derive(Clone)]
struct Gradient {
    name: &'static str,
    /// The heads of queries and keys.
    heads: [u64; 2],
    lengths: [u64; 2],
    /// The head sizes of query and value.
    sizes: [u64; 2],
    layout: Layout,
    is_causal: bool,
    mask: Option<HostTensor>,
    /// A part of the text, and its replacement.
    edit: [&'static str; 2],
    /// Additional nodes and outputs.
    end: &'static str,
    /// The graphs of cuDNN: 1 if the gradient is computed otherwise.
    launches: u64,
}

/// The mask of later keys, and the mask as it is written if the number of positions is not known.
const ALLOWED: &str = "  %allowed = LessOrEqual(%keys, %rows) : ?\n";
const COUNTED: &str = "  %count = Shape(%aw) {start=2, end=3} : ?
  %n = Squeeze(%count, %first) : ?
  %list = Range(%start, %n, %step) : ?
  %column = Unsqueeze(%list, %second) : ?
  %lasts = Add(%column, %first) : ?
  %allowed = LessOrEqual(%keys, %lasts) : ?
";

fn case(name: &'static str, lengths: [u64; 2], sizes: [u64; 2]) -> Gradient {
    Gradient {
        name,
        heads: [3, 3],
        lengths,
        sizes,
        layout: Layout::Heads,
        is_causal: false,
        mask: None,
        edit: ["", ""],
        end: "",
        launches: 3,
    }
}

fn cases() -> Vec<Gradient> {
    let plain = case("plain", [13, 21], [8, 16]);
    // Mask rows that absorb scores, rows without exact statistics, a row that hides all keys, and ordinary rows.
    let least = per_score([9, 12], |row, key| match row {
        1 => f32::NEG_INFINITY,
        2 => f32::MIN,
        4 if key < 7 => f32::MIN,
        4 => -1e9,
        6 => -20_000.0,
        _ if key == 5 => f32::NEG_INFINITY,
        _ => 0.25,
    });
    // Every third row of more rows, keys and columns than a tile has.
    let many = per_score([46, 150], |row, key| match row % 3 {
        1 => f32::MIN,
        2 if key % 2 == 0 => -1e9,
        _ => 0.5,
    });
    let hides = |i: usize| u8::from(i / 21 % 4 != 1 && !(i / 21 + i).is_multiple_of(3));
    let rows = HostTensor::from_bytes(DType::Bool, &[13, 21], &(0..13 * 21).map(hides).collect::<Vec<_>>());
    let (least, rows) = (Some(least), Some(rows.unwrap()));
    let none = HostTensor::from_bytes(DType::Bool, &[9], &[0, 0, 1, 1, 0, 1, 1, 1, 1]).unwrap();
    let causal = Gradient { name: "causal", is_causal: true, ..plain.clone() };
    let groups = Gradient { heads: [4, 2], ..plain.clone() };
    let masked = Gradient { name: "bools", mask: rows.clone(), ..plain.clone() };
    let mut cases = vec![
        plain.clone(),
        Gradient { name: "positions first", layout: Layout::Positions, ..plain.clone() },
        Gradient { name: "packed", layout: Layout::Packed, ..plain.clone() },
        causal.clone(),
        Gradient { name: "causal, of counted rows", edit: [ALLOWED, COUNTED], ..causal.clone() },
        Gradient {
            edit: ["LessOrEqual(%keys, %rows)", "Less(%keys, %rows)"],
            name: "strictly causal",
            ..causal
        },
        masked.clone(),
        Gradient {
            name: "bools of batches",
            mask: Some(bools(&[2, 1, 13, 21], 4)),
            layout: Layout::Packed,
            ..plain.clone()
        },
        Gradient { name: "rows of least numbers", mask: least.clone(), ..case("", [9, 12], [8, 8]) },
        Gradient { name: "added", mask: Some(random(DType::F32, &[2, 3, 13, 21], 9)), ..plain.clone() },
        Gradient {
            name: "masked row, causal",
            is_causal: true,
            mask: Some(none),
            ..case("", [9, 9], [8, 8])
        },
        Gradient { name: "groups", ..groups.clone() },
        Gradient { name: "groups packed", layout: Layout::Packed, is_causal: true, ..groups.clone() },
        Gradient {
            name: "rows of least numbers, causal",
            mask: least.clone(),
            is_causal: true,
            ..case("", [9, 12], [8, 8])
        },
        Gradient {
            name: "groups with least numbers",
            mask: least,
            heads: [4, 1],
            ..case("", [9, 12], [8, 8])
        },
        Gradient {
            name: "many rows of least numbers, causal groups",
            heads: [4, 2],
            is_causal: true,
            mask: Some(many),
            ..case("", [46, 150], [72, 88])
        },
        Gradient { name: "333 positions", ..case("", [333, 333], [8, 8]) },
        Gradient { name: "128 positions, causal", is_causal: true, ..case("", [128, 128], [32, 32]) },
        Gradient { name: "heads of 128", ..case("", [16, 9], [128, 128]) },
        Gradient { name: "one query", ..case("", [1, 12], [8, 8]) },
        Gradient { name: "heads of 256", launches: 1, ..case("", [5, 6], [256, 8]) },
        Gradient { name: "odd heads", launches: 0, ..case("", [5, 6], [6, 8]) },
    ];
    let mut apart = |name, of: &Gradient, edit, end| {
        cases.push(Gradient { name, edit, end, launches: 1, ..of.clone() });
    };
    apart("weights as output", &plain, ["", ""], "  output %p\n");
    apart("weights read elsewhere", &plain, ["", ""], "  %max = ReduceMax(%p) : ?\n  output %max\n");
    apart("gradient of scores as output", &plain, ["", ""], "  output %ds\n");
    apart("f32 gradient as output", &plain, ["", ""], "  output %dq\n");
    apart("f32 query as output", &plain, ["", ""], "  output %aw\n");
    apart("another factor", &plain, ["Mul(%ds, %s)", "Mul(%ds, %other)"], "");
    apart("gradient in f32", &plain, ["  output %dko\n", "  output %dk\n"], "");
    apart("another axis", &plain, ["Softmax(%m) {axis=-1}", "Softmax(%m) {axis=-2}"], "");
    apart("other values", &plain, ["Transpose(%cw)", "Transpose(%cx)"], "");
    apart("masked rows not 0", &masked, ["%p = Where(%none, %zero, %p0)", "%p = Mul(%p0, %one)"], "");
    apart("masked rows 1", &masked, ["%p = Where(%none, %zero, %p0)", "%p = Where(%none, %one, %p0)"], "");
    apart("heads not in groups", &groups, ["= [0, 0, 1, 1]", "= [0, 1, 0, 1]"], "");
    cases
}

impl Gradient {
    /// The nodes that make the f32 form of an operand, [batch, heads, positions, elements], as `%Xw`.
    fn widened(&self, text: &mut String, x: &str) {
        let _ = match self.layout {
            Layout::Heads => writeln!(text, "  %{x}w = Cast(%{x}) {{to=1}} : ?"),
            Layout::Positions => writeln!(text, "  %{x}w = Cast(%{x}t) {{to=1}} : ?"),
            Layout::Packed => writeln!(
                text,
                "  %{x}c = Cast(%{x}) {{to=1}} : ?
  %{x}r = Reshape(%{x}c, %{x}shape) : ?
  %{x}w = Transpose(%{x}r) {{perm=[0, 2, 1, 3]}} : ?"
            ),
        };
    }

    /// The nodes that make the 16-bit gradient of an operand, as `%dXo`.
    fn narrowed(&self, text: &mut String, x: &str, made: &str, n: u8) {
        let _ = match self.layout {
            Layout::Heads => writeln!(text, "  %d{x}o = Cast(%{made}) {{to={n}}} : ?"),
            Layout::Positions => writeln!(
                text,
                "  %d{x}n = Cast(%{made}) {{to={n}}} : ?
  %d{x}o = Transpose(%d{x}n) {{perm=[0, 2, 1, 3]}} : ?"
            ),
            Layout::Packed => writeln!(
                text,
                "  %d{x}t = Transpose(%{made}) {{perm=[0, 2, 1, 3]}} : ?
  %d{x}r = Reshape(%d{x}t, %d{x}shape) : ?
  %d{x}o = Cast(%d{x}r) {{to={n}}} : ?"
            ),
        };
    }

    fn constants(&self) -> String {
        let ([h, g], [s, k], [d, v]) = (self.heads, self.lengths, self.sizes);
        let mut text = "  const %s : f32 = 0.375\n  const %other : f32 = 0.25\n  const %zero : f32 = 0.0
  const %one : f32 = 1.0\n  const %least : f32 = -inf\n  const %last : i64[1] = [3]\n  const %shared : i64[1] = [2]\n"
            .to_owned();
        let mut list = |name: &str, list: &[u64]| {
            let _ = writeln!(text, "  const %{name} : i64[{}] = {list:?}", list.len());
        };
        for (x, heads, length, size) in [("a", h, s, d), ("b", g, k, d), ("c", g, k, v), ("d", h, s, v)] {
            list(&format!("{x}shape"), &[2, length, heads, size]);
        }
        for (x, heads, length, size) in [("q", h, s, d), ("k", g, k, d), ("v", g, k, v)] {
            list(&format!("d{x}shape"), &[2, length, heads * size]);
            list(&format!("d{x}g"), &[2, heads, h / g, length, size]);
        }
        list("each", &(0..h).map(|head| head / (h / g)).collect::<Vec<_>>());
        list("keys", &(0..k).collect::<Vec<_>>());
        let rows: Vec<u64> = (0..s).collect();
        let _ = writeln!(text, "  const %rows : i64[{s}, 1] = {rows:?}");
        text + "  const %start : i64 = 0\n  const %step : i64 = 1\n  const %first : i64[1] = [0]\n  const %second : i64[1] = [1]\n"
    }

    /// The nodes between the product of queries and keys and the probabilities.
    fn masks(&self) -> String {
        let mut scores = "m";
        let mut text = String::new();
        if let Some(mask) = &self.mask {
            let mask = match mask.dtype() {
                DType::Bool => "Where(%e, %zero, %least)",
                _ => "Cast(%e) {to=1}",
            };
            let _ = writeln!(text, "  %bias = {mask} : ?\n  %biased = Add(%m, %bias) : ?");
            scores = "biased";
        }
        if self.is_causal {
            let _ = writeln!(
                text,
                "  %allowed = LessOrEqual(%keys, %rows) : ?\n  %kept = Where(%allowed, %{scores}, %least) : ?"
            );
            scores = "kept";
        }
        if text.is_empty() {
            return "  %p = Softmax(%m) {axis=-1} : ?\n".into();
        }
        text + &format!(
            "  %most = ReduceMax(%{scores}, %last) {{keepdims=1}} : ?
  %none = Equal(%most, %least) : ?
  %z = Where(%none, %zero, %{scores}) : ?
  %p0 = Softmax(%z) {{axis=-1}} : ?
  %p = Where(%none, %zero, %p0) : ?\n"
        )
    }

    fn forward(&self) -> String {
        let [h, g] = self.heads;
        let narrow = if self.layout == Layout::Positions { "t" } else { "" };
        let mut text = String::new();
        if self.layout == Layout::Positions {
            for x in ["a", "b", "c", "d"] {
                let _ = writeln!(text, "  %{x}t = Transpose(%{x}) {{perm=[0, 2, 1, 3]}} : ?");
            }
        }
        let mask = if self.mask.is_some() { ", %e" } else { "" };
        let heads = match self.layout {
            Layout::Packed => format!(", q_num_heads={h}, kv_num_heads={g}"),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "  %y = Attention(%a{narrow}, %b{narrow}, %c{narrow}{mask}) {{scale=0.375, is_causal={}{heads}}} : ?",
            u8::from(self.is_causal)
        );
        text
    }

    fn body(&self, n: u8) -> String {
        let mut text = format!("opset=23\n{}{}", self.constants(), self.forward());
        for x in ["a", "b", "c", "d"] {
            self.widened(&mut text, x);
        }
        let (mut key, mut value, [mut of_key, mut of_value]) = ("bw", "cw", ["dk", "dv"]);
        if self.heads[0] != self.heads[1] {
            text += "  %be = Gather(%bw, %each) {axis=1} : ?\n  %ce = Gather(%cw, %each) {axis=1} : ?\n";
            (key, value, [of_key, of_value]) = ("be", "ce", ["dkh", "dvh"]);
        }
        if self.edit[1].contains("%cx") {
            text += "  %cx = Mul(%cw, %other) : ?\n";
        }
        let _ = write!(
            text,
            "  %kt = Transpose(%{key}) {{perm=[0, 1, 3, 2]}} : ?
  %x = MatMul(%aw, %kt) : ?
  %m = Mul(%x, %s) : ?
{masks}  %pt = Transpose(%p) {{perm=[0, 1, 3, 2]}} : ?
  %{of_value} = MatMul(%pt, %dw) : ?
  %vt = Transpose(%{value}) {{perm=[0, 1, 3, 2]}} : ?
  %dp = MatMul(%dw, %vt) : ?
  %pm = Mul(%dp, %p) : ?
  %sum = ReduceSum(%pm, %last) {{keepdims=1}} : ?
  %centred = Sub(%dp, %sum) : ?
  %ds = Mul(%p, %centred) : ?
  %es = Mul(%ds, %s) : ?
  %dq = MatMul(%es, %{key}) : ?
  %et = Transpose(%es) {{perm=[0, 1, 3, 2]}} : ?
  %{of_key} = MatMul(%et, %aw) : ?\n",
            masks = self.masks()
        );
        if self.heads[0] != self.heads[1] {
            for x in ["dk", "dv"] {
                let _ = writeln!(
                    text,
                    "  %{x}a = Reshape(%{x}h, %{x}g) : ?\n  %{x} = ReduceSum(%{x}a, %shared) {{keepdims=0}} : ?"
                );
            }
        }
        for x in ["q", "k", "v"] {
            self.narrowed(&mut text, x, &format!("d{x}"), n);
        }
        text += "  output %y\n  output %dqo\n  output %dko\n  output %dvo\n";
        let [from, to] = self.edit;
        assert!(text.contains(from), "{from}");
        if from.is_empty() { text + self.end } else { text.replace(from, to) + self.end }
    }

    fn inputs(&self, dtype: DType) -> Vec<HostTensor> {
        let ([h, g], [s, k], [d, v]) = (self.heads, self.lengths, self.sizes);
        let operands = [(h, s, d), (g, k, d), (g, k, v), (h, s, v)];
        let mut inputs = Vec::new();
        for ((heads, length, size), seed) in operands.into_iter().zip(1..) {
            let dims = match self.layout {
                Layout::Heads => vec![2, heads, length, size],
                Layout::Positions => vec![2, length, heads, size],
                Layout::Packed => vec![2, length, heads * size],
            };
            inputs.push(random(dtype, &dims, seed));
        }
        inputs.extend(self.mask.clone());
        inputs
    }
}

fn passes(cuda: &Arc<Cuda>, case: &Gradient, low: (DType, &str, u8)) -> Result<f64, String> {
    let [s, k] = case.lengths;
    let is_fused = case.launches == 3;
    // A matrix of scores in f32. The workspace has one of 16 bits while the gradient is computed.
    let scores = 2 * case.heads[0] * s * k * (4 + 2);
    let compared = Compared {
        body: &|_, n| case.body(n),
        inputs: case.inputs(low.0),
        launches: case.launches,
        is_fused,
        bound: (is_fused && s * k > 10_000).then_some(scores),
    };
    compared.passes(cuda, low)
}

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(
    cuda: &Arc<Cuda>,
    opened: &dyn Fn(&CudaOptions) -> Result<Arc<Cuda>, CudaError>,
    options: &CudaOptions,
    filter: &str,
) -> usize {
    if std::env::var_os("AMPC_CUDNN_ERROR").is_some() {
        return 0;
    }
    let exact = opened(&CudaOptions { exact_rounding: true, ..options.clone() }).unwrap();
    let mut cases: Vec<(Gradient, &Arc<Cuda>)> = cases().into_iter().map(|case| (case, cuda)).collect();
    let split = Gradient { name: "exact rounding", launches: 0, ..cases[0].0.clone() };
    cases.push((split, &exact));
    let (mut passed, mut failed) = (0, 0);
    for (case, cuda) in cases {
        for low in [(DType::F16, "f16", 10), (DType::BF16, "bf16", 16)] {
            let name = format!("operator attention gradient {} {}", case.name, low.1);
            if !name.contains(filter) {
                continue;
            }
            let result = catch_unwind(AssertUnwindSafe(|| passes(cuda, &case, low)));
            match result.unwrap_or_else(|_| Err("panicked".into())) {
                Ok(share) => {
                    passed += 1;
                    println!("ok    {name:60} {share:.3} of the tolerance");
                }
                Err(error) => {
                    failed += 1;
                    println!("FAIL  {name:60} {error}");
                }
            }
        }
    }
    println!("gradients of the operator Attention: {passed} passed, {failed} failed");
    failed
}
