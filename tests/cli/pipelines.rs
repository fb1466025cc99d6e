//! `ampc opt` repeats the pipeline of a rewrite, with its policies and targets.

use crate::support::{Dir, MATMUL, module};
use ampc::Model;
use ampc::ir::op::Class;
use ampc::ir::text::{NoData, PrintOptions, parse, print};
use ampc::ir::{DType, Module};
use ampc::options::{Objective, Opset, RewriteOptions};
use ampc::passes::guard::OutOfRange;
use ampc::passes::insert_casts::KeepIo;
use ampc::passes::policy::{ListedBy, Pin};
use ampc::passes::target::PROFILES;
use ampc::passes::{Policy, Profile};
use std::sync::Arc;

/// Products around a norm that is written out, and an operator of the user's.
fn model() -> String {
    let model = module(
        "  input %\"x, 1\" : f32[64, 64]\n  const %w : f32[64, 64] = random(1)\n  const %eps : f32 = 1e-6\n  \
         const %big : f32 = 1e6\n  const %axes : i64[1] = [-1]\n  \
         %h = MatMul(%\"x, 1\", %w) : f32[64, 64] @first\n  %o = acme::Op(%h) : f32[64, 64] @own\n  \
         %sq = Mul(%o, %o) : f32[64, 64] @square\n  %ms = ReduceMean(%sq, %axes) : f32[64, 1] @mean\n  \
         %me = Add(%ms, %eps) : f32[64, 1] @eps\n  %rms = Sqrt(%me) : f32[64, 1] @root\n  \
         %n = Div(%o, %rms) : f32[64, 64] @div\n  %c = Cast(%n) {to=10} : f16[64, 64] @narrow\n  \
         %d = Cast(%c) {to=1} : f32[64, 64] @widen\n  %b = Add(%d, %big) : f32[64, 64] @bias\n  \
         %y = MatMul(%b, %w) : f32[64, 64] @second\n  output %y : f32[64, 64]\n",
    );
    model.replace("opset ai.onnx=21", "opset ai.onnx=21, acme=1")
}

fn text_of(module: &Module) -> String {
    print(module, &PrintOptions { omit_hashes: true, ..PrintOptions::default() }).text
}

const POLICY: &str = r#"{"name": "mine, {really} \"so\"", "base": "safe", "ops": {"deny": ["Sqrt"], "allow": ["Div"]},
  "pins": {"second": "fp32"}, "disable_guards": ["norm"], "signatures": {"acme::Op": {
  "inputs": [{"name": "x", "type": "T"}], "outputs": [{"name": "y", "type": "T", "shape": "x"}],
  "types": {"T": ["f32", "f16", "bf16"]}, "class": "allow"}}}"#;

/// A target of the user's on which low products are not faster, so that nothing is gained by them.
fn target() -> String {
    let (name, text) = PROFILES[0];
    let text = text.replace(&format!("\"name\": \"{name}\""), "\"name\": \"mine\"");
    text.replace("\"value\": 40000000", "\"value\": 10000000")
}

/// Options of rewrites, each with a name.
fn asked() -> Vec<(&'static str, RewriteOptions)> {
    let of = |change: fn(&mut Policy)| {
        let mut policy = Policy::preset("safe").unwrap();
        change(&mut policy);
        RewriteOptions { policy: Arc::new(policy), ..RewriteOptions::default() }
    };
    let report = ampc::rewrite(Model::from(parse(&model(), &NoData).unwrap()), &RewriteOptions::default());
    let report = serde_json::to_string(&report.unwrap().report).unwrap();
    let target = Arc::new(Profile::from_json(&target()).unwrap());
    vec![
        ("pins", of(|policy| policy.pin("re:fir.*#T", Pin::To(DType::F32)).unwrap())),
        ("lists", of(|policy| policy.set_class("MatMul", Class::Deny, ListedBy::Options).unwrap())),
        ("file", RewriteOptions::of(Policy::from_json(POLICY).unwrap())),
        ("report", RewriteOptions::of(Policy::from_json(&report).unwrap())),
        ("target", RewriteOptions { target: target.clone(), ..RewriteOptions::default() }),
        (
            "all",
            RewriteOptions {
                to: DType::BF16,
                out_of_range: OutOfRange::Clamp,
                keep_io: KeepIo::Names(["x, 1".into()].into()),
                opset: Opset::Auto,
                objective: Objective::Bytes,
                target,
                excess_precision: true,
                ..of(|policy| {
                    *policy = Policy::from_json(POLICY).unwrap();
                    policy.next_layer();
                    policy.pin("second", Pin::To(DType::BF16)).unwrap();
                })
            },
        ),
        ("jmp", RewriteOptions::of(Policy::preset("jmp:p=f32,c=f16,o=f32").unwrap())),
    ]
}

