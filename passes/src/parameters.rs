//! Parameters: which constants of a model are trained.
//!
//! A file says nothing of it: weights, running statistics, masks and tables are initializers alike. [`Parameters`] finds
//! those that a gradient can reach and gives them the role `parameter`, those that are listed as inputs too, which are plain
//! constants from then on; [`ExposeParameters`] makes them inputs.

use crate::autodiff::{self, LOSS, PARAMETER};
use crate::invariants::Invariants;
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::pipeline::{PassOption, Setting, Spelled, option, quoted, settings};
use crate::policy::Pattern;
use crate::suggest::{did_you_mean, nearest};
use ampc_ir::edit::Position;
use ampc_ir::inserter::InsertError;
use ampc_ir::module::{Def, Provenance, Role};
use ampc_ir::op::OpKind;
use ampc_ir::tensor::{Storage, TensorData};
use ampc_ir::views::NodeView;
use ampc_ir::views::broadcast::DropoutView;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Payload, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The pass that gives parameters, and the loss, their roles.
///
/// A parameter is an initializer of the main graph
/// - of floats, in fp32 or another type that is kept in fp32 while training,
/// - that is no single number without an axis, or by which nodes only multiply and divide: in most files these are constants
///   of formulas,
/// - that some node reads in an operand by which it can be differentiated, so no running statistics and no bounds,
/// - whose elements are all of ordinary size, unless a product of matrices or a convolution reads it: a table with infinities
///   or numbers of 10⁴ and more is a mask.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// The output that is the loss, if one is; otherwise a value has the role already, or gets it later.
    pub loss: Option<String>,
    /// Names of constants that are parameters whatever they look like.
    pub train: Vec<String>,
    /// Names of constants that are none. They outrank `train`.
    pub freeze: Vec<String>,
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

/// Error of finding parameters.
#[derive(Debug, thiserror::Error)]
pub enum ParameterError {
    /// The loss is no output.
    #[error("no output of the model is called `{name}`; its outputs are {outputs}")]
    NoSuchLoss {
        /// The name that was given.
        name: String,
        /// The names that there are.
        outputs: String,
    },
    /// A pattern matches nothing.
    #[error("`{pattern}` matches no {what}{}", did_you_mean(.near.as_deref()))]
    MatchesNothing {
        /// The pattern as given.
        pattern: String,
        /// The subject of the problem.
        what: &'static str,
        /// The name that was probably meant.
        near: Option<String>,
    },
    /// There is nothing to train.
    #[error(
        "the model has no parameters: no float initializer of its main graph has a differentiable reader{}",
        if *.frozen { ", but for those that are frozen" } else { "; name constants that are trained (`--train`)" }
    )]
    None {
        /// True if some would be parameters if they were not frozen.
        frozen: bool,
    },
    /// The cast of a weight that is stored low does not fit.
    #[error("a parameter cannot be widened: {0}")]
    Insert(#[from] InsertError),
    /// An invalid pattern.
    #[error(transparent)]
    Pattern(#[from] crate::policy::PolicyError),
}

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
        let found = self.find(module)?;
        if found.parameters.is_empty() {
            return Err(ParameterError::None { frozen: found.frozen }.into());
        }
        if let Some(message) = untrained_numbers(&found.numbers) {
            cx.warn("parameters.numbers", None, message);
        }
        if let Some(message) = merged_parameters(&found.merged) {
            cx.warn("parameters.merged", None, message);
        }
        if let Some(message) = inference_mode(module) {
            cx.warn("parameters.inference", None, message);
        }
        let parameters: Vec<Value> =
            found.parameters.into_iter().map(|value| conceal(module, value, false)).collect();
        // The author of a text may have said of some that they are parameters.
        let mut known: FxHashSet<Value> = autodiff::with_role(module, PARAMETER).collect();
        for value in parameters {
            if known.insert(value) {
                add_role(module, PARAMETER, vec![value]);
            }
        }
        for input in running_statistics(module) {
            conceal(module, input, false);
        }
        Ok(Changed::Yes)
    }
}

