//! Pairs of groups that hand over a value in another form: an artificial backend stores one number in place of a tensor, and
//! its second group computes the tensor anew.
//!
//! ```text
//! %p = Exp(%x)   %o = Neg(%p)        a group; it stores 1 number for %p
//! %m = MatMul(%o, %o)                between the groups
//! %q = Mul(%p, %m)   %r = Sub(%q, %p)   a group, which reads %x in place of %p
//! ```

#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc_ir::op::OpKind;
use ampc_ir::text::{NoData, parse};
use ampc_ir::{DType, Module, Node, Value};
use ampc_runtime::backend::{Backend, Candidates, Carry, GroupSite, KernelError, Prepared, Site};
use ampc_runtime::session::{NodeObserver, Watch};
use ampc_runtime::{Cpu, DataRef, HostTensor, Runtime, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number that is stored in place of the tensor.
const MARK: f32 = 7.0;

#[derive(Debug, Default)]
struct Paired {
    /// The groups that ran.
    ran: Arc<AtomicUsize>,
    /// True if the second group has no kernel.
    refuses: bool,
    /// True if a value is read in place of the carried one that the first group does not have.
    is_wrong: bool,
}

fn kind(module: &Module, node: Node) -> Option<OpKind> {
    module.node(node).schema().map(|schema| schema.kind)
}

fn result(module: &Module, node: Node) -> Value {
    module.node(node).results()[0].unwrap()
}

impl Paired {
    fn cpu() -> Cpu {
        Cpu::new(1)
    }
}

impl Backend for Paired {
    fn name(&self) -> &'static str {
        "paired"
    }
    fn has_kernel(&self, kind: OpKind) -> bool {
        Paired::cpu().has_kernel(kind)
    }
    fn prepare(&self, site: &Site<'_>) -> Result<Prepared, KernelError> {
        Paired::cpu().prepare(site)
    }
    fn has_groups(&self) -> bool {
        true
    }
    fn join(&self, candidates: &Candidates<'_>) -> Vec<Vec<Node>> {
        let of = |kinds: [OpKind; 2]| {
            let is = |node: &Node| kind(candidates.module, *node).is_some_and(|kind| kinds.contains(&kind));
            candidates.nodes.iter().copied().filter(is).collect::<Vec<Node>>()
        };
        vec![of([OpKind::Exp, OpKind::Neg]), of([OpKind::Mul, OpKind::Sub])]
    }
    fn carries(&self, candidates: &Candidates<'_>, groups: &[Vec<Node>]) -> Vec<Carry> {
        let Candidates { module, .. } = *candidates;
        let exp = groups[0][0];
        let x = module.node(exp).operands()[0].unwrap();
        let wrong = result(module, groups[1][0]);
        let instead = vec![if self.is_wrong { wrong } else { x }];
        vec![Carry { value: result(module, exp), stored: Some((DType::F32, vec![1])), instead }]
    }
    fn prepare_group(&self, group: &GroupSite<'_>) -> Result<Prepared, KernelError> {
        let [carry] = group.carries else { return Err(KernelError::unsupported("a group without a carry")) };
        let ran = self.ran.clone();
        let at = |values: &[Value], value: Value| values.iter().position(|&other| other == value);
        if let Some(p) = at(group.results, carry.value) {
            return Ok(Prepared::new(move |io| {
                ran.fetch_add(1, Ordering::Relaxed);
                let x = io.slice::<f32>(0)?;
                io.out::<f32>(p)?.copy_from_slice(&[MARK]);
                io.out::<f32>(1 - p)?.iter_mut().zip(x).for_each(|(o, x)| *o = -x.exp());
                Ok(())
            }));
        }
        if self.refuses {
            return Err(KernelError::unsupported("the second group"));
        }
        let (p, x) =
            (at(group.operands, carry.value).unwrap(), at(group.operands, carry.instead[0]).unwrap());
        let m = (0..3).find(|i| ![p, x].contains(i)).unwrap();
        assert_eq!(group.operands.len(), 3);
        Ok(Prepared::new(move |io| {
            ran.fetch_add(1, Ordering::Relaxed);
            assert_eq!(io.slice::<f32>(p)?, [MARK]);
            let (x, m) = (io.slice::<f32>(x)?, io.slice::<f32>(m)?);
            let r = io.out::<f32>(0)?;
            r.iter_mut().zip(x.iter().zip(m)).for_each(|(r, (x, m))| *r = x.exp() * m - x.exp());
            Ok(())
        }))
    }
}

