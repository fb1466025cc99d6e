//! `ampc stats`: statistics of every tensor on data.

use super::run::{looped, net, write_npz};
use super::support::{Dir, Run, module, snapshot};
use ampc::runtime::HostTensor;
use serde_json::Value;
use std::collections::BTreeSet;

/// The first samples are small, the second beyond fp16.
fn dir_with_batches() -> Dir {
    let dir = Dir::new();
    dir.write("m.ir", net("1.0e5"));
    let rows = |n: u64, scale: f32| {
        let values: Vec<f32> =
            (0..n * 3).map(|i| (f32::from(u8::try_from(i).unwrap()) - 2.0) * scale).collect();
        HostTensor::from_slice(&[n, 3], &values).unwrap()
    };
    std::fs::create_dir(dir.path("data")).unwrap();
    write_npz(&dir, "data/b2.npz", &[("x", rows(2, 0.01))]);
    write_npz(&dir, "data/b10.npz", &[("x", rows(5, 3.0))]);
    dir
}

fn document(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{run}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// The statistics of a tensor of a document.
fn tensor<'a>(document: &'a Value, name: &str) -> &'a Value {
    let rows = document["tensors"].as_array().unwrap();
    rows.iter().find(|row| row["tensor"] == name).unwrap_or_else(|| panic!("no `{name}` in {document:#}"))
}

#[test]
fn any_order_and_division_gives_the_same_statistics() {
    let dir = dir_with_batches();
    snapshot("stats_table", &dir.run(&["stats", "m.ir", "--inputs", "data"]));
    let whole = dir.run(&["stats", "m.ir", "--inputs", "data", "--json"]);
    let document_of_all = document(&whole);
    assert_eq!(
        (&document_of_all["batches"], &document_of_all["schema"]),
        (&2.into(), &"ampc-stats/1".into())
    );
    let x = tensor(&document_of_all, "x");
    assert_eq!((&x["count"], &x["runs"], &x["dims"]), (&21.into(), &2.into(), &serde_json::json!([null, 3])));
    assert_eq!(
        (&x["origin"], &tensor(&document_of_all, "w")["origin"]),
        (&"input".into(), &"constant".into())
    );
    assert!(tensor(&document_of_all, "b")["rounded"]["f16"]["overflow"].as_u64() > Some(0));
    for others in [
        &["--inputs", "data/b10.npz", "--inputs", "data/b2.npz", "--json"][..],
        &["--inputs", "data", "--json", "--threads", "1"][..],
    ] {
        let other = document(&dir.run(&[&["stats", "m.ir"], others].concat()));
        for name in ["x", "w", "h", "a", "b", "y"] {
            assert_eq!(tensor(&document_of_all, name), tensor(&other, name), "{name}");
        }
    }
}

#[test]
fn files_have_what_is_printed() {
    let dir = dir_with_batches();
    for (flag, name) in [("--json", "s.json"), ("--csv", "s.csv")] {
        let printed = dir.run(&["stats", "m.ir", "--inputs", "data", flag, "-o", name]);
        assert_eq!(printed.code, 0, "{printed}");
        assert_eq!(std::fs::read_to_string(dir.path(name)).unwrap(), printed.stdout);
        let again = dir.run(&["stats", "m.ir", "--inputs", "data", "-o", name]);
        assert!(again.code == 5 && again.stderr.contains("--force"), "{again}");
        assert_eq!(dir.run(&["stats", "m.ir", "--inputs", "data", "-o", name, "--force"]).code, 0);
    }
    snapshot("stats_csv", &dir.run(&["stats", "m.ir", "--inputs", "data", "--csv"]));
    snapshot("stats_output_name", &dir.run(&["stats", "m.ir", "-o", "s.txt"]));
}

