//! `ampc ops`: the operator table.

use super::args::OpsArgs;
use super::problem::Failure;
use super::table::Table;
use super::ui;
use ampc::ir::DType;
use ampc::ir::infer::is_inferred;
use ampc::ir::op::{Legality, OpKind, base_class, legality, var_class};
use serde_json::{Value, json};

const FORMATS: [(&str, DType); 2] = [("fp16", DType::F16), ("bf16", DType::BF16)];

pub(crate) fn run(args: &OpsArgs) -> Result<(), Failure> {
    if args.json {
        let ops: Vec<Value> = OpKind::ALL.iter().map(|&kind| json(kind)).collect();
        return ui::print(&format!("{:#}\n", json!({ "schema": "ampc-ops/1", "ops": ops })));
    }
    let mut table = Table::new(0, &[]);
    table.row(["operator", "fp16", "bf16", "types inferred", "versions"]);
    for &kind in OpKind::ALL {
        let mut row = vec![ampc::passes::policy::op_key(kind.domain(), kind.name())];
        row.extend(FORMATS.iter().map(|&(_, format)| class(kind, format)));
        row.push(if is_inferred(kind) { "yes" } else { "by schema" }.into());
        let versions: Vec<String> = kind.versions().iter().map(|s| s.since.to_string()).collect();
        row.push(versions.join(" "));
        table.row(row);
    }
    ui::show(&table.to_string())
}

/// Classes of the float type variables at the newest version: that of the operator, then the others.
fn class(kind: OpKind, format: DType) -> String {
    if kind.newest().deprecated {
        return format!("gone since {}", kind.newest().since);
    }
    let vars = vars(kind, format);
    if vars.is_empty() {
        return "-".into();
    }
    let base = base_class(kind, format).to_string();
    let others: Vec<String> = vars
        .iter()
        .filter(|(_, class)| *class != base)
        .map(|(name, class)| format!("{name} {class}"))
        .collect();
    match others.len() {
        0 => base,
        n if n == vars.len() && n == 1 => vars.into_iter().map(|(_, class)| class).collect(),
        _ => format!("{base} ({})", others.join(", ")),
    }
}

fn vars(kind: OpKind, format: DType) -> Vec<(&'static str, String)> {
    let schema = kind.newest();
    (0u8..)
        .zip(schema.type_vars)
        .filter(|&(i, var)| {
            var.allowed.has_tensor(DType::F32) && legality(schema, i, format) != Legality::NotFloat
        })
        .map(|(i, var)| (var.name, var_class(schema, i, format).to_string()))
        .collect()
}

fn json(kind: OpKind) -> Value {
    let classes = FORMATS.map(|(name, format)| (name, Value::from(base_class(kind, format).as_str())));
    let vars = FORMATS.map(|(name, format)| {
        let vars: serde_json::Map<String, Value> =
            vars(kind, format).into_iter().map(|(var, class)| (var.to_owned(), class.into())).collect();
        (name, Value::Object(vars))
    });
    json!({
        "domain": kind.domain(),
        "name": kind.name(),
        "versions": kind.versions().iter().map(|s| s.since).collect::<Vec<_>>(),
        "deprecated": kind.newest().deprecated,
        "class": classes.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<serde_json::Map<_, _>>(),
        "type_vars": vars.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<serde_json::Map<_, _>>(),
        "inferred": is_inferred(kind),
    })
}
