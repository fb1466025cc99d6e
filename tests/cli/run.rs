//! `ampc run`: values in and out, and limits.

use super::support::{Dir, MATMUL, command, module, snapshot};
use ampc::runtime::{HostTensor, npz};
use std::fs::File;
use std::io::Write as _;

/// Two layers and a Sub between a value and what it came from.
pub(super) fn net(scale: &str) -> String {
    let weights = "[1.0, -0.5, 0.25, 2.0, -1.0, 0.5, 1.5, -0.75, 0.125]";
    module(&format!(
        "  input %x : f32[N, 3]\n  const %w : f32[3, 3] = {weights}\n  const %s : f32 = {scale}\n  \
         %h = MatMul(%x, %w) : f32[N, 3] @fc1\n  %a = Tanh(%h) : f32[N, 3] @act\n  \
         %b = Mul(%a, %s) : f32[N, 3] @scale\n  %y = Sub(%b, %x) : f32[N, 3] @residual\n  output %y : f32[N, 3]\n"
    ))
}

/// A loop that scales its state.
pub(super) fn looped(factor: &str) -> String {
    module(&format!(
        "  input %n : i64\n  input %x : f32[4]\n  const %go : bool = true\n  const %half : f32 = {factor}\n  \
         %last = Loop(%n, %go, %x; %half) {{\n    body: graph @body(%half) {{\n      input %i : i64\n      \
         input %c : bool\n      input %s : f32[4]\n      %c_out = Identity(%c) : bool @keep\n      \
         %s_out = Mul(%s, %half) : f32[4] @halve\n      output %c_out : bool\n      output %s_out : f32[4]\n    \
         }}\n  }} : f32[4] @loop1\n  output %last : f32[4]\n"
    ))
}

