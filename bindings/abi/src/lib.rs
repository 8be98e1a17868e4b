//! The common parts of zklock's C libraries: handles that detect misuse, checks for arguments, and the boundary that converts
//! errors and panics into statuses. This crate exports no C function. Each C library contains its own copy of this crate, and
//! has its own last error message.

pub mod arg;
pub mod boundary;
pub mod handle;
