//! `ampc rewrite`: what it writes, where, and what it says about it.

use super::support::{self, Dir, MATMUL, MLP, module, snapshot};

#[test]
fn rewrite_writes_beside_the_model_and_says_what_it_did() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    snapshot("rewrite", &dir.run(&["rewrite", "mlp.onnx"]));
    assert_eq!(dir.files(), ["mlp.fp16.onnx", "mlp.onnx"]);
    snapshot(
        "rewrite_bf16_exceptions",
        &dir.run(&["rewrite", "mlp.onnx", "--to", "bf16", "--pin", "fc2=fp32"]),
    );
    assert_eq!(dir.files(), ["mlp.bf16.onnx", "mlp.fp16.onnx", "mlp.onnx"]);
    snapshot("check_ok", &dir.run(&["check", "mlp.fp16.onnx"]));
}

#[test]
fn quiet_says_nothing_and_verbose_names_the_passes() {
    let dir = Dir::new();
    let quiet = dir.run(&["rewrite", MLP, "-o", "a.onnx", "-q"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "", ""));
    let verbose = dir.run(&["rewrite", MLP, "-o", "b.onnx", "-v", "--threads", "1"]);
    assert!(verbose.stderr.contains(" 3 classify") && verbose.stderr.contains("10 dce"), "{verbose}");
}

#[test]
fn standard_streams() {
    let dir = Dir::new();
    let model = std::fs::read(MLP).unwrap();
    let low = dir.run_with(&["rewrite", "-"], &model);
    assert_eq!(low.code, 0, "{low}");
    let file = dir.run(&["rewrite", MLP, "-o", "m.onnx"]);
    assert_eq!(file.code, 0, "{file}");
    assert!(std::fs::read(dir.path("m.onnx")).unwrap() == low.bytes);
    let checked = dir.run_with(&["check", "-"], &low.bytes);
    assert_eq!((checked.code, checked.stdout.as_str()), (0, "-: no problems\n"));
}

#[test]
fn forms_of_the_result() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    let mut text = dir.run(&["rewrite", "mlp.onnx", "--emit", "text", "-o", "-", "-q"]);
    text.stdout = text.stdout.lines().filter(|l| !l.contains("const")).map(|l| format!("{l}\n")).collect();
    snapshot("emit_text", &text);
    for emit in ["text", "json", "dot", "emulated"] {
        let run = dir.run(&["rewrite", "mlp.onnx", "--emit", emit, "-q"]);
        assert_eq!(run.code, 0, "{run}");
    }
    let written = [
        "mlp.fp16.dot",
        "mlp.fp16.emulated.onnx",
        "mlp.fp16.ir",
        "mlp.fp16.ir.safetensors",
        "mlp.fp16.json",
        "mlp.fp16.safetensors",
        "mlp.onnx",
    ];
    assert_eq!(dir.files(), written);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("mlp.fp16.json")).unwrap()).unwrap();
    assert_eq!(json["schema"], "ampc-graph/1");
    for model in ["mlp.fp16.emulated.onnx", "mlp.fp16.ir", "mlp.fp16.json"] {
        let run = dir.run(&["check", model]);
        assert_eq!(run.code, 0, "{run}");
    }
    let back = dir.run(&["opt", "mlp.fp16.ir", "--passes", "", "-o", "back.onnx"]);
    assert_eq!(back.code, 0, "{back}");
    let direct = dir.run(&["rewrite", "mlp.onnx", "-o", "direct.onnx"]);
    assert_eq!(direct.code, 0, "{direct}");
    let inspect = |name: &str| dir.run(&["inspect", name, "--json"]).stdout;
    let constants =
        |name: &str| serde_json::from_str::<serde_json::Value>(&inspect(name)).unwrap()["constants"].clone();
    assert_eq!(constants("back.onnx"), constants("direct.onnx"));
}

