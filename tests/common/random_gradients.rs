//! Random graphs that can be differentiated, from numbers that a strategy of proptest gives.
//!
//! A graph is made of steps over matrices of four by four in f64, so that every step can read every value.
//! Between them, values have other shapes. Products keep numbers around 1, so that differences are accurate.

use std::fmt::Write as _;

/// A step by number and what it reads by number, made to fit.
pub(crate) type Step = (u8, u16, u16);

/// Steps: `A` and `B` are what they read, `V` what they define; more values of their own begin with `V`.
const STEPS: &[&str] = &[
    "V = Tanh(A)",
    "V = Sin(A)",
    "V = Sigmoid(A)",
    "V = Gelu(A)",
    "V = Softplus(A)",
    "V = Mish(A)",
    "V = Erf(A)",
    "V = Atan(A)",
    "V = Softsign(A)",
    "V = Relu(A)",
    "V = LeakyRelu(A) {alpha=0.2}",
    "V = Abs(A)",
    "V = HardSwish(A)",
    "V = Clip(A, %low, %high)",
    "V = PRelu(A, %row)",
    "Va = Tanh(A)\nV = Exp(Va)",
    "Va = Softplus(A)\nVb = Add(Va, %half)\nVc = Log(Vb)\nVd = Sqrt(Vb)\nVe = Reciprocal(Vb)\nV = Sum(Vc, Vd, Ve)",
    "V = Add(A, B)",
    "V = Sub(A, B)",
    "Va = Mul(A, B)\nV = Tanh(Va)",
    "V = Max(A, B)",
    "V = Min(A, B, %row)",
    "V = Mean(A, %row, B)",
    "Va = Softplus(B)\nVb = Add(Va, %half)\nV = Div(A, Vb)",
    "Va = Tanh(A)\nVb = Exp(Va)\nVc = Tanh(B)\nV = Pow(Vb, Vc)",
    "V = Mod(A, %half) {fmod=1}",
    "Va = Greater(A, B)\nV = Where(Va, A, %row)",
    "Va = MatMul(A, B)\nV = Mul(Va, %half)",
    "Va = MatMul(A, %row)\nVb = Unsqueeze(Va, %one)\nV = Add(Vb, B)",
    "V = Gemm(A, B, %row) {transA=1, alpha=0.25, beta=0.5}",
    "V = Gemm(A, B) {transB=1, alpha=0.25}",
    "Va = Einsum(A, B) {equation=\"ij,kj->ki\"}\nV = Mul(Va, %half)",
    "Va = Einsum(A, B) {equation=\"ij,ik->j\"}\nV = Add(Va, A)",
    "V = Transpose(A)",
    "Va = Reshape(A, %flat)\nVb = Softmax(Va)\nV = Reshape(Vb, %square)",
    "V = Softmax(A) {axis=0}",
    "V = LogSoftmax(A)",
    "Va = ReduceMean(A, %one)\nV = Sub(A, Va)",
    "Va = ReduceSum(A, %zero) {keepdims=0}\nV = Add(Va, B)",
    "Va = ReduceLogSumExp(A, %one)\nV = Sub(B, Va)",
    "Va = ReduceMax(A, %zero)\nV = Add(Va, B)",
    "Va = ReduceL2(A, %one)\nV = Add(Va, B)",
    "Va = ReduceSumSquare(A) {keepdims=0}\nVb = Tanh(Va)\nV = Mul(Vb, B)",
    "Va = Tanh(A)\nVb = ReduceProd(Va, %one)\nV = Add(Vb, B)",
    "V = CumSum(A, %axis)",
    "V = CumSum(A, %axis) {reverse=1, exclusive=1}",
    "Va = Gather(A, %picks)\nV = Add(Va, B)",
    "V = Gather(A, %picks) {axis=1}",
    "V = GatherElements(A, %places) {axis=1}",
    "Va = GatherND(A, %pairs)\nV = Mul(Va, B)",
    "V = ScatterElements(A, %swaps, B) {axis=1}",
    "V = ScatterElements(A, %places, B) {axis=0, reduction=\"add\"}",
    "Va = Gather(B, %ends)\nV = ScatterND(A, %rows, Va)",
    "V, Vi = TopK(A, %four)",
    "Va, Vb = Split(A, %uneven) {axis=1}\nV = Concat(Vb, Va) {axis=1}",
    "Va = Slice(A, %back, %past, %one, %minus)\nV = Add(Va, B)",
    "Va = Pad(A, %pads, %number)\nV = Slice(Va, %ends, %behind)",
    "Va = Pad(A, %pads) {mode=\"reflect\"}\nV = Slice(Va, %zeros, %fours)",
    "Va = Slice(A, %zero, %two)\nV = Tile(Va, %twice)",
    "Va = ReduceMean(A, %zero)\nV = Expand(Va, %square)",
    "V = Trilu(A)",
    "Va = Reshape(A, %deep)\nVb = DepthToSpace(Va) {blocksize=2, mode=\"CRD\"}\nV = Reshape(Vb, %square)",
    "V = Dropout(A)",
    "V = LayerNormalization(A, %row, %bias) {epsilon=0.1}",
    "V = RMSNormalization(A, %row) {epsilon=0.1}",
    "Va, Vb, Vc = BatchNormalization(A, %row, %bias, %mean, %var) {training_mode=1, epsilon=0.1}\nV = Identity(Va)",
    "Va = Reshape(A, %deep)\nVb = GroupNormalization(Va, %row, %bias) {num_groups=2, epsilon=0.1}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = Conv(Va, %filter) {pads=[1, 1, 1, 1]}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = Conv(Va, %filter, %number) {pads=[2, 3, 3, 2], strides=[2, 2], dilations=[1, 1]}\nVc = Slice(Vb, %corner, %corners)\nVd = Reshape(Vc, %square3)\nVe = Pad(Vd, %fill)\nV = Add(Ve, B)",
    "Va = Reshape(A, %image)\nVb = ConvTranspose(Va, %filter) {pads=[1, 1, 1, 1]}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = AveragePool(Va) {kernel_shape=[3, 2], pads=[1, 0, 1, 1]}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = MaxPool(Va) {kernel_shape=[2, 3], pads=[1, 1, 0, 1]}\nV = Reshape(Vb, %square)",
    "Va = Reshape(A, %image)\nVb = Resize(Va, _, %scales) {mode=\"linear\"}\nVc = AveragePool(Vb) {kernel_shape=[2, 2], strides=[2, 2]}\nV = Reshape(Vc, %square)",
    "Va = SoftmaxCrossEntropyLoss(A, %labels) {reduction=\"none\"}\nV = Add(Va, B)",
    "Va = Reshape(A, %image)\nVb = Reshape(B, %image)\nVc = Attention(Va, Vb, Va) {is_causal=1}\nV = Reshape(Vc, %square)",
    "V = LpNormalization(A)",
    "Va = Floor(A)\nV = Mul(Va, B)",
    "Va = Transpose(A)\nVb = MatMul(Va, %row)\nVc = Mul(Vb, %half)\nVd = Unsqueeze(Vc, %one)\nV = Add(Vd, B)",
    "Va = Transpose(B)\nVb = MatMul(%row, Va)\nV = Add(A, Vb)",
    "Va = Reshape(A, %deep)\nVb = Transpose(Va) {perm=[0, 1, 3, 2]}\nVc = MatMul(Vb, %number2)\nVd = Reshape(Vc, %tall)\nVe = Gemm(Vd, %wide)\nV = Add(Ve, B)",
    "Va, Vb, Vc = Split(A, %thirds) {axis=1}\nVd = Gemm(Vc, %wide)\nV = Sum(Vd, B)",
    "Va, Vb, Vc = Split(A, %thirds) {axis=0}\nVd = Gemm(Vc, B) {alpha=0.5}\nVe = Concat(Va, Vd, Vb) {axis=0}\nV = Sum(Ve, A)",
    "Va, Vb, Vc = Split(A, %thirds) {axis=1}\nVd = Gemm(B, Vc) {transA=1}\nVe = Concat(Va, Vb, Vd) {axis=1}\nVf = Gemm(Ve, B) {transB=1, alpha=0.25}\nV = Sum(Vf, A)",
    "Va = Transpose(A)\nVb = MatMul(Va, B)\nVc = Transpose(B)\nVd = MatMul(Vb, Vc)\nVe = Mul(Vd, %half)\nV = Tanh(Ve)",
];

