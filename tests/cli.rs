//! The binary as users meet it: what it prints, where, and the exit code.

#![allow(clippy::unwrap_used, reason = "what helps tests is a test as well")]

#[path = "cli/support.rs"]
mod support;

#[path = "cli/answers.rs"]
mod answers;

#[path = "cli/diagnostics.rs"]
mod diagnostics;

#[path = "cli/pipelines.rs"]
mod pipelines;

#[path = "cli/reading.rs"]
mod reading;

#[path = "cli/run.rs"]
mod run;

#[path = "cli/signals.rs"]
mod signals;

#[path = "cli/writing.rs"]
mod writing;

use ampc::passes::pipeline::PASSES;
use std::collections::BTreeSet;
use std::path::Path;
use support::{Dir, MLP, snapshot};

#[test]
fn help_and_version() {
    let dir = Dir::new();
    snapshot("help", &dir.run(&["--help"]));
    snapshot("help_rewrite", &dir.run(&["rewrite", "-h"]));
    let passes = dir.run(&["opt", "-h"]).stdout;
    for pass in PASSES {
        let line = format!("  {:<20}  {}\n", pass.name, pass.about);
        assert!(passes.contains(&line), "{line}{passes}");
        for option in pass.options() {
            assert!(passes.contains(&format!("{:24}{option}\n", "")), "{option}\n{passes}");
        }
    }
    let version = dir.run(&["--version"]);
    assert_eq!(version.stdout, format!("ampc {}\n", env!("CARGO_PKG_VERSION")));
}

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
fn a_reader_that_has_seen_enough_is_no_error() {
    let gone = support::run_unread(&["ops", "--json"]);
    assert_eq!((gone.code, gone.stderr.as_str()), (0, ""));
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
    assert_eq!(again.code, 0, "{again}");
    let bytes = |name: &str| std::fs::read(dir.path(name)).unwrap();
    assert!(bytes("repeated.onnx") == bytes("auto.onnx") && bytes("again.onnx") == bytes("auto.onnx"));
    snapshot("opset_number", &dir.run(&["rewrite", "m.onnx", "--opset", "26", "-o", "newest.ir"]));
    let text = dir.run(&["opt", "newest.ir", "--passes", ""]).stdout;
    assert!(text.starts_with("module ir=13\n") && text.contains("opset ai.onnx=26\n"), "{text}");
    assert!(text.contains("= Squeeze(%b, %y.axes)"), "{text}");
}

/// What to do about an operator that has the format only later depends on what was done and on what can be.
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

/// A name of an operator means all that are called so, and what cannot be found is an error as everywhere.
#[test]
fn lists_of_other_tools() {
    let dir = Dir::new();
    let gelu = "opset ai.onnx=21, com.microsoft=1\n\ngraph @main {\n  input %x : f32[2, 2]\n  \
                const %w : f32[2, 2] = random(1, 1.0)\n  %a = MatMul(%x, %w) : f32[2, 2] @product\n  \
                %y = com.microsoft::FastGelu(%a) : f32[2, 2] @gelu\n  \
                %z = MatMul(%y, %w) : f32[2, 2] @last\n  output %z : f32[2, 2]\n}\n";
    dir.write("gelu.ir", gelu);
    let text = |args: &[&str]| {
        let run = dir.run(&[&["rewrite", "gelu.ir", "-o", "-", "--emit", "text", "-q"], args].concat());
        assert_eq!(run.code, 0, "{run}");
        run.stdout
    };
    let theirs = text(&["--op-block-list", "FastGelu", "--to", "fp16"]);
    assert!(theirs.contains("com.microsoft::FastGelu(%a.f32) : f32[2, 2]"), "{theirs}");
    assert_eq!(theirs, text(&["--deny", "com.microsoft::FastGelu"]));
    assert!(text(&[]).contains("FastGelu(%a) : f16[2, 2] class=infer"), "{}", text(&[]));
    snapshot("list_of_nothing", &dir.run(&["rewrite", MLP, "-o", "-", "--nodes-to-exclude", "conv"]));
    snapshot("list_of_no_operator", &dir.run(&["rewrite", MLP, "-o", "-", "--op-block-list", "Rellu"]));
    snapshot(
        "list_of_no_expression",
        &dir.run(&["rewrite", MLP, "-o", "-", "--nodes-to-include", "fc(?=1)"]),
    );
}

