//! `ampc verify` and `rewrite --verify`: what differs, what is said about it, and which pins help.

use super::run::{looped, net, write_npz};
use super::support::{Dir, EMBEDDING, Run, module, snapshot};
use ampc::ir::DType;
use ampc::runtime::HostTensor;

#[test]
fn tolerances_are_numbers_that_say_something() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    for tolerance in ["inf", "nan", "-1"] {
        let run = dir.run(&["verify", "m.ir", "m.ir", &format!("--tolerance={tolerance}")]);
        assert!(run.code == 2 && run.stderr.contains("expected a finite number"), "{run}");
    }
    // 16 roundoffs of 8 bits are all of an element.
    let through = |dtype: &str, number: u32, scale: &str| {
        module(&format!(
            "  input %x : f32[4]\n  const %s : f32 = {scale}\n  %a = Cast(%x) {{to={number}}} : {dtype}[4]\n  \
             %b = Cast(%a) {{to=1}} : f32[4]\n  %y = Mul(%b, %s) : f32[4]\n  output %y : f32[4]\n"
        ))
    };
    dir.write("a.ir", through("float8e4m3fn", 17, "1.0"));
    dir.write("b.ir", through("float8e4m3fn", 17, "0.0"));
    let zeros = dir.run(&["verify", "a.ir", "b.ir", "--random", "1"]);
    assert!(zeros.code == 1 && zeros.stdout.contains("256 unit roundoffs of f32"), "{zeros}");
    dir.write(
        "low.ir",
        module("  input %x : float8e4m3fn[4]\n  %y = Identity(%x) : float8e4m3fn[4]\n  output %y : float8e4m3fn[4]\n"),
    );
    let bits = HostTensor::from_slice(&[4], &[0x38u8, 0x30, 0xb8, 0]).unwrap();
    write_npz(&dir, "low.npz", &[("x__float8e4m3fn", bits)]);
    let low = ["verify", "low.ir", "low.ir", "--inputs", "low.npz"];
    let none = dir.run(&low);
    assert!(none.code == 2 && none.stderr.contains("--tolerance X"), "{none}");
    assert_eq!(dir.run(&[&low[..], &["--tolerance", "0"]].concat()).code, 0);
}

#[test]
fn the_first_node_that_differs_is_named() {
    let dir = Dir::new();
    dir.write("a.ir", net("2.0"));
    dir.write("b.ir", net("2.02"));
    let args = ["--random", "1", "--dim", "N=4"];
    snapshot("verify_same", &dir.run(&[&["verify", "a.ir", "a.ir"][..], &args].concat()));
    let differs = dir.run(&[&["verify", "a.ir", "b.ir"][..], &args].concat());
    assert_eq!(differs.code, 1);
    snapshot("verify_differs", &differs);
    let json = dir.run(&[&["verify", "a.ir", "b.ir", "--json"][..], &args].concat());
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&found["schema"], &found["passed"]), (&"ampc-verify/1".into(), &false.into()));
    assert_eq!((&found["first"]["node"], &found["first"]["value"]), (&"scale".into(), &"b".into()));
    assert_eq!(found["values"].as_array().map(Vec::len), Some(4));
    let wide = [&["verify", "a.ir", "b.ir", "--tolerance", "0.1"][..], &args].concat();
    assert_eq!(dir.run(&wide).code, 0);
    // In a loop, with the iteration; another name of the output is not an output.
    dir.write("loop.ir", looped("0.5"));
    dir.write("faulty.ir", looped("0.51"));
    let inner = dir.run(&["verify", "loop.ir", "faulty.ir", "--random", "1"]);
    assert!(inner.stdout.contains("`s_out` of Mul `loop1/body/halve` (iteration 0)"), "{inner}");
    snapshot("verify_other_outputs", &dir.run(&["verify", "a.ir", "loop.ir", "--random", "1"]));
}

