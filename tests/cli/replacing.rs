//! Files that a run replaces: which of the old ones stay, which go, and what the new ones keep.

use super::support::{self, Dir, Run};
use super::writing::{WRITERS, content, data_files, model};
use std::fs;
use std::path::Path;

/// Runs a line of arguments, which has to succeed.
fn done(dir: &Dir, run: &str) -> Run {
    let done = dir.run(&run.split(' ').collect::<Vec<_>>());
    assert_eq!(done.code, 0, "{run}: {done}");
    done
}

/// Commands that replace a model whose data another model shares.
const REPLACING: &[&str] = &[
    "rewrite m.onnx -o half.onnx --force --external-data always --pin fc2=fp32",
    "rewrite m.onnx -o half.onnx --force --external-data never",
    "opt m.onnx --passes= -o half.onnx --force",
];

/// A folder with `m.onnx` and `half.onnx`, and the name of the data file of that.
fn with_half() -> (Dir, String) {
    let dir = Dir::new();
    dir.copy(support::MLP, "m.onnx");
    done(&dir, "rewrite m.onnx -o half.onnx --external-data always");
    let data = data_files(&dir, "half.onnx").remove(0);
    (dir, data)
}

#[test]
fn data_that_another_model_refers_to_stays() {
    for replacing in REPLACING {
        for (other, check) in [("final.onnx", "check final.onnx"), ("copy", "check copy")] {
            let (dir, data) = with_half();
            if other == "copy" {
                fs::copy(dir.path("half.onnx"), dir.path(other)).unwrap();
            } else {
                let made = done(&dir, "opt half.onnx --passes raise-opset{to=21} -o final.onnx");
                assert_eq!(made.stderr, format!("data in {data}, as before\n"));
            }
            let said = done(&dir, replacing).stderr;
            let line = format!("{data} of the replaced model stays: {other} refers to it");
            assert!(said.contains(&line), "{replacing}: {said}");
            assert!(data_files(&dir, "half.onnx").contains(&data), "{replacing}");
            done(&dir, check);
            done(&dir, "check half.onnx");
        }
        // Nobody else's goes, and nothing is said with -q.
        let (dir, data) = with_half();
        fs::copy(dir.path("m.onnx"), dir.path("other.onnx")).unwrap();
        let said = done(&dir, replacing).stderr;
        assert!(!said.contains("stays") && !data_files(&dir, "half.onnx").contains(&data), "{said}");
        let (dir, _) = with_half();
        fs::copy(dir.path("half.onnx"), dir.path("copy.onnx")).unwrap();
        assert_eq!(done(&dir, &format!("{replacing} -q")).stderr, "");
        done(&dir, "check copy.onnx");
    }
}

#[test]
fn data_that_a_model_may_refer_to_stays() {
    let (dir, data) = with_half();
    dir.write("broken.onnx", "no model");
    dir.write("notes.txt", "no model");
    let said = done(&dir, REPLACING[1]).stderr;
    let line = format!("{data} of the replaced model stays: broken.onnx cannot be read and may refer to it");
    assert!(said.contains(&line), "{said}");
    assert_eq!(data_files(&dir, "half.onnx"), [data]);
}

/// Data that stays is part of the size before and after.
#[test]
fn sizes_before_and_after_are_of_the_same_files() {
    let (dir, data) = with_half();
    let made = done(&dir, "rewrite half.onnx -o final.onnx --opset 21 --report r.json");
    assert!(made.stderr.contains(&format!("data       in {data}, as before")), "{made}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(dir.path("r.json")).unwrap()).unwrap();
    let len = fs::metadata(dir.path(&data)).unwrap().len();
    assert_eq!(report["files"]["data_bytes_before"], len);
    assert_eq!(report["files"]["data_bytes_after"], len);
    let size = |name: &str| fs::metadata(dir.path(name)).unwrap().len() + len;
    let kilo = |bytes: u64| format!("{:.1} kB", f64::from(u32::try_from(bytes).unwrap()) / 1e3);
    let line = format!("size       {} -> {}", kilo(size("half.onnx")), kilo(size("final.onnx")));
    assert!(made.stderr.contains(&line), "{line}: {made}");
}

/// Policies, targets and values for inputs are read like the model, and as little written to.
#[test]
fn no_file_that_a_run_reads_is_replaced() {
    let dir = Dir::new();
    dir.write("m.ir", support::module(support::MATMUL));
    dir.write("p.json", "{\"pins\": {\"matmul\": \"fp32\"}}");
    dir.write(
        "t.json",
        include_str!("../../passes/src/target/profiles/generic.json").replacen("\"generic\"", "\"mine\"", 1),
    );
    done(&dir, "rewrite m.ir -o o.onnx --report r.json");
    done(&dir, "run m.ir --random 1 --outputs d/");
    done(&dir, "run m.ir --random 1 --outputs y.npz");
    fs::hard_link(dir.path("p.json"), dir.path("hard.json")).unwrap();
    let before = content(&dir);
    for (run, what) in [
        ("rewrite m.ir -o o.ir --policy p.json --report p.json", "the report `p.json`"),
        ("rewrite m.ir -o o.ir --policy p.json --report ./p.json", "the report `./p.json`"),
        ("rewrite m.ir -o o.ir --policy p.json --report hard.json", "the report `hard.json`"),
        ("rewrite m.ir -o p.json --policy p.json", "the output `p.json`"),
        ("rewrite m.ir -o o.ir --policy r.json --report r.json", "the report `r.json`"),
        ("rewrite m.ir -o o.ir --target t.json --report t.json", "the report `t.json`"),
        ("rewrite m.ir -o t.json --target t.json", "the output `t.json`"),
        ("opt m.ir --passes classify{to=f16,policy=p.json} -o p.json", "the output `p.json`"),
        ("rewrite m.ir --verify --inputs y.npz --emit onnx -o y.npz", "the output `y.npz`"),
        ("rewrite m.ir --verify --inputs d --emit onnx -o d/input_0.pb", "the output `d/input_0.pb`"),
    ] {
        let refused = dir.run(&format!("{run} --force").split(' ').collect::<Vec<_>>());
        assert_eq!(refused.code, 2, "{run}: {refused}");
        let words =
            refused.stderr.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("{what} is the same file as the ")), "{run}: {refused}");
        assert!(content(&dir) == before, "{run}: {:?}", dir.files());
    }
    done(&dir, "rewrite m.ir -o o.ir --policy p.json --target t.json --report r.json --force");
}

