//! libzklock_standalone.so must export exactly the functions of its header, with the ABI that programs were compiled
//! for.

#[path = "../../c/tests/baseline/mod.rs"]
mod baseline;
#[path = "../../c/tests/library/mod.rs"]
mod library;

use baseline::Library;

#[test]
#[ignore = "part of make verify"]
fn the_abi_is_the_one_that_was_committed() {
    Library("zklock_standalone").check();
}
