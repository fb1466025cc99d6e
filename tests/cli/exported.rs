//! `ampc train-step` of models that PyTorch's default exporter wrote: what is trained, and what a warning says.
//!
//! The files of testdata/exported are made by `tests/judge/exporters.py --write`.

use super::support::{Dir, Run, module};
use ampc::execute::training::Checkpoint;
use ampc::train::init_state;

/// A folder with an export, and with the text of the same model.
fn folder(name: &str) -> Dir {
    let dir = Dir::new();
    dir.copy(&format!("{}/testdata/exported/{name}.onnx", env!("CARGO_MANIFEST_DIR")), "m.onnx");
    dir
}

fn step(dir: &Dir, model: &str, more: &[&str]) -> Run {
    let args = ["-o", "s.onnx", "--state", "s.safetensors", "--loss", "mse", "--fp32", "-v", "--force"];
    let optimizer: &[&str] = if more.contains(&"--optimizer") { &[] } else { &["--optimizer", "sgd"] };
    dir.run(&[&["train-step", model], &args[..], optimizer, more].concat())
}

/// The trained tensors, each with the parameter of PyTorch that it is if that is called otherwise, and what was said, on one
/// line.
fn trained(run: &Run) -> (Vec<String>, String) {
    assert_eq!(run.code, 0, "{run}");
    let said = format!("{}{}", run.stdout, run.stderr).replace("\n  | ", " ");
    let lines = said.lines().filter_map(|line| line.strip_prefix("parameter   "));
    let names = lines.map(|line| match line.split_once(" (") {
        Some((own, origin)) => {
            let own = own.split(' ').next().unwrap_or_default();
            format!("{own}={}", origin.split(' ').next().unwrap_or_default())
        }
        None => line.split(' ').next().unwrap_or_default().to_owned(),
    });
    (names.collect(), said.clone())
}

/// Buffers that are constants of the file are not trained: masks of ones, shifts and projections.
#[test]
fn buffers_are_not_trained() {
    let (names, said) = trained(&step(&folder("buffer_masks"), "m.onnx", &[]));
    assert_eq!(names, ["l.bias", "val_0=l.weight"]);
    assert!(said.contains("2 of the 2 parameters of the exported program"), "{said}");
    assert!(!said.contains("warning"), "{said}");
}

/// LayerNormalization gains of ones and biases of zeros, which the exporter has merged, are taken apart; weights that it has
/// transposed are the parameters that they were.
#[test]
fn merged_parameters_are_taken_apart() {
    let (mut names, said) = trained(&step(&folder("layer_norm"), "m.onnx", &[]));
    names.sort();
    let wanted = [
        "0.bias",
        "0.weight",
        "1.bias",
        "2.bias",
        "2.weight",
        "4.bias",
        "5.bias",
        "5.weight",
        "val_2=1.weight",
        "val_6=4.weight",
    ];
    assert_eq!(names, wanted, "{said}");
    assert!(said.contains("10 of the 10") && !said.contains("warning"), "{said}");
}

/// A tied embedding that the exporter has folded into a second constant, transposed, is one parameter again.
#[test]
fn a_tied_embedding_stays_tied() {
    let (names, said) = trained(&step(&folder("tied_modules"), "m.onnx", &[]));
    assert_eq!(names, ["l.bias", "head.weight", "val_0=l.weight"], "{said}");
    assert!(!said.contains("parameters.untied"), "{said}");
    let same = "parameter `emb.weight` is in the file as the same tensor as `head.weight`, which is right if the two are tied in PyTorch";
    assert!(said.contains(same) && !said.contains("optimize=False"), "{said}");
}

