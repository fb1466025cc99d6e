//! `run`, `verify` and `rewrite --verify`: values in and out, limits, and which node is named.

use super::support::{Dir, MATMUL, module, snapshot};
use ampc::runtime::{HostTensor, npz};
use std::fs::File;

/// Two layers and a Sub between a value and what it came from.
fn net(scale: &str) -> String {
    let weights = "[1.0, -0.5, 0.25, 2.0, -1.0, 0.5, 1.5, -0.75, 0.125]";
    module(&format!(
        "  input %x : f32[N, 3]\n  const %w : f32[3, 3] = {weights}\n  const %s : f32 = {scale}\n  \
         %h = MatMul(%x, %w) : f32[N, 3] @fc1\n  %a = Tanh(%h) : f32[N, 3] @act\n  \
         %b = Mul(%a, %s) : f32[N, 3] @scale\n  %y = Sub(%b, %x) : f32[N, 3] @residual\n  output %y : f32[N, 3]\n"
    ))
}

/// A loop that scales its state.
fn looped(factor: &str) -> String {
    module(&format!(
        "  input %n : i64\n  input %x : f32[4]\n  const %go : bool = true\n  const %half : f32 = {factor}\n  \
         %last = Loop(%n, %go, %x; %half) {{\n    body: graph @body(%half) {{\n      input %i : i64\n      \
         input %c : bool\n      input %s : f32[4]\n      %c_out = Identity(%c) : bool @keep\n      \
         %s_out = Mul(%s, %half) : f32[4] @halve\n      output %c_out : bool\n      output %s_out : f32[4]\n    \
         }}\n  }} : f32[4] @loop1\n  output %last : f32[4]\n"
    ))
}

fn write_npz(dir: &Dir, name: &str, tensors: &[(&str, HostTensor)]) {
    let file = File::create(dir.path(name)).unwrap();
    npz::write(file, tensors.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
}

#[test]
fn a_run_prints_what_comes_out() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    snapshot("run_random", &dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3"]));
    snapshot("run_without_a_word", &dir.run(&["run", "m.ir"]));
    snapshot("run_plan", &dir.run(&["run", "m.ir", "-q", "--print-plan"]));
    let one = dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3", "--threads", "1"]);
    let two = dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3", "--threads", "2"]);
    assert_eq!(one.stdout, two.stdout);
    let bench = dir.run(&["run", "m.ir", "-q", "--bench", "2"]);
    for word in ["runs       2", "min ", "median ", "mean ", "arena ", "constants  32 B"] {
        assert!(bench.stdout.contains(word), "{bench}");
    }
}

#[test]
fn outputs_are_written_in_every_form_and_read_again() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let values = HostTensor::from_slice(&[1, 4], &[1.0f32, -1.0, 0.5, 2.0]).unwrap();
    write_npz(&dir, "x.npz", &[("x", values)]);
    for name in ["y.npz", "y.safetensors", "set/"] {
        let run = dir.run(&["run", "m.ir", "--inputs", "x.npz", "--outputs", name]);
        assert_eq!(run.code, 0, "{run}");
        let again = dir.run(&["run", "m.ir", "--inputs", "x.npz", "--outputs", name]);
        assert_eq!(again.code, 5, "{again}");
        let forced = dir.run(&["run", "m.ir", "--inputs", "x.npz", "--outputs", name, "--force"]);
        assert_eq!((forced.code, &forced.stdout), (0, &run.stdout));
    }
    assert_eq!(dir.files(), ["m.ir", "set", "x.npz", "y.npz", "y.safetensors"]);
    assert_eq!(Dir::files_of(&dir.path("set")), ["input_0.pb", "output_0.pb"]);
    let relu = "  input %y : f32[1, 2]\n  %z = Relu(%y) : f32[1, 2]\n  output %z : f32[1, 2]\n";
    dir.write("next.ir", module(relu));
    let (npz, safetensors) = (
        dir.run(&["run", "next.ir", "--inputs", "y.npz"]),
        dir.run(&["run", "next.ir", "--inputs", "y.safetensors"]),
    );
    assert_eq!((npz.code, &npz.stdout), (0, &safetensors.stdout));
    snapshot("verify_test_data", &dir.run(&["verify", "m.ir", "--test-data", "set"]));
    let folder = dir.run(&["run", "m.ir", "--inputs", "set"]);
    assert_eq!((folder.code, folder.stderr.as_str()), (0, ""));
    let into_input = dir.run(&["run", "m.ir", "--inputs", "x.npz", "--outputs", "x.npz", "--force"]);
    assert_eq!(into_input.code, 5, "{into_input}");
}