/// The float constants of the main graph by their use.
#[derive(Default)]
struct Found {
    parameters: Vec<Value>,
    /// Names of single numbers that would be parameters if they had more elements.
    numbers: Vec<String>,
    /// Names of parameters that several nodes read and whose elements are all the same.
    merged: Vec<String>,
    /// True if some would be parameters if they were not frozen.
    frozen: bool,
}

impl Parameters {
    /// Sorts the float constants of the main graph.
    fn find(&self, module: &Module) -> Result<Found, PassError> {
        let (train, freeze) = (patterns(&self.train)?, patterns(&self.freeze)?);
        let mut matched = vec![false; train.len() + freeze.len()];
        let (mut found, mut floats) = (Found::default(), Vec::new());
        for (value, data) in initializers(module) {
            if !matches!(data.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::F64) {
                continue;
            }
            let name = ampc_ir::verify::name_of(module, value);
            let mut is_match = |patterns: &[Pattern], from: usize| {
                let mut any = false;
                for (i, pattern) in patterns.iter().enumerate() {
                    let matches = pattern.given() == name || pattern.matches(&name);
                    matched[from + i] |= matches;
                    any |= matches;
                }
                any
            };
            let (wanted, unwanted) = (is_match(&train, 0), is_match(&freeze, train.len()));
            let could = is_read_differentiably(module, value);
            floats.push(name.clone());
            if unwanted {
                found.frozen |= could;
            } else if wanted {
                found.parameters.push(value);
            } else if could && is_number(module, value, &data) {
                found.numbers.push(name);
            } else if could {
                let limit = if is_factor(module, value) { f64::INFINITY } else { LARGE };
                let range = Magnitudes::of(&data, &name)?;
                if range.largest < limit {
                    found.parameters.push(value);
                    if range.are_same && readers(module, value) > 1 {
                        found.merged.push(name);
                    }
                }
            }
        }
        if let Some(at) = matched.iter().position(|matched| !matched) {
            let pattern = self.train.iter().chain(&self.freeze).nth(at).cloned().unwrap_or_default();
            let near = nearest(&pattern, floats.iter().map(String::as_str)).map(str::to_owned);
            let what = "float constant of the main graph";
            return Err(ParameterError::MatchesNothing { pattern, what, near }.into());
        }
        Ok(found)
    }
}

/// The first of some names, for a message.
fn first_of(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let some: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    format!("{}{}", some.join(", "), if names.len() > SHOWN { " …" } else { "" })
}

/// The warning about parameters that are single numbers, by their names.
fn untrained_numbers(names: &[String]) -> Option<String> {
    let are = match names.len() {
        0 => return None,
        1 => "a constant of one number is".to_owned(),
        n => format!("{n} constants of one number are"),
    };
    Some(format!("{are} not trained ({}): name those that are parameters (`--train`)", first_of(names)))
}

/// The warning about parameters that an exporter may have merged because they were equal.
fn merged_parameters(names: &[String]) -> Option<String> {
    let are = match names.len() {
        0 => return None,
        1 => "a parameter whose elements are all the same is".to_owned(),
        n => format!("{n} parameters whose elements are all the same are"),
    };
    Some(format!(
        "{are} read by several nodes ({}): if the exporter has merged weights that begin alike, they are trained as one; \
         export the model with a weight for each",
        first_of(names)
    ))
}

/// The number of readers of a value.
fn readers(module: &Module, value: Value) -> usize {
    module.uses(value).map(|(node, _)| node).collect::<FxHashSet<Node>>().len()
}

/// True if a constant is a number within a formula: it has no axis, or nodes only multiply or divide by it.
fn is_number(module: &Module, value: Value, data: &TensorData) -> bool {
    let scales = |(node, _): (Node, u32)| {
        let kind = module.node(node).schema().map(|schema| schema.kind);
        matches!(kind, Some(OpKind::Mul | OpKind::Div))
    };
    data.dims().is_empty() || data.element_count() == 1 && module.uses(value).all(scales)
}