#[test]
fn bodies_and_functions_have_paths() {
    let dir = Dir::new();
    dir.write("m.ir", looped("0.5"));
    let (n, x) =
        (HostTensor::from_slice(&[], &[3i64]).unwrap(), HostTensor::from_slice(&[4], &[8.0f32; 4]).unwrap());
    write_npz(&dir, "x.npz", &[("n", n), ("x", x)]);
    let found = document(&dir.run(&["stats", "m.ir", "--inputs", "x.npz", "--json"]));
    let halved = tensor(&found, "s_out");
    assert_eq!(
        (&halved["path"], &halved["runs"], &halved["count"]),
        (&"loop1/body/halve".into(), &3.into(), &12.into())
    );
    assert_eq!((&halved["min"], &halved["max"]), (&1.0.into(), &4.0.into()));
    let call = "module ir=10\nopset ai.onnx=21, local=1\n\ngraph @main {\n  input %x : f32[2]\n  \
                %a = local::Twice(%x) : f32[2] @first\n  %y = local::Twice(%a) : f32[2] @second\n  output %y : f32[2]\n}\n\n\
                function local::Twice @Twice {\n  opset ai.onnx=21\n  input %x : ?\n  const %two : f32 = 2.0\n  \
                %t = Mul(%x, %two) : ? @mul\n  output %t\n}\n";
    dir.write("f.ir", call);
    write_npz(&dir, "x2.npz", &[("x", HostTensor::from_slice(&[2], &[1.0f32, -1.0]).unwrap())]);
    let found = document(&dir.run(&["stats", "f.ir", "--inputs", "x2.npz", "--json"]));
    let rows = found["tensors"].as_array().unwrap();
    let of_path = |path: &str| rows.iter().find(|row| row["path"] == path).map(|row| row["max"].clone());
    assert_eq!((of_path("first/mul"), of_path("second/mul")), (Some(2.0.into()), Some(4.0.into())));
    assert_eq!(tensor(&found, "two")["path"], "Twice");
}

#[test]
fn a_default_is_a_constant_and_a_failing_batch_keeps_the_batches_before_it() {
    let dir = Dir::new();
    dir.write(
        "m.ir",
        module("  input %x : f32[N]\n  input %w : f32[2] = [1.0, -70000.0]\n  %y = Mul(%x, %w) : f32[2]\n  output %y : f32[2]\n"),
    );
    let batch = |name: &str, values: &[f32]| {
        write_npz(&dir, name, &[("x", HostTensor::from_slice(&[values.len() as u64], values).unwrap())]);
    };
    batch("good.npz", &[1.0, 2.0]);
    batch("bad.npz", &[1.0, 2.0, 3.0]);
    let found = document(&dir.run(&["stats", "m.ir", "--inputs", "good.npz", "--json"]));
    assert_eq!(
        (&tensor(&found, "w")["origin"], &tensor(&found, "w")["min"]),
        (&"constant".into(), &(-70000.0).into())
    );
    let run =
        dir.run(&["stats", "m.ir", "--inputs", "good.npz", "--inputs", "bad.npz", "--json", "-o", "s.json"]);
    assert!(run.code != 0 && run.stderr.contains("batch `bad.npz`"), "{run}");
    let kept: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&kept["batches"], &kept["of_batches"]), (&1.into(), &2.into()));
    assert_eq!(std::fs::read_to_string(dir.path("s.json")).unwrap(), run.stdout);
    let first = dir.run(&["stats", "m.ir", "--inputs", "bad.npz", "-o", "t.json"]);
    assert!(first.code != 0 && first.stdout.is_empty() && !dir.path("t.json").exists(), "{first}");
}

#[test]
fn data_without_numbers() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let batch = |name: &str, rows: u64, values: &[f32]| {
        write_npz(&dir, name, &[("x", HostTensor::from_slice(&[rows, 3], values).unwrap())]);
    };
    batch("empty.npz", 0, &[]);
    let empty = document(&dir.run(&["stats", "m.ir", "--inputs", "empty.npz", "--json"]));
    assert_eq!((&tensor(&empty, "x")["count"], &tensor(&empty, "x")["min"]), (&0.into(), &Value::Null));
    batch("nan.npz", 1, &[f32::NAN, f32::INFINITY, 1.0]);
    let nan = document(&dir.run(&["stats", "m.ir", "--inputs", "nan.npz", "--json"]));
    let x = tensor(&nan, "x");
    assert_eq!((&x["nan"], &x["infinite"], &x["max"]), (&1.into(), &1.into(), &"inf".into()));
    let table = dir.run(&["stats", "m.ir", "--inputs", "nan.npz", "-q", "--rows", "1"]);
    assert!(table.stdout.contains("--rows 0"), "{table}");
    dir.write("wrong.ir", module("  input %x : i64[N, 3]\n  %y = Neg(%x) : i64[N, 3]\n  output %y\n"));
    snapshot("stats_wrong_type", &dir.run(&["stats", "wrong.ir", "--inputs", "nan.npz"]));
    snapshot(
        "stats_wrong_batch",
        &dir.run(&["stats", "wrong.ir", "--inputs", "nan.npz", "--inputs", "empty.npz"]),
    );
    std::fs::create_dir(dir.path("none")).unwrap();
    snapshot("stats_no_batches", &dir.run(&["stats", "m.ir", "--inputs", "none"]));
}

