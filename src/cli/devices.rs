//! `ampc devices`: the devices that run models, and the libraries that they need.

use super::args::DevicesArgs;
use super::data;
use super::problem::Failure;
use super::table::{Table, bytes};
use super::ui;
use ampc::device::{self, DeviceInfo, Devices, LibraryInfo};
use serde_json::{Value, json};

pub(crate) fn run(args: &DevicesArgs, threads: Option<u32>) -> Result<(), Failure> {
    let found = device::devices(&data::backend_options(threads));
    if args.json { ui::print(&format!("{:#}\n", json(&found))) } else { ui::show(&text(&found)) }
}

fn text(found: &Devices) -> String {
    // The CPU has neither capability nor memory of its own.
    let has_gpu = found.devices.iter().any(|of| of.capability.is_some());
    let mut table = Table::new(0, if has_gpu { &[false, false, true, true] } else { &[] });
    let of_gpus = |cells: [String; 2]| cells.into_iter().filter(move |_| has_gpu);
    let row = |device: &str, name: &str, cells: [String; 2], state: &str| -> Vec<String> {
        let (before, behind) = ([device.to_owned(), name.to_owned()], [state.to_owned()]);
        before.into_iter().chain(of_gpus(cells)).chain(behind).collect()
    };
    table.row(row("device", "name", ["capability", "memory"].map(str::to_owned), "state"));
    for DeviceInfo { device, name, capability, memory, problem } in &found.devices {
        let capability = capability.map_or_else(String::new, |(major, minor)| format!("{major}.{minor}"));
        let memory = memory.map_or_else(String::new, bytes);
        table.row(row(
            &device.to_string(),
            name,
            [capability, memory],
            problem.as_deref().unwrap_or("usable"),
        ));
    }
    let mut text = table.to_string();
    if !found.libraries.is_empty() {
        let mut table = Table::new(0, &[]);
        table.row(["library", "version", "file"]);
        for LibraryInfo { name, file, found } in &found.libraries {
            match found {
                Ok((version, path)) => {
                    table.row([(*name).to_owned(), version.clone(), path.display().to_string()]);
                }
                Err(reason) => table.row([*name, "-", &format!("{file}: {reason}")]),
            }
        }
        text.push_str(&format!("\n{table}"));
    }
    if let Some(problem) = &found.problem {
        text.push_str(&format!("\n{problem}\n"));
    }
    // The folders explain a library that was not found.
    if found.libraries.iter().any(|library| library.found.is_err()) {
        text.push_str("\nSearched: the folders of the dynamic loader");
        for folder in &found.folders {
            text.push_str(&format!("\n  {}", folder.display()));
        }
        text.push('\n');
    }
    text
}

fn json(found: &Devices) -> Value {
    let devices = found.devices.iter().map(|of| {
        json!({
            "device": of.device.to_string(),
            "name": of.name,
            "compute_capability": of.capability.map(|(major, minor)| format!("{major}.{minor}")),
            "memory_bytes": of.memory,
            "usable": of.problem.is_none(),
            "problem": of.problem,
        })
    });
    let libraries = found.libraries.iter().map(|of| {
        let (version, path) = of.found.as_ref().ok().map(|(v, p)| (v, p.display().to_string())).unzip();
        json!({
            "name": of.name,
            "file": of.file,
            "version": version,
            "path": path,
            "problem": of.found.as_ref().err(),
        })
    });
    json!({
        "schema": "ampc-devices/1",
        "devices": devices.collect::<Vec<_>>(),
        "libraries": libraries.collect::<Vec<_>>(),
        "problem": found.problem,
        "folders": found.folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>(),
    })
}
