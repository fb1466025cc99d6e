//! Compares two models on the same inputs: the errors of outputs, and the first value in which the models differ.
//!
//! Both models run at the same time, and report their values as they are computed (`scope.rs`). A value of one model
//! waits until the other model has computed the value of the same name in the same graph. So only the two compared
//! values and the few waiting values are in memory; if the other model has another order of nodes, values wait
//! longer.
//!
//! The *verdict* depends on outputs. The *first* value beyond the tolerance, in the execution order of the model, is
//! where the difference arises: all values before it agree. The error that a node *adds* is its error minus the
//! largest error of its operands; it ranks the nodes where errors accumulate.

mod comparer;

use self::comparer::Comparer;
use super::Inputs;
use super::agree::Agreement;
use super::loops::{has_loop, limits_of_rewrites};
use super::scope::{Side, Teller, computed};
use crate::error::findings::op_of;
use crate::error::{Error, Finding};
use crate::execute::session::{bind_observed, prepare, run, views};
use crate::interface::output_names;
use crate::run_errors::of_run;
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::Paths;
use ampc_passes::suggest::listed;
use ampc_runtime::float::Format;
use ampc_runtime::session::ExecuteError;
use ampc_runtime::{Data, HostError, Limits, Runtime, Session, Tolerance};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

/// The number of values of one model that may wait for the other model.
const WAITING: usize = 2;

/// Options of a comparison.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// The backend and its limits. Each of the two models gets half of the memory. If one model fails, the other is
    /// stopped.
    pub runtime: Runtime,
    /// The allowed distance of floats; by default [`default_tolerance`].
    pub tolerance: Option<Tolerance>,
}

/// Result of comparing two models.
#[derive(Clone, Debug)]
pub struct Verification {
    /// The allowed distance of floats.
    pub tolerance: Tolerance,
    /// The origin of the tolerance.
    pub reason: String,
    /// The outputs, in order; with several draws of inputs, the draw with the largest error.
    pub outputs: Vec<Compared>,
    /// The outputs on each meaningful draw.
    pub by_draw: Vec<Vec<Compared>>,
    /// Every value that both models compute, in the order of the model; with several draws, iterations or calls at
    /// the same path, the value with the largest error.
    pub values: Vec<Compared>,
    /// The first value beyond the tolerance, with outputs after all other values, on the first draw on which an
    /// output is beyond the tolerance, or else on any draw.
    pub first: Option<Compared>,
    /// Values of the model without a counterpart.
    pub lone_values: Lone,
    /// Outputs of the other model without a counterpart.
    pub lone_outputs: Lone,
    /// Description of each draw of inputs, if there were several.
    pub draws: Vec<String>,
    /// Draws that are not meaningful: draws after the first on which the model cannot be computed.
    pub without: Vec<usize>,
    /// True if an element of an output was compared with a number.
    is_about_numbers: bool,
}

/// Values of a model without a counterpart in the other model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lone {
    /// The number of values without a counterpart.
    pub count: usize,
    /// The total number.
    pub of: usize,
    /// The name of the first value.
    pub first: Option<String>,
}

impl Lone {
    fn new(names: impl IntoIterator<Item = String>, of: usize) -> Lone {
        let mut names = names.into_iter();
        let first = names.next();
        Lone { count: usize::from(first.is_some()) + names.count(), of, first }
    }
}

/// A value of both models.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Its name.
    pub value: String,
    /// The node of the model that produces it, if there is one.
    pub node: Option<Node>,
    /// The path of the node; empty without a node.
    pub path: String,
    /// Its operator.
    pub op: String,
    /// The iterations of the loops around it.
    pub iterations: Vec<u64>,
    /// The draw of inputs, from 0.
    pub draw: usize,
    /// The errors, and the bound that applied to the elements.
    pub agreement: Agreement,
    /// The error of the value that rounding in its element type causes: the part of the bound that is not relative to
    /// the largest element, if the tolerance has such a relative part.
    pub noise: f64,
    /// The error relative to the largest expected element, minus the largest error of the node's operands; `None` if
    /// that is unknown.
    pub adds: Option<f64>,
}

