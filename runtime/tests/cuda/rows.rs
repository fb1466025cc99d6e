//! Groups along rows: reductions, normalizations and adjacent element-wise nodes as one kernel.

use crate::cases::{Case, LOW, Tolerance, bools, compare, random, run_all, tensor};
use crate::elements::{Named, outputs, passing, refs};
use crate::random::{Blind, HEAD, Random};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::{Cuda, CudaOptions};
use ampc_runtime::{Cpu, HostTensor, Runtime};
use std::fmt::Write;
use std::sync::Arc;

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, options: &CudaOptions, filter: &str) -> usize {
    let mut checks: Vec<Named> = Vec::new();
    let of_random = cuda.clone();
    checks.push(("rows: random graphs".to_owned(), Box::new(move || random_graphs(&of_random))));
    for (name, text, inputs, steps, launches) in counted() {
        let options = options.clone();
        let check = move || {
            let found = launched(&options, &text, &inputs)?;
            if found == (steps, launches) {
                Ok(())
            } else {
                Err(format!("{found:?} steps and launches\n{text}"))
            }
        };
        checks.push((format!("rows: launches of {name}"), Box::new(check)));
    }
    run_all(cuda, &cases(), filter) + passing(&checks, filter)
}

/// The numbers of steps and of launches of a run.
fn launched(options: &CudaOptions, text: &str, inputs: &[HostTensor]) -> Result<(usize, usize), String> {
    let folder = std::env::temp_dir().join(format!("ampc-rows-{}", std::process::id()));
    let options = CudaOptions { dump: Some(folder.clone()), ..options.clone() };
    let cuda = Arc::new(Cuda::open(&options, Arc::new(Cpu::new(1))).map_err(|error| error.to_string())?);
    let module = parse(text, &NoData).map_err(|errors| format!("{errors}\n{text}"))?;
    let mut session = Runtime::new(cuda).prepare(&module).map_err(|error| error.to_string())?;
    session.run(&refs(inputs)).map_err(|error| error.to_string())?;
    let index = std::fs::read_to_string(folder.join("index.tsv")).map_err(|error| error.to_string())?;
    std::fs::remove_dir_all(folder).map_err(|error| error.to_string())?;
    let launches =
        index.lines().skip(1).map(|line| line.split('\t').nth(5).unwrap().parse::<usize>().unwrap());
    let steps =
        session.plan_text().lines().filter(|line| line.contains(" = ") && !line.contains("view")).count();
    Ok((steps, launches.sum()))
}

/// The gradient of a layer normalization of `a` with the gradient `b` and the scale `c`: three results.
fn layer_norm_gradient(t: &str, [rows, n]: [u64; 2]) -> String {
    let number = if t == "bf16" { 16 } else { 10 };
    let (full, row, column) = (format!("[2, {rows}, {n}]"), format!("[2, {rows}, 1]"), format!("[{n}]"));
    let cast = |name: &str, of: &str, dims: &str| match t {
        "f32" => format!("  %{name} = Identity(%{of}) : f32{dims}\n"),
        _ => format!("  %{name} = Cast(%{of}) {{to=1}} : f32{dims}\n"),
    };
    let last = match t {
        "f32" => format!("  %dx = Identity(%q) : f32{full}\n"),
        _ => format!("  %dx = Cast(%q) {{to={number}}} : {t}{full}\n"),
    };
    format!(
        "  const %last : i64[1] = [2]\n  const %first : i64[2] = [0, 1]\n  const %eps : f32 = 1e-5\n{}{}{}\
         \x20 %m = ReduceMean(%x, %last) {{keepdims=1}} : f32{row}\n  %d = Sub(%x, %m) : f32{full}\n  %dd = Mul(%d, %d) : f32{full}\n\
         \x20 %v = ReduceMean(%dd, %last) {{keepdims=1}} : f32{row}\n  %ve = Add(%v, %eps) : f32{row}\n  %s = Sqrt(%ve) : f32{row}\n\
         \x20 %i = Reciprocal(%s) : f32{row}\n  %h = Mul(%d, %i) : f32{full}\n  %gw = Mul(%g, %w) : f32{full}\n\
         \x20 %gh = Mul(%gw, %h) : f32{full}\n  %k = ReduceMean(%gh, %last) {{keepdims=1}} : f32{row}\n  %hk = Mul(%h, %k) : f32{full}\n\
         \x20 %l = ReduceMean(%gw, %last) {{keepdims=1}} : f32{row}\n  %o = Sub(%gw, %l) : f32{full}\n  %p = Sub(%o, %hk) : f32{full}\n\
         \x20 %q = Mul(%i, %p) : f32{full}\n{last}  %z = Mul(%g, %h) : f32{full}\n\
         \x20 %dw = ReduceSum(%z, %first) {{keepdims=0}} : f32{column}\n  %db = ReduceSum(%g, %first) {{keepdims=0}} : f32{column}\n\
         \x20 output %dx\n  output %dw\n  output %db\n",
        cast("x", "a", &full),
        cast("g", "b", &full),
        cast("w", "c", &column),
    )
}

