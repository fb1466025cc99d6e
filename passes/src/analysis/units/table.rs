//! The patterns, by the words of [`Kind::of_word`](super::Kind). Of one word, larger patterns come first.
//!
//! `Norm` is a layer or instance normalization: the axes and the shapes of its parameters decide.

/// The patterns.
pub(super) const PATTERNS: &str = "
Group: Reshape(standard(Reshape(x, _)), _) * gamma + beta
Group: Reshape((mean(d^2) + eps)^-0.5 * d, _) * gamma + beta where d = g - mean(g); g = Reshape(x, _)

Norm: (mean(d^2) + eps)^-0.5 * d * gamma + beta where d = x - mean(x)
Norm: (mean(d^2) + eps)^-0.5 * d * gamma where d = x - mean(x)
Norm: (mean(d^2) + eps)^-0.5 * d where d = x - mean(x)
Norm: (mean(x^2) - m^2 + eps)^-0.5 * (x - m) * gamma + beta where m = mean(x)
Norm: (mean(x^2) - m^2 + eps)^-0.5 * (x - m) * gamma where m = mean(x)
Norm: (mean(x^2) - m^2 + eps)^-0.5 * (x - m) where m = mean(x)
Norm: x * t - m * t + beta where t = (mean(d^2) + eps)^-0.5 * gamma; d = x - m; m = mean(x)
Norm: x * t - m * t + beta where t = (mean(x^2) - m^2 + eps)^-0.5 * gamma; m = mean(x)
Norm: x * t - m * t where t = (mean(d^2) + eps)^-0.5 * gamma; d = x - m; m = mean(x)

Rms: round((mean(x^2) + eps)^-0.5 * x) * gamma
Rms: (mean(x^2) + eps)^-0.5 * x * gamma
Rms: (mean(x^2) + eps)^-0.5 * x

Softmax: e / sum(e) where e = Exp(x - max(x))
Softmax: e / sum(e) where e = Exp(x)

LogSoftmax: d - Log(sum(Exp(d))) where d = x - max(x)
LogSoftmax: x - m - Log(sum(Exp(x - m))) where m = max(x)
LogSoftmax: x - Log(sum(Exp(x)))
LogSoftmax: Log(e / sum(e)) where e = Exp(x - max(x))
LogSoftmax: x - ReduceLogSumExp(x)

LogSumExp: Log(sum(Exp(x - m))) + m where m = max(x)
LogSumExp: Log(total(Exp(x)))

Gelu: (1 + Erf(x * 0.70710678118654752)) * x * 0.5
Gelu: (0.5 + Erf(x * 0.70710678118654752) * 0.5) * x
GeluTanh: (1 + Tanh((x + x^3 * 0.044715) * 0.79788456080286536)) * x * 0.5
GeluTanh: (1 + Tanh((1 + x^2 * 0.044715) * x * 0.79788456080286536)) * x * 0.5
GeluTanh: (1 + Tanh(x^3 * 0.035677408136300125 + x * 0.79788456080286536)) * x * 0.5
GeluTanh: (0.5 + Tanh((x + x^3 * 0.044715) * 0.79788456080286536) * 0.5) * x
GeluTanh: (0.5 + Tanh((1 + x^2 * 0.044715) * x * 0.79788456080286536) * 0.5) * x
GeluTanh: Sigmoid((x + x^3 * 0.044715) * 1.5957691216057308) * x

Swish: x * Sigmoid(x * alpha)
Swish: x / (1 + Exp(-x))

Mish: Tanh(Softplus(x)) * x
Mish: Tanh(Log(1 + Exp(x))) * x

HardSwish: clip(x + 3, 0, 6) * x / 6
HardSwish: Min(Relu(x + 3), 6) * x / 6
HardSwish: clip(x / 6 + 0.5, 0, 1) * x
HardSwish: gate(x) * x

Rotary: join(-hi(x), lo(x)) * sin + x * cos
Rotary: join(lo(x) * cos - hi(x) * sin, lo(x) * sin + hi(x) * cos)
Interleaved: weave(-odd(x), even(x)) * sin + x * cos
Interleaved: weave(even(x) * cos - odd(x) * sin, even(x) * sin + odd(x) * cos)
";