/// `%b` goes up to 20000, near the end of the range of fp16.
#[test]
fn values_near_the_end_of_the_range_on_data_stay_fp32() {
    let dir = dir_with_batches();
    dir.write("m.ir", net("20000.0"));
    let low = dir.run(&["rewrite", "m.ir", "--policy", "all", "-o", "low.onnx", "--explain", "scale"]);
    assert!(low.code == 0 && low.stdout.contains("T  fp16"), "{low}");
    let calibrate = ["--policy", "all", "--calibrate", "data"];
    let run = dir.run(&[&["rewrite", "m.ir", "-o", "a.onnx", "--report", "r.json"], &calibrate[..]].concat());
    snapshot("rewrite_calibrated", &run);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(dir.path("r.json")).unwrap()).unwrap();
    assert_eq!(report["options"]["observed"], "@residual:0=20002.754+@scale:0=20000");
    let explained =
        dir.run(&[&["rewrite", "m.ir", "-o", "e.onnx", "--explain", "*"], &calibrate[..]].concat());
    snapshot("rewrite_calibrated_explained", &explained);
    // The same decisions from statistics, from the report, and not with another margin.
    let stats = dir.run(&["stats", "m.ir", "--inputs", "data", "-o", "s.json", "-q"]);
    assert_eq!(stats.code, 0, "{stats}");
    for (name, source) in
        [("b.onnx", &["--policy", "all", "--ranges", "s.json"][..]), ("c.onnx", &["--policy", "r.json"][..])]
    {
        let run = dir.run(&[&["rewrite", "m.ir", "-q", "-o", name], source].concat());
        assert_eq!(run.code, 0, "{run}");
        assert_eq!(
            std::fs::read(dir.path(name)).unwrap(),
            std::fs::read(dir.path("a.onnx")).unwrap(),
            "{name}"
        );
    }
    let near = dir.run(
        &[
            &["rewrite", "m.ir", "-q", "--policy", "all", "-o", "d.onnx"],
            &["--ranges", "s.json", "--range-margin", "2"][..],
        ]
        .concat(),
    );
    assert_eq!(near.code, 0, "{near}");
    assert_eq!(std::fs::read(dir.path("d.onnx")).unwrap(), std::fs::read(dir.path("low.onnx")).unwrap());
    for (name, args) in [
        ("margin_alone", &["--range-margin", "2"][..]),
        ("both", &["--ranges", "s.json", "--calibrate", "data"][..]),
        ("no_stats", &["--ranges", "r.json"][..]),
        ("report", &["--policy", "r.json", "--calibrate", "data"][..]),
        ("small_margin", &["--range-margin", "0.5", "--calibrate", "data"][..]),
    ] {
        let run = dir.run(&[&["rewrite", "m.ir", "-o", "f.onnx"], args].concat());
        snapshot(&format!("rewrite_calibrate_{name}"), &run);
    }
}

/// Twelve blocks with residuals; a branch of the seventh has values beyond fp16, the others are small.
fn blocks_with_a_large_branch() -> String {
    let mut text = String::from(
        "opset ai.onnx=21\n\ngraph @main {\n  input %x0 : f32[4, 16]\n  const %w : f32[16, 16] = random(1)\n  \
         const %up : f32 = 60000.0\n  const %down : f32 = 0.00001\n  const %half : f32 = 0.5\n",
    );
    for i in 0..12 {
        let next = i + 1;
        let add = |text: &mut String, line: String| *text += &format!("  {line}\n");
        add(&mut text, format!("%h{i} = MatMul(%x{i}, %w) : f32[4, 16] @product{i}"));
        add(&mut text, format!("%t{i} = Tanh(%h{i}) : f32[4, 16] @tanh{i}"));
        if i == 6 {
            for (result, formula, name) in [
                ("a", "Mul(%t6, %up)", "scaled"),
                ("b", "Relu(%a)", "positive"),
                ("c", "Add(%b, %a)", "sum"),
                ("d", "Max(%c, %b)", "largest"),
                ("t", "Mul(%d, %down)", "back"),
            ] {
                add(&mut text, format!("%{result} = {formula} : f32[4, 16] @{name}"));
            }
        }
        let branch = if i == 6 { "%t".into() } else { format!("%t{i}") };
        add(&mut text, format!("%s{i} = Add({branch}, %x{i}) : f32[4, 16] @residual{i}"));
        add(&mut text, format!("%x{next} = Mul(%s{i}, %half) : f32[4, 16] @halved{i}"));
    }
    text + "  %y = MatMul(%x12, %w) : f32[4, 16] @last\n  output %y\n}\n"
}

