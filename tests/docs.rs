//! Checks that everything the documentation names exists: statuses, functions, tests, numbers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a failing test may panic")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use zklock::{ConfigOption, Labels, Metric, Metrics, Status};

const INTRODUCTION: &str = "\
# Statuses

This page lists the statuses with which a call can end, in C and in Python. `ZKL_BLESS=1 cargo test --test docs` generates the page
from the table in `base/src/error.rs`.

`zkl_last_error_message()` and the text of an exception give the details: the value or the server that caused the failure, or the
participants ahead.

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

const OPTIONS: &str = "| option | value | default | effect |\n|---|---|---|---|\n";

/// The table on the page about options must match the options in the code.
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

const METRICS: &str = "| Prometheus | field | kind | meaning |\n|---|---|---|---|\n";

/// The table on the page about metrics must match the metrics in the code.
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

/// The page must list each log line with its level, and no other line.
#[test]
fn log_page_lists_every_log_line() {
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

/// The C header and the Python package must have every metric. Each uses its own type for a status.
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

/// The pages about moving from Curator and from kazoo may name only functions and tests that exist.
#[test]
fn names_on_the_migration_pages_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("include/zklock.h")).unwrap();
    let sources = sources(&[root.join("tests"), root.join("src"), root.join("core"), root.join("base")]);
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
                assert!(is_test(&sources, test), "{test}, which the page names as the test for{theirs}");
                count += 1;
            }
        }
        assert!(count > 10, "only {count} answers were read");
    }
}

/// The page about names must list each function of the header once, and no function that does not exist.
#[test]
fn names_page_lists_every_function_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/names.md")).unwrap();
    let header = fs::read_to_string(root.join("include/zklock.h")).unwrap();
    let is_declaration = |line: &&str| line.ends_with(");") && !line.starts_with([' ', '#', '/']);
    let declarations = header.lines().filter(is_declaration).filter(|line| !line.starts_with("typedef"));
    let functions: Vec<&str> =
        declarations.map(|line| line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap()).collect();
    assert!(functions.len() > 80, "{functions:?}");
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|word| word.starts_with("zkl_")).collect();
    for function in &functions {
        let times = named.iter().filter(|word| *word == function).count();
        assert_eq!(times, 1, "docs/names.md names {function} {times} times");
    }
    let is_type = |word: &str| [" {", " *", ";"].iter().any(|end| header.contains(&format!(" {word}{end}")));
    let unknown = named.iter().filter(|word| !functions.contains(word) && !is_type(word));
    let mut missing: Vec<String> = unknown.map(|word| format!("C: {word}")).collect();
    let languages = [Language::cpp(root), Language::rust(root), Language::python(root), Language::go(root)];
    let mut count = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")) {
        let columns: Vec<&str> = row.trim_matches('|').split('|').collect();
        assert_eq!(columns.len(), 6, "{row}");
        for (language, column) in languages.iter().zip(&columns[2..]) {
            let names: Vec<&str> = column.split('`').skip(1).step_by(2).collect();
            count += names.len();
            missing.extend(
                names.iter().filter(|name| !language.has(name)).map(|name| format!("{}: {name}", language.name)),
            );
        }
    }
    assert!(missing.is_empty(), "docs/names.md has names that do not exist: {missing:#?}");
    assert!(count > 200, "only {count} names were read");
}

/// The public names of a language.
struct Language {
    name: &'static str,
    /// The text between the name of a type and the name of its member.
    separator: &'static str,
    /// The types, each with its public declarations.
    types: HashMap<String, String>,
    /// A text that contains every public name outside of a type.
    exported: String,
}

impl Language {
    fn cpp(root: &Path) -> Self {
        let header = fs::read_to_string(root.join("include/zklock.hpp")).unwrap();
        let mut exported = String::new();
        let mut is_detail = false;
        for line in header.lines().filter(|line| !line.trim_start().starts_with(['/', '*'])) {
            is_detail |= line.starts_with("namespace detail {");
            if !is_detail {
                exported += &format!("{line}\n");
            }
            is_detail &= !line.starts_with("} // namespace detail");
        }
        let mut types = HashMap::new();
        for kind in ["\nclass ", "\nstruct ", "\nenum class "] {
            for text in exported.split(kind).skip(1) {
                let text = text.split("\n}").next().unwrap().split("\nprivate:").next().unwrap();
                let (first, body) = text.split_once('\n').unwrap_or((text, ""));
                let name = first.rsplit("]] ").next().unwrap().split([' ', ';']).next().unwrap();
                declare(&mut types, name, body.lines().filter(|line| !line.starts_with("     ")));
            }
        }
        Self { name: "C++", separator: "::", types, exported }
    }

