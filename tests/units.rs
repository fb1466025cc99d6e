//! Operators in place of the units that they are written out as: the same numbers, on random and extreme inputs.
//!
//! The cases are those of the matcher, `passes/testdata/units`.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc::execute::{prepare, run};
use ampc::ir::Module;
use ampc::ir::infer::infer;
use ampc::ir::text::{NoData, PrintOptions, parse, print};
use ampc::options::{Families, Opset};
use ampc::passes::Policy;
use ampc::passes::pipeline::Pipeline;
use ampc::passes::raise_units::{Family, RaisedUnits};
use ampc::passes::units::{Kind, find};
use ampc::runtime::{Data, HostTensor, Runtime};
use ampc::{Model, RewriteOptions, rewrite};
use std::path::Path;

/// The text of a case, with f32 in place of inputs and outputs of 16 bits, and what the file says it has.
struct Case {
    name: String,
    kinds: Vec<Kind>,
    text: String,
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("passes/testdata/units");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| case(path)).collect()
}

fn case(path: &Path) -> Case {
    let text = std::fs::read_to_string(path).unwrap();
    let kinds = text.lines().filter_map(|line| line.strip_prefix("// unit: "));
    let kinds = kinds.map(|word| Kind::all().find(|kind| kind.name() == word).unwrap()).collect();
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with("//")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["input", name, ":", ..] if line.contains(": f16") => {
                lines.push(line.replace(name, &format!("{name}.wide")).replace("f16", "f32"));
                lines.push(format!("  {name} = Cast({name}.wide) {{to=10}} : ?"));
            }
            ["output", name] if text.contains(": f16[N") => {
                lines.push(format!("  {name}.wide = Cast({name}) {{to=1}} : ?"));
                lines.push(format!("  output {name}.wide"));
            }
            _ => lines.push(line.to_owned()),
        }
    }
    // Inputs stand before constants.
    let (mut inputs, mut casts, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        let is_cast_of_input = line.contains(".wide) {to=10}");
        let is_input = line.trim_start().starts_with("input");
        if is_input {
            &mut inputs
        } else if is_cast_of_input {
            &mut casts
        } else {
            &mut rest
        }
        .push(line);
    }
    let start = rest.iter().position(|line| line.starts_with("graph")).unwrap() + 1;
    let first_node = rest.iter().position(|line| line.trim_start().starts_with('%')).unwrap();
    let text = [&rest[..start], &inputs, &rest[start..first_node], &casts, &rest[first_node..]];
    Case {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        kinds,
        text: text.concat().join("\n") + "\n",
    }
}

fn module(text: &str) -> Module {
    let mut module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let (inference, errors) = infer(&module);
    assert!(errors.is_empty(), "{errors:?}\n{text}");
    inference.types.apply(&mut module);
    module
}

/// The module with operators in place of its units.
fn raised(module: &Module) -> Module {
    let mut raised = module.clone();
    let passes = "raise-opset{to=auto, policy=safe, units=all}, raise-units, dce";
    let pipeline = Pipeline::parse(passes, &Policy::preset).unwrap();
    pipeline.run(&mut raised, true, &mut ()).unwrap_or_else(|error| panic!("{error}"));
    raised
}

fn outputs(module: &Module, inputs: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let mut module = module.clone();
    let graph = module.graph(module.main()).inputs().to_vec();
    let dims: Vec<Vec<u64>> = graph
        .iter()
        .map(|&input| {
            let dims = module.value(input).ty.shape().unwrap().dims().unwrap();
            dims.iter().map(|dim| dim.known().unwrap_or(2)).collect()
        })
        .collect();
    let tensors = dims.iter().zip(inputs).map(|(dims, values)| {
        let n = usize::try_from(dims.iter().product::<u64>()).unwrap();
        let values: Vec<f32> = values.iter().copied().cycle().take(n).collect();
        Some(Data::from(HostTensor::from_slice(dims, &values).unwrap()))
    });
    let tensors: Vec<_> = tensors.collect();
    let mut session = prepare(&mut module, &Runtime::default()).unwrap();
    let made = run(&mut session, &tensors).unwrap();
    made.iter().map(|y| y.tensor().unwrap().f64s().unwrap().collect()).collect()
}

/// Numbers between -1 and 1 that look random.
fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(u16::try_from(state >> 16).unwrap()) / 32768.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Inputs of a kind: random numbers of several sizes, with and without an offset, and for functions of an element extreme
/// numbers.
fn inputs(kind: Kind) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for (seed, (scale, offset)) in (1u32..).zip([
        (1.0, 0.0),
        (4.0, 0.0),
        (30.0, 0.0),
        (1e-3, 0.0),
        (1e3, 0.0),
        (1.0, 3.0),
        (100.0, -50.0),
    ]) {
        all.push(noise(seed, 192).into_iter().map(|x| x * scale + offset).collect());
    }
    let extremes = [
        0.0,
        -0.0,
        1e-30,
        -1e-30,
        1e-45,
        88.0,
        -88.0,
        104.0,
        -104.0,
        1e4,
        -1e4,
        65504.0,
        -65504.0,
        1e18,
        -1e18,
        5.5,
        -5.5,
        3.0,
        -3.0,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
    ];
    if matches!(Family::of(kind), Some(Family::Norms)) {
        // Equal elements, whose variance is the epsilon.
        all.push(vec![0.0; 192]);
        all.push(vec![0.5; 192]);
    } else if matches!(Family::of(kind), Some(Family::Softmax)) {
        all.push(vec![-7.0; 192]);
        // Masked scores.
        all.push(noise(9, 192).iter().map(|&x| if x < 0.0 { f32::NEG_INFINITY } else { x }).collect());
        all.push(noise(10, 192).iter().map(|&x| if x < 0.0 { -1e30 } else { x }).collect());
        all.push(noise(11, 192).iter().map(|&x| x * 1e4).collect());
    } else {
        all.push(extremes.to_vec());
    }
    all
}

