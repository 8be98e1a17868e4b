//! Runs the committed inputs on stable Rust without libFuzzer. The corpus contains inputs that once caused a failure, and inputs with a
//! large code coverage.

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

/// The corpus does not contain the empty input or repetitions of one byte, so these are tested here.
#[test]
fn plain_inputs_run_through() {
    for (_, run) in TARGETS {
        run(&[]);
        (0..=u8::MAX).step_by(5).for_each(|byte| run(&[byte; 200]));
    }
}

/// Runs the single input in `ZKLOCK_FUZZ_INPUT=target:file`, to examine a failure that the fuzzer has found.
#[test]
fn selected_input_passes() {
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
