//! Checks of descriptors when they are finalized.

use super::{
    Computed, Descriptor, Graph, Made, Operation, Pack, Refusal, Tensor, Window, attention, bad, engines,
    unsupported,
};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnConvolutionMode_t, cudnnDataType_t as DataType,
    cudnnPointwiseMode_t as Pointwise,
};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Descriptor {
    pub(super) fn value(&self, attribute: A, ty: Type) -> Result<&super::Value, Refusal> {
        match self.values.get(&(attribute as u32)) {
            Some(value) if value.ty == ty => Ok(value),
            Some(value) => bad(format!("{attribute:?} is of {ty:?}, found {:?}", value.ty)),
            None => bad(format!("{attribute:?} is not set")),
        }
    }

    fn has(&self, attribute: A) -> bool {
        self.values.contains_key(&(attribute as u32))
    }

    fn ints(&self, attribute: A) -> Result<Vec<i64>, Refusal> {
        let (numbers, _) = self.value(attribute, Type::CUDNN_TYPE_INT64)?.bytes.as_chunks();
        Ok(numbers.iter().map(|&bytes| i64::from_ne_bytes(bytes)).collect())
    }

    /// Integers that are at least `least`.
    fn extents(&self, attribute: A, least: usize) -> Result<Vec<usize>, Refusal> {
        let numbers = self.ints(attribute)?;
        let checked = numbers.iter().map(|&n| usize::try_from(n).ok().filter(|&n| n >= least));
        match checked.collect() {
            Some(extents) => Ok(extents),
            None => bad(format!("{attribute:?} is at least {least}, found {numbers:?}")),
        }
    }

    fn int(&self, attribute: A) -> Result<i64, Refusal> {
        match self.ints(attribute)?[..] {
            [number] => Ok(number),
            _ => bad(format!("{attribute:?} is one number")),
        }
    }

    /// One element of 4 bytes.
    pub(super) fn word(&self, attribute: A, ty: Type) -> Result<u32, Refusal> {
        match self.value(attribute, ty)?.bytes[..] {
            [a, b, c, d] => Ok(u32::from_ne_bytes([a, b, c, d])),
            _ => bad(format!("{attribute:?} is one element")),
        }
    }

    fn pointers(&self, attribute: A, ty: Type) -> Result<Vec<u64>, Refusal> {
        let (pointers, _) = self.value(attribute, ty)?.bytes.as_chunks();
        Ok(pointers.iter().map(|&bytes| u64::from_ne_bytes(bytes)).collect())
    }

    pub(super) fn made(&self, attribute: A) -> Result<&[Made], Refusal> {
        Ok(&self.value(attribute, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR)?.descriptors)
    }

    pub(super) fn tensor(&self, attribute: A) -> Result<Arc<Tensor>, Refusal> {
        match self.made(attribute)? {
            [Made::Tensor(tensor)] => Ok(tensor.clone()),
            _ => bad(format!("{attribute:?} is a tensor")),
        }
    }
}

