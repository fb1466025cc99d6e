//! `ampc rewrite --search`: the cheapest formats within a tolerance on data.

use super::run::write_npz;
use super::support::{Dir, Run, module, snapshot};
use ampc::ir::random::uniform;
use ampc::runtime::HostTensor;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Twelve residual blocks, of which the seventh has a branch beyond the range of fp16: `b0` makes it, `b4` leaves it.
fn twelve_blocks() -> String {
    let mut text = String::from("input %x0 : f32[8, 32]\nconst %big : f32 = 300.0\n");
    for i in 0..12 {
        writeln!(
            text,
            "const %w{i} : f32[32, 32] = random({i}, 0.2)\nconst %v{i} : f32[32, 32] = random({}, 0.2)",
            i + 50
        )
        .unwrap();
    }
    for i in 0..12 {
        writeln!(
            text,
            "%h{i} = MatMul(%x{i}, %w{i}) : f32[8, 32] @h{i}\n%r{i} = Relu(%h{i}) : f32[8, 32] @r{i}"
        )
        .unwrap();
        let last = if i == 6 {
            for line in [
                "%a = Mul(%r6, %big) : f32[8, 32] @a",
                "%b0 = Mul(%a, %big) : f32[8, 32] @b0",
                "%b1 = Neg(%b0) : f32[8, 32] @b1",
                "%b2 = Neg(%b1) : f32[8, 32] @b2",
                "%b3 = Abs(%b2) : f32[8, 32] @b3",
                "%b4 = Div(%b3, %big) : f32[8, 32] @b4",
                "%c = Div(%b4, %big) : f32[8, 32] @c",
            ] {
                writeln!(text, "{line}").unwrap();
            }
            "c".to_owned()
        } else {
            format!("r{i}")
        };
        writeln!(text, "%m{i} = MatMul(%{last}, %v{i}) : f32[8, 32] @m{i}\n%x{} = Add(%x{i}, %m{i}) : f32[8, 32] @add{i}", i + 1).unwrap();
    }
    text.push_str("output %x12 : f32[8, 32]\n");
    module(&text)
}

fn dir_with_batches(batches: u64) -> Dir {
    let dir = Dir::new();
    dir.write("m.ir", twelve_blocks());
    std::fs::create_dir(dir.path("data")).unwrap();
    for seed in 0..batches {
        let values: Vec<f32> = (0..256).map(|i| uniform(seed + 100, i, 2.0)).collect();
        let x = HostTensor::from_slice(&[8, 32], &values).unwrap();
        write_npz(&dir, &format!("data/b{seed}.npz"), &[("x0", x)]);
    }
    dir
}

fn report(dir: &Dir, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(dir.path(name)).unwrap()).unwrap()
}

/// The fp32 nodes of a report.
fn full(report: &Value) -> BTreeSet<String> {
    let nodes = report["nodes"].as_array().unwrap().iter();
    let is_full =
        |node: &&Value| node["vars"].as_array().unwrap().iter().any(|var| var["precision"] == "fp32");
    nodes.filter(is_full).map(|node| node["path"].as_str().unwrap().to_owned()).collect()
}

fn search(dir: &Dir, more: &[&str]) -> Run {
    let args =
        ["rewrite", "m.ir", "-o", "a.onnx", "--force", "--report", "r.json", "--search", "--inputs", "data"];
    dir.run(&[&args[..], more].concat())
}

