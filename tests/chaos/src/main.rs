//! `zklock-chaos`: runs the chaos tests and prints their results. It also contains the Rust program that takes part.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use zklock_chaos::run::{Environment, Plan, run};
use zklock_chaos::{programs, report, worker};
use zklock_test_support::Network;

/// Runs C, Python and Rust programs that use zklock on three ZooKeeper servers, and injects faults.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The total duration in minutes. It is divided into runs of two to three minutes.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// The seed of the first run. Each further run increments it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use loopback even if network namespaces are available.
    #[arg(long)]
    loopback: bool,
    /// Use TLS on all connections of the programs, and replace the certificates every 30 seconds.
    #[arg(long)]
    tls: bool,
    /// Let the programs prove their identity with SASL (DIGEST-MD5), and let only this identity create nodes.
    #[arg(long)]
    sasl: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take part in a run.
    #[command(hide = true)]
    Worker(worker::Arguments),
}

/// The maximum duration of the faults in one run.
const RUN: Duration = Duration::from_secs(150);
/// The interval at which the certificates are replaced.
const ROTATION: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Worker(of_worker)) => run_worker(of_worker),
        None => campaign(&arguments),
    }
}

fn run_worker(arguments: &worker::Arguments) -> ExitCode {
    match worker::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zklock-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

fn campaign(arguments: &Arguments) -> ExitCode {
    let place = if arguments.loopback { Environment::Loopback } else { best_environment() };
    let (begun, limit) = (Instant::now(), Duration::from_secs_f64(arguments.minutes * 60.0));
    let mut failed = 0;
    for seed in arguments.seed.. {
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        let certificate_rotation = arguments.tls.then_some(ROTATION);
        let plan = Plan { certificate_rotation, uses_sasl: arguments.sasl, ..Plan::long(seed, place, left.min(RUN)) };
        // Each run needs its own thread, because a thread cannot leave a network namespace.
        let of_thread = plan.clone();
        let outcome = thread::spawn(move || run(&of_thread)).join();
        match outcome {
            Ok(Ok(outcome)) => {
                print!("{}", report::table(&plan, &outcome));
                keep(&report::json(&plan, &outcome));
                failed += usize::from(!outcome.report.violations.is_empty());
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

fn best_environment() -> Environment {
    // The thread that enters the namespace stays there, so it must not be the main thread.
    match thread::spawn(Network::enter).join() {
        Ok(Ok(_)) => Environment::Network,
        Ok(Err(error)) => {
            println!("network namespaces are not available ({error}); using loopback and proxies");
            Environment::Loopback
        }
        Err(_) => Environment::Loopback,
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
