//! Claims of the files of a training that are not true: lists of states, counts of samples, and pairs of a step and
//! a state that do not belong together.

use super::support::{Dir, MLP, module};
use super::train::{MODEL, RUN, bytes, folder, tensors, train, trained};
use std::fs;

/// Writes the step `s.onnx` with another list of states as `v.onnx`.
fn claim(dir: &Dir, change: impl Fn(&mut Vec<serde_json::Value>)) {
    with_metadata(dir, "ampc.state", |text| {
        let mut list: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        change(&mut list);
        serde_json::to_string(&list).unwrap()
    });
}

/// Writes the step `s.onnx` with another description of its forward model as `v.onnx`.
fn claim_forward(dir: &Dir, change: impl Fn(&mut serde_json::Value)) {
    with_metadata(dir, "ampc.forward", |text| {
        let mut forward = serde_json::from_str(text).unwrap();
        change(&mut forward);
        forward.to_string()
    });
}

/// Writes the step `s.onnx` with other metadata under a key as `v.onnx`.
fn with_metadata(dir: &Dir, key: &str, change: impl Fn(&str) -> String) {
    let mut model = ampc::load(dir.path("s.onnx")).unwrap();
    let entry = model.module.header.metadata.iter_mut().find(|(known, _)| known == key).unwrap();
    entry.1 = change(&entry.1);
    let options = ampc::SaveOptions { force: true, ..ampc::SaveOptions::default() };
    ampc::save(&model, dir.path("v.onnx"), &options).unwrap();
}

fn at<'a>(list: &'a mut [serde_json::Value], input: &str) -> &'a mut serde_json::Value {
    list.iter_mut().find(|entry| entry["in"] == input).unwrap()
}

