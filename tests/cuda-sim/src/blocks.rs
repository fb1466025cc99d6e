//! Kernels: the threads of a block are coroutines, which wait for each other at barriers and in warp operations.
//!
//! A thread runs until it waits. A warp goes on when all its threads wait in the same line, a block when all its threads
//! wait at the same barrier. If some threads have returned, or wait in another line, the launch fails with the line:
//! on a device, nothing defines such a kernel.

use crate::races::{self, Access};
use crate::{complain, guard, records};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use cudarc::driver::sys::CUresult;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const LANES: usize = 32;

/// Bytes of the stack of a thread.
const STACK: usize = 64 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct Uint3 {
    x: u32,
    y: u32,
    z: u32,
}

/// A thread, as `device.h` has it.
#[repr(C)]
struct Thread {
    tid: Uint3,
    bid: Uint3,
    bdim: Uint3,
    gdim: Uint3,
    lane: u32,
    parity: u32,
    slots: *mut [u64; LANES],
}

/// A function of a module, with the places in the module of the current thread and of the function that waits.
pub(crate) struct Kernel {
    /// The name of the entry.
    pub(crate) name: Arc<str>,
    /// The first address of shared memory, and the first behind it.
    pub(crate) shared: [u64; 2],
    /// The place of the function that is told of each access, if the kernel was compiled to find races.
    pub(crate) access: Option<*mut Option<Access>>,
    pub(crate) entry: unsafe extern "C" fn(*mut *mut c_void),
    pub(crate) arguments: usize,
    /// True if threads may wait for each other.
    pub(crate) waits: bool,
    pub(crate) thread: *mut *const c_void,
    pub(crate) wait: *mut Option<unsafe extern "C" fn(c_int, c_int)>,
    /// Kept loaded.
    pub(crate) _library: libloading::Library,
}

/// A launch of a kernel.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: *const Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) args: Vec<u64>,
}

// SAFETY: a kernel stays loaded while work of it is enqueued, and one launch runs at a time.
unsafe impl Send for Launch {}
// SAFETY: as above.
unsafe impl Sync for Launch {}

/// The operation in which a thread waits, with its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Warp(c_int),
    Block(c_int),
    /// A warp operation of a part of a warp, which nothing of ours uses.
    Part(c_int),
}

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    Waits(Wait),
    Done,
}

type Fiber = Coroutine<(), Wait, ()>;

/// The way out of the thread that runs.
static YIELDER: AtomicPtr<Yielder<(), Wait>> = AtomicPtr::new(std::ptr::null_mut());

/// One launch at a time: kernels of all streams share the places of the current thread.
static RUNNING: Mutex<()> = Mutex::new(());

unsafe extern "C" fn wait(kind: c_int, line: c_int) {
    let wait = match kind {
        0 => Wait::Warp(line),
        1 => Wait::Block(line),
        _ => Wait::Part(line),
    };
    let yielder = YIELDER.load(Ordering::Relaxed);
    // SAFETY: the coroutine that runs has set it, and it lives until the coroutine returns.
    unsafe { &*yielder }.suspend(wait);
    // Another coroutine has run since.
    YIELDER.store(yielder, Ordering::Relaxed);
}

/// Leaves the thread that runs, which does not go on.
pub(crate) extern "C" fn leave() -> ! {
    // SAFETY: as above. The coroutine is not resumed.
    unsafe { &*YIELDER.load(Ordering::Relaxed) }.suspend(Wait::Part(0));
    std::process::abort()
}

/// Numbers at random, or in order if there is no seed.
pub(crate) struct Shuffle(Option<u64>);

impl Shuffle {
    pub(crate) fn of_environment() -> Shuffle {
        Shuffle(records::setting("seed").filter(|&seed| seed != 0))
    }

    pub(crate) fn is_random(&self) -> bool {
        self.0.is_some()
    }

    /// A number below `n`, or 0 if there is no seed.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let Some(state) = &mut self.0 else { return 0 };
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % n
    }

    pub(crate) fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        if self.is_random() {
            for i in (1..n).rev() {
                order.swap(i, self.below(i + 1));
            }
        }
        order
    }
}

impl Launch {
    pub(crate) fn run(&self) -> CUresult {
        // SAFETY: modules are never unloaded while work of theirs is enqueued.
        records::add(&format!("kernel.{}", unsafe { &(*self.kernel).name }), 1);
        match self.run_blocks(Shuffle::of_environment()) {
            Ok(()) => CUresult::CUDA_SUCCESS,
            Err(what) => {
                // SAFETY: as above.
                complain(&format!("{}: {what}", unsafe { &(*self.kernel).name }));
                match guard::has_failed() {
                    true => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
                    false => CUresult::CUDA_ERROR_LAUNCH_FAILED,
                }
            }
        }
    }

