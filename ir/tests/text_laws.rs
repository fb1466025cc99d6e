//! The laws of the text form, over random modules: reading what was printed gives the same module, and printing
//! that gives the same text. Texts that are broken in random ways are refused, not fatal.
//!
//! Modules are made from a stream of choices, so that a failure shrinks to a small module. They need not make
//! sense: the text form does not ask whether types fit.

use ampc_ir::attr::{Attr, AttrValue};
use ampc_ir::convert::Conversion;
use ampc_ir::edit::{NewNode, Position};
use ampc_ir::eq::same_module;
use ampc_ir::module::{Decision, FunctionData, Op, Payload, Provenance, Reason, Role, Rule};
use ampc_ir::op::{AttrKind, Class, Count, Lookup, OpSchema, Signature, SignatureFormal, lookup};
use ampc_ir::tensor::{SparseData, Storage, TensorData};
use ampc_ir::text::{DataResolver, NoData, ParseOptions, PrintOptions, parse, parse_with, print};
use ampc_ir::verify::verify_module;
use ampc_ir::{DType, Dim, FunctionId, GraphId, Module, Shape, Symbol, TensorType, Type, Value};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const OPSET: u16 = 21;

/// Operators with none, one and several type variables, with and without bodies.
const OPS: [&str; 8] = ["Relu", "Add", "Gather", "Cast", "If", "Loop", "Constant", "BatchNormalization"];

/// One of three operators that a user describes.
fn signature(which: usize) -> &'static OpSchema {
    let formal = |name: &str, ty: &str| SignatureFormal {
        name: name.into(),
        ty: ty.into(),
        count: Count::One,
        class: None,
        shape: None,
    };
    let x = || formal("x", "T");
    let (inputs, outputs) = match which {
        0 => (vec![], vec![formal("a \"b\" c", "i64")]),
        1 => (vec![x()], vec![SignatureFormal { shape: Some("x".into()), ..formal("y", "T") }]),
        _ => (
            vec![
                x(),
                SignatureFormal {
                    count: Count::Optional,
                    class: Some(Class::Fixed),
                    ..formal("class", "U_2")
                },
                SignatureFormal { count: Count::Variadic, ..formal("shape", "float8e5m2") },
            ],
            vec![SignatureFormal { class: Some(Class::Deny), ..formal("a,b", "bool") }],
        ),
    };
    let var = |name: &str, dtypes: &[DType]| (name.to_owned(), dtypes.to_vec());
    let types = vec![var("T", &[DType::BF16, DType::F32]), var("U_2", &[DType::F32])];
    let signature = Signature {
        domain: ["com.example", "a b::c", "signature"][which].into(),
        name: ["Scale", "class", "graph"][which].into(),
        inputs,
        outputs,
        types: types.into_iter().take(which).collect(),
        class: Class::ALL[which + 2],
    };
    signature.schema().expect("a signature")
}

/// Numbers that decide what comes next; zeros when they run out.
struct Choices {
    numbers: Vec<u32>,
    next: usize,
    names: Vec<String>,
    bytes: Vec<Vec<u8>>,
    module: Module,
    functions: Vec<FunctionId>,
    nodes_left: usize,
}

