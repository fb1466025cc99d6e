//! Peak of an arena: the bytes that are live at its fullest step, by use.

use super::{GraphPlan, Place};
use ampc_ir::DType;
use std::collections::BTreeMap;

/// The bytes of an arena by use, at the step at which most of them are live.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// All bytes of the arena, which a runtime allocates.
    pub bytes: usize,
    /// The step, an index of [`GraphPlan::steps`].
    pub step: usize,
    /// Values by element type.
    pub by_dtype: BTreeMap<DType, usize>,
    /// Scratch memory of the step.
    pub scratch: usize,
    /// The bytes that are unused at that step: gaps, and the ends of storages, which are rounded up.
    pub unused: usize,
}

/// The bytes that one or more values share, and the steps that they live for.
struct Range {
    at: (usize, usize),
    first: usize,
    last: usize,
    dtype: DType,
}

impl GraphPlan {
    /// The peak of the arena: the step at which most bytes are live; `None` without steps.
    pub fn peak(&self) -> Option<Peak> {
        let ranges = self.ranges();
        let mut change = vec![0i128; self.steps.len() + 1];
        for range in &ranges {
            change[range.first] += range.at.1 as i128;
            change[range.last + 1] -= range.at.1 as i128;
        }
        let (mut now, mut most) = (0i128, None);
        for (at, step) in self.steps.iter().enumerate() {
            now += change[at];
            let bytes = usize::try_from(now).unwrap_or(usize::MAX).saturating_add(step.scratch.1);
            if most.is_none_or(|(least, _)| bytes > least) {
                most = Some((bytes, at));
            }
        }
        let (live, step) = most.filter(|&(live, _)| live > 0)?;
        let mut by_dtype: BTreeMap<DType, usize> = BTreeMap::new();
        for range in ranges.iter().filter(|range| range.first <= step && step <= range.last) {
            let bytes = by_dtype.entry(range.dtype).or_default();
            *bytes = bytes.saturating_add(range.at.1);
        }
        let (bytes, scratch) = (self.arena, self.steps[step].scratch.1);
        Some(Peak { bytes, step, by_dtype, scratch, unused: bytes.saturating_sub(live) })
    }

    /// The live ranges of the arena: values that share bytes one after the other, views and results in place,
    /// are one range.
    fn ranges(&self) -> Vec<Range> {
        let Some(end) = self.steps.len().checked_sub(1) else { return Vec::new() };
        let mut lives = vec![None; self.values.len()];
        let mut live = |value: u32, at: usize| {
            let (first, last) = lives[value as usize].unwrap_or((at, at));
            lives[value as usize] = Some((at.min(first), at.max(last)));
        };
        for (at, step) in self.steps.iter().enumerate() {
            step.operands.iter().chain(&step.results).flatten().for_each(|&value| live(value, at));
        }
        for state in &self.states {
            live(state.now, 0);
            live(state.now, end);
            live(state.next, end);
        }
        self.outputs.iter().for_each(|&output| live(output, end));
        let mut found = Vec::new();
        for (value, lives) in self.values.iter().zip(lives) {
            if let (Place::Arena { offset, len }, Some((first, last)), Some((dtype, _))) =
                (value.place, lives, &value.tensor)
            {
                found.push(Range { at: (offset, len), first, last, dtype: *dtype });
            }
        }
        found.sort_by_key(|range| (range.at, range.first, range.last));
        let mut ranges: Vec<Range> = Vec::new();
        for range in found {
            match ranges.last_mut() {
                Some(before) if before.at == range.at && range.first <= before.last => {
                    before.last = before.last.max(range.last);
                }
                _ => ranges.push(range),
            }
        }
        ranges
    }
}
