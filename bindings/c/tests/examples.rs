//! The programs of bindings/c/examples: each is compiled as strictly as the library's own tests, and run on a real ZooKeeper server. (Those that
//! write to a store are in fencing.rs.)

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;

use std::path::{Path, PathBuf};
use std::process::Command;

use library::{STRICTER, compile};
use zklock_rig::ZooKeeper;

#[test]
fn processes_take_turns() {
    let program = compile("gcc", &["-std=c99"], &[example("mutex.c")], "example-mutex");
    take_turns(&program, "/locks/example");
}

#[test]
fn processes_take_turns_in_cpp() {
    let program =
        compile("g++", &["-std=c++17", STRICTER[0], STRICTER[1]], &[example("mutex.cpp")], "example-mutex-cpp");
    take_turns(&program, "/locks/example-cpp");
}

#[test]
fn tasks_of_event_loops_take_turns() {
    let program = compile("gcc", &["-std=c99"], &[example("loop.c")], "example-loop");
    take_turns(&program, "/locks/loop");
}

/// Two processes of an example, each of which is in three times.
fn take_turns(program: &Path, path: &str) {
    let address = ZooKeeper::shared().address();
    let children = ["alice", "bob"].map(|name| {
        let mut command = Command::new(program);
        command.args([&address, path, name, "3"]);
        std::thread::spawn(move || library::output(&mut command))
    });
    let printed = children.map(|child| child.join().unwrap()).concat();

    // By time, holds do not overlap and their tokens grow.
    let mut lines: Vec<(i64, i64, &str)> = printed.lines().map(parse).collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 12, "{printed}");
    let mut last_token = 0;
    for [acquired, released] in lines.as_chunks().0 {
        assert_eq!((acquired.2, released.2), ("acquired", "released"), "{printed}");
        assert_eq!(acquired.1, released.1, "{printed}");
        assert!(acquired.1 > last_token, "{printed}");
        last_token = acquired.1;
    }
}

/// Time, token and what happened.
fn parse(line: &str) -> (i64, i64, &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let &[_name, what, "TOKEN", token, time] = &words[..] else { panic!("unexpected line: {line}") };
    (time.parse().unwrap(), token.parse().unwrap(), what)
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}
