//! `run`, `verify` and `rewrite --verify`: values in and out, limits, and which node is named.

use super::support::{Dir, EMBEDDING, MATMUL, Run, module, snapshot};
use ampc::ir::DType;
use ampc::runtime::{HostTensor, npz};
use std::fs::File;
use std::io::Write as _;

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
    dir.write("one.ir", module("  input %x : i8[1]\n  %y = Neg(%x) : i8[1]\n  output %y : i8[1]\n"));
    let plan = dir.run(&["run", "one.ir", "-q", "--print-plan"]).stdout;
    assert!(plan.starts_with("graph \"main\": 1 step, arena "), "{plan}");
    let one = dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3", "--threads", "1"]);
    let two = dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3", "--threads", "2"]);
    assert_eq!(one.stdout, two.stdout);
    let bench = dir.run(&["run", "m.ir", "-q", "--bench", "2"]);
    for word in ["runs       2", "min ", "median ", "mean ", "arenas ", "constants  32 B"] {
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
    std::fs::copy(dir.path("x.npz"), dir.path("x2.npz")).unwrap();
    for (from, to) in [("x2.npz", "./x2.npz"), ("set", "set/")] {
        let into_input = dir.run(&["run", "m.ir", "--inputs", from, "--outputs", to, "--force"]);
        let said = into_input.stderr.replace("\n  | ", " ");
        assert!(into_input.code == 2 && said.contains("that the inputs are read from"), "{into_input}");
    }
    assert_eq!(std::fs::read(dir.path("x.npz")).unwrap(), std::fs::read(dir.path("x2.npz")).unwrap());
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
        ("inputs_absent_tensors", 5, &["run", "two.ir", "--inputs", "absent.safetensors"]),
        ("inputs_absent_folder", 5, &["run", "two.ir", "--inputs", "absent/"]),
        ("inputs_stdin", 2, &["run", "two.ir", "--inputs", "-"]),
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

/// A tensor as a file of test data.
fn write_pb(dir: &Dir, path: &str, name: &str, values: &[f32]) {
    let tensor = HostTensor::from_slice(&[values.len() as u64], values).unwrap();
    let len = |n: usize| u8::try_from(n).unwrap();
    // Dims, element type f32, name, raw_data: all lengths are below 128.
    let mut bytes = vec![0x08, len(values.len()), 0x10, 1, 0x42, len(name.len())];
    bytes.extend_from_slice(name.as_bytes());
    let raw = tensor.bytes().unwrap();
    bytes.extend_from_slice(&[0x4a, len(raw.len())]);
    bytes.extend_from_slice(raw);
    dir.write(path, bytes);
}

/// `y = x − w`, where w is listed before x and has a default.
const SUB: &str = "  input %w : f32[2] = [1.0, 1.0]\n  input %x : f32[2]\n  %y = Sub(%x, %w) : f32[2]\n  \
                   output %y : f32[2]\n";

#[test]
fn test_data_go_where_onnx_runtime_puts_them() {
    let dir = Dir::new();
    dir.write("m.ir", module(SUB));
    for (set, name, input) in [("named", "x", "input_0.pb"), ("counted", "", "input_0.pb")] {
        std::fs::create_dir(dir.path(set)).unwrap();
        write_pb(&dir, &format!("{set}/{input}"), name, &[5.0, 6.0]);
        write_pb(&dir, &format!("{set}/output_0.pb"), "y", &[4.0, 5.0]);
        let run = dir.run(&["verify", "m.ir", "--test-data", set]);
        assert_eq!(run.code, 0, "{set}: {run}");
    }
    // The name goes before the number, and of one input there is one value.
    write_pb(&dir, "named/input_0.pb", "w", &[2.0, 2.0]);
    write_pb(&dir, "named/input_1.pb", "x", &[6.0, 7.0]);
    assert_eq!(dir.run(&["verify", "m.ir", "--test-data", "named"]).code, 0);
    write_pb(&dir, "named/input_0.pb", "x", &[2.0, 2.0]);
    let twice = dir.run(&["verify", "m.ir", "--test-data", "named"]);
    assert!(twice.code == 2 && twice.stderr.contains("expected one value, found two"), "{twice}");
    // What a run writes has no gap where a default held.
    let saved = dir.run(&["run", "m.ir", "--inputs", "counted", "--outputs", "saved/"]);
    assert_eq!((saved.code, Dir::files_of(&dir.path("saved")).len()), (0, 2), "{saved}");
    assert_eq!(dir.run(&["verify", "m.ir", "--test-data", "saved"]).code, 0);
}

#[test]
fn test_data_that_belong_to_nothing_are_all_named() {
    let dir = Dir::new();
    dir.write("m.ir", module(SUB));
    std::fs::create_dir(dir.path("set")).unwrap();
    write_pb(&dir, "set/output_0.pb", "y", &[4.0, 5.0]);
    for extra in ["set/input_1.pb", "set/input_2.pb", "set/output_1.pb"] {
        dir.write(extra, b"garbage");
    }
    snapshot("test_data_extra", &dir.run(&["verify", "m.ir", "--test-data", "set"]));
    snapshot("inputs_extra", &dir.run(&["run", "m.ir", "--inputs", "set"]));
    let two = format!("{SUB}  output %x : f32[2]\n");
    dir.write("two.ir", module(&two));
    for extra in ["set/input_1.pb", "set/input_2.pb", "set/output_1.pb"] {
        std::fs::remove_file(dir.path(extra)).unwrap();
    }
    snapshot("test_data_missing", &dir.run(&["verify", "two.ir", "--test-data", "set"]));
}

#[test]
fn stored_values_have_the_type_of_the_result() {
    let dir = Dir::new();
    dir.write("m.ir", module("  input %x : f16[1]\n  %y = Relu(%x) : f16[1]\n  output %y : f16[1]\n"));
    let half = HostTensor::from_slice(&[1], &[half::f16::ONE]).unwrap();
    write_npz(&dir, "x.npz", &[("x", half)]);
    let run = dir.run(&["run", "m.ir", "--inputs", "x.npz", "--outputs", "set/"]);
    assert_eq!(run.code, 0, "{run}");
    assert_eq!(dir.run(&["verify", "m.ir", "--test-data", "set"]).code, 0);
    write_pb(&dir, "set/output_0.pb", "y", &[1.0]);
    let other = dir.run(&["verify", "m.ir", "--test-data", "set"]);
    assert!(other.code == 1 && other.stdout.contains("expected elements of f32, found f16"), "{other}");
}

#[test]
fn an_input_whose_name_ends_as_a_type_is_meant_first() {
    let dir = Dir::new();
    let cast = |name: &str, ty: &str| {
        module(&format!(
            "  input %{name} : {ty}[1]\n  %y = Cast(%{name}) {{to=1}} : f32[1]\n  output %y : f32[1]\n"
        ))
    };
    dir.write("named.ir", cast("x__bf16", "u16"));
    dir.write("low.ir", cast("x", "bf16"));
    let bits = || HostTensor::from_slice(&[1], &[0x3f80u16]).unwrap();
    write_npz(&dir, "x.npz", &[("x__bf16", bits())]);
    let named = dir.run(&["run", "named.ir", "--inputs", "x.npz"]);
    assert!(named.code == 0 && named.stdout.contains("16256"), "{named}");
    let low = dir.run(&["run", "low.ir", "--inputs", "x.npz"]);
    assert!(low.code == 0 && low.stdout.contains(" 1 "), "{low}");
    write_npz(&dir, "both.npz", &[("x", bits()), ("x__bf16", bits())]);
    let both = dir.run(&["run", "low.ir", "--inputs", "both.npz"]);
    assert!(both.code == 2 && both.stderr.contains("expected one value, found two"), "{both}");
}

#[test]
fn where_outputs_go_is_checked_before_the_run() {
    let dir = Dir::new();
    let forever = looped("0.5").replace("Loop(%n,", "Loop(_,").replace("  input %n : i64\n", "");
    dir.write("forever.ir", forever);
    std::fs::create_dir(dir.path("set")).unwrap();
    dir.write("set/input_0.pb", b"");
    for (name, code, word) in [
        ("set/", 5, "`set/input_0.pb` exists"),
        ("a/b/", 5, "the folder `a` does not exist"),
        ("forever.ir/", 2, "expected the name of a folder"),
        ("set", 2, "`set` is a folder"),
    ] {
        let run = dir.run(&["run", "forever.ir", "--random", "1", "--time-limit", "60", "--outputs", name]);
        assert!(run.code == code && run.stderr.contains(word), "{name}: {run}");
    }
}

#[test]
fn a_list_is_asked_for_as_what_can_hold_one() {
    let dir = Dir::new();
    let list = "  input %s : seq(f32[*])\n  %n = SequenceLength(%s) : i64[]\n  output %n : i64[]\n";
    dir.write("m.ir", module(list));
    write_npz(&dir, "s.npz", &[("s", HostTensor::from_slice(&[1], &[1.0f32]).unwrap())]);
    snapshot("inputs_list", &dir.run(&["run", "m.ir", "--inputs", "s.npz"]));
}

#[test]
fn tolerances_are_numbers_that_say_something() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    for tolerance in ["inf", "nan", "-1"] {
        let run = dir.run(&["verify", "m.ir", "m.ir", &format!("--tolerance={tolerance}")]);
        assert!(run.code == 2 && run.stderr.contains("expected a finite number"), "{run}");
    }
    // 16 roundoffs of 8 bits are all of an element.
    let through = |dtype: &str, number: u32, scale: &str| {
        module(&format!(
            "  input %x : f32[4]\n  const %s : f32 = {scale}\n  %a = Cast(%x) {{to={number}}} : {dtype}[4]\n  \
             %b = Cast(%a) {{to=1}} : f32[4]\n  %y = Mul(%b, %s) : f32[4]\n  output %y : f32[4]\n"
        ))
    };
    dir.write("a.ir", through("float8e4m3fn", 17, "1.0"));
    dir.write("b.ir", through("float8e4m3fn", 17, "0.0"));
    let zeros = dir.run(&["verify", "a.ir", "b.ir", "--random", "1"]);
    assert!(zeros.code == 1 && zeros.stdout.contains("256 unit roundoffs of f32"), "{zeros}");
    dir.write(
        "low.ir",
        module("  input %x : float8e4m3fn[4]\n  %y = Identity(%x) : float8e4m3fn[4]\n  output %y : float8e4m3fn[4]\n"),
    );
    let bits = HostTensor::from_slice(&[4], &[0x38u8, 0x30, 0xb8, 0]).unwrap();
    write_npz(&dir, "low.npz", &[("x__float8e4m3fn", bits)]);
    let low = ["verify", "low.ir", "low.ir", "--inputs", "low.npz"];
    let none = dir.run(&low);
    assert!(none.code == 2 && none.stderr.contains("--tolerance X"), "{none}");
    assert_eq!(dir.run(&[&low[..], &["--tolerance", "0"]].concat()).code, 0);
}