impl Verification {
    /// True if all outputs agree.
    pub fn passed(&self) -> bool {
        self.outputs.iter().all(|output| output.agreement.passed())
    }

    /// True if an element of an output was compared with a number: two NaN give no evidence.
    pub fn says_something(&self) -> bool {
        self.is_about_numbers
    }

    /// True if every expected element of every output is 0 on all draws: a wrong rewrite of the nodes before would
    /// agree as well. False if no element was compared.
    pub fn is_all_zero(&self) -> bool {
        let mut outputs = self.by_draw.iter().flatten().peekable();
        outputs.peek().is_some() && outputs.all(|output| output.agreement.found.all_zero)
    }

    /// The draw of inputs with the errors of a value.
    pub fn draw_of(&self, value: &Compared) -> Option<&str> {
        self.draws.get(value.draw).map(String::as_str).filter(|_| self.draws.len() > 1)
    }

    /// The number of values beyond the tolerance.
    pub fn beyond(&self) -> usize {
        self.values.iter().filter(|value| !value.agreement.passed()).count()
    }

    /// Values in descending order of the error that their nodes add, without nodes that add no error.
    pub fn worst(&self) -> Vec<&Compared> {
        let mut worst: Vec<&Compared> =
            self.values.iter().filter(|v| v.adds.is_some_and(|adds| adds > 0.0)).collect();
        worst.sort_by(|a, b| b.adds.partial_cmp(&a.adds).unwrap_or(cmp::Ordering::Equal));
        worst
    }
}

/// The allowed difference between two ways to compute the same value in fp32 or wider, in unit roundoffs of the
/// largest expected element. The error of a sum of n terms grows as √n·u if the roundings are independent (Higham
/// and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019), so two
/// orders of a sum of n = 4096 terms differ by 2·64; this is twice that.
const ROUNDOFFS_WIDE: f64 = 256.0;
/// The same for 16-bit formats. Ideal rewrites of trained networks differ by at most 10, with three exceptions.
const ROUNDOFFS_LOW: f64 = 16.0;

/// The default tolerance and its reason: a number of unit roundoffs of the least precise float format in either
/// model, relative to the largest expected element. Formats of less than 16 bits are ignored, because that many of
/// their roundoffs exceed the element.
///
/// # Errors
/// If all floats have less than 16 bits.
pub fn default_tolerance(modules: &[&Module]) -> Result<(Tolerance, String), Error> {
    let values = modules.iter().flat_map(|module| {
        module.graph_ids().flat_map(|graph| module.defined(graph)).map(|value| module.value(value))
    });
    let formats = values.filter_map(|data| {
        let dtype = data.ty.element_dtype()?;
        Some((dtype, Format::of(dtype)?))
    });
    let (narrow, formats): (Vec<_>, Vec<_>) = formats.partition(|(dtype, _)| dtype.bits() < Some(16));
    let roundoff = |format: &Format| format.unit_roundoff();
    let lowest = formats.into_iter().max_by(|(_, a), (_, b)| roundoff(a).total_cmp(&roundoff(b)));
    let Some((dtype, format)) = lowest else {
        return match narrow.first() {
            None => Ok((Tolerance::EXACT, "there are no floats".into())),
            Some((dtype, _)) => Err(Error::Usage(format!(
                "there is no default tolerance for models whose floats all have less than 16 bits, such as {dtype}: \
                 give a tolerance (`--tolerance X`)"
            ))),
        };
    };
    let is_wide = matches!(dtype, DType::F32 | DType::F64 | DType::Complex64 | DType::Complex128);
    let n = if is_wide { ROUNDOFFS_WIDE } else { ROUNDOFFS_LOW };
    let tolerance = Tolerance { of_max: n * format.unit_roundoff(), ..Tolerance::EXACT };
    let of_those = if narrow.is_empty() { "" } else { " of 16 bits and more" };
    let reason =
        format!("{n} unit roundoffs of {dtype}, the least precise format{of_those}, of the largest element");
    Ok((tolerance, reason))
}

/// The default tolerance of a model that is lowered to a 16-bit format, as a share of the largest expected element.
pub fn default_tolerance_of(format: DType) -> f64 {
    ROUNDOFFS_LOW * Format::of(format).map_or(0.0, |format| format.unit_roundoff())
}

