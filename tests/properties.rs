//! Properties of every graph, over random graphs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/random_graphs.rs"]
mod random_graphs;
#[path = "common/random_options.rs"]
mod random_options;

use ampc::options::{OPTIONS, Objective, Opset};
use ampc::rewrite::rewrite_observed;
use ampc::{RewriteOptions, rewrite};
use ampc_ir::eq::same_module;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::op::{Class, OpKind};
use ampc_ir::text::{NoData, parse};
use ampc_ir::verify::name_of;
use ampc_ir::views::resolve_captures;
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::assign::Optimum;
use ampc_passes::exact::is_exact;
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::pipeline::Observer;
use ampc_passes::placement::Placement;
use ampc_passes::policy::Pin;
use ampc_passes::target::PROFILES;
use ampc_passes::{Changed, Pass, Paths, Policy, Profile};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use random_graphs::{Graph, Line, bytes_of, from_bytes, text_of};
use random_options::choose;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::{Arc, LazyLock};

fn graphs() -> impl Strategy<Value = Graph> {
    let steps = prop::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 1..24);
    (steps, prop::collection::vec(any::<u16>(), 1..4))
        .prop_map(|(steps, outputs)| Graph::new(&steps, &outputs))
}

impl Graph {
    /// The graph with its lines in the order that `keys` prefer, as far as readers allow.
    fn reordered(&self, keys: &[u32]) -> Graph {
        let mut left: Vec<usize> = (0..self.lines.len()).collect();
        let mut lines = Vec::new();
        while !left.is_empty() {
            let pending: Vec<&String> = left.iter().flat_map(|&i| &self.lines[i].defines).collect();
            let ready = |&i: &usize| !self.lines[i].reads.iter().any(|r| pending.contains(&r));
            let next = left.iter().copied().filter(ready).min_by_key(|&i| (keys[i % keys.len()], i)).unwrap();
            left.retain(|&i| i != next);
            lines.push(self.lines[next].clone());
        }
        Graph { lines, outputs: self.outputs.clone(), sequences: self.sequences.clone() }
    }
}

/// The targets that come with ampc, and one that fuses whatever follows each other.
static TARGETS: LazyLock<Vec<Arc<Profile>>> = LazyLock::new(|| {
    let targets = PROFILES.iter().map(|(name, _)| Profile::preset(name).unwrap());
    targets.chain([fuses_all()]).map(Arc::new).collect()
});

