use super::*;

#[test]
fn every_profile_is_read_and_has_its_name() {
    for &(name, _) in PROFILES {
        let profile = Profile::preset(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(profile.name, name);
        assert!(profile.description.ends_with('.') || profile.description.ends_with(')'), "{name}");
    }
    assert_eq!(Profile::default().name, "generic");
    let error = Profile::preset("a10").unwrap_err().to_string();
    assert_eq!(
        error,
        "no target is called `a10`; targets are generic, ampc-cpu, ampc-cuda, ort-cpu, ort-cuda, tensorrt, v100, t4, a100, l4, h100, h200; a file \
         ends in `.json`; did you mean `a100`?"
    );
}

/// A number stands beside its source, which is a document or says that it is assumed.
#[test]
fn every_number_and_list_has_a_source() {
    fn walk(json: &serde_json::Value, name: &str, count: &mut usize) {
        match json {
            serde_json::Value::Object(fields) => {
                if let Some(source) = fields.get("source") {
                    let source = source.as_str().unwrap();
                    assert!(
                        source.starts_with("assumption: ")
                            || source.starts_with("docs/")
                            || source.contains("https://"),
                        "{name}: {source}"
                    );
                }
                for (key, field) in fields {
                    let claims = field.is_number() || field.as_array().is_some_and(|a| a[0].is_string());
                    assert!(!claims || fields.contains_key("source"), "{name}: `{key}`");
                    *count += usize::from(field.is_number());
                    walk(field, name, count);
                }
            }
            serde_json::Value::Array(elements) => elements.iter().for_each(|e| walk(e, name, count)),
            _ => {}
        }
    }
    for (name, text) in PROFILES {
        let mut count = 0;
        walk(&serde_json::from_str(text).unwrap(), name, &mut count);
        let profile = Profile::preset(name).unwrap();
        let extends = text.contains("\"extends\"");
        assert_eq!(count, if extends { 0 } else { profile.numbers().len() }, "{name}");
        assert!(profile.numbers().iter().all(|(.., number)| number.value > 0));
    }
}

fn schema(name: &str) -> &'static OpSchema {
    let (domain, name) = name.rsplit_once("::").unwrap_or(("", name));
    op::versions(domain, name).last().unwrap()
}

#[test]
fn facts_about_kernels() {
    let profile = |name| Profile::preset(name).unwrap();
    let has = |target, op, format| profile(target).has_kernel(schema(op), format);
    for op in ["MatMul", "Conv", "Add", "Softmax", "com.microsoft::FusedMatMul"] {
        assert!(!has("ort-cpu", op, DType::F16) && !has("ort-cpu", op, DType::BF16), "{op}");
        assert!(has("generic", op, DType::F16) && has("generic", op, DType::BF16), "{op}");
        assert!(has("ort-cpu", op, DType::F32));
        assert!(!has("v100", op, DType::BF16) && has("v100", op, DType::F16), "{op}");
    }
    assert!(has("ort-cpu", "Transpose", DType::BF16) && has("v100", "Transpose", DType::BF16));
    assert!(has("ort-cuda", "ReduceMean", DType::F16) && !has("ort-cuda", "ReduceMean", DType::BF16));
    assert!(!has("ort-cuda", "GridSample", DType::F16));
    assert!(profile("a100").is_fp32_inside(schema("LayerNormalization")));
    assert!(profile("a100").is_view(schema("Reshape")) && !profile("a100").is_view(schema("Transpose")));
    let fused = |target, from, to| profile(target).is_fused(schema(from), schema(to));
    assert!(fused("tensorrt", "Add", "Relu") && !fused("tensorrt", "MatMul", "Relu"));
    assert!(!fused("a100", "Add", "Relu"));
    let once = |target, op, format| profile(target).rounds_once(schema(op), format).is_some();
    assert!(once("ort-cuda", "Softmax", DType::F16) && !once("ort-cuda", "Softmax", DType::BF16));
    assert!(once("ampc-cpu", "Exp", DType::BF16) && !once("generic", "Softmax", DType::F16));
}

