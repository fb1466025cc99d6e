//! Models from text, rewrites, and questions about the result.

use ampc::ir::module::{Def, Provenance};
use ampc::ir::op::OpKind;
use ampc::ir::text::{NoData, parse};
use ampc::ir::verify::name_of;
use ampc::ir::{DType, Module, Node, Payload, Value};
use ampc::passes::Policy;
use ampc::passes::policy::Pin;
use ampc::{Model, RewriteOptions, Rewritten};
use std::sync::Arc;

/// A module in text form, with IR version 10 and this opset of ai.onnx.
#[track_caller]
pub(crate) fn module_at(opset: u16, graph: &str) -> Module {
    module_with(&format!("ai.onnx={opset}"), graph)
}

/// A module in text form, with IR version 10 and these opsets.
#[track_caller]
pub(crate) fn module_with(opsets: &str, graph: &str) -> Module {
    let text = format!("module ir=10\nopset {opsets}\n\ngraph @main {{\n{graph}\n}}\n");
    let mut module = parse(&text, &NoData).unwrap_or_else(|e| panic!("{e}\n{text}"));
    // Types that the text leaves out are inferred.
    let found = ampc::check(&mut module);
    assert!(found.is_empty(), "{found:?}\n{text}");
    module
}

/// [`module_at`] opset 21, as a model.
pub(crate) fn model(graph: &str) -> Model {
    module_at(21, graph).into()
}

/// Options with every check on.
pub(crate) fn options(to: DType) -> RewriteOptions {
    RewriteOptions { to, verify_each: true, constant_statistics: true, ..RewriteOptions::default() }
}

pub(crate) fn policy(options: &mut RewriteOptions) -> &mut Policy {
    Arc::make_mut(&mut options.policy)
}

pub(crate) fn pin_f32(options: &mut RewriteOptions, pattern: &str) {
    policy(options).pin(pattern, Pin::To(DType::F32)).unwrap();
}

/// A rewrite to f16.
#[track_caller]
pub(crate) fn lower(graph: &str) -> Rewritten {
    lower_with(graph, |_| ())
}

/// A rewrite to f16 with other options.
#[track_caller]
pub(crate) fn lower_with(graph: &str, change: impl FnOnce(&mut RewriteOptions)) -> Rewritten {
    lower_to(DType::F16, graph, change)
}

#[track_caller]
pub(crate) fn lower_to(to: DType, graph: &str, change: impl FnOnce(&mut RewriteOptions)) -> Rewritten {
    let mut options = options(to);
    change(&mut options);
    rewrite(model(graph), &options)
}

#[track_caller]
pub(crate) fn rewrite(model: Model, options: &RewriteOptions) -> Rewritten {
    let mut done = ampc::rewrite(model, options).unwrap_or_else(|e| panic!("{e}"));
    let found = ampc::check(&mut done.model.module);
    assert!(found.is_empty(), "{found:?}");
    done
}

/// The model as text, without decisions: what shows in assertions.
pub(crate) fn text(module: &Module) -> String {
    module.to_text().unwrap()
}

/// Questions of tests about a rewritten model.
pub(crate) trait Ask {
    fn module(&self) -> &Module;

    /// Values of the main graph.
    fn values(&self) -> Vec<Value> {
        let module = self.module();
        let graph = module.graph(module.main());
        let results =
            module.nodes(module.main()).flat_map(|n| module.node(n).results().iter().flatten().copied());
        graph.inputs().iter().chain(graph.constants()).copied().chain(results).collect()
    }

    /// The value of the main graph with this name.
    #[track_caller]
    fn value(&self, name: &str) -> Value {
        let module = self.module();
        let found = self.values().into_iter().find(|&v| name_of(module, v) == name);
        found.unwrap_or_else(|| panic!("no value `{name}` in\n{}", text(module)))
    }

    /// The element type of a value.
    #[track_caller]
    fn dtype(&self, name: &str) -> DType {
        self.module().value(self.value(name)).ty.element_dtype().unwrap()
    }

