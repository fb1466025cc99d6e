//! `ampc train-step`: what it writes and shows, and what it refuses.

use super::support::{Dir, MLP, Run, module, snapshot};

/// A linear model with normalization of what it makes.
const NORMALIZED: &str = "  input %x : f32[4, 3]\n  const %w : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n  \
                          const %scale : f32[2] = [1.0, 2.0]\n  const %bias : f32[2] = [0.5, 0.25]\n  \
                          const %mean : f32[2] = [0.0, 0.0]\n  const %var : f32[2] = [1.0, 1.0]\n  \
                          %h = MatMul(%x, %w) : f32[4, 2] @product\n  \
                          %n, %m, %v = BatchNormalization(%h, %scale, %bias, %mean, %var) {training_mode=1} : \
                          f32[4, 2], f32[2], f32[2] @norm\n  output %n\n";

const LINEAR: &str = "  input %x : f32[4, 3]\n  const %w : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n  \
                      %y = MatMul(%x, %w) : f32[4, 2] @product\n  output %y\n";

/// `train-step m.ir -o s.onnx --state s.safetensors`, and more.
fn step(dir: &Dir, more: &[&str]) -> Run {
    dir.run(&[&["train-step", "m.ir", "-o", "s.onnx", "--state", "s.safetensors"], more].concat())
}

/// Bytes by precision and use, and which way casts go: 2 bytes a number for a low copy, 8 for the states of AdamW.
#[test]
fn the_summary_counts_bytes_and_casts() {
    let dir = Dir::new();
    dir.write("m.ir", module(NORMALIZED));
    snapshot("train_step", &step(&dir, &["--loss", "mse", "--clip-norm", "1", "--force"]));
    snapshot("train_step_fp32", &step(&dir, &["--loss", "mse", "--fp32", "--optimizer", "sgd", "--force"]));
    let none = ["--loss", "mse", "--optimizer", "none", "--policy", "all", "--force"];
    snapshot("train_step_gradients", &step(&dir, &none));
}

/// Without master weights: 2 bytes a number for a weight, and no copy. A policy of jmp says the same by its parameters,
/// and the option has the last word.
#[test]
fn weights_are_kept_in_16_bits_on_request() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    let asked = ["--loss", "mse", "--policy", "all", "--master-weights", "none", "--force"];
    snapshot("train_step_low_weights", &step(&dir, &asked));
    let line = |policy: &str, more: &[&str]| {
        let run = step(&dir, &[&["--loss", "mse", "--force", "--policy", policy], more].concat());
        assert_eq!(run.code, 0, "{run}");
        run.stderr.lines().find(|line| line.starts_with("low ")).unwrap().to_owned()
    };
    let none = "low         12 B of parameters, 0 B of low copies";
    let fp32 = "low         0 B of parameters, 12 B of low copies";
    assert_eq!(line("jmp:p=f16,c=f16,o=f32", &[]), none);
    assert_eq!(line("jmp:p=f32,c=f16,o=f32", &[]), fp32);
    assert_eq!(line("jmp:p=f16,c=f16,o=f32", &["--master-weights", "fp32"]), fp32);
}

/// An open batch is one number, whatever its name; other open dims are given, or named with the number that they are taken as.
#[test]
fn the_estimate_of_memory_names_the_dims_that_it_assumes() {
    let dir = Dir::new();
    let open = "  input %x : f32[B, T, 3]\n  const %w : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n  \
                %y = MatMul(%x, %w) : f32[B, T, 2] @product\n  output %y\n";
    dir.write("m.ir", module(open));
    let peak = |more: &[&str]| {
        let run = step(&dir, &[&["--loss", "mse", "--fp32", "--optimizer", "sgd", "--force"], more].concat());
        assert_eq!(run.code, 0, "{run}");
        run.stderr.lines().find(|line| line.starts_with("peak")).unwrap().to_owned()
    };
    let assumed = peak(&[]);
    assert!(
        assumed.contains(
            "batch 1 (`B`): `--dim B=32` for your batch; `T` taken as 128: `--dim T=N` gives another size"
        ),
        "{assumed}"
    );
    let given = peak(&["--dim", "B=2,T=5"]);
    assert!(given.contains("`B` = 2, `T` = 5") && !given.contains("taken as"), "{given}");
    assert_eq!(peak(&["--dim", "B=1", "--dim", "T=128"]).split(" of ").next(), assumed.split(" of ").next());
    for (dims, message) in
        [("S=1", "no input has a dim `S`; the open dims are B, T"), ("B=1,B=2", "two sizes")]
    {
        let run = step(&dir, &["--loss", "mse", "--fp32", "--force", "--dim", dims]);
        assert!(run.code == 2 && run.stderr.contains(message), "{run}");
    }
}

