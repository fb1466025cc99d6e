//! Graphs run on the CPU and on the reference backend, which has a memory of its own.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

#[path = "reference/mod.rs"]
mod reference;

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Shape, Type};
use ampc_runtime::backend::{Backend, Candidates, Device, KernelError, Prepared, Site};
use ampc_runtime::data::Sequence;
use ampc_runtime::session::{ExecuteError, NodeObserver, Watch};
use ampc_runtime::{Data, DataRef, HostTensor, Runtime, Tolerance, compare};
use reference::Reference;
use std::sync::Arc;
use std::time::Duration;

/// The graph on the CPU and on the reference backend under three seeds: equal but for rounding.
fn same(text: &str, inputs: &[HostTensor]) {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let refs: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
    let want = Runtime::default().prepare(&module).unwrap().run(&refs).unwrap();
    for seed in 0..3 {
        let backend = Reference::new(seed);
        let device = backend.shared_device();
        let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
        for _ in 0..2 {
            let got = session.run(&refs).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for (got, want) in got.iter().zip(&want) {
                agree(got, want);
            }
        }
        drop(session);
        assert_eq!(device.live_bytes(), 0, "seed {seed}: memory is left");
    }
}

fn agree(got: &Data, want: &Data) {
    match (got, want) {
        (Data::Tensor(got), Data::Tensor(want)) => {
            let tolerance = Tolerance { abs: 1e-6, rel: 1e-5, of_max: 0.0 };
            let found = compare(got, want, &tolerance).unwrap();
            assert_eq!(found.mismatches, 0, "{found:?}");
        }
        (Data::Sequence(got), Data::Sequence(want)) => {
            assert_eq!(got.items().len(), want.items().len());
            got.items().iter().zip(want.items()).for_each(|(got, want)| agree(got, want));
        }
        _ => panic!("{got:?} and {want:?}"),
    }
}

fn tensor(dims: &[u64], first: f32) -> HostTensor {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let elements: Vec<f32> =
        (0..dims.iter().product::<u64>()).map(|i| first + (i % 7) as f32 / 8.0 - 0.4).collect();
    HostTensor::from_slice(dims, &elements).unwrap()
}

/// Groups of several nodes are steps of the plan; the values inside have no place.
#[test]
fn groups_are_steps_of_the_plan() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    let mut session = Runtime::new(Arc::new(Reference::new(2))).prepare(&module).unwrap();
    session.bind(&[Some(DataRef::Tensor(x.view()))]).unwrap();
    insta::assert_snapshot!(session.plan_text());
    // An observer sees every node by itself.
    let mut seen = Seen(0);
    session.run_observed(&[Some(DataRef::Tensor(x.view()))], Some(&mut seen)).unwrap();
    assert_eq!(seen.0, 5);
    assert!(!session.plan_text().contains('+'));
}

