//! Meaning of the ending of an output's name, and the message for an ending that has no meaning here.

use super::args::EmitArg;
use super::problem::{Failure, Problem};
use ampc::ErrorKind;
use ampc::files::is_stream;
use std::path::Path;

/// The ending of a name in lower case; empty without an ending.
fn ending_of(path: &Path) -> String {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// The form that the ending of a name stands for: `.onnx` in any case, since readers take all other names for ONNX; `.ir`
/// and `.json` in lower case only, as readers know them.
pub(crate) fn form_of(path: &Path) -> Option<EmitArg> {
    match path.extension()?.to_str()? {
        "ir" => Some(EmitArg::Text),
        "json" => Some(EmitArg::Json),
        "dot" | "gv" => Some(EmitArg::Dot),
        other => other.eq_ignore_ascii_case("onnx").then_some(EmitArg::Onnx),
    }
}

/// Checks an output's name whose ending stands for no form, where no option says the form: it has to be that of a
/// stream, such as `/dev/stdout`, or of a folder, which is refused later with a reason of its own.
///
/// # Errors
/// For every other name.
pub(crate) fn check_other(path: &Path) -> Result<(), Failure> {
    if path == Path::new("-") || is_stream(path) || path.is_dir() {
        return Ok(());
    }
    let found = match ending_of(path).as_str() {
        "" => "none".to_owned(),
        ending => format!("`.{ending}`"),
    };
    let message = format!(
        "`{}`: expected a name that ends in .onnx, .ir, .json, .dot or .gv, or `--emit KIND` beside it; found {found}",
        path.display()
    );
    Err(wrong(message).with_help(instead(path)))
}

/// Checks that a report has a name by which `--policy` reads it again.
///
/// # Errors
/// If it has not.
pub(crate) fn check_report(path: &Path) -> Result<(), Failure> {
    let is_json = path.extension().is_some_and(|e| e == "json");
    if is_json || path == Path::new("-") || is_stream(path) || path.is_dir() {
        return Ok(());
    }
    let message = format!("`--report {}`: expected a name that ends in .json", path.display());
    Err(wrong(message).with_help(match names_a_stream(path) {
        true => "it leads to a file here, which would be replaced, not written to; `-` is standard output",
        false => "a report is JSON, and `--policy` reads it by that ending; no other form is written",
    }))
}

fn wrong(message: String) -> Failure {
    Failure::of(ErrorKind::Usage, Problem::new("ampc::usage::ending", message))
}

/// True if a path is a name of a stream of this process, which may lead to a file.
fn names_a_stream(path: &Path) -> bool {
    ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder))
}

/// Advice for a name with an ending of another program: the command for that form, or a similar one.
fn instead(path: &Path) -> String {
    let with = |ending: &str| path.with_extension(ending).display().to_string();
    match ending_of(path).as_str() {
        picture @ ("svg" | "png" | "pdf" | "jpg" | "jpeg") => format!(
            "a drawing is written for Graphviz: `-o {dot}`, then `dot -T{picture} {dot} -o {}`",
            path.display(),
            dot = with("dot")
        ),
        "html" | "htm" | "md" => {
            "no page is written; `--report FILE.json` has every decision, and `-o FILE.dot` draws the graph"
                .into()
        }
        "txt" | "mlir" => format!("the text form is written to `{}`", with("ir")),
        "ort" => format!(
            "write `{}`; `python -m onnxruntime.tools.convert_onnx_models_to_ort` makes an .ort file of it",
            with("onnx")
        ),
        "engine" | "plan" | "trt" => {
            format!("write `{}`; `trtexec --stronglyTyped` builds an engine of it", with("onnx"))
        }
        "" if names_a_stream(path) => {
            "it leads to a file here, which would be replaced, not written to; `-` is standard output".into()
        }
        "" => format!("the usual name of a model is `{}`", with("onnx")),
        _ => "`--emit onnx` writes an ONNX model under any name, if the reader expects this name".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_say_the_form() {
        let form = |name: &str| form_of(Path::new(name));
        assert_eq!([form("a.onnx"), form("A.ONNX")], [Some(EmitArg::Onnx); 2]);
        assert_eq!([form("a.ir"), form("a.b.json")], [Some(EmitArg::Text), Some(EmitArg::Json)]);
        assert_eq!([form("a.dot"), form("a.gv")], [Some(EmitArg::Dot); 2]);
        for name in ["a", "a.ort", "a.svg", "onnx", ".onnx", "a.IR"] {
            assert_eq!(form(name), None, "{name}");
        }
    }
}
