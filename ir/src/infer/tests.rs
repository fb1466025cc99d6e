//! Inference across nodes: elements of shapes, bodies and calls.

use super::infer_module;
use crate::attr::{Attr, AttrValue};
use crate::dtype::DType;
use crate::edit::{NewNode, Position};
use crate::entity::{FunctionId, GraphId, Node, Value};
use crate::int::Int;
use crate::module::{FunctionData, Module, Op, Payload, Provenance};
use crate::op::{AttrKind, Lookup, lookup};
use crate::tensor::TensorData;
use crate::ty::{Dim, Shape, Type};
use std::sync::Arc;

/// A module under construction: values are made with the fewest words.
struct Build(Module);

impl Build {
    fn new() -> Build {
        Build(Module::new())
    }
    fn main(&self) -> GraphId {
        self.0.main()
    }
    fn ty(&mut self, dtype: DType, dims: &[&str]) -> Type {
        Type::tensor(
            dtype,
            Shape::of(dims.iter().map(|d| match d.parse() {
                Ok(n) => Dim::Known(n),
                Err(_) if *d == "?" => Dim::Unknown,
                Err(_) => Dim::Sym(self.0.intern(d)),
            })),
        )
    }
    fn input(&mut self, graph: GraphId, dims: &[&str]) -> Value {
        let ty = self.ty(DType::F32, dims);
        let name = self.0.fresh_name("x");
        self.0.add_input(graph, name, ty, None)
    }
    /// A formal of a body or function.
    fn formal(&mut self, graph: GraphId) -> Value {
        let name = self.0.fresh_name("formal");
        self.0.add_input(graph, name, Type::Unknown, None)
    }
    fn ints(&mut self, graph: GraphId, ints: &[i64]) -> Value {
        let data = TensorData::from_i64(&[ints.len() as u64], ints).unwrap();
        self.payload(graph, data)
    }
    fn int(&mut self, graph: GraphId, n: i64) -> Value {
        let data = TensorData::from_i64(&[], &[n]).unwrap();
        self.payload(graph, data)
    }
    fn flag(&mut self, graph: GraphId, set: bool) -> Value {
        let data = TensorData::from_bytes(DType::Bool, &[], vec![u8::from(set)]).unwrap();
        self.payload(graph, data)
    }
    fn payload(&mut self, graph: GraphId, data: TensorData) -> Value {
        let name = self.0.fresh_name("c");
        self.0.add_constant(graph, name, Payload::Dense(Arc::new(data)))
    }
    fn node(
        &mut self,
        graph: GraphId,
        op: Op,
        operands: &[Option<Value>],
        attrs: &[(&str, AttrValue)],
        n: usize,
    ) -> Node {
        let attrs = attrs.iter().map(|(name, value)| (self.0.intern(name), value.clone())).collect();
        let results = (0..n).map(|_| Some((self.0.fresh_name("y"), Type::Unknown))).collect();
        let operands = operands.iter().copied().collect();
        let new = NewNode { op, name: None, operands, attrs, results, provenance: Provenance::User };
        self.0.add_node(graph, Position::Last, new)
    }
    /// A node at opset 17 with one result.
    fn op(&mut self, graph: GraphId, name: &str, operands: &[Value], attrs: &[(&str, AttrValue)]) -> Value {
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        let node = self.node(graph, schema(name, 17), &operands, attrs, 1);
        self.0.node(node).result(0).unwrap()
    }
    fn body(&mut self) -> GraphId {
        let name = self.0.intern("body");
        self.0.new_graph(name)
    }
    fn leave(&mut self, graph: GraphId, values: &[Value]) {
        for &value in values {
            self.0.add_output(graph, value, Type::Unknown);
        }
    }
    fn function(&mut self, name: &str, graph: GraphId) -> FunctionId {
        let (name, none) = (self.0.intern(name), self.0.intern(""));
        self.0.add_function(FunctionData {
            domain: none,
            name,
            overload: none,
            graph,
            opsets: Vec::new(),
            attrs: Vec::new(),
            attr_defaults: Vec::new(),
            doc_string: String::new(),
            metadata: Vec::new(),
            origin: None,
        })
    }
    fn result(&self, node: Node, i: usize) -> Value {
        self.0.node(node).result(i).unwrap()
    }
    fn show(&self, value: Value) -> String {
        show(&self.0, &self.0.value(value).ty)
    }
    fn error(&mut self) -> String {
        infer_module(&mut self.0).unwrap_err()[0].to_string()
    }
}

