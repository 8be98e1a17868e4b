//! libFuzzer's way into the target `engine`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::engine::run(data));