/// An operator that the model does not have may have been another one that was meant.
#[test]
fn lists_of_what_is_not_there() {
    let dir = Dir::new();
    for args in [&["--deny", "LSTM"][..], &["--allow", "Conv,Gemm"], &["--op-block-list", "Gelu"]] {
        let run = dir.run(&[&["rewrite", MLP, "-o", "-", "-q"], args].concat());
        assert!(run.code == 0 && run.stderr.matches("list.unmatched").count() == 1, "{run}");
    }
    let run = dir.run(&["rewrite", MLP, "-o", "-", "-q", "--deny", "Gemm,Relu"]);
    assert!(!run.stderr.contains("list.unmatched"), "{run}");
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

/// What goes in and out of bodies and functions is told from inputs and outputs of the graph.
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
fn any_passes() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    snapshot("opt", &dir.run(&["opt", "m.ir", "--passes", "classify{to=bf16}, assign{to=bf16}"]));
    dir.write("d.ir", format!("// why\n// pass: classify\n{}", support::module(support::MATMUL)));
    let run = dir.run(&["opt", "d.ir"]);
    assert!(run.code == 0 && run.stdout.contains("class=allow"), "{run}");
    let run = dir.run(&["opt", "m.ir", "--passes", "", "-o", "m.onnx"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_eq!(dir.run(&["check", "m.onnx"]).code, 0);
}

#[test]
fn dumps_go_on_where_they_stopped() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    let run = dir.run(&[
        "rewrite",
        "m.ir",
        "-o",
        "a.ir",
        "--dump-after",
        "all",
        "--dump-dir",
        "dumps",
        "--verify-each",
    ]);
    assert_eq!(run.code, 0, "{run}");
    let dumps = Dir::files_of(&dir.path("dumps"));
    assert_eq!((dumps.len(), dumps[5].as_str()), (11, "06-assign.ir"));
    let end = dir.run(&["opt", "dumps/11-share-functions.ir", "--passes", ""]).stdout;
    for dump in &dumps[..10] {
        let run = dir.run(&["opt", &format!("dumps/{dump}")]);
        assert_eq!((run.code, run.stdout == end), (0, true), "{dump}: {run}");
    }
    let run = dir.run(&["rewrite", "m.ir", "-o", "b.ir", "--dump-after", "guard", "--dump-dir", "one"]);
    assert_eq!((run.code, Dir::files_of(&dir.path("one"))), (0, vec!["04-guard.ir".to_owned()]));
    let run = dir.run(&["rewrite", "m.ir", "-o", "c.ir", "--dump-after", "changed", "--dump-dir", "some"]);
    let some = Dir::files_of(&dir.path("some"));
    assert_eq!((run.code, some.first().map(String::as_str)), (0, Some("03-classify.ir")));
    assert!(some.len() < dumps.len() && !some.contains(&"04-guard.ir".to_owned()), "{some:?}");
}

#[test]
fn what_is_in_a_model() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    snapshot("inspect", &dir.run(&["inspect", "mlp.onnx"]));
    snapshot("inspect_json", &dir.run(&["inspect", "mlp.onnx", "--json"]));
}

