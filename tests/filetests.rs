//! Cases as files: `tests/cases/<pass>/<case>.ir`, one named test each.
//!
//! # Passes
//! The first line is `// pass: <pipeline>`, mostly the one pass the folder is named after. A case whose nodes
//! have classes (and precisions) in the text may begin behind `classify` (and `assign`). The result is compared
//! with `<case>.ir.snap` beside the case: the module in text form, and below it warnings, or the error the pass
//! ends with. Further lines at the top, each at most once, say what the user asked for:
//!
//! - `// policy: {…}`: the JSON of a policy; it has the name `case` in the pipeline;
//! - `// allow: A, B`, likewise `infer`, `clear` and `deny`: lists of the command line;
//! - `// pin: NODE=fp16`, `// pin-value: NAME=fp32`.
//!
//! `// print: placement` at the top prints the placement of casts below the module, as cases of insert-casts alone do.
//!
//! Beside the snapshot it is checked that every pass leaves a valid module, that one which says it changed nothing
//! did not, and that what comes out is read back from its text as the same module and prints as the same text.
//!
//! # Presets
//! A case in `presets` is a model; its snapshot is a table of its type variables by presets: the class that `classify`
//! gives, with a `*` if the variable is low once guards, taint and assignment are through.
//!
//! # Verifier and parser
//! In `verify` and `parse`, comment lines `// error: message` stand directly below the line that is to blame, one
//! for each error; nothing else may be reported. A message of the parser begins with `column N: `. Cases of the
//! verifier are in canonical form but for comments, so that lines correspond to what is in the module.
//!
//! With `AMPC_BLESS=1` the `// error:` lines are written instead of compared.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc_ir::eq::same_module;
use ampc_ir::infer::infer;
use ampc_ir::module::GraphOwner;
use ampc_ir::op::Class;
use ampc_ir::text::{NoData, PrintOptions, parse, print};
use ampc_ir::verify::{Problem, Violation, name_of, verify_module};
use ampc_ir::{DType, Module, Node, Value};
use ampc_passes::cost::Objective;
use ampc_passes::flow::{self, Var};
use ampc_passes::insert_casts::KeepIo;
use ampc_passes::pipeline::{Observer, Pipeline, RunError};
use ampc_passes::placement::Placement;
use ampc_passes::policy::{ListedBy, PRESETS, PolicyError};
use ampc_passes::{Changed, Invariants, Pass, Paths, Policy};
use std::fmt::Write as _;
use std::path::Path;

datatest_stable::harness! {
    { test = pass, root = "tests/cases", pattern = r"^(?!verify/|parse/|presets/|gradient/).*\.ir$" },
    { test = presets, root = "tests/cases", pattern = r"^presets/.*\.ir$" },
    { test = verifier, root = "tests/cases", pattern = r"^verify/.*\.ir$" },
    { test = parser, root = "tests/cases", pattern = r"^parse/.*\.ir$" },
}

type Outcome = datatest_stable::Result<()>;

fn text_of(module: &Module) -> String {
    let printed = print(module, &PrintOptions::default());
    assert!(printed.errors.is_empty(), "{:?}", printed.errors);
    printed.text
}

/// Lines `// key: value` at the top of a case.
fn directives(text: &str) -> Vec<(&str, &str)> {
    text.lines().map_while(|line| line.strip_prefix("// ")).filter_map(|line| line.split_once(": ")).collect()
}

/// The policy of this name with what the case asks for on top.
fn policy(name: &str, asked: &[(&str, &str)]) -> Result<Policy, PolicyError> {
    let json = asked.iter().find(|(key, _)| *key == "policy").filter(|_| name == "case");
    let mut policy = match json {
        Some((_, json)) => Policy::from_json(json)?,
        None => Policy::preset(name)?,
    };
    for (key, value) in asked {
        let pinned = || value.rsplit_once('=').expect("a pin is NAME=PRECISION");
        match *key {
            "allow" | "infer" | "clear" | "deny" => {
                for op in value.split(", ") {
                    policy.set_class(op, key.parse().unwrap(), ListedBy::Options)?;
                }
            }
            "pin" => policy.pin(pinned().0, pinned().1.parse()?)?,
            "pin-value" => policy.pin_value(pinned().0, pinned().1.parse()?)?,
            _ => {}
        }
    }
    Ok(policy)
}

/// Compares what passes claim with what they did, and notes the placement that insert-casts carries out.
#[derive(Default)]
struct Claims {
    before: String,
    placed: String,
}

impl Observer for Claims {
    fn before(&mut self, pass: &dyn Pass, module: &Module) {
        self.before = text_of(module);
        if pass.name() == "insert-casts" {
            let is = |option: &str, value: &str| {
                let set = pass.options();
                set.iter()
                    .any(|(name, set)| *name == option && format!("{set:?}") == format!("Text({value:?})"))
            };
            let keep_io = if is("keep-io", "none") { KeepIo::None } else { KeepIo::All };
            let objective = if is("objective", "casts") { Objective::Casts } else { Objective::Time };
            self.placed = Placement::of_decided(module, &keep_io, objective).to_text(module);
        }
    }
    fn after(&mut self, pass: &dyn Pass, module: &Module, changed: Changed) {
        if changed == Changed::No {
            assert_eq!(self.before, text_of(module), "{} says it changed nothing", pass.name());
        }
    }
}