    fn rust(root: &Path) -> Self {
        let source = sources(&[root.join("src"), root.join("core"), root.join("base")]);
        let is_public = |line: &&str| line.trim_start().starts_with("pub ");
        let mut types = HashMap::new();
        for text in source.split("\nimpl").skip(1) {
            let (first, body) = text.split("\n}").next().unwrap().split_once('\n').unwrap_or_default();
            let of = if first.starts_with('<') { first.split_once("> ").unwrap().1 } else { first.trim_start() };
            let name = of.split(['<', ' ']).next().unwrap();
            declare(&mut types, name, body.lines().filter(is_public));
            // A macro can declare members of several types.
            for name_of_macro in body.lines().filter_map(|line| line.trim().strip_suffix("!();")) {
                let rules = source.split(&format!("\nmacro_rules! {name_of_macro} {{")).nth(1).unwrap_or_default();
                declare(&mut types, name, rules.split("\n}").next().unwrap().lines().filter(is_public));
            }
        }
        let library = fs::read_to_string(root.join("src/lib.rs")).unwrap();
        let is_exported = |item: &&str| item.contains("pub use ") || item.contains("pub const ");
        let exported = library.split(';').filter(is_exported).collect();
        Self { name: "Rust", separator: "::", types, exported }
    }

    fn python(root: &Path) -> Self {
        let mut types = HashMap::new();
        for file in ["_zklock.pyi", "_errors.py", "_events.py", "_metrics.py", "_states.py"] {
            let text = fs::read_to_string(root.join("python/zklock").join(file)).unwrap();
            for class in text.split("\nclass ").skip(1) {
                let (first, body) = class.split_once('\n').unwrap();
                let is_inside = |line: &&str| line.is_empty() || line.starts_with(' ');
                declare(&mut types, first.split(['(', ':']).next().unwrap(), body.lines().take_while(is_inside));
            }
        }
        let exported = fs::read_to_string(root.join("python/zklock/__init__.py")).unwrap();
        Self { name: "Python", separator: ".", types, exported }
    }

    fn go(root: &Path) -> Self {
        let files = fs::read_dir(root.join("bindings/go")).unwrap().map(|entry| entry.unwrap().path());
        let is_source = |file: &std::path::PathBuf| {
            let name = file.to_string_lossy();
            name.ends_with(".go") && !name.ends_with("_test.go")
        };
        let source: String = files.filter(is_source).map(|file| fs::read_to_string(file).unwrap()).collect();
        let mut types = HashMap::new();
        let mut exported = String::new();
        for text in source.split("\nfunc ").skip(1) {
            let first = text.lines().next().unwrap();
            match first.strip_prefix('(').and_then(|receiver| receiver.split_once(") ")) {
                Some((receiver, method)) => declare(&mut types, receiver.rsplit([' ', '*']).next().unwrap(), [method]),
                None => exported += &format!("{}\n", first.split(['(', '[']).next().unwrap()),
            }
        }
        for text in source.split("\ntype ").skip(1) {
            let (name, body) = text.split_once(' ').unwrap();
            exported += &format!("{name}\n");
            if body.starts_with("struct {") {
                declare(&mut types, name, body.split("\n}").next().unwrap().lines().skip(1));
            }
        }
        Self { name: "Go", separator: ".", types, exported }
    }

    /// Whether a public name exists: a type, a function, a member of a type, or a function with an argument in
    /// parentheses.
    fn has(&self, name: &str) -> bool {
        let (name, argument) = name.trim_end_matches(')').split_once('(').unwrap_or((name, ""));
        let (owner, member) = name.split_once(self.separator).unwrap_or((name, ""));
        let declared = self.types.get(owner).map_or("", String::as_str);
        let member = if member.is_empty() && !argument.is_empty() { "__new__" } else { member };
        let has_argument = |text: &str| has_word(text.split("->").next().unwrap(), argument);
        has_word(&self.exported, owner)
            && (member.is_empty() || has_word(declared, member))
            && (argument.is_empty() || declared.split(&format!("def {member}(")).skip(1).any(has_argument))
    }
}

