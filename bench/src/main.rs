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
mod table;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use campaign::{Disk, Plan, Warmth};
use crates::{Naive, Threads, ZookeeperClient};
use floor::Floor;
use machine::Cores;
use peer::{Peer, Workshop};
use workload::Workload;

/// Measures what zklock's locks cost, beside other libraries' and the least that a ZooKeeper client has to do.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// Who is measured, all by default.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// What is measured: w1, w2, w2h, w3 (or w3-8, w3-64, w3-256), w4; all by default.
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
    /// The directory of the libzklock.so that is measured; by default the release build of the checkout.
    #[arg(long, value_name = "DIR")]
    lib: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Be a driver.
    #[command(hide = true)]
    Drive { peer: String, address: String },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.part {
        Some(Part::Drive { peer, address }) => drive(peer, address),
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
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release");
    let library = arguments.lib.as_ref().unwrap_or(&built);
    let plan = plan(arguments, library)?;
    let workshop = Workshop::open(&plan.peers, library)?;
    let pairs = campaign::run(&plan, &workshop, Cores::find())?;
    print!("{}", table::tables(&pairs));
    Ok(if table::failures(&pairs) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn plan(arguments: &Arguments, library: &Path) -> Result<Plan, String> {
    let peers = match arguments.peers.as_slice() {
        [] => Peer::all_with(library),
        names => names.iter().map(|name| Peer::named(name)).collect::<Result<_, _>>()?,
    };
    let workloads = match arguments.workloads.as_slice() {
        [] => Workload::ALL.to_vec(),
        words => words.iter().map(|word| Workload::parse(word)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    let disks = match arguments.server.as_slice() {
        [] => vec![Disk::Nofsync, Disk::Fsync],
        disks => disks.to_vec(),
    };
    let window = measure::length(arguments.window);
    let (rounds, redo_limit) = (arguments.rounds, arguments.redo);
    Ok(Plan { peers, workloads, disks, rounds, window, warmth: Warmth::Warm, redo_limit })
}
