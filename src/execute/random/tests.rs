//! Streams, roles, dims and draws.

use super::*;
use crate::execute::Inputs;

fn floats(seed: u64, k: u32) -> Vec<f32> {
    let ty = Type::tensor(DType::F32, ampc_ir::Shape::known(&[5]));
    let Ok(Data::Tensor(tensor)) = value(Draw::first(seed), k, &ty, Role::Any) else {
        panic!("floats are drawn")
    };
    tensor.as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn the_numbers_are_those_that_are_documented() {
    let drawn = floats(7, 2);
    let word = |i: u32| philox4x32([i / 4, 0, 2, 1], [7, 0])[(i % 4) as usize];
    let unit = |w: u32| (w >> 8) as f32 * 2f32.powi(-23) - 1.0;
    assert_eq!(drawn, (0..5).map(|i| unit(word(i))).collect::<Vec<_>>());
    assert_ne!(drawn, floats(7, 1));
    assert_ne!(drawn, floats(8, 2));
}

#[test]
fn integers_are_below_the_extent_of_what_they_index() {
    let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {
input %ids : i64[2, 3]\n  input %mask : i64[2]\n  input %other : i32[4]
const %table : f32[7, 2] = random(1, 1.0)\n  const %one : i64[1] = [1]
%wide = Unsqueeze(%ids, %one) : i64[2, 1, 3]
%y = Gather(%table, %wide) : f32[2, 1, 3, 2]
output %y : f32[2, 1, 3, 2]\n  output %mask : i64[2]\n  output %other : i32[4]\n}\n";
    let mut module = ampc_ir::text::parse(text, &ampc_ir::text::NoData).unwrap();
    ampc_ir::infer::infer_module(&mut module).unwrap();
    assert_eq!(roles(&module), [Role::Index(7), Role::Mask, Role::Any]);
    let ty = Type::tensor(DType::I64, ampc_ir::Shape::known(&[1000]));
    let Ok(Data::Tensor(drawn)) = value(Draw::first(0), 0, &ty, Role::Index(7)) else {
        panic!("integers are drawn")
    };
    let numbers: Vec<i64> = drawn.i64s().unwrap().collect();
    assert_eq!((numbers.iter().min(), numbers.iter().max()), (Some(&0), Some(&6)));
}

fn parsed(body: &str) -> Module {
    let text = format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n{body}}}\n");
    ampc_ir::text::parse(&text, &ampc_ir::text::NoData).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn rows_of_indices_are_below_the_least_extent_that_they_index() {
    for (attributes, indices, want) in [
        ("", "3, 1", Role::Index(7)),
        ("", "3, 2", Role::Index(2)),
        (" {batch_dims=1}", "7, 1", Role::Index(2)),
        (" {batch_dims=2}", "7, 2, 1", Role::Index(5)),
    ] {
        let mut module = parsed(&format!(
            "  input %d : f32[7, 2, 5]\n  input %i : i64[{indices}]\n  \
               %y = GatherND(%d, %i){attributes} : f32[*]\n  output %y : f32[*]\n"
        ));
        ampc_ir::infer::infer_module(&mut module).unwrap();
        assert_eq!(roles(&module)[1], want, "{attributes} {indices}");
    }
}

#[test]
fn dims_in_sequences_and_optionals_are_bound_and_counted() {
    let module = parsed(
        "  input %s : seq(f32[N, 4])\n  input %o : optional(f32[N, ?])\n  input %t : string[N]\n  \
           %n = SequenceLength(%s) : i64[]\n  output %n : i64[]\n  output %o : optional(f32[N, ?])\n  \
           output %t : string[N]\n",
    );
    let dims = [("N".to_owned(), 3), ("o[1]".to_owned(), 5)].into();
    let most = |most| Inputs::random(&module, 1, &dims, most);
    let inputs = most(2 * 3 * 4 * 4).unwrap();
    let Some(Data::Sequence(list)) = &inputs.values[0] else { panic!("a sequence") };
    assert_eq!(list.items().iter().map(|i| i.tensor().unwrap().dims()).collect::<Vec<_>>(), [[3, 4]; 2]);
    let Some(Data::Optional(maybe)) = &inputs.values[1] else { panic!("an optional") };
    assert_eq!(maybe.value.as_ref().unwrap().tensor().unwrap().dims(), [3, 5]);
    assert!(matches!(most(2 * 3 * 4 * 4 - 1), Err(Error::Inputs(_))));
    let strings = Type::tensor(DType::String, ampc_ir::Shape::known(&[3]));
    assert_eq!(bytes(&strings), Some(3 * 17));
}

