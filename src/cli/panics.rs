//! Messages of panics, which are bugs.

use std::panic;
use std::sync::Mutex;

/// Message of the last panic: the hook stores the message, and the code that catches the panic reports it.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Records the messages of panics from now on.
pub(super) fn record() {
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let said = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
        let place = info.location().map_or_else(String::new, |l| format!(" ({}:{})", l.file(), l.line()));
        if let Ok(mut last) = PANIC.lock() {
            *last = Some(format!("{said}{place}"));
        }
    }));
}

/// Message of the last panic.
pub(super) fn last() -> String {
    let last = PANIC.lock().ok().and_then(|mut last| last.take());
    last.unwrap_or_else(|| "it ended without a message".into())
}
