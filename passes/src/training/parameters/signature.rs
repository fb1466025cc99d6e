//! The signature of a program that PyTorch exported: which tensors are parameters, which are buffers.
//!
//! `torch.onnx.export` with `dynamo=True` writes `str(ExportedProgram.graph_signature)` into the metadata of the main graph.
//! The text has had three forms:
//!
//! ```text
//! # inputs
//! p_fc_weight: PARAMETER target='fc.weight'
//! b_bn_running_mean: BUFFER target='bn.running_mean' persistent=True
//! x: USER_INPUT
//!
//! # outputs
//! getitem_3: BUFFER_MUTATION target='bn.running_mean'
//!
//! ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_fc_weight'),
//!     target='fc.weight', persistent=None)], output_specs=[...])
//!
//! {"input_specs": [{"parameter": {"arg": {"name": "p_fc_weight"}, "parameter_name": "fc.weight"}}], "output_specs": [...]}
//! ```

use ampc_ir::Module;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// The key of the signature in the metadata of the main graph or model.
pub const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";

/// The kind of an input of an exported program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputKind {
    /// A parameter of the model.
    Parameter,
    /// A buffer, such as running statistics or a mask.
    Buffer,
    /// A tensor that the program has as a constant.
    Constant,
    /// Data, and everything else that is not a tensor of the model.
    Other,
}

/// An input of an exported program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputSpec {
    /// The kind.
    pub kind: InputKind,
    /// The name in the exported program, such as `p_fc_weight`.
    pub arg: String,
    /// The name in the model, such as `fc.weight`; empty for data.
    pub target: String,
}

/// The inputs of an exported program, and the buffers that it changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Signature {
    inputs: Vec<InputSpec>,
    mutated: Vec<String>,
    by_name: BTreeMap<String, usize>,
}

/// The reason why the text of a signature cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SignatureError {
    /// The text has no known form.
    #[error("expected `# inputs`, `ExportGraphSignature(...)` or a JSON object, found `{found}`")]
    Form {
        /// The beginning of the text.
        found: String,
    },
    /// A line or entry of the text is damaged.
    #[error("expected an input such as `p_w: PARAMETER target='w'`, found `{found}`")]
    Entry {
        /// The entry.
        found: String,
    },
    /// Two entries contradict each other.
    #[error("`{name}` is listed twice, as different things")]
    Twice {
        /// The name.
        name: String,
    },
}

impl Signature {
    /// The signature in the metadata of a module; none if the metadata has no signature.
    ///
    /// # Errors
    /// If the text is damaged.
    pub fn of(module: &Module) -> Option<Result<Signature, SignatureError>> {
        let graph = module.graph(module.main()).metadata.iter();
        let mut graph = graph.map(|&(key, text)| (module.text(key), module.text(text)));
        let mut header = module.header.metadata.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        let is_signature = |entry: &(&str, &str)| entry.0 == SIGNATURE;
        let (_, text) = graph.find(is_signature).or_else(|| header.find(is_signature))?;
        Some(Signature::parse(text))
    }

    /// Reads the text of a signature, in any of its forms.
    ///
    /// # Errors
    /// If the text is damaged, or lists a name twice as different things.
    pub fn parse(text: &str) -> Result<Signature, SignatureError> {
        let trimmed = text.trim_start();
        let (inputs, mutated) = if trimmed.starts_with("# inputs") {
            of_lines(trimmed)?
        } else if trimmed.starts_with("ExportGraphSignature(") || trimmed.starts_with("GraphSignature(") {
            of_repr(trimmed)?
        } else if trimmed.starts_with('{') {
            of_json(trimmed)?
        } else {
            return Err(SignatureError::Form { found: clipped(trimmed) });
        };
        let mut by_name = BTreeMap::new();
        for (i, spec) in inputs.iter().enumerate() {
            for name in [&spec.target, &spec.arg] {
                let before = by_name.insert(name.clone(), i).filter(|_| !name.is_empty());
                if before.is_some_and(|before| inputs[before] != *spec) {
                    return Err(SignatureError::Twice { name: clipped(name) });
                }
            }
        }
        by_name.remove("");
        Ok(Signature { inputs, mutated, by_name })
    }

    /// The entry of a tensor, by its name in the model or in the exported program.
    pub fn get(&self, name: &str) -> Option<&InputSpec> {
        self.by_name.get(name).map(|&i| &self.inputs[i]).filter(|spec| spec.kind != InputKind::Other)
    }

    /// The tensors of the model, in order.
    pub fn tensors(&self) -> impl Iterator<Item = &InputSpec> {
        self.inputs.iter().filter(|spec| spec.kind != InputKind::Other)
    }

