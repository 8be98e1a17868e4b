//! What the documentation names is there: statuses, functions, tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails is a test that fails"
)]

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
    let sources = sources(&["src", "tests", "bindings", "fuzz"].map(|folder| root.join(folder)));
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

/// A number that a page takes from the code: the words around it on one line of the page, and what the code says.
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
    let mirror = |name: &str| limit(&name.to_lowercase());
    let waiting_events = thousands(constant("src/runtime/outlet.rs", "LIMIT"));
    let waiting_lines = thousands(constant("src/runtime/log.rs", "LIMIT"));
    let leaving = in_words(limit("max_leaving"));
    let silence = constant("src/engine/calls.rs", "SILENCE");
    let (session_timeout, connect_timeout) = (default_seconds("session_timeout"), default_seconds("connect_timeout"));
    let first_bucket = constant("src/histogram.rs", "FIRST");
    let last_bucket = first_bucket << (constant("src/histogram.rs", "BUCKETS") - 2);
    let (first_bucket, last_bucket) = (first_bucket / 1000, last_bucket as f64 / 1e9);
    let minutes = in_words(setting("Makefile", "\nMINUTES ?= "));
    let tick = constant("tests/chaos/src/run.rs", "TICK_MS");
    let sessions = in_words(setting("tests/chaos/src/run.rs", "session_timeout: Duration::from_secs("));
    vec![
        quoted("docs/guarantees.md", "schedules a second, and ", " deliberate bugs", deliberate_bugs()),
        quoted("docs/guarantees.md", "| ", " for each client as they came", &waiting_events),
        quoted("docs/architecture.md", "Nobody has to listen. Up to ", " news of a client wait", &waiting_events),
        quoted(
            "docs/architecture.md",
            "is called by the dispatcher thread or by whom a bell tells. ",
            " lines",
            waiting_lines,
        ),
        quoted("docs/architecture.md", "- *Patience*: ", " contenders of one client", leaving),
        quoted("docs/architecture.md", "if the server has been silent for ", " ms", silence),
        quoted("docs/timeouts.md", "keep a session that they do not hear of | ", " s |", session_timeout),
        quoted("docs/timeouts.md", "the deadline of making a client | ", " s |", connect_timeout),
        quoted(
            "docs/timeouts.md",
            "Closing a client takes ",
            " seconds at most",
            in_words(constant("src/engine/calls.rs", "CLOSE_LIMIT")),
        ),
        quoted(
            "docs/testing.md",
            "Sessions may be as short as ",
            " ms there",
            setting("standalone/src/settings.rs", "min_session_timeout: Some(Duration::from_millis("),
        ),
        quoted("docs/observability.md", "**Histograms** have fixed buckets: ", " µs", first_bucket),
        quoted("docs/observability.md", "twice as much from one to the next up to ", " s", last_bucket),
        quoted("docs/decisions/0007-mirrors.md", "who joins, each within ", " ms of the one before", mirror("SOON")),
        quoted("docs/decisions/0007-mirrors.md", "| not begun, given up | with more than ", " sessions", mirror("FEW")),
        quoted(
            "docs/decisions/0007-mirrors.md",
            "sessions in the queue; with more than ",
            ", or after",
            mirror("MANY"),
        ),
        quoted("docs/decisions/0007-mirrors.md", "or after ", " changes while nobody", mirror("NOISE")),
        quoted("docs/decisions/0007-mirrors.md", "then not again for ", " s |", mirror("PAUSE")),
        quoted("docs/decisions/0007-mirrors.md", "when nobody else came for ", " uses", mirror("SOLO")),
        quoted("docs/decisions/0007-mirrors.md", "| at most | ", " of one client |", mirror("MOST")),
        quoted("docs/chaos.md", "make chaos                        # ", " minutes", minutes),
        quoted("docs/chaos.md", "Three servers (ZooKeeper 3.9.4, tick ", " ms)", tick),
        quoted("docs/chaos.md", "and sessions of ", " seconds", sessions),
        quoted("README.md", "`make sim` runs ", " schedules", thousands(setting("Makefile", "\nSEEDS ?= "))),
    ]
}

/// `ZKL_BLESS=1` writes the numbers of the code into the pages.
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

/// `ZKL_BLESS=1` writes what the published benchmark measured into the page on sizes.
#[test]
fn the_page_on_sizes_has_the_numbers_of_the_benchmark() {
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
            // W1 has microseconds, which are the inverse of a rate.
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

/// Rounded to two digits that count.
fn two_digits(value: f64) -> u64 {
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    ((value / unit).round() * unit).round() as u64
}

/// On every page, also in words: "49 deliberate bugs", "Forty-nine deliberate bugs".
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

/// Wherever a page says which Rust and which Python are needed.
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

/// The page on chaos explains every rule of its judge, and no other.
#[test]
fn the_rules_of_chaos_are_on_its_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let judge = fs::read_to_string(root.join("tests/chaos/src/judge.rs")).unwrap();
    let rules = judge.split("pub enum Rule {").nth(1).unwrap().split("\n}").next().unwrap();
    let rules: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    let name = |rule: &&str| judge.split_once(&format!("Self::{rule} => \"")).unwrap().1.split('"').next().unwrap();
    let names: Vec<&str> = rules.iter().map(name).collect();
    let page = fs::read_to_string(root.join("docs/chaos.md")).unwrap();
    let table = page.split("| rule | |\n|---|---|\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let explained: Vec<&str> = table.lines().map(|row| row.split('|').nth(1).unwrap().trim()).collect();
    assert_eq!(explained, names);
}

/// The number of deliberate bugs in `src/mutant.rs`, all of which have to be in its list.
fn deliberate_bugs() -> u64 {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/mutant.rs")).unwrap();
    let names = |begin: &str, end: &str| -> Vec<String> {
        let list = source.split(begin).nth(1).unwrap().split(end).next().unwrap();
        let names = list.lines().map(|line| line.trim().trim_start_matches("Self::"));
        names.filter_map(|name| name.strip_suffix(',')).map(str::to_owned).collect()
    };
    let (all, listed) = (names("pub enum Mutant {\n", "\n}"), names("pub const ALL: [Self; ", "\n    ];"));
    assert_eq!(all, listed, "Mutant::ALL is not what Mutant has");
    all.len() as u64
}

/// The one number in the value of a constant.
fn constant(file: &str, name: &str) -> u64 {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let value =
        source.split_once(&format!("const {name}: ")).and_then(|(_, rest)| rest.split_once(" = ")?.1.split(';').next());
    let value = value.unwrap_or_else(|| panic!("{file} has no constant {name}, which a page quotes"));
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{file}: {name} is {value}"))
}

/// The number behind some words of a file, which have to be there once.
fn setting(file: &str, before: &str) -> u64 {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let values: Vec<&str> = text.split(before).skip(1).collect();
    let &[value] = values.as_slice() else { panic!("{file} has `{before}` {} times", values.len()) };
    value.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// A default of `Limits`.
fn limit(field: &str) -> u64 {
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/limits.rs")).unwrap();
    let defaults = source.split_once("impl Default for Limits").unwrap().1;
    let value = defaults.split_once(&format!(" {field}: ")).and_then(|(_, rest)| Some(rest.split_once(",\n")?.0));
    let value = value.unwrap_or_else(|| panic!("there is no limit {field}, which a page quotes"));
    value.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// A default of `Config`, in seconds.
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

/// The pages below a directory that people write, with their names.
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
