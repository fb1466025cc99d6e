//! Work of steps, counted by hand, and groups of nodes.

use super::*;
use crate::execute::plans;
use ampc_ir::text::{NoData, parse};
use ampc_passes::cost::BoundInputs;
use ampc_runtime::Runtime;

fn planned(body: &str) -> Plans {
    let text = format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n{body}}}\n");
    let mut module = parse(&text, &NoData).unwrap();
    let inputs = BoundInputs::new(&module, &BTreeMap::new()).unwrap();
    plans(&mut module, &inputs, &Runtime::default()).unwrap()
}

fn bound(plans: &Plans) -> GraphBound {
    let target = Profile::preset("h200").unwrap();
    let main = plans.module().main();
    Roofline::of(plans, Some(&target)).graphs.into_iter().find(|graph| graph.graph == main).unwrap()
}

const PRODUCT: &str = "  input %x : f16[512, 1024]\n  input %w : f16[1024, 256]\n  \
                       %y = MatMul(%x, %w) : f16[512, 256]\n  output %y : f16[512, 256]\n";

#[test]
fn a_step_reads_its_operands_and_writes_its_result() {
    let graph = bound(&planned(PRODUCT));
    let [step] = &graph.steps[..] else { panic!("{graph:?}") };
    let Load { read, written, product, elementwise, launches, least } = step.load;
    assert_eq!((read, written), (2 * (512 * 1024 + 1024 * 256), 2 * 512 * 256));
    assert_eq!((product, elementwise, launches), (2 * 512 * 1024 * 256, 0, 1));
    // 1.835 MB at 4.8 TB/s take longer than 268 M operations at 989 TFLOPS, and less than the launch.
    assert_eq!(least, 2_000_000 + picoseconds(read + written, 4_800_000));
    assert_eq!(step.bottleneck, Bottleneck::Launch);
    assert_eq!(graph.total, step.load);
}

#[test]
fn fp32_products_of_large_matrices_are_bound_by_arithmetic() {
    let body = "  input %x : f32[4096, 4096]\n  %y = MatMul(%x, %x) : f32[4096, 4096]\n  output %y : f32[4096, 4096]\n";
    let graph = bound(&planned(body));
    assert_eq!(graph.steps[0].bottleneck, Bottleneck::Arithmetic);
    // An operand with two reads counts once.
    assert_eq!(graph.steps[0].load.read, 4 * 4096 * 4096);
    assert_eq!(graph.steps[0].load.least, 2_000_000 + picoseconds(2 * 4096 * 4096 * 4096, 67_000_000));
}

#[test]
fn views_take_nothing_and_moves_read_what_they_write() {
    let body = "  input %t : f32[30000, 64]\n  input %i : i64[8]\n  const %s : i64[1] = [-1]\n  \
                %g = Gather(%t, %i) : f32[8, 64]\n  %f = Reshape(%g, %s) : f32[512]\n  output %f : f32[512]\n";
    let graph = bound(&planned(body));
    let loads: Vec<Load> = graph.steps.iter().map(|step| step.load).collect();
    assert_eq!((loads[0].read, loads[0].written), (8 * 64 * 4 + 64, 8 * 64 * 4));
    assert_eq!(loads[1], Load::default());
    assert_eq!(graph.steps[1].bottleneck, Bottleneck::Nothing);
}

#[test]
fn steps_of_a_loop_count_as_often_as_they_run() {
    let body = "  input %x : f32[4]\n  const %n : i64 = 5\n  const %go : bool = true\n  const %half : f32 = 0.5\n  \
                %last = Loop(%n, %go, %x; %half) {\n    body: graph @body(%half) {\n      input %i : i64\n      \
                input %c : bool\n      input %s : f32[4]\n      %c_out = Identity(%c) : bool\n      \
                %s_out = Mul(%s, %half) : f32[4]\n      output %c_out : bool\n      output %s_out : f32[4]\n    }\n  } : f32[4]\n  \
                output %last : f32[4]\n";
    let plans = planned(body);
    let roofline = Roofline::of(&plans, None);
    let inner = roofline.graphs.iter().find(|graph| graph.graph != plans.module().main()).unwrap();
    assert_eq!(inner.executions, 5);
    let mul = inner.steps.iter().find(|step| step.operators == ["Mul"]).unwrap();
    assert_eq!((mul.load.read, mul.load.written, mul.load.elementwise), (20, 16, 4));
    assert_eq!(roofline.total.elementwise, 20);
    assert_eq!(roofline.load_of(&mul.nodes), Some(mul.load));
    // The bytes of the body are counted in its graph.
    let found = least(&plans, &bound(&plans));
    assert_eq!((found.planned, found.least), (0, 0));
}

