//! Regions of images and bounding boxes: RoiAlign, MaxRoiPool, NonMaxSuppression.

use super::convolution::floor;
use super::elements::to_f64;
use super::lanes::{Real, Wide, for_real};
use super::parallel::{each, try_numbered_pieces};
use super::pointwise::maximum;
use crate::host::HostTensor;
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use num_traits::{Float, One, Zero};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::RoiAlign => roi_align,
        OpKind::MaxRoiPool => max_roi_pool,
        OpKind::NonMaxSuppression => non_max_suppression,
        _ => return None,
    })
}

/// The extents of images, and of the result of each region.
#[derive(Clone, Copy)]
struct Regions {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    /// Height and width of the result.
    pooled: [usize; 2],
    scale: f64,
}

impl Regions {
    fn of(site: &Site<'_>) -> Result<Regions> {
        let x = site.dims(0)?;
        let result = site.result_dims(0)?;
        if (x[2] == 0 || x[3] == 0) && !result.contains(&0) {
            return Err(KernelError::value("images with elements", "none"));
        }
        let scale = f64::from(site.view.float("spatial_scale").unwrap_or(1.0));
        let pooled = [result[2], result[3]];
        Ok(Regions { batch: x[0], channels: x[1], height: x[2], width: x[3], pooled, scale })
    }

    /// Elements of the result per region.
    fn len(&self) -> usize {
        self.channels * self.pooled[0] * self.pooled[1]
    }

    /// All channels of an image.
    fn image<'a, T>(&self, x: &'a [T], image: usize) -> &'a [T] {
        let size = self.channels * self.height * self.width;
        &x[image * size..(image + 1) * size]
    }

    /// A batch index that an operand says.
    fn batch_index(&self, index: Option<usize>, operand: usize, found: impl ToString) -> Result<usize> {
        index.filter(|&i| i < self.batch).ok_or_else(|| {
            let expected = format!("indices of {} images", self.batch);
            OpError::operand(operand, expected, found.to_string()).into()
        })
    }
}

/// Two neighbours on an axis, and the weight of the second; `None` for a sample outside of the image.
type Between<W> = Option<(usize, usize, W)>;

/// How RoiAlign samples regions.
#[derive(Clone, Copy)]
struct Align {
    regions: Regions,
    is_max: bool,
    half_pixel: bool,
    /// Samples per axis of a bin; 0 for as many as it has elements.
    ratio: usize,
}

fn roi_align(site: &Site<'_>) -> Result<Prepared> {
    let regions = Regions::of(site)?;
    let is_max = match site.view.string("mode").unwrap_or("avg") {
        "avg" => false,
        "max" => true,
        other => return Err(OpError::attr("mode", "avg or max", other).into()),
    };
    // The first version has no half pixels.
    let half_pixel = match site.view.string("coordinate_transformation_mode") {
        Some("half_pixel") => true,
        Some("output_half_pixel") | None => false,
        Some(other) => {
            let expected = "half_pixel or output_half_pixel";
            return Err(OpError::attr("coordinate_transformation_mode", expected, other).into());
        }
    };
    let ratio = site.view.int("sampling_ratio").unwrap_or(0);
    let ratio = usize::try_from(ratio)
        .map_err(|_| OpError::attr("sampling_ratio", "a number of samples", ratio.to_string()))?;
    let align = Align { regions, is_max, half_pixel, ratio };
    Ok(for_real!(site.dtype(0)?, site, T => roi_align_of::<T>(align)))
}

/// More samples than this along an axis of a bin are refused.
const MOST_SAMPLES: usize = 1 << 12;

fn roi_align_of<T: Real>(align: Align) -> Prepared {
    Prepared::new(move |io| {
        let (x, rois, images) = (io.slice::<T>(0)?, io.slice::<T>(1)?, io.slice::<i64>(2)?);
        let to = io.out::<T>(0)?;
        if to.is_empty() {
            return Ok(());
        }
        let regions = align.regions;
        try_numbered_pieces(to, regions.len(), 1, |i, to| {
            let (roi, image) = (&rois[i * 4..][..4], images[i]);
            let image = regions.batch_index(usize::try_from(image).ok(), 2, image)?;
            align.region::<T>(regions.image(x, image), align.sides::<T>(roi)?, to);
            Ok(())
        })
    })
}

/// A region along an axis of `extent` elements.
#[derive(Clone, Copy)]
struct Side<W> {
    start: W,
    /// The length of a bin.
    length: W,
    /// Samples of one bin.
    n: usize,
    extent: usize,
}

