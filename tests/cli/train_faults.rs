//! `ampc train` where something is wrong: damaged checkpoints, odd data, and outputs that cannot be written.

use super::support::{self, Dir, module};
use super::train::{MODEL, RUN, bytes, folder, folder_of, log, samples, tensors, train, trained, write};
use ampc::runtime::{HostTensor, npz};
use std::fs::{self, File};

/// A run that ends with this code and one error, which says all of this, on however many lines.
#[track_caller]
fn refused(dir: &Dir, words: &str, code: i32, expected: &[&str]) {
    let run = train(dir, words);
    let said = run.stderr.replace("\n  |", "").split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!((run.code, run.stderr.matches("  x ").count()), (code, 1), "{words}: {run}");
    for expected in expected {
        assert!(said.contains(expected), "{words}: expected `{expected}` in {said}");
    }
}

/// A safetensors file with another header.
pub(super) fn with_header(file: &[u8], change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let length = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    change(&mut header);
    let mut text = header.to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &file[8 + length..]].concat()
}

/// A checkpoint whose training stood elsewhere, with the hash of that: xxh3-128 of a line for each tensor and of the text.
fn with_position(file: &[u8], key: &str, value: serde_json::Value) -> Vec<u8> {
    let data = 8 + usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    with_header(file, |header| {
        let mut lines = Vec::new();
        for (name, entry) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
            let offset =
                |i: usize| data + usize::try_from(entry["data_offsets"][i].as_u64().unwrap()).unwrap();
            let hash = xxhash_rust::xxh3::xxh3_128(&file[offset(0)..offset(1)]);
            let dtype = entry["dtype"].as_str().unwrap().to_lowercase();
            let dims: Vec<u64> =
                entry["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap()).collect();
            lines.push(format!("{name:?} {dtype} {dims:?} {hash:032x}\n"));
        }
        lines.sort();
        let metadata = header["__metadata__"].as_object_mut().unwrap();
        let mut position: serde_json::Value =
            serde_json::from_str(metadata["ampc.training"].as_str().unwrap()).unwrap();
        position[key] = value.clone();
        let text = position.to_string();
        let hash = xxhash_rust::xxh3::xxh3_128(format!("{}{text}", lines.concat()).as_bytes());
        metadata.insert("ampc.hash".into(), format!("{hash:032x}").into());
        metadata.insert("ampc.training".into(), text.into());
    })
}

/// An entry of the metadata that is listed twice is refused: the format's own reader takes the last.
#[test]
fn an_entry_of_a_checkpoint_is_listed_once() {
    let dir = folder(&[]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 1 --save c.safetensors"));
    let file = bytes(&dir, "c.safetensors");
    let length = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let header = std::str::from_utf8(&file[8..8 + length]).unwrap().trim_end();
    let begin = "\"__metadata__\":{";
    assert!(header.contains(begin), "{header}");
    for (more, expected) in [
        ("\"ampc.step\":\"0\",", "expected one entry `ampc.step` in `__metadata__`, found two"),
        ("\"ampc.\\u0073tep\":\"0\",", "expected one entry `ampc.step` in `__metadata__`, found two"),
        ("},\"__metadata__\":{", "expected `__metadata__` once, found it twice"),
    ] {
        let text = header.replacen(begin, &format!("{begin}{more}"), 1);
        let twice = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &file[8 + length..]].concat();
        dir.write("t.safetensors", twice);
        for words in [
            format!("train s.onnx --resume t.safetensors {RUN} --steps 2"),
            "train-step --export s.onnx --state t.safetensors -o e.onnx".to_owned(),
        ] {
            let run = dir.run(&words.split(' ').collect::<Vec<_>>());
            let said = run.stderr.replace("\n  | ", " ");
            assert!(run.code == 3 && said.contains(expected), "{words}: {run}");
        }
    }
}