/// exp(logit_scale) is a constant of the file, which is not trained; the warning names both.
#[test]
fn a_folded_parameter_is_named() {
    let dir = folder("clip_temperature");
    let (names, said) = trained(&step(&dir, "m.onnx", &["--report", "r.json"]));
    assert_eq!(names, ["a.weight", "b.weight"], "{said}");
    assert!(said.contains("parameters.folded") && said.contains("`logit_scale` (in `exp`)"), "{said}");
    assert!(said.contains("2 of the 3 parameters of the exported program"), "{said}");
    let report = std::fs::read_to_string(dir.path("r.json")).unwrap();
    assert!(report.contains("\"name\": \"logit_scale\",\n      \"why\": \"folded into `exp`\""), "{report}");
}

/// BatchNormalization that the exporter folded into convolutions: its parameters are named, and the products too.
#[test]
fn folded_batch_normalization_is_named() {
    let (_, said) = trained(&step(&folder("resnet_block_eval"), "m.onnx", &[]));
    for name in
        ["bn1.weight", "bn1.bias", "bn2.weight", "down.1.bias", "c1.weight", "c2.weight", "down.0.weight"]
    {
        assert!(said.contains(&format!("`{name}`")), "{name}: {said}");
    }
    assert!(said.contains("8 of") || said.contains("of the 11 parameters"), "{said}");
    // The recipe that works at once, and no other.
    assert!(said.contains("TrainingMode.TRAINING") && !said.contains("optimize=False"), "{said}");
}

/// Products of BatchNormalization that are frozen are not said to be trained.
#[test]
fn frozen_products_are_not_trained_as_products() {
    let dir = folder("resnet_block_eval");
    let said = |more: &[&str]| trained(&step(&dir, "m.onnx", more)).1;
    let all = said(&[]);
    assert!(
        all.contains("`c1.weight`, `c2.weight`, `down.0.weight`, which are trained as products: "),
        "{all}"
    );
    let one = said(&["--freeze", "c*.weight"]);
    let wanted = "`down.0.weight`, of which `down.0.weight` is trained as a product: ";
    assert!(one.contains(wanted), "{one}");
    let none = said(&["--freeze", "c*.weight", "--freeze", "down.0.weight"]);
    assert!(none.contains("`down.0.weight`: ") && !none.contains("as a product"), "{none}");
}

/// A model of the exporter that has computed a constant from parameters; `reader` reads it as `%val_0`.
fn computed(parameters: &str, shape: &str, reader: &str) -> String {
    let signature = r"\n# inputs\np_a: PARAMETER target='g.a'\np_b: PARAMETER target='g.b'\np_w: PARAMETER target='w'\nx: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n";
    module(&format!(
        "  meta pkg.torch.export.ExportedProgram.graph_signature = \"{signature}\"\n  input %x : f32[4, 1, 2]\n  \
         const %val_0 : {shape} = random(1, 1.0) meta {{pkg.onnxscript.optimizer.folded_from=\"{parameters}\"}}\n  \
         const %r : f32[1, 9, 3] = random(2, 1.0)\n  const %w : f32[3, 2] = random(3, 1.0) \
         meta {{pkg.torch.export.graph_signature.InputSpec.kind=\"PARAMETER\", pkg.torch.onnx.original_node_name=\"p_w\"}}\n\
         {reader}  output %y\n"
    ))
}