impl Choices {
    fn raw(&mut self) -> u32 {
        self.next += 1;
        self.numbers.get(self.next - 1).copied().unwrap_or(0)
    }
    fn below(&mut self, n: usize) -> usize {
        self.raw() as usize % n.max(1)
    }
    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }
    fn long(&mut self) -> u64 {
        u64::from(self.raw()) << 32 | u64::from(self.raw())
    }
    fn many<T>(&mut self, limit: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let n = self.below(limit + 1);
        (0..n).map(|_| make(self)).collect()
    }
    fn text(&mut self) -> String {
        let i = self.below(self.names.len());
        self.names.get(i).cloned().unwrap_or_default()
    }
    fn string(&mut self) -> Box<[u8]> {
        let i = self.below(self.bytes.len());
        self.bytes.get(i).cloned().unwrap_or_default().into()
    }
    fn symbol(&mut self) -> Symbol {
        let text = self.text();
        self.module.intern(&text)
    }
    /// A name that the graph does not have yet.
    fn fresh(&mut self, taken: &mut BTreeSet<String>) -> Symbol {
        let mut text = self.text();
        while !taken.insert(text.clone()) {
            text.push_str(["'", ".2", "~2"][self.below(3)]);
        }
        self.module.intern(&text)
    }

    fn dtype(&mut self) -> DType {
        match self.below(30) {
            28 => DType::Other(77),
            29 => DType::Other(-3),
            i => DType::ALL[i],
        }
    }
    fn tensor_type(&mut self) -> TensorType {
        let dtype = self.dtype();
        if self.below(5) == 0 {
            return TensorType::new(dtype, Shape::unknown());
        }
        let dims = self.many(4, |c| match c.below(3) {
            0 => Dim::Known(c.long() >> c.below(64)),
            1 => Dim::Sym(c.symbol()),
            _ => Dim::Unknown,
        });
        TensorType::new(dtype, Shape::of(dims))
    }
    fn ty(&mut self) -> Type {
        match self.below(9) {
            0 => Type::Unknown,
            1 => Type::Sparse(self.tensor_type()),
            2 => Type::Sequence(Box::new(self.ty())),
            3 => Type::Optional(Box::new(self.ty())),
            4 => Type::Map { key: self.dtype(), value: Box::new(self.ty()) },
            5 => Type::Opaque { domain: self.symbol(), name: self.symbol() },
            _ => Type::Tensor(self.tensor_type()),
        }
    }

    fn tensor(&mut self) -> TensorData {
        let dtype = DType::ALL[self.below(28)];
        let dims: Vec<u64> = self.many(3, |c| c.below(5) as u64);
        let count: u64 = dims.iter().product();
        if dtype == DType::String {
            let strings: Vec<_> = (0..count).map(|_| self.string()).collect();
            return TensorData::new(dtype, dims, Storage::Strings(strings.into())).expect("as many strings");
        }
        let storage = if self.below(8) == 0 {
            Storage::Zeros
        } else if self.below(4) == 0 {
            Storage::Random { seed: self.long(), amplitude: f32::from_bits(self.raw()) }
        } else {
            let n = dtype.storage_bytes(count).expect("a small tensor");
            let small = self.yes();
            let byte = |c: &mut Self| c.raw().to_le_bytes()[0] & if small { 1 } else { 0xff };
            Storage::Bytes((0..n).map(|_| byte(self)).collect())
        };
        let mut data = TensorData::new(dtype, dims, storage).expect("as many bytes");
        let floats = [DType::F32, DType::F16, DType::BF16, DType::F64];
        if floats.contains(&dtype) && self.below(3) == 0 {
            for _ in 0..self.below(3) {
                data = data.converted(Conversion { to: floats[self.below(4)], clamp: self.yes() });
            }
        }
        data
    }
    fn sparse(&mut self) -> SparseData {
        SparseData {
            values: self.tensor(),
            indices: self.tensor(),
            dims: self.many(3, Self::long).into_iter().collect(),
        }
    }
    fn payload(&mut self) -> Payload {
        if self.below(8) == 0 {
            Payload::Sparse(Arc::new(self.sparse()))
        } else {
            Payload::Dense(Arc::new(self.tensor()))
        }
    }

    /// An attribute's value that holds no bodies.
    fn attr_value(&mut self) -> AttrValue {
        match self.below(13) {
            0 => AttrValue::Float(f32::from_bits(self.raw())),
            1 => AttrValue::String(self.string()),
            2 => AttrValue::Tensor(Arc::new(self.tensor())),
            3 => AttrValue::SparseTensor(Arc::new(self.sparse())),
            4 => AttrValue::Type(self.ty()),
            5 => AttrValue::Floats(self.many(3, |c| f32::from_bits(c.raw()))),
            6 => AttrValue::Ints(self.many(3, |c| c.long().cast_signed())),
            7 => AttrValue::Strings(self.many(3, Self::string)),
            8 => AttrValue::Tensors(self.many(2, |c| Arc::new(c.tensor()))),
            9 => AttrValue::SparseTensors(self.many(2, |c| Arc::new(c.sparse()))),
            10 => AttrValue::Types(self.many(3, Self::ty)),
            11 => {
                let kinds = [AttrKind::Float, AttrKind::Ints, AttrKind::Graph, AttrKind::SparseTensors];
                AttrValue::Reference { kind: kinds[self.below(4)], name: self.symbol() }
            }
            _ => AttrValue::Int(self.long().cast_signed()),
        }
    }

    fn op(&mut self) -> Op {
        let i = self.below(6);
        if let Some(&function) = self.functions.get(i) {
            return Op::Call(function);
        }
        if self.below(6) == 0 {
            return Op::Schema(signature(self.below(3)));
        }
        if self.below(4) == 0 {
            let domain = self.module.intern("com.example");
            let name = self.symbol();
            let overload = self.symbol();
            return Op::Custom { domain, name, overload };
        }
        match lookup("", OPS[self.below(OPS.len())], OPSET) {
            Lookup::Found(schema) => Op::Schema(schema),
            other => panic!("{other:?}"),
        }
    }

    fn decision(&mut self) -> Decision {
        let reason = if self.yes() { [String::new(), String::new()] } else { [self.text(), self.text()] };
        let [rule, evidence] = reason;
        let reason = Arc::new(Reason::parse(&rule, &evidence));
        Decision {
            class: Class::ALL[self.below(7)],
            precision: if self.yes() { Some(self.dtype()) } else { None },
            reason,
        }
    }

    fn node(&mut self, graph: GraphId, values: &mut Vec<Value>, taken: &mut BTreeSet<String>, depth: usize) {
        let operand = |c: &mut Self| {
            let i = c.below(values.len() + 1);
            values.get(i).copied()
        };
        let operands: Vec<Option<Value>> = self.many(4, operand);
        let captured: Vec<Option<Value>> = self.many(3, operand);
        let mut attrs: Vec<(Symbol, AttrValue)> = Vec::new();
        let mut names = BTreeSet::new();
        let mut bodies = Vec::new();
        for _ in 0..self.below(4) {
            let name = self.fresh(&mut names);
            let value = match self.below(6) {
                0 if depth < 3 => {
                    let label = self.symbol();
                    bodies.push(self.module.new_graph(label));
                    AttrValue::Graph(bodies[bodies.len() - 1])
                }
                1 if depth < 3 => {
                    let list = self.many(2, |c| {
                        let label = c.symbol();
                        c.module.new_graph(label)
                    });
                    bodies.extend(&list);
                    AttrValue::Graphs(list)
                }
                _ => self.attr_value(),
            };
            attrs.push((name, value));
        }
        let results: Vec<Option<(Symbol, Type)>> = self.many(3, |c| {
            let absent = c.below(4) == 0;
            (!absent).then(|| (c.fresh(taken), c.ty()))
        });
        let op = self.op();
        let name = if self.yes() { Some(self.symbol()) } else { None };
        let provenance = if self.yes() { Provenance::Inserted } else { Provenance::User };
        let new = NewNode { op, name, operands: operands.into(), attrs, results, provenance };
        let node = self.module.add_node(graph, Position::Last, new);
        let n_formal = self.module.node(node).n_formal();
        for &value in &captured {
            self.module.add_capture_operand(node, value);
        }
        let metadata = self.many(2, |c| (c.symbol(), c.symbol()));
        let vars = self.module.node(node).schema().map_or(1, |s| s.type_vars.len());
        let n = if self.below(4) == 0 { self.below(4) } else { vars };
        let decisions = if self.yes() { (0..n).map(|_| self.decision()).collect() } else { Vec::new() };
        let fields = self.module.node_mut(node);
        *fields.metadata = metadata;
        *fields.decisions = decisions.into();
        for body in bodies {
            let mut inner = Vec::new();
            for _ in 0..if captured.is_empty() { 0 } else { self.below(4) } {
                let slot = n_formal + self.below(captured.len());
                let capture = self.module.add_capture(body, slot);
                if self.below(5) == 0 {
                    let ty = self.ty();
                    self.module.set_type(capture, ty);
                }
                inner.push(capture);
            }
            self.graph(body, inner, depth + 1);
        }
        values.extend(self.module.node(node).results().iter().flatten());
    }

    fn graph(&mut self, graph: GraphId, mut values: Vec<Value>, depth: usize) {
        let mut taken = BTreeSet::new();
        for _ in 0..self.below(3) {
            let (name, ty) = (self.fresh(&mut taken), self.ty());
            let default = if self.below(4) == 0 { Some(self.payload()) } else { None };
            values.push(self.module.add_input(graph, name, ty, default));
        }
        for _ in 0..self.below(3) {
            let (name, payload) = (self.fresh(&mut taken), self.payload());
            values.push(self.module.add_constant(graph, name, payload));
        }
        for _ in 0..self.below(5) {
            if self.nodes_left > 0 {
                self.nodes_left -= 1;
                self.node(graph, &mut values, &mut taken, depth);
            }
        }
        if values.is_empty() {
            return;
        }
        for _ in 0..self.below(3) {
            let value = values[self.below(values.len())];
            let declared = self.ty();
            self.module.add_output(graph, value, declared);
        }
        let pick = |c: &mut Self| values[c.below(values.len())];
        let mut states = self.many(2, |c| (pick(c), pick(c)));
        // No value is a state twice.
        let mut known = Vec::new();
        states.retain(|&(now, _)| {
            !known.contains(&now) && {
                known.push(now);
                true
            }
        });
        let roles = self.many(2, |c| Role { name: c.symbol(), values: c.many(3, pick) });
        let (all_roles, all_states) = self.module.graph_roles_mut(graph);
        *all_roles = roles;
        *all_states = states;
    }

    fn function(&mut self, i: usize) {
        let label = self.symbol();
        let graph = self.module.new_graph(label);
        let domain = if self.yes() { self.symbol() } else { self.module.intern("com.example") };
        let name = self.module.intern(&format!("F {i}"));
        let (ai_onnx, other) = (self.module.intern(""), self.symbol());
        let mut function = FunctionData {
            domain,
            name,
            overload: self.symbol(),
            graph,
            opsets: vec![(ai_onnx, OPSET)],
            attrs: self.many(2, Self::symbol),
            attr_defaults: Vec::new(),
            doc_string: self.text(),
            metadata: self.many(2, |c| (c.symbol(), c.symbol())),
            origin: None,
        };
        if !["", "ai.onnx"].contains(&self.module.text(other)) {
            function.opsets.push((other, 3));
        }
        function.attr_defaults =
            self.many(2, |c| Attr { name: c.symbol(), value: c.attr_value(), dirty: true });
        // No attribute is listed twice.
        let mut known = Vec::new();
        let mut is_new = |name: Symbol| {
            !known.contains(&name) && {
                known.push(name);
                true
            }
        };
        function.attrs.retain(|&name| is_new(name));
        function.attr_defaults.retain(|attr| is_new(attr.name));
        let id = self.module.add_function(function);
        self.functions.push(id);
        self.graph(graph, Vec::new(), 0);
    }

    fn module(mut self) -> Module {
        let ai_onnx = self.module.intern("");
        self.module.header.ir_version = self.long().cast_signed();
        self.module.header.opsets.push((ai_onnx, OPSET));
        self.module.header.producer_name = self.text();
        self.module.header.model_version = self.long().cast_signed() >> self.below(64);
        self.module.header.doc_string = self.text();
        self.module.header.domain = self.text();
        self.module.header.metadata = self.many(2, |c| (c.text(), c.text()));
        for i in 0..self.below(3) {
            self.function(i);
        }
        let (main, name) = (self.module.main(), self.symbol());
        self.module.set_graph_name(main, name);
        self.nodes_left = 12;
        self.graph(main, Vec::new(), 0);
        self.module
    }
}

