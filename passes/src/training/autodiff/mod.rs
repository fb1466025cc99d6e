//! `autodiff`: adds the gradients of a loss with respect to parameters, as nodes after the forward graph.
//!
//! Reverse-mode differentiation of the main graph, casts included: an operation in 16 bits, such as a product, runs
//! backward in 16 bits. First, a cast of a weight to 16 bits moves before a Transpose of the weight.
//! The inputs and outputs of the pass are roles of the main graph:
//!
//! | role | before or after | values |
//! |---|---|---|
//! | `parameter(%w)` | before | what is to get a gradient; one role for each |
//! | `loss(%loss)` | before | a float with one element |
//! | `stop(%v)` | before, optional | a value through which no gradient passes |
//! | `seed(%s)` | before, optional | the gradient of the loss, such as a loss scale; 1 without it |
//! | `grad(%w, %dw)` | after | a parameter and its gradient |
//!
//! For example, from `loss = sum(relu(x · w))`:
//!
//! ```text
//! %h = MatMul(%x, %w)                        %y = Relu(%h)        %loss = ReduceSum(%y)
//!
//! %dy = Expand(%seed, Shape(%y))             ReduceSum: every term counts once
//! %dh = Where(%h > 0, %dy, 0)                Relu
//! %dw = Gemm(%x, %dh) {transA=1}             MatMul; the gradient of %x is not needed
//! ```
//!
//! The algorithm:
//! 1. *Which values need a gradient* (forwards): parameters, and float results of nodes that read such a value
//!    in a differentiable operand (`rules.rs`).
//! 2. *Gradients* (backwards, from the loss): the contributions of all readers of a value are added, then the
//!    rule of its producer adds a contribution to each operand that needs a gradient. A value that contributes
//!    nothing to the loss gets no gradient, and no node is made for it.
//! 3. A parameter without a gradient is an error, unless such parameters are to stay frozen.
//!
//! # Precision
//! A rule that takes more than one operation computes in f32 from the 16-bit values as they are stored. So does the
//! reduction that undoes a broadcast, which adds up many elements. A gradient has the type that its readers need: it is
//! rounded once, to the type of its value, if an operation in 16 bits reads it, and stays f32 otherwise (`reads.rs`).
//! Contributions to a cast of a parameter are widened one by one and added in f32: where a weight is shared, no sum
//! is rounded.

pub mod adjoints;
mod arithmetic;
mod attention;
mod backward;
mod dims;
mod einsum;
mod grid_sample;
mod indexing;
mod linear;
mod loss;
mod movement;
mod norm;
mod pointwise;
mod pool;
mod reads;
mod reduce;
mod resize;
mod rules;
mod scatter;
mod softmax;
mod window;

pub use self::backward::Backward;
use self::backward::Unfinished;
pub use self::rules::{GradientFn, has_gradient, is_differentiable};
pub use crate::graph::roles::{GRAD, LOSS, PARAMETER, SEED, STOP, with_role};
pub use crate::pass::training_error::{GradientError, RuleError};

