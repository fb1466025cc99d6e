//! Rewrites random valid graphs, with pins and classes of the input's choice.

use crate::random_graphs::{Graph, bytes_of, from_bytes, text_of};
use crate::{laws, rewrite};
use ampc::{ErrorKind, RewriteOptions};
use ampc_ir::op::{Class, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, DType, Module, Node};
use ampc_passes::Policy;
use ampc_passes::policy::{ListedBy, Pin};
use std::sync::Arc;

/// Longer graphs find nothing that these do not, and take longer.
const MAX_STEPS: usize = 40;

const OPS: &[&str] =
    &["MatMul", "Add", "Exp", "Softmax", "Cast", "Where", "If", "Loop", "com.example::Op", "Identity"];
const CLASSES: &[&str] = &["allow", "clear", "infer", "promote", "deny"];

/// Takes an input apart; zeros behind its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[usize::from(self.byte()) % among.len()]
    }

    fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

/// Options, pins, classes, and the steps of a graph: the rewritten model is valid, can be written in every form,
/// stays as it is when it is rewritten again (one exception), and is what its report repeats; pinned to fp32 nothing
/// changes.
pub fn pipeline(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let (bits, counts) = (bytes.byte(), bytes.byte());
    // Those of lists are for the policy; its base is the same in all that has the same bits.
    let mut policy = Policy::clone(&rewrite::options(bits, || 0).policy);
    let pins: Vec<[u8; 3]> = (0..counts % 4).map(|_| [(); 3].map(|()| bytes.byte())).collect();
    for _ in 0..counts / 4 % 4 {
        let (op, class) = (bytes.pick(OPS), bytes.pick(CLASSES).parse::<Class>().unwrap());
        // Some operators have no choice.
        let _ = policy.set_class(op, class, ListedBy::Policy);
    }
    let outputs: Vec<u16> = (0..=counts / 16 % 4).map(|_| bytes.number()).collect();
    let mut steps = Vec::new();
    while !bytes.0.is_empty() && steps.len() < MAX_STEPS {
        steps.push((bytes.byte(), bytes.number(), bytes.number()));
    }
    // Behind the last step.
    let mut options = rewrite::options(bits, || bytes.byte());
    options.excess_precision |= counts >= 192;
    let graph = Graph::new(&steps, &outputs);
    for numbers in pins {
        pin(&mut policy, &graph, numbers);
    }
    options.policy = Arc::new(policy);
    check(&graph, &options);
}

fn pin(policy: &mut Policy, graph: &Graph, [name, to, form]: [u8; 3]) {
    let Some(line) = graph.lines.get(usize::from(name) % graph.lines.len().max(1)) else { return };
    let value = &line.defines[0];
    let to = [Pin::To(DType::F32), Pin::To(DType::F16), Pin::To(DType::BF16), Pin::Auto][usize::from(to) % 4];
    // Few pins that chance makes would agree where they meet.
    policy.next_layer();
    match form % 7 {
        0 => policy.pin_value(value, to),
        1 => policy.pin(&format!("n_{value}*"), to),
        2 => policy.pin(&format!("re:.*_{value}[0-4]?"), to),
        3 => policy.pin(&format!("n_{value}#T"), to),
        4 => policy.pin(&format!("n_{value}.*"), to),
        5 => policy.pin_value(&format!("{value}*"), to),
        _ => policy.pin(&format!("n_{value}"), to),
    }
    .unwrap();
}

/// True if a pin asks for the other 16-bit format, and a cast of the author makes that format: the pin may turn
/// the cast into an identity.
fn pins_what_is_cast(module: &Module, options: &RewriteOptions) -> bool {
    let policy = &options.policy;
    let is_other = |dtype: DType| dtype.is_low() && dtype != options.to;
    let mut pins = policy.pins().iter().chain(policy.value_pins());
    let makes_other = |node: Node| {
        let view = NodeView::new(module, node).filter(|view| view.kind() == OpKind::Cast);
        let Some(&AttrValue::Int(to)) = view.as_ref().and_then(|view| view.attr("to")) else { return false };
        DType::ALL.iter().any(|&dtype| is_other(dtype) && i64::from(dtype.number()) == to)
    };
    pins.any(|(_, pin)| matches!(pin, Pin::To(to) if is_other(*to)))
        && module.graph_ids().any(|graph| module.nodes(graph).any(makes_other))
}

/// The options as text, for the message of a failure.
fn spelled(options: &RewriteOptions) -> String {
    let policy = &options.policy;
    let pins = policy
        .pins()
        .iter()
        .chain(policy.value_pins())
        .map(|(pattern, pin)| format!("{} {:?} {pin:?}", pattern.text(), pattern.var()));
    let lists = policy
        .ops()
        .filter(|(_, listed)| listed.from == ListedBy::Policy)
        .map(|(op, listed)| format!("{op} {}", listed.class));
    format!(
        "{} pins: {:?} lists: {:?}",
        ampc::rewrite::pipeline_of(options),
        pins.collect::<Vec<_>>(),
        lists.collect::<Vec<_>>()
    )
}

fn check(graph: &Graph, options: &RewriteOptions) {
    let source = graph.model();
    let text = format!("// {}\n{}", spelled(options), text_of(&source.module));
    let before = bytes_of(&source);
    let pins_what_is_cast = pins_what_is_cast(&source.module, options);
    let mut once = match ampc::rewrite(source, options) {
        // A pin may match nothing, or ask for a format that its operator does not have.
        Err(error) if error.kind() == ErrorKind::Usage => return,
        done => done.unwrap_or_else(|e| panic!("{e}\n{text}")),
    };
    let findings = ampc::check(&mut once.model.module);
    let after = text_of(&once.model.module);
    assert!(findings.is_empty(), "{findings:?}\n{text}\n{after}");
    laws::text(&once.model.module);
    laws::json(&once.model.module);
    laws::onnx(&once.model.module);

    let written = bytes_of(&once.model);
    match ampc::rewrite(from_bytes(written.clone()), options) {
        // Nobody read the node of a pin, and it is gone.
        Err(error) if error.kind() == ErrorKind::Usage => {}
        // The exception of ARCHITECTURE.md: an identity that a pin makes is left out after the choice.
        Ok(_) if pins_what_is_cast => {}
        twice => {
            let twice = twice.unwrap_or_else(|e| panic!("{e}\n{after}")).model;
            assert!(written == bytes_of(&twice), "{text}\n{after}\n{}", text_of(&twice.module));
        }
    }

    let report = serde_json::to_string(&once.report).unwrap();
    let replayed = RewriteOptions::from_report(&report).unwrap().unwrap();
    let again = ampc::rewrite(graph.model(), &replayed).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert!(written == bytes_of(&again.model), "{text}\n{after}\n{}", text_of(&again.model.module));

    let (emulated, _) = ampc::emulate(once.model).unwrap_or_else(|e| panic!("{e}\n{after}"));
    laws::onnx(&emulated.module);

    let mut pinned = Policy::preset("safe").unwrap();
    pinned.pin("*", Pin::To(DType::F32)).unwrap();
    let pinned = RewriteOptions { policy: Arc::new(pinned), to: options.to, ..RewriteOptions::default() };
    let untouched = ampc::rewrite(from_bytes(before.clone()), &pinned).unwrap();
    assert!(before == bytes_of(&untouched.model), "{text}\n{}", text_of(&untouched.model.module));
}