/// A random module, shown as its text.
struct Sample(Module);

impl std::fmt::Debug for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\n{}", self.0)
    }
}

fn modules() -> impl Strategy<Value = Sample> {
    let name = prop_oneof![
        3 => "[a-z]{1,3}",
        1 => "[A-Za-z0-9_./:~%\"\\\\ -]{0,6}",
        1 => any::<String>(),
        1 => Just("graph".to_owned()),
        1 => Just("_".to_owned()),
    ];
    let strings = (
        proptest::collection::vec(any::<u32>(), 0..400),
        proptest::collection::vec(name, 1..12),
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 1..4),
    );
    strings.prop_map(|(numbers, names, bytes)| {
        let (module, functions) = (Module::new(), Vec::new());
        Sample(Choices { numbers, next: 0, names, bytes, module, functions, nodes_left: 12 }.module())
    })
}

/// Prints, with what the text does not hold beside it.
fn printed(module: &Module) -> (String, impl DataResolver) {
    let printed = print(module, &PrintOptions::default());
    assert!(printed.errors.is_empty());
    let large = printed.large;
    let resolver = move |name: &str, _: DType, _: &[u64], _: Option<u128>| {
        large.iter().find(|c| c.name == name).map(|c| c.data.clone())
    };
    (printed.text, resolver)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reading_what_was_printed_gives_the_same_module(Sample(module) in modules()) {
        let (text, resolver) = printed(&module);
        let again = parse(&text, &resolver).map_err(|e| TestCaseError::fail(e.to_string()))?;
        same_module(&module, &again).map_err(|e| TestCaseError::fail(e.to_string()))?;
        same_module(&again, &module).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&again.to_text().unwrap(), &text);

        let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
        let dump = parse_with(&text, &NoData, &options).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(dump.to_text().unwrap(), text);
    }

    #[test]
    fn every_node_has_its_line(Sample(module) in modules()) {
        let printed = print(&module, &PrintOptions { note: Some(&|node| Some(node.to_string())), ..PrintOptions::default() });
        for graph in module.graph_ids() {
            for node in module.nodes(graph) {
                let place = printed.nodes[node].clone().expect("the node was printed");
                let line = printed.text[place.clone()].to_owned();
                prop_assert!(!line.contains('\n') && !line.is_empty());
                let before = &printed.text[..place.start];
                prop_assert!(before.trim_end_matches(' ').ends_with('\n'));
            }
        }
    }

    #[test]
    fn different_modules_differ(Sample(a) in modules(), Sample(b) in modules()) {
        let (x, y) = (printed(&a).0, printed(&b).0);
        prop_assert_eq!(same_module(&a, &b).is_ok(), x == y, "{}\n{}", x, y);
    }

    #[test]
    fn broken_texts_are_refused_or_read(Sample(module) in modules(), cuts in proptest::collection::vec((any::<u32>(), any::<u8>(), 0usize..6), 1..8)) {
        let mut text = printed(&module).0;
        for (at, byte, kind) in cuts {
            let mut at = at as usize % (text.len() + 1);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            let c = char::from(byte);
            match kind {
                0 => text.truncate(at),
                1 => text.insert(at, c),
                2 => text.insert_str(at, ["{", "}", "\n", "\"", "%", "graph {\n", "(", "]", "="][usize::from(byte) % 9]),
                _ => {
                    let len = text[at..].char_indices().nth(usize::from(byte) % 8).map_or(0, |(i, _)| i);
                    text.replace_range(at..at + len, "");
                }
            }
        }
        check_errors(&text)?;
    }

    #[test]
    fn any_text_is_refused_or_read(text in any::<String>(), words in proptest::collection::vec(0usize..20, 0..60)) {
        check_errors(&text)?;
        const WORDS: [&str; 20] = [
            "graph", "{", "}", "\n", "%x", "=", ":", "f32", "[", "]", "(", ")", "const", "1", ",", "input", "Relu",
            "data", "->", "class",
        ];
        let text: Vec<&str> = words.into_iter().map(|i| WORDS[i]).collect();
        check_errors(&text.join(" "))?;
    }
}

