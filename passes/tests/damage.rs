//! Damage planted behind each pass of a rewrite in turn: the run names that pass, and what it broke.

use ampc_ir::infer::infer_module;
use ampc_ir::module::{GraphOwner, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, GraphId, Module, Node, Type};
use ampc_passes::cost::Objective;
use ampc_passes::guard::OutOfRange;
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::pipeline::{Lowering, Opset, Pipeline, RunError};
use ampc_passes::{Changed, Invariants, Pass, PassCx, PassError, Policy};
use std::sync::Arc;

const MODEL: &str = "\
module ir=10
opset ai.onnx=17, local=1

graph @main {
  input %x : f32[4, 4]
  input %c : bool
  const %w : f32[4, 4] = random(1, 1.0)
  %a = MatMul(%x, %w) : f32[4, 4] @product
  %b = local::F(%a) : f32[4, 4] @call
  %y = If(%c; %b) {
    then_branch: graph @then(%b) {
      %t = MatMul(%b, %b) : f32[4, 4] @taken
      %u = Relu(%t) : f32[4, 4] @after
      output %u : f32[4, 4]
    },
    else_branch: graph @else(%b) {
      %e = Neg(%b) : f32[4, 4] @other
      output %e : f32[4, 4]
    }
  } : f32[4, 4] @choice
  %s = Softmax(%y) : f32[4, 4] @last
  output %s : f32[4, 4]
}

function local::F {
  opset ai.onnx=17
  input %v : f32[4, 4]
  %m = MatMul(%v, %v) : f32[4, 4] @inner
  %r = Relu(%m) : f32[4, 4] @inner_after
  output %r
}
";

fn module() -> Module {
    parse(MODEL, &NoData).unwrap_or_else(|errors| panic!("{errors}"))
}

fn lowering() -> Pipeline {
    Pipeline::lowering(&Lowering {
        to: DType::F16,
        policy: Arc::new(Policy::preset("safe").expect("a preset")),
        out_of_range: OutOfRange::Keep,
        ranges: Default::default(),
        observed: Default::default(),
        trusted: Default::default(),
        keep_io: KeepIo::All,
        opset: Opset::To(21),
        raise: Default::default(),
        saturate_masks: false,
        objective: Objective::default(),
        target: Arc::default(),
        excess_precision: false,
        alternative: None,
        gain: Default::default(),
    })
}

/// Kind of damage; true if there was anything to break.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    TypeInMain,
    TypeInBody,
    TypeInFunction,
    /// A node is moved in front of what it reads.
    StaleUse,
    MissingDecision,
    /// An inserted cast does not say that it is one.
    CastWithoutProvenance,
    /// A class that leaves a choice, and no element type.
    Unassigned,
    /// An element type is assigned that the values do not have.
    NotLowered,
}

const ALL: [Damage; 8] = [
    Damage::TypeInMain,
    Damage::TypeInBody,
    Damage::TypeInFunction,
    Damage::StaleUse,
    Damage::MissingDecision,
    Damage::CastWithoutProvenance,
    Damage::Unassigned,
    Damage::NotLowered,
];

impl Damage {
    /// The fact that it breaks.
    fn breaks(self) -> Invariants {
        match self {
            Damage::TypeInMain | Damage::TypeInBody | Damage::TypeInFunction | Damage::StaleUse => {
                Invariants::CORE
            }
            Damage::MissingDecision | Damage::CastWithoutProvenance => Invariants::CLASSIFIED,
            Damage::Unassigned => Invariants::ASSIGNED,
            Damage::NotLowered => Invariants::LOWERED,
        }
    }

