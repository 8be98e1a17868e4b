//! Generates the table of functions for the target `abi` from `include/zklock.h`, so that the table is complete.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a build that fails")]
#![allow(clippy::string_slice, reason = "headers are plain ASCII")]

#[path = "../bindings/c/tests/prototypes/mod.rs"]
mod prototypes;

use std::fmt::Write as _;
use std::path::Path;

use prototypes::{Function, Kind, Returns};

const HEADER: &str = "../include/zklock.h";
const PROTOTYPES: &str = "../bindings/c/tests/prototypes/mod.rs";
const SOURCES: &str = "../bindings/c/src";

fn main() {
    println!("cargo::rerun-if-changed={HEADER}\ncargo::rerun-if-changed={PROTOTYPES}");
    println!("cargo::rerun-if-changed={SOURCES}");
    let functions = prototypes::read(&std::fs::read_to_string(HEADER).unwrap());
    let mut table = String::new();
    for source in std::fs::read_dir(SOURCES).unwrap().map(|entry| entry.unwrap().path()) {
        if std::fs::read_to_string(&source).unwrap().contains("#[unsafe(no_mangle)]") {
            writeln!(table, "use zklock_c_functions::{}::*;", source.file_stem().unwrap().display()).unwrap();
        }
    }
    let handles: Vec<String> = prototypes::handles(&functions).into_iter().collect();
    writeln!(table, "const HANDLES: &[&str] = &{handles:?};").unwrap();
    table += "const FUNCTIONS: &[Function] = &[\n";
    functions.iter().for_each(|function| table += &row(function));
    table += "];\n";
    std::fs::write(Path::new(&std::env::var("OUT_DIR").unwrap()).join("functions.rs"), table).unwrap();
}

fn row(function: &Function) -> String {
    let kinds: Vec<String> =
        function.parameters.iter().map(|parameter| kind(&parameter.kind, &parameter.name)).collect();
    let arguments: Vec<String> = (0..kinds.len()).map(|at| format!("a[{at}].into_c()")).collect();
    let call = format!("{}({})", function.name, arguments.join(", "));
    let call = match function.returns {
        Returns::Nothing => format!("{{ {call}; 0 }}"),
        Returns::Text | Returns::Handle => format!("{call}.addr() as i64"),
        Returns::Id => call,
        _ => format!("i64::from({call})"),
    };
    let returns = format!("{:?}", function.returns);
    // Some functions are safe and others are not, and some have no parameters.
    let body = format!("|a| {{ let _ = a; #[allow(unused_unsafe)] unsafe {{ {call} }} }}");
    let statuses = &function.statuses;
    format!(
        "Function {{ name: {:?}, returns: Returns::{returns}, parameters: &[{}], statuses: &{:?}, call: {body} }},\n",
        function.name,
        kinds.join(", "),
        statuses.iter().collect::<Vec<_>>(),
    )
}

fn kind(kind: &Kind, name: &str) -> String {
    let kind = match kind {
        Kind::Handle(handle) => format!("Handle({handle:?})"),
        Kind::HandleOut(handle) => format!("HandleOut({handle:?})"),
        Kind::Handles(handle) => format!("Handles({handle:?})"),
        Kind::Callback(callback) => format!("Callback({callback:?})"),
        other => format!("{other:?}"),
    };
    format!("({name:?}, Kind::{kind})")
}
