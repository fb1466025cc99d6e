//! Random numbers: Dropout, PhiloxDropout, Bernoulli, RandomUniform, RandomNormal. All backends generate the same
//! words: element `i` uses word `i mod 4` of Philox4x32-10 with counter `i div 4`.

use super::movement::identity;
use super::{Maker, Prepare};
use crate::cuda::elements::{Elements, Source};
use crate::cuda::launch::queue;
use crate::cuda::text::{Elem, FAIL, TO_ODD, f64_text};
use crate::kernel::{Dims, KernelError, Prepared, Result, Site};
use crate::random::key;
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::{DropoutView, PhiloxDropoutView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Bernoulli => bernoulli,
        OpKind::Dropout => dropout,
        OpKind::PhiloxDropout => philox_dropout,
        OpKind::RandomNormal | OpKind::RandomNormalLike => random_normal,
        OpKind::RandomUniform | OpKind::RandomUniformLike => random_uniform,
        _ => return None,
    })
}

/// `philox`: ten rounds of Philox4x32. `word`: one of its words. `uniform`: word `i` of a stream as an f64 in [0, 1).
///
/// `COUNTER` and `WORD` are the counter and the word of element `at` of a loop. In a vector of at least 4 elements
/// they depend on the first element and the position in the vector, so that the compiler sees one counter for 4
/// elements and calls `philox` once for them. No call is in a branch, because a branch would prevent this
/// optimization.
const PHILOX: &str = r"
struct Words { u32 at[4]; };
__device__ __forceinline__ Words philox(u32 a, u32 b, u32 c, u32 d, u32 k, u32 l) {
  #pragma unroll
  for (int round = 0; round < 10; round++) {
    u32 high0 = __umulhi(0xD2511F53u, a), low0 = 0xD2511F53u * a, high1 = __umulhi(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
    a = high1 ^ b ^ k; b = low1; c = high0 ^ d ^ l; d = low0;
    k += 0x9E3779B9u; l += 0xBB67AE85u;
  }
  return Words{{a, b, c, d}};
}
__device__ __forceinline__ u32 word(Words words, u32 i) {
  return i < 2 ? i == 0 ? words.at[0] : words.at[1] : i == 2 ? words.at[2] : words.at[3];
}
__device__ __forceinline__ double uniform(u64 counter, u32 i, u32 k, u32 l) {
  return word(philox((u32)counter, (u32)(counter >> 32), 0, 0, k, l), i) / 4294967296.0;
}
#define COUNTER (V % 4 == 0 ? ((u64)i + k / 4 * 4) / 4 : at / 4)
#define WORD (V % 4 == 0 ? (u32)(k % 4) : (u32)(at % 4))
";

/// The index of the element that the body of a loop computes.
const AT: &str = "    u64 at = (u64)i + k;\n";

/// An f64 converted to its stored form.
fn stored(elem: Elem, number: &str) -> String {
    match elem {
        Elem::F16 | Elem::BF16 => elem.store(&format!("to_odd({number})")),
        _ => elem.store(number),
    }
}

/// The statements of Dropout and PhiloxDropout for an element.
pub(super) struct Dropped {
    /// The operands read as `b0`, `b1`, …: the elements, and operands with one element.
    pub(super) operands: Vec<(usize, Elem)>,
    /// The indices of the results set as `r0`, `r1`.
    pub(super) results: Vec<(usize, Elem)>,
    /// Statements for element `k` of the vector that begins at element `i`.
    pub(super) body: String,
    /// The Philox key, read as `key0` and `key1`, if the node has one. Such a kernel may fail.
    pub(super) key: Option<[u32; 2]>,
}

/// The expected ratio of Dropout, for error messages.
pub(super) const RATIO: &str = "a ratio in [0, 1)";

/// The functions that the statements of [`Dropped`] call, except `fail`.
pub(super) fn functions_of_dropout() -> [&'static str; 2] {
    [PHILOX, TO_ODD]
}

impl Dropped {
    /// The statements of a node; `None` for a node that drops no element.
    ///
    /// # Errors
    /// If there is no kernel for the element types, or the ratio is invalid.
    pub(super) fn read(site: &Site<'_>) -> Result<Option<Dropped>> {
        match site.kind() {
            OpKind::PhiloxDropout => philox_dropped(site).map(Some),
            _ => dropped(site),
        }
    }

    /// The kernel of the statements.
    fn kernel(self, maker: &Maker<'_>) -> Result<Prepared> {
        let dims = maker.site.dims(0)?;
        let source = |&(i, elem): &(usize, Elem)| Source {
            elem,
            dims: if i == 0 { dims.clone() } else { Dims::new() },
        };
        let sources: Vec<Source> = self.operands.iter().map(source).collect();
        let results: Vec<Elem> = self.results.iter().map(|&(_, elem)| elem).collect();
        let operands: Vec<usize> = self.operands.iter().map(|&(i, _)| i).collect();
        let places: Vec<usize> = self.results.iter().map(|&(j, _)| j).collect();
        let (fail, params) = match self.key {
            Some(_) => (FAIL, vec![("u64*", "failure"), ("u64", "name"), ("u64", "key0"), ("u64", "key1")]),
            None => ("", Vec::new()),
        };
        let functions = format!("{}{fail}", functions_of_dropout().concat());
        let elements = Elements {
            functions: &functions,
            dims: &dims,
            sources: &sources,
            results: &results,
            params: &params,
            body: &self.body,
        };
        let kernel = elements.kernel(maker.shared)?;
        let Some(key) = self.key.map(|key| key.map(u64::from)) else {
            return Ok(Prepared::new(move |io| kernel.launch(io, &operands, &places, &[])).in_place(&[0]));
        };
        let message = maker.shared.compiler.expects(RATIO.to_owned());
        let prepared = Prepared::new(move |io| {
            let [failure, name] = queue(io)?.failure(message);
            kernel.launch(io, &operands, &places, &[failure, name, key[0], key[1]])
        });
        Ok(prepared.in_place(&[0]))
    }
}

/// The element type of operand `i`, which must have one element.
fn single(site: &Site<'_>, i: usize) -> Result<Elem> {
    if site.dims(i)?.iter().product::<usize>() != 1 {
        return Err(site.no_kernel());
    }
    Elem::number(site.dtype(i)?).ok_or_else(|| site.no_kernel())
}

fn philox_dropout(maker: &Maker<'_>) -> Result<Prepared> {
    philox_dropped(maker.site)?.kernel(maker)
}

/// PhiloxDropout: drops an element if its word, as a 24-bit number in [0, 1), is below the ratio.
fn philox_dropped(site: &Site<'_>) -> Result<Dropped> {
    let stream = PhiloxDropoutView::read(&site.view)?.stream;
    let elem = Elem::float(site.dtype(0)?).ok_or_else(|| site.no_kernel())?;
    let operands = vec![(0, elem), (1, single(site, 1)?), (2, single(site, 2)?), (3, single(site, 3)?)];
    if operands[1].1 != Elem::U64 || operands[2].1 != Elem::U64 || operands[3].1 != Elem::F32 {
        return Err(site.no_kernel());
    }
    let body = format!(
        "{AT}    r0 = b0;
    Words words = philox((u32)COUNTER, {stream}u, (u32)b2, (u32)(b2 >> 32), (u32)b1, (u32)(b1 >> 32));
    if (b3 != 0.0f) {{
      float x = {}, kept = (float)(word(words, WORD) >> 8) * 5.9604644775390625e-8f >= b3 ? x / (1.0f - b3) : 0.0f;
      r0 = {};
    }}
",
        elem.load("b0"),
        elem.store("kept"),
    );
    Ok(Dropped { operands, results: vec![(0, elem)], body, key: None })
}

fn dropout(maker: &Maker<'_>) -> Result<Prepared> {
    match dropped(maker.site)? {
        Some(dropped) => dropped.kernel(maker),
        None => identity(maker),
    }
}

/// Dropout: scales kept elements by 1 / (1 − ratio). The seed is an argument of the kernel and not in its source.
fn dropped(site: &Site<'_>) -> Result<Option<Dropped>> {
    let view = DropoutView::read(&site.view);
    let mask = if site.wants(1) {
        Some(Elem::number(site.result_dtype(1)?).ok_or_else(|| site.no_kernel())?)
    } else {
        None
    };
    if view.training == Some(false) && mask.is_none() {
        return Ok(None);
    }
    let elem = Elem::number(site.dtype(0)?).filter(|elem| elem.is_float() && site.wants(0));
    let elem = elem.ok_or_else(|| site.no_kernel())?;
    let mut operands = vec![(0, elem)];
    let mut add = |i: usize| -> Result<String> {
        let elem = single(site, i)?;
        let text = elem.load(&format!("b{}", operands.len()));
        operands.push((i, elem));
        Ok(text)
    };
    let number = f64::from(site.view.float("ratio").unwrap_or(0.5));
    let ratio = match view.ratio_operand {
        None => {
            if view.training != Some(false) && !(0.0..1.0).contains(&number) {
                return Err(KernelError::value(RATIO, number));
            }
            f64_text(number)
        }
        Some(i) => format!("(double){}", add(i)?),
    };
    let ratio = match view.training {
        Some(true) => ratio,
        Some(false) => "0.0".into(),
        None => format!("({} ? {ratio} : 0.0)", add(2)?),
    };
    let mut body = format!(
        "{AT}    double ratio = {ratio}; bool kept = true;
    double drawn = uniform(COUNTER, WORD, (u32)key0, (u32)key1);
    r0 = b0;
    if (ratio != 0.0) {{
      if (!(ratio > 0.0 && ratio < 1.0)) fail(failure, name, (i64)floor(ratio));
      kept = drawn >= ratio;
      double x = (double){} * (kept ? 1.0 : 0.0) * (1.0 / (1.0 - ratio));
      r0 = {};
    }}
",
        elem.load("b0"),
        stored(elem, "x"),
    );
    let mut results = vec![(0, elem)];
    if let Some(mask) = mask {
        body += &format!("    r1 = {};\n", mask.store("(kept ? 1.0f : 0.0f)"));
        results.push((1, mask));
    }
    Ok(Some(Dropped { operands, results, body, key: Some(key(site)) }))
}

/// A result of f64 numbers: `number` is the expression for element `at`, from `sources`.
fn generated(maker: &Maker<'_>, sources: &[Source], number: &str) -> Result<Prepared> {
    let (dims, elem) = (maker.site.result_dims(0)?, Elem::number(maker.site.result_dtype(0)?));
    let elem = elem.ok_or_else(|| maker.site.no_kernel())?;
    let functions = format!("{PHILOX}{TO_ODD}");
    let body = format!("{AT}    double x = {number};\n    r0 = {};\n", stored(elem, "x"));
    let params = [("u64", "key0"), ("u64", "key1")];
    let elements = Elements {
        functions: &functions,
        dims: &dims,
        sources,
        results: &[elem],
        params: &params,
        body: &body,
    };
    let kernel = elements.kernel(maker.shared)?;
    let (key, operands) = (key(maker.site).map(u64::from), (0..sources.len()).collect::<Vec<_>>());
    Ok(Prepared::new(move |io| kernel.launch(io, &operands, &[0], &key)))
}

/// 1 if a uniform number is below the probability, else 0.
fn bernoulli(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = maker.number(0)?;
    let sources = [Source { elem, dims: maker.site.dims(0)? }];
    let number =
        format!("uniform(COUNTER, WORD, (u32)key0, (u32)key1) < (double){} ? 1.0 : 0.0", elem.load("b0"));
    generated(maker, &sources, &number)
}

fn attr(maker: &Maker<'_>, name: &str, default: f32) -> f64 {
    f64::from(maker.site.view.float(name).unwrap_or(default))
}

fn random_uniform(maker: &Maker<'_>) -> Result<Prepared> {
    let (low, high) = (attr(maker, "low", 0.0), attr(maker, "high", 1.0));
    let number = format!(
        "uniform(COUNTER, WORD, (u32)key0, (u32)key1) * {} + {}",
        f64_text(high - low),
        f64_text(low)
    );
    generated(maker, &[], &number)
}

/// Normal numbers from pairs of uniform numbers (Box & Muller 1958).
fn random_normal(maker: &Maker<'_>) -> Result<Prepared> {
    let (scale, mean) = (attr(maker, "scale", 1.0), attr(maker, "mean", 0.0));
    let uniform = |i: &str| format!("uniform(COUNTER, {i}, (u32)key0, (u32)key1)");
    let number = format!(
        "sqrt(-2.0 * log1p(-{})) * (at % 2 ? sin({turn}) : cos({turn})) * {} + {}",
        uniform("WORD / 2 * 2"),
        f64_text(scale),
        f64_text(mean),
        turn = format_args!("{} * {}", uniform("WORD / 2 * 2 + 1"), f64_text(std::f64::consts::TAU)),
    );
    generated(maker, &[], &number)
}