/// Cut off anywhere, with any bit changed, or edited: one error, and the file is as it was.
#[test]
fn a_damaged_checkpoint_is_refused() {
    let dir = folder(&[]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 4 --save t.safetensors"));
    let whole = bytes(&dir, "t.safetensors");
    let resume = format!("--resume c.safetensors {RUN} --steps 8 --save c.safetensors");
    let damaged = |content: &[u8], code: i32, expected: &[&str]| {
        dir.write("c.safetensors", content);
        refused(&dir, &resume, code, expected);
        assert!(bytes(&dir, "c.safetensors") == content);
    };
    let header = 8 + usize::try_from(u64::from_le_bytes(whole[..8].try_into().unwrap())).unwrap();
    for cut in [0, 4, 8, 9, header / 2, header - 1, header, header + 1, whole.len() - 1] {
        damaged(&whole[..cut], 3, &["c.safetensors"]);
    }
    for at in (header..whole.len()).step_by(whole.len() / 16) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        damaged(&flipped, 3, &["its content differs from the written content"]);
        let export =
            dir.run(&["train-step", "--export", "s.onnx", "--state", "c.safetensors", "-o", "f.onnx"]);
        assert!(export.code == 3 && export.stderr.contains("differs from the written content"), "{export}");
        assert!(!dir.path("f.onnx").exists());
    }
    damaged(
        &with_header(&whole, |header| {
            header["__metadata__"].as_object_mut().unwrap().remove("ampc.hash");
        }),
        3,
        &["expected a hash of the checkpoint"],
    );
    damaged(&[&whole[..], b"more"].concat(), 3, &["found 4 bytes more"]);
    let edited = |key: &str, value: &str| String::from_utf8_lossy(&whole[..header]).replace(key, value);
    let longer = edited("\\\"step\\\":4", "\\\"step\\\":3");
    damaged(
        &[longer.as_bytes(), &whole[header..]].concat(),
        3,
        &["its content differs from the written content"],
    );
    for (key, value, expected) in [
        ("step", u64::MAX.into(), "expected at most 4 steps, the total (`steps`)"),
        ("skipped", 5.into(), "expected at most 4 skipped steps (`skipped`), found 5"),
        ("batch", 0.into(), "expected a batch of 1 to 50 samples (`batch`), found 0"),
        ("lr", "cosine:lr=nan".into(), "`lr`: expected a finite learning rate"),
        ("samples", "many".into(), "cannot be read"),
    ] {
        damaged(&with_position(&whole, key, value), 3, &[expected]);
    }
    // As a state to begin with, which needs no hash.
    let unfit = |content: &[u8], code: i32, expected: &[&str]| {
        dir.write("c.safetensors", content);
        refused(&dir, &format!("--state c.safetensors {RUN} --steps 8"), code, expected);
    };
    let plain = |change: &dyn Fn(&mut serde_json::Value)| {
        with_header(&whole, |header| {
            header["__metadata__"] = serde_json::json!({});
            change(header);
        })
    };
    let shape = |shape: serde_json::Value| plain(&|header| header["b"]["shape"] = shape.clone());
    unfit(&shape([1u64 << 62, 4].as_slice().into()), 3, &["c.safetensors"]);
    unfit(&shape([4, 4].as_slice().into()), 3, &["`c.safetensors`: state `b`: expected f32[16]"]);
    unfit(&plain(&|header| header["b"]["dtype"] = "I32".into()), 3, &["state `b`", "found i32[16]"]);
    let mut nan = plain(&|_| {});
    let end = nan.len() - 16;
    nan[end..].fill(0xff);
    unfit(&nan, 3, &["found a NaN"]);
}

/// Files of a folder whose inputs have not the same samples, and arrays that may be samples or the same for every batch.
#[test]
fn rows_that_belong_to_other_rows_are_refused() {
    let dir = folder(&[]);
    fs::create_dir(dir.path("shards")).unwrap();
    let ((x, target), (few, _)) = (samples(0, 20), samples(0, 9));
    let labels = HostTensor::from_slice(&[9], &[0i64; 9]).unwrap();
    write(&dir.path("shards/0.npz"), &few, &target);
    npz::write(File::create(dir.path("shards/1.npz")).unwrap(), [("x", &x), ("target", &labels)]).unwrap();
    let expected = ["input `x`: expected 20 samples, as in `target`", "shards/0.npz"];
    let swapped = ["input `target`: expected 9 samples, as in `x`", "shards/0.npz"];
    let run = train(&dir, "--state s.safetensors --data shards --steps 3");
    let said = run.stderr.replace("\n  | ", " ");
    let says = |all: &[&str]| all.iter().all(|expected| said.contains(expected));
    assert!(run.code == 2 && (says(&expected) || says(&swapped)), "{run}");

    let dir = Dir::new();
    dir.write("m.ir", module(&MODEL.replace('N', "4")));
    let made =
        dir.run(&["train-step", "m.ir", "-o", "s.onnx", "--state", "s.safetensors", "--loss", "mse", "-q"]);
    assert_eq!(made.code, 0, "{made}");
    fs::create_dir(dir.path("shards")).unwrap();
    let target = HostTensor::from_slice(&[4, 4], &[0.5f32; 16]).unwrap();
    for i in 0..2 {
        let x = samples(i * 4, i * 4 + 4).0;
        let file = File::create(dir.path(&format!("shards/{i}.npz"))).unwrap();
        npz::write(file, [("x", &x), ("target", &target)]).unwrap();
    }
    refused(
        &dir,
        "--state s.safetensors --data shards --steps 3",
        2,
        &["found the same 4 rows in each of 2 files"],
    );
}

