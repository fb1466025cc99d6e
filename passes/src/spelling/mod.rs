//! How users spell things: words of pipelines, names of formats, globs, and JSON files, with suggestions for misspelled
//! words.

pub(crate) mod formats;
pub(crate) mod glob;
pub mod json;
pub mod suggest;
pub(crate) mod words;
