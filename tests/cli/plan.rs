//! `ampc plan` and `--profile`: bytes, operations, least times and measured times.

use super::support::{Dir, MATMUL, module, snapshot};
use serde_json::Value;

#[test]
fn a_plan_has_lower_bounds() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    snapshot("plan_target", &dir.run(&["plan", "m.ir", "--dim", "N=1024", "--target", "h200"]));
    snapshot("plan_json", &dir.run(&["plan", "m.ir", "--dim", "N=2", "--json"]));
    let other = dir.run(&["plan", "m.ir", "--dim", "M=2"]);
    assert!(other.code == 2 && other.stderr.contains("no input has a dim `M`"), "{other}");
    let target = dir.run(&["plan", "m.ir", "--target", "h20"]);
    assert!(target.code == 2 && target.stderr.contains("did you mean"), "{target}");
}

/// The plan is that of a run, whose values nothing computes.
#[test]
fn a_plan_is_that_of_the_run() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let run = dir.run(&["run", "m.ir", "-q", "--dim", "N=3", "--print-plan"]).stdout;
    let plan = dir.run(&["plan", "m.ir", "--dim", "N=3"]).stdout;
    let of_run =
        run.split("output").next().unwrap().lines().filter(|line| line.starts_with(' ')).collect::<Vec<_>>();
    assert!(!of_run.is_empty() && of_run.iter().all(|line| plan.contains(line)), "{run}\n{plan}");
}

#[test]
fn a_profile_has_the_steps_of_the_plan() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let options = ["run", "m.ir", "-q", "--dim", "N=64", "--bench", "3", "--profile"];
    let plain = dir.run(&options);
    assert!(plain.code == 0 && !plain.stdout.contains("least"), "{plain}");
    let with = [&options[..], &["--target", "h200", "--profile-json", "p.json"]].concat();
    let profiled = dir.run(&with);
    assert_eq!(profiled.code, 0, "{profiled}");
    assert!(profiled.stdout.contains("time / least") && profiled.stdout.contains("all steps"), "{profiled}");
    // The outputs are those of a run without a profile.
    let output = |run: &str| run.lines().find(|line| line.starts_with("y ")).unwrap().to_owned();
    assert_eq!(output(&profiled.stdout), output(&plain.stdout));
    let json: Value = serde_json::from_slice(&std::fs::read(dir.path("p.json")).unwrap()).unwrap();
    assert_eq!((json["schema"].as_str(), json["runs"].as_u64()), (Some("ampc-profile/1"), Some(3)));
    let steps = json["graphs"][0]["steps"].as_array().unwrap();
    assert!(!steps.is_empty());
    for step in steps {
        assert!(step["measured_ps"].as_u64().unwrap() > 0, "{step}");
        assert!(step["least_ps"].as_u64().unwrap() >= 2_000_000, "{step}");
    }
    let again = dir.run(&with);
    assert!(again.code == 5 && again.stderr.contains("p.json"), "{again}");
    let alone = dir.run(&["run", "m.ir", "--target", "h200"]);
    assert_eq!(alone.code, 2, "{alone}");
}

#[test]
fn a_training_is_profiled_without_another_result() {
    let dir = Dir::new();
    let body = "  input %x : f32[4, 3]\n  const %w : f32[3, 2] = random(1)\n  %y = MatMul(%x, %w) : f32[4, 2] @fc\n  \
                output %y : f32[4, 2]\n";
    dir.write("m.ir", module(body));
    let made = dir.run(&[
        "train-step",
        "m.ir",
        "-o",
        "s.onnx",
        "--state",
        "s.safetensors",
        "--loss",
        "mse",
        "--optimizer",
        "adamw",
    ]);
    assert_eq!(made.code, 0, "{made}");
    let x: Vec<f32> = (0..24u8).map(|i| f32::from(i) / 8.0 - 1.0).collect();
    let t: Vec<f32> = (0..16u8).map(|i| f32::from(i) / 8.0 - 1.0).collect();
    let tensor = |dims: &[u64], values: &[f32]| ampc::runtime::HostTensor::from_slice(dims, values).unwrap();
    super::run::write_npz(&dir, "d.npz", &[("x", tensor(&[8, 3], &x)), ("target", tensor(&[8, 2], &t))]);
    let options = ["train", "s.onnx", "--state", "s.safetensors", "--data", "d.npz", "--steps", "6"];
    let plain = dir.run(&[&options[..], &["--save", "a.safetensors"]].concat());
    assert_eq!(plain.code, 0, "{plain}");
    let profile =
        ["--save", "b.safetensors", "--profile", "3", "--target", "h200", "--profile-json", "p.json"];
    let profiled = dir.run(&[&options[..], &profile].concat());
    assert!(profiled.code == 0 && profiled.stdout.contains("AdamW"), "{profiled}");
    let json: Value = serde_json::from_slice(&std::fs::read(dir.path("p.json")).unwrap()).unwrap();
    assert_eq!(json["runs"].as_u64(), Some(3));
    let read = |name: &str| std::fs::read(dir.path(name)).unwrap();
    assert_eq!(read("a.safetensors"), read("b.safetensors"));
    // The gradients of every step are read: no step is measured, which is said.
    let watched =
        ["--save", "c.safetensors", "--profile", "3", "--log", "log.jsonl", "--histogram-every", "1"];
    let unmeasured = dir.run(&[&options[..], &watched, &["--profile-json", "q.json"]].concat());
    assert!(unmeasured.code == 0 && !dir.path("q.json").exists(), "{unmeasured}");
    assert!(unmeasured.stderr.contains("no step was measured"), "{unmeasured}");
    // The only step is the first one, which is not measured.
    let single = ["train", "s.onnx", "--state", "s.safetensors", "--data", "d.npz", "--steps", "1"];
    let unmeasured = dir.run(&[&single[..], &["--save", "d.safetensors", "--profile", "3"]].concat());
    assert!(unmeasured.code == 0 && unmeasured.stderr.contains("no step was measured"), "{unmeasured}");
}
