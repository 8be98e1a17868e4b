//! Runs tests/programs/c/every_wrong_call.c, which calls every function of the header with wrong arguments, and then
//! from many threads at once. This test generates its table of functions from the header, so that no function is
//! missing.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, reason = "tests")]
#![allow(clippy::string_slice, reason = "headers are plain ASCII")]

mod library;
mod prototypes;
mod table;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use library::Leaks;
use library::Under::Plain;
use prototypes::{Function, Kind, Returns};
use zklock_test_support::ZooKeeper;

fn main() -> ExitCode {
    // Without a number of milliseconds, the program makes one call after the other.
    table::run([("every_wrong_call", "0"), ("a_storm_of_calls", "3000")].map(|(name, storm_ms)| {
        table::row(name, table::ALL, move |under| {
            let program = under.compile_with("every_wrong_call", &["-I", directory_of_table()]);
            let seed = std::env::var("ZKLOCK_SEED").unwrap_or_else(|_| "1".to_owned());
            let mut command = under.command(&program, Leaks::AreErrors);
            if under == Plain {
                command.env("GROWTH_KB", "32768");
            }
            library::output(command.args([&ZooKeeper::shared().address(), storm_ms, &seed]));
        })
    }))
}

/// Writes the table for the program, and returns its directory.
fn directory_of_table() -> &'static str {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = library::scratch("every_wrong_call");
        std::fs::write(directory.join("functions.h"), functions_in_c()).unwrap();
        directory
    });
    directory.to_str().unwrap()
}

/// The functions as C code. `tests/programs/c/every_wrong_call.c` defines the meaning of the fields.
fn functions_in_c() -> String {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/zklock.h")).unwrap();
    let functions = prototypes::read(&header);
    assert!(functions.len() > 40, "only {} functions were found in the header", functions.len());
    let abuse = include_str!("../../../tests/programs/c/every_wrong_call.c");
    let mut text = String::from("/* Made from zklock.h by bindings/c/tests/every_wrong_call.rs. */\n");
    for (at, handle) in prototypes::handles(&functions).iter().enumerate() {
        writeln!(text, "#define KIND_{handle} {at}").unwrap();
        assert!(
            abuse.contains(&format!("KIND_{handle}:")),
            "tests/programs/c/every_wrong_call.c can't make a {handle} and destroy it: add it to make() and destroy()"
        );
    }
    writeln!(text, "#define KINDS {}", prototypes::handles(&functions).len()).unwrap();
    for callback in functions.iter().flat_map(|function| &function.parameters) {
        if let Kind::Callback(callback) = &callback.kind {
            assert!(
                abuse.contains(&format!("on_{callback}(")),
                "tests/programs/c/every_wrong_call.c has no function for {callback}: add on_{callback}()"
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