#[test]
fn a_missing_attribute_is_one_problem() {
    let dir = Dir::new();
    let nodes = "  %a = Concat(%x, %x) : f32[2, 4, 4] @concat\n  %b = LRN(%x) : f32[1, 4, 4, 4] @lrn\n  \
                 %c = MaxPool(%x) : f32[1, 4, 1, 1] @pool\n  %d = DepthToSpace(%x) {blocksize=3} : f32[1, 4, 4, 4] @depth\n";
    dir.write(
        "m.ir",
        support::module(&format!("  input %x : f32[1, 4, 4, 4]\n{nodes}  output %a : f32[2, 4, 4]\n")),
    );
    let run = dir.run(&["check", "m.ir"]);
    let said = |text: &str| run.stdout.matches(text).count();
    assert!(run.code == 3 && run.stdout.ends_with("m.ir: 4 problems\n"), "{run}");
    assert_eq!((said("`concat`"), said("`lrn`"), said("`pool`"), said("`depth`")), (1, 1, 1, 1), "{run}");
    assert!(run.stdout.contains("a value, it is required"), "{run}");
}

#[test]
fn the_operator_table() {
    let dir = Dir::new();
    let mut table = dir.run(&["ops"]);
    let shown = ["operator", "Attention ", "BatchNormalization ", "And ", "Softmax ", "Upsample "];
    table.stdout = table
        .stdout
        .lines()
        .filter(|l| shown.iter().any(|s| l.starts_with(s)))
        .map(|l| format!("{}\n", l.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    snapshot("ops", &table);
    let json: serde_json::Value = serde_json::from_str(&dir.run(&["ops", "--json"]).stdout).unwrap();
    let ops = json["ops"].as_array().unwrap();
    assert_eq!(ops.len(), ampc::ir::op::OpKind::ALL.len());
    let softmax = ops.iter().find(|o| o["name"] == "Softmax").unwrap();
    assert_eq!((&softmax["class"]["fp16"], &softmax["inferred"]), (&"deny".into(), &true.into()));
}

#[test]
fn policies() {
    let dir = Dir::new();
    snapshot("policy_list", &dir.run(&["policy", "list"]));
    snapshot("policy_show_all", &dir.run(&["policy", "show", "all"]));
    let safe = dir.run(&["policy", "show", "safe"]);
    assert!(safe.stdout.contains("  allow     Attention, "), "{safe}");
    dir.write(
        "p.json",
        r#"{"schema": "ampc-policy/1", "name": "mine", "base": "all", "ops": {"deny": ["Gemm"], "infer": ["com.x::Op"]},
            "pins": {"layer*": "fp32"}, "pin_values": {"h": "auto"}, "disable_guards": ["eps"]}"#,
    );
    snapshot("policy_show_file", &dir.run(&["policy", "show", "p.json"]));
    snapshot("policy_check", &dir.run(&["policy", "check", "p.json"]));
}

#[test]
fn targets() {
    let dir = Dir::new();
    snapshot("target_list", &dir.run(&["target", "list"]));
    snapshot("target_show", &dir.run(&["target", "show", "v100"]));
    for (name, _) in ampc::passes::target::PROFILES {
        let shown = dir.run(&["target", "show", name]).stdout;
        assert!(shown.starts_with(&format!("target {name}\n")), "{shown}");
    }
    let (_, generic) = ampc::passes::target::PROFILES[0];
    dir.write("mine.json", generic.replace("\"generic\"", "\"mine\""));
    snapshot("target_check", &dir.run(&["target", "check", "mine.json"]));
    assert!(dir.run(&["target", "show", "mine.json"]).stdout.starts_with("target mine\n"));
}

/// What the cheapest casts cost is in the report, and a report repeats the choice.
#[test]
fn objectives() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    for (objective, unit) in [("casts", "casts"), ("bytes", "bytes"), ("time", "ps")] {
        let report = format!("{objective}.json");
        let out = format!("{objective}.onnx");
        let args = ["rewrite", "mlp.onnx", "--objective", objective, "-o", &out, "--report", &report];
        let run = dir.run(&args);
        // Time is always predictable from the profile, and the proof is in the report.
        assert!(run.code == 0 && run.stderr.contains("  time       1231 ns -> 1615 ns predicted"), "{run}");
        assert!(!run.stderr.contains("optimum"), "{run}");
        let read: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.path(&report)).unwrap()).unwrap();
        let optimum = &read["optimum"];
        assert_eq!(optimum["unit"], unit);
        assert_eq!((&optimum["optimal"], &optimum["cost"]), (&true.into(), &optimum["lower_bound"]));
        assert_eq!(
            (&read["options"]["objective"], &read["options"]["target"]),
            (&objective.into(), &"generic".into())
        );
        let again = dir.run(&["rewrite", "mlp.onnx", "--policy", &report, "-o", "again.onnx", "--force"]);
        assert_eq!(again.code, 0, "{again}");
        assert_eq!(std::fs::read(dir.path(&out)).unwrap(), std::fs::read(dir.path("again.onnx")).unwrap());
    }
    snapshot("objective", &dir.run(&["rewrite", "mlp.onnx", "--target", "v100", "-o", "v100.onnx"]));
    dir.write("mine.json", "{}");
    assert_eq!(dir.run(&["rewrite", "mlp.onnx", "--target", "mine.json", "-o", "m.onnx"]).code, 2);
}

