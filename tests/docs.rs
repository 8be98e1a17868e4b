//! What the documentation says of the status table is the table.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that fails")]

use std::fs;
use std::path::Path;

use zklock::Status;

const INTRODUCTION: &str = "\
# Statuses

What a call can end with, in C and in Python. Made from the table in `src/error.rs`; `ZKL_BLESS=1 cargo test --test docs` writes
it anew. `zkl_last_error_message()` and the exception's text tell the rest of the story: which value, which server, who is ahead.

| C | number | Python | `errno` | meaning |
|---|---|---|---|---|
| `ZKL_OK` | 0 | | | success |
";

#[test]
fn the_page_of_statuses_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/statuses.md");
    let rows = Status::ALL.iter().map(|status| {
        let errno = std::io::Error::from_raw_os_error(status.errno()).to_string();
        let errno = errno.split(" (os error").next().unwrap_or_default().to_owned();
        let (name, number, python, text) = (status.name(), status.number(), status.python(), status.text());
        format!("| `{name}` | {number} | `{python}` | {} ({errno}) | {text} |\n", status.errno())
    });
    let page = INTRODUCTION.to_owned() + &rows.collect::<String>();
    if std::env::var_os("ZKL_BLESS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap_or_default(), page, "run: ZKL_BLESS=1 cargo test --test docs");
}
