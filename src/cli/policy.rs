//! `ampc policy`: list, show and check policies.

use super::args::{PolicyArgs, PolicyCommand};
use super::problem::Failure;
use super::settings::read_policy;
use super::shown;
use super::table::{Table, count};
use super::ui::{self, Ui};
use ampc::ir::DType;
use ampc::ir::op::{Class, Legality, OpKind, Signature, base_class, legality};
use ampc::passes::Policy;
use ampc::passes::guard::GUARDS;
use ampc::passes::insert_casts::KeepIo;
use ampc::passes::policy::{Base, ListedBy, PRESETS, op_key};
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(crate) fn run(args: &PolicyArgs, _: Ui) -> Result<(), Failure> {
    match &args.command {
        PolicyCommand::List => {
            let mut table = Table::new(0, &[]);
            for preset in PRESETS {
                table.row([preset.name, preset.about]);
            }
            ui::show(&table.to_string())
        }
        PolicyCommand::Show { name } => {
            let read = read_policy(name)?;
            ui::show(&show(&read.policy, read.decisions))
        }
        PolicyCommand::Check { file } => {
            // A preset's name is not a file, whatever it is called.
            let name = file.display().to_string();
            if file.extension().is_none_or(|e| e != "json") {
                return Err(Failure::usage(
                    "policy",
                    format!("`{name}`: the name of a policy file ends in `.json`"),
                ));
            }
            let read = read_policy(&name)?;
            let policy = read.policy;
            let mut what = vec![
                count(policy.ops().count() as u64, "operator"),
                count((policy.pins().len() + policy.value_pins().len()) as u64, "pin"),
                count(policy.disabled_guards().len() as u64, "guard") + " left out",
            ];
            if policy.signatures().next().is_some() {
                what.push(count(policy.signatures().count() as u64, "signature"));
            }
            what.extend(read.decisions.map(repeats));
            let said = format!("{name}: policy {}, {}", policy.name, what.join(", "));
            ui::show(&format!("{}\n", shown::message(&said)))
        }
    }
}

fn repeats(decisions: u64) -> String {
    format!("repeats {}", count(decisions, "decision"))
}

fn show(policy: &Policy, decisions: Option<u64>) -> String {
    let mut text = format!("policy {}\n", shown::name(&policy.name));
    if let Some(decisions) = decisions {
        let _ = writeln!(text, "{}", repeats(decisions));
    }
    text.push_str(&wants(policy));
    text.push_str(&match policy.base {
        Base::Table => format!("\nclasses from the operator table\n{}", folded(of_table(policy))),
        Base::Schema => "\nclasses from the schemas: whatever may be 16-bit is lowered\n".into(),
        Base::Class(class) => {
            format!("\noperators in no list are {class}, except discrete and fixed operators\n")
        }
    });
    let (preset, own): (Vec<_>, Vec<_>) = policy.ops().partition(|(_, c)| c.from == ListedBy::Preset);
    if !preset.is_empty() {
        let listed = preset.into_iter().map(|(op, c)| (c.class, op.to_owned()));
        let _ = write!(text, "\nlists of the preset\n{}", folded(listed));
    }
    if !own.is_empty() {
        text.push_str("\nbut\n");
        let mut table = Table::new(2, &[]);
        for (op, class) in own {
            table.row([op, class.class.as_str()]);
        }
        let _ = write!(text, "{table}");
    }
    for (what, pins) in [("pins of nodes", policy.pins()), ("pins of values", policy.value_pins())] {
        if pins.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{what}");
        let mut table = Table::new(2, &[]);
        for (pattern, pin) in pins {
            let var = pattern.var().map_or_else(String::new, |v| format!("#{v}"));
            table.row([format!("{}{var}", pattern.text()), pin.as_str().to_owned()]);
        }
        let _ = write!(text, "{table}");
    }
    if policy.signatures().next().is_some() {
        text.push_str("\noperators with a signature\n");
        let mut table = Table::new(2, &[]);
        for (op, schema) in policy.signatures() {
            let signature = Signature::of(schema).map_or_else(String::new, |s| s.to_string());
            table.row([op, signature.as_str()]);
        }
        let _ = write!(text, "{table}");
    }
    text.push_str("\nguards\n");
    let mut table = Table::new(2, &[]);
    for guard in GUARDS {
        let on = if policy.disabled_guards().contains(guard.name) { "off" } else { "on" };
        table.row([guard.name, on, guard.about]);
    }
    let _ = write!(text, "{table}");
    text
}

/// The settings of the policy other than classes.
fn wants(policy: &Policy) -> String {
    let to = policy.wants().to.map(|to| format!(" --to {}", ampc::report::precision_name(to)));
    let keep_io = policy.wants().keep_io.as_ref().map(|keep_io| match keep_io {
        KeepIo::All => " --keep-io all".to_owned(),
        KeepIo::None => " --keep-io none".to_owned(),
        KeepIo::Names(names) => {
            format!(" --keep-io {}", names.iter().map(String::as_str).collect::<Vec<_>>().join(","))
        }
    });
    let masters =
        policy.wants().master_weights.filter(|keeps| !keeps).map(|_| " --master-weights none".to_owned());
    let asks = to.into_iter().chain(keep_io).chain(masters).collect::<String>();
    if asks.is_empty() { asks } else { format!("asks for{asks}\n") }
}

/// The operators of the table that no list names, for fp16, from which bf16 differs little.
fn of_table(policy: &Policy) -> impl Iterator<Item = (Class, String)> {
    let unlisted = OpKind::ALL.iter().filter(|&&kind| is_float(kind));
    let classes = unlisted.map(|&kind| (base_class(kind, DType::F16), op_key(kind.domain(), kind.name())));
    classes.filter(|(_, key)| policy.class_of(key).is_none())
}

/// Operators by class, folded.
fn folded(ops: impl Iterator<Item = (Class, String)>) -> String {
    let mut by_class: BTreeMap<Class, Vec<String>> = BTreeMap::new();
    for (class, op) in ops {
        by_class.entry(class).or_default().push(op);
    }
    let mut text = String::new();
    for (class, ops) in by_class {
        let _ = write!(text, "  {:<9}", class.as_str());
        let mut column = 11;
        for (i, op) in ops.iter().enumerate() {
            let word = if i + 1 < ops.len() { format!(" {op},") } else { format!(" {op}") };
            if column + word.len() > 100 {
                text.push_str("\n           ");
                column = 11;
            }
            column += word.len();
            text.push_str(&word);
        }
        text.push('\n');
    }
    text
}

fn is_float(kind: OpKind) -> bool {
    let schema = kind.newest();
    let float = |i: u8| legality(schema, i, DType::F16) != Legality::NotFloat;
    !schema.is_gone() && (0u8..).zip(schema.type_vars).any(|(i, _)| float(i))
}
