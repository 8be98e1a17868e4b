//! The committed header is the one that the crate makes. `ZKL_BLESS=1` writes it anew.

#[path = "../../c/tests/drift/mod.rs"]
mod drift;

#[test]
fn the_header_is_up_to_date() {
    drift::check("zklock_standalone.h", &["server", "fault"], "");
}
