//! Random inputs of the target that rewrites whole graphs: many, without coverage, and shrunk when they find something.
//! `PROPTEST_CASES` says how many, `PROPTEST_RNG_SEED` which.

use ampc_fuzz::TARGETS;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pipelines_break_no_law(bytes in prop::collection::vec(any::<u8>(), 2..120)) {
        let (_, target) = TARGETS.iter().find(|(name, _)| *name == "pipeline").expect("there is a target");
        target(&bytes);
    }
}