/// A size that does not fit is named with its option, and the model is not said to be invalid.
#[test]
fn a_size_that_does_not_fit_the_step_is_named() {
    let dir = Dir::new();
    let body = "  input %x : f32[B, S, 4]\n  const %p : f32[1, 64, 4] = random(1)\n  const %w : f32[4, 2] = random(2)\n  \
                %a = Add(%x, %p) : f32[B, 64, 4] @plus\n  %y = MatMul(%a, %w) : f32[B, 64, 2] @head\n  output %y\n";
    dir.write("m.ir", module(body));
    let peak = |more: &[&str]| {
        let run = step(&dir, &[&["--loss", "mse", "--fp32", "--optimizer", "sgd", "--force"], more].concat());
        assert_eq!(run.code, 0, "{run}");
        run.stderr.lines().find(|line| line.starts_with("peak")).unwrap().to_owned()
    };
    for (more, size) in [(&[][..], 128), (&["--dim", "S=100,B=2"], 100)] {
        let said = peak(more);
        assert!(
            said.contains(&format!("unknown: S = {size} does not fit this model (Add `plus`: ")),
            "{said}"
        );
        assert!(said.ends_with("; `--dim S=N` gives another size") && !said.contains("invalid"), "{said}");
    }
    assert!(!peak(&["--dim", "S=64"]).contains("unknown"));
}