fn json(run: &Run) -> serde_json::Value {
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn what_was_compared_with_nothing_is_said() {
    let dir = Dir::new();
    let log = |lines: &str| module(&format!("  input %x : f32[N]\n{lines}  output %y : f32[N]\n"));
    dir.write("a.ir", log("  %a1 = Abs(%x) : f32[N]\n  %y = Neg(%a1) : f32[N]\n"));
    dir.write("b.ir", log("  %b1 = Abs(%x) : f32[N]\n  %y = Neg(%b1) : f32[N]\n  output %b1 : f32[N]\n"));
    let names = dir.run(&["verify", "a.ir", "b.ir", "--random", "1"]);
    snapshot("verify_lone", &names);
    let found = json(&dir.run(&["verify", "a.ir", "b.ir", "--random", "1", "--json"]));
    let lone = serde_json::json!({
        "values": { "count": 1, "of": 2, "first": "a1" }, "outputs": { "count": 1, "of": 2, "first": "b1" }
    });
    assert_eq!(found["lone"], lone);
    // NaN that meets NaN, and no elements.
    let nan = f32::NAN;
    write_npz(&dir, "nan.npz", &[("x", HostTensor::from_slice(&[3], &[nan, nan, nan]).unwrap())]);
    write_npz(&dir, "some.npz", &[("x", HostTensor::from_slice(&[3], &[nan, 1.0, nan]).unwrap())]);
    snapshot("verify_nan", &dir.run(&["verify", "a.ir", "a.ir", "--inputs", "nan.npz"]));
    let some = dir.run(&["verify", "a.ir", "a.ir", "--inputs", "some.npz"]);
    assert!(some.stdout.contains("all 3 elements agree (2 are NaN in both); max"), "{some}");
    assert_eq!(some.stderr, "");
    let found = json(&dir.run(&["verify", "a.ir", "a.ir", "--inputs", "nan.npz", "--json"]));
    assert_eq!((&found["outputs"][0]["nan_in_both"], &found["outputs"][0]["finite"]), (&3.into(), &0.into()));
    let empty = dir.run(&["verify", "a.ir", "a.ir", "--random", "1", "--dim", "N=0"]);
    assert!(empty.code == 0 && empty.stderr.contains("verify.nothing"), "{empty}");
    let rewrite = ["rewrite", "a.ir", "-o", "low.onnx", "--verify", "--inputs", "nan.npz"];
    let rewritten = dir.run(&rewrite);
    assert!(rewritten.code == 0 && rewritten.stderr.contains("verify.nothing"), "{rewritten}");
    // The warning is about the result, so that it is said whatever else is not.
    let saved = dir.run(&["run", "a.ir", "--inputs", "nan.npz", "--outputs", "set/", "-q"]);
    assert_eq!(saved.code, 0, "{saved}");
    for quiet in [
        &["verify", "a.ir", "a.ir", "--inputs", "nan.npz", "-q"][..],
        &["verify", "a.ir", "a.ir", "--inputs", "nan.npz", "-q", "--json"],
        &["verify", "a.ir", "--test-data", "set", "-q"],
        &[&rewrite[..], &["--force", "-q"]].concat(),
    ] {
        let run = dir.run(quiet);
        assert!(run.code == 0 && run.stderr.starts_with("ampc::warning::verify.nothing\n"), "{run}");
    }
    assert!(!rewritten.stderr.contains("verified: "), "{rewritten}");
}

#[test]
fn errors_without_a_number_are_infinite() {
    let dir = Dir::new();
    let add = |number: &str| {
        module(&format!(
            "  input %x : f32[2]\n  const %c : f32[2] = [{number}, 0.0]\n  %y = Add(%x, %c) : f32[2]\n  \
             output %y : f32[2]\n"
        ))
    };
    dir.write("a.ir", add("0.0"));
    for (number, got) in [("inf", "inf"), ("-inf", "-inf"), ("nan", "nan")] {
        dir.write("b.ir", add(number));
        let text = dir.run(&["verify", "a.ir", "b.ir", "--random", "1"]);
        assert!(text.code == 1 && text.stdout.contains("1 disagrees on being finite"), "{text}");
        assert!(!text.stdout.contains("|err|"), "{text}");
        let found = json(&dir.run(&["verify", "a.ir", "b.ir", "--random", "1", "--json"]));
        for error in ["max_abs", "max_rel", "max_of_max"] {
            assert_eq!(found["outputs"][0][error], "inf", "{number} {error}");
        }
        let first = &found["outputs"][0]["first_mismatch"];
        assert!(first["got"] == got && first["want"].is_f64(), "{first}");
    }
    let wide = "  input %x : f32[2]\n  %y = Unsqueeze(%x, %a) : f32[1, 2]\n  output %y : f32[1, 2]\n";
    dir.write("dims.ir", module(&format!("  const %a : i64[1] = [0]\n{wide}")));
    let dims = dir.run(&["verify", "a.ir", "dims.ir", "--random", "1", "--json"]);
    // That nothing was compared is a warning about what agrees.
    assert_eq!(dims.stderr, "");
    let found = json(&dims);
    assert_eq!((&found["outputs"][0]["max_abs"], &found["passed"]), (&"inf".into(), &false.into()));
    // Integers keep all their digits, strings are strings.
    let of = |what: &str| module(&format!("{what}  output %y : i64[1]\n"));
    dir.write("i.ir", of("  const %y : i64[1] = [9007199254740993]\n"));
    dir.write("j.ir", of("  const %y : i64[1] = [9007199254740992]\n"));
    let found = json(&dir.run(&["verify", "i.ir", "j.ir", "--json"]));
    assert_eq!(found["outputs"][0]["first_mismatch"]["want"], 9_007_199_254_740_993_i64);
}

#[test]
fn quiet_comparisons_name_what_fails() {
    let dir = Dir::new();
    dir.write("a.ir", net("2.0"));
    dir.write("b.ir", net("2.02"));
    let quiet = |args: &[&str]| dir.run(&[args, &["--random", "1", "--dim", "N=4", "-q"]].concat());
    let same = quiet(&["verify", "a.ir", "a.ir"]);
    assert_eq!((same.code, same.stdout.as_str(), same.stderr.as_str()), (0, "", ""));
    let differs = quiet(&["verify", "a.ir", "b.ir"]);
    assert_eq!((differs.code, differs.stdout.lines().count(), differs.stderr.as_str()), (1, 2, ""));
    assert!(differs.stdout.starts_with("output y: 12 of 12 elements differ"), "{differs}");
    let saved = quiet(&["run", "a.ir", "--outputs", "set/"]);
    assert_eq!(saved.code, 0, "{saved}");
    let same = dir.run(&["verify", "a.ir", "--test-data", "set", "-q"]);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""));
    let off = dir.run(&["verify", "b.ir", "--test-data", "set", "-q"]);
    assert!(off.code == 1 && off.stdout.starts_with("set output y of Sub `residual`: 12 of 12"), "{off}");
    let found = json(&dir.run(&["verify", "b.ir", "--test-data", "set", "--json", "--rtol", "0"]));
    let output = &found["outputs"][0];
    assert_eq!((&output["value"], &output["node"]), (&"y".into(), &"residual".into()));
    assert_eq!((&output["folder"], &output["op"]), (&"set".into(), &"Sub".into()));
    assert_eq!(found["tolerance"]["reason"], "rel asked for, abs the default for test data");
    let help = dir.run(&["verify", "--help"]);
    for usage in ["ampc verify [OPTIONS] <MODEL> <OTHER>", "ampc verify [OPTIONS] <MODEL> --test-data <DIR>"]
    {
        assert!(help.stdout.contains(usage), "{help}");
    }
}

