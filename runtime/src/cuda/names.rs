//! Names of kernels: profilers show the name of the entry function, such as `softmax_f16` or
//! `mul_add_tanh_and_2_f32`.
//!
//! A source names its entry [`ENTRY`], or `run_` with a suffix that distinguishes stages. The entry is renamed after
//! the operators of the node or group, in lower case, and the element type of its last result. A label is set while
//! nodes are prepared, so that kernels need no name of their own.

use super::kernels;
use crate::kernel::Site;
use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;

/// The start of the entry's declaration, before the launch bounds and the name.
const ENTRY: &str = "extern \"C\" __global__ void ";

/// The maximum number of operators of a group that its name lists.
const MOST_SPELLED: usize = 3;

/// The node or group that kernels are made for.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Label {
    pub(super) family: &'static str,
    /// The name of the entry, without a suffix.
    entry: String,
    /// The names of the nodes, for display.
    pub(super) nodes: String,
}

thread_local! {
    static LABEL: RefCell<Option<Arc<Label>>> = const { RefCell::new(None) };
}

impl Label {
    /// The label of a node, or of a group in program order.
    pub(super) fn of(sites: &[Site<'_>]) -> Label {
        let kind = sites.last().map(Site::kind);
        let family = match sites {
            [_] => kind.and_then(kernels::family).unwrap_or("other"),
            _ => "groups",
        };
        let spelled = sites.iter().take(MOST_SPELLED).map(|site| site.view.schema.name.to_lowercase());
        let mut entry = spelled.collect::<Vec<_>>().join("_");
        if sites.len() > MOST_SPELLED {
            let _ = write!(entry, "_and_{}", sites.len() - MOST_SPELLED);
        }
        let dtype = sites.last().and_then(|site| site.result_dtype(0).or_else(|_| site.dtype(0)).ok());
        if let Some(dtype) = dtype {
            let _ = write!(entry, "_{dtype}");
        }
        entry.retain(|c| c.is_ascii_alphanumeric() || c == '_');
        let nodes: Vec<String> = sites.iter().map(named_node).collect();
        Label { family, entry, nodes: nodes.join(" ") }
    }

    /// Calls `prepare` with this label set for the kernels that it makes.
    pub(super) fn while_set<R>(self, prepare: impl FnOnce() -> R) -> R {
        let before = LABEL.replace(Some(Arc::new(self)));
        let made = prepare();
        LABEL.set(before);
        made
    }
}

/// The name of a node, or its number, with its operator.
fn named_node(site: &Site<'_>) -> String {
    let module = site.view.module;
    let name = site.view.data().name.map(|name| module.text(name)).filter(|name| !name.is_empty());
    let operator = site.view.schema.name;
    match name {
        Some(name) => format!("{operator}:{}", name.replace(char::is_whitespace, "_")),
        None => format!("{operator}:{}", site.source),
    }
}

/// The label of the node or group being prepared.
pub(super) fn label() -> Option<Arc<Label>> {
    LABEL.with_borrow(Clone::clone)
}

/// Renames the entry of a source after its label; returns the source and the name.
pub(super) fn named(text: &str, label: Option<&Label>) -> (String, String) {
    let found = text.split_once(ENTRY).and_then(|(before, rest)| Some((before, rest.split_once("run")?)));
    let Some((before, (bounds, rest))) = found else { return (text.to_owned(), "run".to_owned()) };
    let (suffix, parameters) = rest.split_at(rest.find('(').unwrap_or(0));
    let entry = format!("{}{suffix}", label.map_or("kernel", |label| &label.entry));
    (format!("{before}{ENTRY}{bounds}{entry}{parameters}"), entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_names_of_their_labels() {
        let label = Label { family: "training", entry: "adamw_f32".into(), nodes: String::new() };
        let text = "int f();\nextern \"C\" __global__ void run_part(u64 n) { run(); }";
        let (text, entry) = named(text, Some(&label));
        assert_eq!(entry, "adamw_f32_part");
        assert_eq!(text, "int f();\nextern \"C\" __global__ void adamw_f32_part(u64 n) { run(); }");
        assert_eq!(named("extern \"C\" __global__ void run()", None).1, "kernel");
    }
}
