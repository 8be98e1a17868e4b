//! Every function of the header, called in every wrong way there is, and then all of them at once from many threads: tests/c/abuse.c
//! with a table that is made from the header, so that no function can be forgotten.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, reason = "tests")]
#![allow(clippy::string_slice, reason = "headers are plain ASCII")]

mod library;
mod prototypes;

use std::fmt::Write as _;
use std::path::Path;

use library::Leaks;
use library::Under::{self, Plain, Sanitizers, Valgrind};
use prototypes::{Function, Kind, Returns};
use zklock_rig::ZooKeeper;

#[test]
fn every_wrong_call() {
    run(Plain, "0");
}

#[test]
fn every_wrong_call_under_valgrind() {
    run(Valgrind, "0");
}

#[test]
fn every_wrong_call_with_sanitizers() {
    run(Sanitizers, "0");
}

#[test]
fn a_storm_of_calls() {
    run(Plain, "3000");
}

#[test]
fn a_storm_of_calls_under_valgrind() {
    run(Valgrind, "3000");
}

#[test]
fn a_storm_of_calls_with_sanitizers() {
    run(Sanitizers, "3000");
}

/// Without a number of milliseconds: one call after the other.
fn run(under: Under, storm_ms: &str) {
    let table = table();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("abuse-{}-{storm_ms}", under.name()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("functions.h"), &table).unwrap();
    let program = under.compile_with("abuse", &["-I", folder.to_str().unwrap()]);
    let seed = std::env::var("ZKLOCK_SEED").unwrap_or_else(|_| "1".to_owned());
    let server = ZooKeeper::shared();
    let mut command = under.command(&program, Leaks::AreErrors);
    if matches!(under, Plain) {
        command.env("GROWTH_KB", "32768");
    }
    library::output(command.args([&server.address(), storm_ms, &seed]));
}

/// The functions as C. `tests/c/abuse.c` says what the parts mean.
fn table() -> String {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/zklock.h")).unwrap();
    let functions = prototypes::read(&header);
    assert!(functions.len() > 40, "only {} functions were found in the header", functions.len());
    let abuse = include_str!("../../../tests/c/abuse.c");
    let mut text = String::from("/* Made from zklock.h by bindings/c/tests/abuse.rs. */\n");
    for (at, handle) in prototypes::handles(&functions).iter().enumerate() {
        writeln!(text, "#define KIND_{handle} {at}").unwrap();
        assert!(
            abuse.contains(&format!("KIND_{handle}:")),
            "tests/c/abuse.c can't make a {handle} and destroy it: add it to make() and destroy()"
        );
    }
    writeln!(text, "#define KINDS {}", prototypes::handles(&functions).len()).unwrap();
    for callback in functions.iter().flat_map(|function| &function.parameters) {
        if let Kind::Callback(callback) = &callback.kind {
            assert!(
                abuse.contains(&format!("on_{callback}(")),
                "tests/c/abuse.c has no function for {callback}: add on_{callback}()"
            );
        }
    }
    for function in &functions {
        writeln!(text, "static int64_t call_{}(const uint64_t *a)\n{{\n    {}\n}}", function.name, call(function))
            .unwrap();
    }
    text += "static const struct function functions[] = {\n";
    functions.iter().for_each(|function| text += &row(function));
    text + "};\n"
}

fn call(function: &Function) -> String {
    let arguments: Vec<String> = function
        .parameters
        .iter()
        .enumerate()
        .map(|(at, parameter)| argument(at, &parameter.kind, &parameter.text))
        .collect();
    let call = format!("{}({})", function.name, arguments.join(", "));
    let unused = if arguments.is_empty() { "(void)a; " } else { "" };
    match function.returns {
        Returns::Nothing => format!("{unused}{call}; return 0;"),
        Returns::Text | Returns::Handle => format!("{unused}return (int64_t)(intptr_t){call};"),
        _ => format!("{unused}return {call};"),
    }
}

fn argument(at: usize, kind: &Kind, text: &str) -> String {
    match kind {
        Kind::Int32 | Kind::Int64 | Kind::Count | Kind::Index => format!("({text})a[{at}]"),
        _ => format!("({text})(uintptr_t)a[{at}]"),
    }
}

fn row(function: &Function) -> String {
    let parameter = |kind: &Kind| match kind {
        Kind::Handle(handle) => format!("HANDLE, KIND_{handle}, NULL"),
        Kind::HandleOut(handle) => format!("HANDLE_OUT, KIND_{handle}, NULL"),
        Kind::Handles(handle) => format!("HANDLES, KIND_{handle}, NULL"),
        Kind::Callback(callback) => format!("CALLBACK, 0, (void (*)(void))on_{callback}"),
        kind => format!("{}, 0, NULL", format!("{kind:?}").to_uppercase()),
    };
    let parameters: Vec<String> =
        function.parameters.iter().map(|each| format!("{{\"{}\", {}}}", each.name, parameter(&each.kind))).collect();
    let statuses: Vec<String> = function.statuses.iter().map(|status| format!("BIT(ZKL_E_{status})")).collect();
    format!(
        "    {{\"{}\", {}, call_{}, {}, {{{}}}, {}}},\n",
        function.name,
        format!("RETURNS_{:?}", function.returns).to_uppercase(),
        function.name,
        parameters.len(),
        if parameters.is_empty() { "{NULL, TEXT, 0, NULL}".to_owned() } else { parameters.join(", ") },
        if statuses.is_empty() { "0".to_owned() } else { statuses.join(" | ") },
    )
}
