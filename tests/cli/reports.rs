//! Reports, explanations and what they say of costs; reports as policies.

use super::support::{self, Dir, MLP, snapshot};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn a_report_repeats_its_run() {
    let dir = Dir::new();
    let first = dir.run(&[
        "rewrite",
        MLP,
        "-o",
        "a.onnx",
        "--to",
        "bf16",
        "--deny",
        "Relu",
        "--keep-io",
        "none",
        "--report",
        "r.json",
    ]);
    assert_eq!(first.code, 0, "{first}");
    let second = dir.run(&["rewrite", MLP, "-o", "b.onnx", "--policy", "r.json"]);
    assert_eq!(second.code, 0, "{second}");
    assert!(std::fs::read(dir.path("a.onnx")).unwrap() == std::fs::read(dir.path("b.onnx")).unwrap());
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    assert_eq!(report["schema"], "ampc-report/1");
    assert_eq!(report["files"]["bytes_before"], std::fs::metadata(MLP).unwrap().len());
    assert_eq!(report["files"]["bytes_after"], std::fs::metadata(dir.path("a.onnx")).unwrap().len());
}

#[test]
fn explanations() {
    let dir = Dir::new();
    let args =
        ["rewrite", MLP, "-o", "a.onnx", "-q", "--deny", "Relu", "--explain", "fc2", "--explain", "softmax"];
    snapshot("explain", &dir.run(&args));
    let text = support::module(
        "  input %x : f32[2, 8]\n  const %e : f32 = 1e-12\n  %a = Identity(%x) : f32[2, 8]\n  \
         %b = Add(%a, %e) : f32[2, 8] @plus\n  %s = Sqrt(%b) : f32[2, 8]\n  %y = Div(%a, %s) : f32[2, 8] @divide\n  \
         %n = Shape(%x) : i64[2] @shape\n  output %y : f32[2, 8]\n  output %n : i64[2]\n",
    );
    dir.write("eps.ir", &text);
    snapshot(
        "explain_guard",
        &dir.run(&["rewrite", "eps.ir", "-q", "--explain", "plus", "--explain", "shape"]),
    );
}

/// Values that enter and leave bodies and functions are told from inputs and outputs of the graph.
#[test]
fn explanations_of_bodies_and_functions() {
    let dir = Dir::new();
    let bodies = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/bodies.ir");
    let run = |pattern: &str| {
        dir.run(&["rewrite", bodies, "-o", "o.ir", "-q", "--force", "--allow", "Mul", "--explain", pattern])
    };
    snapshot("explain_bodies", &run("*"));
    let names = |text: &str| -> Vec<String> {
        text.lines().filter(|l| l.ends_with('`') && !l.starts_with(' ')).map(str::to_owned).collect()
    };
    assert_eq!(names(&run("re:half[0-9]").stdout), ["local::Half `half1`", "local::Half `half2`"]);
    assert_eq!(run("none*").code, 2);
    // Behind a call stands the form of the function that it calls in the result.
    let pinned = |pattern: &str| {
        let args =
            ["rewrite", bodies, "-o", "o.ir", "-q", "--force", "--pin", "half2/mul=fp32", "--allow", "Mul"];
        dir.run(&[&args[..], &["--explain", pattern]].concat()).stdout
    };
    let (first, second) = (pinned("half1/mul"), pinned("half2/mul"));
    assert!(first.contains("T  fp16") && first.contains("A  a  f16[2, 8]"), "{first}");
    assert!(second.contains("by pin:half2/mul") && second.contains("A  a.f32  f32[2, 8]"), "{second}");
    assert_eq!(names(&pinned("Half/mul")), ["Mul `Half/mul`"]);
    // Nobody knows what an operator of a custom domain does with its bodies.
    dir.write(
        "custom.ir",
        "module ir=10\nopset ai.onnx=21, my.ops=1\n\ngraph @main {\n  input %x : f32[2]\n  \
         %y = my.ops::Twice(%x) {\n    body: graph @b {\n      input %s : f32[2]\n      \
         %t = Relu(%s) : f32[2] @relu\n      output %t\n    }\n  } : ? @twice\n  output %y\n}\n",
    );
    let custom = dir.run(&["rewrite", "custom.ir", "-q", "--explain", "twice/body/relu"]);
    assert!(custom.stdout.contains("input of a body of my.ops::Twice `twice`"), "{custom}");
    assert!(custom.stdout.contains("output of a body of my.ops::Twice `twice`"), "{custom}");
    let many: String = (0..23).map(|i| format!("  %v{i} = Relu(%x) : f32[2] @relu{i}\n")).collect();
    dir.write("many.ir", support::module(&format!("  input %x : f32[2]\n{many}  output %v0 : f32[2]\n")));
    let text = dir.run(&["rewrite", "many.ir", "-q", "--explain", "relu*"]).stdout;
    assert_eq!(names(&text).len(), 20);
    assert!(text.ends_with("\nand 3 more that `relu*` matches\n"), "{text}");
}