/// Presets, what files change about them, and what is none.
#[test]
fn presets() {
    let dir = Dir::new();
    for preset in ["perf", "zero-risk", "torch", "tf", "paddle-o1", "paddle-o2", "nvidia", "fastai"] {
        snapshot(&format!("policy_show_{preset}"), &dir.run(&["policy", "show", preset]));
    }
    snapshot("policy_show_jmp", &dir.run(&["policy", "show", "jmp:params=float32,compute=bf16"]));
    dir.write("t.json", r#"{"base": "torch", "unlisted": "deny", "ops": {"infer": ["Softmax", "Relu"]}}"#);
    let shown = dir.run(&["policy", "show", "t.json"]);
    assert!(shown.stdout.contains("operators in no list are deny,"), "{shown}");
    assert!(shown.stdout.contains("\nbut\n  Relu     infer\n  Softmax  infer\n"), "{shown}");
    assert!(!shown.stdout.contains("Sinh, Softmax,"), "{shown}");
    assert_eq!(dir.run(&["policy", "check", "t.json"]).code, 0);
    dir.write("u.json", "{\n  \"base\": \"torch\",\n  \"unlisted\": \"infre\"\n}\n");
    snapshot("policy_unlisted", &dir.run(&["policy", "check", "u.json"]));
    for (name, wrong) in [
        ("unknown", "troch"),
        ("jmp_type", "jmp:p=f32,c=flt16,o=f32"),
        ("jmp_params", "jmp:p=f16,c=f32"),
        ("jmp_output", "jmp:c=f16,o=bf16"),
    ] {
        snapshot(&format!("policy_{name}"), &dir.run(&["policy", "show", wrong]));
    }
}

/// A policy of jmp decides the format and the types of outputs, unless told otherwise.
#[test]
fn jmp_policies() {
    let dir = Dir::new();
    let model = "module ir=10\nopset ai.onnx=22\n\ngraph {\n  input %x : f32[2, 2]\n  \
                 %y = MatMul(%x, %x) : f32[2, 2] @fc\n  output %y : f32[2, 2]\n}\n";
    dir.write("m.ir", model);
    let rewrite = |policy: &str, more: &[&str]| {
        let args = [&["rewrite", "m.ir", "--emit", "text", "-o", "-", "--policy", policy], more].concat();
        dir.run(&args)
    };
    let output = |policy: &str, more: &[&str]| {
        let run = rewrite(policy, more);
        let line = run.stdout.lines().find(|l| l.trim().starts_with("output ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{run}"))
    };
    assert!(output("jmp:p=f32,c=bf16,o=f32", &[]).ends_with(": f32[2, 2]"));
    assert!(output("jmp:c=bf16", &[]).ends_with(": bf16[2, 2]"));
    assert!(output("jmp:c=f16", &[]).ends_with(": f16[2, 2]"));
    assert!(output("jmp:c=f16", &["--keep-io", "all"]).ends_with(": f32[2, 2]"));
    assert!(!rewrite("jmp:full", &[]).stdout.contains("Cast("));
    snapshot("policy_jmp_format", &rewrite("jmp:c=bf16", &["--to", "fp16"]));
    let passes = "classify{to=bf16, policy=jmp:p=f32+c=bf16+o=f32}";
    let classified = dir.run(&["opt", "m.ir", "--passes", passes, "-o", "-"]);
    assert!(classified.stdout.contains("class=allow why=schema"), "{classified}");
    let wrong = dir.run(&["opt", "m.ir", "--passes", "classify{policy=jmp:c=bf16}", "-o", "-"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("cannot lower to f16"), "{wrong}");
}

/// What a policy says of an operator of the user's own.
#[test]
fn policy_signatures() {
    let dir = Dir::new();
    let policy = r#"{
  "signatures": {
    "acme::Scale": {
      "inputs": [{"name": "x", "type": "T"}, {"name": "scale", "type": "f32", "optional": true}],
      "outputs": [{"name": "y", "type": "T", "shape": "x"}],
      "types": {"T": ["f32", "f16"]},
      "class": "infer"
    }
  }
}"#;
    dir.write("good.json", policy);
    dir.write("class.json", policy.replace("infer", "inferred"));
    dir.write("shape.json", policy.replace("\"shape\": \"x\"", "\"shape\": \"xs\""));
    dir.write("field.json", policy.replace("optional", "optinal"));
    dir.write(
        "m.ir",
        "module ir=10\nopset acme=1\n\ngraph {\n  input %x : f32[2]\n  %y = acme::Scale(%x) : ?\n  \
         output %y : i64[2]\n}\n",
    );
    let shown = dir.run(&["policy", "show", "good.json"]).stdout;
    let at = shown.find("operators with a signature").unwrap();
    let line = "  acme::Scale  (x: T, scale?: f32) -> (y: T shape=x) {T=[f32, f16]} class=infer";
    assert_eq!(shown[at..].lines().nth(1), Some(line));
    snapshot("policy_signature_check", &dir.run(&["policy", "check", "good.json"]));
    for wrong in ["class", "shape", "field"] {
        let run = dir.run(&["policy", "check", &format!("{wrong}.json")]);
        snapshot(&format!("policy_signature_{wrong}"), &run);
    }
    snapshot(
        "policy_signature_contradicted",
        &dir.run(&["rewrite", "m.ir", "--policy", "good.json", "-o", "-"]),
    );
}

/// The documents have every warning and every preset that the source has.
#[test]
fn documents_are_complete() {
    let read = |path: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    };
    let (reports, policies) = (read("docs/report.md"), read("docs/policy.md"));
    let help = Dir::new().run(&["rewrite", "--help"]).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for ampc::passes::policy::Preset { name, about, .. } in ampc::passes::policy::PRESETS {
        assert!(policies.contains(&format!("| `{name}` | {about} |")), "docs/policy.md: `{name}`");
        let listed = [", ", "(", "or "].iter().any(|before| help.contains(&format!("{before}{name}")));
        assert!(listed, "help of --policy: {name}");
    }
    let targets = read("docs/target.md");
    for (name, _) in ampc::passes::target::PROFILES {
        assert!(targets.contains(&format!("\n| `{name}` | ")), "docs/target.md: `{name}`");
    }
    for (field, ..) in ampc::passes::Profile::default().numbers() {
        assert!(targets.contains(&format!("`{field}`")), "docs/target.md: `{field}`");
    }
    let codes = support::warning_codes();
    assert!(codes.len() > 12, "{codes:?}");
    for code in &codes {
        assert!(reports.contains(&format!("\n| `{code}` | ")), "docs/report.md: `{code}`");
    }
}

