//! Programs with zklock in C, Python and Rust, on three real ZooKeeper servers, while everything goes wrong: servers die, stand still and
//! are cut off, connections are swallowed and reset, programs are stopped, killed and suspended, sessions are ended and nodes deleted by
//! others, clocks jump. A judge compares what the programs were told with what the servers have in their logs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a rig that cannot do its work must fail at once and say where"
)]

pub mod clock;
pub mod judge;
pub mod nemesis;
mod operator;
pub mod programs;
pub mod report;
pub mod run;
mod store;
pub mod story;
pub mod trace;
pub mod truth;
pub mod worker;
