//! Groups that a library computes as one operation: weight gradients, products and convolutions with adjacent nodes;
//! and the options for TF32 and exact rounding.

mod gradients;

use self::gradients::{STEPS, gradients, step};
use crate::cases::{LOW, Tolerance, compare, numbers, random, tensor};
use crate::elements::{Named, passing, refs, same_bits};
use crate::random::{Blind, HEAD};
use ampc_ir::DType;
use ampc_ir::text::{NoData, parse};
use ampc_runtime::cuda::dnn::{Convolution, Direction, Layout};
use ampc_runtime::cuda::{Cuda, CudaError, CudaOptions};
use ampc_runtime::device::{DeviceTensor, Span};
use ampc_runtime::{Backend, Data, DataRef, HostTensor, Runtime};
use std::sync::Arc;

/// Opens a backend.
pub(crate) type Open<'a> = &'a dyn Fn(&CudaOptions) -> Result<Arc<Cuda>, CudaError>;

/// Runs the cases whose names contain `filter`; returns the number of failures.
pub(crate) fn run(cuda: &Arc<Cuda>, open: Open<'_>, options: &CudaOptions, filter: &str) -> usize {
    let (exact, tf32) = (
        open(&CudaOptions { exact_rounding: true, ..options.clone() }).unwrap(),
        open(&CudaOptions { tf32: true, ..options.clone() }).unwrap(),
    );
    let mut cases: Vec<Named> = Vec::new();
    for (gradient, t) in gradients().into_iter().flat_map(|g| LOW.map(|(_, t)| (g.clone(), t))) {
        let (cuda, exact) = (cuda.clone(), exact.clone());
        let name = format!("library: weight gradient {} {t}", gradient.name);
        cases.push((
            name,
            Box::new(move || gradient.check(&cuda, t).and_then(|()| gradient.check(&exact, t))),
        ));
    }
    for (t, text, permitted) in STEPS {
        let cuda = cuda.clone();
        let check = move || step(&cuda, text, permitted);
        cases.push((format!("library: gradients of a step {t}"), Box::new(check)));
    }
    if "library: plans are kept".contains(filter) {
        let kept = plans_are_kept(open, options);
        cases.push(("library: plans are kept".into(), Box::new(move || kept.clone())));
    }
    for (dtype, t) in LOW {
        for &(name, body, dims) in EPILOGUES {
            let (cuda, exact) = (cuda.clone(), exact.clone());
            let check = move || epilogue(&cuda, &exact, (dtype, t), body, dims);
            cases.push((format!("library: {name} {t}"), Box::new(check)));
        }
        for &(name, body, dims) in TRANSPOSED {
            let (cuda, exact) = (cuda.clone(), exact.clone());
            let check = move || {
                one_group(&cuda, t, body, (dtype, dims))
                    .and_then(|()| one_group(&exact, t, body, (dtype, dims)))
            };
            cases.push((format!("library: {name} {t}"), Box::new(check)));
        }
        for (name, body, dims) in
            [("product", PRODUCT, PRODUCT_DIMS), ("convolution", CONVOLUTION, CONVOLUTION_DIMS)]
        {
            let (one, other) = (cuda.clone(), tf32.clone());
            cases.push((
                format!("library: TF32 {name} {t}"),
                Box::new(move || rounds_to_tf32(&one, &other, (dtype, t), body, dims)),
            ));
            let cuda = cuda.clone();
            let check = move || unaligned(&cuda, (dtype, t), body, dims);
            cases.push((format!("library: unaligned {name} {t}"), Box::new(check)));
        }
        let cuda = cuda.clone();
        let check = move || unaligned(&cuda, (dtype, t), ATTENTION, ATTENTION_DIMS);
        cases.push((format!("library: unaligned attention {t}"), Box::new(check)));
    }
    passing(&cases, filter)
}