/// A label of -100, which PyTorch ignores, is an error with the way out; other numbers are plain mistakes.
#[test]
fn labels_that_pytorch_ignores_are_explained() {
    let dir = folder(&[]);
    let x = samples(0, 8).0;
    for (label, is_explained) in [(-100i64, true), (-1001, false)] {
        write(&dir.path("e.npz"), &x, &HostTensor::from_slice(&[8], &[label; 8]).unwrap());
        let run = train(&dir, "--state s.safetensors --data e.npz --steps 3");
        assert!(run.code == 3 && run.stderr.contains("expected a class in"), "{run}");
        assert_eq!(run.stderr.contains("ignore_index=-100"), is_explained, "{run}");
    }
}

/// Files that a folder of samples cannot have, and a checkpoint that would be taken for samples.
#[cfg(unix)]
#[test]
fn what_a_folder_of_samples_cannot_have() {
    let dir = folder(&[]);
    fs::create_dir(dir.path("shards")).unwrap();
    fs::copy(dir.path("d.npz"), dir.path("shards/a.npz")).unwrap();
    let words = "--state s.safetensors --data shards --steps 3";
    refused(&dir, &format!("{words} --save shards/t.safetensors"), 2, &["choose another place"]);
    trained(&dir, &format!("{words} --save shards/t.state"));
    refused(&dir, &format!("{words} --log -"), 2, &["`--log -`: expected the name of a file"]);
    std::os::unix::fs::symlink("nowhere.npz", dir.path("shards/b.npz")).unwrap();
    refused(&dir, words, 5, &["shards/b.npz"]);
    fs::remove_file(dir.path("shards/b.npz")).unwrap();
    fs::create_dir(dir.path("shards/b.npz")).unwrap();
    refused(&dir, words, 3, &["shards/b.npz", "found a folder"]);
    fs::remove_dir(dir.path("shards/b.npz")).unwrap();
    let run = trained(&dir, &format!("{words} --lr cosine:lr=1e-3,warmup=3"));
    assert!(run.stderr.contains("train.warmup"), "{run}");
}

