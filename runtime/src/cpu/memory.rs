//! How much memory there is.

use std::fs;

/// Where nobody says how much there is.
const OTHERWISE: u64 = 16 << 30;

/// The bytes that programs can still have: on Linux what the system says is available, or what is left of the limit
/// of the control group if that is less; elsewhere 16 GiB.
pub fn available_memory() -> u64 {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // Without a limit the file says `max`.
    let limit = number("/sys/fs/cgroup/memory.max");
    let group = limit.map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    system.into_iter().chain(group).min().unwrap_or(OTHERWISE)
}

/// The line `MemAvailable:  123 kB`.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
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
}
