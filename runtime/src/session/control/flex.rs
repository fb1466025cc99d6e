//! FlexAttention: `softmax(score_mod(scale · Q·Kᵀ))` goes through `prob_mod` and is multiplied with V. Scores of all
//! heads are one tensor, in the element type that `softmax_precision` says, since bodies take and give it.

use super::{Call, ExecuteError, KernelError, NodeView};
use crate::cpu::kernels::lanes::{Real, Wide};
use crate::cpu::kernels::linear::{Matrix, multiply};
use crate::data::{Data, DataRef};
use crate::host::{HostError, HostTensor, TensorRef};
use crate::kernel::check_size;
use crate::room::Room;
use ampc_ir::DType;
use half::{bf16, f16};

type Result<T> = std::result::Result<T, KernelError>;

/// Extents of the operands.
#[derive(Clone, Copy)]
struct Extents {
    batch: usize,
    heads: usize,
    /// Queries per head of keys.
    group: usize,
    queries: usize,
    keys: usize,
    size: usize,
    v_size: usize,
}

impl Extents {
    fn new(q: &[u64], k: &[u64], v: &[u64]) -> Result<Extents> {
        let wrong =
            || KernelError::value("operands of rank 4 that fit each other", format!("{q:?}, {k:?}, {v:?}"));
        let index = |n: u64| usize::try_from(n).map_err(|_| wrong());
        let (&[batch, heads, queries, size], &[_, kv_heads, keys, _], &[.., v_size]) = (q, k, v) else {
            return Err(wrong());
        };
        let fits = k == [batch, kv_heads, keys, size] && v == [batch, kv_heads, keys, v_size];
        if !fits || heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
            return Err(wrong());
        }
        let group = index(heads.checked_div(kv_heads).unwrap_or(1).max(1))?;
        let (batch, heads, queries) = (index(batch)?, index(heads)?, index(queries)?);
        Ok(Extents {
            batch,
            heads,
            group,
            queries,
            keys: index(keys)?,
            size: index(size)?,
            v_size: index(v_size)?,
        })
    }

    fn scores(&self) -> [u64; 4] {
        [self.batch, self.heads, self.queries, self.keys].map(|n| n as u64)
    }
}

impl Call<'_, '_, '_> {
    pub(super) fn flex_attention(&mut self) -> std::result::Result<Vec<Option<Data>>, ExecuteError> {
        let wide = |dtype: DType| dtype == DType::F64;
        let [q, k, v] = [0, 1, 2].map(|i| self.operand(i).and_then(DataRef::tensor));
        let (Some(q), Some(k), Some(v)) = (q, k, v) else {
            return Err(self.error(KernelError::value("queries, keys and values", "fewer")));
        };
        let view = NodeView::new(&self.run.program.module, self.node);
        let precision = view.as_ref().map(|view| view.dtype_attr("softmax_precision")).transpose();
        let default = if wide(q.dtype()) { DType::F64 } else { DType::F32 };
        let precision = precision.map_err(|e| self.error(e))?.flatten().unwrap_or(default);
        let scale = view.and_then(|view| view.float("scale"));
        if wide(q.dtype()) || wide(precision) {
            self.flex_attention_in::<f64>([q, k, v], precision, scale)
        } else {
            self.flex_attention_in::<f32>([q, k, v], precision, scale)
        }
    }

    fn flex_attention_in<W: Wide>(
        &mut self,
        [q, k, v]: [TensorRef<'_>; 3],
        precision: DType,
        scale: Option<f32>,
    ) -> std::result::Result<Vec<Option<Data>>, ExecuteError> {
        let it = Extents::new(q.dims(), k.dims(), v.dims()).map_err(|e| self.error(e))?;
        let count = it.scores().iter().try_fold(8u64, |n, &d| n.checked_mul(d)).unwrap_or(u64::MAX);
        check_size(count, self.run.limits.max_bytes).map_err(|e| self.error(e))?;
        let room = Room::of(self.run.limits.max_bytes);
        let mut scores = scores::<W>(&it, q, k, scale, precision, room).map_err(|e| self.error(e))?;
        scores = self.modified("score_mod", scores)?;
        let probabilities = softmax::<W>(&it, &scores, room).map_err(|e| self.error(e))?;
        let probabilities = self.modified("prob_mod", probabilities)?;
        let y = weighted::<W>(&it, &probabilities, v, q.dtype(), room).map_err(|e| self.error(e))?;
        Ok(vec![Some(y.into())])
    }

    /// What a body makes of a tensor; the tensor itself if there is none.
    fn modified(&mut self, name: &str, tensor: HostTensor) -> std::result::Result<HostTensor, ExecuteError> {
        let Ok(graph) = self.graph(name) else { return Ok(tensor) };
        let outputs = self.body(graph, &[Some(DataRef::Tensor(tensor.view()))])?;
        match outputs.into_iter().next() {
            Some(Some(Data::Tensor(made))) if made.dims() == tensor.dims() => Ok(made),
            _ => {
                Err(self
                    .error(KernelError::value(format!("{name} to give dims {:?}", tensor.dims()), "others")))
            }
        }
    }
}