/// A log that is the checkpoint or the state by another name, that is damaged, or that ends too early.
#[test]
fn logs_that_cannot_be_gone_on_with() {
    let dir = folder(&[]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 8 --save t.safetensors --log t.jsonl"));
    refused(
        &dir,
        &format!("--state s.safetensors {RUN} --steps 3 --save ./a --log a"),
        2,
        &["name one file"],
    );
    fs::hard_link(dir.path("s.safetensors"), dir.path("other")).unwrap();
    let state = bytes(&dir, "s.safetensors");
    let run = train(&dir, &format!("--state s.safetensors {RUN} --steps 3 --log other --force"));
    assert!(run.code != 0 && bytes(&dir, "s.safetensors") == state, "{run}");
    let text = fs::read_to_string(dir.path("t.jsonl")).unwrap();
    let resume = format!("--resume t.safetensors {RUN} --steps 9 --log r.jsonl");
    let lines: Vec<&str> = text.lines().collect();
    dir.write("r.jsonl", format!("{}\n", lines[..5].join("\n")));
    let run = trained(&dir, &resume);
    assert!(run.stderr.contains("train.log_gap") && run.stderr.contains("ends after step 4"), "{run}");
    dir.write("r.jsonl", "{\"schema\":\"ampc-train-log/1\"}");
    trained(&dir, &resume);
    assert!(fs::read_to_string(dir.path("r.jsonl")).unwrap().starts_with("{\"schema\""));
    // A file of zeros, of which no line is read whole.
    File::create(dir.path("r.jsonl")).unwrap().set_len(1 << 33).unwrap();
    refused(&dir, &resume, 2, &["expected a log of `ampc train`"]);
}

/// A state of another model is one error, however many tensors do not fit.
#[test]
fn a_state_of_another_model_is_one_error() {
    let dir = folder(&[]);
    dir.write("wide.ir", module(&MODEL.replace("16", "24")));
    let step = ["train-step", "wide.ir", "-o", "wide.onnx", "--state", "wide.safetensors", "--loss", "mse"];
    assert_eq!(dir.run(&step).code, 0);
    let expected = ["`wide.safetensors`: expected the state of `s.onnx`", "found f32[24]", "more", "help: "];
    refused(&dir, "--state wide.safetensors --data d.npz --steps 3", 3, &expected);
}

/// Which sample a kernel refuses, and in which file; a file of another type.
#[test]
fn errors_name_samples_and_files() {
    let dir = folder(&[]);
    fs::create_dir(dir.path("shards")).unwrap();
    let (x, target) = samples(0, 20);
    write(&dir.path("shards/0.npz"), &x, &target);
    let mut labels: Vec<i64> = target.as_slice::<i64>().unwrap().to_vec();
    labels[7] = -1;
    write(&dir.path("shards/1.npz"), &x, &HostTensor::from_slice(&[20], &labels).unwrap());
    let place = "found -1 in `target` of sample 27, counted from 0 (row 7 of `shards/1.npz`)";
    refused(&dir, "--state s.safetensors --data shards --steps 9 --batch 8", 3, &["step", place]);
    refused(
        &dir,
        "--state s.safetensors --data d.npz --eval shards --eval-every 1 --steps 9",
        3,
        &["evaluation after step 1", place],
    );
    write(&dir.path("shards/1.npz"), &HostTensor::from_slice(&[20, 5], &[0f32; 100]).unwrap(), &target);
    let place = "input `x`: expected f32[N, 6], found f32[20, 5] in `shards/1.npz`";
    refused(&dir, "--state s.safetensors --data shards --steps 9", 2, &[place]);
    let low = HostTensor::from_slice(&[20, 6], &[0u16; 120]).unwrap();
    let arrays = [("x", &x), ("x__bf16", &low), ("target", &target)];
    npz::write(File::create(dir.path("twice.npz")).unwrap(), arrays).unwrap();
    refused(
        &dir,
        "--state s.safetensors --data twice.npz --steps 9",
        3,
        &["`twice.npz`: expected one array `x`, found two"],
    );
}

/// A run over samples of a safetensors file, to which `change` does something once it is under way.
#[cfg(unix)]
fn run_over_changing_data(dir: &Dir, steps: &str, change: impl Fn(&File)) -> std::process::Output {
    let (x, target) = samples(0, 5000);
    let header = "{\"x\":{\"dtype\":\"F32\",\"shape\":[5000,6],\"data_offsets\":[40000,160000]},\
                  \"target\":{\"dtype\":\"I64\",\"shape\":[5000],\"data_offsets\":[0,40000]}}";
    let padded = format!("{header:<256}");
    let content = [&256u64.to_le_bytes()[..], padded.as_bytes(), target.bytes().unwrap(), x.bytes().unwrap()];
    dir.write("d.safetensors", content.concat());
    let words = format!(
        "train s.onnx --state s.safetensors --data d.safetensors --steps {steps} --save t.safetensors --log t.jsonl"
    );
    let mut child = support::command(&words.split_whitespace().collect::<Vec<_>>());
    let child = child.current_dir(dir.path("")).spawn().unwrap();
    while !fs::metadata(dir.path("t.jsonl")).is_ok_and(|log| log.len() > 1000) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    change(&fs::OpenOptions::new().write(true).open(dir.path("d.safetensors")).unwrap());
    child.wait_with_output().unwrap()
}

/// Samples in a file that becomes shorter while they are read, and in one that is written to.
#[cfg(unix)]
#[test]
fn data_that_changes_is_told() {
    let dir = folder(&[]);
    let done = run_over_changing_data(&dir, "100000000", |file| file.set_len(50_000).unwrap());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(5) && said.contains("has become shorter"), "{said}");
    let step = log(&dir, "t.jsonl").last().unwrap()["step"].as_u64().unwrap();
    assert!(said.contains(&format!("the state after step {step} is in `t.safetensors`")), "{said}");
    let dir = folder(&[]);
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    let done = run_over_changing_data(&dir, "20000", |file| file.set_modified(later).unwrap());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(0) && said.contains("train.written"), "{said}");
}

/// Two signals, one right behind the other: the program ends at once, and the checkpoint is whole or not there.
#[cfg(target_os = "linux")]
#[test]
fn two_signals_end_the_program() {
    if super::signals::is_skipped("INT", 2) {
        return;
    }
    let dir = folder(&[]);
    for _ in 0..5 {
        let words = format!(
            "train s.onnx --state s.safetensors {RUN} --steps 100000000 --save t.safetensors --log t.jsonl --force"
        );
        let mut child = support::command(&words.split_whitespace().collect::<Vec<_>>());
        let child = child.current_dir(dir.path("")).spawn().unwrap();
        while !fs::metadata(dir.path("t.jsonl")).is_ok_and(|log| log.len() > 1000) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let id = child.id();
        let script = format!("kill -INT {id}; kill -INT {id}; true");
        std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(130), "{}", String::from_utf8_lossy(&done.stderr));
        if dir.path("t.safetensors").exists() {
            assert!(!tensors(&dir, "t.safetensors").is_empty());
        }
        assert!(!dir.files().iter().any(|name| name.starts_with(".ampc-")), "{:?}", dir.files());
        fs::remove_file(dir.path("t.jsonl")).unwrap();
    }
}

