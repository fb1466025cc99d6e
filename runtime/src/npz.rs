//! Named tensors in NumPy's `.npz` archives: a zip file with one `.npy` array per name.
//!
//! NumPy has no bf16 and no 8-bit floats. A tensor `x` of such a type is the entry `x__bf16` (`x__float8e5m2`, …),
//! with its bits as unsigned integers; reading reverses that. Written archives are uncompressed, as `numpy.savez`
//! writes them, and have no timestamps: equal tensors give equal bytes.

use crate::host::HostTensor;
use crate::npy::{self, NpyError};
use ampc_ir::DType;
use std::collections::BTreeSet;
use std::io::{self, Read, Seek, Write};
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Error of reading or writing an archive.
#[derive(Debug, thiserror::Error)]
pub enum NpzError {
    /// Reading or writing failed.
    #[error("the npz archive cannot be read or written: {0}")]
    Archive(io::Error),
    /// The file is not a zip archive, or is truncated.
    #[error("the file is empty, truncated or not an .npz file")]
    NoArchive,
    /// The archive has an unsupported entry.
    #[error("the npz archive has an unsupported entry: {what}")]
    Unsupported {
        /// The entry found.
        what: String,
    },
    /// An entry of the archive is not an array.
    #[error("entry `{name}` of the npz archive is not an `.npy` array")]
    NotAnArray {
        /// The name of the entry.
        name: String,
    },
    /// Two entries of the archive have the same name.
    #[error("the npz archive has two entries `{name}`: expected one of each name")]
    Twice {
        /// The name, including the extension.
        name: String,
    },
    /// An array cannot be read or written.
    #[error("array `{name}`: {source}")]
    Array {
        /// The name of the array.
        name: String,
        /// The cause.
        source: NpyError,
    },
}

/// An open archive. Its entries are known, and are read separately.
pub struct Archive<R: Read + Seek> {
    zip: ZipArchive<R>,
    names: Vec<String>,
    /// The bytes of the file.
    len: u64,
}

/// The maximum compression ratio of deflate: 2 bits can encode 258 bytes.
const MOST_PER_BYTE: u64 = 4 * 258;

impl<R: Read + Seek> Archive<R> {
    /// Reads the directory of an archive, but no array.
    ///
    /// # Errors
    /// If the file is not an archive, or has entries that are not arrays.
    pub fn open(reader: R) -> Result<Archive<R>, NpzError> {
        let mut reader = reader;
        let start = ZipArchive::new(&mut reader).map_err(archive_error)?.central_directory_start();
        refuse_twice(&mut reader, start)?;
        let len = reader.seek(io::SeekFrom::End(0)).map_err(NpzError::Archive)?;
        let mut zip = ZipArchive::new(reader).map_err(archive_error)?;
        let mut names = Vec::with_capacity(zip.len());
        let mut known = BTreeSet::new();
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).map_err(archive_error)?;
            let file = entry.name().map_err(archive_error)?.into_owned();
            // Names in two encodings may be the same text.
            if !known.insert(file.clone()) {
                return Err(NpzError::Twice { name: file });
            }
            match file.strip_suffix(".npy") {
                Some(name) => names.push(name.to_owned()),
                None => return Err(NpzError::NotAnArray { name: file }),
            }
        }
        Ok(Archive { zip, names, len })
    }

    /// The names of the entries in order, including the suffix for a type that NumPy lacks.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Reads the header of entry `index`: the stored element type and dims.
    ///
    /// # Errors
    /// If the header cannot be read, or has an unsupported element type.
    pub fn header(&mut self, index: usize) -> Result<(DType, Vec<u64>), NpzError> {
        let entry = self.zip.by_index(index).map_err(archive_error)?;
        npy::header(entry).map_err(|source| array_error(&self.names[index], source))
    }

    /// Reads the tensor of entry `index` as stored, if it takes at most `most` bytes: see [`restored`].
    ///
    /// # Errors
    /// If the tensor exceeds the limit, or cannot be read.
    pub fn read(&mut self, index: usize, most: u64) -> Result<HostTensor, NpzError> {
        let entry = self.zip.by_index(index).map_err(archive_error)?;
        // The archive's sizes are only claims. The bytes of the file bound them.
        let there = self.len.saturating_sub(entry.data_start().unwrap_or(0)).min(entry.compressed_size());
        let bound = match entry.compression() {
            CompressionMethod::Stored => there,
            _ => there.saturating_mul(MOST_PER_BYTE),
        };
        let stored = entry.size().min(bound);
        npy::read(entry, stored, most).map_err(|source| array_error(&self.names[index], source))
    }
}

