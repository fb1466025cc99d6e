//! `classify`: gives every type variable of every node a precision class and the reason for it.
//!
//! A class belongs to a type variable, because formals that share a type variable share an element type. The class is
//! the strictest class of the formals in the operator table, unless the user says otherwise. Variables that cannot be
//! lowered are *fixed*, with a rule that gives the reason:
//!
//! - `type`: the variable is not f32;
//! - `schema` or `opset.bf16`: the operator has no such form, either at all or below a later opset;
//! - `type.unknown`: a custom operator feeds the variable;
//! - `attribute`: an attribute gives the type of the result;
//! - `sequence.public`, `sequence.unknown` and `sequence:NODE`: the variable shares its element type with a sequence
//!   that is public, that an unknown operator reads, or that NODE holds; see [`sequences`].
//!
//! A variable that is 16-bit already keeps its class, and its element type is decided.

mod asked;
mod opsets;
pub(crate) mod quantized;
mod unmet;

use self::asked::{Asked, asked, asks, warn_of_unmet_decisions};
use self::opsets::Unready;
use self::unmet::{
    ValueNames, check_pins, warn_of_foreign_report, warn_of_misfit, warn_of_other_format,
    warn_of_unmet_lists, warn_of_unmet_pins,
};
use crate::analysis::numerics::scalar;
use crate::graph::flow::{self, Var};
use crate::graph::keys::node_key;
use crate::graph::paths::Paths;
use crate::graph::sequences::{self, Groups};
use crate::graph::{containers, marks};
use crate::pass::invariants::Invariants;
use crate::pass::options::{FORMAT, POLICY, PassOption, Setting, Spelled, TARGET, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
pub use crate::policy::pinned::pin_of_node;
use crate::policy::{Base, HoldingPin, ListedBy, OpClass, Pin, Pins, Policy, PolicyError};
use crate::precision::between::{self, Growth};
use crate::target::Profile;
use ampc_ir::module::reason::PinnedBy;
use ampc_ir::module::{Decision, Op, Reason, Rule};
use ampc_ir::op::{self, Arity, Class, FormalType, Legality, OpKind, OpSchema, is_open};
use ampc_ir::views::{NodeView, constant_of, resolve_captures};
use ampc_ir::{DType, GraphId, Module, Node, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pass `classify`.
#[derive(Clone, Debug)]
pub struct Classify {
    /// The format to lower to: f16 or bf16.
    pub to: DType,
    /// The policy.
    pub policy: Arc<Policy>,
    /// The target. Its kernels may remove a reason for fp32 (the module `between`).
    pub target: Arc<Profile>,
}

impl Spelled for Classify {
    const NAME: &'static str = "classify";
    const ABOUT: &'static str = "gives every type variable of every node a precision class";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: FORMAT,
            print: |pass| Some(Setting::word(pass.to)),
            read: |pass, given| given.format().map(|to| pass.to = to),
        },
        PassOption {
            def: POLICY,
            print: |pass| Some(Setting::Policy(pass.policy.clone())),
            read: |pass, given| given.policy().map(|policy| pass.policy = policy),
        },
        PassOption {
            def: TARGET,
            print: |pass| {
                let is_default = Some(pass.target.name.as_str()) == TARGET.default;
                (!is_default).then(|| Setting::Target(pass.target.clone()))
            },
            read: |pass, given| given.target().map(|target| pass.target = target),
        },
    ];
    fn blank() -> Self {
        Classify { to: DType::F16, policy: Arc::default(), target: Arc::default() }
    }
    fn check(&self) -> Result<(), PolicyError> {
        self.policy.check_format(self.to)
    }
}

