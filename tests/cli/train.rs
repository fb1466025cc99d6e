//! `ampc train`: what it computes, what it keeps, and what it refuses.

use super::support::{self, Dir, Run, module};
use ampc::execute::training::Checkpoint;
use ampc::runtime::{HostTensor, npz};
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// Two layers with dropout, for any number of samples.
pub(super) const MODEL: &str = "  input %x : f32[N, 6]\n  const %w : f32[6, 16] = random(1)\n  const %b : f32[16] = random(2)\n  \
                     const %v : f32[16, 4] = random(3)\n  const %ratio : f32 = 0.25\n  const %on : bool = [true]\n  \
                     %h = MatMul(%x, %w) : f32[N, 16] @first\n  %a = Add(%h, %b) : f32[N, 16] @bias\n  \
                     %r = Relu(%a) : f32[N, 16] @relu\n  %d = Dropout(%r, %ratio, %on) : f32[N, 16] @drop\n  \
                     %y = MatMul(%d, %v) : f32[N, 4] @last\n  output %y\n";

/// The numbers of samples `from` to `to`: four classes that a linear model tells apart.
pub(super) fn samples(from: u16, to: u16) -> (HostTensor, HostTensor) {
    let value = |sample: u16, i: u16| f32::from((sample % 23 * 31 + i * 17) % 23) / 11.0 - 1.0;
    let x: Vec<f32> = (from..to).flat_map(|sample| (0..6).map(move |i| value(sample, i))).collect();
    let labels: Vec<i64> = (from..to)
        .map(|sample| i64::from(value(sample, 0) > 0.0) * 2 + i64::from(value(sample, 1) > 0.0))
        .collect();
    let rows = u64::from(to - from);
    (HostTensor::from_slice(&[rows, 6], &x).unwrap(), HostTensor::from_slice(&[rows], &labels).unwrap())
}

pub(super) fn write(path: &Path, x: &HostTensor, target: &HostTensor) {
    npz::write(File::create(path).unwrap(), [("x", x), ("target", target)]).unwrap();
}

/// A folder with a step, its state, and 50 samples.
pub(super) fn folder(more: &[&str]) -> Dir {
    folder_of("cross-entropy", more)
}

/// [`folder`] with a step for another loss.
pub(super) fn folder_of(loss: &str, more: &[&str]) -> Dir {
    let dir = Dir::new();
    dir.write("m.ir", module(MODEL));
    let step = ["train-step", "m.ir", "-o", "s.onnx", "--state", "s.safetensors", "--loss", loss, "-q"];
    let made = dir.run(&[&step, more].concat());
    assert_eq!(made.code, 0, "{made}");
    let (x, target) = samples(0, 50);
    write(&dir.path("d.npz"), &x, &target);
    dir
}

/// `train s.onnx`, and more words.
pub(super) fn train(dir: &Dir, words: &str) -> Run {
    dir.run(&["train", "s.onnx"].into_iter().chain(words.split_whitespace()).collect::<Vec<_>>())
}

pub(super) fn trained(dir: &Dir, words: &str) -> Run {
    let run = train(dir, words);
    assert_eq!(run.code, 0, "{words}: {run}");
    run
}

pub(super) fn bytes(dir: &Dir, name: &str) -> Vec<u8> {
    fs::read(dir.path(name)).unwrap()
}

/// The tensors of a state.
pub(super) fn tensors(dir: &Dir, name: &str) -> Vec<(String, Vec<u8>)> {
    let state = Checkpoint::read(&dir.path(name)).unwrap().state;
    assert!(!state.is_empty());
    state.into_iter().map(|(name, data)| (name, data.to_bytes().unwrap())).collect()
}

/// A log without times.
pub(super) fn log(dir: &Dir, name: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(dir.path(name)).unwrap();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    records
        .map(|mut record: serde_json::Value| {
            record.as_object_mut().unwrap().remove("seconds");
            record
        })
        .collect()
}

pub(super) const RUN: &str = "--data d.npz --batch 8 --lr cosine:lr=1e-2,warmup=5";

