//! Memory of a run: the planned arena, and nothing from the second run on.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::text::{NoData, parse};
use ampc_runtime::{Cpu, DataRef, HostTensor, Runtime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts what is allocated, in all threads.
struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: everything is left to the system's allocator.
#[expect(unsafe_code, reason = "allocators are unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ON.load(Ordering::Relaxed) {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
            LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocations of `work`: bytes, and the most at once.
fn counted(work: impl FnOnce()) -> (usize, usize) {
    BYTES.store(0, Ordering::Relaxed);
    LARGEST.store(0, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    work();
    ON.store(false, Ordering::Relaxed);
    (BYTES.load(Ordering::Relaxed), LARGEST.load(Ordering::Relaxed))
}

const MODEL: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[64, 256]
  const %w : f32[256, 512] = random(1)
  const %v : f32[512, 128] = random(2)
  const %b : f32[128] = random(3)
  %1 = MatMul(%x, %w) : f32[64, 512]
  %2 = Relu(%1) : f32[64, 512]
  %3 = MatMul(%2, %v) : f32[64, 128]
  %4 = Add(%3, %b) : f32[64, 128]
  %5 = Sigmoid(%4) : f32[64, 128]
  output %5 : f32[64, 128]
}
";

#[test]
fn the_planned_peak_is_what_is_allocated() {
    let _guard = ONE_AT_A_TIME.lock();
    let module = parse(MODEL, &NoData).unwrap();
    let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
    let x = HostTensor::from_slice(&[64, 256], &vec![0.5f32; 64 * 256]).unwrap();
    let inputs = [Some(DataRef::Tensor(x.view()))];
    let (_, largest) = counted(|| session.bind(&inputs).unwrap());
    let planned = session.arena_bytes();
    assert_eq!(largest, planned, "the arena is the largest allocation, once");
    // The input is not copied, the two largest results live together.
    assert_eq!(planned, (64 * 512 + 64 * 128) * 4);
    assert_eq!(session.allocated_bytes(), planned);
}

#[test]
fn no_tensor_is_allocated_while_a_graph_runs() {
    let _guard = ONE_AT_A_TIME.lock();
    let module = parse(MODEL, &NoData).unwrap();
    let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
    let x = HostTensor::from_slice(&[64, 256], &vec![0.5f32; 64 * 256]).unwrap();
    let inputs = [Some(DataRef::Tensor(x.view()))];
    let mut sum = [0.0f32; 2];
    session
        .run_to(&inputs, |_, y| sum[0] = y.tensor().unwrap().as_slice::<f32>().unwrap().iter().sum())
        .unwrap();
    let (bytes, largest) = counted(|| {
        let read =
            |_: usize, y: DataRef<'_>| sum[1] = y.tensor().unwrap().as_slice::<f32>().unwrap().iter().sum();
        session.run_to(&inputs, read).unwrap();
    });
    assert_eq!(sum[0], sum[1]);
    // Lists of types and of what waits for a thread: some hundred bytes, however large the tensors are.
    assert!(bytes < 4096 && largest < 2048, "{bytes} bytes, {largest} at once");
}

/// A group of six results and as many operands in 16 bits, in several pieces.
#[test]
fn a_group_allocates_nothing() {
    let _guard = ONE_AT_A_TIME.lock();
    let body: String = (0..6)
        .map(|i| {
            let before = if i == 0 { "%x".to_owned() } else { format!("%m{}", i - 1) };
            format!(
                "  %a{i} = Add({before}, %b{i}) : f16[300, 400]\n  %m{i} = Mul(%a{i}, %x) : f16[300, 400]\n  \
                 output %m{i} : f16[300, 400]\n"
            )
        })
        .collect();
    let inputs: String = (0..6).map(|i| format!("  input %b{i} : f16[400]\n")).collect();
    let (outputs, nodes): (Vec<&str>, Vec<&str>) = body.lines().partition(|line| line.contains("output"));
    let text = format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f16[300, 400]\n{inputs}{}\n{}\n}}\n",
        nodes.join("\n"),
        outputs.join("\n")
    );
    let module = parse(&text, &NoData).unwrap();
    let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
    let tensor = |dims: &[u64], n: usize| {
        HostTensor::from_bytes(ampc_ir::DType::F16, dims, &[0, 0x3c].repeat(n)).unwrap()
    };
    let tensors: Vec<HostTensor> =
        (0..7).map(|i| if i == 0 { tensor(&[300, 400], 120_000) } else { tensor(&[400], 400) }).collect();
    let inputs: Vec<_> = tensors.iter().map(|t| Some(DataRef::Tensor(t.view()))).collect();
    session.run_to(&inputs, |_, _| {}).unwrap();
    assert!(session.plan_text().contains("1 step,"), "{}", session.plan_text());
    let (bytes, largest) = counted(|| session.run_to(&inputs, |_, _| {}).unwrap());
    assert!(bytes < 2048 && largest < 1024, "{bytes} bytes, {largest} at once");
}