/// The nodes of a report that are fp32.
fn full(dir: &Dir, report: &str) -> BTreeSet<String> {
    let report: Value = serde_json::from_str(&std::fs::read_to_string(dir.path(report)).unwrap()).unwrap();
    let nodes = report["nodes"].as_array().unwrap().iter();
    let is_full = |node: &&Value| node["precision"] == "fp32";
    nodes.filter(is_full).map(|node| node["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_large_branch_among_twelve_blocks_is_found_and_nothing_else() {
    let dir = Dir::new();
    dir.write("m.ir", blocks_with_a_large_branch());
    let values: Vec<f32> = (0..64).map(|i| f32::from(i8::try_from(i % 13 - 6).unwrap()) * 0.3).collect();
    write_npz(&dir, "data.npz", &[("x0", HostTensor::from_slice(&[4, 16], &values).unwrap())]);
    // The guard of large constants is off: data has to find the branch.
    let rewrite = |out: &str, report: &str, more: &[&str]| {
        let fixed =
            ["rewrite", "m.ir", "-q", "-o", out, "--report", report, "--disable-guard", "@fit,@numbers"];
        let run = dir.run(&[&fixed[..], more].concat());
        assert_eq!(run.code, 0, "{run}");
        full(&dir, report)
    };
    let without = rewrite("a.onnx", "a.json", &[]);
    let with = rewrite("b.onnx", "b.json", &["--calibrate", "data.npz"]);
    let added: Vec<&String> = with.difference(&without).collect();
    assert_eq!(added, ["back", "largest", "positive", "scaled", "sum"]);
    assert!(without.is_subset(&with));
    let verify = |model: &str| dir.run(&["verify", "m.ir", model, "--inputs", "data.npz"]).code;
    assert_eq!((verify("a.onnx"), verify("b.onnx")), (1, 0));
}

/// Sums of a mask times values of one sign, which a guard keeps in fp32 for their range.
const MASKED_SUM: &str = "module ir=10\nopset ai.onnx=20\n\ngraph @main {\n  input %mask : f32[1, 300]\n  \
    input %x : f32[1, 300, 8]\n  const %w : f32[8, 16] = random(2, 0.5)\n  const %v : f32[16, 16] = random(3, 0.5)\n  \
    %h = MatMul(%x, %w) : f32[1, 300, 16] @layer\n  %r = Relu(%h) : f32[1, 300, 16]\n  \
    %m = Einsum(%mask, %r) {equation=\"bs,bsd->bd\"} : f32[1, 16] @masked\n  \
    %y = MatMul(%m, %v) : f32[1, 16] @last\n  output %y\n}\n";

/// With `--trust-ranges`, a product is lowered whose results stay within the range on the data, and only then.
#[test]
fn trusted_ranges_lower_products() {
    let dir = Dir::new();
    dir.write("m.ir", MASKED_SUM);
    let x: Vec<f32> = (0..2400u16).map(|i| f32::from(i % 7) - 3.0).collect();
    for (name, mask) in [("data.npz", 1.0f32), ("large.npz", 3e3)] {
        let mask = HostTensor::from_slice(&[1, 300], &[mask; 300]).unwrap();
        let x = HostTensor::from_slice(&[1, 300, 8], &x).unwrap();
        write_npz(&dir, name, &[("mask", mask), ("x", x)]);
    }
    assert_eq!(dir.run(&["stats", "m.ir", "--inputs", "data.npz", "-o", "s.json", "-q"]).code, 0);
    let is_full = |more: &[&str]| {
        let fixed = ["rewrite", "m.ir", "-o", "a.onnx", "--force", "-q", "--report", "r.json"];
        let run = dir.run(&[&fixed[..], more].concat());
        assert_eq!(run.code, 0, "{run}");
        full(&dir, "r.json").contains("masked")
    };
    assert!(is_full(&["--calibrate", "data.npz"]));
    assert!(is_full(&["--calibrate", "large.npz", "--trust-ranges"]), "beyond the range");
    assert!(!is_full(&["--calibrate", "data.npz", "--trust-ranges"]));
    assert!(!is_full(&["--ranges", "s.json", "--trust-ranges"]));
    let explained = dir.run(&[
        "rewrite",
        "m.ir",
        "-o",
        "e.onnx",
        "--ranges",
        "s.json",
        "--trust-ranges",
        "--explain",
        "masked",
    ]);
    snapshot("rewrite_trust_ranges", &explained);
    snapshot("rewrite_trust_without_data", &dir.run(&["rewrite", "m.ir", "-o", "b.onnx", "--trust-ranges"]));
}

#[test]
fn files_of_a_calibration_are_never_replaced() {
    let dir = dir_with_batches();
    assert_eq!(dir.run(&["stats", "m.ir", "--inputs", "data", "-o", "s.json", "-q"]).code, 0);
    for (name, args) in [
        ("statistics", &["--ranges", "s.json", "--report", "s.json"][..]),
        ("batch", &["--calibrate", "data", "--emit", "onnx", "-o", "data/b2.npz"][..]),
    ] {
        let run = dir.run(&[&["rewrite", "m.ir", "--force"], args].concat());
        snapshot(&format!("rewrite_calibrate_over_{name}"), &run);
    }
}

#[test]
fn statistics_and_data_of_another_model_are_refused() {
    let dir = dir_with_batches();
    assert_eq!(dir.run(&["stats", "m.ir", "--inputs", "data", "-o", "s.json", "-q"]).code, 0);
    dir.write("other.ir", blocks_with_a_large_branch());
    for (name, args) in [("statistics", ["--ranges", "s.json"]), ("data", ["--calibrate", "data"])] {
        let run = dir.run(&[&["rewrite", "other.ir", "-o", "o.onnx"], &args[..]].concat());
        snapshot(&format!("rewrite_calibrate_other_{name}"), &run);
        assert!(!dir.path("o.onnx").exists());
    }
}

#[test]
fn numbers_that_are_nan_are_told() {
    let dir = dir_with_batches();
    let x = HostTensor::from_slice(&[1, 3], &[1.0, f32::NAN, 2.0]).unwrap();
    write_npz(&dir, "nan.npz", &[("x", x)]);
    assert_eq!(dir.run(&["stats", "m.ir", "--inputs", "nan.npz", "-o", "s.json", "-q"]).code, 0);
    let whole = std::fs::read_to_string(dir.path("s.json")).unwrap();
    dir.write("part.json", whole.replace("\"of_batches\":1", "\"of_batches\":9"));
    for args in [["--calibrate", "nan.npz"], ["--ranges", "part.json"]] {
        let run = dir.run(&[&["rewrite", "m.ir", "-q", "--force", "-o", "o.onnx"], &args[..]].concat());
        assert!(run.code == 0 && run.stderr.contains("NaN on the data in fp32"), "{run}");
        assert_eq!(run.stderr.contains("are of 1 of 9 batches"), args[0] == "--ranges", "{run}");
    }
}

/// Only the second and third iteration leave the range.
#[test]
fn iterations_of_a_loop_are_calibrated() {
    let dir = Dir::new();
    dir.write("m.ir", looped("100.0"));
    for (name, n) in [("one", 1i64), ("three", 3)] {
        let n = HostTensor::from_slice(&[], &[n]).unwrap();
        let x = HostTensor::from_slice(&[4], &[0.5f32, -1.0, 2.0, 3.0]).unwrap();
        write_npz(&dir, &format!("{name}.npz"), &[("n", n), ("x", x)]);
        let run = dir.run(&[
            "rewrite",
            "m.ir",
            "-q",
            "--policy",
            "all",
            "-o",
            "o.onnx",
            "--force",
            "--report",
            "r.json",
            "--calibrate",
            &format!("{name}.npz"),
        ]);
        assert_eq!(run.code, 0, "{run}");
        assert_eq!(full(&dir, "r.json").contains("loop1/body/halve"), name == "three", "{name}");
    }
}