/// A parameter in a constant that only an operator without a gradient reads cannot be trained: no other export helps.
#[test]
fn a_parameter_folded_for_a_recurrent_operator_has_no_recipe() {
    let dir = Dir::new();
    let gru = "  %h, %last = GRU(%x, %val_0, %r) {hidden_size=3} : f32[4, 1, 1, 3], f32[1, 1, 3]\n  \
               %y = MatMul(%last, %w) : f32[1, 1, 2]\n";
    dir.write("m.ir", computed("['p_a', 'p_b']", "f32[1, 9, 2]", gru));
    let (names, said) = trained(&step(&dir, "m.ir", &[]));
    assert_eq!(names, ["w"], "{said}");
    let why = "parameters cannot be trained, since the exporter has computed constants from them for GRU, which has no gradient: \
               `g.a` (in `val_0`), `g.b` (in `val_0`)";
    assert!(said.contains(why) && !said.contains("optimize=False"), "{said}");
    let mul = "  %h = Mul(%x, %val_0) : f32[4, 1, 2]\n  %t = Transpose(%w) {perm=[1, 0]} : f32[2, 3]\n  \
               %y = MatMul(%h, %t) : f32[4, 1, 3]\n";
    dir.write("m.ir", computed("['p_a', 'p_b']", "f32[2]", mul));
    let (_, said) = trained(&step(&dir, "m.ir", &[]));
    assert!(
        said.contains("parameters are not trained as in PyTorch") && said.contains("optimize=False"),
        "{said}"
    );
    // With no other parameter the model is refused, for the same reason.
    let alone = computed("['p_a', 'p_b', 'p_w']", "f32[1, 9, 2]", gru);
    let alone = alone.replace("MatMul(%last, %w) : f32[1, 1, 2]", "Relu(%last) : f32[1, 1, 3]");
    let alone: Vec<&str> = alone.lines().filter(|line| !line.contains("const %w ")).collect();
    dir.write("m.ir", alone.join("\n"));
    let run = step(&dir, "m.ir", &[]);
    let said = run.stderr.replace("\n  | ", " ");
    assert!(run.code != 0 && said.contains("they are read by GRU, which has no gradient"), "{run}");
    assert!(!said.contains("optimize=False"), "{run}");
}

/// A parameter that no node of the program reads has no gradient in PyTorch either: no other export helps. If the program may
/// read it, the warning names the export that keeps it.
#[test]
fn a_parameter_that_the_program_does_not_read_has_no_recipe() {
    let dir = Dir::new();
    let model = |reads: &str| {
        let signature = r"\n# inputs\np_w: PARAMETER target='w'\np_v: PARAMETER target='v'\nx: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n";
        module(&format!(
            "  meta pkg.torch.export.ExportedProgram.graph_signature = \"{signature}\"\n  input %x : f32[4, 3]\n  \
             const %w : f32[3, 2] = random(3, 1.0) meta {{pkg.torch.onnx.original_node_name=\"p_w\"}}\n  \
             %y = MatMul(%x, %w) : f32[4, 2] meta {{pkg.torch.onnx.fx_node=\"%matmul : [num_users=1] = \
             call_function[target=torch.ops.aten.matmul.default](args = ({reads}), kwargs = {{}})\"}}\n  output %y\n"
        ))
    };
    dir.write("m.ir", model("%x, %p_w"));
    let (names, said) = trained(&step(&dir, "m.ir", &["--report", "r.json"]));
    assert_eq!(names, ["w"], "{said}");
    assert!(
        said.contains(
            "no node of the exported program reads parameter `v`: it is trained only if it is tied to another one, as that one"
        ),
        "{said}"
    );
    assert!(!said.contains("optimize=False"), "{said}");
    assert!(std::fs::read_to_string(dir.path("r.json")).unwrap().contains("\"why\": \"read by no node\""));
    // A result that is not in the file may have read it.
    dir.write("m.ir", model("%x, %t_1"));
    let (_, said) = trained(&step(&dir, "m.ir", &[]));
    assert!(said.contains("parameter `v` is not in the file") && said.contains("optimize=False"), "{said}");
}

/// BatchNormalization that trains in PyTorch and is written for inference is named; its statistics are not trained.
#[test]
fn lost_statistics_are_named() {
    let (names, said) = trained(&step(&folder("bn_before_conv"), "m.onnx", &[]));
    assert!(
        said.contains("parameters.statistics") && said.contains("BatchNormalization `0` trains in PyTorch"),
        "{said}"
    );
    assert!(!names.iter().any(|name| name.contains("running")), "{names:?}");
    assert_eq!(names.len(), 6, "{names:?}");
}