#[test]
fn a_report_on_standard_output() {
    let dir = Dir::new();
    let run = dir.run(&["rewrite", MLP, "-o", "o.onnx", "--report", "-"]);
    assert_eq!(run.code, 0, "{run}");
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["schema"], "ampc-report/1");
    assert_eq!(dir.files(), ["o.onnx"]);
    assert_eq!(dir.run(&["rewrite", MLP, "-o", "-", "--report", "-"]).code, 2);
    assert_eq!(dir.run(&["rewrite", MLP, "-o", "p.onnx", "--report", "-", "--explain", "fc1"]).code, 2);
}

#[test]
fn reports_as_policies() {
    let dir = Dir::new();
    dir.copy(MLP, "UP.ONNX");
    assert_eq!(dir.run(&["rewrite", "UP.ONNX", "--to", "bf16", "--report", "r.json"]).code, 0);
    assert_eq!(dir.files(), ["UP.ONNX", "UP.bf16.onnx", "r.json"]);
    let other = dir.run(&["rewrite", "UP.ONNX", "--policy", "r.json", "--to", "fp16"]);
    snapshot("usage_report_format", &other);
    assert_eq!(other.code, 2);
    let run = dir.run(&["rewrite", "UP.ONNX", "-o", "o.onnx", "--policy", "r.json", "--to", "bf16"]);
    assert_eq!(run.code, 0, "{run}");
    snapshot("policy_check_report", &dir.run(&["policy", "check", "r.json"]));
    let shown = dir.run(&["policy", "show", "r.json"]).stdout;
    assert!(shown.starts_with("policy report\nrepeats "), "{shown}");
    // What was lowered before keeps its format, and is counted by it.
    snapshot("rewrite_two_formats", &dir.run(&["rewrite", "UP.bf16.onnx", "--to", "fp16", "-o", "two.onnx"]));
}

#[test]
fn a_report_says_its_options_once() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let report = |options: &str| format!("{{\"schema\": \"ampc-report/1\",{options}\n\"nodes\": []}}");
    dir.write("without.json", report(""));
    dir.write(
        "twice.json",
        report("\n\"options\": {\"to\": \"bf16\", \"keep_io\": \"all\", \"to\": \"fp16\"},"),
    );
    for (file, said) in [
        ("without.json", "line 2, column 12: missing field `options`"),
        ("twice.json", "line 2, column 48: `to` occurs twice: keep one"),
    ] {
        for command in [&["rewrite", "m.onnx", "--policy", file][..], &["policy", "check", file]] {
            let run = dir.run(command);
            assert!(run.code == 2 && run.stderr.contains(said), "{run}");
        }
        let passes = format!("classify{{policy={file}}}");
        let run = dir.run(&["opt", "m.onnx", "--passes", &passes]);
        assert!(run.code == 2 && run.stderr.contains(said), "{run}");
    }
    assert_eq!(dir.files(), ["m.onnx", "twice.json", "without.json"]);
}

