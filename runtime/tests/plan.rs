//! Plans as text: the order, the places, what is computed in place, what is a view, where state stays.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module, Type};
use ampc_runtime::backend::{Backend, KernelError, Prepared, Site};
use ampc_runtime::session::ExecuteError;
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Runtime, Session};
use std::sync::Arc;

/// The kernels of the CPU without groups, so that every node is a step.
#[derive(Debug)]
struct Alone(Cpu);

impl Backend for Alone {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn has_kernel(&self, kind: OpKind) -> bool {
        self.0.has_kernel(kind)
    }
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        self.0.prepare(site)
    }
}

fn module(body: &str) -> Module {
    let text = format!("module ir=10\nopset ai.onnx=21\n\n{body}");
    parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Inputs of ones, with 2 for what is symbolic.
fn inputs(module: &Module) -> Vec<HostTensor> {
    let one = |ty: &Type| {
        let ty = ty.as_tensor().unwrap();
        let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|d| d.known().unwrap_or(2)).collect();
        let count = usize::try_from(dims.iter().product::<u64>()).unwrap();
        match ty.dtype {
            DType::F32 => HostTensor::from_slice(&dims, &vec![1.0f32; count]).unwrap(),
            DType::F16 => HostTensor::from_bytes(ty.dtype, &dims, &[0, 0x3c].repeat(count)).unwrap(),
            DType::I64 => HostTensor::from_slice(&dims, &vec![1i64; count]).unwrap(),
            DType::Bool => HostTensor::from_bytes(DType::Bool, &dims, &vec![1; count]).unwrap(),
            other => panic!("no ones of {other}"),
        }
    };
    let formals = module.graph(module.main()).inputs();
    formals.iter().map(|&v| one(&module.value(v).ty)).collect()
}

fn refs(inputs: &[HostTensor]) -> Vec<Option<DataRef<'_>>> {
    inputs.iter().map(|t| Some(DataRef::Tensor(t.view()))).collect()
}

fn prepared(body: &str) -> (Session, Vec<HostTensor>) {
    prepared_on(&Runtime::from(Cpu::new(1)), body)
}

fn prepared_on(runtime: &Runtime, body: &str) -> (Session, Vec<HostTensor>) {
    let module = module(body);
    let inputs = inputs(&module);
    let mut session = runtime.prepare(&module).unwrap();
    session.bind(&refs(&inputs)).unwrap_or_else(|error| panic!("{error}"));
    (session, inputs)
}

/// The plan of a graph whose nodes are steps.
fn plan(body: &str) -> String {
    prepared_on(&Runtime::new(Arc::new(Alone(Cpu::new(1)))), body).0.plan_text()
}

fn floats(data: &Data) -> Vec<f32> {
    data.tensor().unwrap().as_slice().unwrap().to_vec()
}

/// Tensors that are larger together than all numbers are an error, not a small arena.
#[test]
fn an_arena_has_a_size_that_no_sum_wraps() {
    let mut text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f64[1]\n  \
         const %dims : i64[1] = [288230376151711743]\n"
        .to_owned();
    for i in 0..9 {
        text += &format!("  %a{i} = Expand(%x, %dims) : f64[288230376151711743]\n");
    }
    for i in (0..9).rev() {
        let before = if i == 8 { "x".to_owned() } else { format!("b{}", i + 1) };
        text += &format!("  %b{i} = Add(%a{i}, %{before}) : f64[288230376151711743]\n");
    }
    let module = parse(&(text + "  output %b0\n}\n"), &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let x = HostTensor::from_slice(&[1], &[1.0f64]).unwrap();
    let mut session = Runtime::default().prepare(&module).unwrap();
    let error = session.run(&[Some(DataRef::Tensor(x.view()))]).unwrap_err();
    assert!(matches!(error, ExecuteError::Memory { bytes, .. } if bytes > u64::MAX / 8 * 7), "{error:?}");
}

#[test]
fn a_chain_is_computed_in_place() {
    insta::assert_snapshot!(plan(
        "\
graph @main {
  input %x : f32[N, 3]
  const %w : f32[3] = [1, 2, 3]
  %a = Mul(%x, %w) : f32[N, 3]
  %b = Relu(%a) : f32[N, 3]
  %c = Add(%b, %w) : f32[N, 3]
  output %c : f32[N, 3]
}
"
    ));
}