#[test]
fn a_rewrite_that_is_too_far_off_is_not_written() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let verify = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--dim", "N=4"];
    let good = dir.run(&verify);
    assert!(good.code == 0 && good.stderr.contains("verified: largest error "), "{good}");
    std::fs::remove_file(dir.path("low.onnx")).unwrap();
    let strict = [&verify[..], &["--tolerance", "1e-6"]].concat();
    let bad = dir.run(&strict);
    assert_eq!((bad.code, dir.files()), (1, vec!["m.ir".to_owned()]));
    snapshot("rewrite_verify", &bad);
    // `--force` is about files that exist.
    dir.write("low.onnx", "good");
    let forced = dir.run(&[&strict[..], &["--force", "-q"]].concat());
    assert!(forced.code == 1 && forced.stderr.contains("ampc::verify::beyond"), "{forced}");
    assert_eq!(std::fs::read(dir.path("low.onnx")).unwrap(), b"good");
    let unused = dir.run(&["rewrite", "m.ir", "--random", "1"]);
    assert!(unused.code == 2 && unused.stderr.contains("--verify"), "{unused}");
}

/// A table of which rows are taken, and a product if there are weights.
fn embedding(product: bool) -> String {
    let table = "  input %i : i64[2]\n  const %t : f32[300, 400] = random(1)\n";
    let gather = "  %g = Gather(%t, %i) : f32[2, 400] @embed\n";
    if !product {
        return module(&format!("{table}{gather}  output %g : f32[2, 400]\n"));
    }
    let weights = "  const %w : f32[400, 4] = random(2)\n";
    let product = "  %y = MatMul(%g, %w) : f32[2, 4] @mm\n  output %y : f32[2, 4]\n";
    module(&format!("{table}{weights}{gather}{product}"))
}