/// Nodes that depend on dims alone are computed once for each kind of dims. A node that only they read runs all the same,
/// since it may fail.
#[test]
fn nodes_of_dims_are_computed_before_the_graph_runs() {
    let module = parse(&format!("{HEAD}{DIMS}"), &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let inputs: Vec<HostTensor> = [(2, 3), (5, 1), (2, 8)].map(|(n, s)| tensor(&[n, s, 4], 0.1)).into();
    let mut on_cpu = Runtime::default().prepare(&module).unwrap();
    let mut unfolded = Runtime { fold: false, ..Runtime::default() }.prepare(&module).unwrap();
    let backend = Reference::new(1);
    let device = backend.shared_device();
    let mut on_device = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
    for turn in 0..9 {
        let x = &inputs[turn % 3];
        let given = [Some(DataRef::Tensor(x.view()))];
        let wanted = unfolded.run(&given).unwrap();
        for session in [&mut on_cpu, &mut on_device] {
            let got = session.run(&given).unwrap();
            got.iter().zip(&wanted).for_each(|(got, want)| agree(got, want));
        }
        let ty = DataRef::Tensor(x.view()).ty();
        let needs = Runtime::default().memory_needs(&module, &[Some(ty)]).unwrap();
        assert_eq!(needs.arenas, on_cpu.arena_bytes() as u64);
    }
    assert_eq!(on_cpu.executable().programs_made(), 3);
    assert_eq!(on_device.executable().programs_made(), 3);
    insta::assert_snapshot!(on_cpu.plan_text());
    // What an observer watches is computed in the run, also if only its dims are read.
    let named = |name: &str| {
        let mut values = module.nodes(module.main()).flat_map(|node| module.node(node).results()).flatten();
        *values.find(|&&value| module.value_name(value).is_some_and(|n| module.text(n) == name)).unwrap()
    };
    for session in [&mut on_cpu, &mut on_device] {
        let mut watching = Watching { wanted: vec![named("a"), named("dims")], seen: Vec::new() };
        let x = DataRef::Tensor(inputs[1].view());
        session.run_observed(&[Some(x)], Some(&mut watching)).unwrap();
        assert_eq!(watching.seen, [vec![5, 1, 4], vec![3]]);
    }
    drop(on_device);
    assert_eq!(device.live_bytes(), 0, "memory is left");
}

/// A Reshape, positions and a mask as exporters write them, with `%a` read for its dims alone.
const DIMS: &str = "\
graph @main {
  input %x : f32[n, s, 4]
  const %at : i64[1] = [1]
  const %zero : i64 = 0
  const %one : i64 = 1
  const %begin : i64[1] = [0]
  const %two : i64[2] = [-1, 2]
  const %half : f32 = 0.5
  %g = Neg(%x) : f32[n, s, 4]
  %h = Tanh(%g) : f32[n, s, 4]
  %a = Mul(%h, %half) : f32[n, s, 4]
  %dims = Shape(%a) : i64[3]
  %length = Gather(%dims, %one) {axis=0} : i64
  %count = Gather(%dims, %begin) {axis=0} : i64[1]
  %positions = Range(%zero, %length, %one) : i64[r]
  %flat = Concat(%count, %two) {axis=0} : i64[3]
  %y = Reshape(%x, %flat) : f32[p, q, 2]
  %row = Unsqueeze(%positions, %begin) : i64[1, r]
  %column = Unsqueeze(%positions, %at) : i64[r, 1]
  %mask = Less(%row, %column) : bool[r, r]
  %elements = Size(%x) : i64
  %n = Cast(%elements) {to=1} : f32
  %z = Div(%y, %n) : f32[p, q, 2]
  output %z : f32[p, q, 2]
  output %mask : bool[r, r]
  output %positions : i64[r]
}
";

/// Notes the dims of the values that it watches.
struct Watching {
    wanted: Vec<ampc_ir::Value>,
    seen: Vec<Vec<u64>>,
}

impl NodeObserver for Watching {
    fn watch(&self) -> Watch {
        Watch::values(self.wanted.iter().copied())
    }
    fn value(&mut self, _: ampc_ir::Node, _: usize, data: DataRef<'_>) {
        self.seen.push(data.tensor().unwrap().dims().to_vec());
    }
}

struct Seen(usize);

impl NodeObserver for Seen {
    fn value(&mut self, _: ampc_ir::Node, _: usize, _: DataRef<'_>) {
        self.0 += 1;
    }
}

const HEAD: &str = "module ir=10\nopset ai.onnx=21\n\n";

const CHAIN: &str = "\
graph @main {
  input %x : f32[n, 8]
  const %w : f32[8, 8] = random(1)
  const %shape : i64[2] = [-1, 4]
  %p = MatMul(%x, %w) : f32[n, 8]
  %t = Tanh(%p) : f32[n, 8]
  %r = Reshape(%t, %shape) : f32[m, 4]
  %s = Softmax(%r) : f32[m, 4]
  %u = Add(%s, %s) : f32[m, 4]
  output %u : f32[m, 4]
  output %p : f32[n, 8]
  output %w : f32[8, 8]
}
";

#[test]
fn a_chain() {
    same(&format!("{HEAD}{CHAIN}"), &[tensor(&[3, 8], 0.0)]);
}

