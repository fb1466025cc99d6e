//! The emulated export in ONNX Runtime gives what the lowered model gives here, infinities and NaN included.

use crate::runtime::{f32s, i64s, run as run_there};
use crate::support::{model, options, policy, rewrite};
use ampc::SaveOptions;
use ampc::execute::{Inputs, prepare, run};
use ampc::ir::DType;
use ampc::passes::Policy;
use ampc::runtime::{Data, HostTensor, Runtime};

/// 8 updates of 20000 for each of the elements 0 and 1, which is 160000 and more than f16 holds; then what came of
/// them is multiplied.
const SUMS: &str = "  input %x : f32[8, 4]
  input %at : i64[8, 4]
  input %rows : i64[8, 1]
  const %zeros : f32[2, 4] = [0, 0, 0, 0, 0, 0, 0, 0]
  const %eye : f32[4, 4] = [0.001, 0, 0, 0, 0, 0.001, 0, 0, 0, 0, 0.001, 0, 0, 0, 0, 0.001]
  %agg = ScatterElements(%zeros, %at, %x) {axis=0, reduction=\"add\"} : f32[2, 4] @agg
  %nd = ScatterND(%zeros, %rows, %x) {reduction=\"add\"} : f32[2, 4] @nd
  %mm = MatMul(%agg, %eye) : f32[2, 4] @mm
  output %agg : f32[2, 4]
  output %nd : f32[2, 4]
  output %mm : f32[2, 4]";

#[test]
fn emulated_scatter_rounds() {
    // The first overflows f16; of the second each update loses digits if the sum is rounded every time.
    for x in [20000.0f32, 1.0 + 1.0 / 1024.0] {
        let values = [x; 32];
        let feeds =
            [f32s("x", &[8, 4], &values), i64s("at", &[8, 4], &[0; 32]), i64s("rows", &[8, 1], &[0; 8])];
        let mut options = options(DType::F16);
        *policy(&mut options) = Policy::preset("all").unwrap();
        let mut done = rewrite(model(SUMS), &options);
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        ampc::save(&done.model, path("low.onnx"), &SaveOptions::default()).unwrap();
        let (emulated, _) = ampc::emulate(ampc::load(path("low.onnx")).unwrap()).unwrap();
        ampc::save(&emulated, path("emulated.onnx"), &SaveOptions::default()).unwrap();
        // The lowered model itself has sums that ONNX Runtime has no kernel for.
        let runs = run_there(folder.path(), &feeds, &[path("emulated.onnx")]);
        let ints =
            |dims: &[u64], n: usize| Some(Data::from(HostTensor::from_slice(dims, &vec![0i64; n]).unwrap()));
        let x = Some(Data::from(HostTensor::from_slice(&[8, 4], &values).unwrap()));
        let inputs = Inputs { values: vec![x, ints(&[8, 4], 32), ints(&[8, 1], 8)], ..Inputs::default() };
        let mut low = prepare(&mut done.model.module, &Runtime::default()).unwrap();
        let low = run(&mut low, &inputs.values).unwrap();
        let low: Vec<Vec<f64>> = low.iter().map(|y| y.tensor().unwrap().f64s().unwrap().collect()).collect();
        let Some(Some(emulated)) = runs.map(|mut runs| runs.remove(0)) else { continue };
        for (there, low) in emulated.iter().zip(&low) {
            let said: Vec<String> = there.values.iter().map(|v| format!("{v:?}")).collect();
            assert_eq!(said, low.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>(), "{}", there.name);
        }
        let first = emulated.iter().map(|y| y.values[0]);
        match values[0] {
            20000.0 => assert!(first.clone().take(2).all(|v| v == f64::INFINITY)),
            _ => assert!(first.clone().take(2).all(|v| v == 8.0078125)),
        }
    }
}