/// The error of an array. An entry that ends early means a damaged archive.
fn array_error(name: &str, source: NpyError) -> NpzError {
    match source {
        NpyError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => NpzError::NoArchive,
        source => NpzError::Array { name: name.to_owned(), source },
    }
}

/// Rejects a directory with duplicate names, of which zip readers use the last. An entry may have a second name, its
/// Unicode path, which only some readers use, so neither may equal a name of another entry.
fn refuse_twice(reader: &mut (impl Read + Seek), start: u64) -> Result<(), NpzError> {
    const MARK: [u8; 4] = *b"PK\x01\x02";
    reader.seek(io::SeekFrom::Start(start)).map_err(NpzError::Archive)?;
    let mut reader = io::BufReader::new(reader);
    let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut entry = [0; 46];
    // The directory ends at the first bytes that are no entry; its completeness was checked before.
    while reader.read_exact(&mut entry).is_ok() && entry.starts_with(&MARK) {
        let length = |at: usize| u64::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
        let mut name = Vec::new();
        reader.by_ref().take(length(28)).read_to_end(&mut name).map_err(NpzError::Archive)?;
        let mut extra = Vec::new();
        reader.by_ref().take(length(30)).read_to_end(&mut extra).map_err(NpzError::Archive)?;
        io::copy(&mut reader.by_ref().take(length(32)), &mut io::sink()).map_err(NpzError::Archive)?;
        let own: BTreeSet<Vec<u8>> = unicode_paths(&extra).map(<[u8]>::to_vec).chain([name]).collect();
        if let Some(name) = own.intersection(&names).next() {
            return Err(NpzError::Twice { name: String::from_utf8_lossy(name).into_owned() });
        }
        names.extend(own);
    }
    Ok(())
}

/// The Unicode paths among the extra fields of an entry, each after a version and the checksum of the other name.
fn unicode_paths(mut extra: &[u8]) -> impl Iterator<Item = &[u8]> {
    const UNICODE_PATH: u16 = 0x7075;
    let fields = std::iter::from_fn(move || {
        let (head, rest) = extra.split_first_chunk::<4>()?;
        let [id, len] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
        let (field, rest) = rest.split_at_checked(usize::from(len))?;
        extra = rest;
        Some((id, field))
    });
    fields.filter(|(id, _)| *id == UNICODE_PATH).filter_map(|(_, field)| field.get(5..))
}

fn archive_error(error: ZipError) -> NpzError {
    match error {
        ZipError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => NpzError::Archive(error),
        ZipError::Io(_) | ZipError::InvalidArchive(_) | ZipError::FileNotFound => NpzError::NoArchive,
        other => NpzError::Unsupported { what: other.to_string() },
    }
}

/// Keeps the kind of the error, which identifies a full disk.
impl From<NpzError> for io::Error {
    fn from(error: NpzError) -> io::Error {
        match error {
            NpzError::Archive(error) | NpzError::Array { source: NpyError::Io(error), .. } => error,
            other => io::Error::other(other),
        }
    }
}

/// The name of an entry without the type suffix; `entry` itself if it has none.
pub fn plain_name(entry: &str) -> &str {
    told(entry).map_or(entry, |(plain, _)| plain)
}

fn told(entry: &str) -> Option<(&str, DType)> {
    let (plain, told) = entry.rsplit_once("__")?;
    let dtype = told.parse().ok()?;
    stored_as(dtype).map(|_| (plain, dtype))
}

/// Writes an archive of named tensors.
///
/// # Errors
/// If writing fails, two tensors have the same name, or NumPy cannot represent a tensor (see [`npy::write`]).
pub fn write<'a>(
    writer: impl Write + Seek,
    tensors: impl IntoIterator<Item = (&'a str, &'a HostTensor)>,
) -> Result<(), NpzError> {
    let mut writer = Patient { writer, error: None };
    let mut archive = ZipWriter::new(&mut writer);
    let written = write_entries(&mut archive, tensors);
    let finished = written.and_then(|()| archive.finish().map(drop).map_err(archive_error));
    match writer.error {
        Some(error) => Err(NpzError::Archive(error)),
        None => finished,
    }
}

