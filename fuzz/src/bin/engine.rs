//! Entry point of the target `engine` for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::engine::run(data));