#[test]
fn limits_hold() {
    let dir = Dir::new();
    let forever = looped("0.5").replace("Loop(%n,", "Loop(_,").replace("  input %n : i64\n", "");
    dir.write("forever.ir", forever);
    snapshot("run_iterations", &dir.run(&["run", "forever.ir", "--random", "1", "--max-iterations", "100"]));
    let late = dir.run(&["run", "forever.ir", "--random", "1", "--time-limit", "0.2"]);
    assert!(late.code == 3 && late.stderr.contains("the time limit of 200ms is over"), "{late}");
    // The model fails, and the other one would go on for ever.
    let gather = "  input %i : i64[1]\n  const %t : f32[2] = [1.0, 2.0]\n";
    let body = "    body: graph @body {\n      input %j : i64\n      input %c : bool\n      input %s : f32[1]\n      \
                %r = Neg(%s) : f32[1]\n      output %c : bool\n      output %r : f32[1]\n    }\n";
    let output = "  output %y : f32[1]\n";
    dir.write("fails.ir", module(&format!("{gather}  %y = Gather(%t, %i) : f32[1]\n{output}")));
    let floats = "  %f = Cast(%i) {to=1} : f32[1]\n";
    let endless = format!("{gather}{floats}  %y = Loop(_, _, %f) {{\n{body}  }} : f32[1]\n{output}");
    dir.write("endless.ir", module(&endless));
    write_npz(&dir, "i.npz", &[("i", HostTensor::from_slice(&[1], &[7i64]).unwrap())]);
    for (pair, place) in
        [(["fails.ir", "endless.ir"], "Gather"), (["endless.ir", "fails.ir"], "in the other model")]
    {
        let run = dir.run(&["verify", pair[0], pair[1], "--inputs", "i.npz", "--time-limit", "30"]);
        assert!(run.code == 3 && run.stderr.contains(place) && !run.stderr.contains("time limit"), "{run}");
    }
    let rewrite = ["rewrite", "forever.ir", "-o", "low.onnx", "--max-iterations", "100"];
    let verified = dir.run(&[&rewrite[..], &["--verify", "--random", "1"]].concat());
    assert!(verified.code == 3 && verified.stderr.contains("at most 100 iterations"), "{verified}");
    let unused = dir.run(&rewrite);
    assert!(unused.code == 2 && unused.stderr.contains("--verify"), "{unused}");
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
    assert!(inner.stdout.contains("`s_out` of Mul `loop1/body/halve` (iteration 0)"), "{inner}");
    snapshot("verify_other_outputs", &dir.run(&["verify", "a.ir", "loop.ir", "--random", "1"]));
}