/// A branch that overflows stays fp32, and nothing else does: found by a search as well as by calibration.
#[test]
fn the_overflowing_branch_alone_stays_fp32() {
    let dir = dir_with_batches(3);
    let branch: BTreeSet<String> = ["b0", "b1", "b2", "b3", "b4"].map(String::from).into();
    assert_eq!(dir.run(&["rewrite", "m.ir", "-o", "a.onnx", "--report", "r.json"]).code, 0);
    let without = full(&report(&dir, "r.json"));
    let found =
        |dir: &Dir| full(&report(dir, "r.json")).difference(&without).cloned().collect::<BTreeSet<_>>();
    let run = search(&dir, &["--write-policy", "p.json", "--pareto", "c.json"]);
    snapshot("search", &run);
    assert_eq!(found(&dir), branch);
    let model = std::fs::read(dir.path("a.onnx")).unwrap();

    let choices = report(&dir, "c.json");
    assert_eq!(choices["schema"], "ampc-pareto/1");
    assert!(
        choices["chosen"]["ratio"].as_f64().unwrap() <= 1.0
            && choices["held_out"]["ratio"].as_f64().unwrap() <= 1.0
    );
    let ratios = choices["points"].as_array().unwrap().iter().map(|point| point["ratio"].as_f64());
    assert!(ratios.is_sorted_by(|a, b| a.unwrap_or(f64::MAX) < b.unwrap_or(f64::MAX)), "{choices:#}");

    for policy in ["p.json", "r.json"] {
        let run = dir.run(&["rewrite", "m.ir", "-o", "b.onnx", "--force", "--policy", policy]);
        assert_eq!(run.code, 0, "{run}");
        assert_eq!(std::fs::read(dir.path("b.onnx")).unwrap(), model, "{policy}");
    }
    for threads in ["1", "2"] {
        assert_eq!(search(&dir, &["--threads", threads]).code, 0);
        assert_eq!(std::fs::read(dir.path("a.onnx")).unwrap(), model, "{threads} threads");
    }

    let args = ["rewrite", "m.ir", "-o", "a.onnx", "--force", "--report", "r.json", "--calibrate", "data"];
    assert_eq!(dir.run(&args).code, 0);
    assert_eq!(found(&dir), branch);
}

#[test]
fn a_policy_within_the_tolerance_is_kept() {
    let dir = dir_with_batches(1);
    let run = search(&dir, &["--to", "bf16"]);
    snapshot("search_kept", &run);
}

#[test]
fn nothing_is_written_beyond_the_tolerance() {
    let dir = dir_with_batches(2);
    let run = search(&dir, &["--budget", "1", "--write-policy", "p.json"]);
    snapshot("search_beyond", &run);
    assert_eq!(dir.files(), ["data", "m.ir"]);
}

/// Labels have no gradient. The operators before them stay fp32 all the same, and with all in fp32, a tolerance of 0 is met.
#[test]
fn labels_agree_at_a_tolerance_of_0() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x0 : f32[64, 32]\n  const %w : f32[32, 32] = random(1, 0.0001)\n  \
             const %v : f32[32, 32] = random(2, 0.2)\n  const %b : f32 = 3.0\n  \
             %h = MatMul(%x0, %w) : f32[64, 32] @h\n  %s = Add(%h, %b) : f32[64, 32] @s\n  \
             %i = ArgMax(%s) {axis=1} : i64[64, 1] @i\n  %y = MatMul(%x0, %v) : f32[64, 32] @y\n  \
             output %i : i64[64, 1]\n  output %y : f32[64, 32]\n",
        ),
    );
    let values: Vec<f32> = (0..2048).map(|i| uniform(7, i, 1.0)).collect();
    write_npz(&dir, "d.npz", &[("x0", HostTensor::from_slice(&[64, 32], &values).unwrap())]);
    let args =
        ["rewrite", "m.ir", "-o", "a.onnx", "--force", "--report", "r.json", "--search", "--inputs", "d.npz"];
    let with = |more: &[&str]| dir.run(&[&args[..], &["--policy", "all"], more].concat());
    assert_eq!(with(&["--tolerance", "1e-2", "--output-tolerance", "i=0", "--budget", "1"]).code, 1);
    let run = with(&["--tolerance", "1e-2", "--output-tolerance", "i=0"]);
    assert_eq!(run.code, 0, "{run}");
    let found = full(&report(&dir, "r.json"));
    assert!(found.contains("s") && !found.contains("y"), "{found:?}");
    let run = with(&["--tolerance", "0"]);
    assert_eq!(run.code, 0, "{run}");
}

