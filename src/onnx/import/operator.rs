//! Versions, opset imports, and the operators of nodes.

use super::Import;
use super::raw::RawFunction;
use crate::onnx::error::{ProblemKind, Warning};
use crate::onnx::node::NodeMessage;
use crate::onnx::scan::ModelMessage;
use ampc_ir::entity::EntityRef;
use ampc_ir::module::{Header, is_own_key};
use ampc_ir::op::{LATEST_IR_VERSION, Lookup, all, latest_opset, lookup_overload};
use ampc_ir::{FunctionId, Op, Symbol};
use rustc_hash::{FxHashMap, FxHashSet};

/// The newest opset of ai.onnx at the release that brought an IR version, from version 1 on: the opset that a
/// model without import is assumed to mean. See "Released versions" in ONNX's `docs/Versioning.md`.
const OPSET_OF_IR: [u16; 14] = [1, 1, 8, 10, 11, 11, 14, 18, 20, 22, 23, 24, 26, 28];

/// The functions of a model by domain, name and overload.
pub(super) struct FunctionNames {
    by_name: FxHashMap<(Symbol, Symbol, Symbol), usize>,
    empty: Symbol,
    ai_onnx: Symbol,
}

impl FunctionNames {
    pub(super) fn of(import: &mut Import<'_>, functions: &[RawFunction]) -> FunctionNames {
        let (empty, ai_onnx) = (import.module.intern(""), import.module.intern("ai.onnx"));
        let mut by_name = FxHashMap::default();
        for (i, function) in functions.iter().enumerate() {
            let m = &function.message;
            let key = (
                canonical(import.module.intern(&m.domain), ai_onnx, empty),
                import.module.intern(&m.name),
                import.module.intern(&m.overload),
            );
            if by_name.insert(key, i).is_some() {
                let name = format!("{}::{}", m.domain, m.name);
                import.problem("", ProblemKind::DuplicateFunction { name });
            }
        }
        FunctionNames { by_name, empty, ai_onnx }
    }
}

/// The domain ai.onnx has two spellings.
fn canonical(domain: Symbol, ai_onnx: Symbol, empty: Symbol) -> Symbol {
    if domain == ai_onnx { empty } else { domain }
}

fn shown(domain: &str) -> String {
    if domain.is_empty() { "ai.onnx".to_owned() } else { domain.to_owned() }
}