    fn run_blocks(&self, mut shuffle: Shuffle) -> Result<(), String> {
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        guard::begin_launch();
        // SAFETY: modules are never unloaded while work of theirs is enqueued.
        let kernel = unsafe { &*self.kernel };
        let [gx, gy, gz] = self.grid.map(|n| n as usize);
        let mut block = Block::new(self, kernel);
        if let Some(place) = kernel.access {
            // SAFETY: the place is that of the module, which is loaded.
            unsafe { *place = Some(races::access) };
            races::begin_launch(kernel.shared);
        }
        for at in shuffle.order(gx * gy * gz) {
            #[expect(clippy::cast_possible_truncation, reason = "less than the extents of the grid")]
            let bid = Uint3 { x: (at % gx) as u32, y: (at / gx % gy) as u32, z: (at / gx / gy) as u32 };
            block.number = at;
            block.run(bid, &mut shuffle).map_err(|what| format!("block {at}: {what}"))?;
            if let Some(race) = kernel.access.and_then(|_| races::found()) {
                return Err(race);
            }
        }
        Ok(())
    }
}

struct Block<'a> {
    kernel: &'a Kernel,
    number: usize,
    args: Vec<u64>,
    threads: Vec<Thread>,
    /// Two rows for each warp.
    _slots: Vec<[u64; LANES]>,
    stacks: Vec<DefaultStack>,
}

