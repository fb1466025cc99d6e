//! The running sums of a comparison: elements block by block, lane by lane.

use super::{Comparison, Mismatch, Scalar, Tolerance};
use crate::float::Format;
use crate::host::{HostTensor, TensorRef};
use ampc_ir::DType;

/// Elements compared at a time: both blocks stay in the first-level cache.
const BLOCK: usize = 1 << 10;

/// Sums of so large numbers, which are the largest of their tensor, could be larger than any f64: 2^900.
pub(super) const HUGE: f64 = 8.452_712_498_170_644e270;

/// The largest magnitude of a finite element of a tensor of floats.
pub(super) fn largest(tensor: &HostTensor) -> f64 {
    let mut block = [0.0; BLOCK];
    let (mut most, mut at) = (0.0, 0);
    loop {
        let read = tensor.view().read_f64s(at, &mut block);
        if read == 0 {
            return most;
        }
        let finite = block[..read].iter().map(|v| v.abs()).filter(|v| *v < f64::INFINITY);
        most = finite.fold(most, |most: f64, v| if v > most { v } else { most });
        at += read;
    }
}

/// Elements side by side in the sums of a block: as many as the processor computes with at once, or a multiple.
const LANES: usize = 8;

/// The bits of a float's exponent: alone they are the power of two that is not more than it.
const EXPONENT: u64 = 0x7ff << 52;

/// Sums of a block, lane by lane.
#[derive(Default)]
struct Sums {
    max_abs: [f64; LANES],
    max_rel: [f64; LANES],
    max_ulp: [f64; LANES],
    error: [f64; LANES],
    want: [f64; LANES],
}

/// Makes `most` the larger of both; NaN is not larger.
fn raise(most: &mut f64, number: f64) {
    if number > *most {
        *most = number;
    }
}

/// The running sums of one comparison.
pub(super) struct State<'a> {
    dims: &'a [u64],
    /// Comparisons per element: two for complex numbers.
    parts: u64,
    format: Option<Format>,
    tolerance: Tolerance,
    found: Comparison,
    max_ulp: f64,
    pub(super) max_want: f64,
    /// True if elements are floats: `max_want` is known before they are compared.
    pub(super) is_float: bool,
    /// True if an expected element is not finite.
    wants_special: bool,
    /// True if units in the last place are measured.
    counts_ulps: bool,
    /// The factor of the summed elements, which keeps the sums finite where the expected elements are huge.
    pub(super) scale: f64,
    sum_error: f64,
    sum_want: f64,
}

