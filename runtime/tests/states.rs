//! States: what an input is that is not given, from run to run.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::text::{NoData, parse};
use ampc_runtime::session::{ExecuteError, NodeObserver};
use ampc_runtime::{Cpu, Data, DataRef, HostTensor, Runtime, Session};

fn prepared(body: &str) -> Session {
    let text = format!("module ir=10\nopset ai.onnx=21\n\n{body}");
    let module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    Runtime::from(Cpu::new(1)).prepare(&module).unwrap()
}

/// The outputs of a run, a list of numbers each; inputs are lists of numbers or not given.
fn run(session: &mut Session, inputs: &[Option<&[f32]>]) -> Vec<Vec<f32>> {
    let tensors: Vec<Option<HostTensor>> =
        inputs.iter().map(|i| i.map(|x| HostTensor::from_slice(&[x.len() as u64], x).unwrap())).collect();
    let refs: Vec<_> = tensors.iter().map(|t| t.as_ref().map(|t| DataRef::Tensor(t.view()))).collect();
    let outputs = session.run(&refs).unwrap_or_else(|error| panic!("{error}"));
    outputs.iter().map(numbers).collect()
}

fn numbers(data: &Data) -> Vec<f32> {
    data.tensor().unwrap().as_slice().unwrap().to_vec()
}

#[test]
fn outputs_are_what_states_were_before() {
    let mut session = prepared(
        "\
graph @main {
  input %w : f32[2]
  input %g : f32[2]
  const %shape : i64[1] = [2]
  %next = Add(%w, %g) : f32[2]
  %view = Reshape(%w, %shape) : f32[2]
  %copy = Identity(%w) : f32[2]
  output %view : f32[2]
  output %next : f32[2]
  output %copy : f32[2]
  output %w : f32[2]
  state %w -> %next
}
",
    );
    let outputs = run(&mut session, &[Some(&[5.0, 6.0]), Some(&[1.0, 1.0])]);
    assert_eq!(outputs, [[5.0, 6.0], [6.0, 7.0], [5.0, 6.0], [5.0, 6.0]]);
    let outputs = run(&mut session, &[None, Some(&[1.0, 1.0])]);
    assert_eq!(outputs, [[6.0, 7.0], [7.0, 8.0], [6.0, 7.0], [6.0, 7.0]]);
}

#[test]
fn states_that_change_places_show_what_they_were() {
    let mut session = prepared(
        "\
graph @main {
  input %a : f32[1]
  input %b : f32[1]
  output %a : f32[1]
  output %b : f32[1]
  state %a -> %b
  state %b -> %a
}
",
    );
    assert_eq!(run(&mut session, &[Some(&[1.0]), Some(&[2.0])]), [[1.0], [2.0]]);
    assert_eq!(run(&mut session, &[None, None]), [[2.0], [1.0]]);
    assert_eq!(run(&mut session, &[None, None]), [[1.0], [2.0]]);
}

#[test]
fn a_state_that_was_never_given_is_its_default() {
    let mut session = prepared(
        "\
graph @main {
  input %w : f32[2] = [5, 6]
  input %g : f32[N]
  %next = Add(%w, %g) : f32[2]
  output %next : f32[2]
  state %w -> %next
}
",
    );
    assert_eq!(run(&mut session, &[None, Some(&[1.0, 1.0])]), [[6.0, 7.0]]);
    assert_eq!(run(&mut session, &[None, Some(&[1.0, 1.0])]), [[7.0, 8.0]]);
    // Other dims of another input: the state stays what it is.
    assert_eq!(run(&mut session, &[None, Some(&[1.0])]), [[8.0, 9.0]]);
    assert_eq!(run(&mut session, &[Some(&[0.0, 0.0]), Some(&[1.0])]), [[1.0, 1.0]]);
    assert_eq!(run(&mut session, &[None, Some(&[1.0])]), [[2.0, 2.0]]);
}

