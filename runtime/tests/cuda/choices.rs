//! The record of algorithms: equal models on equal devices have equal records, with an entry for each product,
//! convolution and attention.

use crate::cases::{module, random};
use crate::elements::refs;
use ampc_ir::DType;
use ampc_runtime::backend::{Backend, Choices};
use ampc_runtime::cuda::{Cuda, CudaError, CudaOptions};
use ampc_runtime::{HostTensor, Runtime};
use std::sync::Arc;

/// Opens a device.
pub(crate) type Open = dyn Fn(&CudaOptions) -> Result<Arc<Cuda>, CudaError>;

/// Runs the case if its name contains `filter`; returns the number of failures.
pub(crate) fn run(opened: &Open, options: &CudaOptions, filter: &str) -> usize {
    let record = |body: &str, inputs: &[HostTensor]| -> Result<Choices, String> {
        let cuda = opened(options).map_err(|error| error.to_string())?;
        let mut session =
            Runtime::new(cuda.clone()).prepare(&module(body, inputs)).map_err(|error| error.to_string())?;
        session.run(&refs(inputs)).map_err(|error| error.to_string())?;
        Ok(cuda.choices())
    };
    let product = "  const %w : f16[40, 24] = random(1)\n  const %b : f16[24] = random(2)\n  \
         %p = MatMul(%a, %w) : f16[33, 24]\n  %q = Add(%p, %b) : f16[33, 24]\n  output %q\n";
    let convolution = "  const %w : f32[6, 3, 3, 3] = random(1)\n  %c = Conv(%a, %w) {pads=[1, 1, 1, 1]} : f32[2, 6, 9, 9]\n  \
         output %c\n";
    if !"choices of algorithms".contains(filter) {
        return 0;
    }
    let check = || -> Result<(), String> {
        for (body, input, operation, algorithm) in [
            (
                product,
                random(DType::F16, &[33, 40], 1),
                "1 products of F16[33, 40] and [40, 24] to F16",
                "id ",
            ),
            (convolution, random(DType::F32, &[2, 3, 9, 9], 1), "Convolution", "engine "),
        ] {
            let inputs = [input];
            let (first, second) = (record(body, &inputs)?, record(body, &inputs)?);
            let is_found = first
                .algorithms
                .iter()
                .any(|(name, chosen)| name.starts_with(operation) && chosen.starts_with(algorithm));
            let has_device = first.device.iter().any(|(name, value)| name == "device" && !value.is_empty());
            let has_options = ["tf32", "exact-rounding"]
                .iter()
                .all(|option| first.device.iter().any(|(name, value)| name == option && value == "off"));
            if !is_found || !has_device || !has_options || first != second {
                return Err(format!("{first:?}\n{second:?}"));
            }
        }
        Ok(())
    };
    // Without cuDNN there is no convolution; its own cases test that error.
    if std::env::var_os("AMPC_CUDNN_ERROR").is_some() {
        return 0;
    }
    match check() {
        Ok(()) => {
            println!("ok    choices of algorithms");
            0
        }
        Err(error) => {
            println!("FAIL  choices of algorithms: {error}");
            1
        }
    }
}
