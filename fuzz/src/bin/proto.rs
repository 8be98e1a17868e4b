//! libFuzzer's way into the target `proto`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::proto::run(data));