/// The values of all draws for a model, input by input.
fn drawn(body: &str) -> Vec<Vec<Vec<f64>>> {
    let module = parsed(body);
    let draws = Inputs::draws(&module, 0, &Dims::default(), 1 << 20).unwrap();
    let of = |inputs: &Inputs, k: usize| match &inputs.values[k] {
        Some(Data::Tensor(tensor)) if tensor.dtype() == DType::Bool => {
            tensor.bytes().unwrap().iter().map(|&b| f64::from(b)).collect()
        }
        Some(Data::Tensor(tensor)) if tensor.dtype() == DType::I64 => {
            tensor.i64s().unwrap().map(|v| f64::from(i32::try_from(v).unwrap())).collect()
        }
        Some(Data::Tensor(tensor)) => tensor.f64s().unwrap().collect(),
        other => panic!("{other:?}"),
    };
    (0..draws[0].values.len()).map(|k| draws.iter().map(|inputs| of(inputs, k)).collect()).collect()
}

/// Scores to which a mask is added, in a way that exporters write.
fn attention(mask: &str, between: &str, masked: &str) -> String {
    format!(
        "  input %x : f32[2, 1, 16, 8]\n  input {mask}\n  const %w : f32[8, 16] = random(1)\n  \
         const %one : f32 = 1.0\n  const %low : f32 = -10000.0\n  %s = MatMul(%x, %w) : f32[2, 1, 16, 16]\n\
         {between}  %m = {masked} : f32[2, 1, 16, 16]\n  %p = Softmax(%m) {{axis=-1}} : f32[2, 1, 16, 16]\n  \
         output %p : f32[2, 1, 16, 16]\n"
    )
}

#[test]
fn random_masks_are_masks() {
    // The name does not matter: the input is only added to scores.
    let added = attention("%k : f32[2, 1, 16, 16]", "", "Add(%s, %k)");
    for (draw, values) in drawn(&added)[1].iter().enumerate() {
        let low = [-1e4, -1e9, f64::from(f32::MIN)][draw];
        for (row, values) in values.chunks(16).enumerate() {
            let unseen = values.iter().filter(|&&v| v == low).count();
            assert_eq!(values.iter().filter(|&&v| v == 0.0).count() + unseen, 16, "{values:?}");
            let is_blind = draw == 2 && row % 8 == 0;
            assert!(
                if is_blind { unseen == 16 } else { (1..=8).contains(&unseen) },
                "{draw} {row}: {values:?}"
            );
            // Even rows hide their end and odd rows their beginning, or the other way round.
            assert!(is_blind || (values[0] == low) == ((row + draw) % 2 == 1), "{draw} {row}: {values:?}");
        }
    }
    // Masks of 0 and 1 by name: integers, flags, and floats that are not added; flags also by the values that they
    // select.
    let subtracted = "  %n = Sub(%one, %mask) : f32[2, 1, 1, 16]\n  %a = Mul(%n, %low) : f32[2, 1, 1, 16]\n";
    let chosen = "  %e = Expand(%keep, %shape) : bool[2, 1, 16, 16]\n";
    for (mask, between, masked) in [
        ("%mask : f32[2, 1, 1, 16]", subtracted, "Add(%s, %a)"),
        ("%mask : i64[2, 16]", "", "Neg(%s)"),
        ("%mask : bool[2, 16]", "", "Neg(%s)"),
        ("%keep : bool[2, 1, 1, 16]", "", "Where(%keep, %s, %low)"),
        (
            "%keep : bool[2, 1, 1, 16]\n  const %shape : i64[4] = [2, 1, 16, 16]",
            chosen,
            "Where(%e, %s, %low)",
        ),
    ] {
        for values in &drawn(&attention(mask, between, masked))[1][..2] {
            for row in values.chunks(16) {
                let seen = row.iter().filter(|&&v| v == 1.0).count();
                let unseen = row.iter().filter(|&&v| v == 0.0).count();
                assert!(seen + unseen == 16 && (8..16).contains(&seen), "{mask} {row:?}");
            }
        }
    }
    // An addend of scores with another reader is not a mask, nor is an addend of an input.
    let read = added.replace(
        "  output %p",
        "  %r = MatMul(%k, %k) : f32[2, 1, 16, 16]\n  output %r : f32[2, 1, 16, 16]\n  output %p",
    );
    let bias = "  input %x : f32[4, 16]\n  input %b : f32[16]\n  %m = Add(%x, %b) : f32[4, 16]\n  \
                %p = Softmax(%m) {axis=-1} : f32[4, 16]\n  output %p : f32[4, 16]\n";
    for body in [read.as_str(), bias] {
        assert!(drawn(body)[1][0].iter().all(|v| v.abs() <= 1.0), "{body}");
    }
}

