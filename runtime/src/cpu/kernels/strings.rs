//! Text: StringConcat, StringSplit, StringNormalizer, RegexFullMatch, TfIdfVectorizer.

use super::broadcast::Walk;
use super::elements::{Text, count, no_texts, texts, texts_of};
use crate::host::{HostTensor, copies_of_strings, copy_of_string, list_of};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use crate::room::Room;
use ampc_ir::DType;
use ampc_ir::attr::AttrValue;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::RegexFullMatch => regex_full_match,
        OpKind::StringConcat => string_concat,
        OpKind::StringNormalizer => string_normalizer,
        OpKind::StringSplit => string_split,
        OpKind::TfIdfVectorizer => tf_idf,
        _ => return None,
    })
}

fn utf8(text: &[u8]) -> Result<&str> {
    std::str::from_utf8(text).map_err(|e| KernelError::value("strings of UTF-8", e))
}

fn string_concat(site: &Site<'_>) -> Result<Prepared> {
    let dims = site.result_dims(0)?;
    let total = count(&dims)?;
    let walk = Walk::new(&dims, &[&site.dims(0)?, &site.dims(1)?]);
    let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
    Ok(Prepared::new(move |io| {
        let (a, b) = (texts_of(io, 0)?, texts_of(io, 1)?);
        let mut joined = no_texts(io, total)?;
        let (step_a, step_b) = (walk.row_stride(0), walk.row_stride(1));
        let (mut bytes, mut refused) = (0u64, None);
        walk.rows(0, total, |at, n, from| {
            for (i, to) in joined[at..at + n].iter_mut().enumerate() {
                let (a, b) = (&a[from[0] + i * step_a], &b[from[1] + i * step_b]);
                bytes = bytes.saturating_add((a.len() + b.len()) as u64);
                if bytes <= io.max_bytes && refused.is_none() {
                    match joined_of(a, b) {
                        Ok(text) => *to = text,
                        Err(error) => refused = Some(error),
                    }
                }
            }
        });
        io.check_size(bytes)?;
        if let Some(error) = refused {
            return Err(error);
        }
        io.emit(0, HostTensor::from_strings(&dims, joined)?)
    }))
}

/// A string and another behind it.
fn joined_of(a: &[u8], b: &[u8]) -> Result<Text> {
    let mut text = list_of(a.len().saturating_add(b.len()))?;
    text.extend_from_slice(a);
    text.extend_from_slice(b);
    Ok(text.into_boxed_slice())
}

/// Pieces of every string, and how many there are. Without a delimiter runs of white space are one.
fn string_split(site: &Site<'_>) -> Result<Prepared> {
    let delimiter = site.view.string("delimiter").unwrap_or("").to_owned();
    let most = match site.view.int("maxsplit") {
        Some(n) if site.view.attr("maxsplit").is_some() => usize::try_from(n).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let counts_wanted = site.wants(1);
    Ok(Prepared::new(move |io| {
        let tensor = io.tensor(0)?;
        let mut split: Vec<Vec<&str>> = io.room().list(texts(&tensor)?.len())?;
        for text in texts(&tensor)? {
            let text = utf8(text)?;
            split.push(match delimiter.as_str() {
                "" => words(text, most, io.room())?,
                by => io.room().gathered(text.splitn(most.saturating_add(1), by))?,
            });
        }
        let longest = split.iter().map(Vec::len).max().unwrap_or(0);
        let mut pieces = no_texts(io, split.len().saturating_mul(longest))?;
        for (row, split) in pieces.chunks_mut(longest.max(1)).zip(&split) {
            for (to, piece) in row.iter_mut().zip(split) {
                *to = copy_of_string(piece.as_bytes())?;
            }
        }
        let mut dims = tensor.dims().to_vec();
        if counts_wanted {
            let counts = split.iter().map(|s| i64::try_from(s.len()).unwrap_or(i64::MAX));
            let counts = io.room().gathered(counts)?;
            io.emit(1, HostTensor::from_slice(&dims, &counts)?)?;
        }
        dims.push(longest as u64);
        io.emit(0, HostTensor::from_strings(&dims, pieces)?)
    }))
}

/// The words between white space; after `most` cuts the rest of the text, unchanged.
fn words(text: &str, most: usize, room: Room) -> Result<Vec<&str>> {
    // As in Python, the separators of ASCII are white space too.
    let is_space = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        match rest.find(is_space).filter(|_| words.len() < most) {
            Some(end) => {
                room.push(&mut words, &rest[..end])?;
                rest = rest[end..].trim_start_matches(is_space);
            }
            None => {
                room.push(&mut words, rest)?;
                break;
            }
        }
    }
    Ok(words)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    None,
    Lower,
    Upper,
}