#[test]
fn nodes_that_only_move_values_are_pinned_if_that_helps() {
    let dir = Dir::new();
    let strict = ["-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let both = serde_json::json!({ "embed": "fp32", "mm": "fp32" });
    let one = serde_json::json!({ "embed": "fp32" });
    for (product, pins) in [(true, both), (false, one)] {
        dir.write("m.ir", embedding(product));
        let run = dir.run(&[&["rewrite", "m.ir"][..], &strict, &["--report", "r.json", "--force"]].concat());
        let report = std::fs::read(dir.path("r.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        assert!(run.code == 1 && report["verify"]["pins"] == pins, "{run}");
    }
    let pins = ["--pin", "embed=fp32", "--pin", "mm=fp32"];
    dir.write("m.ir", embedding(true));
    let pinned = dir.run(&[&["rewrite", "m.ir"][..], &strict, &pins].concat());
    assert!(pinned.code == 0 && pinned.stderr.contains("verified: "), "{pinned}");
}

#[test]
fn what_becomes_low_by_a_pin_is_pinned_as_well() {
    let dir = Dir::new();
    dir.write("m.ir", module(EMBEDDING));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&[&strict[..], &["--report", "report.json"]].concat());
    assert!(run.code == 1 && run.stderr.contains("cannot be lowered within the tolerance"), "{run}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("report.json")).unwrap()).unwrap();
    let pins = serde_json::json!({ "word": "fp32", "position": "fp32", "mm": "fp32" });
    let verdict = &report["verify"];
    assert_eq!((&verdict["passed"], &verdict["pins"]), (&false.into(), &pins));
    assert_eq!((&verdict["deny"], &verdict["pinned"]["low"]), (&serde_json::json!(["Gather"]), &0.into()));
    // As the pins of a policy they do what was found.
    dir.write("pins.json", serde_json::json!({ "pins": report["verify"]["pins"] }).to_string());
    let pinned = dir.run(&[&strict[..], &["--policy", "pins.json", "--report", "good.json"]].concat());
    assert!(pinned.code == 0 && pinned.stderr.contains("verified: "), "{pinned}");
    let good: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("good.json")).unwrap()).unwrap();
    assert!(good["verify"]["passed"] == true && good["verify"].get("pins").is_none(), "{}", good["verify"]);
    // The report repeats the rewrite that it is about.
    let repeated = dir.run(&[&strict[..], &["--force", "--policy", "report.json"]].concat());
    assert!(repeated.code == 1 && repeated.stderr.contains("verify::beyond"), "{repeated}");
    let plain = dir.run(&["rewrite", "m.ir", "-o", "plain.onnx", "--report", "plain.json"]);
    assert_eq!(plain.code, 0, "{plain}");
    assert!(!std::fs::read_to_string(dir.path("plain.json")).unwrap().contains("\"verify\""));
}

#[test]
fn nodes_that_no_pin_makes_fp32_are_named() {
    let dir = Dir::new();
    dir.write("m.ir", module(EMBEDDING));
    // A pin of a variable comes before those of nodes that are tried.
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&[&strict[..], &["--pin", "mm#T=fp16", "--report", "report.json"]].concat());
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = "no pins that help were found: with all pins that were tried, 1 node would still be low: `mm`";
    assert!(run.code == 1 && said.contains(help), "{run}");
    let report = std::fs::read(dir.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let verdict = &report["verify"];
    assert_eq!((&verdict["passed"], &verdict["left_low"]), (&false.into(), &serde_json::json!(["mm"])));
    assert!(verdict.get("pins").is_none() && verdict.get("pinned").is_none(), "{verdict}");
}

/// Printed pins are valid shell words, whatever the names and number of nodes.
#[test]
fn pins_are_printed_whole_for_a_shell() {
    let dir = Dir::new();
    let long = format!("/{}/MatMul", "encoder.layer".repeat(20));
    let names = ["it's", "a`b", "-dash", "x y", "$(exit 3)", "bell\u{7}1", "turn\u{202e}ed", "=eq", &long];
    let mut text = String::from("  input %v0 : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n");
    for (i, name) in names.iter().enumerate() {
        let name = name.replace('\u{7}', "\\x07");
        text.push_str(&format!("  %v{} = MatMul(%v{i}, %w) : f32[4, 4] @\"{name}\"\n", i + 1));
    }
    text.push_str(&format!("{EXACT}  output %exact\n  output %v{} : f32[4, 4]\n", names.len()));
    dir.write("m.ir", module(&text));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&strict);
    let (_, pins) =
        run.stderr.split_once(":\n    --pin").map(|(help, pins)| (help, format!("    --pin{pins}"))).unwrap();
    assert!(run.code == 1 && pins.lines().count() == names.len(), "{run}");
    assert!(pins.contains(&format!("    --pin {long}=fp32")), "{run}");
    assert!(!pins.contains(['\u{7}', '\u{202e}']), "{run}");
    // As a shell reads them, where one is there that knows all quotes.
    let program = env!("CARGO_BIN_EXE_ampc");
    let script = format!("{program} {} {pins}", strict.join(" "));
    let Ok(shell) =
        std::process::Command::new("bash").arg("-c").arg(script).current_dir(dir.path("")).output()
    else {
        return;
    };
    let said = String::from_utf8_lossy(&shell.stderr).into_owned();
    assert!(shell.status.code() == Some(0) && said.contains("verified: "), "{said}");
}