#[test]
fn what_is_said() {
    let dir = folder(&["--clip-norm", "1", "--scaler", "ampc:init=16777216"]);
    let run =
        trained(&dir, &format!("--state s.safetensors {RUN} --steps 40 --save t.safetensors --eval d.npz"));
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"(?m)^( +\d+ +\d+ .*?) +[\d.]+$", "$1  [samples/s]");
    settings.bind(|| support::snapshot("train", &run));
    let quiet = trained(
        &dir,
        &format!("--state s.safetensors {RUN} --steps 40 --save u.safetensors --eval d.npz -q"),
    );
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    assert!(bytes(&dir, "u.safetensors") == bytes(&dir, "t.safetensors"));
}

/// The same bytes for any number of threads, of one file or several, and whether a run was stopped or not.
#[test]
fn a_resumed_run_is_the_one_that_was_not_stopped() {
    let dir = folder(&[]);
    let state = format!("--state s.safetensors {RUN}");
    trained(
        &dir,
        &format!("{state} --steps 40 --threads 1 --save whole.safetensors --log whole.jsonl --seed 7"),
    );
    trained(&dir, &format!("{state} --steps 40 --threads 2 --save two.safetensors --seed 7"));
    assert!(bytes(&dir, "two.safetensors") == bytes(&dir, "whole.safetensors"));
    fs::create_dir(dir.path("shards")).unwrap();
    for (name, from, to) in [("0.npz", 0, 13), ("1.npz", 13, 14), ("2.npz", 14, 50)] {
        let (x, target) = samples(from, to);
        write(&dir.path(&format!("shards/{name}")), &x, &target);
    }
    let shards = state.replace("d.npz", "shards");
    trained(&dir, &format!("{shards} --steps 40 --save three.safetensors --seed 7"));
    assert!(bytes(&dir, "three.safetensors") == bytes(&dir, "whole.safetensors"));
    // 50 samples are 7 batches, the last of 2: stopped within an epoch, and behind the small batch.
    for steps in [1, 17, 21, 39] {
        let first = state.replace("warmup=5", "warmup=5,steps=40");
        let first =
            format!("{first} --steps {steps} --save part.safetensors --log part.jsonl --seed 7 --force -q");
        trained(&dir, &first);
        let resume =
            "--resume part.safetensors --data d.npz --steps 40 --save part.safetensors --log part.jsonl -q";
        trained(&dir, resume);
        assert_eq!(log(&dir, "part.jsonl"), log(&dir, "whole.jsonl"), "{steps}");
        // The schedule is spelled otherwise, so that files differ in what they say beside the state.
        assert!(tensors(&dir, "part.safetensors") == tensors(&dir, "whole.safetensors"), "{steps}");
    }
}

/// A run ends with the first loss that is NaN, and weights that became NaN take the place of no checkpoint: the one before can
/// be gone on with.
#[test]
fn a_run_that_diverges_ends_and_keeps_the_checkpoint_before() {
    let dir = folder(&["--fp32"]);
    let state = "--data d.npz --no-shuffle --save-every 1 --save t.safetensors --last drop --batch 25";
    let run = train(&dir, &format!("--state s.safetensors {state} --steps 9 --lr 1e20"));
    let said = run.stderr.replace("\n  | ", " ");
    assert!(run.code == 1 && said.contains("step 2: expected a number as the loss, found a NaN"), "{run}");
    assert!(said.contains("the state after step 1 is in `t.safetensors`") && said.contains("help:"), "{run}");
    let step = Checkpoint::read(&dir.path("t.safetensors")).unwrap().position.unwrap().step;
    assert_eq!(step, 1);
    let run = trained(&dir, &format!("--resume t.safetensors {state} --steps {step}"));
    assert!(run.stderr.contains("no step: all"), "{run}");
    // A rate with which the weights are NaN before any loss is.
    let before = bytes(&dir, "t.safetensors");
    let run = train(&dir, &format!("--state s.safetensors {state} --steps 9 --lr 1e38 --force"));
    let said = run.stderr.replace("\n  | ", " ");
    assert!(
        run.code == 1 && said.contains("step 1: expected finite numbers as the next value of weight"),
        "{run}"
    );
    assert!(said.contains("had written no checkpoint") && said.matches("  x ").count() == 1, "{run}");
    assert!(bytes(&dir, "t.safetensors") == before);
}

