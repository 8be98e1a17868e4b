//! What the command sees of the lock, and what it inherits.

use std::io::Write as _;
use std::process::Stdio;

use zklock_test_support::ZooKeeper;

use crate::common::{code, path, zklock, zklock_on};

#[test]
fn the_command_sees_the_lock_in_its_environment() {
    let path = path("environment");
    let output = zklock(&["run", "-x", &path, "env"]).env("USER", "eve").output();
    let output = String::from_utf8(output.stdout).unwrap();
    let variable = |name: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("{name}: {output}")).to_owned()
    };
    assert_eq!(variable("ZKLOCK_PATH"), path);
    assert!(variable("ZKLOCK_NODE").starts_with(&format!("{path}/_c_")));
    assert_eq!(variable("ZKLOCK_MODE"), "write");
    assert!(variable("ZKLOCK_FENCE").parse::<i64>().unwrap() > 0);
    assert!(variable("ZKLOCK_SESSION").starts_with("0x"));
    assert!(variable("ZKLOCK_OWNER").starts_with("eve@"));
    assert!(variable("ZKLOCK_WAITED_MS").parse::<u64>().is_ok());
    assert!(variable("ZKLOCK_STATUS_FD").parse::<i32>().is_ok());
    assert!(variable("ZKLOCK_HELD").ends_with(&path));
}

#[test]
fn several_locks_are_lines_in_the_environment() {
    let (one, two) = (path("one"), path("two"));
    let output =
        zklock(&["run", &one, "--and", &two, "--", "sh", "-c", "echo \"$ZKLOCK_PATH\"; echo \"$ZKLOCK_FENCE\""])
            .output();
    let output = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], [one, two]);
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[2], lines[3], "one transaction has acquired both locks");
}

#[test]
fn the_token_grows() {
    let path = path("token");
    let token = || {
        let output = zklock(&["run", &path, "sh", "-c", "echo $ZKLOCK_FENCE"]).output();
        String::from_utf8(output.stdout).unwrap().trim().parse::<i64>().unwrap()
    };
    assert!(token() < token());
}

#[test]
fn the_same_lock_is_not_acquired_twice_in_one_tree() {
    let path = path("nested");
    let program = env!("CARGO_BIN_EXE_zklock");
    let (nested, errors) = code(&["run", &path, program, "run", &path, "true"]);
    assert_eq!(nested, 64);
    assert!(errors.contains(&format!("{path} is already held by a zklock above this command")), "{errors}");
    assert_eq!(code(&["run", &path, program, "run", &format!("{path}-2"), "true"]).0, 0);
}

#[test]
fn arguments_and_standard_input_reach_the_command_unchanged() {
    let mut call =
        zklock(&["run", &path("input"), "--", "sh", "-c", "printf '%s|' \"$@\"; cat", "sh", "a b", "*", "--", "$HOME"]);
    call.command().stdin(Stdio::piped());
    let mut child = call.command().spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"input").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "a b|*|--|$HOME|input");
}

#[test]
fn long_paths_are_complete_in_the_environment_or_refused() {
    let long = format!("{}/{}", path("long"), "x".repeat(60_000));
    let output = zklock(&["run", &long, "sh", "-c", "echo \"$ZKLOCK_PATH\" && echo \"$ZKLOCK_HELD\""]).output();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(lines.lines().count() == 2 && lines.lines().all(|line| line.ends_with(&long)));
    let paths: Vec<String> = (0..1500).map(|number| path(&number.to_string())).collect();
    let others: Vec<&str> = paths.iter().flat_map(|path| ["--and", path.as_str()]).collect();
    let (code, errors) = code(&[&["run"], &others[..], &[&long, "--", "true"]].concat());
    assert_eq!(code, 64, "{errors}");
    assert!(errors.contains("the variable ZKLOCK_NODE of the command would have"), "{errors}");
}

#[test]
fn the_command_gets_no_secrets() {
    let server = ZooKeeper::options().sasl_users(&[("bob", "hunter3")]).start();
    let call =
        zklock_on(&server.address(), &["run", &path("secrets"), "env"]).env("ZKLOCK_AUTH_DIGEST", "user:hunter2");
    let call = call.env("ZKLOCK_SASL_MECHANISM", "digest-md5").env("ZKLOCK_SASL_USER", "bob");
    let call = call.env("ZKLOCK_SASL_PASSWORD", "hunter3");
    let output = call.env("ZKLOCK_LEASE_MARGIN", "1s").output();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("ZKLOCK_SERVERS="), "{text}");
    assert!(text.contains("ZKLOCK_LEASE_MARGIN=1s"), "{text}");
    assert!(text.contains("ZKLOCK_SASL_USER=bob"), "{text}");
    for secret in ["hunter", "ZKLOCK_AUTH_DIGEST", "ZKLOCK_SASL_PASSWORD"] {
        assert!(!text.contains(secret), "{text}");
    }
}