#[test]
fn bodies_and_sequences() {
    let body = "\
graph @main {
  input %n : i64
  input %go : bool
  input %x : f32[4]
  %y, %rows = Loop(%n, %go, %x; %x) {
    body: graph @body (%x) {
      input %i : i64
      input %c : bool
      input %before : f32[4]
      %on = Identity(%c) : bool
      %f = Cast(%i) {to=1} : f32
      %sum = Add(%before, %f) : f32[4]
      %after = Mul(%sum, %x) : f32[4]
      output %on : bool
      output %after : f32[4]
      output %sum : f32[4]
    }
  } : f32[4], f32[k, 4]
  %z = If(%go; %y, %x) {
    then_branch: graph @then (%y) {
      %a = Neg(%y) : f32[4]
      output %a : f32[4]
    },
    else_branch: graph @else (%x) {
      %b = Abs(%x) : f32[4]
      output %b : f32[4]
    }
  } : f32[4]
  %s = SequenceConstruct(%x, %y) : seq(f32[4])
  %t = SequenceInsert(%s, %z) : seq(f32[4])
  output %z : f32[4]
  output %rows : f32[k, 4]
  output %t : seq(f32[4])
}
";
    let count = HostTensor::from_slice(&[], &[5i64]).unwrap();
    let go = HostTensor::from_bytes(ampc_ir::DType::Bool, &[], &[1]).unwrap();
    same(&format!("{HEAD}{body}"), &[count, go, tensor(&[4], 0.3)]);
}

#[test]
fn sizes_that_depend_on_data() {
    let body = "\
graph @main {
  input %x : f32[6]
  const %zero : f32 = 0.0
  %on = Greater(%x, %zero) : bool[6]
  %at = NonZero(%on) : i64[1, k]
  %flat = Squeeze(%at) : ?
  %some = Gather(%x, %flat) : ?
  %y = Exp(%some) : ?
  output %y : f32[k]
}
";
    same(&format!("{HEAD}{body}"), &[tensor(&[6], 0.1)]);
}

/// Outputs can stay on the device and be the inputs of another session of it.
#[test]
fn outputs_stay_on_the_device() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    let backend = Reference::new(1);
    let device = backend.shared_device();
    let runtime = Runtime::new(Arc::new(backend));
    let mut first = runtime.prepare(&module).unwrap();
    let mut second = runtime.prepare(&module).unwrap();
    let made = first.run_in_place(&[Some(DataRef::Tensor(x.view()))]).unwrap();
    assert!(made.iter().all(|data| matches!(data, Data::Device(_))));
    // The work is done when a value is read.
    let on_host = first.fetch(made[1].view()).unwrap();
    let got = second.run(&[Some(made[1].view())]).unwrap();
    let want = second.run(&[Some(on_host.view())]).unwrap();
    got.iter().zip(&want).for_each(|(got, want)| agree(got, want));
    drop((first, second, made));
    assert_eq!(device.live_bytes(), 0);
}