/// Reads a text; its errors, if any, are in order and inside it.
fn check_errors(text: &str) -> Result<(), TestCaseError> {
    if let Err(errors) = parse(text, &NoData) {
        prop_assert!(!errors.0.is_empty());
        prop_assert!(errors.0.is_sorted_by_key(|e| (e.line, e.column)));
        for error in errors.0 {
            prop_assert!(error.span.start <= error.span.end && error.span.end <= text.len());
            prop_assert!(text.get(error.span).is_some());
            prop_assert!(!error.expected.is_empty() && !error.found.is_empty());
        }
    }
    Ok(())
}

/// A chain of 100,000 named nodes is printed and read in well under a second (in release).
#[test]
fn long_chains_take_linear_time() {
    let mut module = Module::new();
    let (main, empty) = (module.main(), module.intern(""));
    module.header.opsets.push((empty, OPSET));
    let n = module.intern("N");
    let ty = Type::tensor(DType::F32, Shape::of([Dim::Sym(n), Dim::Known(768)]));
    let name = module.intern("x");
    let mut last = module.add_input(main, name, ty.clone(), None);
    let Lookup::Found(schema) = lookup("", "Relu", OPSET) else { panic!("Relu is known") };
    let reason = Arc::new(Reason::new(Rule::Table));
    for i in 0..100_000 {
        let result = module.intern(&format!("/layer.{i}/Relu_output_0"));
        let new = NewNode {
            op: Op::Schema(schema),
            name: Some(module.intern(&format!("/layer.{i}/Relu"))),
            operands: [Some(last)].into_iter().collect(),
            attrs: Vec::new(),
            results: vec![Some((result, ty.clone()))],
            provenance: Provenance::User,
        };
        let node = module.add_node(main, Position::Last, new);
        let class = Class::Infer;
        *module.node_mut(node).decisions =
            smallvec::smallvec![Decision { class, precision: Some(DType::F16), reason: reason.clone() }];
        last = module.node(node).result(0).expect("Relu has a result");
    }
    let start = std::time::Instant::now();
    let text = module.to_text().unwrap();
    let print_time = start.elapsed();
    let start = std::time::Instant::now();
    let again = parse(&text, &NoData).unwrap();
    let parse_time = start.elapsed();
    let start = std::time::Instant::now();
    same_module(&module, &again).unwrap();
    println!(
        "{} bytes: print {print_time:?}, parse {parse_time:?}, compare {:?}",
        text.len(),
        start.elapsed()
    );
    assert_eq!(module.n_nodes(), 100_000);
    assert!(print_time.as_secs() < 20 && parse_time.as_secs() < 20, "far from linear");
}

