//! The last resort: how the program ends when an allocation fails in code that has no way to return an error.
//!
//! Memory whose size a file or an option determines is reserved fallibly (`try_reserve`), and a failure is an
//! error like others. Small allocations are not checked: names, nodes, lists of them, and allocations in
//! crates. When such an allocation fails, the standard library aborts (SIGABRT) and leaves temporary files on
//! the disk. So the global allocator records failed allocations per thread:
//!
//! - After a small one ([`SMALL`]) the program ends at once: the few that are fallible would only fail a little later.
//! - A larger one may have been fallible. Only if the same thread aborts afterwards does the handler of SIGABRT end the
//!   program.
//! - The C library aborts without memory too, and so does the standard library when a thread's stack is too small. The
//!   handler recognises these by trying to map a little memory, and by [`small_stack`].
//!
//! In each case temporary files are removed, one line says why, and the exit code is that of a failed read or write. Any
//! other abort stays one. Nothing here allocates, or waits without a limit for a lock that the thread may hold.

#![expect(unsafe_code, reason = "an allocator, and a handler of a signal that cannot be waited for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::io::{Cursor, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Failed allocations of fewer bytes than this end the program.
const SMALL: usize = 64 << 10;

/// The exit code: that of a failed read or write.
const STATUS: i32 = ampc::ErrorKind::Io.exit_code() as i32;

thread_local! {
    /// The size of this thread's last allocation that failed; 0 if none did.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
    /// True if this thread is ending the program. If another of its allocations fails meanwhile, it exits at
    /// once.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// The size of the last allocation that failed in any thread.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// True if a thread had to be started with a smaller stack than usual.
static SMALL_STACK: AtomicBool = AtomicBool::new(false);

/// The system's allocator, which records failed allocations.
pub(crate) struct Remembering;

// SAFETY: every request goes to the system's allocator as it is, and so does its answer.
unsafe impl GlobalAlloc for Remembering {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system asks for.
        answered(unsafe { System.alloc(layout) }, layout.size())
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        answered(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        answered(unsafe { System.realloc(at, layout, size) }, size)
    }
    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[inline]
fn answered(at: *mut u8, size: usize) -> *mut u8 {
    if at.is_null() {
        refused(size);
    }
    at
}

#[cold]
fn refused(size: usize) {
    LAST.store(size, Ordering::Relaxed);
    // A thread that is being torn down has no thread-locals any more.
    let _ = REFUSED.try_with(|refused| refused.set(size));
    if size < SMALL {
        end(size);
    }
}

/// The size of an allocation that failed, if one did: a panic afterwards is likely its consequence.
pub(crate) fn last_refused() -> Option<usize> {
    Some(LAST.load(Ordering::Relaxed)).filter(|&size| size > 0)
}

/// Notes that a thread had to be started with a smaller stack than usual.
pub(crate) fn small_stack() {
    SMALL_STACK.store(true, Ordering::Relaxed);
}

/// Makes the program end with a message where the standard library or the C library would abort for lack of
/// memory.
pub(crate) fn watch() {
    grow_stack();
    #[cfg(unix)]
    {
        let signal = signal_hook::consts::SIGABRT;
        // SAFETY: the handler runs in the thread that aborts, in the middle of nothing but the abort. It takes no
        // memory and no lock without a limit of time.
        let registered = unsafe { signal_hook::low_level::register(signal, aborted) };
        // Without a handler an abort is what it always is.
        let _ = registered;
    }
}

/// Touches the stack of the main thread, which the system maps only as it is used, so that it does not fail to grow later.
/// Stacks of other threads are mapped as a whole when they start.
#[inline(never)]
fn grow_stack() {
    let mut pages = [0u8; 256 << 10];
    std::hint::black_box(&mut pages);
}

#[cfg(unix)]
fn aborted() {
    let refused = REFUSED.try_with(Cell::get).unwrap_or(0);
    if refused > 0 || SMALL_STACK.load(Ordering::Relaxed) || !is_memory_left() {
        end(refused);
    }
    // What there is to say was said by whoever aborts.
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGABRT);
}

/// True if the system still maps a little memory.
#[cfg(unix)]
fn is_memory_left() -> bool {
    const LEN: usize = 256 << 10;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the system chooses touches nothing that is there.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: it was just mapped, with this length, and nobody else knows it.
    unsafe { libc::munmap(at, LEN) };
    true
}

/// Removes temporary files, says why, and ends the program.
fn end(size: usize) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if !ENDING.swap(true, Ordering::SeqCst) {
        let _ = ENDS.try_with(|ends| ends.set(true));
        let _discarded = ampc::files::discard_soon();
        say(size);
    } else if !ENDS.try_with(Cell::get).unwrap_or(true) {
        // Another thread ends the program, which takes a moment.
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
    leave()
}

fn say(size: usize) {
    let mut text = [0u8; 256];
    let mut line = Cursor::new(&mut text[..]);
    let what = match size {
        0 => write!(line, "ampc: out of memory"),
        size => write!(line, "ampc: out of memory: {size} bytes were refused"),
    };
    let written = what.and_then(|()| writeln!(line, "; {}", super::help::MORE_MEMORY));
    let len = usize::try_from(line.position()).unwrap_or(0);
    if written.is_ok() {
        complain(&text[..len]);
    }
}

#[cfg(unix)]
fn complain(line: &[u8]) {
    use std::os::fd::FromRawFd;
    // The handle of the standard library has a lock, which this thread may hold.
    // SAFETY: standard error is open for as long as the program runs, or writing fails; it is not closed here.
    let mut error = ManuallyDrop::new(unsafe { File::from_raw_fd(2) });
    let _ = error.write_all(line);
}

#[cfg(not(unix))]
fn complain(line: &[u8]) {
    let _ = std::io::stderr().write_all(line);
}

#[cfg(unix)]
fn leave() -> ! {
    signal_hook::low_level::exit(STATUS)
}

#[cfg(not(unix))]
#[expect(clippy::exit, reason = "the program ends here, whatever its other threads are doing")]
fn leave() -> ! {
    std::process::exit(STATUS)
}
