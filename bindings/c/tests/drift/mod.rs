//! Generates a header with cbindgen and compares it with the committed header.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "for tests")]

use std::fmt::Write;
use std::path::Path;

/// A section of a header.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) introduction: &'static str,
    /// The names of the files in `src/` that define the items of the section, without `.rs`.
    pub(crate) sources: &'static [&'static str],
    /// Declarations that cbindgen does not generate.
    pub(crate) macros: String,
}

/// Checks that a header matches the header that cbindgen generates from the crate. `ZKL_BLESS=1` updates the header.
/// Each section may use only the types of the sections before it, because C requires this order.
pub(crate) fn check(header: &str, after_includes: &str, sections: &[Section]) {
    compare(header, &make(Path::new(env!("CARGO_MANIFEST_DIR")), after_includes, sections));
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

fn make(here: &Path, after_includes: &str, sections: &[Section]) -> String {
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    config.after_includes = (!after_includes.is_empty()).then(|| after_includes.to_owned());
    let mut builder = cbindgen::Builder::new().with_config(config);
    let path = |source: &&str| here.join(format!("src/{source}.rs"));
    for source in sections.iter().flat_map(|section| section.sources) {
        builder = builder.with_src(path(source));
    }
    let mut header = Vec::new();
    builder.generate().expect("cbindgen can read the sources").write(&mut header);
    let header = tidy(&String::from_utf8(header).unwrap());
    let sources: Vec<String> = sections
        .iter()
        .map(|section| section.sources.iter().map(|source| std::fs::read_to_string(path(source)).unwrap()).collect())
        .collect();
    in_sections(&header, sections, &sources)
}

/// Moves each item of the header into the section whose sources define it. cbindgen has no sections: it writes first all
/// constants, then all types, and then all functions.
fn in_sections(header: &str, sections: &[Section], sources: &[String]) -> String {
    const BEGIN: &str = "#ifdef __cplusplus\nextern \"C\" {\n#endif  /* __cplusplus */\n";
    let header = header.replace(BEGIN, "");
    let (items, end) = header.split_once("#ifdef __cplusplus\n}").unwrap();
    let mut items = items.split("\n/**");
    let mut made = format!("{}\n\n{BEGIN}", items.next().unwrap().trim_end());
    let mut bodies: Vec<String> = sections.iter().map(|section| section.macros.clone()).collect();
    for item in items {
        let (_, code) = item.split_once("*/\n").unwrap();
        let name = name_of(code);
        let (_, body) = sources
            .iter()
            .zip(&mut bodies)
            .find(|(source, _)| defines(source, name))
            .unwrap_or_else(|| panic!("no source of a section defines {name}"));
        writeln!(body, "\n/**{}", item.trim_end()).unwrap();
    }
    for (Section { title, introduction, .. }, body) in sections.iter().zip(bodies) {
        let introduction = introduction.replace('\n', "\n * ");
        write!(made, "\n/* ==== {title} ====\n *\n * {introduction}\n */\n{body}").unwrap();
    }
    format!("{made}\n#ifdef __cplusplus\n}}{end}")
}

/// Returns the name that a declaration declares.
fn name_of(code: &str) -> &str {
    let code = code.lines().next().unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = |text: &'static str| code.split_once(text).map(|(_, rest)| rest.split(|c| !is_name(c)).next().unwrap());
    let last = |text: &str| code.split_once(text).map(|(head, _)| head.rsplit(|c| !is_name(c)).next().unwrap());
    let before = if code.starts_with("typedef") { ";" } else { "(" };
    let found = first("#define ").or_else(|| first("typedef struct ")).or_else(|| first("(*"));
    found.or_else(|| last(before)).unwrap()
}

/// Returns whether a file of Rust code defines the constant, type or function with this name.
fn defines(source: &str, name: &str) -> bool {
    let forms = ["const {}:", "type {} ", "struct {} ", "struct {}(", "fn {}("];
    forms.iter().any(|form| source.contains(&form.replace("{}", name)))
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