/// A text without its comment lines.
fn without_comments(text: &str) -> String {
    text.lines().filter(|l| !l.trim_start().starts_with("//")).map(|l| format!("{l}\n")).collect()
}

/// Texts for people to read are canonical but for their comments, and valid: their types are those of inference.
fn check_canonical(name: &str, text: &str) {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{name}:\n{errors}"));
    assert_eq!(module.to_text().expect("its constants stand in the text"), without_comments(text), "{name}");
    verify_module(&module).map(drop).unwrap_or_else(|found| panic!("{name}: {found:?}"));
}

#[test]
fn cases_are_canonical_but_for_comments() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "ir") {
            check_canonical(&path.display().to_string(), &std::fs::read_to_string(&path).unwrap());
            n += 1;
        }
    }
    assert!(n >= 4);
}

#[test]
fn examples_of_the_documentation_are_canonical() {
    let text = include_str!("../../docs/text-form.md");
    let examples: Vec<&str> = text.split("```ir\n").skip(1).map(|t| t.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 2);
    for (i, example) in examples.into_iter().enumerate() {
        check_canonical(&format!("example {i}"), example);
    }
}

/// The vectors that the documentation of `random(seed, a)` lists: fixed for ever.
#[test]
fn random_vectors() {
    let text = include_str!("../../docs/text-form.md");
    let vectors = [
        (0, 0, 1.0),
        (0, 1, 1.0),
        (0, 2, 1.0),
        (0, 3, 1.0),
        (0, 4, 1.0),
        (7, 0, 1.0),
        (7, 5, 0.02),
        (u64::MAX, 1_000_000, 1.0),
    ];
    for (seed, index, a) in vectors {
        let v = ampc_ir::random::uniform(seed, index, a);
        let row = format!("| `random({seed}, {a:?})` | {index} | `{v:?}` | `0x{:08x}` |", v.to_bits());
        assert!(text.contains(&row), "missing: {row}");
    }
}