/// A run whose reader has closed the pipe, such as `| head`, continues to its end.
#[cfg(unix)]
#[test]
fn a_run_goes_on_when_nobody_reads() {
    let dir = folder(&[]);
    let words =
        format!("train s.onnx --state s.safetensors {RUN} --steps 400 --print-every 1 --save t.safetensors");
    let mut child = support::command(&words.split_whitespace().collect::<Vec<_>>());
    let mut child = child.current_dir(dir.path("")).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(Checkpoint::read(&dir.path("t.safetensors")).unwrap().position.unwrap().step, 400);
}

/// The loss of an evaluation is the mean over the labels that count, however they are spread over batches.
#[test]
fn an_evaluation_counts_the_labels_that_count() {
    let dir = folder_of("cross-entropy:ignore_index=-100", &["--fp32"]);
    let (x, target) = samples(0, 50);
    let mut labels = target.as_slice::<i64>().unwrap().to_vec();
    // The first batch of 8 has no label at all, others have few.
    labels.iter_mut().enumerate().filter(|(i, _)| *i < 8 || i % 3 == 0).for_each(|(_, label)| *label = -100);
    write(&dir.path("e.npz"), &x, &HostTensor::from_slice(&[50], &labels).unwrap());
    let losses = [8, 50].map(|batch| {
        let log = format!("e{batch}.jsonl");
        let words = format!(
            "--state s.safetensors --data d.npz --batch {batch} --steps 1 --lr 0 --eval e.npz --log {log}"
        );
        trained(&dir, &words);
        let line = self::log(&dir, &log).pop().unwrap();
        line["eval_loss"].as_f64().unwrap()
    });
    assert!((losses[0] - losses[1]).abs() < 1e-6, "{losses:?}");
}

