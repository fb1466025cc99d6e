//! A line on standard error about the current stage of a long command.

use super::ui::{Stream, Ui};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Work of less than this is not worth a word.
const PATIENCE: Duration = Duration::from_millis(500);

/// Shown while it lives, if a terminal reads it.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: Option<(ProgressBar, Sender<()>)>,
}

impl Progress {
    pub(crate) fn start(ui: Ui) -> Progress {
        if ui.quiet || !Ui::is_terminal(Stream::Err) {
            return Progress { shown: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let template = if ui.colors(Stream::Err) {
            "{spinner:.cyan} {msg} {elapsed}"
        } else {
            "{spinner} {msg} {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let (sender, receiver) = mpsc::channel::<()>();
        let later = bar.clone();
        // Where no thread can be started nothing is shown.
        let waiting = std::thread::Builder::new().name("progress".into());
        let _ = waiting.spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                later.set_draw_target(ProgressDrawTarget::stderr());
                later.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Progress { shown: Some((bar, sender)) }
    }

    /// Sets the name of the current stage.
    pub(crate) fn stage(&self, what: impl Into<String>) {
        if let Some((bar, _)) = &self.shown {
            bar.set_message(what.into());
        }
    }

    /// Prints a message without breaking the progress line.
    pub(crate) fn suspend<T>(&self, say: impl FnOnce() -> T) -> T {
        match &self.shown {
            Some((bar, _)) => bar.suspend(say),
            None => say(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((bar, _)) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
