//! Groups of element-wise operators have the bits of their nodes one by one.
//!
//! A run without an observer joins nodes; an observed run does not. Both run the same graph.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::{Cpu, DataRef, HostTensor, Runtime};
use random::{Blind, HEAD, ONE, Random, TWO, bits, elements, graph};
use std::fmt::Write;

#[path = "groups/random.rs"]
mod random;

/// The number of groups of several nodes in the plan of a graph, whose outputs are the same with groups and without.
fn same(text: &str, inputs: &[HostTensor]) -> usize {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let refs: Vec<_> = inputs.iter().map(|x| Some(DataRef::Tensor(x.view()))).collect();
    let mut groups = 0;
    for threads in [1, 2] {
        let mut session = Runtime::from(Cpu::new(threads)).prepare(&module).unwrap();
        let want = session.run_observed(&refs, Some(&mut Blind)).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let most = session.arena_bytes();
        for _ in 0..2 {
            let got = session.run(&refs).unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let (got, want) = (bits(got.tensor().unwrap()), bits(want.tensor().unwrap()));
                let at = got.iter().zip(&want).position(|(a, b)| a != b);
                assert_eq!(at, None, "output {i}, {threads} threads\n{}\n{text}", session.plan_text());
            }
        }
        assert!(session.arena_bytes() <= most, "the arena grows\n{}\n{text}", session.plan_text());
        groups =
            session.plan_text().lines().filter(|line| line.contains('+') && line.contains(" = ")).count();
    }
    groups
}

#[test]
fn random_graphs_have_the_bits_of_their_nodes() {
    let mut groups = 0;
    for seed in 1..150 {
        let mut random = Random::new(seed);
        let n_nodes = 3 + random.below(30);
        let dims = random.of(&[[3, 5, 7], [1, 1, 1], [2, 9, 130], [1, 4, 1], [2, 0, 3]]);
        let (text, inputs) = graph(&mut random, n_nodes, dims);
        groups += same(&text, &inputs);
    }
    assert!(groups > 100, "{groups} groups");
}

/// Every operator with an expression, before an operator that makes a group of it.
#[test]
fn every_operator_has_the_bits_of_its_kernel() {
    let mut random = Random::new(7);
    let one = ONE.iter().filter(|form| **form != "Identity(@)").map(|form| form.replace('@', "%x"));
    let two = TWO.iter().filter(|op| **op != "Mod").map(|op| format!("{op}(%x, %y)"));
    let others =
        ["Clip(%x, %s, %t)", "Clip(%x, %s)", "Sum(%x, %y, %x)", "Mean(%x, %y, %x)", "Where(%c, %x, %y)"];
    let others = others.iter().chain(&["com.microsoft::FastGelu(%x, %y)", "com.microsoft::Gelu(%x)"]);
    for call in one.chain(two).chain(others.map(|&call| call.to_owned())) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let is_left =
                ["two", "Celu", "QuickGelu", "microsoft::Gelu"].iter().any(|part| call.contains(part));
            let is_no_bf16 = ["Shrink", "BiasGelu"].iter().any(|part| call.contains(part));
            if dtype != DType::F32 && is_left || dtype == DType::BF16 && is_no_bf16 {
                continue;
            }
            let text = format!(
                "{HEAD}graph @main {{\n  input %x : {dtype}[6, 700]\n  input %y : {dtype}[700]\n  input %s : {dtype}\n  \
                 input %t : {dtype}\n  input %c : bool[6, 1]\n  const %two : f32 = 2.0\n  \
                 %r = {call} : {dtype}[6, 700]\n  %n = Neg(%r) : {dtype}[6, 700]\n  output %r\n  output %n\n}}\n"
            );
            let dims: [(&[u64], DType); 5] =
                [(&[6, 700], dtype), (&[700], dtype), (&[], dtype), (&[], dtype), (&[6, 1], DType::Bool)];
            let inputs: Vec<HostTensor> =
                dims.iter().map(|(dims, dtype)| elements(&mut random, *dtype, dims)).collect();
            assert_eq!(same(&text, &inputs), 1, "{call} of {dtype}");
        }
    }
}

/// More elements than one thread takes, in blocks of which the last is not whole.
#[test]
fn pieces_have_the_bits_of_their_nodes() {
    for seed in 1..4 {
        let mut random = Random::new(seed);
        let (text, inputs) = graph(&mut random, 20, [3, 171, 130]);
        same(&text, &inputs);
    }
}