/// Roles in the text form and in a drawing.
#[test]
fn what_nodes_are_for_is_shown() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    let options =
        ["--loss", "mse", "--optimizer", "sgd", "--clip-norm", "1", "--scaler", "torch", "--force", "-q"];
    for (name, emit) in [("s.txt", "text"), ("s.dot", "dot")] {
        let args = ["train-step", "m.ir", "-o", name, "--state", "s.safetensors", "--emit", emit];
        let run = dir.run(&[&args[..], &options[..]].concat());
        assert_eq!(run.code, 0, "{run}");
        let text = std::fs::read_to_string(dir.path(name)).unwrap();
        for role in ["loss", "unscale", "grad-check", "clip", "master-weight", "step", "loss-scale"] {
            let shown = if emit == "text" { format!("ampc.role=\"{role}\"") } else { format!("\\n{role}\"") };
            assert!(text.contains(&shown), "{emit} has no {role}:\n{text}");
        }
        let hash = [(r#"(meta ampc\.step = )"[0-9a-f]{32}"#, "$1\"[hash]")];
        insta::with_settings!({filters => hash, snapshot_path => "snapshots", prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(format!("train_step_{emit}"), text);
        });
    }
}

/// The report: a weight and its states, casts and nodes with phases and roles.
#[test]
fn a_report_says_what_a_step_is_made_of() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    let options = ["--loss", "mse", "--optimizer", "sgd", "--policy", "all", "--report", "r.json", "-q"];
    let run = step(&dir, &options);
    assert_eq!(run.code, 0, "{run}");
    let text = std::fs::read_to_string(dir.path("r.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let roles: Vec<&str> =
        report["nodes"].as_array().unwrap().iter().filter_map(|node| node["role"].as_str()).collect();
    for role in ["loss", "unscale", "grad-check", "master-weight", "step", "loss-scale"] {
        assert!(roles.contains(&role), "{role}: {text}");
    }
    let of_phase = |phase: &str, key: &str| {
        let phases = report["phases"].as_array().unwrap();
        phases.iter().find(|p| p["phase"] == phase).unwrap()[key].as_u64().unwrap()
    };
    // x is cast and y is cast back, 12 and 8 elements; the gradient of y is cast, and then that of w.
    assert_eq!((of_phase("fwd", "casts_to_low"), of_phase("fwd", "casts_to_fp32")), (1, 1), "{text}");
    assert_eq!(of_phase("fwd", "cast_bytes"), 2 * 12 + 4 * 8, "{text}");
    assert_eq!(of_phase("opt", "casts_to_low") + of_phase("opt", "casts_to_fp32"), 0, "{text}");
    let kinds: Vec<&str> =
        report["states"].as_array().unwrap().iter().map(|s| s["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["weight", "low", "step", "loss-scale", "good"], "{text}");
    assert_eq!(report["states"][1]["of"], "w");
    assert_eq!(report["states"][1]["bytes"], 12);
}

/// A step, its forward model again, and what is refused on the way.
#[test]
fn a_step_is_exported() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    assert_eq!(step(&dir, &["--loss", "mse", "-q"]).code, 0);
    let export = |more: &[&str]| dir.run(&[&["train-step", "--export"], more].concat());
    snapshot("train_step_export", &export(&["s.onnx", "--state", "s.safetensors", "-o", "f.onnx"]));
    snapshot("train_step_export_exists", &export(&["s.onnx", "--state", "s.safetensors", "-o", "f.onnx"]));
    snapshot("train_step_export_no_step", &export(&["m.ir", "--state", "s.safetensors", "-o", "g.onnx"]));
    snapshot(
        "train_step_export_no_state",
        &export(&["s.onnx", "--state", "none.safetensors", "-o", "g.onnx"]),
    );
    dir.write(
        "n.ir",
        module(
            &LINEAR
                .replace("[3, 2]", "[3, 1]")
                .replace("2.0, 3.0, 4.0, 5.0, 6.0", "2.0, 3.0")
                .replace("[4, 2]", "[4, 1]"),
        ),
    );
    let other = ["train-step", "n.ir", "-o", "n.onnx", "--state", "n.safetensors", "--loss", "mse", "-q"];
    assert_eq!(dir.run(&other).code, 0);
    snapshot(
        "train_step_export_other_state",
        &export(&["s.onnx", "--state", "n.safetensors", "-o", "g.onnx"]),
    );
    let flags = ["s.onnx", "--state", "s.safetensors", "-o", "g.onnx", "--optimizer", "sgd"];
    snapshot("train_step_export_flags", &export(&flags));
    assert!(!dir.files().iter().any(|file| file.starts_with('g')), "{:?}", dir.files());
}

/// A refusal: its text, and that nothing was written.
fn refused(name: &str, body: &str, options: &[&str], code: i32) {
    let dir = Dir::new();
    dir.write("m.ir", module(body));
    dir.write("scaler.json", r#"{"init": 1024, "factor": 2}"#);
    let before = dir.files();
    let run = step(&dir, options);
    assert_eq!(run.code, code, "{run}");
    assert_eq!(dir.files(), before, "nothing is left");
    let errors = run.stderr.lines().filter(|line| line.starts_with("  x ") || line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "one error\n{run}");
    snapshot(&format!("train_step_{name}"), &run);
}

#[test]
fn losses_that_do_not_fit() {
    let labels = format!("  input %labels : f32[4]\n{LINEAR}");
    refused("float_labels", &labels, &["--loss", "cross-entropy", "--target-input", "labels"], 3);
    refused("loss_is_no_scalar", LINEAR, &["--loss", "output:y"], 3);
    refused("no_such_output", LINEAR, &["--loss", "mse:of=logits"], 2);
    refused("no_such_loss", LINEAR, &["--loss", "output:loss"], 2);
    let column = format!("  input %column : f32[4, 1]\n{LINEAR}");
    refused("broadcast_targets", &column, &["--loss", "mse", "--target-input", "column"], 3);
    refused("unnamed_targets", LINEAR, &["--loss", "mse", "--target-input", ""], 2);
    let integers = "  input %x : i32[4]\n  %y = Neg(%x) : i32[4]\n  output %y\n";
    refused("no_parameters", integers, &["--loss", "mse"], 3);
}

#[test]
fn parameters_that_cannot_be_trained() {
    let unused = format!(
        "{LINEAR}  const %v : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n  %z = MatMul(%x, %v) : f32[4, 2] @other\n  \
         output %z\n"
    );
    refused("unused_parameter", &unused, &["--loss", "mse"], 3);
    refused("freeze_matches_nothing", LINEAR, &["--loss", "mse", "--freeze", "layer.*"], 2);
    refused("train_matches_nothing", LINEAR, &["--loss", "mse", "--train", "layer.*"], 2);
    refused("decay_matches_nothing", LINEAR, &["--loss", "mse", "--decay", "*.bias=0"], 2);
    refused("all_frozen", LINEAR, &["--loss", "mse", "--freeze", "*"], 3);
    let none = "  input %x : f32[4]\n  %y = Neg(%x) : f32[4]\n  output %y\n";
    refused("nothing_to_train", none, &["--loss", "mse"], 3);
    let det = "  input %x : f32[3, 3]\n  const %w : f32[3, 3] = random(1)\n  %h = MatMul(%x, %w) : f32[3, 3] @product\n  \
               %y = Det(%h) : f32 @volume\n  output %y\n";
    refused("no_gradient", det, &["--loss", "mse"], 4);
    let quantized = "  input %x : u8[4, 3]\n  const %w : i8[3, 2] = [1, 2, 3, 4, 5, 6]\n  const %s : f32 = 0.5\n  \
                     %h = MatMulInteger(%x, %w) : i32[4, 2] @product\n  %f = Cast(%h) {to=1} : f32[4, 2]\n  \
                     %y = Mul(%f, %s) : f32[4, 2]\n  output %y\n";
    refused("quantized", quantized, &["--loss", "mse"], 3);
}

#[test]
fn settings_that_nobody_knows() {
    for (name, option, value) in [
        ("loss_kind", "--loss", "huber"),
        ("loss_setting", "--loss", "cross-entropy:smoothing=0.1"),
        ("loss_value", "--loss", "cross-entropy:label_smoothing=2"),
        ("optimizer_kind", "--optimizer", "lion"),
        ("optimizer_setting", "--optimizer", "adamw:beta3=0.9"),
        ("optimizer_value", "--optimizer", "adam:beta1=1"),
        ("scaler_kind", "--scaler", "apex"),
        ("scaler_setting", "--scaler", "torch:factor=2"),
        ("scaler_value", "--scaler", "torch:growth=0.5"),
        ("scaler_file", "--scaler", "scaler.json"),
        ("scaler_missing_file", "--scaler", "none.json"),
        ("clip_norm", "--clip-norm", "0"),
        ("decay", "--decay", "bias"),
    ] {
        let loss: &[&str] = if option == "--loss" { &[] } else { &["--loss", "mse"] };
        let code = if name == "scaler_missing_file" { 5 } else { 2 };
        refused(name, LINEAR, &[loss, &[option, value]].concat(), code);
    }
}

/// Numbers that are infinite or 0 in f32, in which a step computes.
#[test]
fn numbers_that_f32_does_not_hold() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    for (option, value) in [
        ("--decay", "*=1e39"),
        ("--decay", "*=inf"),
        ("--clip-norm", "1e39"),
        ("--clip-norm", "1e-46"),
        ("--optimizer", "adamw:weight_decay=1e39"),
        ("--optimizer", "adamw:eps=1e39"),
        ("--optimizer", "sgd:momentum=1e39"),
        ("--scaler", "static:1e39"),
        ("--scaler", "torch:init=1e39"),
        ("--scaler", "torch:growth=1e39"),
        ("--scaler", "torch:growth=1.00000001"),
        ("--scaler", "torch:backoff=1e-46"),
        ("--scaler", "torch:backoff=0.99999999"),
        ("--scaler", "torch:max=1e39"),
        ("--scaler", "torch:interval=4294967295"),
        ("--scaler", "torch:backoff_every=4294967295"),
        ("--loss", "cross-entropy:label_smoothing=1e39"),
    ] {
        let loss: &[&str] = if option == "--loss" { &[] } else { &["--loss", "mse"] };
        let run = step(&dir, &[loss, &[option, value]].concat());
        assert!(run.code == 2 && run.stderr.contains("expected"), "{option} {value}: {run}");
    }
    for passes in
        ["update{decay=\"*=1e39\"}", "update{clip_norm=1e39}", "update{scaler=\"torch:growth=1e39\"}"]
    {
        let run = dir.run(&["opt", "m.ir", "--passes", passes]);
        assert!(run.code == 2, "{passes}: {run}");
    }
    for schedule in ["1e39", "constant:lr=1e39", "linear:lr=1,final=1e39", "one-cycle:lr=1,start=1e39"] {
        let words = [
            "train",
            "s.onnx",
            "--state",
            "s.safetensors",
            "--data",
            "d.npz",
            "--steps",
            "1",
            "--lr",
            schedule,
        ];
        let run = dir.run(&words);
        assert!(run.code == 2 && run.stderr.contains("a finite learning rate"), "{schedule}: {run}");
    }
}

#[test]
fn a_scaler_of_a_file_has_fields_and_numbers_that_make_sense() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    let whole = r#"{"init": 1024, "growth": 2, "backoff": 0.5, "interval": 100, "backoff_every": 1, "min": 1, "max": null,
        "reset_good_on_overflow": true, "on_overflow": "skip", "arith": "f64_product"}"#;
    for (what, text, message) in [
        ("a wrong field", whole.replace("init", "scale"), "unknown field `scale`"),
        ("a wrong word", whole.replace("\"skip\"", "\"stop\""), "unknown variant `stop`"),
        ("a wrong type", whole.replace("1024", "\"1024\""), "invalid type: string"),
        ("a wrong number", whole.replace("0.5", "1.5"), "`backoff` has to be between 0 and 1"),
        ("no JSON", "init=1024".to_owned(), "expected value"),
    ] {
        dir.write("scaler.json", text);
        let run = step(&dir, &["--loss", "mse", "--scaler", "scaler.json"]);
        assert!(run.code == 2 && run.stderr.contains(message), "{what}: {run}");
        assert!(run.stderr.contains("scaler.json"), "{what}: {run}");
        assert_eq!(dir.files(), ["m.ir", "scaler.json"], "{what}");
    }
    // What is left out is that of the default.
    for text in [whole, r#"{"init": 1024}"#] {
        dir.write("scaler.json", text);
        let run = step(&dir, &["--loss", "mse", "--scaler", "scaler.json", "--force"]);
        assert_eq!(run.code, 0, "{run}");
    }
}

#[test]
fn a_step_is_no_forward_model() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    let args = ["train-step", "m.onnx", "-o", "s.onnx", "--state", "s.safetensors", "--loss", "mse", "-q"];
    assert_eq!(dir.run(&args).code, 0);
    let args = ["train-step", "s.onnx", "-o", "t.onnx", "--state", "t.safetensors", "--loss", "mse"];
    let run = dir.run(&args);
    assert_eq!(run.code, 4, "{run}");
    snapshot("train_step_of_a_step", &run);
    assert_eq!(dir.files(), ["m.onnx", "s.onnx", "s.safetensors"]);
}

