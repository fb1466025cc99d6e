//! Reads anything as a model in one of its three forms.

use crate::laws;
use ampc::onnx::{ReadOptions, read_bytes, to_bytes};
use ampc_ir::eq::same_module;
use ampc_ir::text::{NoData, ParseErrors, ParseOptions, parse};

/// Bytes as ONNX: what loads is written unchanged and loads as the same module, patched or made anew; the module has
/// a text and JSON, and looking for problems in it finds some or none.
pub fn importer(bytes: &[u8]) {
    let options = ReadOptions::default();
    let Ok((mut module, source, warnings)) = read_bytes("input", bytes.to_vec(), &options) else { return };
    if !laws::is_small(&module) {
        return;
    }
    for source in [Some(&source), None] {
        // Below IR version 4 initializers have to be listed as inputs; one that is not is, when it is made anew.
        if source.is_none() && module.header.ir_version <= 3 {
            continue;
        }
        let how = if source.is_some() { "patched" } else { "made anew" };
        let Ok((written, _)) = to_bytes(&module, source) else { continue };
        if source.is_some() && warnings.is_empty() {
            assert!(written == bytes, "changed without reason\n{}", laws::show(&module));
        }
        let (again, _, _) = read_bytes(how, written, &options)
            .unwrap_or_else(|e| panic!("{how}: {e}\n{}", laws::show(&module)));
        same_module(&module, &again).unwrap_or_else(|e| panic!("{how}: {e}\n{}", laws::show(&module)));
    }
    laws::text(&module);
    if ampc::check(&mut module).is_empty() {
        laws::json(&module);
    }
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
