//! Generates a header with cbindgen and compares it with the committed header.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "for tests")]

use std::fmt::Write;
use std::path::Path;

/// Checks that a header matches the header that cbindgen generates from these sources of the crate. `ZKL_BLESS=1`
/// updates the header.
pub(crate) fn check(header: &str, sources: &[&str], after_includes: &str) {
    compare(header, &make(Path::new(env!("CARGO_MANIFEST_DIR")), sources, after_includes));
}

/// Checks that a header has this text. `ZKL_BLESS=1` updates the header.
pub(crate) fn compare(header: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include").join(header);
    if std::env::var_os("ZKL_BLESS").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let name = env!("CARGO_PKG_NAME");
    assert!(committed == made, "include/{header} is out of date: ZKL_BLESS=1 cargo test -p {name} --test header");
}

fn make(here: &Path, sources: &[&str], after_includes: &str) -> String {
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    config.after_includes = (!after_includes.is_empty()).then(|| after_includes.to_owned());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(here.join(format!("src/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().expect("cbindgen can read the sources").write(&mut header);
    tidy(&String::from_utf8(header).unwrap())
}

/// Formatting for which cbindgen has no options: short comments on one line, and short names of types.
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
        } else if let Some((code, comment)) = text.split_once(" // ").filter(|_| text.starts_with(['#', '}'])) {
            // C89 does not support such comments.
            let code = code.trim_end();
            writeln!(tidied, "{indent}{code}  /* {comment} */").unwrap();
        } else if text.starts_with("typedef struct") {
            writeln!(tidied, "{line}").unwrap();
        } else {
            writeln!(tidied, "{}", line.replace("struct zkl_", "zkl_")).unwrap();
        }
    }
    tidied
}
