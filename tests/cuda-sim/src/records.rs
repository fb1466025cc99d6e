//! Records: counters of the calls and of the work of a process, and settings that a test changes while it runs.
//!
//! | counter | content |
//! |---|---|
//! | `call.<function>` | calls of a function |
//! | `launches.generated`, `launches.cublaslt`, `launches.cudnn` | kernels that ran, launched alone or by a graph |
//! | `kernel.<name>` | runs of a generated kernel, by the name of its entry |
//! | `copies.h2d`, `copies.d2h`, `copies.d2d` and the same with `.bytes` | copies that ran, and their bytes |
//! | `copies.pageable` | copies between the device and host memory that is not pinned: the host waits for them |
//! | `allocations`, `allocations.bytes`, `frees`, `frees.bytes`; `pinned`, `unpinned` | blocks of device memory; of pinned memory |
//! | `synchronisations` | calls in which the host waits for a stream, an event or the device, and pageable copies |
//! | `streams`, `events`, `graphs` | handles that are alive |
//! | `waits.ignored`, `races` | waits that the setting `ignore_wait` has removed; races that were found |
//!
//! Tests in the same process call `sim_count` and `sim_set`. `AMPC_SIM_RECORDS` names a file that gets all counters when
//! the process ends, a counter and a number per line with a tab between them.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static COUNTERS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
static SETTINGS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn lock(map: &'static Mutex<BTreeMap<String, u64>>) -> MutexGuard<'static, BTreeMap<String, u64>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to a counter.
pub(crate) fn add(counter: &str, n: usize) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        if std::env::var_os("AMPC_SIM_RECORDS").is_some() {
            // SAFETY: the function is never unloaded: no library that is found by the backend is closed.
            unsafe { libc::atexit(write_records) };
        }
    });
    let mut counters = lock(&COUNTERS);
    match counters.get_mut(counter) {
        Some(count) => *count = count.wrapping_add(n as u64),
        None => {
            counters.insert(counter.to_owned(), n as u64);
        }
    }
}

/// Subtracts one from a counter of handles.
pub(crate) fn subtract(counter: &str) {
    let mut counters = lock(&COUNTERS);
    if let Some(count) = counters.get_mut(counter) {
        *count = count.wrapping_sub(1);
    }
}

/// All counters as text.
fn text() -> String {
    let mut text = String::new();
    for (name, count) in &*lock(&COUNTERS) {
        let _ = writeln!(text, "{name}\t{count}");
    }
    text
}

extern "C" fn write_records() {
    if let Some(path) = std::env::var_os("AMPC_SIM_RECORDS") {
        let _ = std::fs::write(path, text());
    }
}

/// A setting that a test has made, or the variable `AMPC_SIM_<NAME>`.
#[expect(clippy::disallowed_methods, reason = "a library for tests, which environment variables set up")]
pub(crate) fn setting(name: &str) -> Option<u64> {
    let set = lock(&SETTINGS).get(name).copied();
    let variable = || std::env::var(format!("AMPC_SIM_{}", name.to_uppercase())).ok()?.parse().ok();
    set.or_else(variable)
}

/// Changes a setting.
pub(crate) fn set(name: &str, value: u64) {
    lock(&SETTINGS).insert(name.to_owned(), value);
    crate::streams::settings_changed(name);
}

/// The value of a counter, 0 if nothing was counted.
///
/// # Safety
/// The name ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_count(counter: *const c_char) -> u64 {
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr(counter) }.to_string_lossy();
    lock(&COUNTERS).get(&*name).copied().unwrap_or(0)
}

/// Changes a setting: `seed`, `poison`, `ignore_wait`, `races` (`faults.rs`).
///
/// # Safety
/// The name ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn sim_set(setting: *const c_char, value: u64) {
    // SAFETY: as the caller says.
    set(&unsafe { CStr::from_ptr(setting) }.to_string_lossy(), value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_settings() {
        add("test.bytes", 3);
        add("test.bytes", 4);
        subtract("test.bytes");
        assert!(text().contains("test.bytes\t6\n"));
        // SAFETY: the names end with a zero.
        unsafe {
            assert_eq!((sim_count(c"test.bytes".as_ptr()), sim_count(c"test.other".as_ptr())), (6, 0));
            assert_eq!(setting("test"), None);
            sim_set(c"test".as_ptr(), 5);
        }
        assert_eq!(setting("test"), Some(5));
    }
}
