//! How users spell things: words of pipelines, names of formats, and JSON files, with suggestions for misspelled words.

pub mod json;
pub mod suggest;