#[test]
fn a_dim_has_one_size() {
    let dir = Dir::new();
    let two = "  input %x : f32[N, 3]\n  input %y : f32[N, 3]\n  %a = Relu(%x) : f32[N, 3]\n  \
               %b = Relu(%y) : f32[N, 3]\n  output %a : f32[N, 3]\n  output %b : f32[N, 3]\n";
    dir.write("m.ir", module(two));
    let zeros = |n| HostTensor::zeros(ampc::ir::DType::F32, &[n, 3]).unwrap();
    write_npz(&dir, "two.npz", &[("x", zeros(2)), ("y", zeros(3))]);
    snapshot("inputs_dim_twice", &dir.run(&["run", "m.ir", "--inputs", "two.npz"]));
    write_npz(&dir, "one.npz", &[("x", zeros(2)), ("y", zeros(2))]);
    assert_eq!(dir.run(&["run", "m.ir", "--inputs", "one.npz"]).code, 0);
}

#[test]
fn an_input_of_any_rank_is_said_to_be_a_scalar() {
    let dir = Dir::new();
    dir.write("m.ir", module("  input %x : f32[*]\n  %y = Relu(%x) : f32[*]\n  output %y : f32[*]\n"));
    let run = dir.run(&["run", "m.ir", "--random", "1"]);
    let said = "inputs without a number of dims, which got none: x; `--inputs DATA` gives others";
    assert!(run.code == 0 && run.stderr.contains(said), "{run}");
}

