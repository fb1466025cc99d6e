//! The memory of training steps: that of tensors is what the plan says, taken once, and from the second step on nothing is
//! allocated, not even a small list.
//!
//! Two exceptions are not tensors and counted apart: the crate `gemm` takes room for packed matrices with every product,
//! and the queue of rayon, through which a run comes to its threads, takes a block of 63 entries now and then.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::Model;
use ampc::execute::Trainer;
use ampc::ir::text::{NoData, parse};
use ampc::passes::step::{Optimizer, Update};
use ampc::runtime::{Cpu, HostTensor, Runtime};
use ampc::train::{TrainOptions, train_step};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts what is allocated, in all threads.
struct Counting;

/// Memory of tensors begins on a cache line, and nothing else is aligned so.
const ALIGNMENT: usize = 64;

/// Constants of the models here have fewer bytes; states and activations more.
const LARGE: usize = 1 << 13;

/// Bytes of large tensors, and the most at once.
static TENSORS: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
/// True if it is noted who allocates.
static ON: AtomicBool = AtomicBool::new(false);
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local! {
    /// True while this thread writes a note, for which it allocates memory itself.
    static NOTES: Cell<bool> = const { Cell::new(false) };
}

fn is_tensor(layout: Layout) -> bool {
    layout.align() == ALIGNMENT && layout.size() >= LARGE
}

/// The first words of the note of a tensor.
const TENSOR: &str = "a tensor";

fn note(layout: Layout) {
    if ON.load(Ordering::Relaxed) && !NOTES.replace(true) {
        let what = if layout.align() == ALIGNMENT { TENSOR } else { "a list" };
        FOUND.lock().unwrap().push(format!("{what}\n{}", Backtrace::force_capture()));
        NOTES.set(false);
    }
}

// SAFETY: everything is left to the system's allocator.
#[expect(unsafe_code, reason = "allocators are unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_tensor(layout) {
            let bytes = TENSORS.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            MOST.fetch_max(bytes, Ordering::Relaxed);
        }
        note(layout);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_tensor(layout) {
            TENSORS.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocations during `work`: a stack each.
fn allocations(work: impl FnOnce()) -> Vec<String> {
    ON.store(true, Ordering::SeqCst);
    work();
    ON.store(false, Ordering::SeqCst);
    NOTES.set(true);
    let found = std::mem::take(&mut *FOUND.lock().unwrap());
    NOTES.set(false);
    found
}

/// The allocator that counts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    products: usize,
    queue: usize,
    /// The stacks of all others.
    others: Vec<String>,
}

fn counted(stacks: Vec<String>) -> Count {
    let mut count = Count::default();
    for stack in stacks {
        if stack.contains("gemm_common::") {
            count.products += 1;
        } else if stack.contains("crossbeam_deque::") {
            count.queue += 1;
        } else {
            count.others.push(stack);
        }
    }
    count
}

const MLP: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[N, 64]
  const %w : f32[64, 96] = random(1, 0.2)
  const %b : f32[96] = random(2, 0.2)
  const %v : f32[96, 10] = random(3, 0.2)
  %h = MatMul(%x, %w) : f32[N, 96]
  %a = Add(%h, %b) : f32[N, 96]
  %r = Relu(%a) : f32[N, 96]
  %y = MatMul(%r, %v) : f32[N, 10]
  output %y
}
";

const CONVOLUTIONS: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[N, 3, 12, 12]
  const %k : f32[8, 3, 3, 3] = random(1, 0.2)
  const %scale : f32[8] = random(2)
  const %shift : f32[8] = random(3)
  const %mean : f32[8] = [0, 0, 0, 0, 0, 0, 0, 0]
  const %var : f32[8] = [1, 1, 1, 1, 1, 1, 1, 1]
  const %w : f32[288, 10] = random(4, 0.1)
  const %b : f32[10] = random(5, 0.1)
  %c = Conv(%x, %k) {kernel_shape=[3, 3], pads=[1, 1, 1, 1]} : f32[N, 8, 12, 12]
  %n, %m, %v = BatchNormalization(%c, %scale, %shift, %mean, %var) {training_mode=1} : f32[N, 8, 12, 12], f32[8], f32[8]
  %r = Relu(%n) : f32[N, 8, 12, 12]
  %p = MaxPool(%r) {kernel_shape=[2, 2], strides=[2, 2]} : f32[N, 8, 6, 6]
  %f = Flatten(%p) : f32[N, 288]
  %y = Gemm(%f, %w, %b) : f32[N, 10]
  output %y
}
";