/// Inputs that share a path get the role at its end. Each use on the path is visited once, so a chain of many inputs
/// does not take quadratic time.
#[test]
fn inputs_of_one_chain_have_its_role() {
    let chain = |n: usize, end: &str| {
        let mut body: String = (0..=n).map(|i| format!("  input %x{i} : f32[D{i}]\n")).collect();
        body.push_str("  input %s : f32[L]\n  %r = Relu(%s) : f32[L]\n");
        for i in 0..n {
            let before = if i == 0 { "x0".to_owned() } else { format!("h{}", i - 1) };
            body.push_str(&format!("  %h{i} = Concat(%{before}, %x{}) {{axis=0}} : f32[*]\n", i + 1));
        }
        roles(&parsed(&(body + &end.replace("LAST", &format!("h{}", n - 1)))))
    };
    let scores = "  %a = Add(%r, %LAST) : f32[*]\n  %y = Softmax(%a) : f32[*]\n  output %y : f32[*]\n";
    assert_eq!(chain(3, scores)[..4], [Role::Additive; 4]);
    let both = format!("{scores}  %b = Add(%r, %LAST) : f32[*]\n  output %b : f32[*]\n");
    assert_eq!(chain(3, &both)[..4], [Role::Any; 4]);
    let plain = chain(10_000, "  output %LAST : f32[*]\n  output %r : f32[L]\n");
    assert!(plain.iter().all(|role| *role == Role::Any) && plain.len() == 10_002);
}

#[test]
fn draws_are_of_several_magnitudes() {
    let both = drawn(
        "  input %x : f32[100]\n  input %n : i64[100]\n  input %position_ids : i64[2, 50]\n  input %ids : i64[100]\n  \
         const %t : f32[30, 2] = random(1)\n  %p = Gather(%t, %position_ids) : f32[2, 50, 2]\n  \
         %g = Gather(%t, %ids) : f32[100, 2]\n  output %x : f32[100]\n  output %n : i64[100]\n  \
         output %p : f32[2, 50, 2]\n  output %g : f32[100, 2]\n",
    );
    let reach = |values: &[f64]| {
        (values.iter().fold(f64::MAX, |m, &v| m.min(v)), values.iter().fold(f64::MIN, |m, &v| m.max(v)))
    };
    let x: Vec<(f64, f64)> = both[0].iter().map(|values| reach(values)).collect();
    assert!(x[0].0 < -0.9 && x[0].1 > 0.9 && x[0].1 < 1.0, "{x:?}");
    assert!(x[1].0 >= 0.0 && x[1].0 < 20.0 && x[1].1 > 235.0 && x[1].1 < 255.0, "{x:?}");
    assert!(x[2].0 < -0.0035 && x[2].1 > 0.0035 && x[2].1 < 1.0 / 256.0, "{x:?}");
    assert_eq!(
        both[1].iter().map(|values| reach(values).1 > 200.0).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert!(
        both[2].iter().all(|values| values.iter().zip(0u32..).all(|(&v, i)| v == f64::from(i % 50 % 30)))
    );
    assert!(both[3].iter().all(|values| reach(values).1 < 30.0) && both[3][0] != both[3][1]);
    // Features are not pixels.
    for (dims, is_pixel) in [
        ("1, 3, 8, 8", true),
        ("8, 8, 3", true),
        ("4, 4", true),
        ("", true),
        ("2, 8, 16", false),
        ("1, 8, 8, 8", false),
    ] {
        let values =
            drawn(&format!("  input %x : f32[{dims}]\n  output %x : f32[{dims}]\n")).remove(0).remove(1);
        let (least, most) = reach(&values);
        assert!(if is_pixel { (0.0..255.0).contains(&least) } else { least < -7.0 && most < 8.0 }, "{dims}");
    }
    // One draw suffices if draws would differ only in individual numbers.
    let ids = "  input %ids : i64[4]\n  const %t : f32[30, 2] = random(1)\n  %g = Gather(%t, %ids) : f32[4, 2]\n  output %g : f32[4, 2]\n";
    assert_eq!(drawn(ids)[0].len(), 1);
    // A model runs on the first draw.
    let module = parsed("  input %x : f32[5]\n  output %x : f32[5]\n");
    let first = Inputs::random(&module, 7, &Dims::default(), 1 << 20).unwrap();
    assert_eq!(first.values[0].as_ref().unwrap().tensor().unwrap().as_slice::<f32>().unwrap(), floats(7, 0));
}
