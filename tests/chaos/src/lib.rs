//! Chaos tests: C, Python and Rust programs use zklock on three real ZooKeeper servers while faults are injected.
//! Servers are killed, paused and isolated. Connections are swallowed and reset. Programs are paused, killed and
//! suspended. Sessions are closed and nodes are deleted from outside, and clocks jump. A checker compares the
//! reports of the library to the programs with the transaction logs of the servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "if the test setup fails, the test must fail at once and show the place"
)]

pub mod checker;
pub mod clock;
pub mod history;
pub mod nemesis;
mod operator;
pub mod programs;
pub mod report;
pub mod run;
pub mod server_log;
mod store;
pub mod trace;
pub mod worker;
