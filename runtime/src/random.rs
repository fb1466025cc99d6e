//! The random key of a node, which is the same on every backend.

use crate::kernel::Site;

/// The Philox key of a node: its attribute `seed` as an f32, or without a seed a hash of the name of its first
/// result. In a function, the name is that in the function, so all calls have the same key.
pub(crate) fn key(site: &Site<'_>) -> [u32; 2] {
    if let Some(seed) = site.view.float("seed") {
        return [seed.to_bits(), 0];
    }
    let module = site.view.module;
    // All copies of a function's node have the same name.
    let result = module.node(site.source).results().iter().flatten().next();
    let name = result.and_then(|&value| module.value(value).name).map_or("", |name| module.text(name));
    // FNV-1a.
    let hash =
        name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    [hash, 1]
}