/// The predicted times of a run: of the source, of the rewrite, and what is said of them.
fn times(dir: &Dir, args: &[&str]) -> (u64, u64, String) {
    let run = dir.run(&[&["rewrite", "-o", "out.onnx", "--force", "--report", "r.json"], args].concat());
    assert_eq!(run.code, 0, "{run}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let line = run.stderr.lines().find(|line| line.starts_with("  time ")).unwrap().to_owned();
    let of = |side: &str| report["time"][side].as_u64().unwrap();
    (of("source"), of("rewritten"), line)
}

#[test]
fn predicted_times_of_two_runs_can_be_compared() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    let (source, plain, line) = times(&dir, &["mlp.onnx"]);
    assert!(line.ends_with("1.23 µs -> 1.62 µs predicted for generic (0.76 x), if the batch is 1"), "{line}");
    // A pin that makes it slower shows a larger number; of what is not rewritten nothing changes.
    let (same, pinned, _) = times(&dir, &["mlp.onnx", "--pin", "fc2=fp32"]);
    assert!(same == source && pinned > plain, "{pinned} {plain}");
    for none in [["--pin", "*=fp32"], ["--policy", "zero-risk"]] {
        let (same, full, line) = times(&dir, &[&["mlp.onnx"], &none[..]].concat());
        assert_eq!((same, full), (source, source));
        assert!(line.contains("(1.00 x)"), "{line}");
    }
    // On a target with other rates it is another time.
    assert!(times(&dir, &["mlp.onnx", "--target", "v100"]).0 > source);
    // That a cast of the author moves in front of an Expand is part of what is gained.
    let mask = "  input %m : i64[1, 8]\n  input %x : f32[512, 8]\n  const %d : i64[2] = [512, 8]\n  \
                const %w : f32[8, 8] = random(1)\n  %e = Expand(%m, %d) : i64[512, 8] @expand\n  \
                %f = Cast(%e) {to=1} : f32[512, 8] @cast\n  %a = Add(%x, %f) : f32[512, 8] @add\n  \
                %y = MatMul(%a, %w) : f32[512, 8] @mm\n  output %y : f32[512, 8]\n";
    dir.write("mask.ir", support::module(mask));
    let (source, full, _) = times(&dir, &["mask.ir", "--policy", "zero-risk"]);
    let (same, pinned, _) = times(&dir, &["mask.ir", "--pin", "*=fp32"]);
    assert!(same == source && pinned == source && full < source, "{source} {full} {pinned}");
    // What the other format of a node would cost is a difference of the same number.
    dir.write("m.ir", support::module(support::MATMUL));
    let (_, plain, _) = times(&dir, &["m.ir", "--explain", "relu"]);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let forced = &report["optimum"]["forced"][0];
    let other = forced["precision"].as_str().unwrap();
    let (_, pinned, _) = times(&dir, &["m.ir", "--pin", &format!("relu={other}")]);
    let more = i128::from(pinned) - i128::from(plain);
    assert_eq!(more, i128::from(forced["costs_more"].as_i64().unwrap()), "{other}");
    assert_ne!(more, 0);
}