    /// The names of all parameters, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        let is_parameter = |spec: &&InputSpec| spec.kind == InputKind::Parameter;
        self.inputs.iter().filter(is_parameter).map(|spec| spec.target.as_str())
    }

    /// The names of the buffers that the exported program changes, such as running statistics while a model trains.
    pub fn mutated(&self) -> &[String] {
        &self.mutated
    }
}

type Specs = (Vec<InputSpec>, Vec<String>);

/// The beginning of a text, for a message.
fn clipped(text: &str) -> String {
    const SHOWN: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(SHOWN).collect();
    if short.len() < text.trim_end().len() { format!("{short}…") } else { short }
}

fn kind_of(word: &str) -> Option<InputKind> {
    Some(match word {
        "PARAMETER" => InputKind::Parameter,
        "BUFFER" => InputKind::Buffer,
        "CONSTANT_TENSOR" => InputKind::Constant,
        "USER_INPUT" | "CUSTOM_OBJ" | "TOKEN" => InputKind::Other,
        _ => return None,
    })
}

/// An entry of a tensor has a target.
fn spec(kind: &str, arg: &str, target: Option<String>) -> Option<InputSpec> {
    let kind = kind_of(kind)?;
    let target = target.unwrap_or_default();
    let is_whole = kind == InputKind::Other || !target.is_empty();
    is_whole.then(|| InputSpec { kind, arg: arg.to_owned(), target })
}

