//! Descriptors of cuDNN's backend API: typed attributes and checked calls.

use super::DnnError;
use cudarc::cudnn::sys;
use std::ffi::{CStr, c_char, c_void};

pub(super) use sys::cudnnBackendAttributeName_t as Attribute;
use sys::cudnnBackendAttributeType_t as Type;
pub(super) use sys::cudnnBackendDescriptorType_t as Kind;

/// A descriptor, destroyed on drop.
pub(super) struct Descriptor(sys::cudnnBackendDescriptor_t);

// SAFETY: a descriptor is bound to no thread. Calls take it by `&mut` until it is finalized, and only read it later.
#[expect(unsafe_code, reason = "the descriptor is a pointer")]
unsafe impl Send for Descriptor {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the descriptor is a pointer")]
unsafe impl Sync for Descriptor {}

impl Drop for Descriptor {
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    fn drop(&mut self) {
        // SAFETY: the value owns the descriptor. Nothing can be done about a failure.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

/// An address in device memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Address(pub(super) u64);

/// An element of an attribute, in the memory layout of its attribute type.
pub(super) trait Element: Copy {
    const TYPE: Type;
}

macro_rules! elements {
    ($($element:ty: $name:ident),*) => {
        $(impl Element for $element {
            const TYPE: Type = Type::$name;
        })*
    };
}

elements! {
    i64: CUDNN_TYPE_INT64,
    f32: CUDNN_TYPE_FLOAT,
    bool: CUDNN_TYPE_BOOLEAN,
    u8: CUDNN_TYPE_CHAR,
    Address: CUDNN_TYPE_VOID_PTR,
    sys::cudnnHandle_t: CUDNN_TYPE_HANDLE,
    sys::cudnnDataType_t: CUDNN_TYPE_DATA_TYPE,
    sys::cudnnConvolutionMode_t: CUDNN_TYPE_CONVOLUTION_MODE,
    sys::cudnnPointwiseMode_t: CUDNN_TYPE_POINTWISE_MODE,
    sys::cudnnNanPropagation_t: CUDNN_TYPE_NAN_PROPOGATION,
    sys::cudnnReduceTensorOp_t: CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE
}

/// The error of a failed cuDNN call, with cuDNN's own message.
#[expect(unsafe_code, reason = "calls of cuDNN")]
pub(super) fn check(status: sys::cudnnStatus_t, call: &'static str) -> Result<(), DnnError> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut message = [0u8; 256];
    // SAFETY: the name of a status is static and NUL-terminated, and the message buffer has the given length.
    let name = unsafe {
        sys::cudnnGetLastErrorString(message.as_mut_ptr().cast::<c_char>(), message.len());
        CStr::from_ptr(sys::cudnnGetErrorString(status))
    };
    let message = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy().into_owned();
    let is_unsupported = (3000..4000).contains(&(status as u32));
    Err(DnnError::Call { call, status: name.to_string_lossy().into_owned(), message, is_unsupported })
}

impl Descriptor {
    /// # Errors
    /// If cuDNN does not know the kind of descriptor.
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    pub(super) fn new(kind: Kind) -> Result<Descriptor, DnnError> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the pointer is that of a variable.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &raw mut made) };
        check(status, "cudnnBackendCreateDescriptor")?;
        Ok(Descriptor(made))
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// If cuDNN rejects the value.
    pub(super) fn set<T: Element>(
        mut self,
        attribute: Attribute,
        elements: &[T],
    ) -> Result<Descriptor, DnnError> {
        self.set_raw(attribute, T::TYPE, elements.len(), elements.as_ptr().cast())?;
        Ok(self)
    }

    /// Sets an attribute that refers to finalized descriptors.
    ///
    /// # Errors
    /// If cuDNN rejects the value.
    pub(super) fn set_descriptors(
        mut self,
        attribute: Attribute,
        elements: &[&Descriptor],
    ) -> Result<Descriptor, DnnError> {
        let raw: Vec<_> = elements.iter().map(|element| element.0).collect();
        self.set_raw(attribute, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.len(), raw.as_ptr().cast())?;
        Ok(self)
    }

    #[expect(unsafe_code, reason = "a call of cuDNN")]
    fn set_raw(
        &mut self,
        attribute: Attribute,
        ty: Type,
        count: usize,
        elements: *const c_void,
    ) -> Result<(), DnnError> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        // SAFETY: the descriptor is alive, and `elements` has `count` elements of the type.
        let status = unsafe { sys::cudnnBackendSetAttribute(self.0, attribute, ty, count, elements) };
        check(status, "cudnnBackendSetAttribute")
    }

