//! A short campaign: a few thousand seeds find no violation, and find the deliberate bugs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use zklock_core::mutant::Mutant;

/// `make sim` runs 100,000.
const SEEDS: u64 = 3_000;

#[test]
fn short_campaign_finds_no_violation() {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut grants = 0;
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= SEEDS {
                            return grants;
                        }
                        let outcome = zklock_sim::run(seed, false);
                        assert_eq!(outcome.violation, None, "to print the run: make sim SEED={seed}");
                        grants += outcome.grants;
                    }
                })
            })
            .collect();
        let grants: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(
            grants as u64 > SEEDS,
            "only {grants} grants; expected more, because a run without grants checks nothing"
        );
    });
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in [1, 2, 3] {
        let [one, other] = [(); 2].map(|()| zklock_sim::run(seed, true));
        assert!(one.history.len() > 10);
        assert_eq!(one.history, other.history);
    }
}

/// Deliberate bugs that need more seeds than a test should run. Unit tests of the core find them
/// (`Mutant::assert_found_by`).
const FOUND_BY_UNIT_TESTS: [Mutant; 8] = [
    Mutant::AdvanceWhileRestoring,
    Mutant::ExpectPromptPings,
    Mutant::TouchOnWrite,
    Mutant::TouchTooEarly,
    Mutant::ListFirst,
    Mutant::CheckWithoutSync,
    Mutant::CountWithoutSync,
    Mutant::ResumeProves,
];

/// The first seed of the search for deliberate bugs that need many seeds. If other random choices hide such a bug,
/// `make mutants` finds another seed.
const FIRST_SEEDS: [(Mutant, u64); 3] =
    [(Mutant::NestBlindly, 5_000), (Mutant::OverlookDowngrade, 5_000), (Mutant::TrustEndedCache, 7_000)];

/// Decision 5 lists each deliberate bug once.
#[test]
fn the_decision_lists_the_deliberate_bugs() {
    let page = include_str!("../../../docs/decisions/0005-simulation.md");
    let table: String = page.lines().filter(|line| line.starts_with('|')).collect();
    let mut listed: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    let mut expected: Vec<String> = Mutant::ALL.iter().map(|mutant| format!("{mutant:?}")).collect();
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

#[test]
#[cfg_attr(not(zklock_mutants), ignore = "this build has no deliberate bugs; run make test-sim")]
fn deliberate_bugs_are_found() {
    let hunted: Vec<Mutant> = Mutant::ALL.into_iter().filter(|mutant| !FOUND_BY_UNIT_TESTS.contains(mutant)).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&mutant) = hunted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    Mutant::activate(Some(mutant));
                    let known = FIRST_SEEDS.into_iter().find(|&(known, _)| known == mutant);
                    let first = known.map_or(0, |(_, first)| first);
                    let found = (first..first + 5_000).find(|&seed| zklock_sim::run(seed, false).violation.is_some());
                    assert!(found.is_some(), "{mutant:?} stays hidden");
                }
            });
        }
    });
}
