"""Cases of operators that compute: element-wise, products, windows, norms, reductions, recurrent, attention, images."""

from generate_inference_cases import case

SAME = """Abs:1,6,13 Acos:7,22 Acosh:9,22 Asin:7,22 Asinh:9 Atan:7 Atanh:9,22 Ceil:1,6,13 Celu:12,28 Cos:7,22
Cosh:9 Elu:1,6,22 Erf:9,13 Exp:1,6,13 Floor:1,6,13 Gelu:20 HardSigmoid:1,6,22 HardSwish:14,22 LeakyRelu:1,6,16
Log:1,6,13 Mish:18,22 Neg:1,6,13 Reciprocal:1,6,13 Relu:1,6,13,14 Round:11,22 Selu:1,6,22 Shrink:9
Sigmoid:1,6,13 Sign:9,13 Sin:7,22 Sinh:9 Softplus:1,22 Softsign:1,22 Sqrt:1,6,13 Swish:24 Tan:7 Tanh:1,6,13
ThresholdedRelu:10,22 Softmax:1,11,13 LogSoftmax:1,11,13 Hardmax:1,11,13 LpNormalization:1,22
MeanVarianceNormalization:9,13 IsNaN:9,13,20 IsInf:10,20""".split()


def unary():
    for entry in SAME:
        op, versions = entry.split(":")
        for version in map(int, versions.split(",")):
            for shape in ("2,3,4,5", "N,3,?,5", "*"):
                yield case(op, version, f"f32[{shape}]")
    for version in (1, 11, 13):
        for axis in (-3, -1, 0, 2, 3):
            yield case("Softmax", version, "f32[2,3]", {"axis": axis})
    yield case("BitwiseNot", 18, "i32[2,3]")
    yield case("Not", 1, "bool[2,N]")
    yield case("Relu", 13, "i32[2]")
    yield case("Relu", 14, "i32[2]")
    yield case("Erf", 9, "i32[2]")
    yield case("Abs", 13, "string[2]")
    yield case("LpNormalization", 22, "f32[2,3]", {"axis": 1, "p": 1})
    for size in (3, 1):
        yield case("LRN", 1, "f32[2,3,4,5]", {"size": size})
        yield case("LRN", 13, "f32[N,3,4,5]", {"size": size})
    yield case("Trilu", 14, "f32[2,3,4] i64[]={0}", {"upper": 0})
    yield case("Trilu", 14, "f32[2]")
    yield case("Det", 11, "f32[2,3,3]")
    yield case("Det", 11, "f32[2,3,4]")
    yield case("Det", 22, "f32[3,3]")
    yield case("Det", 22, "f32[3]")
    yield case("ImageDecoder", 20, "u8[100]")
    yield case("ImageDecoder", 20, "u8[100]", {"pixel_format": "Grayscale"})
    yield case("ImageDecoder", 20, "u8[2,100]")
    yield case("ImageDecoder", 20, "u8[100]", {"pixel_format": "CMYK"})
    for version in (1, 6):
        yield case("Clip", version, "f32[2,N]", {"min": 0.0, "max": 6.0})
        yield case("Dropout", version, "f32[2,N]", {"ratio": 0.5}, 2)
    for version in (7, 10):
        yield case("Dropout", version, "f32[2,N]", {"ratio": 0.5}, 2)
    for version in (12, 13, 22):
        yield case("Dropout", version, "f32[2,N] f32[]={0.5} bool[]", results=2)
        yield case("Dropout", version, "f32[2,N] f32[1,1]", results=2)
        yield case("Dropout", version, "f32[2,N] f16[]", results=1)
    for version in (11, 12, 13):
        yield case("Clip", version, "f32[2,N] f32[] f32[]={6}")
        yield case("Clip", version, "f32[2,N] _ f32[]={6}")
    yield case("Clip", 12, "i64[2,N] i64[]={0}")
    yield case("Clip", 11, "i64[2,N] i64[]={0}")


PAIRS = [
    ("2,3", "2,3"), ("2,3", "3"), ("3", "2,3"), ("2,3", ""), ("2,1", "1,3"), ("N,3", "N,3"), ("N,3", "1,3"),
    ("N,3", "5,1"), ("N,3", "M,3"), ("?,3", "N,1"), ("2,3", "2,4"), ("4", "3"), ("*", "2,3"), ("0,3", "1,3"),
    ("2,3,4,5", "4,5"), ("2,3,4,5", "3,1,1"), ("1", "N"), ("", ""),
]