/// An output on the device can be read by another session at once, whose queues are others.
#[test]
fn outputs_on_the_device_are_complete() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    for seed in 0..6 {
        let runtime = Runtime::new(Arc::new(Reference::new(seed)));
        let mut first = runtime.prepare(&module).unwrap();
        let mut second = runtime.prepare(&module).unwrap();
        let made = first.run_in_place(&[Some(DataRef::Tensor(x.view()))]).unwrap();
        second.run(&[Some(made[1].view())]).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// A view whose shape is known only while the graph runs has bytes of its own, unless its operand is outside of the arena:
/// the bytes of a value in the arena, an input or a capture are those of other values later.
#[test]
fn views_of_late_shapes_keep_their_bytes() {
    let body = "\
graph @main {
  input %x : f32[6]
  input %s : i64[2]
  input %go : bool
  %a = Exp(%x) : f32[6]
  %late = Reshape(%a, %s) : ?
  %given = Reshape(%x, %s) : ?
  %b = Neg(%x) : f32[6]
  %c = Tanh(%b) : f32[6]
  %d = Sigmoid(%c) : f32[6]
  %e = Abs(%d) : f32[6]
  %z = If(%go; %e, %s) {
    then_branch: graph @then (%e, %s) {
      %outer = Reshape(%e, %s) : ?
      output %outer : f32[i, j]
    },
    else_branch: graph @else (%e) {
      output %e : f32[6]
    }
  } : ?
  %f = Mul(%e, %e) : f32[6]
  %g = Sqrt(%f) : f32[6]
  output %late : f32[i, j]
  output %given : f32[i, j]
  output %z : ?
  output %g : f32[6]
}
";
    let module = parse(&format!("{HEAD}{body}"), &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let shape = HostTensor::from_slice(&[2], &[2i64, 3]).unwrap();
    let go = HostTensor::from_bytes(ampc_ir::DType::Bool, &[], &[1]).unwrap();
    let inputs = [tensor(&[6], 0.1), tensor(&[6], 0.7)].map(|x| [x, shape.clone(), go.clone()]);
    let refs = inputs.each_ref().map(|of| of.each_ref().map(|x| Some(DataRef::Tensor(x.view()))));
    let want = Runtime::default().prepare(&module).unwrap().run(&refs[0]).unwrap();
    for seed in 0..8 {
        let mut session = Runtime::new(Arc::new(Reference::new(seed))).prepare(&module).unwrap();
        let made = session.run_in_place(&refs[0]).unwrap();
        session.run(&refs[1]).unwrap();
        for (made, want) in made.iter().zip(&want) {
            agree(&session.fetch(made.view()).unwrap(), want);
        }
    }
}

/// The reference backend without kernels for groups, or with kernels on a queue that the device lacks.
#[derive(Debug)]
struct Changed {
    inner: Reference,
    queue: usize,
}

impl Backend for Changed {
    fn name(&self) -> &'static str {
        "changed"
    }
    fn has_kernel(&self, kind: OpKind) -> bool {
        self.inner.has_kernel(kind)
    }
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        Ok(self.inner.prepare(site)?.on_queue(self.queue))
    }
    fn has_groups(&self) -> bool {
        true
    }
    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<ampc_ir::Node>> {
        self.inner.join(candidates)
    }
    fn groups_may_grow(&self) -> bool {
        self.queue == 0
    }
    fn device(&self) -> Option<&dyn Device> {
        self.inner.device()
    }
}

/// Nodes of a group without a kernel run one by one.
#[test]
fn a_group_without_a_kernel_is_taken_apart() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    let refs = [Some(DataRef::Tensor(x.view()))];
    let want = Runtime::default().prepare(&module).unwrap().run(&refs).unwrap();
    for seed in 1..6 {
        let backend = Changed { inner: Reference::new(seed), queue: 0 };
        let got = Runtime::new(Arc::new(backend)).prepare(&module).unwrap().run(&refs).unwrap();
        got.iter().zip(&want).for_each(|(got, want)| agree(got, want));
    }
}

#[test]
fn a_kernel_on_a_queue_that_the_device_lacks_is_refused() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    let backend = Changed { inner: Reference::new(1), queue: 7 };
    let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
    let error = session.bind(&[Some(DataRef::Tensor(x.view()))]).unwrap_err();
    assert_eq!(error.to_string(), "expected a kernel on one of 2 queues, found queue 7");
}

#[test]
fn the_limit_is_the_memory_of_the_device() {
    let runtime = Runtime::new(Arc::new(Reference::new(0)));
    assert_eq!(runtime.limits.max_bytes, reference::device::MEMORY);
}

/// The time limit holds for the work that the host waits for.
#[test]
fn work_on_the_device_takes_time() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    let refs = [Some(DataRef::Tensor(x.view()))];
    let backend = Reference::new(0);
    let device = backend.shared_device();
    let mut runtime = Runtime::new(Arc::new(backend));
    runtime.limits.time_limit = Some(Duration::from_secs(1));
    let mut session = runtime.prepare(&module).unwrap();
    session.run(&refs).unwrap();
    device.set_delay(1200);
    assert!(matches!(session.run(&refs), Err(ExecuteError::Time { .. })));
}

