//! libzklock.so must export exactly the functions of its header, with the ABI that programs were compiled for.

#![allow(clippy::panic, reason = "a test")]

mod baseline;
mod library;
mod prototypes;

use baseline::Library;

const ZKLOCK: Library = Library("zklock");

#[test]
#[ignore = "part of make verify"]
fn the_abi_is_the_one_that_was_committed() {
    ZKLOCK.check();
    changes_are_noticed();
    functions_that_came_after_the_first_version_name_their_version();
}

/// The comment at the top of the header says that functions without "Since:" exist since version 0.1.0.
fn functions_that_came_after_the_first_version_name_their_version() {
    let header = ZKLOCK.header();
    assert!(header.contains(
        "Every function has existed since version 0.1.0, unless its comment gives a later version after \"Since:\""
    ));
    for function in prototypes::read(&header) {
        let version = ZKLOCK.version_of(&function.name);
        let expected = if version == "0.1.0" { None } else { Some(version) };
        assert_eq!(function.since, expected, "the version after \"Since:\" in the comment of {}", function.name);
    }
}

/// Compares changed headers with the committed description. `ZKL_BLESS=1` writes that description again first.
fn changes_are_noticed() {
    let changes = [
        ("zkl_status zkl_acquire(zkl_lock *lock);\n", "", "1 Removed"),
        ("zkl_status zkl_acquire(", "zkl_status zkl_seize(zkl_lock *lock);\nzkl_status zkl_acquire(", "1 Added"),
        (
            "zkl_acquire_timeout(zkl_lock *lock, int64_t timeout_ms)",
            "zkl_acquire_timeout(zkl_lock *lock, int32_t timeout_ms)",
            "parameter 2",
        ),
        ("typedef int32_t zkl_status;", "typedef int64_t zkl_status;", "return type changed"),
        ("    int32_t previous;\n", "", "data member"),
        ("    int64_t token;\n", "    int64_t token;\n    int64_t more;\n", "data member insertion"),
        ("(void *user, zkl_lock *lock)", "(zkl_lock *lock, void *user)", "parameter 1"),
    ];
    let header = ZKLOCK.header();
    for (from, to, says) in changes {
        let changed = header.replace(from, to);
        assert_ne!(changed, header, "{from}");
        let report = ZKLOCK.differences(&changed).unwrap_or_default();
        assert!(report.contains(says), "the ABI changed between {from} and {to}:\n{report}");
    }
}
