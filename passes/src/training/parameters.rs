//! Parameters: which constants of a model are trained.
//!
//! Most files do not distinguish them: weights, running statistics, masks and tables are all initializers.
//! [`Parameters`] finds the parameters that a gradient can reach and gives them the role `parameter`;
//! parameters that are listed as inputs become plain constants; [`ExposeParameters`] makes them inputs. A file
//! of PyTorch's exporter has the signature of the exported program, which lists the parameters ([`Signature`]):
//! then exactly these are trained.

mod chosen;
mod exported;
mod expose;
mod origin;
mod repair;
mod signature;
mod tell;
mod unmarked;

use self::chosen::Chosen;

pub use self::expose::ExposeParameters;
pub use self::origin::{is_changed, is_transposed, origin_of};
pub use self::signature::{InputKind, InputSpec, SIGNATURE, Signature, SignatureError};
pub use self::tell::{tied, untrained};
pub use crate::pass::training_error::ParameterError;

use self::exported::Exported;
use self::origin::{Origin, is_internal};
use crate::graph::paths::Paths;
use crate::graph::roles::{LOSS, PARAMETER, STOP, with_role};
use crate::pass::options::{PassOption, Setting, Spelled, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::spelling::suggest::nearest;
use crate::spelling::words::quoted;
use crate::training::autodiff;
use crate::training::inputs::conceal;
use ampc_ir::module::{Def, Role};
use ampc_ir::op::OpKind;
use ampc_ir::tensor::{Storage, TensorData};
use ampc_ir::views::NodeView;
use ampc_ir::views::broadcast::DropoutView;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The pass that gives parameters, and the loss, their roles.
///
/// A parameter is an initializer of the main graph
/// - of floats, in fp32 or another type that is kept in fp32 while training,
/// - that is not a single number without an axis, or by which nodes only multiply and divide: in most files these are constants
///   of formulas,
/// - that some node reads in an operand by which it can be differentiated, so no running statistics and no bounds,
/// - whose elements are all of ordinary size, unless a product of matrices or a convolution reads it: a table with infinities
///   or numbers of 10⁴ and more is a mask.
///
/// In a model with the signature of an exported program, a parameter is a parameter of the signature, whatever it looks like.
///
/// If `train` and `freeze` both match a constant, the pattern with more characters beside wildcards holds, and `freeze` if
/// both have as many.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// The output that is the loss, if any; otherwise a value has the role already, or gets it later.
    pub loss: Option<String>,
    /// Names of constants that are parameters whatever they look like.
    pub train: Vec<String>,
    /// Names of constants that are none.
    pub freeze: Vec<String>,
    /// Names of results of nodes through which no gradient passes.
    pub stop: Vec<String>,
}

impl Spelled for Parameters {
    const NAME: &'static str = "parameters";
    const ABOUT: &'static str = "gives trained constants and the loss their roles";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: option("loss", "the name of an output", Some("")),
            print: |pass| pass.loss.as_deref().map(Setting::word),
            read: |pass, given| {
                given.word().map(|name| pass.loss = Some(name).filter(|name| !name.is_empty()))
            },
        },
        PassOption {
            def: option("train", "names or globs with `+` between them", Some("")),
            print: |pass| print_list(&pass.train),
            read: |pass, given| given.list().map(|list| pass.train = list),
        },
        PassOption {
            def: option("freeze", "names or globs with `+` between them", Some("")),
            print: |pass| print_list(&pass.freeze),
            read: |pass, given| given.list().map(|list| pass.freeze = list),
        },
        PassOption {
            def: option("stop", "names or globs of results with `+` between them", Some("")),
            print: |pass| print_list(&pass.stop),
            read: |pass, given| given.list().map(|list| pass.stop = list),
        },
    ];
    fn blank() -> Self {
        Parameters::default()
    }
}

fn print_list(list: &[String]) -> Option<Setting> {
    let words = || list.iter().map(|word| quoted(word)).collect::<Vec<_>>().join("+");
    (!list.is_empty()).then(|| Setting::Text(words()))
}

