//! The line in the architecture: below it everything is pure, and imports only point downward.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom up; each may use those before it, and those below.
const LAYERS: [&str; 5] = ["proto", "session", "recipe", "engine", "steps"];
/// Used by all layers, using none but `proto`.
const COMMON: [&str; 7] = ["error", "histogram", "limits", "mutant", "note", "path", "time"];
const ABOVE: [&str; 8] = ["runtime", "client", "lock", "operation", "options", "config", "prometheus", "zklock"];
const IMPURE: [&str; 12] = [
    "std::net",
    "std::thread",
    "std::io",
    "std::fs",
    "std::env",
    "std::process",
    "Instant",
    "SystemTime",
    "mio::",
    "Mutex<",
    "unsafe {",
    "new_v4",
];

#[test]
fn below_the_line_there_is_no_clock_no_socket_no_thread() {
    for (layer, file, code) in sources() {
        for word in IMPURE {
            assert!(!code.contains(word), "{layer}: {} uses {word}", file.display());
        }
    }
}

/// The standalone server has such a line too: above it are its front and its program. Addresses are only names to it.
#[test]
fn the_standalone_core_is_pure_as_well() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("standalone/src");
    let files = files_below(&root).into_iter().filter(|file| !file.ends_with("front.rs") && !file.ends_with("main.rs"));
    let mut count = 0;
    for file in files {
        let code = fs::read_to_string(&file).unwrap();
        for word in IMPURE.iter().filter(|&&word| word != "std::net").chain(&["TcpStream", "TcpListener"]) {
            assert!(!code.contains(word), "{} uses {word}", file.display());
        }
        count += 1;
    }
    assert!(count > 8, "only {count} files found");
}

#[test]
fn imports_point_downward() {
    for (layer, file, code) in sources() {
        let rank = LAYERS.iter().position(|&l| l == layer).unwrap_or(0);
        let upward = LAYERS.iter().skip(rank + 1).chain(&ABOVE);
        for other in upward {
            assert!(!code.contains(&format!("crate::{other}")), "{}: {layer} must not use {other}", file.display());
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_there() {
    for layer in LAYERS.iter().chain(COMMON.iter().filter(|&&c| c != "error")) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let file = [root.join(layer).join("mod.rs"), root.join(format!("{layer}.rs"))].into_iter().find(|f| f.exists());
        let code = fs::read_to_string(file.unwrap()).unwrap();
        assert!(code.contains("#![forbid(unsafe_code)]"), "{layer}");
    }
}

/// The code of all files below the line, without comments.
fn sources() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for layer in LAYERS.iter().chain(&COMMON) {
        let single = root.join(format!("{layer}.rs"));
        let files = if single.exists() { vec![single] } else { files_below(&root.join(layer)) };
        assert!(!files.is_empty(), "{layer} has no files");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
            found.push(((*layer).to_owned(), file, code));
        }
    }
    assert!(found.len() > 15, "only {} files found", found.len());
    found
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() { files_below(&path) } else { vec![path] }
        })
        .collect()
}