impl Pass for Classify {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn ensures(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED)
    }
    fn revokes(&self) -> Invariants {
        Invariants::ASSIGNED.with(Invariants::LOWERED)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let paths = Paths::of(module);
        let values = ValueNames::new(module, !self.policy.value_pins().is_empty());
        let pins = self.policy.pins_in(&*paths, &values);
        check_pins(&self.policy, &pins, module, &paths, &values)?;
        warn_of_foreign_report(&self.policy, &paths, cx);
        let groups = Groups::new(module);
        let mut state = State {
            to: self.to,
            groups: &groups,
            wishes: Wishes { policy: &self.policy, pins: &pins },
            target: &self.target,
            dead: flow::dead_functions(module),
            contradiction: None,
            reasons: FxHashMap::default(),
            unready: Vec::new(),
        };
        let mut wanted = Vec::new();
        for &node in paths.nodes() {
            wanted.extend(asks(module, node).then(|| (node, module.node(node).decisions.clone())));
            warn_of_misfit(module, node, cx);
            let names: Vec<&str> = paths.names(node).collect();
            let decisions = state.node(module, node, &names);
            if let Some([first, second]) = state.contradiction.take() {
                return Err(PassError::PinsContradict { node: paths.path(node).to_owned(), first, second });
            }
            *module.node_mut(node).decisions = decisions.into();
        }
        let unready = state.unready;
        sequences::agree(module, &groups, &paths);
        warn_of_unmet_pins(&pins, module, &paths, cx);
        warn_of_unmet_decisions(&wanted, module, &paths, cx);
        warn_of_unmet_lists(&self.policy, module, &paths, cx);
        warn_of_other_format(self.to, module, &paths, cx);
        self.warn_of_opsets(module, unready, cx)?;
        Ok(Changed::Yes)
    }
}

/// True if values of several types bind a variable. The runtime of an operator of an open domain accepts more types
/// than the table lists, with unknown results.
fn is_mixed(module: &Module, var: Var) -> bool {
    let mut types = flow::operands_of(module, var).filter_map(|(_, v)| module.value(v).ty.dtype());
    types.next().is_some_and(|first| types.any(|other| other != first))
}

/// True if a variable types operands that may have different types: the operands of a variadic formal that is not
/// homogeneous.
fn takes_several_types(schema: &OpSchema, var: Var) -> bool {
    let last = schema.inputs.last();
    last.is_some_and(|formal| {
        matches!(formal.arity, Arity::Variadic { homogeneous: false, .. })
            && u8::try_from(var.var).is_ok_and(|var| formal.ty == FormalType::Var(var))
    })
}

/// The requests of the user about single nodes.
struct Wishes<'a> {
    policy: &'a Policy,
    pins: &'a Pins<'a>,
}

impl Wishes<'_> {
    /// The request about a cast of the author: a pin, a list that denies casts, or a pin of an earlier run.
    fn of_cast(&self, module: &Module, node: Node, paths: &[&str]) -> Option<PinnedBy> {
        let is_cast = module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast);
        if !is_cast || flow::inserted_result(module, node).is_some() {
            return None;
        }
        let listed = || {
            let listed = self.policy.class_of(&node_key(module, node)).filter(|l| l.class == Class::Deny);
            listed.map(|listed| PinnedBy::List(listed.from))
        };
        self.of_node(module, node, paths).or_else(listed).or_else(|| self.replayed(paths))
    }

    /// The pin, with any format, that names a node of the author.
    fn of_node(&self, module: &Module, node: Node, paths: &[&str]) -> Option<PinnedBy> {
        if self.pins.is_empty() || flow::inserted_result(module, node).is_some() {
            return None;
        }
        let names = module.var_names(node);
        let mut pins = flow::vars(module, node)
            .zip(&names)
            .filter_map(|(var, name)| self.of_var(module, var, paths, name));
        pins.next().map(|held| held.by)
    }

    /// The pin that named a node in an earlier run.
    fn replayed(&self, paths: &[&str]) -> Option<PinnedBy> {
        paths.iter().find_map(|path| self.policy.replayed_pin(path)).cloned()
    }

    /// The pin that applies to a variable of a node with these paths.
    fn of_var(&self, module: &Module, var: Var, paths: &[&str], name: &str) -> Option<HoldingPin> {
        if self.pins.is_empty() {
            return None;
        }
        let names = flow::operands_of(module, var)
            .map(|(slot, v)| (slot, flow::behind_inserted(module, resolve_captures(module, v))))
            .filter(|&(_, v)| module.producer(v).is_none() || constant_of(module, v).is_some())
            .chain(flow::results_of(module, var))
            .filter_map(|(_, value)| module.value_name(value).map(|s| module.text(s)));
        self.pins.of(paths, name, names)
    }
}