#[test]
fn types_that_numpy_lacks_come_with_advice() {
    let dir = Dir::new();
    let cast =
        |ty: &str| format!("  input %x : {ty}[2]\n  %y = Cast(%x) {{to=1}} : f32[2]\n  output %y : f32[2]\n");
    dir.write("bf16.ir", module(&cast("bf16")));
    dir.write("fp8.ir", module(&cast("float8e4m3fn")));
    dir.write("string.ir", module("  input %x : string[2]\n  output %x : string[2]\n"));
    write_npz(&dir, "f16.npz", &[("x", HostTensor::zeros(ampc::ir::DType::F16, &[3]).unwrap())]);
    // What NumPy makes of other types: raw bytes and objects.
    let raw = |from: &str, to: &str, name: &str| {
        write_npz(&dir, name, &[("x", HostTensor::zeros(ampc::ir::DType::U16, &[2]).unwrap())]);
        let bytes = std::fs::read(dir.path(name)).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        let bytes = [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat();
        dir.write(name, bytes);
    };
    raw("'<u2'", "'<V2'", "raw.npz");
    raw("'<u2'", "'|O' ", "objects.npz");
    for (model, inputs, code, advice) in [
        ("bf16.ir", "f16.npz", 2, "store the bits as uint16 under the name `x__bf16`, and give it the dims"),
        ("fp8.ir", "f16.npz", 2, "store the bits as uint8 under the name `x__float8e4m3fn`"),
        ("bf16.ir", "raw.npz", 3, "store the bits as uint16 under the name `x__bf16`"),
        ("string.ir", "objects.npz", 3, "`astype('U')`"),
    ] {
        let run = dir.run(&["run", model, "--inputs", inputs]);
        let said = run.stderr.replace("\n  | ", " ").replace("\n        ", " ");
        assert!(run.code == code && said.contains(advice), "{model} {inputs}: {run}");
    }
}

#[test]
fn damaged_archives_are_said_to_be_damaged() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    write_npz(&dir, "x.npz", &[("x", HostTensor::zeros(ampc::ir::DType::F32, &[32, 4]).unwrap())]);
    let whole = std::fs::read(dir.path("x.npz")).unwrap();
    for end in [0, 3, 100, 400, whole.len() - 1] {
        dir.write("cut.npz", &whole[..end]);
        let run = dir.run(&["run", "m.ir", "--inputs", "cut.npz"]);
        assert!(run.code == 3 && run.stderr.contains("empty, cut off or no .npz file"), "{end}: {run}");
    }
    let at = whole.windows(5).position(|w| w == b"(32, ").unwrap();
    dir.write("long.npz", [&whole[..at], b"(64, ", &whole[at + 5..]].concat());
    let run = dir.run(&["run", "m.ir", "--inputs", "long.npz"]);
    assert!(run.code == 3 && run.stderr.contains("the header says 1024 bytes, 512 are there"), "{run}");
}

#[cfg(target_os = "linux")]
#[test]
fn values_are_read_from_no_pipe() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    std::fs::create_dir(dir.path("set")).unwrap();
    for pipe in ["p.npz", "p.safetensors", "set/input_0.pb"] {
        let made = std::process::Command::new("mkfifo").arg(dir.path(pipe)).status().unwrap();
        assert!(made.success());
    }
    for inputs in ["p.npz", "p.safetensors", "set"] {
        let run = dir.run(&["run", "m.ir", "--inputs", inputs]);
        assert!(run.code == 2 && run.stderr.contains("found a pipe or device"), "{inputs}: {run}");
    }
}

/// Where the system lets us have a small disk of our own.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_in_every_form() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    std::fs::create_dir(dir.path("disk")).unwrap();
    let on_disk = |command: &str| {
        let script = format!("mount -t tmpfs -o size=12k none disk && {command}");
        let mut shell = std::process::Command::new("unshare");
        shell.args(["-rm", "sh", "-c", &script]).current_dir(dir.path("")).output()
    };
    if !on_disk("true").is_ok_and(|done| done.status.success()) {
        let _ = writeln!(std::io::stderr(), "skipped: the system lets us mount no disk of our own");
        return;
    }
    for name in ["y.npz", "y.safetensors", "set/"] {
        let ampc = env!("CARGO_BIN_EXE_ampc");
        let run = format!("{ampc} run m.ir -q --dim N=9000 --outputs disk/{name}; echo $?; ls -A disk");
        let done = on_disk(&run).unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_eq!(out, "5\n", "{name}");
        assert!(err.starts_with("ampc::export::target_full") && err.contains("`--outputs`"), "{name}: {err}");
    }
}