/// An evaluation that a log lacks, as after a signal that came before it, is done first; one that it has is not repeated.
#[test]
fn an_evaluation_that_is_missing_is_made_up_for() {
    let dir = folder(&[]);
    let words = format!("{RUN} --epochs 2 --eval d.npz --save t.safetensors --log t.jsonl");
    trained(&dir, &format!("--state s.safetensors {words}"));
    let whole = log(&dir, "t.jsonl");
    assert_eq!(whole.iter().filter(|line| line.get("eval_loss").is_some()).count(), 2);
    trained(&dir, &format!("--resume t.safetensors {words}"));
    assert_eq!(log(&dir, "t.jsonl"), whole);
    // The state after the first epoch, and the log without what came after its last step.
    let half = format!("{RUN} --steps 7 --save h.safetensors --log h.jsonl --eval d.npz --force");
    trained(&dir, &format!("--state s.safetensors {}", half.replace("warmup=5", "warmup=5,steps=14")));
    let text = fs::read_to_string(dir.path("h.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("eval_loss")).collect();
    dir.write("h.jsonl", format!("{}\n", lines.join("\n")));
    trained(
        &dir,
        "--resume h.safetensors --data d.npz --steps 14 --eval d.npz --save h.safetensors --log h.jsonl",
    );
    assert_eq!(log(&dir, "h.jsonl"), whole);
}

/// Killed at random instants, gone on with from the checkpoint that is there.
#[test]
fn a_killed_run_goes_on() {
    const KILLS: u32 = 50;
    let dir = folder(&[]);
    let state = format!("{RUN} --steps 2000 --save-every 1 -q");
    let whole = format!("--state s.safetensors {state} --save whole.safetensors --log whole.jsonl");
    trained(&dir, &whole.replace("--save-every 1 ", ""));
    // A linear congruence gives other instants each time, and the same in every test.
    let (mut killed, mut random) = (0, 12345u32);
    // A busy machine takes longer to the first checkpoint.
    let mut patience = 1;
    for _ in 0..KILLS {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let begin = if dir.path("part.safetensors").exists() { "--resume part" } else { "--state s" };
        let words = format!(
            "train s.onnx {begin}.safetensors {state} --save part.safetensors --log part.jsonl --force"
        );
        let mut child = support::command(&words.split_whitespace().collect::<Vec<_>>());
        let mut child = child.current_dir(dir.path("")).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(u64::from(random >> 16) * patience));
        killed += u32::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        patience += u64::from(!dir.path("part.safetensors").exists());
    }
    assert!(killed > KILLS / 2, "{killed} were running");
    trained(&dir, &format!("--resume part.safetensors {state} --save part.safetensors --log part.jsonl"));
    assert!(bytes(&dir, "part.safetensors") == bytes(&dir, "whole.safetensors"));
    assert_eq!(log(&dir, "part.jsonl"), log(&dir, "whole.jsonl"));
    let left: Vec<String> = dir.files().into_iter().filter(|name| name.starts_with(".ampc-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Ctrl-C ends the run after a step, with a checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_the_run_with_a_checkpoint() {
    if super::signals::is_skipped("INT", 2) {
        return;
    }
    let dir = folder(&[]);
    let words = format!(
        "train s.onnx --state s.safetensors {RUN} --steps 100000000 --save t.safetensors --log t.jsonl"
    );
    let mut child = support::command(&words.split_whitespace().collect::<Vec<_>>());
    let child = child.current_dir(dir.path("")).spawn().unwrap();
    let grown = || fs::metadata(dir.path("t.jsonl")).is_ok_and(|log| log.len() > 1000);
    while !grown() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(130) && said.contains("stopped by a signal after step"), "{said}");
    let steps = log(&dir, "t.jsonl").last().unwrap()["step"].as_u64().unwrap();
    assert!(said.contains(&format!("the state after step {steps} is in `t.safetensors`")), "{said}");
    let more = steps + 1;
    trained(&dir, &format!("--resume t.safetensors --data d.npz --steps {more} --save t.safetensors"));
}

/// A checkpoint that cannot be written leaves the one before.
#[cfg(unix)]
#[test]
fn a_full_disk_keeps_the_checkpoint_before() {
    let dir = folder(&[]);
    trained(&dir, &format!("--state s.safetensors {RUN} --steps 4 --save t.safetensors"));
    let before = bytes(&dir, "t.safetensors");
    let script = "ulimit -f 2; exec \"$@\"";
    let words =
        format!("train s.onnx --resume t.safetensors {RUN} --steps 9 --save-every 2 --save t.safetensors");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_ampc")]).args(words.split_whitespace());
    let done = command.current_dir(dir.path("")).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(
        said.contains("checkpoint after step 6") && said.contains("the previous checkpoint is unchanged"),
        "{said}"
    );
    assert!(bytes(&dir, "t.safetensors") == before);
    trained(&dir, &format!("--resume t.safetensors {RUN} --steps 9 --save t.safetensors"));
}

/// Gradients by exponent: as many as there are, and all the lower the smaller the loss scale.
#[test]
fn histograms_are_of_all_gradients() {
    let dir = folder(&["--scaler", "static:1024"]);
    let other = folder(&["--scaler", "static:1"]);
    let words = "--state s.safetensors --data d.npz --batch 10 --steps 4 --log t.jsonl --histogram-every 2";
    let found = |dir: &Dir| {
        trained(dir, words);
        let records = log(dir, "t.jsonl");
        let found = records.iter().filter(|record| record.get("gradients").is_some());
        let found: Vec<_> = found.cloned().collect();
        assert_eq!(found.iter().map(|r| r["step"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4]);
        found[0]["gradients"].clone()
    };
    let (scaled, plain) = (found(&dir), found(&other));
    // 6 · 16 + 16 + 16 · 4 weights.
    assert_eq!(scaled["weights"]["elements"], 176);
    let mean = |found: &serde_json::Value| {
        let log2 = found["weights"]["log2"].as_object().unwrap();
        let (mut sum, mut n) = (0.0, 0.0);
        for (exponent, count) in log2 {
            let count = count.as_f64().unwrap();
            (sum, n) = (sum + exponent.parse::<f64>().unwrap() * count, n + count);
        }
        sum / n
    };
    assert!((mean(&scaled) - mean(&plain) - 10.0).abs() < 1.5, "{scaled} {plain}");
    assert!(scaled["activations"]["elements"].as_u64() > Some(100));
}

/// A static scale is a constant, and one that changes an input: the same tensors are counted.
#[test]
fn histograms_of_static_scales_count_what_depends_on_the_scale() {
    let words = "--state s.safetensors --data d.npz --batch 10 --steps 1 --log t.jsonl --histogram-every 1";
    let [fixed, dynamic] = ["static:1024", "torch:init=1024"].map(|scaler| {
        let dir = folder(&["--scaler", scaler]);
        trained(&dir, words);
        let records = log(&dir, "t.jsonl");
        let found = records.iter().find(|record| record.get("gradients").is_some());
        found.unwrap()["gradients"].clone()
    });
    assert_eq!(fixed, dynamic);
}

/// A rate so small that hardly a weight of fp16 moves, though most of fp32 do; steps that are skipped have no updates.
#[test]
fn updates_that_are_lost_are_counted() {
    let words =
        "--state s.safetensors --data d.npz --batch 10 --steps 4 --lr 1e-5 --log t.jsonl --histogram-every 1";
    let found = |flags: &[&str]| {
        let dir = folder(flags);
        trained(&dir, words);
        let records = log(&dir, "t.jsonl").into_iter();
        records.filter(|record| record.get("gradients").is_some()).collect::<Vec<_>>()
    };
    let alone =
        ["--policy", "all", "--optimizer", "sgd", "--scaler", "static:1024", "--master-weights", "none"];
    for record in found(&alone) {
        let [due, lost] = ["elements", "lost"].map(|key| record["updates"][key].as_u64().unwrap());
        assert!(due > 100 && 10 * lost > 9 * due, "{record}");
    }
    for record in found(&alone[..6]) {
        let [due, lost] = ["elements", "lost"].map(|key| record["updates"][key].as_u64().unwrap());
        assert!(due > 100 && 4 * lost < due, "{record}");
    }
    let skipped = found(&["--optimizer", "sgd", "--scaler", "static:1e30"]);
    assert!(skipped.len() == 4 && skipped.iter().all(|record| record.get("updates").is_none()));
}

/// One clear error each, and nothing lost.
#[test]
fn what_does_not_fit_is_refused() {
    let dir = folder(&[]);
    let refused = |words: &str, code: i32, expected: &[&str]| {
        let run = train(&dir, words);
        assert_eq!(run.code, code, "{words}: {run}");
        let said = run.stderr.replace("\n  |", "").split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in expected {
            assert!(said.contains(expected), "{words}: expected `{expected}` in {said}");
        }
    };
    let state = "--state s.safetensors --steps 20 --save t.safetensors --force";
    let (x, target) = samples(0, 50);
    let with = |name: &str, x: &HostTensor, target: &HostTensor| write(&dir.path(name), x, target);
    // Labels, NaN, other numbers of samples, and arrays of another size or type.
    let mut labels: Vec<i64> = target.as_slice::<i64>().unwrap().to_vec();
    labels[41] = 4;
    with("labels.npz", &x, &HostTensor::from_slice(&[50], &labels).unwrap());
    refused(
        &format!("{state} --data labels.npz --no-shuffle --batch 10"),
        3,
        &[
            "step 5",
            "expected a class in [0, 4), found 4 in `target` of sample 41, counted from 0",
            "after step 4 is in `t.safetensors`",
        ],
    );
    refused("--resume t.safetensors --data labels.npz --save t.safetensors", 3, &["step 5"]);
    let mut numbers: Vec<f32> = x.as_slice::<f32>().unwrap().to_vec();
    numbers[33 * 6 + 2] = f32::NAN;
    with("nan.npz", &HostTensor::from_slice(&[50, 6], &numbers).unwrap(), &target);
    refused(
        &format!("{state} --data nan.npz --no-shuffle --batch 10"),
        3,
        &["`x`: sample 33", "NaN", "after step 3 is in"],
    );
    with("few.npz", &x, &samples(0, 49).1);
    refused(&format!("{state} --data few.npz"), 2, &["`target`: expected 50 samples, as in `x`, found 49"]);
    with("size.npz", &HostTensor::from_slice(&[60, 5], &vec![0f32; 300]).unwrap(), &target);
    refused(&format!("{state} --data size.npz"), 2, &["`x`: expected f32[N, 6], found f32[60, 5]"]);
    with("type.npz", &HostTensor::from_slice(&[50, 6], &vec![0f64; 300]).unwrap(), &target);
    refused(&format!("{state} --data type.npz"), 2, &["found f64[50, 6]", "convert it to f32"]);
    with(
        "none.npz",
        &HostTensor::from_slice::<f32>(&[0, 6], &[]).unwrap(),
        &HostTensor::from_slice::<i64>(&[0], &[]).unwrap(),
    );
    refused(&format!("{state} --data none.npz"), 2, &["expected at least one sample, found none"]);
    npz::write(File::create(dir.path("missing.npz")).unwrap(), [("x", &x), ("targets", &target)]).unwrap();
    refused(&format!("{state} --data missing.npz"), 2, &["`target`: expected i64[N], found none", "targets"]);
    trained(&dir, "--state s.safetensors --data d.npz --steps 4 --save full.safetensors");
    let before = bytes(&dir, "full.safetensors");
    let resume = "--resume full.safetensors --data d.npz --save full.safetensors";
    for more in ["--steps 2", "--epochs 1"] {
        refused(
            &format!("{resume} {more}"),
            2,
            &["expected at least 4 steps, which the checkpoint has taken"],
        );
    }
    for more in ["--steps 4", "--lr 1", ""] {
        let run = trained(&dir, &format!("{resume} {more}"));
        assert!(run.stderr.contains("no step: all 4 are taken"), "{run}");
    }
    // A log is no other file, whatever is resumed.
    dir.write("notes.txt", "mine\n");
    let resume = "--resume full.safetensors --data d.npz --steps 6";
    refused(&format!("{resume} --log notes.txt"), 2, &["expected a log of `ampc train`"]);
    refused(&format!("{resume} --log full.safetensors"), 2, &["is the state `full.safetensors`"]);
    refused(&format!("{state} --data d.npz --log s.safetensors"), 2, &["is the state `s.safetensors`"]);
    assert_eq!(bytes(&dir, "notes.txt"), b"mine\n");
    assert!(bytes(&dir, "full.safetensors") == before);
    // Files that are not there, or are none.
    refused(&format!("{state} --data nobody.npz"), 5, &["nobody.npz"]);
    refused(&format!("{state} --data m.ir"), 2, &["expected a file that ends in .npz or .safetensors"]);
    fs::create_dir(dir.path("empty")).unwrap();
    refused(&format!("{state} --data empty"), 2, &["found none"]);
    dir.write("torn.npz", &bytes(&dir, "d.npz")[..600]);
    refused(&format!("{state} --data torn.npz"), 3, &["torn.npz"]);
    // States of another optimizer, of another model, and none.
    let other = folder(&["--optimizer", "sgd:momentum=0.9"]);
    dir.write("sgd.safetensors", bytes(&other, "s.safetensors"));
    refused(
        "--state sgd.safetensors --data d.npz --steps 3",
        3,
        &[
            "`sgd.safetensors`: expected the state of `s.onnx`, found a state in which 3 tensors do not fit",
            "state `m.b`: expected f32[16], found none",
        ],
    );
    dir.write("wide.ir", module(&MODEL.replace("16", "24")));
    let step = ["train-step", "wide.ir", "-o", "wide.onnx", "--state", "wide.safetensors", "--loss", "mse"];
    assert_eq!(dir.run(&step).code, 0);
    refused(
        "--state wide.safetensors --data d.npz --steps 3",
        3,
        &["found a state in which 12 tensors do not fit", "state `b`: expected f32[16], found f32[24]"],
    );
    refused("--resume s.safetensors --data d.npz", 2, &["does not say how many steps were taken"]);
    refused("--state nobody.safetensors --data d.npz --steps 3", 5, &["nobody.safetensors"]);
    // Batches, and options that do not go together.
    refused(&format!("{state} --data d.npz --batch 51"), 2, &["a batch of at most 50 samples", "found 51"]);
    refused(
        &format!("{state} --data d.npz --lr fast"),
        2,
        &["a number, constant, linear, cosine or one-cycle"],
    );
    refused("--state s.safetensors --data d.npz", 2, &["--steps"]);
    refused(
        "--state s.safetensors --data d.npz --steps 3 --save s.safetensors --force",
        2,
        &["choose another name"],
    );
    refused("--state s.safetensors --data d.npz --steps 3 --save d.npz --force", 2, &["d.npz"]);
    refused("--state s.safetensors --data d.npz --steps 3 --save nowhere/t.safetensors", 5, &["nowhere"]);
    dir.write("old.safetensors", "");
    refused("--state s.safetensors --data d.npz --steps 3 --save old.safetensors", 5, &["--force"]);
    refused("--state s.safetensors --data d.npz --steps 3 --device cuda:999", 4, &["device `cuda:999`: "]);
    let run = dir.run(&["train", "m.ir", "--state", "s.safetensors", "--data", "d.npz", "--steps", "3"]);
    assert!(run.code == 2 && run.stderr.contains("`ampc train-step` makes a training step"), "{run}");
    let gradients = folder(&["--optimizer", "none"]);
    let run = train(&gradients, "--state s.safetensors --data d.npz --steps 3");
    assert!(run.code == 2 && run.stderr.contains("no optimizer"), "{run}");
}

/// A step of a model for 8 samples takes no other number; what is the same for every batch is one array.
#[test]
fn a_step_for_a_fixed_batch() {
    let dir = Dir::new();
    dir.write("m.ir", module(&MODEL.replace('N', "8")));
    let loss = "cross-entropy:weights=costs";
    let made =
        dir.run(&["train-step", "m.ir", "-o", "s.onnx", "--state", "s.safetensors", "--loss", loss, "-q"]);
    assert_eq!(made.code, 0, "{made}");
    let ((x, target), costs) =
        (samples(0, 50), HostTensor::from_slice(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap());
    let arrays = [("x", &x), ("target", &target), ("costs", &costs)];
    npz::write(File::create(dir.path("d.npz")).unwrap(), arrays).unwrap();
    let run = trained(&dir, "--state s.safetensors --data d.npz --epochs 2 --eval d.npz");
    assert!(run.stderr.contains("2 samples of an epoch are fewer than a batch"), "{run}");
    assert!(run.stderr.contains("2 samples of the evaluation are fewer than a batch"), "{run}");
    assert!(run.stderr.contains("on 48 samples after step 12"), "{run}");
    assert!(run.stderr.contains("50 samples, 8 in a batch, 6 steps an epoch"), "{run}");
    let refused = train(&dir, "--state s.safetensors --data d.npz --epochs 2 --batch 16");
    assert!(refused.code == 2 && refused.stderr.contains("expected a batch of 8"), "{refused}");
    let refused = train(&dir, "--state s.safetensors --data d.npz --epochs 2 --last keep");
    assert!(refused.code == 2 && refused.stderr.contains("the last 2 of an epoch"), "{refused}");
    // Eight rows of `x` are its dims in the step, and the labels of 50 samples are a list.
    let few = samples(0, 8).0;
    let arrays = [("x", &few), ("target", &target), ("costs", &costs)];
    npz::write(File::create(dir.path("e.npz")).unwrap(), arrays).unwrap();
    let run = trained(&dir, "--state s.safetensors --data e.npz --steps 2");
    let said = run.stderr.replace("\n  | ", " ");
    assert!(said.contains("train.same_for_all") && said.contains("input: x"), "{run}");
    assert!(!said.contains("input: x, costs"), "{run}");
}