/// The nodes of the author that a pin, a pin of an earlier run or a request of the graph names, and the casts that a
/// list denies.
pub(crate) fn pinned_nodes(module: &Module, policy: &Policy) -> FxHashSet<Node> {
    let denied = policy.class_of("Cast").is_some_and(|listed| listed.class == Class::Deny);
    let has_pins = !policy.pins().is_empty() || !policy.value_pins().is_empty() || policy.has_replayed_pins();
    if !denied && !has_pins && !module.graph_ids().any(|graph| module.nodes(graph).any(|n| asks(module, n))) {
        return FxHashSet::default();
    }
    let paths = Paths::of(module);
    let values = ValueNames::new(module, !policy.value_pins().is_empty());
    let wishes = Wishes { policy, pins: &policy.pins_in(&*paths, &values) };
    let mut nodes = paths.nodes().to_vec();
    nodes.retain(|&node| {
        let names: Vec<&str> = paths.names(node).collect();
        asks(module, node)
            || wishes.of_node(module, node, &names).or_else(|| wishes.replayed(&names)).is_some()
            || wishes.of_cast(module, node, &names).is_some()
    });
    nodes.into_iter().collect()
}

/// The class of a variable by the operator table alone, before pins, lists, reports and the policy.
struct ByTable {
    class: Class,
    /// The rule behind the class.
    rule: Rule,
    /// The base of the policy for classes.
    base: Base,
    /// The growth of the operator, if a kernel of the target removes the reason why the table denies it.
    growth: Option<Growth>,
}

struct State<'a> {
    to: DType,
    groups: &'a Groups,
    wishes: Wishes<'a>,
    target: &'a Profile,
    /// Graphs of functions that nothing calls.
    dead: FxHashSet<GraphId>,
    /// Contradicting pins for a variable of the current node.
    contradiction: Option<[String; 2]>,
    /// Reasons by rule, shared because many nodes have the same reason.
    reasons: FxHashMap<Rule, Arc<Reason>>,
    /// Variables whose operators have the format only from a newer opset on, and which could be low at that opset.
    unready: Vec<Unready>,
}