/// Runs both models on the same inputs, the inputs of `model`, and compares every value that both have.
///
/// # Errors
/// If a model is invalid or cannot be run, or the other model lacks an input or output of the first.
pub fn verify(
    model: &mut Module,
    other: &mut Module,
    inputs: &Inputs,
    options: &VerifyOptions,
) -> Result<Verification, Error> {
    verify_draws(model, other, std::slice::from_ref(inputs), options)
}

/// Like [`verify`], on several sets of inputs; the worst draw of each value is kept. A random draw after the first on which the
/// model cannot be computed is skipped.
///
/// # Errors
/// Errors as for [`verify`], also if the models have no inputs.
pub fn verify_draws(
    model: &mut Module,
    other: &mut Module,
    draws: &[Inputs],
    options: &VerifyOptions,
) -> Result<Verification, Error> {
    let pairs = pair_outputs(model, other)?;
    let first = draws.first().ok_or_else(|| Error::Usage("there are no inputs to compare on".into()))?;
    // Values that depend only on constants are compared as well.
    let limits = &options.runtime.limits;
    let limits = Limits { max_bytes: limits.max_bytes / 2, ..limits.clone() };
    let runtime = Runtime { limits, fold: false, ..options.runtime.clone() };
    let mut sessions = [prepare(model, &runtime)?, prepare(other, &runtime).map_err(in_other)?];
    // The flag of the caller is not modified.
    let stop = Arc::new(AtomicBool::new(false));
    sessions.iter_mut().for_each(|session| session.set_stop(stop.clone()));
    let (model, other) = (&*model, &*other);
    let other_first = first.for_other(model, other).map_err(in_other)?;
    bind_observed(&mut sessions[0], &first.values)?;
    let of_first = sessions[0].device_bytes().map_or(0, |bytes| bytes.total_in_flight());
    sessions[1].reserve_device_bytes(of_first);
    bind_observed(&mut sessions[1], &other_first.values).map_err(in_other)?;
    let (tolerance, reason) = match options.tolerance {
        Some(tolerance) => (tolerance, "asked for".to_owned()),
        None => default_tolerance(&[model, other])?,
    };
    let values: Vec<Value> = computed(model, &sessions[0]).collect();
    let (sides, without) = sides_of([model, other], &sessions, &values);
    let mut comparer = Comparer::new(&sides[0], tolerance);
    let mut summary = Summary::default();
    for (draw, inputs) in draws.iter().enumerate() {
        let other_inputs = inputs.for_other(model, other).map_err(in_other)?;
        comparer.begin(draw, draw == 0 || !inputs.is_random);
        let told = run_both(&mut sessions, [inputs, &other_inputs], &sides, &mut comparer, &stop);
        let (wanted, found, compared) = told.map_err(|error| no_thread(model, &error))?;
        let (wanted, found) = match (wanted, found) {
            (Ok(wanted), Ok(found)) => (wanted, found),
            (Err(error), _) if draw > 0 && inputs.is_random && is_of_values(&error) => {
                summary.without.push(draw);
                stop.store(false, Ordering::Relaxed);
                continue;
            }
            // A run is stopped because the other run failed.
            (Ok(_) | Err(ExecuteError::Stopped), Err(error)) => return Err(in_other(of_run(other, &error))),
            (Err(error), _) => return Err(of_run(model, &error)),
        };
        compared.map_err(|error| Error::Unsupported(error.to_string()))?;
        summary.add(comparer.outputs(&wanted, &found, &pairs), comparer.first.take());
    }
    let lone = values.iter().filter(|v| without.contains(v) || comparer.is_lone(**v));
    let lone_values = Lone::new(lone.map(|&v| ampc_ir::verify::name_of(model, v)), values.len());
    Ok(Verification {
        tolerance,
        reason,
        outputs: summary.outputs,
        by_draw: summary.by_draw,
        values: std::mem::take(&mut comparer.values),
        first: summary.first,
        lone_values,
        lone_outputs: lone_outputs(other, &pairs),
        draws: draws.iter().map(|inputs| inputs.about.clone()).collect(),
        without: summary.without,
        is_about_numbers: summary.is_about_numbers,
    })
}