/// The first batch is too small for the branch to overflow, and the last, which is held out, is not.
#[test]
fn a_result_that_fails_on_the_held_out_batch_is_searched_on_all_batches() {
    let dir = dir_with_batches(2);
    let small: Vec<f32> = (0..256).map(|i| uniform(100, i, 1e-4)).collect();
    write_npz(&dir, "data/b0.npz", &[("x0", HostTensor::from_slice(&[8, 32], &small).unwrap())]);
    // Without a choice left, the failure on the held-out batch is the result.
    let run =
        search(&dir, &["--policy", "all", "--tolerance", "2e-3", "--budget", "1", "--pareto", "p.json"]);
    assert_eq!(run.code, 1, "{run}");
    assert!(run.stderr.contains("on the held-out batch") && run.stderr.contains("--budget"), "{run}");
    assert!(!dir.files().contains(&"a.onnx".to_owned()), "{run}");
    let run = search(&dir, &["--policy", "all", "--tolerance", "2e-3", "--pareto", "p.json"]);
    assert_eq!(run.code, 0, "{run}");
    assert!(run.stderr.contains("on all batches"), "{run}");
    let nodes = full(&report(&dir, "r.json"));
    assert!(nodes.contains("b1") && !nodes.contains("h0"), "{nodes:?}");
    let pareto = report(&dir, "p.json");
    assert!(!pareto["points"].as_array().unwrap().is_empty() && pareto.get("held_out").is_none(), "{pareto}");
}

/// A rewrite is compared on every batch of a folder, and the failing batch is named; batches may have other sizes.
#[test]
fn models_are_compared_on_all_batches_of_a_folder() {
    let dir = Dir::new();
    let text = "input %x : f32[N, 2]\nconst %w : f32[2, 2] = [300.0, 0.0, 0.0, 300.0]\n%y = MatMul(%x, %w) : f32[N, 2] @scale\n\
                output %y : f32[N, 2]\n";
    dir.write("m.ir", module(text));
    std::fs::create_dir(dir.path("data")).unwrap();
    let batch = |name: &str, rows: u64, number: f32| {
        let numbers = vec![number; usize::try_from(2 * rows).unwrap()];
        write_npz(&dir, name, &[("x", HostTensor::from_slice(&[rows, 2], &numbers).unwrap())]);
    };
    batch("data/a.npz", 1, 1.0);
    batch("data/b.npz", 3, 2.0);
    let args = ["rewrite", "m.ir", "-o", "a.onnx", "--force", "--verify", "--inputs", "data"];
    assert_eq!(dir.run(&args).code, 0);
    assert_eq!(dir.run(&["verify", "m.ir", "a.onnx", "--inputs", "data"]).code, 0);
    batch("data/b.npz", 3, 400.0);
    let run = dir.run(&["verify", "m.ir", "a.onnx", "--inputs", "data"]);
    assert!(run.code == 1 && run.to_string().contains("b.npz"), "{run}");
    let run = dir.run(&args);
    assert!(run.code == 1 && run.stderr.contains("b.npz"), "{run}");
}

