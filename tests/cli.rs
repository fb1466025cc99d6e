//! The binary as users meet it: what it prints, where, and the exit code.

#![allow(clippy::unwrap_used, reason = "what helps tests is a test as well")]

#[path = "cli/support.rs"]
mod support;

#[path = "cli/answers.rs"]
mod answers;

#[path = "cli/bounds.rs"]
mod bounds;

#[path = "cli/collisions.rs"]
mod collisions;

#[path = "cli/diagnostics.rs"]
mod diagnostics;

#[path = "cli/exported.rs"]
mod exported;

#[path = "cli/hostile.rs"]
mod hostile;

#[cfg(target_os = "linux")]
#[path = "cli/injected.rs"]
mod injected;

#[path = "cli/pipelines.rs"]
mod pipelines;

#[path = "cli/plan.rs"]
mod plan;

#[path = "cli/policies.rs"]
mod policies;

#[path = "cli/reading.rs"]
mod reading;

#[path = "cli/predictions.rs"]
mod predictions;

#[path = "cli/refusals.rs"]
mod refusals;

#[path = "cli/replacing.rs"]
mod replacing;

#[path = "cli/reports.rs"]
mod reports;

#[path = "cli/rewriting.rs"]
mod rewriting;

#[path = "cli/run.rs"]
mod run;

#[path = "cli/search.rs"]
mod search;

#[path = "cli/signals.rs"]
mod signals;

#[path = "cli/stats.rs"]
mod stats;

#[path = "cli/train.rs"]
mod train;

#[path = "cli/train_claims.rs"]
mod train_claims;

#[cfg(unix)]
#[path = "cli/train_diverges.rs"]
mod train_diverges;

#[path = "cli/train_faults.rs"]
mod train_faults;

#[path = "cli/train_step.rs"]
mod train_step;

#[path = "cli/verify.rs"]
mod verify;

#[path = "cli/writing.rs"]
mod writing;

use ampc::passes::pipeline::PASSES;
use support::{Dir, MLP, snapshot};