fn of_layer_norm(dtype: DType, [rows, n]: [u64; 2]) -> Vec<HostTensor> {
    vec![random(dtype, &[2, rows, n], 1), random(dtype, &[2, rows, n], 2), random(dtype, &[n], 3)]
}

/// The classification loss and the gradient of its logits, as separate nodes: `a` are logits, and `b` is 1 for the
/// class of a row.
fn loss_gradient([rows, n]: [u64; 2]) -> String {
    let (full, row) = (format!("[{rows}, {n}]"), format!("[{rows}, 1]"));
    format!(
        "  const %last : i64[1] = [1]\n  %x = Cast(%a) {{to=1}} : f32{full}\n  %l = LogSoftmax(%x) {{axis=-1}} : f32{full}\n\
         \x20 %lb = Mul(%l, %b) : f32{full}\n  %s = ReduceSum(%lb, %last) {{keepdims=1}} : f32{row}\n  %y = Neg(%s) : f32{row}\n\
         \x20 %e = Exp(%l) : f32{full}\n  %t = ReduceSum(%b, %last) {{keepdims=1}} : f32{row}\n  %et = Mul(%e, %t) : f32{full}\n\
         \x20 %d = Sub(%et, %b) : f32{full}\n  %g = Cast(%d) {{to=10}} : f16{full}\n  output %y\n  output %g\n"
    )
}

