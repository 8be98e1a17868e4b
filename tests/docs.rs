//! What the documentation names is there: statuses, functions, tests.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

use std::fs;
use std::path::Path;

use zklock::{ConfigOption, Labels, Metric, Metrics, Status};

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

const OPTIONS: &str = "| option | value | default | what it sets |\n|---|---|---|---|\n";

/// The table of options on the page about them is the core's.
#[test]
fn the_page_of_options_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/options.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(OPTIONS).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let rows = ConfigOption::ALL.iter().map(|option| {
        let ConfigOption { name, expected, default, help, .. } = option;
        format!("| `{name}` | {expected} | {default} | {help} |\n")
    });
    let made = format!("{before}{OPTIONS}{}\n{after}", rows.collect::<String>());
    if std::env::var_os("ZKL_BLESS").is_some() {
        fs::write(&file, &made).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), made, "run: ZKL_BLESS=1 cargo test --test docs");
}

const METRICS: &str = "| Prometheus | field | kind | what it is |\n|---|---|---|---|\n";

/// The table of metrics on the page about them is the core's.
#[test]
fn the_page_of_metrics_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/observability.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(METRICS).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let text = Metrics::default().prometheus(&Labels::new());
    let rows = Metrics::ALL.iter().map(|metric| {
        let Metric { field, name, help, .. } = *metric;
        let kind = text.split(&format!("# TYPE {name} ")).nth(1).unwrap().lines().next().unwrap();
        let label = metric.label.map_or_else(String::new, |(label, value)| format!("{{{label}=\"{value}\"}}"));
        format!("| `{name}{label}` | `{field}` | {kind} | {help} |\n")
    });
    let made = format!("{before}{METRICS}{}\n{after}", rows.collect::<String>());
    if std::env::var_os("ZKL_BLESS").is_some() {
        fs::write(&file, &made).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), made, "run: ZKL_BLESS=1 cargo test --test docs");
}

/// Each line that is logged is on the page, with its level, and nothing else.
#[test]
fn the_page_has_the_lines_of_the_log() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/observability.md")).unwrap();
    let source = fs::read_to_string(root.join("src/runtime/report.rs")).unwrap();
    let targets = [("SESSION", "zklock::session"), ("LOCK", "zklock::lock"), ("REQUEST", "zklock::request")];
    let mut logged: Vec<String> = Vec::new();
    for (constant, target) in targets {
        for level in ["error", "warn", "info", "debug", "trace"] {
            let call = format!("{level}!(target: {constant},");
            for rest in source.split(&call).skip(1) {
                // The message is the last argument.
                let message = rest.split("\")").next().unwrap().rsplit('"').next().unwrap();
                let row = format!("| `{target}` | {level} | `{message}` |");
                if !logged.contains(&row) {
                    logged.push(row);
                }
            }
        }
    }
    assert!(logged.len() > 15, "{logged:?}");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `zklock::")).collect();
    for row in &logged {
        assert!(rows.iter().any(|line| line.starts_with(row)), "docs/observability.md has no row that begins {row}");
    }
    assert_eq!(rows.len(), logged.len(), "more rows than lines: {rows:?}");
}

/// The header and the Python package say the same of each, in their own words for statuses.
#[test]
fn each_metric_is_in_c_and_in_python() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("include/zklock.h")).unwrap();
    let python = fs::read_to_string(root.join("python/zklock/_metrics.py")).unwrap();
    for metric in Metrics::ALL {
        let field = metric.field;
        let declared = ["uint64_t", "int64_t", "int32_t", "zkl_histogram"].iter().any(|kind| {
            header.contains(&format!("    {kind} {field};")) || header.contains(&format!("    {kind} {field}_ms;"))
        });
        assert!(declared, "zkl_metrics has no {field}");
        assert!(python.contains(&format!("\n    {field}: ")), "zklock.Metrics has no {field}");
    }
}

/// The pages for those who come from Curator and from kazoo name functions of the header, and tests.
#[test]
fn what_the_pages_on_moving_name_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("include/zklock.h")).unwrap();
    let sources = sources(&[root.join("tests"), root.join("src")]);
    let is_name =
        |word: &&str| word.len() > 3 && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    for (page, tests) in [("docs/curator.md", "## Curator's own tests"), ("docs/kazoo.md", "## kazoo's own tests")] {
        let page = fs::read_to_string(root.join(page)).unwrap();
        let words: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
        for function in words.iter().filter(|word| word.starts_with("zkl_")) {
            assert!(
                header.contains(&format!("{function}(")) || header.contains(&format!("struct {function}")),
                "{function}"
            );
        }
        let tables = page.split(tests).nth(1).unwrap();
        let mut count = 0;
        for row in tables.lines().filter(|line| line.starts_with("| `")) {
            let ours = row.split('|').nth(2).unwrap();
            for test in ours.split('`').skip(1).step_by(2).filter(is_name) {
                let theirs = row.split('|').nth(1).unwrap();
                assert!(is_function(&sources, test), "{test}, which is said to answer{theirs}");
                count += 1;
            }
        }
        assert!(count > 10, "only {count} answers were read");
    }
}

/// The page on fencing names functions of the header and files, and quotes what the examples do.
#[test]
fn what_the_page_on_fencing_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (page, header) = (read("docs/fencing.md"), read("include/zklock.h"));
    let words: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let functions: Vec<&&str> = words.iter().filter(|word| word.starts_with("zkl_")).collect();
    assert!(functions.len() > 3 && functions.iter().all(|function| header.contains(&format!("{function}("))));
    let links: Vec<&str> = page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 5 && links.iter().all(|link| root.join("docs").join(link).exists()), "{links:?}");
    assert!(
        words.iter().filter(|word| word.contains("/test") && word.contains('.')).all(|word| root.join(word).exists())
    );
    let (_, quoted) = page.split_once("```sql\n").unwrap();
    let sql = quoted.split("\n```").next().unwrap();
    assert!(read("python/examples/fenced_store.py").contains(sql));
    let condition = "DO UPDATE SET token = excluded.token WHERE token <= excluded.token";
    assert!(sql.contains(condition) && read("bindings/c/examples/fenced_sqlite.c").contains(condition));
}

/// Behind each promise stands a test.
#[test]
fn the_tests_behind_the_guarantees_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    let sources = sources(&["tests", "bindings", "fuzz"].map(|folder| root.join(folder)));
    let mut promises = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise")) {
        let columns: Vec<&str> = row.split('|').collect();
        let tests: Vec<&str> = columns[3].split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test behind{}", columns[1]);
        for test in tests {
            assert!(is_function(&sources, test), "{test}, which is said to stand behind{}", columns[1]);
        }
        promises += 1;
    }
    let limits = page.split("## Limits that are said").nth(1).unwrap();
    let said = limits.split('`').skip(1).step_by(2);
    assert!(said.clone().count() > 3 && said.clone().all(|test| is_function(&sources, test)), "{limits}");
    assert!(promises > 20, "only {promises} promises were read");
}

fn is_function(sources: &str, name: &str) -> bool {
    ["fn", "def", "static void"].iter().any(|word| sources.contains(&format!("{word} {name}(")))
}

/// All that is written in Rust, Python and C below these directories.
fn sources(directories: &[std::path::PathBuf]) -> String {
    let mut all = String::new();
    let mut left = directories.to_vec();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| ["rs", "py", "c", "cpp"].iter().any(|known| extension == *known))
            {
                all += &fs::read_to_string(path).unwrap();
            }
        }
    }
    all
}
