//! How users spell things: words of pipelines, names of formats, globs, and JSON files, with suggestions for misspelled
//! words.

pub mod formats;
pub(crate) mod glob;
pub mod json;
pub mod suggest;
pub mod words;
