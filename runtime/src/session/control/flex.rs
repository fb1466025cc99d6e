//! FlexAttention: `prob_mod(softmax(score_mod(scale · Q·Kᵀ)))·V`.
//!
//! The three parts between the bodies are graphs of standard operators, generated for the dims at hand, so that every
//! backend runs them with its own kernels. The bound programs of the parts are cached. For Q of `f16[1, 4, 8, 16]`, K
//! of `f16[1, 2, 8, 16]` (so that two heads of Q share a head of K) and scores in f32, the first part is
//!
//! ```text
//! %q1 = Cast(%q) {to = f32}             f32[1, 4, 8, 16]
//! %k1 = Cast(%k) {to = f32}             f32[1, 2, 8, 16]
//! %k2 = Unsqueeze(%k1, [2])             f32[1, 2, 1, 8, 16]
//! %k3 = Expand(%k2, [1, 2, 2, 8, 16])   f32[1, 2, 2, 8, 16]
//! %k4 = Reshape(%k3, [1, 4, 8, 16])     f32[1, 4, 8, 16]
//! %k5 = Transpose(%k4) {perm = [0, 1, 3, 2]}
//! %p  = MatMul(%q1, %k5)                f32[1, 4, 8, 8]
//! %s  = Mul(%p, scale)
//! ```

use super::{Call, ExecuteError, KernelError, NodeView};
use crate::data::{Data, DataRef};
use crate::session::error::PrepareError;
use crate::session::executable::{Bound, Executable};
use crate::session::frame::{Frame, Given};
use crate::session::observe::Watch;
use crate::session::walk::{Run, run_graph};
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Node};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

type Result<T> = std::result::Result<T, ExecuteError>;

/// The maximum number of heads, rows or columns. A product of four such numbers is representable.
const MOST_EXTENT: u64 = 1 << 31;

/// The types of the operands and of the scores.
struct Types<'a> {
    /// The element type of Q, K, V and the result.
    dtype: DType,
    /// The element type of the scores.
    precision: DType,
    q: &'a [u64],
    k: &'a [u64],
    v: &'a [u64],
}