/// Full devices, pipes, folders and links.
#[cfg(target_os = "linux")]
#[test]
fn outputs_that_are_no_plain_files() {
    let dir = folder(&[]);
    let state = format!("--state s.safetensors {RUN} --steps 4");
    let pipe = "found a pipe or device, in which no checkpoint can be replaced";
    std::process::Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap();
    for save in ["/dev/full", "/dev/null", "pipe", "-"] {
        refused(&dir, &format!("{state} --save {save}"), 2, &[pipe]);
    }
    fs::create_dir(dir.path("folder")).unwrap();
    refused(&dir, &format!("{state} --save folder"), 5, &["`folder` is a folder"]);
    refused(
        &dir,
        &format!("{state} --save t.safetensors --log /dev/full"),
        5,
        &["/dev/full", "No space left"],
    );
    // A link stays one: what it leads to is written, whether it was there or not.
    std::os::unix::fs::symlink("behind.safetensors", dir.path("link.safetensors")).unwrap();
    std::os::unix::fs::symlink("behind.jsonl", dir.path("link.jsonl")).unwrap();
    trained(&dir, &format!("{state} --save link.safetensors --log link.jsonl"));
    assert!(
        fs::read_link(dir.path("link.safetensors")).is_ok() && fs::read_link(dir.path("link.jsonl")).is_ok()
    );
    assert_eq!(log(&dir, "behind.jsonl").len(), 5);
    let resume = "--data d.npz --steps 8 --save link.safetensors --log link.jsonl";
    trained(&dir, &format!("--resume link.safetensors {resume}"));
    assert!(bytes(&dir, "behind.safetensors") == bytes(&dir, "link.safetensors"));
    assert_eq!(log(&dir, "behind.jsonl").len(), 9);
    // A log that goes to a pipe or device begins anew.
    trained(&dir, "--resume link.safetensors --data d.npz --steps 9 --save link.safetensors --log /dev/null");
}

/// Inputs with defaults, of no axis, and with names that a step has for its own.
#[test]
fn odd_inputs() {
    let dir = Dir::new();
    let body = "  input %lr : f32[N, 6]\n  input %loss_scale : f32\n  input %step : f32[6] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]\n  \
                const %w : f32[6, 4] = random(1)\n  %a = Mul(%lr, %step) : f32[N, 6] @scaled\n  \
                %found_inf = ReduceMax(%a) {keepdims=0} : f32 @largest\n  \
                %b = Mul(%a, %loss_scale) : f32[N, 6] @more\n  %y = MatMul(%b, %w) : f32[N, 4] @last\n  \
                output %y\n  output %found_inf\n";
    dir.write("m.ir", module(body));
    let step = "train-step m.ir -o s.onnx --state s.safetensors --loss cross-entropy --clip-norm 1 -q";
    let made = dir.run(&step.split(' ').collect::<Vec<_>>());
    assert_eq!(made.code, 0, "{made}");
    let ((x, target), one) = (samples(0, 50), HostTensor::from_slice(&[], &[1f32]).unwrap());
    let arrays = |scale: &HostTensor| {
        let arrays = [("lr", &x), ("target", &target), ("loss_scale", scale)];
        npz::write(File::create(dir.path("d.npz")).unwrap(), arrays).unwrap();
    };
    arrays(&one);
    trained(
        &dir,
        "--state s.safetensors --data d.npz --steps 5 --batch 8 --log t.jsonl --save t.safetensors",
    );
    // An output of the model that is called `found_inf` skips nothing, and the step has its own scale and norm.
    for record in &log(&dir, "t.jsonl")[1..] {
        assert_eq!(record["skipped"], false, "{record}");
        assert!(record["loss_scale"].as_f64() >= Some(1024.0) && record["grad_norm"].is_number(), "{record}");
    }
    arrays(&HostTensor::from_slice(&[50], &[1f32; 50]).unwrap());
    refused(
        &dir,
        "--state s.safetensors --data d.npz --steps 5",
        2,
        &["`loss_scale`: expected f32[], found f32[50] in `d.npz`", "give one number"],
    );
}

/// A dim of one name has one size in all inputs.
#[test]
fn named_dims_are_compared() {
    let dir = Dir::new();
    let body = "  input %x : f32[N, T]\n  input %mask : f32[N, T]\n  const %w : f32[1] = [0.5]\n  \
                %a = Mul(%x, %mask) : f32[N, T] @masked\n  %y = Mul(%a, %w) : f32[N, T] @last\n  output %y\n";
    dir.write("m.ir", module(body));
    let step = "train-step m.ir -o s.onnx --state s.safetensors --loss mse --train w -q";
    let made = dir.run(&step.split(' ').collect::<Vec<_>>());
    assert_eq!(made.code, 0, "{made}");
    let (six, five) = (samples(0, 20).0, HostTensor::from_slice(&[20, 5], &[1f32; 100]).unwrap());
    let arrays = [("x", &six), ("mask", &five), ("target", &six)];
    npz::write(File::create(dir.path("d.npz")).unwrap(), arrays).unwrap();
    let message = "for the dim `T`, as in";
    refused(&dir, "--state s.safetensors --data d.npz --steps 3", 2, &[message, "share a dim"]);
}