const TRANSFORMER: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : i64[N, 8]
  const %table : f32[40, 32] = random(1, 0.2)
  const %g : f32[32] = random(2)
  const %b : f32[32] = random(3, 0.1)
  const %wq : f32[32, 32] = random(4, 0.2)
  const %wk : f32[32, 32] = random(5, 0.2)
  const %wv : f32[32, 32] = random(6, 0.2)
  const %wo : f32[32, 10] = random(7, 0.2)
  const %heads : i64[4] = [0, 8, 4, 8]
  const %whole : i64[3] = [0, 8, 32]
  const %root : f32 = 0.35
  const %ratio : f32 = 0.1
  const %true : bool = true
  const %axes : i64[1] = [1]
  %e = Gather(%table, %x) : f32[N, 8, 32]
  %n = LayerNormalization(%e, %g, %b) : f32[N, 8, 32]
  %q = MatMul(%n, %wq) : f32[N, 8, 32]
  %k = MatMul(%n, %wk) : f32[N, 8, 32]
  %v = MatMul(%n, %wv) : f32[N, 8, 32]
  %q4 = Reshape(%q, %heads) : f32[N, 8, 4, 8]
  %k4 = Reshape(%k, %heads) : f32[N, 8, 4, 8]
  %v4 = Reshape(%v, %heads) : f32[N, 8, 4, 8]
  %qh = Transpose(%q4) {perm=[0, 2, 1, 3]} : f32[N, 4, 8, 8]
  %kh = Transpose(%k4) {perm=[0, 2, 3, 1]} : f32[N, 4, 8, 8]
  %vh = Transpose(%v4) {perm=[0, 2, 1, 3]} : f32[N, 4, 8, 8]
  %s = MatMul(%qh, %kh) : f32[N, 4, 8, 8]
  %t = Mul(%s, %root) : f32[N, 4, 8, 8]
  %p = Softmax(%t) {axis=-1} : f32[N, 4, 8, 8]
  %d = Dropout(%p, %ratio, %true) : f32[N, 4, 8, 8]
  %o = MatMul(%d, %vh) : f32[N, 4, 8, 8]
  %o4 = Transpose(%o) {perm=[0, 2, 1, 3]} : f32[N, 8, 4, 8]
  %o3 = Reshape(%o4, %whole) : f32[N, 8, 32]
  %r = Add(%o3, %e) : f32[N, 8, 32]
  %u = Gelu(%r) : f32[N, 8, 32]
  %mean = ReduceMean(%u, %axes) {keepdims=0} : f32[N, 32]
  %y = MatMul(%mean, %wo) : f32[N, 10]
  output %y
}
";

const ROWS: u64 = 16;