#[test]
fn opsets_are_raised_on_request() {
    let dir = Dir::new();
    // The pooling has bf16 from 22 on only.
    let body = "  input %x : f32[1, 2, 8, 8]\n  const %w : f32[2, 2, 1, 1] = random(1, 1.0)\n  \
                %a = Conv(%x, %w) : f32[1, 2, 8, 8] @conv\n  \
                %b = MaxPool(%a) {kernel_shape=[2, 2]} : f32[1, 2, 7, 7] @pool\n  \
                %y = Squeeze(%b) {axes=[0]} : f32[2, 7, 7] @squeeze\n  output %y : f32[2, 7, 7]\n";
    dir.write("m.ir", format!("module ir=6\nopset ai.onnx=11\n\ngraph @main {{\n{body}}}\n"));
    let onnx = dir.run(&["opt", "m.ir", "--passes", "", "-o", "m.onnx"]);
    assert_eq!(onnx.code, 0, "{onnx}");
    snapshot("opset_keep", &dir.run(&["rewrite", "m.onnx", "--to", "bf16", "-o", "keep.onnx"]));
    let auto =
        ["rewrite", "m.onnx", "--to", "bf16", "--opset", "auto", "-o", "auto.onnx", "--report", "r.json"];
    snapshot("opset_auto", &dir.run(&auto));
    // The report has the opset that was found, and repeats it; doing it again changes nothing.
    let repeated = dir.run(&["rewrite", "m.onnx", "--policy", "r.json", "-o", "repeated.onnx"]);
    assert_eq!(repeated.code, 0, "{repeated}");
    let again = dir.run(&["rewrite", "auto.onnx", "--to", "bf16", "--opset", "auto", "-o", "again.onnx"]);
    assert!(!again.stderr.contains("  opset "), "an opset that stays is not news: {again}");
    assert_eq!(again.code, 0, "{again}");
    let bytes = |name: &str| std::fs::read(dir.path(name)).unwrap();
    assert!(bytes("repeated.onnx") == bytes("auto.onnx") && bytes("again.onnx") == bytes("auto.onnx"));
    snapshot("opset_number", &dir.run(&["rewrite", "m.onnx", "--opset", "26", "-o", "newest.ir"]));
    let text = dir.run(&["opt", "newest.ir", "--passes", ""]).stdout;
    assert!(text.starts_with("module ir=13\n") && text.contains("opset ai.onnx=26\n"), "{text}");
    assert!(text.contains("= Squeeze(%b, %y.axes)"), "{text}");
}

/// Advice about an operator that has the format only later depends on the options given and on the opsets
/// possible.
#[test]
fn advice_about_opsets() {
    let dir = Dir::new();
    let einsum = "  input %x : f32[2, 8]\n  const %w : f32[8, 8] = random(1, 1.0)\n  \
                  %y = Einsum(%x, %w) {equation=\"ij,jk->ik\"} : f32[2, 8] @einsum\n  output %y : f32[2, 8]\n";
    dir.write("einsum.ir", support::module(einsum));
    snapshot(
        "opset_auto_stops",
        &dir.run(&["rewrite", "einsum.ir", "--to", "bf16", "--opset", "auto", "-o", "a.onnx"]),
    );
    let newest =
        ["rewrite", "einsum.ir", "--to", "bf16", "--opset", "28", "-o", "b.onnx", "--report", "r.json"];
    snapshot("opset_unread", &dir.run(&newest));
    assert!(std::fs::read_to_string(dir.path("r.json")).unwrap().contains("\"code\": \"opset.unread\""));
    let old = "opset ai.onnx=9\n\ngraph @main {\n  input %x : f32[2, 3]\n  input %i : i64[4]\n  \
               const %w : f32[3, 2] = random(1, 1.0)\n  %z = MatMul(%x, %w) : f32[2, 2] @product\n  \
               %c = Erf(%i) : i64[4] @erf\n  output %z\n  output %c\n}\n";
    dir.write("old.ir", old);
    snapshot("opset_no_way", &dir.run(&["rewrite", "old.ir", "--to", "bf16", "-o", "c.onnx"]));
    assert_eq!(dir.run(&["rewrite", "old.ir", "--to", "bf16", "--opset", "auto", "-o", "d.onnx"]).code, 4);
}