/// Samples of no elements, infinities, one step, and steps in other formats.
#[test]
fn odd_data_and_steps() {
    let dir = folder(&[]);
    let (x, target) = samples(0, 50);
    let mut numbers: Vec<f32> = x.as_slice::<f32>().unwrap().to_vec();
    numbers[8] = f32::INFINITY;
    write(&dir.path("inf.npz"), &HostTensor::from_slice(&[50, 6], &numbers).unwrap(), &target);
    let run = "--data d.npz --batch 8 --steps 1 --lr one-cycle:lr=1e-2";
    trained(&dir, &format!("--state s.safetensors {run}"));
    // A batch with an infinity is skipped, and a run does not end well with such a loss.
    let skipping = "--data inf.npz --batch 50 --steps 2 --log t.jsonl --save t.safetensors";
    let run_of_nan = train(&dir, &format!("--state s.safetensors {skipping}"));
    assert!(run_of_nan.code == 1 && run_of_nan.stderr.contains("the training diverged"), "{run_of_nan}");
    assert!(log(&dir, "t.jsonl")[1..].iter().all(|record| record["skipped"] == true));
    for more in [&["--to", "bf16"][..], &["--emit", "emulated"], &["--fp32"]] {
        let dir = folder(more);
        trained(&dir, &format!("--state s.safetensors {run} --save t.safetensors"));
        trained(&dir, "--resume t.safetensors --data d.npz --steps 3");
    }
    let dir = Dir::new();
    dir.write("m.ir", module(&MODEL.replace("6, 16", "0, 16").replace("[N, 6]", "[N, 0]")));
    let step = "train-step m.ir -o s.onnx --state s.safetensors --loss cross-entropy -q";
    let made = dir.run(&step.split(' ').collect::<Vec<_>>());
    assert_eq!(made.code, 0, "{made}");
    write(&dir.path("d.npz"), &HostTensor::from_slice::<f32>(&[50, 0], &[]).unwrap(), &target);
    trained(&dir, &format!("--state s.safetensors {run}"));
}

/// The accuracy is that of a count by hand, with a label that counts for nothing; a loss without classes has none.
#[test]
fn accuracy_is_counted() {
    let dir = folder_of("cross-entropy:ignore_index=-100,label_smoothing=0.1", &["--fp32"]);
    let (x, target) = samples(0, 50);
    let mut labels: Vec<i64> = target.as_slice::<i64>().unwrap().to_vec();
    labels[3] = -100;
    labels[30] = -100;
    write(&dir.path("e.npz"), &x, &HostTensor::from_slice(&[50], &labels).unwrap());
    let run = trained(
        &dir,
        "--state s.safetensors --data d.npz --steps 8 --batch 8 --lr 1e-2 --eval e.npz --log t.jsonl --save t.safetensors",
    );
    let found = log(&dir, "t.jsonl").last().unwrap()["eval_accuracy"].as_f64().unwrap();
    // The forward model with the weights of the state, and the largest score of each row.
    let export = "train-step --export s.onnx --state t.safetensors -o f.onnx";
    assert_eq!(dir.run(&export.split(' ').collect::<Vec<_>>()).code, 0);
    npz::write(File::create(dir.path("x.npz")).unwrap(), [("x", &x)]).unwrap();
    assert_eq!(dir.run(&["run", "f.onnx", "--inputs", "x.npz", "--outputs", "y.npz"]).code, 0);
    let mut outputs = npz::Archive::open(File::open(dir.path("y.npz")).unwrap()).unwrap();
    let scores = outputs.read(0, u64::MAX).unwrap();
    let (mut right, mut counted) = (0, 0);
    for (row, &label) in scores.as_slice::<f32>().unwrap().chunks(4).zip(&labels) {
        let chosen = (0..4).fold(0, |best, class| if row[class] > row[best] { class } else { best });
        counted += u32::from(label != -100);
        right += u32::from(i64::try_from(chosen).unwrap() == label);
    }
    assert_eq!(counted, 48);
    assert!((found - f64::from(right) / f64::from(counted)).abs() < 1e-12, "{found}: {right} of {counted}");
    assert!(0.3 < found && found < 1.0 && run.stderr.contains(", accuracy 0."), "{run}");
    let other = folder_of("mse", &[]);
    write(&other.path("d.npz"), &x, &HostTensor::from_slice(&[50, 4], &[0.5f32; 200]).unwrap());
    let run = trained(&other, "--state s.safetensors --data d.npz --steps 3 --eval d.npz --log t.jsonl");
    assert!(!run.stdout.contains("accuracy"), "{run}");
    assert!(log(&other, "t.jsonl").last().unwrap().get("eval_accuracy").is_none());
}