pub(super) fn write_npz(dir: &Dir, name: &str, tensors: &[(&str, HostTensor)]) {
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
fn a_dim_is_given_one_size() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    let wrong = dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3,N=4"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("`N` has two sizes, 3 and 4"), "{wrong}");
    assert_eq!(dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=3,N=3"]).code, 0);
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

/// A node of a function is named by the calls that it runs in, also where calls run one by one.
#[test]
fn an_error_in_a_function_names_its_calls() {
    let dir = Dir::new();
    let look_up = "  const %t : f32[2] = [1.0, 2.0]\n  %c = Not(%no) : ?\n  \
                   %y = If(%c; %t, %i) {\n    then_branch: graph @t(%t, %i) {\n      \
                   %g = Gather(%t, %i) : ? @look_up\n      output %g\n    },\n    \
                   else_branch: graph @e(%t) {\n      output %t\n    }\n  } : ? @choice\n";
    let text = format!(
        "module ir=10\nopset ai.onnx=21, my=1\n\ngraph @main {{\n  input %i : i64[1]\n  input %no : bool\n  \
         const %zero : i64[1] = [0]\n  %a = my::Outer(%zero, %no) : ? @first\n  %b = my::Outer(%i, %no) : ? @second\n  \
         %y = Add(%a, %b) : ?\n  output %y\n}}\n\nfunction my::Outer {{\n  opset ai.onnx=21, my=1\n  \
         input %i : ?\n  input %no : ?\n  %y = my::Inner(%i, %no) : ? @inner\n  output %y\n}}\n\n\
         function my::Inner {{\n  opset ai.onnx=21\n  input %i : ?\n  input %no : ?\n{look_up}  output %y\n}}\n"
    );
    dir.write("m.ir", &text);
    let index = HostTensor::from_slice(&[1], &[7i64]).unwrap();
    let no = HostTensor::from_bytes(ampc::ir::DType::Bool, &[], &[0]).unwrap();
    write_npz(&dir, "i.npz", &[("i", index), ("no", no)]);
    let path = "second/inner/choice/then_branch/look_up";
    for args in [&["run", "m.ir", "--inputs", "i.npz"][..], &["verify", "m.ir", "m.ir", "--inputs", "i.npz"]]
    {
        let run = dir.run(args);
        assert!(run.code == 3 && run.stderr.contains(path), "{run}");
    }
}

#[test]
fn limits_hold() {
    let dir = Dir::new();
    let forever = looped("0.5").replace("Loop(%n,", "Loop(_,").replace("  input %n : i64\n", "");
    dir.write("forever.ir", forever);
    snapshot("run_iterations", &dir.run(&["run", "forever.ir", "--random", "1", "--max-iterations", "100"]));
    let late = dir.run(&["run", "forever.ir", "--random", "1", "--time-limit", "0.2"]);
    assert!(late.code == 3 && late.stderr.contains("the time limit of 200ms is exceeded"), "{late}");
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

/// Sizes for dims without a number are looked for until they fit the model: windows, strides and lengths that are baked in.
#[test]
fn sizes_that_fit_are_found() {
    let halves = "  input %x : f32[N, 1, H, W]\n  \
                  %a = MaxPool(%x) {kernel_shape=[2, 2], strides=[2, 2]} : f32[N, 1, ?, ?]\n  \
                  const %s : f32[4] = [1, 1, 2, 2]\n  %b = Resize(%a, _, %s) : f32[N, 1, ?, ?]\n  \
                  %c = Concat(%b, %x) {axis=1} : f32[N, 2, H, W]\n  output %c : f32[N, 2, H, W]\n";
    let baked = "  input %x : f32[N, T, 4]\n  const %s : i64[3] = [-1, 16, 4]\n  const %p : f32[16, 4] = random(1)\n  \
                 %a = Reshape(%x, %s) : f32[?, 16, 4]\n  %b = Add(%a, %p) : f32[?, 16, 4]\n  \
                 %c = Add(%b, %x) : f32[N, 16, 4]\n  output %c : f32[N, 16, 4]\n";
    let dir = Dir::new();
    for (text, run, verify) in
        [(halves, "N = 1, H = 8, W = 8", "N = 8, H = 8, W = 8"), (baked, "N = 1, T = 16", "N = 8, T = 16")]
    {
        dir.write("m.ir", module(text));
        for (words, expected) in [("run m.ir", run), ("verify m.ir m.ir", verify)] {
            let run = dir.run(&words.split(' ').collect::<Vec<_>>());
            assert!(run.code == 0 && run.stderr.contains(expected), "{words}: {run}");
        }
    }
}

#[test]
fn an_input_of_any_rank_is_said_to_be_a_scalar() {
    let dir = Dir::new();
    dir.write("m.ir", module("  input %x : f32[*]\n  %y = Relu(%x) : f32[*]\n  output %y : f32[*]\n"));
    let run = dir.run(&["run", "m.ir", "--random", "1"]);
    let said = "inputs of unknown rank, taken as scalars: x; `--inputs DATA` replaces them";
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
        let said = if end == 0 { "found an empty file" } else { "empty, truncated or not an .npz file" };
        assert!(run.code == 3 && run.stderr.contains(said), "{end}: {run}");
    }
    let at = whole.windows(5).position(|w| w == b"(32, ").unwrap();
    dir.write("long.npz", [&whole[..at], b"(64, ", &whole[at + 5..]].concat());
    let run = dir.run(&["run", "m.ir", "--inputs", "long.npz"]);
    assert!(
        run.code == 3 && run.stderr.contains("expected 1024 bytes of elements by the header, found 512"),
        "{run}"
    );
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
        assert!(
            err.starts_with("ampc::export::target_full") && err.contains("another disk"),
            "{name}: {err}"
        );
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

/// Test data of a run with more outputs, which would be of one data set with those of this run.
#[test]
fn a_folder_of_outputs_has_those_of_one_run() {
    let net = |outputs: &str| {
        let body = "  input %x : f32[2]\n  input %z : f32[2]\n  %y = Add(%x, %z) : f32[2] @add\n";
        module(&format!("{body}  output %y : f32[2]\n{outputs}"))
    };
    // With a folder in it, the folder cannot be exchanged as a whole.
    for has_folder in [false, true] {
        let dir = Dir::new();
        dir.write("two.ir", net("  output %x : f32[2]\n"));
        dir.write(
            "one.ir",
            module("  input %x : f32[2]\n  %y = Neg(%x) : f32[2] @neg\n  output %y : f32[2]\n"),
        );
        assert_eq!(dir.run(&["run", "two.ir", "--random", "1", "--outputs", "t/"]).code, 0);
        for other in ["t/notes.txt", "t/output_01.pb"] {
            dir.write(other, "mine");
        }
        if has_folder {
            std::fs::create_dir(dir.path("t/more")).unwrap();
        }
        let one = ["run", "one.ir", "--random", "1", "--outputs", "t/"];
        let refused = dir.run(&one);
        assert!(refused.code == 5 && refused.stderr.contains("exists"), "{refused}");
        let run = dir.run(&[&one[..], &["--force"]].concat());
        assert_eq!(run.code, 0, "{run}");
        let mut left = Dir::files_of(&dir.path("t"));
        left.retain(|name| name != "more");
        assert_eq!(left, ["input_0.pb", "notes.txt", "output_0.pb", "output_01.pb"]);
        assert_eq!(dir.run(&["verify", "one.ir", "--test-data", "t"]).code, 0);
    }
    // Only what is left over, without --force.
    let dir = Dir::new();
    dir.write("one.ir", module("  input %x : f32[2]\n  %y = Neg(%x) : f32[2] @neg\n  output %y : f32[2]\n"));
    std::fs::create_dir(dir.path("t")).unwrap();
    dir.write("t/output_7.pb", "old");
    let refused = dir.run(&["run", "one.ir", "--random", "1", "--outputs", "t/"]);
    assert!(refused.code == 5 && refused.stderr.contains("output_7.pb"), "{refused}");
    assert_eq!(Dir::files_of(&dir.path("t")), ["output_7.pb"]);
}

/// The dims of an array are compared before its elements are read: those of an array that is cut off are not there.
#[test]
fn an_array_that_does_not_fit_is_not_read() {
    let dir = Dir::new();
    dir.write("m.ir", module(MATMUL));
    write_npz(&dir, "x.npz", &[("x", HostTensor::zeros(ampc::ir::DType::F32, &[32, 4]).unwrap())]);
    let whole = std::fs::read(dir.path("x.npz")).unwrap();
    let at = whole.windows(5).position(|w| w == b"(32, ").unwrap();
    dir.write("long.npz", [&whole[..at], b"(9,8,", &whole[at + 5..]].concat());
    let run = dir.run(&["run", "m.ir", "--inputs", "long.npz"]);
    let said = run.stderr.replace("\n  | ", " ");
    assert!(run.code == 2 && said.contains("expected f32[N, 4], found f32[9, 8, 4]"), "{run}");
    assert!(!said.contains("found none"), "{run}");
}

/// Names that a form of file keeps for itself, and names that would be of two arrays.
#[test]
fn outputs_whose_names_a_file_cannot_hold_are_refused() {
    let dir = Dir::new();
    let two = |first: &str| {
        let body = format!("  input %x : f32[2]\n  {first}\n  %y__bf16 = Neg(%x) : f32[2]\n");
        let name = first.split_once(" = ").unwrap().0;
        module(&format!("{body}  output {name}\n  output %y__bf16\n"))
    };
    dir.write("twice.ir", two("%y = Cast(%x) {to=16} : bf16[2]"));
    dir.write("kept.ir", two("%\"__metadata__\" = Relu(%x) : f32[2]"));
    // The longest name of an entry, with `.npy`, has 65,504 bytes.
    dir.write("long.ir", two(&format!("%{} = Relu(%x) : f32[2]", "n".repeat(65_501))));
    dir.write("longest.ir", two(&format!("%{} = Relu(%x) : f32[2]", "n".repeat(65_500))));
    let reject = |model: &str, file: &str, part: &str| {
        let run = dir.run(&["run", model, "--random", "1", "--outputs", file]);
        let said = run.stderr.replace("\n  | ", " ");
        assert!((run.code == 2 || run.code == 4) && said.contains(part), "{run}");
        assert!(!dir.path(file).exists(), "{file} was written");
    };
    reject("twice.ir", "z.npz", "`y__bf16`, because the entry of `y` has the same name");
    reject("long.ir", "z.npz", "a name that no entry of a zip archive can have");
    reject("kept.ir", "z.safetensors", "cannot hold the tensor `__metadata__`");
    let written = [("twice.ir", "a.safetensors"), ("kept.ir", "b.npz"), ("long.ir", "c.safetensors")];
    for (model, file) in written.into_iter().chain([("longest.ir", "d.npz")]) {
        let run = dir.run(&["run", model, "--random", "1", "--outputs", file]);
        assert_eq!(run.code, 0, "{run}");
    }
}

/// The devices of the machine, whatever they are: the CPU is there, and every device that cannot be used has a reason.
#[test]
fn devices_of_this_machine() {
    let dir = Dir::new();
    let run = dir.run(&["devices"]);
    assert_eq!(run.code, 0, "{run}");
    assert!(run.stdout.lines().any(|line| line.starts_with("cpu ") && line.ends_with("usable")), "{run}");
    let run = dir.run(&["devices", "--json", "--threads", "1"]);
    assert_eq!(run.code, 0, "{run}");
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(found["schema"], "ampc-devices/1");
    assert_eq!(found["devices"][0]["name"], "1 thread");
    for device in found["devices"].as_array().unwrap() {
        assert_eq!(device["usable"] == true, device["problem"].is_null(), "{device}");
    }
    for library in found["libraries"].as_array().unwrap() {
        assert_eq!(library["version"].is_null(), !library["problem"].is_null(), "{library}");
        assert_eq!(library["version"].is_null(), library["path"].is_null(), "{library}");
    }
}

/// A file that the dynamic loader rejects is not reported as absent.
#[cfg(all(target_os = "linux", target_arch = "x86_64", feature = "cuda"))]
#[test]
fn a_damaged_library_is_named() {
    let dir = Dir::new();
    dir.write("libnvrtc.so.13", "no library");
    dir.write("libnvrtc.so", "no library");
    let output = command(&["devices", "--json"]).env("LD_LIBRARY_PATH", dir.path("")).output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let libraries = found["libraries"].as_array().unwrap();
    let compiler = libraries.iter().find(|library| library["name"] == "NVRTC").unwrap();
    let problem = compiler["problem"].as_str().unwrap();
    assert!(problem.contains("cannot be loaded") && problem.contains("libnvrtc.so"), "{problem}");
}

/// Kernels are dumped for GPUs alone, and to folders that can be written.
#[test]
fn kernels_that_cannot_be_dumped() {
    let dir = Dir::new();
    dir.write("m.ir", "");
    for (command, model) in [("run", vec!["m.ir"]), ("verify", vec!["m.ir", "m.ir"])] {
        let args =
            |device| [&[command][..], &model, &["--device", device, "--dump-kernels", "m.ir/k"]].concat();
        let run = dir.run(&args("cpu"));
        assert_eq!(run.code, 2, "{run}");
        assert!(run.stderr.contains("`--dump-kernels` needs `--device cuda`"), "{run}");
        let run = dir.run(&args("cuda"));
        assert_eq!(run.code, 5, "{run}");
        assert!(run.stderr.contains("m.ir/k"), "{run}");
    }
}

/// Options of GPUs are refused for the CPU, and not ignored.
#[test]
fn options_of_gpus() {
    let dir = Dir::new();
    dir.write("m.ir", "");
    for option in [&["--tf32"][..], &["--exact-rounding"], &["--max-device-bytes", "2GiB"]] {
        for command in [&["run", "m.ir"][..], &["verify", "m.ir", "m.ir"]] {
            let run = dir.run(&[command, option].concat());
            assert_eq!(run.code, 2, "{run}");
            assert!(run.stderr.contains(&format!("`{}` needs `--device cuda`", option[0])), "{run}");
        }
    }
}

/// A device that no machine has.
#[test]
fn an_absent_device() {
    let dir = Dir::new();
    dir.write("m.ir", "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[2]\n  %y = Neg(%x) : f32[2]\n  output %y : f32[2]\n}\n");
    for command in
        [&["run", "m.ir", "--device", "cuda:999"][..], &["verify", "m.ir", "m.ir", "--device", "cuda:999"]]
    {
        let run = dir.run(command);
        assert!(run.code == 4 && run.stderr.contains("device `cuda:999`: "), "{run}");
    }
    for name in ["cuda:00", "cuda:+0", "cuda:", "cuda:-1", "cuda:4294967296"] {
        let run = dir.run(&["run", "m.ir", "--device", name]);
        assert!(run.code == 2 && run.stderr.contains("expected cpu, cuda or cuda:N"), "{run}");
    }
}
