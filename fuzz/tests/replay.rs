//! The committed inputs, on stable Rust without libFuzzer: those that once crashed something, and those that reach far.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use zklock_fuzz::TARGETS;

#[test]
fn the_corpus_runs_through() {
    for (name, run) in TARGETS {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "fuzz/corpus/{name} is empty");
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            if std::panic::catch_unwind(|| run(&bytes)).is_err() {
                panic!("{name}: {} fails", input.display());
            }
        }
    }
}

/// Nothing at all is an input as well, as is a lot of one byte.
#[test]
fn plain_inputs_run_through() {
    for (_, run) in TARGETS {
        run(&[]);
        (0..=u8::MAX).step_by(5).for_each(|byte| run(&[byte; 200]));
    }
}

/// `ZKLOCK_FUZZ_INPUT=target:file` runs one input, to look into what a fuzzer has found.
#[test]
fn the_input_that_is_asked_for_runs_through() {
    let Ok(wanted) = std::env::var("ZKLOCK_FUZZ_INPUT") else { return };
    let (target, file) = wanted.split_once(':').unwrap();
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    run(&fs::read(file).unwrap());
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
