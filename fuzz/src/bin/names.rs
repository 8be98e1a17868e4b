//! libFuzzer's way into the target `names`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::names::run(data));
