//! `zklock-bench`: measures the cost of zklock's locks on real servers, beside the locks of other libraries and the
//! floors.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "if a driver fails, it must end at once and show the place; the harness reports it"
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
use std::time::Instant;

use clap::{Parser, Subcommand, ValueEnum};

use campaign::{Base, Disk, Measured, Plan};
use crates::{Naive, ZookeeperClient};
use floor::Floor;
use machine::Cores;
use peer::{DriverBuilds, Peer};
use report::{Method, Report};
use scale::Size;
use workload::Workload;

/// Measures the cost of zklock's locks, beside the locks of other libraries and the minimal requests of a ZooKeeper
/// client.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// The parts to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Locks])]
    part: Vec<Part>,
    /// The peers, by name. By default, the peers of the published page, which omits most floors; bench/src/page.md
    /// lists all.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// The workloads: w1, w2, w2h, w3 (or w3-8, w3-64, w3-256), w4. By default all without fsync, and w1, w2, w3-64, w4
    /// with it.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// The servers. By default both.
    #[arg(long, value_enum, value_delimiter = ',')]
    server: Vec<Disk>,
    /// The number of pairs of windows for each peer, workload and server.
    #[arg(long, default_value_t = 7, value_parser = at_least_one)]
    rounds: usize,
    /// The length of a window in seconds.
    #[arg(long, default_value_t = 1.0, value_parser = window_seconds)]
    window: f64,
    /// The maximum number of windows of a warm-up. A warm-up ends when two windows in a row agree within 5 %. 0
    /// disables it.
    #[arg(long, value_name = "WINDOWS", default_value_t = 12)]
    warm_up: usize,
    /// The maximum number of repetitions of a pair that was disturbed by other processes.
    #[arg(long, default_value_t = 3)]
    redo: usize,
    /// Run everything once, as short as possible, on the server without fsync. This only checks that it works and that
    /// the counts match.
    #[arg(long, conflicts_with_all = ["part", "workloads", "server", "rounds", "window", "warm_up", "redo", "docs"])]
    quick: bool,
    /// The libzklock.so to measure, or its directory. By default the release build of the checkout.
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// Compare with another build: a libzklock.so, or its directory. Each pair has one window of each build, without a
    /// floor.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["docs", "part"])]
    against: Option<PathBuf>,
    /// Write the numbers to a file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the page benchmarks.md, with its pictures and numbers, to a directory.
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Run as a driver.
    #[command(hide = true)]
    Drive { peer: String },
}

/// The parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The workloads, with all peers.
    Locks,
    /// The memory of held locks and of waiters.
    Memory,
    /// Many waiters, many clients, the start time of a client, and the size of the library.
    Scale,
    /// Connections and acquires with TLS, beside plain text.
    Tls,
    /// 64 threads and one path, with and without local hand-over: a part of `locks`.
    Local,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

fn window_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.01 to 60".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.role {
        Some(Role::Drive { peer }) => drive(peer),
        None => measure_all(&arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("zklock-bench: {error}");
        ExitCode::FAILURE
    })
}