impl<W: Wide> Side<W> {
    /// Writes the samples of a bin.
    fn samples(&self, bin: usize, to: &mut Vec<Between<W>>) {
        let of = |n: usize| W::of(to_f64(n));
        to.clear();
        to.extend((0..self.n).map(|i| {
            let inside = (of(i) + W::of(0.5)) * self.length / of(self.n);
            self.sample(self.start + of(bin) * self.length + inside)
        }));
    }

    fn sample(&self, at: W) -> Between<W> {
        if !(at >= -W::one() && at <= W::of(to_f64(self.extent))) {
            return None;
        }
        let at = at.max(W::zero());
        let low = usize::try_from(floor(at.to())).unwrap_or(0);
        if low + 1 >= self.extent {
            return Some((self.extent - 1, self.extent - 1, W::zero()));
        }
        Some((low, low + 1, at - W::of(to_f64(low))))
    }
}

impl Align {
    /// A region along both axes, rows first.
    fn sides<T: Real>(&self, roi: &[T]) -> Result<[Side<T::Wide>; 2]> {
        let Regions { pooled, height, width, .. } = self.regions;
        Ok([self.side(roi[1], roi[3], pooled[0], height)?, self.side(roi[0], roi[2], pooled[1], width)?])
    }

    /// A region from `start` to `end` along an axis that has so many bins.
    fn side<T: Real>(&self, start: T, end: T, bins: usize, extent: usize) -> Result<Side<T::Wide>> {
        let (half, one, zero) = (T::Wide::of(0.5), T::Wide::one(), T::Wide::zero());
        let scale = T::Wide::of(self.regions.scale);
        let offset = if self.half_pixel { half } else { zero };
        let start = start.wide() * scale - offset;
        let mut length = end.wide() * scale - offset - start;
        if !self.half_pixel {
            // A malformed region has one element.
            length = length.max(one);
        }
        let length = length / T::Wide::of(to_f64(bins));
        let n = match self.ratio {
            0 => usize::try_from(floor(length.ceil().to())).unwrap_or(0),
            ratio => ratio,
        };
        if n > MOST_SAMPLES {
            return Err(KernelError::Limit {
                limit: format!("{MOST_SAMPLES} samples along an axis of a bin"),
                found: n.to_string(),
            });
        }
        Ok(Side { start, length, n, extent })
    }

    /// All bins of a region in all channels of an image.
    fn region<T: Real>(&self, x: &[T], [down, right]: [Side<T::Wide>; 2], to: &mut [T]) {
        let Regions { pooled, height, width, .. } = self.regions;
        let (mut rows, mut columns) = (Vec::with_capacity(down.n), Vec::with_capacity(right.n));
        for row in 0..pooled[0] {
            down.samples(row, &mut rows);
            for column in 0..pooled[1] {
                right.samples(column, &mut columns);
                let at = row * pooled[1] + column;
                let channels = to.chunks_mut(pooled[0] * pooled[1]).zip(x.chunks(height * width));
                channels.for_each(|(to, x)| to[at] = T::round(self.bin::<T>(x, &rows, &columns)));
            }
        }
    }

    /// The average of the samples of a bin, or the largest of the weighted elements that they are made of.
    fn bin<T: Real>(&self, x: &[T], rows: &[Between<T::Wide>], columns: &[Between<T::Wide>]) -> T::Wide {
        let width = self.regions.width;
        let (one, zero) = (T::Wide::one(), T::Wide::zero());
        let mut sum = zero;
        let mut largest: Option<T::Wide> = None;
        for row in rows {
            for column in columns {
                let parts = match (row, column) {
                    (&Some((top, bottom, down)), &Some((left, right, over))) => {
                        let element = |row: usize, column: usize| x[row * width + column].wide();
                        [
                            (one - down) * (one - over) * element(top, left),
                            (one - down) * over * element(top, right),
                            down * (one - over) * element(bottom, left),
                            down * over * element(bottom, right),
                        ]
                    }
                    _ => [zero; 4],
                };
                if self.is_max {
                    let part = parts.into_iter().fold(parts[0], Float::max);
                    largest = Some(largest.map_or(part, |largest| largest.max(part)));
                } else {
                    sum = sum + (parts[0] + parts[1] + parts[2] + parts[3]);
                }
            }
        }
        let count = T::Wide::of(to_f64((rows.len() * columns.len()).max(1)));
        if self.is_max { largest.unwrap_or(zero) } else { sum / count }
    }
}

fn max_roi_pool(site: &Site<'_>) -> Result<Prepared> {
    let regions = Regions::of(site)?;
    Ok(for_real!(site.dtype(0)?, site, T => max_roi_pool_of::<T>(regions)))
}