impl Types<'_> {
    /// Checks that the dims are consistent.
    fn check(&self) -> std::result::Result<(), KernelError> {
        let Types { q, k, v, .. } = self;
        let wrong =
            || KernelError::value("operands of rank 4 that fit each other", format!("{q:?}, {k:?}, {v:?}"));
        let (&[batch, heads, _, size], &[_, kv_heads, keys, _], &[.., v_size]) = (*q, *k, *v) else {
            return Err(wrong());
        };
        let fits = **k == [batch, kv_heads, keys, size] && **v == [batch, kv_heads, keys, v_size];
        let is_grouped = heads == 0 || kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let is_small = [q, k, v].iter().all(|dims| dims.iter().all(|&extent| extent <= MOST_EXTENT));
        if fits && is_grouped && is_small { Ok(()) } else { Err(wrong()) }
    }

    fn scores(&self) -> [u64; 4] {
        [self.q[0], self.q[1], self.q[2], self.k[2]]
    }

    /// The element type of products: the wider of the types of the operands and of the scores.
    fn wide(&self) -> DType {
        let is_wide = |dtype: DType| dtype == DType::F64;
        match (is_wide(self.dtype) || is_wide(self.precision), self.dtype == self.precision) {
            (true, _) => DType::F64,
            (false, true) => self.dtype,
            (false, false) => DType::F32,
        }
    }

    /// Statements that define `%name` of type `wide`, with a head for each head of Q, from `%from` with these dims.
    fn repeated(&self, from: &str, name: &str, dims: &[u64]) -> String {
        let [batch, kv_heads, rows, columns] = [dims[0], dims[1], dims[2], dims[3]];
        let (wide, heads) = (self.wide(), self.q[1]);
        let group = heads.checked_div(kv_heads).unwrap_or(1);
        let cast = format!("  %{name}c = Cast(%{from}) {{to={}}} : {wide}{dims:?}\n", wide.number());
        if group == 1 {
            return cast + &format!("  %{name} = Identity(%{name}c) : {wide}{dims:?}\n");
        }
        let five = [batch, kv_heads, group, rows, columns];
        let four = [batch, heads, rows, columns];
        cast + &format!(
            "  const %{name}a : i64[1] = [2]\n  \
             %{name}u = Unsqueeze(%{name}c, %{name}a) : {wide}[{batch}, {kv_heads}, 1, {rows}, {columns}]\n  \
             const %{name}e : i64[5] = {five:?}\n  \
             %{name}x = Expand(%{name}u, %{name}e) : {wide}{five:?}\n  \
             const %{name}s : i64[4] = {four:?}\n  \
             %{name} = Reshape(%{name}x, %{name}s) {{allowzero=1}} : {wide}{four:?}\n"
        )
    }

    /// `scale · Q·Kᵀ`.
    fn scores_graph(&self, scale: f64) -> String {
        let Types { dtype, precision, q, k, .. } = self;
        let (wide, scores) = (self.wide(), self.scores());
        let transposed = [q[0], q[1], q[3], k[2]];
        format!(
            "  input %q : {dtype}{q:?}\n  input %k : {dtype}{k:?}\n  \
             %w = Cast(%q) {{to={}}} : {wide}{q:?}\n{}  \
             %t = Transpose(%r) {{perm=[0, 1, 3, 2]}} : {wide}{transposed:?}\n  \
             %p = MatMul(%w, %t) : {wide}{scores:?}\n  \
             const %scale : f64 = {scale:e}\n  \
             %f = Cast(%scale) {{to={}}} : {wide}\n  \
             %s = Mul(%p, %f) : {wide}{scores:?}\n  \
             %y = Cast(%s) {{to={}}} : {precision}{scores:?}\n  output %y\n",
            wide.number(),
            self.repeated("k", "r", k),
            wide.number(),
            precision.number(),
        )
    }

    /// `softmax(S)`, in the element type of the scores.
    fn softmax_graph(&self) -> String {
        let (precision, scores) = (self.precision, self.scores());
        format!(
            "  input %s : {precision}{scores:?}\n  %y = Softmax(%s) : {precision}{scores:?}\n  output %y\n"
        )
    }

    /// `P·V`.
    fn weighted_graph(&self) -> String {
        let Types { dtype, precision, q, v, .. } = self;
        let (wide, scores) = (self.wide(), self.scores());
        let result = [q[0], q[1], q[2], v[3]];
        format!(
            "  input %p : {precision}{scores:?}\n  input %v : {dtype}{v:?}\n  \
             %w = Cast(%p) {{to={}}} : {wide}{scores:?}\n{}  \
             %m = MatMul(%w, %r) : {wide}{result:?}\n  \
             %y = Cast(%m) {{to={}}} : {dtype}{result:?}\n  output %y\n",
            wide.number(),
            self.repeated("v", "r", v),
            dtype.number(),
        )
    }
}

