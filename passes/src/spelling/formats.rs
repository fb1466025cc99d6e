//! How users spell formats: one table for pins, `--to`, pipelines and policies.

use ampc_ir::DType;

/// Every spelling in lower case; ampc writes the first spelling of each format.
const SPELLINGS: &[(&str, DType)] = &[
    ("fp32", DType::F32),
    ("f32", DType::F32),
    ("float32", DType::F32),
    ("float", DType::F32),
    ("single", DType::F32),
    ("fp16", DType::F16),
    ("f16", DType::F16),
    ("float16", DType::F16),
    ("half", DType::F16),
    ("bf16", DType::BF16),
    ("bfloat16", DType::BF16),
];

/// The format that a word stands for: f32, f16 or bf16, in any of the usual spellings, in upper or lower case.
pub fn float_format(word: &str) -> Option<DType> {
    SPELLINGS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|&(_, format)| format)
}
