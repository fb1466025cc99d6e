//! The limits of a run, and the memory available to the process.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The limits of a run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The memory limit in bytes. It applies to the main graph as a whole (arena, constants, inputs, outputs), and
    /// separately to each tensor outside of an arena and to the arena of each body or function.
    pub max_bytes: u64,
    /// The limit in bytes of device memory for constants, states, arenas and two sets of inputs, as
    /// [`DeviceBytes::total_in_flight`](super::DeviceBytes::total_in_flight) counts them; with `None`, only
    /// `max_bytes` applies. A module that exceeds the limit is rejected during binding, before the device allocates
    /// memory for it.
    pub max_device_bytes: Option<u64>,
    /// The maximum number of iterations of one Loop or Scan.
    pub max_iterations: u64,
    /// The maximum duration of one run. Work that was launched on a device is not interrupted: the limit is checked
    /// before each launch, and when the host has waited for the work.
    pub time_limit: Option<Duration>,
    /// A flag that, when another thread sets it, ends the run before the next node.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for Limits {
    /// Limits the host memory to the available memory ([`available_memory`]), and nothing else.
    /// [`Runtime::new`](super::Runtime::new) asks a device for its memory.
    fn default() -> Limits {
        Limits {
            max_bytes: available_memory(),
            max_device_bytes: None,
            max_iterations: u64::MAX,
            time_limit: None,
            stop: None,
        }
    }
}

/// The assumed memory in bytes if the available memory is unknown.
const OTHERWISE: u64 = 16 << 30;

/// The number of bytes that the program can still allocate. On Linux, it is the minimum of the available memory of
/// the system, the remainder of the control group's limit, and the remainder of the address space limit; elsewhere it
/// is 16 GiB.
pub fn available_memory() -> u64 {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // Without a limit the file says `max`.
    let limit = number("/sys/fs/cgroup/memory.max");
    let stat = fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let taken = number("/sys/fs/cgroup/memory.current").map(|current| taken_of_group(current, &stat));
    let group = limit.map(|max| max.saturating_sub(taken.unwrap_or(0)));
    system.into_iter().chain(group).chain(left_of_limit()).min().unwrap_or(OTHERWISE)
}

/// The memory that a control group uses and cannot reclaim: usage without the page cache, from `memory.stat`.
fn taken_of_group(current: u64, stat: &str) -> u64 {
    let counted = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    current.saturating_sub(counted("active_file")).saturating_sub(counted("inactive_file"))
}

/// The bytes left of the address space limit of the process (`ulimit -v`); `None` if it is unlimited or unknown.
/// Thread stacks count in full, used or not.
pub fn left_of_limit() -> Option<u64> {
    let limit = of_limits(&fs::read_to_string("/proc/self/limits").ok()?)?;
    let taken = of_status(&fs::read_to_string("/proc/self/status").ok()?).unwrap_or(0);
    Some(limit.saturating_sub(taken))
}

/// The soft limit in the line `Max address space  123  unlimited  bytes`; `None` if it is unlimited.
fn of_limits(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The line `VmSize:  123 kB`.
fn of_status(text: &str) -> Option<u64> {
    kilobytes(text, "VmSize:")
}

/// The line `MemAvailable:  123 kB`.
fn of_meminfo(text: &str) -> Option<u64> {
    kilobytes(text, "MemAvailable:")
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found() {
        let text = "MemTotal:       32 kB\nMemFree:  1 kB\nMemAvailable:       12 kB\n";
        assert_eq!(of_meminfo(text), Some(12 << 10));
        assert_eq!(of_meminfo("MemTotal: 32 kB\n"), None);
        assert!(available_memory() > 1 << 20);
    }

    #[test]
    fn pages_of_files_are_not_taken() {
        let stat = "anon 40\nfile 70\ninactive_file 50\nactive_file 20\n";
        assert_eq!(taken_of_group(115, stat), 45);
        assert_eq!(taken_of_group(60, stat), 0);
        assert_eq!(taken_of_group(60, ""), 60);
    }

    #[test]
    fn the_limit_of_the_address_space_counts() {
        let limits = |soft: &str| {
            format!(
                "Limit      Soft Limit  Hard Limit  Units\nMax address space   {soft}    unlimited   bytes \n"
            )
        };
        assert_eq!(of_limits(&limits("268435456")), Some(256 << 20));
        assert_eq!(of_limits(&limits("unlimited")), None);
        assert_eq!(of_status("VmPeak:\t  9 kB\nVmSize:\t   7 kB\n"), Some(7 << 10));
    }
}