impl Call<'_, '_, '_> {
    pub(super) fn flex_attention(&mut self) -> Result<Vec<Option<Data>>> {
        let operands = [0, 1, 2].map(|i| self.operand(i));
        let [Some(q), Some(k), Some(v)] = operands else {
            return Err(self.error(KernelError::value("queries, keys and values", "fewer")));
        };
        let shapes = (q.shape(), k.shape(), v.shape());
        let (Some((dtype, q_dims)), Some((_, k_dims)), Some((_, v_dims))) = shapes else {
            return Err(self.error(KernelError::value("queries, keys and values", "other values")));
        };
        let module = &self.run.program.module;
        let view = NodeView::new(module, self.node);
        let precision = view.as_ref().map(|view| view.dtype_attr("softmax_precision")).transpose();
        let default = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let precision = precision.map_err(|e| self.error(e))?.flatten().unwrap_or(default);
        let types = Types { dtype, precision, q: q_dims, k: k_dims, v: v_dims };
        types.check().map_err(|error| self.error(error))?;
        #[expect(clippy::cast_precision_loss, reason = "the size of a head is small")]
        let default = || 1.0 / (q_dims[3] as f64).sqrt();
        let scale = view.and_then(|view| view.float("scale")).map_or_else(default, f64::from);
        let scores = self.part(&types.scores_graph(scale), &[Some(q), Some(k)])?;
        let scores = self.modified("score_mod", scores)?;
        let probabilities = self.part(&types.softmax_graph(), &[Some(scores.view())])?;
        let probabilities = self.modified("prob_mod", probabilities)?;
        let result = self.part(&types.weighted_graph(), &[Some(probabilities.view()), Some(v)])?;
        Ok(vec![Some(result)])
    }

    /// Runs a graph of standard operators and returns its output.
    fn part(&mut self, body: &str, inputs: &[Option<DataRef<'_>>]) -> Result<Data> {
        let bound = match self.run.program.parts.get(body) {
            Some(bound) => bound,
            None => {
                let bound = self.bound(body, inputs)?;
                self.run.program.parts.keep(body, &bound);
                bound
            }
        };
        let within = Some(self.run.within.unwrap_or(self.node));
        let mut run =
            Run { program: &bound.program, observer: None, space: &mut *self.run.space, within, ..*self.run };
        let (main, mut frame) = (bound.program.module.main(), Frame::default());
        let given = Given { inputs, operands: &[], attrs: None };
        let node = self.node;
        let made = run_graph(&mut run, main, &mut frame, given, Vec::new());
        made.map_err(|error| match error {
            // Steps name this node, because callers do not know the nodes of the part.
            error @ ExecuteError::Node { .. } => error,
            error => named(error, node),
        })?;
        let scope = super::Scope { program: &bound.program, plan: bound.program.plan(main), given };
        let taken = frame.take_output(self.run.space, scope, 0).map_err(|error| self.error(error))?;
        taken.ok_or_else(|| self.error(KernelError::value("a result", "none")))
    }

    /// The bound program of a graph of standard operators.
    fn bound(&mut self, body: &str, inputs: &[Option<DataRef<'_>>]) -> Result<Arc<Bound>> {
        let bug = |message: String| KernelError::unsupported(format!("FlexAttention: {message}"));
        let text = format!("module ir=10\nopset ai.onnx=24\n\ngraph @main {{\n{body}}}\n");
        let module = parse(&text, &NoData).map_err(|errors| self.error(bug(errors.to_string())))?;
        let executable = Executable::new(&module, self.run.runtime).map_err(|error| match error {
            PrepareError::Device(error) => self.error(error),
            PrepareError::Constant { error, .. } => self.error(error),
            error @ PrepareError::Unsupported { .. } => self.error(bug(error.to_string())),
        })?;
        // A failure of earlier work must be reported with its own node.
        self.run.space.finish()?;
        let types = inputs.iter().map(|data| data.map(DataRef::ty)).collect();
        let bound = executable.program(self.run.space, types, Watch::nothing(), self.run.deadline);
        bound.map_err(|error| named(error, self.node))
    }

    /// The result of a body applied to a tensor, or the tensor itself without a body.
    fn modified(&mut self, name: &str, tensor: Data) -> Result<Data> {
        let Ok(graph) = self.graph(name) else { return Ok(tensor) };
        let outputs = self.body(graph, &[Some(tensor.view())])?;
        let dims = |data: &Data| data.view().shape().map(|(_, dims)| dims.to_vec());
        match outputs.into_iter().next() {
            Some(Some(made)) if dims(&made).is_some() && dims(&made) == dims(&tensor) => Ok(made),
            _ => {
                let expected = format!("{name} to give dims {:?}", dims(&tensor).unwrap_or_default());
                Err(self.error(KernelError::value(expected, "others")))
            }
        }
    }
}

/// Replaces the node of a part in an error by this node.
fn named(mut error: ExecuteError, owner: Node) -> ExecuteError {
    if let Some((node, calls)) = error.place_mut() {
        *node = owner;
        calls.clear();
    }
    super::named(error, owner)
}

/// The programs of the parts of FlexAttention, by the source text of the parts, which includes their dims.
#[derive(Default)]
pub(crate) struct Parts(Mutex<FxHashMap<String, Arc<Bound>>>);

/// The maximum number of cached programs. A node has three parts for each set of dims.
const MOST_PARTS: usize = 48;

impl Parts {
    fn get(&self, body: &str) -> Option<Arc<Bound>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(body).cloned()
    }

    fn keep(&self, body: &str, bound: &Arc<Bound>) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.len() == MOST_PARTS {
            parts.clear();
        }
        parts.insert(body.to_owned(), bound.clone());
    }
}