    fn plant(self, module: &mut Module) -> bool {
        match self {
            Damage::TypeInMain => retype(module, |owner| owner == GraphOwner::Main),
            Damage::TypeInBody => retype(module, |owner| matches!(owner, GraphOwner::Body { .. })),
            Damage::TypeInFunction => retype(module, |owner| matches!(owner, GraphOwner::Function(_))),
            Damage::StaleUse => {
                let main = module.main();
                let nodes: Vec<Node> = module.nodes(main).collect();
                let Some(&[first, .., last]) = nodes.get(..) else { return false };
                module.move_node(last, ampc_ir::edit::Position::Before(first));
                true
            }
            Damage::MissingDecision => {
                let decided = |module: &Module, node| !module.node(node).decisions.is_empty();
                let Some(node) = find(module, decided) else { return false };
                module.node_mut(node).decisions.clear();
                true
            }
            Damage::CastWithoutProvenance => {
                let inserted = |module: &Module, node| {
                    let data = module.node(node);
                    data.schema().is_some_and(|s| s.kind == OpKind::Cast)
                        && data.provenance == Provenance::Inserted
                };
                let Some(node) = find(module, inserted) else { return false };
                *module.node_mut(node).provenance = Provenance::User;
                true
            }
            Damage::Unassigned => assigned(module, None),
            Damage::NotLowered => assigned(module, Some(DType::BF16)),
        }
    }
}

fn find(module: &Module, test: impl Fn(&Module, Node) -> bool) -> Option<Node> {
    module.graph_ids().flat_map(|graph| module.nodes(graph)).find(|&node| test(module, node))
}

/// Makes the first result of a graph of this owner a list of integers.
fn retype(module: &mut Module, of: impl Fn(GraphOwner) -> bool) -> bool {
    let graphs: Vec<GraphId> = module.graph_ids().filter(|&graph| of(module.graph(graph).owner)).collect();
    let first = graphs.into_iter().flat_map(|graph| module.nodes(graph).collect::<Vec<_>>()).next();
    let Some(value) = first.and_then(|node| module.node(node).result(0)) else { return false };
    module.set_type(value, Type::tensor(DType::I64, ampc_ir::Shape::known(&[4, 4])));
    true
}

/// Assigns something else to the first variable of the product in the main graph.
fn assigned(module: &mut Module, precision: Option<DType>) -> bool {
    let product = |module: &Module, node| {
        module.node(node).name.is_some_and(|name| module.text(name) == "product")
            && module.node(node).decisions.iter().any(|d| d.precision.is_some())
    };
    let Some(node) = find(module, product) else { return false };
    module.node_mut(node).decisions[0].precision = precision;
    true
}

/// A pass that breaks something after it has run.
#[derive(Debug)]
struct Sabotaged {
    pass: Box<dyn Pass>,
    damage: Option<Damage>,
    /// The invariants that it claims beside those of the pass.
    claims: Invariants,
}

impl Pass for Sabotaged {
    fn name(&self) -> &'static str {
        self.pass.name()
    }
    fn requires(&self) -> Invariants {
        self.pass.requires()
    }
    fn revokes(&self) -> Invariants {
        self.pass.revokes()
    }
    fn ensures(&self) -> Invariants {
        self.pass.ensures().with(self.claims)
    }
    fn renews_facts(&self) -> bool {
        self.pass.renews_facts()
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let changed = self.pass.run(module, cx)?;
        match self.damage {
            Some(damage) if damage.plant(module) => Ok(Changed::Yes),
            _ => Ok(changed),
        }
    }
}

/// A rewrite whose pass number `at` is replaced.
fn sabotaged(at: usize, damage: Option<Damage>, claims: Invariants) -> Pipeline {
    let wrap = |(i, pass): (usize, Box<dyn Pass>)| match i == at {
        true => Box::new(Sabotaged { pass, damage, claims }),
        false => pass,
    };
    Pipeline::new(lowering().into_passes().into_iter().enumerate().map(wrap).collect()).expect("an order")
}

/// The invariants that hold after each pass.
fn held() -> Vec<(&'static str, Invariants)> {
    let mut held = Invariants::CORE;
    let pipeline = lowering();
    let after = pipeline.passes().map(|pass| {
        held = held.without(pass.revokes()).with(pass.ensures());
        (pass.name(), held)
    });
    after.collect()
}

