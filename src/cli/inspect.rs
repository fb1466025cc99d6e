//! `ampc inspect`: the content of a model.

use super::args::InspectArgs;
use super::diagnose::{self, type_text};
use super::emit::source_bytes;
use super::pipeline::load;
use super::problem::Failure;
use super::progress::Progress;
use super::table::{Table, bytes, number};
use super::ui::{self, Ui};
use ampc::Model;
use ampc::ir::module::{GraphOwner, Provenance};
use ampc::ir::op::OpKind;
use ampc::ir::text::escape_hidden_in_json;
use ampc::ir::verify::name_of;
use ampc::ir::views::{NodeView, constant_node_data};
use ampc::ir::{DType, Module, TensorData, Value};
use ampc::passes::policy::node_key;
use serde::Serialize;
use std::collections::BTreeMap;

/// The facts that `ampc inspect` prints about a model.
#[derive(Debug, Serialize)]
struct Inspection {
    schema: &'static str,
    /// Size of the model and of the files of its external data.
    bytes: Option<u64>,
    external_bytes: Option<u64>,
    ir_version: i64,
    opsets: BTreeMap<String, u16>,
    producer: String,
    producer_version: String,
    model_version: i64,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// In all graphs.
    nodes: u64,
    bodies: u64,
    functions: u64,
    casts: Casts,
    /// Elements of float constants.
    parameters: u64,
    constants: BTreeMap<String, Constants>,
    ops: BTreeMap<String, u64>,
    /// Results of nodes by element type, as far as it can be inferred.
    results: BTreeMap<String, u64>,
    /// Problems that `ampc check` names.
    problems: u64,
    warnings: u64,
}

#[derive(Debug, Serialize)]
struct Port {
    name: String,
    #[serde(rename = "type")]
    ty: String,
}

#[derive(Debug, Default, Serialize)]
struct Casts {
    total: u64,
    /// The number of casts that ampc inserted.
    inserted: u64,
}

#[derive(Debug, Default, Serialize)]
struct Constants {
    count: u64,
    elements: u64,
    bytes: u64,
}

pub(crate) fn run(args: &InspectArgs, ui: Ui) -> Result<(), Failure> {
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    let problems = ampc::check(&mut model.module).len() as u64;
    let sizes = source_bytes(&model, &args.model);
    let inspection = inspect(&model, problems, sizes);
    drop(progress);
    ampc::files::unchanged(&model.files()).map_err(|e| diagnose::failure(&e, None))?;
    if args.json {
        let json = serde_json::to_value(&inspection).unwrap_or_default();
        return ui::print(&escape_hidden_in_json(&format!("{json:#}\n")));
    }
    ui::show(&text(&args.model.display().to_string(), &inspection))
}

fn inspect(model: &Model, problems: u64, sizes: Option<(u64, u64)>) -> Inspection {
    let module = &model.module;
    let header = &module.header;
    let main = module.graph(module.main());
    let mut it = Inspection {
        schema: "ampc-inspect/1",
        bytes: sizes.map(|(bytes, _)| bytes),
        external_bytes: sizes.map(|(_, bytes)| bytes),
        ir_version: header.ir_version,
        opsets: header.opsets.iter().map(|&(d, v)| (domain(module.text(d)), v)).collect(),
        producer: header.producer_name.clone(),
        producer_version: header.producer_version.clone(),
        model_version: header.model_version,
        inputs: main.inputs().iter().map(|&v| port(module, v)).collect(),
        outputs: main.outputs().iter().map(|o| port(module, o.value)).collect(),
        nodes: 0,
        bodies: 0,
        functions: module.functions().count() as u64,
        casts: Casts::default(),
        parameters: 0,
        constants: BTreeMap::new(),
        ops: BTreeMap::new(),
        results: BTreeMap::new(),
        problems,
        warnings: model.warnings.len() as u64,
    };
    for graph in module.graph_ids() {
        it.bodies += u64::from(matches!(module.graph(graph).owner, GraphOwner::Body { .. }));
        for &constant in module.graph(graph).constants() {
            if let Some(data) = module.constant(constant).and_then(|p| p.dense()) {
                it.constant(data);
            }
        }
        for node in module.nodes(graph) {
            it.nodes += 1;
            *it.ops.entry(node_key(module, node)).or_default() += 1;
            let data = module.node(node);
            for &result in data.results().iter().flatten() {
                let dtype = module.value(result).ty.element_dtype();
                *it.results.entry(dtype.map_or_else(|| "unknown".into(), |d| d.to_string())).or_default() +=
                    1;
            }
            let Some(view) = NodeView::new(module, node) else { continue };
            if view.kind() == OpKind::Cast {
                it.casts.total += 1;
                it.casts.inserted += u64::from(data.provenance == Provenance::Inserted);
            }
            if let Some(data) = constant_node_data(&view) {
                it.constant(&data);
            }
        }
    }
    it
}

