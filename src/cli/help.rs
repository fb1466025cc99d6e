//! Advice for a problem, by the code of the problem. A message that says it already has no line here.

use std::io;

/// Advice if there is not enough memory.
pub(crate) const MORE_MEMORY: &str =
    "give the process more memory (`ulimit -v`, a larger machine), or use a smaller model";

/// The advice for a code. The table is flat, so that all codes are in one place.
pub(crate) fn help(code: &str) -> Option<&'static str> {
    Some(match code.strip_prefix("ampc::")? {
        "import::open" => "check the name of the file and its read permission",
        "import::truncated" | "import::length_past_end" | "import::varint_too_long" => {
            "compare the size of the file with the original's, and fetch or export it again"
        }
        "import::field_number" | "import::unknown_wire_type" | "import::wire_type" | "import::utf8" => {
            "fetch or export the file again, and check that it is an ONNX model at all"
        }
        "import::no_graph" | "import::no_ir_version" => {
            "export the model again; a file cut off or made by other means may lack its first fields"
        }
        "import::ir_version" | "import::opset_version" => {
            "export the model for an older opset or IR version, or use a newer ampc"
        }
        "import::duplicate_opset" => "keep one import of the domain",
        "import::too_deep" => "flatten the control flow of the model",
        "import::duplicate_name" | "check::duplicate_name" | "check::shadowed" => {
            "rename one of the two, in the exporter or with `onnx.helper`"
        }
        "import::undefined" => {
            "export the model with all its initializers; a partial graph has to declare the values that it reads \
             as inputs"
        }
        "import::cycle" => "a graph of ONNX has no cycles: use Loop or Scan for recurrence",
        "import::unknown_operator" => {
            "a custom operator belongs to a custom domain, which has to be imported"
        }
        "import::operator_too_new" => {
            "raise the opset import of the model, or export it for the opset it imports"
        }
        "import::operator_removed" => {
            "use the replacement of the operator, or import the opset that the model was made for"
        }
        "import::duplicate_attribute" => "keep one of the two",
        "import::recursive_function" | "check::recursive_function" => {
            "functions of ONNX may not call themselves: unroll the recursion or use Loop"
        }
        "import::element_type" | "import::tensor_unknown_type" | "check::unknown_dtype" => {
            "use a newer ampc if a newer ONNX defines the element type"
        }
        "import::tensor_missing" => {
            "put the data file beside the model, under the name it had when it was exported"
        }
        "import::tensor_too_short" | "import::tensor_checksum" => {
            "copy the data file again; model and data file must come from one export"
        }
        "import::tensor_hard_link" => {
            "a hard link may be the name of any file, so that a model could reach other files: `cp FILE COPY && mv COPY \
             FILE` makes it a file of its own"
        }
        "import::tensor_absolute" | "import::tensor_leaves_folder" | "import::tensor_symbolic_link" => {
            "data outside the model's folder is not read, so that a model cannot reach other files: move it beside \
             the model, or save the model again with its data"
        }
        "check::operand" | "check::operator" | "check::result" | "check::boundary_disagrees" => {
            "the operator's page at https://onnx.ai/onnx/operators/ lists its operands; if a type is wrong, check the \
             producer of the operand"
        }
        "check::attribute" | "check::unknown_attribute" => {
            "the operator's page at https://onnx.ai/onnx/operators/ lists its attributes"
        }
        "check::read_before_defined" => "the nodes have to be in topological order",
        "export::target_write" => "check that the folder exists and that you may write there",
        "export::target_no_folder" => "make the folder, or choose another one",
        "export::target_not_writable" => "choose another folder",
        "export::target_too_large" => FILE_SIZE,
        "export::target_stream" => "the reader has ended, or the device is full",
        "export::target_changed" => "run it again when no program writes to the model or its data files",
        "export::target_full" => "free some space, or choose a path on another disk",
        "text::missing_data" => {
            "dumps and reproducers come without weights: a command that reads or writes weights needs \
             `MODEL.ir.safetensors` beside `MODEL.ir`, which `--emit text` writes; for `MODEL.json` it is \
             `MODEL.safetensors`"
        }
        "pass::pin_matches_nothing" => {
            "`ampc opt MODEL --passes ''` shows all names; the path of a node in a body is \
             `owner/attribute/node`, in a function `function/node`, or `call/node` for one call"
        }
        "pass::pins_contradict" => {
            "of the pins for one node, the narrowest wins: the exact name of a node before that of a value, \
             exact names before patterns, `NODE#VAR` before `NODE`, the command line before a policy file"
        }
        "pass::signatures" => "the signature has to agree with the model: docs/policy.md",
        "pass::no_form" => {
            "a lower `--opset` may be enough; otherwise export the operator for the opset, or keep the model's opset \
             by leaving out `--opset`"
        }
        "warning::opset.no-kernel" => {
            "a lower `--opset` keeps the version that has a kernel; other providers may have one for the new version"
        }
        "warning::opset.bf16" | "warning::opset.f16" => {
            "`--opset auto` raises the model as far as the format needs"
        }
        "warning::rewrite.slower" => {
            "`--only-if-faster` lowers only operators that make the model faster; `--target` names the device"
        }
        "warning::rewrite.not_faster" => {
            "`--target` names the device; without `--only-if-faster` the model is lowered all the same"
        }
        "warning::verify.nothing" => {
            "give inputs on which the model computes numbers, and dims that are not 0"
        }
        "warning::verify.zeros" => {
            "a layer whose weights are all 0, such as an untrained head, makes zeros of all inputs: compare a trained model, \
             or give inputs on which an output is not 0"
        }
        "warning::verify.excused" => {
            "docs/verify.md defines excused outputs; without `--accept-excused` the exit code is 1"
        }
        "run::memory" => "give smaller dims with `--dim NAME=N`, or smaller inputs",
        "run::device_memory" => {
            "give smaller inputs or batches, recompute activations of a training step (`train-step --recompute cheap`), or raise \
             `--max-device-bytes` if it is given"
        }
        "run::no_memory" => MORE_MEMORY,
        "run::iterations" => "allow more with `--max-iterations N`",
        "run::time" => "allow more with `--time-limit S`",
        "text" => "docs/text-form.md has the grammar",
        "json" => "docs/json-graph.md has the schema",
        "policy::json" => "docs/policy.md has the schema",
        "target::json" => "docs/target.md has the schema",
        _ => return None,
    })
}

