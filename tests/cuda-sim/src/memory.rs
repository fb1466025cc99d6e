//! Device memory: blocks of the host with a guard page on both sides.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const PAGE: usize = 4096;

/// The bytes of the device.
pub(crate) const TOTAL: usize = 8 << 30;

/// Fresh memory: every float of these bytes is a NaN. The setting `poison` names another byte: results that depend on
/// fresh memory differ.
const POISON: u8 = 0xff;

/// The freed blocks whose addresses are not used again.
const FREED_BLOCKS: usize = 256;

/// The blocks that are alive: address and length.
static BLOCKS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// The most bytes that were allocated at a time.
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that were allocated at a time since the last call. It counts from the bytes that are allocated now on.
#[unsafe(no_mangle)]
extern "C" fn sim_peak_bytes() -> usize {
    PEAK.swap(blocks().values().sum(), Ordering::Relaxed)
}

fn blocks() -> std::sync::MutexGuard<'static, BTreeMap<u64, usize>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pages of the blocks that were freed last: address and length.
static FREED: Mutex<VecDeque<(usize, usize)>> = Mutex::new(VecDeque::new());

fn freed() -> std::sync::MutexGuard<'static, VecDeque<(usize, usize)>> {
    FREED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that an address is in or near, in words.
pub(crate) fn described(address: u64) -> String {
    if freed().iter().any(|&(base, size)| (base as u64..(base + size) as u64).contains(&address)) {
        return "in memory that was freed".into();
    }
    let blocks = blocks();
    let near = |&at: &u64, len: usize| {
        (at.saturating_sub(2 * PAGE as u64)..at + (len + 2 * PAGE) as u64).contains(&address)
    };
    match blocks.iter().find(|(at, len)| near(at, **len)) {
        Some((&at, _)) if address < at => format!("{} bytes before a block", at - address),
        Some((&at, &len)) if address >= at + len as u64 => {
            format!("{} bytes behind the end of a block of {len} bytes", address - at - len as u64)
        }
        Some(_) => "in a block, at an address that is not aligned".into(),
        None => "in memory that is not the device's".into(),
    }
}

/// The bytes that are free.
pub(crate) fn free_bytes() -> usize {
    TOTAL - blocks().values().sum::<usize>()
}

/// The bytes of a block without its guard pages. A block ends where its last page does, so that reads behind it fail.
fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// Allocates a block, aligned to 256 bytes. `None` if the device has no memory left.
pub(crate) fn allocate(len: usize) -> Option<u64> {
    if len == 0 || len > free_bytes() {
        return None;
    }
    let (size, access) = (pages(len) + 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the pages are new, and the guards lie within them.
    let base = unsafe {
        let base = libc::mmap(null_mut(), size, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if base == libc::MAP_FAILED {
            return None;
        }
        libc::mprotect(base, PAGE, libc::PROT_NONE);
        libc::mprotect(base.byte_add(size - PAGE), PAGE, libc::PROT_NONE);
        base as usize
    };
    let address = base + PAGE + start_within(len);
    let poison = crate::records::setting("poison").and_then(|byte| u8::try_from(byte).ok()).unwrap_or(POISON);
    // SAFETY: the block lies between the guards.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }.fill(poison);
    let mut blocks = blocks();
    blocks.insert(address as u64, len);
    PEAK.fetch_max(blocks.values().sum(), Ordering::Relaxed);
    Some(address as u64)
}

/// Frees a block; returns its length, or `None` if there is none at the address. The addresses of the last blocks are not
/// used again, and their memory cannot be read or written.
pub(crate) fn free(address: u64) -> Option<usize> {
    let len = blocks().remove(&address)?;
    let (base, size) = (address as usize - start_within(len) - PAGE, pages(len) + 2 * PAGE);
    // SAFETY: the pages are those of `allocate`, and nothing knows the block any more.
    unsafe {
        libc::madvise(base as *mut libc::c_void, size, libc::MADV_DONTNEED);
        libc::mprotect(base as *mut libc::c_void, size, libc::PROT_NONE);
    }
    let mut freed = freed();
    freed.push_back((base, size));
    while freed.len() > FREED_BLOCKS
        && let Some((base, size)) = freed.pop_front()
    {
        // SAFETY: as above.
        unsafe { libc::munmap(base as *mut libc::c_void, size) };
    }
    Some(len)
}

/// The blocks of pinned host memory: address and length.
static PINNED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// Makes host memory known as pinned.
pub(crate) fn pin(address: u64, len: usize) {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).insert(address, len);
}

/// Forgets pinned memory; false if there is none at the address.
pub(crate) fn unpin(address: u64) -> bool {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&address).is_some()
}

/// True if a range lies in pinned memory.
pub(crate) fn is_pinned(address: u64, len: usize) -> bool {
    let pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    let block = pinned.range(..=address).next_back();
    len == 0 || block.is_some_and(|(&at, &size)| address + len as u64 <= at + size as u64)
}

/// Where a block begins within its pages.
fn start_within(len: usize) -> usize {
    (pages(len) - len) / 256 * 256
}

/// True if a range lies in a block that is alive.
pub(crate) fn holds(address: u64, len: usize) -> bool {
    let blocks = blocks();
    let block = blocks.range(..=address).next_back();
    len == 0 || block.is_some_and(|(&at, &size)| address + len as u64 <= at + size as u64)
}

/// Elements of device memory.
///
/// # Safety
/// The range lies in a block that is alive, and no other slice of it is used meanwhile.
pub(crate) unsafe fn slice<'a, T>(address: u64, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_outlives_blocks() {
        let held = allocate(3000).unwrap();
        sim_peak_bytes();
        let more = allocate(70_000).unwrap();
        assert!(free(more).is_some() && free(held).is_some());
        // Other tests allocate at the same time.
        assert!(sim_peak_bytes() >= 73_000);
    }

    #[test]
    fn ranges_of_blocks_that_are_alive() {
        let at = allocate(5000).unwrap();
        assert_eq!(at % 256, 0);
        assert!(holds(at, 5000) && holds(at + 4999, 1) && !holds(at, 5001) && !holds(at - 1, 1));
        assert!(free(at) == Some(5000) && free(at).is_none() && !holds(at, 1));
        pin(64, 16);
        assert!(is_pinned(70, 10) && !is_pinned(70, 11) && unpin(64) && !unpin(64) && !is_pinned(70, 1));
        assert!(allocate(0).is_none() && allocate(TOTAL + 1).is_none());
    }
}