#[test]
fn help_and_version() {
    let dir = Dir::new();
    snapshot("help", &dir.run(&["--help"]));
    snapshot("help_rewrite", &dir.run(&["rewrite", "-h"]));
    let passes = dir.run(&["opt", "-h"]).stdout;
    for pass in PASSES {
        let line = format!("  {:<20}  {}\n", pass.name, pass.about);
        assert!(passes.contains(&line), "{line}{passes}");
        for option in pass.options() {
            assert!(passes.contains(&format!("{:24}{option}\n", "")), "{option}\n{passes}");
        }
    }
    let version = dir.run(&["--version"]);
    assert_eq!(version.stdout, format!("ampc {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let gone = support::run_unread(&["ops", "--json"]);
    assert_eq!((gone.code, gone.stderr.as_str()), (0, ""));
}

#[test]
fn any_passes() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    snapshot("opt", &dir.run(&["opt", "m.ir", "--passes", "classify{to=bf16}, assign{to=bf16}"]));
    dir.write("d.ir", format!("// why\n// pass: classify\n{}", support::module(support::MATMUL)));
    let run = dir.run(&["opt", "d.ir"]);
    assert!(run.code == 0 && run.stdout.contains("class=allow"), "{run}");
    let run = dir.run(&["opt", "m.ir", "--passes", "", "-o", "m.onnx"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_eq!(dir.run(&["check", "m.onnx"]).code, 0);
}

#[test]
fn dumps_go_on_where_they_stopped() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    let run = dir.run(&[
        "rewrite",
        "m.ir",
        "-o",
        "a.ir",
        "--dump-after",
        "all",
        "--dump-dir",
        "dumps",
        "--verify-each",
    ]);
    assert_eq!(run.code, 0, "{run}");
    let dumps = Dir::files_of(&dir.path("dumps"));
    assert_eq!((dumps.len(), dumps[5].as_str()), (11, "06-assign.ir"));
    let end = dir.run(&["opt", "dumps/11-share-functions.ir", "--passes", ""]).stdout;
    for dump in &dumps[..10] {
        let run = dir.run(&["opt", &format!("dumps/{dump}")]);
        assert_eq!((run.code, run.stdout == end), (0, true), "{dump}: {run}");
    }
    let run = dir.run(&["rewrite", "m.ir", "-o", "b.ir", "--dump-after", "guard", "--dump-dir", "one"]);
    assert_eq!((run.code, Dir::files_of(&dir.path("one"))), (0, vec!["04-guard.ir".to_owned()]));
    let run = dir.run(&["rewrite", "m.ir", "-o", "c.ir", "--dump-after", "changed", "--dump-dir", "some"]);
    let some = Dir::files_of(&dir.path("some"));
    assert_eq!((run.code, some.first().map(String::as_str)), (0, Some("03-classify.ir")));
    assert!(some.len() < dumps.len() && !some.contains(&"04-guard.ir".to_owned()), "{some:?}");
}

#[test]
fn what_is_in_a_model() {
    let dir = Dir::new();
    dir.copy(MLP, "mlp.onnx");
    snapshot("inspect", &dir.run(&["inspect", "mlp.onnx"]));
    snapshot("inspect_json", &dir.run(&["inspect", "mlp.onnx", "--json"]));
}

#[test]
fn a_missing_attribute_is_one_problem() {
    let dir = Dir::new();
    let nodes = "  %a = Concat(%x, %x) : f32[2, 4, 4] @concat\n  %b = LRN(%x) : f32[1, 4, 4, 4] @lrn\n  \
                 %c = MaxPool(%x) : f32[1, 4, 1, 1] @pool\n  %d = DepthToSpace(%x) {blocksize=3} : f32[1, 4, 4, 4] @depth\n";
    dir.write(
        "m.ir",
        support::module(&format!("  input %x : f32[1, 4, 4, 4]\n{nodes}  output %a : f32[2, 4, 4]\n")),
    );
    let run = dir.run(&["check", "m.ir"]);
    let said = |text: &str| run.stdout.matches(text).count();
    assert!(run.code == 3 && run.stdout.ends_with("m.ir: 4 problems\n"), "{run}");
    assert_eq!((said("`concat`"), said("`lrn`"), said("`pool`"), said("`depth`")), (1, 1, 1, 1), "{run}");
    assert!(run.stdout.contains("a value, it is required"), "{run}");
}

#[test]
fn the_operator_table() {
    let dir = Dir::new();
    let mut table = dir.run(&["ops"]);
    let shown = ["operator", "Attention ", "BatchNormalization ", "And ", "Softmax ", "Upsample "];
    table.stdout = table
        .stdout
        .lines()
        .filter(|l| shown.iter().any(|s| l.starts_with(s)))
        .map(|l| format!("{}\n", l.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    snapshot("ops", &table);
    let json: serde_json::Value = serde_json::from_str(&dir.run(&["ops", "--json"]).stdout).unwrap();
    let ops = json["ops"].as_array().unwrap();
    assert_eq!(ops.len(), ampc::ir::op::OpKind::ALL.len());
    let softmax = ops.iter().find(|o| o["name"] == "Softmax").unwrap();
    assert_eq!((&softmax["class"]["fp16"], &softmax["inferred"]), (&"deny".into(), &true.into()));
}

/// The documents have every warning and every preset that the source has.
#[test]
fn documents_are_complete() {
    let read = |path: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    };
    let (reports, policies) = (read("docs/report.md"), read("docs/policy.md"));
    let help = Dir::new().run(&["rewrite", "--help"]).stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for ampc::passes::policy::Preset { name, about, .. } in ampc::passes::policy::PRESETS {
        assert!(policies.contains(&format!("| `{name}` | {about} |")), "docs/policy.md: `{name}`");
        let listed = [", ", "(", "or "].iter().any(|before| help.contains(&format!("{before}{name}")));
        assert!(listed, "help of --policy: {name}");
    }
    let targets = read("docs/target.md");
    for (name, _) in ampc::passes::target::PROFILES {
        assert!(targets.contains(&format!("\n| `{name}` | ")), "docs/target.md: `{name}`");
    }
    for (field, ..) in ampc::passes::Profile::default().numbers() {
        assert!(targets.contains(&format!("`{field}`")), "docs/target.md: `{field}`");
    }
    let codes = support::warning_codes();
    assert!(codes.len() > 12, "{codes:?}");
    for code in &codes {
        assert!(reports.contains(&format!("\n| `{code}` | ")), "docs/report.md: `{code}`");
    }
}

#[test]
fn completions() {
    let run = Dir::new().run(&["completions", "bash"]);
    assert!(run.code == 0 && run.stdout.contains("complete -F _ampc"), "{run}");
    assert!(run.stdout.contains("\"safe all perf zero-risk torch "), "{run}");
}