/// Names, texts, inputs, and the numbers of steps and launches of a run.
fn counted() -> Vec<(&'static str, String, Vec<HostTensor>, usize, usize)> {
    let graph = |inputs: &[HostTensor], body: &str| {
        let mut text = format!("{HEAD}graph @main {{\n");
        for (input, name) in inputs.iter().zip(["a", "b", "c", "d"]) {
            let _ = writeln!(text, "  input %{name} : {}{:?}", input.dtype(), input.dims());
        }
        text + body + "}\n"
    };
    let norm = of_layer_norm(DType::F16, [9, 64]);
    let loss = vec![random(DType::F16, &[6, 96], 4), random(DType::F32, &[6, 96], 5)];
    vec![
        (
            "the gradient of a layer normalization",
            graph(&norm, &layer_norm_gradient("f16", [9, 64])),
            norm,
            1,
            2,
        ),
        ("a loss and its gradient", graph(&loss, &loss_gradient([6, 96])), loss, 1, 1),
    ]
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, tolerance, body: String, inputs: Vec<HostTensor>| {
        cases.push(Case { name: format!("rows: {name}"), body, inputs, tolerance });
    };
    for (dtype, t) in LOW {
        for n in [1u64, 7, 32, 40, 768, 1000] {
            let dims = [5, n];
            let name = format!("gradient of a layer normalization {t} {n}");
            add(name, Tolerance::Rows, layer_norm_gradient(t, dims), of_layer_norm(dtype, dims));
        }
        for n in [1u64, 7, 33, 1000, 4096, 9000, 70_000] {
            let body = format!(
                "  const %last : i64[1] = [-1]\n  %p = Mul(%a, %b) : {t}[3, {n}]\n  %s = ReduceSum(%p, %last) {{keepdims=1}} : {t}[3, 1]\n\
                 \x20 %d = Sub(%b, %s) : {t}[3, {n}]\n  %y = Mul(%d, %a) : {t}[3, {n}]\n  output %y\n"
            );
            // The operand is a probability, as in the gradient of a softmax.
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            let share: Vec<f32> =
                crate::cases::numbers(3 * n, 6).iter().map(|x| x.abs() / (2.0 * n as f32)).collect();
            let inputs = vec![tensor(dtype, &[3, n], &share), random(dtype, &[3, n], 7)];
            add(format!("gradient of a softmax {t} {n}"), Tolerance::Model, body, inputs);
        }
        for n in [7u64, 64, 1200] {
            let body = format!(
                "  %r = Add(%a, %b) : {t}[4, 3, {n}]\n  %y, %m, %i = LayerNormalization(%r, %c, %d) {{axis=-1}} : {t}[4, 3, {n}], f32[4, 3, 1], f32[4, 3, 1]\n\
                 \x20 %g = Gelu(%y) : {t}[4, 3, {n}]\n  output %g\n  output %r\n  output %m\n  output %i\n"
            );
            let mut inputs = vec![random(dtype, &[4, 3, n], 8), random(dtype, &[4, 3, n], 9)];
            inputs.extend([random(dtype, &[n], 10), random(dtype, &[n], 11)]);
            // In 16 bits, the Gelu reads a normalized number that may be rounded to a neighbor.
            let tolerance = if dtype == DType::F32 { Tolerance::Rows } else { Tolerance::Model };
            add(format!("residual and layer normalization {t} {n}"), tolerance, body, inputs);
            let body = format!(
                "  const %ratio : f32 = 0.25\n  const %on : bool = true\n  %t = Tanh(%a) : {t}[2, 3, {n}]\n  %p, %k = Dropout(%t, %ratio, %on) {{seed=3}} : {t}[2, 3, {n}], bool[2, 3, {n}]\n\
                 \x20 %r = Add(%p, %b) : {t}[2, 3, {n}]\n  %y = Softmax(%r) {{axis=-1}} : {t}[2, 3, {n}]\n  output %r\n  output %k\n  output %y\n"
            );
            let inputs = vec![random(dtype, &[2, 3, n], 15), random(dtype, &[2, 3, n], 16)];
            add(format!("dropout and softmax {t} {n}"), Tolerance::Rows, body, inputs);
            let body = format!(
                "opset=23\n  %r = Mul(%a, %b) : {t}[5, {n}]\n  %y = RMSNormalization(%r, %c) {{axis=-1}} : {t}[5, {n}]\n\
                 \x20 %g = Sigmoid(%y) : {t}[5, {n}]\n  output %g\n  output %y\n"
            );
            let inputs = vec![random(dtype, &[5, n], 8), random(dtype, &[5, 1], 9), random(dtype, &[n], 10)];
            add(format!("product and RMS normalization {t} {n}"), Tolerance::Model, body, inputs);
            let body = format!(
                "  const %scale : {t} = 0.125\n  const %least : {t} = -inf\n  %r = Mul(%a, %scale) : {t}[2, 3, 5, {n}]\n  %w = Where(%b, %r, %least) : {t}[2, 3, 5, {n}]\n\
                 \x20 %y = Softmax(%w) {{axis=-1}} : {t}[2, 3, 5, {n}]\n  %z = Add(%y, %y) : {t}[2, 3, 5, {n}]\n  output %z\n"
            );
            let inputs = vec![random(dtype, &[2, 3, 5, n], 12), bools(&[2, 1, 1, n], 13)];
            add(format!("masked softmax {t} {n}"), Tolerance::Model, body, inputs);
        }
        let body = format!(
            "  const %axes : i64[2] = [2, 3]\n  const %flat : i64[2] = [12, 35]\n  const %first : i64[1] = [0]\n\
             \x20 %m = ReduceMax(%a, %axes) {{keepdims=0}} : {t}[4, 3]\n  %n = ReduceMin(%a, %axes) {{keepdims=0}} : {t}[4, 3]\n\
             \x20 %w = Sub(%m, %n) : {t}[4, 3]\n  %u = Unsqueeze(%w, %axes) : {t}[4, 3, 1, 1]\n  %q = ReduceSumSquare(%a, %axes) {{keepdims=1}} : {t}[4, 3, 1, 1]\n\
             \x20 %o = ReduceL1(%a, %axes) {{keepdims=1}} : {t}[4, 3, 1, 1]\n  %y = Div(%a, %u) : {t}[4, 3, 5, 7]\n  %z = Div(%y, %o) : {t}[4, 3, 5, 7]\n\
             \x20 %f = Reshape(%z, %flat) : {t}[12, 35]\n  %k = Abs(%f) : {t}[12, 35]\n  %c = ReduceMean(%k, %first) {{keepdims=0}} : {t}[35]\n\
             \x20 output %z\n  output %q\n  output %w\n  output %c\n"
        );
        add(format!("several axes {t}"), Tolerance::Model, body, vec![random(dtype, &[4, 3, 5, 7], 14)]);
    }
    add("loss".into(), Tolerance::Rows, loss_gradient([6, 50]), {
        vec![random(DType::F16, &[6, 50], 4), random(DType::F32, &[6, 50], 5)]
    });
    for rows in [0u64, 1, 300, 3000] {
        let inputs = of_layer_norm(DType::F16, [rows, 48]);
        let body = layer_norm_gradient("f16", [rows, 48]);
        add(format!("gradient of a layer normalization of {rows} rows"), Tolerance::Rows, body, inputs);
    }
    let special: Vec<f32> = (0..160u8)
        .map(|i| match i {
            3 => f32::NAN,
            37 => f32::INFINITY,
            70 => f32::NEG_INFINITY,
            96..128 => f32::NEG_INFINITY,
            _ => f32::from(i % 7),
        })
        .collect();
    let body = "  %d = Add(%a, %a) : f32[5, 32]\n  %y = Softmax(%d) {axis=-1} : f32[5, 32]\n  %z = Neg(%y) : f32[5, 32]\n  output %z\n  output %d\n";
    add("special numbers".into(), Tolerance::Rows, body.into(), vec![tensor(DType::F32, &[5, 32], &special)]);
    cases
}