fn declare<'a>(types: &mut HashMap<String, String>, name: &str, lines: impl IntoIterator<Item = &'a str>) {
    let declared = types.entry(name.to_owned()).or_default();
    lines.into_iter().for_each(|line| *declared += &format!("{line}\n"));
}

/// Whether a text contains a word as a whole.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|other| other == word)
}

/// The page about fencing may name only functions and files that exist, and its quotations must match the examples.
#[test]
fn names_on_the_fencing_page_exist() {
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
    let condition = "DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token";
    assert!(sql.contains(condition) && read("bindings/c/examples/fenced_sqlite.c").contains(condition));
}

/// Each guarantee must name a test that exists.
#[test]
fn the_tests_behind_the_guarantees_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    let sources =
        sources(&["src", "core", "base", "proto", "tests", "bindings", "fuzz"].map(|folder| root.join(folder)));
    let mut promises = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise")) {
        let columns: Vec<&str> = row.split('|').collect();
        let tests: Vec<&str> = columns[3].split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test behind{}", columns[1]);
        for test in tests {
            assert!(is_test(&sources, test), "{test}, which the page names as the test of{}", columns[1]);
        }
        promises += 1;
    }
    let limits = page.split("## Reported limits").nth(1).unwrap();
    let said = limits.split('`').skip(1).step_by(2);
    assert!(said.clone().count() > 3 && said.clone().all(|test| is_test(&sources, test)), "{limits}");
    assert!(promises > 20, "only {promises} promises were read");
}

/// Whether a function has this name, or a row of a table of tests (`bindings/c/tests/table`).
fn is_test(sources: &str, name: &str) -> bool {
    let is_function = |word: &&str| sources.contains(&format!("{word} {name}("));
    ["fn", "def", "static void"].iter().any(is_function) || sources.contains(&format!("(\"{name}\", "))
}

/// The text of all Rust, Python and C files below these directories.
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

/// A number that a page quotes from the code: the text around it on one line of the page, and its value in the code.
struct Quoted {
    page: &'static str,
    before: &'static str,
    after: &'static str,
    number: String,
}

fn quoted(page: &'static str, before: &'static str, after: &'static str, number: impl ToString) -> Quoted {
    Quoted { page, before, after, number: number.to_string() }
}

