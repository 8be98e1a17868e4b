//! The benchmark's short form: every driver in every workload once, with the server's word on what they did, and every run of scale.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is a test that fails")]

use std::process::Command;

#[test]
fn every_driver_does_what_it_says() {
    let output = Command::new(env!("CARGO_BIN_EXE_zklock-bench")).arg("--quick").output().unwrap();
    let (tables, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{log}\n{tables}");
    for peer in ["raw-b", "raw-q", "zklock-c", "zklock-python", "curator", "kazoo", "zookeeper-client"] {
        // One row in each of the tables W1, W2, W2h, W3 and W4.
        let rows = tables.lines().filter(|line| line.starts_with(&format!("| {peer} |"))).count();
        assert_eq!(rows, 5, "{peer}\n{tables}");
    }
}
