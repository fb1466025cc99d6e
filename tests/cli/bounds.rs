//! How far off an output may be: what `verify` and `rewrite --verify` cannot let pass.

use super::run::write_npz;
use super::support::{Dir, Run, module};
use ampc::runtime::HostTensor;

fn json(run: &Run) -> serde_json::Value {
    serde_json::from_str(&run.stdout).unwrap()
}

/// Products with weights near 1e-3, whose outputs are so small that fp16 has few digits for them.
fn small_products() -> String {
    let product = |i: usize| {
        format!(
            "  const %w{i} : f32[16, 16] = random({i}, 0.001)\n  %v{i} = MatMul(%v{}, %w{i}) : f32[4, 16] @mm{i}\n",
            i - 1
        )
    };
    let products: String = (1..=3).map(product).collect();
    module(&format!("  input %v0 : f32[4, 16]\n{products}  output %v3 : f32[4, 16]\n"))
}

/// Outputs near 1e-14, of which fp16 makes zeros.
fn vanishing() -> String {
    module(
        "  input %x : f32[4, 16]\n  const %w : f32[16, 16] = random(1, 1e-7)\n  const %u : f32[16, 16] = random(2, 1e-7)\n  \
         %h = MatMul(%x, %w) : f32[4, 16] @mm1\n  %y = MatMul(%h, %u) : f32[4, 16] @mm2\n  output %y : f32[4, 16]\n",
    )
}

#[test]
fn verify_bounds_by_the_largest_wanted_magnitude() {
    let dir = Dir::new();
    for (name, model) in [("small", small_products()), ("vanishing", vanishing())] {
        dir.write("m.ir", model);
        let lower = ["rewrite", "m.ir", "--policy", "all", "--disable-guard", "underflow"];
        let low = dir.run(&[&lower[..], &["-o", "low.onnx", "--force"]].concat());
        assert_eq!(low.code, 0, "{name}: {low}");
        let verified = dir.run(&["verify", "m.ir", "low.onnx", "--random", "1"]);
        assert!(
            verified.code == 1 && verified.stdout.contains("16 unit roundoffs of f16"),
            "{name}: {verified}"
        );
        let rewritten = dir.run(&[&lower[..], &["-o", "no.onnx", "--verify", "--random", "1"]].concat());
        assert!(rewritten.code == 1 && !dir.path("no.onnx").exists(), "{name}: {rewritten}");
    }
}

/// Each output has a bound of its own: that of a large one does not reach a small one.
#[test]
fn each_output_has_a_bound_of_its_own() {
    let dir = Dir::new();
    let of = |small: &str| {
        module(&format!(
            "  input %x : f32[4]\n  const %a : f32 = 1000.0\n  const %b : f32 = {small}\n  \
             %large = Mul(%x, %a) : f32[4]\n  %small = Mul(%x, %b) : f32[4]\n  output %large : f32[4]\n  \
             output %small : f32[4]\n"
        ))
    };
    dir.write("a.ir", of("1e-14"));
    dir.write("b.ir", of("0.0"));
    let run = dir.run(&["verify", "a.ir", "b.ir", "--tolerance", "0.01"]);
    assert_eq!(run.code, 1, "{run}");
    let found = json(&dir.run(&["verify", "a.ir", "b.ir", "--tolerance", "0.01", "--json"]));
    assert_eq!(
        (&found["outputs"][0]["passed"], &found["outputs"][1]["passed"]),
        (&true.into(), &false.into())
    );
    let bound = |at: usize| found["outputs"][at]["bound"].as_f64().unwrap();
    assert!(bound(0) > 1.0 && bound(1) < 1e-14, "{} {}", bound(0), bound(1));
}

/// `(x + 100) - (x + 100 + error)`: what is left is as small as the noise of what it was made of.
fn cancelled(error: &str) -> String {
    module(&format!(
        "  input %x : f32[4]\n  const %c : f32 = 100.0\n  const %e : f32 = {error}\n  %a = Add(%x, %c) : f32[4]\n  \
         %b = Add(%x, %c) : f32[4]\n  %d = Sub(%a, %b) : f32[4]\n  %y = Add(%d, %e) : f32[4]\n  output %y : f32[4]\n"
    ))
}

