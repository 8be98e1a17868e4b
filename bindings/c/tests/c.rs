//! The programs of tests/c and the examples against libzklock.so and a real ZooKeeper server: as they are, under valgrind,
//! and with gcc's sanitizers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use library::Under::{self, Plain, Sanitizers, Valgrind};
use library::{Leaks, compile};
use zklock_rig::{ZooKeeper, wait_until};

#[test]
fn mutex() {
    run(Plain, "mutex", Leaks::AreErrors);
}

#[test]
fn mutex_under_valgrind() {
    run(Valgrind, "mutex", Leaks::AreErrors);
}

#[test]
fn mutex_with_sanitizers() {
    run(Sanitizers, "mutex", Leaks::AreErrors);
}

#[test]
fn rwlock() {
    run(Plain, "rwlock", Leaks::AreErrors);
}

#[test]
fn rwlock_under_valgrind() {
    run(Valgrind, "rwlock", Leaks::AreErrors);
}

#[test]
fn rwlock_with_sanitizers() {
    run(Sanitizers, "rwlock", Leaks::AreErrors);
}

#[test]
fn semaphore_mutex() {
    run(Plain, "semaphore_mutex", Leaks::AreErrors);
}

#[test]
fn semaphore_mutex_under_valgrind() {
    run(Valgrind, "semaphore_mutex", Leaks::AreErrors);
}

#[test]
fn semaphore_mutex_with_sanitizers() {
    run(Sanitizers, "semaphore_mutex", Leaks::AreErrors);
}

#[test]
fn semaphore() {
    run(Plain, "semaphore", Leaks::AreErrors);
}

#[test]
fn semaphore_under_valgrind() {
    run(Valgrind, "semaphore", Leaks::AreErrors);
}

#[test]
fn semaphore_with_sanitizers() {
    run(Sanitizers, "semaphore", Leaks::AreErrors);
}

#[test]
fn multi() {
    run(Plain, "multi", Leaks::AreErrors);
}

#[test]
fn multi_under_valgrind() {
    run(Valgrind, "multi", Leaks::AreErrors);
}

#[test]
fn multi_with_sanitizers() {
    run(Sanitizers, "multi", Leaks::AreErrors);
}

#[test]
fn op() {
    run(Plain, "op", Leaks::AreErrors);
}

#[test]
fn op_under_valgrind() {
    run(Valgrind, "op", Leaks::AreErrors);
}

#[test]
fn op_with_sanitizers() {
    run(Sanitizers, "op", Leaks::AreErrors);
}

#[test]
fn revoke() {
    run(Plain, "revoke", Leaks::AreErrors);
}

#[test]
fn revoke_under_valgrind() {
    run(Valgrind, "revoke", Leaks::AreErrors);
}

#[test]
fn revoke_with_sanitizers() {
    run(Sanitizers, "revoke", Leaks::AreErrors);
}

#[test]
fn fence() {
    run(Plain, "fence", Leaks::AreErrors);
}

#[test]
fn fence_under_valgrind() {
    run(Valgrind, "fence", Leaks::AreErrors);
}

#[test]
fn fence_with_sanitizers() {
    run(Sanitizers, "fence", Leaks::AreErrors);
}

#[test]
fn waiting() {
    run(Plain, "waiting", Leaks::AreErrors);
}

#[test]
fn waiting_under_valgrind() {
    run(Valgrind, "waiting", Leaks::AreErrors);
}

#[test]
fn waiting_with_sanitizers() {
    run(Sanitizers, "waiting", Leaks::AreErrors);
}

#[test]
fn operators() {
    run_operators(Plain);
}

#[test]
fn operators_under_valgrind() {
    run_operators(Valgrind);
}

#[test]
fn operators_with_sanitizers() {
    run_operators(Sanitizers);
}

#[test]
fn misuse() {
    run(Plain, "misuse", Leaks::AreErrors);
}

#[test]
fn misuse_under_valgrind() {
    run(Valgrind, "misuse", Leaks::AreErrors);
}

#[test]
fn misuse_with_sanitizers() {
    run(Sanitizers, "misuse", Leaks::AreErrors);
}

#[test]
fn events() {
    run(Plain, "events", Leaks::AreErrors);
}

#[test]
fn events_under_valgrind() {
    run(Valgrind, "events", Leaks::AreErrors);
}

#[test]
fn events_with_sanitizers() {
    run(Sanitizers, "events", Leaks::AreErrors);
}

#[test]
fn poll_events() {
    run(Plain, "poll_events", Leaks::AreErrors);
}

#[test]
fn poll_events_under_valgrind() {
    run(Valgrind, "poll_events", Leaks::AreErrors);
}

#[test]
fn poll_events_with_sanitizers() {
    run(Sanitizers, "poll_events", Leaks::AreErrors);
}

#[test]
fn clock() {
    run(Plain, "clock", Leaks::AreErrors);
}

#[test]
fn clock_under_valgrind() {
    run(Valgrind, "clock", Leaks::AreErrors);
}

#[test]
fn clock_with_sanitizers() {
    run(Sanitizers, "clock", Leaks::AreErrors);
}

