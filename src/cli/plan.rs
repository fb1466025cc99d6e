//! `ampc plan`: the plan of a model, and a lower bound of the time of each step.

use super::args::{DeviceArgs, PlanArgs};
use super::pipeline::{load, no_device, warn_of_reading};
use super::problem::Failure;
use super::progress::Progress;
use super::table::{Table, bytes, duration, number};
use super::ui::{self, Ui};
use super::{data, diagnose, settings, shown};
use ampc::execute::roofline::{Bottleneck, LeastBytes, Load, Roofline, StepBound, least};
use ampc::execute::{Plans, plans};
use ampc::ir::{Module, Node};
use ampc::passes::cost::{BoundInputs, OpenDim};
use ampc::passes::{Paths, Profile};
use ampc::runtime::Runtime;
use serde_json::{Value, json};
use std::sync::Arc;

/// The schema of the JSON of `plan --json`, `--profile-json` of `run`, and `--profile-json` of `train`.
pub(crate) const SCHEMA: &str = "ampc-profile/1";

/// The names of operators shown for a group.
const SHOWN_OPERATORS: usize = 4;

/// The groups of nodes with the largest excess that JSON lists.
const LISTED: usize = 20;

pub(crate) fn run(args: &PlanArgs, threads: Option<u32>, ui: Ui) -> Result<(), Failure> {
    let target = args.target.as_deref().map(settings::read_target).transpose()?;
    no_device(&args.model)?;
    let backend = data::backend(&DeviceArgs::of(args.device.clone(), args.rounding), threads, ui)?;
    let progress = Progress::start(ui);
    progress.stage("reading");
    let mut model = load(&args.model, ui)?;
    progress.suspend(|| warn_of_reading(&model, None, ui));
    let asked = data::dims(&args.dim)?;
    let of_dims = |error: ampc::passes::cost::UnknownDim| Failure::usage("dim", error.to_string());
    let inputs = BoundInputs::new(&model.module, &asked).map_err(of_dims)?;
    progress.stage("planning");
    let runtime = Runtime::new(backend);
    let planned = plans(&mut model.module, &inputs, &runtime).map_err(|error| {
        let failure = diagnose::failure(&error, Some(&model.module));
        match data::misfits(&inputs, &model.module) {
            Some((sizes, options)) => failure.with_help(format!("{sizes}; {options}")),
            None => failure,
        }
    })?;
    let bounds = LowerBounds::of(&model.module, &planned, target.as_ref());
    drop(progress);
    ampc::files::unchanged(&model.files()).map_err(|e| diagnose::failure(&e, None))?;
    if args.json {
        let mut document = bounds.json(&args.device, &|_| None);
        document["dims"] = inputs.dims.iter().map(|dim| (dim.name.clone(), json!(dim.size))).collect();
        return ui::print(&format!("{document:#}\n"));
    }
    let dims = dims_text(&inputs.dims);
    ui::show(&format!("{dims}{}\n{}", planned.to_text(), bounds.text()))
}

/// The sizes of open dims, on a line.
fn dims_text(dims: &[OpenDim]) -> String {
    let dims: Vec<String> = dims.iter().map(|dim| format!("{} = {}", dim.name, dim.size)).collect();
    if dims.is_empty() { String::new() } else { format!("dims {}\n", shown::message(&dims.join(", "))) }
}

/// The plans of a model with their bounds, and the names of its nodes.
pub(crate) struct LowerBounds<'a> {
    paths: Arc<Paths>,
    target: Option<&'a Profile>,
    pub(crate) roofline: Roofline,
    least: LeastBytes,
}

