//! The threads that work on one graph.

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Stacks of threads. Bodies nest up to 256 deep, and each level takes a few kilobytes of stack.
const STACK: usize = 16 << 20;

/// What the depth asks for in optimised builds, where there is no more.
const LEAST_STACK: usize = 4 << 20;

/// Threads that graphs run in, as many as the system allows.
pub(super) struct Pool(Option<ThreadPool>);

impl Pool {
    /// So many threads, 0 for as many as there are processors. Where the system refuses them there are fewer, and in
    /// the end none: then graphs run in the thread of the caller. Results are the same.
    pub(super) fn new(threads: usize) -> Pool {
        Pool::with(threads, |threads, stack| {
            ThreadPoolBuilder::new().num_threads(threads).stack_size(stack).build().ok()
        })
    }

    fn with(threads: usize, start: impl Fn(usize, usize) -> Option<ThreadPool>) -> Pool {
        let all = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let fewer = std::iter::successors(Some(all / 2), |n| Some(n / 2)).take_while(|&n| n > 0);
        let sizes = std::iter::once(threads).chain(fewer).map(|n| (n, STACK));
        let mut sizes = sizes.chain([(1, LEAST_STACK)]);
        Pool(sizes.find_map(|(threads, stack)| start(threads, stack)))
    }

    /// Does something in the threads.
    pub(super) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => alone(work),
        }
    }
}

/// Does something in this thread alone: what asks for threads finds a pool that consists of it.
fn alone<R>(work: impl FnOnce() -> R) -> R {
    // A thread that is in a pool stays in it; that of an earlier call does as well as a new one.
    if let Ok(pool) = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build() {
        std::mem::forget(pool);
    }
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::cell::RefCell;

    fn sum() -> u64 {
        (0..1000u64).into_par_iter().sum()
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
        // Again, and within itself, as bodies of bodies do.
        assert_eq!(pool.install(|| pool.install(sum) + sum()), 999_000);
    }

    #[test]
    fn the_most_that_start_are_taken() {
        let pool = Pool::with(8, |threads, stack| {
            let built = ThreadPoolBuilder::new().num_threads(threads).stack_size(stack).build();
            built.ok().filter(|_| threads <= 2)
        });
        assert_eq!(pool.install(rayon::current_num_threads), 2);
        assert_eq!(pool.install(sum), 499_500);
    }
}