/// From this magnitude on, an element says that a constant is a mask or a limit.
const LARGE: f64 = 1e4;

impl Pass for Parameters {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        if let Some(name) = &self.loss {
            let loss = output_named(module, name)?;
            add_role(module, LOSS, vec![loss]);
        }
        let exported = Exported::find(module, cx)?;
        let found = self.find(module, exported.as_ref())?;
        if found.parameters.is_empty() {
            let folded = exported.as_ref().and_then(|exported| tell::all_folded(exported, module));
            if let Some(error) = folded {
                return Err(error.into());
            }
            return Err(ParameterError::None { frozen: found.frozen }.into());
        }
        if let Some(message) = untrained_numbers(&found.numbers) {
            cx.warn("parameters.numbers", None, message);
        }
        if let Some(message) = merged_parameters(&found.merged) {
            cx.warn("parameters.merged", None, message);
        }
        let warning = exported.is_none().then(|| unmarked::warning(module, &found.guessed)).flatten();
        if let Some(message) = warning {
            cx.warn("parameters.unmarked", None, message);
        }
        let is_told = exported.is_some_and(|exported| tell::tell(&exported, module, &found.parameters, cx));
        if let Some(message) = inference_mode(module, is_told) {
            cx.warn("parameters.inference", None, message);
        }
        let parameters = conceal(module, &found.parameters, false);
        // The author of a text may have said of some that they are parameters.
        let mut known: FxHashSet<Value> = with_role(module, PARAMETER).collect();
        for value in parameters {
            if known.insert(value) {
                add_role(module, PARAMETER, vec![value]);
            }
        }
        let statistics = running_statistics(module);
        conceal(module, &statistics, false);
        for value in self.stops(module)? {
            add_role(module, STOP, vec![value]);
        }
        Ok(Changed::Yes)
    }
}

/// The float constants of the main graph by their use.
#[derive(Default)]
struct Found {
    parameters: Vec<Value>,
    /// Names of the parameters that no pattern and no signature names.
    guessed: Vec<String>,
    /// Names of single numbers that would be parameters if they had more elements.
    numbers: Vec<String>,
    /// Names of parameters that several nodes read and whose elements are all the same.
    merged: Vec<String>,
    /// True if some would be parameters if they were not frozen.
    frozen: bool,
}

impl Parameters {
    /// The results of nodes of the main graph through which no gradient is to pass.
    fn stops(&self, module: &Module) -> Result<Vec<Value>, ParameterError> {
        if self.stop.is_empty() {
            return Ok(Vec::new());
        }
        let mut chosen = Chosen::new(&self.stop, &[])?;
        let results =
            module.nodes(module.main()).flat_map(|node| module.node(node).results().iter().flatten());
        let results: Vec<Value> = results.copied().collect();
        let named = |value: Value| ampc_ir::verify::name_of(module, value);
        let stops =
            results.iter().copied().filter(|&value| chosen.choose(&named(value), &[]).is_some()).collect();
        match chosen.unmatched().map(|(pattern, _)| pattern) {
            None => Ok(stops),
            Some(pattern) => {
                let names: Vec<String> = results.into_iter().map(named).collect();
                let near = nearest(&pattern, names.iter().map(String::as_str)).map(str::to_owned);
                Err(ParameterError::MatchesNothing {
                    pattern,
                    what: "result of a node of the main graph",
                    near,
                })
            }
        }
    }

