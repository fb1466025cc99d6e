//! `ampc train` where a training diverges: when it ends, what it says, and which checkpoint stays.

use super::support::{self, Dir};
use super::train::{bytes, folder, log, tensors, train, trained};
use ampc::execute::training::Checkpoint;

const DATA: &str = "--data d.npz --batch 10 --no-shuffle";

fn said(run: &super::support::Run) -> String {
    run.stderr.replace("\n  |", "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A step whose rate changes: two good steps, then one that ruins the weights.
fn ruined(dir: &Dir, more: &str) -> super::support::Run {
    trained(dir, &format!("--state s.safetensors {DATA} --steps 2 --lr 1e-3 --save t.safetensors --force"));
    train(dir, &format!("--resume t.safetensors {DATA} --lr 1e9 --save t.safetensors --save-every 1 {more}"))
}

/// With a dynamic scale that falls to its floor, and with a static one: step after step is skipped, and the run ends.
#[test]
fn a_run_that_skips_step_after_step_ends() {
    for scaler in ["ampc", "static:1024"] {
        let dir = folder(&["--scaler", scaler]);
        let run = ruined(&dir, "--steps 400 --log l.jsonl");
        let (said, saved) =
            (said(&run), Checkpoint::read(&dir.path("t.safetensors")).unwrap().position.unwrap());
        assert!(
            run.code == 1 && said.contains("the training diverged: from step 4 to step 53, 50 in a row"),
            "{scaler}: {run}"
        );
        let names = said.contains("is the first node whose result")
            || said.contains("not finite before the first node");
        assert!(names && said.contains("in step 53, "), "{scaler}: {run}");
        assert!(said.contains("the state after step 3 is in `t.safetensors`"), "{scaler}: {run}");
        // The checkpoint is from before these steps.
        assert_eq!((saved.step, saved.skipped, saved.failed_in_a_row), (3, 0, 0), "{scaler}");
        assert_eq!(log(&dir, "l.jsonl").last().unwrap()["step"], 53, "{scaler}");
    }
}

#[test]
fn the_number_of_skipped_steps_is_an_option_and_survives_a_stop() {
    let dir = folder(&["--scaler", "static:1024"]);
    let run = ruined(&dir, "--steps 400 --max-skipped 7");
    assert!(run.code == 1 && said(&run).contains("from step 4 to step 10, 7 in a row"), "{run}");
    // A run that is stopped within steps that are skipped at a finite loss, because the loss scale begins too large.
    let dir = folder(&["--scaler", "ampc:init=1099511627776"]);
    let run = trained(
        &dir,
        &format!("--state s.safetensors {DATA} --steps 5 --save t.safetensors --max-skipped 7"),
    );
    assert!(
        said(&run).contains("no step of the run was taken") || said(&run).contains("train.skipped"),
        "{run}"
    );
    let position = Checkpoint::read(&dir.path("t.safetensors")).unwrap().position.unwrap();
    assert_eq!((position.step, position.failed_in_a_row), (5, 5));
    let before = bytes(&dir, "t.safetensors");
    let go_on = format!(
        "--resume t.safetensors {DATA} --steps 400 --save t.safetensors --save-every 1 --max-skipped 7"
    );
    let run = train(&dir, &go_on);
    assert!(run.code == 1 && said(&run).contains("from step 1 to step 7, 7 in a row"), "{run}");
    assert!(bytes(&dir, "t.safetensors") == before);
}

/// However few steps were skipped, a run does not end well with a loss that is no number, and the checkpoint is from before.
#[test]
fn a_run_whose_last_loss_is_no_number_ends_with_an_error() {
    let dir = folder(&["--scaler", "static:1024"]);
    let run = ruined(&dir, "--steps 8");
    let said = said(&run);
    assert!(run.code == 1 && said.contains("from step 4 to step 8, 5 in a row"), "{run}");
    assert!(said.contains("is the first node whose result") || said.contains("not finite before"), "{run}");
    let position = Checkpoint::read(&dir.path("t.safetensors")).unwrap().position.unwrap();
    assert_eq!((position.step, position.failed_in_a_row), (3, 0));
}

/// Steps that are skipped while the scale falls from a large beginning are none that diverge, and the bits are those of a run
/// without checkpoints.
#[test]
fn a_scale_that_falls_is_no_divergence() {
    let dir = folder(&["--scaler", "ampc:init=1099511627776"]);
    let state = format!("--state s.safetensors {DATA} --steps 60 --lr 1e-2");
    let run = trained(&dir, &format!("{state} --save a.safetensors --save-every 1"));
    assert!(!run.stderr.contains("train.skipped"), "{run}");
    trained(&dir, &format!("{state} --save b.safetensors"));
    assert!(bytes(&dir, "a.safetensors") == bytes(&dir, "b.safetensors"));
    let position = Checkpoint::read(&dir.path("a.safetensors")).unwrap().position.unwrap();
    assert!(position.skipped > 5 && position.failed_in_a_row == 0, "{position:?}");
}

/// Without a loss scale: the step whose loss is a NaN is stopped before it updates a weight, and run again for the node.
#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let dir = folder(&["--fp32"]);
    trained(&dir, &format!("--state s.safetensors {DATA} --steps 2 --lr 1e-3 --save t.safetensors"));
    let run = train(
        &dir,
        &format!(
            "--resume t.safetensors {DATA} --lr 1e30 --steps 9 --save t.safetensors --save-every 1 --log l.jsonl"
        ),
    );
    let said = said(&run);
    assert!(run.code == 1 && said.contains("step 4: expected a number as the loss, found a NaN"), "{run}");
    assert!(said.contains("is the first node whose result (`"), "{run}");
    assert!(said.contains("the state after step 3 is in `t.safetensors`"), "{run}");
    assert_eq!(log(&dir, "l.jsonl").last().unwrap()["loss"], "NaN");
    assert!(!tensors(&dir, "t.safetensors").is_empty());
}

/// Weights that grow beyond all measure with losses that are finite are not an error, and a warning says so.
#[test]
fn weights_that_explode_are_told() {
    let dir = folder(&["--fp32"]);
    let run = trained(&dir, &format!("--state s.safetensors {DATA} --steps 3 --lr 1e7 --save t.safetensors"));
    assert!(said(&run).contains("the largest element of a weight"), "{run}");
    let calm =
        trained(&dir, &format!("--state s.safetensors {DATA} --steps 3 --lr 1e-3 --save u.safetensors"));
    assert!(!calm.stderr.contains("largest element"), "{calm}");
}

/// A file that appears while a run is under way is not replaced.
#[test]
fn save_without_force() {
    let dir = folder(&[]);
    let words = format!("train s.onnx --state s.safetensors {DATA} --steps 200000 --save c.safetensors -q");
    let mut command = support::command(&words.split(' ').collect::<Vec<_>>());
    command.current_dir(dir.path(""));
    let mut child =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    dir.write("c.safetensors", "precious");
    // Not SIGINT, which a program in the background may ignore.
    std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert_eq!(bytes(&dir, "c.safetensors"), b"precious");
}