/// A choice that cannot be computed, since a rounded index is out of range, is rejected like any other.
#[test]
fn a_choice_that_cannot_be_computed_is_beyond_the_tolerance() {
    let dir = Dir::new();
    let text = "input %x : f32[1, 4]\nconst %w : f32[4, 4] = random(1, 0.5)\nconst %i : f32[4, 1] = [1.0, 0.0, 0.0, 0.0]\n\
                const %t : f32[2052, 4] = random(2, 0.5)\n%s = MatMul(%x, %i) : f32[1, 1] @index\n\
                %n = Cast(%s) {to=7} : i64[1, 1] @number\n%r = Gather(%t, %n) {axis=0} : f32[1, 1, 4] @row\n\
                %y = MatMul(%r, %w) : f32[1, 1, 4] @project\noutput %y : f32[1, 1, 4]\n";
    dir.write("m.ir", module(text));
    // 2051, the last row, is rounded to 2052 in fp16.
    write_npz(
        &dir,
        "data.npz",
        &[("x", HostTensor::from_slice(&[1, 4], &[2051.0f32, 0.0, 0.0, 0.0]).unwrap())],
    );
    let args =
        ["rewrite", "m.ir", "-o", "a.onnx", "--report", "r.json", "--inputs", "data.npz", "--policy", "all"];
    let run = dir.run(&[&args[..], &["--search"]].concat());
    assert_eq!(run.code, 0, "{run}");
    let nodes = full(&report(&dir, "r.json"));
    assert!(nodes.contains("index") && !nodes.contains("project"), "{nodes:?}");
    // A verification gives the same advice, writes its report, and exits as for any other difference.
    let run = dir.run(&[&args[..], &["--verify", "--force"]].concat());
    assert_eq!(run.code, 1, "{run}");
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("cannot be computed") && said.contains("--pin index=fp32"), "{run}");
    assert_eq!(report(&dir, "r.json")["verify"]["passed"], false);
}

/// In fp16, the factor of the state is rounded to 1, so the loop of the rewrite would not end.
#[test]
fn a_loop_that_rounding_keeps_from_ending_is_beyond_the_tolerance() {
    let dir = Dir::new();
    let text = "input %x : f32[1, 2]\nconst %w : f32[2, 2] = [1.0001, 0.0, 0.0, 1.0001]\nconst %most : f32 = 1.05\n\
                const %yes : bool = true\n%y = Loop(_, %yes, %x; %w, %most) {\n  body: graph @body(%w, %most) {\n    \
                input %i : i64\n    input %c : bool\n    input %s : f32[1, 2]\n    const %axes : i64[2] = [0, 1]\n    \
                %t = MatMul(%s, %w) : f32[1, 2] @step\n    %m = ReduceMax(%t, %axes) {keepdims=0} : f32[] @largest\n    \
                %d = Less(%m, %most) : bool[] @goes_on\n    output %d : bool[]\n    output %t : f32[1, 2]\n  }\n\
                } : f32[1, 2] @loop\noutput %y : f32[1, 2]\n";
    dir.write("m.ir", module(text));
    write_npz(&dir, "data.npz", &[("x", HostTensor::from_slice(&[1, 2], &[1.0f32, 0.5]).unwrap())]);
    let args = ["rewrite", "m.ir", "-o", "a.onnx", "--force", "--inputs", "data.npz", "--policy", "all"];
    let run = dir.run(&[&args[..], &["--search"]].concat());
    assert_eq!(run.code, 0, "{run}");
    let run = dir.run(&[&args[..], &["--verify"]].concat());
    assert!(run.code == 1 && run.stderr.contains("cannot be computed"), "{run}");
}

#[test]
fn wrong_arguments_are_refused() {
    let dir = dir_with_batches(1);
    for (name, more) in [
        ("metric", &["--metric", "most"][..]),
        ("output", &["--output-tolerance", "y=1e-3"][..]),
        ("verify", &["--verify"][..]),
        ("output_twice", &["--output-tolerance", "x12=1", "--output-tolerance", "x12=2"][..]),
        ("budget_0", &["--budget", "0"][..]),
        ("over_data", &["--write-policy", "data/b0.npz"][..]),
        ("over_model", &["--pareto", "a.onnx"][..]),
    ] {
        snapshot(&format!("search_{name}"), &search(&dir, more));
        assert_eq!(dir.files(), ["data", "m.ir"]);
    }
    let run = dir.run(&["rewrite", "m.ir", "--search"]);
    snapshot("search_without_data", &run);
    let run = dir.run(&["rewrite", "m.ir", "-o", "a.onnx", "--tolerance", "1"]);
    snapshot("search_tolerance_alone", &run);
}