/// Models with loops, branches, functions, scans, guards, tables and recurrences, and how to rewrite them.
fn models_of_all_kinds(dir: &Dir) -> Vec<(&'static str, Vec<&'static str>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in
        ["mlp.onnx", "loop_state.ir", "if_captures.ir", "hidden/layer_norm.ir", "hidden/masked_softmax.ir"]
    {
        let name = file.rsplit('/').next().unwrap();
        std::fs::copy(root.join("testdata").join(file), dir.path(name)).unwrap();
    }
    std::fs::copy(root.join("tests/cli/bodies.ir"), dir.path("bodies.ir")).unwrap();
    dir.write("embedding.ir", support::module(support::EMBEDDING));
    let scan = "  input %s : f32[16, 64]\n  input %x : f32[5, 16, 64]\n  const %w : f32[64, 64] = random(1)\n  \
                %last, %all = Scan(%s, %x; %w) {\n    num_scan_inputs = 1,\n    body: graph @body(%w) {\n      \
                input %h : f32[16, 64]\n      input %e : f32[16, 64]\n      \
                %p = MatMul(%h, %w) : f32[16, 64] @product\n      %q = Add(%p, %e) : f32[16, 64] @plus\n      \
                %t = Tanh(%q) : f32[16, 64] @tanh\n      output %t : f32[16, 64]\n      \
                output %t : f32[16, 64]\n    }\n  } : f32[16, 64], f32[5, 16, 64] @scan\n  \
                %y = MatMul(%all, %w) : f32[5, 16, 64] @after\n  output %last : f32[16, 64]\n  \
                output %y : f32[5, 16, 64]\n";
    dir.write("scan.ir", support::module(scan));
    let lstm = "  input %x : f32[5, 2, 8]\n  const %w : f32[1, 64, 8] = random(1)\n  \
                const %r : f32[1, 64, 16] = random(2)\n  const %v : f32[16, 4] = random(3)\n  \
                %t = Transpose(%x) {perm=[0, 1, 2]} : f32[5, 2, 8] @turn\n  \
                %all, %h = LSTM(%t, %w, %r) {hidden_size=16} : f32[5, 1, 2, 16], f32[1, 2, 16] @lstm\n  \
                %y = MatMul(%h, %v) : f32[1, 2, 4] @mm\n  output %y : f32[1, 2, 4]\n";
    dir.write("lstm.ir", support::module(lstm));
    vec![
        ("mlp.onnx", vec![]),
        ("mlp.onnx", vec!["--objective", "casts", "--pin", "fc2=fp32"]),
        ("mlp.onnx", vec!["--to", "bf16", "--target", "h200", "--objective", "bytes"]),
        ("loop_state.ir", vec![]),
        ("loop_state.ir", vec!["--allow", "Mul"]),
        ("if_captures.ir", vec!["--allow", "Mul", "--opset", "auto"]),
        ("layer_norm.ir", vec![]),
        ("masked_softmax.ir", vec!["--policy", "perf"]),
        ("bodies.ir", vec!["--allow", "Mul"]),
        ("bodies.ir", vec!["--allow", "Mul", "--objective", "casts"]),
        ("embedding.ir", vec![]),
        ("scan.ir", vec![]),
        ("lstm.ir", vec!["--keep-io", "none"]),
    ]
}

/// Picoseconds with three digits, and the unit in which they are below a thousand.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn for_people(picoseconds: i64) -> String {
    let (size, unit) = [(1e3, "ns"), (1e6, "µs"), (1e9, "ms")]
        .map(|(of, unit)| (picoseconds as f64 / of, unit))
        .into_iter()
        .find(|(size, _)| *size < 999.5)
        .unwrap();
    let digits = if size < 9.995 { 2 } else { usize::from(size < 99.95) };
    format!("{size:.digits$} {unit}")
}

