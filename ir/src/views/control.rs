//! Control flow: how operands of a Scan are passed to its body.

use super::node::{NodeView, OpError};

/// Scan at its two versions: 8 has a batch axis and a leading sequence-length operand, 9 and later do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanView {
    /// The first operand that is state or scanned: 1 where operand 0 has the lengths.
    pub first: usize,
    /// The number of state operands from there on.
    pub n_state: usize,
    /// The number of leading batch axes, 0 or 1, whose sequences are scanned separately.
    pub batch: usize,
    /// The axis that each input is scanned along, not counting the batch; 0 where there is no entry.
    pub input_axes: Vec<i64>,
    /// The axis along which each output is stacked, not counting the batch; 0 where there is no entry.
    pub output_axes: Vec<i64>,
    /// For each input whether it is scanned from its end; not where there is no entry.
    pub input_reversed: Vec<bool>,
    /// For each output whether it is stacked from its end; not where there is no entry.
    pub output_reversed: Vec<bool>,
}

impl ScanView {
    /// Reads a Scan.
    ///
    /// # Errors
    /// If it scans more inputs than it has.
    pub fn read(view: &NodeView<'_>) -> Result<ScanView, OpError> {
        let n_scan = view.int("num_scan_inputs").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let (first, batch) = if view.since() < 9 { (1, 1) } else { (0, 0) };
        let n = view.n_operands().saturating_sub(first);
        let n_state = n.checked_sub(n_scan).ok_or_else(|| {
            OpError::attr("num_scan_inputs", format!("at most {n} scan inputs"), n_scan.to_string())
        })?;
        let list = |name: &str| view.int_list(name).unwrap_or(&[]).to_vec();
        let flags = |name: &str| list(name).iter().map(|&d| d != 0).collect();
        let inputs = if view.since() < 9 { "directions" } else { "scan_input_directions" };
        Ok(ScanView {
            first,
            n_state,
            batch,
            input_axes: list("scan_input_axes"),
            output_axes: list("scan_output_axes"),
            input_reversed: flags(inputs),
            output_reversed: flags("scan_output_directions"),
        })
    }
}