#[test]
fn what_a_pipeline_prints_does_the_same() {
    let mut ends = Vec::new();
    for (name, options) in asked() {
        let dir = Dir::new();
        let spelling = ampc::rewrite::pipeline_of(&options).spell(0, "m");
        dir.write("m.ir", format!("// pass: {}\n{}", spelling.text, model()));
        for (file, content) in &spelling.files {
            dir.write(file, content);
        }
        let source = Model::from(parse(&model(), &NoData).unwrap());
        let rewritten = text_of(&ampc::rewrite(source, &options).unwrap().model.module);
        let said = dir.run(&["opt", "m.ir"]);
        assert_eq!((said.code, &said.stdout), (0, &rewritten), "{name}: {}\n{said}", spelling.text);
        // On the command line, files are where the command runs.
        let said = dir.run(&["opt", "m.ir", "--passes", &spelling.text]);
        assert_eq!((said.code, &said.stdout), (0, &rewritten), "{name}: {}\n{said}", spelling.text);
        ends.push(rewritten);
    }
    // Each of them is something else.
    let count = ends.len();
    ends.sort_unstable();
    ends.dedup();
    assert_eq!(ends.len(), count);
}

#[test]
fn dumps_have_the_policies_and_targets_that_they_name() {
    let dir = Dir::new();
    dir.write("m.ir", model());
    dir.write("p.json", POLICY);
    dir.write("t.json", target());
    let rewrite = [
        "rewrite",
        "m.ir",
        "-o",
        "a.ir",
        "--policy",
        "p.json",
        "--target",
        "t.json",
        "--pin",
        "div=fp32",
        "--deny",
        "Add",
        "--disable-guard",
        "eps",
        "--opset",
        "auto",
        "--dump-after",
        "all",
        "--dump-dir",
        "dumps",
    ];
    let run = dir.run(&rewrite);
    assert_eq!(run.code, 0, "{run}");
    let files = Dir::files_of(&dir.path("dumps"));
    let texts: Vec<&String> = files.iter().filter(|name| name.ends_with(".ir")).collect();
    assert!(texts.len() == 13 && files.contains(&"01-bind-signatures.target.json".to_owned()), "{files:?}");
    let end = dir.run(&["opt", &format!("dumps/{}", texts[12]), "--passes", ""]).stdout;
    // It does not matter where the folder is.
    std::fs::rename(dir.path("dumps"), dir.path("moved")).unwrap();
    for text in &texts[..12] {
        let run = dir.run(&["opt", &format!("moved/{text}")]);
        assert_eq!((run.code, &run.stdout), (0, &end), "{text}: {run}");
    }
    std::fs::remove_file(dir.path("moved/01-bind-signatures.policy.json")).unwrap();
    let run = dir.run(&["opt", "moved/01-bind-signatures.ir"]);
    assert!(run.code == 5 && run.stderr.contains("moved/01-bind-signatures.policy.json"), "{run}");
    std::fs::remove_file(dir.path("a.ir")).unwrap();
    // What lies beside a dump is replaced no more than the dump itself.
    std::fs::create_dir(dir.path("dumps")).unwrap();
    dir.write("dumps/01-bind-signatures.policy.json", "mine");
    let run = dir.run(&rewrite);
    assert!(run.code == 5 && run.stderr.contains("01-bind-signatures.policy.json"), "{run}");
    assert_eq!(std::fs::read(dir.path("dumps/01-bind-signatures.policy.json")).unwrap(), b"mine");
}

/// A line that is cut would be another pipeline, and comments may hide it.
#[test]
fn a_directive_is_whole_or_an_error() {
    let dir = Dir::new();
    let with = |comments: &str| format!("{comments}{}", module(MATMUL));
    let long = format!("// pass: classify{}, dce\n", " ".repeat(1 << 16));
    let after = format!("// {}\n// pass: classify\n", "é".repeat(1 << 15));
    for comments in [long, after] {
        dir.write("m.ir", with(&comments));
        let run = dir.run(&["opt", "m.ir"]);
        assert!(run.code == 2 && run.stderr.contains("within the first 65536 bytes"), "{run}");
        let run = dir.run(&["opt", "m.ir", "--passes", "classify"]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    }
    let directive = "// pass: classify";
    dir.write("m.ir", with(&format!("{directive}{}\n", " ".repeat((1 << 16) - 1 - directive.len()))));
    let run = dir.run(&["opt", "m.ir"]);
    assert!(run.code == 0 && run.stdout.contains("class=allow"), "{run}");
    // Nor is one looked for behind the comments.
    dir.write("m.ir", with("").replace("graph @main", &format!("{}\ngraph @main", " ".repeat(1 << 16))));
    let run = dir.run(&["opt", "m.ir"]);
    assert!(run.code == 2 && run.stderr.contains("`--passes` is missing"), "{run}");
}

#[test]
fn an_option_is_said_once() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let run = dir.run(&["opt", "m.ir", "--passes", "classify{to=f16, to=bf16}"]);
    assert!(run.code == 2 && run.stderr.contains("pass `classify` has the option `to` twice"), "{run}");
}
