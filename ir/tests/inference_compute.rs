//! Inference of operators that compute: what onnx's own inference does not say or gets wrong.

#![allow(clippy::unwrap_used, reason = "a test: what cannot be read fails it")]

mod nodes;

use ampc_ir::op::{Lookup, lookup};
use nodes::{NodeText, infer, spell_all};

/// Rows of operator (`domain::name` outside of ai.onnx), opset, operands, attributes, expectation: the results' types, or a part of the error.
fn check(rows: &[(&str, u16, &str, &str, &str)]) {
    let mut problems = String::new();
    for &(op, opset, operands, attrs, expected) in rows {
        let (domain, op) = op.split_once("::").unwrap_or(("", op));
        let Lookup::Found(schema) = lookup(domain, op, opset) else { panic!("{op}-{opset}") };
        let least = schema.n_outputs.0 as usize;
        let refused = expected.starts_with("error");
        let results = if refused { least } else { expected.split(';').count() };
        let node = NodeText { domain, op, opset, operands, attrs, results };
        let found = match infer(node) {
            Ok((module, types)) => spell_all(&module, &types),
            Err(error) => match expected.strip_prefix("error ") {
                Some(part) if error.contains(part) => continue,
                _ => format!("error {error}"),
            },
        };
        if found != expected {
            problems +=
                &format!("{op}-{opset} {operands} {{{attrs}}}\n  expected {expected}\n  found    {found}\n");
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
}

#[test]
fn legacy_broadcasting() {
    check(&[
        ("Add", 1, "f32[2,3,4];f32[3]", "broadcast=i:1;axis=i:1", "f32[2,3,4]"),
        ("Add", 6, "f32[2,3,4];f32[3,4]", "broadcast=i:1", "f32[2,3,4]"),
        ("Add", 6, "f32[2,3,4];f32[1]", "broadcast=i:1", "f32[2,3,4]"),
        ("Add", 6, "f32[2,3,4];f32[]", "broadcast=i:1", "f32[2,3,4]"),
        ("Add", 6, "f32[2,3,4];f32[3]", "broadcast=i:1", "error a run of axes"),
        ("Add", 6, "f32[2,3,4];f32[4,5]", "broadcast=i:1;axis=i:2", "error a run of axes"),
        ("Add", 6, "f32[2,3,4];f32[3]", "broadcast=i:1;axis=i:9223372036854775807", "error attribute `axis`"),
        ("Add", 6, "f32[2,3];f32[3]", "", "error the shape [2, 3]"),
        ("Add", 6, "f32[2,N];f32[M,3]", "", "f32[2,3]"),
        ("Less", 1, "f32[2,3];f32[3]", "broadcast=i:1", "bool[2,3]"),
        ("Less", 7, "f32[2,3];f32[3]", "", "bool[2,3]"),
        ("Max", 6, "f32[2,3];f32[3]", "", "error the shape [2, 3]"),
        ("Max", 8, "f32[2,3];f32[3]", "", "f32[2,3]"),
        ("PRelu", 6, "f32[2,3,4];f32[3]", "", "f32[2,3,4]"),
        ("PRelu", 9, "f32[2,3,4];f32[3,1]", "", "f32[2,3,4]"),
        ("SwiGLU", 28, "f32[2,3];f32[3]", "", "error the shape [2, 3]"),
        ("Add", 14, "f32[2,3];f32[4]", "", "error a shape that broadcasts with [2, 3]"),
    ]);
}

#[test]
fn element_wise() {
    check(&[
        ("Clip", 6, "f32[2,N]", "min=f:0", "f32[2,N]"),
        ("Clip", 13, "f32[2,N];f32[2]", "", "error a scalar"),
        ("Clip", 13, "f32[2,N];_;f32[1]", "", "f32[2,N]"),
        ("Dropout", 7, "f32[2,N]", "", "f32[2,N];f32[2,N]"),
        ("Dropout", 10, "f32[2,N]", "", "f32[2,N];bool[2,N]"),
        ("Dropout", 13, "f32[2,N];f32[3]", "", "error a scalar"),
        ("BitShift", 11, "u8[2];u8[2]", "direction=s:UP", "error LEFT or RIGHT"),
        ("BitShift", 11, "u8[2];u8[2]", "", "error LEFT or RIGHT"),
        ("Where", 16, "bool[N,1];f32[3];f32[]", "", "f32[N,3]"),
        ("Det", 22, "f32[N,3,3]", "", "f32[N]"),
        ("Det", 22, "f32[N,3,4]", "", "error square"),
        ("ImageDecoder", 20, "u8[*]", "pixel_format=s:Grayscale", "u8[?,?,1]"),
    ]);
}

#[test]
fn products() {
    check(&[
        ("MatMul", 13, "f32[B,N,K];f32[K,M]", "", "f32[B,N,M]"),
        ("MatMul", 13, "f32[3];f32[5,3,4]", "", "f32[5,4]"),
        ("MatMul", 13, "f32[2,3];f32[4,5]", "", "error can be multiplied"),
        ("MatMul", 13, "f32[];f32[4]", "", "error rank 1 or more"),
        ("QLinearMatMul", 21, "u8[2,3];f32[];u8[];i8[3,4];f32[];i8[];f32[];u8[]", "", "u8[2,4]"),
        ("Gemm", 13, "f32[N,3];f32[4,3];f32[4]", "transB=i:1", "f32[N,4]"),
        ("Gemm", 13, "f32[2,3];f32[4,5]", "", "error 3 rows"),
        ("Gemm", 13, "f32[2,3];f32[5,4]", "transB=i:1", "error 3 columns"),
        ("Gemm", 13, "f32[2,3];f32[3,4];f32[3]", "", "error the shape of the product"),
        ("Gemm", 6, "f32[2,3];f32[3,4];f32[4]", "", "error the shape of the product"),
        ("Gemm", 6, "f32[2,3];f32[3,4];f32[4]", "broadcast=i:1", "f32[2,4]"),
        ("Gemm", 13, "f32[*];f32[3,4];f32[*]", "", "f32[?,4]"),
        ("Einsum", 12, "f32[2,N];f32[N,4]", "equation=s:ij,jk->ik", "f32[2,4]"),
        ("Einsum", 12, "f32[5,2,3];f32[1,3,4]", "equation=s:...ij,...jk->...ik", "f32[5,2,4]"),
        ("Einsum", 12, "f32[5,2,3];f32[3,4]", "equation=s:...ij,...jk->...ik", "f32[5,2,4]"),
        ("Einsum", 12, "f32[2,3];f32[4,5]", "equation=s:ij,jk->ik", "error one extent per index"),
        ("Einsum", 12, "f32[2,3]", "equation=s:ij->ijk", "error indices of the result"),
        ("Einsum", 12, "f32[2,3]", "equation=s:i1->i", "error terms of letters"),
        ("Einsum", 12, "f32[2,3]", "equation=s:i,j->ij", "error 1 terms"),
        ("Einsum", 12, "f32[2,3]", "", "error an equation"),
        ("Einsum", 12, "f32[2,3]", "equation=s:ijk->i", "error as many axes"),
        ("Einsum", 12, "f32[*];f32[3,4]", "equation=s:ij,jk->ik", "f32[?,4]"),
    ]);
}

#[test]
fn windows() {
    let x = "f32[1,3,8,8];f32[6,3,3,3]";
    check(&[
        ("Conv", 11, x, "group=i:0", "error attribute `group`"),
        ("Conv", 11, x, "group=i:-1", "error attribute `group`"),
        ("Conv", 11, "f32[1,4,8,8];f32[6,4,3,3]", "group=i:2", "error input channels"),
        ("Conv", 11, "f32[1,9,8,8];f32[5,3,3,3]", "group=i:3", "error a divisor of 5"),
        ("Conv", 11, "f32[1,3,8,8];f32[6,3,3,3];f32[5]", "", "error 6 as the number of output channels"),
        ("Conv", 11, x, "kernel_shape=is:2,3", "error the weights, [3, 3], found [2, 3]"),
        ("Conv", 11, x, "auto_pad=s:SAME", "error attribute `auto_pad`"),
        ("Conv", 11, "f32[1,3,2,2];f32[6,3,5,5]", "", "error a window of at most 2"),
        ("Conv", 11, "f32[N,3,H,W];f32[6,3,3,3]", "pads=is:1,1,1,1", "f32[N,6,H,W]"),
        ("Conv", 11, "f32[N,3,H,W];f32[6,3,3,3]", "auto_pad=s:SAME_UPPER", "f32[N,6,H,W]"),
        ("Conv", 11, "f32[N,3,H,W];f32[6,3,3,3]", "auto_pad=s:SAME_UPPER;strides=is:2,1", "f32[N,6,?,W]"),
        ("Conv", 11, x, "auto_pad=s:VALID;pads=is:0,0,0,0", "f32[1,6,6,6]"),
        ("Conv", 11, x, "auto_pad=s:VALID;pads=is:1,1,1,1", "f32[1,6,?,?]"),
        ("Conv", 11, x, "dilations=is:9223372036854775807,1", "error a window of at most 8"),
        ("Conv", 11, x, "pads=is:9223372036854775807,0,9223372036854775807,0", "f32[1,6,?,6]"),
        ("Conv", 11, "f32[*];f32[6,3,3,3]", "", "f32[?,6,?,?]"),
        ("MaxPool", 22, "f32[1,3,2,2]", "kernel_shape=is:1,1;strides=is:2,2;ceil_mode=i:1", "f32[1,3,1,1]"),
        ("MaxPool", 12, "f32[1,3,2,2]", "kernel_shape=is:1,1;strides=is:2,2;ceil_mode=i:1", "f32[1,3,?,?]"),
        (
            "MaxPool",
            12,
            "f32[1,3,7,7]",
            "kernel_shape=is:2,2;strides=is:2,2;ceil_mode=i:1",
            "f32[1,3,4,4];i64[1,3,4,4]",
        ),
        ("AveragePool", 11, "f32[1,3,8,8]", "", "error kernel_shape"),
        ("GlobalAveragePool", 1, "f32[N,C,H,W]", "", "f32[N,C,1,1]"),
        (
            "ConvTranspose",
            11,
            "f32[1,3,8,8];f32[3,6,4,4]",
            "strides=is:2,2;pads=is:1,1,1,1",
            "f32[1,6,16,16]",
        ),
        ("ConvTranspose", 11, "f32[1,3,8,8];f32[4,6,4,4]", "", "error 3 as the number of input channels"),
        ("ConvTranspose", 11, "f32[1,3,8,8];f32[3,6,4,4]", "output_shape=is:5,5", "f32[1,6,5,5]"),
        ("DeformConv", 19, "f32[1,3,8,8];f32[6,3,3,3];f32[1,17,6,6]", "", "error channels of the window"),
        (
            "MaxUnpool",
            11,
            "f32[1,1,2,2];i64[1,1,2,2];i64[4]={1,1,5,5}",
            "kernel_shape=is:2,2",
            "f32[1,1,5,5]",
        ),
        (
            "QLinearConv",
            10,
            "u8[1,3,8,8];f32[];u8[];i8[6,3,3,3];f32[6];i8[6];f32[];u8[];i32[6]",
            "",
            "u8[1,6,6,6]",
        ),
        ("RoiAlign", 16, "f32[1,3,8,8];f32[R,4];i64[R]", "output_height=i:-2", "error output_height"),
    ]);
}

#[test]
fn norms() {
    check(&[
        ("BatchNormalization", 7, "f32[2,3];f32[3];f32[3];f32[3];f32[3]", "", "f32[2,3];f32[3];f32[3]"),
        (
            "BatchNormalization",
            15,
            "f32[2,3];f32[3];f32[3];f32[3];f32[3]",
            "training_mode=i:1",
            "error 3 to 3 results",
        ),
        ("BatchNormalization", 6, "f32[2,3,4];f32[12];f32[12];f32[12];f32[12]", "spatial=i:0", "f32[2,3,4]"),
        ("GroupNormalization", 21, "f32[2,4,5];f32[4];f32[4]", "num_groups=i:3", "error 3 groups"),
        ("GroupNormalization", 21, "f32[2,4,5];f32[4];f32[4]", "", "error num_groups"),
        ("GroupNormalization", 21, "f32[2,4,5];f32[4];f32[4]", "num_groups=i:-1", "error num_groups"),
        ("InstanceNormalization", 6, "f32[2,C];f32[3];f32[3]", "", "f32[2,C]"),
        ("LayerNormalization", 17, "f16[N,3,4];f16[4]", "", "f16[N,3,4];f32[N,3,1];f32[N,3,1]"),
        ("LayerNormalization", 17, "f16[N,3,4];f16[5]", "", "error broadcasts into"),
        ("LayerNormalization", 17, "f16[N,3,4];f16[4]", "stash_type=i:99", "error stash_type"),
        ("LpNormalization", 1, "f32[2]", "p=i:3", "error 1 or 2"),
        ("LRN", 13, "f32[2,3]", "", "error attribute `size`"),
        ("Softmax", 11, "f32[2,3]", "axis=i:2", "error an axis in"),
        ("Softmax", 1, "f32[2,3]", "axis=i:2", "f32[2,3]"),
        ("MeanVarianceNormalization", 13, "f32[2,3,4]", "", "error axes"),
    ]);
}

#[test]
fn reductions() {
    check(&[
        ("ReduceSum", 13, "f32[2,N,4];i64[2]", "keepdims=i:0", "f32[?]"),
        ("ReduceSum", 13, "f32[2,N,4];i64[2]", "", "f32[?,?,?]"),
        ("ReduceSum", 13, "f32[2,N,4];i64[?]", "keepdims=i:0", "f32[*]"),
        ("ReduceSum", 13, "f32[2,N,4];i64[4]", "keepdims=i:0", "error at most 3 axes"),
        ("ReduceMean", 11, "f32[2,N,4]", "axes=is:-9223372036854775808", "error an axis in"),
        ("ArgMax", 13, "f32[2,N]", "axis=i:-1;keepdims=i:0", "i64[2]"),
        ("CumSum", 14, "f32[2,N];i64[]={2}", "", "error an axis in"),
        ("CumSum", 14, "f32[2,N];i32[1]={-1}", "", "f32[2,N]"),
        ("TopK", 11, "f32[2,N];i64[1]={3}", "", "f32[2,3];i64[2,3]"),
        ("TopK", 11, "f32[2,4];i64[1]={5}", "", "error at most 4 elements"),
        ("TopK", 11, "f32[2,4];i64[1]={-5}", "", "error 0 elements or more"),
        ("TopK", 1, "f32[2,4]", "", "error attribute `k`"),
        ("SoftmaxCrossEntropyLoss", 13, "f32[N,5,3];i64[2,3]", "reduction=s:none", "f32[2,3];f32[N,5,3]"),
        ("SoftmaxCrossEntropyLoss", 13, "f32[N,5,3];i64[2,4]", "", "error of the scores"),
        ("SoftmaxCrossEntropyLoss", 13, "f32[N,5];i64[N]", "reduction=s:all", "error none, mean or sum"),
    ]);
}

#[test]
fn recurrent() {
    let x = "f32[T,N,4];f32[1,32,4];f32[1,32,8]";
    check(&[
        ("LSTM", 14, x, "hidden_size=i:8", "f32[T,1,N,8];f32[1,N,8];f32[1,N,8]"),
        ("LSTM", 14, x, "", "f32[T,1,N,8];f32[1,N,8];f32[1,N,8]"),
        ("LSTM", 14, x, "layout=i:1", "f32[T,N,1,8];f32[T,1,8];f32[T,1,8]"),
        ("LSTM", 14, x, "hidden_size=i:9", "error 4 times 9"),
        ("LSTM", 14, x, "hidden_size=i:9223372036854775807", "error 4 times"),
        ("LSTM", 14, x, "hidden_size=i:-8", "error hidden_size"),
        ("LSTM", 14, x, "direction=s:bidirectional", "error 2 as the number of directions"),
        ("LSTM", 14, x, "direction=s:both", "error attribute `direction`"),
        ("LSTM", 14, "f32[T,N,5];f32[1,32,4];f32[1,32,8]", "", "error 5 as the input size"),
        ("LSTM", 14, "f32[T,N,4];f32[1,32,4];f32[1,36,8]", "", "error on axis 1"),
        ("LSTM", 14, "f32[T,N,4];f32[1,32,4];f32[1,32,8];f32[1,32]", "", "error 8 times 8"),
        ("LSTM", 14, "f32[T,2,4];f32[1,32,4];f32[1,32,8];_;i32[3]", "", "error 2 as the batch size"),
        ("GRU", 14, "f32[T,N,4];f32[1,24,4];f32[1,24,8];f32[1,48]", "", "f32[T,1,N,8];f32[1,N,8]"),
        ("GRU", 1, "f32[T,N,4];f32[1,24,4];f32[1,24,8]", "", "f32[T,1,N,8];f32[1,N,8]"),
        ("RNN", 14, "f32[T,N,4];f32[1,8,4];f32[1,8,8]", "", "f32[T,1,N,8];f32[1,N,8]"),
    ]);
}

#[test]
fn attention() {
    let past = "f32[2,8,5,64];f32[2,4,S,64];f32[2,4,S,32];_;f32[2,4,3,64];f32[2,4,3,32]";
    check(&[
        ("Attention", 23, past, "", "f32[2,8,5,32];f32[2,4,?,64];f32[2,4,?,32];f32[2,8,5,?]"),
        ("Attention", 23, "f32[2,8,5,64];f32[2,3,7,64];f32[2,3,7,32]", "", "error a multiple of 3 heads"),
        ("Attention", 23, "f32[2,8,5,64];f32[2,8,7,63];f32[2,8,7,32]", "", "error 64 as the head size"),
        ("Attention", 23, "f32[2,8,5,64];f32[2,7,64];f32[2,8,7,32]", "kv_num_heads=i:8", "error the rank"),
        (
            "Attention",
            23,
            "f32[2,5,H];f32[2,7,256];f32[2,7,128]",
            "q_num_heads=i:8;kv_num_heads=i:4",
            "f32[2,5,256];f32[2,4,7,64];f32[2,4,7,32];f32[2,8,5,7]",
        ),
        (
            "Attention",
            23,
            "f32[2,5,12];f32[2,7,256];f32[2,7,128]",
            "q_num_heads=i:8;kv_num_heads=i:4",
            "error 8 heads",
        ),
        ("RotaryEmbedding", 23, "f32[2,4,3,7];f32[50,3];f32[50,3];i64[2,3]", "", "error an even head size"),
        ("RotaryEmbedding", 23, "f32[2,4,3,8];f32[50,3];f32[50,3];i64[2,3]", "", "error half of what turns"),
        (
            "LinearAttention",
            27,
            "f32[2,3,8];f32[2,3,8];f32[2,3,8]",
            "q_num_heads=i:2;kv_num_heads=i:2",
            "error a decay",
        ),
    ]);
}

#[test]
fn images() {
    check(&[
        ("Resize", 19, "f32[1,3,4,5];_;_;i64[4]={1,3,8,9}", "", "f32[1,3,8,9]"),
        ("Resize", 19, "f32[N,3,H,5];_;f32[4]={1,1,1,2}", "", "f32[N,3,H,10]"),
        ("Resize", 19, "f32[1,3,4,5];_;f32[4]={1,1,-1,2}", "", "error positive factors"),
        // 10 · f32(0.7) is just below 7, and 7 in f32.
        ("Resize", 19, "f32[1,3,10,5];_;f32[4]={1,1,0.7,2}", "", "f32[1,3,?,10]"),
        (
            "Resize",
            19,
            "f32[1,3,4,5];f32[8];f32[4]={1,1,2,2}",
            "coordinate_transformation_mode=s:tf_crop_and_resize",
            "f32[?,?,?,?]",
        ),
        (
            "Resize",
            18,
            "f32[1,3,4,5];_;_;i64[2]={9,7}",
            "axes=is:2,3;keep_aspect_ratio_policy=s:not_larger",
            "f32[1,3,6,7]",
        ),
        ("Upsample", 1, "f32[1,3,4,5]", "height_scale=f:2", "error width_scale"),
        ("GridSample", 22, "f32[N,3,4,5];f32[*]", "", "f32[N,3,?,?]"),
        ("AffineGrid", 20, "f32[N,2,3];i64[5]={1,1,2,3,4}", "", "error as many spatial extents"),
        ("Col2Im", 18, "f32[1,11,15];i64[2]={5,5};i64[2]={1,5}", "", "error a multiple of 5"),
        ("CenterCropPad", 18, "f32[20,N,3];i64[1]={-1}", "axes=is:1", "error a negative number"),
        ("NonMaxSuppression", 11, "f32[1,6,4];f32[1,2,7]", "", "error 6 as the number of boxes"),
    ]);
}

#[test]
fn signals() {
    check(&[
        ("DFT", 20, "f32[2,10,1];i64[]={0}", "", "error a positive number"),
        ("DFT", 20, "f32[2,10,1];_;i64[]={2}", "", "error another axis"),
        ("DFT", 17, "f32[2,10,1]", "onesided=i:1", "f32[2,6,2]"),
        ("STFT", 17, "f32[2,10,1];i64[]={3};f32[16]", "", "error 16 samples"),
        ("STFT", 17, "f32[2,10,1];i64[]={0};f32[4]", "", "error a positive number"),
        ("HannWindow", 17, "i64[]={8}", "output_datatype=i:10", "f16[8]"),
        ("MelWeightMatrix", 17, "i64[];i64[]={16};i64[];f32[];f32[]", "", "f32[9,?]"),
    ]);
}

#[test]
fn preview() {
    let q = "f32[N,8,5,64]";
    check(&[
        (
            "ai.onnx.preview::FlexAttention",
            1,
            "f32[N,8,5,64];f32[N,4,7,64];f32[N,4,7,32]",
            "",
            "f32[N,8,5,32]",
        ),
        (
            "ai.onnx.preview::FlexAttention",
            1,
            "f32[N,8,5,64];f32[N,3,7,64];f32[N,3,7,32]",
            "",
            "error 3 heads",
        ),
        ("ai.onnx.preview::FlexAttention", 1, &format!("{q};{q};f32[N,8,64]"), "", "error rank 4"),
        ("ai.onnx.preview.training::Gradient", 1, "f32[2];f32[3,N];f32[4]", "", "f32[2]"),
        ("ai.onnx.preview.training::Adam", 1, "f32[];i64[];f32[2];f32[2];f32[2]", "", "error multiple of 4"),
        ("ai.onnx.preview.training::Adagrad", 1, "f32[];i64[];f32[2];f32[2];f32[2]", "", "error 2 results"),
    ]);
}

#[test]
fn what_runs_into_an_error_elsewhere() {
    check(&[
        ("Conv", 13, "f32[1,2,5,5];f32[3,2,3,3]", "group=i:0", "error a positive number of groups"),
        ("Conv", 13, "f32[1,4,5,5];f32[3,1,3,3]", "group=i:3", "error 4 input channels in 3 groups"),
        ("Einsum", 13, "f32[2,3];f32[2,3]", "equation=s:ij,jk->iq", "error indices of the result"),
        ("LSTM", 13, "f32[5,2,3];f32[1,16,9];f32[1,16,4]", "hidden_size=i:4", "error 3 as the input size"),
        ("TopK", 13, "f32[2,3];i64[1]={99}", "", "error at most 3 elements"),
        ("Add", 13, "f32[2,3];f32[4]", "", "error broadcasts with"),
        ("MatMul", 13, "f32[2,3];f32[4,3]", "", "error can be multiplied"),
    ]);
}
