//! Rewrites whatever valid model a text is.

use crate::laws;
use crate::random_options::{choose, set};
use ampc::onnx::to_bytes;
use ampc::options::{OPTIONS, Opset};
use ampc::{ErrorKind, Model, RewriteOptions};

/// The bit of the options that minimizes the number of casts instead of the time.
pub const CASTS: u8 = 1 << 7;

/// Options that the bits of the first byte choose: an option, its lowest bit, and its values.
const BITS: &[(&str, u8, &[&str])] = &[
    ("to", 0, &["fp16", "bf16"]),
    ("policy", 1, &["safe", "all"]),
    ("keep_io", 2, &["all", "none"]),
    ("opset", 3, &["keep", "keep", "auto", "26"]),
    ("out_of_range", 5, &["keep", "clamp"]),
    ("objective", 7, &["time", "casts"]),
];

/// The bit that has constants counted.
const STATISTICS: u8 = 1 << 6;

/// Options as a byte says them, and what it has no bits for as further ones do.
pub(crate) fn options(bits: u8, more: impl FnMut() -> u8) -> RewriteOptions {
    let mut options = RewriteOptions {
        verify_each: true,
        constant_statistics: bits & STATISTICS != 0,
        ..RewriteOptions::default()
    };
    let names: Vec<&str> = BITS.iter().map(|(name, ..)| *name).collect();
    for option in OPTIONS {
        if let Some((_, bit, values)) = BITS.iter().find(|(name, ..)| *name == option.name) {
            set(&mut options, option, Some(values[usize::from(bits >> bit) % values.len()]));
        }
    }
    choose(&mut options, &names, more);
    options
}

/// A letter that chooses options, then a text: a valid model becomes a valid one, and rewriting that again changes
/// nothing.
pub fn rewrite(bytes: &[u8]) {
    let Some((&bits, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Some(mut module) = laws::parse_text(text) else { return };
    if !laws::is_small(&module) || !ampc::check(&mut module).is_empty() {
        return;
    }
    let before = laws::show(&module);
    let mut options = options(bits, || 0);
    if module.opset(module.main(), "").is_none() {
        // There is nothing to raise, but casts that are inserted are operators of an opset that there is.
        options.opset = Opset::Keep;
    }
    let mut once = match ampc::rewrite(Model::from(module), &options) {
        Ok(rewritten) => rewritten.model,
        Err(error) => {
            assert!(error.kind() != ErrorKind::Bug, "{error}\n{before}");
            return;
        }
    };
    let findings = ampc::check(&mut once.module);
    let after = laws::show(&once.module);
    assert!(findings.is_empty(), "{findings:?}\n{before}\n{after}");
    laws::text(&once.module);
    laws::onnx(&once.module);
    // A text may have come without its large constants.
    let Ok((written, _)) = to_bytes(&once.module, None) else { return };
    let twice = ampc::rewrite(once, &options).unwrap_or_else(|e| panic!("{e}\n{after}")).model;
    let again = laws::show(&twice.module);
    assert!(
        written == to_bytes(&twice.module, None).unwrap().0,
        "{before}\n--- once\n{after}\n--- twice\n{again}"
    );
}
