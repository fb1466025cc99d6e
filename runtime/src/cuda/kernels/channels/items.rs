//! The nodes of a channel group, and their common index space.

use crate::cuda::kernels::expressions::is_known;
use crate::cuda::text::{Elem, Steps};
use crate::elementwise::{Member, Read};
use crate::kernel::{Dims, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::{DType, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The dims of the tensors of a group as `[outer, channels, inner]`. Reductions keep the middle dim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Space {
    pub(super) dims: Dims,
    /// The dims with each reduced extent replaced by 1.
    pub(super) kept: Dims,
    pub(super) outer: usize,
    pub(super) channels: usize,
    pub(super) inner: usize,
}

impl Space {
    /// The space of a reduction, if the kept axes are adjacent and at least two elements are reduced.
    pub(super) fn of(dims: &Dims, is_reduced: impl Fn(usize) -> bool) -> Option<Space> {
        let mut space = Space { dims: dims.clone(), kept: dims.clone(), outer: 1, channels: 1, inner: 1 };
        let mut has_kept = false;
        for (axis, &n) in dims.iter().enumerate() {
            if !is_reduced(axis) {
                has_kept = true;
                if n != 1 && space.inner != 1 {
                    return None;
                }
                space.channels *= n;
            } else {
                space.kept[axis] = 1;
                *(if space.channels == 1 { &mut space.outer } else { &mut space.inner }) *= n;
            }
        }
        (has_kept && space.outer * space.inner > 1).then_some(space)
    }

    /// The number of elements that a reduction folds.
    pub(super) fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// True of dims that broadcast along all axes except those of the channels.
    pub(super) fn has_channels(&self, dims: &[usize]) -> bool {
        let steps = Steps::broadcast(dims, &self.dims);
        steps.is_some() && steps == Steps::broadcast(&self.kept, &self.dims)
    }

    /// True of an element-wise node over the whole space.
    pub(super) fn is_full(&self, member: &Member) -> bool {
        member.dims == self.dims
    }

    /// True of an element-wise node with one element per channel; its operands have one element, or one per channel.
    pub(super) fn is_of_channels(&self, member: &Member) -> bool {
        let n: usize = member.dims.iter().product();
        let of_operands = member.operands.iter().flatten().map(|read| read.dims.iter().product::<usize>());
        n == self.channels && of_operands.into_iter().all(|of| of == 1 || of == n)
    }
}

/// A sum or mean.
pub(super) struct Reduction {
    pub(super) from: Read,
    pub(super) to: Value,
    pub(super) elem: Elem,
    pub(super) is_mean: bool,
    pub(super) space: Space,
}

/// A value with the same elements as another, in the same order.
pub(super) struct Alias {
    pub(super) from: Read,
    pub(super) to: Value,
    /// The number of elements.
    pub(super) n: usize,
}

/// A batch normalization by the statistics of its operand.
pub(super) struct Norm {
    pub(super) x: Read,
    /// Scale, bias, and the running mean and variance before the step.
    pub(super) coefficients: [Read; 4],
    /// The normalized tensor, and running and saved statistics, if they are requested.
    pub(super) results: [Option<(Value, Elem)>; 5],
    pub(super) epsilon: f32,
    pub(super) momentum: f32,
    pub(super) space: Space,
}

/// A node of a group.
pub(super) enum Item {
    Element(Member),
    Alias(Alias),
    Reduction(Reduction),
    Norm(Box<Norm>),
}

impl Item {
    /// Reads a node; `None` if channel groups do not support it.
    pub(super) fn read(site: &Site<'_>) -> Option<Item> {
        Some(match site.kind() {
            OpKind::ReduceSum | OpKind::ReduceMean => Item::Reduction(Reduction::read(site)?),
            OpKind::BatchNormalization => Item::Norm(Box::new(Norm::read(site)?)),
            OpKind::Unsqueeze | OpKind::Squeeze | OpKind::Reshape | OpKind::Flatten | OpKind::Identity => {
                let (from, to) = (operand(site, 0)?, site.view.data().results().first().copied()??);
                let n = from.dims.iter().product();
                Item::Alias(Alias { from, to, n })
            }
            _ => Item::Element(Member::read(site, |dtype| is_known(dtype) && dtype != DType::F64)?),
        })
    }

    fn reads(&mut self) -> Vec<&mut Read> {
        match self {
            Item::Element(member) => member.operands.iter_mut().flatten().collect(),
            Item::Alias(alias) => vec![&mut alias.from],
            Item::Reduction(reduction) => vec![&mut reduction.from],
            Item::Norm(norm) => std::iter::once(&mut norm.x).chain(&mut norm.coefficients).collect(),
        }
    }

    /// The space that the node reduces, if it reduces.
    pub(super) fn space(&self) -> Option<&Space> {
        match self {
            Item::Reduction(reduction) => Some(&reduction.space),
            Item::Norm(norm) => Some(&norm.space),
            Item::Element(_) | Item::Alias(_) => None,
        }
    }
}

/// Replaces aliases of values from outside by these values, and returns the values.
pub(super) fn resolve(items: &mut Vec<Item>) -> Vec<Value> {
    let mut made: FxHashSet<Value> = FxHashSet::default();
    let mut outside: FxHashMap<Value, Value> = FxHashMap::default();
    for item in &mut *items {
        for read in item.reads() {
            if let Some(&value) = outside.get(&read.value) {
                read.value = value;
            }
        }
        match item {
            Item::Alias(alias) if !made.contains(&alias.from.value) => {
                outside.insert(alias.to, alias.from.value);
            }
            Item::Alias(Alias { to, .. }) | Item::Reduction(Reduction { to, .. }) => {
                made.insert(*to);
            }
            Item::Element(member) => {
                made.insert(member.result);
            }
            Item::Norm(norm) => made.extend(norm.results.iter().flatten().map(|&(value, _)| value)),
        }
    }
    items.retain(|item| !matches!(item, Item::Alias(alias) if outside.contains_key(&alias.to)));
    outside.into_keys().collect()
}

/// Operand `i`, which must be a tensor of f32, f16 or bf16.
fn operand(site: &Site<'_>, i: usize) -> Option<Read> {
    let dtype = site.dtype(i).ok()?;
    Elem::float(dtype)?;
    Some(Read { value: site.view.operand(i)?, dtype, dims: site.dims(i).ok()? })
}

impl Reduction {
    fn read(site: &Site<'_>) -> Option<Reduction> {
        let from = operand(site, 0)?;
        let axes = ReduceView::read(&site.view).ok()?.axes?;
        let space = Space::of(&from.dims, |axis| axes.has(axis))?;
        let [Some(to)] = site.view.data().results()[..] else { return None };
        let elem = Elem::float(from.dtype)?;
        Some(Reduction { from, to, elem, is_mean: site.kind() == OpKind::ReduceMean, space })
    }
}

impl Norm {
    fn read(site: &Site<'_>) -> Option<Norm> {
        let view = BatchNormView::read(&site.view);
        let x = operand(site, 0)?;
        if !view.training || !view.spatial || x.dims.len() < 2 {
            return None;
        }
        let channels = if site.channels_last { x.dims.len() - 1 } else { 1 };
        let space = Space::of(&x.dims, |axis| axis != channels)?;
        let coefficients = [operand(site, 1)?, operand(site, 2)?, operand(site, 3)?, operand(site, 4)?];
        let mut results = [None; 5];
        for (j, value) in site.view.data().results().iter().enumerate() {
            if let Some(value) = value {
                *results.get_mut(j)? = Some((*value, Elem::float(site.result_dtype(j).ok()?)?));
            }
        }
        results[0]?;
        let BatchNormView { epsilon, momentum, .. } = view;
        Some(Norm { x, coefficients, results, epsilon, momentum, space })
    }
}
