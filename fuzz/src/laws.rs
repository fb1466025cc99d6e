//! The laws of the three forms that a module can be written in.

use ampc::onnx::{ReadOptions, read_bytes, to_bytes};
use ampc_ir::eq::same_module;
use ampc_ir::module::Provenance;
use ampc_ir::text::{LargeConstant, NoData, ParseOptions, PrintOptions, parse_with, print};
use ampc_ir::{DType, Module, TensorData};

/// Constants of more bytes are not read: `random(7)` makes any number of them of a few letters.
const MAX_BYTES: u64 = 1 << 20;

/// True if all bytes of its constants can be read in a moment.
pub(crate) fn is_small(module: &Module) -> bool {
    let options = PrintOptions { omit_hashes: true, ..PrintOptions::default() };
    let large = print(module, &options).large;
    large.iter().fold(0u64, |sum, c| sum.saturating_add(c.data.byte_len().max(c.data.stored_byte_len())))
        < MAX_BYTES
}

fn among(large: &[LargeConstant]) -> impl Fn(&str, DType, &[u64], Option<u128>) -> Option<TensorData> {
    |name: &str, _: DType, _: &[u64], _: Option<u128>| {
        large.iter().find(|c| c.name == name).map(|c| c.data.clone())
    }
}

/// Printed text parses to the same module and prints to itself.
pub(crate) fn text(module: &Module) {
    let printed = print(module, &PrintOptions::default());
    if !printed.errors.is_empty() {
        return;
    }
    let again = parse_with(&printed.text, &among(&printed.large), &ParseOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", printed.text));
    same_module(module, &again).unwrap_or_else(|e| panic!("{e}\n{}", printed.text));
    assert_eq!(again.to_text().unwrap(), printed.text);
}

/// The same for JSON.
pub(crate) fn json(module: &Module) {
    let printed = ampc::json::print(module);
    if !printed.errors.is_empty() {
        return;
    }
    let again = ampc::json::parse(&printed.text, &among(&printed.large), &ParseOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", printed.text));
    same_module(module, &again).unwrap_or_else(|e| panic!("{e}\n{}", printed.text));
    assert_eq!(ampc::json::print(&again).text, printed.text);
}

/// A valid module that is written as ONNX can be read, and what is read is written again byte for byte.
pub(crate) fn onnx(module: &Module) {
    let Ok((bytes, _)) = to_bytes(module, None) else { return };
    let (read, source, warnings) = read_bytes("written", bytes.clone(), &ReadOptions::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", show(module)));
    let again = to_bytes(&read, Some(&source)).unwrap().0;
    assert!(again == bytes || !warnings.is_empty(), "{}", show(module));
    let afresh = to_bytes(&read, None).unwrap().0;
    let (again, _, _) = read_bytes("afresh", afresh, &ReadOptions::default()).unwrap();
    same_module(&read, &again).unwrap_or_else(|e| panic!("{e}\n{}", show(module)));
}

/// True if no node says that a pass inserted it.
pub(crate) fn is_all_of_user(module: &Module) -> bool {
    let mut nodes = module.graph_ids().flat_map(|graph| module.nodes(graph));
    nodes.all(|node| module.node(node).provenance == Provenance::User)
}

/// The text of a module, for messages.
pub(crate) fn show(module: &Module) -> String {
    module.to_text().unwrap()
}

/// Reads a text whose constants may be elsewhere.
pub(crate) fn parse_text(text: &str) -> Option<Module> {
    let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
    parse_with(text, &NoData, &options).ok()
}
