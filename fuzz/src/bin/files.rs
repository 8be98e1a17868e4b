//! Entry point of the target `files` for libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| zklock_fuzz::files::run(data));
