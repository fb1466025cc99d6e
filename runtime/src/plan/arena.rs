//! The arena: offsets of storages that live at overlapping times, and the parts of it that one step reads and
//! writes.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// A storage: how large it is and the first and last step it lives for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The places of storages.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// The offset of each, in the order of the requests.
    pub(crate) offsets: Vec<usize>,
    /// Bytes of the arena: the most that any step needs, gaps included.
    pub(crate) bytes: usize,
}

/// The largest number of storages for which the better of two layouts is chosen; for more, only the linear
/// layout is tried.
const TRY_BOTH: usize = 4096;

/// Lays out storages so that storages with overlapping live ranges do not overlap in memory.
pub(crate) fn lay_out(requests: &[Request], alignment: usize) -> Layout {
    let in_time = by_time(requests, alignment);
    if requests.len() > TRY_BOTH {
        return in_time;
    }
    let in_size = by_size(requests, alignment);
    if in_size.bytes < in_time.bytes { in_size } else { in_time }
}

/// The bytes that a storage takes, up to the place where the next storage may begin.
pub(crate) fn rounded(bytes: usize, alignment: usize) -> usize {
    bytes.saturating_add(alignment - 1) / alignment * alignment
}

/// The end of a range. An end beyond the numbers is the last multiple of the alignment: no arena is as large.
pub(crate) fn end_of(at: usize, bytes: usize, alignment: usize) -> usize {
    at.saturating_add(bytes).min(usize::MAX / alignment * alignment)
}

/// In the order of the first step, each into the smallest gap that is free then.
fn by_time(requests: &[Request], alignment: usize) -> Layout {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (requests[i].first, std::cmp::Reverse(requests[i].bytes), i));
    let mut ends: Vec<usize> = order.clone();
    ends.sort_by_key(|&i| (requests[i].last, i));
    let mut ends = ends.into_iter().peekable();
    let mut free = Gaps { free: BTreeMap::new(), end: 0, alignment };
    let mut offsets: Vec<usize> = vec![0; requests.len()];
    for i in order {
        while let Some(done) = ends.next_if(|&done| requests[done].last < requests[i].first) {
            free.give_back(offsets[done], rounded(requests[done].bytes, alignment));
        }
        offsets[i] = free.take(rounded(requests[i].bytes, alignment));
    }
    Layout { offsets, bytes: free.end }
}

/// Free ranges below the end of the arena, by offset; neighbours are joined.
struct Gaps {
    free: BTreeMap<usize, usize>,
    end: usize,
    alignment: usize,
}

impl Gaps {
    fn take(&mut self, bytes: usize) -> usize {
        if bytes == 0 {
            return 0;
        }
        let fitting = self.free.iter().filter(|&(_, &len)| len >= bytes).min_by_key(|&(&at, &len)| (len, at));
        if let Some((&at, &len)) = fitting {
            self.free.remove(&at);
            if len > bytes {
                self.free.insert(at + bytes, len - bytes);
            }
            return at;
        }
        // The last gap grows if it touches the end.
        let at = match self.free.last_key_value() {
            Some((&at, &len)) if at.saturating_add(len) == self.end => {
                self.free.remove(&at);
                at
            }
            _ => self.end,
        };
        self.end = end_of(at, bytes, self.alignment);
        at
    }

    fn give_back(&mut self, mut at: usize, mut bytes: usize) {
        if bytes == 0 {
            return;
        }
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before.saturating_add(len) == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, len.saturating_add(bytes));
        }
        if let Some(len) = self.free.remove(&at.saturating_add(bytes)) {
            bytes = bytes.saturating_add(len);
        }
        self.free.insert(at, bytes);
    }
}

/// The largest first, each at the lowest offset where nothing that lives at the same time is.
fn by_size(requests: &[Request], alignment: usize) -> Layout {
    let mut order: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].bytes > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), requests[i].first, i));
    let mut offsets: Vec<usize> = vec![0; requests.len()];
    // Those laid out already, by offset.
    let mut placed: Vec<usize> = Vec::new();
    let mut end = 0;
    for i in order {
        let (request, bytes) = (&requests[i], rounded(requests[i].bytes, alignment));
        let mut best: Option<(usize, usize)> = None;
        let mut at: usize = 0;
        for &other in &placed {
            let with = &requests[other];
            if with.last < request.first || request.last < with.first {
                continue;
            }
            let gap = offsets[other].saturating_sub(at);
            if gap >= bytes && best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, at));
            }
            at = at.max(end_of(offsets[other], rounded(with.bytes, alignment), alignment));
        }
        offsets[i] = best.map_or(at, |(_, at)| at);
        end = end.max(end_of(offsets[i], bytes, alignment));
        let slot = placed.partition_point(|&p| (offsets[p], p) < (offsets[i], i));
        placed.insert(slot, i);
    }
    Layout { offsets, bytes: end }
}

/// A part of the arena, to be read or to be written.
pub(crate) enum Part<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
}

impl Default for Part<'_> {
    fn default() -> Self {
        Part::Read(&[])
    }
}

/// The ranges of the arena that a step reads (`false`) and writes (`true`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    ranges: SmallVec<[(Range<usize>, bool); 4]>,
    /// The ranges by where they lie, as indices.
    order: SmallVec<[u32; 4]>,
}

impl FromIterator<(Range<usize>, bool)> for Ranges {
    fn from_iter<I: IntoIterator<Item = (Range<usize>, bool)>>(ranges: I) -> Ranges {
        let ranges: SmallVec<[(Range<usize>, bool); 4]> = ranges.into_iter().collect();
        let mut order: SmallVec<[u32; 4]> = (0u32..).take(ranges.len()).collect();
        order.sort_unstable_by_key(|&i| (ranges[i as usize].0.start, ranges[i as usize].0.end));
        Ranges { ranges, order }
    }
}