/// Advice for an error of the operating system whose message does not contain it.
pub(crate) fn of_system(error: &io::Error) -> Option<&'static str> {
    /// ENFILE and EMFILE, for which there is no `ErrorKind`. The numbers are the same on all Unix systems.
    #[cfg(unix)]
    const TOO_MANY: [i32; 2] = [23, 24];
    #[cfg(not(unix))]
    const TOO_MANY: [i32; 0] = [];
    if error.raw_os_error().is_some_and(|number| TOO_MANY.contains(&number)) {
        return Some(
            "allow more open files (`ulimit -n 1024`): a run needs about ten, and one per data file",
        );
    }
    match error.kind() {
        io::ErrorKind::FileTooLarge if error.raw_os_error().is_some() => Some(FILE_SIZE),
        io::ErrorKind::InvalidFilename => {
            Some("choose a shorter name, or a name that the file system accepts")
        }
        io::ErrorKind::ReadOnlyFilesystem => Some("choose another folder: that file system is read-only"),
        io::ErrorKind::ExecutableFileBusy => Some("the file is a running program: choose another name"),
        io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull => {
            Some("free some space; input from a pipe is stored in the temporary folder, which `TMPDIR` names")
        }
        _ => None,
    }
}

/// Advice if the limit for the size of files is too low.
const FILE_SIZE: &str =
    "allow larger files (`ulimit -f unlimited`), or write to a file system that supports them";

/// The naming of nodes.
pub(crate) const PATHS: &str = "`ampc opt MODEL --passes ''` shows all names; a node without a name is \
                                called by its first result; the path of a node in a body is \
                                `owner/attribute/node`, in a function `function/node`, or `call/node` for one call";
