//! Operators of ai.onnx.ml: LabelEncoder, ArrayFeatureExtractor, Binarizer, TreeEnsemble.

use super::activation::{mapped, mapped_int};
use super::elements::{copies, to_f64};
use super::functions::sigmoid;
use super::lanes::{Real, Wide, for_real};
use super::parallel::try_pairs_of_pieces;
use crate::host::{HostTensor, TensorRef, copies_of_strings, copy_of_string};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use num_traits::{Float, One, Zero};
use rustc_hash::FxHashMap;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::MlArrayFeatureExtractor => extract,
        OpKind::MlBinarizer => binarizer,
        OpKind::MlLabelEncoder => label_encoder,
        OpKind::MlTreeEnsemble => tree_ensemble,
        _ => return None,
    })
}

/// The bytes of one element of numbers.
fn element_bytes(site: &Site<'_>, dtype: DType) -> Result<usize> {
    let whole = dtype.bits().filter(|bits| bits % 8 == 0).map(|bits| (bits / 8) as usize);
    whole.ok_or_else(|| site.no_kernel())
}

/// Writes elements of a list, or emits them if they are strings: those at `indices`.
fn write(io: &mut Io<'_>, dims: &[usize], indices: &[usize], from: TensorRef<'_>, size: usize) -> Result<()> {
    if let Some(strings) = from.strings() {
        let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        let chosen = copies(io, &dims, indices.iter().map(|&i| &strings[i]))?;
        return io.emit(0, chosen);
    }
    let bytes = from.bytes().unwrap_or_default();
    for (to, &i) in io.out_bytes(0)?.chunks_exact_mut(size).zip(indices) {
        to.copy_from_slice(&bytes[i * size..(i + 1) * size]);
    }
    Ok(())
}

/// ArrayFeatureExtractor: elements of the last axis.
fn extract(site: &Site<'_>) -> Result<Prepared> {
    let (x, dims) = (site.dims(0)?, site.result_dims(0)?);
    let dtype = site.dtype(0)?;
    let size = if dtype == DType::String { 0 } else { element_bytes(site, dtype)? };
    let last = x.last().copied().unwrap_or(1);
    let rows = x[..x.len().saturating_sub(1)].iter().product::<usize>();
    Ok(Prepared::new(move |io| {
        let chosen = io.slice::<i64>(1)?;
        let mut indices = io.room().list(rows.saturating_mul(chosen.len()))?;
        for row in 0..rows {
            for &i in chosen {
                let index = usize::try_from(i).ok().filter(|&i| i < last);
                let index = index.ok_or_else(|| KernelError::value(format!("indices in [0, {last})"), i))?;
                indices.push(row * last + index);
            }
        }
        let from = io.tensor(0)?;
        write(io, &dims, &indices, from, size)
    }))
}

fn binarizer(site: &Site<'_>) -> Result<Prepared> {
    let threshold = f64::from(site.view.float("threshold").unwrap_or(0.0));
    #[expect(clippy::cast_precision_loss, reason = "thresholds are floats")]
    let kernel = match site.dtype(0)? {
        DType::I64 => mapped_int::<i64>(move |x| i64::from(x as f64 > threshold)),
        DType::I32 => mapped_int::<i32>(move |x| i32::from(f64::from(x) > threshold)),
        dtype => for_real!(dtype, site, T => mapped::<T>(move |x| {
            if x.to() > threshold { One::one() } else { Zero::zero() }
        })),
    };
    Ok(kernel)
}

/// A list in an attribute: its elements, as a tensor.
fn list(site: &Site<'_>, names: &[&str]) -> Result<Option<HostTensor>> {
    let Some(value) = names.iter().find_map(|name| site.view.attr(name)) else { return Ok(None) };
    let dims = |n: usize| [n as u64];
    Ok(Some(match value {
        AttrValue::Tensor(data) => HostTensor::from_data(data)?,
        AttrValue::Ints(v) => HostTensor::from_slice(&dims(v.len()), v)?,
        AttrValue::Floats(v) => HostTensor::from_slice(&dims(v.len()), v)?,
        AttrValue::Strings(v) => HostTensor::from_strings(&dims(v.len()), copies_of_strings(v)?)?,
        _ => return Err(KernelError::value("a list", "something else")),
    }))
}

