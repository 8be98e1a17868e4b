//! zklock beside other libraries' locks: real Curator in two versions, real kazoo, and the names of ZooKeeper's own recipes, all on a real
//! server. Each *check* is a row of a table and says what it saw; each column is somebody who is met.
//!
//!     cargo test --test interop [WORD...]                  all checks, or those with a word in their names; tells what failed
//!     cargo test --test interop -- --table [WORD...]       with more rounds, and as a table: `make interop`
//!
//! A test without the usual harness, since its results belong together.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

#[path = "../common/mod.rs"]
mod common;

mod curator;
mod kazoo;
mod places;
mod process;
mod queues;
mod recipes;
mod semaphores;
mod side;
mod table;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zklock_rig::{CuratorPeer, CuratorVersion, KazooPeer, Peer, ZooKeeper};

use side::{Ground, Met, Side};
use table::{Cell, Row, Table};

/// The sessions of the peers that every check talks to.
const SESSION: Duration = Duration::from_secs(30);
/// Checks wait for others more than they work.
const AT_ONCE: usize = 6;

struct Options {
    prints_table: bool,
    words: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, address, session_timeout] = &*arguments
        && flag == process::FLAG
    {
        process::run(address, session_timeout);
        return ExitCode::SUCCESS;
    }
    // Cargo passes flags of the usual harness on, like --quiet.
    let options = Options {
        prints_table: arguments.iter().any(|argument| argument == "--table"),
        words: arguments.into_iter().filter(|argument| !argument.starts_with('-')).collect(),
    };
    run(&options)
}

fn run(options: &Options) -> ExitCode {
    let start = Instant::now();
    // Sessions of those who were killed end at a tick.
    let zookeeper = ZooKeeper::options().tick_ms(250).start();
    let address = zookeeper.address();
    let [debian, newest] = CuratorVersion::ALL.map(|version| CuratorPeer::start(version, &address, SESSION));
    let kazoo = KazooPeer::start(&address, SESSION);
    let column = |met, peer: &Peer, name: &str| (format!("{name} {}", peer.ask("version")), met);
    let tables = [
        Table {
            title: "zklock and Curator on one path",
            columns: vec![
                column(Met::Curator(CuratorVersion::Debian, &debian), &debian, "Curator"),
                column(Met::Curator(CuratorVersion::Newest, &newest), &newest, "Curator"),
            ],
            rows: options.chosen(curator::rows()),
        },
        Table {
            title: "zklock and kazoo on one path",
            columns: vec![column(Met::Kazoo(&kazoo), &kazoo, "kazoo")],
            rows: options.chosen(kazoo::rows()),
        },
        Table {
            title: "zklock where nodes of ZooKeeper's own lock recipes stand",
            columns: recipes::NAMES.map(|(name, node)| (name.to_owned(), Met::Recipe(node))).to_vec(),
            rows: options.chosen(recipes::rows()),
        },
    ];
    let rounds = if options.prints_table { 100 } else { 25 };
    let cells = look(&tables, &Ground { zookeeper: &zookeeper, files: &Files::create().0, rounds });
    report(options, &tables, cells, start.elapsed())
}

/// Makes all checks of all tables, several at once; what they saw, row by row.
fn look(tables: &[Table<'_>], ground: &Ground<'_>) -> Vec<Cell> {
    let rows = tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
    let jobs = rows.flat_map(|(table, row)| table.columns.iter().map(move |(column, met)| (row, column, *met)));
    let jobs: Vec<(&Row, &String, Met<'_>)> = jobs.collect();
    let cells: Vec<OnceLock<Cell>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((number, &(row, column, met))) = {
            let number = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(number).map(|job| (number, job))
        } {
            let side = Side::new(ground, met, number);
            let cell = table::observe(|| (row.check)(&side));
            if cell.has_failed() {
                eprintln!("that was: {} | {column}", row.name);
            }
            let _ = cells[number].set(cell);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
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
        let is_chosen = |row: &Row| self.words.is_empty() || self.words.iter().any(|word| row.name.contains(word));
        rows.into_iter().filter(is_chosen).collect()
    }
}

/// A directory for the files that locks protect.
struct Files(std::path::PathBuf);

impl Files {
    fn create() -> Self {
        let path = std::env::temp_dir().join(format!("zklock-interop-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