#[test]
fn an_absolute_term_is_at_most_the_noise() {
    let dir = Dir::new();
    let x = HostTensor::from_slice(&[4], &[0.1f32, 0.2, 0.3, 0.4]).unwrap();
    write_npz(&dir, "x.npz", &[("x", x)]);
    dir.write("a.ir", cancelled("0.0"));
    // Two numbers of about 100 are known to 2 · 100 · 2^-24 = 1.2e-5.
    for (error, code) in [("1.1e-5", 0), ("1.3e-5", 1)] {
        dir.write("b.ir", cancelled(error));
        let run = dir.run(&["verify", "a.ir", "b.ir", "--inputs", "x.npz"]);
        assert_eq!(run.code, code, "{error}: {run}");
    }
    let found = json(&dir.run(&["verify", "a.ir", "b.ir", "--inputs", "x.npz", "--json"]));
    let noise = found["outputs"][0]["noise"].as_f64().unwrap();
    assert!((1.1e-5..1.3e-5).contains(&noise), "{noise}");
    // Of a product of the same size nothing is left to excuse.
    let product = |factor: &str| {
        module(&format!(
            "  input %x : f32[4]\n  const %k : f32 = {factor}\n  %y = Mul(%x, %k) : f32[4]\n  output %y : f32[4]\n"
        ))
    };
    dir.write("p.ir", product("1e-9"));
    dir.write("q.ir", product("1.1e-9"));
    let run = dir.run(&["verify", "p.ir", "q.ir", "--inputs", "x.npz"]);
    assert_eq!(run.code, 1, "{run}");
    // Who allows nothing gets nothing.
    dir.write("b.ir", cancelled("1e-9"));
    let none = dir.run(&["verify", "a.ir", "b.ir", "--inputs", "x.npz", "--tolerance", "0"]);
    assert_eq!(none.code, 1, "{none}");
}

#[test]
fn an_output_wanted_all_zero_is_said_to_be() {
    let dir = Dir::new();
    let x = HostTensor::from_slice(&[4], &[0.1f32, 0.2, 0.3, 0.4]).unwrap();
    write_npz(&dir, "x.npz", &[("x", x)]);
    let zero = |more: &str| {
        module(&format!(
            "  input %x : f32[4]\n  const %w : f32[4, 4] = random(1)\n  const %k : f32 = {more}\n  \
             %m = MatMul(%x, %w) : f32[4] @mm\n  %z = Mul(%m, %k) : f32[4] @zero\n  output %z : f32[4]\n  output %m : f32[4]\n"
        ))
    };
    dir.write("a.ir", zero("0.0"));
    let same = dir.run(&["verify", "a.ir", "a.ir", "--inputs", "x.npz"]);
    assert!(
        same.code == 0 && same.stdout.contains("output z: all 4 elements agree (all are wanted zero)"),
        "{same}"
    );
    let found = json(&dir.run(&["verify", "a.ir", "a.ir", "--inputs", "x.npz", "--json"]));
    assert_eq!(
        (&found["outputs"][0]["all_zero"], &found["outputs"][1]["all_zero"]),
        (&true.into(), &false.into())
    );
    let rewritten = dir.run(&["rewrite", "a.ir", "-o", "low.onnx", "--verify", "--inputs", "x.npz"]);
    let said = rewritten.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(rewritten.code == 0 && said.contains("`z` is wanted all zero, and is"), "{rewritten}");
    // What is no zero is beyond: no number says what share that is.
    dir.write("b.ir", zero("1e-12"));
    let other = dir.run(&["verify", "a.ir", "b.ir", "--inputs", "x.npz"]);
    assert!(other.code == 1 && other.stdout.contains("(all are wanted zero)"), "{other}");
}

#[test]
fn the_bound_that_held_is_printed() {
    let dir = Dir::new();
    let x = HostTensor::from_slice(&[2], &[0.25f32, -0.5]).unwrap();
    write_npz(&dir, "x.npz", &[("x", x)]);
    let scaled = |factor: &str| {
        module(&format!(
            "  input %x : f32[2]\n  const %k : f32 = {factor}\n  %y = Mul(%x, %k) : f32[2]\n  output %y : f32[2]\n"
        ))
    };
    dir.write("a.ir", scaled("4.0"));
    dir.write("b.ir", scaled("4.01"));
    let run = |more: &[&str]| dir.run(&[&["verify", "a.ir", "b.ir", "--inputs", "x.npz"][..], more].concat());
    for (more, said) in [
        (&["--tolerance", "0.01"][..], "; at most 2.00e-2 allowed, 1.00e-2 of the largest wanted (2.00e0)"),
        (&["--rtol", "0.01", "--atol", "0.5"], "; at most 1.00e-2 of each and 5.00e-1 allowed"),
        (&["--atol", "0.5"], "; at most 5.00e-1 allowed"),
    ] {
        let found = run(more);
        assert!(found.stdout.contains(said), "{said}: {found}");
    }
    let lowered = ["rewrite", "a.ir", "-o", "low.onnx", "--verify", "--inputs", "x.npz", "--policy", "all"];
    let lowered = dir.run(&lowered);
    let said = lowered.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("that they may be: 0.00e0, of 1.56e-2"), "{lowered}");
    // Units in the last place are told of 16-bit outputs alone.
    assert!(!run(&[]).stdout.contains("ulp"), "{}", run(&[]));
    assert_eq!(json(&run(&["--json"]))["outputs"][0]["max_ulp"], serde_json::Value::Null);
    let half = "  input %x : f16[2]\n  %y = Neg(%x) : f16[2]\n  output %y : f16[2]\n";
    dir.write("half.ir", module(half));
    let half = dir.run(&["verify", "half.ir", "half.ir", "--random", "1"]);
    assert!(half.stdout.contains(", 0.0 ulp; at most "), "{half}");
}

