//! Reads anything as a model in one of its three forms.

use crate::laws;
use ampc::onnx::{ReadOptions, read_bytes, to_bytes};
use ampc_ir::eq::same_module;
use ampc_ir::text::{NoData, ParseErrors, ParseOptions, parse};
use ampc_ir::{GraphId, Module, Type, Value};

/// Bytes as ONNX: what loads is written unchanged and loads as the same module, patched or made anew; the module has
/// a text and JSON, and looking for problems in it finds some or none.
pub fn importer(bytes: &[u8]) {
    let options = ReadOptions::default();
    let Ok((module, source, warnings)) = read_bytes("input", bytes.to_vec(), &options) else { return };
    if !laws::is_small(&module) {
        return;
    }
    let same = |how: &str, written: Vec<u8>| {
        let (again, _, _) = read_bytes(how, written, &options)
            .unwrap_or_else(|e| panic!("{how}: {e}\n{}", laws::show(&module)));
        same_module(&module, &again).unwrap_or_else(|e| panic!("{how}: {e}\n{}", laws::show(&module)));
    };
    if let Ok((written, _)) = to_bytes(&module, Some(&source)) {
        // Before IR version 10 nodes have no metadata, so what they say of casts moves to that of the model; from it on
        // what the model says moves to nodes.
        let key = b"ampc.provenance";
        let by_model = bytes.windows(key.len()).any(|name| name == key);
        let said_elsewhere = (module.header.ir_version < 10 || by_model) && !laws::is_all_of_user(&module);
        let may_change = !warnings.is_empty() || said_elsewhere;
        assert!(written == bytes || may_change, "changed\n{}", laws::show(&module));
        if outputs_are_of_their_kinds(&module) {
            same("patched", written);
        }
    }
    laws::text(&module);
    let mut typed = module.clone();
    if ampc::check(&mut typed).is_empty() {
        laws::json(&typed);
        if let Some((written, _)) = to_bytes(&module, None).ok().filter(|_| keeps_all(&module, &typed)) {
            same("made anew", written);
        }
    }
}

/// True if no output is declared as another kind than its value is, which the writer corrects: a tensor that is a map.
fn outputs_are_of_their_kinds(module: &Module) -> bool {
    let mut outputs = module.graph_ids().flat_map(|graph| module.graph(graph).outputs());
    outputs.all(|o| o.declared.same_kind(&module.value(o.value).ty))
}

/// True if nothing is added when a module is made anew: a name to a graph that has none, a type to an output that has
/// none, inputs for the initializers, which below IR version 4 have to be listed; and whether inputs of bodies are what
/// they are declared to be.
fn keeps_all(module: &Module, typed: &Module) -> bool {
    let functions: Vec<GraphId> = module.functions().map(|(_, f)| f.graph).collect();
    let mut graphs = module.graph_ids().filter(|graph| !functions.contains(graph));
    let is_said = |graph: GraphId| {
        let data = module.graph(graph);
        let is_true = |&input: &Value| module.value(input).ty.dtype() == typed.value(input).ty.dtype();
        !module.text(data.name).is_empty()
            && data.outputs().iter().all(|o| o.declared != Type::Unknown)
            && data.inputs().iter().all(is_true)
    };
    module.header.ir_version > 3 && graphs.all(is_said)
}

/// Text as a text form.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(errors) = parse(text, &NoData) {
        check_errors(text, &errors);
    }
    let Some(mut module) = laws::parse_text(text) else { return };
    if !laws::is_small(&module) {
        return;
    }
    laws::text(&module);
    if ampc::check(&mut module).is_empty() {
        laws::json(&module);
        laws::onnx(&module);
    }
}

/// Text as JSON.
pub fn json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(errors) = ampc::json::parse(text, &NoData, &ParseOptions::default()) {
        check_errors(text, &errors);
    }
    let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
    let Ok(mut module) = ampc::json::parse(text, &NoData, &options) else { return };
    if !laws::is_small(&module) {
        return;
    }
    laws::json(&module);
    if ampc::check(&mut module).is_empty() {
        laws::text(&module);
        laws::onnx(&module);
    }
}

/// Errors are in order and point into the text.
fn check_errors(text: &str, errors: &ParseErrors) {
    assert!(!errors.0.is_empty());
    assert!(errors.0.is_sorted_by_key(|e| (e.line, e.column)), "{errors}");
    for error in &errors.0 {
        assert!(text.get(error.span.clone()).is_some(), "{error:?}");
        assert!(!error.expected.is_empty() && !error.found.is_empty(), "{error:?}");
    }
}
