//! Memory that is refused: the n-th large request fails, for every n, while a model is read, rewritten, written and
//! run. Each time there is an error that says so, or a result; the process never ends.
//!
//! Large is what tensors size, from [`LARGE`] on. Smaller allocations cannot be refused; for them the binary
//! has a last resort (`src/cli/last_resort.rs`), which `tests/judge/memory_limits.py` tries.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::execute::{Inputs, prepare, run};
use ampc::runtime::Runtime;
use ampc::{Error, ErrorKind, RewriteOptions, SaveOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Above the buffers of 1 MiB that constants of f32 are read and converted in, piece by piece.
const LARGE: usize = (1 << 20) + 1;

/// Refuses one of the large requests.
struct Refusing;

/// The number of large requests, and the number of the refused one, from 1 on.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator, or refused.
#[expect(unsafe_code, reason = "allocators are unsafe")]
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE
            && COUNT.fetch_add(1, Ordering::SeqCst) + 1 == REFUSED.load(Ordering::SeqCst)
        {
            return std::ptr::null_mut();
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
static ALLOCATOR: Refusing = Refusing;

/// Tensors of 3 MB and more: multiplied, added up, resized, split, joined, looked through.
const TEXT: &str = "\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[768, 2]
  const %w : f32[2, 1024] = random(1)
  const %b : f32[768, 1024] = random(2)
  const %sizes : i64[2] = [768, 2048]
  %1 = MatMul(%x, %w) : f32[768, 1024]
  %2 = Add(%1, %b) : f32[768, 1024]
  %3 = Resize(%2, _, _, %sizes) {mode=\"linear\"} : f32[768, 2048]
  %4 = SplitToSequence(%3) {axis=0} : seq(f32[1, 2048])
  %5 = ConcatFromSequence(%4) {axis=1} : f32[1, ?]
  %6 = NonZero(%5) : i64[2, ?]
  %7 = Unique(%6) {axis=0} : i64[?, ?]
  output %7
}
";

/// Reads, rewrites, writes and runs a model.
fn work(source: &Path, target: &Path) -> Result<(), Error> {
    let rewritten = ampc::rewrite(ampc::load(source)?, &RewriteOptions::default())?;
    ampc::save(&rewritten.model, target, &SaveOptions { force: true, ..SaveOptions::default() })?;
    let mut model = ampc::load(target)?;
    let inputs = Inputs::random(&model.module, 1, &Default::default(), u64::MAX)?;
    let cpu = Runtime::from(ampc::runtime::Cpu::new(1));
    let mut session = prepare(&mut model.module, &cpu)?;
    run(&mut session, &inputs.values).map(|_| ())
}

#[test]
fn every_large_request_may_be_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source.onnx"), folder.path().join("target.onnx"));
    let text = folder.path().join("source.ir");
    std::fs::write(&text, TEXT).unwrap();
    ampc::save(&ampc::load(&text).unwrap(), &source, &SaveOptions::default()).unwrap();
    let mut errors = 0;
    for n in 1.. {
        COUNT.store(0, Ordering::SeqCst);
        REFUSED.store(n, Ordering::SeqCst);
        let done = work(&source, &target);
        REFUSED.store(0, Ordering::SeqCst);
        let requests = COUNT.load(Ordering::SeqCst);
        if let Err(error) = &done {
            errors += 1;
            assert_eq!(error.kind(), ErrorKind::Io, "request {n}: {error}");
            let said = error.to_string();
            assert!(said.contains("memory"), "request {n}: {said}");
        }
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.len() <= 3, "request {n} leaves {left:?}");
        if requests < n {
            assert!(done.is_ok(), "nothing was refused");
            break;
        }
    }
    // The constant, the arena, and results whose sizes are known late; a list that grows may grow by less.
    assert!(errors >= 5, "{errors} requests were refused");
}

/// The binary with so many kilobytes of address space: exit code, and what it says. Without a code a signal ended it.
#[cfg(target_os = "linux")]
fn limited(kilobytes: u64, folder: &Path, args: &str) -> (Option<i32>, String) {
    let script = format!("ulimit -c 0; ulimit -v {kilobytes} && exec {} {args}", env!("CARGO_BIN_EXE_ampc"));
    let mut command = std::process::Command::new("sh");
    let done = command.args(["-c", &script]).current_dir(folder).env("RUST_BACKTRACE", "0").output().unwrap();
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn little_address_space_is_said_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.ir"), TEXT).unwrap();
    let (mut refused, mut done) = (0, 0);
    let size = std::fs::metadata(env!("CARGO_BIN_EXE_ampc")).unwrap().len() / 1024;
    for kilobytes in (size..size + (160 << 10)).step_by(8 << 10) {
        // Below some limit the system does not start the program at all.
        if limited(kilobytes, folder.path(), "--version").0 != Some(0) {
            continue;
        }
        for args in ["rewrite m.ir --emit onnx -o out.onnx --force", "run m.ir --random 1 -q"] {
            let (code, said) = limited(kilobytes, folder.path(), args);
            match code {
                Some(0) => done += 1,
                Some(3 | 5) => refused += 1,
                other => panic!("{kilobytes} kB, {args}: {other:?}: {said}"),
            }
            assert!(code == Some(0) || said.contains("memory") || said.contains("bytes"), "{args}: {said}");
            let temporary = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
            let temporary: Vec<_> = temporary.filter(|n| n.to_string_lossy().ends_with(".tmp")).collect();
            assert!(temporary.is_empty(), "{args} leaves {temporary:?}");
        }
    }
    assert!(refused > 0 && done > 0, "{refused} refused, {done} done");
}