fn numbers_of_the_code() -> Vec<Quoted> {
    let waiting_events = thousands(constant("src/runtime/event_delivery.rs", "MAX_UNMERGED"));
    let waiting_lines = thousands(constant("src/runtime/log_handler.rs", "MAX_QUEUED_LINES"));
    let leaving = in_words(limit("max_leaving"));
    let silence = constant("core/src/engine/ops.rs", "MAX_SERVER_SILENCE");
    let (session_timeout, connect_timeout) = (default_seconds("session_timeout"), default_seconds("connect_timeout"));
    let first_bucket = constant("core/src/histogram.rs", "FIRST");
    let last_bucket = first_bucket << (constant("core/src/histogram.rs", "BUCKETS") - 2);
    let (first_bucket, last_bucket) = (first_bucket / 1000, last_bucket as f64 / 1e9);
    let minutes = in_words(setting("Makefile", "\nMINUTES ?= "));
    let tick = constant("tests/chaos/src/run.rs", "TICK_MS");
    let recheck = limit("deadlock_recheck");
    let first = (limit("first_deadlock_check") + recheck) as f64 / 1000.0;
    let longest = (1000 * limit("longest_deadlock_check") + recheck) as f64 / 1000.0;
    let deadlock_detection = format!("{first} to {longest}");
    let pause = limit("longest_pause_after_deadlocks");
    let servers_listed = constant("core/src/session/mod.rs", "MAX_SERVERS_LISTED");
    let sessions = in_words(setting("tests/chaos/src/run.rs", "session_timeout: Duration::from_secs("));
    let requests = |peer| benchmark("### W3: 64 waiters, one path, server `nofsync`\n", peer, "requests").round();
    vec![
        quoted("docs/guarantees.md", "schedules a second, and ", " deliberate bugs", deliberate_bugs()),
        quoted("docs/guarantees.md", "the library queues up to ", " unread changes", &waiting_events),
        quoted("docs/architecture.md", "**Events.** Up to ", " events of a client", &waiting_events),
        quoted("docs/architecture.md", "log handler contains up to ", " lines", waiting_lines),
        quoted("docs/architecture.md", "**Leaving contenders.** Up to ", " contenders of one client", leaving),
        quoted("docs/architecture.md", "server has been silent for ", " ms", silence),
        quoted("docs/timeouts.md", "receive nothing from its client | ", " s |", session_timeout),
        quoted("docs/timeouts.md", "the deadline of making a client | ", " s |", connect_timeout),
        quoted(
            "docs/timeouts.md",
            "Closing a client takes at most ",
            " seconds",
            in_words(constant("core/src/engine/ops.rs", "CLOSE_LIMIT")),
        ),
        quoted(
            "docs/testing.md",
            "session timeouts down to ",
            " ms",
            setting("standalone/src/settings.rs", "min_session_timeout: Some(Duration::from_millis("),
        ),
        quoted(
            "docs/decisions/0006-several-nodes-one-transaction.md",
            "every ",
            " seconds. While",
            in_words(limit("longest_deadlock_check")),
        ),
        quoted(
            "docs/decisions/0006-several-nodes-one-transaction.md",
            "seconds. While more than ",
            " participants",
            limit("max_ahead_for_deadlock_check"),
        ),
        quoted("docs/curator.md", "detects this deadlock after ", " seconds", deadlock_detection),
        quoted("docs/curator.md", "can take twice as long, up to ", " seconds", pause),
        quoted("docs/interop.md", "as the one before, up to ", " seconds", pause),
        quoted("docs/decisions/0006-several-nodes-one-transaction.md", "therefore doubles, up to ", " seconds", pause),
        quoted("docs/errors.md", "The message lists up to ", " servers", in_words(servers_listed)),
        quoted("docs/observability.md", "The upper limit of the first bucket is ", " µs", first_bucket),
        quoted("docs/observability.md", "doubles from one bucket to the next, up to ", " s", last_bucket),
        quoted(
            "docs/decisions/0007-directory-caches.md",
            "callers join, each within ",
            " ms after",
            limit("quick_succession"),
        ),
        quoted(
            "docs/decisions/0007-directory-caches.md",
            "does not start a cache | If the queue contains the nodes of more than ",
            " sessions",
            limit("max_clients_to_start"),
        ),
        quoted(
            "docs/decisions/0007-directory-caches.md",
            "abandons a cache | If the queue contains the nodes of more than ",
            " sessions",
            limit("max_clients"),
        ),
        quoted(
            "docs/decisions/0007-directory-caches.md",
            "or after ",
            " changes of other clients",
            limit("max_foreign_changes"),
        ),
        quoted(
            "docs/decisions/0007-directory-caches.md",
            "does not cache this directory for ",
            " s.",
            limit("busy_pause"),
        ),
        quoted(
            "docs/decisions/0007-directory-caches.md",
            "after ",
            " uses without a change",
            limit("max_unshared_uses"),
        ),
        quoted("docs/decisions/0007-directory-caches.md", "At most ", " caches for each client", limit("max_caches")),
        quoted("docs/chaos.md", "make chaos                        # ", " minutes", minutes),
        quoted("docs/chaos.md", "Three servers (ZooKeeper 3.9.4, tick ", " ms)", tick),
        quoted("docs/chaos.md", "and uses a session timeout of ", " seconds", sessions),
        quoted("README.md", "and its release cost ", " requests", requests("zklock-c")),
        quoted("README.md", "Curator needs ", " requests", requests("curator")),
        quoted("README.md", "and kazoo needs ", ".", requests("kazoo")),
        quoted("README.md", "`make sim` runs ", " schedules", thousands(setting("Makefile", "\nSEEDS ?= "))),
    ]
}