/// Exactly so: low regions begin and end at pins, and state goes along.
#[test]
fn what_the_other_format_would_cost_is_what_a_pin_costs() {
    let dir = Dir::new();
    let report = |args: &[&str]| -> (serde_json::Value, support::Run) {
        let run = dir.run(&[&["rewrite", "-o", "out.onnx", "--force", "--report", "r.json"], args].concat());
        assert_eq!(run.code, 0, "{run}");
        (serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap(), run)
    };
    let cost = |report: &serde_json::Value| match report["optimum"]["objective"].as_str() {
        Some("time") => report["time"]["rewritten"].as_i64().unwrap(),
        _ => report["optimum"]["cost"].as_i64().unwrap() - report["optimum"]["merged"].as_i64().unwrap(),
    };
    let (mut checked, mut rules) = (0, BTreeSet::new());
    for (model, options) in models_of_all_kinds(&dir) {
        let args = [&[model][..], &options].concat();
        let (plain, explained) = report(&[&args[..], &["--explain", "*"]].concat());
        let forced = plain["optimum"]["forced"].as_array().unwrap_or_else(|| panic!("{model}: {plain}"));
        let (unit, scale) = (&plain["optimum"]["unit"], plain["optimum"]["scale"].as_i64().unwrap());
        for one in forced {
            let of = |key: &str| one[key].as_str().unwrap();
            let more = one["costs_more"].as_i64().unwrap();
            let pin = format!("{}#{}={}", of("node"), of("var"), of("precision"));
            let (pinned, _) = report(&[&args[..], &["--pin", &pin]].concat());
            assert_eq!(cost(&pinned) - cost(&plain), more, "{args:?} {pin}");
            if unit == "ps" && more.abs() / scale >= 1000 {
                let words = if more > 0 { "more" } else { "less" };
                let size = for_people(more.abs() / scale);
                let said = format!("a pin to {} would cost {size} {words}", of("precision"));
                assert!(explained.stdout.contains(&said), "{said}: {explained}");
            }
            checked += 1;
            let nodes = plain["nodes"].as_array().unwrap();
            let node = nodes.iter().find(|node| node["path"] == one["node"]);
            rules.extend(node.and_then(|node| node["op"].as_str()).map(str::to_owned));
        }
    }
    assert!(checked > 60, "{checked}");
    for op in ["Loop", "If", "Scan", "LSTM", "Mul", "Gather", "Softmax"] {
        assert!(rules.contains(op), "{op}: {rules:?}");
    }
}

#[test]
fn the_summary_says_what_keeps_nodes_fp32() {
    let dir = Dir::new();
    let layer = |i: usize, from: &str| {
        format!(
            "  %c{i} = Conv({from}, %w) {{pads=[1, 1, 1, 1]}} : f32[1, 4, 8, 8] @conv{i}\n  \
             %n{i} = InstanceNormalization(%c{i}, %s, %s) : f32[1, 4, 8, 8] @norm{i}\n  \
             %r{i} = Relu(%n{i}) : f32[1, 4, 8, 8] @relu{i}\n  %t{i} = Tanh(%r{i}) : f32[1, 4, 8, 8] @tanh{i}\n"
        )
    };
    let eps = "  %b = Add(%t2, %e) : f32[1, 4, 8, 8] @plus\n  %q = Sqrt(%b) : f32[1, 4, 8, 8] @root\n  \
               %y = Conv(%q, %w) {pads=[1, 1, 1, 1]} : f32[1, 4, 8, 8] @last\n  output %y : f32[1, 4, 8, 8]\n";
    let head = "  input %x : f32[1, 4, 8, 8]\n  const %w : f32[4, 4, 3, 3] = random(1)\n  \
                const %s : f32[4] = [1.0, 1.0, 1.0, 1.0]\n  const %e : f32 = 1e-12\n";
    dir.write("m.ir", support::module(&[head, &layer(1, "%x"), &layer(2, "%t1"), eps].concat()));
    let run = dir.run(&["rewrite", "m.ir", "-o", "low.onnx"]);
    snapshot("fp32_kept", &run);
    // What is said of another policy is what it does.
    let left = run.stderr.split("would leave ").nth(1).unwrap().split_whitespace().next().unwrap();
    let perf = dir.run(&["rewrite", "m.ir", "-o", "perf.onnx", "--policy", "perf", "--report", "r.json"]);
    assert_eq!(perf.code, 0, "{perf}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
    let causes = report["fp32"]["causes"].as_object().unwrap();
    assert_eq!(causes.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), left.parse::<u64>().unwrap());
    // Nothing is said where that policy has nothing to offer, or would mean something else.
    for args in [["--policy", "perf"], ["--policy", "r.json"], ["--opset", "auto"]] {
        let run = dir.run(&[&["rewrite", "m.ir", "-o", "o.onnx", "--force"], &args[..]].concat());
        assert!(run.code == 0 && !run.stderr.contains("would leave"), "{run}");
    }
}