/// A list in an attribute that has to be there.
fn needed(site: &Site<'_>, names: &[&str]) -> Result<HostTensor> {
    list(site, names)?.ok_or_else(|| KernelError::value(format!("one of {}", names.join(", ")), "none"))
}

/// Keys of numbers, equal for equal numbers: all NaNs are equal, and both zeros.
fn keys<'a>(tensor: TensorRef<'a>) -> Result<Box<dyn Iterator<Item = u64> + 'a>> {
    if tensor.dtype().is_integer() {
        #[expect(clippy::cast_sign_loss, reason = "all bits count")]
        return Ok(Box::new(tensor.i64s()?.map(|i| i as u64)));
    }
    let bits = |x: f64| if x.is_nan() { f64::NAN } else { x + 0.0 }.to_bits();
    Ok(Box::new(tensor.f64s()?.map(bits)))
}

/// Lookup table of LabelEncoder.
enum Table {
    Numbers(FxHashMap<u64, usize>),
    Strings(FxHashMap<Box<[u8]>, usize>),
}

impl Table {
    /// Makes the table; the last of equal keys counts.
    fn new(keys_tensor: &HostTensor, room: Room) -> Result<Table> {
        Ok(match keys_tensor.strings() {
            Some(strings) => {
                let mut table = room.table(strings.len())?;
                for (i, text) in strings.iter().enumerate() {
                    table.insert(copy_of_string(text)?, i);
                }
                Table::Strings(table)
            }
            None => {
                let mut table =
                    room.table(usize::try_from(keys_tensor.element_count()).unwrap_or(usize::MAX))?;
                table.extend(keys(keys_tensor.view())?.enumerate().map(|(i, key)| (key, i)));
                Table::Numbers(table)
            }
        })
    }

    /// The index of every element, `default` for those that are not there.
    fn indices(&self, x: TensorRef<'_>, default: usize, room: Room) -> Result<Vec<usize>> {
        match self {
            Table::Numbers(table) => {
                room.gathered(keys(x)?.map(|key| table.get(&key).copied().unwrap_or(default)))
            }
            Table::Strings(table) => {
                let strings = x.strings().ok_or_else(|| KernelError::value("strings", x.dtype()))?;
                room.gathered(strings.iter().map(|s| table.get(s).copied().unwrap_or(default)))
            }
        }
    }
}

fn label_encoder(site: &Site<'_>) -> Result<Prepared> {
    // Version 1 has one list of strings, which positions in it stand for.
    let (keys, values) = match list(site, &["classes_strings"])? {
        Some(classes) => {
            let positions: Vec<i64> =
                site.room.gathered((0..).take(classes.strings().map_or(0, <[_]>::len)))?;
            let positions = HostTensor::from_slice(&[positions.len() as u64], &positions)?;
            if site.dtype(0)? == DType::String { (classes, positions) } else { (positions, classes) }
        }
        None => (
            needed(site, &["keys_tensor", "keys_strings", "keys_int64s", "keys_floats"])?,
            needed(site, &["values_tensor", "values_strings", "values_int64s", "values_floats"])?,
        ),
    };
    let count = values.element_count();
    if keys.element_count() != count {
        return Err(KernelError::value(format!("{count} keys"), keys.element_count()));
    }
    // The default stands behind the values.
    let default = default_label(site, values.dtype())?;
    let values = appended(&values, &default, site.room)?;
    let default = usize::try_from(count).unwrap_or(usize::MAX);
    let table = Table::new(&keys, site.room)?;
    let size = if values.dtype() == DType::String { 0 } else { element_bytes(site, values.dtype())? };
    let dims = site.dims(0)?;
    Ok(Prepared::new(move |io| {
        let indices = table.indices(io.tensor(0)?, default, io.room())?;
        write(io, &dims, &indices, values.view(), size)
    }))
}