/// With `ZKL_BLESS=1`, this test writes the numbers of the code into the pages.
#[test]
fn the_numbers_on_the_pages_are_those_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for Quoted { page, before, after, number } in numbers_of_the_code() {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let found = text.split(before).skip(1).filter_map(|rest| Some(rest.split_once(after)?.0));
        let found: Vec<&str> = found.filter(|number| !number.contains('\n')).collect();
        let &[said] = found.as_slice() else {
            panic!("{page} has {} numbers between `{before}` and `{after}`", found.len())
        };
        if said != number && std::env::var_os("ZKL_BLESS").is_some() {
            fs::write(
                root.join(page),
                text.replace(&format!("{before}{said}{after}"), &format!("{before}{number}{after}")),
            )
            .unwrap();
            continue;
        }
        assert_eq!(said, number, "{page}: {before}...{after}; run: ZKL_BLESS=1 cargo test --test docs");
    }
}

/// With `ZKL_BLESS=1`, this test writes the results of the published benchmark into the page about sizing.
#[test]
fn sizing_page_matches_the_recorded_benchmark() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sizing.md");
    for (row, workload, peer, column) in [
        ("one thread, one path", "W1: one thread, one path", "zklock-c", "cycle p50"),
        ("eight threads, eight paths", "W4: eight threads, eight paths, one session", "zklock-c", "cycles/s"),
        ("64 threads of one client, one path", "W3: 64 waiters, one path", "zklock-c", "acquisitions/s"),
        ("the same with local hand-over", "W3: 64 waiters, one path", "zklock-c-local", "acquisitions/s"),
        ("64 clients, one path", "W3: 64 waiters, one path", "zklock-c-sessions", "acquisitions/s"),
    ] {
        let rate = |server| {
            let value = benchmark(&format!("### {workload}, server `{server}`\n"), peer, column);
            // The column of W1 is in microseconds, the inverse of a rate.
            thousands(two_digits(if column == "cycle p50" { 1e6 / value } else { value }))
        };
        let right = format!("| {row} | {} | {} |", rate("nofsync"), rate("fsync"));
        let text = fs::read_to_string(&file).unwrap();
        let said = text.lines().find(|line| line.starts_with(&format!("| {row} |")));
        let said = said.unwrap_or_else(|| panic!("docs/sizing.md has no row {row}"));
        if std::env::var_os("ZKL_BLESS").is_some() {
            fs::write(&file, text.replace(said, &right)).unwrap();
            continue;
        }
        assert_eq!(said, right, "run: ZKL_BLESS=1 cargo test --test docs");
    }
}

/// A cell of the published tables.
fn benchmark(title: &str, peer: &str, column: &str) -> f64 {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks.md")).unwrap();
    let table = page.split(title).nth(1).unwrap_or_else(|| panic!("docs/benchmarks.md has no {title}"));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = table.lines().skip_while(|line| !line.starts_with("| peer |"));
    let heads = cells(lines.next().unwrap());
    let index = heads.iter().position(|head| head.starts_with(column));
    let index = index.unwrap_or_else(|| panic!("{title}: no column {column}"));
    let row = lines.take_while(|line| line.starts_with('|')).map(cells).find(|row| row[1] == peer);
    row.unwrap_or_else(|| panic!("{title}: no row {peer}"))[index].parse().unwrap()
}

/// Rounds to two significant digits.
fn two_digits(value: f64) -> u64 {
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    ((value / unit).round() * unit).round() as u64
}

/// Checks every page. The number may be in digits or in words: "49 deliberate bugs", "Forty-nine deliberate bugs".
#[test]
fn every_number_of_deliberate_bugs_is_that_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let right = deliberate_bugs();
    let mut mentions = 0;
    for (page, text) in pages(&root.join("docs")) {
        let words: Vec<&str> = text.split_whitespace().collect();
        for words in words.windows(3).filter(|words| words[1] == "deliberate" && words[2].starts_with("bugs")) {
            let word = words[0].trim_matches(|letter: char| !letter.is_alphanumeric()).to_lowercase();
            let is_number = |&number: &u64| word == number.to_string() || word == in_words(number);
            if let Some(number) = (0..1000).find(is_number) {
                assert_eq!(number, right, "{page}: {} deliberate bugs", words[0]);
                mentions += 1;
            }
        }
    }
    assert!(mentions > 0, "no page says how many deliberate bugs there are");
}