#[test]
fn what_has_no_kernel_is_named_with_a_node() {
    let dir = Dir::new();
    let call = |op: &str, name: &str, from: &str, to: &str| {
        format!("  %{to} = acme::{op}(%{from}) : f32[2] @{name}\n")
    };
    let body = [call("Foo", "foo1", "x", "a"), call("Foo", "foo2", "a", "b"), call("Bar", "bar1", "b", "y")]
        .concat();
    let text = module(&format!("  input %x : f32[2]\n{body}  output %y : f32[2]\n"));
    dir.write("m.ir", text.replace("opset ai.onnx=21", "opset ai.onnx=21\nopset acme=1"));
    let run = dir.run(&["run", "m.ir"]);
    assert!(run.code == 4 && run.stderr.contains("acme::Bar (`bar1`), acme::Foo (`foo1`)"), "{run}");
}

fn json(run: &Run) -> serde_json::Value {
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn what_was_compared_with_nothing_is_said() {
    let dir = Dir::new();
    let log = |lines: &str| module(&format!("  input %x : f32[N]\n{lines}  output %y : f32[N]\n"));
    dir.write("a.ir", log("  %a1 = Abs(%x) : f32[N]\n  %y = Neg(%a1) : f32[N]\n"));
    dir.write("b.ir", log("  %b1 = Abs(%x) : f32[N]\n  %y = Neg(%b1) : f32[N]\n  output %b1 : f32[N]\n"));
    let names = dir.run(&["verify", "a.ir", "b.ir", "--random", "1"]);
    snapshot("verify_lone", &names);
    let found = json(&dir.run(&["verify", "a.ir", "b.ir", "--random", "1", "--json"]));
    let lone = serde_json::json!({
        "values": { "count": 1, "of": 2, "first": "a1" }, "outputs": { "count": 1, "of": 2, "first": "b1" }
    });
    assert_eq!(found["lone"], lone);
    // NaN that meets NaN, and no elements.
    let nan = f32::NAN;
    write_npz(&dir, "nan.npz", &[("x", HostTensor::from_slice(&[3], &[nan, nan, nan]).unwrap())]);
    write_npz(&dir, "some.npz", &[("x", HostTensor::from_slice(&[3], &[nan, 1.0, nan]).unwrap())]);
    snapshot("verify_nan", &dir.run(&["verify", "a.ir", "a.ir", "--inputs", "nan.npz"]));
    let some = dir.run(&["verify", "a.ir", "a.ir", "--inputs", "some.npz"]);
    assert!(some.stdout.contains("all 3 elements agree (2 are NaN in both); max"), "{some}");
    assert_eq!(some.stderr, "");
    let found = json(&dir.run(&["verify", "a.ir", "a.ir", "--inputs", "nan.npz", "--json"]));
    assert_eq!((&found["outputs"][0]["nan_in_both"], &found["outputs"][0]["finite"]), (&3.into(), &0.into()));
    let empty = dir.run(&["verify", "a.ir", "a.ir", "--random", "1", "--dim", "N=0"]);
    assert!(empty.code == 0 && empty.stderr.contains("verify.nothing"), "{empty}");
    let rewrite = ["rewrite", "a.ir", "-o", "low.onnx", "--verify", "--inputs", "nan.npz"];
    let rewritten = dir.run(&rewrite);
    assert!(rewritten.code == 0 && rewritten.stderr.contains("verify.nothing"), "{rewritten}");
    // The warning is about the result, so that it is said whatever else is not.
    let saved = dir.run(&["run", "a.ir", "--inputs", "nan.npz", "--outputs", "set/", "-q"]);
    assert_eq!(saved.code, 0, "{saved}");
    for quiet in [
        &["verify", "a.ir", "a.ir", "--inputs", "nan.npz", "-q"][..],
        &["verify", "a.ir", "a.ir", "--inputs", "nan.npz", "-q", "--json"],
        &["verify", "a.ir", "--test-data", "set", "-q"],
        &[&rewrite[..], &["--force", "-q"]].concat(),
    ] {
        let run = dir.run(quiet);
        assert!(run.code == 0 && run.stderr.starts_with("ampc::warning::verify.nothing\n"), "{run}");
    }
    assert!(!rewritten.stderr.contains("verified: "), "{rewritten}");
}

#[test]
fn errors_without_a_number_are_infinite() {
    let dir = Dir::new();
    let add = |number: &str| {
        module(&format!(
            "  input %x : f32[2]\n  const %c : f32[2] = [{number}, 0.0]\n  %y = Add(%x, %c) : f32[2]\n  \
             output %y : f32[2]\n"
        ))
    };
    dir.write("a.ir", add("0.0"));
    for (number, got) in [("inf", "inf"), ("-inf", "-inf"), ("nan", "nan")] {
        dir.write("b.ir", add(number));
        let text = dir.run(&["verify", "a.ir", "b.ir", "--random", "1"]);
        assert!(text.code == 1 && text.stdout.contains("1 disagrees on being finite"), "{text}");
        assert!(!text.stdout.contains("|err|"), "{text}");
        let found = json(&dir.run(&["verify", "a.ir", "b.ir", "--random", "1", "--json"]));
        for error in ["max_abs", "max_rel", "max_of_max", "max_ulp"] {
            assert_eq!(found["outputs"][0][error], "inf", "{number} {error}");
        }
        let first = &found["outputs"][0]["first_mismatch"];
        assert!(first["got"] == got && first["want"].is_f64(), "{first}");
    }
    let wide = "  input %x : f32[2]\n  %y = Unsqueeze(%x, %a) : f32[1, 2]\n  output %y : f32[1, 2]\n";
    dir.write("dims.ir", module(&format!("  const %a : i64[1] = [0]\n{wide}")));
    let dims = dir.run(&["verify", "a.ir", "dims.ir", "--random", "1", "--json"]);
    // That nothing was compared is a warning about what agrees.
    assert_eq!(dims.stderr, "");
    let found = json(&dims);
    assert_eq!((&found["outputs"][0]["max_abs"], &found["passed"]), (&"inf".into(), &false.into()));
    // Integers keep all their digits, strings are strings.
    let of = |what: &str| module(&format!("{what}  output %y : i64[1]\n"));
    dir.write("i.ir", of("  const %y : i64[1] = [9007199254740993]\n"));
    dir.write("j.ir", of("  const %y : i64[1] = [9007199254740992]\n"));
    let found = json(&dir.run(&["verify", "i.ir", "j.ir", "--json"]));
    assert_eq!(found["outputs"][0]["first_mismatch"]["want"], 9_007_199_254_740_993_i64);
}

#[test]
fn quiet_comparisons_name_what_fails() {
    let dir = Dir::new();
    dir.write("a.ir", net("2.0"));
    dir.write("b.ir", net("2.02"));
    let quiet = |args: &[&str]| dir.run(&[args, &["--random", "1", "--dim", "N=4", "-q"]].concat());
    let same = quiet(&["verify", "a.ir", "a.ir"]);
    assert_eq!((same.code, same.stdout.as_str(), same.stderr.as_str()), (0, "", ""));
    let differs = quiet(&["verify", "a.ir", "b.ir"]);
    assert_eq!((differs.code, differs.stdout.lines().count(), differs.stderr.as_str()), (1, 2, ""));
    assert!(differs.stdout.starts_with("output y: 12 of 12 elements differ"), "{differs}");
    let saved = quiet(&["run", "a.ir", "--outputs", "set/"]);
    assert_eq!(saved.code, 0, "{saved}");
    let same = dir.run(&["verify", "a.ir", "--test-data", "set", "-q"]);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""));
    let off = dir.run(&["verify", "b.ir", "--test-data", "set", "-q"]);
    assert!(off.code == 1 && off.stdout.starts_with("set output y of Sub `residual`: 12 of 12"), "{off}");
    let found = json(&dir.run(&["verify", "b.ir", "--test-data", "set", "--json", "--rtol", "0"]));
    let output = &found["outputs"][0];
    assert_eq!((&output["value"], &output["node"]), (&"y".into(), &"residual".into()));
    assert_eq!((&output["folder"], &output["op"]), (&"set".into(), &"Sub".into()));
    assert_eq!(found["tolerance"]["reason"], "rel asked for, abs the default for test data");
    let help = dir.run(&["verify", "--help"]);
    for usage in ["ampc verify [OPTIONS] <MODEL> <OTHER>", "ampc verify [OPTIONS] <MODEL> --test-data <DIR>"]
    {
        assert!(help.stdout.contains(usage), "{help}");
    }
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

