//! Loops in the widest vectors of the processor at hand.

/// Calls `work`, compiled for the widest vectors that there are. The results are those of any other processor: loops
/// are only made wide, no two operations become one.
///
/// What is inlined into `work` is compiled with it, what it calls is not.
#[inline]
pub(super) fn widest<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