fn max_roi_pool_of<T: Real>(regions: Regions) -> Prepared {
    Prepared::new(move |io| {
        let (x, rois, to) = (io.slice::<T>(0)?, io.slice::<T>(1)?, io.out::<T>(0)?);
        if to.is_empty() {
            return Ok(());
        }
        try_numbered_pieces(to, regions.len(), 1, |i, to| {
            let roi = &rois[i * 5..][..5];
            let image = pooled_image::<T>(&regions, roi)?;
            pool_region::<T>(&regions, regions.image(x, image), roi, to);
            Ok(())
        })
    })
}

/// The image that a region of MaxRoiPool is in: a float that says it.
fn pooled_image<T: Real>(regions: &Regions, roi: &[T]) -> Result<usize> {
    let image = roi[0].wide().to();
    let index = usize::try_from(floor(image)).ok().filter(|&i| to_f64(i).to_bits() == image.to_bits());
    regions.batch_index(index, 1, image)
}

/// The greatest element of each bin of a region, in all channels of an image.
fn pool_region<T: Real>(regions: &Regions, x: &[T], roi: &[T], to: &mut [T]) {
    let Regions { pooled, height, width, scale, .. } = *regions;
    let rows = bins::<T>(roi[2], roi[4], scale, pooled[0], height);
    let columns = bins::<T>(roi[1], roi[3], scale, pooled[1], width);
    for (to, x) in to.chunks_mut(pooled[0] * pooled[1]).zip(x.chunks(height * width)) {
        for (i, y) in to.iter_mut().enumerate() {
            let columns = columns(i % pooled[1]);
            let elements = rows(i / pooled[1]).flat_map(|row| {
                let row = &x[row * width..(row + 1) * width];
                row[columns.clone()].iter().map(|x| x.wide())
            });
            *y = T::round(elements.reduce(maximum).unwrap_or(T::Wide::zero()));
        }
    }
}

/// The elements of each bin along an axis, for a region from `start` to `end`.
fn bins<T: Real>(
    start: T,
    end: T,
    scale: f64,
    n: usize,
    extent: usize,
) -> impl Fn(usize) -> std::ops::Range<usize> {
    let scaled = move |x: T| (x.wide() * T::Wide::of(scale)).round();
    let start = scaled(start);
    let bin = (scaled(end) - start + T::Wide::one()).max(T::Wide::one()) / T::Wide::of(to_f64(n));
    let inside = move |x: T::Wide| usize::try_from(floor(x.to())).unwrap_or(0).min(extent);
    let of = |i: usize| T::Wide::of(to_f64(i));
    move |i| {
        let (first, end) = (inside((of(i) * bin).floor() + start), inside((of(i + 1) * bin).ceil() + start));
        first..end.max(first)
    }
}

/// Parameters of NonMaxSuppression.
struct Suppression {
    most: usize,
    iou: f32,
    score: Option<f32>,
    /// True if boxes are center and extents, instead of two corners.
    is_centered: bool,
}

/// The first element of an operand that has one.
fn first<T: crate::host::Element>(io: &Io<'_>, operand: usize) -> Result<Option<T>> {
    if !io.has(operand) {
        return Ok(None);
    }
    Ok(io.slice::<T>(operand)?.first().copied())
}

fn non_max_suppression(site: &Site<'_>) -> Result<Prepared> {
    let (boxes, scores) = (site.dims(0)?, site.dims(1)?);
    let (n, classes) = (boxes[1], scores[1]);
    let is_centered = match site.view.int("center_point_box").unwrap_or(0) {
        0 => false,
        1 => true,
        other => return Err(OpError::attr("center_point_box", "0 or 1", other.to_string()).into()),
    };
    Ok(Prepared::new(move |io| {
        let (boxes, scores) = (io.slice::<f32>(0)?, io.slice::<f32>(1)?);
        let most = first::<i64>(io, 2)?.map_or(0, |most| usize::try_from(most.max(0)).unwrap_or(usize::MAX));
        let iou = first::<f32>(io, 3)?.unwrap_or(0.0);
        let suppression = Suppression { most, iou, score: first(io, 4)?, is_centered };
        let room = io.room();
        let mut lists = room.gathered((0..scores.len() / n.max(1)).map(|_| Ok(Vec::new())))?;
        each(&mut lists, &|i, list| {
            let boxes = &boxes[i / classes * n * 4..][..n * 4];
            *list = suppression.select(boxes, &scores[i * n..][..n], room);
        });
        let lists = room.try_gathered(lists)?;
        let selected = lists
            .iter()
            .enumerate()
            .flat_map(|(i, list)| list.iter().map(move |&selected| [i / classes, i % classes, selected]));
        let index = |i: usize| i64::try_from(i).unwrap_or(i64::MAX);
        io.check_size(lists.iter().map(Vec::len).sum::<usize>() as u64 * 24)?;
        let indices: Vec<i64> = room.gathered(selected.flatten().map(index))?;
        io.emit(0, HostTensor::from_slice(&[indices.len() as u64 / 3, 3], &indices)?)
    }))
}