#[test]
fn of_many_pins_the_report_has_those_that_are_not_shown() {
    let dir = Dir::new();
    let mut text = String::from("  input %v0 : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n");
    for i in 0..24 {
        text.push_str(&format!("  %v{} = MatMul(%v{i}, %w) : f32[4, 4] @mm{i}\n", i + 1));
    }
    text.push_str(&format!("{EXACT}  output %exact\n  output %v24 : f32[4, 4]\n"));
    dir.write("m.ir", module(&text));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let all = dir.run(&strict);
    assert!(
        all.stderr.contains("with these 24 pins")
            && all.stderr.contains("and 4 more: `--report FILE` has all"),
        "{all}"
    );
    let some = dir.run(&[&strict[..], &["--report", "report.json"]].concat());
    let shown = some.stderr.lines().filter(|line| line.contains("--pin ")).count();
    assert!(shown == 20 && some.stderr.contains("and 4 more: the report has all"), "{some}");
    let report = std::fs::read(dir.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["verify"]["pins"].as_object().unwrap().len(), 24);
}

/// A value that one cast of the author rounds and another one widens again.
fn rounded(wide: &str, narrow: (&str, u8), to: u8, more: &str) -> String {
    let (narrow, number) = narrow;
    module(&format!(
        "  input %x : {wide}[4]\n{more}  %a = Cast(%x) {{to={number}}} : {narrow}[4] @a\n  \
         %b = Cast(%a) {{to={to}}} : {wide}[4] @b\n  output %b : {wide}[4]\n"
    ))
}

#[test]
fn what_no_pin_helps_against_is_said_as_it_is() {
    let dir = Dir::new();
    let digits = [0.1f64, 0.2, 0.3, 0.7];
    write_npz(&dir, "wide.npz", &[("x", HostTensor::from_slice(&[4], &digits).unwrap())]);
    let some = [0.1f32, 0.2, 0.3, 0.7];
    write_npz(&dir, "x.npz", &[("x", HostTensor::from_slice(&[4], &some).unwrap())]);
    let product = "  input %p : f32[4, 4]\n  const %w : f32[4, 2] = random(1)\n  \
                   %q = MatMul(%p, %w) : f32[4, 2] @mm\n  output %q : f32[4, 2]\n";
    let branches = "  input %c : bool\n  input %p : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n  \
                    %q = If(%c; %p, %w) {\n    then_branch: graph @then(%p, %w) {\n      \
                    %m = Neg(%p) : f32[4, 4] @neg\n      output %m : f32[4, 4]\n    },\n    \
                    else_branch: graph @else(%p, %w) {\n      %n = MatMul(%p, %w) : f32[4, 4] @mm\n      \
                    output %n : f32[4, 4]\n    }\n  } : f32[4, 4] @if1\n  output %q : f32[4, 4]\n";
    let p = HostTensor::from_slice(&[4, 4], &[1.0f32 / 3.0; 16]).unwrap();
    let with_p = [("x", HostTensor::from_slice(&[4], &digits).unwrap()), ("p", p.clone())];
    write_npz(&dir, "p.npz", &with_p);
    let taken = [&with_p[..], &[("c", HostTensor::from_bytes(DType::Bool, &[], &[1]).unwrap())]].concat();
    write_npz(&dir, "c.npz", &taken);
    let models = [
        (
            "wide.npz",
            rounded("f64", ("f32", 1), 11, ""),
            "help: the rewrite lowers no node; the difference may",
        ),
        ("x.npz", rounded("f32", ("f16", 10), 1, ""), "and its 16-bit types are the model's own; the"),
        ("p.npz", rounded("f64", ("f32", 1), 11, product), "even with every node that it lowers pinned"),
        ("c.npz", rounded("f64", ("f32", 1), 11, branches), "even with every node that it lowers pinned"),
    ];
    for (inputs, model, help) in models {
        dir.write("m.ir", model);
        let strict = ["--verify", "--inputs", inputs, "--tolerance", "0", "--excess-precision", "allow"];
        let run = dir.run(&[&["rewrite", "m.ir", "-o", "low.onnx"][..], &strict].concat());
        let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(run.code == 1 && said.contains(help), "{help}\n{run}");
        assert_eq!(said.contains("the model's own"), inputs == "x.npz", "{run}");
    }
}

#[test]
fn a_failing_verification_still_reports_and_explains() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "1e-6"];
    let told = ["--report", "report.json", "--explain", "fc1"];
    let bad = dir.run(&[&strict[..], &told].concat());
    assert_eq!((bad.code, dir.files()), (1, vec!["m.ir".to_owned(), "report.json".to_owned()]));
    assert!(bad.stdout.starts_with("MatMul `fc1`\n"), "{bad}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("report.json")).unwrap()).unwrap();
    assert_eq!(report["files"]["bytes_after"], serde_json::Value::Null);
    assert!(report["nodes"].as_array().unwrap().iter().any(|node| node["path"] == "fc1"));
    // With what is there already, too.
    dir.write("low.onnx", "good");
    let forced = dir.run(&[&strict[..], &["--force"], &told].concat());
    assert_eq!((forced.code, std::fs::read(dir.path("low.onnx")).unwrap()), (1, b"good".to_vec()));
    assert!(forced.stdout.starts_with("MatMul `fc1`\n"), "{forced}");
    let printed = dir.run(&[&strict[..], &["--force", "--report", "-"]].concat());
    assert_eq!((printed.code, json(&printed)["schema"].as_str()), (1, Some("ampc-report/1")));
}

