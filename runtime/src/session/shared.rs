//! Constants that several modules share.

use crate::host::{HostError, HostTensor};
use ampc_ir::convert::Conversion;
use ampc_ir::tensor::Place;
use ampc_ir::{DType, TensorData};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The dense constants of modules that a [`Runtime`](super::Runtime) prepares, read once: for modules with the same constants,
/// such as rewrites of one model. Constants stay in memory as long as this value.
#[derive(Debug, Default)]
pub struct SharedConstants(Mutex<FxHashMap<Key, Entry>>);

/// The identity of a constant: where its bytes are, their type and dims, and the conversions that follow.
type Key = (Place, DType, Vec<u64>, Vec<Conversion>);

#[derive(Debug)]
struct Entry {
    /// Keeps the bytes at their place.
    _data: TensorData,
    tensor: Arc<HostTensor>,
}

impl SharedConstants {
    /// The elements of a constant.
    ///
    /// # Errors
    /// If the elements cannot be read.
    pub(super) fn read(&self, data: &TensorData) -> Result<Arc<HostTensor>, HostError> {
        let (stored, dims, pending) = (data.stored_dtype(), data.dims().to_vec(), data.pending().to_vec());
        let key: Key = (data.storage().place(), stored, dims, pending);
        let known = |known: &FxHashMap<Key, Entry>| known.get(&key).map(|entry| entry.tensor.clone());
        if let Some(tensor) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(tensor);
        }
        let tensor = Arc::new(HostTensor::from_data(data)?);
        let entry = Entry { _data: data.clone(), tensor: tensor.clone() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, entry);
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_read_once_in_each_format() {
        let shared = SharedConstants::default();
        let data = TensorData::from_f32(&[2], &[1.0, 2.0]).unwrap();
        let low = data.converted(Conversion { to: DType::F16, clamp: false });
        let [full, again, low] = [&data, &data.clone(), &low].map(|data| shared.read(data).unwrap());
        assert!(Arc::ptr_eq(&full, &again));
        assert_eq!((full.dtype(), low.dtype()), (DType::F32, DType::F16));
        let other = TensorData::from_f32(&[2], &[1.0, 2.0]).unwrap();
        assert!(!Arc::ptr_eq(&full, &shared.read(&other).unwrap()), "other bytes");
    }
}
