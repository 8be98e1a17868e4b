//! The programs of tests/c and the examples against libzklock.so and a real ZooKeeper server: as they are, under valgrind,
//! and with gcc's sanitizers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
fn handover() {
    run(Plain, "handover", Leaks::AreErrors);
}

#[test]
fn handover_under_valgrind() {
    run(Valgrind, "handover", Leaks::AreErrors);
}

#[test]
fn handover_with_sanitizers() {
    run(Sanitizers, "handover", Leaks::AreErrors);
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
fn metrics() {
    run(Plain, "metrics", Leaks::AreErrors);
}

#[test]
fn metrics_under_valgrind() {
    run(Valgrind, "metrics", Leaks::AreErrors);
}

#[test]
fn metrics_with_sanitizers() {
    run(Sanitizers, "metrics", Leaks::AreErrors);
}

#[test]
fn log() {
    run(Plain, "log", Leaks::AreErrors);
}

#[test]
fn log_under_valgrind() {
    run(Valgrind, "log", Leaks::AreErrors);
}

#[test]
fn log_with_sanitizers() {
    run(Sanitizers, "log", Leaks::AreErrors);
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
fn descriptors() {
    run(Plain, "descriptors", Leaks::AreNatural);
}

#[test]
fn descriptors_with_sanitizers() {
    run(Sanitizers, "descriptors", Leaks::AreNatural);
}

#[test]
fn every_function_that_takes_a_handle_is_tried_in_a_forked_child() {
    let program = std::fs::read_to_string(library::root().join("tests/c/fork.c")).unwrap();
    let header = std::fs::read_to_string(library::include().join("zklock.h")).unwrap();
    let takes_a_handle = |function: &&str| {
        let (_, parameters) = function.split_once('(').unwrap();
        parameters.split(',').any(|parameter| {
            let parameter = parameter.trim().trim_start_matches("const ");
            parameter.starts_with("zkl_") && parameter.contains('*') && !parameter.contains("_out")
        })
    };
    let functions: Vec<&str> = library::functions(&header).filter(takes_a_handle).map(library::name).collect();
    assert!(functions.len() > 40, "{functions:?}");
    for function in functions {
        // What has no status to give is tried in another way.
        let has_a_status = !function.ends_with("_free") && function != "zkl_client_session_id";
        let tried = if has_a_status { format!("EXPECT(ZKL_E_FORKED, {function}(") } else { format!("{function}(") };
        assert!(program.contains(&tried), "tests/c/fork.c does not try {function} in a child");
    }
}

#[test]
fn threads() {
    run(Plain, "threads", Leaks::AreErrors);
}

#[test]
fn threads_under_valgrind() {
    run(Valgrind, "threads", Leaks::AreErrors);
}

#[test]
fn threads_with_sanitizers() {
    run(Sanitizers, "threads", Leaks::AreErrors);
}

#[test]
fn the_library_is_loaded_and_unloaded() {
    load(Plain);
}

#[test]
fn the_library_is_loaded_and_unloaded_under_valgrind() {
    load(Valgrind);
}

/// How programs end, and what they say then: an exit code, or a signal as a negative number.
const ENDS: [(&str, i32); 19] = [
    ("return", 0),
    ("exit", 3),
    ("exit-in-callback", 4),
    ("exit-in-thread", 5),
    ("atexit", 6),
    ("destructor", 7),
    ("_exit", 8),
    ("quick_exit", 9),
    ("popen", 10),
    ("pthread_exit", 0),
    ("pthread_cancel", 11),
    ("holder-ends", 12),
    ("thread_local", 13),
    ("atexit-in-callback", 14),
    ("abort", -libc::SIGABRT),
    ("terminate", -libc::SIGABRT),
    ("throw", -libc::SIGABRT),
    ("throw-in-thread", -libc::SIGABRT),
    // As many descriptors as it was started with.
    ("exec", 3),
];

#[test]
fn programs_end_as_they_want_to() {
    for standard in ["-std=c++17", "-std=c++20"] {
        end(Plain, standard, &ENDS);
    }
}

#[test]
fn programs_end_as_they_want_to_under_valgrind() {
    let some = ["exit-in-callback", "destructor", "pthread_cancel"];
    let some: Vec<_> = ENDS.into_iter().filter(|(how, _)| some.contains(how)).collect();
    end(Valgrind, "-std=c++17", &some);
}

#[test]
fn programs_end_as_they_want_to_with_sanitizers() {
    end(Sanitizers, "-std=c++17", &ENDS);
}

/// Runs tests/c/ends.cpp in each way.
fn end(under: Under, standard: &str, ends: &[(&str, i32)]) {
    let program = under.compile_as("g++", standard, "ends.cpp", &[]);
    let server = ZooKeeper::shared();
    let open = Command::new(&program).args(["x", "descriptors"]).output().unwrap().status.code().unwrap();
    for &(how, expected) in ends {
        let expected = if how == "exec" { open } else { expected };
        let started = Instant::now();
        let result = under.command(&program, Leaks::AreNatural).args([&server.address(), how]).output().unwrap();
        let said = result.status.code().unwrap_or_else(|| -result.status.signal().unwrap());
        assert_eq!(said, expected, "{how}: {}", String::from_utf8_lossy(&result.stderr));
        // Nobody waits for a session that nobody ends.
        assert!(started.elapsed() < Duration::from_secs(if matches!(under, Plain) { 5 } else { 30 }), "{how}");
    }
}

/// A program that is not linked with the library loads it, uses it, and unloads it.
fn load(under: Under) {
    let program = under.compile("dlopen");
    let library = library::directory().join("libzklock.so");
    // It forks.
    library::output(under.command(&program, Leaks::AreNatural).arg(ZooKeeper::shared().address()).arg(library));
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

/// Without an extension: programs in C89 include the headers, too.
#[test]
fn every_header_compiles_in_every_c_of_gcc_and_clang() {
    let mut count = 0;
    for header in std::fs::read_dir(library::include()).unwrap() {
        let header = header.unwrap().file_name().into_string().unwrap();
        if !header.ends_with(".h") {
            continue;
        }
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("only-{header}.c"));
        std::fs::write(&file, format!("#include <{header}>\nint main(void) {{ return 0; }}\n")).unwrap();
        for compiler in ["gcc", "clang"] {
            for standard in ["-ansi", "-std=c89", "-std=c99", "-std=c11", "-std=c17"] {
                let flags = [standard, "-pedantic", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
                library::output(Command::new(compiler).args(flags).arg("-I").arg(library::include()).arg(&file));
                count += 1;
            }
        }
    }
    assert_eq!(count, 20, "not all headers were compiled");
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
