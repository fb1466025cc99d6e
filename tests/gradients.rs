//! Gradients as files: `tests/cases/gradient/<case>.ir`, one named test each.
//!
//! A case is a graph in f64. Its gradients are compared with [finite differences](finite_differences), then the same
//! graph is computed in f16: its gradients are f16 and near those of f64. Lines at the top of a case, each at most once:
//!
//! - `// f32: WHY`: something is computed in f32, so steps and tolerances are larger, and nothing is computed in f16;
//! - `// f16: no, WHY`: it is not computed in f16;
//! - `role parameter(%w)` in the graph: only such values get a gradient; without one, all float constants and inputs do.

#[allow(dead_code, reason = "exact gradients are a matter of laws")]
#[path = "common/finite_differences.rs"]
mod finite_differences;

use finite_differences::{Differentiated, Unreached};
use std::path::Path;

datatest_stable::harness! {
    { test = gradient, root = "tests/cases/gradient", pattern = r"\.ir$" },
}

fn gradient(path: &Path) -> datatest_stable::Result<()> {
    let text = std::fs::read_to_string(path)?;
    let mut wide = Differentiated::new(&text, Unreached::Error)?;
    wide.compare()?;
    if !text.lines().any(|line| line.starts_with("// f16: no, ") || line.starts_with("// f32: ")) {
        let mut low = Differentiated::new(&text.replace("f64", "f16"), Unreached::Error)?;
        wide.compare_low(&mut low).map_err(|error| format!("in f16: {error}"))?;
    }
    Ok(())
}
