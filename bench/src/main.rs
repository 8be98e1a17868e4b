//! `zklock-bench`: measures what zklock's locks cost, beside other libraries' and the floors, on real servers that it starts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a driver that cannot do its work must end at once and say where; the harness tells of it"
)]

mod campaign;
mod crates;
mod driver;
mod floor;
mod machine;
mod measure;
mod peer;
mod plot;
mod report;
mod scale;
mod table;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use campaign::{Disk, Plan, Warmth};
use crates::{Naive, Threads, ZookeeperClient};
use floor::Floor;
use machine::Cores;
use peer::{Peer, Workshop};
use report::{Method, Report};
use scale::Size;
use workload::Workload;

/// Measures what zklock's locks cost, beside other libraries' and the least that a ZooKeeper client has to do.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// What is done.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Locks])]
    part: Vec<Part>,
    /// Whose locks, all by default.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// In which workloads: w1, w2, w2h, w3 (or w3-8, w3-64, w3-256), w4; all by default.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// On which server, both by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    server: Vec<Disk>,
    /// How many pairs of windows for each.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long a window is, in seconds.
    #[arg(long, default_value_t = 1.0)]
    window: f64,
    /// How often a pair is done again at most, when others used the machine meanwhile.
    #[arg(long, default_value_t = 3)]
    redo: usize,
    /// Everything once, as small as can be, on the server without fsync: only to see that it works and that no counts are wrong.
    #[arg(long, conflicts_with_all = ["part", "workloads", "server", "rounds", "window", "redo", "docs"])]
    quick: bool,
    /// The directory of the libzklock.so that is measured; by default the release build of the checkout.
    #[arg(long, value_name = "DIR")]
    lib: Option<PathBuf>,
    /// Writes the numbers to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the page benchmarks.md, with its pictures and numbers, to a directory.
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Be a driver.
    #[command(hide = true)]
    Drive { peer: String, address: String },
}

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The workloads, with all peers.
    Locks,
    /// What a held lock and a waiter need of memory.
    Memory,
    /// Many waiters, many clients, how fast a client starts, how large the library is.
    Scale,
    /// 64 threads and one path, with and without hand-over within the process: what `locks` has of that, alone.
    Local,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::Drive { peer, address }) => drive(peer, address),
        None => measure_all(&arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("zklock-bench: {error}");
        ExitCode::FAILURE
    })
}

fn drive(peer: &str, address: &str) -> Result<ExitCode, String> {
    match peer {
        "zookeeper-client" => driver::serve(&mut Threads::<ZookeeperClient>::new(address)),
        "zookeeper" => driver::serve(&mut Threads::<Naive>::new(address)),
        floor => driver::serve(&mut Floor::new(floor, address).ok_or_else(|| format!("no such peer: {floor}"))?),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure_all(arguments: &Arguments) -> Result<ExitCode, String> {
    let (cores, size) = (Cores::find(), if arguments.quick { Size::Small } else { Size::Full });
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let built = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")).join("release");
    let library = arguments.lib.as_ref().unwrap_or(&built);
    let plan = if arguments.quick { quick_plan(arguments, library)? } else { plan(arguments, library)? };
    let does = |part| arguments.quick && part != Part::Local || arguments.part.contains(&part);
    let plan = if does(Part::Locks) || !does(Part::Local) { plan } else { local_plan(plan, library) };
    let workshop = Workshop::open(&plan.peers, library)?;
    let method = Method { rounds: plan.rounds, window_seconds: arguments.window, redo_limit: plan.redo_limit };
    let is_kept = arguments.json.is_some() || arguments.docs.is_some();
    let machine = if is_kept { report::machine(&Disk::Nofsync.start(cores)) } else { Vec::new() };
    let mut report = Report { method, machine, pairs: Vec::new(), scale: Vec::new(), library_bytes: None };
    if does(Part::Locks) || does(Part::Local) {
        report.pairs = campaign::run(&plan, &workshop, cores)?;
    }
    if does(Part::Memory) {
        report.scale.extend(scale::memory(&workshop, cores, size)?);
    }
    if does(Part::Scale) {
        report.scale.extend(scale::scale(&workshop, cores, size)?);
        report.library_bytes = scale::stripped_size(&workshop);
    }
    tell(arguments, &report)?;
    Ok(if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(arguments: &Arguments, report: &Report) -> Result<(), String> {
    print!("{}", report.tables());
    if let Some(file) = &arguments.json {
        report::write_file(file, &report.json()?)?;
    }
    arguments.docs.as_ref().map_or(Ok(()), |docs| report.write_page(docs))
}

fn plan(arguments: &Arguments, library: &Path) -> Result<Plan, String> {
    let workloads = match arguments.workloads.as_slice() {
        [] => Workload::ALL.to_vec(),
        words => words.iter().map(|word| Workload::parse(word)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    let disks = match arguments.server.as_slice() {
        [] => vec![Disk::Nofsync, Disk::Fsync],
        disks => disks.to_vec(),
    };
    Ok(Plan {
        peers: peers(arguments, library)?,
        workloads,
        disks,
        rounds: arguments.rounds,
        window: measure::length(arguments.window),
        warmth: Warmth::Warm,
        audits: false,
        redo_limit: arguments.redo,
    })
}

fn quick_plan(arguments: &Arguments, library: &Path) -> Result<Plan, String> {
    let all = Workload::ALL.into_iter().filter(|workload| !matches!(workload, Workload::Crowd(count) if *count > 8));
    Ok(Plan {
        peers: peers(arguments, library)?,
        workloads: all.collect(),
        disks: vec![Disk::Nofsync],
        rounds: 1,
        window: measure::length(0.1),
        warmth: Warmth::Cold,
        audits: true,
        redo_limit: 0,
    })
}

fn local_plan(plan: Plan, library: &Path) -> Plan {
    let with_threads = |peer: &Peer| ["zklock-c", "zklock-c-local"].contains(&peer.name);
    let peers = Peer::all_with(library).into_iter().filter(with_threads).collect();
    Plan { peers, workloads: vec![Workload::Crowd(64)], ..plan }
}

fn peers(arguments: &Arguments, library: &Path) -> Result<Vec<Peer>, String> {
    match arguments.peers.as_slice() {
        [] => Ok(Peer::all_with(library)),
        names => names.iter().map(|name| Peer::named(name)).collect(),
    }
}
