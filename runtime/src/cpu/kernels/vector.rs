//! Loops in wider vectors than the baseline of the processor architecture.

/// Calls `work`, compiled for AVX2 if the processor at hand has it. The results are those of any other processor: loops
/// are only made wide, no two operations become one.
///
/// Functions that are inlined into `work` are compiled for these vectors; functions that it calls are not.
#[inline]
pub(crate) fn widest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(avx2) = pulp::x86::V3::try_new() {
            return avx2.vectorize(work);
        }
    }
    work()
}

/// As [`widest`], compiled for AVX-512 if the processor at hand has it.
#[inline]
pub(crate) fn widest_512<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(avx512) = pulp::x86::V4::try_new() {
            return avx512.vectorize(work);
        }
    }
    widest(work)
}
