//! The time that is predicted for a rewrite: when it warns, what it decides, and the sizes that it is for.

use super::support::{Dir, Run, module};

fn words(run: &Run) -> String {
    run.stderr.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ")
}

fn report(dir: &Dir) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(dir.path("r.json")).unwrap()).unwrap()
}

/// True if the rewrite is predicted to be slower than the source, and true if it is predicted to be faster.
fn slower_and_faster(report: &serde_json::Value) -> (bool, bool) {
    let time = |of: &str| report["time"][of].as_i64().unwrap();
    (time("rewritten") > time("source"), time("rewritten") < time("source"))
}

fn has_warning(report: &serde_json::Value, code: &str) -> bool {
    report["warnings"].as_array().unwrap().iter().any(|warning| warning["code"] == code)
}

/// A product of an open batch, which gains if the batch is large.
fn open_batch() -> String {
    module(
        "  input %x : f32[s0, 512]\n  input %z : f32[unk__1, 512]\n  const %w : f32[512, 512] = random(1, 0.1)\n  \
         %a = MatMul(%x, %w) : f32[s0, 512] @mm1\n  %b = MatMul(%z, %w) : f32[unk__1, 512] @mm2\n  \
         output %a : f32[s0, 512]\n  output %b : f32[unk__1, 512]\n",
    )
}

#[test]
fn a_rewrite_predicted_below_1_x_warns() {
    let dir = Dir::new();
    let (mut slower, mut faster) = (0, 0);
    for target in ["generic", "ort-cpu", "h200", "v100"] {
        for (name, batch) in [("one", "1"), ("many", "65536")] {
            dir.write("m.ir", open_batch());
            let dim = format!("s0={batch}");
            let run = dir.run(&[
                "rewrite", "m.ir", "-o", "o.onnx", "--force", "--target", target, "--dim", &dim, "--report",
                "r.json",
            ]);
            assert_eq!(run.code, 0, "{run}");
            let report = report(&dir);
            let (is_slower, is_faster) = slower_and_faster(&report);
            (slower, faster) = (slower + u32::from(is_slower), faster + u32::from(is_faster));
            assert_eq!(has_warning(&report, "rewrite.slower"), is_slower, "{target} {name}: {run}");
            assert_eq!(words(&run).contains("predicted to be slower"), is_slower, "{target} {name}: {run}");
        }
    }
    assert!(slower > 0 && faster > 0, "{slower} {faster}");
}

#[test]
fn dim_belongs_to_rewrite_and_changes_predictions() {
    let dir = Dir::new();
    dir.write("m.ir", open_batch());
    let of = |more: &[&str]| {
        let run = dir
            .run(&[&["rewrite", "m.ir", "-o", "o.onnx", "--force", "--report", "r.json"][..], more].concat());
        assert_eq!(run.code, 0, "{run}");
        (report(&dir), words(&run))
    };
    let (open, said) = of(&[]);
    // Two inputs have names of their own for it, and it is said once.
    assert_eq!(open["time"]["assumptions"], serde_json::json!(["the batch is 1"]));
    assert_eq!(said.matches("the batch is 1").count(), 1, "{said}");
    let (given, said) = of(&["--dim", "unk__1=64"]);
    assert_eq!(given["time"]["assumptions"], serde_json::json!(["the batch is 64"]));
    assert!(said.contains("the batch is 64"), "{said}");
    assert!(given["time"]["source"].as_i64() > open["time"]["source"].as_i64());
    assert_eq!(given["options"]["dim"], "unk__1=64");
    // The report as policy repeats it.
    std::fs::rename(dir.path("r.json"), dir.path("first.json")).unwrap();
    let (again, _) = of(&["--policy", "first.json"]);
    assert_eq!(again["time"], given["time"]);
    let wrong = dir.run(&["rewrite", "m.ir", "-o", "o.onnx", "--force", "--dim", "s1=8"]);
    assert!(wrong.code == 2 && words(&wrong).contains("no input has a dim"), "{wrong}");
}

#[test]
fn only_if_faster_leaves_what_gains_nothing() {
    let dir = Dir::new();
    dir.write("m.ir", open_batch());
    let rewrite = ["rewrite", "m.ir", "-o", "o.onnx", "--force", "--report", "r.json", "--only-if-faster"];
    let mut left = 0;
    for target in ["generic", "ort-cpu", "h200", "v100"] {
        for dim in ["s0=1", "s0=65536"] {
            for pin in [&[][..], &["--pin", "mm1=fp16"]] {
                let run = dir.run(&[&rewrite[..], &["--target", target, "--dim", dim], pin].concat());
                assert_eq!(run.code, 0, "{run}");
                let report = report(&dir);
                assert!(!slower_and_faster(&report).0, "{target} {dim}: {}", report["time"]);
                let low = report["summary"]["low"].as_u64().unwrap();
                assert_eq!(low == 0, has_warning(&report, "rewrite.not_faster"), "{target} {dim}: {run}");
                assert_eq!(low == 0, words(&run).contains("the model stays fp32"), "{run}");
                if low == 0 {
                    left += 1;
                    let same = dir.run(&["verify", "m.ir", "o.onnx", "--tolerance", "0"]);
                    assert_eq!(same.code, 0, "{same}");
                }
            }
        }
    }
    assert!((1..16).contains(&left), "{left}");
}