#[test]
fn a_state_may_grow() {
    let mut session = prepared(
        "\
graph @main {
  input %k : f32[N]
  input %x : f32[1]
  %grown = Concat(%k, %x) {axis=0} : f32[?]
  output %grown : f32[?]
  state %k -> %grown
}
",
    );
    assert_eq!(run(&mut session, &[Some(&[1.0, 2.0]), Some(&[3.0])]), [[1.0, 2.0, 3.0]]);
    assert_eq!(run(&mut session, &[None, Some(&[4.0])]), [[1.0, 2.0, 3.0, 4.0]]);
    assert_eq!(run(&mut session, &[None, Some(&[5.0])]), [[1.0, 2.0, 3.0, 4.0, 5.0]]);
    let states = session.states().unwrap();
    assert_eq!((states[0].0, numbers(&states[0].1)), (0, vec![1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(run(&mut session, &[Some(&[]), Some(&[6.0])]), [[6.0]]);
}

/// Runs with a state give what runs without one give if what comes out goes in again.
#[test]
fn a_next_value_that_is_no_output_is_computed_all_the_same() {
    let graph = |state: &str, output: &str| {
        format!(
            "\
graph @main {{
  input %w : f32[3]
  input %g : f32[3]
  %a = Mul(%w, %g) : f32[3]
  %b = Relu(%a) : f32[3]
  %c = Sub(%b, %w) : f32[3]
  %next = Add(%c, %g) : f32[3]
  %y = Neg(%w) : f32[3]
  %z = Exp(%y) : f32[3]
  output %z : f32[3]
{output}{state}}}
"
        )
    };
    let mut stateful = prepared(&graph("  state %w -> %next\n", ""));
    let mut stateless = prepared(&graph("", "  output %next : f32[3]\n"));
    let mut w = vec![1.0f32, -2.0, 0.5];
    for step in 0..5u8 {
        let g = [f32::from(step), 0.25, -1.0];
        let given = (step == 0).then_some(&[1.0f32, -2.0, 0.5][..]);
        let with = run(&mut stateful, &[given, Some(&g)]);
        let without = run(&mut stateless, &[Some(&w), Some(&g)]);
        assert_eq!(with[0], without[0], "step {step}");
        w = without[1].clone();
        assert_eq!(numbers(&stateful.states().unwrap()[0].1), w, "step {step}");
    }
}

/// Dims that take turns, as a smaller batch at the end of an epoch: the memory stays that of the larger ones, and results are
/// those of a run by itself.
#[test]
fn dims_that_take_turns_share_their_memory() {
    let text = "\
graph @main {
  input %w : f32[2]
  input %x : f32[N]
  %double = Add(%x, %x) : f32[N]
  %square = Mul(%double, %double) : f32[N]
  %sum = ReduceSum(%square) {keepdims=0} : f32
  %next = Add(%w, %sum) : f32[2]
  output %next : f32[2]
  output %square : f32[N]
  state %w -> %next
}
";
    let mut session = prepared(text);
    let (long, short) = (vec![1f32; 1000], vec![1f32; 3]);
    let mut state = vec![0f32, 1.0];
    let mut held = Vec::new();
    for (step, x) in [&long, &short, &long, &short, &short, &long].into_iter().enumerate() {
        let given = (step == 0).then_some(&state[..]);
        let outputs = run(&mut session, &[given, Some(x)]);
        let alone = run(&mut prepared(text), &[Some(&state), Some(x)]);
        assert_eq!(outputs, alone, "{step}");
        state.clone_from(&outputs[0]);
        held.push(session.allocated_bytes());
    }
    assert!(held.iter().all(|&bytes| bytes == held[0]), "{held:?}");
}