/// Products and convolutions: the call, the dims of its operands and of its result. A block and a tile of the result are
/// not whole.
type ProductCase = (&'static str, &'static [&'static [u64]], &'static [u64]);
const PRODUCTS: &[ProductCase] = &[
    ("MatMul(%a, %b)", &[&[7, 9], &[9, 150]], &[7, 150]),
    ("MatMul(%a, %b)", &[&[2, 3, 40, 9], &[9, 50]], &[2, 3, 40, 50]),
    ("MatMul(%a, %b)", &[&[3, 65, 4], &[3, 4, 70]], &[3, 65, 70]),
    ("MatMul(%a, %b)", &[&[260, 20], &[20, 300]], &[260, 300]),
    ("Gemm(%a, %b, %c) {transB=1, alpha=0.5, beta=2.0}", &[&[33, 9], &[150, 9], &[150]], &[33, 150]),
    ("Gemm(%a, %b)", &[&[5, 9], &[9, 1]], &[5, 1]),
    ("Conv(%a, %b, %c) {pads=[1, 1, 1, 1]}", &[&[2, 3, 30, 31], &[5, 3, 3, 3], &[5]], &[2, 5, 30, 31]),
    ("Conv(%a, %b) {strides=[2, 2]}", &[&[1, 4, 21, 40], &[6, 2, 3, 2], &[]], &[1, 6, 10, 20]),
    ("Conv(%a, %b, %c)", &[&[2, 8, 40, 33], &[5, 8, 1, 1], &[5]], &[2, 5, 40, 33]),
    ("Conv(%a, %b)", &[&[2, 4, 700], &[3, 4, 5]], &[2, 3, 696]),
    (
        "Conv(%a, %b, %c) {group=6, pads=[1, 1, 1, 1]}",
        &[&[2, 6, 50, 51], &[6, 1, 3, 3], &[6]],
        &[2, 6, 50, 51],
    ),
    ("Conv(%a, %b) {group=3, strides=[2, 2]}", &[&[1, 3, 99, 99], &[6, 1, 3, 3]], &[1, 6, 49, 49]),
    ("Conv(%a, %b) {pads=[1, 1, 1, 1]}", &[&[1, 70, 15, 16], &[130, 70, 3, 3]], &[1, 130, 15, 16]),
];

#[test]
fn products_have_the_bits_of_their_nodes() {
    let mut random = Random::new(3);
    let ty = |dtype: DType, dims: &[u64]| {
        format!("{dtype}[{}]", dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
    };
    for (call, operands, dims) in PRODUCTS {
        let groups =
            if call.contains("strides=[2, 2]") && !call.contains("group=3") { " {group=2, " } else { " {" };
        let call = call.replace(" {", groups);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for round in 0..3 {
                let (mut text, mut inputs) = (format!("{HEAD}graph @main {{\n"), Vec::new());
                let mut input = |name: &str, dtype: DType, dims: &[u64]| {
                    inputs.push(elements(&mut random, dtype, dims));
                    format!("  input %{name} : {}\n", ty(dtype, dims))
                };
                for (name, dims) in ["a", "b", "c"].iter().zip(*operands).filter(|(_, dims)| !dims.is_empty())
                {
                    text += &input(name, dtype, dims);
                }
                // Along the axis of the bias.
                let bias_axis = if call.starts_with("Conv") { 1 } else { dims.len() - 1 };
                let mut of_bias = vec![1; dims.len()];
                of_bias[bias_axis] = dims[bias_axis];
                text += &input("bias", dtype, &of_bias);
                text += &input("residual", dtype, dims);
                text += &input("wide", DType::F32, dims);
                let whole = ty(dtype, dims);
                writeln!(text, "  %p = {call} : {whole}").unwrap();
                match round {
                    // The last node has the type of the product, another float type, or truth values.
                    0 => {
                        writeln!(
                            text,
                            "  %s = Add(%p, %bias) : {whole}\n  %t = Add(%residual, %s) : {whole}"
                        )
                        .unwrap();
                        writeln!(text, "  %y = Relu(%t) : {whole}\n  output %y").unwrap();
                    }
                    1 => {
                        writeln!(text, "  %g = Sigmoid(%p) : {whole}\n  %s = Mul(%p, %g) : {whole}").unwrap();
                        writeln!(text, "  %w = Cast(%s) {{to=1}} : {}", ty(DType::F32, dims)).unwrap();
                        writeln!(text, "  %y = Mul(%w, %wide) : {}\n  output %y", ty(DType::F32, dims))
                            .unwrap();
                    }
                    _ => {
                        writeln!(text, "  %y = Less(%p, %bias) : {}\n  output %y", ty(DType::Bool, dims))
                            .unwrap();
                    }
                }
                text.push_str("}\n");
                let groups = same(&text, &inputs);
                // A result of f32 beside the scratch memory of a convolution may not fit.
                let is_wider = round == 1 && dtype != DType::F32 && call.starts_with("Conv");
                assert!(groups == 1 || is_wider, "{groups} groups\n{text}");
            }
        }
    }
}

/// The product stays by itself where its result is read outside of the group, or is an output.
#[test]
fn products_that_are_read_elsewhere_are_stored() {
    let mut random = Random::new(5);
    let head = format!(
        "{HEAD}graph @main {{\n  input %a : f16[40, 9]\n  input %b : f16[9, 50]\n  %p = MatMul(%a, %b) : f16[40, 50]\n  %s = Neg(%p) : f16[40, 50]\n  %y = Relu(%s) : f16[40, 50]\n"
    );
    for end in [
        "  output %y\n  output %p\n}\n",
        "  %t = Transpose(%p) : f16[50, 40]\n  output %y\n  output %t\n}\n",
        "  output %y\n  output %s\n}\n",
    ] {
        let text = format!("{head}{end}");
        let inputs =
            [elements(&mut random, DType::F16, &[40, 9]), elements(&mut random, DType::F16, &[9, 50])];
        assert_eq!(same(&text, &inputs), 1, "{text}");
    }
}