/// The large product gains; the small one, which is low without the option, does not.
#[test]
fn only_if_faster_decides_for_each_region() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x : f32[4096, 1024]\n  const %w : f32[1024, 1024] = random(1, 0.1)\n  input %z : f32[4096, 8]\n  \
             const %u : f32[8, 4096] = random(2, 0.1)\n  %a = MatMul(%x, %w) : f32[4096, 1024] @large\n  \
             %s = MatMul(%z, %u) : f32[4096, 4096] @small\n  output %a : f32[4096, 1024]\n  output %s : f32[4096, 4096]\n",
        ),
    );
    let rewrite = ["rewrite", "m.ir", "-o", "o.onnx", "--force", "--report", "r.json"];
    let precision = |report: &serde_json::Value, path: &str| {
        let nodes = report["nodes"].as_array().unwrap();
        nodes.iter().find(|node| node["path"] == path).unwrap()["precision"].as_str().unwrap().to_owned()
    };
    let all = dir.run(&rewrite);
    assert_eq!(all.code, 0, "{all}");
    let all = report(&dir);
    assert_eq!((precision(&all, "large"), precision(&all, "small")), ("fp16".into(), "fp16".into()));
    let some = dir.run(&[&rewrite[..], &["--only-if-faster"]].concat());
    assert_eq!(some.code, 0, "{some}");
    let some = report(&dir);
    assert_eq!(
        (precision(&some, "large"), precision(&some, "small")),
        ("fp16".into(), "fp32".into()),
        "{}",
        some["time"]
    );
    assert!(slower_and_faster(&some).1);
    assert!(some["time"]["rewritten"].as_i64() < all["time"]["rewritten"].as_i64());
}

/// A dim that is computed of open dims has the size that `--dim` makes it: the prediction is that of a model with this size.
#[test]
fn dims_that_follow_from_dim_are_no_assumption() {
    let dir = Dir::new();
    let of = |n: &str, words: &[&str]| {
        let text = module(&format!(
            "  input %x : f32[17, {n}, 96]\n  const %s : i64[3] = [17, -1, 24]\n  const %w : f32[24, 24] = random(1)\n  \
             %a = Reshape(%x, %s) : f32[17, {heads}, 24]\n  %b = MatMul(%a, %w) : f32[17, {heads}, 24] @mm\n  output %b : ?\n",
            heads = if n == "N" { "?" } else { "4" }
        ));
        dir.write("m.ir", text.replace("output %b : ?", "output %b"));
        let common = ["rewrite", "m.ir", "-o", "o.onnx", "--force", "--report", "r.json", "-q"];
        let run = dir.run(&[&common[..], words].concat());
        assert_eq!(run.code, 0, "{run}");
        let report = report(&dir);
        (report["time"]["source"].clone(), report["time"]["assumptions"].clone())
    };
    let (open, assumed) = of("N", &["--dim", "N=1"]);
    let (fixed, _) = of("1", &[]);
    assert_eq!(open, fixed);
    assert!(!assumed.to_string().contains("unknown"), "{assumed}");
}

/// A size that does not fit the model is said with the time that is predicted for it.
#[test]
fn sizes_that_do_not_fit_are_said_with_the_time() {
    let dir = Dir::new();
    let of = |dim: &str| {
        module(&format!(
            "  input %x : f32[B, {dim}, 32]\n  const %p : f32[1, 64, 32] = random(1)\n  const %w : f32[32, 8] = random(2)\n  \
             %a = Add(%x, %p) : f32[B, 64, 32] @plus\n  %y = MatMul(%a, %w) : f32[B, 64, 8] @head\n  \
             output %y : f32[B, 64, 8]\n",
        ))
    };
    dir.write("m.ir", of("S"));
    let rewrite = |more: &[&str]| {
        words(&dir.run(&[&["rewrite", "m.ir", "-o", "o.onnx", "--force"][..], more].concat()))
    };
    for (more, size) in [(&[][..], 128), (&["--dim", "S=100"], 100)] {
        let said = rewrite(more);
        let misfit = format!("; S = {size} does not fit this model; `--dim S=N` gives another size");
        assert!(said.contains("predicted for generic") && said.contains(&misfit), "{said}");
    }
    assert!(!rewrite(&["--dim", "S=64"]).contains("does not fit"));
}

/// A dim with a size needs no option, and a dim with a size of its own is not meant by another name.
#[test]
fn dims_that_were_given_are_not_asked_for() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module(
            "  input %x : f32[B, S, 4]\n  const %w : f32[4, 2] = random(1)\n  %y = MatMul(%x, %w) : f32[B, S, 2] @mm\n  \
             output %y : f32[B, S, 2]\n",
        ),
    );
    let rewrite = |dims: &str| dir.run(&["rewrite", "m.ir", "-o", "o.onnx", "--force", "--dim", dims]);
    for (dims, is_open) in [("B=1", true), ("S=4", true), ("B=1,S=4", false)] {
        let said = words(&rewrite(dims));
        assert!(said.contains("rewrite.slower"), "{said}");
        assert_eq!(said.contains("`--dim NAME=N`"), is_open, "{dims}: {said}");
    }
    for (dims, hint) in [("B=3,S=4,T=10", None), ("B=3,T=10", Some("did you mean `S=10`"))] {
        for run in [rewrite(dims), dir.run(&["run", "m.ir", "--dim", dims])] {
            let said = words(&run);
            assert!(run.code == 2 && said.contains("`--dim T=10`: no input has a dim `T`"), "{run}");
            assert_eq!(said.contains("did you mean"), hint.is_some(), "{run}");
            assert!(hint.is_none_or(|hint| said.contains(hint)), "{run}");
        }
    }
}