/// Strings without stop words, in another case. If nothing is left there is one empty string.
fn string_normalizer(site: &Site<'_>) -> Result<Prepared> {
    let case = match site.view.string("case_change_action").unwrap_or("NONE") {
        "NONE" => Case::None,
        "LOWER" => Case::Lower,
        "UPPER" => Case::Upper,
        other => return Err(OpError::attr("case_change_action", "LOWER, UPPER or NONE", other).into()),
    };
    let sensitive = site.view.int("is_case_sensitive").unwrap_or(0) != 0;
    let compared = move |text: &[u8]| -> Result<Text> {
        Ok(if sensitive { text.into() } else { utf8(text)?.to_lowercase().into_bytes().into() })
    };
    let stops = match site.view.attr("stopwords") {
        Some(AttrValue::Strings(words)) => words.iter().map(|w| compared(w)).collect::<Result<Vec<_>>>()?,
        _ => Vec::new(),
    };
    Ok(Prepared::new(move |io| {
        let tensor = io.tensor(0)?;
        let mut kept: Vec<Text> = io.room().list(texts(&tensor)?.len().max(1))?;
        for text in texts(&tensor)? {
            if !stops.is_empty() && stops.contains(&compared(text)?) {
                continue;
            }
            kept.push(match case {
                Case::None => copy_of_string(text)?,
                Case::Lower => utf8(text)?.to_lowercase().into_bytes().into(),
                Case::Upper => utf8(text)?.to_uppercase().into_bytes().into(),
            });
        }
        if kept.is_empty() {
            kept.push(Text::default());
        }
        let n = kept.len() as u64;
        let dims = if tensor.dims().len() == 2 { vec![1, n] } else { vec![n] };
        io.emit(0, HostTensor::from_strings(&dims, kept)?)
    }))
}

fn regex_full_match(site: &Site<'_>) -> Result<Prepared> {
    let pattern = site.view.string("pattern").ok_or_else(|| OpError::attr("pattern", "a pattern", "none"))?;
    let regex = regex::bytes::Regex::new(&format!(r"\A(?:{pattern})\z"));
    let regex = regex.map_err(|e| OpError::attr("pattern", "a regular expression of RE2", e.to_string()))?;
    Ok(Prepared::new(move |io| {
        let from = texts_of(io, 0)?;
        let to = io.out_bytes(0)?;
        to.iter_mut().zip(from).for_each(|(y, text)| *y = u8::from(regex.is_match(text)));
        Ok(())
    }))
}

/// The n-grams of a TfIdfVectorizer.
struct Grams<K> {
    /// Which n-gram a list of tokens is.
    pool: FxHashMap<Vec<K>, usize>,
    /// The column of the result of each, and its weight.
    columns: Vec<(usize, f32)>,
    /// Least and most tokens.
    lengths: (usize, usize),
    /// Most tokens that are skipped between two.
    skip: usize,
    mode: Mode,
    /// Columns of the result.
    width: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// How often.
    Tf,
    /// The weight, if at all.
    Idf,
    /// The weight times how often.
    TfIdf,
}

fn tf_idf(site: &Site<'_>) -> Result<Prepared> {
    let width = *site.result_dims(0)?.last().ok_or(KernelError::NotYet)?;
    if site.dtype(0)? == DType::String {
        let pool = match site.view.attr("pool_strings") {
            Some(AttrValue::Strings(pool)) => copies_of_strings(pool)?,
            _ => return Err(OpError::attr("pool_strings", "n-grams", "none").into()),
        };
        let grams = Grams::read(site, pool, width)?;
        return Ok(Prepared::new(move |io| grams.count(copies_of_strings(texts_of(io, 0)?)?, io)));
    }
    let pool = site.view.int_list("pool_int64s");
    let pool = pool.ok_or_else(|| OpError::attr("pool_int64s", "n-grams", "none"))?;
    let grams = Grams::read(site, site.room.gathered(pool.iter().copied())?, width)?;
    Ok(Prepared::new(move |io| grams.count(io.room().gathered(io.tensor(0)?.i64s()?)?, io)))
}

