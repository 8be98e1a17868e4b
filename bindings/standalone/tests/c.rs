//! The program of tests/c that has its server with it.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that fails")]

#[path = "../../c/tests/library/mod.rs"]
mod library;

use std::path::Path;
use std::process::Command;

use library::Leaks;
use library::Under::{self, Plain, Sanitizers, Valgrind};

#[test]
fn standalone() {
    run(Plain);
}

#[test]
fn standalone_under_valgrind() {
    run(Valgrind);
}

#[test]
fn standalone_with_sanitizers() {
    run(Sanitizers);
}

#[test]
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

fn run(under: Under) {
    library::output(&mut under.command(&under.compile("standalone"), Leaks::AreErrors));
}
