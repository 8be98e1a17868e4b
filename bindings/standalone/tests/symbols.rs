//! libzklock_standalone.so exports the functions of its header, and nothing else.

#[path = "../../c/tests/library/mod.rs"]
mod library;

#[test]
fn the_library_exports_what_the_header_declares() {
    assert_eq!(library::exports("libzklock_standalone.so", "zklock_standalone.h"), 12);
}
