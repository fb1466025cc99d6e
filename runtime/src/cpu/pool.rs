//! The threads that work on one graph.

use super::kernels::parallel::enter_pool;
use crate::session::left_of_limit;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Stacks of threads. Bodies nest up to 256 deep, and each level takes a few kilobytes of stack.
const STACK: usize = 16 << 20;

/// The stack that bodies of this depth take in optimised builds; tried last, if the system has no room for [`STACK`].
const LEAST_STACK: usize = 4 << 20;

/// Threads that graphs run in, as many as the system allows.
#[derive(Debug)]
pub(super) struct Pool(Option<ThreadPool>);

impl Pool {
    /// So many threads, 0 for as many as there are processors. Where the system refuses them there are fewer, and in
    /// the end none: then graphs run in the thread of the caller. Results are the same.
    pub(super) fn new(threads: usize) -> Pool {
        Pool::with(most_threads(threads, left_of_limit()), started)
    }

    /// The first pool that `start` can start, trying fewer and fewer threads.
    fn with(threads: usize, start: impl Fn(usize, usize) -> Option<ThreadPool>) -> Pool {
        let all = or_all(threads);
        let fewer = std::iter::successors(Some(all / 2), |n| Some(n / 2)).take_while(|&n| n > 0);
        let sizes = std::iter::once(threads).chain(fewer).map(|n| (n, STACK));
        let mut sizes = sizes.chain([(1, LEAST_STACK)]);
        Pool(sizes.find_map(|(threads, stack)| start(threads, stack)))
    }

    /// Does something in the threads.
    pub(super) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// So many threads with stacks of so many bytes, if the system starts them.
pub(super) fn started(threads: usize, stack: usize) -> Option<ThreadPool> {
    let threads = ThreadPoolBuilder::new().num_threads(threads).stack_size(stack);
    threads.start_handler(|_| enter_pool()).build().ok()
}

/// The number of threads, where 0 is as many as there are processors.
fn or_all(threads: usize) -> usize {
    if threads > 0 { threads } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// The most threads, up to `threads`, whose stacks leave most of the address space to the computation.
fn most_threads(threads: usize, left: Option<u64>) -> usize {
    let Some(left) = left else { return threads };
    let most = usize::try_from(left / 4).unwrap_or(usize::MAX) / STACK;
    if most >= or_all(threads) { threads } else { most.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::parallel::{pieces, threads};
    use std::cell::RefCell;

    fn sum() -> u64 {
        let mut numbers = vec![0u64; 1000];
        pieces(&mut numbers, 10, |first, out| out.iter_mut().zip(first as u64..).for_each(|(to, n)| *to = n));
        numbers.iter().sum()
    }

    #[test]
    fn threads_that_cannot_start_are_fewer_and_then_none() {
        let asked = RefCell::new(Vec::new());
        let pool = Pool::with(5, |threads, stack| {
            asked.borrow_mut().push((threads, stack));
            None
        });
        assert_eq!(*asked.borrow(), [(5, STACK), (2, STACK), (1, STACK), (1, LEAST_STACK)]);
        assert_eq!(pool.install(sum), 499_500);
        // Within itself, as bodies of bodies do.
        assert_eq!(pool.install(|| pool.install(sum) + sum()), 999_000);
        assert_eq!(pool.install(threads), 1);
    }

    #[test]
    fn stacks_take_a_quarter_of_a_limited_address_space() {
        assert_eq!(most_threads(8, None), 8);
        assert_eq!(most_threads(8, Some(1 << 30)), 8);
        assert_eq!(most_threads(8, Some(256 << 20)), 4);
        assert_eq!(most_threads(8, Some(1 << 20)), 1);
        assert_eq!(most_threads(0, Some(1 << 50)), 0);
    }

    #[test]
    fn the_most_that_start_are_taken() {
        let pool = Pool::with(8, |threads, stack| started(threads, stack).filter(|_| threads <= 2));
        assert_eq!(pool.install(threads), 2);
        assert_eq!(pool.install(sum), 499_500);
    }
}
