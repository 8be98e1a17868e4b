//! Tests of the short forms of the benchmark: each driver in each workload once, compared with the server's counts; each run
//! of scale; two builds side by side; and a warm-up.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

/// Two runs at the same time would disturb each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zklock-bench")).args(arguments).output().unwrap()
}

/// The output of a run that must succeed.
fn tables(arguments: &[&str]) -> String {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let output = bench(arguments);
    let (tables, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{log}\n{tables}");
    tables
}

/// The error output of a run that must fail.
fn error(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8(output.stderr).unwrap()
}

fn rows(tables: &str, peer: &str) -> usize {
    tables.lines().filter(|line| line.starts_with(&format!("| {peer} |"))).count()
}

fn built() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")).join("release")
}

#[test]
fn every_driver_does_what_it_says() {
    let tables = tables(&["--quick"]);
    for peer in ["raw-b", "raw-q", "zklock-c", "zklock-python", "curator", "kazoo", "zookeeper-client", "zookeeper"] {
        // One row in each of the tables W1, W2, W2h, W3 and W4.
        assert_eq!(rows(&tables, peer), 5, "{peer}\n{tables}");
    }
}

#[test]
fn two_builds_are_measured_side_by_side() {
    let library = built().join("libzklock.so");
    let tables = tables(&["--quick", "--against", library.to_str().unwrap()]);
    assert_eq!(
        (rows(&tables, "zklock-c"), rows(&tables, "zklock-c-sessions"), rows(&tables, "raw-b")),
        (5, 1, 0),
        "{tables}"
    );
    assert!(tables.contains("| cycle × other build | quartiles | range |"), "{tables}");
}

#[test]
fn a_new_process_is_warmed_up() {
    let once = ["--rounds", "1", "--redo", "0", "--window", "0.5", "--server", "nofsync", "--workloads", "w1"];
    let tables = tables(&[&once[..], &["--peers", "zklock-c", "--warm-up", "9"]].concat());
    let (_, warm_up) = tables.split_once("### Warm-up").unwrap();
    let windows = warm_up.lines().find_map(|line| line.strip_prefix("| zklock-c | ")).unwrap();
    let windows: usize = windows.split([',', ' ']).next().unwrap().parse().unwrap();
    assert!((8..=9).contains(&windows), "{warm_up}");
    assert!(warm_up.contains("Not steady at the limit: "), "{warm_up}");
}

#[test]
fn wrong_arguments_are_errors_that_name_them() {
    assert!(error(&["--peers", "etcd"]).contains("no such peer: etcd; expected one of raw-a, raw-b"));
    assert!(error(&["--against", "/nowhere"]).contains("/nowhere/libzklock.so is missing"));
    let (built, other) = (built(), "kazoo does not use libzklock.so");
    assert!(error(&["--peers", "kazoo", "--against", built.to_str().unwrap()]).contains(other));
    assert!(error(&["--window", "0"]).contains("expected seconds from 0.01 to 60"));
    assert!(error(&["--rounds", "0"]).contains("expected a number of at least 1"));
}