use self::reads::Needs;
use self::rules::Rule;
use crate::casts::move_casts::hoist_weight_casts;
use crate::graph::paths::Paths;
use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, Setting, Spelled, Words, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::training::build::Build;
use crate::training::inputs::conceal;
use crate::training::names::give_gradient;
use ampc_ir::infer::describe;
use ampc_ir::module::Role;
use ampc_ir::{Module, Node, Type, Value};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The gradient of an operator that the table does not know, or that is to be differentiated otherwise.
pub type CustomGradient = Arc<dyn Fn(&mut Backward<'_>) -> Result<(), RuleError> + Send + Sync>;

/// Gradients of a user, by domain (`""` for ai.onnx) and name of the operator. They override the rules of the
/// table.
#[derive(Clone, Default)]
pub struct CustomGradients(BTreeMap<(String, String), CustomGradient>);

impl CustomGradients {
    /// Registers the gradient of an operator.
    pub fn insert(
        &mut self,
        domain: &str,
        op: &str,
        gradient: impl Fn(&mut Backward<'_>) -> Result<(), RuleError> + Send + Sync + 'static,
    ) {
        self.0.insert((domain.to_owned(), op.to_owned()), Arc::new(gradient));
    }

    fn get(&self, module: &Module, node: Node) -> Option<&CustomGradient> {
        if self.0.is_empty() {
            return None;
        }
        let (domain, op, _) = module.op_name(node);
        self.0.get(&(domain.to_owned(), op.to_owned()))
    }
}

impl fmt::Debug for CustomGradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The words of the option `outputs`.
const OUTPUTS: Words = Words { no: "none", yes: "gradients" };

/// The words of the option `unreached`.
const UNREACHED: Words = Words { no: "error", yes: "freeze" };

/// The pass.
#[derive(Clone, Debug, Default)]
pub struct Autodiff {
    /// True if a parameter that the loss does not depend on is left without a gradient; otherwise it is an
    /// error.
    pub freezes_unreached: bool,
    /// True if gradients leave the graph, each as an output called after its parameter: `w.grad`.
    pub gives_gradients: bool,
    /// Gradients of operators that the table does not know.
    pub custom: CustomGradients,
}

impl Spelled for Autodiff {
    const NAME: &'static str = "autodiff";
    const ABOUT: &'static str = "adds gradients of the loss with respect to parameters";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: option("unreached", "error or freeze", Some(UNREACHED.no)),
            print: |pass| pass.freezes_unreached.then(|| Setting::word(UNREACHED.yes)),
            read: |pass, given| given.either(UNREACHED).map(|freeze| pass.freezes_unreached = freeze),
        },
        PassOption {
            def: option("outputs", "none or gradients", Some(OUTPUTS.no)),
            print: |pass| pass.gives_gradients.then(|| Setting::word(OUTPUTS.yes)),
            read: |pass, given| given.either(OUTPUTS).map(|gives| pass.gives_gradients = gives),
        },
    ];
    fn blank() -> Self {
        Autodiff::default()
    }
}

impl Pass for Autodiff {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let parameters: Vec<Value> = with_role(module, PARAMETER).collect();
        let loss = one_with_role(module, LOSS)?.ok_or(GradientError::Role { role: LOSS, found: 0 })?;
        let seed = one_with_role(module, SEED)?;
        check_loss(module, loss)?;
        hoist_weight_casts(module, &parameters);
        let stops: FxHashSet<Value> = with_role(module, STOP).collect();
        let rule = |node: Node| {
            let rule = self.rule(module, node);
            Some((rule.operands()?, rule.reads()))
        };
        let needs = Needs::of(module, cx.facts, &parameters, &stops, rule);
        let nodes: Vec<Node> = module.nodes(module.main()).collect();
        let before: FxHashSet<Value> = module.graph(module.main()).constants().iter().copied().collect();
        let mut backward = Backward::new(module, cx.facts, needs, &parameters);
        backward.seed(loss, seed).map_err(|error| of_node(backward.module(), None, &error))?;
        for node in nodes.into_iter().rev() {
            self.differentiate(&mut backward, node)?;
        }
        let found = backward
            .finish(&parameters)
            .map_err(|Unfinished { module, node, error }| of_node(module, node, &error))?;
        let mut unreached = Vec::new();
        for (&parameter, gradient) in parameters.iter().zip(&found) {
            match gradient {
                Some(gradient) => {
                    let role = Role { name: module.intern(GRAD), values: vec![parameter, *gradient] };
                    module.graph_roles_mut(module.main()).0.push(role);
                    if self.gives_gradients {
                        give_gradient(module, parameter, *gradient)
                            .map_err(|error| of_node(module, None, &RuleError::Insert(error)))?;
                    }
                }
                None => unreached.push(parameter),
            }
        }
        erase_unread(module, &before);
        if unreached.is_empty() {
            return Ok(Changed::Yes);
        }
        let named = |value: &Value| ampc_ir::verify::name_of(module, *value);
        if unreached.len() == parameters.len() {
            return Err(GradientError::NoneReached { names: unreached.iter().map(named).collect() }.into());
        }
        if !self.freezes_unreached {
            return Err(GradientError::Unreached { names: unreached.iter().map(named).collect() }.into());
        }
        freeze(module, &unreached);
        erase_unread(module, &before);
        Ok(Changed::Yes)
    }
}

/// Erases unused constants that rules have made; the constants in `before` stay.
fn erase_unread(module: &mut Module, before: &FxHashSet<Value>) {
    let main = module.main();
    let is_read = |value: Value| module.uses(value).next().is_some() || module.is_output(value);
    let made = module.graph(main).constants().iter().copied().filter(|value| !before.contains(value));
    let unread = made.filter(|&value| !is_read(value)).collect();
    module.erase_constants(main, &unread);
}