impl<K: Hash + Eq + Clone> Grams<K> {
    fn read(site: &Site<'_>, tokens: Vec<K>, width: usize) -> Result<Grams<K>> {
        let number = |name: &str| -> Result<usize> {
            let n = site.view.int(name).ok_or_else(|| OpError::attr(name, "a number", "none"))?;
            Ok(usize::try_from(n).map_err(|_| OpError::attr(name, "0 or more", n.to_string()))?)
        };
        let mode = match site.view.string("mode") {
            Some("TF") => Mode::Tf,
            Some("IDF") => Mode::Idf,
            Some("TFIDF") => Mode::TfIdf,
            other => return Err(OpError::attr("mode", "TF, IDF or TFIDF", other.unwrap_or("none")).into()),
        };
        let indexes = site.view.int_list("ngram_indexes").unwrap_or_default();
        let weights = site.view.float_list("weights");
        let mut columns = site.room.list(indexes.len())?;
        for (i, &index) in indexes.iter().enumerate() {
            let column = usize::try_from(index).ok().filter(|&c| c < width);
            let column =
                column.ok_or_else(|| OpError::attr("ngram_indexes", "columns", index.to_string()))?;
            let weight = weights.map_or(Some(1.0), |w| w.get(i).copied());
            let few = || OpError::attr("weights", format!("{} weights", indexes.len()), i.to_string());
            columns.push((column, weight.ok_or_else(few)?));
        }
        let starts = site.view.int_list("ngram_counts").unwrap_or_default();
        let mut pool = site.room.table(columns.len())?;
        let mut next = 0;
        for (n, &start) in starts.iter().enumerate() {
            let end = starts.get(n + 1).map_or(Some(tokens.len()), |&end| usize::try_from(end).ok());
            let start = usize::try_from(start).ok();
            let part = start.zip(end).and_then(|(start, end)| tokens.get(start..end));
            let part = part.filter(|part| part.len().is_multiple_of(n + 1));
            let part = part.ok_or_else(|| {
                OpError::attr(
                    "ngram_counts",
                    "where in the pool n-grams of each length start",
                    format!("{starts:?}"),
                )
            })?;
            for gram in part.chunks(n + 1) {
                if next >= columns.len() {
                    let expected = "a column for each n-gram of the pool";
                    return Err(OpError::attr("ngram_indexes", expected, columns.len().to_string()).into());
                }
                pool.insert(gram.to_vec(), next);
                next += 1;
            }
        }
        let lengths = (number("min_gram_length")?.max(1), number("max_gram_length")?.min(starts.len()));
        Ok(Grams { pool, columns, lengths, skip: number("max_skip_count")?, mode, width })
    }

    fn count(&self, tokens: Vec<K>, io: &mut Io<'_>) -> Result<()> {
        let rows = match io.tensor(0)?.dims() {
            [rows, _] => usize::try_from(*rows).unwrap_or(usize::MAX),
            _ => 1,
        };
        let to = io.out::<f32>(0)?;
        to.fill(0.0);
        let length = tokens.len() / rows.max(1);
        if length == 0 || self.width == 0 {
            return Ok(());
        }
        for (tokens, to) in tokens.chunks(length).zip(to.chunks_mut(self.width)) {
            self.count_row(tokens, to);
        }
        Ok(())
    }

    fn count_row(&self, tokens: &[K], to: &mut [f32]) {
        let mut gram: Vec<K> = Vec::new();
        for n in self.lengths.0..=self.lengths.1 {
            // Nothing can be skipped between the tokens of one.
            let most = if n == 1 { 0 } else { self.skip.min(tokens.len()) };
            for distance in 1..=most + 1 {
                let reach = distance.saturating_mul(n - 1);
                for first in 0..tokens.len().saturating_sub(reach) {
                    gram.clear();
                    gram.extend((0..n).map(|i| tokens[first + i * distance].clone()));
                    let Some(&found) = self.pool.get(&gram) else { continue };
                    let (column, weight) = self.columns[found];
                    match self.mode {
                        Mode::Tf => to[column] += 1.0,
                        Mode::Idf => to[column] = weight,
                        Mode::TfIdf => to[column] += weight,
                    }
                }
            }
        }
    }
}
