//! The committed header is the one that the crate makes. `ZKL_BLESS=1` writes it anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod drift;

use std::fmt::Write;

use zklock::Status;

const SOURCES: [&str; 12] = [
    "status",
    "config",
    "client",
    "lock",
    "semaphore",
    "op",
    "revocation",
    "participant",
    "waiting",
    "event",
    "metrics",
    "log",
];

#[test]
fn the_header_is_up_to_date() {
    drift::check("zklock.h", &SOURCES, &(version() + &statuses()));
}

/// The version as macros, for a program that is compiled with more than one.
fn version() -> String {
    let mut macros = format!(
        "\n/** The version of this header. That of the library that runs is zkl_version(). */\n#define ZKL_VERSION \"{}\"\n",
        env!("CARGO_PKG_VERSION")
    );
    let numbers = [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    for (name, number) in numbers {
        writeln!(macros, "#define ZKL_VERSION_{name} {number}").unwrap();
    }
    macros
}

/// The statuses as macros, from the core's table.
fn statuses() -> String {
    let mut macros = String::from("\n/** Success. */\n#define ZKL_OK 0\n");
    for status in Status::ALL {
        writeln!(macros, "\n/** {}. */\n#define {} ({})", capitalized(status.text()), status.name(), status.number())
            .unwrap();
    }
    macros.truncate(macros.trim_end().len());
    macros
}

fn capitalized(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}
