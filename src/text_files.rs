//! The text form as files: `X.ir`, and `X.ir.safetensors` beside it for large constants.