/// Checks the attributes of a descriptor.
pub(super) fn finalize(of: &Descriptor) -> Result<Made, Refusal> {
    Ok(match of.kind {
        Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR => Made::Tensor(Arc::new(tensor(of)?)),
        Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR => Made::Window(Arc::new(window(of)?)),
        Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR => {
            let math = of.word(A::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE)?;
            if math != DataType::CUDNN_DATA_BOOLEAN as u32 {
                compute_type(of, A::CUDNN_ATTR_POINTWISE_MATH_PREC)?;
            }
            let mode = of.word(A::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE)?;
            if mode == Pointwise::CUDNN_POINTWISE_RELU_FWD as u32 {
                let name = A::CUDNN_ATTR_POINTWISE_NAN_PROPAGATION;
                if of.word(name, Type::CUDNN_TYPE_NAN_PROPOGATION)? != 1 {
                    return unsupported("a ReLU that makes NaN a number is not simulated");
                }
            }
            let generates = mode == Pointwise::CUDNN_POINTWISE_GEN_INDEX as u32;
            let axis = if generates { of.int(A::CUDNN_ATTR_POINTWISE_AXIS)? } else { 0 };
            Made::Pointwise { mode, axis: usize::try_from(axis).unwrap_or(usize::MAX) }
        }
        Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR => {
            compute_type(of, A::CUDNN_ATTR_MATMUL_COMP_TYPE)?;
            Made::Product
        }
        Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR => {
            compute_type(of, A::CUDNN_ATTR_REDUCTION_COMP_TYPE)?;
            Made::Reduction(attention::operator(of)?)
        }
        Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR => attention::product(of)?,
        Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR => attention::reduction(of)?,
        Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR => attention::reshape(of)?,
        Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR => convolution(of, Computed::Grid, 700)?,
        Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR => {
            convolution(of, Computed::Image, 706)?
        }
        Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR => {
            convolution(of, Computed::Filter, 712)?
        }
        Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR => pointwise(of)?,
        Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR => Made::Graph(Arc::new(graph(of)?)),
        Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR => engines::heuristics(of)?,
        Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR => engines::plan(of)?,
        Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR => Made::Pack(Arc::new(pack(of)?)),
        other => return unsupported(format!("{other:?} is not simulated")),
    })
}

/// The bytes of an element.
pub(super) fn size(dtype: u32) -> usize {
    const WIDE: [u32; 2] = [DataType::CUDNN_DATA_FLOAT as u32, DataType::CUDNN_DATA_INT32 as u32];
    if WIDE.contains(&dtype) {
        4
    } else if dtype == DataType::CUDNN_DATA_BOOLEAN as u32 {
        1
    } else {
        2
    }
}

fn tensor(of: &Descriptor) -> Result<Tensor, Refusal> {
    let dtype = of.word(A::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE)?;
    let types = [
        DataType::CUDNN_DATA_FLOAT,
        DataType::CUDNN_DATA_HALF,
        DataType::CUDNN_DATA_BFLOAT16,
        DataType::CUDNN_DATA_INT32,
        DataType::CUDNN_DATA_BOOLEAN,
    ];
    if !types.iter().any(|&known| known as u32 == dtype) {
        return unsupported(format!("tensors of data type {dtype} are not simulated"));
    }
    let dims = of.extents(A::CUDNN_ATTR_TENSOR_DIMENSIONS, 1)?;
    let strides = of.extents(A::CUDNN_ATTR_TENSOR_STRIDES, 1)?;
    if dims.len() != strides.len() || dims.is_empty() || dims.len() > 8 {
        return bad(format!("a tensor of dims {dims:?} and strides {strides:?}"));
    }
    let alignment = of.int(A::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)?;
    let alignment = match u64::try_from(alignment) {
        Ok(n) if n.is_power_of_two() && n >= size(dtype) as u64 => n,
        _ => return bad(format!("a tensor aligned to {alignment} bytes")),
    };
    let is = |attribute| match of.has(attribute) {
        true => Ok(of.value(attribute, Type::CUDNN_TYPE_BOOLEAN)?.bytes == [1]),
        false => Ok(false),
    };
    let is_virtual = is(A::CUDNN_ATTR_TENSOR_IS_VIRTUAL)?;
    let is_by_value = is(A::CUDNN_ATTR_TENSOR_IS_BY_VALUE)?;
    if is_by_value
        && (is_virtual || dims.iter().any(|&n| n != 1) || dtype != DataType::CUDNN_DATA_FLOAT as u32)
    {
        return unsupported("a tensor by value that is virtual, larger than an element, or not of f32");
    }
    let id = of.int(A::CUDNN_ATTR_TENSOR_UNIQUE_ID)?;
    Ok(Tensor { id, dtype, dims, strides, alignment, is_virtual, is_by_value })
}

fn compute_type(of: &Descriptor, attribute: A) -> Result<(), Refusal> {
    match of.word(attribute, Type::CUDNN_TYPE_DATA_TYPE)? == DataType::CUDNN_DATA_FLOAT as u32 {
        true => Ok(()),
        false => unsupported("operations compute in f32"),
    }
}