/// The absolute part for stored outputs is one for outputs as large as those of ONNX's tests.
#[test]
fn stored_outputs_are_not_dwarfed_by_the_tolerance() {
    let dir = Dir::new();
    let scaled = |factor: &str| {
        module(&format!(
            "  input %x : f32[4]\n  const %k : f32 = {factor}\n  %y = Mul(%x, %k) : f32[4]\n  output %y : f32[4]\n"
        ))
    };
    dir.write("a.ir", scaled("1e-14"));
    dir.write("b.ir", scaled("0.0"));
    assert_eq!(dir.run(&["run", "a.ir", "--outputs", "set/", "--random", "1"]).code, 0);
    let same = dir.run(&["verify", "a.ir", "--test-data", "set"]);
    assert_eq!(same.code, 0, "{same}");
    let vanished = dir.run(&["verify", "b.ir", "--test-data", "set"]);
    assert_eq!(vanished.code, 1, "{vanished}");
    // Who asks for it gets it.
    assert_eq!(dir.run(&["verify", "b.ir", "--test-data", "set", "--atol", "1e-7"]).code, 0);
    // Of outputs of an ordinary size elements near zero may be off by 1e-7, and no more.
    for (error, code) in [("9e-8", 0), ("2e-7", 1)] {
        let with = |c: &str| {
            module(&format!(
                "  const %a : f32[2] = [1.0, 0.0]\n  const %c : f32[2] = [0.0, {c}]\n  %y = Add(%a, %c) : f32[2]\n  output %y : f32[2]\n"
            ))
        };
        dir.write("c.ir", with("0.0"));
        dir.write("d.ir", with(error));
        assert_eq!(dir.run(&["run", "c.ir", "--outputs", "ones/", "--force"]).code, 0);
        let found = dir.run(&["verify", "d.ir", "--test-data", "ones"]);
        assert_eq!(found.code, code, "{error}: {found}");
    }
}

/// The difference of two products that are nearly equal: already the products round so that it has few digits.
fn nearly_equal_products() -> String {
    module(
        "  input %x : f32[4, 16]\n  const %w : f32[16, 16] = random(1, 1.0)\n  const %u : f32[16, 16] = random(1, 1.01)\n  \
         %h = MatMul(%x, %w) : f32[4, 16] @mm1\n  %g = MatMul(%x, %u) : f32[4, 16] @mm2\n  \
         %y = Sub(%h, %g) : f32[4, 16] @sub\n  output %y : f32[4, 16]\n",
    )
}

#[test]
fn what_low_products_alone_make_is_no_fault_of_a_rewrite() {
    let dir = Dir::new();
    dir.write("m.ir", nearly_equal_products());
    let lower = ["rewrite", "m.ir", "--verify", "--random", "1", "-o", "low.onnx", "--force"];
    let run = dir.run(&[&lower[..], &["--report", "r.json"]].concat());
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(run.code == 0 && said.contains("and low products alone make"), "{run}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let (verify, excused) = (&report["verify"], &report["verify"]["excused"][0]);
    assert_eq!((&verify["passed"], &excused["output"]), (&true.into(), &"y".into()));
    let error = |of: &str| excused[of].as_f64().unwrap();
    assert!(error("max_of_max") > 7.8e-3 && error("max_of_max") < 3.0 * error("low_products"), "{excused}");
    // Two models are held to the bounds whatever makes them differ, and so is who asks for a tolerance.
    let verified = dir.run(&["verify", "m.ir", "low.onnx", "--random", "1"]);
    assert_eq!(verified.code, 1, "{verified}");
    let asked = dir.run(&[&lower[..], &["--tolerance", "0.0078"]].concat());
    assert_eq!(asked.code, 1, "{asked}");
}

#[test]
fn what_other_operators_make_is_a_fault_of_a_rewrite() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x : f32[4, 16]\n  const %w : f32[16, 16] = random(1, 1.0)\n  const %c : f32 = 1000.0\n  \
             %h = MatMul(%x, %w) : f32[4, 16] @mm\n  %a = Add(%h, %c) : f32[4, 16] @add\n  \
             %y = Sub(%a, %c) : f32[4, 16] @sub\n  output %y : f32[4, 16]\n",
        ),
    );
    let run = dir.run(&["rewrite", "m.ir", "--policy", "all", "--verify", "--random", "1", "-o", "low.onnx"]);
    assert!(run.code == 1 && run.stderr.contains("--pin add=fp32"), "{run}");
}