#[test]
fn a_profile_takes_absent_fields_from_the_profile_that_it_extends() {
    let file = |fields: &str| {
        format!(r#"{{"schema": "ampc-target/1", "name": "mine", "description": "Mine.", {fields}}}"#)
    };
    let h200 = Profile::preset("h200").unwrap();
    let mine =
        Profile::from_json(&file(r#""extends": "h200", "memory": {"value": 5, "source": "s"}"#)).unwrap();
    assert_eq!((mine.memory.value, &mine.matmul), (5, &h200.matmul));
    assert_eq!(mine.fp32_inside, h200.fp32_inside);
    let error = Profile::from_json(&file(r#""memory": {"value": 5, "source": "s"}"#)).unwrap_err();
    assert!(error.to_string().ends_with("missing field `launch`"), "{error}");
}

#[test]
fn time_is_rounded_up_and_never_overflows() {
    assert_eq!(picoseconds(0, 7), 0);
    assert_eq!(picoseconds(1, 1_000_000), 1);
    assert_eq!(picoseconds(1, 3_000_000), 1);
    assert_eq!(picoseconds(7, 2_000_000), 4);
    assert_eq!(picoseconds(7, 2), 3_500_000);
    assert_eq!(picoseconds(u64::MAX, 1), u64::MAX);
    assert_eq!(picoseconds(u64::MAX, u64::MAX), 1_000_000);
}

#[test]
fn a_file_is_not_called_like_a_profile_that_comes_with_ampc() {
    let generic = PROFILES[0].1;
    let of_user = |text: &str| Profile::from_json(text).and_then(Profile::of_user);
    let error = of_user(generic).unwrap_err().to_string();
    assert!(error.contains("`generic` is a target of ampc"), "{error}");
    let mine = generic.replacen("\"name\": \"generic\"", "\"name\": \"mine\"", 1);
    assert_eq!(of_user(&mine).unwrap().name, "mine");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let generic = PROFILES[0].1;
    let of = |from: &str, to: &str| {
        assert!(generic.contains(from), "{from}");
        Profile::from_json(&generic.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let cases = [
        (
            "ampc-target/1",
            "ampc-target/2",
            "line 2, column 13: expected schema `ampc-target/1`, found `ampc-target/2`",
        ),
        (
            "\"matmul\"",
            "\"matmull\"",
            "line 5, column 11: unknown field `matmull`, expected one of `schema`, `name`, `description`, `extends`, `matmul`, `elementwise`, `memory`, `launch`, `kernels`, `fp32_inside`, `rounds_once`, `views`, `fusions`; did you mean `matmul`?",
        ),
        (
            "\"value\": 10000000",
            "\"value\": 0",
            "line 6, column 5: `matmul.fp32`: expected a rate of at least 1, found 0",
        ),
        (
            "\"value\": 10000000",
            "\"value\": 1.5",
            "line 6, column 25: invalid type: floating point `1.5`, expected a whole number",
        ),
        ("\"value\": 10000000", "\"value\": -1", "invalid type: integer `-1`, expected a whole number"),
        (
            "\"Softmax\"",
            "\"Sotfmax\"",
            "no operator that ampc knows is called `Sotfmax`; did you mean `Softmax`?",
        ),
        (
            "\"@products\"",
            "\"@product\"",
            "no group is called `@product`; groups are @products, @elementwise, @moves; did you mean `@products`?",
        ),
        (
            "\"source\": \"assumption: a hypothetical accelerator, which hands buffers on\"",
            "\"source\": \" \"",
            "`views.source`: expected a document or `assumption: …`, found nothing",
        ),
        (
            "\"fp32_inside\": {",
            "\"kernels\": {\"fp16\": {\"source\": \"s\"}},\n  \"fp32_inside\": {",
            "`kernels.fp16`: expected one of `only` and `except`, found none",
        ),
        (
            "\"fp32_inside\": {",
            "\"rounds_once\": [{\"ops\": [\"Softmax\"], \"formats\": [\"fp8\"], \"source\": \"s\"}],\n  \"fp32_inside\": {",
            "`rounds_once.formats`: expected fp16 or bf16, found `fp8`",
        ),
        (
            "\"fp32_inside\": {",
            "\"rounds_once\": [{\"ops\": [\"Softmax\"], \"formats\": [\"fp16\"], \"source\": \"assumption: so\"}],\n  \"fp32_inside\": {",
            "`rounds_once`: expected a document, a line of code or a measurement as the source, found an assumption",
        ),
        (
            "\"matmul\"",
            "\"extends\": \"h20\",\n  \"matmul\"",
            "line 5, column 14: `extends`: no target is called `h20`",
        ),
    ];
    for (from, to, expected) in cases {
        let found = of(from, to);
        assert!(found.contains(expected), "{to}: {found}");
    }
    let first = |text: &str| Profile::from_json(text).unwrap_err().to_string();
    assert_eq!(first("[]"), "line 1, column 1: expected an object, found an array");
    assert_eq!(first("{}"), "line 1, column 1: expected `\"schema\": \"ampc-target/1\"`, found none");
    assert_eq!(
        first("{\n"),
        "line 2, column 0: the file is empty or ends too early (EOF while parsing an object)"
    );
}

#[test]
fn profiles_are_written_as_they_are_read() {
    for (name, text) in PROFILES {
        let profile = Profile::from_json(text).unwrap();
        assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile, "{name}");
        let mut other = profile.clone();
        other.fp16_kernels =
            Kernels::Only(OpList { ops: profile.fp32_inside.ops.clone(), source: "a test".into() });
        let set = OpSet { products: true, ops: ["Add".to_owned()].into(), ..OpSet::default() };
        other.fusions.push(Fusion { from: set.clone(), to: set, source: "a test".into() });
        assert_eq!(Profile::from_json(&other.to_json()).unwrap(), other, "{name}");
        assert!(profile.is_preset() && !other.is_preset());
    }
}
