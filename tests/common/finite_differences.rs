//! Gradients of autodiff, computed on the CPU backend, against central differences.
//!
//! The loss of a graph is the sum of its float outputs, each element times a fixed number of its own, in f64. A gradient
//! g is compared with (loss(x + h) − loss(x − h)) / 2h: element by element, or if there are more than [`ELEMENTS`], along
//! [`DIRECTIONS`] random directions. With h = [`STEP`] the difference is off by h² of the third derivative and by the
//! rounding of the loss over h, both below 10⁻⁹ for numbers around 1; [`TOLERANCE`] leaves room for steeper functions
//! and is far below what any wrong term of a formula makes. Where a function has a kink within the step, a smaller one
//! decides.

use ampc_ir::edit::Position;
use ampc_ir::module::{Def, Role};
use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::verify::name_of;
use ampc_ir::{AttrValue, DType, Inserter, Module, NodeSpec, Payload, Type, Value};
use ampc_passes::Policy;
use ampc_passes::autodiff::{GRAD, LOSS, PARAMETER, with_role};
use ampc_passes::pipeline::Pipeline;
use ampc_runtime::{Cpu, DataRef, HostTensor, Runtime, Session};
use half::f16;

/// The step of a difference, and how far a gradient may be off, relative to the largest element of its tensor.
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;
/// The same where something is computed in f32: the loss is rounded at 10⁻⁷.
const STEP_F32: f64 = 1e-2;
const TOLERANCE_F32: f64 = 1e-3;
/// The same for graphs that are computed in f16, where every value on the way has an error of up to 2⁻¹¹ of itself.
const LOW_TOLERANCE: f64 = 0.03;
/// Gradients below this are as good as 0: what the loss is rounded by, over the step.
const LEAST: f64 = 1e-4;
/// The number of elements that are checked one by one.
const ELEMENTS: usize = 64;
/// The number of directions that are checked if there are more elements.
const DIRECTIONS: usize = 8;

const PASSES: &str = "autodiff{outputs=gradients}";
const FREEZING: &str = "autodiff{outputs=gradients, unreached=freeze}";

/// Numbers in [−1, 1) that are the same every time and that f16 holds.
fn numbers(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        // splitmix64 (Steele, Lea and Flood, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let number = u32::try_from(z >> 54).expect("ten bits");
        f64::from(number) / 512.0 - 1.0
    }
}

/// A graph with its loss, and the same with gradients.
pub(crate) struct Differentiated {
    forward: Session,
    backward: Session,
    inputs: Vec<HostTensor>,
    parameters: Vec<Parameter>,
    /// Which of the inputs those of the graph with gradients are.
    given: Vec<usize>,
    unreached: Unreached,
    text: String,
    step: f64,
    tolerance: f64,
}

/// An input that gets a gradient.
#[derive(Clone)]
struct Parameter {
    input: usize,
    name: String,
    /// The output that is its gradient; none if the loss does not depend on it.
    gradient: Option<usize>,
}

/// The gradients of parameters, by their names.
pub(crate) struct Exact {
    pub(crate) gradients: Vec<(String, Vec<f64>)>,
    /// The numbers by which the loss multiplies the elements of the output.
    pub(crate) weights: Vec<f64>,
}

/// Handling of parameters that the loss does not depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// They are an error, and so are gradients of 0: nothing would be tested.
    Error,
    /// Their gradient is 0.
    Freeze,
}

fn text_of(module: &Module) -> String {
    print(module, &PrintOptions::default()).text
}

fn read(text: &str) -> Result<Module, String> {
    let mut module = parse(text, &NoData).map_err(|errors| format!("{errors}"))?;
    ampc_ir::infer::infer_module(&mut module).map_err(|errors| format!("{errors:?}"))?;
    Ok(module)
}