impl State<'_> {
    fn decide(&mut self, class: Class, precision: Option<DType>, rule: Rule) -> Decision {
        let shared = self.reasons.entry(rule).or_insert_with_key(|rule| Arc::new(rule.clone().into()));
        Decision { class, precision, reason: shared.clone() }
    }

    fn node(&mut self, module: &Module, node: Node, paths: &[&str]) -> Vec<Decision> {
        let schema = module.node(node).schema();
        let names = module.var_names(node);
        let vars = || flow::vars(module, node).zip(&names);
        let mut decisions: Vec<Decision> =
            vars().map(|(var, name)| self.var(module, schema, var, name, paths)).collect();
        // The last decision of a cast records the pin that names the cast, because the result of a cast is never
        // decided. The last decision also records a pin that names a node and decides nothing.
        let is_met = decisions.iter().any(|decision| decision.reason.rule().pinned_by().is_some());
        let pin = || self.wishes.of_node(module, node, paths).filter(|_| !is_met);
        if let Some(pin) = self.wishes.of_cast(module, node, paths).or_else(pin)
            && let Some(last) = decisions.last_mut()
        {
            last.reason = Arc::new(Reason::with_pin(last.reason.rule().clone(), pin));
        }
        decisions
    }

    fn var(
        &mut self,
        module: &Module,
        schema: Option<&'static OpSchema>,
        var: Var,
        name: &str,
        paths: &[&str],
    ) -> Decision {
        let table = self.by_table(module, schema, var);
        if let Some(decided) = self.not_full(module, schema, var, &table, paths, name) {
            return decided;
        }
        let full = Some(DType::F32);
        if let Some(rule) = immovable(module, schema, var) {
            return self.decide(Class::Fixed, full, rule);
        }
        // If no operand can be cast, neither a pin nor a list changes the type of the result.
        let castable = self.is_castable(module, var);
        // A request of the user does not apply to a node that an earlier run inserted, although its name may match.
        let speaks = castable && flow::inserted_result(module, var.node).is_none();
        let asked = if speaks { asked(module, var) } else { None };
        let pin = if speaks { self.pin(module, var, paths, name) } else { None };
        let pin = pin.or_else(|| asked.and_then(Asked::pin));
        // A report of another model may request a format that this variable cannot have.
        let replayed =
            paths.iter().find_map(|path| self.wishes.policy.replayed(path, name)).filter(|&precision| {
                speaks && (!precision.is_low() || legality(module, var, precision) == Legality::Legal)
            });
        let wanted = match (&pin, replayed) {
            (&Some((Pin::To(to), _)), _) | (None, Some(to)) if to.is_low() => to,
            _ => self.to,
        };
        let by_class = |state: &mut Self, table: ByTable| {
            if castable {
                let listed = state.wishes.policy.class_of(&node_key(module, var.node));
                // A list names operators and does not apply to an operator that computes the loss.
                let listed =
                    listed.filter(|_| speaks && table.class != Class::Fixed && table.rule != Rule::Loss);
                let listed = asked.and_then(Asked::class).or(listed);
                return state.by_wishes(table, pin, listed, replayed);
            }
            if table.class != Class::Fixed {
                return state.decide(table.class, None, table.rule);
            }
            // The element of an optional has the type of its content.
            let by_attribute = schema.is_some_and(|s| !s.attrs.is_empty());
            state.decide(Class::Fixed, full, if by_attribute { Rule::Attribute } else { table.rule })
        };
        match legality(module, var, wanted) {
            Legality::Legal => by_class(self, table),
            Legality::NotFloat | Legality::NoSuchFormat { first_opset_with_it: None } => {
                self.decide(Class::Fixed, full, Rule::Schema)
            }
            Legality::NoSuchFormat { first_opset_with_it: Some(first) } => {
                let gains = |s: &&'static OpSchema| {
                    table.class == Class::Allow || op::schema_class(s, wanted) == Class::Allow
                };
                if let Some(schema) = schema.filter(gains) {
                    // The class is fixed at this opset only.
                    let class = match table.class {
                        Class::Fixed => refined(module, schema, var.node, wanted),
                        class => class,
                    };
                    let decision = by_class(self, ByTable { class, ..table });
                    let unready = Unready { var, about: (schema.name, first, wanted), decision };
                    self.unready.extend(Some(unready).filter(Unready::could_be_low));
                }
                self.decide(Class::Fixed, full, Rule::Opset(wanted))
            }
        }
    }

    /// The class of a variable before pins, lists and reports.
    fn by_table(&self, module: &Module, schema: Option<&'static OpSchema>, var: Var) -> ByTable {
        // An operator that puts elements into a sequence or takes elements out only moves them.
        let moves = self.groups.get(var).is_some() && containers::is_structural_node(module, var.node);
        let is_loss = marks::is_loss(module, var.node);
        let class = match moves {
            true => Class::Clear,
            false if is_loss => Class::Deny,
            false => class_by_table(module, schema, var, self.to),
        };
        let declared = schema.is_some_and(|s| s.declared.is_some());
        // A base class does not apply to operators that only pass values on, nor to operators that the user described.
        let base = match self.wishes.policy.base {
            Base::Class(_) if moves || declared || flow::is_port(module, var) => Base::Table,
            _ if is_loss => Base::Table,
            base => base,
        };
        let rule = match declared {
            _ if is_loss => Rule::Loss,
            true => Rule::Signature,
            false => Rule::Table,
        };
        let growth = schema.filter(|s| self.target.rounds_once(s, self.to).is_some());
        ByTable { class, rule, base, growth: growth.and_then(|s| between::growth(s.kind)) }
    }

    /// The decision about a variable that is not fp32 and has no fp32 elements, or whose type is unknown; `None` for
    /// any other variable.
    fn not_full(
        &mut self,
        module: &Module,
        schema: Option<&'static OpSchema>,
        var: Var,
        table: &ByTable,
        paths: &[&str],
        name: &str,
    ) -> Option<Decision> {
        if !flow::is_port(module, var) && is_mixed(module, var) {
            if schema.is_some_and(|s| is_open(s.domain)) {
                return Some(self.decide(Class::Fixed, None, Rule::UnknownType));
            }
            // Each operand keeps its own type.
            if schema.is_some_and(|s| takes_several_types(s, var)) {
                return Some(self.decide(Class::Fixed, None, Rule::Type));
            }
        }
        let is_grouped = self.groups.get(var).is_some();
        let element = match flow::bound_type(module, var) {
            Some(Type::Tensor(tensor)) => Some(tensor.dtype),
            Some(ty) if is_grouped => containers::element(ty),
            Some(_) => None,
            None => return Some(self.decide(Class::Fixed, None, Rule::UnknownType)),
        };
        match element {
            Some(DType::F32) => {}
            Some(low) if low.is_low() => {
                let class = self.class_of_low(module, var, table, paths, name);
                return Some(self.decide(class, Some(low), Rule::AlreadyLow));
            }
            _ => {
                let other = flow::bound_type(module, var).and_then(Type::element_dtype);
                return Some(self.decide(Class::Fixed, other, Rule::Type));
            }
        }
        // An operand of unknown type has the type of the other operands, but it cannot be cast. A result of unknown
        // type (in the body of a custom operator) has readers that cannot be told about a new type.
        let mut values = flow::operands_of(module, var).chain(flow::results_of(module, var));
        if values.any(|(_, v)| module.value(v).ty == Type::Unknown && !self.is_dead(module, v)) {
            return Some(self.decide(Class::Fixed, Some(DType::F32), Rule::UnknownType));
        }
        None
    }

    /// Decides a variable that may have the format, by pin, list, report and policy.
    fn by_wishes(
        &mut self,
        table: ByTable,
        pin: Option<(Pin, PinnedBy)>,
        listed: Option<OpClass>,
        replayed: Option<DType>,
    ) -> Decision {
        let of_precision = |p: DType| if p == DType::F32 { Class::Fixed } else { Class::Allow };
        let listed = match pin {
            Some((Pin::To(precision), by)) => {
                return self.decide(of_precision(precision), Some(precision), Rule::Pin(by));
            }
            Some((Pin::Auto, _)) => None,
            None => match (listed, replayed) {
                (Some(listed), Some(_)) if listed.from == ListedBy::Options => Some(listed),
                (_, Some(precision)) => {
                    return self.decide(of_precision(precision), Some(precision), Rule::Replay);
                }
                (listed, None) => listed,
            },
        };
        let (class, rule) = class_by_policy(&table, listed);
        if class == Class::Deny && rule == Rule::Table && table.growth.is_some() {
            return self.decide(Class::Infer, None, Rule::Kernel { target: self.target.name.clone() });
        }
        let precision = (class == Class::Fixed).then_some(DType::F32);
        self.decide(class, precision, rule)
    }

    /// True if an operand of a variable can be cast, or the whole group of the variable is lowered together.
    fn is_castable(&self, module: &Module, var: Var) -> bool {
        flow::operands_of(module, var).next().is_some() || self.groups.get(var).is_some()
    }

    /// The pin that decides a variable, as its format and its request.
    fn pin(&mut self, module: &Module, var: Var, paths: &[&str], name: &str) -> Option<(Pin, PinnedBy)> {
        let held = self.wishes.of_var(module, var, paths, name)?;
        self.contradiction = self.contradiction.take().or(held.contradiction);
        Some((held.pin, held.by))
    }

    /// True if a value is in a function that nothing calls, where no type is known.
    fn is_dead(&self, module: &Module, value: Value) -> bool {
        !self.dead.is_empty() && self.dead.contains(&module.root(module.value(value).graph))
    }

    /// The class of a variable that is 16-bit already: the class by which an earlier run may have lowered the variable.
    fn class_of_low(
        &mut self,
        module: &Module,
        var: Var,
        table: &ByTable,
        paths: &[&str],
        name: &str,
    ) -> Class {
        if flow::inserted_result(module, var.node).is_some() {
            return table.class;
        }
        let pin = match self.is_castable(module, var) {
            true => self.pin(module, var, paths, name),
            false => self.wishes.of_var(module, var, paths, name).map(|held| (held.pin, held.by)),
        };
        let listed = || self.wishes.policy.class_of(&node_key(module, var.node));
        match pin {
            Some((Pin::To(to), _)) if to.is_low() && table.class != Class::Fixed => Class::Allow,
            Some((Pin::Auto, _)) => class_of_bounded(class_by_policy(table, None), table),
            _ => class_of_bounded(class_by_policy(table, listed()), table),
        }
    }
}