#[test]
fn files_that_exist_stay() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    for name in ["s.onnx", "s.safetensors"] {
        dir.write(name, "mine");
        let run = step(&dir, &["--loss", "mse"]);
        assert_eq!(run.code, 5, "{run}");
        assert_eq!(dir.files(), ["m.ir", name], "{run}");
        assert_eq!(std::fs::read(dir.path(name)).unwrap(), b"mine");
        std::fs::remove_file(dir.path(name)).unwrap();
    }
    let run = dir.run(&["train-step", "m.ir", "-o", "s.onnx", "--state", "s.onnx", "--loss", "mse"]);
    assert!(run.code == 2 && dir.files() == ["m.ir"], "{run}");
}

/// A parameter that the loss does not depend on is not an input of the step: every tensor of the state comes back.
#[test]
fn a_state_has_a_next_value_for_all_that_is_in_it() {
    let unused = format!(
        "{LINEAR}  const %v : f16[2] = [1.0, 2.0]\n  %c = Cast(%v) {{to=1}} : f32[2]\n  %z = Mul(%y, %c) : f32[4, 2]\n  \
         output %z\n"
    );
    for options in [&["--fp32"][..], &["--policy", "all"]] {
        let dir = Dir::new();
        dir.write("m.ir", module(&unused));
        let run = step(&dir, &[&["--loss", "mse", "--freeze-unused", "-q"], options].concat());
        assert_eq!(run.code, 0, "{run}");
        let text = dir.run(&["opt", "s.onnx", "--passes", ""]).stdout;
        assert!(text.contains("const %v : f16[2]"), "it stays the constant that it is\n{text}");
        let exported =
            ["train-step", "--export", "s.onnx", "--state", "s.safetensors", "-o", "e.onnx", "--force", "-q"];
        let run = dir.run(&exported);
        assert_eq!(run.code, 0, "{run}");
    }
    let dir = Dir::new();
    dir.write("m.ir", module(&unused));
    let options = ["--loss", "mse:of=z", "--freeze", "w", "--freeze-unused", "-q"];
    assert_eq!(step(&dir, &options).code, 0, "a parameter that is reached");
    let floor = "  input %x : f32[4]\n  const %w : f32[4] = random(1)\n  %h = Mul(%x, %w) : f32[4] @product\n  \
                 %y = Floor(%h) : f32[4] @floor\n  output %y\n";
    refused("none_reached", floor, &["--loss", "mse", "--freeze-unused"], 3);
}

