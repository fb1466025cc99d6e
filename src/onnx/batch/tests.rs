//! Files appear together, complete, or not at all.

use super::*;
use ampc_ir::tensor::ByteSource;

fn layout(bytes: &[u8]) -> Layout {
    let mut layout = Layout::new();
    layout.bytes(bytes);
    layout
}

fn staged(bytes: &[u8], path: &Path, force: bool) -> Result<Batch, TargetError> {
    let mut batch = Batch::new();
    batch.stage(layout(bytes), path, force, &[])?;
    Ok(batch)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_complete_and_is_replaced_only_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let batch = staged(b"one", &path, false).unwrap();
    assert!(!path.exists());
    batch.commit_all().unwrap();
    assert!(matches!(staged(b"two", &path, false), Err(TargetError::Exists { .. })));
    staged(b"two", &path, true).unwrap().commit_all().unwrap();
    assert_eq!(
        (fs::read(&path).unwrap(), names(folder.path())),
        (b"two".to_vec(), vec!["m.onnx".to_owned()])
    );
}

#[test]
fn a_file_that_appears_meanwhile_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let batch = staged(b"mine", &path, false).unwrap();
    fs::write(&path, b"theirs").unwrap();
    assert!(matches!(batch.commit_all(), Err(TargetError::Exists { .. })));
    assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"theirs".to_vec(), 1));
}

#[test]
fn files_that_belong_together_come_together() {
    let folder = tempfile::tempdir().unwrap();
    let (path, data) = (folder.path().join("m.onnx"), folder.path().join("m.onnx.data"));
    let both = |force| {
        let mut batch = staged(b"data!", &data, force).unwrap();
        batch.stage_model(layout(b"model"), &path, force, vec![data.clone()], &[]).unwrap();
        batch
    };
    let batch = both(false);
    fs::write(&path, b"theirs").unwrap();
    assert!(matches!(batch.commit_all(), Err(TargetError::Exists { .. })));
    assert_eq!(names(folder.path()), ["m.onnx"], "the data file alone is of no use");
    both(true).commit_all().unwrap();
    assert_eq!((fs::read(&path).unwrap(), fs::read(&data).unwrap()), (b"model".to_vec(), b"data!".to_vec()));
    let batch = both(true);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = batch.commit_all().unwrap_err().to_string();
    assert!(error.contains("m.onnx.data` was replaced"), "{error}");
    assert_eq!(names(folder.path()), ["m.onnx", "m.onnx.data"]);
}

#[cfg(target_os = "linux")]
#[test]
fn devices_are_written_when_all_files_are_complete_and_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mut batch = staged(b"x", Path::new("/dev/full"), true).unwrap();
    batch.stage(layout(b"y"), &folder.path().join("y"), false, &[]).unwrap();
    let full = batch.commit_all();
    assert!(matches!(full, Err(TargetError::Stream { .. })), "{full:?}");
    assert_eq!(names(folder.path()), [""; 0]);
    staged(b"x", Path::new("/dev/null"), false).unwrap().commit_all().unwrap();
}

#[test]
fn two_files_of_a_batch_are_not_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let mut batch = staged(b"x", &path, true).unwrap();
    let twice = batch.stage(layout(b"y"), &folder.path().join("./x"), true, &[]);
    assert!(matches!(twice, Err(TargetError::Twice { .. })), "{twice:?}");
}

/// Between reading and writing, whatever the command.
#[test]
fn a_source_that_changes_meanwhile_is_told_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for force in [false, true] {
        fs::write(&from, b"one").unwrap();
        let read = [Arc::new(SourceBytes::open(&from).unwrap())];
        let mut batch = Batch::new();
        batch.add(&to, b"made of it", force, &read).unwrap();
        fs::write(&from, b"other").unwrap();
        let error = batch.commit().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Io);
        assert!(error.to_string().contains("was written to while it was read"), "{error}");
        assert_eq!(names(folder.path()), ["from"]);
    }
}

#[cfg(unix)]
#[test]
fn what_links_lead_to_is_written_and_links_stay() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/real"), b"old").unwrap();
    symlink("sub/real", at("link")).unwrap();
    symlink(at("link"), at("links")).unwrap();
    symlink("sub/new", at("dangling")).unwrap();
    symlink("round", at("round")).unwrap();
    assert!(matches!(staged(b"x", &at("links"), false), Err(TargetError::Exists { .. })));
    staged(b"new", &at("links"), true).unwrap().commit_all().unwrap();
    staged(b"made", &at("dangling"), false).unwrap().commit_all().unwrap();
    assert_eq!(fs::read(at("sub/real")).unwrap(), b"new");
    assert_eq!(fs::read(at("sub/new")).unwrap(), b"made");
    for link in ["link", "links", "dangling"] {
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
    }
    let error = staged(b"x", &at("round"), true).unwrap_err().to_string();
    assert!(error.contains("symbolic links"), "{error}");
    assert_eq!(names(&at("sub")), ["new", "real"]);
    let source = [Arc::new(SourceBytes::open(&at("sub/real")).unwrap())];
    let refused = Batch::new().add(&at("links"), b"x", true, &source);
    assert!(refused.unwrap_err().to_string().contains("that the model is read from"));
}

#[test]
fn a_large_file_is_synchronised_on_the_way_and_has_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    let bytes: Vec<u8> =
        (0..target::WORTH_SYNCING / 4).flat_map(|i| (i * 2_654_435_761).to_le_bytes()).collect();
    assert!(bytes.len() as u64 > target::WORTH_SYNCING);
    staged(&bytes, &path, false).unwrap().commit_all().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let source_path = folder.path().join("source");
    fs::write(&source_path, vec![1; 200_000]).unwrap();
    let known = Arc::new(SourceBytes::open(&source_path).unwrap());
    fs::write(&source_path, b"short").unwrap();
    let mut layout = Layout::new();
    let source: Arc<dyn ByteSource> = known.clone();
    layout.range(&source, crate::onnx::wire::Span { offset: 0, len: 200_000 });
    let mut batch = Batch::new();
    let error = batch.stage(layout, &folder.path().join("m.onnx"), false, &[known]).unwrap_err();
    drop(batch);
    assert!(error.to_string().contains("has become shorter"), "{error}");
    assert_eq!(names(folder.path()), ["source"]);
}