/// A claim that is not true of the graph ends every command that reads it, and a good checkpoint stays.
#[test]
fn checkpoint_lost_by_lying_step() {
    let dir = folder(&["--optimizer", "adamw"]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 3 --save c.safetensors"));
    let good = bytes(&dir, "c.safetensors");
    type Change = fn(&mut Vec<serde_json::Value>);
    let lies: &[(&str, Change, &str)] = &[
        ("the loss", |l| at(l, "step")["out"] = "loss".into(), "would be the loss"),
        ("no output", |l| at(l, "step")["out"] = "none".into(), "the model has no output `none`"),
        ("no input", |l| at(l, "step")["in"] = "none".into(), "the model has no input `none`"),
        ("two of one output", |l| at(l, "m.w")["out"] = "v.w_next".into(), "the next value of two states"),
        ("an input twice", |l| l.push(l[0].clone()), "is listed as a state twice"),
        (
            "swapped moments",
            |l| {
                at(l, "m.w")["out"] = "v.w_next".into();
                at(l, "v.w")["out"] = "m.w_next".into();
            },
            "is not computed of it",
        ),
        (
            "swapped kinds",
            |l| {
                at(l, "m.w")["kind"] = "v".into();
                at(l, "v.w")["kind"] = "m".into();
            },
            "is not computed of it",
        ),
        (
            "a number of another",
            |l| {
                let (step, other) = ("loss_scale_next", "step_next");
                at(l, "step")["out"] = step.into();
                at(l, "loss_scale")["out"] = other.into();
            },
            "its next value",
        ),
        ("a scale as weight", |l| at(l, "loss_scale")["kind"] = "weight".into(), "is not computed of it"),
        ("of no weight", |l| at(l, "m.w")["of"] = "x".into(), "`x` is no weight that is listed"),
        ("of another weight", |l| at(l, "m.w")["of"] = "v".into(), "a second state of kind m of `v`"),
        ("of itself", |l| at(l, "m.w")["of"] = "m.w".into(), "`m.w` is no weight that is listed"),
        (
            "without a weight",
            |l| drop(at(l, "m.w").as_object_mut().unwrap().remove("of")),
            "(`of`), found none",
        ),
        ("a weight of a weight", |l| at(l, "w")["of"] = "v".into(), "belongs to no weight"),
        ("two counts", |l| at(l, "loss_scale")["kind"] = "step".into(), "a second state of kind step"),
        ("data as state", |l| at(l, "step")["in"] = "x".into(), "is an input of the forward model"),
        ("another rank", |l| at(l, "b")["out"] = "y".into(), "as its next value"),
        ("another rank, of a moment", |l| at(l, "m.b")["out"] = "y".into(), "as its next value"),
        ("an unknown kind", |l| at(l, "step")["kind"] = "stride".into(), "unknown variant"),
    ];
    for (what, lie, expected) in lies {
        claim(&dir, lie);
        let runs = [
            format!("train v.onnx --resume c.safetensors {RUN} --steps 9 --save c.safetensors"),
            format!("train v.onnx --state s.safetensors {RUN} --steps 1 --eval d.npz"),
            "train-step --export v.onnx --state c.safetensors -o e.onnx".to_owned(),
        ];
        for words in runs {
            let run = dir.run(&words.split(' ').collect::<Vec<_>>());
            let said = run.stderr.replace("\n  | ", " ");
            assert!(
                run.code == 3 && said.contains(expected),
                "{what}: {words}: expected `{expected}`: {run}"
            );
        }
        assert!(bytes(&dir, "c.safetensors") == good && !dir.path("e.onnx").exists(), "{what}");
    }
}

/// Each command that reads a step and a state.
fn commands(step: &str, state: &str) -> [String; 3] {
    [
        format!("check {step} --state {state}"),
        format!("train {step} --state {state} {RUN} --steps 1"),
        format!("train-step --export {step} --state {state} -o e.onnx --force"),
    ]
}

/// The commands end with exit code 3 and the expected words.
fn refused(dir: &Dir, what: &str, commands: &[String], expected: &str) {
    for words in commands {
        let run = dir.run(&words.split(' ').collect::<Vec<_>>());
        let said = format!("{}{}", run.stdout, run.stderr).replace("\n  | ", " ");
        assert!(run.code == 3 && said.contains(expected), "{what}: {words}: expected `{expected}`: {run}");
    }
    assert!(!dir.path("e.onnx").exists(), "{what}");
}

/// The loss is an output that the forward part computes, one floating-point number; the other names of `ampc.forward` and the
/// scaler are true of the step as well. Every command gives the same answer.
#[test]
fn claims_about_the_forward_model_are_checked() {
    let dir = folder(&["--clip-norm", "1"]);
    type Change = fn(&mut serde_json::Value);
    let lies: &[(&str, Change, &str)] = &[
        ("an input as loss", |f| f["loss"] = "x".into(), "to be an output of the step, found `x`, an input"),
        ("no output as loss", |f| f["loss"] = "none".into(), "found `none`, no output of the step"),
        (
            "predictions as loss",
            |f| f["loss"] = "y".into(),
            "expected one floating-point number as the loss, found `y`, f32[?, 4]",
        ),
        (
            "a flag as loss",
            |f| f["loss"] = "found_inf".into(),
            "the update computes `found_inf`, which is listed as the loss",
        ),
        (
            "a norm as loss",
            |f| f["loss"] = "grad_norm".into(),
            "the update computes `grad_norm`, which is listed as the loss",
        ),
        ("a scale as loss", |f| f["loss"] = "loss_scale_next".into(), "its next value would be the loss"),
        (
            "a null as loss",
            |f| f["loss"] = serde_json::Value::Null,
            "does not say which output of the step is the loss",
        ),
        (
            "no loss",
            |f| drop(f.as_object_mut().unwrap().remove("loss")),
            "does not say which output of the step is the loss",
        ),
        (
            "a flag as prediction",
            |f| f["outputs"] = ["found_inf"].as_slice().into(),
            "listed as an output of the forward model",
        ),
        (
            "a weight as prediction",
            |f| f["outputs"] = ["w_next"].as_slice().into(),
            "is the next value of a state",
        ),
        ("no data", |f| f["inputs"] = [""; 0].as_slice().into(), "reads the input `x`, which is not listed"),
        (
            "a state as data",
            |f| f["inputs"] = ["x", "w"].as_slice().into(),
            "`w` is an input of the forward model, and listed as a state",
        ),
        (
            "the rate as data",
            |f| f["inputs"] = ["x", "lr"].as_slice().into(),
            "`lr` is the learning rate of the optimizer",
        ),
        ("data as rate", |f| f["lr"] = "x".into(), "`x` is listed as the learning rate"),
        (
            "targets as rate",
            |f| f["lr"] = "target".into(),
            "expected a floating-point number as the learning rate",
        ),
        (
            "an output as rate",
            |f| f["lr"] = "y".into(),
            "expected the learning rate (`lr`) to be an input of the step",
        ),
    ];
    for (what, lie, expected) in lies {
        claim_forward(&dir, lie);
        let [check, train, export] = commands("v.onnx", "s.safetensors");
        let evaluated = format!("{train} --eval d.npz");
        refused(&dir, what, &["check v.onnx".to_owned(), check, train, evaluated, export], expected);
    }
    for (scaler, expected) in [
        ("apex", "expected none, static:N"),
        ("none", "the scaler `none` has no state like `loss_scale`"),
        ("static:8", "the scaler `static:8` has no state like `loss_scale`"),
        ("paddle-old", "has a state of kind bad, which the step lacks"),
    ] {
        with_metadata(&dir, "ampc.loss_scale", |_| scaler.to_owned());
        let [check, train, export] = commands("v.onnx", "s.safetensors");
        refused(&dir, scaler, &["check v.onnx".to_owned(), check, train, export], expected);
    }
}

/// Replaces the first bytes of a tensor in a safetensors file without a hash.
fn with_bytes(file: &[u8], name: &str, bytes: &[u8]) -> Vec<u8> {
    let start = 8 + usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let at = start + usize::try_from(header[name]["data_offsets"][0].as_u64().unwrap()).unwrap();
    let mut changed = file.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed
}

/// A tensor that does not fit the step, or has a value that no state has, is an invalid input for each command that reads it.
#[test]
fn each_command_refuses_the_same_states() {
    let dir = folder(&["--scaler", "paddle-old"]);
    let whole = bytes(&dir, "s.safetensors");
    let float = |number: f32| number.to_le_bytes().to_vec();
    for (name, value, expected) in [
        ("w", float(f32::NAN), "`w`: expected numbers, found a NaN"),
        ("m.w", float(f32::NAN), "`m.w`: expected numbers, found a NaN"),
        ("lo.w", vec![1, 0x7e], "`lo.w`: expected numbers, found a NaN"),
        ("loss_scale", float(0.0), "`loss_scale`: expected a positive number that f32 holds"),
        ("loss_scale", float(-1.0), "whose reciprocal is finite in f32, found -1.0"),
        ("loss_scale", float(1e-45), "`loss_scale`: expected a positive number that f32 holds"),
        ("loss_scale", float(f32::INFINITY), "whose reciprocal is finite in f32, found inf"),
        (
            "step",
            (-1i64).to_le_bytes().to_vec(),
            "`step`: expected a number of steps from 0 to 4611686018427387904, found -1",
        ),
        (
            "good_steps",
            (-1i32).to_le_bytes().to_vec(),
            "`good_steps`: expected a number of steps from 0 to 2147483646, found -1",
        ),
        (
            "bad_steps",
            i32::MIN.to_le_bytes().to_vec(),
            "`bad_steps`: expected a number of steps from 0 to 2147483646",
        ),
    ] {
        dir.write("t.safetensors", with_bytes(&whole, name, &value));
        refused(&dir, name, &commands("s.onnx", "t.safetensors"), expected);
    }
    for other in ["other", "lr", "x"] {
        let renamed = super::train_faults::with_header(&whole, |header| {
            let header = header.as_object_mut().unwrap();
            let entry = header.remove("m.w").unwrap();
            header.insert(other.to_owned(), entry);
        });
        dir.write("t.safetensors", renamed);
        let expected = format!("`{other}`: the step has no such state");
        refused(&dir, other, &commands("s.onnx", "t.safetensors"), &expected);
    }
    // The step does not list a state that the file has.
    claim(&dir, |list| list.retain(|entry| entry["in"] != "m.b"));
    dir.write(
        "t.safetensors",
        super::train_faults::with_header(&whole, |header| {
            header.as_object_mut().unwrap().remove("__metadata__");
        }),
    );
    refused(&dir, "unlisted", &commands("v.onnx", "t.safetensors"), "`m.b`: the step has no such state");
    // An export needs no states but weights.
    let weights = ["w", "b", "v"].map(|name| {
        (name.to_owned(), tensors(&dir, "s.safetensors").into_iter().find(|(n, _)| n == name).unwrap().1)
    });
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for ((name, bytes), shape) in weights.into_iter().zip([vec![6, 16], vec![16], vec![16, 4]]) {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name, serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = serde_json::Value::from(header).to_string();
    dir.write("t.safetensors", [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat());
    let [_, _, export] = commands("s.onnx", "t.safetensors");
    let run = dir.run(&export.split(' ').collect::<Vec<_>>());
    assert_eq!(run.code, 0, "{run}");
}

/// A NaN in the file of `--init` is an error of that file.
#[test]
fn weights_of_another_run_that_are_nan() {
    let dir = folder(&[]);
    dir.write("i.safetensors", with_bytes(&bytes(&dir, "s.safetensors"), "v", &f32::NAN.to_le_bytes()));
    let words = format!("train s.onnx --state s.safetensors --init i.safetensors {RUN} --steps 1");
    refused(&dir, "init", &[words], "`i.safetensors`: `v`: expected numbers, found a NaN");
}

/// A low copy that is said to be that of another weight, of the same dims or of others.
#[test]
fn export_of_dup() {
    let dir = folder(&[]);
    let of = |weight: &'static str| {
        move |list: &mut Vec<serde_json::Value>| at(list, "lo.w")["of"] = weight.into()
    };
    for weight in ["v", "b", "lo.w"] {
        claim(&dir, of(weight));
        let run = dir.run(&["train-step", "--export", "v.onnx", "--state", "s.safetensors", "-o", "e.onnx"]);
        assert!(run.code == 3 && run.stderr.contains("ampc.state"), "{weight}: {run}");
    }
}

/// A state of another step is refused though all of its tensors fit, by each command that reads both; one that says nothing
/// of a step is taken.
#[test]
fn a_state_of_another_step_is_refused() {
    let dir = folder(&["--optimizer", "adamw:weight_decay=0.5"]);
    let made = dir.run(&[
        "train-step",
        "m.ir",
        "-o",
        "o.onnx",
        "--state",
        "o.safetensors",
        "--loss",
        "cross-entropy",
    ]);
    assert_eq!(made.code, 0, "{made}");
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 2 --save c.safetensors"));
    let runs = [
        format!("train o.onnx --state s.safetensors {RUN} --steps 2"),
        format!("train o.onnx --resume c.safetensors {RUN} --steps 3 --save c.safetensors"),
        "train-step --export o.onnx --state c.safetensors -o e.onnx".to_owned(),
    ];
    for words in runs {
        let run = dir.run(&words.split(' ').collect::<Vec<_>>());
        let said = run.stderr.replace("\n  | ", " ");
        assert!(run.code == 3 && said.contains("found that of another step"), "{words}: {run}");
    }
    // The same step made again is the same step.
    let again = dir.run(&[
        "train-step",
        "m.ir",
        "-o",
        "p.onnx",
        "--state",
        "p.safetensors",
        "--loss",
        "cross-entropy",
    ]);
    assert_eq!(again.code, 0, "{again}");
    assert!(bytes(&dir, "p.onnx") == bytes(&dir, "o.onnx"));
    let run = dir.run(
        &format!("train p.onnx --state o.safetensors {RUN} --steps 1 -q").split(' ').collect::<Vec<_>>(),
    );
    assert_eq!(run.code, 0, "{run}");
    // By hand, without metadata.
    let state = ampc::execute::training::Checkpoint::read(&dir.path("s.safetensors")).unwrap();
    assert!(state.identity.is_some());
    let file = bytes(&dir, "s.safetensors");
    let length = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    header.as_object_mut().unwrap().remove("__metadata__");
    let text = header.to_string();
    let plain = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &file[8 + length..]].concat();
    dir.write("plain.safetensors", &plain);
    let run = dir.run(
        &format!("train o.onnx --state plain.safetensors {RUN} --steps 1 -q").split(' ').collect::<Vec<_>>(),
    );
    assert_eq!(run.code, 0, "{run}");
}

/// A step that was edited or rewritten is another step; the same step in another form is not.
#[test]
fn an_edited_step_is_another_step() {
    let dir = folder(&["--optimizer", "adamw:weight_decay=0.5"]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 2 --save c.safetensors"));
    let runs = |step: &str| {
        let words = [
            format!("train {step} --resume c.safetensors {RUN} --steps 3 -q"),
            format!("train {step} --state s.safetensors {RUN} --steps 1 -q"),
            format!("train-step --export {step} --state c.safetensors -o e.onnx --force -q"),
        ];
        words.map(|words| (dir.run(&words.split(' ').collect::<Vec<_>>()), words))
    };
    let made = |words: &str| {
        let run = dir.run(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, 0, "{words}: {run}");
    };
    made("opt s.onnx --passes= -q -o f.ir");
    made("opt s.onnx --passes= -q -o f.json");
    made("opt s.onnx --passes= -q -o f.onnx --external-data always");
    made("opt f.ir --passes= -q -o g.onnx");
    for form in ["f.ir", "f.json", "f.onnx", "g.onnx"] {
        for (run, words) in runs(form) {
            assert_eq!(run.code, 0, "{words}: {run}");
        }
    }
    let text = fs::read_to_string(dir.path("f.ir")).unwrap();
    assert!(text.contains("= Relu("), "{text}");
    let decay = text.find("weight_decay=").unwrap();
    let decay = decay + text[decay..].find("0.5").unwrap();
    let relu = text.replacen("= Relu(", "= Sigmoid(", 1);
    dir.write("sigmoid.ir", relu);
    dir.write("decay.ir", format!("{}0.25{}", &text[..decay], &text[decay + 3..]));
    made("opt sigmoid.ir --passes= -q -o sigmoid.onnx");
    made("rewrite s.onnx -q -o low.onnx --policy all");
    for step in ["sigmoid.ir", "decay.ir", "sigmoid.onnx", "low.onnx"] {
        for (run, words) in runs(step) {
            let said = run.stderr.replace("\n  | ", " ");
            assert!(run.code == 3 && said.contains("found that of another step"), "{words}: {run}");
        }
    }
}

/// The next value of a state has dims that only a run shows: the checkpoint before stays.
#[test]
fn a_made_state_of_other_dims_is_refused() {
    let dir = Dir::new();
    let step = |least: &str| {
        format!(
            "module ir=10\nmeta ampc.forward = \"{{\\\"inputs\\\":[\\\"x\\\"],\\\"outputs\\\":[],\\\"loss\\\":\\\"loss\\\"}}\"\n\
             meta ampc.state = \"[{{\\\"in\\\":\\\"w\\\",\\\"out\\\":\\\"w_next\\\",\\\"kind\\\":\\\"weight\\\"}}]\"\nopset ai.onnx=21\n\n\
             graph @main {{\n  input %x : f32[N]\n  input %lr : f32\n  input %w : f32[2]\n  const %least : f32 = {least}\n  %flags = Greater(%x, %least) : bool[N]\n  \
             %loss = ReduceSum(%x) {{keepdims=0}} : f32\n  %s = Mul(%w, %lr) : f32[2]\n  %w_next = Compress(%s, %flags) {{axis=0}} : f32[?]\n  \
             output %loss\n  output %w_next\n}}\n"
        )
    };
    dir.write("whole.ir", step("-100.0"));
    dir.write("part.ir", step("100.0"));
    let tensor = |name: &str, numbers: &[f32]| {
        let header = format!(
            "{{\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,{}]}}}}",
            numbers.len(),
            numbers.len() * 4
        );
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
    };
    dir.write("s.safetensors", tensor("w", &[1.0, 2.0]));
    dir.write("d.safetensors", tensor("x", &[1.0, 2.0, 3.0, 4.0]));
    let data = "--data d.safetensors --batch 2 --lr 0.5 -q";
    let run = dir.run(
        &format!("train whole.ir --state s.safetensors {data} --steps 1 --save c.safetensors")
            .split(' ')
            .collect::<Vec<_>>(),
    );
    assert_eq!(run.code, 0, "{run}");
    let good = bytes(&dir, "c.safetensors");
    let run = dir.run(
        &format!("train part.ir --resume c.safetensors {data} --steps 3 --save c.safetensors")
            .split(' ')
            .collect::<Vec<_>>(),
    );
    let said = run.stderr.replace("\n  | ", " ");
    assert!(run.code != 0 && said.contains("expected f32[2] as its next value"), "{run}");
    let kept = ampc::execute::training::Checkpoint::read(&dir.path("c.safetensors")).unwrap();
    assert!(kept.state.iter().all(|(_, data)| data.dims() == [2]));
    assert!(bytes(&dir, "c.safetensors") == good);
}

/// A file of a few bytes can claim any number of samples without elements.
#[test]
fn zero_size_samples() {
    let dir = Dir::new();
    let model = "  input %x : f32[N, 0]\n  const %w : f32[0, 5] = []\n  const %b : f32[5] = random(1)\n  \
                 %m = MatMul(%x, %w) : f32[N, 5]\n  %y = Add(%m, %b) : f32[N, 5]\n  %l = ReduceMean(%y) {keepdims=0} : f32\n  output %l\n";
    dir.write("m.ir", module(model));
    let made = dir.run(&[
        "train-step",
        "m.ir",
        "-o",
        "s.onnx",
        "--state",
        "s.safetensors",
        "--loss",
        "output:l",
        "--freeze",
        "w",
    ]);
    assert_eq!(made.code, 0, "{made}");
    let header = r#"{"x":{"dtype":"F32","shape":[200000000,0],"data_offsets":[0,0]}}"#;
    dir.write("d.safetensors", [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
    let run = train(&dir, "--state s.safetensors --data d.safetensors --steps 1 --batch 4");
    assert!(run.code == 3 && run.stderr.contains("200000000 samples without any"), "{run}");
}

/// `--init` takes weights of another precision, optimizer or last layer by name, rounds low copies anew, and says what it left.
#[test]
fn weights_of_another_run() {
    let dir = folder(&["--fp32", "--optimizer", "sgd:momentum=0.9"]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 20 --save old.safetensors"));
    dir.write(
        "wide.ir",
        module(
            &MODEL
                .replace("f32[16, 4] = random(3)", "f32[16, 7] = random(9)")
                .replace("f32[N, 4]", "f32[N, 7]"),
        ),
    );
    let made = dir.run(&[
        "train-step",
        "wide.ir",
        "-o",
        "wide.onnx",
        "--state",
        "wide.safetensors",
        "--loss",
        "cross-entropy",
        "-q",
    ]);
    assert_eq!(made.code, 0, "{made}");
    let words = "train wide.onnx --state wide.safetensors --init old.safetensors --data d.npz --batch 8 --steps 1 \
                 --save new.safetensors --lr 0";
    let run = dir.run(&words.split(' ').collect::<Vec<_>>());
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(run.code, 0, "{run}");
    assert!(said.contains("init 2 of 3 weights of `old.safetensors`"), "{run}");
    assert!(said.contains("with other dims: 1: `v` is f32[16, 4], here f32[16, 7]"), "{run}");
    assert!(said.contains("only in the file"), "{run}");
    // At a rate of 0 nothing moves: the weights are those of the file, the low copies those of the weights.
    let (old, new) = (tensors(&dir, "old.safetensors"), tensors(&dir, "new.safetensors"));
    let of = |list: &[(String, Vec<u8>)], name: &str| list.iter().find(|(n, _)| n == name).unwrap().1.clone();
    for name in ["w", "b"] {
        assert!(of(&old, name) == of(&new, name), "{name}");
    }
    let floats = |bytes: &[u8]| {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    let low: Vec<u8> =
        floats(&of(&new, "w")).into_iter().flat_map(|w| half::f16::from_f32(w).to_le_bytes()).collect();
    assert!(of(&new, "lo.w") == low);
    dir.write("none.safetensors", [&2u64.to_le_bytes()[..], b"{}"].concat());
    for (words, expected) in [
        ("--state wide.safetensors --init none.safetensors", "found none"),
        ("--state wide.safetensors --init missing.safetensors", "missing.safetensors"),
        ("--init old.safetensors", "--state"),
        ("--resume old.safetensors --init old.safetensors", "--init"),
    ] {
        let run = dir.run(&format!("train wide.onnx {words} {RUN} --steps 1").split(' ').collect::<Vec<_>>());
        assert!(run.code != 0 && run.code < 10 && run.stderr.contains(expected), "{words}: {run}");
    }
    assert!(fs::metadata(dir.path("new.safetensors")).is_ok());
}

/// Frozen weights are constants of the step: `--init` warns of those that the file has other values for, and the model that is
/// exported with these values needs no warning.
#[test]
fn frozen_weights_of_another_run() {
    let dir = folder(&["--fp32"]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 20 --save old.safetensors"));
    let step_of = |model: &str| {
        let words = format!(
            "train-step {model} -o f.onnx --state f.safetensors --loss cross-entropy --freeze * --train v -q --force"
        );
        let made = dir.run(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(made.code, 0, "{made}");
        let words = format!("train f.onnx --state f.safetensors --init old.safetensors {RUN} --steps 1");
        let run = dir.run(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(run.code, 0, "{run}");
        run.stderr.replace("\n  |", "").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    dir.write("m.ir", module(MODEL));
    let said = step_of("m.ir");
    assert!(
        said.contains("train.frozen") && said.contains("2 weights of `old.safetensors` were not taken"),
        "{said}"
    );
    let exported =
        dir.run(&["train-step", "--export", "s.onnx", "--state", "old.safetensors", "-o", "e.onnx", "-q"]);
    assert_eq!(exported.code, 0, "{exported}");
    let said = step_of("e.onnx");
    assert!(said.contains("init 1 of 1 weight of") && !said.contains("train.frozen"), "{said}");
}

/// No model with weights that are NaN is written.
#[test]
fn export_of_weights_that_are_nan() {
    let dir = folder(&["--fp32"]);
    dir.write("n.safetensors", with_bytes(&bytes(&dir, "s.safetensors"), "v", &f32::NAN.to_le_bytes()));
    let run = dir.run(&["train-step", "--export", "s.onnx", "--state", "n.safetensors", "-o", "e.onnx"]);
    assert!(run.code == 3 && run.stderr.contains("`v`: expected numbers, found a NaN"), "{run}");
    assert!(!dir.path("e.onnx").exists());
}

/// `check` takes a state of the step, also of a step whose text was edited and under other names, and no other file.
#[test]
fn check_of_a_step_with_a_state() {
    let dir = folder(&["--optimizer", "adamw"]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 2 --save c.safetensors"));
    let run = |words: &str| dir.run(&words.split(' ').collect::<Vec<_>>());
    for state in ["s.safetensors", "c.safetensors"] {
        let checked = run(&format!("check s.onnx --state {state}"));
        assert!(checked.code == 0 && checked.stdout.contains("no problems"), "{checked}");
    }
    assert_eq!(run("opt s.onnx --passes= -o s.ir -q").code, 0);
    let text = fs::read_to_string(dir.path("s.ir")).unwrap();
    dir.write("edited.ir", format!("// mine\n{}", text.replace("@relu", "@act")));
    fs::copy(dir.path("c.safetensors"), dir.path("other.safetensors")).unwrap();
    for words in [
        "check edited.ir --state other.safetensors".to_owned(),
        format!("train edited.ir --state other.safetensors {RUN} --steps 1 -q"),
    ] {
        let done = run(&words);
        assert_eq!(done.code, 0, "{words}: {done}");
    }
    dir.write("n.ir", module(&MODEL.replace("16", "8")));
    dir.write("k.ir", module(&MODEL.replace("Relu", "Sigmoid")));
    for (model, name) in [("n.ir", "n"), ("k.ir", "k"), ("m.ir", "f")] {
        let more = if name == "f" { " --optimizer none --scaler none" } else { "" };
        let words = format!(
            "train-step {model} -o {name}.onnx --state {name}.safetensors --loss cross-entropy -q{more}"
        );
        let made = run(&words);
        assert_eq!(made.code, 0, "{words}: {made}");
        let checked = run(&format!("check {name}.onnx --state {name}.safetensors"));
        assert_eq!(checked.code, 0, "{checked}");
    }
    for (state, expected) in [
        ("n.safetensors", "`w`: expected f32[6, 16], found f32[6, 8]"),
        ("k.safetensors", "found that of another step"),
        ("f.safetensors", "found none"),
        ("d.npz", "safetensors"),
    ] {
        let checked = run(&format!("check s.onnx --state {state}"));
        let said = checked.stdout.replace("\n  | ", " ");
        assert!(checked.code == 3 && said.contains(expected), "{state}: {checked}");
    }
    // The state of a step without an optimizer is its weights.
    let checked = run("check f.onnx --state s.safetensors");
    assert!(checked.code == 3 && checked.stdout.contains("the step has no such input"), "{checked}");
    assert_eq!(run("check s.onnx --state none.safetensors").code, 5);
    assert_eq!(run("check m.ir --state s.safetensors").code, 2);
}

/// Files of other formats are called by their names wherever tensors are read.
#[test]
fn files_of_other_formats_are_called_by_their_names() {
    let dir = Dir::new();
    dir.copy(MLP, "m.onnx");
    dir.copy(MLP, "x.npz");
    dir.copy(MLP, "x.safetensors");
    let state = ["--state", "s.safetensors"];
    let step = ["train-step", "m.onnx", "-o", "s.onnx", "--loss", "cross-entropy:of=logits", "-q"];
    assert_eq!(dir.run(&[&step[..], &state].concat()).code, 0);
    let train = |more: &[&str]| dir.run(&[&["train", "s.onnx", "--steps", "1"][..], &state, more].concat());
    let model = "is not a safetensors file: it is an ONNX model";
    let archive = "expected an `.npz` file, found an ONNX model";
    for (run, expected) in [
        (train(&["--init", "m.onnx", "--data", "x.npz"]), model),
        (train(&["--data", "x.safetensors"]), model),
        (train(&["--data", "x.npz"]), archive),
        (dir.run(&["run", "m.onnx", "--inputs", "x.safetensors"]), model),
        (dir.run(&["run", "m.onnx", "--inputs", "x.npz"]), archive),
    ] {
        let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ").replace("| ", "");
        assert!(run.code == 3 && said.contains(expected), "{run}");
    }
}

/// Words of other tools and near words are answered with the words of ampc.
#[test]
fn near_words_are_answered() {
    let dir = Dir::new();
    let train = ["train", "s.onnx", "--state", "s.safetensors", "--data", "x.npz", "--steps", "1"];
    for (more, expected) in [
        (["--batchsize", "4"], "`ampc train … --batch N`"),
        (["--learning-rate", "1"], "`ampc train … --lr X`"),
        (["--lr", "cosine:1e-3"], "such as `cosine:lr=1e-3`"),
        (["--lr", "cosin:lr=1"], "did you mean `cosine`?"),
        (["--lr", "cosine:lr=1,warmpu=3"], "did you mean `warmup`?"),
    ] {
        let run = dir.run(&[&train[..], &more].concat());
        assert!(run.code == 2 && run.stderr.contains(expected), "{more:?}: {run}");
    }
    let step = ["train-step", "m.ir", "-o", "s.onnx", "--state", "s.safetensors"];
    for (more, expected) in [
        (&["--loss", "cross_entropy"][..], "did you mean `cross-entropy`?"),
        (&["--loss", "mse", "--optimizer", "adma"], "did you mean `adam`?"),
    ] {
        let run = dir.run(&[&step[..], more].concat());
        assert!(run.code == 2 && run.stderr.contains(expected), "{more:?}: {run}");
    }
}