const REGIONS: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[1, 1, 4, 4]
  input %rois : f32[1, 4]
  const %images : i64[1] = [0]
  %y = RoiAlign(%x, %rois, %images) {output_height=100000, output_width=1, sampling_ratio=4} : f32[1, 1, 100000, 1]
  output %y : f32[1, 1, 100000, 1]
}
";

#[test]
fn samples_of_regions_are_not_kept() {
    let _guard = ONE_AT_A_TIME.lock();
    let module = parse(REGIONS, &NoData).unwrap();
    let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
    let x = HostTensor::from_slice(&[1, 1, 4, 4], &[0.5f32; 16]).unwrap();
    let rois = HostTensor::from_slice(&[1, 4], &[0.0f32, 0.0, 4.0, 4.0]).unwrap();
    let inputs = [Some(DataRef::Tensor(x.view())), Some(DataRef::Tensor(rois.view()))];
    session.bind(&inputs).unwrap();
    let (bytes, _) = counted(|| session.run_to(&inputs, |_, _| {}).unwrap());
    assert!(bytes < 1 << 14, "{bytes} bytes for 400000 samples");
}

#[test]
fn many_small_products_need_no_table() {
    let _guard = ONE_AT_A_TIME.lock();
    for (node, dtype, result) in [
        ("MatMul(%a, %b)", "f32", "f32"),
        ("MatMulInteger(%a, %b)", "u8", "i32"),
        ("Einsum(%a, %b) {equation=\"zij,zjk->zik\"}", "f32", "f32"),
    ] {
        let text = format!(
            "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %a : {dtype}[100000, 1, 2]\n  \
             input %b : {dtype}[100000, 2, 1]\n  %y = {node} : {result}[100000, 1, 1]\n  output %y\n}}\n"
        );
        let module = parse(&text, &NoData).unwrap();
        let mut session = Runtime::from(Cpu::new(1)).prepare(&module).unwrap();
        let operand = |dims: &[u64]| match dtype {
            "u8" => HostTensor::from_slice(dims, &[3u8; 200_000]).unwrap(),
            _ => HostTensor::from_slice(dims, &[3f32; 200_000]).unwrap(),
        };
        let (a, b) = (operand(&[100_000, 1, 2]), operand(&[100_000, 2, 1]));
        let inputs = [Some(DataRef::Tensor(a.view())), Some(DataRef::Tensor(b.view()))];
        let (bytes, _) = counted(|| session.bind(&inputs).unwrap());
        let most = session.arena_bytes() + (1 << 17);
        assert!(bytes < most, "{node}: {bytes} bytes, of which the arena has {}", session.arena_bytes());
        let y = session.run(&inputs).unwrap();
        let y = y[0].tensor().unwrap();
        let is_right = match y.as_slice::<i32>() {
            Ok(sums) => sums.iter().all(|&sum| sum == 18),
            Err(_) => y.as_slice::<f32>().unwrap().iter().all(|sum| (sum - 18.0).abs() < 1e-6),
        };
        assert!(is_right, "{node}");
    }
}
