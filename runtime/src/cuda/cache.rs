//! Compiled kernels and plans of cuDNN in files, so that a later process need not make them.
//!
//! A file has the image of one kernel or one plan behind a checksum. Its name is the hash of everything that the image
//! depends on, which the checksum includes. A file that is damaged, or that the driver or cuDNN refuses, is made again.
//! Nothing depends on the folder: a file that cannot be read or written is no error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use xxhash_rust::xxh3::Xxh3;

/// The most bytes of all files; beyond it, the files that were used the longest ago are removed, down to three quarters.
const MOST_BYTES: u64 = 1 << 30;

/// The ending of the files.
const ENDING: &str = "bin";

/// The bytes of the checksum before the image.
const CHECKSUM: usize = 16;

/// The most bytes of a file that is read.
const MOST_OF_A_FILE: u64 = 64 << 20;

/// A folder of compiled kernels.
pub(super) struct Cache {
    folder: PathBuf,
    /// The hash of everything that is the same for all kernels: versions, options, device.
    common: Xxh3,
}

impl Cache {
    /// The cache of a folder, which is created. `common` is everything that is the same for all kernels of the process.
    pub(super) fn new(folder: &Path, common: &[&str]) -> Cache {
        let _ = fs::create_dir_all(folder);
        shrink(folder, MOST_BYTES);
        let mut hash = Xxh3::new();
        for part in common {
            hash.update(part.as_bytes());
            hash.update(&[0]);
        }
        Cache { folder: folder.to_owned(), common: hash }
    }

    /// The hash of everything that the image of a text depends on.
    fn key(&self, text: &str) -> u128 {
        let mut hash = self.common.clone();
        hash.update(text.as_bytes());
        hash.digest128()
    }

    fn path(&self, text: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.{ENDING}", self.key(text)))
    }

    /// The checksum of the image of a text.
    fn checksum(&self, text: &str, image: &[u8]) -> [u8; CHECKSUM] {
        let mut hash = Xxh3::new();
        hash.update(&self.key(text).to_le_bytes());
        hash.update(image);
        hash.digest128().to_le_bytes()
    }

    /// The image of a text, if a file has it.
    pub(super) fn get(&self, text: &str) -> Option<Vec<u8>> {
        let path = self.path(text);
        // A pipe would never end.
        fs::metadata(&path).ok().filter(|data| data.is_file() && data.len() <= MOST_OF_A_FILE)?;
        let mut bytes = fs::read(&path).ok()?;
        let image = bytes.get(CHECKSUM..)?;
        if bytes[..CHECKSUM] != self.checksum(text, image) {
            return None;
        }
        // The file was used: it is removed later than others.
        let _ = fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        bytes.drain(..CHECKSUM);
        Some(bytes)
    }

    /// Writes the image of a text, as a whole or not at all.
    pub(super) fn put(&self, text: &str, image: &[u8]) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let part = self.folder.join(format!(".{}-{number}.part", std::process::id()));
        let bytes = [&self.checksum(text, image)[..], image].concat();
        if fs::write(&part, bytes).and_then(|()| fs::rename(&part, self.path(text))).is_err() {
            let _ = fs::remove_file(&part);
        }
    }
}

/// Removes files until they have at most three quarters of the bytes, if they have more than `most`.
fn shrink(folder: &Path, most: u64) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_kernel = |path: &Path| path.extension().is_some_and(|ending| ending == ENDING);
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .map(|entry| entry.path())
        .filter(|path| of_kernel(path))
        .filter_map(|path| {
            let data = fs::metadata(&path).ok()?;
            Some((data.modified().ok()?, data.len(), path))
        })
        .collect();
    let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
    if total <= most {
        return;
    }
    files.sort();
    for (_, len, path) in files {
        if total <= most / 4 * 3 {
            break;
        }
        if fs::remove_file(path).is_ok() {
            total -= len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ampc-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn images_are_found_by_text_and_device() {
        let folder = folder("images");
        let cache = Cache::new(&folder, &["13.0", "a device"]);
        assert_eq!(cache.get("text"), None);
        cache.put("text", b"image");
        assert_eq!(cache.get("text").as_deref(), Some(&b"image"[..]));
        assert_eq!(cache.get("other"), None);
        assert_eq!(Cache::new(&folder, &["13.0", "another device"]).get("text"), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_files_are_no_images() {
        let folder = folder("damaged");
        let cache = Cache::new(&folder, &[]);
        cache.put("text", b"image");
        let path = cache.path("text");
        for bytes in [&b""[..], b"short", b"sixteen bytes or more of other content"] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(cache.get("text"), None);
        }
        cache.put("text", b"image");
        assert!(cache.get("text").is_some());
        fs::copy(&path, cache.path("another text")).unwrap();
        assert_eq!(cache.get("another text"), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_oldest_files_are_removed() {
        let folder = folder("oldest");
        let cache = Cache::new(&folder, &[]);
        for (age, text) in [(3, "a"), (1, "b"), (2, "c")] {
            cache.put(text, &[0; 84]);
            let file = fs::File::options().append(true).open(cache.path(text)).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age * 100)).unwrap();
        }
        shrink(&folder, 300);
        assert!(["a", "b", "c"].iter().all(|text| cache.get(text).is_some()));
        shrink(&folder, 299);
        let left: Vec<bool> = ["a", "b", "c"].iter().map(|text| cache.path(text).exists()).collect();
        // All were used just now, in this order: the first is the oldest.
        assert_eq!(left, [false, true, true]);
        fs::remove_dir_all(folder).unwrap();
    }
}
