//! Curator's other recipes on a real server that behaves, one module for each. A test that answers one of Curator's own names it:
//! *Curator:*; `docs/curator.md` has them all.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

#[path = "../common/mod.rs"]
mod common;

mod cohort;
mod fence;
mod multi;
mod multi_in_steps;
mod revocation;
mod rwlock;
mod semaphore;
mod semaphore_mutex;
mod shared_count;
mod waiting;
