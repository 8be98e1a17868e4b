//! The committed header must match the header that is generated from the crate. `ZKL_BLESS=1` writes it again.

#[path = "../../c/tests/drift/mod.rs"]
mod drift;

use drift::Section;

#[test]
fn the_header_is_up_to_date() {
    let section = |title, introduction, sources| Section { title, introduction, sources, macros: String::new() };
    let sections = [
        section("The server", "The server runs in the process of the program and has its own port.", &["server"]),
        section(
            "Faults",
            "Faults on request. A fault belongs to a session, and is in force when the call returns.",
            &["fault"],
        ),
    ];
    drift::check("zklock_standalone.h", "", &sections);
}
