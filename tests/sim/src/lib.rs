//! zklock's engines against an ensemble of standalone servers, on a virtual clock, with a network and processes that fail: one run
//! for each seed, the same every time. The judge looks at the servers' truth and at what each client was told, and when.

#![allow(clippy::indexing_slicing, reason = "indices are made here, and a wrong one is to stop the run")]

mod client;
mod cluster;
mod judge;
mod plan;
mod world;

use world::World;

/// What became of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What must not have happened; none if all was well.
    pub verdict: Option<String>,
    /// How many things happened.
    pub steps: u64,
    /// How often somebody got a lock.
    pub grants: usize,
    /// How often somebody lost one.
    pub losses: usize,
    /// What happened, line by line, if it was asked for.
    pub history: Vec<String>,
}

/// Runs a seed.
pub fn run(seed: u64, with_history: bool) -> Outcome {
    let mut world = World::new(seed, with_history);
    world.run();
    Outcome {
        verdict: world.judge.verdict.take(),
        steps: world.steps,
        grants: world.judge.grants,
        losses: world.judge.losses,
        history: world.history.take().unwrap_or_default(),
    }
}
