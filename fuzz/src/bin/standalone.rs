//! libFuzzer's way into the target `standalone`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::standalone::run(data));