#[test]
fn the_pass_that_breaks_something_is_named() {
    let mut planted = Vec::new();
    for (at, (name, held)) in held().into_iter().enumerate() {
        for damage in ALL.into_iter().filter(|damage| held.has(damage.breaks())) {
            // No pass has inserted a cast yet, or there is none left.
            let there_is_none = {
                let mut module = module();
                let mut before = lowering().into_passes();
                before.truncate(at + 1);
                Pipeline::new(before).unwrap().run(&mut module, true, &mut ()).unwrap();
                !damage.plant(&mut module)
            };
            let result = sabotaged(at, Some(damage), Invariants::NONE).run(&mut module(), true, &mut ());
            match result {
                Err(RunError::Broken { pass, first, .. }) => {
                    assert_eq!(pass, name, "{damage:?}: {first}");
                    assert!(first.starts_with(&format!("not {}: ", damage.breaks())), "{damage:?}: {first}");
                    planted.push(damage);
                }
                other => assert!(there_is_none && other.is_ok(), "{damage:?} behind {name}: {other:?}"),
            }
        }
    }
    let missing: Vec<Damage> = ALL.into_iter().filter(|damage| !planted.contains(damage)).collect();
    assert!(missing.is_empty(), "never planted: {missing:?}");
}

/// Without looking after every pass the damage is still found, at the end.
#[test]
fn damage_is_found_at_the_end() {
    let last = held().len() - 1;
    let held = held()[last].1;
    for damage in ALL.into_iter().filter(|damage| held.has(damage.breaks())) {
        let result = sabotaged(last, Some(damage), Invariants::NONE).run(&mut module(), false, &mut ());
        let broken = matches!(&result, Err(RunError::Broken { pass, .. }) if pass == "pipeline");
        assert!(broken, "{damage:?}: {result:?}");
    }
}

#[test]
fn a_claim_that_is_not_kept_is_named() {
    // The last pass revokes what held before it, and may keep it all the same.
    let last = held().len() - 1;
    for (at, (name, held)) in held().into_iter().enumerate().take(last) {
        for claim in [Invariants::CLASSIFIED, Invariants::ASSIGNED, Invariants::LOWERED] {
            // Where nothing is assigned, values are as they are assigned.
            if held.has(claim) || claim == Invariants::ASSIGNED && !held.has(Invariants::CLASSIFIED) {
                continue;
            }
            let result = sabotaged(at, None, claim).run(&mut module(), true, &mut ());
            let kept = claim == Invariants::LOWERED && !held.has(Invariants::ASSIGNED);
            match result {
                Err(RunError::Broken { pass, first, .. }) => {
                    assert_eq!(pass, name, "{claim}: {first}");
                    assert!(first.starts_with(&format!("not {claim}: ")), "{first}");
                }
                other => assert!(kept && other.is_ok(), "{claim} claimed by {name}: {other:?}"),
            }
        }
    }
}

/// A pass that needs more than the module has says so, though the pipeline was made for one that has it.
#[test]
fn what_a_pass_needs_is_looked_at() {
    let passes = lowering().into_passes().into_iter().filter(|pass| pass.name() == "taint").collect();
    let pipeline = Pipeline::on(Invariants::CORE.with(Invariants::CLASSIFIED), passes).unwrap();
    match pipeline.run(&mut module(), false, &mut ()) {
        Err(RunError::Unprepared { pass: "taint", missing, first }) => {
            assert_eq!((missing, first.invariant), (Invariants::CLASSIFIED, Invariants::CLASSIFIED));
        }
        other => panic!("{other:?}"),
    }
}

/// Looking changes nothing: types and decisions are the same whether every pass is looked at or only the last.
#[test]
fn looking_changes_nothing() {
    let texts = [false, true].map(|verify_each| {
        let mut module = module();
        lowering().run(&mut module, verify_each, &mut ()).unwrap();
        module.to_text().unwrap()
    });
    assert_eq!(texts[0], texts[1]);
    let mut module = module();
    infer_module(&mut module).unwrap();
    let before = module.to_text().unwrap();
    ampc_ir::verify::verify_module(&module).unwrap();
    assert_eq!(module.to_text().unwrap(), before);
}
