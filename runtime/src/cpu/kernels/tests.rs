//! Nodes that run alone, for the tests of kernels.

use crate::kernel::Io;
use crate::session::has_kernel;
use crate::{Cpu, DataRef, HostTensor, Runtime};
use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};

/// The results of a node whose operands `%0`, `%1` … are inputs, or its error; results are of these types.
pub(super) fn run(node: &str, results: &[&str], inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    run_with(&Runtime::from(Cpu::new(1)), node, results, inputs)
}

/// As [`run`], within these limits.
pub(super) fn run_with(
    runtime: &Runtime,
    node: &str,
    results: &[&str],
    inputs: &[HostTensor],
) -> Result<Vec<HostTensor>, String> {
    let mut text = String::from("module ir=10\nopset ai.onnx=24, ai.onnx.ml=5\n\ngraph @main {\n");
    for (i, input) in inputs.iter().enumerate() {
        text += &format!("  input %{i} : {}{:?}\n", input.dtype(), input.dims());
    }
    let names: Vec<String> = (0..results.len()).map(|j| format!("%r{j}")).collect();
    text += &format!("  {} = {node} : {}\n", names.join(", "), results.join(", "));
    names.iter().for_each(|name| text += &format!("  output {name}\n"));
    let module = parse(&(text + "}\n"), &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    let mut session = runtime.prepare(&module).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|input| Some(DataRef::Tensor(input.view()))).collect();
    let outputs = session.run(&inputs).map_err(|error| error.to_string())?;
    Ok(outputs.iter().map(|output| output.tensor().unwrap().view().to_host().unwrap()).collect())
}

/// The documents name the operators that have no kernel here, and no others: docs/contrib.md those of ONNX Runtime's
/// domain, docs/run.md those of all others.
#[test]
fn the_documentation_names_operators_without_kernel() {
    let holds = |document: &str, line: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
        assert!(std::fs::read_to_string(path).unwrap().contains(line), "docs/{document} lacks: {line}");
    };
    let cpu = Cpu::new(1);
    let lacking = |is_of: &dyn Fn(&str) -> bool, prefixed: bool| {
        let of = OpKind::ALL.iter().filter(|k| is_of(k.domain()) && !has_kernel(&cpu, **k));
        let name = |k: &OpKind| match k.domain() {
            domain if prefixed && !domain.is_empty() => format!("{domain}::{}", k.name()),
            _ => k.name().to_owned(),
        };
        of.map(name).collect::<Vec<_>>().join(", ")
    };
    let contrib = lacking(&|domain| domain == "com.microsoft", false);
    holds("contrib.md", &format!("It has no kernels for {contrib}."));
    let others = lacking(&|domain| domain != "com.microsoft", true);
    holds("run.md", &format!("There is a kernel for every operator of ONNX's domains but {others};"));
}

fn extents(dims: &[usize]) -> Vec<u64> {
    dims.iter().map(|&d| d as u64).collect()
}

pub(super) fn ints(dims: &[usize], values: &[i64]) -> HostTensor {
    HostTensor::from_slice(&extents(dims), values).unwrap()
}

pub(super) fn floats(dims: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::from_slice(&extents(dims), values).unwrap()
}

pub(super) fn strings(dims: &[usize], values: &[&str]) -> HostTensor {
    let values = values.iter().map(|text| text.as_bytes().into()).collect();
    HostTensor::from_strings(&extents(dims), values).unwrap()
}

/// For kernels that do not look at operands.
pub(super) fn no_io() -> Io<'static> {
    Io {
        operands: Vec::new(),
        results: Vec::new(),
        scratch: &mut [],
        device_scratch: None,
        queue: None,
        in_place: None,
        taken: &[],
        max_bytes: u64::MAX,
    }
}

/// Larger than a piece of work, with rows that begin and end anywhere in one.
const DIMS: [usize; 3] = [3, 17, 1031];

/// `f` of the index of every element of a tensor.
fn each(dims: &[usize], f: &dyn Fn(&[usize]) -> i64) -> HostTensor {
    let of = |i: usize| {
        let (mut rest, mut index) = (i, vec![0; dims.len()]);
        for (at, dim) in index.iter_mut().zip(dims).rev() {
            (*at, rest) = (rest % dim, rest / dim);
        }
        f(&index)
    };
    ints(dims, &(0..dims.iter().product()).map(of).collect::<Vec<_>>())
}

/// The element at an index of the tensor that cases move.
fn at(i: usize, j: usize, k: usize) -> i64 {
    i64::try_from((i * DIMS[1] + j) * DIMS[2] + k).unwrap()
}

fn x() -> HostTensor {
    each(&DIMS, &|i| at(i[0], i[1], i[2]))
}

/// Some index below `n` for each `i`.
fn some(i: usize, n: usize) -> usize {
    (i * 7919 + 5) % n
}

fn index(i: usize) -> i64 {
    i64::try_from(i).unwrap()
}

