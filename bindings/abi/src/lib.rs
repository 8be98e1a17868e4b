//! What zklock's C libraries have in common: handles that survive every misuse, arguments that are checked and named, and the
//! boundary that turns errors and panics into statuses. It exports nothing itself; each library has a copy of its own, and so
//! a last error of its own.

pub mod arg;
pub mod guard;
pub mod handle;
