//! Entry point of the target `proto` for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::proto::run(data));
