//! Sources of a graph: inputs and constants.

use crate::entity::{GraphId, Symbol, Value};
use crate::module::{Def, GraphOwner, Module, Payload, ValueData, Vertex};
use crate::ty::Type;
use rustc_hash::FxHashSet;

impl Module {
    pub(super) fn push_source(&mut self, graph: GraphId, name: Option<Symbol>, ty: Type, def: Def) -> Value {
        let (dirty, lost_reader) = (false, false);
        let (vertex, metadata, origin) = (None, Vec::new(), None);
        let data = ValueData { ty, def, name, graph, vertex, metadata, origin, dirty, lost_reader };
        let value = self.values.push(data);
        let vertex = self.graphs[graph].uses.add_node(Vertex::Source(value));
        self.values[value].vertex = Some(vertex);
        self.taken.extend(name);
        value
    }

    /// Adds a formal input; `default` makes it an initializer that a caller may override.
    pub fn add_input(&mut self, graph: GraphId, name: Symbol, ty: Type, default: Option<Payload>) -> Value {
        let slot = u32::try_from(self.graphs[graph].inputs.len()).expect("fewer than 2^32 inputs");
        let value = self.push_source(graph, Some(name), ty, Def::Input { slot, default });
        self.graphs[graph].inputs.push(value);
        value
    }

    /// Removes the default of an input and returns it: from then on the caller has to give a value.
    pub fn take_default(&mut self, input: Value) -> Option<Payload> {
        let data = &mut self.values[input];
        let Def::Input { default, .. } = &mut data.def else { return None };
        let taken = default.take();
        data.dirty |= taken.is_some();
        taken
    }

    /// Sets the default of an input of a main graph.
    ///
    /// # Panics
    /// If the value is not an input.
    pub fn set_default(&mut self, input: Value, payload: Payload) {
        let data = &mut self.values[input];
        let Def::Input { default, .. } = &mut data.def else { panic!("{input} is no input") };
        *default = Some(payload);
        data.dirty = true;
    }

    /// Erases unread formal inputs of a main graph, with their roles and as states; later inputs move up. Takes time
    /// linear in the number of inputs and roles.
    ///
    /// # Panics
    /// If a value is read, is an output, or is not an input, or if the graph is a body or a function, whose
    /// inputs are operands of a node.
    pub fn erase_inputs(&mut self, graph: GraphId, unread: &FxHashSet<Value>) {
        if unread.is_empty() {
            return;
        }
        assert!(matches!(self.graphs[graph].owner, GraphOwner::Main), "the inputs are operands of a node");
        let inputs = std::mem::take(&mut self.graphs[graph].inputs);
        let (gone, kept): (Vec<Value>, Vec<Value>) = inputs.into_iter().partition(|v| unread.contains(v));
        assert_eq!(gone.len(), unread.len(), "a value is no input of {graph}");
        for value in gone {
            assert!(self.uses(value).next().is_none() && !self.is_output(value), "{value} is still read");
            if let Some(vertex) = self.values[value].vertex.take() {
                self.graphs[graph].uses.remove_node(vertex);
            }
            self.values[value].def = Def::Erased;
        }
        for (i, &input) in kept.iter().enumerate() {
            if let Def::Input { slot, .. } = &mut self.values[input].def {
                *slot = u32::try_from(i).expect("fewer than 2^32 inputs");
            }
        }
        let data = &mut self.graphs[graph];
        data.inputs = kept;
        data.naming.take();
        data.roles.retain(|role| !role.values.iter().any(|value| unread.contains(value)));
        data.states.retain(|(input, _)| !unread.contains(input));
        data.dirty = true;
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, graph: GraphId, name: Symbol, payload: Payload) -> Value {
        let value = self.push_source(graph, Some(name), payload_type(&payload), Def::Constant(payload));
        self.graphs[graph].constants.push(value);
        value
    }

    /// Sets the payload of a constant, and its type with it.
    ///
    /// # Panics
    /// If the value is not a constant.
    pub fn set_constant(&mut self, value: Value, payload: Payload) {
        let data = &mut self.values[value];
        assert!(matches!(data.def, Def::Constant(_)), "{value} is no constant");
        data.ty = payload_type(&payload);
        data.def = Def::Constant(payload);
        data.dirty = true;
    }