/// The values that both models report, and the values of the first model that the second lacks.
fn sides_of<'m>(
    [model, other]: [&'m Module; 2],
    sessions: &[Session; 2],
    values: &[Value],
) -> ([Side<'m>; 2], FxHashSet<Value>) {
    let mut sides = [Side::new(model, &sessions[0]), Side::new(other, &sessions[1])];
    let names = [sides[1].names(&sessions[1]), sides[0].names(&sessions[0])];
    let shared =
        |value: &Value| model.value_name(*value).is_some_and(|name| names[0].contains(model.text(name)));
    let without: FxHashSet<Value> = values.iter().copied().filter(|value| !shared(value)).collect();
    for ((side, session), names) in sides.iter_mut().zip(sessions).zip(&names) {
        side.keep(session, names);
    }
    (sides, without)
}

/// Results of the draws so far.
#[derive(Default)]
struct Summary {
    outputs: Vec<Compared>,
    by_draw: Vec<Vec<Compared>>,
    first: Option<Compared>,
    /// True if an output is beyond the tolerance.
    failed: bool,
    without: Vec<usize>,
    is_about_numbers: bool,
}

impl Summary {
    fn add(&mut self, outputs: Vec<Compared>, first: Option<Compared>) {
        let off = outputs.iter().find(|output| !output.agreement.passed());
        self.is_about_numbers |= outputs.iter().any(|output| output.agreement.found.finite > 0);
        if self.first.is_none() || (off.is_some() && !self.failed) {
            self.first = first.or_else(|| off.cloned()).or_else(|| self.first.take());
        }
        self.failed |= off.is_some();
        self.by_draw.push(outputs.clone());
        if self.outputs.is_empty() {
            self.outputs = outputs;
            return;
        }
        for (old, new) in self.outputs.iter_mut().zip(outputs) {
            if is_worse(&new.agreement, &old.agreement) {
                *old = new;
            }
        }
    }
}

/// A runtime for a model and its rewrites on these inputs. If `runtime` does not limit the iterations of loops, a Loop may run
/// for 16 times the iterations of the model, or 1024 if that is more: rounding may keep the loop of a rewrite from ending.
///
/// # Errors
/// If the model has a Loop and cannot be run.
pub fn runtime_of_rewrites(model: &Module, inputs: &[Inputs], runtime: &Runtime) -> Result<Runtime, Error> {
    let limits = match has_loop(model) {
        true => {
            let mut session = prepare(&mut model.clone(), runtime)?;
            limits_of_rewrites(&mut session, inputs, &runtime.limits)?
        }
        false => runtime.limits.clone(),
    };
    Ok(Runtime { limits, ..runtime.clone() })
}

/// The problem of the other model, if it cannot be computed on inputs on which the model can be computed.
pub fn not_computed(model: &Module, other: &Module, draws: &[Inputs], runtime: &Runtime) -> Option<Finding> {
    let mut session = prepare(&mut model.clone(), runtime).ok()?;
    let mut other_session = prepare(&mut other.clone(), runtime).ok()?;
    draws.iter().find_map(|inputs| {
        run(&mut session, &inputs.values).ok()?;
        let inputs = inputs.for_other(model, other).ok()?;
        match run(&mut other_session, &inputs.values) {
            Err(Error::Run(finding)) => Some(finding),
            _ => None,
        }
    })
}

/// True if a value has a larger error than another.
fn is_worse(new: &Agreement, old: &Agreement) -> bool {
    match (new.passed(), old.passed()) {
        (false, true) => true,
        (true, false) => false,
        _ => new.found.of_bound() > old.found.of_bound() || new.error() > old.error(),
    }
}

/// True if a run failed because of the values of its inputs, such as an index out of range.
fn is_of_values(error: &ExecuteError) -> bool {
    matches!(error, ExecuteError::Node { error, .. } if !error.is_no_memory())
        || matches!(error, ExecuteError::Iterations { .. } | ExecuteError::NoOutput { .. })
}

/// Runs both models concurrently and compares their values as they arrive. Fails if no thread can be started.
fn run_both<'s>(
    [first, second]: &mut [Session; 2],
    [inputs, other_inputs]: [&Inputs; 2],
    [side, other_side]: &'s [Side<'s>; 2],
    comparer: &mut Comparer<'s>,
    stop: &AtomicBool,
) -> std::io::Result<(Ran, Ran, Result<(), HostError>)> {
    std::thread::scope(|scope| {
        let (to_wanted, wanted_events) = sync_channel(WAITING);
        let (to_found, found_events) = sync_channel(WAITING);
        let (teller, other_teller) = (Teller::new(side, to_wanted), Teller::new(other_side, to_found));
        let thread = || std::thread::Builder::new().name("verify".into()).stack_size(STACK);
        let run_first = || run_told(first, &inputs.values, teller, stop);
        let wanted = thread().spawn_scoped(scope, run_first)?;
        let run_second = || run_told(second, &other_inputs.values, other_teller, stop);
        // Without the second thread, the first model would wait forever.
        let found =
            thread().spawn_scoped(scope, run_second).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
        let compared = comparer.compare(&wanted_events, &found_events);
        // Runs continue without receivers.
        drop((wanted_events, found_events));
        Ok((joined(wanted.join()), joined(found.join()), compared))
    })
}

