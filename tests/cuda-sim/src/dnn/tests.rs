//! Descriptors that are refused, and the directions of a convolution.

use super::*;
use crate::memory;
use cudarc::cudnn::sys::cudnnDataType_t as DataType;

struct Built(cudnnBackendDescriptor_t);

impl Built {
    fn new(kind: Kind) -> Built {
        let mut made = std::ptr::null_mut();
        // SAFETY: the pointer is that of a variable.
        assert_eq!(unsafe { cudnnBackendCreateDescriptor(kind, &raw mut made) }, OK);
        Built(made)
    }

    fn set<T>(self, attribute: Attribute, ty: Type, elements: &[T]) -> Built {
        let count = i64::try_from(elements.len()).unwrap();
        // SAFETY: there are as many elements.
        let done =
            unsafe { cudnnBackendSetAttribute(self.0, attribute, ty, count, elements.as_ptr().cast()) };
        assert_eq!(done, OK);
        self
    }

    fn ints(self, attribute: Attribute, elements: &[i64]) -> Built {
        self.set(attribute, Type::CUDNN_TYPE_INT64, elements)
    }

    fn refers(self, attribute: Attribute, to: &[&Built]) -> Built {
        let raw: Vec<_> = to.iter().map(|built| built.0).collect();
        self.set(attribute, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    fn finalize(&self) -> Status {
        // SAFETY: the descriptor is alive.
        unsafe { cudnnBackendFinalize(self.0) }
    }

    fn finalized(self) -> Built {
        assert_eq!(self.finalize(), OK);
        self
    }
}

fn tensor(id: i64, dims: &[i64; 3], alignment: i64) -> Built {
    Built::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        .ints(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])
        .set(
            Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE,
            Type::CUDNN_TYPE_DATA_TYPE,
            &[DataType::CUDNN_DATA_FLOAT],
        )
        .ints(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, dims)
        .ints(Attribute::CUDNN_ATTR_TENSOR_STRIDES, &[dims[1] * dims[2], dims[2], 1])
        .ints(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[alignment])
}

fn window() -> Built {
    type A = Attribute;
    Built::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
        .set(A::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[DataType::CUDNN_DATA_FLOAT])
        .set(A::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &[1u32])
        .ints(A::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[1])
        .ints(A::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &[1])
        .ints(A::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &[0])
        .ints(A::CUDNN_ATTR_CONVOLUTION_DILATIONS, &[1])
}

/// A convolution of an image of 3 by a filter of 2, padded by one element before, in steps of 2.
fn operation(kind: Kind, first: u32, names: [Attribute; 3], ids: [i64; 3], places: i64) -> Built {
    let window = window().ints(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &[2]).finalized();
    let parts = [
        tensor(ids[0], &[1, 2, 3], 16).finalized(),
        tensor(ids[1], &[2, 2, 2], 16).finalized(),
        tensor(ids[2], &[1, 2, places], 16).finalized(),
    ];
    let operation = Built::new(kind).refers(names[0], &[&parts[0]]).refers(names[1], &[&parts[1]]);
    let operation = operation.refers(names[2], &[&parts[2]]);
    // SAFETY: the descriptor is alive. Attributes of the three kinds are numbered alike.
    let descriptor = unsafe { &mut *operation.0.cast::<Descriptor>() };
    for (at, number) in [(first, 1f32), (first + 1, 0f32)] {
        let bytes = number.to_ne_bytes().to_vec();
        let value = Value { ty: Type::CUDNN_TYPE_FLOAT, bytes, descriptors: Vec::new() };
        descriptor.values.insert(at, value);
    }
    // SAFETY: the window is alive.
    let made = unsafe { (*window.0.cast::<Descriptor>()).made.clone() };
    let descriptors = made.into_iter().collect();
    let value = Value { ty: Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, bytes: Vec::new(), descriptors };
    descriptor.values.insert(first + 2, value);
    operation
}

fn forward(ids: [i64; 3], places: i64) -> Built {
    let kind = Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    let names = [
        Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
        Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
    ];
    operation(kind, 700, names, ids, places)
}

fn graph(operation: &Built) -> Built {
    Built::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        .set(Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[1u64])
        .refers(Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, &[operation])
}

#[test]
fn attributes_that_are_missing_or_disagree() {
    assert_eq!(window().finalize(), BAD);
    assert_eq!(tensor(1, &[1, 2, 0], 16).finalize(), BAD);
    assert_eq!(tensor(1, &[1, 2, 3], 12).finalize(), BAD);
    assert_eq!(tensor(1, &[1, 2, 3], 2).finalize(), BAD);
    assert_eq!(forward([1, 2, 3], 3).finalize(), BAD);
    assert_eq!(forward([1, 2, 3], 2).finalize(), OK);
    assert_eq!(graph(&forward([1, 2, 1], 2).finalized()).finalize(), BAD);
    assert_eq!(graph(&forward([1, 2, 3], 2).finalized()).finalize(), OK);
}

/// The result of a direction, with operands 1, 2, 3, … each.
fn computed(kind: Kind, first: u32, names: [Attribute; 3], result: usize) -> Vec<f32> {
    let graph = graph(&operation(kind, first, names, [1, 2, 3], 2).finalized()).finalized();
    // SAFETY: the descriptor is alive.
    let Some(Made::Graph(graph)) = (unsafe { &(*graph.0.cast::<Descriptor>()).made }) else {
        panic!("no graph")
    };
    let engine = Engine {
        graph: graph.clone(),
        index: 0,
        notes: Vec::new(),
        workspace: 100,
        error: 1.0,
        finalizes: true,
    };
    let sizes = [6, 8, 4];
    let places = sizes.map(|n| memory::allocate(4 * n).unwrap());
    for (i, (at, n)) in places.into_iter().zip(sizes).enumerate().filter(|&(i, _)| i != result) {
        // SAFETY: the memory is allocated.
        let numbers = unsafe { memory::slice::<f32>(at, n) };
        (1u8..).zip(numbers).for_each(|(x, to)| *to = f32::from(x) * if i == 1 { 0.5 } else { 1.0 });
    }
    let workspace = memory::allocate(100).unwrap();
    let pack = |workspace| Pack { places: (1..).zip(places).collect(), workspace };
    let run = |workspace| {
        Execution::new(Arc::new(Engine { ..copy(&engine) }), Arc::new(pack(workspace))).map(|e| e.run())
    };
    assert!(matches!(run(workspace), Ok(CUresult::CUDA_SUCCESS)));
    assert!(matches!(run(workspace + 1), Ok(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)));
    assert!(matches!(run(places[result]), Ok(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)));
    // SAFETY: the memory is allocated.
    unsafe { memory::slice::<f32>(places[result], sizes[result]) }.to_vec()
}

fn copy(engine: &Engine) -> Engine {
    let Engine { graph, index, notes, workspace, error, finalizes } = engine;
    Engine {
        graph: graph.clone(),
        index: *index,
        notes: notes.clone(),
        workspace: *workspace,
        error: *error,
        finalizes: *finalizes,
    }
}

#[test]
fn directions_of_a_convolution() {
    type A = Attribute;
    // Position 0 meets image[0] by tap 1; position 1 meets image[1] and image[2] by taps 0 and 1.
    let grid = computed(
        Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        700,
        [
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
        ],
        2,
    );
    assert_eq!(grid, [1.0 + 4.0 * 2.0, 1.0 + 3.0 + 7.5 + 12.0, 3.0 + 16.0, 5.0 + 9.0 + 17.5 + 24.0]);
    let image = computed(
        Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        706,
        [
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
        ],
        0,
    );
    assert_eq!(image, [1.0 + 9.0, 1.0 + 10.0, 2.0 + 12.0, 2.0 + 12.0, 3.0 + 14.0, 4.0 + 16.0]);
    let filter = computed(
        Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
        712,
        [
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
        ],
        1,
    );
    assert_eq!(filter, [4.0, 1.0 + 6.0, 10.0, 4.0 + 12.0, 8.0, 3.0 + 12.0, 20.0, 12.0 + 24.0]);
}