#[test]
fn completions() {
    let run = Dir::new().run(&["completions", "bash"]);
    assert!(run.code == 0 && run.stdout.contains("complete -F _ampc"), "{run}");
    assert!(run.stdout.contains("\"safe all perf zero-risk torch "), "{run}");
}

/// Runs that are refused as wrong usage, and change nothing.
fn refused(dir: &Dir, runs: &[&str]) {
    let content = || -> Vec<(String, Option<Vec<u8>>)> {
        dir.files().into_iter().map(|f| (f.clone(), std::fs::read(dir.path(&f)).ok())).collect()
    };
    let before = content();
    for run in runs {
        let done = dir.run(&run.split(' ').collect::<Vec<_>>());
        assert_eq!(done.code, 2, "{run}: {done}");
        assert!(done.stderr.contains("is the same file as"), "{run}: {done}");
        assert!(content() == before, "{run} changed something");
    }
}

#[test]
fn what_is_read_is_never_written_and_nothing_is_written_twice() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "s.ir", "-q"]).code, 0);
    assert_eq!(dir.run(&["rewrite", "m.onnx", "-o", "e.onnx", "--external-data", "always", "-q"]).code, 0);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(dir.path("s.ir"), dir.path("link.ir")).unwrap();
        std::fs::hard_link(dir.path("s.ir.safetensors"), dir.path("hard.json")).unwrap();
        refused(
            &dir,
            &["rewrite s.ir -o link.ir --force", "rewrite s.ir -o o.onnx --report hard.json --force"],
        );
    }
    let data = dir.files().into_iter().find(|name| name.starts_with("e.onnx.")).unwrap();
    refused(
        &dir,
        &[
            "rewrite s.ir -o s.ir --force",
            "rewrite s.ir -o ./s.ir",
            "opt s.ir --passes= -o s.ir --force",
            "rewrite s.ir -o s.ir.safetensors --emit onnx --force",
            "rewrite s.ir -o o.onnx --report s.ir --force",
            "rewrite s.ir -o o.onnx --report s.ir.safetensors --force",
            "rewrite m.onnx -o o.onnx --report m.onnx --force",
            "rewrite m.onnx -o o.onnx --report o.onnx",
            "rewrite m.onnx --report m.fp16.onnx",
            "rewrite m.onnx -o o.ir --report o.ir.safetensors",
            &format!("rewrite e.onnx -o o.onnx --report {data} --force"),
            &format!("rewrite e.onnx -o {data} --emit onnx --force"),
            "rewrite m.onnx -o 04-guard.ir --dump-after guard --dump-dir .",
            "rewrite m.onnx -o o.onnx --report 04-guard.ir --dump-after all --dump-dir .",
        ],
    );
}