/// Test data in a folder and in a folder of it: one of the two would be left out.
#[test]
fn test_data_in_two_places_are_refused() {
    let dir = Dir::new();
    dir.write("a.ir", net("2.0"));
    for set in ["t/", "t/u/"] {
        let run = dir.run(&["run", "a.ir", "--random", "1", "--dim", "N=4", "--outputs", set, "-q"]);
        assert_eq!(run.code, 0, "{run}");
    }
    let verify = || {
        let run = dir.run(&["verify", "a.ir", "--test-data", "t"]);
        (run.code, run.stderr.replace("\n  | ", " "))
    };
    let (code, said) = verify();
    assert!(code == 2 && said.contains("found test data in it and in `t/u`"), "{said}");
    std::fs::remove_file(dir.path("t/output_0.pb")).unwrap();
    assert_eq!(verify().0, 2);
    std::fs::remove_file(dir.path("t/input_0.pb")).unwrap();
    assert_eq!(verify().0, 0);
    // A data set without outputs is no data set that passes.
    std::fs::create_dir(dir.path("t/v")).unwrap();
    std::fs::copy(dir.path("t/u/input_0.pb"), dir.path("t/v/input_0.pb")).unwrap();
    let (code, said) = verify();
    assert!(code == 2 && said.contains("output_0.pb"), "{said}");
}

/// Sizes that were chosen for open dims and that the model does not take are one problem, whatever the number of nodes that do
/// not take them.
#[test]
fn sizes_that_do_not_fit_are_one_problem() {
    let dir = Dir::new();
    let body = "  input %x : f32[N, T, 64]\n  const %s : i64[3] = [3, 5, 7]\n  \
                %a = Reshape(%x, %s) : f32[3, 5, 7] @r1\n  %b = Reshape(%x, %s) : f32[3, 5, 7] @r2\n  \
                %c = Add(%a, %b) : f32[3, 5, 7] @plus\n  output %c : f32[3, 5, 7]\n";
    dir.write("m.ir", module(body));
    for args in [
        &["rewrite", "m.ir", "-o", "low.onnx", "--verify"][..],
        &["verify", "m.ir", "m.ir"],
        &["run", "m.ir"],
    ] {
        let run = dir.run(args);
        let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ").replace("| ", "");
        assert!(run.code == 3 && run.stderr.matches("\n  x ").count() == 1, "{run}");
        assert!(
            said.contains("sizes that were chosen for its open dims (N = ") && said.contains(", T = "),
            "{run}"
        );
        assert!(said.contains("Reshape `r1`") && said.contains("and 1 more problem"), "{run}");
        assert!(said.contains("`--dim N=SIZE --dim T=SIZE` or `--inputs FILE` gives other sizes"), "{run}");
        assert!(!said.contains("this node"), "{run}");
    }
    // Sizes that were asked for are no choice: the nodes are shown.
    let asked = dir.run(&["run", "m.ir", "--dim", "N=1,T=1"]);
    assert!(asked.code == 3 && asked.stderr.contains("this node"), "{asked}");
}

/// A model for at most 64 positions and any batch.
fn positions() -> String {
    module(
        "  input %x : f32[B, S, 32]\n  const %p : f32[1, 64, 32] = random(1)\n  const %w : f32[32, 8] = random(2)\n  \
         %a = Add(%x, %p) : f32[B, 64, 32] @plus\n  %y = MatMul(%a, %w) : f32[B, 64, 8] @head\n  \
         output %y : f32[B, 64, 8]\n",
    )
}

/// All sizes are listed with their origin, and the help names the option of the size that does not fit.
#[test]
fn a_given_size_that_does_not_fit_is_named() {
    let dir = Dir::new();
    dir.write("m.ir", positions());
    let low = ["rewrite", "m.ir", "-o", "low.onnx", "--verify"];
    for (command, batch) in [(&low[..], 8), (&["verify", "m.ir", "m.ir"], 8), (&["run", "m.ir"], 1)] {
        let run = dir.run(&[command, &["--dim", "S=100"]].concat());
        let said = run.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
        let sizes =
            format!("with these sizes of its open dims (B = {batch} chosen, S = 100 given): Add `plus`");
        assert!(run.code == 3 && said.contains(&sizes), "{run}");
        let help =
            "help: S = 100 does not fit the model: `--dim S=SIZE` or `--inputs FILE` gives another size";
        assert!(said.contains(help) && !said.contains("--dim B"), "{run}");
    }
    let all = dir.run(&["run", "m.ir", "--dim", "S=100,B=2"]);
    assert!(all.code == 3 && all.stderr.contains("help: S = 100 does not fit the model"), "{all}");
}