impl<'a> LowerBounds<'a> {
    /// The bounds of the plans of a module on a target; without a target, no times.
    pub(crate) fn of(module: &Module, plans: &Plans, target: Option<&'a Profile>) -> LowerBounds<'a> {
        let roofline = Roofline::of(plans, target);
        let main = plans.module().main();
        let main = roofline.graphs.iter().find(|graph| graph.graph == main);
        let least = main.map(|main| least(plans, main)).unwrap_or_default();
        LowerBounds { paths: Paths::of(module), target, roofline, least }
    }

    /// The path of the last node of a step; empty without nodes.
    fn last_node(&self, nodes: &[Node]) -> String {
        nodes.last().map_or_else(String::new, |&node| self.paths.path(node).to_owned())
    }

    /// A table of the steps of each graph, and the sums.
    fn text(&self) -> String {
        let mut text = String::new();
        for graph in &self.roofline.graphs {
            let on = self.target.map_or_else(String::new, |target| format!(" on {}", target.name));
            let runs = match graph.executions {
                1 => String::new(),
                runs => format!(", executed {} times", number(runs)),
            };
            text += &shown::message(&format!("lower bounds of graph {:?}{on}{runs}", graph.name));
            text.push('\n');
            let mut table = Table::new(0, &[true, false, true, true, true, true, true]);
            let heading = ["step", "operators", "read", "written", "operations", "launches"];
            table.row(
                heading.into_iter().chain(self.target.map(|_| ["least", "bound by"]).into_iter().flatten()),
            );
            for (at, step) in graph.steps.iter().enumerate() {
                let name = if step.nodes.is_empty() { String::new() } else { at.to_string() };
                table.row(self.row(name, operators(&step.operators), &step.load, step.bottleneck.as_str()));
            }
            table.row(self.row(String::new(), "all".into(), &graph.total, ""));
            text += &table.to_string();
            text.push('\n');
        }
        if let [_, _, ..] = &self.roofline.graphs[..] {
            let mut table = Table::new(0, &[true, false, true, true, true, true, true]);
            table.row(self.row(String::new(), "all graphs in a run".into(), &self.roofline.total, ""));
            text += &format!("{table}\n");
        }
        text + &self.comparison()
    }

    /// The bytes of the main graph beside the least possible.
    fn comparison(&self) -> String {
        let LeastBytes { least, planned, product_launches, other_launches, .. } = &self.least;
        format!(
            "bytes     {}, {} the least possible ({})\nlaunches  {} of products, convolutions and attention, {} others\n",
            bytes(*planned),
            ratio(*planned, *least),
            bytes(*least),
            number(*product_launches),
            number(*other_launches),
        )
    }

    fn row(&self, step: String, operators: String, load: &Load, limit: &str) -> Vec<String> {
        let operations = load.product.saturating_add(load.elementwise);
        let mut cells = vec![step, operators, bytes(load.read), bytes(load.written)];
        cells.extend([amount(operations), number(load.launches)]);
        if self.target.is_some() {
            cells.extend([duration(load.least), limit.to_owned()]);
        }
        cells
    }

    /// The bounds as JSON. `measured` returns the mean time of one execution of a step in picoseconds.
    pub(crate) fn json(&self, device: &str, measured: &dyn Fn(&StepBound) -> Option<u64>) -> Value {
        let graphs: Vec<Value> = self
            .roofline
            .graphs
            .iter()
            .map(|graph| {
                let step = |(at, step): (usize, &StepBound)| {
                    let mut fields = self.load_json(&step.load);
                    fields["step"] = json!(at);
                    fields["operators"] = json!(step.operators);
                    fields["last_node"] = json!(self.last_node(&step.nodes));
                    fields["bound_by"] = json!(
                        self.target
                            .filter(|_| step.bottleneck != Bottleneck::Nothing)
                            .map(|_| step.bottleneck.as_str())
                    );
                    fields["measured_ps"] = json!(measured(step));
                    fields
                };
                let steps: Vec<Value> = graph.steps.iter().enumerate().map(step).collect();
                json!({
                    "name": graph.name,
                    "executions": graph.executions,
                    "steps": steps,
                    "total": self.load_json(&graph.total),
                })
            })
            .collect();
        let LeastBytes { regions, least, planned, product_launches, other_launches } = &self.least;
        let n_regions = regions.len();
        let regions: Vec<Value> = regions
            .iter()
            .take(LISTED)
            .map(|region| {
                json!({
                    "first_node": self.paths.path(region.first),
                    "is_product": region.is_product,
                    "operators": region.operators,
                    "least_bytes": region.least,
                    "planned_bytes": region.planned,
                    "launches": region.launches,
                })
            })
            .collect();
        json!({
            "schema": SCHEMA,
            "device": device,
            "target": self.target.map(|target| &target.name),
            "graphs": graphs,
            "total": self.load_json(&self.roofline.total),
            "least_possible": {
                "bytes": least,
                "planned_bytes": planned,
                "product_launches": product_launches,
                "other_launches": other_launches,
                "n_regions": n_regions,
                "regions": regions,
            },
        })
    }

    fn load_json(&self, load: &Load) -> Value {
        json!({
            "read_bytes": load.read,
            "written_bytes": load.written,
            "product_operations": load.product,
            "elementwise_operations": load.elementwise,
            "launches": load.launches,
            "least_ps": self.target.map(|_| load.least),
        })
    }
}

/// Names of operators in a table: `MatMul+Add+2 more`.
pub(crate) fn operators(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN_OPERATORS).map(String::as_str).collect::<Vec<_>>().join("+");
    let more = names.len().saturating_sub(SHOWN_OPERATORS);
    if more > 0 { format!("{shown}+{more} more") } else { shown }
}

/// A number of operations with three digits: `980`, `12.3 M`, `1.60 G`.
fn amount(operations: u64) -> String {
    let text = bytes(operations);
    let text = text.strip_suffix('B').unwrap_or(&text).trim_end();
    text.to_owned()
}

/// A ratio with two decimals: `1.30 ×`.
#[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
pub(crate) fn ratio(part: u64, whole: u64) -> String {
    if whole == 0 { "- ×".into() } else { format!("{:.2} ×", part as f64 / whole as f64) }
}
