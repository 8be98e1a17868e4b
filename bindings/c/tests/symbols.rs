//! libzklock.so exports the functions of the header, and nothing else.

mod library;

#[test]
fn the_library_exports_what_the_header_declares() {
    assert!(library::exports("libzklock.so", "zklock.h") > 20);
}
