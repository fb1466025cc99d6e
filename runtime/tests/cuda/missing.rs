//! The list of operators that the CPU computes and the device does not, in docs/cuda-operators.md.

use ampc_ir::op::OpKind;
use ampc_runtime::cuda::has_kernel;
use ampc_runtime::{Backend, Cpu};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cuda-operators.md");

const HEAD: &str = "# Operators without a kernel for GPUs

The CPU has kernels for the operators of this list, and the CUDA backend has none. A model that needs one of these
operators on a GPU is rejected when it is planned, with exit code 4. Operators that depend only on constants and dims
need no kernel, because the host computes them. If, Loop and Scan need no kernel either.
The list is generated: `AMPC_REGENERATE=1 scripts/cuda-sim missing` writes it.

| operator | reason |
|---|---|
";

/// The reason why there is no kernel.
fn reason(kind: OpKind) -> &'static str {
    use OpKind as K;
    if matches!(
        kind,
        K::Optional
            | K::OptionalGetElement
            | K::OptionalHasElement
            | K::ConcatFromSequence
            | K::SequenceAt
            | K::SequenceConstruct
            | K::SequenceEmpty
            | K::SequenceErase
            | K::SequenceInsert
            | K::SequenceLength
            | K::SplitToSequence
    ) {
        "sequences and optionals are lists on the host"
    } else if matches!(
        kind,
        K::RegexFullMatch
            | K::StringConcat
            | K::StringNormalizer
            | K::StringSplit
            | K::TfIdfVectorizer
            | K::MlLabelEncoder
    ) {
        "it computes with strings, which stay on the host"
    } else if matches!(kind, K::Compress | K::NonZero | K::NonMaxSuppression | K::Unique) {
        "the size of its result depends on data, and a run does not wait for data"
    } else if matches!(
        kind,
        K::BlackmanWindow | K::HammingWindow | K::HannWindow | K::MelWeightMatrix | K::Constant
    ) {
        "its operands are constants in practice, so the host computes it once"
    } else if matches!(
        kind,
        K::ConvInteger
            | K::DequantizeLinear
            | K::DynamicQuantizeLinear
            | K::QLinearConv
            | K::QLinearMatMul
            | K::QuantizeLinear
            | K::ContribDequantizeLinear
            | K::ContribQuantizeLinear
    ) {
        "no kernel yet: quantized models are not mixed-precision models"
    } else if kind == K::Multinomial {
        "no kernel yet: its draws depend on a sum over all classes in a fixed order"
    } else {
        "no kernel yet"
    }
}

fn list() -> String {
    let host = Cpu::new(1);
    let mut text = HEAD.to_owned();
    let missing = OpKind::ALL.iter().copied().filter(|&kind| host.has_kernel(kind) && !has_kernel(kind));
    for kind in missing {
        let domain = kind.domain();
        let name =
            if domain.is_empty() { kind.name().to_owned() } else { format!("{domain}::{}", kind.name()) };
        text += &format!("| {name} | {} |\n", reason(kind));
    }
    text
}

/// Compares the document with the list; returns the number of failures.
pub(crate) fn run(filter: &str) -> usize {
    if !"missing operators".contains(filter) {
        return 0;
    }
    let list = list();
    if std::env::var_os("AMPC_REGENERATE").is_some() {
        std::fs::write(DOCUMENT, &list).unwrap();
    }
    let is_written = std::fs::read_to_string(DOCUMENT).is_ok_and(|text| text == list);
    match is_written {
        true => println!("ok    missing operators: {}", list.lines().count() - HEAD.lines().count()),
        false => {
            println!("FAIL  missing operators: AMPC_REGENERATE=1 writes docs/cuda-operators.md, now\n{list}")
        }
    }
    usize::from(!is_written)
}
