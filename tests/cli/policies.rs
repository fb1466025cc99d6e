//! Policies, presets, targets and objectives, and lists of operators as other tools have them.

use super::support::{Dir, MLP, snapshot};

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

/// The cost of the cheapest casts is in the report, and a report repeats the choice.
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
        assert!(
            run.code == 0 && run.stderr.contains("  time       1.23 µs -> 1.62 µs predicted for generic"),
            "{run}"
        );
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

/// Signatures in a policy for operators of the user's own.
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
