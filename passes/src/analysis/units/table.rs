//! The patterns, by the names of [`Kind`](super::Kind). Larger patterns of a kind come first.
//!
//! A layer norm may be an instance norm: the axes and the shapes of its parameters decide. A Swish may be a QuickGelu.

/// The patterns.
pub(super) const PATTERNS: &str = "
group-norm: Reshape(standard(Reshape(x, _)), _) * gamma + beta
group-norm: Reshape((mean(d^2) + eps)^-0.5 * d, _) * gamma + beta where d = g - mean(g); g = Reshape(x, _)

layer-norm: (mean(d^2) + eps)^-0.5 * d * gamma + beta where d = x - mean(x)
layer-norm: (mean(d^2) + eps)^-0.5 * d * gamma where d = x - mean(x)
layer-norm: (mean(d^2) + eps)^-0.5 * d where d = x - mean(x)
layer-norm: (mean(x^2) - m^2 + eps)^-0.5 * (x - m) * gamma + beta where m = mean(x)
layer-norm: (mean(x^2) - m^2 + eps)^-0.5 * (x - m) * gamma where m = mean(x)
layer-norm: (mean(x^2) - m^2 + eps)^-0.5 * (x - m) where m = mean(x)
layer-norm: x * t - m * t + beta where t = (mean(d^2) + eps)^-0.5 * gamma; d = x - m; m = mean(x)
layer-norm: x * t - m * t + beta where t = (mean(x^2) - m^2 + eps)^-0.5 * gamma; m = mean(x)
layer-norm: x * t - m * t where t = (mean(d^2) + eps)^-0.5 * gamma; d = x - m; m = mean(x)

rms-norm: round((mean(x^2) + eps)^-0.5 * x) * gamma
rms-norm: (mean(x^2) + eps)^-0.5 * x * gamma
rms-norm: (mean(x^2) + eps)^-0.5 * x

softmax: e / sum(e) where e = Exp(x - max(x))
softmax: e / sum(e) where e = Exp(x)

log-softmax: d - Log(sum(Exp(d))) where d = x - max(x)
log-softmax: x - m - Log(sum(Exp(x - m))) where m = max(x)
log-softmax: x - Log(sum(Exp(x)))
log-softmax: Log(e / sum(e)) where e = Exp(x - max(x))
log-softmax: x - ReduceLogSumExp(x)

log-sum-exp: Log(sum(Exp(x - m))) + m where m = max(x)
log-sum-exp: Log(total(Exp(x)))

gelu: (1 + Erf(x * 0.70710678118654752)) * x * 0.5
gelu: (0.5 + Erf(x * 0.70710678118654752) * 0.5) * x
gelu-tanh: (1 + Tanh((x + x^3 * 0.044715) * 0.79788456080286536)) * x * 0.5
gelu-tanh: (1 + Tanh((1 + x^2 * 0.044715) * x * 0.79788456080286536)) * x * 0.5
gelu-tanh: (1 + Tanh(x^3 * 0.035677408136300125 + x * 0.79788456080286536)) * x * 0.5
gelu-tanh: (0.5 + Tanh((x + x^3 * 0.044715) * 0.79788456080286536) * 0.5) * x
gelu-tanh: (0.5 + Tanh((1 + x^2 * 0.044715) * x * 0.79788456080286536) * 0.5) * x
gelu-tanh: Sigmoid((x + x^3 * 0.044715) * 1.5957691216057308) * x

swish: x * Sigmoid(x * alpha)
swish: x / (1 + Exp(-x))

mish: Tanh(Softplus(x)) * x
mish: Tanh(Log(1 + Exp(x))) * x

hard-swish: clip(x + 3, 0, 6) * x / 6
hard-swish: Min(Relu(x + 3), 6) * x / 6
hard-swish: clip(x / 6 + 0.5, 0, 1) * x
hard-swish: gate(x) * x

rotary: join(-hi(x), lo(x)) * sin + x * cos
rotary: join(lo(x) * cos - hi(x) * sin, lo(x) * sin + hi(x) * cos)
rotary-interleaved: weave(-odd(x), even(x)) * sin + x * cos
rotary-interleaved: weave(even(x) * cos - odd(x) * sin, even(x) * sin + odd(x) * cos)
";