fn product(extents: [usize; 4]) -> usize {
    extents.into_iter().fold(1, usize::saturating_mul)
}

fn load<W: Wide>(tensor: TensorRef<'_>, room: Room) -> Result<Vec<W>> {
    let mut list = room.list(usize::try_from(tensor.element_count()).unwrap_or(usize::MAX))?;
    list.extend(tensor.f64s()?.map(W::of));
    Ok(list)
}

fn store<W: Wide>(dtype: DType, dims: &[u64], from: &[W]) -> Result<HostTensor> {
    fn fill<W: Wide, T: Real>(from: &[W], bytes: &mut [u8]) {
        let to = bytes.chunks_exact_mut(size_of::<T>());
        for (to, x) in to.zip(from) {
            to.copy_from_slice(bytemuck::bytes_of(&T::round(T::Wide::of(x.to()))));
        }
    }
    let fill: fn(&[W], &mut [u8]) = match dtype {
        DType::F64 => fill::<W, f64>,
        DType::F32 => fill::<W, f32>,
        DType::F16 => fill::<W, f16>,
        DType::BF16 => fill::<W, bf16>,
        other => return Err(KernelError::unsupported(format!("FlexAttention of {other}"))),
    };
    let filled = HostTensor::filled(dtype, dims, |bytes| {
        fill(from, bytes);
        Ok::<(), HostError>(())
    });
    Ok(filled?)
}

fn scores<W: Wide>(
    it: &Extents,
    q: TensorRef<'_>,
    k: TensorRef<'_>,
    scale: Option<f32>,
    dtype: DType,
    room: Room,
) -> Result<HostTensor> {
    let (q, k) = (load::<W>(q, room)?, load::<W>(k, room)?);
    #[expect(clippy::cast_precision_loss, reason = "the size of a head is small")]
    let scale = W::of(scale.map_or_else(|| 1.0 / (it.size as f64).sqrt(), f64::from));
    let mut scores = room.filled(product([it.batch, it.heads, it.queries, it.keys]), W::zero())?;
    for (head, to) in scores.chunks_exact_mut((it.queries * it.keys).max(1)).enumerate() {
        let q = Matrix { elements: &q[head * it.queries * it.size..], row: it.size, column: 1 };
        let k = Matrix { elements: &k[head / it.group * it.keys * it.size..], row: 1, column: it.size };
        multiply((it.queries, it.keys, it.size), q, k, to, None);
        to.iter_mut().for_each(|x| *x = *x * scale);
    }
    store(dtype, &it.scores(), &scores)
}

fn softmax<W: Wide>(it: &Extents, scores: &HostTensor, room: Room) -> Result<HostTensor> {
    let mut rows = load::<W>(scores.view(), room)?;
    for row in rows.chunks_exact_mut(it.keys.max(1)) {
        crate::cpu::kernels::attention::softmax::<W, W>(row);
    }
    store(scores.dtype(), scores.dims(), &rows)
}

fn weighted<W: Wide>(
    it: &Extents,
    probabilities: &HostTensor,
    v: TensorRef<'_>,
    dtype: DType,
    room: Room,
) -> Result<HostTensor> {
    let (p, v) = (load::<W>(probabilities.view(), room)?, load::<W>(v, room)?);
    let mut y = room.filled(product([it.batch, it.heads, it.queries, it.v_size]), W::zero())?;
    for (head, to) in y.chunks_exact_mut((it.queries * it.v_size).max(1)).enumerate() {
        let p = Matrix { elements: &p[head * it.queries * it.keys..], row: it.keys, column: 1 };
        let v = Matrix { elements: &v[head / it.group * it.keys * it.v_size..], row: it.v_size, column: 1 };
        multiply((it.queries, it.v_size, it.keys), p, v, to, None);
    }
    store(dtype, &[it.batch, it.heads, it.queries, it.v_size].map(|n| n as u64), &y)
}