/// The initializers of the main graph, those that are listed as inputs too: a step lists all that it trains.
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
    let norms = module
        .nodes(module.main())
        .filter_map(|node| NodeView::new(module, node))
        .filter(|view| view.kind() == OpKind::BatchNormalization && BatchNormView::read(view).training);
    let read = norms.flat_map(|view| [view.operand(3), view.operand(4)]).flatten();
    let is_listed = |value: &Value| matches!(module.value(*value).def, Def::Input { default: Some(_), .. });
    let mut found: Vec<Value> = read.filter(is_listed).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The warning about nodes in inference mode that behave differently in training, as in a model that was
/// exported for inference.
fn inference_mode(module: &Module) -> Option<String> {
    let (mut norms, mut dropouts) = (0, 0);
    for node in module.nodes(module.main()) {
        let Some(view) = NodeView::new(module, node) else { continue };
        match view.kind() {
            OpKind::BatchNormalization => norms += usize::from(!BatchNormView::read(&view).training),
            OpKind::Dropout => dropouts += usize::from(DropoutView::read(&view).training == Some(false)),
            _ => {}
        }
    }
    let counted = |n: usize, op: &str, does: &str| (n > 0).then(|| format!("{n} {op} {does}"));
    let parts = [
        counted(norms, "BatchNormalization", "by running statistics, which stay as they are"),
        counted(dropouts, "Dropout", "that drops nothing"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| {
        format!(
            "the model is in inference mode and is trained so: {}; export it for training (`training_mode` of its nodes) \
             to have them train",
            parts.join(", ")
        )
    })
}

/// Gives values a role of the main graph.
pub(crate) fn add_role(module: &mut Module, role: &str, values: Vec<Value>) {
    let name = module.intern(role);
    module.graph_roles_mut(module.main()).0.push(Role { name, values });
}

fn patterns(list: &[String]) -> Result<Vec<Pattern>, ParameterError> {
    Ok(list.iter().map(|text| Pattern::of_values(text)).collect::<Result<_, _>>()?)
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
        // Bounds, exponents and tables of angles are no weights.
        let is_bound = match view.kind() {
            OpKind::Clip | OpKind::Pad | OpKind::Dropout | OpKind::Pow | OpKind::RotaryEmbedding => slot > 0,
            OpKind::OneHot => true,
            _ => false,
        };
        !is_bound && autodiff::depends_on(module, node, slot)
    })
}

/// True if a product of matrices or a convolution reads a value: then it is no mask.
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

/// The pass that makes parameters inputs, whose values are those inputs' defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExposeParameters;

impl Spelled for ExposeParameters {
    const NAME: &'static str = "expose-parameters";
    const ABOUT: &'static str = "turns parameters into inputs, in fp32";
    fn blank() -> Self {
        ExposeParameters
    }
}

impl Pass for ExposeParameters {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE
    }
    fn run(&self, module: &mut Module, _cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let parameters: Vec<Value> = autodiff::with_role(module, PARAMETER).collect();
        let mut changed = false;
        for value in parameters {
            if module.constant(value).is_some() {
                expose(module, value, true).map_err(ParameterError::from)?;
                changed = true;
            }
        }
        Ok(Changed::when(changed))
    }
}

