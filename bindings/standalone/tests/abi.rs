//! libzklock_standalone.so exports the functions of its header and nothing else, and they are those that programs were compiled for.

#[path = "../../c/tests/baseline/mod.rs"]
mod baseline;
#[path = "../../c/tests/library/mod.rs"]
mod library;

use baseline::Library;

#[test]
fn the_abi_is_the_one_that_was_committed() {
    Library("zklock_standalone").check();
}