/// The constants of a text go to a file whose name any program may use.
#[test]
fn tensors_of_others_are_not_replaced_by_those_of_a_text() {
    for (text, data) in [("o.json", "o.safetensors"), ("o.ir", "o.ir.safetensors")] {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        dir.write("n.ir", model("0.25").replace("%w", "%other"));
        let opt = |from: &str| format!("opt {from} --passes= -o {text} --force");
        let refused = |why: &str| {
            let before = content(&dir);
            let refused = dir.run(&opt("m.ir").split(' ').collect::<Vec<_>>());
            assert!(refused.code == 5 && refused.stderr.contains("target_not_its_data"), "{why}: {refused}");
            assert!(content(&dir) == before, "{why}: {:?}", dir.files());
        };
        done(&dir, "run m.ir --outputs y.safetensors");
        let tensors = fs::read(dir.path("y.safetensors")).unwrap();
        dir.write(data, &tensors);
        refused("without a text");
        dir.write(text, "no text");
        refused("with something else under its name");
        fs::remove_file(dir.path(data)).unwrap();
        done(&dir, &opt("n.ir"));
        let pair = fs::read(dir.path(data)).unwrap();
        dir.write(data, &tensors);
        refused("with tensors that the text does not name");
        // The same tensors by another program.
        let at = pair.windows(4).position(|word| word == b"ampc").unwrap();
        dir.write(data, [&pair[..at], b"else", &pair[at + 4..]].concat());
        refused("with those of another program");
        dir.write(data, &pair);
        done(&dir, &opt("m.ir"));
        done(&dir, &format!("check {text}"));
    }
}

#[cfg(unix)]
#[test]
fn what_is_replaced_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for run in WRITERS {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        done(&dir, run);
        let new = |name: &String| dir.path(name);
        let mut made: Vec<_> = dir.files().iter().filter(|name| *name != "m.ir").map(new).collect();
        if run.ends_with("o/") {
            made = Dir::files_of(&dir.path("o")).iter().map(|name| dir.path("o").join(name)).collect();
        }
        dir.write("other", "");
        for path in &made {
            assert_eq!(mode(path), mode(&dir.path("other")), "{run}: {path:?}");
        }
        for bits in [0o600, 0o444, 0o664] {
            for path in &made {
                fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
            }
            done(&dir, &format!("{run} --force"));
            for path in &made {
                assert_eq!(mode(path), bits, "{run}: {path:?}");
            }
        }
    }
    // Data under a new name is for those who may read the model that it belongs to.
    for (output, run) in [
        ("o.onnx", "rewrite m.ir -o o.onnx --force --external-data always"),
        ("o.json", "opt m.ir --passes= -o o.json --force"),
    ] {
        let dir = Dir::new();
        dir.write("m.ir", model("0.5"));
        dir.write(output, "old");
        fs::set_permissions(dir.path(output), fs::Permissions::from_mode(0o600)).unwrap();
        done(&dir, run);
        assert_eq!(dir.files().len(), 3, "{:?}", dir.files());
        for name in dir.files().iter().filter(|name| *name != "m.ir") {
            assert_eq!(mode(&dir.path(name)), 0o600, "{run}: {name}");
        }
    }
}

/// A checkpoint is no file of constants, though the graph beside it refers to all of its tensors.
#[test]
fn states_are_not_replaced_as_constants() {
    for metadata in ["ampc.step", "ampc.training"] {
        let dir = Dir::new();
        dir.copy(support::MLP, "m.onnx");
        for (name, data) in [("c.json", "c.safetensors"), ("c.ir", "c.ir.safetensors")] {
            let rewrite = format!("opt m.onnx --passes= -o {name} --force");
            done(&dir, &rewrite);
            done(&dir, &rewrite);
            let bytes = fs::read(dir.path(data)).unwrap();
            let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
            let text = std::str::from_utf8(&bytes[8..8 + length]).unwrap();
            let text = text.replacen("\"format\":", &format!("\"{metadata}\":\"0\",\"format\":"), 1);
            let state =
                [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[8 + length..]].concat();
            fs::write(dir.path(data), &state).unwrap();
            let run = dir.run(&rewrite.split(' ').collect::<Vec<_>>());
            assert!(run.code == 5 && run.stderr.contains("move it away"), "{name}: {run}");
            assert!(fs::read(dir.path(data)).unwrap() == state, "{name}");
        }
    }
}