    /// Finalizes the descriptor.
    ///
    /// # Errors
    /// If the attributes are incomplete, inconsistent, or not supported.
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    pub(super) fn finalized(self) -> Result<Descriptor, DnnError> {
        // SAFETY: the descriptor is alive.
        check(unsafe { sys::cudnnBackendFinalize(self.0) }, "cudnnBackendFinalize")?;
        Ok(self)
    }

    /// Reads an integer attribute.
    ///
    /// # Errors
    /// If the descriptor has no such attribute.
    pub(super) fn int(&self, attribute: Attribute) -> Result<i64, DnnError> {
        let mut number = 0i64;
        let place = (&raw mut number).cast();
        self.get_raw(attribute, Type::CUDNN_TYPE_INT64, 1, place)?;
        Ok(number)
    }

    /// Reads the numerical notes of an engine, as integers: newer versions of cuDNN may have further notes.
    ///
    /// # Errors
    /// If the descriptor is not an engine.
    pub(super) fn numerical_notes(&self) -> Result<Vec<i32>, DnnError> {
        let mut notes = [0i32; 32];
        let place = notes.as_mut_ptr().cast();
        let ty = Type::CUDNN_TYPE_NUMERICAL_NOTE;
        let found = self.get_raw(Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, ty, notes.len(), place)?;
        Ok(notes[..found.min(notes.len())].to_vec())
    }

    /// Reads the bytes of a text attribute.
    ///
    /// # Errors
    /// If the descriptor has no such attribute.
    pub(super) fn text(&self, attribute: Attribute) -> Result<Vec<u8>, DnnError> {
        let len = self.get_raw(attribute, Type::CUDNN_TYPE_CHAR, 0, std::ptr::null_mut())?;
        let mut text = vec![0u8; len];
        let found = self.get_raw(attribute, Type::CUDNN_TYPE_CHAR, len, text.as_mut_ptr().cast())?;
        text.truncate(found);
        Ok(text)
    }

    /// Reads at most `limit` descriptors of an attribute, each of the given `kind`.
    ///
    /// # Errors
    /// If the descriptor has no such attribute.
    pub(super) fn descriptors(
        &self,
        attribute: Attribute,
        kind: Kind,
        limit: usize,
    ) -> Result<Vec<Descriptor>, DnnError> {
        let ty = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        let count = self.get_raw(attribute, ty, 0, std::ptr::null_mut())?.min(limit);
        let mut made = (0..count).map(|_| Descriptor::new(kind)).collect::<Result<Vec<_>, _>>()?;
        let mut raw: Vec<_> = made.iter().map(|descriptor| descriptor.0).collect();
        let found = self.get_raw(attribute, ty, count, raw.as_mut_ptr().cast())?;
        made.truncate(found);
        Ok(made)
    }

    /// Reads an attribute; returns the number of its elements.
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    fn get_raw(
        &self,
        attribute: Attribute,
        ty: Type,
        room: usize,
        place: *mut c_void,
    ) -> Result<usize, DnnError> {
        let (mut found, room) = (0, i64::try_from(room).unwrap_or(i64::MAX));
        // SAFETY: the descriptor is alive, and the buffer has room for that many elements of the type.
        let status =
            unsafe { sys::cudnnBackendGetAttribute(self.0, attribute, ty, room, &raw mut found, place) };
        check(status, "cudnnBackendGetAttribute")?;
        Ok(usize::try_from(found).unwrap_or(0))
    }

    /// Runs the plan that the descriptor describes, with the tensors of a variant pack.
    ///
    /// # Errors
    /// If cuDNN fails.
    ///
    /// # Safety
    /// The handle is alive and no other thread uses it; the pack has the addresses of live memory of the described
    /// sizes.
    #[expect(unsafe_code, reason = "a call of cuDNN")]
    pub(super) unsafe fn execute(
        &self,
        handle: sys::cudnnHandle_t,
        pack: &Descriptor,
    ) -> Result<(), DnnError> {
        // SAFETY: as the caller says; both descriptors are alive.
        check(unsafe { sys::cudnnBackendExecute(handle, self.0, pack.0) }, "cudnnBackendExecute")
    }
}