    /// Erases an unused constant.
    ///
    /// # Panics
    /// If it is read, leaves the graph, or is not a constant.
    pub fn erase_constant(&mut self, value: Value) {
        assert!(matches!(self.values[value].def, Def::Constant(_)), "{value} is no constant");
        assert!(self.uses(value).next().is_none() && !self.is_output(value), "{value} is still read");
        let graph = self.values[value].graph;
        if let Some(vertex) = self.values[value].vertex.take() {
            self.graphs[graph].uses.remove_node(vertex);
        }
        self.graphs[graph].constants.retain(|&v| v != value);
        self.graphs[graph].dirty = true;
        self.values[value].def = Def::Erased;
    }

    /// Erases many unused constants, in time linear in the number of constants.
    ///
    /// # Panics
    /// As [`erase_constant`](Self::erase_constant).
    pub fn erase_constants(&mut self, graph: GraphId, dead: &FxHashSet<Value>) {
        let (gone, kept): (Vec<Value>, Vec<Value>) =
            std::mem::take(&mut self.graphs[graph].constants).into_iter().partition(|v| dead.contains(v));
        self.graphs[graph].constants = kept;
        self.graphs[graph].dirty |= !gone.is_empty();
        for value in gone {
            assert!(self.uses(value).next().is_none(), "{value} is still read");
            if let Some(vertex) = self.values[value].vertex.take() {
                self.graphs[graph].uses.remove_node(vertex);
            }
            self.values[value].def = Def::Erased;
        }
    }
}

/// The type of a constant.
pub fn payload_type(payload: &Payload) -> Type {
    match payload {
        Payload::Dense(data) => Type::tensor(data.dtype(), data.shape()),
        Payload::Sparse(data) => {
            Type::Sparse(crate::ty::TensorType::new(data.values.dtype(), crate::ty::Shape::known(&data.dims)))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::entity::Value;
    use crate::module::Module;
    use crate::text::{NoData, PrintOptions, parse, print};
    use crate::verify::{name_of, verify_structure};

    const TEXT: &str = "module ir=10
opset ai.onnx=21

graph @main {
  input %a : f32[2]
  input %b : f32[2]
  input %w : f32[2]
  input %m : f32[2]
  %y = Add(%a, %w) : f32[2]
  %z = Neg(%y) : f32[2]
  output %z : f32[2]
  state %b -> %z
  role param(%w)
  role grad(%w, %y)
  role other(%m)
}
";

    fn named(module: &Module, name: &str) -> Value {
        let mut inputs = module.graph(module.main()).inputs().iter().copied();
        inputs.find(|&value| name_of(module, value) == name).unwrap()
    }

    #[test]
    fn erased_inputs_take_their_roles_and_states_along() {
        let mut module = parse(TEXT, &NoData).unwrap();
        let gone = ["b", "m"].map(|name| named(&module, name)).into_iter().collect();
        module.erase_inputs(module.main(), &gone);
        assert_eq!(verify_structure(&module), []);
        let text = print(&module, &PrintOptions::default()).text;
        let lost =
            ["  input %b : f32[2]\n", "  input %m : f32[2]\n", "  state %b -> %z\n", "  role other(%m)\n"];
        assert_eq!(text, lost.iter().fold(TEXT.to_owned(), |text, line| text.replace(line, "")));
    }

    #[test]
    fn roles_follow_the_value_that_replaces_another() {
        let mut module = parse(TEXT, &NoData).unwrap();
        let [a, w, m] = ["a", "w", "m"].map(|name| named(&module, name));
        assert!(module.has_role(w) && !module.has_role(a));
        module.replace_value(w, a);
        assert!(module.has_role(a) && !module.has_role(w));
        module.move_roles(m, a);
        let roles = module.graph(module.main()).roles.iter().map(|role| role.values[0]);
        assert_eq!(roles.collect::<Vec<_>>(), [a, a, a]);
        module.move_roles(a, m);
        assert!(module.has_role(m) && !module.has_role(a));
        assert_eq!(verify_structure(&module), []);
    }
}