/// Metadata survive the text form and a step: the text trains as the file does, and so does the exported forward model.
#[test]
fn signatures_survive_texts_and_steps() {
    for name in ["layer_norm", "tied_modules", "clip_temperature"] {
        let dir = folder(name);
        let (mut wanted, _) = trained(&step(&dir, "m.onnx", &[]));
        wanted.sort();
        let text = dir.run(&["rewrite", "m.onnx", "--emit", "text", "-o", "m.ir", "--policy", "none"]);
        let text = if text.code == 0 {
            text
        } else {
            dir.run(&["opt", "m.onnx", "--passes", "dce", "--emit", "text", "-o", "m.ir"])
        };
        assert_eq!(text.code, 0, "{text}");
        let (mut found, _) = trained(&step(&dir, "m.ir", &[]));
        found.sort();
        assert_eq!(found, wanted, "{name}: of the text");
        let (_, _) = trained(&step(&dir, "m.onnx", &[]));
        let exported = dir.run(&[
            "train-step",
            "--export",
            "s.onnx",
            "--state",
            "s.safetensors",
            "-o",
            "trained.onnx",
            "--force",
        ]);
        assert_eq!(exported.code, 0, "{exported}");
        let (mut found, said) = trained(&step(&dir, "trained.onnx", &[]));
        found.sort();
        assert_eq!(found, wanted, "{name}: trained on: {said}");
    }
}

const LINEAR: &str = "  input %x : f32[4, 3]\n  const %w : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n  \
                      const %scale : f32 = [2.0]\n  %h = MatMul(%x, %w) : f32[4, 2]\n  %y = Mul(%h, %scale) : f32[4, 2]\n  \
                      output %y\n";

fn with_signature(signature: &str) -> String {
    let meta = format!("  meta pkg.torch.export.ExportedProgram.graph_signature = \"{signature}\"\n");
    module(&format!("{meta}{LINEAR}"))
}

/// A number of one element that the signature calls a parameter is trained, and `--decay` and `--freeze` take names of PyTorch.
#[test]
fn a_signature_outranks_looks() {
    let dir = Dir::new();
    let lines = r"\n# inputs\np_w: PARAMETER target='w'\np_scale: PARAMETER target='scale'\nx: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n";
    dir.write("m.ir", with_signature(lines));
    assert_eq!(trained(&step(&dir, "m.ir", &[])).0, ["w", "scale"]);
    assert_eq!(trained(&step(&dir, "m.ir", &["--freeze", "scale"])).0, ["w"]);
    dir.write(
        "m.ir",
        with_signature(&lines.replace("p_w: PARAMETER", "b_w: BUFFER").replace("'w'", "'w' persistent=True")),
    );
    assert_eq!(trained(&step(&dir, "m.ir", &[])).0, ["scale"]);
    let dir = folder("layer_norm");
    let run = step(&dir, "m.onnx", &["--freeze", "*", "--train", "1.*"]);
    assert_eq!(trained(&run).0, ["1.bias", "val_2=1.weight"], "{run}");
    assert_eq!(step(&dir, "m.onnx", &["--decay", "1.weight=0.5"]).code, 0);
}

/// A signature that is damaged or of another model is told, and parameters are found as in a file without one.
#[test]
fn damaged_signatures_are_told() {
    for text in [
        "nonsense",
        "",
        r"# inputs\np_w: WEIGHT target='w'",
        r"# inputs\np_w: PARAMETER target='w'\nb_w: BUFFER target='w' persistent=True",
        r"# inputs\np_v: PARAMETER target='v'",
        r"# inputs\nx: USER_INPUT",
        "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARA",
        "{",
    ] {
        let dir = Dir::new();
        dir.write("m.ir", with_signature(text));
        let run = step(&dir, "m.ir", &[]);
        let (names, said) = trained(&run);
        assert_eq!(names, ["w"], "{text}: {run}");
        assert!(said.contains("parameters.signature"), "{text}: {run}");
    }
}

