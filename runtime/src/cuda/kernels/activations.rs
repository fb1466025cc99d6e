//! Activation functions of recurrent operators, as CUDA C.

use crate::cuda::text::f32_text;
use ampc_ir::views::recurrent::Activation;

/// The statements of an activation of the argument `x`, which is clipped first.
pub(super) fn function_text(name: &str, function: Activation, clip: Option<f32>) -> String {
    let number = f32_text;
    let formula = match function {
        Activation::Relu => "x < 0.0f ? 0.0f : x".to_owned(),
        Activation::Tanh => "tanhf(x)".into(),
        Activation::Sigmoid => "1.0f / (1.0f + expf(-x))".into(),
        Activation::Affine(alpha, beta) => format!("{} * x + {}", number(alpha), number(beta)),
        Activation::LeakyRelu(alpha) => format!("x < 0.0f ? {} * x : x", number(alpha)),
        Activation::ThresholdedRelu(alpha) => format!("x < {} ? 0.0f : x", number(alpha)),
        Activation::ScaledTanh(alpha, beta) => format!("{} * tanhf({} * x)", number(alpha), number(beta)),
        Activation::HardSigmoid(alpha, beta) => format!(
            "(x = {} * x + {}, x = x < 0.0f ? 0.0f : x, x > 1.0f ? 1.0f : x)",
            number(alpha),
            number(beta)
        ),
        Activation::Elu(alpha) => format!("x < 0.0f ? {} * expm1f(x) : x", number(alpha)),
        Activation::Softsign => "x / (1.0f + fabsf(x))".into(),
        Activation::Softplus => "(x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x)))".into(),
    };
    let bound = clip.map_or_else(String::new, |clip| {
        let clip = number(clip);
        format!("x = x > {clip} ? {clip} : x < -{clip} ? -{clip} : x; ")
    });
    format!("__device__ __forceinline__ float {name}(float x) {{ {bound}return {formula}; }}\n")
}
