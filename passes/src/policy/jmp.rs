//! Policies of [jmp](https://github.com/google-deepmind/jmp), the mixed-precision library of JAX: three element
//! types, of parameters, computation and output.
//!
//! The text is read as `jmp.get_policy` reads it: `p=f32,c=f16,o=f32` or with full words; parameters default to
//! f32, the computation to the type of the parameters, and the output to the type of the computation; one type
//! alone is all three. `+` may replace `,`, because commas separate options in pipelines.

use super::{Base, KeepIo, Policy, PolicyError, Wants};
use crate::spelling::formats::float_format;
use crate::spelling::suggest::{did_you_mean, nearest};
use ampc_ir::DType;
use ampc_ir::op::Class;

/// The prefix of the names of these presets.
pub(super) const PREFIX: &str = "jmp:";

/// jmp's names of types; `half` is bf16 on TPUs and f16 everywhere else.
const TYPES: &[&str] =
    &["bf16", "bfloat16", "f16", "float16", "half", "f32", "float32", "full", "f64", "float64"];

#[derive(Clone, Copy)]
struct Types {
    params: DType,
    compute: DType,
    output: DType,
}

/// The policy that a text stands for.
pub(super) fn policy(text: &str) -> Result<Policy, PolicyError> {
    let wrong = |reason| PolicyError::Jmp { found: text.to_owned(), reason };
    let types = read(text).and_then(possible).map_err(wrong)?;
    let Types { params, compute, output } = types;
    let name = format!("{PREFIX}p={params},c={compute},o={output}");
    if compute == DType::F32 {
        return Ok(Policy { name, base: Base::Class(Class::Fixed), ..Policy::default() });
    }
    let keep_io = if output == DType::F32 { KeepIo::All } else { KeepIo::None };
    let master_weights = Some(params == DType::F32);
    let wants = Wants { to: Some(compute), keep_io: Some(keep_io), master_weights };
    Ok(Policy { name, wants, ..Policy::preset("all")? })
}

fn read(text: &str) -> Result<Types, String> {
    if !text.contains('=') {
        let all = dtype(text)?;
        return Ok(Types { params: all, compute: all, output: all });
    }
    let [mut params, mut compute, mut output] = [None; 3];
    for part in text.split([',', '+']) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not a part `params=…`, `compute=…` or `output=…`"))?;
        let place = match key {
            "p" | "params" => &mut params,
            "c" | "compute" => &mut compute,
            "o" | "output" => &mut output,
            _ => {
                let hint = did_you_mean(nearest(key, ["params", "compute", "output"]));
                return Err(format!("`{key}` is none of params, compute and output{hint}"));
            }
        };
        if place.replace(dtype(value)?).is_some() {
            return Err(format!("`{key}` occurs twice: keep one"));
        }
    }
    let params = params.unwrap_or(DType::F32);
    let compute = compute.unwrap_or(params);
    Ok(Types { params, compute, output: output.unwrap_or(compute) })
}

/// The type of a name of jmp, or of any other spelling of a format.
fn dtype(word: &str) -> Result<DType, String> {
    match word {
        "full" => Ok(DType::F32),
        "f64" | "float64" => Ok(DType::F64),
        _ => float_format(word).ok_or_else(|| {
            let hint = did_you_mean(nearest(word, TYPES.iter().copied()));
            format!("`{word}` is not a type: expected one of {}{hint}", TYPES.join(", "))
        }),
    }
}

/// Refuses combinations that ampc does not support.
fn possible(types: Types) -> Result<Types, String> {
    let Types { params, compute, output } = types;
    if [params, compute, output].contains(&DType::F64) {
        return Err("f64 is not supported: only f32 is lowered, and nothing is widened".into());
    }
    if params != DType::F32 && params != compute {
        return Err(format!(
            "parameters in {params} for computations in {compute} would be rounded for nothing; \
             a constant is stored in the type in which it is read: {}",
            ways('p', compute)
        ));
    }
    if output != DType::F32 && output != compute {
        return Err(format!(
            "a result computed in {compute} leaves in {compute}, or in the type that it has in the model: \
             {}",
            ways('o', compute)
        ));
    }
    Ok(types)
}

/// The valid formats of parameters or output.
fn ways(key: char, compute: DType) -> String {
    if compute == DType::F32 { format!("`{key}=f32`") } else { format!("`{key}=f32` or `{key}={compute}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(text: &str) -> (String, Base, Option<DType>, bool) {
        let policy = policy(text).unwrap();
        let keeps = policy.wants.keep_io.as_ref().is_none_or(|k| k.keeps("y"));
        (policy.name, policy.base, policy.wants.to, keeps)
    }

    #[test]
    fn texts_are_read_as_jmp_does() {
        let low = |p, c, o, to, keeps| (format!("jmp:p={p},c={c},o={o}"), Base::Schema, Some(to), keeps);
        assert_eq!(wants("p=f32,c=f16,o=f32"), low("f32", "f16", "f32", DType::F16, true));
        assert_eq!(wants("params=float32,compute=float16,output=float32"), wants("p=f32,c=f16,o=f32"));
        assert_eq!(wants("p=f32+c=f16+o=f32"), wants("p=full,c=half,o=full"));
        assert_eq!(wants("c=f16"), low("f32", "f16", "f16", DType::F16, false));
        assert_eq!(wants("p=bf16"), low("bf16", "bf16", "bf16", DType::BF16, false));
        assert_eq!(wants("p=bf16,o=f32"), low("bf16", "bf16", "f32", DType::BF16, true));
        assert_eq!(wants("half"), wants("p=f16,c=float16,o=half"));
        assert_eq!(wants("c=fp16,o=fp32"), wants("c=f16,o=f32"));
        let full = ("jmp:p=f32,c=f32,o=f32".to_owned(), Base::Class(Class::Fixed), None, true);
        assert_eq!(wants("full"), full);
        assert_eq!(wants("c=f32"), full);
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_a_way_out() {
        let cases = [
            ("p=f16,c=f32", "`p=f32`"),
            ("p=f16,c=bf16,o=f32", "`p=f32` or `p=bf16`"),
            ("c=f16,o=bf16", "`o=f32` or `o=f16`"),
            ("c=f32,o=f16", "`o=f32`"),
            ("float64", "f64 is not supported"),
            ("c=flt16", "`flt16` is not a type: expected one of bf16, bfloat16, f16"),
            ("c=flt16", "did you mean `float16`"),
            ("comput=f16", "did you mean `compute`"),
            ("c=f16,c=f32", "twice"),
            ("c=f16,half", "`half` is not a part"),
            ("", "`` is not a type"),
        ];
        for (text, said) in cases {
            let error = policy(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