/// The stack of the two threads that run models. Graphs run in the runtime's own threads, or in these threads if the
/// system starts no other thread.
const STACK: usize = 4 << 20;

/// The error if the system cannot start a thread for a model.
fn no_thread(model: &Module, error: &std::io::Error) -> Error {
    let place = model.text(model.graph(model.main()).name).to_owned();
    let message = format!("cannot start a thread to run it: {error}");
    Error::NoMemory(Finding { code: "no_memory", node: None, place, op: None, message, label: None })
}

/// Adds the role of the model to an error.
fn in_other(error: Error) -> Error {
    let said = |message: String| format!("in the other model: {message}");
    let of = |finding: Finding| Finding { message: said(finding.message), ..finding };
    match error {
        Error::Run(finding) => Error::Run(of(finding)),
        Error::NoMemory(finding) => Error::NoMemory(of(finding)),
        Error::Invalid(findings) => Error::Invalid(findings.into_iter().map(of).collect()),
        Error::Unsupported(message) => Error::Unsupported(said(message)),
        Error::Usage(message) => Error::Usage(said(message)),
        Error::Inputs(mut problems) => {
            problems.iter_mut().for_each(|problem| problem.message = said(problem.message.clone()));
            Error::Inputs(problems)
        }
        other => other,
    }
}

/// Runs a model that reports its values. If it fails, it stops the other model, which might never end.
fn run_told(
    session: &mut Session,
    inputs: &[Option<Data>],
    mut teller: Teller<'_>,
    stop: &AtomicBool,
) -> Ran {
    let ran = session.run_observed(&views(inputs), Some(&mut teller));
    if ran.is_err() {
        stop.store(true, Ordering::Relaxed);
    }
    ran
}

type Ran = Result<Vec<Data>, ExecuteError>;

