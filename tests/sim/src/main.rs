//! `zklock-sim`: runs seeds and reports their results.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Parser;
use zklock_core::mutant::Mutant;

/// Runs zklock's engines against a simulated ensemble, with one run for each seed.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run only this seed, and print its log.
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Number of seeds to run.
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// Run with each deliberate bug, or with the one given by `--mutant`, until a seed finds it. Print the number of
    /// seeds.
    #[arg(long)]
    mutants: bool,
    /// Run with this deliberate bug.
    #[arg(long)]
    mutant: Option<String>,
    /// Number of threads.
    #[arg(long, default_value_t = thread::available_parallelism().map_or(1, |n| n.get() as u64))]
    jobs: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mutant = match arguments.mutant.as_deref().map(find) {
        None => None,
        Some(Some(mutant)) => Some(mutant),
        Some(None) => {
            let names: Vec<String> = Mutant::ALL.iter().map(|mutant| format!("{mutant:?}")).collect();
            eprintln!("zklock-sim: no such deliberate bug; expected one of {}", names.join(", "));
            return ExitCode::FAILURE;
        }
    };
    if !Mutant::IS_ENABLED && (arguments.mutants || mutant.is_some()) {
        eprintln!("zklock-sim: this build has no deliberate bugs; `make mutants` makes a build that has them");
        return ExitCode::FAILURE;
    }
    match arguments.seed {
        _ if arguments.mutants => hunt(arguments.seeds, mutant),
        Some(seed) => replay(seed, mutant),
        None => campaign(&arguments, mutant),
    }
}

fn find(name: &str) -> Option<Mutant> {
    Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name)
}

/// Reports how many seeds it takes to find each deliberate bug.
fn hunt(limit: u64, only: Option<Mutant>) -> ExitCode {
    let (mut found_count, mut escaped) = (0, 0);
    for mutant in Mutant::ALL.into_iter().filter(|&mutant| only.is_none_or(|only| only == mutant)) {
        Mutant::activate(Some(mutant));
        let found = (0..limit).find_map(|seed| Some((seed, zklock_sim::run(seed, false).violation?)));
        Mutant::activate(None);
        match found {
            Some((seed, verdict)) => {
                found_count += 1;
                println!("{:24} {:6} seeds  {verdict}", format!("{mutant:?}"), seed + 1);
            }
            None => {
                escaped += 1;
                println!("{:24} not found in {limit} seeds", format!("{mutant:?}"));
            }
        }
    }
    println!("{found_count} of {} deliberate bugs found", found_count + escaped);
    if escaped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, mutant: Option<Mutant>) -> ExitCode {
    Mutant::activate(mutant);
    let outcome = zklock_sim::run(seed, true);
    for line in outcome.history {
        println!("{line}");
    }
    println!("seed {seed}: {} steps, {} grants, {} losses", outcome.steps, outcome.grants, outcome.losses);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(verdict) => {
            println!("seed {seed}: {verdict}");
            ExitCode::FAILURE
        }
    }
}

fn campaign(arguments: &Arguments, mutant: Option<Mutant>) -> ExitCode {
    let start = Instant::now();
    let next = AtomicU64::new(arguments.first);
    let end = arguments.first.saturating_add(arguments.seeds);
    let [steps, grants, losses, failures] = [const { AtomicU64::new(0) }; 4];
    thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                Mutant::activate(mutant);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = zklock_sim::run(seed, false);
                    steps.fetch_add(outcome.steps, Ordering::Relaxed);
                    grants.fetch_add(outcome.grants as u64, Ordering::Relaxed);
                    losses.fetch_add(outcome.losses as u64, Ordering::Relaxed);
                    if let Some(verdict) = outcome.violation {
                        failures.fetch_add(1, Ordering::Relaxed);
                        println!("seed {seed}: {verdict}");
                    }
                }
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let [steps, grants, losses, failures] = [steps, grants, losses, failures].map(AtomicU64::into_inner);
    println!(
        "{} seeds in {seconds:.1} s, {:.0} a second: {steps} steps, {grants} grants, {losses} losses; {failures} failed",
        arguments.seeds,
        arguments.seeds as f64 / seconds
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