/// The summary says where the constants are.
#[test]
fn the_data_file_is_named() {
    let dir = Dir::new();
    let data = |run: support::Run| -> Vec<String> {
        assert_eq!(run.code, 0, "{run}");
        run.stderr.lines().filter(|l| l.starts_with("  data ")).map(support::without_hash).collect()
    };
    let external = dir.run(&["rewrite", MLP, "-o", "e.onnx", "--external-data", "always", "--pin", "*=fp32"]);
    assert_eq!(data(external), ["  data       in e.onnx.[hash].data, 27.1 kB"]);
    // Nothing changes, so the file of the source is referred to.
    let same = dir.run(&["rewrite", "e.onnx", "-o", "same.onnx", "--pin", "*=fp32"]);
    assert_eq!(data(same), ["  data       in e.onnx.[hash].data, as before"]);
    assert_eq!(dir.run(&["check", "same.onnx"]).code, 0);
    let low = dir.run(&["rewrite", "e.onnx", "-o", "low.onnx"]);
    assert_eq!(data(low), ["  data       in low.onnx.[hash].data, 13.6 kB"]);
    std::fs::create_dir(dir.path("sub")).unwrap();
    let elsewhere = dir.run(&["rewrite", "e.onnx", "-o", "sub/same.onnx", "--pin", "*=fp32"]);
    assert_eq!(data(elsewhere), ["  data       in sub/same.onnx.[hash].data, 27.1 kB"]);
    assert_eq!(data(dir.run(&["rewrite", "e.onnx", "-o", "in.onnx", "--external-data", "never"])), [""; 0]);
    let files: Vec<String> = dir.files().iter().map(|name| support::without_hash(name)).collect();
    assert_eq!(
        files,
        ["e.onnx", "e.onnx.[hash].data", "in.onnx", "low.onnx", "low.onnx.[hash].data", "same.onnx", "sub"]
    );
}

#[test]
fn rewriting_again_changes_nothing() {
    let dir = Dir::new();
    assert_eq!(dir.run(&["rewrite", MLP, "-o", "a.onnx"]).code, 0);
    assert_eq!(dir.run(&["rewrite", "a.onnx", "-o", "b.onnx"]).code, 0);
    assert!(std::fs::read(dir.path("a.onnx")).unwrap() == std::fs::read(dir.path("b.onnx")).unwrap());
}

#[test]
fn spellings_of_other_tools() {
    let dir = Dir::new();
    let bytes = |args: &[&str]| {
        let mut all = vec!["rewrite", MLP, "-o", "-", "-q"];
        all.extend(args);
        let run = dir.run(&all);
        assert_eq!(run.code, 0, "{run}");
        run.bytes
    };
    let same = |theirs: &[&str], ours: &[&str]| {
        assert!(bytes(theirs) == bytes(ours), "{theirs:?} is not {ours:?}");
        let spelt: Vec<String> = theirs
            .iter()
            .map(|arg| match arg.strip_prefix("--") {
                Some(flag) => format!("--{}", flag.replace('-', "_")),
                None => (*arg).to_owned(),
            })
            .collect();
        let spelt: Vec<&str> = spelt.iter().map(String::as_str).collect();
        assert!(bytes(&spelt) == bytes(ours), "{spelt:?} is not {ours:?}");
        assert!(ours.is_empty() || bytes(ours) != bytes(&[]), "{ours:?} does nothing");
    };
    same(&["--low-precision-type", "bf16"], &["--to", "bf16"]);
    same(&["--keep-io-types"], &[]);
    same(&["--keep-io-types=True"], &[]);
    same(&["--keep-io-types=False"], &["--keep-io", "none"]);
    same(&["--keep-io-types=y"], &["--keep-io", "y"]);
    for flag in ["--op-block-list", "--op-types-to-exclude"] {
        for list in [&["Relu", "Gemm"][..], &["Relu,Gemm"]] {
            same(&[&[flag], list].concat(), &["--deny", "Relu", "--deny", "Gemm"]);
        }
    }
    for list in [&["fc1", "fc3"][..], &["fc1,fc3"]] {
        same(&[&["--node-block-list"], list].concat(), &["--pin", "fc1=fp32", "--pin", "fc3=fp32"]);
    }
    // An expression is for the beginning of a name, and a comma is part of it.
    same(&["--nodes-to-exclude", "f", "relu"], &["--pin", "re:f.*=fp32", "--pin", "re:relu.*=fp32"]);
    same(&["--nodes-to-exclude", "f.{1,1}[12]"], &["--pin", "fc1=fp32", "--pin", "fc2=fp32"]);
    same(&["--op-types-to-include", "Softmax"], &["--allow", "Softmax"]);
    same(&["--nodes-to-include", "soft"], &["--pin", "softmax=fp16"]);
    // What is included wins over what is excluded, wherever it stands.
    same(&["--nodes-to-include", "fc2", "--nodes-to-exclude", "fc"], &["--pin", "fc[13]=fp32"]);
    same(&["--node-block-list", "fc1", "fc3", "--nodes-to-include", "fc1"], &["--pin", "fc3=fp32"]);
    same(&["--op-types-to-include", "Gemm", "--op-types-to-exclude", "Relu", "Gemm"], &["--deny", "Relu"]);
}

