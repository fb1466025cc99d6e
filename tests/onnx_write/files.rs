//! Models in files: where their data go, and which files are replaced.

use super::support::{adder, load, lower, model, named};
use ampc::onnx::proto::ModelProto;
use ampc::onnx::{ExportError, ExternalData, ReadOptions, WriteOptions, read, to_bytes, write};
use ampc_ir::{DType, Module, Payload};
use prost::Message;
use std::fs;
use std::sync::Arc;

/// A model with one large constant in an external file.
fn external_model(folder: &std::path::Path) -> std::path::PathBuf {
    let (module, _) = load(&model(10, adder()));
    let path = folder.join("m.onnx");
    let options = WriteOptions { external_data: ExternalData::Always, ..WriteOptions::default() };
    let report = write(&module, None, &path, &options).unwrap();
    assert_eq!(report.data_file, Some((data_of(folder, "m.onnx"), 2400)));
    path
}

/// The one data file of a model: it has the name of the model and a hash in its own.
fn data_of(folder: &std::path::Path, model: &str) -> std::path::PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let name = |p: &std::path::PathBuf| p.file_name().unwrap().to_str().unwrap().to_owned();
    let mut files = files.filter(|p| name(p).starts_with(model) && name(p).ends_with(".data"));
    let file = files.next().unwrap();
    assert!(files.next().is_none(), "{model} has one data file");
    assert_eq!(name(&file).len(), model.len() + ".0123456789abcdef.data".len());
    let hash = xxhash_rust::xxh3::xxh3_64(&fs::read(&file).unwrap());
    assert_eq!(name(&file), format!("{model}.{hash:016x}.data"));
    file
}

fn name_of(path: &std::path::Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn location(path: &std::path::Path) -> Option<String> {
    let model = ModelProto::decode(&*fs::read(path).unwrap()).unwrap();
    let tensor = model.graph.unwrap().initializer.remove(0);
    tensor.external_data.iter().find(|e| e.key() == "location").map(|e| e.value().to_owned())
}

#[test]
fn external_data_stays_moves_or_comes_in() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = external_model(folder.path());
    let (mut module, source, _) = read(&path, &ReadOptions::default()).unwrap();
    let options = WriteOptions::default();
    // Into the same folder: the reference stays.
    let beside = folder.path().join("beside.onnx");
    assert!(write(&module, Some(&source), &beside, &options).unwrap().identical);
    assert_eq!(location(&beside), name_of(&data_of(folder.path(), "m.onnx")));
    // Into another one: the data goes along.
    let away = other.path().join("away.onnx");
    let report = write(&module, Some(&source), &away, &options).unwrap();
    let moved = data_of(other.path(), "away.onnx");
    assert_eq!(report.data_file, Some((moved.clone(), 2400)));
    assert_eq!(location(&away), name_of(&moved));
    assert_eq!(fs::read(moved).unwrap(), fs::read(data_of(folder.path(), "m.onnx")).unwrap());
    // Told so: into the model.
    let inline = other.path().join("inline.onnx");
    let never = WriteOptions { external_data: ExternalData::Never, ..options.clone() };
    assert_eq!(write(&module, Some(&source), &inline, &never).unwrap().data_file, None);
    assert_eq!(location(&inline), None);
    // Changed: into a file of its own, half the size.
    lower(&mut module, "w");
    let low = folder.path().join("low.onnx");
    let report = write(&module, Some(&source), &low, &options).unwrap();
    assert_eq!(report.data_file, Some((data_of(folder.path(), "low.onnx"), 1200)));
    for path in [&beside, &away, &inline, &low] {
        let (module, _, _) = read(path, &ReadOptions::default()).unwrap();
        let Some(Payload::Dense(data)) = module.constant(named(&module, "w")) else { panic!("dense") };
        let values = data.small_floats(600).unwrap();
        assert!(values.iter().enumerate().all(|(i, v)| *v == i as f64), "{}", path.display());
    }
}

#[test]
fn the_source_and_its_data_are_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = external_model(folder.path());
    let (module, source, _) = read(&path, &ReadOptions::default()).unwrap();
    let force = WriteOptions { force: true, external_data: ExternalData::Always };
    let data = data_of(folder.path(), "m.onnx");
    let data_name = name_of(&data).unwrap();
    for target in ["m.onnx", &data_name, "m"] {
        let before = fs::read(&data).unwrap();
        let refused = write(&module, Some(&source), &folder.path().join(target), &force);
        match target {
            // `m` has a data file of its own.
            "m" => assert!(refused.is_ok()),
            _ => assert!(refused.unwrap_err().to_string().contains("is read from"), "{target}"),
        }
        assert_eq!(fs::read(&data).unwrap(), before);
    }
}