/// Compares the results of a graph with those of a reference on the CPU, within the tolerance for sums, and returns
/// the plan.
fn near(cuda: &Arc<Cuda>, (text, reference): (&str, &str), inputs: &[HostTensor]) -> Result<String, String> {
    let module = parse(text, &NoData).map_err(|errors| format!("{errors}\n{text}"))?;
    let wanted = parse(reference, &NoData).map_err(|errors| format!("{errors}\n{reference}"))?;
    let on_cpu = |inputs: &[HostTensor]| {
        let mut session = Runtime::default().prepare(&wanted).map_err(|error| format!("CPU: {error}"))?;
        session.run(&refs(inputs)).map_err(|error| format!("CPU: {error}\n{reference}"))
    };
    let positive = |x: &HostTensor| {
        #[expect(clippy::cast_possible_truncation, reason = "rounding")]
        let numbers: Vec<f32> = x.f64s().unwrap().map(|x| x.abs() as f32).collect();
        tensor(x.dtype(), x.dims(), &numbers)
    };
    let (want, sums) = (on_cpu(inputs)?, on_cpu(&inputs.iter().map(positive).collect::<Vec<_>>())?);
    let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
    for _ in 0..3 {
        let got = session.run(&refs(inputs)).map_err(|error| format!("{error}\n{text}"))?;
        compare(&got[0], &want[0], sums.first(), Tolerance::Sums)
            .map_err(|error| format!("{error}\n{text}"))?;
    }
    Ok(session.plan_text())
}