/// Random nodes along rows with products between them: groups are convex, and results agree with those of separate
/// nodes.
fn random_graphs(cuda: &Arc<Cuda>) -> Result<(), String> {
    let mut joined = 0;
    for seed in 3..39 {
        let mut random = Random::new(seed);
        let n = random.of(&[16u64, 33, 48]);
        let (text, inputs) = graph(&mut random, n);
        let module = parse(&text, &NoData).map_err(|errors| format!("{errors}\n{text}"))?;
        let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
        let want = session
            .run_observed(&refs(&inputs), Some(&mut Blind))
            .map_err(|error| format!("{error}\n{text}"))?;
        let got = outputs(&Runtime::new(cuda.clone()), &text, &inputs)?;
        session.run(&refs(&inputs)).map_err(|error| error.to_string())?;
        joined +=
            session.plan_text().lines().filter(|line| line.contains("Reduce") && line.contains('+')).count();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            compare(got, want, None, Tolerance::Rows)
                .map_err(|error| format!("output {i}: {error}\n{}\n{text}", session.plan_text()))?;
        }
    }
    if joined >= 20 { Ok(()) } else { Err(format!("{joined} groups")) }
}

fn graph(random: &mut Random, n: u64) -> (String, Vec<HostTensor>) {
    let (full, row, column) = (format!("f32[6, {n}]"), "f32[6, 1]", format!("f32[{n}]"));
    let mut text = format!(
        "{HEAD}graph @main {{\n  input %a : {full}\n  input %b : {full}\n  input %c : f32[{n}]\n  input %w : f32[{n}, {n}]\n\
         \x20 const %last : i64[1] = [1]\n  const %first : i64[1] = [0]\n  const %part : f32 = 0.25\n"
    );
    let (mut fulls, mut rows, mut columns) =
        (vec!["a".to_owned(), "b".into()], Vec::new(), vec!["c".to_owned()]);
    let mut outputs = Vec::new();
    for at in 0..8 + random.below(30) {
        let name = format!("v{at}");
        let pick = |list: &[String], random: &mut Random| {
            list[random.below(list.len().min(4)) + list.len() - list.len().min(4)].clone()
        };
        let x = pick(&fulls, random);
        let y = pick(&fulls, random);
        let (call, ty, list) = match random.below(12) {
            0 => (format!("Tanh(%{x})"), &full[..], &mut fulls),
            1 => (format!("Mul(%{x}, %part)"), &full[..], &mut fulls),
            2 | 3 => (format!("Sub(%{x}, %{y})"), &full[..], &mut fulls),
            4 => (format!("Mul(%{x}, %{})", pick(&columns, random)), &full[..], &mut fulls),
            5 | 6 => (format!("ReduceMean(%{x}, %last) {{keepdims=1}}"), row, &mut rows),
            7 if !rows.is_empty() => (format!("Add(%{x}, %{})", pick(&rows, random)), &full[..], &mut fulls),
            8 if !rows.is_empty() => (format!("Tanh(%{})", pick(&rows, random)), row, &mut rows),
            9 => {
                let _ =
                    writeln!(text, "  %t{at} = Tanh(%{x}) : {full}\n  %p{at} = MatMul(%t{at}, %w) : {full}");
                (format!("Mul(%p{at}, %part)"), &full[..], &mut fulls)
            }
            10 => (format!("Softmax(%{x}) {{axis=-1}}"), &full[..], &mut fulls),
            _ => {
                let _ = writeln!(text, "  %s{at} = ReduceMean(%{x}, %first) {{keepdims=0}} : f32[{n}]");
                outputs.push(format!("s{at}"));
                (format!("Tanh(%s{at})"), &column[..], &mut columns)
            }
        };
        let _ = writeln!(text, "  %{name} = {call} : {ty}");
        list.push(name.clone());
        if random.below(5) == 0 {
            outputs.push(name);
        }
    }
    for output in outputs.iter().chain(&fulls[fulls.len() - 1..]).collect::<std::collections::BTreeSet<_>>() {
        if !["a", "b"].contains(&&output[..]) {
            let _ = writeln!(text, "  output %{output}");
        }
    }
    let some = |dims: &[u64], seed| crate::cases::random(DType::F32, dims, seed);
    (text + "}\n", vec![some(&[6, n], 1), some(&[6, n], 2), some(&[n], 3), some(&[n, n], 4)])
}