#[test]
fn what_is_read_again_is_not_overwritten() {
    insta::assert_snapshot!(plan(
        "\
graph @main {
  input %x : f32[4]
  %a = Neg(%x) : f32[4]
  %b = Relu(%a) : f32[4]
  %c = Mul(%b, %b) : f32[4]
  %d = Add(%a, %c) : f32[4]
  %e = Sub(%d, %d) : f32[4]
  output %e : f32[4]
}
"
    ));
}

/// A value that only a group reads has no place. A result that is read outside has a place, that of an operand where possible.
#[test]
fn groups_of_the_cpu_are_steps() {
    let body = "\
graph @main {
  input %x : f16[N, 3]
  input %s : f16[3]
  const %w : f16[3, 3] = random(1)
  %p = MatMul(%x, %w) : f16[N, 3]
  %a = Mul(%p, %s) : f16[N, 3]
  %b = Cast(%a) {to=1} : f32[N, 3]
  %c = Tanh(%b) : f32[N, 3]
  %d = Cast(%c) {to=10} : f16[N, 3]
  %q = MatMul(%d, %w) : f16[N, 3]
  %e = Add(%q, %a) : f16[N, 3]
  %f = Relu(%e) : f16[N, 3]
  output %f : f16[N, 3]
}
";
    insta::assert_snapshot!(prepared(body).0.plan_text());
}

/// One after the other, the nodes need no more than a transposition does; together they would hold all operands and the
/// result. The last two, which need no more together, stay a group.
#[test]
fn a_group_by_which_the_arena_would_grow_is_split() {
    let body = "\
graph @main {
  input %a : f16[64, 64]
  input %b : f16[64, 64]
  input %c : f16[64, 64]
  %x = Transpose(%a) : f16[64, 64]
  %y = Transpose(%b) : f16[64, 64]
  %z = Transpose(%c) : f16[64, 64]
  %m = Mul(%x, %y) : f16[64, 64]
  %s = Add(%m, %z) : f16[64, 64]
  %f = Cast(%s) {to=1} : f32[64, 64]
  %t = Transpose(%f) : f32[64, 64]
  output %t : f32[64, 64]
}
";
    let of_groups = prepared(body).0.plan_text();
    assert!(of_groups.contains(" = Mul(%x, %y)") && of_groups.contains(" = Add+Cast(%m, %z)"), "{of_groups}");
    let arena =
        |text: &str| text.lines().next().and_then(|line| line.split_once("arena ")).unwrap().1.to_owned();
    assert_eq!(arena(&of_groups), arena(&plan(body)));
}

/// Only the group that grows the arena is split; another group stays as it is.
#[test]
fn other_groups_stay_where_the_arena_would_grow() {
    let plan = prepared(
        "\
graph @main {
  input %q : f16[4, 4]
  input %a : f16[64, 64]
  input %b : f16[64, 64]
  input %c : f16[64, 64]
  %u = Neg(%q) : f16[4, 4]
  %v = Exp(%u) : f16[4, 4]
  %x = Transpose(%a) : f16[64, 64]
  %y = Transpose(%b) : f16[64, 64]
  %m = Mul(%x, %y) : f16[64, 64]
  %n = Neg(%m) : f16[64, 64]
  %z = Transpose(%c) : f16[64, 64]
  %s = Add(%n, %z) : f16[64, 64]
  %e = Exp(%s) : f16[64, 64]
  %f = Neg(%e) : f16[64, 64]
  %t = Transpose(%f) : f16[64, 64]
  %w = Neg(%v) : f16[4, 4]
  %r = Transpose(%w) : f16[4, 4]
  output %t : f16[64, 64]
  output %r : f16[4, 4]
}
",
    );
    insta::assert_snapshot!(plan.0.plan_text());
}

#[test]
fn views_share_bytes() {
    insta::assert_snapshot!(plan(
        "\
graph @main {
  input %x : f32[2, 3]
  const %s : i64[2] = [3, 2]
  const %t : i64[1] = [6]
  %a = Reshape(%x, %s) : f32[3, 2]
  %b = Relu(%a) : f32[3, 2]
  %c = Reshape(%b, %t) : f32[6]
  %d = Exp(%c) : f32[6]
  %e = Reshape(%d, %s) : f32[3, 2]
  output %b : f32[3, 2]
  output %e : f32[3, 2]
}
"
    ));
}

#[test]
fn products_of_fp16_have_scratch_memory() {
    insta::assert_snapshot!(plan(
        "\
graph @main {
  input %x : f16[4, 8]
  const %w : f16[8, 16] = random(1)
  const %v : f16[16, 2] = random(2)
  %a = MatMul(%x, %w) : f16[4, 16]
  %b = Relu(%a) : f16[4, 16]
  %c = MatMul(%b, %v) : f16[4, 2]
  output %c : f16[4, 2]
}
"
    ));
}