/// A table of which rows are taken, and a product if there are weights.
fn embedding(product: bool) -> String {
    let table = "  input %i : i64[2]\n  const %t : f32[300, 400] = random(1)\n";
    let gather = "  %g = Gather(%t, %i) : f32[2, 400] @embed\n";
    if !product {
        return module(&format!("{table}{gather}  output %g : f32[2, 400]\n"));
    }
    let weights = "  const %w : f32[400, 4] = random(2)\n";
    let product = "  %y = MatMul(%g, %w) : f32[2, 4] @mm\n  output %y : f32[2, 4]\n";
    module(&format!("{table}{weights}{gather}{product}"))
}

#[test]
fn nodes_that_only_move_values_are_pinned_if_that_helps() {
    let dir = Dir::new();
    let strict = ["-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let both = "with these 2 pins all outputs are within the tolerance:\n    --pin embed=fp32 \\\n    --pin mm=fp32\n";
    let one = "with this pin all outputs are within the tolerance:\n    --pin embed=fp32\n";
    for (product, help) in [(true, both), (false, one)] {
        dir.write("m.ir", embedding(product));
        let run = dir.run(&[&["rewrite", "m.ir"][..], &strict].concat());
        assert!(run.code == 1 && run.stderr.contains(help), "{run}");
    }
    let pins = ["--pin", "embed=fp32", "--pin", "mm=fp32"];
    dir.write("m.ir", embedding(true));
    let pinned = dir.run(&[&["rewrite", "m.ir"][..], &strict, &pins].concat());
    assert!(pinned.code == 0 && pinned.stderr.contains("verified: "), "{pinned}");
}

#[test]
fn what_becomes_low_by_a_pin_is_pinned_as_well() {
    let dir = Dir::new();
    dir.write("m.ir", module(EMBEDDING));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&[&strict[..], &["--report", "report.json"]].concat());
    let help = "with these 3 pins all outputs are within the tolerance:\n    --pin word=fp32 \\\n    \
                --pin position=fp32 \\\n    --pin mm=fp32\n";
    assert!(run.code == 1 && run.stderr.contains(help), "{run}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("report.json")).unwrap()).unwrap();
    let pins = serde_json::json!({ "word": "fp32", "position": "fp32", "mm": "fp32" });
    assert_eq!(report["verify"], serde_json::json!({ "passed": false, "pins": pins }));
    // As the pins of a policy they do what was found.
    dir.write("pins.json", serde_json::json!({ "pins": report["verify"]["pins"] }).to_string());
    let pinned = dir.run(&[&strict[..], &["--policy", "pins.json", "--report", "good.json"]].concat());
    assert!(pinned.code == 0 && pinned.stderr.contains("verified: "), "{pinned}");
    let good: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("good.json")).unwrap()).unwrap();
    assert_eq!(good["verify"], serde_json::json!({ "passed": true }));
    // The report repeats the rewrite that it is about.
    let repeated = dir.run(&[&strict[..], &["--force", "--policy", "report.json"]].concat());
    assert!(repeated.code == 1 && repeated.stderr.contains("verify::beyond"), "{repeated}");
    let plain = dir.run(&["rewrite", "m.ir", "-o", "plain.onnx", "--report", "plain.json"]);
    assert_eq!(plain.code, 0, "{plain}");
    assert!(!std::fs::read_to_string(dir.path("plain.json")).unwrap().contains("\"verify\""));
}

