//! Runs the programs of tests/programs/ffi on a real ZooKeeper server. Each program reads zklock_ffi.h with a foreign function
//! interface that has no preprocessor, finds every function in the library, and holds a lock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod library;

use std::path::Path;
use std::process::Command;

use zklock_test_support::ZooKeeper;

#[test]
fn cffi_reads_the_flat_header() {
    let python = library::root().join("target/venv/bin/python");
    assert!(python.exists(), "target/venv is missing: make setup");
    hold(&python, "hold.py");
}

#[test]
#[ignore = "part of make verify"]
fn the_ffi_of_php_reads_the_flat_header() {
    hold(Path::new("php"), "hold.php");
}

#[test]
#[ignore = "part of make verify"]
fn fiddle_reads_the_flat_header() {
    hold(Path::new("ruby"), "hold.rb");
}

#[test]
#[ignore = "part of make verify"]
fn koffi_reads_the_flat_header() {
    assert!(library::root().join(KOFFI).exists(), "{KOFFI} is missing: scripts/setup verify");
    hold(Path::new("node"), "hold.js");
}

const KOFFI: &str = "target/node/node_modules/koffi";

fn hold(interpreter: &Path, program: &str) {
    let printed = library::output(
        Command::new(interpreter)
            .env("NODE_PATH", library::root().join("target/node/node_modules"))
            .arg(library::root().join("tests/programs/ffi").join(program))
            .arg(library::include().join("zklock_ffi.h"))
            .arg(library::directory().join("libzklock.so"))
            .args([&ZooKeeper::shared().address(), &format!("/ffi/{program}")]),
    );
    assert_eq!(printed, "held\n");
}