/// Warnings of passes are the same whichever command runs them.
#[test]
fn opt_warns_as_rewrite_does() {
    let dir = Dir::new();
    let text = support::module(
        "  input %x : bf16[2, 2]\n  %y = MatMul(%x, %x) : bf16[2, 2] @product\n  output %y : bf16[2, 2]\n",
    );
    dir.write("m.ir", text);
    let run = dir.run(&["opt", "m.ir", "--passes", "raise-opset{to=28}, classify{to=f16}", "-o", "n.ir"]);
    assert_eq!(run.code, 0, "{run}");
    let rewritten = dir.run(&["rewrite", "m.ir", "--opset", "28", "-o", "r.ir"]);
    for warning in ["opset.unread", "format.other"] {
        assert!(run.stderr.contains(warning) && rewritten.stderr.contains(warning), "{run}{rewritten}");
    }
    snapshot("opt_warnings", &run);
}

#[test]
fn quiet_runs_say_what_is_not_as_one_would_expect() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    let quiet = |args: &[&str]| dir.run(&[&["rewrite", "-q", "-o", "o.onnx", "--force"], args].concat());
    assert_eq!(quiet(&["mlp.onnx"]).stderr, "");
    let none = quiet(&["mlp.onnx", "--pin", "*=fp32"]).stderr;
    assert!(none.contains("rewrite.nothing") && none.contains("stay fp32 (6)"), "{none}");
    dir.write("m.ir", support::module(support::MATMUL).replace("ai.onnx=21", "ai.onnx=12"));
    let late = quiet(&["m.ir", "--to", "bf16"]).stderr;
    assert!(late.contains("opset.bf16") && late.contains("`--opset auto` raises the model"), "{late}");
    let opt = dir.run(&["opt", "m.ir", "-q", "--passes", "classify{to=bf16}", "-o", "o.ir"]);
    assert!(opt.code == 0 && opt.stderr.contains("opset.bf16"), "{opt}");
}

/// The numbers of a summary and of a report add up to a total, which no policy changes.
#[test]
fn the_numbers_of_a_summary_add_up() {
    let root = env!("CARGO_MANIFEST_DIR");
    let models = [
        "mlp.onnx",
        "if_captures.ir",
        "loop_state.ir",
        "hidden/layer_norm.ir",
        "exported/layer_norm.onnx",
        "exported/tied_modules.onnx",
        "mlp_step.ir",
    ];
    let dir = Dir::new();
    for model in models {
        let path = format!("{root}/testdata/{model}");
        let mut totals = Vec::new();
        for options in
            [&["--policy", "safe"][..], &["--policy", "perf"], &["--policy", "zero-risk"], &["--to", "bf16"]]
        {
            let args = [&["rewrite", &path, "-o", "low.onnx", "--force", "--report", "r.json"][..], options]
                .concat();
            let run = dir.run(&args);
            assert_eq!(run.code, 0, "{model}: {run}");
            let row = |name: &str| run.stderr.lines().find_map(|line| line.trim().strip_prefix(name));
            let first = |text: &str| -> u64 { text.trim().split(' ').next().unwrap().parse().unwrap() };
            let lowered = row("lowered ").unwrap();
            let total = first(lowered.split(" of ").nth(1).unwrap());
            let formats = lowered.split(';').next().unwrap().split(", ").map(first).sum::<u64>();
            let others = ["kept fp32 ", "also fp32 "].map(|name| row(name).map_or(0, first));
            assert_eq!(formats + others[0] + others[1], total, "{model}: {run}");
            let report: serde_json::Value =
                serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap();
            let of = |name: &str| report["summary"][name].as_u64().unwrap();
            let sum = |counts: &serde_json::Value| -> u64 {
                counts.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
            };
            let (causes, followers) = (sum(&report["fp32"]["causes"]), sum(&report["summary"]["followers"]));
            assert_eq!((of("fp16") + of("bf16"), causes + followers), (of("low"), of("full")), "{model}");
            assert_eq!((of("low") + of("full"), formats), (total, of("low")), "{model}");
            assert_eq!(total + of("other"), of("nodes"), "{model}");
            totals.push(total);
        }
        totals.dedup();
        assert_eq!(totals.len(), 1, "{model}: {totals:?}");
    }
}