    /// Sorts the float constants of the main graph.
    fn find(&self, module: &Module, exported: Option<&Exported>) -> Result<Found, PassError> {
        let mut chosen = Chosen::new(&self.train, &self.freeze)?;
        let (mut found, mut names) = (Found::default(), Vec::new());
        let guesses = exported.is_none_or(Exported::may_be_parameter);
        let statistics: FxHashSet<Value> = statistics_read(module).collect();
        for (value, data) in initializers(module) {
            if !matches!(data.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::F64) {
                continue;
            }
            let name = ampc_ir::verify::name_of(module, value);
            if statistics.contains(&value) {
                chosen.note_statistic(&name);
                continue;
            }
            let origin = exported.map_or(&Origin::Unknown, |exported| exported.origin(value));
            let could = is_read_differentiably(module, value);
            let mut of: Vec<&str> =
                origin.parameter().filter(|parameter| *parameter != name).into_iter().collect();
            of.extend(exported.into_iter().flat_map(|exported| exported.tied_to(origin)));
            names.extend(of.iter().copied().map(str::to_owned));
            match chosen.choose(&name, &of) {
                Some(false) => found.frozen |= could,
                Some(true) => found.parameters.push(value),
                None if !could => {}
                None if *origin != Origin::Unknown => {
                    found.parameters.extend(origin.parameter().map(|_| value));
                }
                None if guesses => found.guess(module, value, &data, &name)?,
                None => {}
            }
            names.push(name);
        }
        match chosen.unmatched() {
            None => Ok(found),
            Some((pattern, Some(name))) => Err(ParameterError::Statistics { pattern, name }.into()),
            Some((pattern, None)) => {
                let near = nearest(&pattern, names.iter().map(String::as_str)).map(str::to_owned);
                let what = "float constant of the main graph";
                Err(ParameterError::MatchesNothing { pattern, what, near }.into())
            }
        }
    }
}

impl Found {
    /// Classifies a differentiable constant by its form.
    fn guess(
        &mut self,
        module: &Module,
        value: Value,
        data: &Arc<TensorData>,
        name: &str,
    ) -> Result<(), PassError> {
        if is_number(module, value, data) {
            self.numbers.push(name.to_owned());
            return Ok(());
        }
        let limit = if is_factor(module, value) { f64::INFINITY } else { LARGE };
        let range = Magnitudes::of(data, name)?;
        if range.largest < limit {
            self.parameters.push(value);
            self.guessed.push(name.to_owned());
            if range.are_same && whole_readers(module, value) > 1 {
                self.merged.push(name.to_owned());
            }
        }
        Ok(())
    }
}

/// The number of names in a message.
const SHOWN: usize = 20;

/// The first of some names, for a message.
fn first_of(names: &[String]) -> String {
    let some: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    format!("{}{}", some.join(", "), if names.len() > SHOWN { " …" } else { "" })
}

/// The warning of single numbers that are not trained, with the options that train them.
fn untrained_numbers(names: &[String]) -> Option<String> {
    let are = match names.len() {
        0 => return None,
        1 => "a constant of one number is".to_owned(),
        n => format!("{n} constants of one number are"),
    };
    // Exporters number constants of formulas; what has a name of its own comes first.
    let is_numbered = |name: &&String| {
        name.starts_with('/') || name.starts_with("onnx::") || name.contains("Constant") || is_internal(name)
    };
    let (numbered, named): (Vec<&String>, Vec<&String>) = names.iter().partition(is_numbered);
    let all: Vec<String> = named.iter().chain(&numbered).map(|&name| name.clone()).collect();
    let meant: Vec<String> =
        if named.is_empty() { all.clone() } else { named.into_iter().cloned().collect() };
    let options = meant.iter().take(3).map(|name| format!("--train {}", in_shell(name)));
    let options = options.collect::<Vec<_>>().join(" ");
    Some(format!(
        "{are} NOT trained ({}); if a learned scale or temperature is among them, add `{options}`",
        first_of(&all)
    ))
}

/// A word for a shell.
fn in_shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | ':');
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// The warning about parameters that an exporter may have merged because they were equal.
fn merged_parameters(names: &[String]) -> Option<String> {
    let are = match names.len() {
        0 => return None,
        1 => "a parameter whose elements are all the same is".to_owned(),
        n => format!("{n} parameters whose elements are all the same are"),
    };
    Some(format!(
        "{are} read by several nodes ({}): if the exporter has merged weights with equal initial values, they are trained as one; \
         export the model with a weight for each",
        first_of(names)
    ))
}

/// The number of nodes that read all elements of a value.
fn whole_readers(module: &Module, value: Value) -> usize {
    let nodes = module.uses(value).map(|(node, _)| node).filter(|&node| is_whole_reader(module, node));
    nodes.collect::<FxHashSet<Node>>().len()
}