#[test]
fn dumps_replace_only_when_told_and_never_the_model() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    dir.write("04-guard.ir", support::module(support::MATMUL));
    dir.write("05-taint.ir", "mine");
    let guard = ["--dump-after", "guard", "--dump-dir", ".", "--force"];
    let run = dir.run(&[&["rewrite", "04-guard.ir", "-o", "o.ir"], &guard[..]].concat());
    assert_eq!(run.code, 2, "{run}");
    let all = ["rewrite", "m.ir", "-o", "o.ir", "--dump-after", "all", "--dump-dir", "."];
    snapshot("io_dump_exists", &dir.run(&all));
    assert_eq!(dir.files(), ["04-guard.ir", "05-taint.ir", "m.ir"]);
    assert_eq!(dir.run(&[&all[..], &["--force"]].concat()).code, 0);
    assert!(std::fs::read(dir.path("05-taint.ir")).unwrap() != b"mine");
}

#[test]
fn targets_are_checked_before_the_work() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    dir.write("file", "");
    snapshot("io_report_no_folder", &dir.run(&["rewrite", "m.onnx", "--report", "none/r.json"]));
    let run = dir.run(&["rewrite", "m.onnx", "-o", "file/o.onnx"]);
    assert!(run.code == 5 && run.stderr.contains("the folder `file` does not exist"), "{run}");
    assert_eq!(dir.files(), ["file", "m.onnx"]);
    #[cfg(target_os = "linux")]
    {
        // Nobody may make files there.
        let run = dir.run(&["rewrite", "m.onnx", "--report", "/proc/r.json"]);
        assert!(run.code == 5 && run.stderr.contains("`/proc` is not writable"), "{run}");
        assert_eq!(dir.files(), ["file", "m.onnx"]);
        let run = dir.run(&["rewrite", "m.onnx", "--report", "/dev/full"]);
        assert!(run.code == 5 && run.stderr.contains("cannot write to `/dev/full`"), "{run}");
        assert_eq!(dir.files(), ["file", "m.onnx"], "no model without its report");
    }
}

