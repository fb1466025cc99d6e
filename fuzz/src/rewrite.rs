//! Rewrites whatever valid model a text is.

use crate::laws;
use ampc::onnx::to_bytes;
use ampc::options::By;
use ampc::{ErrorKind, Model, RewriteOptions};
use ampc_ir::DType;
use ampc_passes::Policy;
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::pipeline::Opset;
use std::sync::{Arc, LazyLock};

/// The presets, made once.
pub(crate) static PRESETS: LazyLock<[Arc<Policy>; 2]> =
    LazyLock::new(|| ["safe", "all"].map(|name| Arc::new(Policy::preset(name).unwrap())));

/// The bit of the options that chooses by painting.
pub const PAINT: u8 = 1 << 7;

/// Options as a byte says them.
pub(crate) fn options(bits: u8) -> RewriteOptions {
    let bit = |i: u8| bits >> i & 1 == 1;
    RewriteOptions {
        to: if bit(0) { DType::BF16 } else { DType::F16 },
        policy: PRESETS[usize::from(bit(1))].clone(),
        keep_io: if bit(2) { KeepIo::None } else { KeepIo::All },
        opset: match bits >> 3 & 3 {
            0 | 1 => Opset::Keep,
            2 => Opset::Auto,
            _ => Opset::To(26),
        },
        out_of_range: if bit(5) {
            ampc_passes::guard::OutOfRange::Clamp
        } else {
            ampc_passes::guard::OutOfRange::Keep
        },
        by: if bits & PAINT != 0 { By::Paint } else { By::default() },
        excess_precision: false,
        explain: Vec::new(),
        alternative: None,
        verify_each: true,
        constant_statistics: bit(6),
    }
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
    let mut options = options(bits);
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