/// Without an optimizer, weights are not states, and the state has them.
#[test]
fn a_step_without_an_optimizer_is_exported() {
    let dir = Dir::new();
    dir.write("m.ir", module(NORMALIZED));
    let run = step(&dir, &["--loss", "mse", "--optimizer", "none", "--policy", "all", "-q"]);
    assert_eq!(run.code, 0, "{run}");
    let run = dir.run(&["train-step", "--export", "s.onnx", "--state", "s.safetensors", "-o", "e.ir", "-q"]);
    assert_eq!(run.code, 0, "{run}");
    let text = std::fs::read_to_string(dir.path("e.ir")).unwrap();
    assert!(text.contains("const %w : f32[3, 2]") && !text.contains("input %w"), "{text}");
}

/// An opset below that of PhiloxDropout, in a file that says nothing of types inside.
#[test]
fn a_model_with_dropouts_is_raised_whether_types_are_declared_or_not() {
    let dropout = "  input %x : f32[4, 3]\n  const %w : f32[3, 2] = random(1)\n  const %ratio : f32 = 0.5\n  \
                   const %train : bool = true\n  %h = MatMul(%x, %w) : ? @product\n  \
                   %y = Dropout(%h, %ratio, %train) : ? @drop\n  output %y : f32[4, 2]\n";
    let dir = Dir::new();
    dir.write("m.ir", module(dropout).replace("ai.onnx=21", "ai.onnx=13"));
    let run = step(&dir, &["--loss", "mse", "-q"]);
    assert_eq!(run.code, 0, "{run}");
}

