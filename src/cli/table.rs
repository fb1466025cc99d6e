//! Numbers and columns as people read them.

use super::shown;
use std::time::Duration;

/// Rows whose cells stand below each other. The last column is not padded.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
    indent: usize,
}

impl Table {
    /// An empty table, indented; columns for which `right` has true are aligned to the right.
    pub(crate) fn new(indent: usize, right: &[bool]) -> Table {
        Table { rows: Vec::new(), right: right.to_vec(), indent }
    }

    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(|cell| shown::message(&cell.into())).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c] - cell.chars().count());
                let right = self.right.get(c).copied().unwrap_or(false);
                line.push_str(if c > 0 { "  " } else { "" });
                line.push_str(if right { &pad } else { "" });
                line.push_str(cell);
                line.push_str(if right { "" } else { &pad });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{} {what}{}", number(n), if n == 1 { "" } else { "s" })
}

/// A count with its noun: `one` for 1, otherwise `many`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(n), if n == 1 { one } else { many })
}

/// A number with its thousands apart: `1 234 567`.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && digits.len() > 4 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A number of bytes: `980 B`, `12.3 kB`, `1.60 GB`.
pub(crate) fn bytes(n: u64) -> String {
    if n < 1000 {
        return format!("{n} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let mut size = n as f64;
    let mut unit = "";
    for next in ["kB", "MB", "GB", "TB"] {
        if size < 999.5 && !unit.is_empty() {
            break;
        }
        size /= 1000.0;
        unit = next;
    }
    format!("{size:.0$} {unit}", digits_behind_point(size))
}

/// A time, with three digits: `980 ps`, `1.23 µs`, `29.0 ms`.
pub(crate) fn duration(picoseconds: u64) -> String {
    if picoseconds < 1000 {
        return format!("{picoseconds} {}", if picoseconds == 0 { "s" } else { "ps" });
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let mut time = picoseconds as f64;
    let mut unit = "";
    for next in ["ns", "µs", "ms", "s"] {
        if time < 999.5 && !unit.is_empty() {
            break;
        }
        time /= 1000.0;
        unit = next;
    }
    format!("{time:.0$} {unit}", digits_behind_point(time))
}

/// A measured time, as [`duration`] shows it.
pub(crate) fn elapsed(time: Duration) -> String {
    duration(u64::try_from(time.as_nanos().saturating_mul(1000)).unwrap_or(u64::MAX))
}

/// Digits behind the point of a number below a thousand, of which three are shown.
fn digits_behind_point(number: f64) -> usize {
    if number < 9.995 {
        2
    } else if number < 99.95 {
        1
    } else {
        0
    }
}

/// A share: `87 %`; never 100 unless it is all.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "none".into();
    }
    let percent = u128::from(part) * 100 / u128::from(whole);
    format!("{percent} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let shown: Vec<String> =
            [0, 999, 1000, 9_994, 9_996, 12_345, 999_499, 999_500, 3_200_000_000].map(bytes).into();
        assert_eq!(
            shown,
            ["0 B", "999 B", "1.00 kB", "9.99 kB", "10.0 kB", "12.3 kB", "999 kB", "1.00 MB", "3.20 GB"]
        );
    }

    #[test]
    fn times_are_printed_for_people() {
        let shown: Vec<String> =
            [0, 400, 1000, 1_231_000, 999_499_000, 999_500_000, 29_023_839_000, 90_000_000_000_000]
                .map(duration)
                .into();
        assert_eq!(shown, ["0 s", "400 ps", "1.00 ns", "1.23 µs", "999 µs", "1.00 ms", "29.0 ms", "90.0 s"]);
        assert_eq!(elapsed(Duration::from_micros(12_345)), "12.3 ms");
    }

    #[test]
    fn numbers_and_shares() {
        assert_eq!([999, 1234, 12_345, 1_234_567].map(number), ["999", "1234", "12 345", "1 234 567"]);
        assert_eq!((count(1, "node"), count(0, "node")), ("1 node".into(), "0 nodes".into()));
        assert_eq!(
            (share(999, 1000), share(3, 3), share(0, 0)),
            ("99 %".into(), "100 %".into(), "none".into())
        );
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(2, &[false, true]);
        table.row(["a", "1", "x"]);
        table.row(["long", "123", ""]);
        assert_eq!(table.to_string(), "  a       1  x\n  long  123\n");
    }
}