/// Files that a training reads, under their names, through links and as hard links: neither output replaces them.
#[cfg(unix)]
#[test]
fn files_that_are_read_are_not_written() {
    let dir = folder(&[]);
    fs::copy(dir.path("s.safetensors"), dir.path("init.safetensors")).unwrap();
    fs::copy(dir.path("d.npz"), dir.path("e.npz")).unwrap();
    fs::create_dir(dir.path("shards")).unwrap();
    fs::copy(dir.path("d.npz"), dir.path("shards/a.npz")).unwrap();
    let read = ["s.onnx", "s.safetensors", "init.safetensors", "d.npz", "e.npz", "shards/a.npz"];
    let before: Vec<Vec<u8>> = read.iter().map(|name| bytes(&dir, name)).collect();
    for (i, name) in read.iter().enumerate() {
        let (hard, soft) = (format!("hard{i}.safetensors"), format!("soft{i}.safetensors"));
        fs::hard_link(dir.path(name), dir.path(&hard)).unwrap();
        std::os::unix::fs::symlink(dir.path(name), dir.path(&soft)).unwrap();
        let data = if name.starts_with("shards") { "shards" } else { "d.npz" };
        for option in ["--save", "--log"] {
            for written in [*name, &*hard, &*soft] {
                let words = format!(
                    "--state s.safetensors --init init.safetensors --data {data} --eval e.npz --steps 2 --force {option} {written}"
                );
                refused(&dir, &words, 2, &[&format!("`{option} {written}`")]);
            }
        }
    }
    for (name, before) in read.iter().zip(&before) {
        assert!(bytes(&dir, name) == *before, "{name}");
    }
    // The checkpoint that is resumed is no log by any name, and may be replaced by its own.
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 2 --save t.safetensors"));
    fs::hard_link(dir.path("t.safetensors"), dir.path("t.jsonl")).unwrap();
    let resume = format!("--resume t.safetensors {RUN} --steps 4");
    refused(&dir, &format!("{resume} --log t.jsonl"), 2, &["is the state `t.safetensors`"]);
    fs::hard_link(dir.path("t.safetensors"), dir.path("hard.safetensors")).unwrap();
    refused(
        &dir,
        &format!("{resume} --save hard.safetensors --force"),
        2,
        &["the checkpoint that the training continues"],
    );
    trained(&dir, &format!("{resume} --save t.safetensors"));
}

/// Samples of other dims than the input has are not read: those of an archive that is cut off are not there.
#[test]
fn samples_that_do_not_fit_are_not_read() {
    let dir = folder(&[]);
    let whole = bytes(&dir, "d.npz");
    let at = whole.windows(5).position(|window| window == b"(50, ").unwrap();
    dir.write("e.npz", [&whole[..at], b"(9,8,", &whole[at + 5..]].concat());
    let words = "--state s.safetensors --data e.npz --steps 2";
    refused(&dir, words, 2, &["`x`: expected f32[N, 6], found f32[9, 8, 6]"]);
    dir.write("e.npz", [&whole[..at], b"(99, ", &whole[at + 5..]].concat());
    refused(&dir, words, 3, &["expected 2376 bytes of elements by the header, found 1200"]);
}

/// A log that is a link to the checkpoint, which is not there yet, and a checkpoint that is a link into the samples.
#[cfg(unix)]
#[test]
fn links_to_nothing_are_followed() {
    let dir = folder(&[]);
    fs::create_dir(dir.path("shards")).unwrap();
    fs::copy(dir.path("d.npz"), dir.path("shards/a.npz")).unwrap();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path(name)).unwrap();
    link("b.safetensors", "a.jsonl");
    link("shards/n.safetensors", "n.safetensors");
    link("shards", "folder");
    let words = "--state s.safetensors --data shards --steps 2";
    refused(&dir, &format!("{words} --log a.jsonl --save b.safetensors"), 2, &["name one file"]);
    for save in ["n.safetensors", "folder/n.safetensors", "shards/n.npz", "shards/n.NPZ"] {
        refused(&dir, &format!("{words} --save {save}"), 2, &["choose another place"]);
    }
    refused(&dir, &format!("{words} --log shards/n.npz"), 2, &["choose another place"]);
    assert_eq!(Dir::files_of(&dir.path("shards")), ["a.npz"]);
}