/// A report is about one file of a model, in whatever form and wherever both are; an edited model is another one.
#[test]
fn a_report_says_which_model_it_is_about() {
    let dir = Dir::new();
    dir.write("m.ir", super::writing::model("0.5"));
    let run = |words: &str| dir.run(&words.split(' ').collect::<Vec<_>>());
    let refused = |words: &str, expected: &str| {
        let refused = run(words);
        let said = refused.stdout.replace("\n  | ", " ");
        assert!(refused.code == 3 && said.contains(expected), "{words}: {refused}");
    };
    for options in
        ["-o o.onnx", "-o o.onnx --external-data always", "-o o.onnx --emit emulated", "-o o.ir", "-o o.json"]
    {
        let made = run(&format!("rewrite m.ir {options} --report r.json --force"));
        assert_eq!(made.code, 0, "{options}: {made}");
        let model = options.split(' ').nth(1).unwrap();
        let checked = run(&format!("check {model} --report r.json"));
        assert_eq!(checked.code, 0, "{options}: {checked}");
        refused("check m.ir --report r.json", "found that of another model");
        // A report is a policy as well, for the model that was read.
        let again = run("rewrite m.ir --policy r.json -o again.onnx --force");
        assert_eq!(again.code, 0, "{options}: {again}");
    }
    // Standard output, and files that have got other names.
    let made = run("rewrite m.ir -o - --report r.json --force");
    assert_eq!(made.code, 0, "{made}");
    std::fs::create_dir(dir.path("moved")).unwrap();
    dir.write("moved/x.onnx", &made.bytes);
    std::fs::rename(dir.path("r.json"), dir.path("moved/y.json")).unwrap();
    let checked = run("check moved/x.onnx --report moved/y.json");
    assert_eq!(checked.code, 0, "{checked}");
    for form in ["text", "json"] {
        let ending = if form == "text" { "ir" } else { "json" };
        let made = run(&format!("rewrite m.ir -o - --emit {form} --report r.json --force"));
        assert_eq!(made.code, 0, "{made}");
        dir.write(&format!("moved/z.{ending}"), &made.bytes);
        let checked = run(&format!("check moved/z.{ending} --report r.json"));
        assert_eq!(checked.code, 0, "{checked}");
    }
    let text = std::fs::read_to_string(dir.path("o.ir")).unwrap();
    assert_eq!(run("rewrite m.ir -o o.ir --report r.json --force").code, 0);
    dir.write("o.ir", format!("// mine\n{text}"));
    refused("check o.ir --report r.json", "or the model was edited");
    // The weights of an edited text are still its own.
    assert_eq!(run("check o.ir").code, 0);
    let report = std::fs::read_to_string(dir.path("r.json")).unwrap();
    let mut report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for files in [serde_json::json!({ "hash_after": null }), serde_json::json!({}), serde_json::json!(null)] {
        report["files"] = files;
        dir.write("r.json", report.to_string());
        refused("check o.ir --report r.json", "(`files.hash_after`), found none");
    }
    dir.write("r.json", "{}");
    refused("check o.ir --report r.json", "found other JSON");
    dir.write("r.json", "[");
    refused("check o.ir --report r.json", "expected a report, found other content");
    assert_eq!(run("check o.ir --report none.json").code, 5);
    // The problems of a broken model come first.
    dir.write("o.ir", text.replace("MatMul(", "Relu("));
    assert_eq!(run("check o.ir --report none.json").code, 3);
}
