//! Files after a signal ends a run that writes.
#![cfg(target_os = "linux")]

use super::support::{self, Dir};
use std::io::Write as _;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A model of a few lines, 1.6 GB of which are made up while they are written: nothing is done before it is stopped.
const ENDLESS: &str = "  input %x : f32[2]\n  const %w : f32[400000000] = random(1)\n  %y = Relu(%x) : f32[2]\n  \
                       output %y : f32[2]\n  output %w : f32[400000000]\n";

/// Waits for something that comes.
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "no {what} after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first hidden file that has content.
fn temporary(dir: &Dir, child: &mut Child) -> Option<String> {
    assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
    let has_content = |name: &String| std::fs::metadata(dir.path(name)).is_ok_and(|m| m.len() > 0);
    dir.files().into_iter().find(|name| name.starts_with(".ampc-") && has_content(name))
}

fn ignored(signal: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

/// True if a child process would ignore a signal, so that its test is skipped with a message.
pub(super) fn is_skipped(name: &str, number: u32) -> bool {
    let skipped = ignored(number);
    if skipped {
        let text = "is ignored here, and stays so in what is run";
        let _ = writeln!(std::io::stderr(), "skipped: SIG{name} {text}");
    }
    skipped
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        if is_skipped(name, number) {
            continue;
        }
        let dir = Dir::new();
        dir.write("m.ir", support::module(ENDLESS));
        let mut command = support::command(&["opt", "m.ir", "--passes=", "-o", "o.onnx"]);
        let mut child = command.current_dir(dir.path("")).spawn().unwrap();
        wait("temporary file", || temporary(&dir, &mut child));
        let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let status = wait("end", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(128 + i32::try_from(number).unwrap()), "SIG{name}: {status}");
        assert_eq!(dir.files(), ["m.ir"], "SIG{name}");
    }
}