/// A session that waits for its runs has no queue for copies of later inputs.
#[test]
fn queues_are_opened_when_they_are_used() {
    let module = parse(&format!("{HEAD}{CHAIN}"), &NoData).unwrap();
    let x = tensor(&[3, 8], 0.0);
    let refs = [Some(DataRef::Tensor(x.view()))];
    let backend = Reference::new(0);
    let device = backend.shared_device();
    let mut session = Runtime::new(Arc::new(backend)).prepare(&module).unwrap();
    session.run(&refs).unwrap();
    assert_eq!(device.queues(), 1);
    session.begin_run(&refs, &[]).unwrap();
    assert_eq!(device.queues(), 2);
}

/// The element of a sequence has other dims than the model declares. Only its dims are read, and they are known before the
/// graph runs; the element is an error all the same.
#[test]
fn an_element_of_other_dims_is_an_error_if_only_its_dims_are_read() {
    let text = format!(
        "{HEAD}graph @main {{\n  input %s : seq(f32[2])\n  const %one : i64 = 1\n  %e = SequenceAt(%s, %one) : f32[2]\n  \
         %r = Relu(%e) : f32[2]\n  %t = Exp(%r) : f32[2]\n  %dims = Shape(%t) : i64[1]\n  output %dims : i64[1]\n}}\n"
    );
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    for (second, is_right) in [(2, true), (3, false)] {
        let items = vec![tensor(&[2], 0.0).into(), tensor(&[second], 0.0).into()];
        let element = Type::tensor(DType::F32, Shape::known(&[2]));
        let list = Data::Sequence(Sequence::new(element, items));
        let mut on_device = Runtime::new(Arc::new(Reference::new(1))).prepare(&module).unwrap();
        let mut on_cpu = Runtime::default().prepare(&module).unwrap();
        for session in [&mut on_cpu, &mut on_device] {
            assert_eq!(session.run(&[Some(list.view())]).is_ok(), is_right, "{second} elements");
        }
    }
}

/// A tensor of other dims than those of the elements goes into a sequence, and a body that declares the dims of an element
/// gets elements of other dims: dims are those that each element has.
#[test]
fn elements_of_a_sequence_have_dims_of_their_own() {
    let insert = "  input %s : seq(f32[2])\n  input %x : f32[K]\n  const %last : i64 = -1\n  \
         %t = SequenceInsert(%s, %x) : seq(f32[?])\n  %e = SequenceAt(%t, %last) : f32[?]\n  \
         %n = Size(%e) : i64\n  output %n : i64\n";
    let map = "  input %s : seq(f32[?])\n  input %x : f32[K]\n  %m = SequenceMap(%s) {\n    body: graph @each {\n      \
         input %e : f32[2]\n      %d = Shape(%e) : i64[1]\n      output %d\n    }\n  } : seq(i64[1])\n  \
         %n = ConcatFromSequence(%m) {axis=0} : i64[?]\n  output %n : i64[?]\n";
    for (body, second, want) in [(insert, 2, &[5][..]), (map, 3, &[2, 3])] {
        let module = parse(&format!("{HEAD}graph @main {{\n{body}}}\n"), &NoData).unwrap();
        let items = vec![tensor(&[2], 0.0).into(), tensor(&[second], 0.0).into()];
        let list = Data::Sequence(Sequence::new(Type::tensor(DType::F32, Shape::known(&[2])), items));
        let x = tensor(&[5], 0.0);
        for runtime in [Runtime::default(), Runtime::new(Arc::new(Reference::new(1)))] {
            let mut session = runtime.prepare(&module).unwrap();
            let got = session.run(&[Some(list.view()), Some(DataRef::Tensor(x.view()))]).unwrap();
            let got = got[0].tensor().unwrap().view().to_host().unwrap();
            assert_eq!(got.as_slice::<i64>().unwrap(), want);
        }
    }
}