#[test]
fn what_depends_on_constants_alone_is_computed_before() {
    insta::assert_snapshot!(plan(
        "\
graph @main {
  input %x : f32[2, 4]
  const %w : f32[4] = random(1)
  const %v : f32[4] = random(2)
  %sum = Add(%w, %v) : f32[4]
  %e = Exp(%sum) : f32[4]
  %y = Mul(%x, %e) : f32[2, 4]
  output %y : f32[2, 4]
  output %sum : f32[4]
}
"
    ));
}

const UPDATE: &str = "\
graph @main {
  input %w : f32[4]
  input %g : f32[4]
  input %n : f32[2]
  %step = Mul(%g, %g) : f32[4]
  %w2 = Sub(%w, %step) : f32[4]
  %n2 = Exp(%n) : f32[2]
  %late = Add(%n, %n2) : f32[2]
  state %w -> %w2
  state %n -> %n2
  output %w2 : f32[4]
  output %n2 : f32[2]
  output %late : f32[2]
}
";

#[test]
fn state_is_updated_in_place_where_nothing_reads_it_later() {
    insta::assert_snapshot!(plan(UPDATE));
}

#[test]
fn state_stays_from_run_to_run() {
    let (mut session, inputs) = prepared(UPDATE);
    let all = refs(&inputs);
    session.run(&all).unwrap();
    let outputs = session.run(&[None, all[1], None]).unwrap();
    assert_eq!(floats(&outputs[0]), [-1.0; 4]);
    let states = session.states().unwrap();
    assert_eq!(floats(&states[0].1), [-1.0; 4]);
    assert_eq!(floats(&states[1].1), [1f32.exp().exp(); 2]);
    // Other dims plan anew and keep it.
    let outputs = session.run(&[None, all[1], None]).unwrap();
    assert_eq!(floats(&outputs[0]), [-2.0; 4]);
}

#[test]
fn states_that_change_places() {
    let (mut session, inputs) = prepared(
        "\
graph @main {
  input %a : f32[2]
  input %b : f32[2]
  %c = Add(%a, %b) : f32[2]
  state %a -> %b
  state %b -> %c
  output %b : f32[2]
  output %c : f32[2]
}
",
    );
    // Fibonacci.
    session.run(&refs(&inputs)).unwrap();
    for want in [3.0, 5.0, 8.0] {
        let outputs = session.run(&[None, None]).unwrap();
        assert_eq!(floats(&outputs[1]), [want; 2]);
    }
}

#[test]
fn bodies_have_plans_of_their_own() {
    insta::assert_snapshot!(plan(
        "\
graph @main {
  input %x : f32[4]
  input %c : bool[]
  %a = Relu(%x) : f32[4]
  %b = If(%c; %a) {
    then_branch: graph (%a) {
      %p = Exp(%a) : f32[4]
      %q = Mul(%p, %a) : f32[4]
      output %q : f32[4]
    },
    else_branch: graph (%a) {
      output %a : f32[4]
    }
  } : f32[4]
  output %b : f32[4]
}
"
    ));
}

/// The body owns the sequence that a Loop hands from iteration to iteration, and makes it longer without a copy. The
/// sequence that the Loop was given is another.
#[test]
fn a_loop_hands_its_sequence_over() {
    let text = "\
graph @main {
  input %x : f32[2]
  const %n : i64 = 5
  %s = SequenceConstruct(%x) : seq(f32[2])
  %r, %others, %lengths = Loop(%n, _, %s, %s; %x) {
    body: graph (%x) {
      input %i : i64
      input %c : bool
      input %a : seq(f32[2])
      input %b : seq(f32[2])
      %k = Identity(%c) : bool
      %f = Cast(%i) {to=1} : f32
      %y = Mul(%x, %f) : f32[2]
      %length = SequenceLength(%a) : i64
      %longer = SequenceInsert(%a, %y) : seq(f32[2])
      output %k
      output %longer
      output %b
      output %length
    }
  } : seq(f32[2]), seq(f32[2]), i64[?]
  %joined = ConcatFromSequence(%r) {axis=0} : f32[?]
  %left = SequenceLength(%others) : i64
  %given = SequenceLength(%s) : i64
  output %joined
  output %lengths
  output %left
  output %given
}
";
    let (mut session, inputs) = prepared(text);
    assert!(session.plan_text().contains("SequenceInsert(%a, %y), in place of %a"));
    for _ in 0..2 {
        let outputs = session.run(&refs(&inputs)).unwrap();
        let joined = [1.0f32, 0.0, 1.0, 2.0, 3.0, 4.0].map(|x| [x, x]).concat();
        assert_eq!(floats(&outputs[0]), joined);
        let ints = |data: &Data| data.tensor().unwrap().as_slice::<i64>().unwrap().to_vec();
        assert_eq!(
            outputs[1..].iter().map(ints).collect::<Vec<_>>(),
            [vec![1, 2, 3, 4, 5], vec![1], vec![1]]
        );
    }
}

