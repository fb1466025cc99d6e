//! How far off an output may be: what `verify` and `rewrite --verify` cannot let pass, in one verdict.

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
    assert!(
        rewritten.code == 0 && said.contains(" of max |m| (limit ") && !said.contains("`z`"),
        "{rewritten}"
    );
    // What is not a zero is beyond: no number says what share that is.
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
    assert!(said.contains("verified: the outputs are equal"), "{lowered}");
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
fn excused_outputs_are_accepted_by_request_alone_and_by_both_commands() {
    let dir = Dir::new();
    dir.write("m.ir", nearly_equal_products());
    let lower = ["rewrite", "m.ir", "--random", "1", "-o", "low.onnx", "--force", "--verify"];
    let refused = dir.run(&[&lower[..], &["--report", "r.json"]].concat());
    // Without the margin of lines that are folded.
    let words =
        |run: &Run| run.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
    let said = words(&refused);
    let share = "1 of 1 output is beyond the tolerance, and low products alone make it so: of `y`";
    assert!(
        refused.code == 1 && said.contains(&format!("`--accept-excused` accepts that {share}")),
        "{refused}"
    );
    assert!(!dir.path("low.onnx").exists());
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let (verify, excused) = (&report["verify"], &report["verify"]["excused"][0]);
    assert_eq!((&verify["passed"], &excused["output"]), (&false.into(), &"y".into()));
    let error = |of: &str| excused[of].as_f64().unwrap();
    assert!(error("max_of_max") > 7.8e-3 && error("max_of_max") < 3.0 * error("low_products"), "{excused}");
    assert!((1.0..=64.0).contains(&error("mismatches")) && error("elements") == 64.0, "{excused}");
    // With the flag they are accepted, with a warning that `-q` does not suppress.
    let accepted = dir.run(&[&lower[..], &["--accept-excused", "-q"]].concat());
    let said = words(&accepted);
    assert!(accepted.code == 0 && said.contains(&format!("accepted although {share}")), "{accepted}");
    let pair = ["verify", "m.ir", "low.onnx", "--random", "1"];
    for (more, code) in [(&[][..], 1), (&["--accept-excused"], 0)] {
        let verified = dir.run(&[&pair[..], more].concat());
        assert_eq!(verified.code, code, "{verified}");
    }
    let found = json(&dir.run(&[&pair[..], &["--accept-excused", "--json"]].concat()));
    assert_eq!((&found["passed"], &found["accepted"]), (&false.into(), &true.into()));
    assert_eq!(found["excused"][0], *excused);
    // A tolerance that is asked for is held, so that nothing is left to excuse.
    let asked = dir.run(&[&lower[..], &["--tolerance", "0.0078"]].concat());
    assert_eq!(asked.code, 1, "{asked}");
    assert_eq!(dir.run(&[&lower[..], &["--tolerance", "0.0078", "--accept-excused"]].concat()).code, 2);
}

/// Three products by 300: in fp32 all is finite, in fp16 an infinity less an infinity is NaN, with low products alone too.
#[test]
fn what_is_not_finite_where_the_model_is_finite_is_never_accepted() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x : f32[8, 10]\n  const %w : f32[10, 10] = random(1, 300.0)\n  const %u : f32[10, 10] = random(2, 300.0)\n  \
             const %v : f32[10, 10] = random(3, 300.0)\n  \
             %a = MatMul(%x, %w) : f32[8, 10] @mm1\n  %b = MatMul(%a, %u) : f32[8, 10] @mm2\n  \
             %c = MatMul(%b, %v) : f32[8, 10] @mm3\n  %y = Sub(%c, %c) : f32[8, 10] @sub\n  \
             output %y : f32[8, 10]\n",
        ),
    );
    let low = dir.run(&["rewrite", "m.ir", "-o", "low.onnx", "--policy", "all"]);
    assert_eq!(low.code, 0, "{low}");
    for more in [&[][..], &["--accept-excused"]] {
        let rewrite = ["rewrite", "m.ir", "-o", "no.onnx", "--policy", "all", "--verify", "-q"];
        let rewritten = dir.run(&[&rewrite[..], more].concat());
        assert!(rewritten.code == 1 && !rewritten.stderr.is_empty(), "{rewritten}");
        let verified = dir.run(&[&["verify", "m.ir", "low.onnx"][..], more].concat());
        assert!(verified.code == 1 && verified.stdout.contains("NaN"), "{verified}");
    }
    assert!(!dir.path("no.onnx").exists());
}

#[test]
fn a_failed_verification_says_that_the_old_output_was_left_as_it_was() {
    let dir = Dir::new();
    dir.write("m.ir", nearly_equal_products());
    let rewrite = ["rewrite", "m.ir", "--verify", "--random", "1", "--force", "-o", "old.onnx"];
    let none = dir.run(&rewrite);
    assert!(none.code == 1 && none.stderr.contains("no model was written"), "{none}");
    std::fs::write(dir.path("old.onnx"), "mine").unwrap();
    let old = dir.run(&rewrite);
    let said = old.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
    assert!(old.code == 1 && said.contains("`old.onnx` was left as it was"), "{old}");
    assert_eq!(std::fs::read(dir.path("old.onnx")).unwrap(), b"mine");
}

/// The verdict on an emulated model is about what is written.
#[test]
fn an_emulated_model_has_the_verdict_of_verify() {
    let dir = Dir::new();
    dir.write("m.ir", small_products());
    for data in [["--random", "1"], ["--random", "2"]] {
        let rewrite =
            ["rewrite", "m.ir", "--policy", "all", "--disable-guard", "underflow", "--emit", "emulated"];
        let plain = dir.run(&[&rewrite[..], &["-o", "low.onnx", "--force"]].concat());
        assert_eq!(plain.code, 0, "{plain}");
        let rewritten = dir.run(&[&rewrite[..], &["-o", "e.onnx", "--force", "--verify"], &data].concat());
        let verified = dir.run(&[&["verify", "m.ir", "low.onnx"][..], &data].concat());
        assert_eq!(rewritten.code, verified.code, "{rewritten}{verified}");
    }
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
