//! Checks every field of a file that the schema knows once, used or not: its encoding, the lengths of its
//! parts, and that its text is UTF-8. Malformed messages are found before the model is built, so that copying
//! or decoding a message later cannot fail.
//!
//! Weights and unknown fields are skipped. Messages inside messages wait on a stack of bounded depth; long
//! texts and packed lists are checked in pieces, so memory is bounded for any file, and the time is that of
//! reading everything except the weights once.

use super::schema::{Kind, Message, Row};
use super::wire::{Field, Fields, Payload, Reader, Span, WireError, WireErrorKind};

/// The largest nesting depth of messages: more than the bodies of the deepest accepted model, which have three
/// messages each.
pub(crate) const MAX_DEPTH: usize = 1024;
/// The largest nesting depth of types; their decoder stops at 100.
pub(crate) const MAX_TYPE_DEPTH: usize = 90;
/// Long texts and lists are checked in pieces of this size.
const PIECE: u64 = 64 << 10;

/// A message that is being walked.
struct Frame {
    message: Message,
    body: Span,
    fields: Fields,
    /// The field of the message around it that holds this one, and where that starts.
    holder: Option<(&'static Row, u64)>,
    /// The number of messages of types around it.
    types: usize,
}

/// Walks all of a file as a model.
///
/// # Errors
/// If a field contradicts the schema, or the bytes are not messages.
pub(crate) fn check(reader: &mut Reader<'_>) -> Result<(), WireError> {
    check_message(reader, Message::Model)
}

fn check_message(reader: &mut Reader<'_>, message: Message) -> Result<(), WireError> {
    let all = reader.all();
    let mut stack = vec![Frame { message, body: all, fields: Fields::of(all), holder: None, types: 0 }];
    while let Some(frame) = stack.last_mut() {
        match step(reader, frame) {
            Ok(Step::Done) => drop(stack.pop()),
            Ok(Step::Over) => {}
            Ok(Step::Into(inner)) => {
                let types = inner.types;
                stack.push(inner);
                if stack.len() > MAX_DEPTH || types > MAX_TYPE_DEPTH {
                    let limit = if types > MAX_TYPE_DEPTH { MAX_TYPE_DEPTH } else { MAX_DEPTH };
                    let at = stack.last().map_or(0, |f| f.body.offset);
                    let error = WireError::new(at, WireErrorKind::TooDeep { limit });
                    return Err(error);
                }
            }
            Err(error) => return Err(located(reader, &stack, error)),
        }
    }
    Ok(())
}

enum Step {
    /// The message is at its end.
    Done,
    /// A field has been checked.
    Over,
    /// A field is a message.
    Into(Frame),
}

fn step(reader: &mut Reader<'_>, frame: &mut Frame) -> Result<Step, WireError> {
    let Some(field) = frame.fields.next(reader)? else { return Ok(Step::Done) };
    let Some(row) = frame.message.row(field.number) else { return Ok(Step::Over) };
    if let Kind::Message(message) = row.kind {
        let body = field.bytes(row.name)?;
        let types = if message == Message::Type { frame.types + 2 } else { frame.types };
        let holder = Some((row, field.start));
        return Ok(Step::Into(Frame { message, body, fields: Fields::of(body), holder, types }));
    }
    check_field(reader, &field, row)?;
    Ok(Step::Over)
}

/// A field that is not a message.
fn check_field(reader: &mut Reader<'_>, field: &Field, row: &Row) -> Result<(), WireError> {
    match (row.kind, field.payload) {
        (Kind::Int, Payload::Varint(_))
        | (Kind::Float, Payload::Fixed32(_))
        | (Kind::Double, Payload::Fixed64(_))
        | (Kind::Bytes | Kind::Message(_), Payload::Bytes(_)) => Ok(()),
        (Kind::Text, Payload::Bytes(span)) => check_text(reader, span).map_err(|e| e.within(row.name, None)),
        (Kind::Int, Payload::Bytes(span)) if row.repeated => {
            check_varints(reader, span).map_err(|e| e.within(row.name, None))
        }
        (Kind::Float, Payload::Bytes(span)) if row.repeated => whole(span, 4, row.name),
        (Kind::Double, Payload::Bytes(span)) if row.repeated => whole(span, 8, row.name),
        (Kind::Int, Payload::Bytes(_) | Payload::Fixed32(_) | Payload::Fixed64(_)) => {
            Err(field.wrong("varint", row.name))
        }
        (Kind::Float, Payload::Bytes(_) | Payload::Varint(_) | Payload::Fixed64(_)) => {
            Err(field.wrong("32-bit", row.name))
        }
        (Kind::Double, Payload::Bytes(_) | Payload::Varint(_) | Payload::Fixed32(_)) => {
            Err(field.wrong("64-bit", row.name))
        }
        (
            Kind::Text | Kind::Bytes | Kind::Message(_),
            Payload::Varint(_) | Payload::Fixed32(_) | Payload::Fixed64(_),
        ) => Err(field.wrong("length-delimited", row.name)),
    }
}

/// A packed list of elements of `size` bytes.
fn whole(span: Span, size: u64, name: &'static str) -> Result<(), WireError> {
    if span.len.is_multiple_of(size) {
        return Ok(());
    }
    Err(WireError::new(span.end(), WireErrorKind::Truncated).within(name, None))
}

/// Calls `look` with the pieces of a span; it returns how many bytes at the end of a piece belong to the next one.
fn in_pieces(
    reader: &mut Reader<'_>,
    span: Span,
    mut look: impl FnMut(&[u8], u64, bool) -> Result<u64, WireError>,
) -> Result<(), WireError> {
    let mut at = span.offset;
    while at < span.end() {
        let len = (span.end() - at).min(PIECE);
        let last = at + len == span.end();
        let left = look(reader.bytes(Span { offset: at, len })?, at, last)?;
        at += len - left;
    }
    Ok(())
}

fn check_text(reader: &mut Reader<'_>, span: Span) -> Result<(), WireError> {
    in_pieces(reader, span, |piece, at, last| {
        let Err(error) = std::str::from_utf8(piece) else { return Ok(0) };
        let good = error.valid_up_to();
        if error.error_len().is_none() && !last {
            return Ok((piece.len() - good) as u64);
        }
        let shown = &piece[good.saturating_sub(32)..piece.len().min(good + 32)];
        let text = String::from_utf8_lossy(shown).into_owned();
        Err(WireError::new(at + good as u64, WireErrorKind::Utf8 { text }))
    })
}

/// A packed list of varints: none has more than ten bytes or 64 bits, and the last one ends.
fn check_varints(reader: &mut Reader<'_>, span: Span) -> Result<(), WireError> {
    let mut before = 0u32;
    in_pieces(reader, span, |piece, at, last| {
        for (i, &byte) in piece.iter().enumerate() {
            let fail = |kind| Err(WireError::new(at + i as u64, kind));
            if before == 9 && byte > 1 {
                return fail(WireErrorKind::VarintTooLong);
            }
            before = if byte < 0x80 { 0 } else { before + 1 };
        }
        if last && before > 0 {
            return Err(WireError::new(at + piece.len() as u64, WireErrorKind::Truncated));
        }
        Ok(0)
    })
}

/// The error with the messages around it: names of fields, and indices in lists.
fn located(reader: &mut Reader<'_>, stack: &[Frame], mut error: WireError) -> WireError {
    for pair in stack.windows(2).rev() {
        let [around, inner] = pair else { continue };
        let Some((row, start)) = inner.holder else { continue };
        let index = row.repeated.then(|| index_of(reader, around.body, row.number, start)).flatten();
        error = error.within(row.name, index);
    }
    error
}

/// The number of fields with a number before the field that starts at `start`; the message was walked before,
/// so walking it again succeeds.
fn index_of(reader: &mut Reader<'_>, body: Span, number: u32, start: u64) -> Option<usize> {
    let mut fields = Fields::of(body);
    let mut index = 0;
    while let Some(field) = fields.next(reader).ok()? {
        if field.start >= start {
            return Some(index);
        }
        index += usize::from(field.number == number);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::SourceBytes;
    use crate::onnx::schema::tests::MESSAGES;
    use crate::onnx::{Blame, ImportError, ReadOptions, read_bytes};

    const MLP: &[u8] = include_bytes!("../../testdata/mlp.onnx");

    /// The fields that lead from a model to a message.
    fn path_to(target: Message) -> Vec<&'static Row> {
        let mut reached = vec![(Message::Model, Vec::new())];
        let mut next = 0;
        loop {
            let (message, path) = reached[next].clone();
            if message == target {
                return path;
            }
            for row in message.rows() {
                if let Kind::Message(inner) = row.kind
                    && reached.iter().all(|(known, _)| *known != inner)
                {
                    reached.push((inner, [path.clone(), vec![row]].concat()));
                }
            }
            next += 1;
        }
    }

    fn tagged(number: u32, wire_type: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |mut v: u64| {
            while v >= 0x80 {
                bytes.push(v.to_le_bytes()[0] | 0x80);
                v >>= 7;
            }
            bytes.push(v.to_le_bytes()[0]);
        };
        push(u64::from(number << 3 | wire_type));
        if wire_type == 2 {
            push(content.len() as u64);
        }
        bytes.extend_from_slice(content);
        bytes
    }

    /// Invalid contents of a field: the defect, and the field.
    fn corruptions(row: &Row) -> Vec<(&'static str, Vec<u8>)> {
        let n = row.number;
        let short = |wire_type, content: &[u8]| tagged(n, wire_type, content);
        let past_end = [&tagged(n, 2, b"")[..tagged(n, 2, b"").len() - 1], &[9, 1]].concat();
        let mut list = match row.kind {
            Kind::Int => vec![("fixed", short(5, &[0; 4])), ("cut", short(0, &[0x80]))],
            Kind::Float => vec![("varint", short(0, &[1])), ("cut", short(5, &[0; 3]))],
            Kind::Double => vec![("varint", short(0, &[1])), ("cut", short(1, &[0; 7]))],
            Kind::Text => {
                vec![("utf8", short(2, &[b'a', 0xff])), ("varint", short(0, &[1])), ("cut", past_end)]
            }
            Kind::Bytes | Kind::Message(_) => vec![("varint", short(0, &[1])), ("cut", past_end)],
        };
        match (row.kind, row.repeated) {
            (Kind::Int, true) => list.push(("packed", short(2, &[1, 0x80]))),
            (Kind::Float | Kind::Double, true) => list.push(("packed", short(2, &[0; 7]))),
            (Kind::Int | Kind::Float | Kind::Double, false) => list.push(("bytes", short(2, &[0; 8]))),
            (Kind::Text | Kind::Bytes | Kind::Message(_), _) => {}
        }
        list
    }

    #[test]
    fn every_field_that_onnx_has_is_walked_used_or_not() {
        let mut n = 0;
        for (name, message) in MESSAGES {
            let path = path_to(*message);
            for row in message.rows() {
                for (what, field) in corruptions(row) {
                    let wrapped = path.iter().rev().fold(field, |inner, row| tagged(row.number, 2, &inner));
                    let case = format!("{name}.{}: {what}", row.name);
                    let read = read_bytes("m.onnx", [MLP, &wrapped].concat(), &ReadOptions::default());
                    let Err(error @ ImportError::Wire { .. }) = read else { panic!("{case}: {read:?}") };
                    assert_eq!(error.blame(), Blame::Input, "{case}");
                    let text = error.to_string();
                    let around = path.last().map_or("", |row| row.name);
                    assert!(text.contains(around), "{case}: {text}");
                    assert!(what == "cut" || text.contains(row.name), "{case}: {text}");
                    n += 1;
                }
            }
        }
        assert!(n > 280, "{n}");
    }

    fn checked(bytes: &[u8]) -> Result<(), WireError> {
        check(&mut Reader::new(&SourceBytes::from_memory("test", bytes)))
    }

    #[test]
    fn what_the_schema_does_not_know_is_let_through() {
        checked(&tagged(4000, 2, &[0xff; 3])).unwrap();
        checked(&tagged(7, 2, &tagged(99, 0, &[1]))).unwrap();
        checked(MLP).unwrap();
    }

    #[test]
    fn the_place_has_the_index_of_each_message() {
        let bad = tagged(1, 2, &tagged(5, 2, &tagged(13, 2, &[0xff])));
        let graph = [tagged(1, 2, b""), tagged(2, 2, b"g"), bad].concat();
        let error = checked(&tagged(7, 2, &graph)).unwrap_err().to_string();
        assert!(error.ends_with("in `graph.node[1].attribute[0].doc_string`)"), "{error}");
    }

    #[test]
    fn a_text_is_looked_at_in_pieces() {
        let text = "aü€😀".repeat(50_000);
        checked(&tagged(6, 2, text.as_bytes())).unwrap();
        let cut = &text.as_bytes()[..text.len() - 1];
        assert!(checked(&tagged(6, 2, cut)).is_err());
        let piece = usize::try_from(PIECE).unwrap();
        for at in [0, piece - 1, piece, piece + 1, text.len() - 1] {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = 0xff;
            assert!(checked(&tagged(6, 2, &bytes)).is_err(), "{at}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |fields: &[u32], n: usize| {
            let mut bytes = Vec::new();
            for i in (0..n).rev() {
                bytes = tagged(fields[i % fields.len()], 2, &bytes);
            }
            bytes
        };
        // The graph, then three messages for each body.
        let bodies = |n| tagged(7, 2, &nested(&[1, 5, 6], n));
        checked(&bodies(1000)).unwrap();
        assert!(checked(&bodies(1100)).unwrap_err().to_string().contains("nested more than 1024"));
        let types = |n| tagged(7, 2, &tagged(13, 2, &tagged(2, 2, &nested(&[4, 1], n))));
        checked(&types(80)).unwrap();
        assert!(checked(&types(120)).unwrap_err().to_string().contains("nested more than 90"));
    }
}