#[test]
fn nodes_that_no_pin_makes_fp32_are_named() {
    let dir = Dir::new();
    dir.write("m.ir", module(EMBEDDING));
    // A pin of a variable comes before those of nodes that are tried.
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&[&strict[..], &["--pin", "mm#T=fp16", "--report", "report.json"]].concat());
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = "no pins were found that help: with all that were tried 1 node would still be low: `mm`";
    assert!(run.code == 1 && said.contains(help), "{run}");
    let report = std::fs::read(dir.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["verify"], serde_json::json!({ "passed": false, "left_low": ["mm"] }));
}

/// Whatever nodes are called and however many there are: what is printed is what a shell takes.
#[test]
fn pins_are_printed_whole_for_a_shell() {
    let dir = Dir::new();
    let long = format!("/{}/MatMul", "encoder.layer".repeat(20));
    let names = ["it's", "a`b", "-dash", "x y", "$(exit 3)", "bell\u{7}1", "turn\u{202e}ed", "=eq", &long];
    let mut text = String::from("  input %v0 : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n");
    for (i, name) in names.iter().enumerate() {
        let name = name.replace('\u{7}', "\\x07");
        text.push_str(&format!("  %v{} = MatMul(%v{i}, %w) : f32[4, 4] @\"{name}\"\n", i + 1));
    }
    text.push_str(&format!("  output %v{} : f32[4, 4]\n", names.len()));
    dir.write("m.ir", module(&text));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let run = dir.run(&strict);
    let (_, pins) = run.stderr.split_once("within the tolerance:\n").unwrap();
    assert!(run.code == 1 && pins.lines().count() == names.len(), "{run}");
    assert!(pins.contains(&format!("    --pin {long}=fp32")), "{run}");
    assert!(!pins.contains(['\u{7}', '\u{202e}']), "{run}");
    // As a shell reads them, where one is there that knows all quotes.
    let program = env!("CARGO_BIN_EXE_ampc");
    let script = format!("{program} {} {pins}", strict.join(" "));
    let Ok(shell) =
        std::process::Command::new("bash").arg("-c").arg(script).current_dir(dir.path("")).output()
    else {
        return;
    };
    let said = String::from_utf8_lossy(&shell.stderr).into_owned();
    assert!(shell.status.code() == Some(0) && said.contains("verified: "), "{said}");
}

#[test]
fn of_many_pins_the_report_has_those_that_are_not_shown() {
    let dir = Dir::new();
    let mut text = String::from("  input %v0 : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n");
    for i in 0..24 {
        text.push_str(&format!("  %v{} = MatMul(%v{i}, %w) : f32[4, 4] @mm{i}\n", i + 1));
    }
    text.push_str("  output %v24 : f32[4, 4]\n");
    dir.write("m.ir", module(&text));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "0"];
    let all = dir.run(&strict);
    assert!(all.stderr.contains("with these 24 pins") && all.stderr.contains("--pin mm23=fp32\n"), "{all}");
    let some = dir.run(&[&strict[..], &["--report", "report.json"]].concat());
    let shown = some.stderr.lines().filter(|line| line.contains("--pin ")).count();
    assert!(shown == 20 && some.stderr.contains("the report has all of them"), "{some}");
    let report = std::fs::read(dir.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["verify"]["pins"].as_object().unwrap().len(), 24);
}

