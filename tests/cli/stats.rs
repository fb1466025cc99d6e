//! `ampc stats`: statistics of every tensor on data.

use super::run::{looped, net, write_npz};
use super::support::{Dir, Run, module, snapshot};
use ampc::runtime::HostTensor;
use serde_json::Value;

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
