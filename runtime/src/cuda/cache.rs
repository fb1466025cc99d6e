//! Disk cache of compiled kernels and cuDNN plans, so that later processes need not build them again.
//!
//! A file holds the image of one kernel or plan after a checksum. The file name is a hash of everything that the
//! image depends on; the checksum covers the same data. A file that is damaged, or that the driver or cuDNN rejects,
//! is rebuilt. The cache is optional: a file that cannot be read or written is not an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use xxhash_rust::xxh3::Xxh3;

/// The maximum total size. Above it, the least recently used files are removed until three quarters remain.
const MOST_BYTES: u64 = 1 << 30;

/// The extension of the files.
const ENDING: &str = "bin";

/// The length of the checksum in bytes, which precedes the image.
const CHECKSUM: usize = 16;

/// The maximum size of a file that is read.
const MOST_OF_A_FILE: u64 = 64 << 20;

/// A folder of compiled kernels.
pub(super) struct Cache {
    folder: PathBuf,
    /// The hash of the key parts that all kernels share: versions, options, device.
    common: Xxh3,
}

impl Cache {
    /// Creates the folder and its cache. `common` is the part of the key that all kernels of the process share.
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

    /// The cache key of a source: a hash of everything that its image depends on.
    fn key(&self, text: &str) -> u128 {
        let mut hash = self.common.clone();
        hash.update(text.as_bytes());
        hash.digest128()
    }

    fn path(&self, text: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.{ENDING}", self.key(text)))
    }

    /// The checksum of the image of a source.
    fn checksum(&self, text: &str, image: &[u8]) -> [u8; CHECKSUM] {
        let mut hash = Xxh3::new();
        hash.update(&self.key(text).to_le_bytes());
        hash.update(image);
        hash.digest128().to_le_bytes()
    }

    /// The cached image of a source.
    pub(super) fn get(&self, text: &str) -> Option<Vec<u8>> {
        let path = self.path(text);
        // Reading a pipe would never end.
        fs::metadata(&path).ok().filter(|data| data.is_file() && data.len() <= MOST_OF_A_FILE)?;
        let mut bytes = fs::read(&path).ok()?;
        let image = bytes.get(CHECKSUM..)?;
        if bytes[..CHECKSUM] != self.checksum(text, image) {
            return None;
        }
        // Updates the time of last use, so that the file is evicted later than others.
        let _ = fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        bytes.drain(..CHECKSUM);
        Some(bytes)
    }

    /// Writes the image of a source atomically.
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

/// If the files exceed `most` bytes, removes the oldest until at most three quarters of `most` remain.
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
        // All files were used just now, in this order: the first is the oldest.
        assert_eq!(left, [false, true, true]);
        fs::remove_dir_all(folder).unwrap();
    }
}