fn window(of: &Descriptor) -> Result<Window, Refusal> {
    compute_type(of, A::CUDNN_ATTR_CONVOLUTION_COMP_TYPE)?;
    let mode = of.word(A::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE)?;
    if mode != cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION as u32 {
        return unsupported("only cross-correlations are simulated");
    }
    let window = Window {
        before: of.extents(A::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0)?,
        after: of.extents(A::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0)?,
        strides: of.extents(A::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1)?,
        dilations: of.extents(A::CUDNN_ATTR_CONVOLUTION_DILATIONS, 1)?,
    };
    let spatial = of.int(A::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)?;
    let lists = [&window.before, &window.after, &window.strides, &window.dilations];
    if lists.iter().any(|list| usize::try_from(spatial) != Ok(list.len())) || !(1..=3).contains(&spatial) {
        return bad(format!("a window of {spatial} spatial dims with other lists"));
    }
    Ok(window)
}

/// The attributes of an operation follow each other from `first` on: α, β, window; the order of the tensors differs.
fn convolution(of: &Descriptor, computed: Computed, first: u32) -> Result<Made, Refusal> {
    let scale = |at: u32, expected: f32| match of.values.get(&at) {
        Some(value) if value.bytes == expected.to_ne_bytes() => Ok(()),
        _ => bad(format!("attribute {at} of a convolution is {expected}")),
    };
    scale(first, 1.0)?;
    scale(first + 1, 0.0)?;
    let names = match computed {
        Computed::Grid => [
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
        ],
        Computed::Image => [
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
        ],
        Computed::Filter => [
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
        ],
    };
    let window = match of.values.get(&(first + 2)).map(|value| &value.descriptors[..]) {
        Some([Made::Window(window)]) => window.clone(),
        _ => return bad("a convolution without its window"),
    };
    let tensors = [of.tensor(names[0])?, of.tensor(names[1])?, of.tensor(names[2])?];
    let [image, filter, grid] = &tensors;
    let rank = window.strides.len() + 2;
    if tensors.iter().any(|tensor| tensor.dims.len() != rank) {
        return bad(format!("a convolution of tensors of rank {rank} with another rank"));
    }
    let (x, w, y) = (&image.dims, &filter.dims, &grid.dims);
    let groups = x[1] / w[1];
    if x[0] != y[0] || w[0] != y[1] || !x[1].is_multiple_of(w[1]) || !w[0].is_multiple_of(groups) {
        return bad(format!("a convolution of {x:?} and {w:?} to {y:?}"));
    }
    for axis in 0..rank - 2 {
        let around = x[axis + 2] + window.before[axis] + window.after[axis];
        let reach = (w[axis + 2] - 1) * window.dilations[axis] + 1;
        let places = around.checked_sub(reach).map(|room| room / window.strides[axis] + 1);
        if places != Some(y[axis + 2]) {
            return bad(format!("{places:?} positions on spatial axis {axis}, found {y:?}"));
        }
    }
    let operands: Vec<_> = (0..3).filter(|&i| i != computed as usize).map(|i| tensors[i].dtype).collect();
    if operands[0] != operands[1] {
        return unsupported("a convolution of operands of two data types");
    }
    Ok(Made::Operation(Arc::new(Operation::Convolution { computed, window, tensors })))
}