fn fuses_all() -> Profile {
    let all = r#"["@products", "@elementwise", "@moves"]"#;
    let fusions = format!(r#""fusions": [{{"from": {all}, "to": {all}, "source": "a test"}}]"#);
    let text = PROFILES[0].1.trim_end().strip_suffix('}').unwrap();
    Profile::from_json(&format!("{text}, {fusions}}}")).unwrap()
}

/// Options of which the strategy below says how often they have which value, and `out_of_range`, which stays as it is;
/// others of the table are drawn with it.
const NAMED: &[&str] =
    &["to", "policy", "keep_io", "opset", "objective", "target", "excess_precision", "out_of_range"];

fn options() -> impl Strategy<Value = RewriteOptions> {
    let format = prop_oneof![Just(DType::F16), Just(DType::BF16)];
    let policy = prop_oneof![4 => Just("safe"), 1 => Just("all")];
    let keep_io = prop_oneof![3 => Just(KeepIo::All), 1 => Just(KeepIo::None)];
    let opset = prop_oneof![3 => Just(Opset::Keep), 1 => Just(Opset::Auto), 1 => Just(Opset::To(26))];
    let costs = (prop::sample::select(&Objective::ALL[..]), prop::sample::select(&TARGETS[..]));
    let excess = prop::bool::weighted(0.2);
    let others = OPTIONS.iter().filter(|option| !NAMED.contains(&option.name)).count();
    let bytes = if others == 0 {
        Just(Vec::new()).boxed()
    } else {
        prop::collection::vec(any::<u8>(), others).boxed()
    };
    (format, policy, keep_io, opset, costs, excess, bytes).prop_map(
        |(to, policy, keep_io, opset, (objective, target), excess_precision, bytes)| {
            let mut options = RewriteOptions {
                to,
                keep_io,
                opset,
                objective,
                target,
                excess_precision,
                policy: Arc::new(Policy::preset(policy).unwrap()),
                verify_each: true,
                ..RewriteOptions::default()
            };
            let mut bytes = bytes.into_iter();
            choose(&mut options, NAMED, || bytes.next().unwrap());
            options
        },
    )
}

/// A cast and what it casts.
struct Cast {
    node: Node,
    from: Value,
    to: Value,
    inserted: bool,
}

fn casts(module: &Module) -> Vec<Cast> {
    module
        .graph_ids()
        .flat_map(|graph| module.nodes(graph))
        .filter(|&n| module.node(n).schema().is_some_and(|s| s.kind == OpKind::Cast))
        .map(|node| {
            let data = module.node(node);
            let inserted = data.provenance == Provenance::Inserted;
            Cast { node, from: data.operand(0).unwrap(), to: data.result(0).unwrap(), inserted }
        })
        .collect()
}

/// Key of casts that do the same: only one of them is left, and their order decides which.
fn twins(module: &Module, cast: Node) -> Option<String> {
    let data = module.node(cast);
    let operand = resolve_captures(module, data.operand(0)?);
    let to = module.value(data.result(0)?).ty.dtype()?;
    data.schema().filter(|s| s.kind == OpKind::Cast)?;
    let of = module.producer(operand).and_then(|(node, _)| twins(module, node));
    Some(format!("{} to {to}", of.unwrap_or_else(|| name_of(module, operand))))
}

/// The decisions for each node, for functions once for each call, by the path through the call.
#[derive(Default)]
struct Decisions(BTreeMap<String, BTreeSet<Decided>>);

/// The decisions for each variable of a node.
type Decided = Vec<(Class, Option<DType>)>;

impl Observer for Decisions {
    fn before(&mut self, pass: &dyn Pass, module: &Module) {
        // Calls are told apart, and so far casts of the author gave way only to those that do the same.
        if pass.name() != "simplify-casts" {
            return;
        }
        let paths = Paths::of(module);
        for node in module.graph_ids().flat_map(|graph| module.nodes(graph)) {
            let data = module.node(node);
            if data.provenance == Provenance::User {
                let decided = data.decisions.iter().map(|d| (d.class, d.precision)).collect();
                let twins = twins(module, node).filter(|_| data.graph == module.main());
                let path = || paths.names(node).next().unwrap().to_owned();
                self.0.entry(twins.unwrap_or_else(path)).or_default().insert(decided);
            }
        }
    }
}

/// The cost of a choice, and the graph before and after casts are inserted.
#[derive(Default)]
struct Chosen {
    decided: Option<Module>,
    lowered: Option<Module>,
    optimum: Option<Optimum>,
}

impl Observer for Chosen {
    fn before(&mut self, pass: &dyn Pass, module: &Module) {
        if pass.name() == "insert-casts" {
            self.decided = Some(module.clone());
        }
    }
    fn after(&mut self, pass: &dyn Pass, module: &Module, _: Changed) {
        if pass.name() == "insert-casts" {
            self.lowered = Some(module.clone());
        }
    }
    fn chosen(&mut self, optimum: &Optimum) {
        self.optimum = Some(optimum.clone());
    }
}

proptest! {
    // `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for more, and for others.
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    /// The output is a valid model without findings, and its text is complete.
    #[test]
    fn a_rewrite_is_valid(graph in graphs(), options in options()) {
        let mut rewritten = rewrite(graph.model(), &options).unwrap().model;
        let text = text_of(&rewritten.module);
        same_module(&rewritten.module, &parse(&text, &NoData).unwrap()).unwrap();
        let module = &rewritten.module;
        let bodies = module.graph_ids().filter(|&graph| graph != module.main());
        let outputs = bodies.flat_map(|graph| module.graph(graph).outputs().iter().map(|output| output.value));
        let is_made = |value: Value| !matches!(module.value(value).def, Def::Capture { .. });
        prop_assert!(outputs.into_iter().all(is_made), "a body hands out what it captures\n{text}");
        let findings = ampc::check(&mut rewritten.module);
        prop_assert!(findings.is_empty(), "{findings:?}\n{text}");
    }

    /// Rewriting what was rewritten changes no byte.
    #[test]
    fn a_rewrite_is_a_fixed_point(graph in graphs(), options in options()) {
        let once = rewrite(graph.model(), &options).unwrap().model;
        let bytes = bytes_of(&once);
        let twice = rewrite(from_bytes(bytes.clone()), &options).unwrap().model;
        prop_assert!(
            bytes == bytes_of(&twice),
            "{}\n{}", text_of(&from_bytes(bytes).module), text_of(&twice.module)
        );
    }

    /// A rewritten model can be rewritten with other options: casts of the first rewrite may have to move.
    #[test]
    fn a_rewrite_can_be_revised(graph in graphs(), first in options(), second in options()) {
        let once = rewrite(graph.model(), &first).unwrap().model;
        let bytes = bytes_of(&once);
        match rewrite(from_bytes(bytes.clone()), &second) {
            Ok(mut twice) => {
                let findings = ampc::check(&mut twice.model.module);
                prop_assert!(findings.is_empty(), "{findings:?}\n{}", text_of(&twice.model.module));
            }
            Err(error) => prop_assert!(false, "{error}\n{}", text_of(&from_bytes(bytes).module)),
        }
    }

    /// Every cast that was inserted is there for something.
    #[test]
    fn no_cast_is_idle(graph in graphs(), options in options()) {
        let module = rewrite(graph.model(), &options).unwrap().model.module;
        let text = text_of(&module);
        let all = casts(&module);
        // What a custom operator makes has no known type.
        let is_known = |v: Value| module.value(v).ty.dtype().is_some();
        let dtype = |v: Value| module.value(v).ty.dtype().unwrap_or(DType::F32);
        let mut seen = BTreeMap::new();
        for cast in &all {
            if !cast.inserted {
                continue;
            }
            let twin = seen.insert((cast.from, module.value(cast.to).ty.dtype()), cast.node);
            prop_assert!(twin.is_none(), "twins of {}\n{text}", cast.from);
            // What leaves a body must be made there.
            let made_here = module.is_output(cast.to) && module.producer(cast.from).is_none();
            prop_assert!(made_here || dtype(cast.from) != dtype(cast.to), "an identity\n{text}");
            let readers: Vec<Node> = module.uses(cast.to).map(|(n, _)| n).collect();
            prop_assert!(!readers.is_empty() || module.is_output(cast.to), "nobody reads {}\n{text}", cast.to);
            // Narrowed only to be widened again.
            let narrows = dtype(cast.to).is_low() && !is_exact(dtype(cast.from), dtype(cast.to));
            let undone = |n: &Node| {
                all.iter().any(|c| c.node == *n && c.inserted && is_exact(dtype(c.from), dtype(c.to)))
            };
            prop_assert!(
                !(narrows && !module.is_output(cast.to) && readers.iter().all(undone)),
                "narrowed to be widened\n{text}"
            );
            // An exact cast of an exact cast, but for those of what is not a float: nobody inserts another.
            let behind = all.iter().find(|c| c.to == cast.from);
            prop_assert!(
                !behind.is_some_and(|c| {
                    let identity = !c.inserted && dtype(c.from) == dtype(c.to);
                    let is_float = is_known(c.from) && dtype(c.from).is_float();
                    is_float && !identity && is_exact(dtype(c.from), dtype(c.to))
                }),
                "a cast of an exact cast\n{text}"
            );
        }
    }

    /// Nothing is done to a model in which everything is pinned.
    #[test]
    fn pinned_to_fp32_is_untouched(graph in graphs(), to in prop_oneof![Just(DType::F16), Just(DType::BF16)]) {
        let mut policy = Policy::preset("safe").unwrap();
        policy.pin("*", Pin::To(DType::F32)).unwrap();
        let options = RewriteOptions { to, policy: Arc::new(policy), ..RewriteOptions::default() };
        let model = graph.model();
        let before = bytes_of(&model);
        prop_assert!(before == bytes_of(&rewrite(model, &options).unwrap().model));
    }

    /// The order of nodes decides nothing.
    #[test]
    fn order_decides_nothing(
        graph in graphs(),
        keys in prop::collection::vec(any::<u32>(), 1..60),
        options in options(),
    ) {
        let other = graph.reordered(&keys);
        let [(one, first), (two, second)] = [&graph, &other].map(|g| {
            let mut decisions = Decisions::default();
            let done = rewrite_observed(g.model(), &options, &mut decisions).unwrap();
            (done.model.module, decisions.0)
        });
        prop_assert_eq!(first, second, "{}\n{}", text_of(&one), text_of(&two));
        let [m, n] = [&one, &two].map(|m| casts(m).len());
        prop_assert_eq!(m, n, "{}\n{}", text_of(&one), text_of(&two));
    }

    /// The nodes of a report are low, fp32 by a cause, fp32 as their readers are, or without floats to lower; no policy changes
    /// the number of nodes with floats to lower.
    #[test]
    fn summaries_add_up(graph in graphs(), first in options(), second in options()) {
        let totals = [first, second].map(|options| {
            let report = rewrite(graph.model(), &options).unwrap().report;
            let sum = &report.summary;
            let (causes, followers) = (report.fp32.causes.values().sum::<u64>(), sum.followers.values().sum::<u64>());
            assert_eq!((sum.fp16 + sum.bf16, causes + followers), (sum.low, sum.full), "{sum:?}");
            assert_eq!(sum.low + sum.full + sum.other, sum.nodes, "{sum:?}");
            sum.low + sum.full
        });
        // Casts of the author that change no number may be removed, and a function may have a form for each precision.
        let text = text_of(&graph.model().module);
        let casts = text.matches("= Cast(").count() as u64;
        if !text.contains("= local::") {
            prop_assert!(totals[0].abs_diff(totals[1]) <= casts, "{totals:?}: {text}");
        }
    }

    /// A report is a policy that repeats its decisions.
    #[test]
    fn reports_replay(graph in graphs(), options in options()) {
        let once = rewrite(graph.model(), &options).unwrap();
        let report = serde_json::to_string(&once.report).unwrap();
        let policy = Arc::new(Policy::from_json(&report).unwrap());
        let again = rewrite(graph.model(), &RewriteOptions { policy, ..options }).unwrap().model;
        prop_assert!(
            bytes_of(&once.model) == bytes_of(&again),
            "{}\n{}", text_of(&once.model.module), text_of(&again.module)
        );
    }

    /// The casts that are inserted are the casts of the placement: each stands in its graph, once, and casts its tensor.
    #[test]
    fn casts_stand_where_they_are_placed(graph in graphs(), options in options()) {
        let mut found = Chosen::default();
        rewrite_observed(graph.model(), &options, &mut found).unwrap();
        let (Some(decided), Some(lowered)) = (found.decided, found.lowered) else { return Ok(()) };
        let placement = Placement::of_decided(&decided, &options.keep_io, options.objective);
        // A cast of the author that has become an identity is left out: its operand is the tensor.
        let now = |value: Value| {
            let mut value = resolve_captures(&decided, value);
            while matches!(lowered.value(value).def, Def::Erased) {
                let (cast, _) = decided.producer(value).unwrap();
                value = resolve_captures(&decided, decided.node(cast).operand(0).unwrap());
            }
            value
        };
        let mut placed: Vec<_> =
            placement.casts().iter().map(|cast| (now(cast.tensor), cast.to, cast.graph)).collect();
        let before: BTreeSet<Node> = decided.graph_ids().flat_map(|graph| decided.nodes(graph)).collect();
        let mut inserted: Vec<_> = casts(&lowered)
            .into_iter()
            .filter(|cast| !before.contains(&cast.node))
            .map(|cast| {
                let to = lowered.value(cast.to).ty.dtype().unwrap();
                (resolve_captures(&lowered, cast.from), to, lowered.node(cast.node).graph)
            })
            .collect();
        placed.sort();
        inserted.sort();
        prop_assert_eq!(placed, inserted, "{}\n{}", placement.to_text(&decided), text_of(&lowered));
    }

    /// The predicted time of a rewrite is not above that of a rewrite with another objective, apart from arithmetic on unrounded
    /// values; if nothing is lowered, the time does not change.
    #[test]
    fn the_fastest_rewrite_is_predicted_to_be_the_fastest(
        graph in graphs(),
        options in options(),
        target in prop::sample::select(&TARGETS[..]),
        other in prop::sample::select(&[Objective::Casts, Objective::Bytes][..]),
    ) {
        // A model that is left alone has none of the costs.
        let options = RewriteOptions { only_if_faster: false, target: target.clone(), ..options };
        let timed = |options: &RewriteOptions| {
            let mut found = Chosen::default();
            let time = rewrite_observed(graph.model(), options, &mut found).unwrap().report.time.unwrap();
            (time, found.lowered.unwrap(), found.optimum.unwrap())
        };
        let fastest = RewriteOptions { objective: Objective::Time, ..options.clone() };
        let (first, one, chosen) = timed(&fastest);
        let (second, two, compared) = timed(&RewriteOptions { objective: other, ..options.clone() });
        let text = || format!("{}\n{}", text_of(&one), text_of(&two));
        prop_assert_eq!((first.source, first.scale), (second.source, second.scale), "{}", text());
        // No choice knows of the casts that merge by it.
        if chosen.optimal && chosen.merged == 0 && compared.merged == 0 {
            // Arithmetic on unrounded values may cost 1 / 50, and a unit for each variable.
            let most = second.rewritten + second.rewritten / 50 + 1000;
            prop_assert!(first.rewritten <= most, "{first:?} {second:?}\n{}", text());
        }

        let mut policy = (*options.policy).clone();
        policy.pin("*", Pin::To(DType::F32)).unwrap();
        // Neither raised nor with casts that went, nor with inputs that a cast of the author reads low.
        let policy = Arc::new(policy);
        let kept =
            RewriteOptions { policy, opset: Opset::Keep, excess_precision: false, keep_io: KeepIo::All, ..fastest };
        let (full, ..) = timed(&kept);
        prop_assert_eq!(full.source, full.rewritten, "{}", text());
    }

    /// The reported effect of another policy is its effect.
    #[test]
    fn another_policy_leaves_what_was_said(
        graph in graphs(),
        options in options(),
        first in prop_oneof![Just("safe"), Just("torch"), Just("zero-risk"), Just("all")],
        second in prop_oneof![Just("perf"), Just("safe"), Just("nvidia")],
        target in prop::sample::select(&TARGETS[..]),
    ) {
        let opset = if options.opset == Opset::Auto { Opset::Keep } else { options.opset };
        let policy = |name| Arc::new(Policy::preset(name).unwrap());
        let options = RewriteOptions { objective: Objective::Time, target: target.clone(), opset, ..options };
        let options = |name| RewriteOptions { policy: policy(name), ..options.clone() };
        let asked = RewriteOptions { alternative: Some(policy(second)), ..options(first) };
        let done = rewrite(graph.model(), &asked).unwrap();
        let plain = rewrite(graph.model(), &options(first)).unwrap();
        prop_assert!(bytes_of(&done.model) == bytes_of(&plain.model), "something follows from it");
        if let Some(said) = done.report.fp32.elsewhere {
            let other = rewrite(graph.model(), &options(second)).unwrap();
            let left: u64 = other.report.fp32.causes.values().sum();
            prop_assert_eq!(said.nodes, left, "{}", text_of(&other.model.module));
        }
    }

    /// Emulation computes in fp32 and keeps the interface.
    #[test]
    fn emulation_is_fp32(graph in graphs(), options in options()) {
        let low = rewrite(graph.model(), &options).unwrap().model;
        let interface = |module: &Module| {
            let graph = module.graph(module.main());
            let named = |v: Value| (ampc_ir::verify::name_of(module, v), module.value(v).ty.dtype());
            let inputs: Vec<_> = graph.inputs().iter().map(|&v| named(v)).collect();
            let outputs: Vec<_> = graph.outputs().iter().map(|o| named(o.value)).collect();
            (inputs, outputs)
        };
        let before = interface(&low.module);
        let emulated = ampc::emulate(low).unwrap().0.module;
        let text = text_of(&emulated);
        prop_assert_eq!(before, interface(&emulated), "{}", text);
        for node in emulated.nodes(emulated.main()) {
            let data = emulated.node(node);
            if data.schema().is_none_or(|s| s.kind == OpKind::Cast) {
                continue;
            }
            // What reads what a custom operator makes gets everything as it was.
            let known = |v: &Option<Value>| v.is_none_or(|v| emulated.value(v).ty != ampc_ir::Type::Unknown);
            if !data.formal_operands().iter().all(known) {
                continue;
            }
            let values = data.operands().iter().chain(data.results()).flatten();
            // Nor is what sequences and optionals hold: those that a custom operator reads were never lowered.
            let is_low = |v: Value| emulated.value(v).ty.element_dtype().is_some_and(DType::is_low);
            let low = values.copied().find(|&v| is_low(v));
            prop_assert!(low.is_none(), "{low:?}\n{text}");
        }
    }
}

/// Writes random models, rewritten and emulated, for judges that are not ours: `tests/judge/random_graphs.py`.
#[test]
fn models_for_other_judges() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let Some(folder) = std::env::var_os("AMPC_RANDOM_DIR").map(std::path::PathBuf::from) else {
        let _ = writeln!(std::io::stderr(), "skipped: AMPC_RANDOM_DIR says where the models go");
        return;
    };
    let number = |name: &str, or: u64| {
        std::env::var_os(name).map_or(or, |text| text.to_str().unwrap().parse().unwrap())
    };
    let seed = RngSeed::Fixed(number("AMPC_RANDOM_SEED", 1));
    let mut runner = TestRunner::new(ProptestConfig { rng_seed: seed, ..ProptestConfig::default() });
    let mut written = 0;
    while written < number("AMPC_RANDOM_COUNT", 200) {
        let graph = graphs().new_tree(&mut runner).unwrap().current();
        let source = graph.model();
        // Nobody but its author can run a custom operator, and ONNX Runtime mistakes what bodies capture of a Cast to
        // the type that is there: it frees the memory before, or finds none. It has no Tile of 16 bits.
        let dtype = |v: Value| source.module.value(v).ty.dtype();
        let is_idle = |cast: &Cast| dtype(cast.from).is_some_and(|from| dtype(cast.to) == Some(from));
        let idle = casts(&source.module).iter().any(is_idle);
        let low_tile = |line: &Line| {
            line.text.contains("= Tile(") && [": f16", ": bf16"].iter().any(|t| line.text.contains(t))
        };
        if text_of(&source.module).contains("com.example::") || idle || graph.lines.iter().any(low_tile) {
            continue;
        }
        let to = if written % 2 == 0 { DType::F16 } else { DType::BF16 };
        let options = RewriteOptions { to, ..RewriteOptions::default() };
        let low = rewrite(graph.model(), &options).unwrap().model;
        let write = |kind: &str, bytes: Vec<u8>| {
            std::fs::write(folder.join(format!("{written}.{to}.{kind}.onnx")), bytes).unwrap();
        };
        write("source", bytes_of(&source));
        write("low", bytes_of(&low));
        write("emulated", bytes_of(&ampc::emulate(from_bytes(bytes_of(&low))).unwrap().0));
        let options = RewriteOptions { objective: Objective::Casts, target: TARGETS[0].clone(), ..options };
        let fewest = rewrite(graph.model(), &options).unwrap();
        write("fewest", bytes_of(&fewest.model));
        let report = serde_json::to_vec(&fewest.report).unwrap();
        std::fs::write(folder.join(format!("{written}.{to}.fewest.json")), report).unwrap();
        written += 1;
    }
}
