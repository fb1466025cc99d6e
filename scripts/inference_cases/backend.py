"""Cases of onnx's backend test suite with one node: operands as the test feeds them, results as it expects them."""

import numpy as np
import onnx
from generate_inference_cases import NAMES, spell_attr, spell_type
from onnx.backend.test.case.node import collect_testcases

# What is computed, as opposed to moved: the operators whose results' shapes hardly ever depend on data.
OPERATORS = frozenset("""
Abs Acos Acosh Adagrad Adam Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow CausalConvWithState Ceil Celu
CenterCropPad Clip Col2Im Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv Det Div Dropout Einsum
Elu Equal Erf Exp Floor GRU Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax InstanceNormalization IsInf IsNaN LRN LSTM
LayerNormalization LeakyRelu Less LessOrEqual LinearAttention Log LogSoftmax LpNormalization LpPool MatMul
MatMulInteger Max MaxPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Momentum Mul Neg
NegativeLogLikelihoodLoss Not Or PRelu Pow QLinearConv QLinearMatMul RMSNormalization RNN Reciprocal ReduceL1 ReduceL2
ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize RoiAlign
RotaryEmbedding Round STFT Selu Shrink Sigmoid Sign Sin Sinh Softmax SoftmaxCrossEntropyLoss Softplus Softsign Sqrt
Sub Sum SwiGLU Swish Tan Tanh ThresholdedRelu TopK Trilu Upsample Where Xor
""".split())

CONSTANTS = ("i64[", "i32[", "f32[", "bool[", "u8[")


def spell_operand(ty, data):
    """The type, and the elements of a small vector or scalar."""
    text = spell_type(ty)
    array = np.asarray(data)
    if array.ndim > 1 or array.size > 8 or not text.startswith(CONSTANTS):
        return text
    spell = (lambda v: repr(float(v))) if text.startswith("f32") else (lambda v: str(int(v)))
    return f"{text}={{{','.join(spell(v) for v in array.reshape(-1))}}}"


def plain(attr):
    """The value of an attribute that a row can spell, else None."""
    value = onnx.helper.get_attribute_value(attr)
    if isinstance(value, bytes):
        return value.decode()
    if attr.type in (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT):
        return value
    if attr.type in (onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS):
        return list(value)
    return None


def row(test):
    """The fields of a row, None if a row cannot spell the test."""
    [node] = test.model.graph.node
    types = {v.name: v.type for v in [*test.model.graph.input, *test.model.graph.output]}
    if any(not types[n].HasField("tensor_type") for n in [*node.input, *node.output] if n) or "" in node.output:
        return None
    if any(types[n].tensor_type.elem_type not in NAMES for n in [*node.input, *node.output] if n):
        return None
    attrs = {a.name: plain(a) for a in node.attribute}
    if None in attrs.values():
        return None
    data = dict(zip((v.name for v in test.model.graph.input), test.data_sets[0][0]))
    operands = ";".join(spell_operand(types[n], data[n]) if n else "_" for n in node.input)
    [opset] = [o.version for o in test.model.opset_import if o.domain == node.domain]
    spelled = ";".join(spell_attr(k, v) for k, v in attrs.items())
    expected = ";".join(spell_type(types[n]) for n in node.output)
    name = test.name.removeprefix("test_")
    return [name, node.domain, node.op_type, str(opset), operands, spelled, str(len(node.output)), expected]


def rows():
    """The rows of the file, one per distinct node."""
    seen = set()
    for test in collect_testcases(None):
        nodes = test.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in OPERATORS and (fields := row(test)):
            if tuple(fields[1:]) not in seen:
                seen.add(tuple(fields[1:]))
                yield fields
