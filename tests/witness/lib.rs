//! Nothing of its own: see `tests/witness.rs`.