/// A batch for a model: numbers, tokens, labels, the learning rate.
fn batch(model: &str) -> [(&'static str, HostTensor); 3] {
    batch_of(model, ROWS)
}

/// [`batch`] of so many rows.
fn batch_of(model: &str, rows: u64) -> [(&'static str, HostTensor); 3] {
    let dims: &[u64] = match model {
        MLP => &[rows, 64],
        CONVOLUTIONS => &[rows, 3, 12, 12],
        _ => &[rows, 8],
    };
    let n = u16::try_from(dims.iter().product::<u64>()).unwrap();
    let x = if model == TRANSFORMER {
        HostTensor::from_slice(dims, &(0..n).map(|i| i64::from(i * 7 % 40)).collect::<Vec<i64>>())
    } else {
        HostTensor::from_slice(dims, &(0..n).map(|i| f32::from(i * 7 % 11) / 5.0 - 1.0).collect::<Vec<f32>>())
    };
    let labels: Vec<i64> = (0..i64::try_from(rows).unwrap()).map(|i| i % 10).collect();
    [
        ("x", x.unwrap()),
        ("target", HostTensor::from_slice(&[rows], &labels).unwrap()),
        ("lr", HostTensor::from_slice(&[], &[1e-2f32]).unwrap()),
    ]
}

/// A step of a model in a format, with an optimizer.
fn trainer(model: &str, format: &str, optimizer: &str, recomputes: bool, threads: usize) -> Trainer {
    let mut options = TrainOptions {
        loss: "cross-entropy".parse().unwrap(),
        update: Update::with(optimizer.parse::<Optimizer>().unwrap()),
        recomputes,
        ..TrainOptions::default()
    };
    if format == "fp32" {
        (options.precision, options.update.scaler) = (None, "none".parse().unwrap());
    }
    let model = Model::from(parse(model, &NoData).unwrap());
    let step = train_step(model, &options).unwrap_or_else(|error| panic!("{error}"));
    Trainer::new(step.model, &step.state, &Runtime::from(Cpu::new(threads))).unwrap()
}

const MODELS: [(&str, &str); 3] =
    [("mlp", MLP), ("convolutions", CONVOLUTIONS), ("transformer", TRANSFORMER)];

#[test]
fn nothing_is_allocated_from_the_second_step_on() {
    let _guard = ONE_AT_A_TIME.lock();
    for (name, model) in MODELS {
        let batch = batch(model);
        let given: Vec<(&str, &HostTensor)> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
        for (format, optimizer, threads) in
            [("fp32", "sgd:momentum=0.9", 1), ("fp32", "adam", 2), ("fp16", "sgd", 2), ("fp16", "adamw", 1)]
        {
            let mut trainer = trainer(model, format, optimizer, true, threads);
            let first = counted(allocations(|| {
                trainer.step(&given).unwrap();
            }));
            assert!(!first.others.is_empty(), "{name}: the first step takes its memory");
            let mut finite = true;
            let later = counted(allocations(|| {
                for _ in 2..=4 {
                    let visit = |_: &str, data: ampc::runtime::DataRef<'_>| {
                        finite &= data.tensor().and_then(|t| t.first_f64()).is_none_or(f64::is_finite);
                    };
                    trainer.step_with(&given, visit).unwrap();
                }
            }));
            assert!(finite, "{name}");
            let what = format!("{name}, {format}, {optimizer}, {threads} threads");
            let others = later.others.join("\n\n");
            assert!(others.is_empty(), "{what}: {} allocations\n{others}", later.others.len());
            assert!(later.queue <= 1, "{what}: {} blocks of the queue", later.queue);
        }
    }
}

/// The smaller batch at the end of an epoch has a plan of its own, which stays as that of the others does: the change from one
/// to the other, of which an epoch has two, takes some lists, and no tensor.
#[test]
fn no_tensor_is_allocated_from_the_second_epoch_on() {
    let _guard = ONE_AT_A_TIME.lock();
    for (name, model) in MODELS {
        let (whole, rest) = (batch(model), batch_of(model, 5));
        let mut trainer = trainer(model, "fp16", "adamw", true, 2);
        let mut epoch = || {
            for batch in [&whole, &whole, &rest] {
                let [x, target, lr] = batch;
                trainer.step(&[(x.0, &x.1), (target.0, &target.1), (lr.0, &lr.1)]).unwrap();
            }
        };
        (0..2).for_each(|_| epoch());
        let later = counted(allocations(|| (0..2).for_each(|_| epoch())));
        let is_tensor = |stack: &&String| stack.starts_with(TENSOR);
        let tensors: Vec<&String> = later.others.iter().filter(is_tensor).collect();
        assert!(tensors.is_empty(), "{name}: {tensors:?}");
        let lists = later.others.len() / 4;
        assert!(lists < 30, "{name}: {lists} lists with every change of the plan");
    }
}

#[test]
fn the_predicted_peak_is_what_is_allocated() {
    let _guard = ONE_AT_A_TIME.lock();
    for (name, model) in MODELS {
        let batch = batch(model);
        let given: Vec<(&str, &HostTensor)> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
        for format in ["fp32", "fp16"] {
            for recomputes in [false, true] {
                let before = TENSORS.load(Ordering::SeqCst);
                MOST.store(before, Ordering::SeqCst);
                let mut trainer = trainer(model, format, "adamw", recomputes, 1);
                for _ in 0..3 {
                    trainer.step(&given).unwrap();
                }
                let allocated = TENSORS.load(Ordering::SeqCst) - before;
                let most = MOST.load(Ordering::SeqCst) - before;
                let predicted = trainer.peak().unwrap();
                let what = format!("{name}, {format}, recomputed: {recomputes}");
                assert_eq!(predicted.bytes as u64, trainer.allocated_bytes(), "{what}");
                assert_eq!((predicted.bytes, predicted.bytes), (allocated, most), "{what}");
                let parts = predicted.by_dtype.values().sum::<usize>() + predicted.scratch + predicted.unused;
                assert_eq!(parts, predicted.bytes, "{what}");
            }
        }
    }
}