/// Defers the first error of a writer: a zip writer that meets an error tries to finish the archive when it is
/// dropped, and prints to standard error when that fails.
struct Patient<W> {
    writer: W,
    error: Option<io::Error>,
}

impl<W: Write> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_none() {
            self.error = self.writer.write_all(bytes).err();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.error.is_none() {
            self.error = self.writer.flush().err();
        }
        Ok(())
    }
}

impl<W: Seek> Seek for Patient<W> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.writer.seek(to)
    }
}

/// The maximum length of an entry's name in bytes: with a header of 30 bytes, less than 2¹⁶ − 1.
pub const LONGEST_NAME: usize = u16::MAX as usize - 31;

/// The name of a tensor's entry.
pub fn entry_name(name: &str, dtype: DType) -> String {
    match stored_as(dtype) {
        Some(_) => format!("{name}__{dtype}.npy"),
        None => format!("{name}.npy"),
    }
}

fn write_entries<'a>(
    archive: &mut ZipWriter<impl Write + Seek>,
    tensors: impl IntoIterator<Item = (&'a str, &'a HostTensor)>,
) -> Result<(), NpzError> {
    for (name, tensor) in tensors {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(tensor.bytes().is_none_or(|bytes| bytes.len() >= 1 << 31));
        archive.start_file(entry_name(name, tensor.dtype()), options).map_err(archive_error)?;
        npy::write(&mut *archive, tensor)
            .map_err(|source| NpzError::Array { name: name.to_owned(), source })?;
    }
    Ok(())
}

/// The integer type that stores the bits of a type that NumPy lacks; `None` for other types.
pub fn stored_as(dtype: DType) -> Option<DType> {
    match (dtype, dtype.bits()) {
        (DType::BF16, _) => Some(DType::U16),
        (_, Some(8)) if dtype.is_float() => Some(DType::U8),
        _ => None,
    }
}

/// The name and the tensor of an entry: a tensor of the type in the suffix, if NumPy lacks the type and `tensor` can
/// hold its bits; otherwise the entry unchanged.
///
/// # Errors
/// If the allocation fails.
pub fn restored(entry: &str, tensor: HostTensor) -> Result<(&str, HostTensor), NpzError> {
    match (told(entry), tensor.bytes()) {
        (Some((plain, dtype)), Some(bytes)) if stored_as(dtype) == Some(tensor.dtype()) => {
            let tensor = HostTensor::from_bytes(dtype, tensor.dims(), bytes)
                .map_err(|error| NpzError::Array { name: entry.to_owned(), source: error.into() })?;
            Ok((plain, tensor))
        }
        _ => Ok((entry, tensor)),
    }
}