fn pointwise(of: &Descriptor) -> Result<Made, Refusal> {
    let (mode, axis) = match of.made(A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)? {
        [Made::Pointwise { mode, axis }] => (*mode, *axis),
        _ => return bad("a pointwise operation without its mode"),
    };
    let Some(n) = attention::operands(mode) else {
        return unsupported(format!("pointwise mode {mode} is not simulated"));
    };
    let names = [
        A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
        A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
        A::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
    ];
    let operands = names[..n].iter().map(|&name| of.tensor(name)).collect::<Result<Vec<_>, _>>()?;
    let y = of.tensor(A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC)?;
    let fits = |b: &Tensor| {
        b.dims.len() == y.dims.len() && b.dims.iter().zip(&y.dims).all(|(&b, &y)| b == 1 || b == y)
    };
    if operands[0].dims != y.dims || !operands.iter().all(|operand| fits(operand)) || axis >= y.dims.len() {
        return bad("a pointwise operation of tensors that do not fit");
    }
    Ok(Made::Operation(Arc::new(Operation::Pointwise { mode, axis, operands, y })))
}

impl Operation {
    /// The tensors read, and the tensor written.
    pub(super) fn tensors(&self) -> (Vec<&Arc<Tensor>>, &Arc<Tensor>) {
        match self {
            Operation::Convolution { computed, tensors: [image, filter, grid], .. } => match computed {
                Computed::Image => (vec![filter, grid], image),
                Computed::Filter => (vec![image, grid], filter),
                Computed::Grid => (vec![image, filter], grid),
            },
            Operation::Pointwise { operands, y, .. } => (operands.iter().collect(), y),
            Operation::Product { a, b, c } => (vec![a, b], c),
            Operation::Reduction { x, y, .. } | Operation::View { x, y } => (vec![x], y),
        }
    }
}

fn graph(of: &Descriptor) -> Result<Graph, Refusal> {
    of.value(A::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE)?;
    let mut operations = Vec::new();
    for made in of.made(A::CUDNN_ATTR_OPERATIONGRAPH_OPS)? {
        match made {
            Made::Operation(operation) => operations.push(operation.clone()),
            _ => return bad("an operation graph of another descriptor"),
        }
    }
    let is = |kind: fn(&Operation) -> bool| operations.iter().any(|operation| kind(operation));
    let is_attention = is(|operation| matches!(operation, Operation::Product { .. }));
    if !is_attention && !matches!(operations.first().map(|o| &**o), Some(Operation::Convolution { .. })) {
        return unsupported("a graph without a product that does not begin with a convolution");
    }
    let mut known: BTreeMap<i64, Arc<Tensor>> = BTreeMap::new();
    let (mut written, mut read): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
    for operation in &operations {
        let (reads, writes) = operation.tensors();
        for tensor in reads.into_iter().chain([writes]) {
            let before = known.entry(tensor.id).or_insert_with(|| tensor.clone());
            if !Arc::ptr_eq(before, tensor) {
                return bad(format!("two tensors with the unique id {}", tensor.id));
            }
        }
        for tensor in operation.tensors().0 {
            if tensor.is_virtual && !written.contains(&tensor.id) {
                return bad(format!("virtual tensor {} is read before it is written", tensor.id));
            }
            read.push(tensor.id);
        }
        if written.contains(&writes.id) {
            return bad(format!("tensor {} is written twice", writes.id));
        }
        written.push(writes.id);
    }
    for tensor in known.values().filter(|tensor| tensor.is_virtual) {
        let is_wide = is_attention || tensor.dtype == DataType::CUDNN_DATA_FLOAT as u32;
        // The statistics of an attention may be unused.
        if !is_attention && !read.contains(&tensor.id) || !is_wide {
            return bad(format!("virtual tensor {} that nothing reads, or not of f32", tensor.id));
        }
    }
    known.retain(|_, tensor| !tensor.is_virtual);
    Ok(Graph { operations, stored: known })
}

fn pack(of: &Descriptor) -> Result<Pack, Refusal> {
    let ids = of.ints(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)?;
    let places = of.pointers(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR)?;
    let workspace = of.pointers(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR)?;
    let count = ids.len();
    let [workspace] = workspace[..] else { return bad("a variant pack without one workspace") };
    let places: BTreeMap<i64, u64> = ids.into_iter().zip(places).collect();
    match places.len() == count {
        true => Ok(Pack { places, workspace }),
        false => bad("a variant pack with other numbers of ids and addresses, or an id twice"),
    }
}