/// A head of zeros makes zeros whatever the nodes before it compute.
#[test]
fn outputs_of_zeros_show_nothing() {
    let dir = Dir::new();
    let model = |head: &str| {
        module(&format!(
            "  input %x : f32[4, 16]\n  const %w : f32[16, 16] = random(1)\n  const %u : f32[16, 2] = {head}\n  \
             %h = MatMul(%x, %w) : f32[4, 16] @mm\n  %y = MatMul(%h, %u) : f32[4, 2] @head\n  output %y : f32[4, 2]\n"
        ))
    };
    dir.write("zero.ir", model(&format!("[{}]", ["0.0"; 32].join(", "))));
    dir.write("m.ir", model("random(2)"));
    let rewrite = |model, more: &[&str]| {
        dir.run(&[&["rewrite", model, "-o", "low.onnx", "--force", "--verify"][..], more].concat())
    };
    let run = rewrite("zero.ir", &["--report", "r.json"]);
    assert!(run.code == 0 && run.stderr.contains("ampc::warning::verify.zeros\n"), "{run}");
    assert!(
        run.stderr
            .contains("verified nothing: every element of the outputs is 0 in the model and in the rewrite"),
        "{run}"
    );
    assert!(!run.stderr.contains("equal"), "{run}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    assert_eq!(report["verify"]["warnings"][0]["code"], "verify.zeros");
    assert_eq!(report["verify"]["outputs"][0]["all_zero"], true);
    for quiet in [rewrite("zero.ir", &["-q"]), dir.run(&["verify", "zero.ir", "low.onnx", "-q"])] {
        assert!(quiet.code == 0 && quiet.stderr.starts_with("ampc::warning::verify.zeros\n"), "{quiet}");
    }
    let saved = dir.run(&["run", "zero.ir", "--outputs", "set/", "-q"]);
    let stored = dir.run(&["verify", "zero.ir", "--test-data", "set", "-q"]);
    assert!(stored.stderr.starts_with("ampc::warning::verify.zeros\n"), "{saved}{stored}");
    let numbers = rewrite("m.ir", &["--report", "r.json"]);
    assert!(numbers.code == 0 && !numbers.stderr.contains("verify.zeros"), "{numbers}");
    let report = std::fs::read_to_string(dir.path("r.json")).unwrap();
    assert!(!report.contains("verify.zeros"), "{report}");
}

/// The failed output and its error come before the first value beyond the tolerance.
#[test]
fn a_failed_verification_names_the_outputs_first() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x : f32[4, 16]\n  const %w : f32[16, 16] = random(1)\n  %h = MatMul(%x, %w) : f32[4, 16] @mm\n  \
             %y = Relu(%h) : f32[4, 16] @relu\n  %z = Abs(%x) : f32[4, 16] @abs\n  output %z : f32[4, 16]\n  \
             output %y : f32[4, 16]\n",
        ),
    );
    let strict =
        ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--tolerance", "1e-6", "--report", "r.json"];
    let run = dir.run(&[&strict[..], &["--policy", "all", "--keep-io", "all", "--pin", "abs=fp32"]].concat());
    let said = run.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
    let (outputs, rest) = said.split_once("; compared ").unwrap();
    assert!(outputs.contains("x the rewrite is too far from the model: output `y`: error "), "{run}");
    assert!(outputs.contains(" of max |y|, allowed 1.06e-6 (draw "), "{run}");
    assert!(!outputs.contains("`z`") && rest.contains("the first is `h` of MatMul `mm`"), "{run}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let outputs = &report["verify"]["outputs"];
    assert_eq!((&outputs[0]["value"], &outputs[0]["passed"]), (&"z".into(), &true.into()));
    assert_eq!((&outputs[1]["value"], &outputs[1]["passed"]), (&"y".into(), &false.into()));
    assert!(outputs[1]["max_of_max"].as_f64().unwrap() > 1e-6, "{outputs}");
}