fn joined(result: std::thread::Result<Ran>) -> Ran {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// For every output of the model, the index of the corresponding output of the other model.
fn pair_outputs(model: &Module, other: &Module) -> Result<Vec<usize>, Error> {
    let names = output_names(other);
    let mut places = FxHashMap::default();
    for (at, name) in names.iter().enumerate() {
        places.entry(name).or_insert(at);
    }
    let find = |name: &String| {
        places.get(name).copied().ok_or_else(|| {
            let found = listed(names.iter().map(String::as_str));
            Error::Usage(format!(
                "the other model has no output `{name}`: expected the outputs of the first, found {found}"
            ))
        })
    };
    output_names(model).iter().map(find).collect()
}

/// The outputs of the other model that the model lacks.
fn lone_outputs(other: &Module, pairs: &[usize]) -> Lone {
    let names = output_names(other);
    let of = names.len();
    // Several outputs may be the same value with the same name.
    let paired: FxHashSet<String> = pairs.iter().map(|&at| names[at].clone()).collect();
    Lone::new(names.into_iter().filter(|name| !paired.contains(name)), of)
}

/// Results for the outputs of a model, with the noise of each output and the nodes that produce them.
pub fn of_outputs(module: &Module, found: impl IntoIterator<Item = (Agreement, f64)>) -> Vec<Compared> {
    let paths = Paths::of(module);
    let outputs = module.graph(module.main()).outputs();
    let rows = outputs.iter().zip(output_names(module)).zip(found);
    rows.map(|((output, value), (agreement, noise))| {
        let node = module.producer(output.value).map(|(node, _)| node);
        Compared {
            value,
            node,
            path: node.map_or_else(String::new, |node| paths.path(node).to_owned()),
            op: node.map_or_else(String::new, |node| op_of(module, node)),
            iterations: Vec::new(),
            draw: 0,
            agreement,
            noise,
            adds: None,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::text::{NoData, parse};

    fn compared(model: &str, other: &str) -> Verification {
        let module = |body: &str| {
            let text = format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n{body}}}\n");
            parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"))
        };
        let (mut model, mut other) = (module(model), module(other));
        let inputs = Inputs::random(&model, 1, &Default::default(), 1 << 20).unwrap();
        verify(&mut model, &mut other, &inputs, &VerifyOptions::default()).unwrap()
    }

    /// A model that fails stops the other model, not the caller, and clears no flag of the caller.
    #[test]
    fn the_flag_of_the_caller_stays_as_it_is() {
        let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[4]\n  %y = Relu(%x) : f32[4]\n  \
                    output %y : f32[4]\n}\n";
        let [mut model, mut other] = [0, 1].map(|_| parse(text, &NoData).unwrap_or_else(|e| panic!("{e}")));
        let inputs = Inputs::random(&model, 1, &Default::default(), 1 << 20).unwrap();
        for is_set in [false, true] {
            let flag = Arc::new(AtomicBool::new(is_set));
            let mut options = VerifyOptions::default();
            options.runtime.limits.stop = Some(flag.clone());
            options.runtime.limits.time_limit = Some(std::time::Duration::ZERO);
            assert!(verify(&mut model, &mut other, &inputs, &options).is_err());
            assert_eq!(flag.load(Ordering::Relaxed), is_set);
        }
    }

    fn names(found: &Verification) -> Vec<&str> {
        found.values.iter().map(|v| v.value.as_str()).collect()
    }

    #[test]
    fn values_wait_for_a_model_in_another_order() {
        let head = "  input %x : f32[4]\n";
        let [h, g] = ["  %h = Relu(%x) : f32[4]\n", "  %g = Tanh(%x) : f32[4]\n"];
        let tail = "  %y = Add(%h, %g) : f32[4]\n  output %y : f32[4]\n";
        let found = compared(&[head, h, g, tail].concat(), &[head, g, h, tail].concat());
        assert!(found.passed() && found.first.is_none());
        assert_eq!(names(&found), ["h", "g", "y"]);
    }

    #[test]
    fn what_only_one_model_computes_is_passed_over() {
        let branch = |name: &str, op: &str| {
            format!(
                "    {name}: graph @{name}(%x) {{\n      %{op} = {op}(%x) : f32[4]\n      output %{op} : f32[4]\n    }}"
            )
        };
        let model = |taken: bool| {
            let (yes, no) = (branch("then_branch", "Relu"), branch("else_branch", "Tanh"));
            format!(
                "  input %x : f32[4]\n  const %c : bool = {taken}\n  %b = Neg(%x) : f32[4]\n  \
                 %a = If(%c; %x) {{\n{yes},\n{no}\n  }} : f32[4] @choose\n  %y = Add(%a, %b) : f32[4] @sum\n  \
                 output %y : f32[4]\n"
            )
        };
        let model = |taken| model(taken).replace("Neg(%x)", "Sigmoid(%x)");
        let found = compared(&model(true), &model(false));
        assert_eq!(names(&found), ["b", "a", "y"]);
        let first = found.first.as_ref().unwrap();
        assert_eq!((first.path.as_str(), first.op.as_str()), ("choose", "If"));
        let same = compared(&model(true), &model(true));
        assert_eq!(names(&same), ["b", "Relu", "a", "y"]);
        assert_eq!(same.values[1].path, "choose/then_branch/Relu");
    }

    #[test]
    fn loops_that_run_less_often_are_compared_as_far_as_they_run() {
        let model = |trips: u32, factor: f32| {
            format!(
                "  input %x : f32[4]\n  const %n : i64 = {trips}\n  const %k : f32 = {factor:?}\n  \
                 %y = Loop(%n, _, %x; %k) {{\n    body: graph @body(%k) {{\n      input %i : i64\n      \
                 input %c : bool\n      input %s : f32[4]\n      %t = Mul(%s, %k) : f32[4] @mul\n      \
                 output %c : bool\n      output %t : f32[4]\n    }}\n  }} : f32[4] @loop\n  \
                 %z = Tanh(%y) : f32[4] @end\n  output %z : f32[4]\n"
            )
        };
        let found = compared(&model(3, 0.5), &model(2, 0.5));
        assert_eq!(names(&found), ["t", "y", "z"]);
        assert!(found.values[0].agreement.passed());
        assert_eq!(found.first.as_ref().map(|f| f.path.as_str()), Some("loop"));
        let found = compared(&model(3, 0.5), &model(3, 0.25));
        let first = found.first.unwrap();
        assert_eq!((first.path.as_str(), &first.iterations[..]), ("loop/body/mul", &[0][..]));
        // The worst iteration is kept.
        assert_eq!(found.values[0].iterations, [2]);
    }

    /// Neither values nor results are kept for iterations that only one model runs.
    #[test]
    fn iterations_of_one_model_are_not_held() {
        let model = |trips: u32| {
            let text = format!(
                "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[4]\n  const %n : i64 = {trips}\n  \
                 const %yes : bool = true\n  %y = Loop(%n, _, %x; %yes) {{\n    body: graph @body(%yes) {{\n      \
                 input %i : i64\n      input %c : bool\n      input %s : f32[4]\n      \
                 %t, %u = If(%yes; %s) {{\n        then_branch: graph @then(%s) {{\n          \
                 %p = Tanh(%s) : f32[4]\n          %q = Neg(%s) : f32[4]\n          output %p : f32[4]\n          \
                 output %q : f32[4]\n        }},\n        else_branch: graph @else(%s) {{\n          \
                 output %s : f32[4]\n          output %s : f32[4]\n        }}\n      }} : f32[4], f32[4] @choose\n      \
                 %v = Add(%t, %u) : f32[4]\n      output %c : bool\n      output %v : f32[4]\n    }}\n  }} : f32[4] @loop\n  \
                 %z = Tanh(%y) : f32[4] @end\n  output %z : f32[4]\n}}\n"
            );
            parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"))
        };
        for (trips, others) in [(2, 50), (50, 2), (50, 50)] {
            let (mut model, mut other) = (model(trips), model(others));
            let inputs = Inputs::random(&model, 1, &Default::default(), 1 << 20).unwrap();
            let held = held_at_most(&mut model, &mut other, &inputs);
            assert!(held <= 4, "{trips} and {others}: {held}");
        }
    }

    /// The maximum number of values and prefixes that a comparison holds after any event of the model.
    fn held_at_most(model: &mut Module, other: &mut Module, inputs: &Inputs) -> usize {
        let runtime = Runtime { fold: false, ..Runtime::default() };
        let mut sessions = [prepare(model, &runtime).unwrap(), prepare(other, &runtime).unwrap()];
        sessions.iter_mut().for_each(|e| bind_observed(e, &inputs.values).unwrap());
        let sides = [Side::new(model, &sessions[0]), Side::new(other, &sessions[1])];
        let [wanted, found] = [0, 1].map(|i| {
            let (sender, receiver) = std::sync::mpsc::sync_channel(1 << 16);
            let teller = Teller::new(&sides[i], sender);
            run_told(&mut sessions[i], &inputs.values, teller, &AtomicBool::new(false)).unwrap();
            receiver
        });
        let mut comparer = Comparer::new(&sides[0], Tolerance::EXACT);
        let mut most = 0;
        for event in wanted {
            comparer.event(event, &found).unwrap();
            most = most.max(comparer.waiting.len() + comparer.done.len() + comparer.closed.len());
        }
        most
    }
}
