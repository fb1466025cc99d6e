//! Accesses of kernels to addresses that are not alive: freed memory, and the pages on both sides of a block.
//!
//! Such an access raises a signal. Its handler notes the address and leaves the thread of the kernel, so that the launch
//! fails with the name of the kernel, as on a device. Signals from elsewhere go to the handler that was there before.

use crate::memory;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The thread of the host that launches kernels. One launch runs at a time.
static LAUNCHES: AtomicI32 = AtomicI32::new(0);

/// True while a thread of a kernel runs.
static RUNS: AtomicBool = AtomicBool::new(false);

/// The access that has raised the last signal.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);
static ADDRESS: AtomicU64 = AtomicU64::new(0);
static WRITES: AtomicBool = AtomicBool::new(false);

/// The handlers before, of each signal.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The bit of the error code of a page fault that is set for a write.
const WRITE: i64 = 2;

/// A launch begins in this thread of the host.
pub(crate) fn begin_launch() {
    BEFORE.get_or_init(|| {
        // SAFETY: zeros are a valid value of a type of C, and the handler has the type of a handler with three arguments.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            SIGNALS.map(|signal| {
                let mut before = std::mem::zeroed();
                libc::sigaction(signal, &raw const action, &raw mut before);
                before
            })
        }
    });
    HAS_FAILED.store(false, Ordering::Relaxed);
    // SAFETY: the call has no conditions.
    LAUNCHES.store(unsafe { libc::gettid() }, Ordering::Relaxed);
}

/// Runs a thread of a kernel until it waits or ends.
///
/// # Errors
/// The access after which the thread was left, in words. The thread cannot go on.
pub(crate) fn guarded<R>(resume: impl FnOnce() -> R) -> Result<R, String> {
    RUNS.store(true, Ordering::Relaxed);
    let done = resume();
    RUNS.store(false, Ordering::Relaxed);
    if !HAS_FAILED.load(Ordering::Relaxed) {
        return Ok(done);
    }
    let at = ADDRESS.load(Ordering::Relaxed);
    let access = if WRITES.load(Ordering::Relaxed) { "writes" } else { "reads" };
    Err(format!("{access} at {at:#x}, {}", memory::described(at)))
}

/// True if the last launch has failed by an access.
pub(crate) fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

/// Notes the access, and lets the thread of the kernel go on in [`crate::blocks::leave`].
unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the call has no conditions.
    let is_of_kernel =
        RUNS.load(Ordering::Relaxed) && LAUNCHES.load(Ordering::Relaxed) == unsafe { libc::gettid() };
    if !is_of_kernel {
        let at = SIGNALS.iter().position(|&known| known == signal).unwrap_or(0);
        if let Some(before) = BEFORE.get() {
            // SAFETY: the handler is that of the system. The access is tried again, and raises the signal again.
            unsafe { libc::sigaction(signal, &raw const before[at], null_mut()) };
        }
        return;
    }
    RUNS.store(false, Ordering::Relaxed);
    // SAFETY: the system gives both to a handler with three arguments. The frames of the kernel are never used again, so that
    // another function may begin below them, with the stack as a call leaves it.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        ADDRESS.store((*info).si_addr() as u64, Ordering::Relaxed);
        WRITES.store(registers[libc::REG_ERR as usize] & WRITE != 0, Ordering::Relaxed);
        HAS_FAILED.store(true, Ordering::Relaxed);
        registers[libc::REG_RSP as usize] = ((registers[libc::REG_RSP as usize] - 256) & !15) - 8;
        registers[libc::REG_RIP as usize] = crate::blocks::leave as *const () as i64;
    }
}