/// The largest difference that roundings of f32 inside explain.
///
/// - A function of an element is the operand times a factor between 0 and about 1, of which the written form knows
///   the absolute error only (1 + erf cancels below -3): a share of the operand.
/// - Exponents are differences of operands, so that a softmax has the relative error of exp(error of the
///   difference), and its logarithm that error itself: a share of the largest operand.
/// - A norm subtracts a mean that is rounded at the size of the operands and divides by the deviation: a share of the
///   largest result, and of the largest operand in units of the deviation. Without an epsilon that counts, the
///   quotient of largest operand and deviation is at most the square root of the number of elements, beside the offset.
fn tolerance(kind: Kind, x: f64, largest_x: f64, largest_y: f64) -> f64 {
    let unit = 2f64.powi(-20);
    match Family::of(kind) {
        Some(Family::Norms) => 16.0 * unit * (largest_y + 1.0),
        Some(Family::Softmax) => unit * (1.0 + largest_x),
        _ => unit * x.abs() + f64::from(f32::MIN_POSITIVE),
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().filter(|value| value.is_finite()).map(f64::abs).fold(0.0, f64::max)
}

#[test]
fn operators_compute_the_same_as_their_units() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for case in cases() {
        let name = &case.name;
        let before = module(&case.text);
        let after = raised(&before);
        let raisable: Vec<Kind> =
            case.kinds.iter().copied().filter(|&kind| Family::of(kind).is_some()).collect();
        let left = find(&after, &infer(&after).0.facts);
        if left.iter().any(|unit| Family::of(unit.kind).is_some()) {
            wrong.push(format!("{name}: units are left"));
        }
        let [kind] = raisable[..] else { continue };
        // Casts of 16 bits round on the way, and so did constants of 16 bits.
        let low = case.text.contains(": f16") || case.text.contains("{to=10}");
        for (i, x) in inputs(kind).iter().enumerate() {
            let (want, got) =
                (outputs(&before, std::slice::from_ref(x)), outputs(&after, std::slice::from_ref(x)));
            let (want, got) = (&want[0], &got[0]);
            let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let (largest_x, largest_y) = (largest(&wide), largest(want));
            for (j, (want, got)) in want.iter().zip(got).enumerate() {
                let x = wide[j % wide.len()];
                // A formula that overflows inside is not what the operator computes.
                let overflows = !want.is_finite() && !x.is_nan();
                let bound = tolerance(kind, x, largest_x, largest_y);
                let bound = if low { bound + 2f64.powi(-9) * (largest_y + 1.0) } else { bound };
                let agree = want.is_nan() && got.is_nan() || (want - got).abs() <= bound;
                compared += usize::from(!overflows);
                if !agree && !overflows {
                    wrong.push(format!(
                        "{name}, inputs {i}: f({x:e}) is {want:e}, and {got:e} by the operator"
                    ));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn erf_and_tanh_choose_the_approximation() {
    for (name, attribute) in [("gelu_torchscript", "none"), ("gelu_tanh_torchscript", "tanh")] {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        let text = print(&raised(&module(&case.text)), &PrintOptions::default()).text;
        assert!(text.contains(&format!("Gelu(%x) {{approximate=\"{attribute}\"}}")), "{text}");
    }
}

/// A rewrite with `raise`: counts by kind, and the opset that has all operators.
#[test]
fn a_rewrite_raises_units_on_request() {
    let case = cases().into_iter().find(|case| case.name == "attention_and_gelu").unwrap();
    let report = |raise, opset| {
        let options = RewriteOptions { raise, opset, ..RewriteOptions::default() };
        rewrite(Model::from(module(&case.text)), &options).unwrap().report
    };
    let counts = |report: &ampc::Report| {
        let counts = report.units.iter().map(|(kind, count)| (*kind, count.raised, count.left));
        counts.collect::<Vec<_>>()
    };
    assert!(report(Families::default(), Opset::Auto).units.is_empty());
    let kept = report(Families::all(), Opset::Keep);
    assert_eq!(counts(&kept), [("gelu", 0, 1), ("softmax", 1, 0)]);
    let warned = kept.warnings.iter().find(|warning| warning.code == "units.opset").unwrap();
    assert_eq!(
        warned.message,
        "1 × Gelu written out stay as they are: the operator is in ONNX from opset 20 on"
    );
    let raised = report(Families::of_words(["gelu"]).unwrap(), Opset::Auto);
    assert_eq!((counts(&raised), raised.opsets[""]), (vec![("gelu", 1, 0)], 20));
    assert!(raised.warnings.iter().all(|warning| warning.code != "units.opset"));
    // The operator has the path of the last node of the unit.
    assert_eq!(raised.node("y").unwrap().op, "Gelu");
    assert_eq!(RaisedUnits::default().0.len(), 0);
}
