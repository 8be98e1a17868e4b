//! The committed header is the one that the crate makes. `ZKL_BLESS=1` writes it anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::fmt::Write;
use std::path::Path;

use zklock::Status;

const SOURCES: [&str; 6] = ["status", "config", "client", "lock", "participant", "event"];

#[test]
fn the_header_is_up_to_date() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/zklock.h");
    let made = make();
    if std::env::var_os("ZKL_BLESS").is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(committed == made, "include/zklock.h is out of date: ZKL_BLESS=1 cargo test -p zklock-c --test header");
}

fn make() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    config.after_includes = Some(statuses());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(here.join(format!("src/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().expect("cbindgen can read the sources").write(&mut header);
    tidy(&String::from_utf8(header).unwrap())
}

/// What cbindgen has no options for: comments of one line on one line, and types by their short names.
fn tidy(header: &str) -> String {
    let mut tidied = String::new();
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let (indent, text) = line.split_at(line.len() - line.trim_start().len());
        if text == "/**" {
            let comment = lines.next().unwrap().trim();
            if lines.next_if(|line| line.trim() == "*/").is_some() {
                writeln!(tidied, "{indent}/*{comment} */").unwrap();
            } else {
                writeln!(tidied, "{line}\n{indent} {comment}").unwrap();
            }
        } else if let Some((code, comment)) = text.split_once("  // ") {
            // C89 has no such comments.
            writeln!(tidied, "{indent}{code}  /* {comment} */").unwrap();
        } else if text.starts_with("typedef struct") {
            writeln!(tidied, "{line}").unwrap();
        } else {
            writeln!(tidied, "{}", line.replace("struct zkl_", "zkl_")).unwrap();
        }
    }
    tidied
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
