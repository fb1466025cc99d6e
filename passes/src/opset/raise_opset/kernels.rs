//! Operators that ONNX Runtime's CPU provider computes at one version and not at a later one, so that a raised model may
//! not run there: data that a script takes from its registry of kernels (`lost_kernels.tsv`).

use crate::pass::PassCx;
use ampc_ir::op::OpSchema;
use ampc_ir::{Module, Node};

const TABLE: &str = include_str!("lost_kernels.tsv");

/// Names of operators of ai.onnx, sorted, with the first version that has no kernel.
fn lost_kernels() -> impl Iterator<Item = (&'static str, u16)> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'));
    rows.map(|(name, since)| (name, since.parse().expect("the script writes a number")))
}

/// Warns of every operator that has no kernel in the raised module and had one before.
pub(super) fn warn(before: &Module, raised: &Module, cx: &mut PassCx<'_>) {
    let schema = |module: &Module, node| -> Option<&'static OpSchema> {
        module.node(node).schema().filter(|s| s.domain.is_empty())
    };
    // Steps insert none of these operators, so the nodes from before are all there are.
    let old: Vec<Node> = before.graph_ids().flat_map(|graph| before.nodes(graph)).collect();
    for (name, since) in lost_kernels() {
        let loses = |&&node: &&Node| {
            let had = schema(before, node).is_some_and(|s| s.name == name && s.since < since);
            had && schema(raised, node).is_some_and(|s| s.name == name && s.since >= since)
        };
        let count = old.iter().filter(loses).count();
        if let Some(&first) = old.iter().find(loses) {
            let nodes = if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
            let message = format!(
                "{nodes} of {name}: ONNX Runtime 1.31's CPU provider has no kernel for it from opset {since} on"
            );
            cx.warn("opset.no-kernel", Some(first), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::op::versions;

    #[test]
    fn operators_that_lose_their_kernel_are_in_the_table_and_sorted() {
        let rows: Vec<(&str, u16)> = lost_kernels().collect();
        assert!(rows.contains(&("RoiAlign", 22)) && rows.contains(&("RandomNormalLike", 22)), "{rows:?}");
        assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
        for (name, since) in rows {
            assert!(versions("", name).iter().any(|s| s.since == since), "{name} {since}");
        }
    }

    #[test]
    fn the_documentation_names_operators_that_lose_their_kernel() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
        let text = std::fs::read_to_string(path).unwrap();
        let mut rows: Vec<(u16, Vec<&str>)> = Vec::new();
        for (name, since) in lost_kernels() {
            match rows.iter_mut().find(|(s, _)| *s == since) {
                Some((_, names)) => names.push(name),
                None => rows.push((since, vec![name])),
            }
        }
        for (since, names) in rows {
            let line =
                format!("From opset {since} on its CPU provider has no kernel for {}", names.join(", "));
            assert!(text.contains(&line), "docs/cli.md lacks: {line}");
        }
    }
}
