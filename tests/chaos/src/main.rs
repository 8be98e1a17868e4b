//! `zklock-chaos`: lets everything go wrong, and prints what came of it. It is also the Rust program that takes part.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use zklock_chaos::run::{Place, Plan, run};
use zklock_chaos::{programs, report, worker};
use zklock_rig::Network;

/// Runs C, Python and Rust programs with zklock on three ZooKeeper servers, with faults.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// For how many minutes, in runs of two or three.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// The first run's seed; the next ones follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// On loopback, also where network namespaces can be had.
    #[arg(long)]
    loopback: bool,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Take part in a run.
    #[command(hide = true)]
    Worker(worker::Arguments),
}

/// How long one run is at most.
const RUN: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.part {
        Some(Part::Worker(of_worker)) => take_part(of_worker),
        None => campaign(&arguments),
    }
}

fn take_part(arguments: &worker::Arguments) -> ExitCode {
    match worker::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zklock-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

fn campaign(arguments: &Arguments) -> ExitCode {
    let place = if arguments.loopback { Place::Loopback } else { best_place() };
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(arguments.minutes * 60.0));
    let mut failed = 0;
    for seed in arguments.seed.. {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        let plan = Plan::long(seed, place, left.min(RUN));
        // Each run has a thread of its own, since a thread can't leave a network again.
        let of_thread = plan.clone();
        let outcome = thread::spawn(move || run(&of_thread)).join();
        match outcome {
            Ok(Ok(outcome)) => {
                print!("{}", report::table(&plan, &outcome));
                keep(&report::json(&plan, &outcome));
                failed += usize::from(!outcome.judgement.violations.is_empty());
            }
            Ok(Err(error)) => {
                println!("seed {seed}: {error}");
                failed += 1;
            }
            Err(_) => failed += 1,
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn best_place() -> Place {
    // On a thread of its own, which is in the network from then on.
    match thread::spawn(Network::enter).join() {
        Ok(Ok(_)) => Place::Network,
        Ok(Err(error)) => {
            println!("no network namespaces ({error}): on loopback, through proxies");
            Place::Loopback
        }
        Err(_) => Place::Loopback,
    }
}

fn keep(line: &str) {
    let path = programs::profile_directory().join("chaos/report.jsonl");
    let kept = OpenOptions::new().append(true).create(true).open(&path).and_then(|mut file| writeln!(file, "{line}"));
    match kept {
        Ok(()) => println!("  figures: {}", path.display()),
        Err(error) => eprintln!("{}: {error}", path.display()),
    }
}
