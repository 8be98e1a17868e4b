//! Entry point of the target `abi` for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::abi::run(data));
