use super::*;
use crate::infer::infer_module;
use crate::module::GraphOwner;
use crate::text::{NoData, PrintOptions, parse, print};
use crate::verify::{Problem, verify_module};
use crate::views::Part;

/// A main graph at opset 21, a body two graphs deep, and a function at opset 11, which imports nothing else.
const TEXT: &str = "\
module ir=10
opset ai.onnx=21, com.microsoft=1, local=1

graph @main {
  input %c : bool
  input %x : f32[2, 3]
  %a = Relu(%x) : f32[2, 3] @first
  %b = If(%c; %c, %x) {
    then_branch: graph @then(%c, %x) {
      %t = If(%c; %x) {
        then_branch: graph @deep(%x) {
          %d = Neg(%x) : f32[2, 3]
          output %d : f32[2, 3]
        },
        else_branch: graph @shallow(%x) {
          %s = Abs(%x) : f32[2, 3]
          output %s : f32[2, 3]
        }
      } : f32[2, 3]
      output %t : f32[2, 3]
    },
    else_branch: graph @else(%x) {
      %e = Exp(%x) : f32[2, 3]
      output %e : f32[2, 3]
    }
  } : f32[2, 3]
  %y = local::F(%b) : f32[2, 3]
  output %a : f32[2, 3]
  output %y : f32[2, 3]
}

function local::F {
  opset ai.onnx=11
  input %v : f32[2, 3]
  %r = Tanh(%v) : f32[2, 3]
  output %r
}
";