fn pass(path: &Path) -> Outcome {
    let text = std::fs::read_to_string(path)?;
    let asked = directives(&text);
    let Some(&("pass", spelling)) = asked.first() else {
        return Err("no `// pass:` in the first line".into());
    };
    let mut module = parse(&text, &NoData)?;
    round_trip(&module);
    let pipeline = Pipeline::parse_on(Invariants::of(&module), spelling, &|name: &str| policy(name, &asked))?;
    let mut claims = Claims::default();
    let mut shown = match pipeline.run(&mut module, true, &mut claims) {
        Ok(warnings) => {
            round_trip(&module);
            let mut shown = text_of(&module);
            for warning in warnings {
                writeln!(shown, "// warning {}: {}", warning.code, warning.message).unwrap();
            }
            let is_placed = asked.iter().any(|(key, _)| *key == "print") || spelling == "insert-casts";
            for line in claims.placed.lines().filter(|_| is_placed) {
                writeln!(shown, "// {line}").unwrap();
            }
            shown
        }
        Err(RunError::Pass { pass, error }) => format!("// error in {pass}: {error}\n"),
        Err(RunError::Invalid(found)) => {
            return Err(format!("invalid before the first pass: {found:?}").into());
        }
        Err(RunError::IllTyped(found)) => {
            return Err(format!("ill-typed before the first pass: {found:?}").into());
        }
        Err(other) => return Err(other.into()),
    };
    shown.truncate(shown.trim_end().len());
    snapshot(path, &shown)
}

/// Compares with the snapshot beside a case.
fn snapshot(path: &Path, shown: &str) -> Outcome {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.canonicalize()?.parent().unwrap());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    settings.bind(|| insta::assert_snapshot!(name, shown));
    Ok(())
}

