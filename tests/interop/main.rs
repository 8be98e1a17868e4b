//! Interoperability tests: zklock together with the locks of other libraries. The other side is Curator in two
//! versions, kazoo, or a node with the name that one of ZooKeeper's own recipes uses. All checks run on a real server.
//! Each *check* is a row of a table, and each column is another side.
//!
//!     cargo test --test interop [WORD...]                  all checks, or those whose names contain a WORD
//!     cargo test --test interop -- --table [WORD...]       with more rounds, and as a table: `make interop`
//!
//! This test does not use the standard harness, because its results form a table.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]

#[path = "../integration/common.rs"]
mod common;

mod acl;
mod curator;
mod fixture;
mod kazoo;
mod process;
mod queued_acquire;
mod queues;
mod recipes;
mod semaphores;
mod table;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zklock_test_support::{CuratorPeer, CuratorVersion, KazooPeer, PeerProcess, ZooKeeper};

use fixture::{CheckContext, OtherLibrary, SharedContext};
use table::{Cell, Row, Table};

/// The session timeout of the peer processes.
const SESSION: Duration = Duration::from_secs(30);
/// The number of checks that run at the same time. Checks mostly wait.
const PARALLEL_CHECKS: usize = 6;

struct Options {
    prints_table: bool,
    name_filters: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, address, session_timeout] = &*arguments
        && flag == process::FLAG
    {
        process::run(address, session_timeout);
        return ExitCode::SUCCESS;
    }
    // Cargo also passes flags of the standard harness, such as --quiet.
    let options = Options {
        prints_table: arguments.iter().any(|argument| argument == "--table"),
        name_filters: arguments.into_iter().filter(|argument| !argument.starts_with('-')).collect(),
    };
    run(&options)
}

fn run(options: &Options) -> ExitCode {
    let start = Instant::now();
    // A session expires at a tick, so a short tick keeps the checks with killed processes short.
    let zookeeper = ZooKeeper::options().tick_ms(250).start();
    let address = zookeeper.address();
    let [debian, newest] = CuratorVersion::ALL.map(|version| CuratorPeer::start(version, &address, SESSION));
    let kazoo = KazooPeer::start(&address, SESSION);
    let column = |other, peer: &PeerProcess, name: &str| (format!("{name} {}", peer.query("version")), other);
    let tables = [
        Table {
            title: "zklock and Curator on one path",
            columns: vec![
                column(OtherLibrary::Curator(CuratorVersion::Debian, &debian), &debian, "Curator"),
                column(OtherLibrary::Curator(CuratorVersion::Newest, &newest), &newest, "Curator"),
            ],
            rows: options.chosen(curator::rows()),
        },
        Table {
            title: "zklock and kazoo on one path",
            columns: vec![column(OtherLibrary::Kazoo(&kazoo), &kazoo, "kazoo")],
            rows: options.chosen(kazoo::rows()),
        },
        Table {
            title: "zklock beside nodes of ZooKeeper's own lock recipes",
            columns: recipes::NAMES.map(|(name, node)| (name.to_owned(), OtherLibrary::Recipe(node))).to_vec(),
            rows: options.chosen(recipes::rows()),
        },
    ];
    let rounds = if options.prints_table { 100 } else { 25 };
    let cells = run_checks(&tables, &SharedContext { zookeeper: &zookeeper, files: &Files::create().0, rounds });
    report(options, &tables, cells, start.elapsed())
}

/// Runs all checks of all tables, several at the same time. Returns their results row by row.
fn run_checks(tables: &[Table<'_>], shared: &SharedContext<'_>) -> Vec<Cell> {
    let rows = tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
    let jobs = rows.flat_map(|(table, row)| table.columns.iter().map(move |(column, other)| (row, column, *other)));
    let jobs: Vec<(&Row, &String, OtherLibrary<'_>)> = jobs.collect();
    let cells: Vec<OnceLock<Cell>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((number, &(row, column, other))) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(number).map(|job| (number, job))
        } {
            let cx = CheckContext::new(shared, other, number);
            let cell = table::run_check(|| (row.check)(&cx));
            if cell.has_failed() {
                eprintln!("the failed check: {} | {column}", row.name);
            }
            let _ = cells[number].set(cell);
        }
    };
    thread::scope(|scope| (0..PARALLEL_CHECKS).for_each(|_| drop(scope.spawn(work))));
    cells.into_iter().map(|cell| cell.into_inner().unwrap()).collect()
}

fn report(options: &Options, tables: &[Table<'_>], cells: Vec<Cell>, took: Duration) -> ExitCode {
    let count = |condition: fn(&Cell) -> bool| cells.iter().filter(|cell| condition(cell)).count();
    let (failed, differ, all) = (count(Cell::has_failed), count(Cell::differs), cells.len());
    let mut left = cells.into_iter();
    for table in tables {
        let cells: Vec<Cell> = left.by_ref().take(table.rows.len() * table.columns.len()).collect();
        if options.prints_table || cells.iter().any(Cell::has_failed) {
            println!("{}", table.print(&cells, !options.prints_table));
        }
    }
    println!("interop: {all} cells in {:.0} s; {differ} known differences, {failed} failed", took.as_secs_f32());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Options {
    fn chosen(&self, rows: Vec<Row>) -> Vec<Row> {
        let is_chosen =
            |row: &Row| self.name_filters.is_empty() || self.name_filters.iter().any(|word| row.name.contains(word));
        rows.into_iter().filter(is_chosen).collect()
    }
}

/// A directory for the files that the locks protect. The commands of the other programs have no quotes, so its path
/// must not contain a blank, as the directory of temporary files may.
struct Files(std::path::PathBuf);

impl Files {
    fn create() -> Self {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("zklock-interop-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