#[test]
fn a_data_file_that_exists_is_refused_before_the_work() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("sub")).unwrap();
    let weights = vec!["0.5"; 1024].join(", ");
    let text = format!(
        "  input %x : f32[2, 32]\n  const %w : f32[32, 32] = [{weights}]\n  %y = MatMul(%x, %w) : f32[2, 32]\n  \
         output %y : f32[2, 32]\n"
    );
    dir.write("m.ir", support::module(&text));
    let external = ["opt", "m.ir", "--passes=", "-o", "sub/e.onnx", "--external-data", "always"];
    assert_eq!(dir.run(&external).code, 0);
    dir.write("o.ir.safetensors", "mine");
    let before = dir.files();
    for (run, data) in [
        ("rewrite m.ir -o o.ir", "o.ir.safetensors"),
        ("opt sub/e.onnx --passes=classify -o o.ir", "o.ir.safetensors"),
    ] {
        let dumps = ["--dump-after", "classify", "--dump-dir", "dumps"];
        let args: Vec<&str> = run.split(' ').chain(dumps).collect();
        let forced = [&args[..], &["--force"]].concat();
        // No text of ampc refers to it, so `--force` is not about it.
        for args in [&args, &forced] {
            let refused = dir.run(args);
            let message = format!("`{data}` exists");
            assert!(refused.code == 5 && refused.stderr.contains(&message), "{args:?}: {refused}");
            assert_eq!(dir.files(), before, "{args:?}: no pass has run");
        }
        std::fs::remove_file(dir.path(data)).unwrap();
        assert_eq!(dir.run(&args).code, 0, "{run}");
        std::fs::remove_dir_all(dir.path("dumps")).unwrap();
        assert_eq!(dir.run(&args).code, 5, "{run}");
        assert!(!dir.path("dumps").exists(), "{run}: no pass has run");
        assert_eq!(dir.run(&forced).code, 0, "{run}");
        for name in ["o.ir", data] {
            std::fs::remove_file(dir.path(name)).unwrap();
        }
        std::fs::remove_dir_all(dir.path("dumps")).unwrap();
        dir.write(data, "mine");
    }
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
fn inputs_that_are_not_there() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    snapshot("io_opt_missing", &dir.run(&["opt", "none.ir"]));
    assert_eq!(dir.run(&["opt", "m.onnx", "--passes=", "-o", "m.ir", "-q"]).code, 0);
    std::fs::remove_file(dir.path("m.ir.safetensors")).unwrap();
    snapshot("text_missing_data", &dir.run(&["rewrite", "m.ir"]));
    for args in ["opt m.ir --passes= -o n.ir", "opt m.ir --passes= -o n.onnx"] {
        let run = dir.run(&args.split(' ').collect::<Vec<_>>());
        assert!(run.code == 3 && run.stderr.contains("help:"), "{args}: {run}");
    }
    assert_eq!(dir.files(), ["m.ir", "m.onnx"]);
    #[cfg(target_os = "linux")]
    for command in ["rewrite", "check", "inspect"] {
        let run = dir.run(&[command, "/dev/zero"]);
        assert!(run.code == 5 && run.stderr.contains("it is a device"), "{run}");
    }
}