fn drive(peer: &str) -> Result<ExitCode, String> {
    match peer {
        "zookeeper-client" => driver::serve(&mut ZookeeperClient::default()),
        "zookeeper" => driver::serve(&mut Naive::default()),
        floor => driver::serve(&mut Floor::new(floor).ok_or_else(|| format!("no such peer: {floor}"))?),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure_all(arguments: &Arguments) -> Result<ExitCode, String> {
    let begun = Instant::now();
    let (cores, size) = (Cores::find(), if arguments.quick { Size::Small } else { Size::Full });
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let built = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")).join("release");
    let library = arguments.lib.as_deref().map_or(built, directory_of);
    let other = arguments.against.as_deref().map(directory_of);
    let plan = if arguments.quick { quick_plan(arguments, &library)? } else { plan(arguments, &library)? };
    let does =
        |part| arguments.against.is_none() && arguments.quick && part != Part::Local || arguments.part.contains(&part);
    let plan = if does(Part::Locks) || !does(Part::Local) { plan } else { local_plan(plan, &library) };
    let builds = DriverBuilds::build(&plan.peers, &library, other.as_deref())?;
    let is_kept = arguments.json.is_some() || arguments.docs.is_some();
    let machine = if is_kept { report::machine(&Disk::Nofsync.start(cores)) } else { Vec::new() };
    let does_locks = does(Part::Locks) || does(Part::Local);
    let measured = if does_locks { campaign::run(&plan, &builds, cores)? } else { Measured::default() };
    let (mut scale, mut library_bytes) = (Vec::new(), None);
    if does(Part::Memory) {
        scale.extend(scale::memory(&builds, cores, size)?);
    }
    if does(Part::Tls) {
        scale.extend(scale::tls(&builds, cores, size)?);
    }
    if does(Part::Scale) {
        scale.extend(scale::scale(&builds, cores, size)?);
        library_bytes = scale::stripped_size(&builds);
    }
    let method = Method {
        base: plan.base,
        rounds: plan.rounds,
        window_seconds: plan.window as f64 / machine::SECOND as f64,
        warm_up_limit: plan.warm_up_limit,
        redo_limit: plan.redo_limit,
        minutes: begun.elapsed().as_secs_f64() / 60.0,
    };
    let report = Report { method, machine, pairs: measured.pairs, warm_ups: measured.warm_ups, scale, library_bytes };
    publish(arguments, &report)?;
    Ok(if report.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The directory of a libzklock.so. The path may name the file or the directory.
fn directory_of(library: &Path) -> PathBuf {
    match library.parent() {
        Some(directory) if library.is_file() => directory.to_owned(),
        _ => library.to_owned(),
    }
}

fn publish(arguments: &Arguments, report: &Report) -> Result<(), String> {
    print!("{}", report.tables());
    if let Some(file) = &arguments.json {
        report::write_file(file, &report.json()?)?;
    }
    arguments.docs.as_ref().map_or(Ok(()), |docs| report.write_page(docs))
}

fn plan(arguments: &Arguments, library: &Path) -> Result<Plan, String> {
    let named: Vec<Vec<Workload>> =
        arguments.workloads.iter().map(|word| Workload::parse(word)).collect::<Result<_, _>>()?;
    let workloads = |disk| match disk {
        _ if !named.is_empty() => named.concat(),
        Disk::Nofsync => Workload::ALL.to_vec(),
        Disk::Fsync => Workload::WITH_FSYNC.to_vec(),
    };
    let disks = match arguments.server.as_slice() {
        [] => vec![Disk::Nofsync, Disk::Fsync],
        disks => disks.to_vec(),
    };
    Ok(Plan {
        peers: peers(arguments, library)?,
        base: base(arguments),
        workloads: disks.into_iter().map(|disk| (disk, workloads(disk))).collect(),
        rounds: arguments.rounds,
        window: measure::length(arguments.window),
        warm_up_limit: arguments.warm_up,
        audits: false,
        redo_limit: arguments.redo,
    })
}

fn quick_plan(arguments: &Arguments, library: &Path) -> Result<Plan, String> {
    let all =
        Workload::ALL.into_iter().filter(|workload| !matches!(workload, Workload::ManyWaiters(count) if *count > 8));
    Ok(Plan {
        peers: peers(arguments, library)?,
        base: base(arguments),
        workloads: vec![(Disk::Nofsync, all.collect())],
        rounds: 1,
        window: measure::length(0.1),
        warm_up_limit: 0,
        audits: true,
        redo_limit: 0,
    })
}

fn local_plan(plan: Plan, library: &Path) -> Plan {
    let with_threads = |peer: &Peer| ["zklock-c", "zklock-c-local"].contains(&peer.name);
    let peers = Peer::defaults(library).into_iter().filter(with_threads).collect();
    let workloads = plan.workloads.into_iter().map(|(disk, _)| (disk, vec![Workload::ManyWaiters(64)])).collect();
    Plan { peers, workloads, ..plan }
}

fn base(arguments: &Arguments) -> Base {
    if arguments.against.is_some() { Base::Other } else { Base::Floor }
}

fn peers(arguments: &Arguments, library: &Path) -> Result<Vec<Peer>, String> {
    let is_comparison = arguments.against.is_some();
    match arguments.peers.as_slice() {
        [] => Ok(Peer::defaults(library)
            .into_iter()
            .filter(|peer| !is_comparison || peer.with_other_build().is_some())
            .collect()),
        names => names.iter().map(|name| Peer::named(name)).collect(),
    }
}
