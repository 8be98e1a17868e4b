//! Runs the program of tests/programs/c that contains its own server.

#![allow(clippy::unwrap_used, reason = "a failing test may panic")]

#[path = "../../c/tests/library/mod.rs"]
mod library;
#[path = "../../c/tests/table/mod.rs"]
mod table;

use std::path::Path;
use std::process::{Command, ExitCode};

use library::Leaks;
use table::row;

fn main() -> ExitCode {
    let program = row("standalone", table::ALL, |under| {
        library::output(&mut under.command(&under.compile("standalone"), Leaks::AreErrors));
    });
    table::run([program].into_iter().chain(table::functions![the_header_compiles_alone_in_c_and_cpp]))
}

fn the_header_compiles_alone_in_c_and_cpp() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (compiler, standard, name) in [("gcc", "-std=c99", "alone.c"), ("g++", "-std=c++17", "alone.cpp")] {
        let file = directory.join(name);
        std::fs::write(&file, "#include <zklock_standalone.h>\nint main() { zkl_standalone_stop(0); return 0; }\n")
            .unwrap();
        library::output(&mut Command::new(library::compile(
            compiler,
            &[standard],
            &[file],
            &format!("alone-{compiler}"),
        )));
    }
}