/// A number that is not trained is told with the options that train it.
#[test]
fn an_untrained_number_is_told_with_the_command() {
    let dir = Dir::new();
    dir.write("m.ir", module(LINEAR));
    let (names, said) = trained(&step(&dir, "m.ir", &[]));
    assert_eq!(names, ["w"]);
    assert!(said.contains("NOT trained (`scale`)") && said.contains("add `--train scale`"), "{said}");
    assert_eq!(trained(&step(&dir, "m.ir", &["--train", "scale"])).0, ["w", "scale"]);
}

/// `--freeze '*' --train 'head*'` trains the head and nothing else; of two patterns the more specific one holds.
#[test]
fn the_more_specific_of_freeze_and_train_holds() {
    let dir = Dir::new();
    let body = "  input %x : f32[4, 2]\n  const %body : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]\n  \
                const %head_w : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]\n  const %head_b : f32[2] = [1.0, 2.0]\n  \
                %h = MatMul(%x, %body) : f32[4, 2]\n  %p = MatMul(%h, %head_w) : f32[4, 2]\n  \
                %y = Add(%p, %head_b) : f32[4, 2]\n  output %y\n";
    dir.write("m.ir", module(body));
    let of = |more: &[&str]| trained(&step(&dir, "m.ir", more)).0;
    assert_eq!(of(&["--freeze", "*", "--train", "head*"]), ["head_w", "head_b"]);
    assert_eq!(of(&["--train", "*", "--freeze", "head*"]), ["body"]);
    assert_eq!(of(&["--train", "head*", "--freeze", "head_b"]), ["body", "head_w"]);
    assert_eq!(of(&["--train", "body", "--freeze", "body"]), ["head_w", "head_b"]);
}

/// `--stop-gradient h` leaves what is before h without gradient, and the report has the option.
#[test]
fn no_gradient_passes_a_stopped_value() {
    let dir = Dir::new();
    let body = "  input %x : f32[4, 2]\n  const %a : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]\n  \
                const %b : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]\n  %h = MatMul(%x, %a) : f32[4, 2]\n  \
                %y = MatMul(%h, %b) : f32[4, 2]\n  output %y\n";
    dir.write("m.ir", module(body));
    let run = step(&dir, "m.ir", &["--stop-gradient", "h", "--freeze-unused", "--report", "r.json"]);
    assert_eq!(trained(&run).0, ["b"]);
    let report = std::fs::read_to_string(dir.path("r.json")).unwrap();
    assert!(report.contains("\"stop_gradient\": [\n      \"h\"\n    ]"), "{report}");
    let unreached = step(&dir, "m.ir", &["--stop-gradient", "h"]);
    assert_eq!(unreached.code, 3, "{unreached}");
    let nothing = step(&dir, "m.ir", &["--stop-gradient", "hh"]);
    assert_eq!(nothing.code, 2, "{nothing}");
    assert!(
        nothing.stderr.replace("\n  | ", " ").contains("`hh` matches no result of a node of the main graph"),
        "{nothing}"
    );
}

/// A bias that nodes read in parts, as an attention reads its joint bias of zeros, is not taken for several that were merged.
#[test]
fn a_bias_that_is_read_in_parts_is_not_merged() {
    let dir = Dir::new();
    let body = "  input %x : f32[4, 2]\n  const %w : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]\n  const %bias : f32[4] = [0.0, 0.0, 0.0, 0.0]\n  \
                const %zero : i64[1] = [0]\n  const %two : i64[1] = [2]\n  const %four : i64[1] = [4]\n  \
                %h = MatMul(%x, %w) : f32[4, 2]\n  %p = Slice(%bias, %zero, %two) : f32[2]\n  \
                %q = Slice(%bias, %two, %four) : f32[2]\n  %a = Add(%h, %p) : f32[4, 2]\n  %b = Add(%h, %q) : f32[4, 2]\n  \
                %y = Mul(%a, %b) : f32[4, 2]\n  output %y\n";
    dir.write("m.ir", module(body));
    let (names, said) = trained(&step(&dir, "m.ir", &[]));
    assert_eq!(names, ["w", "bias"]);
    assert!(!said.contains("parameters.merged"), "{said}");
    let twice = body.replace("Slice(%bias, %zero, %two) : f32[2]", "Neg(%bias) : f32[4]");
    let twice = twice.replace("Slice(%bias, %two, %four) : f32[2]", "Abs(%bias) : f32[4]");
    let twice = twice
        .replace("f32[4] = [0.0, 0.0, 0.0, 0.0]", "f32[2] = [0.0, 0.0]")
        .replace(": f32[4]\n", ": f32[2]\n");
    dir.write("m.ir", module(&twice));
    assert!(trained(&step(&dir, "m.ir", &[])).1.contains("parameters.merged"));
}