/// True unless a node takes a part of its operand, as an attention takes the parts of its joint bias.
fn is_whole_reader(module: &Module, node: Node) -> bool {
    let kind = module.node(node).schema().map(|schema| schema.kind);
    !matches!(kind, Some(OpKind::Slice | OpKind::Split | OpKind::Gather | OpKind::GatherND | OpKind::Shape))
}

/// True if a constant is a number within a formula: it has no axis, or nodes only multiply or divide by it.
fn is_number(module: &Module, value: Value, data: &TensorData) -> bool {
    let scales = |(node, _): (Node, u32)| {
        let kind = module.node(node).schema().map(|schema| schema.kind);
        matches!(kind, Some(OpKind::Mul | OpKind::Div))
    };
    data.dims().is_empty() || data.element_count() == 1 && module.uses(value).all(scales)
}

/// The initializers of the main graph, including initializers that are listed as inputs: a step lists all
/// trained parameters.
fn initializers(module: &Module) -> Vec<(Value, Arc<TensorData>)> {
    let main = module.graph(module.main());
    let listed = main.inputs().iter().filter_map(|&input| match &module.value(input).def {
        Def::Input { default: Some(payload), .. } => Some((input, payload)),
        _ => None,
    });
    let constants = main.constants().iter().filter_map(|&value| Some((value, module.constant(value)?)));
    let all = listed.chain(constants);
    all.filter_map(|(value, payload)| Some((value, payload.dense()?.clone()))).collect()
}

