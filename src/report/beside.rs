//! A report and the model that it is about, which are files of one run.

use crate::error::Error;
use crate::files;
use crate::loaded::Model;
use serde::Deserialize;
use std::path::Path;

/// The fields of a report that say which model it is about.
#[derive(Deserialize)]
struct Told {
    schema: Option<String>,
    files: Option<ToldFiles>,
}

#[derive(Deserialize)]
struct ToldFiles {
    hash_after: Option<String>,
}

/// The name of the field with the digest of the model.
const FIELD: &str = "files.hash_after";

/// Refuses the report at `path` if it is that of another model than `model`, as it was read: a run that ended while its
/// files got their names leaves such a pair.
///
/// # Errors
/// If the report cannot be read, does not say which model it is about, or is about another one.
pub fn refuse_report_of_other(model: &Model, path: &Path) -> Result<(), Error> {
    let bad = |reason: String| Error::Data { path: path.to_owned(), reason };
    let text = files::read_text(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let told: Told = serde_json::from_str(&text)
        .map_err(|e| bad(format!("expected a report, found other content: {e}")))?;
    if !told
        .schema
        .is_some_and(|schema| schema.starts_with("ampc-report/") || schema.starts_with("ampc-step-report/"))
    {
        return Err(bad(
            "expected a report (`schema`: `ampc-report/1` or `ampc-step-report/1`), found other JSON".into(),
        ));
    }
    let Some(expected) = told.files.and_then(|files| files.hash_after) else {
        return Err(bad(format!(
            "expected the hash of the model that it is about (`{FIELD}`), found none: its run wrote no model, or it is of an \
             older ampc; write model and report again, in one run"
        )));
    };
    let read = model.files();
    let Some(file) = read.first() else { return Ok(()) };
    let digest = files::digest(file);
    let found =
        digest.map_err(|source| Error::Io { path: file.path().unwrap_or(path).to_owned(), source })?;
    if found == expected {
        return Ok(());
    }
    Err(bad(format!(
        "expected the report of this model (`{FIELD}` {found}), found that of another model ({expected}): they are of two \
         runs, or the model was edited; write model and report again, in one run"
    )))
}