/// The least and planned bytes of the group that a node is in.
fn least_of(body: &str) -> LeastBytes {
    let plans = planned(body);
    let graph = bound(&plans);
    least(&plans, &graph)
}

/// A region between two products reads the first product and writes the operand of the second, whatever it computes.
#[test]
fn nodes_between_products_are_one_group() {
    let found = least_of(
        "  input %x : f32[8, 16]\n  input %w : f32[16, 16]\n  input %b : f32[16]\n  %h = MatMul(%x, %w) : f32[8, 16]\n  \
         %a = Add(%h, %b) : f32[8, 16]\n  %m = ReduceMean(%a) {keepdims=1} : f32[1, 1]\n  %d = Sub(%a, %m) : f32[8, 16]\n  \
         %e = Exp(%d) : f32[8, 16]\n  %y = MatMul(%e, %w) : f32[8, 16]\n  output %y : f32[8, 16]\n",
    );
    let (values, weights) = (8 * 16 * 4, 16 * 16 * 4);
    let kinds: Vec<(bool, u64)> =
        found.regions.iter().map(|region| (region.is_product, region.least)).collect();
    assert_eq!(found.regions.len(), 3, "{kinds:?}");
    let region = found.regions.iter().find(|region| !region.is_product).unwrap();
    assert_eq!(region.least, 2 * values + 16 * 4);
    assert_eq!(region.operators.values().sum::<u64>(), 4);
    assert_eq!(found.least, region.least + 2 * (2 * values + weights));
    assert!(found.planned > found.least, "{found:?}");
}

/// Nodes before and after a product do not form a group, although they share an operand.
#[test]
fn a_group_is_convex() {
    let found = least_of(
        "  input %x : f32[16, 16]\n  %a = Neg(%x) : f32[16, 16]\n  %h = MatMul(%a, %a) : f32[16, 16]\n  \
         %y = Add(%h, %x) : f32[16, 16]\n  output %y : f32[16, 16]\n",
    );
    let mut least: Vec<u64> = found.regions.iter().map(|region| region.least / 1024).collect();
    least.sort_unstable();
    assert_eq!(least, [2, 2, 3]);
}

/// The scores are not in memory, and a softmax over classes is not an attention.
#[test]
fn an_attention_is_one_group() {
    let found = least_of(
        "  input %q : f32[2, 4, 32, 8]\n  input %k : f32[2, 4, 8, 32]\n  input %v : f32[2, 4, 32, 8]\n  const %s : f32 = 0.35\n  \
         %p = MatMul(%q, %k) : f32[2, 4, 32, 32]\n  %t = Mul(%p, %s) : f32[2, 4, 32, 32]\n  \
         %a = Softmax(%t) : f32[2, 4, 32, 32]\n  %y = MatMul(%a, %v) : f32[2, 4, 32, 8]\n  output %y : f32[2, 4, 32, 8]\n",
    );
    let [attention] = &found.regions[..] else { panic!("{found:?}") };
    assert_eq!(attention.least, 4 * (4 * 2 * 4 * 32 * 8) + 4);
    assert!(attention.is_product);
    let found = least_of(
        "  input %x : f32[8, 16]\n  input %w : f32[16, 10]\n  %h = MatMul(%x, %w) : f32[8, 10]\n  \
         %y = Softmax(%h) : f32[8, 10]\n  output %y : f32[8, 10]\n",
    );
    assert_eq!(found.regions.len(), 2);
}