def binary():
    for entry in ("Add:7,13,14 Sub:7,13,14 Mul:7,14 Div:7,13 Pow:7,12,13,15 Greater:7,9,13 Less:7,9,13 Equal:11,13,19 "
                  "GreaterOrEqual:12,16 LessOrEqual:12,16 Mod:10,13 PRelu:7,9,16 SwiGLU:28").split():
        op, versions = entry.split(":")
        attrs = {"fmod": 1} if op == "Mod" else {}
        for version in map(int, versions.split(",")):
            for a, b in PAIRS if version in (7, 13, 28) else PAIRS[::3]:
                yield case(op, version, f"f32[{a}] f32[{b}]", attrs)
    for op in ("And", "Or", "Xor"):
        for a, b in PAIRS[:6]:
            yield case(op, 7, f"bool[{a}] bool[{b}]")
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        for a, b in PAIRS[:6]:
            yield case(op, 18, f"u8[{a}] u8[{b}]")
    for a, b in PAIRS[:6]:
        yield case("BitShift", 11, f"u8[{a}] u8[{b}]", {"direction": "LEFT"})
    yield case("Add", 14, "f32[2] f16[2]")
    yield case("Add", 13, "u8[2] u8[2]")
    yield case("Add", 14, "u8[2] u8[2]")
    yield case("Pow", 12, "f32[2] i64[2]")
    yield case("Pow", 7, "f32[2] i64[2]")
    yield case("Equal", 19, "string[2] string[2]")
    yield case("Equal", 13, "string[2] string[2]")
    for version in (1, 6):
        for op in ("Add", "Sub", "Mul", "Div"):
            yield case(op, version, "f32[2,3] f32[2,3]")
            yield case(op, version, "f32[2,3,4] f32[3,4]", {"broadcast": 1})
            yield case(op, version, "f32[2,3,4] f32[3]", {"broadcast": 1, "axis": 1})
    for a, b, c in (("2,3", "2,3", "2,3"), ("3", "2,1", ""), ("N,1", "1,3", "N,3"), ("2", "3", "3"), ("*", "2", "2")):
        for version in (9, 16):
            yield case("Where", version, f"bool[{a}] f32[{b}] f32[{c}]")
    for op in ("Max", "Min", "Sum", "Mean"):
        for version in (1, 6, 8, 13):
            yield case(op, version, "f32[2,N]")
            yield case(op, version, "f32[2,3] f32[2,3] f32[2,3]")
            yield case(op, version, "f32[2,3] f32[3]" if version >= 8 else "f32[2,3] f32[2,3]")
        yield case(op, 8, "f32[2,3] f32[1,3] f32[2,1]")
        yield case(op, 8, "f32[2,3] f32[4]")


def ints():
    """Whether small integers are followed is seen one node further: here only types and shapes."""
    for op in ("Add", "Sub", "Mul", "Div"):
        yield case(op, 14, "i64[2]={6,4} i64[]={2}")


def products():
    for a, b in (("2,3", "3,4"), ("3", "3,4"), ("2,3", "3"), ("3", "3"), ("5,2,3", "3,4"), ("5,2,3", "1,3,4"),
                 ("5,1,2,3", "6,3,4"), ("N,2,3", "N,3,4"), ("N,2,K", "K,4"), ("N,2,3", "1,3,4"), ("2,3", "4,5"),
                 ("", "3"), ("*", "3,4"), ("5,2,3", "6,3,4"), ("2,?", "7,4"), ("0,3", "3,4")):
        for version in (1, 9, 13):
            yield case("MatMul", version, f"f32[{a}] f32[{b}]")
        yield case("MatMulInteger", 10, f"u8[{a}] i8[{b}]")
        for version in (10, 21):
            yield case("QLinearMatMul", version, f"u8[{a}] f32[] u8[] i8[{b}] f32[] i8[] f32[] u8[]")
    yield case("QLinearMatMul", 21, "u8[2,3] f16[] u8[] u8[3,4] f16[] u8[] f16[] i8[]")
    yield case("QLinearMatMul", 10, "u8[2,3] f32[] i8[] u8[3,4] f32[] u8[] f32[] i8[]")
    yield case("QLinearMatMul", 21, "float8e4m3fn[2,3] bf16[] float8e4m3fn[] float8e4m3fn[3,4] bf16[] float8e4m3fn[] bf16[] float8e4m3fn[]")
    for version in (1, 6, 7, 9, 11, 13):
        for ta, tb, a, b in ((0, 0, "2,3", "3,4"), (1, 0, "3,2", "3,4"), (0, 1, "N,3", "4,3"), (1, 1, "3,N", "4,3")):
            yield case("Gemm", version, f"f32[{a}] f32[{b}] f32[N,4]" if "N" in a else f"f32[{a}] f32[{b}] f32[2,4]",
                       {"transA": ta, "transB": tb})
    for version in (7, 9, 11, 13):
        yield case("Gemm", version, "f32[2,3] f32[3,4] f32[4]")
        yield case("Gemm", version, "f32[2,3] f32[3,4] f32[2,1]")
        yield case("Gemm", version, "f32[2,3,4] f32[3,4] f32[4]")
        yield case("Gemm", version, "f32[?,?] f32[?,4] f32[]")
    yield case("Gemm", 11, "f32[2,3] f32[3,4]")
    yield case("Gemm", 9, "f32[2,3] f32[3,4]")
    for equation, operands in (
        ("ij,jk->ik", "f32[2,3] f32[3,4]"), ("bij,bjk->bik", "f32[N,2,3] f32[N,3,4]"), ("ii->i", "f32[3,3]"),
        ("ij->", "f32[2,3]"), ("ij->ji", "f32[2,N]"), ("i,j->ij", "f32[2] f32[3]"), ("ij,jk", "f32[2,3] f32[3,4]"),
        ("ba", "f32[2,3]"), ("...ij,...jk->...ik", "f32[5,2,3] f32[5,3,4]"), ("...ii->...i", "f32[2,3,3]"),
        ("ij,jk->ik", "f32[2,3]"), ("ij,jk->ik", "f32[2,3,4] f32[3,4]"), ("ij , jk -> ik", "f32[2,3] f32[3,4]"),
        ("bhid,bhjd->bhij", "f32[2,8,N,64] f32[2,8,M,64]"), ("...i->...", "f32[2,3,4]"), ("ij->ik", "f32[2,3]"),
        ("i...->...i", "f32[2,3,4]"), ("...,...->...", "f32[2,3] f32[2,3]"),
    ):
        yield case("Einsum", 12, operands, {"equation": equation})