#[test]
fn values_that_do_not_fit_are_all_named() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let two = "  input %a : f32[2]\n  input %b : i64[N, 2]\n  %c = Relu(%a) : f32[2]\n  output %c : f32[2]\n  \
               output %b : i64[N, 2]\n";
    dir.write("two.ir", module(two));
    let doubles = HostTensor::from_slice(&[2], &[1.0f64, 2.0]).unwrap();
    let ints = HostTensor::from_slice(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
    write_npz(&dir, "wrong.npz", &[("a", doubles.clone()), ("bb", ints.clone())]);
    write_npz(&dir, "dims.npz", &[("a", HostTensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap()), ("b", ints)]);
    dir.write("broken.npz", b"no archive");
    for (name, code, args) in [
        ("inputs_wrong", 2, &["run", "two.ir", "--inputs", "wrong.npz"][..]),
        ("inputs_dims", 2, &["run", "two.ir", "--inputs", "dims.npz"]),
        ("inputs_broken", 3, &["run", "two.ir", "--inputs", "broken.npz"]),
        ("inputs_absent", 5, &["run", "two.ir", "--inputs", "absent.npz"]),
        ("inputs_ending", 2, &["run", "two.ir", "--inputs", "two.ir"]),
        ("inputs_dim", 2, &["run", "m.ir", "--dim", "M=3"]),
        ("inputs_size", 2, &["run", "m.ir", "--random", "1", "--dim", "N=1000000000000000"]),
        ("outputs_ending", 2, &["run", "m.ir", "--random", "1", "--dim", "N=1", "--outputs", "y.txt"]),
        ("device_cuda", 4, &["run", "m.ir", "--device", "cuda:1"]),
        ("device_unknown", 2, &["run", "m.ir", "--device", "tpu"]),
    ] {
        let run = dir.run(args);
        assert_eq!(run.code, code, "{name}: {run}");
        if name == "inputs_size" {
            assert!(run.stderr.contains("f32[1000000000000000, 3]"), "{run}");
        } else {
            snapshot(name, &run);
        }
    }
}

#[test]
fn limits_hold() {
    let dir = Dir::new();
    let forever = looped("0.5").replace("Loop(%n,", "Loop(_,").replace("  input %n : i64\n", "");
    dir.write("forever.ir", forever);
    snapshot("run_iterations", &dir.run(&["run", "forever.ir", "--random", "1", "--max-iterations", "100"]));
    let late = dir.run(&["run", "forever.ir", "--random", "1", "--time-limit", "0.2"]);
    assert!(late.code == 3 && late.stderr.contains("the time limit of 200ms is over"), "{late}");
}

#[test]
fn the_first_node_that_differs_is_named() {
    let dir = Dir::new();
    dir.write("a.ir", net("2.0"));
    dir.write("b.ir", net("2.02"));
    let args = ["--random", "1", "--dim", "N=4"];
    snapshot("verify_same", &dir.run(&[&["verify", "a.ir", "a.ir"][..], &args].concat()));
    let differs = dir.run(&[&["verify", "a.ir", "b.ir"][..], &args].concat());
    assert_eq!(differs.code, 1);
    snapshot("verify_differs", &differs);
    let json = dir.run(&[&["verify", "a.ir", "b.ir", "--json"][..], &args].concat());
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&found["schema"], &found["passed"]), (&"ampc-verify/1".into(), &false.into()));
    assert_eq!((&found["first"]["node"], &found["first"]["value"]), (&"scale".into(), &"b".into()));
    assert_eq!(found["values"].as_array().map(Vec::len), Some(4));
    let wide = [&["verify", "a.ir", "b.ir", "--tolerance", "0.1"][..], &args].concat();
    assert_eq!(dir.run(&wide).code, 0);
    // In a loop, with the iteration; another name of the output is no output.
    dir.write("loop.ir", looped("0.5"));
    dir.write("faulty.ir", looped("0.51"));
    let inner = dir.run(&["verify", "loop.ir", "faulty.ir", "--random", "1"]);
    assert!(inner.stdout.contains("`s_out` of Mul `loop1/body/halve (iteration 0)`"), "{inner}");
    snapshot("verify_other_outputs", &dir.run(&["verify", "a.ir", "loop.ir", "--random", "1"]));
}

#[test]
fn a_rewrite_that_is_too_far_off_is_not_written() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let verify = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--dim", "N=4"];
    let good = dir.run(&verify);
    assert!(good.code == 0 && good.stderr.contains("verified: the outputs are at most"), "{good}");
    std::fs::remove_file(dir.path("low.onnx")).unwrap();
    let strict = [&verify[..], &["--tolerance", "1e-6"]].concat();
    let bad = dir.run(&strict);
    assert_eq!((bad.code, dir.files()), (1, vec!["m.ir".to_owned()]));
    snapshot("rewrite_verify", &bad);
    // `--force` is about files that exist.
    dir.write("low.onnx", "good");
    let forced = dir.run(&[&strict[..], &["--force", "-q"]].concat());
    assert!(forced.code == 1 && forced.stderr.contains("ampc::verify::beyond"), "{forced}");
    assert_eq!(std::fs::read(dir.path("low.onnx")).unwrap(), b"good");
    let unused = dir.run(&["rewrite", "m.ir", "--random", "1"]);
    assert!(unused.code == 2 && unused.stderr.contains("--verify"), "{unused}");
}