fn default_of(module: &Module, value: Value) -> Result<HostTensor, String> {
    let payload = match &module.value(value).def {
        Def::Input { default, .. } => default.as_ref().and_then(Payload::dense),
        _ => None,
    };
    let data = payload.ok_or_else(|| format!("input `{}` has no value", name_of(module, value)))?;
    HostTensor::from_data(data).map_err(|error| error.to_string())
}

fn is_float(ty: &Type) -> bool {
    ty.dtype().is_some_and(DType::is_float)
}

fn add_role(module: &mut Module, role: &str, value: Value) {
    let name = module.intern(role);
    let main = module.main();
    module.graph_roles_mut(main).0.push(Role { name, values: vec![value] });
}

fn run(pipeline: &str, module: &mut Module) -> Result<(), String> {
    let pipeline = Pipeline::parse(pipeline, &Policy::preset).map_err(|error| error.to_string())?;
    match pipeline.run(module, true, &mut ()) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error}")),
    }
}

fn prepare(module: &Module) -> Result<Session, String> {
    let cpu = Runtime::from(Cpu::new(1));
    cpu.prepare(module).map_err(|error| format!("{error}\n{}", text_of(module)))
}

fn outputs(session: &mut Session, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, String> {
    let inputs: Vec<_> = inputs.iter().map(|input| Some(DataRef::Tensor(input.view()))).collect();
    let outputs = session.run(&inputs).map_err(|error| error.to_string())?;
    let host = |output: &ampc_runtime::Data| {
        let tensor = output.tensor().ok_or("an output is no tensor")?;
        tensor.view().to_host().map_err(|error| error.to_string())
    };
    outputs.iter().map(host).collect()
}

fn f64s(tensor: &HostTensor) -> Vec<f64> {
    tensor.f64s().map(Iterator::collect).unwrap_or_default()
}

/// The tensor with these elements in place of its own.
fn with_elements(tensor: &HostTensor, elements: &[f64]) -> HostTensor {
    let dims = tensor.dims();
    #[expect(clippy::cast_possible_truncation, reason = "elements are rounded to the type of the tensor")]
    let made = match tensor.dtype() {
        DType::F64 => HostTensor::from_slice(dims, elements),
        DType::F32 => HostTensor::from_slice(dims, &elements.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        _ => HostTensor::from_slice(dims, &elements.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>()),
    };
    made.expect("as many elements")
}

impl Differentiated {
    /// Differences of a graph in text form. Float constants and float inputs, which need defaults, are
    /// parameters, unless the text has roles that say which are.
    pub(crate) fn new(text: &str, unreached: Unreached) -> Result<Differentiated, String> {
        let mut module = read(text)?;
        let main = module.main();
        if with_role(&module, PARAMETER).next().is_none() {
            let graph = module.graph(main);
            let values: Vec<Value> = graph.constants().iter().chain(graph.inputs()).copied().collect();
            for value in values {
                if is_float(&module.value(value).ty) {
                    add_role(&mut module, PARAMETER, value);
                }
            }
        }
        run("expose-parameters", &mut module)?;
        let formals = module.graph(main).inputs();
        let mut inputs: Vec<HostTensor> =
            formals.iter().map(|&input| default_of(&module, input)).collect::<Result<_, _>>()?;
        let found = outputs(&mut prepare(&module)?, &inputs)?;
        let mut number = numbers(1);
        let mut terms = Vec::new();
        let results: Vec<Value> = module.graph(main).outputs().iter().map(|output| output.value).collect();
        for (result, found) in results.into_iter().zip(found) {
            let ty = module.value(result).ty.clone();
            if !is_float(&ty) {
                continue;
            }
            let (name, shape) = (module.fresh_name("weights"), ty.shape().cloned().unwrap_or_default());
            let weights = module.add_input(main, name, Type::tensor(DType::F64, shape), None);
            let elements: Vec<f64> = (0..found.element_count()).map(|_| number()).collect();
            inputs.push(HostTensor::from_slice(found.dims(), &elements).map_err(|error| error.to_string())?);
            let mut at = Inserter::new(&mut module, main, Position::Last);
            let wide = NodeSpec::new(OpKind::Cast, &[result]);
            let wide = wide.attr("to", AttrValue::Int(i64::from(DType::F64.number())));
            let inserted = (|| {
                let [wide] = at.insert(wide)?;
                let product = at.op(OpKind::Mul, &[wide, weights], &[])?;
                at.op(OpKind::ReduceSum, &[product], &[("keepdims", AttrValue::Int(0))])
            })();
            terms.push(inserted.map_err(|error: ampc_ir::inserter::InsertError| error.to_string())?);
        }
        let mut at = Inserter::new(&mut module, main, Position::Last);
        let loss = at.op(OpKind::Sum, &terms, &[]).map_err(|error| error.to_string())?;
        let declared = module.value(loss).ty.clone();
        module.add_output(main, loss, declared);
        add_role(&mut module, LOSS, loss);
        let forward = prepare(&module)?;
        let names: Vec<String> = module.graph(main).inputs().iter().map(|&v| name_of(&module, v)).collect();
        let freezes = unreached == Unreached::Freeze;
        run(if freezes { FREEZING } else { PASSES }, &mut module)?;
        let graph = module.graph(main);
        let gradient_of = |value: Value| {
            let roles = graph.roles.iter().filter(|role| module.text(role.name) == GRAD);
            let gradient = roles.map(|role| &role.values).find(|values| values[0] == value)?[1];
            graph.outputs().iter().position(|output| output.value == gradient)
        };
        // Parameters that are frozen are not inputs any more.
        let place = |value: Value| {
            let name = name_of(&module, value);
            names.iter().position(|known| *known == name).expect("no input is new")
        };
        let given = graph.inputs().iter().map(|&input| place(input)).collect();
        let parameters = with_role(&module, PARAMETER)
            .map(|value| Parameter {
                input: place(value),
                name: name_of(&module, value),
                gradient: gradient_of(value),
            })
            .collect();
        let backward = prepare(&module)?;
        let wide = !text.lines().any(|line| line.starts_with("// f32: "));
        let (step, tolerance) = if wide { (STEP, TOLERANCE) } else { (STEP_F32, TOLERANCE_F32) };
        let text = text_of(&module);
        Ok(Differentiated { forward, backward, inputs, given, parameters, unreached, text, step, tolerance })
    }

    fn loss(&mut self) -> Result<f64, String> {
        let outputs = outputs(&mut self.forward, &self.inputs)?;
        outputs.last().and_then(|loss| f64s(loss).first().copied()).ok_or_else(|| "no loss".to_owned())
    }

    /// The gradients of the parameters, in order.
    fn gradients(&mut self) -> Result<Vec<HostTensor>, String> {
        let given: Vec<HostTensor> = self.given.iter().map(|&at| self.inputs[at].clone()).collect();
        let outputs = outputs(&mut self.backward, &given)?;
        let gradient = |parameter: &Parameter| match parameter.gradient {
            Some(output) => Ok(outputs[output].clone()),
            None => {
                let input = &self.inputs[parameter.input];
                HostTensor::zeros(input.dtype(), input.dims()).map_err(|error| error.to_string())
            }
        };
        self.parameters.iter().map(gradient).collect()
    }

    /// The gradients of the parameters of a graph with one output.
    pub(crate) fn exact(&mut self) -> Result<Exact, String> {
        let gradients = self.gradients()?;
        let names = self.parameters.iter().map(|parameter| parameter.name.clone());
        Ok(Exact {
            gradients: names.zip(gradients.iter().map(f64s)).collect(),
            weights: self.inputs.last().map(f64s).unwrap_or_default(),
        })
    }

    /// (loss(x + h·direction) − loss(x − h·direction)) / 2h
    fn slope(&mut self, at: usize, direction: &[f64], h: f64) -> Result<f64, String> {
        let original = self.inputs[at].clone();
        let elements = f64s(&original);
        let mut side = |h: f64| {
            let moved: Vec<f64> = elements.iter().zip(direction).map(|(x, d)| x + h * d).collect();
            self.inputs[at] = with_elements(&original, &moved);
            self.loss()
        };
        let (up, down) = (side(h)?, side(-h)?);
        self.inputs[at] = original;
        Ok((up - down) / (2.0 * h))
    }

    /// Compares all gradients with differences.
    pub(crate) fn compare(&mut self) -> Result<(), String> {
        let gradients = self.gradients()?;
        let mut wrong = Vec::new();
        for (Parameter { input, name, .. }, gradient) in self.parameters.clone().into_iter().zip(gradients) {
            let (want, found) = (&self.inputs[input], &gradient);
            if (want.dtype(), want.dims()) != (found.dtype(), found.dims()) {
                wrong.push(format!("%{name}: {:?} instead of {:?}", found.dims(), want.dims()));
                continue;
            }
            let gradient = f64s(&gradient);
            let mut pairs = Vec::new();
            for direction in directions(gradient.len()) {
                let along: f64 = direction.iter().zip(&gradient).map(|(d, g)| d * g).sum();
                pairs.push((along, self.slope(input, &direction, self.step)?, direction));
            }
            let largest = pairs.iter().fold(0f64, |largest, (_, slope, _)| largest.max(slope.abs()));
            if largest == 0.0 && self.unreached == Unreached::Error {
                wrong.push(format!("%{name}: the loss does not depend on it, so nothing is tested"));
            }
            let most = self.tolerance * largest.max(LEAST);
            for (found, want, direction) in pairs {
                let is_near = |want: f64| (found - want).abs() <= most;
                // A kink within the step is behind a smaller one.
                if !is_near(want)
                    && !is_near(self.slope(input, &direction, self.step / 10.0)?)
                    && !is_near(self.slope(input, &direction, self.step / 100.0)?)
                {
                    wrong.push(format!("%{name}: {found} instead of {want}"));
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{}", wrong.join("\n"), self.text)) }
    }

    /// Compares all gradients with those of the same graph in f16.
    pub(crate) fn compare_low(&mut self, low: &mut Differentiated) -> Result<(), String> {
        let mut wrong = Vec::new();
        // Both start from what f16 holds.
        for (input, low) in self.inputs.iter_mut().zip(&low.inputs) {
            if low.dtype() == DType::F16 {
                *input = with_elements(input, &f64s(low));
            }
        }
        let (wide, found) = (self.gradients()?, low.gradients()?);
        for (Parameter { input, name, .. }, (wide, found)) in
            low.parameters.iter().zip(wide.iter().zip(&found))
        {
            let parameter = &low.inputs[*input];
            if (parameter.dtype(), parameter.dims()) != (found.dtype(), found.dims()) {
                wrong.push(format!("%{name}: {}{:?}", found.dtype(), found.dims()));
            }
            let (wide, found) = (f64s(wide), f64s(found));
            let largest = wide.iter().fold(0f64, |largest, g| largest.max(g.abs()));
            let is_near = |wide: f64, found: f64| (wide - found).abs() <= LOW_TOLERANCE * largest;
            let off: Vec<_> =
                wide.iter().zip(&found).filter(|(wide, found)| !is_near(**wide, **found)).take(4).collect();
            if !off.is_empty() {
                wrong.push(format!("%{name}: (f64, f16) {off:?}"));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{}", wrong.join("\n"), low.text)) }
    }
}

/// Axes, or random signs where these are too many.
fn directions(n: usize) -> Vec<Vec<f64>> {
    if n <= ELEMENTS {
        return (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    }
    let mut number = numbers(2);
    (0..DIRECTIONS).map(|_| (0..n).map(|_| if number() < 0.0 { -1.0 } else { 1.0 }).collect()).collect()
}
