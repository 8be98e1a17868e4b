//! Runs: many programs start a job, and one of them runs it in each period. This directory decides whether a program
//! runs its job, and records the runs. The lock of the job prevents two runs from overlapping. The files `period.rs`
//! and `record.rs` use no clock and send no requests.

mod begin;
mod end;
mod job;
mod participant;
mod period;
mod record;
mod run;

pub use begin::{RunStart, start_run};
pub use participant::user_name;
pub use period::{Period, period_zone};
pub use record::{PastRun, RunResult, counting_run, past_run_json, record_path};
pub use run::{Run, keep_run};