/// The class of a 16-bit variable: infer if an earlier run may have lowered it between low neighbours and its result
/// does not taint its readers; else the given class.
fn class_of_bounded((class, rule): (Class, Rule), table: &ByTable) -> Class {
    let is_answered = class == Class::Deny && rule == Rule::Table && table.growth == Some(Growth::Bounded);
    if is_answered { Class::Infer } else { class }
}

/// The class of an operator and the rule for it, by a list if one names the operator, else by the base.
fn class_by_policy(table: &ByTable, listed: Option<OpClass>) -> (Class, Rule) {
    if table.class == Class::Fixed {
        return (table.class, table.rule.clone());
    }
    if let Some(OpClass { class, from: by }) = listed {
        return (class, Rule::Listed { by, class });
    }
    let (class, of_base) = table.base.class_of(table.class);
    (class, of_base.unwrap_or_else(|| table.rule.clone()))
}

/// The class of a variable of this node in the operator table: the class of the formals that the node uses, refined by
/// attributes.
fn class_by_table(module: &Module, schema: Option<&'static OpSchema>, var: Var, to: DType) -> Class {
    // Ports move values into a body and out of it, whatever else the operator does.
    let Some(schema) = schema.filter(|_| !flow::is_port(module, var)) else { return Class::Clear };
    let base = refined(module, schema, var.node, to);
    let Ok(variable) = u8::try_from(var.var) else { return Class::Fixed };
    let class = op::var_class_given(schema, variable, to, base, |side, index| {
        let data = module.node(var.node);
        match side {
            op::Side::Operand => data.operand(index).is_some(),
            op::Side::Result => data.result(index).is_some(),
        }
    });
    let absent = || NodeView::new(module, var.node).is_some_and(|v| v.dtype_attr("dtype") == Ok(None));
    if op::dtype_follows_operand(schema) && absent() { Class::Fixed } else { class }
}