fn module() -> Module {
    let mut module = parse(TEXT, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    infer_module(&mut module).unwrap();
    module
}

fn node(module: &Module, op: &str) -> Node {
    let graphs: Vec<GraphId> = module.graph_ids().collect();
    let mut nodes = graphs.iter().flat_map(|&graph| module.nodes(graph));
    nodes.find(|&node| module.op_name(node).1 == op).unwrap()
}

fn value(module: &Module, graph: GraphId, name: &str) -> Value {
    let named = |&v: &Value| module.value(v).name.is_some_and(|n| module.text(n) == name);
    module.defined(graph).find(named).unwrap()
}

fn node_of(module: &Module, result: Value) -> Node {
    module.producer(result).unwrap().0
}

fn name(module: &Module, value: Value) -> &str {
    module.text(module.value(value).name.unwrap())
}

fn shown(module: &Module) -> String {
    print(module, &PrintOptions::default()).text
}

/// The nodes of a graph, by operator.
fn order(module: &Module, graph: GraphId) -> Vec<&str> {
    module.nodes(graph).map(|node| module.op_name(node).1).collect()
}

/// Lets `node` read another value, and verifies all.
fn read_instead(module: &mut Module, node: Node, new: Value) {
    module.set_operand(node, 0, Some(new));
    verify_module(module).unwrap_or_else(|found| panic!("{found:?}\n{}", shown(module)));
}

#[test]
fn insertions_stay_in_order_wherever_they_start() {
    let relu = node(&module(), "Relu");
    for (at, expected) in [
        (Position::First, "Sin Cos Tan Relu If F"),
        (Position::Last, "Relu If F Sin Cos Tan"),
        (Position::Before(relu), "Sin Cos Tan Relu If F"),
        (Position::After(relu), "Relu Sin Cos Tan If F"),
    ] {
        let mut module = module();
        let main = module.main();
        let x = value(&module, main, "x");
        let mut inserter = Inserter::new(&mut module, main, at);
        for kind in [OpKind::Sin, OpKind::Cos, OpKind::Tan] {
            inserter.op(kind, &[x], &[]).unwrap();
        }
        assert_eq!(order(&module, main).join(" "), expected, "{at:?}");
        verify_module(&module).unwrap();
    }
}

#[test]
fn results_have_the_types_that_inference_finds_again() {
    let mut module = module();
    let (main, relu) = (module.main(), node(&module, "Relu"));
    let x = value(&module, main, "x");
    let mut b = Inserter::before(&mut module, relu);
    // The shape goes through the elements of constants and of what was just inserted.
    let shape = b.op(OpKind::Shape, &[x], &[("start", 1.into())]).unwrap();
    let two = b.ints("two", &[2]);
    let shape = b.insert(NodeSpec::new(OpKind::Concat, &[shape, two]).attr("axis", 0).suffix("shape"));
    let [shape] = shape.unwrap();
    let turned = b.op(OpKind::Reshape, &[x, shape], &[]).unwrap();
    let low = b.op(OpKind::Cast, &[turned], &[("to", DType::F16.into())]).unwrap();
    let best = NodeSpec::new(OpKind::TopK, &[low, two]).attr("axis", 0);
    let [best, indices] = b.insert(best).unwrap();
    let halves = NodeSpec::new(OpKind::Split, &[best]).attr("axis", 1).attr("num_outputs", 2).suffix("half");
    let halves = b.insert_n(halves, 2).unwrap();
    let ty = |value: Value| crate::ty::describe(&module.value(value).ty);
    assert_eq!((ty(turned), ty(low)), ("f32[3, 2]".into(), "f16[3, 2]".into()));
    assert_eq!((ty(best), ty(indices)), ("f16[2, 2]".into(), "i64[2, 2]".into()));
    assert_eq!((ty(halves[0]), ty(halves[1])), ("f16[2, 1]".into(), "f16[2, 1]".into()));
    assert_eq!((name(&module, halves[0]), name(&module, halves[1])), ("a.half", "a.half.2"));
    verify_module(&module).unwrap();
}

#[test]
fn a_body_captures_through_every_graph_between() {
    let mut module = module();
    let (main, neg) = (module.main(), node(&module, "Neg"));
    let (a, deep) = (value(&module, main, "a"), module.node(neg).graph);
    let mut b = Inserter::before(&mut module, neg);
    let sum = b.op(OpKind::Add, &[a, a], &[]).unwrap();
    let again = b.op(OpKind::Mul, &[sum, a], &[]).unwrap();
    assert_eq!((name(&module, sum), name(&module, again)), ("d.Add", "d.Mul"));
    assert_eq!((module.value(sum).graph, order(&module, deep)), (deep, vec!["Add", "Mul", "Neg"]));
    assert_eq!(module.graph(deep).captures().len(), 2, "%x, and %a once");
    read_instead(&mut module, neg, again);
    // What is made from a value stands for it everywhere but in what makes it.
    let mul = node_of(&module, again);
    let twice = Inserter::after(&mut module, mul).op(OpKind::Add, &[again, again], &[]).unwrap();
    module.replace_value(again, twice);
    let readers =
        |value| module.uses(value).map(|(node, slot)| (module.op_name(node).1, slot)).collect::<Vec<_>>();
    assert_eq!(readers(twice), [("Neg", 0)]);
    assert_eq!(readers(again), [("Add", 1), ("Add", 0)]);
    verify_module(&module).unwrap();
}

#[test]
fn what_hides_a_captured_name_gets_another() {
    let mut module = module();
    let (main, neg) = (module.main(), node(&module, "Neg"));
    let (a, d) = (value(&module, main, "a"), module.node(neg).result(0).unwrap());
    let taken = module.value(a).name.unwrap();
    module.set_value_name(d, taken);
    let sum = Inserter::before(&mut module, neg).op(OpKind::Add, &[a, a], &[]).unwrap();
    assert_eq!((name(&module, a), name(&module, d)), ("a", "a.2"));
    read_instead(&mut module, neg, sum);
}

#[test]
fn a_function_has_an_opset_of_its_own() {
    let mut module = module();
    let tanh = node(&module, "Tanh");
    let v = module.node(tanh).operand(0).unwrap();
    let mut b = Inserter::before(&mut module, tanh);
    let old = b.op(OpKind::Unsqueeze, &[v], &[("axes", vec![0].into())]).unwrap();
    let row = b.op(OpKind::Squeeze, &[old], &[("axes", vec![0].into())]).unwrap();
    assert_eq!(b.schema(OpKind::Squeeze).unwrap().since, 11);
    // From 13 on the axes are an operand.
    let error = b.op(OpKind::Unsqueeze, &[v, old], &[]).unwrap_err();
    assert!(
        matches!(&error.kind, InsertErrorKind::IllTyped(e) if e.part == Part::Attr("axes".into())),
        "{error}"
    );
    let error = b.op(OpKind::Gelu, &[v], &[]).unwrap_err();
    assert!(matches!(error.kind, InsertErrorKind::NotInOpset { opset: 11, .. }), "{error}");
    let error = b.op(OpKind::ContribGelu, &[v], &[]).unwrap_err();
    assert_eq!(error.kind, InsertErrorKind::NotImported("com.microsoft"));
    let graph = module.node(tanh).graph;
    assert!(matches!(module.graph(graph).owner, GraphOwner::Function(_)));
    assert_eq!(order(&module, graph), ["Unsqueeze", "Squeeze", "Tanh"]);
    read_instead(&mut module, tanh, row);
    let abs = node(&module, "Abs");
    let x = module.node(abs).operand(0).unwrap();
    let [gelu] = Inserter::before(&mut module, abs)
        .insert(NodeSpec::new(OpKind::ContribGelu, &[x]))
        .expect("the main graph imports the domain");
    read_instead(&mut module, abs, gelu);
}

#[test]
fn an_opset_that_is_about_to_be_imported_holds() {
    let mut module = module();
    let tanh = node(&module, "Tanh");
    let v = module.node(tanh).operand(0).unwrap();
    let mut b = Inserter::before(&mut module, tanh).with_opset("", 20);
    let gelu = b.op(OpKind::Gelu, &[v], &[]).unwrap();
    module.set_opset(module.node(tanh).graph, "", 20);
    for op in ["Tanh", "Gelu"] {
        let found = node(&module, op);
        let Lookup::Found(schema) = lookup("", op, 20) else { panic!("{op}") };
        module.set_version(found, schema);
    }
    read_instead(&mut module, tanh, gelu);
}

#[test]
fn names_are_the_origins_and_nothing_has_them_yet() {
    let mut module = module();
    let (main, relu) = (module.main(), node(&module, "Relu"));
    let (x, d) = (value(&module, main, "x"), node(&module, "Neg"));
    // A name that only a body has is taken all the same.
    let (taken, key, text) = (module.intern("a.Sin"), module.intern("key"), module.intern("text"));
    let d = module.node(d).result(0).unwrap();
    module.set_value_name(d, taken);
    module.node_mut(relu).metadata.push((key, text));

    let mut b = Inserter::after(&mut module, relu);
    let first = b.op(OpKind::Sin, &[x], &[]).unwrap();
    b.set_origin(None);
    let alone = b.op(OpKind::Sin, &[x], &[]).unwrap();
    b.set_origin(Some(relu));
    b.copies_metadata = true;
    b.provenance = Provenance::Inserted;
    let (result, node) = (b.module.fresh_name("mine"), b.module.fresh_name("its node"));
    let spec = NodeSpec::new(OpKind::Cos, &[x]).result_name(result).node_name(Some(node));
    let [named] = b.insert(spec).unwrap();
    let four = b.ints("four", &[4]);
    assert_eq!([first, alone, named, four].map(|v| name(&module, v)), ["a.Sin.2", "Sin", "mine", "a.four"]);
    let of = |value: Value| module.node(node_of(&module, value));
    assert_eq!((of(first).name, of(named).name), (None, Some(node)));
    assert_eq!((of(first).provenance, of(named).provenance), (Provenance::User, Provenance::Inserted));
    assert_eq!((of(first).metadata.len(), &of(named).metadata[..]), (0, &[(key, text)][..]));
    verify_module(&module).unwrap();
}

#[test]
fn constants_are_shared_within_a_graph_while_they_are_what_they_were() {
    let mut module = module();
    let (relu, neg) = (node(&module, "Relu"), node(&module, "Neg"));
    let mut b = Inserter::before(&mut module, relu);
    let axes = b.ints("axes", &[0, 1]);
    assert_eq!(b.ints("other", &[0, 1]), axes);
    assert_ne!(b.ints("axes", &[0, 2]), axes);
    let column = TensorData::from_i64(&[2, 1], &[0, 1]).unwrap();
    assert_ne!(b.constant("axes", column), axes, "other dims");
    b.move_before(neg);
    let inside = b.ints("axes", &[0, 1]);
    assert_eq!((b.module.value(inside).graph, name(b.module, inside)), (b.place().graph, "d.axes"));
    b.move_before(relu);
    b.module.erase_constant(axes);
    assert_ne!(b.ints("axes", &[0, 1]), axes);
    verify_module(&module).unwrap();
}

#[test]
fn scalars_are_rounded_once() {
    let mut module = module();
    let main = module.main();
    let mut b = Inserter::new(&mut module, main, Position::Last);
    for (dtype, number, expected) in [
        (DType::F32, 0.1, f64::from(0.1f32)),
        (DType::F16, 0.1, 0.099_975_585_937_5),
        (DType::BF16, -3.0, -3.0),
        // f32 would first make a tie of it.
        (DType::F16, 1.0 + 0.5f64.powi(11) + 0.5f64.powi(40), 1.0 + 0.5f64.powi(10)),
    ] {
        let value = b.scalar("s", dtype, number).unwrap();
        let data = b.module.constant(value).and_then(Payload::dense).unwrap();
        assert_eq!((data.dtype(), data.dims()), (dtype, &[][..]));
        assert_eq!(data.small_floats(1), Some(vec![expected]), "{dtype} {number}");
    }
    let error = b.scalar("s", DType::I8, 1.0).unwrap_err();
    assert_eq!(error.kind, InsertErrorKind::NoScalar(DType::I8));
}

#[test]
fn what_does_not_fit_is_an_error_and_leaves_the_graph_as_it_was() {
    let mut module = module();
    let (main, relu, neg) = (module.main(), node(&module, "Relu"), node(&module, "Neg"));
    let (c, x, d) = (value(&module, main, "c"), value(&module, main, "x"), module.node(neg).result(0));
    let before = shown(&module);
    let d = d.unwrap();
    let mut b = Inserter::before(&mut module, relu);
    let three = b.ints("three", &[3]);
    let spec = |kind, operands: &[Value]| NodeSpec::new(kind, operands);
    for (spec, n, part) in [
        (spec(OpKind::Add, &[x]), 1, Part::Node),
        (spec(OpKind::Add, &[x, x, x]), 1, Part::Node),
        (spec(OpKind::Relu, &[x]), 2, Part::Node),
        (spec(OpKind::Relu, &[]).operands(&[None]), 1, Part::Operand(0)),
        (spec(OpKind::Add, &[x, three]), 1, Part::Operand(1)),
        (spec(OpKind::MatMul, &[x, x]), 1, Part::Operand(1)),
        (spec(OpKind::Not, &[x]), 1, Part::Operand(0)),
        (spec(OpKind::Cast, &[x]), 1, Part::Attr("to".into())),
        (spec(OpKind::Cast, &[x]).attr("to", 1.0), 1, Part::Attr("to".into())),
        (spec(OpKind::Relu, &[x]).attr("alpha", 1.0), 1, Part::Attr("alpha".into())),
        (spec(OpKind::ContribGelu, &[c]), 1, Part::Operand(0)),
    ] {
        let error = b.insert_n(spec, n).unwrap_err();
        assert_eq!(error.place, Place { graph: main, at: Position::Before(relu) });
        let InsertErrorKind::IllTyped(found) = &error.kind else { panic!("{error}") };
        assert_eq!(found.part, part, "{error}");
    }
    let error = b.op(OpKind::Add, &[x, d], &[]).unwrap_err();
    assert_eq!(error.kind, InsertErrorKind::OutOfScope { operand: 1, value: d });
    let error = b.op(OpKind::Upsample, &[x, x], &[]).unwrap_err();
    assert!(matches!(error.kind, InsertErrorKind::NotInOpset { opset: 21, .. }), "{error}");
    b.move_to(main, Position::After(neg));
    let error = b.op(OpKind::Relu, &[x], &[]).unwrap_err();
    assert_eq!(error.kind, InsertErrorKind::NoPlace(neg));
    assert!(error.to_string().starts_with("cannot insert Relu after node"), "{error}");
    module.erase_constant(three);
    assert_eq!(shown(&module), before);
    verify_module(&module).unwrap();
}

#[test]
fn optional_operands_may_be_absent() {
    let mut module = module();
    let (main, relu) = (module.main(), node(&module, "Relu"));
    let x = value(&module, main, "x");
    let mut b = Inserter::before(&mut module, relu);
    let most = b.scalar("most", DType::F32, 6.0).unwrap();
    let clip = NodeSpec::new(OpKind::Clip, &[]).operands(&[Some(x), None, Some(most)]);
    let [clipped] = b.insert(clip).unwrap();
    read_instead(&mut module, relu, clipped);
    assert!(shown(&module).contains("%a.Clip = Clip(%x, _, %a.most) : f32[2, 3]"), "{}", shown(&module));
}

#[test]
fn an_operand_that_comes_later_is_for_the_verifier() {
    let mut module = module();
    let (main, relu) = (module.main(), node(&module, "Relu"));
    let a = value(&module, main, "a");
    Inserter::before(&mut module, relu).op(OpKind::Neg, &[a], &[]).unwrap();
    let found = verify_module(&module).unwrap_err();
    assert!(found.iter().any(|v| matches!(v.problem, Problem::ReadBeforeDefined { .. })));
}