/// Lines of a log that a resumed run cannot write again are not removed.
#[test]
fn a_resumed_log_loses_only_later_steps() {
    let dir = folder(&[]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 8 --save t.safetensors --log t.jsonl"));
    let text = fs::read_to_string(dir.path("t.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let resume = format!("--resume t.safetensors {RUN} --steps 9 --log r.jsonl");
    let long = format!("{{\"note\":\"{}\"}}", "x".repeat(1 << 20));
    let behind = lines[2].replace("\"step\":2", "\"step\":20");
    assert_ne!(behind, lines[2]);
    let join = |lines: &[&str]| format!("{}\n", lines.join("\n"));
    for content in [
        join(&[lines[0], "a note", lines[1], lines[2]]),
        join(&[lines[0], lines[1], &long, lines[2]]),
        join(&[lines[0], lines[1], &behind, lines[2]]),
        join(&[lines[0], lines[1], &behind, "{\"note\":1}"]),
        format!("{}a note", join(&lines)),
    ] {
        dir.write("r.jsonl", &content);
        refused(&dir, &resume, 3, &["r.jsonl", "expected only lines of later steps"]);
        assert!(bytes(&dir, "r.jsonl") == content.as_bytes());
    }
    // Later steps, and what a killed run leaves; a whole last line stays without its line break, as does an empty line.
    let torn = [
        join(&[&lines[..], &[&behind, &behind]].concat()),
        format!("{text}{{\"step\":9,\"lo"),
        format!("{text}{{\"ste\0\0\0"),
        format!("{text}\0\0\0\0"),
        lines.join("\n"),
        join(&[&lines[..4], &[""], &lines[4..]].concat()),
    ];
    for content in torn {
        dir.write("r.jsonl", &content);
        let run = trained(&dir, &resume);
        assert!(!run.stderr.contains("train.log_gap"), "{content}: {run}");
        let found = fs::read_to_string(dir.path("r.jsonl")).unwrap();
        let found: Vec<&str> = found.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!((&found[..9], found.len()), (&lines[..9], 10), "{content}");
    }
    // Without any step there is a gap, too.
    dir.write("r.jsonl", format!("{}\n", lines[0]));
    let run = trained(&dir, &resume);
    assert!(run.stderr.contains("train.log_gap") && run.stderr.contains("ends after step 0"), "{run}");
}

/// Named pipes where a file is read, and one for the log that no process reads.
#[cfg(target_os = "linux")]
#[test]
fn training_waits_for_no_pipe() {
    let dir = folder(&[]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 2 --save t.safetensors"));
    std::process::Command::new("mkfifo").arg(dir.path("p")).status().unwrap();
    let state = format!("--state s.safetensors {RUN} --steps 4");
    refused(&dir, &format!("{state} --init p"), 2, &["found a pipe or device"]);
    let export = dir.run(&["train-step", "--export", "s.onnx", "--state", "p", "-o", "f.onnx"]);
    assert!(export.code == 2 && export.stderr.contains("found a pipe or device"), "{export}");
    for words in [state, format!("--resume t.safetensors {RUN} --steps 4")] {
        refused(&dir, &format!("{words} --log p"), 2, &["expected a pipe with a reader"]);
        // With a reader the log is written to the pipe.
        let mut reader = std::process::Command::new("cat");
        reader.arg(dir.path("p")).stdout(std::process::Stdio::piped());
        let reader = reader.spawn().unwrap();
        trained(&dir, &format!("{words} --log p"));
        let read = reader.wait_with_output().unwrap().stdout;
        assert!(read.starts_with(b"{\"schema\"") && read.ends_with(b"}\n"));
    }
}

/// A folder with samples of two kinds, of which one would be left out.
#[test]
fn samples_of_two_kinds_are_refused() {
    let dir = folder(&[]);
    let made = dir.run(&["run", "m.ir", "--random", "1", "--dim", "N=8", "--outputs", "set/", "-q"]);
    assert_eq!(made.code, 0, "{made}");
    let copy_set = |to: &str| {
        fs::create_dir_all(dir.path(to)).unwrap();
        fs::copy(dir.path("set/input_0.pb"), dir.path(to).join("input_0.pb")).unwrap();
    };
    for (folder, sets, files) in [
        ("a", &["a", "a/one"][..], &[][..]),
        ("b", &["b/one", "b/two"], &["b/d.npz"]),
        ("c", &["c"], &["c/d.npz"]),
    ] {
        sets.iter().for_each(|set| copy_set(set));
        for file in files {
            fs::copy(dir.path("d.npz"), dir.path(file)).unwrap();
        }
        let expected = ["expected samples of one kind", "move the others"];
        refused(&dir, &format!("--state s.safetensors --data {folder} --steps 2"), 2, &expected);
    }
}