/// The form of PyTorch 2.6 and later.
fn of_lines(text: &str) -> Result<Specs, SignatureError> {
    let (mut inputs, mut mutated, mut in_outputs) = (Vec::new(), Vec::new(), false);
    for line in text.lines().map(str::trim_end) {
        let wrong = || SignatureError::Entry { found: clipped(line) };
        match line {
            "" | "# inputs" => {}
            "# outputs" => in_outputs = true,
            _ => {
                let (arg, rest) = line.split_once(": ").ok_or_else(wrong)?;
                let (kind, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                // The target is not escaped: it ends at the last quote of the line.
                let target = rest.strip_prefix("target='").and_then(|rest| rest.rsplit_once('\''));
                let target = target.map(|(target, _)| target.to_owned());
                if in_outputs {
                    mutated.extend(target.filter(|_| kind == "BUFFER_MUTATION"));
                } else {
                    inputs.push(spec(kind, arg, target).ok_or_else(wrong)?);
                }
            }
        }
    }
    Ok((inputs, mutated))
}

/// The `repr` of older releases.
fn of_repr(text: &str) -> Result<Specs, SignatureError> {
    let (inputs_text, outputs_text) = text.split_once("output_specs=").unwrap_or((text, ""));
    let mut inputs = Vec::new();
    for entry in inputs_text.split("InputSpec(").skip(1) {
        let wrong = || SignatureError::Entry { found: clipped(entry) };
        let (_, kind) = entry.split_once("kind=<InputKind.").ok_or_else(wrong)?;
        let (kind, _) = kind.split_once(':').ok_or_else(wrong)?;
        let arg = python_text(entry, "name=").unwrap_or_default();
        inputs.push(spec(kind, &arg, python_text(entry, "target=")).ok_or_else(wrong)?);
    }
    let outputs = outputs_text.split("OutputSpec(").skip(1);
    let mutated = outputs.filter(|entry| entry.contains("OutputKind.BUFFER_MUTATION"));
    Ok((inputs, mutated.filter_map(|entry| python_text(entry, "target=")).collect()))
}

/// The text in quotes behind a key, its escapes read.
fn python_text(entry: &str, key: &str) -> Option<String> {
    let (_, rest) = entry.split_once(key)?;
    let mut chars = rest.chars();
    let quote = chars.next().filter(|c| matches!(c, '\'' | '"'))?;
    let mut text = String::new();
    loop {
        match chars.next()? {
            '\\' => text.push(chars.next()?),
            c if c == quote => return Some(text),
            c => text.push(c),
        }
    }
}

/// The form of a serialized program.
fn of_json(text: &str) -> Result<Specs, SignatureError> {
    let whole: Json =
        serde_json::from_str(text).map_err(|_| SignatureError::Form { found: clipped(text) })?;
    let list = |key: &str| whole.get(key).and_then(Json::as_array).cloned().unwrap_or_default();
    let mut inputs = Vec::new();
    for entry in list("input_specs") {
        inputs.push(
            json_spec(&entry).ok_or_else(|| SignatureError::Entry { found: clipped(&entry.to_string()) })?,
        );
    }
    let outputs = list("output_specs");
    let mutated = outputs.iter().filter_map(|entry| {
        let listed = entry.get("buffer_mutation").and_then(|inner| inner.get("buffer_name"));
        let is_mutation = entry.get("kind").and_then(Json::as_str) == Some("BUFFER_MUTATION");
        listed.or_else(|| entry.get("target").filter(|_| is_mutation))?.as_str().map(str::to_owned)
    });
    let mutated = mutated.collect();
    Ok((inputs, mutated))
}

fn json_spec(entry: &Json) -> Option<InputSpec> {
    let arg_of = |entry: &Json| {
        let arg = entry.get("arg")?;
        arg.get("name").or(Some(arg)).and_then(Json::as_str).map(str::to_owned)
    };
    if let Some(kind) = entry.get("kind").and_then(Json::as_str) {
        let target = entry.get("target").and_then(Json::as_str).map(str::to_owned);
        return spec(kind, &arg_of(entry).unwrap_or_default(), target);
    }
    let (kind, inner) = entry.as_object()?.iter().next()?;
    let (kind, key) = match kind.as_str() {
        "parameter" => ("PARAMETER", "parameter_name"),
        "buffer" => ("BUFFER", "buffer_name"),
        "tensor_constant" => ("CONSTANT_TENSOR", "tensor_constant_name"),
        _ => ("USER_INPUT", ""),
    };
    let target = inner.get(key).and_then(Json::as_str).map(str::to_owned);
    spec(kind, &arg_of(inner).unwrap_or_default(), target)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\n# inputs\np_fc_weight: PARAMETER target='fc.weight'\nb_m: BUFFER target='m' persistent=True\nx: USER_INPUT\n\n# outputs\ngetitem_3: BUFFER_MUTATION target='m'\nlinear: USER_OUTPUT\n";
    const REPR: &str = "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_fc_weight'), target='fc.weight', persistent=None), InputSpec(kind=<InputKind.BUFFER: 3>, arg=TensorArgument(name='b_m'), target=\"m\", persistent=True), InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='x'), target=None, persistent=None)], output_specs=[OutputSpec(kind=<OutputKind.BUFFER_MUTATION: 3>, arg=TensorArgument(name='getitem_3'), target='m'), OutputSpec(kind=<OutputKind.USER_OUTPUT: 1>, arg=TensorArgument(name='linear'), target=None)])";
    const JSON: &str = r#"{"input_specs": [{"parameter": {"arg": {"name": "p_fc_weight"}, "parameter_name": "fc.weight"}}, {"buffer": {"arg": {"name": "b_m"}, "buffer_name": "m", "persistent": true}}, {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}], "output_specs": [{"buffer_mutation": {"arg": {"name": "getitem_3"}, "buffer_name": "m"}}]}"#;

    #[test]
    fn every_form_says_the_same() {
        for text in [LINES, REPR, &REPR.replace(", InputSpec", ",\n    InputSpec"), JSON] {
            let signature = Signature::parse(text).unwrap();
            assert_eq!(signature.parameters().collect::<Vec<_>>(), ["fc.weight"], "{text}");
            assert_eq!(signature.mutated(), ["m"], "{text}");
            for name in ["m", "b_m"] {
                assert_eq!(signature.get(name).unwrap().kind, InputKind::Buffer, "{text}");
            }
            assert_eq!(signature.get("p_fc_weight").unwrap().target, "fc.weight");
            assert_eq!((signature.get("x"), signature.get("")), (None, None));
        }
    }

    #[test]
    fn damaged_signatures_are_errors() {
        let twice = "# inputs\np_w: PARAMETER target='w'\nb_w: BUFFER target='w' persistent=True\n";
        let cut = &LINES[..LINES.find("target='m'").unwrap()];
        let texts = [
            "",
            "none",
            "# inputs\nnonsense",
            twice,
            cut,
            "{\"input_specs\": [3]}",
            "{",
            "# inputs\na: WEIGHT target='a'",
        ];
        for text in texts {
            Signature::parse(text).expect_err(text);
        }
        let cut = REPR.split_once("InputSpec(kind=<InputKind.BU").unwrap().0;
        for text in [
            format!("{cut}InputSpec(kind=<InputKind.BU"),
            format!("{cut}InputSpec(kind=<InputKind.BUFFER: 3>, arg"),
        ] {
            Signature::parse(&text).expect_err(&text);
        }
    }

    #[test]
    fn a_target_may_have_quotes() {
        let text = "# inputs\np_w: PARAMETER target='it's'\n";
        assert_eq!(Signature::parse(text).unwrap().parameters().next(), Some("it's"));
    }
}