/// An unoptimised export of an embedding that is tied to the head of its model.
fn tied(scope: &str) -> String {
    let signature = r"\n# inputs\np_wte_weight: PARAMETER target='lm.wte.weight'\np_head_weight: PARAMETER target='head.weight'\ni: USER_INPUT\n\n# outputs\nlinear: USER_OUTPUT\n";
    let parameter = "meta {pkg.torch.export.graph_signature.InputSpec.kind=\"PARAMETER\", pkg.torch.onnx.original_node_name=\"p_head_weight\"}";
    let made_for = |name: &str, op: &str, args: &str, scopes: &str| {
        format!(
            "meta {{pkg.torch.onnx.fx_node=\"%{name} : [num_users=1] = call_function[target=torch.ops.aten.{op}.default](args = \
             ({args}), kwargs = {{}})\"{scopes}}}"
        )
    };
    let gather = made_for("embedding", "embedding", "%p_head_weight, %i", scope);
    let linear = made_for("linear", "linear", "%embedding, %p_head_weight", "");
    module(&format!(
        "  meta pkg.torch.export.ExportedProgram.graph_signature = \"{signature}\"\n  input %i : i64[2]\n  \
         const %head.weight : f32[3, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] {parameter}\n  \
         %embedding = Gather(%head.weight, %i) : f32[2, 2] {gather}\n  \
         %val_0 = Transpose(%head.weight) {{perm=[1, 0]}} : f32[2, 3] {linear}\n  \
         %linear = MatMul(%embedding, %val_0) : f32[2, 3] {linear}\n  output %linear\n"
    ))
}

/// A tied parameter is not missing if the metadata of nodes show that it is tied; if they do not, the warning says which
/// parameter has its tensor, and names no remedy that was applied.
#[test]
fn a_tied_parameter_is_not_missing() {
    let dir = Dir::new();
    dir.write("m.ir", tied(", pkg.torch.onnx.name_scopes=\"['', 'lm', 'lm.wte', 'embedding']\""));
    let (names, said) = trained(&step(&dir, "m.ir", &["--report", "r.json"]));
    assert_eq!(names, ["head.weight"], "{said}");
    assert!(!said.contains("warning"), "{said}");
    assert!(
        said.contains("1 of the 1 parameters of the exported program, and 1 parameter tied to one of them"),
        "{said}"
    );
    let report = std::fs::read_to_string(dir.path("r.json")).unwrap();
    assert!(!report.contains("lm.wte.weight"), "{report}");
    // A node of another module proves nothing.
    for scope in ["", ", pkg.torch.onnx.name_scopes=\"['', 'other', 'embedding']\""] {
        dir.write("m.ir", tied(scope));
        let (_, said) = trained(&step(&dir, "m.ir", &[]));
        let same = "parameter `lm.wte.weight` is in the file as the same tensor as `head.weight`, which is right if the two are tied";
        assert!(said.contains(same) && !said.contains("optimize=False"), "{said}");
    }
}