/// The name and the element type that [`restored`] gives an entry with stored elements of `dtype`.
pub fn restored_type(entry: &str, dtype: DType) -> (&str, DType) {
    match told(entry) {
        Some((plain, other)) if stored_as(other) == Some(dtype) => (plain, other),
        _ => (entry, dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostError;
    use half::{bf16, f16};
    use proptest::prelude::*;
    use std::io::Cursor;

    fn read(reader: impl Read + Seek) -> Result<Vec<(String, HostTensor)>, NpzError> {
        let mut archive = Archive::open(reader)?;
        let mut found = Vec::new();
        for (index, entry) in archive.names().to_vec().iter().enumerate() {
            let (name, tensor) = restored(entry, archive.read(index, u64::MAX)?)?;
            found.push((name.to_owned(), tensor));
        }
        Ok(found)
    }

    fn archive(tensors: &[(&str, HostTensor)]) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        write(&mut bytes, tensors.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn types_that_numpy_lacks_are_told_by_the_name() {
        let low = HostTensor::from_slice(&[2], &[bf16::ONE, bf16::INFINITY]).unwrap();
        let tiny = HostTensor::from_bytes(DType::F8E5M2, &[1], &[0x3c]).unwrap();
        let bytes = archive(&[("a/b:0", low), ("c", tiny)]);
        let mut raw = ZipArchive::new(Cursor::new(&bytes)).unwrap();
        assert_eq!(raw.by_index(0).unwrap().name().unwrap(), "a/b:0__bf16.npy");
        assert_eq!(npy::read(raw.by_index(0).unwrap(), u64::MAX, u64::MAX).unwrap().dtype(), DType::U16);
        let found = read(Cursor::new(&bytes)).unwrap();
        let described: Vec<_> = found.iter().map(|(name, t)| (&name[..], t.dtype())).collect();
        assert_eq!(described, [("a/b:0", DType::BF16), ("c", DType::F8E5M2)]);
        assert_eq!(found[0].1.as_slice::<bf16>().unwrap(), [bf16::ONE, bf16::INFINITY]);
    }

    #[test]
    fn a_name_alone_changes_no_type() {
        let float = HostTensor::from_slice(&[1], &[1.0f32]).unwrap();
        let found = read(Cursor::new(archive(&[("x__bf16", float.clone()), ("__y", float)]))).unwrap();
        assert_eq!((&found[0].0[..], found[0].1.dtype()), ("x__bf16", DType::F32));
        assert_eq!((&found[1].0[..], found[1].1.dtype()), ("__y", DType::F32));
    }

    #[test]
    fn same_tensors_same_bytes_and_one_name_once() {
        let one = HostTensor::from_slice(&[1], &[1i8]).unwrap();
        assert_eq!(archive(&[("x", one.clone())]), archive(&[("x", one.clone())]));
        let twice = write(Cursor::new(Vec::new()), [("x", &one), ("x", &one)]);
        assert!(matches!(twice, Err(NpzError::NoArchive)));
    }

    /// The bytes of an archive, with the 4 bytes at `from` of every header with this mark replaced.
    fn with_field(mut bytes: Vec<u8>, mark: &[u8], from: usize, field: u32) -> Vec<u8> {
        for at in 0..bytes.len().saturating_sub(from + 4) {
            if bytes[at..].starts_with(mark) {
                bytes[at + from..at + from + 4].copy_from_slice(&field.to_le_bytes());
            }
        }
        bytes
    }

    /// An array of 1 GiB in a file of a few hundred bytes, by the sizes that the archive claims.
    #[test]
    fn an_entry_has_at_most_the_bytes_of_the_file() {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1073741824,), }\n";
        let len = u16::try_from(header.len()).unwrap().to_le_bytes();
        let array = [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), &[7; 100]].concat();
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
            zip.start_file("x.npy", SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(&array).unwrap();
            let mut bytes = zip.finish().unwrap().into_inner();
            for (mark, from) in [(b"PK\x01\x02", 20), (b"PK\x03\x04", 18)] {
                let claimed = if method == CompressionMethod::Stored { (1 << 30) + 200 } else { 150 };
                bytes = with_field(bytes, mark, from, claimed);
                bytes = with_field(bytes, mark, from + 4, (1 << 30) + 200);
            }
            let mut archive = Archive::open(Cursor::new(bytes)).unwrap();
            assert_eq!(archive.header(0).unwrap(), (DType::U8, vec![1 << 30]));
            let error = archive.read(0, u64::MAX).unwrap_err();
            let NpzError::Array { source: NpyError::Short { there, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(there < 1 << 19, "{there}");
        }
    }

    #[test]
    fn a_second_name_of_an_entry_is_no_name_of_another() {
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        let archive = |other: &str| {
            let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
            zip.start_file("x.npy", stored).unwrap();
            let mut options = zip::write::FullFileOptions::default();
            // The field counts only if the checksum of the other name is right; readers differ in that, too.
            let mut field = vec![1, 0, 0, 0, 0];
            field.extend(other.as_bytes());
            options.add_extra_field(0x6e76, field, true).unwrap();
            zip.start_file("y.npy", options).unwrap();
            let mut bytes = zip.finish().unwrap().into_inner();
            for at in 0..bytes.len() - 2 {
                if bytes[at..].starts_with(b"\x76\x6e") {
                    bytes[at..at + 2].copy_from_slice(b"\x75\x70");
                }
            }
            Archive::open(Cursor::new(bytes)).map(|archive| archive.names().to_vec())
        };
        assert_eq!(archive("z.npy").unwrap().len(), 2);
        assert_eq!(archive("y.npy").unwrap().len(), 2);
        assert!(matches!(archive("x.npy"), Err(NpzError::Twice { name }) if name == "x.npy"));
    }

    /// A writer that accepts this many bytes and no more.
    struct Full(Cursor<Vec<u8>>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.get_ref().len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Full {
        fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn a_full_disk_is_known_as_one() {
        let tensor = HostTensor::zeros(DType::F64, &[100]).unwrap();
        let whole = archive(&[("x", tensor.clone())]).len();
        for most in [0, 10, 60, 500, whole - 30, whole - 1] {
            let full = Full(Cursor::new(Vec::new()), most);
            let error = io::Error::from(write(full, [("x", &tensor)]).unwrap_err());
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{most}: {error}");
        }
    }

    #[test]
    fn what_is_no_archive_of_arrays_is_refused() {
        assert!(matches!(read(Cursor::new(b"no zip file")), Err(NpzError::NoArchive)));
        let whole = archive(&[("x", HostTensor::zeros(DType::F64, &[100]).unwrap())]);
        for end in [0, 4, 100, whole.len() - 1] {
            assert!(matches!(read(Cursor::new(&whole[..end])), Err(NpzError::NoArchive)), "{end}");
        }
        let mut other = ZipWriter::new(Cursor::new(Vec::new()));
        other.start_file("readme.txt", SimpleFileOptions::default()).unwrap();
        let bytes = other.finish().unwrap().into_inner();
        assert!(
            matches!(read(Cursor::new(bytes)), Err(NpzError::NotAnArray { name }) if name == "readme.txt")
        );
        let mut cut = archive(&[("x", HostTensor::zeros(DType::F64, &[100]).unwrap())]);
        let middle = cut.len() / 2;
        cut.drain(middle..middle + 100);
        assert!(read(Cursor::new(cut)).is_err());
    }

    /// Written by `numpy.savez_compressed(f, x=numpy.array([[1, 2], [3, 4]], "f2").T, s=numpy.array(["é", "ab"]))`
    /// of NumPy 2.4.6.
    #[test]
    fn reads_an_archive_of_numpys() {
        let bytes = include_bytes!("../testdata/numpy.npz");
        let found = read(Cursor::new(bytes)).unwrap();
        assert_eq!((&found[0].0[..], &found[1].0[..]), ("x", "s"));
        let halves = found[0].1.as_slice::<f16>().unwrap();
        assert_eq!(halves.iter().map(|v| v.to_f32()).collect::<Vec<_>>(), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(found[1].1.strings(), Some(&["é".as_bytes().into(), b"ab".as_slice().into()][..]));
    }

    /// Tensors of every type that NumPy can represent, directly or as bits.
    fn any_tensor() -> impl Strategy<Value = HostTensor> {
        let storable = |d: &DType| *d == DType::String || d.bits().is_some_and(|bits| bits >= 8);
        let dtypes: Vec<DType> = DType::ALL.iter().copied().filter(storable).collect();
        let bytes = prop::collection::vec(any::<u8>(), 27 * 16);
        (prop::sample::select(dtypes), prop::collection::vec(0u8..4, 0..4), bytes).prop_map(
            |(dtype, dims, bytes)| {
                let count = dims.iter().map(|&d| usize::from(d)).product();
                let dims: Vec<u64> = dims.into_iter().map(u64::from).collect();
                if dtype == DType::String {
                    let text = |b: &u8| format!("{:x}", b / 16 * (b % 16)).into_bytes().into();
                    return HostTensor::from_strings(&dims, bytes.iter().map(text).take(count).collect())
                        .unwrap();
                }
                let fill = |target: &mut [u8]| {
                    target.copy_from_slice(&bytes[..target.len()]);
                    Ok::<_, HostError>(())
                };
                HostTensor::filled(dtype, &dims, fill).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn archives_keep_every_bit(tensors in prop::collection::vec(any_tensor(), 0..4)) {
            let names = ["x", "", "a/b.npy", "é"];
            let named: Vec<_> = names.into_iter().zip(tensors).collect();
            let found = read(Cursor::new(archive(&named))).unwrap();
            prop_assert_eq!(found.len(), named.len());
            for ((name, got), (wanted_name, want)) in found.iter().zip(&named) {
                prop_assert_eq!(name, wanted_name);
                prop_assert_eq!((got.dtype(), got.dims()), (want.dtype(), want.dims()));
                prop_assert_eq!(got.bytes(), want.bytes());
                prop_assert_eq!(got.strings(), want.strings());
            }
        }

        #[test]
        fn damaged_archives_never_panic(tensor in any_tensor(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut bytes = archive(&[("x", tensor)]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(Cursor::new(&bytes));
            let _ = read(Cursor::new(&bytes[..at]));
        }
    }
}