/// The result of LabelEncoder for an unknown key.
fn default_label(site: &Site<'_>, dtype: DType) -> Result<HostTensor> {
    if let Some(AttrValue::Tensor(data)) = site.view.attr("default_tensor") {
        let default = HostTensor::from_data(data)?;
        if default.dtype() != dtype || default.element_count() != 1 {
            return Err(KernelError::value(format!("a default of {dtype}"), default.dtype()));
        }
        return Ok(default);
    }
    let int = site.view.int("default_int64").unwrap_or(-1);
    let float = site.view.float("default_float").unwrap_or(-0.0);
    Ok(match dtype {
        DType::String => {
            let default = site.view.string("default_string").unwrap_or("_Unused");
            HostTensor::from_strings(&[1], vec![default.as_bytes().into()])?
        }
        DType::F32 => HostTensor::from_slice(&[1], &[float])?,
        DType::F64 => HostTensor::from_slice(&[1], &[f64::from(float)])?,
        DType::I64 => HostTensor::from_slice(&[1], &[int])?,
        DType::I32 => HostTensor::from_slice(&[1], &[i32::try_from(int).unwrap_or(-1)])?,
        DType::I16 => HostTensor::from_slice(&[1], &[i16::try_from(int).unwrap_or(-1)])?,
        _ => return Err(site.no_kernel()),
    })
}

fn appended(values: &HostTensor, last: &HostTensor, room: Room) -> Result<HostTensor> {
    let dims = [values.element_count() + 1];
    if let (Some(values), Some(last)) = (values.strings(), last.strings()) {
        let both = values.iter().chain(last).map(|text| Ok(copy_of_string(text)?));
        return Ok(HostTensor::from_strings(&dims, room.try_gathered(both)?)?);
    }
    let (values_bytes, last) = (values.bytes().unwrap_or_default(), last.bytes().unwrap_or_default());
    HostTensor::filled(values.dtype(), &dims, |to| {
        let (to_values, to_last) = to.split_at_mut(values_bytes.len());
        to_values.copy_from_slice(values_bytes);
        to_last.copy_from_slice(last);
        Ok(())
    })
}

/// Where a decision leads.
#[derive(Clone, Copy)]
enum Branch {
    Leaf(usize),
    Decision(usize),
}

/// How a feature is compared with the split.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
    Member,
}

impl Mode {
    /// By its number in `nodes_modes`.
    fn numbered(number: i64) -> Result<Mode> {
        Ok(match number {
            0 => Mode::LessOrEqual,
            1 => Mode::Less,
            2 => Mode::GreaterOrEqual,
            3 => Mode::Greater,
            4 => Mode::Equal,
            5 => Mode::NotEqual,
            6 => Mode::Member,
            other => return Err(KernelError::value("modes from 0 to 6", other)),
        })
    }
}

struct Decision {
    feature: usize,
    mode: Mode,
    split: f64,
    /// The values that a member may equal.
    members: Vec<f64>,
    /// True if NaN is a yes.
    missing: bool,
    yes: Branch,
    no: Branch,
}

impl Decision {
    fn next(&self, x: f64) -> Branch {
        let yes = match self.mode {
            Mode::LessOrEqual => x <= self.split,
            Mode::Less => x < self.split,
            Mode::GreaterOrEqual => x >= self.split,
            Mode::Greater => x > self.split,
            Mode::Equal => x == self.split,
            Mode::NotEqual => x != self.split,
            Mode::Member => self.members.contains(&x),
        };
        if yes || self.missing && x.is_nan() { self.yes } else { self.no }
    }
}

#[derive(Clone, Copy)]
enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

impl Aggregate {
    /// As `aggregate_function` says.
    fn of(site: &Site<'_>) -> Result<Aggregate> {
        Ok(match site.view.int("aggregate_function").unwrap_or(1) {
            0 => Aggregate::Average,
            1 => Aggregate::Sum,
            2 => Aggregate::Min,
            3 => Aggregate::Max,
            other => return Err(KernelError::value("an aggregate_function from 0 to 3", other)),
        })
    }
}

#[derive(Clone, Copy)]
enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    /// As `post_transform` says.
    fn of(site: &Site<'_>) -> Result<Transform> {
        Ok(match site.view.int("post_transform").unwrap_or(0) {
            0 => Transform::None,
            1 => Transform::Softmax,
            2 => Transform::Logistic,
            3 => Transform::SoftmaxZero,
            4 => Transform::Probit,
            other => return Err(KernelError::value("a post_transform from 0 to 4", other)),
        })
    }
}

struct Ensemble {
    decisions: Vec<Decision>,
    /// Target and weight.
    leaves: Vec<(usize, f64)>,
    roots: Vec<usize>,
    aggregate: Aggregate,
    transform: Transform,
}