/// Dropouts that drop nothing are named, and those of an attention are told as what the legacy exporter makes of them.
#[test]
fn dropouts_in_inference_mode_are_named() {
    let dir = Dir::new();
    let body = "  input %x : f32[4, 2]\n  const %w : f32[2, 2] = [1.0, 2.0, 3.0, 4.0]\n  const %ratio : f32 = 0.1\n  \
                %h = MatMul(%x, %w) : f32[4, 2]\n  %p = Softmax(%h) : f32[4, 2] @softmax\n  \
                %d = Dropout(%p, %ratio) : f32[4, 2] @attn_drop\n";
    let attention = "PyTorch's legacy exporter writes the dropout of `scaled_dot_product_attention` without `training_mode`";
    dir.write("m.ir", module(&format!("{body}  output %d\n")));
    let said = trained(&step(&dir, "m.ir", &[])).1;
    assert!(
        said.contains("1 Dropout of attention (`attn_drop`) drops nothing") && said.contains(attention),
        "{said}"
    );
    assert!(!said.contains("export the model for training"), "{said}");
    dir.write("m.ir", module(&format!("{body}  %y = Dropout(%d, %ratio) : f32[4, 2] @late\n  output %y\n")));
    let said = trained(&step(&dir, "m.ir", &[])).1;
    assert!(said.contains("1 Dropout (`late`) drops nothing; export the model for training"), "{said}");
    assert!(said.contains("(`attn_drop`)") && said.contains(attention), "{said}");
}

/// `--init` with the `state_dict` of the model: a weight that the exporter has transposed and renamed is taken under its name
/// in PyTorch, and transposed. A matrix with other dims is named with both names.
#[test]
fn weights_of_a_state_dict() {
    let dir = folder("layer_norm");
    trained(&step(&dir, "m.onnx", &[]));
    let model = ampc::load(dir.path("s.onnx")).unwrap();
    let file = |rows: u16, columns: u16| {
        let header = format!(
            r#"{{"1.weight":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[0,{0}]}},"0.bias":{{"dtype":"F32","shape":[8],"data_offsets":[{0},{1}]}}}}"#,
            4 * rows * columns,
            4 * rows * columns + 32,
        );
        let floats = (0..rows * columns + 8).flat_map(|i| f32::from(i).to_le_bytes());
        let head = (header.len() as u64).to_le_bytes();
        [&head[..], header.as_bytes(), &floats.collect::<Vec<u8>>()].concat()
    };
    dir.write("own.safetensors", file(8, 8));
    dir.write("other.safetensors", file(4, 8));
    let init = |name: &str| {
        let mut state = Checkpoint::read(&dir.path("s.safetensors")).unwrap().state;
        let found = init_state(&model.module, &mut state, &dir.path(name)).unwrap();
        let weight = state.into_iter().find(|(name, _)| name == "val_2").unwrap().1;
        (found, weight.to_bytes().unwrap())
    };
    let (found, weight) = init("own.safetensors");
    let transposed = (0..64u16).flat_map(|i| f32::from(i % 8 * 8 + i / 8).to_le_bytes()).collect::<Vec<u8>>();
    assert!(weight == transposed);
    assert_eq!((found.taken.len(), found.missing.len(), found.renamed), (2, 8, Vec::new()));
    let (found, _) = init("other.safetensors");
    assert_eq!(found.renamed, [("val_2".to_owned(), "1.weight".to_owned())]);
    assert_eq!(found.missing.len(), 9);
}

/// A tied parameter goes by both of its names.
#[test]
fn a_tied_parameter_has_two_names() {
    let dir = Dir::new();
    dir.write("m.ir", tied(", pkg.torch.onnx.name_scopes=\"['', 'lm', 'lm.wte', 'embedding']\""));
    for name in ["lm.wte.weight", "head.weight"] {
        let frozen = step(&dir, "m.ir", &["--freeze", name]);
        assert!(
            frozen.code != 0 && frozen.stderr.contains("but for those that are frozen"),
            "{name}: {frozen}"
        );
        let decayed = step(&dir, "m.ir", &["--optimizer", "adamw", "--decay", &format!("{name}=0")]);
        assert_eq!(decayed.code, 0, "{name}: {decayed}");
    }
}