impl Import<'_> {
    pub(super) fn check_versions(&mut self, model: &ModelMessage) {
        let newest = LATEST_IR_VERSION;
        match model.ir_version {
            None => self.problem("", ProblemKind::NoIrVersion { newest }),
            Some(found) if !(1..=newest).contains(&found) => {
                self.problem("", ProblemKind::IrVersion { found, newest });
            }
            Some(_) => {}
        }
    }

    pub(super) fn header(&mut self, model: &ModelMessage) -> Header {
        let mut known = FxHashSet::default();
        for (key, _) in model.metadata.iter().filter(|(key, _)| is_own_key(key)) {
            if !known.insert(key) {
                self.problem("", ProblemKind::DuplicateMetadata { key: key.clone() });
            }
        }
        Header {
            ir_version: model.ir_version.unwrap_or_default(),
            opsets: self.opsets(&model.opsets, ""),
            producer_name: model.producer_name.clone(),
            producer_version: model.producer_version.clone(),
            domain: model.domain.clone(),
            model_version: model.model_version,
            doc_string: model.doc_string.clone(),
            metadata: model.metadata.clone(),
        }
    }

    /// Checks opset imports. The same import twice, as ai.onnx under both its names, is harmless and kept.
    pub(super) fn opsets(&mut self, imports: &[(String, i64)], place: &str) -> Vec<(Symbol, u16)> {
        let mut opsets = Vec::new();
        let mut versions: FxHashMap<String, i64> = FxHashMap::default();
        for (domain, version) in imports {
            if let Some(&first) = versions.get(&shown(domain))
                && first != *version
            {
                let kind = ProblemKind::DuplicateOpset { domain: shown(domain), first, second: *version };
                self.problem(place, kind);
            }
            versions.insert(shown(domain), *version);
            let known = latest_opset(domain);
            let valid = match known {
                Some(newest) => (1..=i64::from(newest)).contains(version),
                None => *version >= 0,
            };
            match u16::try_from(*version) {
                Ok(v) if valid => opsets.push((self.module.intern(domain), v)),
                _ => {
                    let newest = known.unwrap_or(u16::MAX);
                    let kind = ProblemKind::OpsetVersion { domain: shown(domain), found: *version, newest };
                    self.problem(place, kind);
                }
            }
        }
        opsets
    }

    /// The opset that holds for a domain; if it is not imported, the import is added with a warning.
    fn opset(
        &mut self,
        domain: Symbol,
        names: &FunctionNames,
        (scope, opsets): (Option<usize>, &mut Vec<(Symbol, u16)>),
        ir_version: i64,
    ) -> u16 {
        if self.imports_seen.insert(scope) {
            for &(imported, version) in &*opsets {
                let imported = canonical(imported, names.ai_onnx, names.empty);
                self.opset_of.entry((scope, imported)).or_insert(version);
            }
        }
        if let Some(&opset) = self.opset_of.get(&(scope, domain)) {
            return opset;
        }
        let opset = self.assumed_opset(domain, opsets, ir_version);
        self.opset_of.insert((scope, domain), opset);
        opset
    }

    /// The opset of a domain that is not imported; now it is.
    fn assumed_opset(&mut self, domain: Symbol, opsets: &mut Vec<(Symbol, u16)>, ir_version: i64) -> u16 {
        let text = self.module.text(domain);
        let by_ir = usize::try_from(ir_version - 1).ok().and_then(|i| OPSET_OF_IR.get(i).copied());
        let opset = match latest_opset(text) {
            Some(newest) if text.is_empty() => by_ir.unwrap_or(newest),
            Some(newest) => newest,
            None => 1,
        };
        self.warn(Warning::MissingOpset { domain: shown(text), opset, more: 0 });
        opsets.push((domain, opset));
        opset
    }

    /// The operator of a node; `None` if there is no such operator, which has been reported.
    pub(super) fn operator(
        &mut self,
        node: &NodeMessage,
        functions: &FunctionNames,
        imports: (Option<usize>, &mut Vec<(Symbol, u16)>),
        ir_version: i64,
        place: &str,
    ) -> Option<Op> {
        let empty = functions.empty;
        let (domain, overload) = (node.domain.unwrap_or(empty), node.overload.unwrap_or(empty));
        let domain = canonical(domain, functions.ai_onnx, empty);
        let Some(name) = node.op_type else {
            self.problem(place_of(self, place, node), ProblemKind::NoOperator);
            return None;
        };
        let opset = self.opset(domain, functions, imports, ir_version);
        if let Some(&function) = functions.by_name.get(&(domain, name, overload)) {
            return Some(Op::Call(FunctionId::new(function)));
        }
        let (domain_text, name_text) = (self.module.text(domain), self.module.text(name));
        let shown_name = || name_text.to_owned();
        let kind = match lookup_overload(domain_text, name_text, self.module.text(overload), opset) {
            Lookup::UnknownDomain => return Some(Op::Custom { domain, name, overload }),
            // Operators have no overload, so that the text form would print `domain::Name`, a call of that function.
            Lookup::Found(_)
                if overload != empty && functions.by_name.contains_key(&(domain, name, empty)) =>
            {
                let overload = self.module.text(overload).to_owned();
                ProblemKind::NoOverload { domain: shown(domain_text), name: shown_name(), overload }
            }
            Lookup::Found(schema) => {
                if schema.is_runtime_only() {
                    let first = place_of(self, place, node);
                    self.runtime_only.entry((schema.name, opset)).or_insert((first, 0)).1 += 1;
                }
                return Some(Op::Schema(schema));
            }
            Lookup::TooNew { since } => {
                ProblemKind::OperatorTooNew { domain: shown(domain_text), name: shown_name(), since, opset }
            }
            Lookup::Removed { since, by } => {
                let (domain, name) = (shown(domain_text), shown_name());
                ProblemKind::OperatorRemoved { domain, name, since, by, opset }
            }
            Lookup::UnknownOp => ProblemKind::UnknownOperator {
                domain: shown(domain_text),
                name: shown_name(),
                suggestion: *self
                    .similar
                    .entry((domain, name))
                    .or_insert_with(|| similar(domain_text, name_text)),
            },
        };
        self.problem(place_of(self, place, node), kind);
        None
    }
}

fn place_of(import: &Import<'_>, graph: &str, node: &NodeMessage) -> String {
    let name = node.name.or_else(|| node.outputs.iter().flatten().next().copied());
    super::scope::join(graph, name.map_or("a node without name", |n| import.module.text(n)))
}

/// An operator of the domain that differs only in case, or else by one letter.
fn similar(domain: &str, name: &str) -> Option<&'static str> {
    let known = || all().iter().filter(|s| s.domain == domain).map(|s| s.name);
    let same_letters = known().find(|known| known.eq_ignore_ascii_case(name));
    same_letters.or_else(|| known().find(|known| one_edit(known.as_bytes(), name.as_bytes())))
}

/// True if one letter added, removed or replaced leads from one text to the other.
fn one_edit(a: &[u8], b: &[u8]) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let same = short.iter().zip(long).take_while(|(x, y)| x == y).count();
    match long.len() - short.len() {
        0 => short.get(same + 1..) == long.get(same + 1..),
        1 => short[same..] == long[same + 1..],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_letter_off() {
        assert_eq!(similar("", "Reluu"), Some("Relu"));
        assert_eq!(similar("", "relu"), Some("Relu"));
        assert_eq!(similar("", "MatMal"), Some("MatMul"));
        assert_eq!(similar("", "Frobnicate"), None);
    }
}