/// The numbers in an attribute, each in `[0, end)`; none if it is absent.
fn indices(site: &Site<'_>, name: &str, end: usize) -> Result<Vec<usize>> {
    let index = |&i: &i64| {
        let index = usize::try_from(i).ok().filter(|&i| i < end);
        index.ok_or_else(|| KernelError::value(format!("{name} in [0, {end})"), i))
    };
    site.room.try_gathered(site.view.int_list(name).unwrap_or_default().iter().map(index))
}

impl Ensemble {
    fn new(site: &Site<'_>, features: usize, targets: usize) -> Result<Ensemble> {
        let floats = |name: &str| -> Result<Vec<f64>> {
            match list(site, &[name])? {
                Some(list) => site.room.gathered(list.f64s()?),
                None => Ok(Vec::new()),
            }
        };
        let modes: Vec<i64> = site.room.gathered(needed(site, &["nodes_modes"])?.i64s()?)?;
        let n = modes.len();
        let splits = floats("nodes_splits")?;
        let weights = floats("leaf_weights")?;
        let of_target = indices(site, "leaf_targetids", targets)?;
        let feature = indices(site, "nodes_featureids", features)?;
        let any = usize::MAX;
        let (yes, no) = (indices(site, "nodes_truenodeids", any)?, indices(site, "nodes_falsenodeids", any)?);
        let (yes_leaf, no_leaf) =
            (indices(site, "nodes_trueleafs", 2)?, indices(site, "nodes_falseleafs", 2)?);
        let missing = site.view.int_list("nodes_missing_value_tracks_true").unwrap_or_default();
        let lengths = [splits.len(), feature.len(), yes.len(), no.len(), yes_leaf.len(), no_leaf.len()];
        if lengths.iter().any(|&len| len != n) || weights.len() != of_target.len() {
            return Err(KernelError::value(format!("{n} elements in each list"), format!("{lengths:?}")));
        }
        let branch = |is_leaf: usize, at: usize| {
            let end = if is_leaf == 1 { weights.len() } else { n };
            if at >= end {
                return Err(KernelError::value(format!("branches to one of {end}"), at));
            }
            Ok(if is_leaf == 1 { Branch::Leaf(at) } else { Branch::Decision(at) })
        };
        // Sets are one after the other, with a NaN behind each.
        let members = floats("membership_values")?;
        let mut sets = members.split(|x| x.is_nan());
        let mut decisions = site.room.list(n)?;
        for i in 0..n {
            let mode = Mode::numbered(modes[i])?;
            let members = if mode == Mode::Member { sets.next().unwrap_or_default() } else { &[] };
            let members = site.room.gathered(members.iter().copied())?;
            decisions.push(Decision {
                feature: feature[i],
                mode,
                split: splits[i],
                members,
                missing: missing.get(i).is_some_and(|&m| m != 0),
                yes: branch(yes_leaf[i], yes[i])?,
                no: branch(no_leaf[i], no[i])?,
            });
        }
        Ok(Ensemble {
            decisions,
            leaves: site.room.gathered(of_target.into_iter().zip(weights))?,
            roots: indices(site, "tree_roots", n)?,
            aggregate: Aggregate::of(site)?,
            transform: Transform::of(site)?,
        })
    }

    /// The leaf that a row comes to; `None` if it goes in circles.
    fn leaf<T: Real>(&self, root: usize, x: &[T]) -> Option<(usize, f64)> {
        let mut at = root;
        for _ in 0..self.decisions.len() {
            let decision = &self.decisions[at];
            match decision.next(x[decision.feature].wide().to()) {
                Branch::Leaf(leaf) => return Some(self.leaves[leaf]),
                Branch::Decision(next) => at = next,
            }
        }
        None
    }

    /// The results of one row; `None` if a tree goes in circles.
    fn row<T: Real>(&self, x: &[T], to: &mut [T], sums: &mut [T::Wide]) -> Option<()> {
        let limit = |sign: f64| T::Wide::of(sign) * T::Wide::max_value();
        sums.fill(match self.aggregate {
            Aggregate::Average | Aggregate::Sum => T::Wide::zero(),
            Aggregate::Min => limit(1.0),
            Aggregate::Max => limit(-1.0),
        });
        for &root in &self.roots {
            let (target, weight) = self.leaf(root, x)?;
            let (sum, weight) = (&mut sums[target], T::Wide::of(weight));
            *sum = match self.aggregate {
                Aggregate::Average | Aggregate::Sum => *sum + weight,
                Aggregate::Min => sum.min(weight),
                Aggregate::Max => sum.max(weight),
            };
        }
        if let Aggregate::Average = self.aggregate {
            let n = T::Wide::of(to_f64(self.roots.len()));
            sums.iter_mut().for_each(|y| *y = *y / n);
        }
        transform(self.transform, sums);
        T::narrow(sums, to);
        Some(())
    }
}

