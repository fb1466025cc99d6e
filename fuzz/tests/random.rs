//! Random inputs of the target that rewrites whole graphs: many, without coverage, and shrunk when they find something.
//! `PROPTEST_CASES` says how many, `PROPTEST_RNG_SEED` which.

use ampc_fuzz::TARGETS;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if let RngSeed::Random = config.rng_seed {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pipelines_break_no_law(bytes in prop::collection::vec(any::<u8>(), 2..120)) {
        let (_, target) = TARGETS.iter().find(|(name, _)| *name == "pipeline").expect("there is a target");
        target(&bytes);
    }
}