/// The parts of the arena that one step reads and writes. Parts that are read may overlap. The arena is split in two
/// pieces, and a storage lies in one of them. The parts are left in `found`.
///
/// # Panics
/// If a part that is written overlaps another: the plan would be wrong.
pub(crate) fn split<'a>([first, second]: [&'a mut [u8]; 2], ranges: &Ranges, found: &mut Vec<Part<'a>>) {
    let Ranges { ranges: parts, order } = ranges;
    let at = |i: usize| order[i] as usize;
    found.clear();
    found.resize_with(parts.len(), Part::default);
    let border = first.len();
    let (mut rest, mut base, mut second) = (first, 0, Some(second));
    let mut next = 0;
    while next < order.len() {
        let first = &parts[at(next)];
        if first.0.is_empty() {
            if first.1 {
                found[at(next)] = Part::Write(&mut []);
            }
            next += 1;
            continue;
        }
        // Everything that overlaps the first.
        let (start, mut end, mut until) = (first.0.start, first.0.end, next + 1);
        while until < order.len() && parts[at(until)].0.start < end {
            end = end.max(parts[at(until)].0.end);
            until += 1;
        }
        if let Some(second) = second.take_if(|_| start >= border) {
            (rest, base) = (second, border);
        }
        let (_, tail) = rest.split_at_mut(start - base);
        let (chunk, tail) = tail.split_at_mut(end - start);
        (rest, base) = (tail, end);
        if first.1 {
            assert!(until == next + 1, "a plan writes what it reads in the same step");
            found[at(next)] = Part::Write(chunk);
        } else {
            let chunk: &'a [u8] = chunk;
            for i in (next..until).map(at) {
                assert!(!parts[i].1, "a plan writes what it reads in the same step");
                found[i] = Part::Read(&chunk[parts[i].0.start - start..parts[i].0.end - start]);
            }
        }
        next = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(bytes: usize, first: usize, last: usize) -> Request {
        Request { bytes, first, last }
    }

    fn overlap(requests: &[Request], layout: &Layout) -> Option<(usize, usize)> {
        let lives = |a: &Request, b: &Request| a.first <= b.last && b.first <= a.last;
        let range = |i: usize| layout.offsets[i]..layout.offsets[i] + requests[i].bytes;
        let pairs = (0..requests.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        pairs.into_iter().find(|&(i, j)| {
            let (a, b) = (range(i), range(j));
            lives(&requests[i], &requests[j]) && a.start < b.end && b.start < a.end
        })
    }

    proptest! {
        #[test]
        fn what_lives_together_lies_apart(
            list in prop::collection::vec((0usize..1000, 0usize..30, 0usize..8), 0..40),
        ) {
            let requests: Vec<Request> =
                list.iter().map(|&(bytes, first, n)| request(bytes, first, first + n)).collect();
            let needed = (0..40).map(|at| {
                let alive = requests.iter().filter(|r| r.first <= at && at <= r.last);
                alive.map(|r| r.bytes).sum::<usize>()
            }).max().unwrap_or(0);
            for (alignment, layout) in [1usize, 64, 256].into_iter().flat_map(|alignment| {
                [by_time(&requests, alignment), by_size(&requests, alignment)].map(|layout| (alignment, layout))
            }) {
                prop_assert_eq!(overlap(&requests, &layout), None);
                prop_assert!(layout.offsets.iter().all(|o| o % alignment == 0));
                let ends = requests.iter().zip(&layout.offsets).filter(|(r, _)| r.bytes > 0);
                let end = ends.map(|(r, &o)| o + rounded(r.bytes, alignment)).max().unwrap_or(0);
                prop_assert!(layout.bytes == end && layout.bytes >= needed);
            }
        }
    }

    #[test]
    fn a_chain_needs_two_places() {
        let chain: Vec<Request> = (0..100).map(|i| request(640, i, i + 1)).collect();
        assert_eq!((by_time(&chain, 64).bytes, by_size(&chain, 64).bytes), (1280, 1280));
    }

    #[test]
    fn an_arena_beyond_the_numbers_is_the_largest() {
        let huge = [usize::MAX / 8 + 1; 8].map(|bytes| request(bytes, 0, 1));
        let mut mixed = huge.to_vec();
        mixed.extend((2..20).map(|at| request(usize::MAX / 2, at, at + 3)));
        for requests in [&huge[..], &mixed, &huge[..7]] {
            for layout in [by_time(requests, 64), by_size(requests, 64)] {
                assert!(layout.bytes >= usize::MAX / 8 * 7 && layout.bytes.is_multiple_of(64), "{layout:?}");
            }
        }
    }

    #[test]
    fn parts_of_a_step() {
        let mut arena: Vec<u8> = (0..100).collect();
        let (first, second) = arena.split_at_mut(20);
        let mut parts = Vec::new();
        let ranges = [(20..30, false), (40..50, true), (25..35, false), (7..7, true), (0..1, false)];
        split([first, second], &ranges.into_iter().collect(), &mut parts);
        let read = |i: usize| if let Part::Read(bytes) = &parts[i] { bytes.to_vec() } else { panic!() };
        assert_eq!((read(0)[0], read(2)[0], read(4)), (20, 25, vec![0]));
        assert!(matches!(&parts[1], Part::Write(bytes) if bytes.len() == 10 && bytes[0] == 40));
        assert!(matches!(&parts[3], Part::Write(bytes) if bytes.is_empty()));
    }

    #[test]
    #[should_panic(expected = "writes what it reads")]
    fn overlapping_writes_are_a_bug() {
        let ranges = [(0..5, false), (4..6, true)].into_iter().collect();
        split([&mut [], &mut [0; 10]], &ranges, &mut Vec::new());
    }
}
