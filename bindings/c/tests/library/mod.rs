//! libzklock.so of the profile that is being tested, and the programs that use it.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "for tests, each of which uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where libzklock.so is. Cargo does not build it for integration tests, which could not link it, so it is built here.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        // TARGET/PROFILE/deps/TEST
        let test = std::env::current_exe().unwrap();
        let directory = test.ancestors().nth(2).unwrap();
        let profile = match directory.file_name().and_then(|name| name.to_str()).unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        output(
            Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--package", "zklock-c", "--lib", "--profile", profile, "--target-dir"])
                .arg(directory.parent().unwrap())
                .current_dir(env!("CARGO_MANIFEST_DIR")),
        );
        directory.to_owned()
    })
}

/// Runs a command to its success, and gives what it printed.
pub(crate) fn output(command: &mut Command) -> String {
    let result = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
    assert!(result.status.success(), "{command:?}: {}\n{out}{err}", result.status);
    out.into_owned()
}