fn module(end: &str) -> Module {
    let text = format!(
        "module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n  input %x : f32[16, 16]\n  %p = Exp(%x) : f32[16, 16]\n  \
         %o = Neg(%p) : f32[16, 16]\n  %m = MatMul(%o, %o) : f32[16, 16]\n  %q = Mul(%p, %m) : f32[16, 16]\n  \
         %r = Sub(%q, %p) : f32[16, 16]\n  output %r\n{end}}}\n"
    );
    parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}"))
}

fn session(backend: Paired, module: &Module) -> Session {
    Runtime::new(Arc::new(backend)).prepare(module).unwrap()
}

fn x() -> HostTensor {
    let numbers: Vec<f32> = (0..=255u8).map(|i| f32::from(i) / 300.0 - 0.4).collect();
    HostTensor::from_slice(&[16, 16], &numbers).unwrap()
}

/// The number of groups that ran, and the bytes of the arena. The outputs are those of the CPU.
fn run(backend: Paired, module: &Module) -> (usize, usize) {
    let ran = backend.ran.clone();
    let input = x();
    let refs = [Some(DataRef::Tensor(input.view()))];
    let want = Runtime::from(Cpu::new(1)).prepare(module).unwrap().run(&refs).unwrap();
    let mut session = session(backend, module);
    let got = session.run(&refs).unwrap();
    for (got, want) in got.iter().zip(&want) {
        let numbers =
            |data: &ampc_runtime::Data| data.tensor().unwrap().f64s().unwrap().collect::<Vec<f64>>();
        for (got, want) in numbers(got).iter().zip(numbers(want)) {
            assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{got} instead of {want}");
        }
    }
    (ran.load(Ordering::Relaxed), session.arena_bytes())
}

#[test]
fn a_pair_stores_another_form() {
    let module = module("");
    let (ran, arena) = run(Paired::default(), &module);
    let (split, without) = run(Paired { refuses: true, ..Paired::default() }, &module);
    // A group without a kernel takes its partner with it.
    assert_eq!((ran, split), (2, 0));
    assert!(arena < without, "{arena} bytes with a pair, {without} without");
}

#[test]
fn a_carried_value_that_others_see_has_no_pair() {
    for end in ["  output %p\n", "  %s = Abs(%p) : f32[16, 16]\n  output %s\n"] {
        assert_eq!(run(Paired::default(), &module(end)).0, 0, "{end}");
    }
}

/// Sees one value.
struct One(Value);

impl NodeObserver for One {
    fn watch(&self) -> Watch {
        Watch::values([self.0])
    }
    fn value(&mut self, _: Node, _: usize, data: DataRef<'_>) {
        assert_eq!(data.tensor().unwrap().dims(), [16, 16]);
    }
}

#[test]
fn a_carried_value_that_is_watched_has_no_pair() {
    let module = module("");
    let nodes: Vec<Node> = module.nodes(module.main()).collect();
    // The carried value, and another.
    for (node, groups) in [(0, 0), (2, 2)] {
        let backend = Paired::default();
        let (ran, input) = (backend.ran.clone(), x());
        let mut observer = One(result(&module, nodes[node]));
        let refs = [Some(DataRef::Tensor(input.view()))];
        session(backend, &module).run_observed(&refs, Some(&mut observer)).unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), groups);
    }
}

#[test]
fn a_pair_that_hands_over_a_value_that_its_first_group_does_not_have_is_not_prepared() {
    let backend = Paired { is_wrong: true, ..Paired::default() };
    let ran = backend.ran.clone();
    run(backend, &module(""));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}