CONVS = [
    ("1,3,8,8", "6,3,3,3", {}), ("N,3,8,8", "6,3,3,3", {"pads": [1, 1, 1, 1]}),
    ("1,3,8,9", "6,3,3,3", {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
    ("1,3,9,9", "6,3,3,3", {"dilations": [2, 2], "kernel_shape": [3, 3]}),
    ("1,4,8,8", "6,2,3,3", {"group": 2}), ("1,3,8,8", "6,3,3,3", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("1,3,7,7", "6,3,3,3", {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ("1,3,8,8", "6,3,3,3", {"auto_pad": "VALID"}), ("1,3,8", "6,3,3", {}), ("1,3,8,8,8", "6,3,2,2,2", {}),
    ("1,3,H,W", "6,3,3,3", {}), ("1,3,?,8", "6,3,3,3", {"strides": [2, 2]}), ("*", "6,3,3,3", {}),
    ("1,3,8,8", "*", {}), ("1,3,8,8", "*", {"kernel_shape": [3, 3]}), ("1,3,8,8", "6,3,3", {}), ("1,3", "6,3", {}),
    ("1,3,8,8", "6,3,3,3", {"strides": [2]}), ("1,3,8,8", "6,3,3,3", {"strides": [0, 1]}),
    ("1,3,8,8", "6,3,3,3", {"pads": [1, 1]}), ("1,3,8,8", "6,3,3,3", {"pads": [-1, 0, 0, 0]}),
    ("1,3,8,8", "6,3,3,3", {"dilations": [1, 0]}), ("1,3,8,8", "M,3,?,3", {}), ("1,3,H,W", "6,3,1,1", {}),
    ("1,3,8,8", "6,3,3,3", {"kernel_shape": [3]}), ("1,3,8,8", "6,3,3,3", {"kernel_shape": [0, 3]}),
]


def convolutions():
    for x, w, attrs in CONVS:
        for version in (1, 11, 22):
            yield case("Conv", version, f"f32[{x}] f32[{w}]", attrs)
        yield case("ConvInteger", 10, f"u8[{x}] u8[{w}]", attrs)
        yield case("QLinearConv", 10, f"u8[{x}] f32[] u8[] u8[{w}] f32[] u8[] f32[] u8[]", attrs)
    yield case("Conv", 11, "f32[1,3,8,8] f32[6,3,3,3] f32[6]")
    yield case("DeformConv", 19, "f32[1,3,8,8] f32[6,3,3,3] f32[1,18,6,6]")
    yield case("DeformConv", 22, "f32[N,3,8,8] f32[6,3,3,3] f32[N,18,8,8] f32[6] f32[N,9,8,8]", {"pads": [1, 1, 1, 1]})
    for x, w, attrs in (
        ("1,3,8,8", "3,6,3,3", {}), ("N,3,8,8", "3,6,3,3", {"strides": [2, 2]}),
        ("1,3,8,8", "3,6,3,3", {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ("1,4,8,8", "4,3,3,3", {"group": 2}), ("1,3,8,8", "3,6,3,3", {"group": 2}), ("1,3,8,8", "3,6,3,3", {"group": 0}),
        ("1,3,8,8", "3,6,3,3", {"output_shape": [16, 16], "strides": [2, 2]}),
        ("1,3,8,8", "3,6,4,4", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("1,3,8,8", "3,6,3,3", {"auto_pad": "VALID", "strides": [2, 2]}),
        ("1,3,8,8", "3,6,3,3", {"dilations": [2, 2]}), ("1,3,H,8", "3,6,3,3", {}), ("1,3,8", "3,6,3", {}),
        ("1,3", "3,6", {}), ("1,3,8,8", "3,6,3", {}), ("1,3,8,8", "3,6,3,3", {"strides": [0, 1]}),
        ("1,3,8,8", "3,6,3,3", {"output_padding": [1]}), ("1,3,8,8", "3,6,3,3", {"output_shape": [16]}),
        ("1,3,8,8", "3,6,3,3", {"pads": [1, 1]}), ("1,3,8,8", "3,?,3,3", {}),
        ("1,3,8,8", "3,6,3,3", {"dilations": [0, 1]}),
    ):
        for version in (1, 11, 22):
            yield case("ConvTranspose", version, f"f32[{x}] f32[{w}]", attrs)


POOLS = [
    ("1,3,8,8", {"kernel_shape": [2, 2]}), ("N,3,8,8", {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("1,3,7,7", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}), ("1,3,8", {"kernel_shape": [2]}),
    ("1,3,8,8", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("1,3,8,8", {"kernel_shape": [3, 3], "auto_pad": "VALID", "strides": [2, 2]}),
    ("1,3,H,8", {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}), ("1,3,H,W", {"kernel_shape": [1, 1]}),
    ("*", {"kernel_shape": [2, 2]}), ("1,3", {"kernel_shape": [2]}), ("1,3,8,8", {"kernel_shape": [2]}),
    ("1,3,8,8", {"kernel_shape": [2, 2], "strides": [2]}), ("1,3,8,8", {"kernel_shape": [2, 2], "pads": [1]}),
    ("1,3,8,8", {"kernel_shape": [2, 0]}), ("1,3,8,8", {"kernel_shape": [2, 2], "strides": [1, 0]}),
    ("1,3,8,8", {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0, 0, 0, -1]}), ("1,3,8,8", {}),
]
CEIL = [
    ("1,3,7,8", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("1,3,2,2", {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}),
    ("1,3,8,8", {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ("1,3,6,7", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("1,3,9,9", {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 2], "ceil_mode": 1}),
]


def pools():
    for op, versions in (("MaxPool", (1, 8, 10, 11, 12, 22)), ("AveragePool", (1, 7, 10, 11, 19, 22)),
                         ("LpPool", (2, 11, 18, 22))):
        for version in versions:
            for x, attrs in POOLS:
                yield case(op, version, f"f32[{x}]", attrs)
            dilated = version >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
            if version >= {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}[op]:
                for x, attrs in CEIL if dilated else CEIL[:-1]:
                    yield case(op, version, f"f32[{x}]", attrs)
    for version in (8, 10, 12, 22):
        yield case("MaxPool", version, "f32[1,3,8,8]", {"kernel_shape": [2, 2]}, 2)
    yield case("MaxPool", 12, "u8[1,3,8,8]", {"kernel_shape": [2, 2]})
    yield case("MaxPool", 11, "u8[1,3,8,8]", {"kernel_shape": [2, 2]})
    for op, versions in (("GlobalAveragePool", (1, 22)), ("GlobalMaxPool", (1, 22)), ("GlobalLpPool", (1, 2, 22))):
        for version in versions:
            for x in ("2,3,4,5", "N,3,H,W", "2,3,4", "2,3", "*"):
                yield case(op, version, f"f32[{x}]")
    for version in (9, 11, 22):
        yield case("MaxUnpool", version, "f32[1,1,2,2] i64[1,1,2,2]", {"kernel_shape": [2, 2], "strides": [2, 2]})
        yield case("MaxUnpool", version, "f32[1,1,2,H] i64[1,1,2,H]", {"kernel_shape": [3, 3], "pads": [1, 1, 0, 0]})
        yield case("MaxUnpool", version, "f32[1,1,2,2] i64[1,1,2,2] i64[4]={1,1,5,5}", {"kernel_shape": [2, 2]})
        yield case("MaxUnpool", version, "f32[1,1,2,2] i64[1,1,2,2] i64[3]", {"kernel_shape": [2, 2]})
        yield case("MaxUnpool", version, "f32[1,1,2,2] i64[1,1,2,2]", {"kernel_shape": [2]})
    for version in (1, 22):
        yield case("MaxRoiPool", version, "f32[1,3,8,8] f32[R,5]", {"pooled_shape": [2, 3]})
        yield case("MaxRoiPool", version, "f32[1,3,8,8] f32[7,5]", {"pooled_shape": [2]})
        yield case("MaxRoiPool", version, "f32[1,3,8,8] f32[7,5]", {"pooled_shape": [2, 0]})
        yield case("MaxRoiPool", version, "f32[1,3,8] f32[7,5]", {"pooled_shape": [2, 2]})
    for version in (10, 16, 22):
        yield case("RoiAlign", version, "f32[1,3,8,8] f32[R,4] i64[R]", {"output_height": 2, "output_width": 3})
        yield case("RoiAlign", version, "f32[1,3,8,8] f32[7,4] i64[?]")
        yield case("RoiAlign", version, "f32[1,3,8,8] f32[7,4] i64[6]")
        yield case("RoiAlign", version, "f32[1,3,8,8] f32[7,5] i64[7]")


def norms():
    c = "f32[3] f32[3] f32[3] f32[3]"
    for version in (7, 9, 14, 15):
        yield case("BatchNormalization", version, f"f32[2,3,4,5] {c}")
        yield case("BatchNormalization", version, f"f32[N,C,4,5] {c}")
        yield case("BatchNormalization", version, "f32[*] f32[C] f32[C] f32[C] f32[C]")
    for version in (9, 14, 15):
        yield case("BatchNormalization", version, "f32[2,3,4,5] f32[4] f32[4] f32[4] f32[4]")
        yield case("BatchNormalization", version, "f32[2,3,4,5] f32[3] f32[3] f32[1,3] f32[3]")
    yield case("BatchNormalization", 1, f"f32[2,3,4,5] {c}", {"consumed_inputs": [0, 0, 0, 1, 1]}, 5)
    yield case("BatchNormalization", 6, f"f32[2,3,4,5] {c}", {}, 5)
    yield case("BatchNormalization", 7, f"f32[2,3,4,5] {c}", {}, 5)
    yield case("BatchNormalization", 9, f"f32[2,3,4,5] {c}", {}, 5)
    for version in (14, 15):
        yield case("BatchNormalization", version, f"f32[2,3,4,5] {c}", {"training_mode": 1}, 3)
        yield case("BatchNormalization", version, f"f32[2,3,4,5] {c}", {}, 3)
        yield case("BatchNormalization", version, f"f32[2,3,4,5] {c}", {"training_mode": 1}, 1)
    yield case("BatchNormalization", 15, "f16[2,3,4] f32[3] f32[3] f64[3] f64[3]", {"training_mode": 1}, 3)
    yield case("BatchNormalization", 14, "f16[2,3,4] f16[3] f16[3] f32[3] f32[3]", {"training_mode": 1}, 3)
    for version in (1, 6, 22):
        for x in ("2,3,4,5", "N,3,4", "*"):
            yield case("InstanceNormalization", version, f"f32[{x}] f32[3] f32[3]")
    for axis in (-1, 1, 0, -3, 3, -4):
        yield case("LayerNormalization", 17, "f32[2,3,N] f32[N]" if axis in (-1, 3, -4) else "f32[2,3,N] f32[3,N]",
                   {"axis": axis}, 3)
        yield case("RMSNormalization", 23, "f32[2,3,N] f32[N]", {"axis": axis})
    yield case("LayerNormalization", 17, "f16[2,3,4] f16[4] f16[4]", {}, 3)
    yield case("LayerNormalization", 17, "bf16[2,3,4] bf16[4] bf16[4]", {"stash_type": 16}, 2)
    yield case("LayerNormalization", 17, "f32[*] f32[4]", {}, 3)
    yield case("RMSNormalization", 23, "f16[2,3,4] f32[4]")
    yield case("GroupNormalization", 21, "f32[2,4,5,5] f32[4] f32[4]", {"num_groups": 2})
    yield case("GroupNormalization", 21, "f32[N,4,H,W] f32[4] f32[4]", {"num_groups": 4})


REDUCES = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
           "ReduceProd", "ReduceSum", "ReduceSumSquare")


def reductions():
    for op in REDUCES:
        for version in (1, 11, 13, 18, 20, 28):
            by_operand = version >= (13 if op == "ReduceSum" else 18)
            for axes, keep in (([1], 1), ([-1], 0), ([0, 2], 0), (None, 1), (None, 0), ([3], 1), ([], 1)):
                if axes == [] and not by_operand:
                    continue
                if version in (11, 20, 28) and axes != [0, 2]:
                    continue
                if by_operand:
                    operand = "" if axes is None else f" i64[{len(axes)}]={{{','.join(map(str, axes))}}}"
                    yield case(op, version, f"f32[2,N,4]{operand}", {"keepdims": keep})
                else:
                    attrs = {"keepdims": keep} | ({} if axes is None else {"axes": axes})
                    yield case(op, version, "f32[2,N,4]", attrs)
    for extra in ({}, {"noop_with_empty_axes": 1}, {"keepdims": 0}, {"keepdims": 0, "noop_with_empty_axes": 1}):
        yield case("ReduceSum", 13, "f32[2,N,4]", extra)
        yield case("ReduceSum", 13, "f32[2,N,4] i64[0]={}", extra)
        yield case("ReduceSum", 13, "f32[2,N,4] i64[1]", extra)
        yield case("ReduceSum", 13, "f32[2,N,4] i64[?]", extra)
        yield case("ReduceMean", 18, "f32[] ", extra)
    yield case("ReduceMax", 20, "bool[2,3]")
    yield case("ReduceMax", 18, "bool[2,3]")
    yield case("ReduceMax", 12, "u8[2,3]")
    for op in ("ArgMax", "ArgMin"):
        for version in (1, 11, 12, 13):
            for axis, keep in ((0, 1), (1, 0), (-1, 1), (3, 1), (-4, 0)):
                yield case(op, version, "f32[2,N,4]", {"axis": axis, "keepdims": keep})
        yield case(op, 13, "f32[*]")
    for op, versions in (("CumSum", (11, 14)), ("CumProd", (26,))):
        for version in versions:
            yield case(op, version, "f32[2,N] i64[]={1}")
            yield case(op, version, "f32[2,N] i64[]")
    for version in (10, 11, 24):
        for operands in ("f32[2,10] i64[1]={3}", "f32[2,N] i64[1]={3}", "f32[2,10] i64[1]", "f32[2,10] i64[1]={11}",
                         "f32[2,10] i64[]={3}", "f32[*] i64[1]={3}"):
            yield case("TopK", version, operands, {}, 2)
        yield case("TopK", version, "f32[2,10] i64[1]={2}", {"axis": 0}, 2)
        yield case("TopK", version, "f32[2,10] i64[1]={2}", {"axis": 2}, 2)
    yield case("TopK", 1, "f32[2,10]", {"k": 3}, 2)
    yield case("TopK", 1, "f32[2,10]", {"k": 3, "axis": -2}, 2)
    yield case("TopK", 1, "f32[2,10]", {"k": 11}, 2)


def losses():
    for version in (12, 13, 22):
        for reduction in ("none", "mean", "sum"):
            attrs = {"reduction": reduction}
            yield case("NegativeLogLikelihoodLoss", version, "f32[N,5] i64[N]", attrs)
            yield case("NegativeLogLikelihoodLoss", version, "f32[2,5,3,4] i64[2,3,4] f32[5]", attrs)
        yield case("NegativeLogLikelihoodLoss", version, "f32[2,5,3] i64[2,4]", {"reduction": "none"})
        yield case("NegativeLogLikelihoodLoss", version, "f32[2,5,3] i64[2]", {"reduction": "none"})
        yield case("NegativeLogLikelihoodLoss", version, "f32[2,5] i64[2] f32[4]", {"reduction": "none"})
        yield case("NegativeLogLikelihoodLoss", version, "f32[2] i64[]")
    for version in (12, 13):
        for reduction in ("none", "mean", "sum"):
            yield case("SoftmaxCrossEntropyLoss", version, "f32[N,5] i64[N]", {"reduction": reduction}, 2)
            yield case("SoftmaxCrossEntropyLoss", version, "f32[2,5,3] i64[2,3] f32[5]", {"reduction": reduction}, 2)


def recurrent():
    for op, gates, versions in (("LSTM", 4, (1, 7, 14, 22)), ("GRU", 3, (1, 3, 7, 14, 22)), ("RNN", 1, (1, 7, 14, 22))):
        n = 3 if op == "LSTM" else 2
        for version in versions:
            for direction, d in (("forward", 1), ("bidirectional", 2)):
                attrs = {"hidden_size": 8, "direction": direction}
                w = f"f32[{d},{gates * 8},4] f32[{d},{gates * 8},8]"
                yield case(op, version, f"f32[T,N,4] {w}", attrs, n)
                yield case(op, version, f"f32[5,2,4] {w} f32[{d},{gates * 16}]", attrs, n)
                if version >= 14:
                    yield case(op, version, f"f32[N,T,4] {w}", attrs | {"layout": 1}, n)
            yield case(op, version, f"f32[5,2] f32[1,{gates * 8},4] f32[1,{gates * 8},8]", {"hidden_size": 8}, n)
            yield case(op, version, f"f32[*] f32[1,{gates * 8},4] f32[1,{gates * 8},8]", {"hidden_size": 8}, n)


def attention():
    for version in (23, 24, 25):
        yield case("Attention", version, "f32[N,8,S,64] f32[N,8,T,64] f32[N,8,T,32]")
        yield case("Attention", version, "f32[2,8,5,64] f32[2,4,7,64] f32[2,4,7,32]")
        yield case("Attention", version, "f32[2,5,512] f32[2,7,256] f32[2,7,128]", {"q_num_heads": 8, "kv_num_heads": 4})
        yield case("Attention", version, "f32[2,5,512] f32[2,7,256] f32[2,7,128]")
        yield case("Attention", version, "f32[2,8,5,64] f32[2,4,7,64] f32[2,4,7,32] _ f32[2,4,3,64] f32[2,4,3,32]", {}, 4)
        yield case("Attention", version, "f32[2,8,5,64] f32[2,4,7,64] f32[2,4,7,32]", {}, 3)
        yield case("Attention", version, "f32[2,8] f32[2,4,7,64] f32[2,4,7,32]")
        yield case("Attention", version, "f32[2,5,512] f32[2,7,256] f32[2,7,128]", {"q_num_heads": -8, "kv_num_heads": 4})
        yield case("Attention", version, "f16[2,8,5,64] f16[2,8,7,64] f16[2,8,7,32] bool[5,7]")
    yield case("RotaryEmbedding", 23, "f32[2,4,3,8] f32[50,4] f32[50,4] i64[2,3]")
    yield case("RotaryEmbedding", 23, "f32[2,3,32] f32[2,3,4] f32[2,3,4]", {"num_heads": 4})
    yield case("RotaryEmbedding", 23, "f32[2,3,32] f32[2,3,4] f32[2,3,4]")
    yield case("RotaryEmbedding", 23, "f32[2,3] f32[2,3,4] f32[2,3,4]")
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    gates = " _ f32[2,3,2] f32[2,3,2]"
    yield case("LinearAttention", 27, "f32[2,3,32] f32[2,3,16] f32[2,3,24]" + gates, heads, 2)
    yield case("LinearAttention", 27, "f32[B,T,32] f32[B,T,16] f32[B,T,24] f32[B,2,8,12] f32[B,T,2] f32[B,T,2]", heads, 2)
    yield case("LinearAttention", 27, "f16[2,3,32] f16[2,3,16] f16[2,3,24] f32[2,2,8,12]", heads | {"update_rule": "linear"}, 2)
    yield case("LinearAttention", 27, "f16[2,3,32] f16[2,3,16] f16[2,3,24]", heads | {"update_rule": "linear"}, 2)
    yield case("LinearAttention", 27, "f32[2,3,32] f32[2,3,16] f32[2,3,24]", {"q_num_heads": 3, "kv_num_heads": 2}, 2)
    yield case("LinearAttention", 27, "f32[2,3,32] f32[2,3,16] f32[2,3,24]", heads | {"update_rule": "cubic"}, 2)
    yield case("CausalConvWithState", 27, "f32[2,3,10] f32[3,1,4]", {}, 2)
    yield case("CausalConvWithState", 27, "f32[B,C,L] f32[3,1,4] f32[3] f32[B,3,3]", {"activation": "silu"}, 2)
    yield case("CausalConvWithState", 27, "f32[2,3,10] f32[3,2,4]", {}, 2)
    yield case("CausalConvWithState", 27, "f32[2,3,10] f32[3,1,4] f32[4]", {}, 2)
    yield case("CausalConvWithState", 27, "f32[2,3,10] f32[3,1,4] _ f32[2,3,4]", {}, 2)
    yield case("CausalConvWithState", 27, "f32[2,3,10] f32[3,1,4]", {"activation": "relu"}, 2)


def images():
    yield case("Upsample", 1, "f32[1,3,4,5]", {"height_scale": 2.0, "width_scale": 2.5})
    yield case("Upsample", 7, "f32[1,3,4,N]", {"scales": [1.0, 1.0, 2.0, 2.5]})
    yield case("Upsample", 7, "f32[1,3,4,5]", {"scales": [1.0, 2.0]})
    for op, version in (("Upsample", 9), ("Resize", 10)):
        yield case(op, version, "f32[1,3,4,5] f32[4]={1,1,2,2.5}")
        yield case(op, version, "f32[1,3,4,N] f32[4]={1,1,2,2.5}")
        yield case(op, version, "f32[1,3,4,5] f32[4]")
        yield case(op, version, "f32[1,3,4,5] f32[3]={1,1,2}")
    for version in (11, 13, 18, 19):
        roi = "f32[0]={}"
        yield case("Resize", version, f"f32[1,3,4,5] {roi} f32[4]={{1,1,2,2.5}}")
        yield case("Resize", version, f"f32[1,3,4,5] {roi} f32[4]={{1,1,0.6,0.3}}")
        yield case("Resize", version, f"f32[1,3,4,N] {roi} f32[0]={{}} i64[4]={{1,3,8,9}}")
        yield case("Resize", version, f"f32[1,3,4,N] {roi} f32[4]")
        yield case("Resize", version, f"f32[*] {roi} f32[4]")
        yield case("Resize", version, f"f32[1,3,4,5] {roi} f32[3]={{1,1,2}}")
        yield case("Resize", version, f"f32[1,3,4,5] {roi} f32[0]={{}} i64[3]={{1,3,8}}")
    for version in (13, 18, 19):
        yield case("Resize", version, "f32[1,3,4,5] _ _ i64[4]={1,3,8,9}")
        yield case("Resize", version, "f32[1,3,4,5] _ f32[4]={1,1,2,2} i64[4]={1,3,8,9}")
        yield case("Resize", version, "f32[1,3,4,5]")
    for version in (18, 19):
        for policy in ("stretch", "not_larger", "not_smaller", "odd"):
            attrs = {"axes": [2, 3], "keep_aspect_ratio_policy": policy}
            yield case("Resize", version, "f32[1,3,4,5] _ _ i64[2]={9,7}", attrs)
            yield case("Resize", version, "f32[1,3,4,N] _ _ i64[2]={9,7}", attrs)
            yield case("Resize", version, "f32[1,3,4,5] _ f32[2]={2,2}", attrs)
        yield case("Resize", version, "f32[1,3,4,5] _ f32[2]={2,3}", {"axes": [3, -2]})
        yield case("Resize", version, "f32[1,3,4,5] _ f32[2]={2,3}", {"axes": [3, 4]})
        yield case("Resize", version, "f32[1,3,4,5] _ f32[2]={2,3}", {"axes": [3, 3]})
        yield case("Resize", version, "f32[1,3,4,5] _ f32[2]={2,3}", {"axes": [3]})
    for version in (16, 20, 22):
        for x, grid in (("N,3,4,5", "N,6,7,2"), ("2,3,4,5,6", "2,7,8,9,3"), ("1,3,4,5", "1,6,7,3"), ("1,3,4,5", "1,6,7"),
                        ("?,3,4,5", "2,6,W,2"), ("2,3,4,5", "3,6,7,2"), ("*", "2,6,7,2"), ("2,3", "2,2")):
            yield case("GridSample", version, f"f32[{x}] f32[{grid}]")
    yield case("AffineGrid", 20, "f32[N,2,3] i64[4]={2,3,5,6}")
    yield case("AffineGrid", 20, "f32[2,3,4] i64[5]={2,3,5,6,7}")
    yield case("AffineGrid", 20, "f32[2,2,3] i64[3]={2,3,5}")
    yield case("AffineGrid", 20, "f32[2,2,3] i64[4]")
    yield case("Col2Im", 18, "f32[1,5,15] i64[2]={5,5} i64[2]={1,5}")
    yield case("Col2Im", 18, "f32[N,?,L] i64[2]={5,5} i64[2]={1,5}", {"pads": [0, 1, 0, 1]})
    yield case("Col2Im", 18, "f32[1,10,L] i64[2] i64[2]={1,5}")
    yield case("Col2Im", 18, "f32[1,10,15] i64[2]={5,5} i64[3]={1,5,1}")
    yield case("Col2Im", 18, "f32[1,10] i64[2]={5,5} i64[2]={1,5}")
    yield case("Col2Im", 18, "f32[1,10,15] i64[2]={5,5} i64[2]={1,0}")
    yield case("Col2Im", 18, "f32[1,10,15] i64[2]={5,5} i64[2]={1,5}", {"strides": [1]})
    yield case("CenterCropPad", 18, "f32[20,N,3] i64[3]={10,9,3}")
    yield case("CenterCropPad", 18, "f32[20,N,3] i64[2]={10,9}", {"axes": [0, -1]})
    yield case("CenterCropPad", 18, "f32[20,N,3] i32[2]={10,9}")
    yield case("CenterCropPad", 18, "f32[20,N,3] i64[2]={10,9}", {"axes": [0, 3]})
    yield case("CenterCropPad", 18, "f32[20,N,3] i64[2]={10,9}", {"axes": [0, -3]})
    for version in (10, 11):
        yield case("NonMaxSuppression", version, "f32[N,B,4] f32[N,C,B] i64[]={3}")
        yield case("NonMaxSuppression", version, "f32[1,6,4] f32[1,2,6]")


def signals():
    for onesided, inverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
        attrs = {"onesided": onesided, "inverse": inverse}
        last = 2 if inverse and onesided else 1
        for version, extra in ((17, ""), (20, "")):
            yield case("DFT", version, f"f32[N,10,{last}]", attrs)
            yield case("DFT", version, f"f32[2,10,{last}] i64[]={{16}}", attrs)
            yield case("DFT", version, f"f32[2,L,{last}]", attrs)
            yield case("DFT", version, f"f32[2,10,{last}] i64[]", attrs)
            yield case("DFT", version, f"f32[2,10,{3 - last}]", attrs)
        yield case("DFT", 17, f"f32[2,10,8,{last}]", attrs | {"axis": 2})
        yield case("DFT", 17, f"f32[2,10,8,{last}]", attrs | {"axis": 3})
        yield case("DFT", 20, f"f32[2,10,8,{last}] _ i64[]={{0}}", attrs)
        yield case("DFT", 20, f"f32[2,10,8,{last}] _ i64[]={{-1}}", attrs)
        yield case("DFT", 20, f"f32[2,10,8,{last}] _ i64[]", attrs)
        yield case("DFT", 20, f"f32[2,10,8,{last}] i64[]={{16}} i64[]", attrs)
    yield case("DFT", 20, "f32[2]")
    for onesided in (0, 1):
        for operands in ("f32[2,100,1] i64[]={10} f32[16]", "f32[N,100,1] i64[]={10} _ i64[]={16}",
                         "f32[N,100] i64[]={10} f32[16] i64[]={16}", "f32[N,100,1] i64[]={10} f32[12] i64[]={16}",
                         "f32[2,L,1] i64[]={10} f32[16]", "f32[2,100,1] i64[] f32[16]", "f32[2,100,1] i64[]={7} f32[16]",
                         "f32[2] i64[]={10} f32[16]", "f32[2,100,1] i64[]={10} f32[4,4]"):
            yield case("STFT", 17, operands, {"onesided": onesided})
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        yield case(op, 17, "i64[]={10}")
        yield case(op, 17, "i32[]={10}", {"output_datatype": 10})
        yield case(op, 17, "i64[]={0}")
        yield case(op, 17, "i64[]")
        yield case(op, 17, "i64[]={-3}")
        yield case(op, 17, "i64[2]={10,10}")
    yield case("MelWeightMatrix", 17, "i64[]={8} i64[]={16} i64[]={8192} f32[]={0} f32[]={4096}")
    yield case("MelWeightMatrix", 17, "i64[] i64[]={16} i64[]={8192} f32[]={0} f32[]={4096}")
    yield case("MelWeightMatrix", 17, "i64[]={8} i64[]={16} i64[]={8192} f32[]={0} f32[]={4096}", {"output_datatype": 11})


def training():
    domain = "ai.onnx.preview.training"
    yield case("Adagrad", 1, "f32[] i64[] f32[2] f32[2] f32[2]", {}, 2, domain)
    yield case("Momentum", 1, "f32[] i64[] f32[2] f32[3,N] f32[2] f32[3,N] f32[2] f32[3,N]",
               {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}, 4, domain)
    yield case("Adam", 1, "f32[] i64[] f32[2] f32[2] f32[2] f32[2]", {}, 3, domain)


FAMILIES = [unary, binary, ints, products, convolutions, pools, norms, reductions, losses, recurrent, attention, images,
            signals, training]