const HEAD: &str = "opset ai.onnx=23

graph @main {
  const %x : f64[4, 4] = random(1)
  const %y : f64[4, 4] = random(2)
  const %row : f64[4] = random(3)
  const %bias : f64[4] = random(4)
  const %filter : f64[1, 1, 3, 3] = random(5)
  const %number : f64[1] = [0.25]
  const %number2 : f64[2] = [0.25, -0.5]
  const %wide : f64[2, 4] = random(8)
  const %mean : f64[4] = random(6)
  const %var : f64[4] = random(7)
  const %half : f64 = 0.4375
  const %low : f64 = -0.5
  const %high : f64 = 0.625
  const %axis : i64 = 1
  const %zero : i64[1] = [0]
  const %one : i64[1] = [1]
  const %two : i64[1] = [2]
  const %four : i64[1] = [4]
  const %minus : i64[1] = [-1]
  const %back : i64[1] = [-1]
  const %past : i64[1] = [-100]
  const %flat : i64[2] = [2, 8]
  const %tall : i64[2] = [4, 2]
  const %square : i64[2] = [4, 4]
  const %square3 : i64[2] = [3, 3]
  const %deep : i64[4] = [1, 4, 2, 2]
  const %image : i64[4] = [1, 1, 4, 4]
  const %twice : i64[2] = [2, 1]
  const %zeros : i64[2] = [0, 0]
  const %ends : i64[2] = [1, 2]
  const %behind : i64[2] = [5, 6]
  const %fours : i64[2] = [4, 4]
  const %corner : i64[4] = [0, 0, 0, 0]
  const %corners : i64[4] = [1, 1, 3, 3]
  const %pads : i64[4] = [1, 2, 1, 0]
  const %fill : i64[4] = [1, 0, 0, 1]
  const %uneven : i64[2] = [1, 3]
  const %thirds : i64[3] = [1, 1, 2]
  const %picks : i64[4] = [2, 0, 2, -1]
  const %rows : i64[2, 1] = [3, 0]
  const %pairs : i64[4, 2] = [0, 1, 3, 3, 0, 1, -1, 2]
  const %places : i64[4, 4] = [0, 1, 2, 3, 3, 3, 0, 1, 1, 1, 1, 1, 2, 0, 0, -1]
  const %swaps : i64[4, 4] = [0, 1, 2, 3, 3, 2, 1, 0, 1, 0, 3, 2, 2, 3, 0, 1]
  const %labels : i64[4] = [0, 3, 1, 1]
  const %scales : f32[4] = [1.0, 1.0, 2.0, 2.0]
  role parameter(%x)
  role parameter(%y)
  role parameter(%row)
  role parameter(%bias)
  role parameter(%filter)
  role parameter(%number)
  role parameter(%number2)
  role parameter(%wide)
";

/// The text of a graph of these steps; unread values are its outputs.
pub(crate) fn graph(steps: &[Step]) -> String {
    let mut text = HEAD.to_owned();
    let mut values = vec!["%x".to_owned(), "%y".to_owned()];
    let mut is_read = vec![true; 2];
    for (at, &(kind, a, b)) in steps.iter().enumerate() {
        let mut pick = |i: u16| {
            let i = usize::from(i) % values.len();
            is_read[i] = true;
            values[i].clone()
        };
        // The last one more often: long chains.
        let last = u16::try_from(at + 1).unwrap_or(0);
        let step = STEPS[usize::from(kind) % STEPS.len()];
        let a = pick(if a & 1 == 0 { last } else { a / 2 });
        let b = if step.contains('B') && has_operand(step, 'B') { pick(b) } else { String::new() };
        let name = format!("%v{at}");
        for line in step.lines() {
            let n = line.split(" = ").next().map_or(1, |results| results.split(", ").count());
            let line = spelled(line, &a, &b, &name);
            writeln!(text, "  {line} : {}", vec!["?"; n].join(", ")).expect("strings take text");
        }
        values.push(name);
        is_read.push(false);
    }
    for (value, _) in values.iter().zip(&is_read).filter(|(_, is_read)| !**is_read) {
        writeln!(text, "  output {value}").expect("strings take text");
    }
    text + "}\n"
}

/// True if a capital letter stands alone: as an operand.
fn has_operand(step: &str, letter: char) -> bool {
    spelled(step, "", "\0", "").contains('\0') && letter == 'B'
}

/// A line with values in place of letters.
pub(crate) fn spelled(line: &str, a: &str, b: &str, name: &str) -> String {
    let mut spelled = String::new();
    let mut before = ' ';
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied().unwrap_or(' ');
        let begins = !before.is_alphanumeric() && before != '%' && before != '_';
        let alone = begins && !next.is_alphanumeric();
        match letter {
            'A' if alone => spelled.push_str(a),
            'B' if alone => spelled.push_str(b),
            'V' if begins => spelled.push_str(name),
            _ => spelled.push(letter),
        }
        before = letter;
    }
    spelled
}