/// A value that one cast of the author rounds and another one widens again.
fn rounded(wide: &str, narrow: (&str, u8), to: u8, more: &str) -> String {
    let (narrow, number) = narrow;
    module(&format!(
        "  input %x : {wide}[4]\n{more}  %a = Cast(%x) {{to={number}}} : {narrow}[4] @a\n  \
         %b = Cast(%a) {{to={to}}} : {wide}[4] @b\n  output %b : {wide}[4]\n"
    ))
}

#[test]
fn what_no_pin_helps_against_is_said_as_it_is() {
    let dir = Dir::new();
    let digits = [0.1f64, 0.2, 0.3, 0.7];
    write_npz(&dir, "wide.npz", &[("x", HostTensor::from_slice(&[4], &digits).unwrap())]);
    let some = [0.1f32, 0.2, 0.3, 0.7];
    write_npz(&dir, "x.npz", &[("x", HostTensor::from_slice(&[4], &some).unwrap())]);
    let product = "  input %p : f32[4, 4]\n  const %w : f32[4, 2] = random(1)\n  \
                   %q = MatMul(%p, %w) : f32[4, 2] @mm\n  output %q : f32[4, 2]\n";
    let branches = "  input %c : bool\n  input %p : f32[4, 4]\n  const %w : f32[4, 4] = random(1)\n  \
                    %q = If(%c; %p, %w) {\n    then_branch: graph @then(%p, %w) {\n      \
                    %m = Neg(%p) : f32[4, 4] @neg\n      output %m : f32[4, 4]\n    },\n    \
                    else_branch: graph @else(%p, %w) {\n      %n = MatMul(%p, %w) : f32[4, 4] @mm\n      \
                    output %n : f32[4, 4]\n    }\n  } : f32[4, 4] @if1\n  output %q : f32[4, 4]\n";
    let p = HostTensor::from_slice(&[4, 4], &[1.0f32 / 3.0; 16]).unwrap();
    let with_p = [("x", HostTensor::from_slice(&[4], &digits).unwrap()), ("p", p.clone())];
    write_npz(&dir, "p.npz", &with_p);
    let taken = [&with_p[..], &[("c", HostTensor::from_bytes(DType::Bool, &[], &[1]).unwrap())]].concat();
    write_npz(&dir, "c.npz", &taken);
    let models = [
        ("wide.npz", rounded("f64", ("f32", 1), 11, ""), "help: the rewrite lowers no node; what differs"),
        ("x.npz", rounded("f32", ("f16", 10), 1, ""), "and its 16-bit types are the model's own; what"),
        ("p.npz", rounded("f64", ("f32", 1), 11, product), "even with every node that it lowers pinned"),
        ("c.npz", rounded("f64", ("f32", 1), 11, branches), "even with every node that it lowers pinned"),
    ];
    for (inputs, model, help) in models {
        dir.write("m.ir", model);
        let strict = ["--verify", "--inputs", inputs, "--tolerance", "0", "--excess-precision", "allow"];
        let run = dir.run(&[&["rewrite", "m.ir", "-o", "low.onnx"][..], &strict].concat());
        let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(run.code == 1 && said.contains(help), "{help}\n{run}");
        assert_eq!(said.contains("the model's own"), inputs == "x.npz", "{run}");
    }
}

#[test]
fn a_failing_verification_still_reports_and_explains() {
    let dir = Dir::new();
    dir.write("m.ir", net("2.0"));
    let strict = ["rewrite", "m.ir", "-o", "low.onnx", "--verify", "--random", "1", "--tolerance", "1e-6"];
    let told = ["--report", "report.json", "--explain", "fc1"];
    let bad = dir.run(&[&strict[..], &told].concat());
    assert_eq!((bad.code, dir.files()), (1, vec!["m.ir".to_owned(), "report.json".to_owned()]));
    assert!(bad.stdout.starts_with("MatMul `fc1`\n"), "{bad}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path("report.json")).unwrap()).unwrap();
    assert_eq!(report["files"]["bytes_after"], serde_json::Value::Null);
    assert!(report["nodes"].as_array().unwrap().iter().any(|node| node["path"] == "fc1"));
    // With what is there already, too.
    dir.write("low.onnx", "good");
    let forced = dir.run(&[&strict[..], &["--force"], &told].concat());
    assert_eq!((forced.code, std::fs::read(dir.path("low.onnx")).unwrap()), (1, b"good".to_vec()));
    assert!(forced.stdout.starts_with("MatMul `fc1`\n"), "{forced}");
    let printed = dir.run(&[&strict[..], &["--force", "--report", "-"]].concat());
    assert_eq!((printed.code, json(&printed)["schema"].as_str()), (1, Some("ampc-report/1")));
}
