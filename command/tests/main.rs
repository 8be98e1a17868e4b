//! The tests of the `zklock` command: they run the program with real servers, and look at its exit codes, its output
//! and its processes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]

mod common;
mod cost;
mod doctor;
mod environment;
mod exit_codes;
mod faults;
mod hold;
mod large;
mod loss;
mod observe;
mod once;
mod operate;
mod output;
mod service;
mod settings;
mod terminal;
mod top;
mod tree;
mod waiting;
