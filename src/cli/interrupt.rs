//! Signal handling: removes temporary files, then ends the program with the status that shells expect. That a
//! file has reached the limit for its size is an error of writing like others, not the end.
//!
//! A command that has something to bring to an end first says so ([`defer_first_signal`]): the first signal is then a
//! request, and the second one ends the program.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

#[cfg(unix)]
use std::sync::Arc;

/// True if a command checks [`requested`].
static DEFERS_FIRST: AtomicBool = AtomicBool::new(false);

/// The signal that came, or 0.
static REQUESTED: AtomicI32 = AtomicI32::new(0);

/// From now on the first signal ends nothing: [`requested`] says that it came.
pub(crate) fn defer_first_signal() {
    DEFERS_FIRST.store(true, Ordering::SeqCst);
}

/// The exit status of the signal that asks for the end, once one came.
pub(crate) fn requested() -> Option<u8> {
    let signal = REQUESTED.load(Ordering::SeqCst);
    (signal != 0).then(|| u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

/// Ends the program on SIGINT, SIGTERM and SIGHUP with 128 and the number of the signal, except signals that
/// its parent process ignores (`nohup`). Where there are no such signals, nothing happens.
///
/// `signal-hook` because it says which signal came, which `ctrlc` does not, and the exit status depends on it.
pub(crate) fn watch() {
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
        // With a handler, whatever it does, writing returns the error.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !ignored(signal));
        // Without a handler the signals do what they always do.
        let Ok(mut signals) = signal_hook::iterator::Signals::new(signals) else { return };
        let waiting = std::thread::Builder::new().name("signals".into());
        let _ = waiting.spawn(move || {
            for signal in signals.forever() {
                let is_first = REQUESTED.swap(signal, Ordering::SeqCst) == 0;
                if !(is_first && DEFERS_FIRST.load(Ordering::SeqCst)) {
                    end(128 + signal);
                }
            }
        });
    }
}

#[cfg(unix)]
#[expect(clippy::exit, reason = "the program ends here, whatever its other threads are doing")]
fn end(status: i32) {
    let _discarded = ampc::files::discard_all();
    std::process::exit(status);
}

/// True if a signal was ignored when the program started. Only Linux can be asked without `unsafe`.
#[cfg(unix)]
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    match mask {
        Some(mask) => mask >> (signal - 1) & 1 == 1,
        None => signal == signal_hook::consts::SIGHUP,
    }
}
