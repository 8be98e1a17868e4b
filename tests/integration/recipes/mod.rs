//! Curator's other recipes on a real server without faults, one module for each. If a test corresponds to one of
//! Curator's own tests, its comment names that test after *Curator:*. `docs/curator.md` lists them all.

mod cohort;
mod fence;
mod multi;
mod multi_in_steps;
mod node;
mod revocation;
mod rwlock;
mod semaphore;
mod semaphore_mutex;
mod shared_count;
mod waiting;