    /// The nodes of an operator, in the main graph.
    fn nodes_of(&self, op: &str) -> Vec<Node> {
        let module = self.module();
        module.nodes(module.main()).filter(|&n| module.op_name(n).1 == op).collect()
    }

    /// The only node of an operator.
    #[track_caller]
    fn node_of(&self, op: &str) -> Node {
        let nodes = self.nodes_of(op);
        assert_eq!(nodes.len(), 1, "{op} in\n{}", text(self.module()));
        nodes[0]
    }

    /// Element types of the operands of the only node of an operator; `None` where there is no tensor.
    #[track_caller]
    fn operand_dtypes(&self, op: &str) -> Vec<Option<DType>> {
        let module = self.module();
        let operands = module.node(self.node_of(op)).formal_operands();
        operands.iter().map(|v| module.value((*v)?).ty.dtype()).collect()
    }

    /// Casts that a pass inserted: (operand, from, to), in program order.
    fn inserted(&self) -> Vec<(String, DType, DType)> {
        let module = self.module();
        module
            .nodes(module.main())
            .filter(|&n| module.node(n).provenance == Provenance::Inserted)
            .map(|n| {
                let (from, to) = (module.node(n).operand(0).unwrap(), module.node(n).result(0).unwrap());
                assert_eq!(module.node(n).schema().unwrap().kind, OpKind::Cast);
                let dtype = |v: Value| module.value(v).ty.dtype().unwrap();
                (name_of(module, from), dtype(from), dtype(to))
            })
            .collect()
    }

    /// All casts of the main graph, of the author or inserted.
    fn n_casts(&self) -> usize {
        self.nodes_of("Cast").len()
    }

    /// The elements of a constant of the main graph, after conversion.
    #[track_caller]
    fn floats(&self, name: &str) -> Vec<f64> {
        match &self.module().value(self.value(name)).def {
            Def::Constant(Payload::Dense(data)) => data.small_floats(1 << 20).unwrap(),
            other => panic!("{name} is {other:?}"),
        }
    }
}

impl Ask for Module {
    fn module(&self) -> &Module {
        self
    }
}

impl Ask for Rewritten {
    fn module(&self) -> &Module {
        &self.model.module
    }
}

/// Entries of the report about nodes.
pub(crate) trait Decided {
    /// Precision of a node, by its path.
    fn precision(&self, path: &str) -> &str;
    /// The rule that decided.
    fn rule(&self, path: &str) -> &str;
}

impl Decided for Rewritten {
    #[track_caller]
    fn precision(&self, path: &str) -> &str {
        let node = self.report.node(path).unwrap_or_else(|| panic!("no node `{path}`"));
        node.precision.as_deref().unwrap_or("none")
    }
    #[track_caller]
    fn rule(&self, path: &str) -> &str {
        &self.report.node(path).unwrap_or_else(|| panic!("no node `{path}`")).rule
    }
}

/// The node at `path` stays fp32 because of a guard, and is lowered once the guard is left out.
#[track_caller]
pub(crate) fn guarded(to: DType, guard: &str, path: &str, graph: &str) {
    guarded_given(to, guard, path, graph, |_| ());
}

/// [`guarded`] with other options.
#[track_caller]
pub(crate) fn guarded_given(
    to: DType,
    guard: &str,
    path: &str,
    graph: &str,
    change: impl Fn(&mut RewriteOptions),
) {
    let [with, without] = [false, true].map(|off| {
        let done = lower_to(to, graph, |o| {
            change(o);
            if off {
                policy(o).disable_guard(guard).unwrap();
            }
        });
        (done.precision(path).to_owned(), done.rule(path).to_owned())
    });
    assert_eq!(with, ("fp32".to_owned(), format!("guard.{guard}")), "with the guard");
    let low = if to == DType::BF16 { "bf16" } else { "fp16" };
    assert_eq!(without.0, low, "without the guard: {}", without.1);
}