/// What has no end is read up to a limit, and the limit is said.
#[cfg(target_os = "linux")]
#[test]
fn pipes_without_end() {
    use std::process::{Command, Stdio};
    let dir = Dir::new();
    for pipe in ["p.onnx", "p.ir", "p.json"] {
        assert!(Command::new("mkfifo").arg(dir.path(pipe)).status().unwrap().success());
    }
    let run = |args: &[&str], from: &str| {
        let mut zeros = Command::new("cat");
        zeros.arg("/dev/zero").stderr(Stdio::null());
        let mut command = support::command(args);
        command.current_dir(dir.path(""));
        let mut cat = if from == "-" {
            let mut cat = zeros.stdout(Stdio::piped()).spawn().unwrap();
            command.stdin(cat.stdout.take().unwrap());
            cat
        } else {
            // The shell opens the pipe, which waits for the reader.
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec cat /dev/zero > \"$0\""]).arg(dir.path(from)).stderr(Stdio::null());
            shell.spawn().unwrap()
        };
        let done = command.output().unwrap();
        // It holds an end of the pipe.
        drop(command);
        cat.wait().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).replace("\n    ", " "))
    };
    for (args, from, limit) in [
        (&["check", "-"][..], "-", "2147483647"),
        (&["inspect", "p.onnx"], "p.onnx", "2147483647"),
        (&["opt", "p.ir", "--passes="], "p.ir", "1073741824"),
        (&["policy", "check", "p.json"], "p.json", "1073741824"),
    ] {
        let (code, said) = run(args, from);
        let message = format!("more than {limit} bytes");
        assert!(code == Some(5) && said.contains(&message), "{args:?}: {code:?} {said}");
    }
    assert_eq!(dir.files(), ["p.ir", "p.json", "p.onnx"]);
}

#[test]
fn options_that_say_nothing_or_too_much() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let cases: &[(&[&str], &str)] = &[
        (&["--pin", "=fp32"], "`--pin =fp32`: the name before `=` is empty"),
        (&["--pin-value", "=fp32"], "`--pin-value =fp32`: the name before `=` is empty"),
        (&["--pin", "fc2=fp8"], "`--pin fc2=fp8`: "),
        (&["--pin", "fc2"], "found no `=`"),
        (&["--keep-io", ","], "`--keep-io ,`: a name is empty"),
        (&["--keep-io", "x,"], "`--keep-io x,`: a name is empty"),
        (&["--keep-io", "all,x"], "`--keep-io all,x`: `all` stands alone"),
        (&["--deny", ","], "`--deny ,`: a name is empty"),
        (&["--allow", "Relu,"], "`--allow Relu,`: a name is empty"),
        (&["--disable-guard", ",eps"], "`--disable-guard ,eps`: a name is empty"),
    ];
    for (args, message) in cases {
        let run = dir.run(&[&["rewrite", "m.onnx"], *args].concat());
        assert!(run.code == 2 && run.stderr.contains(message), "{args:?}: {run}");
    }
    for (text, found) in [("[]", "an array"), ("null", "null"), ("\"safe\"", "a string"), ("7", "a number")] {
        dir.write("p.json", text);
        let run = dir.run(&["policy", "check", "p.json"]);
        let message = format!("expected an object, found {found}");
        assert!(run.code == 2 && run.stderr.contains(&message), "{text}: {run}");
    }
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
    assert!(line.ends_with("1231 ns -> 1615 ns predicted (0.76 x), if dimension `N` is 1"), "{line}");
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
                let size = more.abs() / scale / 1000;
                let said = format!("a pin to {} would cost {size} ns {words}", of("precision"));
                // Large numbers are printed in groups.
                let without_spaces = |text: &str| text.replace(' ', "");
                assert!(without_spaces(&explained.stdout).contains(&without_spaces(&said)), "{explained}");
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