/// Names in a folder, sorted.
fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_data_file_of_a_replaced_model_goes_when_nobody_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = external_model(folder.path());
    let old = name_of(&data_of(folder.path(), "m.onnx")).unwrap();
    // Names that others may have given.
    for name in ["m.onnx.data", "m.onnx.0123456789abcdef.data", "n.onnx.0123456789abcdef.data"] {
        fs::write(folder.path().join(name), b"theirs").unwrap();
    }
    let (mut module, _, _) = read(&path, &ReadOptions::default()).unwrap();
    lower(&mut module, "w");
    let force = WriteOptions { force: true, external_data: ExternalData::Always };
    let report = write(&module, None, &path, &force).unwrap();
    let new = name_of(&report.data_file.unwrap().0).unwrap();
    assert_ne!(old, new);
    let mut expected = vec![
        "m.onnx".to_owned(),
        "m.onnx.0123456789abcdef.data".into(),
        "m.onnx.data".into(),
        "n.onnx.0123456789abcdef.data".into(),
        new.clone(),
    ];
    expected.sort();
    assert_eq!(names(folder.path()), expected);
    // The same again: the file that is there is the new one.
    write(&module, None, &path, &force).unwrap();
    assert_eq!(names(folder.path()), expected);
    read(&path, &ReadOptions::default()).unwrap();
    // Into the model: no data file is left of it.
    let inline = WriteOptions { external_data: ExternalData::Never, ..force };
    write(&module, None, &path, &inline).unwrap();
    expected.retain(|name| *name != new);
    assert_eq!(names(folder.path()), expected);
}

#[test]
fn a_data_file_of_the_source_stays_when_what_named_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let first = external_model(folder.path());
    let (module, source, _) = read(&first, &ReadOptions::default()).unwrap();
    // `second` refers to the data of `m.onnx`, which is then replaced by what is made of `second`.
    let second = folder.path().join("second.onnx");
    write(&module, Some(&source), &second, &WriteOptions::default()).unwrap();
    drop(source);
    let (mut module, source, _) = read(&second, &ReadOptions::default()).unwrap();
    lower(&mut module, "w");
    let force = WriteOptions { force: true, external_data: ExternalData::Auto };
    write(&module, Some(&source), &first, &force).unwrap();
    for path in [&first, &second] {
        read(path, &ReadOptions::default()).unwrap();
    }
    assert_eq!(names(folder.path()).len(), 4);
}

/// A file with the name of a data file must have the content that the name says.
#[test]
fn a_file_that_has_the_name_of_the_data_file_is_replaced_only_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = external_model(folder.path());
    let data = data_of(folder.path(), "m.onnx");
    let right = fs::read(&data).unwrap();
    let (module, _) = load(&model(10, adder()));
    let options = |force| WriteOptions { force, external_data: ExternalData::Always };
    for wrong in [b"short".to_vec(), vec![7; right.len()]] {
        fs::remove_file(&path).unwrap();
        fs::write(&data, wrong).unwrap();
        let error = write(&module, None, &path, &options(false)).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        write(&module, None, &path, &options(true)).unwrap();
        assert_eq!(fs::read(&data).unwrap(), right);
    }
    // The right bytes are as good as new ones, as a run leaves that is killed before it writes the model.
    fs::remove_file(&path).unwrap();
    write(&module, None, &path, &options(false)).unwrap();
    assert_eq!(fs::read(&data).unwrap(), right);
}

#[test]
fn what_readers_refuse_is_not_written() {
    let mut module = Module::new();
    for i in 0..3u64 {
        let data = ampc_ir::TensorData::new(
            DType::F32,
            [1 << 28],
            ampc_ir::tensor::Storage::Random { seed: i, amplitude: 1.0 },
        );
        let name = module.intern(&format!("w{i}"));
        module.add_constant(module.main(), name, Payload::Dense(Arc::new(data.unwrap())));
    }
    let error = to_bytes(&module, None).unwrap_err();
    assert!(matches!(error, ExportError::TooLarge { bytes, .. } if bytes > 3 << 30), "{error}");
}
