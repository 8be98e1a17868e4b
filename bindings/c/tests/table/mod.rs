//! The tests of a target as a table. A row is one check with its variants, for example a program that runs without tools, under
//! valgrind and with sanitizers. Each variant is one test.
//!
//!     cargo test --test c -- mutex              the tests of `make test` with this word in their name
//!     cargo test --test c -- mutex --ignored    those of `make verify`: under valgrind, with sanitizers, with clang
//!
//! The standard harness has no tests from data, so these targets use libtest-mimic.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unused_macros,
    unused_imports,
    reason = "for tests, each of which uses a part"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use libtest_mimic::{Arguments, Trial};
use zklock_test_support::ZooKeeper;

use crate::library::Leaks;
use crate::library::Under::{self, Plain, Sanitizers, Valgrind};

/// The variants of most programs.
pub(crate) const ALL: &[Under] = &[Plain, Valgrind, Sanitizers];

/// The number of tests that run at the same time, unless RUST_TEST_THREADS gives another number. Most programs wait for
/// time-outs and for servers.
const PARALLEL_TESTS: usize = 6;

pub(crate) struct Row {
    name: &'static str,
    variants: &'static [Under],
    check: Arc<dyn Fn(Under) + Send + Sync>,
    is_for_verify: bool,
}

/// A program that gets the address of a server.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) source: PathBuf,
    pub(crate) compiler: &'static str,
    pub(crate) standard: &'static str,
    pub(crate) options: &'static [&'static str],
    pub(crate) leaks: Leaks,
    pub(crate) variants: &'static [Under],
}

/// Makes a row for each of these functions. These checks have no variants.
macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        [$($crate::table::row(stringify!($name), &[$crate::library::Under::Plain], |_| $name())),*]
    };
}
pub(crate) use functions;

pub(crate) fn row(
    name: &'static str,
    variants: &'static [Under],
    check: impl Fn(Under) + Send + Sync + 'static,
) -> Row {
    Row { name, variants, check: Arc::new(check), is_for_verify: false }
}

/// Leaves these rows to `make verify`, because they take long or need a tool that `make test` does not install.
pub(crate) fn for_verify(rows: impl IntoIterator<Item = Row>) -> impl Iterator<Item = Row> {
    rows.into_iter().map(|row| Row { is_for_verify: true, ..row })
}

impl From<Program> for Row {
    fn from(program: Program) -> Self {
        row(program.name, program.variants, move |under| {
            let compiled = under.compile_at(program.compiler, program.standard, &program.source, program.options);
            crate::library::output(under.command(&compiled, program.leaks).arg(ZooKeeper::shared().address()));
        })
    }
}

/// Runs the rows that the command line selects: first all tests without tools, then those with sanitizers, and then those
/// under valgrind.
pub(crate) fn run(rows: impl IntoIterator<Item = Row>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let parallel_tests = std::env::var("RUST_TEST_THREADS").map_or(PARALLEL_TESTS, |threads| threads.parse().unwrap());
    arguments.test_threads.get_or_insert(parallel_tests);
    let rows: Vec<Row> = rows.into_iter().collect();
    let variants = [Plain, Sanitizers, Valgrind];
    let tests = variants.iter().flat_map(|variant| rows.iter().filter_map(|row| row.test(*variant))).collect();
    libtest_mimic::run(&arguments, tests).exit_code()
}

impl Row {
    /// The test of a variant, or `None` if the row does not have the variant.
    fn test(&self, variant: Under) -> Option<Trial> {
        let name = match self.variants.contains(&variant).then_some(variant)? {
            Plain => self.name.to_owned(),
            Valgrind => format!("{}_under_valgrind", self.name),
            Sanitizers => format!("{}_with_sanitizers", self.name),
        };
        let check = Arc::clone(&self.check);
        let test = Trial::test(name, move || {
            let _processor = (variant == Valgrind).then(Processor::reserve);
            check(variant);
            Ok(())
        });
        Some(test.with_ignored_flag(self.is_for_verify || variant != Plain))
    }
}

/// A processor for a program under valgrind. Such programs compute and are slow. With less than a processor, they would miss
/// their time-outs.
struct Processor;

static RESERVED: Mutex<usize> = Mutex::new(0);
static RETURNED: Condvar = Condvar::new();

impl Processor {
    fn reserve() -> Self {
        let processors = thread::available_parallelism().unwrap().get();
        *RETURNED.wait_while(RESERVED.lock().unwrap(), |reserved| *reserved >= processors).unwrap() += 1;
        Self
    }
}

impl Drop for Processor {
    fn drop(&mut self) {
        *RESERVED.lock().unwrap() -= 1;
        RETURNED.notify_one();
    }
}