impl<'a> State<'a> {
    pub(super) fn new(got: &HostTensor, want: &'a HostTensor, tolerance: Tolerance) -> State<'a> {
        let parts = if matches!(got.dtype(), DType::Complex64 | DType::Complex128) { 2 } else { 1 };
        State {
            dims: want.dims(),
            parts,
            format: Format::of(got.dtype()),
            tolerance,
            found: Comparison::default(),
            max_ulp: 0.0,
            max_want: 0.0,
            is_float: false,
            wants_special: false,
            counts_ulps: Format::of(got.dtype()).is_some()
                && got.dtype().bits().is_some_and(|bits| bits <= 16),
            scale: 1.0,
            sum_error: 0.0,
            sum_want: 0.0,
        }
    }

    /// Compares numbers block by block, so that element types are dispatched once per block.
    pub(super) fn blocks<T: Copy + Default>(
        &mut self,
        got: &'a HostTensor,
        want: &'a HostTensor,
        read: impl Fn(&TensorRef<'a>, usize, &mut [T]) -> usize,
        compare: impl Fn(&mut Self, &[T], &[T]),
    ) {
        let (got, want) = (got.view(), want.view());
        let (mut a, mut b) = ([T::default(); BLOCK], [T::default(); BLOCK]);
        let mut at = 0;
        loop {
            let count = read(&got, at, &mut a).min(read(&want, at, &mut b));
            if count == 0 {
                return;
            }
            compare(self, &a[..count], &b[..count]);
            at += count;
        }
    }

    /// Counts an element; the scalars are made for the first mismatch only.
    fn element(&mut self, agrees: bool, scalars: impl FnOnce() -> (Scalar, Scalar)) {
        if !agrees {
            self.found.mismatches += 1;
            if self.found.first_mismatch.is_none() {
                let (got, want) = scalars();
                let at = coordinates(self.found.elements / self.parts, self.dims);
                self.found.first_mismatch = Some(Mismatch { at, got, want });
            }
        }
        self.found.elements += 1;
    }

    pub(super) fn string(&mut self, got: &[u8], want: &[u8]) {
        let text = |s: &[u8]| Scalar::Text(String::from_utf8_lossy(s).into_owned());
        self.found.finite += 1;
        self.element(got == want, || (text(got), text(want)));
    }

    pub(super) fn ints(&mut self, got: &[i128], want: &[i128]) {
        got.iter().zip(want).for_each(|(&got, &want)| self.int(got, want));
    }

    pub(super) fn floats(&mut self, got: &[f64], want: &[f64]) {
        match self.format.and_then(|format| self.sums(format, got, want)) {
            Some(sums) => self.add(&sums, got.len() as u64),
            None => got.iter().zip(want).for_each(|(&got, &want)| self.float(got, want)),
        }
    }

    /// The sums of a block whose elements are all finite and near enough; `None` for other blocks.
    fn sums(&self, format: Format, got: &[f64], want: &[f64]) -> Option<Sums> {
        let step = 2.0 * format.unit_roundoff();
        let least = format.least_spacing() / step;
        let mut sums = Sums::default();
        let mut agree = true;
        let mut lanes = |got: &[f64; LANES], want: &[f64; LANES]| {
            for lane in 0..LANES {
                let (error, size) = ((got[lane] - want[lane]).abs(), want[lane].abs());
                let power = f64::from_bits(size.to_bits() & EXPONENT);
                let spacing = step * if power > least { power } else { least };
                agree &= error < f64::INFINITY && self.tolerance.allows(error, size, self.max_want);
                raise(&mut sums.max_abs[lane], error);
                // Nothing of nothing is NaN, which is not more.
                raise(&mut sums.max_rel[lane], error / size);
                raise(&mut sums.max_ulp[lane], error / spacing);
                sums.error[lane] += error * self.scale;
                sums.want[lane] += size * self.scale;
            }
        };
        let ((got, got_rest), (want, want_rest)) = (got.as_chunks(), want.as_chunks());
        got.iter().zip(want).for_each(|(got, want)| lanes(got, want));
        // Zeros that agree add nothing.
        let (mut got, mut want) = ([0.0; LANES], [0.0; LANES]);
        got[..got_rest.len()].copy_from_slice(got_rest);
        want[..want_rest.len()].copy_from_slice(want_rest);
        lanes(&got, &want);
        agree.then_some(sums)
    }

    fn add(&mut self, sums: &Sums, elements: u64) {
        let found = &mut self.found;
        found.elements += elements;
        found.finite += elements;
        sums.max_abs.iter().for_each(|&v| raise(&mut found.max_abs, v));
        sums.max_rel.iter().for_each(|&v| raise(&mut found.max_rel, v));
        sums.max_ulp.iter().for_each(|&v| raise(&mut self.max_ulp, v));
        self.sum_error += sums.error.iter().sum::<f64>();
        self.sum_want += sums.want.iter().sum::<f64>();
    }

    #[expect(clippy::cast_precision_loss, reason = "the verdict is exact; these are measures of the error")]
    fn int(&mut self, got: i128, want: i128) {
        self.error((got - want).unsigned_abs() as f64, want as f64);
        self.max_want = self.max_want.max(want.unsigned_abs() as f64);
        self.found.finite += 1;
        self.element(got == want, || (Scalar::Int(got), Scalar::Int(want)));
    }

    pub(super) fn float(&mut self, got: f64, want: f64) {
        let agrees = if got.is_finite() && want.is_finite() {
            let error = (got - want).abs();
            self.error(error, want);
            self.found.finite += 1;
            self.tolerance.allows(error, want, self.max_want)
        } else {
            self.wants_special |= !want.is_finite();
            let both_nan = got.is_nan() && want.is_nan();
            let same = got == want || both_nan;
            let nan = got.is_nan() || want.is_nan();
            self.found.nan_in_both += u64::from(both_nan);
            self.found.nan_disagreements += u64::from(!same && nan);
            self.found.inf_disagreements += u64::from(!same && !nan);
            same
        };
        self.element(agrees, || (Scalar::Float(got), Scalar::Float(want)));
    }

    fn error(&mut self, error: f64, want: f64) {
        self.sum_want += want.abs() * self.scale;
        // Most elements of models that agree are equal, and then there is nothing to divide.
        if error == 0.0 {
            return;
        }
        self.sum_error += error * self.scale;
        self.found.max_abs = self.found.max_abs.max(error);
        self.found.max_rel = self.found.max_rel.max(share(error, want.abs()));
        if let Some(format) = self.format {
            self.max_ulp = self.max_ulp.max(error / format.spacing(want));
        }
    }

    pub(super) fn finish(mut self) -> Comparison {
        self.found.max_of_max = share(self.found.max_abs, self.max_want);
        self.found.mean_of_mean = share(self.sum_error, self.sum_want);
        self.found.max_ulp = self.counts_ulps.then_some(self.max_ulp);
        self.found.max_want = self.max_want;
        if self.is_float {
            self.found.held_to = Some(self.tolerance);
            let is_zero = self.max_want == 0.0 && !self.wants_special;
            self.found.all_zero = is_zero && self.found.elements > 0;
        }
        if self.found.not_finite() > 0 {
            self.found.no_number();
        }
        self.found
    }
}

/// `part / whole`, where nothing of nothing is nothing.
pub(super) fn share(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

pub(super) fn coordinates(mut index: u64, dims: &[u64]) -> Vec<u64> {
    let mut at: Vec<u64> = dims
        .iter()
        .rev()
        .map(|&dim| {
            let i = index % dim;
            index /= dim;
            i
        })
        .collect();
    at.reverse();
    at
}
