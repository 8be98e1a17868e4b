//! libFuzzer's way into the target `abi`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::abi::run(data));