/// Transforms the scores of one row.
fn transform<W: Wide>(how: Transform, row: &mut [W]) {
    match how {
        Transform::None => {}
        Transform::Softmax => super::softmax::masked_softmax::<W, W>(row),
        Transform::Logistic => row.iter_mut().for_each(|x| *x = sigmoid(*x)),
        // Zeros stay, and have no part in it.
        Transform::SoftmaxZero => {
            let top = row.iter().fold(W::neg_infinity(), |top, &x| top.max(x));
            let mut sum = W::zero();
            for x in row.iter_mut().filter(|x| !x.is_zero()) {
                *x = (*x - top).exp();
                sum = sum + *x;
            }
            row.iter_mut().filter(|x| !x.is_zero()).for_each(|x| *x = *x / sum);
        }
        Transform::Probit => row.iter_mut().for_each(|x| *x = W::of(probit(x.to()))),
    }
}

/// The inverse of the normal distribution: √2 · erf⁻¹(2x - 1), with a start of Winitzki's and Newton's steps.
fn probit(x: f64) -> f64 {
    let y = 2.0 * x - 1.0;
    if !(-1.0..=1.0).contains(&y) {
        return f64::NAN;
    }
    if y.abs() == 1.0 {
        return y * f64::INFINITY;
    }
    let log = (1.0 - y * y).ln();
    let a = 0.147;
    let half = 2.0 / (std::f64::consts::PI * a) + log / 2.0;
    let mut z = ((half * half - log / a).sqrt() - half).sqrt().copysign(y);
    for _ in 0..3 {
        z -= (libm::erf(z) - y) * std::f64::consts::PI.sqrt() / 2.0 * (z * z).exp();
    }
    std::f64::consts::SQRT_2 * z
}

/// The rows of a piece of work.
const ROWS: usize = 16;

fn tree_ensemble(site: &Site<'_>) -> Result<Prepared> {
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    let features = x.last().copied().unwrap_or(0);
    let targets = y.last().copied().unwrap_or(0);
    let ensemble = Ensemble::new(site, features, targets)?;
    let y_rows = y.first().copied().unwrap_or(0);
    Ok(for_real!(site.dtype(0)?, site, T => {
        let words = y_rows * targets;
        Prepared::new(move |io| {
            let (x, to) = (io.slice::<T>(0)?, io.out::<T>(0)?);
            let sums = io.scratch::<<T as Real>::Wide>();
            if to.is_empty() || features == 0 {
                to.fill(<T as bytemuck::Zeroable>::zeroed());
                return Ok(());
            }
            let rows = ROWS.min(y_rows);
            try_pairs_of_pieces((to, rows * targets), (sums, rows * targets), |i, to, sums| {
                let x = x[i * rows * features..].chunks(features);
                let mut each = x.zip(to.chunks_mut(targets)).zip(sums.chunks_mut(targets));
                let done = each.try_for_each(|((x, to), sums)| ensemble.row::<T>(x, to, sums));
                done.ok_or_else(|| KernelError::value("trees", "a circle of nodes"))
            })
        })
        .scratch(words * size_of::<<T as Real>::Wide>())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probits() {
        for (x, want) in [(0.5, 0.0), (0.975, 1.959_963_984_540_054), (1e-6, -4.753_424_308_822_899)] {
            assert!((probit(x) - want).abs() < 1e-9, "{x}");
        }
        assert!(probit(1.0) == f64::INFINITY && probit(0.0) == f64::NEG_INFINITY && probit(2.0).is_nan());
    }

    #[test]
    fn equal_numbers_have_one_key() {
        let tensor = HostTensor::from_slice(&[4], &[0.0f32, -0.0, f32::NAN, -f32::NAN]).expect("a tensor");
        let keys: Vec<u64> = keys(tensor.view()).expect("keys").collect();
        assert!(keys[0] == keys[1] && keys[2] == keys[3] && keys[0] != keys[2]);
    }
}