fn show(module: &Module, ty: &Type) -> String {
    match ty {
        Type::Tensor(t) => match t.shape.dims() {
            None => format!("{}[*]", t.dtype),
            Some(dims) => {
                let dims: Vec<String> = dims
                    .iter()
                    .map(|d| match d {
                        Dim::Known(n) => n.to_string(),
                        Dim::Sym(s) => module.text(*s).into(),
                        Dim::Unknown => "?".into(),
                    })
                    .collect();
                format!("{}[{}]", t.dtype, dims.join(","))
            }
        },
        Type::Sequence(t) => format!("seq({})", show(module, t)),
        other => format!("{other:?}"),
    }
}

fn schema(name: &str, version: u16) -> Op {
    let Lookup::Found(schema) = lookup("", name, version) else { panic!("no {name}") };
    Op::Schema(schema)
}

/// A Loop over `body`; its operands are the number of rounds, the condition and the state.
fn add_loop(b: &mut Build, graph: GraphId, body: GraphId, operands: &[Option<Value>], n: usize) -> Node {
    b.node(graph, schema("Loop", 17), operands, &[("body", AttrValue::Graph(body))], n)
}

fn axis(n: i64) -> [(&'static str, AttrValue); 1] {
    [("axis", AttrValue::Int(n))]
}

#[test]
fn a_target_computed_from_parts_of_a_shape_is_known() {
    let mut b = Build::new();
    let g = b.main();
    let x = b.input(g, &["N", "S", "64"]);
    let shape = b.op(g, "Shape", &[x], &[]);
    let (zero, one) = (b.int(g, 0), b.ints(g, &[1]));
    let n = b.op(g, "Gather", &[shape, zero], &[]);
    let axes = b.ints(g, &[0]);
    let n = b.op(g, "Unsqueeze", &[n, axes], &[]);
    let two = b.ints(g, &[2]);
    let s = b.op(g, "Slice", &[shape, one, two], &[]);
    let minus = b.ints(g, &[-1]);
    let heads = b.ints(g, &[4]);
    let target = b.op(g, "Concat", &[n, s, heads, minus], &axis(0));
    let y = b.op(g, "Reshape", &[x, target], &[]);
    let narrow = b.op(g, "Cast", &[target], &[("to", AttrValue::Int(6))]);
    let wide = b.op(g, "Cast", &[narrow], &[("to", AttrValue::Int(7))]);
    let z = b.op(g, "Reshape", &[x, wide], &[]);
    let size = b.op(g, "Size", &[x], &[]);
    let facts = infer_module(&mut b.0).unwrap();
    assert_eq!(b.show(y), "f32[N,S,4,16]");
    assert_eq!(b.show(z), "f32[N,S,4,16]");
    assert_eq!(facts.ints(target).unwrap()[2..], [Int::Known(4), Int::Known(-1)]);
    assert_eq!(facts.ints(size), Some(&[Int::Unknown][..]));
}

/// The axes that were repeated to the shape of a gradient, as `autodiff` finds them.
#[test]
fn axes_that_a_comparison_of_shapes_finds_are_known() {
    let mut b = Build::new();
    let g = b.main();
    let x = b.input(g, &["2", "N", "3"]);
    let like = b.input(g, &["1", "N", "3"]);
    let (x_shape, shape) = (b.op(g, "Shape", &[x], &[]), b.op(g, "Shape", &[like], &[]));
    let same = b.op(g, "Equal", &[shape, x_shape], &[]);
    let differs = b.op(g, "Not", &[same], &[]);
    let all = b.ints(g, &[0, 1, 2]);
    let axes = b.op(g, "Compress", &[all, differs], &axis(0));
    let y = b.op(g, "ReduceSum", &[x, axes], &[("noop_with_empty_axes", AttrValue::Int(1))]);
    let facts = infer_module(&mut b.0).unwrap();
    assert_eq!((b.show(y).as_str(), facts.ints(axes)), ("f32[1,N,3]", Some(&[Int::Known(0)][..])));
}

#[test]
fn elements_reach_bodies_three_deep_through_captures() {
    let mut b = Build::new();
    let g = b.main();
    let x = b.input(g, &["N", "12"]);
    let condition = b.formal(g);
    b.0.set_type(condition, Type::tensor(DType::Bool, Shape::scalar()));
    let shape = b.op(g, "Shape", &[x], &[]);
    let tail = b.ints(g, &[3, 4]);
    let index = b.ints(g, &[0]);
    let n = b.op(g, "Gather", &[shape, index], &[]);
    let target = b.op(g, "Concat", &[n, tail], &axis(0));
    // If in If in If: all owners first, since captures go through them one by one.
    let (mut graph, mut values) = (g, [condition, x, target]);
    let mut owners = Vec::new();
    for _ in 0..3 {
        let (then, other) = (b.body(), b.body());
        let attrs = [("then_branch", AttrValue::Graph(then)), ("else_branch", AttrValue::Graph(other))];
        let node = b.node(graph, schema("If", 17), &[Some(values[0])], &attrs, 1);
        owners.push((node, graph, then));
        let copy = b.0.capture(other, values[1]);
        let copy_target = b.0.capture(other, values[2]);
        let y = b.op(other, "Reshape", &[copy, copy_target], &[]);
        b.leave(other, &[y]);
        values = values.map(|v| b.0.capture(then, v));
        graph = then;
    }
    let y = b.op(graph, "Reshape", &[values[1], values[2]], &[]);
    b.leave(graph, &[y]);
    for &(node, inside, _) in owners.iter().skip(1).rev() {
        let y = b.result(node, 0);
        b.leave(inside, &[y]);
    }
    infer_module(&mut b.0).unwrap();
    assert_eq!(b.show(y), "f32[N,3,4]");
    assert_eq!(b.show(b.result(owners[0].0, 0)), "f32[N,3,4]");
}

#[test]
fn a_known_condition_takes_one_branch() {
    for (taken, expected) in [(Some(true), "f32[1,2]"), (Some(false), "f32[2]"), (None, "f32[*]")] {
        let mut b = Build::new();
        let g = b.main();
        let x = b.input(g, &["1", "2"]);
        let condition = match taken {
            Some(flag) => b.flag(g, flag),
            None => b.formal(g),
        };
        let (then, other) = (b.body(), b.body());
        let attrs = [("then_branch", AttrValue::Graph(then)), ("else_branch", AttrValue::Graph(other))];
        let node = b.node(g, schema("If", 17), &[Some(condition)], &attrs, 1);
        let (a, c) = (b.0.capture(then, x), b.0.capture(other, x));
        let (y, z) = (b.op(then, "Identity", &[a], &[]), b.op(other, "Squeeze", &[c], &[]));
        b.leave(then, &[y]);
        b.leave(other, &[z]);
        infer_module(&mut b.0).unwrap();
        assert_eq!(b.show(b.result(node, 0)), expected, "{taken:?}");
    }
}

/// A Loop with `n` states whose body shifts them by one and appends the last to itself.
fn shifting_loop(b: &mut Build, graph: GraphId, states: &[Value], n_rounds: Option<Value>) -> Node {
    let body = b.body();
    let mut operands = vec![n_rounds, None];
    operands.extend(states.iter().copied().map(Some));
    let node = add_loop(b, graph, body, &operands, states.len() + 1);
    let formals: Vec<Value> = (0..states.len() + 2).map(|_| b.formal(body)).collect();
    let last = formals[formals.len() - 1];
    let longer = b.op(body, "Concat", &[last, last], &axis(0));
    let scanned = b.op(body, "Identity", &[formals[0]], &[]);
    let mut outputs = vec![formals[1]];
    outputs.extend(&formals[3..]);
    outputs.extend([longer, scanned]);
    b.leave(body, &outputs);
    node
}

#[test]
fn state_that_changes_its_shape_reaches_a_fixed_point() {
    let mut b = Build::new();
    let g = b.main();
    let states: Vec<Value> = (0..9).map(|_| b.input(g, &["2", "M"])).collect();
    let rounds = b.int(g, 5);
    let node = shifting_loop(&mut b, g, &states, Some(rounds));
    infer_module(&mut b.0).unwrap();
    // A round tells one state more, and after nine rounds all are long: no state may keep its first extent.
    for i in 0..9 {
        let Type::Tensor(t) = &b.0.value(b.result(node, i)).ty else { continue };
        assert!(t.shape.dims().is_none_or(|d| d[0] == Dim::Unknown), "state {i}: {t:?}");
    }
    assert_eq!(b.show(b.result(node, 9)), "i64[5]");
}

#[test]
fn one_growing_state_keeps_what_does_not_grow() {
    let mut b = Build::new();
    let g = b.main();
    let state = b.input(g, &["2", "M"]);
    let node = shifting_loop(&mut b, g, &[state], None);
    infer_module(&mut b.0).unwrap();
    assert_eq!(b.show(b.result(node, 0)), "f32[?,M]");
    assert_eq!(b.show(b.result(node, 1)), "i64[?]");
}

#[test]
fn nested_loops_take_bounded_time() {
    let mut b = Build::new();
    let g = b.main();
    let mut state = b.input(g, &["2"]);
    let mut graph = g;
    let mut owners = Vec::new();
    for _ in 0..40 {
        let body = b.body();
        let node = add_loop(&mut b, graph, body, &[None, None, Some(state)], 1);
        owners.push((node, graph));
        let formals: Vec<Value> = (0..3).map(|_| b.formal(body)).collect();
        b.leave(body, &[formals[1]]);
        (state, graph) = (formals[2], body);
    }
    let longer = b.op(graph, "Concat", &[state, state], &axis(0));
    b.leave(graph, &[longer]);
    for &(node, inside) in owners.iter().skip(1).rev() {
        let y = b.result(node, 0);
        b.leave(inside, &[y]);
    }
    infer_module(&mut b.0).unwrap();
    let Type::Tensor(t) = &b.0.value(b.result(owners[0].0, 0)).ty else { return };
    assert!(t.shape.dims().is_none_or(|d| d == [Dim::Unknown]), "{t:?}");
}

#[test]
fn an_error_in_a_loop_is_reported_once() {
    let mut b = Build::new();
    let g = b.main();
    let state = b.input(g, &["2", "3"]);
    let body = b.body();
    add_loop(&mut b, g, body, &[None, None, Some(state)], 1);
    let formals: Vec<Value> = (0..3).map(|_| b.formal(body)).collect();
    let y = b.op(body, "Transpose", &[formals[2]], &[("perm", AttrValue::Ints(vec![0, 0]))]);
    b.leave(body, &[formals[1], y]);
    let errors = infer_module(&mut b.0).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn scan_slices_its_inputs_and_stacks_its_outputs() {
    for (version, batch) in [(8, true), (9, false), (25, false)] {
        let mut b = Build::new();
        let g = b.main();
        let (state, x) = match batch {
            true => (b.input(g, &["B", "4"]), b.input(g, &["B", "T", "4"])),
            false => (b.input(g, &["4"]), b.input(g, &["T", "4"])),
        };
        let body = b.body();
        let mut operands = vec![Some(state), Some(x)];
        if batch {
            operands.insert(0, None);
        }
        let attrs = [("body", AttrValue::Graph(body)), ("num_scan_inputs", AttrValue::Int(1))];
        let node = b.node(g, schema("Scan", version), &operands, &attrs, 2);
        let (s, e) = (b.formal(body), b.formal(body));
        let y = b.op(body, "Concat", &[s, e], &axis(0));
        let s = b.op(body, "Identity", &[s], &[]);
        b.leave(body, &[s, y]);
        infer_module(&mut b.0).unwrap();
        let expected = if batch { ("f32[B,4]", "f32[B,T,8]") } else { ("f32[4]", "f32[T,8]") };
        assert_eq!((&*b.show(b.result(node, 0)), &*b.show(b.result(node, 1))), expected, "{version}");
    }
}

#[test]
fn scan_without_operands_is_an_error() {
    let mut b = Build::new();
    let g = b.main();
    let body = b.body();
    let attrs = [("body", AttrValue::Graph(body)), ("num_scan_inputs", AttrValue::Int(1))];
    b.node(g, schema("Scan", 8), &[], &attrs, 1);
    assert_eq!(b.error(), "attribute `num_scan_inputs`: expected at most 0 scan inputs, found 1");
}

#[test]
fn scan_state_keeps_its_shape() {
    let mut b = Build::new();
    let g = b.main();
    let (state, x) = (b.input(g, &["2"]), b.input(g, &["T", "2"]));
    let body = b.body();
    let attrs = [("body", AttrValue::Graph(body)), ("num_scan_inputs", AttrValue::Int(1))];
    b.node(g, schema("Scan", 17), &[Some(state), Some(x)], &attrs, 1);
    let (s, e) = (b.formal(body), b.formal(body));
    let y = b.op(body, "Concat", &[s, e], &axis(0));
    b.leave(body, &[y]);
    assert_eq!(b.error(), "result 0: expected f32[2], the state before the first iteration, found f32[4]");
}

#[test]
fn sequence_map_hands_in_elements() {
    let mut b = Build::new();
    let g = b.main();
    let (x, w) = (b.input(g, &["N", "3"]), b.input(g, &["1", "3"]));
    let sequence = b.op(g, "SequenceConstruct", &[x, x], &[]);
    let body = b.body();
    let attrs = [("body", AttrValue::Graph(body))];
    let node = b.node(g, schema("SequenceMap", 17), &[Some(sequence), Some(w)], &attrs, 1);
    let (a, c) = (b.formal(body), b.formal(body));
    let y = b.op(body, "Concat", &[a, c], &axis(0));
    b.leave(body, &[y]);
    infer_module(&mut b.0).unwrap();
    assert_eq!(b.show(b.result(node, 0)), "seq(f32[?,3])");
}

/// A function that transposes by its attribute `order` and reshapes to its attribute `target`.
fn reordering_function(b: &mut Build) -> (FunctionId, Value) {
    let body = b.body();
    let x = b.formal(body);
    let reference =
        |b: &mut Build, name: &str| AttrValue::Reference { kind: AttrKind::Ints, name: b.0.intern(name) };
    let (order, target) = (reference(b, "order"), reference(b, "target"));
    let turned = b.op(body, "Transpose", &[x], &[("perm", order)]);
    let target = b.op(body, "Constant", &[], &[("value_ints", target)]);
    let y = b.op(body, "Reshape", &[turned, target], &[]);
    b.leave(body, &[y]);
    (b.function("reorder", body), turned)
}

#[test]
fn calls_see_their_attributes_and_bodies_what_all_calls_share() {
    let mut b = Build::new();
    let (function, turned) = reordering_function(&mut b);
    let g = b.main();
    let (x, y) = (b.input(g, &["N", "3", "4"]), b.input(g, &["2", "3", "4"]));
    let attrs = |order: &[i64], target: &[i64]| {
        [("order", AttrValue::Ints(order.to_vec())), ("target", AttrValue::Ints(target.to_vec()))]
    };
    let calls = [
        b.node(g, Op::Call(function), &[Some(x)], &attrs(&[0, 2, 1], &[0, -1]), 1),
        b.node(g, Op::Call(function), &[Some(y)], &attrs(&[2, 1, 0], &[-1]), 1),
        b.node(g, Op::Call(function), &[Some(x)], &attrs(&[0, 2, 1], &[0, -1]), 1),
    ];
    let facts = infer_module(&mut b.0).unwrap();
    let shown: Vec<String> = calls.iter().map(|&c| b.show(b.result(c, 0))).collect();
    assert_eq!(shown, ["f32[N,12]", "f32[24]", "f32[N,12]"]);
    assert_eq!(b.show(turned), "f32[?,?,?]");
    // A node of the body alone: which attributes it has is up to the call.
    let node = b.0.producer(turned).unwrap().0;
    assert!(super::check_node(&b.0, node, &facts).is_ok());
}

/// A call without an attribute has the default, also where it passes the attribute on.
#[test]
fn calls_have_the_defaults_of_their_function() {
    let mut b = Build::new();
    let (inner, _) = reordering_function(&mut b);
    let body = b.body();
    let x = b.formal(body);
    let order = AttrValue::Reference { kind: AttrKind::Ints, name: b.0.intern("turn") };
    let call = b.node(body, Op::Call(inner), &[Some(x)], &[("order", order)], 1);
    let y = b.result(call, 0);
    b.leave(body, &[y]);
    let outer = b.function("outer", body);
    let ints = |list: &[i64]| AttrValue::Ints(list.to_vec());
    for (function, name, list) in
        [(inner, "target", &[0, -1][..]), (inner, "order", &[2, 1, 0]), (outer, "turn", &[0, 2, 1])]
    {
        let name = b.0.intern(name);
        b.0.functions[function].attr_defaults.push(Attr { name, value: ints(list), dirty: false });
    }
    let g = b.main();
    let x = b.input(g, &["2", "3", "4"]);
    let mut result = |function: FunctionId, attrs: &[(&str, AttrValue)]| {
        let call = b.node(g, Op::Call(function), &[Some(x)], attrs, 1);
        b.result(call, 0)
    };
    let results = [
        result(inner, &[]),
        result(inner, &[("order", ints(&[2, 1, 0]))]),
        result(inner, &[("target", ints(&[-1])), ("order", ints(&[1, 0, 2]))]),
        result(inner, &[("order", ints(&[1, 0, 2]))]),
    ];
    infer_module(&mut b.0).unwrap();
    assert_eq!(results.map(|value| b.show(value)), ["f32[4,6]", "f32[4,6]", "f32[24]", "f32[3,8]"]);
    let calls = [(&[][..]), &[("turn", ints(&[1, 2, 0]))]]
        .map(|attrs| b.node(g, Op::Call(outer), &[Some(x)], attrs, 1));
    infer_module(&mut b.0).unwrap();
    assert_eq!(calls.map(|call| b.show(b.result(call, 0))), ["f32[2,12]", "f32[3,8]"]);
}

#[test]
fn elements_reach_functions_and_come_back() {
    let mut b = Build::new();
    let body = b.body();
    let (x, n) = (b.formal(body), b.formal(body));
    let shape = b.op(body, "Shape", &[x], &[]);
    let target = b.op(body, "Concat", &[shape, n], &axis(0));
    b.leave(body, &[target]);
    let function = b.function("longer", body);
    let g = b.main();
    let x = b.input(g, &["N", "6"]);
    let shapes = [1, 2].map(|n| {
        let ones = b.ints(g, &[1; 2][..n]);
        let call = b.node(g, Op::Call(function), &[Some(x), Some(ones)], &[], 1);
        let target = b.result(call, 0);
        b.op(g, "Reshape", &[x, target], &[])
    });
    infer_module(&mut b.0).unwrap();
    assert_eq!(shapes.map(|v| b.show(v)), ["f32[N,6,1]", "f32[N,6,1,1]"]);
}

#[test]
fn many_signatures_cost_little() {
    let mut b = Build::new();
    // Every function calls the next one twice, each time with another constant: 2^30 ways to call the last.
    let body = b.body();
    let x = b.formal(body);
    let y = b.op(body, "Identity", &[x], &[]);
    b.leave(body, &[y]);
    let mut next = b.function("f0", body);
    for i in 1..30 {
        let body = b.body();
        let x = b.formal(body);
        let mut results = Vec::new();
        for n in [i, -i] {
            let n = b.ints(body, &[n]);
            let longer = b.op(body, "Concat", &[x, n], &axis(0));
            let call = b.node(body, Op::Call(next), &[Some(longer)], &[], 1);
            results.push(b.result(call, 0));
        }
        b.leave(body, &results[..1]);
        next = b.function(&format!("f{i}"), body);
    }
    let g = b.main();
    let x = b.ints(g, &[7]);
    let call = b.node(g, Op::Call(next), &[Some(x)], &[], 1);
    infer_module(&mut b.0).unwrap();
    let shown = b.show(b.result(call, 0));
    assert!(shown == "i64[30]" || shown == "i64[?]" || shown == "i64[*]", "{shown}");
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let mut b = Build::new();
    let body = b.body();
    let x = b.formal(body);
    let function = b.function("again", body);
    let call = b.node(body, Op::Call(function), &[Some(x)], &[], 1);
    let y = b.result(call, 0);
    b.leave(body, &[y]);
    let g = b.main();
    let x = b.input(g, &["2"]);
    b.node(g, Op::Call(function), &[Some(x)], &[], 1);
    assert_eq!(b.error(), "expected that `again` does not call itself, found a recursive call");
}

#[test]
fn depth_is_bounded() {
    for (depth, fits) in [(200, true), (300, false)] {
        let mut b = Build::new();
        let g = b.main();
        let mut state = b.input(g, &["2"]);
        let mut graph = g;
        let mut owners = Vec::new();
        for _ in 0..depth {
            let body = b.body();
            let node = add_loop(&mut b, graph, body, &[None, None, Some(state)], 1);
            owners.push((node, graph));
            let formals: Vec<Value> = (0..3).map(|_| b.formal(body)).collect();
            b.leave(body, &[formals[1]]);
            (state, graph) = (formals[2], body);
        }
        b.leave(graph, &[state]);
        for &(node, inside) in owners.iter().skip(1).rev() {
            let y = b.result(node, 0);
            b.leave(inside, &[y]);
        }
        match infer_module(&mut b.0) {
            Ok(_) => assert!(fits, "{depth}"),
            Err(errors) => assert!(!fits && errors[0].to_string().contains("deeper"), "{errors:?}"),
        }
    }
}

#[test]
fn absent_results_and_operands_are_skipped() {
    let mut b = Build::new();
    let g = b.main();
    let x = b.input(g, &["N", "3"]);
    let name = b.0.fresh_name("y");
    let new = NewNode {
        op: schema("Unique", 17),
        name: None,
        operands: [Some(x)].into_iter().collect(),
        attrs: Vec::new(),
        results: vec![Some((name, Type::Unknown)), None, None, Some((b.0.fresh_name("n"), Type::Unknown))],
        provenance: Provenance::User,
    };
    let node = b.0.add_node(g, Position::Last, new);
    infer_module(&mut b.0).unwrap();
    assert_eq!(b.show(b.result(node, 3)), "i64[?]");
}