#[test]
fn stopped() {
    run(Plain, "stopped", Leaks::AreErrors);
}

#[test]
fn stopped_under_valgrind() {
    run(Valgrind, "stopped", Leaks::AreErrors);
}

#[test]
fn stopped_with_sanitizers() {
    run(Sanitizers, "stopped", Leaks::AreErrors);
}

#[test]
fn fork() {
    run(Plain, "fork", Leaks::AreNatural);
}

#[test]
fn fork_under_valgrind() {
    run(Valgrind, "fork", Leaks::AreNatural);
}

#[test]
fn fork_with_sanitizers() {
    run(Sanitizers, "fork", Leaks::AreNatural);
}

#[test]
fn processes_exclude_each_other_and_leak_nothing() {
    let server = ZooKeeper::start();
    let growths = cycle(Plain, &server, 4, 1250);
    assert!(growths.iter().all(|&bytes| bytes < 1 << 19), "they grew by {growths:?} bytes");
    wait_until(Duration::from_secs(10), || server.connection_count() == 0 && server.watch_count() == 0);
}

#[test]
fn cycles_under_valgrind() {
    cycle(Valgrind, ZooKeeper::shared(), 2, 10);
}

#[test]
fn cycles_with_sanitizers() {
    cycle(Sanitizers, ZooKeeper::shared(), 2, 20);
}

#[test]
fn the_example_takes_turns() {
    take_turns("mutex", "/locks/example");
}

#[test]
fn the_example_of_an_event_loop_takes_turns() {
    take_turns("loop", "/locks/loop");
}

/// Two processes of an example, each of which is in three times.
fn take_turns(example: &str, path: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(format!("{example}.c"));
    let program = compile("gcc", &["-std=c99"], &[source], &format!("example-{example}"));
    let address = ZooKeeper::shared().address();
    let children = ["alice", "bob"].map(|name| {
        let mut command = Command::new(&program);
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

#[test]
fn the_tour_of_the_readme_runs() {
    let server = ZooKeeper::shared();
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let (_, rest) = readme.split_once("```c\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    assert!(program.contains("\"localhost:2181\""));
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme.c");
    std::fs::write(&source, program.replace("localhost:2181", &server.address())).unwrap();
    let program = compile("gcc", &["-std=c99"], &[source], "readme");
    let printed = library::output(&mut Command::new(program));
    assert!(printed.starts_with("mine; the store may refuse anything older than "), "{printed}");
}

#[test]
fn the_header_compiles_in_two_units_of_a_cpp_program() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (one, two) = (directory.join("one.cpp"), directory.join("two.cpp"));
    std::fs::write(
        &one,
        "#include <zklock.h>\nconst char *two();\nint main() { return two() == zkl_version() ? 0 : 1; }\n",
    )
    .unwrap();
    std::fs::write(&two, "#include <zklock.h>\nconst char *two() { return zkl_version(); }\n").unwrap();
    for standard in ["-std=c++17", "-std=c++20"] {
        let program = compile("g++", &[standard], &[one.clone(), two.clone()], &format!("header{standard}"));
        library::output(&mut Command::new(program));
    }
}

#[test]
fn the_header_compiles_alone_in_every_c() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header.c");
    std::fs::write(&file, "#include <zklock.h>\nint main(void) { return zkl_version()[0] == '\\0'; }\n").unwrap();
    for standard in ["-std=c99", "-std=c11", "-std=c17", "-std=gnu99"] {
        let program = compile("gcc", &[standard], std::slice::from_ref(&file), &format!("header{standard}"));
        library::output(&mut Command::new(program));
    }
}

/// Runs a program of tests/c on a server.
fn run(under: Under, name: &str, leaks: Leaks) {
    library::output(under.command(&under.compile(name), leaks).arg(ZooKeeper::shared().address()));
}

/// The one that deletes nodes, with ZooKeeper's own C client.
fn run_operators(under: Under) {
    let program = under.compile_with("operators", &["-lzookeeper_mt"]);
    library::output(under.command(&program, Leaks::AreErrors).arg(ZooKeeper::shared().address()));
}

/// Several processes go through the lock, twice `count` times each. By how many bytes each grew the second time.
fn cycle(under: Under, server: &ZooKeeper, processes: i64, count: i64) -> Vec<i64> {
    let program = under.compile("cycles");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cycles-{}.shared", under.name()));
    std::fs::write(&file, [0; 16]).unwrap();
    let address = server.address();
    let children: Vec<_> = (0..processes)
        .map(|_| {
            let mut command = under.command(&program, Leaks::AreErrors);
            command.args([&address, &format!("/cycles/{}", under.name()), &count.to_string()]).arg(&file);
            std::thread::spawn(move || library::output(&mut command))
        })
        .collect();
    let growths = children.into_iter().map(|child| child.join().unwrap().trim().parse().unwrap()).collect();
    let total = i64::from_ne_bytes(std::fs::read(&file).unwrap()[8..].try_into().unwrap());
    assert_eq!(total, processes * count * 2);
    growths
}