/// An optimizer writes weight, moments and low copy where they are: the low copy is not an operand of it, and nothing reads
/// the old one any more.
#[test]
fn states_of_an_optimizer_stay_where_they_are() {
    let body = "\
graph @main {
  input %x : f16[2]
  input %w : f32[2]
  input %m : f32[2]
  input %v : f32[2]
  input %lo : f16[2]
  input %lr : f32
  input %mult : f32
  input %step : i64
  input %found : f32
  %g = Mul(%x, %lo) : f16[2]
  %w2, %m2, %v2, %lo2 = ai.ampc::AdamW(%w, %g, %m, %v, %lr, %mult, %step, %found) {beta1=tensor(f64 = 0.9), \
                beta2=tensor(f64 = 0.999), epsilon=tensor(f64 = 1e-8), bias_correction=1, mode=\"torch\", \
                weight_decay=tensor(f64 = 0.01), w_lo_dtype=10} : f32[2], f32[2], f32[2], f16[2]
  output %w2
  output %m2
  output %v2
  output %lo2
  state %w -> %w2
  state %m -> %m2
  state %v -> %v2
  state %lo -> %lo2
}
";
    let text = format!("module ir=10\nopset ai.onnx=21, ai.ampc=1\n\n{body}");
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut given = inputs(&module);
    let cpu = Runtime::from(Cpu::new(1));
    let mut in_place = cpu.prepare(&module).unwrap();
    in_place.bind(&refs(&given)).unwrap_or_else(|error| panic!("{error}"));
    let plan = in_place.plan_text();
    assert_eq!(plan.matches(", in place\n").count(), 4, "{plan}");
    // The same numbers come out of a graph without states, step by step; the third is skipped.
    let without: String =
        text.lines().filter(|line| !line.starts_with("  state ")).map(|l| format!("{l}\n")).collect();
    let mut apart = cpu.prepare(&parse(&without, &NoData).unwrap()).unwrap();
    for step in 0..4u8 {
        given[8] = HostTensor::from_slice(&[], &[f32::from(u8::from(step == 2))]).unwrap();
        let wanted = apart.run(&refs(&given)).unwrap();
        let mut refs = refs(&given);
        if step > 0 {
            refs[1..5].fill(None);
        }
        let found = in_place.run(&refs).unwrap();
        for (slot, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found.tensor().unwrap().bytes(), wanted.tensor().unwrap().bytes(), "{step}, {slot}");
        }
        for (slot, next) in wanted.into_iter().enumerate() {
            given[1 + slot] = next.tensor().unwrap().clone();
        }
    }
}

#[test]
fn a_sequence_moves_to_its_last_reader_and_is_copied_for_others() {
    let text = "\
graph @main {
  input %x : f32[1]
  %y = Neg(%x) : f32[1]
  %a = SequenceConstruct(%x) : seq(f32[1])
  %b = SequenceInsert(%a, %y) : seq(f32[1])
  %c = SequenceInsert(%b, %y) : seq(f32[1])
  %at = Constant() {value_int: 0} : i64[]
  %d = SequenceErase(%c, %at) : seq(f32[1])
  %e = SequenceInsert(%d, %x, %at) : seq(f32[1])
  %f = ConcatFromSequence(%b) {axis: 0} : f32[?]
  %g = ConcatFromSequence(%e) {axis: 0} : f32[?]
  output %f : f32[?]
  output %g : f32[?]
}
";
    insta::assert_snapshot!(plan(text));
    let (mut session, inputs) = prepared(text);
    for _ in 0..2 {
        let outputs = session.run(&refs(&inputs)).unwrap();
        assert_eq!([floats(&outputs[0]), floats(&outputs[1])], [vec![1.0, -1.0], vec![1.0, -1.0, -1.0]]);
    }
}