fn check(node: &str, operands: Vec<HostTensor>, want: &HostTensor) {
    let inputs: Vec<HostTensor> = [x()].into_iter().chain(operands).collect();
    let y = run_with(&Runtime::from(Cpu::new(3)), node, &["i64"], &inputs).unwrap();
    assert_eq!(y[0].dims(), want.dims(), "{node}");
    let (found, want) = (y[0].as_slice::<i64>().unwrap(), want.as_slice::<i64>().unwrap());
    let other = found.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(other, None, "{node}: the first element that differs");
}

#[test]
fn pads_of_many_pieces() {
    // 2 more rows in front, 1 cut off behind; columns the other way round.
    let pads = || ints(&[6], &[0, 2, -3, 1, -1, 4]);
    let dims = [4, 18, 1032];
    let edge = |i: i64, n: i64| usize::try_from(i.clamp(0, n - 1)).unwrap();
    let wrap = |i: i64, n: i64| usize::try_from(i.rem_euclid(n)).unwrap();
    let reflect = |i: i64, n: i64| {
        let i = i.rem_euclid(2 * (n - 1));
        usize::try_from(i.min(2 * (n - 1) - i)).unwrap()
    };
    type Source<'a> = &'a dyn Fn(i64, i64) -> usize;
    let modes: [(&str, Source<'_>); 3] = [("edge", &edge), ("wrap", &wrap), ("reflect", &reflect)];
    for (mode, of) in modes {
        // What is cut off is gone before anything is repeated.
        let want =
            each(&dims, &|i| at(of(index(i[0]), 3), of(index(i[1]) - 2, 16), 3 + of(index(i[2]), 1028)));
        check(&format!("Pad(%0, %1) {{mode={mode:?}}}"), vec![pads()], &want);
    }
    let want = each(&dims, &|i| {
        let inside = i[0] < 3 && (2..18).contains(&i[1]) && i[2] < 1028;
        if inside { at(i[0], i[1] - 2, i[2] + 3) } else { -7 }
    });
    check("Pad(%0, %1, %2)", vec![pads(), ints(&[], &[-7])], &want);
}

#[test]
fn gathers_of_many_pieces() {
    let list = |n: usize, end: usize| ints(&[n], &(0..n).map(|i| index(some(i, end))).collect::<Vec<_>>());
    let want = each(&[3, 29, 1031], &|i| at(i[0], some(i[1], 17), i[2]));
    check("Gather(%0, %1) {axis=1}", vec![list(29, 17)], &want);
    let want = each(&[3, 17, 700], &|i| at(i[0], i[1], some(i[2], 1031)));
    check("Gather(%0, %1) {axis=2}", vec![list(700, 1031)], &want);
    for (axis, n) in [(0, 3), (1, 17), (2, 1031)] {
        let indices = each(&[3, 16, 1001], &|i| index(some(i[0] + i[1] + i[2], n)) - index(i[2] % 2 * n));
        let want = each(&[3, 16, 1001], &|i| {
            let mut from = [i[0], i[1], i[2]];
            from[axis] = some(i[0] + i[1] + i[2], n);
            at(from[0], from[1], from[2])
        });
        check(&format!("GatherElements(%0, %1) {{axis={axis}}}"), vec![indices], &want);
    }
    let pairs = each(&[50, 2], &|i| index(some(i[0], [3, 17][i[1]])));
    let want = each(&[50, 1031], &|i| at(some(i[0], 3), some(i[0], 17), i[1]));
    check("GatherND(%0, %1)", vec![pairs], &want);
}

#[test]
fn scatters_of_many_pieces() {
    let rows = each(&DIMS, &|i| index((i[1] + i[2]) % 17));
    let updates = || each(&DIMS, &|i| -at(i[0], i[1], i[2]));
    let want = each(&DIMS, &|i| -at(i[0], (i[1] + 17 * 61 - i[2]) % 17, i[2]));
    check("ScatterElements(%0, %1, %2) {axis=1}", vec![rows, updates()], &want);
    let pairs = ints(&[2, 2], &[0, 16, -1, 3]);
    let updates = each(&[2, 1031], &|i| -index(i[0] * 2000 + i[1]));
    let want = each(&DIMS, &|i| match (i[0], i[1]) {
        (0, 16) => -index(i[2]),
        (2, 3) => -index(2000 + i[2]),
        _ => at(i[0], i[1], i[2]),
    });
    check("ScatterND(%0, %1, %2)", vec![pairs, updates], &want);
}

#[test]
fn other_orders_of_many_pieces() {
    check("Transpose(%0) {perm=[0, 2, 1]}", vec![], &each(&[3, 1031, 17], &|i| at(i[0], i[2], i[1])));
    check("Transpose(%0) {perm=[2, 0, 1]}", vec![], &each(&[1031, 3, 17], &|i| at(i[1], i[2], i[0])));
    check("Transpose(%0) {perm=[1, 0, 2]}", vec![], &each(&[17, 3, 1031], &|i| at(i[1], i[0], i[2])));
    let list = |values: &[i64]| ints(&[3], values);
    let operands = vec![list(&[2, 0, -2]), list(&[-9, 17, 3]), list(&[0, 1, 2]), list(&[-1, 1, -1])];
    let want = each(&[3, 17, 1026], &|i| at(2 - i[0], i[1], 1029 - i[2]));
    check("Slice(%0, %1, %2, %3, %4)", operands, &want);
    check(
        "Tile(%0, %1)",
        vec![list(&[1, 2, 3])],
        &each(&[3, 34, 3093], &|i| at(i[0], i[1] % 17, i[2] % 1031)),
    );
    let want = each(&[2, 3, 17, 1031], &|i| at(i[1], i[2], i[3]));
    check("Expand(%0, %1)", vec![ints(&[4], &[2, 1, 1, 1])], &want);
}

#[test]
fn parts_of_many_pieces() {
    let other = each(&[3, 17, 5], &|i| -at(i[0], i[1], i[2]));
    let want = each(&[3, 17, 2067], &|i| match i[2] {
        k @ 0..1031 => at(i[0], i[1], k),
        k @ 1031..1036 => -at(i[0], i[1], k - 1031),
        k => at(i[0], i[1], k - 1036),
    });
    check("Concat(%0, %1, %0) {axis=2}", vec![other], &want);
    let y = run("Split(%0, %1) {axis=2}", &["i64", "i64"], &[x(), ints(&[2], &[30, 1001])]).unwrap();
    let want =
        [each(&[3, 17, 30], &|i| at(i[0], i[1], i[2])), each(&[3, 17, 1001], &|i| at(i[0], i[1], i[2] + 30))];
    assert!(
        y.iter().zip(&want).all(|(y, want)| y.as_slice::<i64>().unwrap() == want.as_slice::<i64>().unwrap())
    );
    let flag = |i: usize, j: usize, k: usize| (i + j + k).is_multiple_of(3);
    let flags = |dims: &[usize]| {
        let flags = each(dims, &|i| i64::from(flag(i[0], i[1], i[2])));
        let bytes: Vec<u8> = flags.as_slice::<i64>().unwrap().iter().map(|&f| u8::from(f == 1)).collect();
        HostTensor::from_bytes(ampc_ir::DType::Bool, &extents(dims), &bytes).unwrap()
    };
    let want = each(&DIMS, &|i| if flag(i[0], i[1], i[2]) { at(i[0], i[1], i[2]) } else { -1 });
    check("Where(%1, %0, %2)", vec![flags(&DIMS), ints(&[], &[-1])], &want);
    let want = each(&DIMS, &|i| if flag(0, i[1], i[2]) { -index(i[2]) } else { at(i[0], i[1], i[2]) });
    check("Where(%1, %2, %0)", vec![flags(&[1, 17, 1031]), each(&[1031], &|i| -index(i[0]))], &want);
    let want = each(&DIMS, &|i| if flag(i[0], i[1], 0) { 5 } else { at(i[0], i[1], i[2]) });
    check("Where(%1, %2, %0)", vec![flags(&[3, 17, 1]), ints(&[1], &[5])], &want);
}

/// Softmax and LayerNormalization in 16 bits are those in f32, rounded once, of rows that are widened as a whole and of
/// longer rows.
#[test]
fn rows_in_16_bits_are_rows_of_f32_rounded_once() {
    fn halves(tensor: &HostTensor) -> HostTensor {
        let numbers: Vec<half::f16> =
            tensor.as_slice().unwrap().iter().map(|&x| half::f16::from_f32(x)).collect();
        HostTensor::from_slice(tensor.dims(), &numbers).unwrap()
    }
    fn widened(tensor: &HostTensor) -> HostTensor {
        let numbers: Vec<f32> = tensor.as_slice::<half::f16>().unwrap().iter().map(|x| x.to_f32()).collect();
        HostTensor::from_slice(tensor.dims(), &numbers).unwrap()
    }
    for n in [1, 17, 1023, 1024, 1025, 2500] {
        let numbers = |count: usize, seed: usize| -> Vec<f32> {
            (0..count)
                .map(|i| f32::from(u16::try_from((i * 37 + seed) % 1009).unwrap()) / 128.0 - 4.0)
                .collect()
        };
        let operands = [
            halves(&floats(&[3, n], &numbers(3 * n, 5))),
            halves(&floats(&[n], &numbers(n, 11))),
            halves(&floats(&[n], &numbers(n, 23))),
        ];
        let wide: Vec<HostTensor> = operands.iter().map(widened).collect();
        for (node, n_operands) in [
            ("Softmax(%0) {axis=-1}", 1),
            ("LogSoftmax(%0) {axis=-1}", 1),
            ("LayerNormalization(%0, %1, %2) {axis=-1}", 3),
        ] {
            let got = run(node, &["f16"], &operands[..n_operands]).unwrap();
            let want = run(node, &["f32"], &wide[..n_operands]).unwrap();
            assert_eq!(got[0].bytes(), halves(&want[0]).bytes(), "{node} of {n}");
        }
    }
}