/// A state is a file of its own, which is written only where a step is made, and read only where one is exported.
#[test]
fn states_are_files_of_their_own() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    assert_eq!(step(&dir, &["--loss", "mse", "-q"]).code, 0);
    let state = std::fs::read(dir.path("s.safetensors")).unwrap();
    let before = dir.files();
    let export = ["train-step", "--export", "s.onnx", "--force"];
    for (what, args, code, message) in [
        (
            "over the state",
            &["--state", "s.safetensors", "-o", "s.safetensors", "--emit", "onnx"][..],
            2,
            "the state",
        ),
        ("over its constants", &["--state", "s.safetensors", "-o", "s.ir"], 0, ""),
        ("no state", &["--state", "none.safetensors", "-o", "e.onnx"], 5, "cannot open `none.safetensors`"),
        ("a stream", &["--state", "-", "-o", "e.onnx"], 2, "expected the name of a file"),
    ] {
        let run = dir.run(&[&export[..], args].concat());
        assert!(run.code == code && run.stderr.contains(message), "{what}: {run}");
        assert_eq!(std::fs::read(dir.path("s.safetensors")).unwrap(), state, "{what}");
        for made in ["s.ir", "s.ir.safetensors"] {
            let _ = std::fs::remove_file(dir.path(made));
        }
        assert_eq!(dir.files(), before, "{what}");
    }
    for name in ["-", "m.ir"] {
        let args = ["train-step", "m.ir", "-o", "t.onnx", "--state", name, "--loss", "mse", "--force"];
        let run = dir.run(&args);
        assert_eq!(run.code, 2, "{run}");
        assert_eq!(dir.files(), before, "{run}");
    }
}

/// The file of a scaler is read, so it is none of the files that are written.
#[test]
fn the_scaler_is_not_replaced() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    let scaler = r#"{"init": 1024}"#;
    dir.write("sc.json", scaler);
    let base = ["train-step", "m.ir", "--loss", "mse", "--scaler", "sc.json", "--force"];
    for more in [
        &["-o", "s.onnx", "--state", "s.safetensors", "--report", "sc.json"][..],
        &["-o", "s.onnx", "--state", "sc.json"],
        &["-o", "sc.json", "--state", "s.safetensors"],
    ] {
        let run = dir.run(&[&base[..], more].concat());
        let said = run.stderr.replace("\n  | ", " ");
        assert!(run.code == 2 && said.contains("the same file as the scaler `sc.json`"), "{run}");
        assert_eq!(std::fs::read_to_string(dir.path("sc.json")).unwrap(), scaler);
        assert_eq!(dir.files(), ["m.ir", "sc.json"]);
    }
    let run = dir.run(&[&base[..], &["-o", "s.onnx", "--state", "s.safetensors"]].concat());
    assert_eq!(run.code, 0, "{run}");
}