/// Every page that names the required versions of Rust and Python must name the right ones.
#[test]
fn the_pages_name_the_versions_that_are_needed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rust = setting("Cargo.toml", "rust-version = \"1.");
    let python = setting("python/pyproject.toml", "requires-python = \">=3.");
    let mut pages = pages(&root.join("docs"));
    pages.push(("README.md".to_owned(), fs::read_to_string(root.join("README.md")).unwrap()));
    let mut mentions = 0;
    for (page, text) in &pages {
        for (language, minor) in [("Rust 1.", rust), ("Rust (1.", rust), ("Python 3.", python), ("Python (3.", python)]
        {
            for rest in text.split(language).skip(1) {
                let said: String = rest.chars().take_while(char::is_ascii_digit).collect();
                assert_eq!(said, minor.to_string(), "{page}: {language}{said}");
                mentions += 1;
            }
        }
    }
    assert!(mentions > 8, "only {mentions} versions were read");
}

/// The page about the chaos tests must explain each rule of the checker, and no other rule.
#[test]
fn chaos_page_explains_every_rule() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checker = fs::read_to_string(root.join("tests/chaos/src/checker.rs")).unwrap();
    let rules = checker.split("pub enum Rule {").nth(1).unwrap().split("\n}").next().unwrap();
    let rules: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    let name = |rule: &&str| checker.split_once(&format!("Self::{rule} => \"")).unwrap().1.split('"').next().unwrap();
    let names: Vec<&str> = rules.iter().map(name).collect();
    let page = fs::read_to_string(root.join("docs/chaos.md")).unwrap();
    let table = page.split("| rule | |\n|---|---|\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let explained: Vec<&str> = table.lines().map(|row| row.split('|').nth(1).unwrap().trim()).collect();
    assert_eq!(explained, names);
}

/// The number of deliberate bugs in `core/src/mutant.rs`. Its list must contain all of them.
fn deliberate_bugs() -> u64 {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("core/src/mutant.rs")).unwrap();
    let names = |begin: &str, end: &str| -> Vec<String> {
        let list = source.split(begin).nth(1).unwrap().split(end).next().unwrap();
        let names = list.lines().map(|line| line.trim().trim_start_matches("Self::"));
        names.filter_map(|name| name.strip_suffix(',')).map(str::to_owned).collect()
    };
    let (all, listed) = (names("pub enum Mutant {\n", "\n}"), names("pub const ALL: [Self; ", "\n    ];"));
    assert_eq!(all, listed, "Mutant::ALL is not what Mutant has");
    all.len() as u64
}

/// The only number in the value of a constant.
fn constant(file: &str, name: &str) -> u64 {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let value =
        source.split_once(&format!("const {name}: ")).and_then(|(_, rest)| rest.split_once(" = ")?.1.split(';').next());
    let value = value.unwrap_or_else(|| panic!("{file} has no constant {name}, which a page quotes"));
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{file}: {name} is {value}"))
}

/// The number after this text in a file. The file must contain the text exactly once.
fn setting(file: &str, before: &str) -> u64 {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let values: Vec<&str> = text.split(before).skip(1).collect();
    let &[value] = values.as_slice() else { panic!("{file} has `{before}` {} times", values.len()) };
    value.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// A default value of `Limits`.
fn limit(field: &str) -> u64 {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("core/src/limits.rs")).unwrap();
    let defaults = source.split_once("impl Default for Limits").unwrap().1;
    let value = defaults.split_once(&format!(" {field}: ")).and_then(|(_, rest)| Some(rest.split_once(",\n")?.0));
    let value = value.unwrap_or_else(|| panic!("there is no limit {field}, which a page quotes"));
    value.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// A default value of `Config`, in seconds.
fn default_seconds(field: &str) -> u64 {
    setting("src/config.rs", &format!("{field}: Duration::from_secs("))
}

fn thousands(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", thousands(number / 1000), number % 1000) }
}

fn in_words(number: u64) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
    match (number / 100, number / 10 % 10, number % 10) {
        (0, 0 | 1, _) => SMALL[number as usize].to_owned(),
        (0, tens, 0) => TENS[tens as usize].to_owned(),
        (0, tens, ones) => format!("{}-{}", TENS[tens as usize], SMALL[ones as usize]),
        (hundreds, 0, 0) => format!("{} hundred", in_words(hundreds)),
        (hundreds, ..) => format!("{} hundred and {}", in_words(hundreds), in_words(number % 100)),
    }
}

/// The names and texts of all hand-written pages below a directory.
fn pages(directory: &Path) -> Vec<(String, String)> {
    let mut pages = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    pages
}
