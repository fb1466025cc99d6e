//! Seeds of the fuzzer: the models, texts and policies of the tests.

use crate::{laws, rewrite};
use ampc::onnx::to_bytes;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Larger seeds slow the fuzzer down and teach it little.
const MAX_BYTES: usize = 8 << 10;

/// The seeds of a target, in a fixed order; `corpus` has further models.
///
/// # Errors
/// If the files of the tests cannot be read, or no target has the name.
pub fn seeds(target: &str, corpus: Option<&Path>) -> io::Result<Vec<Vec<u8>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = |names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|name| root.join(name)).chain(corpus.map(Path::to_owned)).collect()
    };
    let texts = || files(&folders(&["tests/cases", "testdata"]), "ir");
    let mut seeds = match target {
        "importer" => {
            let mut seeds = files(&folders(&["testdata"]), "onnx")?;
            let written = |text: &Vec<u8>| Some(to_bytes(&module_of(text)?, None).ok()?.0);
            seeds.extend(texts()?.iter().filter_map(written));
            seeds
        }
        "text" => texts()?,
        "json" => {
            let printed = |text: &Vec<u8>| Some(ampc::json::print(&module_of(text)?).text.into_bytes());
            let mut seeds: Vec<_> = texts()?.iter().filter_map(printed).collect();
            seeds.extend(files(&[root.join("examples")], "json")?);
            seeds
        }
        "policy" => policies(&texts()?),
        "pipeline" => (0..64).map(numbers).collect(),
        "rewrite" => {
            let texts = texts()?;
            texts
                .iter()
                .enumerate()
                .map(|(i, text)| [&[b'@' + i as u8 % 64], text.as_slice()].concat())
                .collect()
        }
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no target is called `{target}`"),
            ));
        }
    };
    seeds.retain(|seed| seed.len() <= MAX_BYTES);
    seeds.dedup();
    Ok(seeds)
}

/// Writes the seeds of a target to the folder that `AMPC_FUZZ_SEEDS` names, if it does, for libFuzzer to read;
/// `AMPC_CORPUS` has further models.
///
/// # Errors
/// If they cannot be read or written.
pub fn write_seeds(target: &str) -> io::Result<()> {
    let Some(folder) = std::env::var_os("AMPC_FUZZ_SEEDS").map(PathBuf::from) else { return Ok(()) };
    fs::create_dir_all(&folder)?;
    let corpus = std::env::var_os("AMPC_CORPUS").map(PathBuf::from);
    for (i, seed) in seeds(target, corpus.as_deref())?.iter().enumerate() {
        fs::write(folder.join(format!("{i:05}")), seed)?;
    }
    Ok(())
}

/// The files below folders whose name ends so, in the order of their paths.
fn files(folders: &[PathBuf], extension: &str) -> io::Result<Vec<Vec<u8>>> {
    let mut work = folders.to_vec();
    let mut found = Vec::new();
    while let Some(next) = work.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                work.push(path);
            } else if path.extension().is_some_and(|e| e == extension)
                && path.metadata()?.len() <= MAX_BYTES as u64
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found.iter().map(fs::read).collect()
}

fn module_of(text: &[u8]) -> Option<ampc_ir::Module> {
    laws::parse_text(std::str::from_utf8(text).ok()?).filter(laws::is_small)
}

/// Policies of every kind, pipelines of the cases, and reports.
fn policies(texts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut seeds: Vec<String> = [
        r#"{"schema": "ampc-policy/1", "name": "n", "base": "all", "ops": {"deny": ["Add", "com.example::Op"]}}"#,
        r#"{"base": "torch", "unlisted": "fixed", "ops": {"promote": ["Concat"]}}"#,
        r#"{"base": "jmp:params=float32,c=f16,output=float32", "unlisted": "schema"}"#,
        "pipeline\nclassify{to=bf16, policy=jmp:p=f32+c=bf16}, taint, assign{to=bf16}",
        r#"{"pins": {"a/*": "fp32", "re:b[0-9]+": "fp16", "main/if.then_branch/x#T": "auto"}}"#,
        r#"{"pin_values": {"x": "bf16", "*": "fp32"}, "disable_guards": ["mask_add"]}"#,
        "lines\nfp32 *\nfp16 re:.*\nbf16 a#T\nauto [a-z]?{b,c}\nvalue x*\nguard eps\ndeny Add,Mul\nallow Exp",
    ]
    .map(str::to_owned)
    .to_vec();
    for text in texts.iter().filter_map(|text| std::str::from_utf8(text).ok()) {
        let pass = text.lines().next().and_then(|line| line.strip_prefix("// pass: "));
        seeds.extend(pass.map(|pass| format!("pipeline\n{pass}")));
    }
    seeds.sort();
    seeds.dedup();
    for module in texts.iter().filter_map(|text| module_of(text)).take(40) {
        if let Ok(done) = ampc::rewrite(ampc::Model::from(module), &rewrite::options(0, || 0)) {
            seeds.extend(serde_json::to_string(&done.report));
        }
    }
    seeds.into_iter().map(String::into_bytes).collect()
}

/// Numbers that look random, more of them the higher the seed.
fn numbers(seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..10 + seed * 3)
        .map(|_| {
            // xorshift32 (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[1]
        })
        .collect()
}