impl Inspection {
    fn constant(&mut self, data: &TensorData) {
        let entry = self.constants.entry(data.dtype().to_string()).or_default();
        entry.count += 1;
        entry.elements = entry.elements.saturating_add(data.element_count());
        entry.bytes = entry.bytes.saturating_add(data.byte_len());
        if data.dtype().is_float() || data.dtype() == DType::F64 {
            self.parameters = self.parameters.saturating_add(data.element_count());
        }
    }
}

fn domain(text: &str) -> String {
    if text.is_empty() { "ai.onnx".into() } else { text.to_owned() }
}

fn port(module: &Module, value: Value) -> Port {
    Port { name: name_of(module, value), ty: type_text(module, value) }
}

/// Inputs and outputs that are listed.
const PORTS: usize = 100;
/// Operators that are listed.
const OPS: usize = 200;

fn text(name: &str, it: &Inspection) -> String {
    let mut table = Table::new(0, &[]);
    let size = match (it.bytes, it.external_bytes) {
        (Some(n), None | Some(0)) => bytes(n),
        (Some(n), Some(data)) => format!("{} and {} of external data", bytes(n), bytes(data)),
        (None, _) => "unknown".into(),
    };
    let opsets: Vec<String> = it.opsets.iter().map(|(d, v)| format!("{d} {v}")).collect();
    let producer = format!("{} {}", it.producer, it.producer_version);
    table.row(["model".to_owned(), name.to_owned()]);
    table.row(["size".to_owned(), size]);
    table.row(["format".to_owned(), format!("IR {}, opset {}", it.ir_version, opsets.join(", "))]);
    if !producer.trim().is_empty() {
        table.row(["producer".to_owned(), producer.trim().to_owned()]);
    }
    for (word, ports) in [("input", &it.inputs), ("output", &it.outputs)] {
        for port in ports.iter().take(PORTS) {
            table.row([word.to_owned(), format!("{}: {}", port.name, port.ty)]);
        }
        if ports.len() > PORTS {
            let more = number((ports.len() - PORTS) as u64);
            table.row([String::new(), format!("and {more} more {word}s (`--json` has all)")]);
        }
    }
    let mut nodes = number(it.nodes);
    for (n, what) in [(it.bodies, "bodies"), (it.functions, "functions")] {
        if n > 0 {
            nodes.push_str(&format!(", {} {what}", number(n)));
        }
    }
    table.row(["nodes".to_owned(), nodes]);
    table.row(["parameters".to_owned(), number(it.parameters)]);
    let casts = format!("{}, {} of them inserted by ampc", number(it.casts.total), number(it.casts.inserted));
    table.row(["casts".to_owned(), casts]);
    if it.problems > 0 {
        table.row(["problems".to_owned(), format!("{} (`ampc check` names them)", number(it.problems))]);
    }
    if it.warnings > 0 {
        table.row(["warnings".to_owned(), format!("{} (`ampc check` names them)", number(it.warnings))]);
    }
    let mut text = table.to_string();
    text.push_str("\nconstants\n");
    let mut table = Table::new(2, &[false, true, true, true]);
    for (dtype, c) in &it.constants {
        table.row([
            dtype.clone(),
            number(c.count),
            format!("{} elements", number(c.elements)),
            bytes(c.bytes),
        ]);
    }
    text.push_str(&format!("{table}\nresults\n{}\noperators\n{}", counts(&it.results), counts(&it.ops)));
    text
}

/// The most frequent first.
fn counts(of: &BTreeMap<String, u64>) -> Table {
    let mut rows: Vec<(&String, u64)> = of.iter().map(|(k, &n)| (k, n)).collect();
    rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let mut table = Table::new(2, &[false, true]);
    for (key, n) in rows.iter().take(OPS) {
        table.row([(*key).clone(), number(*n)]);
    }
    if rows.len() > OPS {
        table.row([format!("and {} more (`--json` has all)", number((rows.len() - OPS) as u64))]);
    }
    table
}
