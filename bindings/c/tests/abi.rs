//! libzklock.so exports the functions of the header and nothing else, and they are those that programs were compiled for.

mod baseline;
mod library;

use baseline::Library;

const ZKLOCK: Library = Library("zklock");

#[test]
fn the_abi_is_the_one_that_was_committed() {
    ZKLOCK.check();
    changes_are_noticed();
}

/// With the description that was committed, which is written anew first where that is asked for.
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
        assert!(report.contains(says), "{from}, and then {to}:\n{report}");
    }
}
