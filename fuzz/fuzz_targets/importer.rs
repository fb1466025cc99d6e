//! Feeds libFuzzer's inputs to [`ampc_fuzz::importer`].

#![cfg_attr(fuzzing, no_main)]

ampc_fuzz::fuzz_target!(importer);