/// A table of classes, one column per preset.
fn presets(path: &Path) -> Outcome {
    let module = parse(&std::fs::read_to_string(path)?, &NoData)?;
    round_trip(&module);
    // Of a family, an example.
    let names = PRESETS.iter().map(|p| p.name.replace("POLICY", "p=f32+c=f16+o=f32"));
    let mut columns = vec![rows(&module)];
    for name in names {
        let disabled = Policy::preset(&name)?.disabled_guards().iter().cloned().collect::<Vec<_>>().join("+");
        let classify = format!("classify{{policy={name}}}");
        let assign = format!("{classify}, guard{{disable={disabled}}}, taint, assign");
        let [classified, assigned] = [decided(&module, &classify)?, decided(&module, &assign)?];
        let cells = classified.iter().zip(&assigned).map(|(class, precision)| {
            let low = precision.1.is_some_and(DType::is_low);
            format!("{}{}", class.0, if low { "*" } else { "" })
        });
        let head = name.split(':').next().unwrap().to_owned();
        columns.push(std::iter::once(head).chain(cells).collect());
    }
    let width = |column: &Vec<String>| column.iter().map(String::len).max().unwrap_or(0);
    let mut table = String::new();
    for row in 0..columns[0].len() {
        let cells = columns.iter().map(|column| format!("{:width$}", column[row], width = width(column)));
        writeln!(table, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    snapshot(path, table.trim_end())
}

/// Paths, operators and variables of what is f32, below a heading.
fn rows(module: &Module) -> Vec<String> {
    let paths = Paths::of(module);
    let mut rows = vec![String::new()];
    for &node in paths.nodes() {
        let (_, op, _) = module.op_name(node);
        let name = |var: usize| format!("{} {op} {}", paths.path(node), module.var_names(node)[var]);
        rows.extend(f32_vars(module, node).map(name));
    }
    rows
}

/// The variables of a node that are f32.
fn f32_vars(module: &Module, node: Node) -> impl Iterator<Item = usize> {
    let vars = flow::vars(module, node);
    let is_f32 = |&var: &Var| flow::bound_type(module, var).and_then(|ty| ty.dtype()) == Some(DType::F32);
    vars.filter(is_f32).map(|var| usize::from(var.var))
}

/// The decisions about what is f32.
fn decided(module: &Module, pipeline: &str) -> datatest_stable::Result<Vec<(Class, Option<DType>)>> {
    let mut decided = module.clone();
    let pipeline = Pipeline::parse(pipeline, &Policy::preset)?;
    pipeline.run(&mut decided, true, &mut ())?;
    let mut decisions = Vec::new();
    for &node in Paths::of(module).nodes() {
        let of_node = &decided.node(node).decisions;
        decisions.extend(f32_vars(module, node).map(|var| (of_node[var].class, of_node[var].precision)));
    }
    Ok(decisions)
}

/// The laws of the text form.
fn round_trip(module: &Module) {
    let text = text_of(module);
    let again = parse(&text, &NoData).unwrap_or_else(|e| panic!("{e}\n{text}"));
    if let Err(difference) = same_module(module, &again) {
        panic!("{difference}\n{text}");
    }
    assert_eq!(text, text_of(&again));
}

/// Unexpected findings, with the index of their line in the text without comment lines; 0 for none.
type Found = Vec<(usize, String)>;

/// Compares what is found with the `// error:` lines of a case, each of which speaks of the line above it.
fn compare(path: &Path, text: &str, mut found: Found) -> Outcome {
    let mut expected = Found::new();
    let mut rest = Vec::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("// error: ") {
            Some(message) => expected.push((rest.len(), message.to_owned())),
            None => rest.push(line),
        }
    }
    found.sort();
    #[expect(clippy::disallowed_methods, reason = "tests are told to write what they find")]
    if std::env::var("AMPC_BLESS").is_ok() {
        let mut blessed = String::new();
        for (i, line) in rest.iter().enumerate() {
            blessed += &format!("{line}\n");
            let indent = &line[..line.len() - line.trim_start().len()];
            for (_, message) in found.iter().filter(|(at, _)| *at == i + 1) {
                blessed += &format!("{indent}// error: {message}\n");
            }
        }
        std::fs::write(path, blessed)?;
        return Ok(());
    }
    let mut sorted = expected.clone();
    sorted.sort();
    if sorted == found && !found.is_empty() {
        return Ok(());
    }
    let list = |found: &Found| {
        found.iter().fold(String::new(), |list, (at, message)| {
            format!("{list}\n  below `{}`: {message}", at.checked_sub(1).map_or("", |i| rest[i].trim()))
        })
    };
    Err(format!("expected{}\nfound{}", list(&sorted), list(&found)).into())
}

fn parser(path: &Path) -> Outcome {
    let text = std::fs::read_to_string(path)?;
    let errors = parse(&text, &NoData).err().map_or_else(Vec::new, |e| e.0);
    // Lines of the case, counted without those that say what is expected.
    let kept: Vec<usize> = text
        .lines()
        .scan(0, |kept, line| {
            *kept += usize::from(!line.trim_start().starts_with("// error: "));
            Some(*kept)
        })
        .collect();
    let found = errors.into_iter().map(|e| {
        let line = kept.get(e.line - 1).or(kept.last()).copied().unwrap_or(0);
        (line, format!("column {}: expected {}, found {}", e.column, e.expected, e.found))
    });
    compare(path, &text, found.collect())
}

fn verifier(path: &Path) -> Outcome {
    let text = std::fs::read_to_string(path)?;
    let module = parse(&text, &NoData)?;
    let printed = print(&module, &PrintOptions::default());
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    assert_eq!(printed.text.trim_end(), lines.join("\n").trim_end(), "the case is not in canonical form");
    let line_of = |at: usize| printed.text[..at].matches('\n').count();
    let place = |module: &Module, violation: &Violation| {
        if let Some(range) = violation.node.and_then(|n| printed.nodes[n].clone()) {
            return line_of(range.start);
        }
        let begins = |line: &str| match (violation.value, module.graph(violation.graph).owner) {
            (Some(value), _) => defines(module, violation, value, line),
            (None, GraphOwner::Function(function)) => {
                let data = module.function(function);
                line == format!("function {}::{} {{", module.text(data.domain), module.text(data.name))
            }
            (None, _) => line.starts_with("graph"),
        };
        lines.iter().position(|line| begins(line.trim_start())).unwrap_or(0)
    };
    let mut found = Found::new();
    for violation in verify_module(&module).err().unwrap_or_default() {
        found.push((place(&module, &violation), violation.problem.to_string()));
    }
    for error in infer(&module).1 {
        let at = printed.nodes[error.node].as_ref().map_or(0, |range| line_of(range.start));
        found.push((at, error.error.to_string()));
    }
    found.sort();
    found.dedup();
    // Lines without comments to lines with all comments but those that say what is expected.
    let others: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("// error: ")).collect();
    let mut of_line = others
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(i, _)| i + 1)
        .collect::<Vec<_>>();
    of_line.push(others.len());
    compare(path, &text, found.into_iter().map(|(line, message)| (of_line[line], message)).collect())
}

/// True if a line of a graph is the place of a value that no node makes: where it enters, or where it leaves if
/// that is wrong.
fn defines(module: &Module, violation: &Violation, value: Value, line: &str) -> bool {
    let words: &[&str] = match violation.problem {
        Problem::BoundaryDisagrees { what: "graph output", .. } => &["output "],
        _ => &["input ", "const "],
    };
    let name = format!("%{}", name_of(module, value));
    words
        .iter()
        .filter_map(|word| line.strip_prefix(word))
        .any(|rest| rest.split([' ', ':']).next() == Some(name.as_str()))
}