/// The legality of the format for a variable that is f32, by the schema of its node and by the schema of Cast.
/// Operators of ONNX do not take bf16 before Cast does. Operators of other domains do not depend on ONNX's opset, so
/// Cast is checked too.
fn legality(module: &Module, var: Var, format: DType) -> Legality {
    let legal = flow::legality(module, var, format);
    if legal != Legality::Legal || format != DType::BF16 {
        return legal;
    }
    flow::cast_legality(module, module.node(var.node).graph, format)
}

/// The rule that keeps a variable of a node unchanged, whatever the user requests.
fn immovable(module: &Module, schema: Option<&OpSchema>, var: Var) -> Option<Rule> {
    let data = module.node(var.node);
    let moves = schema.is_some_and(|s| s.kind == OpKind::Identity || containers::is_structural(s.kind))
        || flow::is_port(module, var);
    let container = |value| {
        let ty = &module.value(value).ty;
        let movable = matches!(ty, Type::Tensor(_) | Type::Unknown) || moves && containers::is_container(ty);
        !movable
    };
    let contains = || {
        if flow::is_port(module, var) {
            let values = flow::operands_of(module, var).chain(flow::results_of(module, var));
            return values.map(|(_, v)| v).any(container);
        }
        data.formal_operands().iter().chain(data.results()).flatten().copied().any(container)
    };
    if contains() {
        // The element type of a value that goes into a map, or comes out of a map, is fixed too.
        Some(Rule::Type)
    } else if schema.is_some_and(|s| s.kind == OpKind::BitCast) || calls_operator(module, var.node) {
        Some(Rule::Schema)
    } else {
        None
    }
}

/// True if a node calls a function of the model that is the model's own body of a known operator. Readers of the model
/// type the call by the operator's schema, which may relate operands and results in another way than the body.
fn calls_operator(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let (domain, name, _) = module.op_name(node);
    matches!(data.op, Op::Call(_))
        && module
            .opset(data.graph, domain)
            .is_some_and(|opset| matches!(op::lookup(domain, name, opset), op::Lookup::Found(_)))
}

/// The class of the operator at this node. Attributes can make it stricter. A cube is `infer`, since it is two products of
/// elements.
fn refined(module: &Module, schema: &'static OpSchema, node: Node, to: DType) -> Class {
    let base = op::schema_class(schema, to);
    let reduces = op::may_reduce(schema)
        && NodeView::new(module, node).and_then(|v| v.string("reduction")).is_some_and(|r| r != "none");
    match base {
        _ if reduces => Class::Deny,
        Class::Deny if is_cube(module, schema, node) => Class::Infer,
        base => base,
    }
}

/// True for a power by the constant 3.
fn is_cube(module: &Module, schema: &'static OpSchema, node: Node) -> bool {
    let exponent = module.node(node).operand(1).filter(|_| schema.kind == OpKind::Pow);
    exponent.and_then(|by| scalar(module, by)) == Some(3.0)
}

/// Returns the other 16-bit format.
pub(crate) fn other_low(format: DType) -> DType {
    if format == DType::BF16 { DType::F16 } else { DType::BF16 }
}