/// Makes a constant of the main graph an input of its name, on request in fp32 if it is stored in 16 bits.
///
/// # Errors
/// If the cast that its readers then need cannot be inserted.
pub(crate) fn expose(module: &mut Module, value: Value, widens: bool) -> Result<Value, InsertError> {
    let Some(payload) = module.constant(value).cloned() else { return Ok(value) };
    let main = module.main();
    let low = payload.dense().map(|data| data.dtype()).filter(|dtype| widens && dtype.is_low());
    let payload = match (low, payload) {
        (Some(_), Payload::Dense(data)) => {
            let to = ampc_ir::convert::Conversion { to: DType::F32, clamp: false };
            Payload::Dense(Arc::new(data.converted(to)))
        }
        (_, payload) => payload,
    };
    let name = ampc_ir::verify::name_of(module, value);
    let fresh = module.fresh_name(&name);
    let input = module.add_input(main, fresh, payload.ty(), Some(payload));
    let (kept, leaves) = (module.value(value).name, module.is_output(value));
    for role in module.graph_roles_mut(main).0.iter_mut() {
        role.values.iter_mut().filter(|v| **v == value).for_each(|v| *v = input);
    }
    let read = match low {
        Some(low) => narrowed(module, input, &name, low)?,
        None => input,
    };
    module.replace_value(value, read);
    module.erase_constant(value);
    if let Some(name) = kept {
        // What leaves the model keeps its name: of a weight that is stored low, that is the cast.
        module.set_value_name(if leaves { read } else { input }, name);
    }
    debug_assert!(matches!(module.value(input).def, Def::Input { .. }));
    Ok(input)
}

/// Makes an input of the main graph that has a value a constant of its name, which keeps the input's roles. On request, what
/// an inserted cast to 16 bits makes of it for all of its readers becomes that constant.
pub(crate) fn conceal(module: &mut Module, input: Value, narrows: bool) -> Value {
    let Def::Input { default: Some(payload), .. } = &module.value(input).def else { return input };
    let (main, mut payload) = (module.main(), payload.clone());
    let (name, mut read) = (ampc_ir::verify::name_of(module, input), input);
    if let (true, Some((cast, to)), Payload::Dense(data)) = (narrows, only_cast(module, input), &payload) {
        payload = Payload::Dense(Arc::new(data.converted(ampc_ir::convert::Conversion { to, clamp: false })));
        read = module.node(cast).result(0).unwrap_or(input);
    }
    let fresh = module.fresh_name(&name);
    let constant = module.add_constant(main, fresh, payload);
    for role in module.graph_roles_mut(main).0.iter_mut() {
        role.values.iter_mut().filter(|v| **v == input).for_each(|v| *v = constant);
    }
    module.replace_value(read, constant);
    if let Some((cast, _)) = module.producer(read) {
        module.erase_node(cast);
    }
    let kept = module.value(input).name;
    module.erase_input(input);
    if let Some(name) = kept {
        module.set_value_name(constant, name);
    }
    constant
}

/// The inserted cast to 16 bits that alone reads a value, and what to.
pub(crate) fn only_cast(module: &Module, value: Value) -> Option<(Node, DType)> {
    let mut readers = module.uses(value).map(|(node, _)| node);
    let (Some(node), None) = (readers.next(), readers.next()) else { return None };
    let data = module.node(node);
    let is_inserted = data.provenance == Provenance::Inserted
        && data.schema().is_some_and(|schema| schema.kind == OpKind::Cast);
    let to = data.result(0).filter(|&result| !module.is_output(result))?;
    let to = module.value(to).ty.dtype().filter(|dtype| dtype.is_low())?;
    (is_inserted && !module.is_output(value)).then_some((node, to))
}

/// The value for readers of a weight that a file stores low: a cast of the fp32 weight, which is exact at
/// first.
fn narrowed(module: &mut Module, weight: Value, name: &str, low: DType) -> Result<Value, InsertError> {
    let (main, result) = (module.main(), module.fresh_name(&format!("{name}.{low}")));
    let mut inserter = Inserter::new(module, main, Position::First);
    inserter.provenance = Provenance::Inserted;
    let spec = NodeSpec::new(OpKind::Cast, &[weight]).result_name(result);
    let [read] = inserter.insert(spec.attr("to", AttrValue::Int(i64::from(low.number()))))?;
    Ok(read)
}