/// Thousands of states, each in its own place, updated there.
#[test]
fn thousands_of_states_are_updated_in_place() {
    let graph = |n: usize| {
        let inputs: String = (0..n).map(|i| format!("  input %w{i} : f32[2]\n")).collect();
        let nodes: String = (0..n).map(|i| format!("  %v{i} = Add(%w{i}, %g) : f32[2]\n")).collect();
        let states: String = (0..n).map(|i| format!("  state %w{i} -> %v{i}\n")).collect();
        format!("graph @main {{\n  input %g : f32[2]\n{inputs}{nodes}  output %v0\n{states}}}\n")
    };
    for n in [1, 16_000] {
        let mut session = prepared(&graph(n));
        let one = HostTensor::from_slice(&[2], &[1.0f32; 2]).unwrap();
        let mut inputs = vec![None; n + 1];
        inputs[0] = Some(DataRef::Tensor(one.view()));
        session.set_states(|_, _| Ok::<(), ampc_runtime::HostError>(())).unwrap();
        session.bind(&inputs).unwrap();
        for want in [1.0, 2.0] {
            session.run_to(&inputs, |_, y| assert_eq!(y.tensor().unwrap().first_f64(), Some(want))).unwrap();
        }
        assert!(
            session.state_views().unwrap().iter().all(|(_, w)| w.tensor().unwrap().first_f64() == Some(2.0))
        );
        let plan = session.plan(session.module().main()).unwrap();
        assert!(plan.states.iter().all(|state| !state.copied));
    }
}

/// States that are given when a session is bound replace the old states, also if the plan stays, and also states that are not
/// in the arena.
#[test]
fn states_that_are_bound_replace_the_old_states() {
    let mut session = prepared(
        "\
graph @main {
  input %w : f32[2]
  input %v : f32[n]
  input %g : f32[1]
  %next = Add(%w, %g) : f32[2]
  %longer = Concat(%v, %g) {axis=0} : f32[m]
  output %w : f32[2]
  output %v : f32[n]
  state %w -> %next
  state %v -> %longer
}
",
    );
    let tensor = |x: &[f32]| HostTensor::from_slice(&[x.len() as u64], x).unwrap();
    let (one, g) = (tensor(&[1.0]), tensor(&[1.0]));
    for w in [[5.0, 6.0], [7.0, 8.0]] {
        let (w, v) = (tensor(&w), &one);
        session.bind(&[&w, v, &g].map(|t| Some(DataRef::Tensor(t.view())))).unwrap();
        let w = w.as_slice::<f32>().unwrap();
        let outputs = run(&mut session, &[None, None, Some(&[1.0])]);
        assert_eq!(outputs, [w.to_vec(), vec![1.0]]);
        let outputs = run(&mut session, &[None, None, Some(&[1.0])]);
        assert_eq!(outputs, [vec![w[0] + 1.0, w[1] + 1.0], vec![1.0, 1.0]]);
    }
}

/// Permits no change of states.
struct Refusing;

impl NodeObserver for Refusing {
    fn value(&mut self, _: ampc_ir::Node, _: usize, _: DataRef<'_>) {}
    fn permits_updates(&mut self) -> bool {
        false
    }
}

/// An observer is asked before states change that are not in the arena.
#[test]
fn an_observer_keeps_states_that_grow() {
    let mut session = prepared(
        "\
graph @main {
  input %v : f32[n]
  input %g : f32[1]
  %longer = Concat(%v, %g) {axis=0} : f32[m]
  output %v : f32[n]
  state %v -> %longer
}
",
    );
    run(&mut session, &[Some(&[1.0]), Some(&[2.0])]);
    let g = HostTensor::from_slice(&[1], &[3.0f32]).unwrap();
    let refused = session.run_observed(&[None, Some(DataRef::Tensor(g.view()))], Some(&mut Refusing));
    assert!(matches!(refused, Err(ExecuteError::Stopped)), "{refused:?}");
    assert_eq!(run(&mut session, &[None, Some(&[3.0])]), [[1.0, 2.0]]);
}