/// Turns parameters that the loss does not depend on back into constants, if their values are known.
fn freeze(module: &mut Module, parameters: &[Value]) {
    let role = module.intern(PARAMETER);
    let frozen: FxHashSet<Value> = parameters.iter().copied().collect();
    let roles = module.graph_roles_mut(module.main()).0;
    roles.retain(|r| r.name != role || !r.values.iter().any(|value| frozen.contains(value)));
    conceal(module, parameters, true);
}

impl Autodiff {
    /// The rule of a node.
    fn rule(&self, module: &Module, node: Node) -> Rule {
        self.custom.get(module, node).map_or_else(|| rules::of(module, node), |_| Rule::Custom)
    }

    /// Adds the contributions of a node to the gradients of its operands.
    fn differentiate(&self, backward: &mut Backward<'_>, node: Node) -> Result<(), PassError> {
        let in_node = |backward: &Backward<'_>, error: RuleError| {
            of_node(backward.module(), backward.place_of_error(), &error)
        };
        let rule = self.rule(backward.module(), node);
        if !backward.enter(node, rule.reads()).map_err(|error| in_node(backward, error))? {
            return Ok(());
        }
        let module = backward.module();
        let done = if let Some(custom) = self.custom.get(module, node) {
            custom(backward)
        } else {
            match rule {
                Rule::Gradient(gradient, ..) => gradient(backward).and_then(|()| match backward.unasked() {
                    None => Ok(()),
                    Some(i) => Err(RuleError::Unsupported(format!(
                        "result {i} leads to the loss, and has no gradient here"
                    ))),
                }),
                Rule::Stop | Rule::Custom => Ok(()),
                Rule::None(why) => {
                    let (op, node) = named(module, node);
                    return Err(GradientError::NoRule { op, node, why }.into());
                }
            }
        };
        done.map_err(|error| in_node(backward, error))
    }
}

/// True if the result of a node depends on an operand in a differentiable way.
pub(crate) fn depends_on(module: &Module, node: Node, slot: usize) -> bool {
    rules::of(module, node).depends_on(slot)
}

/// The value of a role that at most one has.
pub(crate) fn one_with_role(module: &Module, role: &'static str) -> Result<Option<Value>, GradientError> {
    let values: Vec<Value> = with_role(module, role).collect();
    match values[..] {
        [] => Ok(None),
        [value] => Ok(Some(value)),
        _ => Err(GradientError::Role { role, found: values.len() }),
    }
}

/// Checks that a value can be a loss.
pub(crate) fn check_loss(module: &Module, loss: Value) -> Result<(), GradientError> {
    let ty = &module.value(loss).ty;
    let is_scalar = match ty {
        Type::Tensor(t) => t.dtype.is_float() && t.shape.element_count().is_none_or(|n| n == 1),
        Type::Unknown => true,
        _ => false,
    };
    // An unknown extent may be 1, but nothing says so.
    let is_known = ty.shape().is_some_and(|shape| shape.element_count().is_some());
    if is_scalar && is_known {
        return Ok(());
    }
    let name = ampc_ir::verify::name_of(module, loss);
    Err(GradientError::NotScalar { name, found: describe(ty) })
}

/// The operator of a node and the path by which users name it.
fn named(module: &Module, node: Node) -> (String, String) {
    let (domain, op, _) = module.op_name(node);
    let op = crate::graph::keys::op_key(domain, op);
    // Nodes that autodiff itself has made have no path of the author.
    let path = Paths::of(module).path(node).to_owned();
    (op, path)
}

fn of_node(module: &Module, node: Option<Node>, error: &RuleError) -> PassError {
    let (op, path) = match node {
        Some(node) => named(module, node),
        None => ("the loss".to_owned(), module.text(module.graph(module.main()).name).to_owned()),
    };
    let opset = module.opset(module.main(), "").unwrap_or(OPSET);
    let what = match error {
        RuleError::Insert(_) if opset < OPSET => {
            format!("{error}; its opset is {opset}: raise it first (`--opset {OPSET}`)")
        }
        _ => error.to_string(),
    };
    match error {
        RuleError::Internal(_) => GradientError::Internal { op, node: path, what }.into(),
        _ => GradientError::Node { op, node: path, what }.into(),
    }
}

/// From this opset on, there is everything that rules insert.
const OPSET: u16 = 18;