/// With `-q` warnings about the result are printed, of every command, and predictions are not.
#[test]
fn quiet_prints_warnings_about_the_result_only() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let slower = dir.run(&["rewrite", "m.ir", "-o", "a.onnx"]);
    assert!(slower.stderr.contains("rewrite.slower"), "{slower}");
    let quiet = dir.run(&["rewrite", "m.ir", "-o", "b.onnx", "-q"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    let body = MATMUL
        .replace("  output", "  const %s : f32 = [2.0]\n  %z = Mul(%y, %s) : f32[N, 2]\n  output")
        .replace("output %y", "output %z");
    dir.write("n.ir", module(&body));
    let step = ["train-step", "n.ir", "-o", "s.onnx", "--state", "s.safetensors", "--loss", "mse", "-q"];
    let step = dir.run(&step);
    assert!(step.code == 0 && step.stderr.starts_with("ampc::warning::parameters.numbers\n"), "{step}");
}

/// `--dim` is a remedy only for models with open dims, and a file that is fp32 has no predicted time.
#[test]
fn advice_on_predicted_times_fits_the_model() {
    let dir = Dir::new();
    dir.write("open.ir", module(MATMUL));
    dir.write("sized.ir", module(&MATMUL.replace('N', "2")));
    for (model, is_open) in [("open.ir", true), ("sized.ir", false)] {
        let run = dir.run(&["rewrite", model, "-o", "low.onnx", "--force"]);
        let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("rewrite.slower") && said.contains("predicted for generic"), "{run}");
        assert_eq!(said.contains("`--dim NAME=N`"), is_open, "{run}");
    }
    let emulated = dir.run(&["rewrite", "open.ir", "-o", "e.onnx", "--emit", "emulated"]);
    assert!(emulated.code == 0 && !emulated.stderr.contains("predicted"), "{emulated}");
}

/// Advice that several warnings share is printed once.
#[test]
fn advice_on_the_opset_is_printed_once() {
    let dir = Dir::new();
    let body = "  input %x : f32[1, 1, 4, 4]\n  const %w : f32[1, 1, 1, 1] = [0.5]\n  \
                %c = Conv(%x, %w) : f32[1, 1, 4, 4] @conv\n  %p = ConvTranspose(%c, %w) : f32[1, 1, 4, 4] @up\n  \
                output %p\n";
    dir.write("m.ir", module(body));
    let run = dir.run(&["rewrite", "m.ir", "-o", "low.onnx", "--to", "bf16"]);
    assert_eq!(run.stderr.matches("warning::opset.bf16").count(), 2, "{run}");
    assert_eq!(run.stderr.matches("--opset auto").count(), 1, "{run}");
}

/// A pattern that matches nothing ends in an error after the nodes of the other patterns are explained; a pattern that differs
/// from a name in case only is told as such.
#[test]
fn patterns_that_match_nothing_hide_no_explanation() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let run = dir.run(&["rewrite", "m.ir", "-o", "low.onnx", "--explain", "foo", "--explain", "matmul"]);
    assert!(run.code == 2 && run.stdout.starts_with("MatMul `matmul`\n"), "{run}");
    assert!(run.stderr.contains("`--explain foo`: the model has no such node"), "{run}");
    assert_eq!(dir.files(), ["m.ir"]);
    let run = dir.run(&["rewrite", "m.ir", "-o", "low.onnx", "--explain", "*MatM*"]);
    assert!(run.code == 2 && run.stderr.contains("`matmul` differs in upper and lower case only"), "{run}");
}