impl<'a> Block<'a> {
    fn new(launch: &Launch, kernel: &'a Kernel) -> Block<'a> {
        let [x, y, z] = launch.block;
        let n = x * y * z;
        let mut slots = vec![[0; LANES]; 2 * (n as usize).div_ceil(LANES)];
        let [gx, gy, gz] = launch.grid;
        let thread = |t: u32| Thread {
            tid: Uint3 { x: t % x, y: t / x % y, z: t / x / y },
            bid: Uint3 { x: 0, y: 0, z: 0 },
            bdim: Uint3 { x, y, z },
            gdim: Uint3 { x: gx, y: gy, z: gz },
            lane: t % LANES as u32,
            parity: 0,
            slots: &raw mut slots[t as usize / LANES * 2],
        };
        let threads = (0..n).map(thread).collect();
        Block { kernel, number: 0, args: launch.args.clone(), threads, _slots: slots, stacks: Vec::new() }
    }

    fn run(&mut self, bid: Uint3, shuffle: &mut Shuffle) -> Result<(), String> {
        for thread in &mut self.threads {
            (thread.bid, thread.parity) = (bid, 0);
        }
        // SAFETY: the place is that of the module, which is loaded.
        unsafe { *self.kernel.wait = Some(wait) };
        if self.kernel.access.is_some() {
            races::begin_block();
        }
        if self.kernel.waits { self.run_fibers(shuffle) } else { self.run_in_turn(shuffle) }
    }

    /// The addresses of the arguments.
    fn places(args: &mut [u64]) -> Vec<*mut c_void> {
        args.iter_mut().map(|arg| std::ptr::from_mut(arg).cast()).collect()
    }

    /// Tells of the thread that runs from now on, if races are to be found.
    fn enter(&self, thread: usize, barriers: usize) {
        if self.kernel.access.is_some() {
            races::enter(self.number, thread, barriers);
        }
    }

    /// A stack of a coroutine.
    fn stack(&mut self) -> Result<DefaultStack, String> {
        match self.stacks.pop() {
            Some(stack) => Ok(stack),
            None => DefaultStack::new(STACK).map_err(|error| error.to_string()),
        }
    }

    /// Runs threads that do not wait, all of them in one coroutine.
    fn run_in_turn(&mut self, shuffle: &mut Shuffle) -> Result<(), String> {
        let order = shuffle.order(self.threads.len());
        let (kernel, threads) = (std::ptr::from_ref(self.kernel), self.threads.as_ptr());
        let (mut args, number, finds_races) = (self.args.clone(), self.number, self.kernel.access.is_some());
        let current = Rc::new(Cell::new(0));
        let entered = current.clone();
        let mut fiber: Fiber = Fiber::with_stack(self.stack()?, move |yielder, ()| {
            YIELDER.store(std::ptr::from_ref(yielder).cast_mut(), Ordering::Relaxed);
            let mut places = Block::places(&mut args);
            for t in order {
                entered.set(t);
                if finds_races {
                    races::enter(number, t, 0);
                }
                // SAFETY: the kernel is loaded, the arguments are its own, and it does not wait. The block lives until the
                // coroutine ends or is forgotten.
                unsafe {
                    *(*kernel).thread = threads.add(t).cast();
                    ((*kernel).entry)(places.as_mut_ptr());
                }
            }
        });
        match guard::guarded(|| fiber.resume(())) {
            Ok(_) => {
                self.stacks.push(fiber.into_stack());
                Ok(())
            }
            Err(access) => {
                // Its frames are those of the kernel, without destructors.
                std::mem::forget(fiber);
                Err(format!("thread {} {access}", current.get()))
            }
        }
    }

    fn run_fibers(&mut self, shuffle: &mut Shuffle) -> Result<(), String> {
        let n = self.threads.len();
        let entry = self.kernel.entry;
        let mut fibers: Vec<Fiber> = Vec::with_capacity(n);
        for _ in 0..n {
            let (stack, mut args) = (self.stack()?, self.args.clone());
            fibers.push(Fiber::with_stack(stack, move |yielder, ()| {
                YIELDER.store(std::ptr::from_ref(yielder).cast_mut(), Ordering::Relaxed);
                let mut places = Block::places(&mut args);
                // SAFETY: the arguments are those of the kernel.
                unsafe { entry(places.as_mut_ptr()) };
            }));
        }
        let outcome = self.schedule(&mut fibers, shuffle);
        if outcome.is_ok() {
            self.stacks.extend(fibers.into_iter().map(Coroutine::into_stack));
        } else {
            // Their frames are those of the kernel, without destructors.
            fibers.into_iter().for_each(std::mem::forget);
        }
        // SAFETY: the place is that of the module, which is loaded.
        unsafe { *self.kernel.thread = null() };
        outcome
    }

    /// Runs all threads to their ends.
    fn schedule(&self, fibers: &mut [Fiber], shuffle: &mut Shuffle) -> Result<(), String> {
        let n = fibers.len();
        let mut states = vec![State::Ready; n];
        let warps: Vec<Range<usize>> =
            (0..n).step_by(LANES).map(|first| first..(first + LANES).min(n)).collect();
        for barriers in 0.. {
            for warp in shuffle.order(warps.len()) {
                self.run_warp(warps[warp].clone(), barriers, fibers, &mut states, shuffle)?;
            }
            match states[0] {
                State::Done if states.iter().all(|state| *state == State::Done) => return Ok(()),
                first @ State::Waits(Wait::Block(_)) if states.iter().all(|state| *state == first) => {
                    states.fill(State::Ready);
                }
                first => {
                    let other = states.iter().position(|state| *state != first).unwrap_or(0);
                    return Err(format!("thread 0: {first:?}, thread {other}: {:?}", states[other]));
                }
            }
        }
        Ok(())
    }

    /// Runs a warp until its threads wait for the block or are done.
    fn run_warp(
        &self,
        warp: Range<usize>,
        barriers: usize,
        fibers: &mut [Fiber],
        states: &mut [State],
        shuffle: &mut Shuffle,
    ) -> Result<(), String> {
        loop {
            for lane in shuffle.order(warp.len()) {
                let t = warp.start + lane;
                if states[t] != State::Ready {
                    continue;
                }
                self.enter(t, barriers);
                // SAFETY: the place is that of the module, which is loaded.
                unsafe { *self.kernel.thread = (&raw const self.threads[t]).cast() };
                let outcome = guard::guarded(|| fibers[t].resume(()));
                states[t] = match outcome.map_err(|access| format!("thread {t} {access}"))? {
                    CoroutineResult::Yield(wait) => State::Waits(wait),
                    CoroutineResult::Return(()) => State::Done,
                };
            }
            let first = states[warp.start];
            match first {
                State::Waits(Wait::Warp(_)) if states[warp.clone()].iter().all(|state| *state == first) => {
                    states[warp.clone()].fill(State::Ready);
                }
                _ => {
                    let waits = |state: &State| matches!(state, State::Waits(Wait::Warp(_) | Wait::Part(_)));
                    return match states[warp.clone()].iter().position(waits) {
                        Some(lane) => Err(format!(
                            "lane {lane} of a warp: {:?}, its first lane: {first:?}",
                            states[warp.start + lane]
                        )),
                        None => Ok(()),
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{compiler, driver, memory};

    /// Held by tests of kernels with races: the setting is that of the process.
    static RACY: Mutex<()> = Mutex::new(());

    /// Runs a kernel of two blocks, whose argument is memory of as many numbers as there are threads; returns the numbers.
    fn run(text: &str, threads: u32, seed: Option<u64>) -> Result<Vec<f32>, String> {
        let head = "typedef unsigned long long u64;\n";
        let image = compiler::image_of(&format!("{head}{text}"));
        let image = image.map_err(|log| String::from_utf8_lossy(&log).into_owned())?;
        // SAFETY: the image is that of our compiler.
        let kernel = unsafe { driver::kernel_of(image.as_ptr().cast()) }.ok_or("no kernel")?;
        let n = 2 * threads as usize;
        let at = memory::allocate(4 * n).ok_or("no memory")?;
        let launch =
            Launch { kernel: &raw const kernel, grid: [2, 1, 1], block: [threads, 1, 1], args: vec![at] };
        let outcome = launch.run_blocks(Shuffle(seed));
        // SAFETY: the memory is alive.
        let numbers = unsafe { memory::slice::<f32>(at, n) }.to_vec();
        memory::free(at);
        outcome.map(|()| numbers)
    }

    /// Each thread waits twice for its warp and twice for its block.
    #[test]
    fn threads_add_up_in_any_order() {
        let text = "extern \"C\" __global__ void run(float* y) {
  __shared__ float part[32];
  float x = threadIdx.x + blockIdx.x;
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = part[0] + part[1];
  __syncthreads();
}";
        for seed in [None, Some(1), Some(2), Some(3)] {
            let sums = run(text, 64, seed).unwrap();
            assert!(
                sums[..64].iter().all(|&sum| sum == 2016.0) && sums[64..].iter().all(|&sum| sum == 2080.0)
            );
        }
    }

    #[test]
    fn a_barrier_for_a_part_of_the_block_fails() {
        let text =
            "extern \"C\" __global__ void run(float* y) { if (threadIdx.x < 40) __syncthreads(); y[0] = 1; }";
        let error = run(text, 64, None).unwrap_err();
        assert!(error.contains("thread 40: Done"), "{error}");
        let lane = "extern \"C\" __global__ void run(float* y) {
  float x = 1;
  if (threadIdx.x < 8) x = __shfl_xor_sync(0xffffffffu, x, 1);
  y[0] = x; }";
        assert!(run(lane, 64, None).unwrap_err().contains("lane 0 of a warp"));
    }

    #[test]
    fn races_are_found() {
        let _one = RACY.lock();
        records::set("races", 1);
        let kernel = |body: &str| {
            format!(
                "extern \"C\" __global__ void run(float* y) {{ __shared__ float part[64]; u64 t = threadIdx.x, i = t + blockIdx.x * blockDim.x; {body} }}"
            )
        };
        let sound = "part[t] = t; __syncthreads(); y[i] = part[63 - t]; __syncthreads(); part[t] = y[i];";
        let found = |body: &str, seed| run(&kernel(body), 64, seed).err().unwrap_or_default();
        for seed in [None, Some(1), Some(2)] {
            assert_eq!(found(sound, seed), "");
            for racy in [
                sound.replacen("__syncthreads();", "", 1),
                sound.replacen("y[i] = part[63 - t]; __syncthreads();", "y[i] = part[63 - t];", 1),
                "if (t == 0) y[0] = blockIdx.x;".to_owned(),
                "part[t] = __shfl_xor_sync(0xffffffffu, part[t], 1); y[i] = part[t ^ 1];".to_owned(),
            ] {
                assert!(found(&racy, seed).contains("a race: thread"), "{racy}");
            }
            let atomic = "atomicMax((int*)y, (int)i); if (t == 5) part[5] = 1;";
            assert_eq!(found(atomic, seed), "");
        }
        records::set("races", 0);
    }

    /// Reads and writes of freed memory and around blocks end the launch, and the process goes on.
    #[test]
    fn accesses_to_memory_that_is_not_alive() {
        let freed = memory::allocate(4096).unwrap();
        memory::free(freed);
        for (access, expected) in [
            (format!("y[i] = *(float*){freed}ull;"), "reads at"),
            (format!("*(float*){freed}ull = 1;"), "in memory that was freed"),
            ("y[i + 1024] = 1;".into(), "writes at"),
            ("y[i] = y[i - 1024];".into(), "reads at"),
            ("y[i] = *(float*)0;".into(), "in memory that is not the device's"),
        ] {
            for wait in ["", "__syncthreads();"] {
                let text = format!(
                    "extern \"C\" __global__ void run(float* y) {{ long i = threadIdx.x; {wait} if (i == 5) {{ {access} }} }}"
                );
                let error = run(&text, 64, None).unwrap_err();
                assert!(error.contains("thread 5") && error.contains(expected), "{text}: {error}");
            }
        }
        let sound = "extern \"C\" __global__ void run(float* y) { y[blockIdx.x * 64 + threadIdx.x] = 2; }";
        assert_eq!(run(sound, 64, None).unwrap(), vec![2.0; 128]);
    }

    /// Two threads that write to one place: the last one wins, and which one is the last depends on the seed.
    #[test]
    fn a_race_depends_on_the_seed() {
        let _one = RACY.lock();
        let text = "extern \"C\" __global__ void run(float* y) { y[0] = threadIdx.x; }";
        let last: Vec<f32> = (1..5).map(|seed| run(text, 64, Some(seed)).unwrap()[0]).collect();
        assert!(last.iter().any(|&x| x != last[0]), "{last:?}");
        assert!(run(text, 64, None).unwrap()[1..].iter().all(|x| x.is_nan()), "fresh memory is poisoned");
    }
}