impl Suppression {
    /// The boxes of one class that stay, best first.
    fn select(&self, boxes: &[f32], scores: &[f32], room: Room) -> Result<Vec<usize>> {
        let passes = |&i: &usize| self.score.is_none_or(|least| scores[i] > least);
        let mut candidates = room.gathered((0..scores.len()).filter(passes))?;
        candidates.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let mut selected: Vec<(usize, [f32; 4])> = Vec::new();
        for i in candidates {
            if selected.len() >= self.most {
                break;
            }
            let corners = self.corners(&boxes[i * 4..(i + 1) * 4]);
            if !selected.iter().any(|(_, other)| overlap(&corners, other, self.iou)) {
                room.push(&mut selected, (i, corners))?;
            }
        }
        room.gathered(selected.into_iter().map(|(i, _)| i))
    }

    /// A box from its lower to its upper corner.
    fn corners(&self, numbers: &[f32]) -> [f32; 4] {
        let [a, b, c, d] = [numbers[0], numbers[1], numbers[2], numbers[3]];
        if self.is_centered {
            return [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0];
        }
        [a.min(c), b.min(d), a.max(c), b.max(d)]
    }
}

/// True if the intersection of two boxes is more than this part of their union.
fn overlap(a: &[f32; 4], b: &[f32; 4], part: f32) -> bool {
    let sides = |i: usize| a[i + 2].min(b[i + 2]) - a[i].max(b[i]);
    let (height, width) = (sides(0), sides(1));
    if height <= 0.0 || width <= 0.0 {
        return false;
    }
    let area = |x: &[f32; 4]| (x[2] - x[0]) * (x[3] - x[1]);
    let intersection = height * width;
    let union = area(a) + area(b) - intersection;
    area(a) > 0.0 && area(b) > 0.0 && union > 0.0 && intersection / union > part
}

#[cfg(test)]
mod tests {
    use crate::cpu::kernels::tests::{floats, ints, run, run_with};
    use crate::{Cpu, HostTensor, Runtime};

    fn image(n: usize, side: usize) -> HostTensor {
        let elements: Vec<f32> = (0u16..).take(n * side * side).map(f32::from).collect();
        floats(&[n, 1, side, side], &elements)
    }

    #[test]
    fn regions_are_averages_and_maxima() {
        let inputs = [image(1, 4), floats(&[1, 4], &[0.0, 0.0, 4.0, 4.0]), ints(&[1], &[0])];
        let align = |mode: &str| {
            let node = format!(
                "RoiAlign(%0, %1, %2) {{output_height=2, output_width=2, sampling_ratio=2, mode={mode:?}}}"
            );
            run(&node, &["f32"], &inputs).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
        };
        assert_eq!(align("avg"), [2.5, 4.5, 10.5, 12.5]);
        assert_eq!(align("max"), [5.0, 7.0, 13.0, 15.0]);
        let pooled = run(
            "MaxRoiPool(%0, %1) {pooled_shape=[2, 2]}",
            &["f32"],
            &[image(1, 4), floats(&[1, 5], &[0.0, 0.0, 0.0, 3.0, 3.0])],
        );
        assert_eq!(pooled.unwrap()[0].as_slice::<f32>().unwrap(), [5.0, 7.0, 13.0, 15.0]);
    }

    #[test]
    fn the_first_wrong_index_is_the_error() {
        let n = 64;
        let wrong: Vec<i64> = (0..64).map(|i| if i < 3 { 0 } else { 100 + i }).collect();
        let (roi, indices) = (floats(&[n, 4], &vec![1.0; 4 * n]), ints(&[n], &wrong));
        let rows: Vec<f32> = (0u8..64)
            .flat_map(|i| [if i < 3 { 0.0 } else { 100.0 + f32::from(i) }, 0.0, 0.0, 1.0, 1.0])
            .collect();
        let rows = floats(&[n, 5], &rows);
        for threads in [1, 4] {
            let cpu = Runtime::from(Cpu::new(threads));
            for _ in 0..10 {
                let inputs = [image(1, 2), roi.clone(), indices.clone()];
                let error = run_with(&cpu, "RoiAlign(%0, %1, %2)", &["f32"], &inputs).unwrap_err();
                assert!(error.ends_with("found 103"), "{error}");
                let node = "MaxRoiPool(%0, %1) {pooled_shape=[1, 1]}";
                let error = run_with(&cpu, node, &["f32"], &[image(1, 2), rows.clone()]).unwrap_err();
                assert!(error.ends_with("found 103"), "{error}");
            }
        }
    }
}
