//! Entry point of the target `standalone` for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::standalone::run(data));
