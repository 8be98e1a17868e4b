//! libzklock.so exports the functions of the header, and nothing else.

#![allow(clippy::unwrap_used, reason = "a test")]

mod library;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn the_library_exports_what_the_header_declares() {
    let library = library::directory().join("libzklock.so");
    let symbols = library::output(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> = symbols.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();

    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/zklock.h");
    let header = std::fs::read_to_string(header).unwrap();
    let declared: BTreeSet<&str> = header.lines().filter_map(declared).collect();
    assert_eq!(exported, declared);
    assert!(exported.len() > 20, "{exported:?}");
}

/// The function that a line of the header declares.
fn declared(line: &str) -> Option<&str> {
    if line.starts_with([' ', '/', '#']) || line.starts_with("typedef") {
        return None;
    }
    let (head, _) = line.split_once('(')?;
    head.rsplit([' ', '*']).next()
}
