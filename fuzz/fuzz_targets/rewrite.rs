//! Feeds libFuzzer's inputs to [`ampc_fuzz::rewrite`].

#![cfg_attr(fuzzing, no_main)]

ampc_fuzz::fuzz_target!(rewrite);