/// Pins that leave nothing lowered are no advice.
#[test]
fn pins_that_leave_nothing_lowered_are_not_proposed() {
    let dir = Dir::new();
    let product = "  %h = MatMul(%x, %w) : f32[4, 16] @mm\n";
    let model = |more: &str, output: &str| {
        module(&format!(
            "  input %x : f32[4, 16]\n  const %w : f32[16, 16] = random(1)\n{product}{more}  output %h : f32[4, 16]\n{output}"
        ))
    };
    dir.write("one.ir", model("", ""));
    let strict = |model| {
        dir.run(&[
            "rewrite",
            model,
            "-o",
            "low.onnx",
            "--verify",
            "--tolerance",
            "0",
            "--report",
            "r.json",
            "--force",
        ])
    };
    let report = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap()
    };
    let words =
        |run: &Run| run.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
    let none = strict("one.ir");
    let said = words(&none);
    assert!(none.code == 1 && said.contains("cannot be lowered within the tolerance on this data"), "{none}");
    assert!(said.contains("leave 0 of 1 node fp16") && !said.contains("--pin"), "{none}");
    assert_eq!(report()["verify"]["pinned"]["low"], 0);
    dir.write(
        "two.ir",
        model(
            "  %zero = Sub(%x, %x) : f32[4, 16] @zero\n  %exact = MatMul(%zero, %w) : f32[4, 16] @exact\n",
            "  output %exact : f32[4, 16]\n",
        ),
    );
    let some = strict("two.ir");
    assert!(words(&some).contains("of 3 nodes stay"), "{some}");
    assert!(some.stderr.contains("    --pin mm=fp32\n"), "{some}");
    let pinned = &report()["verify"]["pinned"];
    assert!(pinned["low"].as_u64() > Some(0) && pinned["nodes"] == 3, "{pinned}");
    // Large inputs are named: bf16 has their range.
    let large = HostTensor::from_slice(&[4, 16], &[1e6f32; 64]).unwrap();
    write_npz(&dir, "x.npz", &[("x", large)]);
    let run = dir.run(&["rewrite", "one.ir", "-o", "low.onnx", "--verify", "--inputs", "x.npz"]);
    let said = words(&run);
    assert!(run.code == 1 && said.contains("`x` has elements of up to 1.00e6"), "{run}");
    assert!(said.contains("`--to bf16`"), "{run}");
}

/// A product of zeros, which is exact in every format, so that the operator has a node that needs no pin.
const EXACT: &str =
    "  %zero = Sub(%v0, %v0) : f32[4, 4] @zero\n  %exact = MatMul(%zero, %w) : f32[4, 4] @exact\n";

#[test]
fn an_operator_whose_nodes_all_need_a_pin_is_denied() {
    let dir = Dir::new();
    let mut text = String::from("  input %v0 : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n");
    for i in 0..24 {
        text.push_str(&format!("  %v{} = MatMul(%v{i}, %w) : f32[4, 4] @mm{i}\n", i + 1));
    }
    // Shape reads no element, so that a pin would do nothing.
    text.push_str("  %s = Shape(%v24) : i64[2] @shape\n  output %s\n  output %v24 : f32[4, 4]\n");
    text.push_str(&format!("{}  output %exact\n", EXACT.replace("MatMul", "Gemm")));
    dir.write("m.ir", module(&text));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&[&strict[..], &["--report", "report.json"]].concat());
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("with this option 1 of 27 nodes stays fp16 and all outputs are within"), "{run}");
    assert!(run.stderr.contains(":\n    --deny MatMul\n"), "{run}");
    assert!(!run.stderr.contains("shape=fp32"), "{run}");
    let report = std::fs::read(dir.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["verify"]["pins"].as_object().unwrap().len(), 24);
    assert_eq!(report["verify"]["deny"], serde_json::json!(["MatMul"]));
    let denied = dir.run(&[&strict[..], &["--deny", "MatMul"]].concat());
    assert!(denied.code == 0 && denied.stderr.contains("verified: the outputs are equal, with "), "{denied}");
}

/// The summary has a line for each kind of data, with the largest error and its limit.
#[test]
fn a_verification_says_the_largest_error_of_each_kind_of_data() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let run = dir.run(&["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--dim", "N=4"]);
    let lines: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("verified: ")).collect();
    assert!(run.code == 0 && lines.len() == 3, "{run}");
    for (line, kind) in
        lines.iter().zip(["floats in [-1, 1)", "pixels in [0, 255)", "floats in [-1/256, 1/256)"])
    {
        let is_error = line.starts_with("verified: largest error ")
            && line.contains(" of max |")
            && line.contains(" (limit 7.81e-3)");
        assert!(is_error || line.starts_with("verified: the outputs are equal"), "{line}");
        assert!(line.contains(&format!(", with {kind}")), "{line}");
    }
}

#[test]
fn an_output_that_is_listed_twice_has_its_counterpart() {
    let dir = Dir::new();
    let body = "  input %x : f32[2]\n  %y = Neg(%x) : f32[2]\n  output %y\n  output %y\n";
    dir.write("m.ir", format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n{body}}}\n"));
    let run = dir.run(&["verify", "m.ir", "m.ir", "--random", "1"]);
    assert!(
        run.code == 0 && !run.stdout.contains("counterpart") && !run.stderr.contains("counterpart"),
        "{run}"
    );
}
