//! The committed header must match the header that is generated from the crate. `ZKL_BLESS=1` writes it again.

#[path = "../../c/tests/drift/mod.rs"]
mod drift;

#[test]
fn the_header_is_up_to_date() {
    drift::check("zklock_standalone.h", &["server", "fault"], "");
}
