//! Runs zklock's engines against an ensemble of standalone servers, on a virtual clock, with faults of the network and
//! of processes. Each seed determines one run, which is always the same. A checker compares the committed state of the
//! servers with the reports that the clients received.

#![allow(
    clippy::indexing_slicing,
    reason = "the simulation computes its own indices, and a wrong index must stop the run"
)]

mod checker;
mod client;
mod cluster;
mod plan;
mod program;
mod sasl;
mod world;

pub use sasl::ClientSasl;
use world::World;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The first violation; `None` if there was none.
    pub violation: Option<String>,
    /// Number of events.
    pub steps: u64,
    /// Number of grants.
    pub grants: usize,
    /// Number of losses.
    pub losses: usize,
    /// The log of the run, line by line, if it was requested.
    pub history: Vec<String>,
}

/// Runs a seed.
pub fn run(seed: u64, with_history: bool) -> Outcome {
    let mut world = World::new(seed, with_history);
    world.run();
    Outcome {
        violation: world.checker.violation.take(),
        steps: world.steps,
        grants: world.checker.grants,
        losses: world.checker.losses,
        history: world.history.take().unwrap_or_default(),
    }
}