/// Running statistics of BatchNormalization while it trains that are listed as inputs.
fn running_statistics(module: &Module) -> Vec<Value> {
    let is_listed = |value: &Value| matches!(module.value(*value).def, Def::Input { default: Some(_), .. });
    let mut found: Vec<Value> = statistics_read(module).filter(is_listed).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The running statistics that BatchNormalization of the main graph reads in training mode.
fn statistics_read(module: &Module) -> impl Iterator<Item = Value> {
    let norms = module
        .nodes(module.main())
        .filter_map(|node| NodeView::new(module, node))
        .filter(|view| view.kind() == OpKind::BatchNormalization && BatchNormView::read(view).training);
    norms.flat_map(|view| [view.operand(3), view.operand(4)]).flatten()
}

/// The warning about nodes in inference mode that behave differently in training, as in a model that was
/// exported for inference.
fn inference_mode(module: &Module, norms_are_told: bool) -> Option<String> {
    let (mut norms, mut dropouts, mut attentions) = (Vec::new(), Vec::new(), Vec::new());
    let paths = Paths::of(module);
    for node in module.nodes(module.main()) {
        let Some(view) = NodeView::new(module, node) else { continue };
        let list = match view.kind() {
            OpKind::BatchNormalization if !norms_are_told && !BatchNormView::read(&view).training => {
                &mut norms
            }
            OpKind::Dropout if DropoutView::read(&view).training == Some(false) => {
                if is_dropout_of_attention(module, &view) { &mut attentions } else { &mut dropouts }
            }
            _ => continue,
        };
        list.push(paths.path(node).to_owned());
    }
    let counted = |nodes: &[String], op: &str, does: [&str; 2]| {
        let does = does[usize::from(nodes.len() > 1)];
        (!nodes.is_empty()).then(|| format!("{} {op} ({}) {does}", nodes.len(), first_of(nodes)))
    };
    let none = ["drops nothing", "drop nothing"];
    let stay = "with running statistics, which stay unchanged";
    let exported = [
        counted(&norms, "BatchNormalization", [&format!("normalizes {stay}"), &format!("normalize {stay}")]),
        counted(&dropouts, "Dropout", none),
    ];
    let exported: Vec<String> = exported.into_iter().flatten().collect();
    let exported = (!exported.is_empty()).then(|| {
        format!(
            "{}; export the model for training (`training_mode` of its nodes) to train them",
            exported.join(", ")
        )
    });
    let attention = counted(&attentions, "Dropout of attention", none).map(|counted| {
        format!(
            "{counted}: PyTorch's legacy exporter writes the dropout of `scaled_dot_product_attention` without \
             `training_mode` even in an export for training; compute the attention with `softmax` and `nn.Dropout` to have it \
             drop"
        )
    });
    let parts: Vec<String> = exported.into_iter().chain(attention).collect();
    (!parts.is_empty())
        .then(|| format!("nodes of the model are in inference mode and are trained so: {}", parts.join("; ")))
}

/// True if a Dropout takes the probabilities of an attention, and has no `training_mode`.
fn is_dropout_of_attention(module: &Module, dropout: &NodeView<'_>) -> bool {
    let maker = dropout.operand(0).and_then(|value| module.producer(value));
    let kind = maker.and_then(|(node, _)| module.node(node).schema()).map(|schema| schema.kind);
    kind == Some(OpKind::Softmax) && dropout.operand(2).is_none()
}

/// Gives values a role of the main graph.
pub(crate) fn add_role(module: &mut Module, role: &str, values: Vec<Value>) {
    let name = module.intern(role);
    module.graph_roles_mut(module.main()).0.push(Role { name, values });
}

/// The value that leaves the main graph under a name.
pub(crate) fn output_named(module: &Module, name: &str) -> Result<Value, ParameterError> {
    let outputs = module.graph(module.main()).outputs();
    let named = |value: Value| ampc_ir::verify::name_of(module, value);
    let found = outputs.iter().map(|output| output.value).find(|&value| named(value) == name);
    found.ok_or_else(|| ParameterError::NoSuchLoss {
        name: name.to_owned(),
        outputs: outputs.iter().map(|o| format!("`{}`", named(o.value))).collect::<Vec<_>>().join(", "),
    })
}

/// True if a node, in the main graph or in a body, reads a value in an operand that it can be differentiated by.
fn is_read_differentiably(module: &Module, value: Value) -> bool {
    module.uses(value).any(|(node, slot)| {
        let slot = slot as usize;
        let Some(view) = NodeView::new(module, node) else { return true };
        // Bounds, exponents and tables of angles are not weights.
        let is_bound = match view.kind() {
            OpKind::Clip | OpKind::Pad | OpKind::Dropout | OpKind::Pow | OpKind::RotaryEmbedding => slot > 0,
            OpKind::OneHot => true,
            _ => false,
        };
        !is_bound && autodiff::depends_on(module, node, slot)
    })
}

/// True if a product of matrices or a convolution reads a value: then it is not a mask.
fn is_factor(module: &Module, value: Value) -> bool {
    use OpKind::{Conv, ConvTranspose, Einsum, Gemm, MatMul};
    module.uses(value).any(|(node, _)| {
        let kind = module.node(node).schema().map(|schema| schema.kind);
        matches!(kind, Some(Conv | ConvTranspose | Einsum | Gemm | MatMul))
    })
}

/// Statistics of the elements of a constant.
struct Magnitudes {
    /// The largest magnitude; infinity where an element is not finite.
    largest: f64,
    /// True if all elements are the same number.
    are_same: bool,
}

impl Magnitudes {
    fn of(data: &Arc<TensorData>, name: &str) -> Result<Magnitudes, PassError> {
        // Random constants of cases are small, and their values need not be made for that.
        if let Storage::Random { .. } = data.storage() {
            return Ok(Magnitudes { largest: 0.0, are_same: false });
        }
        let wide = data.converted(ampc_ir::convert::Conversion { to: DType::F64, clamp: false });
        let wide = if data.dtype() == DType::F64 { data.as_ref().clone() } else { wide };
        let (mut largest, mut first, mut are_same) = (0f64, None, true);
        let read = wide.visit_converted(|bytes| {
            let (numbers, _) = bytes.as_chunks::<8>();
            for &number in numbers {
                let number = f64::from_le_bytes(number);
                are_same &= *first.get_or_insert(number) == number;
                largest = if number.is_finite() { largest.max(number.abs()) } else { f64::INFINITY };
            }
            std::ops::ControlFlow::Continue(())
        });
        read.map_err(|source| PassError::Constant { name: name.to_owned(), source })?;
        Ok(Magnitudes { largest, are_same })
    }
}