/// The dims of `%a`, `%b` and `%c`.
type Dims = [&'static [u64]; 3];

/// Queries, keys and values.
const ATTENTION: &str = "  %k = Transpose(%b) {perm=[0, 1, 3, 2]} : T[2, 3, 8, 11]\n  %x = MatMul(%a, %k) : T[2, 3, 9, 11]\n  \
    %p = Softmax(%x) {axis=-1} : T[2, 3, 9, 11]\n  %y = MatMul(%p, %c) : T[2, 3, 9, 16]\n";
const ATTENTION_DIMS: Dims = [&[2, 3, 9, 8], &[2, 3, 11, 8], &[2, 3, 11, 16]];

/// Products and convolutions with a bias and an activation. T is the element type; the result is `%y`. In f32, a GELU
/// with a tanh is a separate kernel.
const EPILOGUES: &[(&str, &str, Dims)] = &[
    (
        "product with bias",
        "  %p = MatMul(%a, %b) : T[5, 9]\n  %y = Add(%p, %c) : T[5, 9]\n",
        [&[5, 7], &[7, 9], &[9]],
    ),
    (
        "rows of products with bias and Relu",
        "  %p = MatMul(%a, %b) : T[2, 3, 9]\n  %s = Add(%c, %p) : T[2, 3, 9]\n  %y = Relu(%s) : T[2, 3, 9]\n",
        [&[2, 3, 7], &[7, 9], &[1, 9]],
    ),
    (
        "product with bias and Gelu",
        "  %p = MatMul(%a, %b) : T[5, 9]\n  %s = Add(%p, %c) : T[5, 9]\n  %y = Gelu(%s) {approximate=\"tanh\"} : T[5, 9]\n",
        [&[5, 7], &[7, 9], &[9]],
    ),
    (
        "Gemm with Relu",
        "  %p = Gemm(%a, %b, %c) {transB=1, alpha=0.5} : T[6, 8]\n  %y = Relu(%p) : T[6, 8]\n",
        [&[6, 5], &[8, 5], &[8]],
    ),
    (
        "Gemm with FastGelu",
        "  %p = Gemm(%a, %b) {transA=1} : T[6, 8]\n  %y = com.microsoft::FastGelu(%p, %c) : T[6, 8]\n",
        [&[5, 6], &[5, 8], &[8]],
    ),
    (
        "Gemm with Reshape and Relu",
        "  const %s : i64[3] = [2, 3, 8]\n  %p = Gemm(%a, %b, %c) : T[6, 8]\n  %r = Reshape(%p, %s) : T[2, 3, 8]\n  %y = Relu(%r) : T[2, 3, 8]\n",
        [&[6, 5], &[5, 8], &[8]],
    ),
    (
        "transposed product with bias and Relu",
        "  %t = Transpose(%b) {perm=[1, 0]} : T[7, 9]\n  %p = MatMul(%a, %t) : T[5, 9]\n  %s = Add(%p, %c) : T[5, 9]\n  %y = Relu(%s) : T[5, 9]\n",
        [&[5, 7], &[9, 7], &[9]],
    ),
    (
        "convolution with bias and Relu",
        "  %p = Conv(%a, %b, %c) {pads=[1, 1, 1, 1]} : T[2, 5, 7, 6]\n  %y = Relu(%p) : T[2, 5, 7, 6]\n",
        [&[2, 3, 7, 6], &[5, 3, 3, 3], &[5]],
    ),
    (
        "convolution with Relu",
        "  %p = Conv(%a, %b) {strides=[2]} : T[2, 5, 8]\n  %y = Relu(%p) : T[2, 5, 8]\n",
        [&[2, 3, 17], &[5, 3, 2], &[1]],
    ),
    (
        "dilated convolution with Relu",
        "  %p = Conv(%a, %b, %c) {dilations=[2, 1]} : T[1, 2, 3, 4]\n  %y = Relu(%p) : T[1, 2, 3, 4]\n",
        [&[1, 3, 7, 6], &[2, 3, 3, 3], &[2]],
    ),
];

/// Products with transposed operands, which give the same bits as their separate nodes, except for the order of sums.
const TRANSPOSED: &[(&str, &str, Dims)] = &[
    (
        "transposed operands",
        "  %s = Transpose(%a) {perm=[1, 0]} : T[5, 7]\n  %t = Transpose(%b) {perm=[1, 0]} : T[7, 9]\n  %y = MatMul(%s, %t) : T[5, 9]\n",
        [&[7, 5], &[9, 7], &[1]],
    ),
    (
        "transposed operand of a Gemm",
        "  %t = Transpose(%b) : T[9, 7]\n  %y = Gemm(%a, %t, %c) {transB=1} : T[5, 9]\n",
        [&[5, 7], &[7, 9], &[9]],
    ),
    (
        "transposed batches",
        "  %s = Transpose(%a) {perm=[0, 1, 3, 2]} : T[2, 3, 5, 7]\n  %y = MatMul(%s, %b) : T[2, 3, 5, 4]\n",
        [&[2, 3, 7, 5], &[3, 7, 4], &[1]],
    ),
    (
        "transposed batches with one matrix",
        "  %s = Transpose(%a) {perm=[0, 2, 1]} : T[2, 5, 7]\n  %t = Transpose(%b) {perm=[1, 0]} : T[7, 4]\n  %y = MatMul(%s, %t) : T[2, 5, 4]\n",
        [&[2, 7, 5], &[4, 7], &[1]],
    ),
];

fn text_of(t: &str, body: &str, dims: Dims) -> String {
    let [a, b, c] = dims;
    let body = body.replace("T[", &format!("{t}["));
    format!(
        "{HEAD}graph @main {{\n  input %a : {t}{a:?}\n  input %b : {t}{b:?}\n  input %c : {t}{c:?}\n{body}  output %y\n}}\n"
    )
}

/// The same graph in f32 between its operands and its result.
fn wide_text(t: &str, body: &str, dims: Dims) -> String {
    if t == "f32" {
        return text_of(t, body, dims);
    }
    let to = if t == "f16" { 10 } else { 16 };
    let result = body.rsplit_once(": T").unwrap().1.trim_end();
    let names = ["%a", "%b", "%c"];
    let mut wide = body.replace("T[", "f32[").replace("%y", "%w");
    let mut text = format!("{HEAD}graph @main {{\n");
    for (name, dims) in names.iter().zip(dims) {
        text += &format!("  input {name} : {t}{dims:?}\n");
    }
    for (name, dims) in names.iter().zip(dims) {
        text += &format!("  {name}w = Cast({name}) {{to=1}} : f32{dims:?}\n");
        for end in [",", ")"] {
            wide = wide.replace(&format!("{name}{end}"), &format!("{name}w{end}"));
        }
    }
    text + &wide + &format!("  %y = Cast(%w) {{to={to}}} : {t}{result}\n  output %y\n}}\n")
}

fn inputs_of(dtype: DType, dims: Dims) -> Vec<HostTensor> {
    (21..).zip(dims).map(|(seed, dims)| random(dtype, dims, seed)).collect()
}

/// A group rounds once. With exact rounding, results have the same bits as those of separate nodes.
fn epilogue(
    cuda: &Arc<Cuda>,
    exact: &Arc<Cuda>,
    (dtype, t): (DType, &str),
    body: &str,
    dims: Dims,
) -> Result<(), String> {
    let (text, inputs) = (text_of(t, body, dims), inputs_of(dtype, dims));
    let plan = near(cuda, (&text, &wide_text(t, body, dims)), &inputs)?;
    // cuBLASLt's tanh is not accurate enough for f32, and cuDNN has no engine for some of the convolutions.
    let stays = dtype == DType::F32 && (body.contains("Gelu") || body.contains("dilations"))
        || body.contains("Conv(%a, %b)");
    let is_one = plan.lines().filter(|line| line.contains(" = ")).count() == 1;
    if is_one == stays {
        return Err(format!("other steps\n{plan}\n{text}"));
    }
    let module = parse(&text, &NoData).map_err(|errors| errors.to_string())?;
    let mut session = Runtime::new(exact.clone()).prepare(&module).map_err(|error| error.to_string())?;
    let refs = refs(&inputs);
    let want = session.run_observed(&refs, Some(&mut Blind)).map_err(|error| error.to_string())?;
    let got = session.run(&refs).map_err(|error| error.to_string())?;
    same_bits(&got[0], &want[0]).map_err(|error| format!("with exact rounding: {error}\n{text}"))?;
    keeps_nan(cuda, &text, inputs)
}

/// A NaN in the first operand propagates to the results that are computed from it.
fn keeps_nan(cuda: &Arc<Cuda>, text: &str, mut inputs: Vec<HostTensor>) -> Result<(), String> {
    let dims = inputs[0].dims().to_vec();
    let mut some = numbers(dims.iter().product(), 3);
    some[0] = f32::NAN;
    inputs[0] = tensor(inputs[0].dtype(), &dims, &some);
    let module = parse(text, &NoData).map_err(|errors| errors.to_string())?;
    let places = |runtime: Runtime| -> Result<Vec<bool>, String> {
        let mut session = runtime.prepare(&module).map_err(|error| error.to_string())?;
        let made = session.run(&refs(&inputs)).map_err(|error| error.to_string())?;
        let Data::Tensor(made) = &made[0] else { return Err("no tensor".into()) };
        Ok(made.f64s().unwrap().map(f64::is_nan).collect())
    };
    let (got, want) = (places(Runtime::new(cuda.clone()))?, places(Runtime::default())?);
    let is_right = got == want && want.contains(&true);
    if is_right { Ok(()) } else { Err(format!("NaNs in other places\n{text}")) }
}

/// Transposes are part of the product.
fn one_group(cuda: &Arc<Cuda>, t: &str, body: &str, (dtype, dims): (DType, Dims)) -> Result<(), String> {
    let text = text_of(t, body, dims);
    let plan = near(cuda, (&text, &text), &inputs_of(dtype, dims))?;
    let is_one = plan.lines().filter(|line| line.contains(" = ")).count() == 1;
    if is_one { Ok(()) } else { Err(format!("other steps\n{plan}\n{text}")) }
}

const PRODUCT: &str = "  %p = MatMul(%a, %b) : T[6, 16]\n  %y = Add(%p, %c) : T[6, 16]\n";
const PRODUCT_DIMS: Dims = [&[6, 24], &[24, 16], &[16]];
const CONVOLUTION: &str = "  %y = Conv(%a, %b, %c) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 8]\n";
const CONVOLUTION_DIMS: Dims = [&[2, 4, 6, 8], &[8, 4, 3, 3], &[8]];

fn output(cuda: &Arc<Cuda>, text: &str, refs: &[Option<DataRef<'_>>]) -> Result<HostTensor, String> {
    let module = parse(text, &NoData).map_err(|errors| errors.to_string())?;
    let mut session = Runtime::new(cuda.clone()).prepare(&module).map_err(|error| error.to_string())?;
    for _ in 0..2 {
        session.run(refs).map_err(|error| error.to_string())?;
    }
    match session.run(refs).map_err(|error| error.to_string())?.swap_remove(0) {
        Data::Tensor(tensor) => Ok(tensor),
        _ => Err("no tensor".into()),
    }
}

/// TF32 is used for f32 if the option permits it, and for nothing else.
fn rounds_to_tf32(
    cuda: &Arc<Cuda>,
    tf32: &Arc<Cuda>,
    (dtype, t): (DType, &str),
    body: &str,
    dims: Dims,
) -> Result<(), String> {
    let (text, inputs) = (text_of(t, body, dims), inputs_of(dtype, dims));
    let (want, got) = (output(cuda, &text, &refs(&inputs))?, output(tf32, &text, &refs(&inputs))?);
    let pairs = || got.f64s().unwrap().zip(want.f64s().unwrap());
    let greatest = want.f64s().unwrap().map(f64::abs).fold(0.0, f64::max);
    let distance = pairs().map(|(got, want)| (got - want).abs()).fold(0.0, f64::max) / greatest;
    let is_right = match dtype {
        DType::F32 => distance > 1e-5 && distance < 4e-3,
        _ => got.bytes() == want.bytes(),
    };
    if is_right { Ok(()) } else { Err(format!("a distance of {distance} from results without TF32\n{text}")) }
}

/// A plan of cuDNN is restored from a file; a damaged file is rewritten.
fn plans_are_kept(open: Open<'_>, options: &CudaOptions) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("ampc-plans-{}", std::process::id()));
    let options = CudaOptions { cache: Some(folder.clone()), ..options.clone() };
    let convolution = Convolution {
        direction: Direction::Forward,
        dtype: DType::F16,
        result: DType::F16,
        image: vec![2, 8, 6, 5],
        filter: vec![8, 8, 3, 3],
        grid: vec![2, 8, 6, 5],
        before: vec![1, 1],
        after: vec![1, 1],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        has_bias: false,
        has_relu: false,
        layout: Layout::ChannelsFirst,
    };
    let planned = || -> Result<_, String> {
        let cuda = open(&options).map_err(|error| error.to_string())?;
        let plan = cuda.plan_convolution(&convolution).map_err(|error| error.to_string())?;
        let dims: Dims = [&[2, 8, 6, 5], &[8, 8, 3, 3], &[8]];
        let body = "  %y = Conv(%a, %b) {pads=[1, 1, 1, 1]} : T[2, 8, 6, 5]\n";
        let inputs = inputs_of(DType::F16, dims);
        let made = output(&cuda, &text_of("f16", body, dims), &refs(&inputs))?;
        Ok((plan.engine.index, plan.workspace, !plan.refused.is_empty(), made.bytes().map(<[u8]>::to_vec)))
    };
    let made = [planned()?, planned()?];
    for file in std::fs::read_dir(&folder).unwrap() {
        std::fs::write(file.unwrap().path(), b"damaged").unwrap();
    }
    let [first, second, third] = [made[0].clone(), made[1].clone(), planned()?];
    std::fs::remove_dir_all(&folder).unwrap();
    // The heuristics of the simulated device list engines first that the backend rejects.
    let is_right =
        (first.0, first.1, &first.3) == (second.0, second.1, &second.3) && first == third && !second.2;
    if is_right { Ok(()) } else { Err(format!("plans {first:?}, {second:?}, {third:?}")) }
}

/// Operands in device memory whose addresses are only aligned to an element.
fn unaligned(cuda: &Arc<Cuda>, (dtype, t): (DType, &str), body: &str, dims: Dims) -> Result<(), String> {
    let (text, inputs) = (text_of(t, body, dims), inputs_of(dtype, dims));
    let want = output(cuda, &text, &refs(&inputs))?;
    let device = cuda.device().ok_or("no device")?;
    let size = if dtype == DType::F32 { 4 } else { 2 };
    for offsets in [[size, 0, 0], [0, 16, size], [256, size * 3, 32], [16, 32, 64]] {
        let mut queue = device.queue().map_err(|error| error.to_string())?;
        let mut moved = Vec::new();
        for (input, offset) in inputs.iter().zip(offsets) {
            let bytes = input.bytes().unwrap();
            let memory = device.allocate(bytes.len() + offset).map_err(|error| error.to_string())?;
            let span = Span { memory: &memory, offset, len: bytes.len() };
            queue.upload(bytes, span).map_err(|error| error.to_string())?;
            moved.push(DeviceTensor::of(dtype, input.dims().to_vec(), span));
        }
        queue.finish().map_err(|error| error.to_string())?;
        let refs: Vec<_> = moved.iter().map(|x| Some(DataRef::Device(x.view()))).collect();
        let got = output(cuda, &text, &refs).map_err(|error| format!("{offsets:?}: {error}\n{text}"))?;
        let (got, want) = (Data::Tensor(got), Data::Tensor(want.clone()));
        compare(&got, &want, None, Tolerance::Rows)
            .map_err(|error| format!("{offsets:?}: {error}\n{text}"))?;
    }
    Ok(())
}
