//! Resize, Upsample and GridSample.

use super::{count, node};
use crate::cases::{Case, LOW, Tolerance, numbers, random, tensor};
use ampc_ir::DType;

pub(super) fn add(cases: &mut Vec<Case>) {
    for (dtype, t) in LOW {
        let x = |dims: &[u64]| random(dtype, dims, 111);
        for mode in ["nearest", "linear", "cubic"] {
            let tolerance = if mode == "nearest" { Tolerance::Exact } else { Tolerance::Rows };
            for coordinates in [
                "half_pixel",
                "half_pixel_symmetric",
                "pytorch_half_pixel",
                "asymmetric",
                "align_corners",
                "tf_half_pixel_for_nn",
            ] {
                if coordinates == "tf_half_pixel_for_nn" && mode != "nearest" {
                    continue;
                }
                let opset = if coordinates == "tf_half_pixel_for_nn" { "opset=11\n" } else { "" };
                if !opset.is_empty() && dtype == DType::BF16 {
                    continue;
                }
                for (scales, y) in
                    [("[1.0, 1.0, 2.0, 1.5]", "[1, 2, 8, 7]"), ("[1.0, 1.0, 0.6, 0.5]", "[1, 2, 2, 2]")]
                {
                    let roi = if opset.is_empty() { "_" } else { "%r" };
                    let call = format!(
                        "{opset}const %r : f32[0] = []\nconst %s : f32[4] = {scales}\nResize(%a, {roi}, %s) {{mode=\"{mode}\", coordinate_transformation_mode=\"{coordinates}\"}}"
                    );
                    let name = format!("Resize {mode} {coordinates} {scales}");
                    cases.push(node(&name, tolerance, &call, &[&format!("{t}{y}")], vec![x(&[1, 2, 4, 5])]));
                }
            }
            for more in ["antialias=1", "exclude_outside=1", "keep_aspect_ratio_policy=\"not_larger\""] {
                if mode == "nearest" && !more.starts_with("keep") {
                    continue;
                }
                let y = if more.starts_with("keep") { "[1, 2, 3, 3]" } else { "[1, 2, 3, 4]" };
                let call = format!(
                    "const %s : i64[2] = [3, 4]\nResize(%a, _, _, %s) {{mode=\"{mode}\", axes=[2, 3], {more}}}"
                );
                let name = format!("Resize {mode} {more}");
                cases.push(node(&name, tolerance, &call, &[&format!("{t}{y}")], vec![x(&[1, 2, 9, 9])]));
            }
        }
        for mode in ["linear", "nearest", "cubic"] {
            for padding in ["zeros", "border", "reflection"] {
                for aligned in [0, 1] {
                    let call = format!(
                        "opset=22\nGridSample(%a, %b) {{mode=\"{mode}\", padding_mode=\"{padding}\", align_corners={aligned}}}"
                    );
                    let grid: Vec<f32> = numbers(2 * 5 * 4 * 2, 112).iter().map(|x| x * 0.8).collect();
                    let name = format!("GridSample {mode} {padding} {aligned}");
                    cases.push(node(
                        &name,
                        Tolerance::Rows,
                        &call,
                        &[&format!("{t}[2, 3, 5, 4]")],
                        vec![x(&[2, 3, 6, 7]), tensor(DType::F32, &[2, 5, 4, 2], &grid)],
                    ));
                }
            }
        }
    }
    for nearest in ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"] {
        let call = format!(
            "const %s : f32[1] = [0.6]\nResize(%a, _, %s) {{nearest_mode=\"{nearest}\", coordinate_transformation_mode=\"asymmetric\"}}"
        );
        let name = format!("Resize {nearest}");
        cases.push(node(&name, Tolerance::Exact, &call, &["i64[6]"], vec![count(DType::I64, &[10])]));
    }
    let call = "const %r : f32[4] = [0.25, -0.5, 0.75, 1.25]\nconst %s : i64[2] = [5, 6]\nResize(%a, %r, _, %s) {mode=\"linear\", coordinate_transformation_mode=\"tf_crop_and_resize\", extrapolation_value=7.5}";
    cases.push(node(
        "Resize crops",
        Tolerance::Rows,
        call,
        &["f32[5, 6]"],
        vec![random(DType::F32, &[6, 4], 113)],
    ));
    let call = "opset=9\nconst %s : f32[3] = [1.0, 2.0, 3.0]\nUpsample(%a, %s) {mode=\"linear\"}";
    cases.push(node(
        "Upsample",
        Tolerance::Rows,
        call,
        &["f32[2, 6, 6]"],
        vec![random(DType::F32, &[2, 3, 2], 114)],
    ));
    let call = "opset=20\nGridSample(%a, %b)";
    let inputs = vec![random(DType::F32, &[1, 2, 3, 4, 5], 115), random(DType::F32, &[1, 2, 2, 3, 3], 116)];
    cases.push(node("GridSample 3-D", Tolerance::Rows, call, &["f32[1, 2, 2, 2, 3]"], inputs));
    for aligned in [0, 1] {
        let call =
            format!("const %s : i64[4] = [2, 3, 4, 5]\nAffineGrid(%a, %s) {{align_corners={aligned}}}");
        let name = format!("AffineGrid {aligned}");
        let theta = random(DType::F32, &[2, 2, 3], 117);
        cases.push(node(&name, Tolerance::Rows, &call, &["f32[2, 4, 5, 2]"], vec![theta]));
    }
}
