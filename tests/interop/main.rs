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
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zklock_rig::{CuratorPeer, CuratorVersion, KazooPeer, Peer, ZooKeeper, flags};

use side::{Met, Side};
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
    let curators = CuratorVersion::ALL.map(|version| CuratorPeer::start(version, &address, SESSION));
    let kazoo = KazooPeer::start(&address, SESSION);
    let files = Files::create();
    let met = |peer: &'_ Peer, name: &str| format!("{name} {}", peer.ask("version"));
    let chosen = |rows: Vec<Row>| {
        let is_chosen =
            |row: &Row| options.words.is_empty() || options.words.iter().any(|word| row.name.contains(word));
        rows.into_iter().filter(is_chosen).collect()
    };
    let tables = [
        Table {
            title: "zklock and Curator on one path",
            columns: curators.each_ref().map(|curator| met(curator, "Curator")).to_vec(),
            rows: chosen(curator::rows()),
        },
        Table {
            title: "zklock and kazoo on one path",
            columns: vec![met(&kazoo, "kazoo")],
            rows: chosen(kazoo::rows()),
        },
        Table {
            title: "zklock where nodes of ZooKeeper's own lock recipes stand",
            columns: recipes::NAMES.map(|(name, _)| name.to_owned()).to_vec(),
            rows: chosen(recipes::rows()),
        },
    ];
    let [curator_met, kazoo_met, recipes_met]: [Vec<(Met, Option<&Peer>)>; 3] = [
        CuratorVersion::ALL
            .into_iter()
            .zip(&curators)
            .map(|(version, peer)| (Met::Curator(version), Some(&**peer)))
            .collect(),
        vec![(Met::Kazoo, Some(&kazoo))],
        recipes::NAMES.iter().map(|&(_, node)| (Met::Recipe(node), None)).collect(),
    ];
    let mut jobs = Vec::new();
    for (table, met) in tables.iter().zip([curator_met, kazoo_met, recipes_met]) {
        for row in &table.rows {
            jobs.extend(table.columns.iter().zip(&met).map(|(column, &(met, peer))| (row, column, met, peer)));
        }
    }
    let cells: Vec<Mutex<Option<Cell>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((number, &(row, column, met, peer))) = {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(number).map(|job| (number, job))
                } {
                    let rounds = if options.prints_table { 100 } else { 25 };
                    let side = Side::new(&zookeeper, met, peer, number, rounds, &files.0);
                    // The parent of all its paths stays, whatever comes and goes below it.
                    side.raw().create(&side.root(), b"", flags::PERSISTENT).unwrap();
                    let began = Instant::now();
                    let cell = table::observe(|| (row.check)(&side));
                    eprintln!("TIME {:.2} {} | {column}", began.elapsed().as_secs_f32(), row.name);
                    if cell.has_failed() {
                        eprintln!("that was: {} | {column}", row.name);
                    }
                    *cells[number].lock().unwrap() = Some(cell);
                }
            });
        }
    });
    let cells: Vec<Cell> = cells.into_iter().map(|cell| cell.into_inner().unwrap().unwrap()).collect();
    report(options, &tables, cells, start.elapsed())
}

fn report(options: &Options, tables: &[Table], cells: Vec<Cell>, took: Duration) -> ExitCode {
    let (checks, mut left) = (cells.len(), cells.into_iter());
    let (mut failed, mut differ) = (0, 0);
    for table in tables {
        let cells: Vec<Cell> = left.by_ref().take(table.rows.len() * table.columns.len()).collect();
        let has_failed = cells.iter().filter(|cell| cell.has_failed()).count();
        failed += has_failed;
        differ += cells.iter().filter(|cell| cell.differs()).count();
        if options.prints_table || has_failed > 0 {
            println!("{}", table.print(&cells, !options.prints_table));
        }
    }
    println!("{checks} cells in {:.1} s: {differ} known differences, {failed} failed", took.as_secs_f32());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
