"""Audio: spectrograms by Conv and by DFT products, mel energies, decibels, phases, vocoders, loudness."""

import numpy as np

from .build import model
from .parts import Body, mlp, op, reduce, reshape, span, split, unsqueeze


def samples(g, n, level, rate=16000, batch=1):
    """Speech-like audio: decaying harmonics of a few tones, and a little noise."""
    t = np.arange(n) / rate
    rows = []
    for _ in range(batch):
        pitch = g.rng.uniform(110, 240)
        tones = sum(np.sin(2 * np.pi * pitch * k * t + g.rng.uniform(0, 6)) / k**1.5 for k in range(1, 20))
        envelope = 0.2 + np.abs(np.sin(2 * np.pi * 3 * t + g.rng.uniform(0, 6)))
        rows.append(level * (tones * envelope / 2 + 0.003 * g.rng.standard_normal(n)))
    return np.stack(rows).astype(np.float32)


def fourier(n, window=True):
    """Real and imaginary rows of the DFT of n samples, [2 * (n/2 + 1), n], under a Hann window."""
    angle = 2 * np.pi * np.outer(np.arange(n // 2 + 1), np.arange(n)) / n
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n) if window else 1.0
    return np.concatenate([np.cos(angle), -np.sin(angle)]) * hann


def mel_filters(bands, bins, rate=16000, slaney=True):
    """Triangles on the mel scale, [bands, bins]; those of Slaney have equal areas (peaks about 0.01)."""
    to_mel, to_hz = (lambda f: 2595 * np.log10(1 + f / 700)), (lambda m: 700 * (10 ** (m / 2595) - 1))
    edges = to_hz(np.linspace(to_mel(20), to_mel(rate / 2), bands + 2))
    freqs = np.linspace(0, rate / 2, bins)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bank = np.maximum(0, np.minimum((freqs - low) / (mid - low), (high - freqs) / (high - mid)))
    return bank * (2 / (high - low)) if slaney else bank


def stft(g, x, n, hop):
    """Real and imaginary parts, [B, bins, frames], of x [B, 1, samples], by a Conv with the DFT."""
    kernel = g.const(fourier(n)[:, None], "stft_kernel")
    y = g.node("Conv", [x, kernel], name="stft_conv", strides=[hop])
    return split(g, y, 2, 1, "stft_parts")


@model("whisper_log_mel_conv_stft", pins=["stft_*", "power_*", "mel_*", "floor_clip"])
def whisper_log_mel_conv_stft(g):
    """Whisper front end: STFT by Conv, power, mel, log10 clamped 8 below the maximum, then the first Conv."""
    x = g.input("audio", ["batch", 1, "samples"], samples(g, 8192, 0.3)[:, None])
    re, im = stft(g, x, 256, 128)
    re2, im2 = g.node("Mul", [re, re], name="power_re"), g.node("Mul", [im, im], name="power_im")
    power = g.node("Add", [re2, im2], name="power_sum")
    mel = g.node("MatMul", [g.const(mel_filters(80, 129), "mel_bank"), power], name="mel_mm")
    mel = g.node("Clip", [mel, g.const(1e-10)], name="floor_clip")
    log = op(g, "Mul", g.node("Log", [mel], name="log"), 1 / np.log(10), name="log10_mul")
    top = op(g, "Sub", reduce(g, "ReduceMax", log, [0, 1, 2], "log_max"), 8.0, name="log_top")
    log = g.node("Max", [log, top], name="log_clamp")
    log = op(g, "Div", op(g, "Add", log, 4.0, name="log_shift"), 4.0, name="log_scale")
    y = g.node("Gelu", [g.conv(log, "enc1", 80, 128, 3, dims=1, pads=[1, 1])], name="gelu1")
    g.output(g.conv(y, "enc2", 128, 128, 3, dims=1, pads=[1, 1], strides=[2]))


@model(
    "kaldi_fbank_of_int16_samples",
    pins=["frame_*", "dft_*", "power_*", "mel_*", "floor_max", "cmvn_sub"],
    opset=17,
)
def kaldi_fbank_of_int16_samples(g):
    """Kaldi filterbanks of 16-bit samples: DC removal, pre-emphasis, DFT product, power, mel, log, affine."""
    frames = np.lib.stride_tricks.sliding_window_view(samples(g, 8192, 9000.0)[0], 256)[::128]
    x = g.input("frames", ["frames", 256], np.round(frames))
    mean = reduce(g, "ReduceMean", x, [1], "frame_mean")
    x = g.node("Sub", [x, mean], name="frame_centre")
    last = span(g, x, 0, 255, 1, "frame_previous")
    last = g.node("Concat", [span(g, x, 0, 1, 1, "frame_first"), last], name="frame_shifted", axis=1)
    x = g.node("Sub", [x, op(g, "Mul", last, 0.97, name="frame_097")], name="frame_emphasis")
    both = g.node("MatMul", [x, g.const(fourier(256).T, "dft_matrix")], name="dft_mm")
    re, im = span(g, both, 0, 129, 1, "dft_re"), span(g, both, 129, 258, 1, "dft_im")
    re2, im2 = op(g, "Pow", re, 2.0, name="power_re"), op(g, "Pow", im, 2.0, name="power_im")
    power = g.node("Add", [re2, im2], name="power_sum")
    mel = g.node("MatMul", [power, g.const(mel_filters(64, 129, slaney=False).T, "bank")], name="mel_mm")
    log = g.node("Log", [op(g, "Max", mel, 1.1920929e-07, name="floor_max")], name="log")
    y = op(g, "Mul", op(g, "Sub", log, g.uniform(12, 16, 64), name="cmvn_sub"), 0.3, name="cmvn_mul")
    g.output(mlp(g, y, "tdnn", [64, 128, 64]))


@model("spectral_mask_istft_conv_transpose", pins=[])
def spectral_mask_istft_conv_transpose(g):
    """Speech enhancement: STFT as channels, a Conv net gives a mask, inverse STFT by ConvTranspose."""
    x = g.input("audio", [1, 1, "samples"], samples(g, 4096, 0.5)[:, None])
    spec = g.node("Conv", [x, g.const(fourier(128)[:, None] / 8, "kernel")], name="analysis", strides=[64])
    h = g.node("Relu", [g.conv(spec, "net1", 130, 96, 3, dims=1, pads=[1, 1])], name="act1")
    h = g.node("Relu", [g.conv(h, "net2", 96, 96, 3, dims=1, pads=[2, 2], dilations=[2])], name="act2")
    mask = g.node("Sigmoid", [g.conv(h, "net3", 96, 130, 1, dims=1)], name="mask")
    spec = g.node("Mul", [spec, mask], name="masked")
    inverse = g.const(fourier(128)[:, None] / 16, "inverse")
    g.output(g.node("ConvTranspose", [spec, inverse], name="synthesis", strides=[64]))


@model("vocos_head_exp_magnitude_phase", pins=[])
def vocos_head_exp_magnitude_phase(g):
    """Vocos head: exp of log-magnitudes clipped at 100, times cos and sin of phases, inverse DFT product."""
    x = g.input("features", [1, "frames", 128], g.normal(1, 40, 128))
    h = g.layer_norm(x, "norm", 128)
    logmag, phase = split(g, g.linear(h, "head", 128, 258), 2, -1, "head_parts")
    mag = g.node("Exp", [logmag], name="mag_exp")
    mag = g.node("Clip", [mag, "", g.const(100.0)], name="mag_clip")
    re = g.node("Mul", [mag, g.node("Cos", [phase], name="cos")], name="re")
    im = g.node("Mul", [mag, g.node("Sin", [phase], name="sin")], name="im")
    spec = g.node("Concat", [re, im], name="spec", axis=-1)
    g.output(g.node("MatMul", [spec, g.const(fourier(256) / 16, "idft")], name="idft_mm"))


@model("nsf_source_phase_cumsum", pins=["f0b_conv", "f0_sigmoid", "f0_mul", "f0_add", "f0_hold", "phase_*"])
def nsf_source_phase_cumsum(g):
    """Neural source filter: predicted f0 in Hz, held, its phase summed over 4800 samples, sines, a Conv."""
    x = g.input("mel", [1, 80, "frames"], g.normal(1, 80, 40))
    h = g.node("LeakyRelu", [g.conv(x, "f0a", 80, 64, 3, dims=1, pads=[1, 1])], name="f0_act", alpha=0.1)
    h = g.node("Sigmoid", [g.conv(h, "f0b", 64, 1, 3, dims=1, pads=[1, 1])], name="f0_sigmoid")
    f0 = op(g, "Add", op(g, "Mul", h, 300.0, name="f0_mul"), 80.0, name="f0_add")
    f0 = g.node(
        "Resize",
        [f0, "", g.const([1.0, 1.0, 120.0])],
        name="f0_hold",
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    rads = op(g, "Div", f0, 24000.0, name="phase_rate")
    rads = op(g, "Mul", rads, np.arange(1, 9, dtype=np.float32).reshape(1, 8, 1), name="phase_harmonics")
    cycles = g.node("CumSum", [rads, g.const(2, dtype=np.int64)], name="phase_cumsum")
    source = g.node("Sin", [op(g, "Mul", cycles, 2 * np.pi, name="phase_two_pi")], name="sine")
    source = op(g, "Mul", source, 0.1, name="sine_amp")
    y = g.node("Tanh", [g.conv(source, "source", 8, 32, 15, dims=1, pads=[7, 7])], name="tanh")
    g.output(g.conv(y, "filter", 32, 16, 7, dims=1, strides=[4]))


@model("mfcc_power_to_db_and_dct", pins=["dft_*", "power_*", "mel_*", "db_floor"], opset=17)
def mfcc_power_to_db_and_dct(g):
    """MFCC of librosa: power, mel, 10 log10 with a top of 80 dB, DCT product."""
    frames = np.lib.stride_tricks.sliding_window_view(samples(g, 6000, 0.05)[0], 256)[::128]
    x = g.input("frames", ["frames", 256], frames.copy())
    basis = fourier(256).T
    re = g.node("MatMul", [x, g.const(basis[:, :129], "dft_cos")], name="dft_re_mm")
    im = g.node("MatMul", [x, g.const(basis[:, 129:], "dft_sin")], name="dft_im_mm")
    power = g.node(
        "Add",
        [op(g, "Pow", re, 2.0, name="power_re"), op(g, "Pow", im, 2.0, name="power_im")],
        name="power_sum",
    )
    mel = g.node("MatMul", [power, g.const(mel_filters(64, 129).T, "mel_bank")], name="mel_mm")
    log = g.node("Log", [op(g, "Max", mel, 1e-10, name="db_floor")], name="db_log")
    db = op(g, "Mul", log, 10 / np.log(10), name="db_mul")
    top = op(g, "Sub", reduce(g, "ReduceMax", db, [0, 1], "db_max"), 80.0, name="db_top")
    db = g.node("Max", [db, top], name="db_clamp")
    k, m = np.arange(20)[None], np.arange(64)[:, None]
    dct = np.cos(np.pi * k * (m + 0.5) / 64) * np.where(k == 0, 64**-0.5, 32**-0.5)
    g.output(g.node("MatMul", [db, g.const(dct, "dct")], name="dct_mm"))


@model(
    "lufs_block_loudness_of_quiet_track",
    pins=["kweight_conv", "energy_*", "loudness_eps"],
    pins_bf16=[],
    opset=17,
)
def lufs_block_loudness_of_quiet_track(g):
    """BS.1770 loudness as a training loss: K-weighting FIR, block energies of a quiet stem, 10 log10."""
    x = g.input("stem", ["batch", 1, 8192], samples(g, 8192, 0.004, batch=4)[:, None])
    taps = np.zeros(65)
    taps[0], taps[1:] = 1.5, -0.6 * np.exp(-np.arange(64) / 9) / 9 * (1 + 0.1 * g.normal(64))
    y = g.node("Conv", [x, g.const(taps[None, None], "kweight_fir")], name="kweight_conv")
    square = g.node("Mul", [y, y], name="energy_square")
    energy = g.node("AveragePool", [square], name="energy_blocks", kernel_shape=[1024], strides=[256])
    energy = op(g, "Add", energy, 1e-10, name="loudness_eps")
    log = g.node("Log", [energy], name="loudness_log")
    lufs = op(g, "Sub", op(g, "Mul", log, 10 / np.log(10), name="loudness_mul"), 0.691, name="loudness_sub")
    flat = op(g, "Div", g.node("Flatten", [lufs], name="flat"), 70.0, name="unit")
    g.output(lufs, mlp(g, flat, "gain", [28, 64, 28], "Tanh"))


@model("pcen_smoothed_by_scan", pins=["energy_square", "energy_mel_mm", "smooth/body/*", "pcen_*"])
def pcen_smoothed_by_scan(g):
    """PCEN (LEAF): mel energies over an exponential average kept by a Scan, then root compression."""
    spec = np.abs(g.normal(50, 129, scale=0.02)) * np.exp(-np.arange(129) / 20)
    x = g.input("magnitude", ["frames", 129], spec.astype(np.float32))
    e = g.node("Mul", [x, x], name="energy_square")
    e = g.node("MatMul", [e, g.const(mel_filters(64, 129, slaney=False).T, "bank")], name="energy_mel_mm")
    body = Body(g, "smoother")
    m, now = body.entry("m_before", [64]), body.entry("e_now", [64])
    keep, new = op(body, "Mul", m, 0.975, name="keep"), op(body, "Mul", now, 0.025, name="new")
    after = body.node("Add", [keep, new], name="average")
    each = body.node("Identity", [after], name="each")
    first = g.node("Squeeze", [span(g, e, 0, 1, 0, "pcen_first"), g.ints(0)], name="pcen_start")
    _, m = g.node(
        "Scan",
        [first, e],
        name="smooth",
        outputs=2,
        num_scan_inputs=1,
        body=body.graph((after, [64]), (each, [64])),
    )
    m = op(g, "Pow", op(g, "Add", m, 1e-6, name="pcen_eps"), 0.98, name="pcen_pow")
    y = op(g, "Add", g.node("Div", [e, m], name="pcen_div"), 2.0, name="pcen_delta")
    y = op(g, "Sub", g.node("Sqrt", [y], name="pcen_sqrt"), 2**0.5, name="pcen_sub")
    g.output(mlp(g, y, "head", [64, 128, 32]))


@model("wav2vec2_normalised_quiet_waveform", pins=["norm_*"], opset=20)
def wav2vec2_normalised_quiet_waveform(g):
    """wav2vec 2.0: zero mean and unit variance of a quiet waveform with eps 1e-7, then the strided Convs."""
    x = g.input("waveform", ["batch", "samples"], samples(g, 6400, 2e-3, batch=2) + np.float32(1e-3))
    mean = reduce(g, "ReduceMean", x, [1], "norm_mean")
    centred = g.node("Sub", [x, mean], name="norm_sub")
    var = reduce(g, "ReduceMean", g.node("Mul", [centred, centred], name="norm_square"), [1], "norm_var")
    std = g.node("Sqrt", [op(g, "Add", var, 1e-7, name="norm_eps")], name="norm_sqrt")
    x = unsqueeze(g, g.node("Div", [centred, std], name="norm_div"), [1], "channel")
    x = g.node("Gelu", [g.conv(x, "c0", 1, 64, 10, dims=1, strides=[5])], name="gelu0")
    x = g.node("Gelu", [g.conv(x, "c1", 64, 64, 3, dims=1, strides=[2])], name="gelu1")
    g.output(g.conv(x, "c2", 64, 64, 3, dims=1, strides=[2]))


@model("encodec_elu_residual_encoder", pins=[], opset=17)
def encodec_elu_residual_encoder(g):
    """EnCodec encoder: Convs with ELU and residual units on audio between -1 and 1."""
    x = g.input("audio", ["batch", 1, 2400], samples(g, 2400, 0.4, rate=24000)[:, None])
    x = g.conv(x, "in", 1, 32, 7, dims=1, pads=[3, 3])
    for i, (c, stride) in enumerate([(32, 2), (64, 4)]):
        h = g.conv(g.node("Elu", [x], name=f"elu{i}a"), f"r{i}a", c, c // 2, 3, dims=1, pads=[1, 1])
        h = g.conv(g.node("Elu", [h], name=f"elu{i}b"), f"r{i}b", c // 2, c, 1, dims=1)
        x = g.node("Elu", [g.node("Add", [x, h], name=f"res{i}")], name=f"elu{i}c")
        x = g.conv(x, f"down{i}", c, 2 * c, 2 * stride, dims=1, strides=[stride])
    g.output(x)


@model("dccrn_polar_mask_small_magnitudes", pins=["mag_*", "unit_*"], pins_bf16=[])
def dccrn_polar_mask_small_magnitudes(g):
    """DCCRN-E: magnitude sqrt(re² + im² + 1e-8) of a mask, its phase as a ratio, tanh of the magnitude."""
    spec = g.normal(1, 64, 50, scale=0.3) * np.exp(-np.arange(64) / 8).reshape(1, 64, 1).astype(np.float32)
    x = g.input("spectrum", ["batch", 64, "frames"], spec)
    h = g.node("PRelu", [g.conv(x, "enc", 64, 96, 3, dims=1, pads=[1, 1]), g.const(0.25)], name="prelu")
    re = g.conv(h, "re", 96, 64, 1, dims=1, bias=False)
    im = g.conv(h, "im", 96, 64, 1, dims=1, bias=False)
    re, im = op(g, "Mul", re, 0.004, name="gain_re"), op(g, "Mul", im, 0.004, name="gain_im")
    square = g.node(
        "Add",
        [g.node("Mul", [re, re], name="mag_re2"), g.node("Mul", [im, im], name="mag_im2")],
        name="mag_add",
    )
    mag = g.node("Sqrt", [op(g, "Add", square, 1e-8, name="mag_eps")], name="mag_sqrt")
    unit = [g.node("Div", [part, mag], name=f"unit_{s}") for s, part in (("re", re), ("im", im))]
    gain = g.node("Tanh", [op(g, "Mul", mag, 100.0, name="gain_mul")], name="gain")
    gain = g.node("Mul", [x, gain], name="gained")
    both = g.node(
        "Concat", [g.node("Mul", [gain, u], name=f"est{i}") for i, u in enumerate(unit)], name="est", axis=1
    )
    g.output(g.conv(both, "dec", 128, 32, 3, dims=1, pads=[1, 1]))


@model(
    "si_sdr_of_separated_sources",
    pins=["decode_add", "overlap", "centre_*", "dot_*", "target_*", "noise_*", "ratio_*"],
)
def si_sdr_of_separated_sources(g):
    """Conv-TasNet with its metric: decoded estimate against a reference, scale-invariant SDR in dB."""
    ref = samples(g, 4096, 0.2, batch=2)
    frames = ref.reshape(2, 64, 64)
    h = g.input("bases", ["batch", 64, 128], np.tanh(g.normal(2, 64, 128)))
    reference = g.input("reference", ["batch", 4096], ref)
    residue = g.node("MatMul", [h, g.weight("decoder", 128, 64, scale=0.0004)], name="decode_mm")
    base = g.input("mixture_frames", ["batch", 64, 64], frames * 0.7 + g.normal(2, 64, 64, scale=0.003))
    est = reshape(g, g.node("Add", [base, residue], name="decode_add"), [0, 4096], "overlap")
    mean = reduce(g, "ReduceMean", est, [1], "centre_mean")
    est = g.node("Sub", [est, mean], name="centre_sub")
    dot = reduce(g, "ReduceSum", g.node("Mul", [est, reference], name="dot_mul"), [1], "dot_sum")
    energy = reduce(g, "ReduceSumSquare", reference, [1], "target_energy")
    alpha = g.node("Div", [dot, op(g, "Add", energy, 1e-8, name="target_eps")], name="target_alpha")
    target = g.node("Mul", [alpha, reference], name="target_mul")
    noise = g.node("Sub", [est, target], name="noise_sub")
    up = reduce(g, "ReduceSumSquare", target, [1], "ratio_target")
    down = op(g, "Add", reduce(g, "ReduceSumSquare", noise, [1], "noise_energy"), 1e-8, name="noise_eps")
    log = g.node("Log", [g.node("Div", [up, down], name="ratio_div")], name="ratio_log")
    g.output(op(g, "Mul", log, 10 / np.log(10), name="ratio_db"), est)


@model(
    "phase_vocoder_unwrapped_advance", pins=["dft_*", "ratio_*", "delta_*", "turn_*", "advance_*", "phase_*"]
)
def phase_vocoder_unwrapped_advance(g):
    """Phase vocoder: phase steps less the expected advance of each bin, wrapped, summed at a new hop."""
    frames = np.lib.stride_tricks.sliding_window_view(samples(g, 3200, 0.5)[0], 256)[::64]
    frames = frames + g.normal(*frames.shape, scale=0.05)
    x = g.input("frames", ["frames", 256], frames)
    basis = fourier(256)
    im = g.node("MatMul", [x, g.const(basis[129:257:4].T, "sin_rows")], name="dft_im_mm")
    re = g.node("MatMul", [x, g.const(basis[0:128:4].T, "cos_rows")], name="dft_re_mm")
    re = op(g, "Add", op(g, "Abs", re, name="ratio_abs"), 1e-3, name="ratio_eps")
    angle = g.node("Atan", [g.node("Div", [im, re], name="ratio_div")], name="angle")
    now, before = span(g, angle, 1, 1 << 30, 0, "delta_now"), span(g, angle, 0, -1, 0, "delta_before")
    expected = g.const(2 * np.pi * 64 * np.arange(0, 128, 4) / 256 * 1.03, "bin_advance")
    delta = g.node("Sub", [g.node("Sub", [now, before], name="delta_sub"), expected], name="delta_expected")
    turns = g.node("Sin", [delta], name="turn_sin")
    step = g.node("Add", [expected, op(g, "Mul", turns, 0.3, name="turn_mul")], name="advance_add")
    phase = g.node(
        "CumSum",
        [op(g, "Mul", step, 1.25, name="advance_hop"), g.const(0, dtype=np.int64)],
        name="phase_cumsum",
    )
    both = g.node(
        "Concat",
        [g.node("Cos", [phase], name="cos"), g.node("Sin", [phase], name="sin")],
        name="spectrum",
        axis=1,
    )
    g.output(mlp(g, both, "synth", [64, 128, 64], "Relu"))


@model("scattering_modulus_by_reduce_l2", pins=[])
def scattering_modulus_by_reduce_l2(g):
    """Wavelet scattering: complex filters by Conv, modulus as ReduceL2 of pairs, pooled, classified."""
    x = g.input("audio", [1, 1, 4096], samples(g, 4096, 0.5)[:, None])
    t = np.arange(-64, 64)
    waves = []
    for k in range(32):
        freq = 0.4 * 2 ** (-k / 6)
        bell = np.exp(-0.5 * (t * freq / 3) ** 2) * freq
        waves += [bell * np.cos(2 * np.pi * freq * t), bell * np.sin(2 * np.pi * freq * t)]
    pairs = g.node(
        "Conv", [x, g.const(np.stack(waves)[:, None], "wavelets")], name="wavelet_conv", strides=[8]
    )
    pairs = reshape(g, pairs, [1, 32, 2, -1], "pairs")
    modulus = reduce(g, "ReduceL2", pairs, [2], "modulus", keepdims=0)
    pooled = g.node("AveragePool", [modulus], name="lowpass", kernel_shape=[16], strides=[16])
    pooled = g.node("Transpose", [pooled], name="frames_last", perm=[0, 2, 1])
    g.output(mlp(g, pooled, "classify", [32, 96, 20]))
