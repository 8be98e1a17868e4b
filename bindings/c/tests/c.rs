//! Runs the programs of tests/programs/c with libzklock.so on a real ZooKeeper server: without tools, under valgrind,
//! and with gcc's sanitizers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;
mod table;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use library::Under::{self, Plain, Sanitizers, Valgrind};
use library::{Leaks, compile};
use table::{Program, Row, row};
use zklock_test_support::{TEST_TIMEOUT, ZooKeeper, assert_not_late, wait_until};

fn main() -> ExitCode {
    let programs = [
        // The slow programs come first, so that they do not run alone at the end.
        c("clock"),
        Program { leaks: Leaks::AreNatural, variants: &[Plain, Sanitizers], ..c("descriptors") },
        c("wait_lost"),
        c("paused_process"),
        c("poll_events"),
        c("listener"),
        c("events"),
        c("misuse"),
        c("op"),
        c("start"),
        Program { options: &["-lzookeeper_mt"], ..c("operators") },
        Program { options: &["-lzookeeper_mt"], ..c("acl") },
        Program { leaks: Leaks::AreNatural, ..c("fork") },
        c("mutex"),
        c("rwlock"),
        c("semaphore_mutex"),
        c("semaphore"),
        c("hold"),
        c("multi"),
        c("revoke"),
        c("handover"),
        c("fence"),
        c("once"),
        c("waiting"),
        Program { leaks: Leaks::AreNatural, ..c("credentials") },
        c("metrics"),
        c("log"),
        c("threads"),
    ];
    let exit = "process_exit_has_the_expected_code_while_clients_live";
    let others = [
        row(exit, &[Plain, Sanitizers], |under| end(under, "-std=c++17", &ENDS)),
        row("process_exit_has_the_expected_code_in_cpp20", &[Plain], |under| end(under, "-std=c++20", &ENDS)),
        row(exit, &[Valgrind], |under| {
            let some = ["exit-in-callback", "destructor", "pthread_cancel"];
            let some: Vec<_> = ENDS.into_iter().filter(|(how, _)| some.contains(how)).collect();
            end(under, "-std=c++17", &some);
        }),
        row("the_library_is_loaded_and_unloaded", &[Plain, Valgrind], load),
        row("a_constructor_cannot_create_the_first_client", &[Plain], construct),
        row("cycles", &[Valgrind], |under| drop(cycle(under, ZooKeeper::shared(), 2, 10))),
        row("cycles", &[Sanitizers], |under| drop(cycle(under, ZooKeeper::shared(), 2, 20))),
    ];
    let functions = table::functions![
        processes_that_cycle_exclude_each_other_and_leak_nothing,
        every_function_that_takes_a_handle_is_tried_in_a_forked_child,
        the_header_compiles_in_two_units_of_a_cpp_program,
        the_header_compiles_alone_in_every_c,
        unused_acquire_result_is_a_warning_of_gcc,
    ];
    let for_verify = table::for_verify(table::functions![
        every_header_compiles_in_every_c_and_cpp_of_gcc_and_clang,
        unused_acquire_result_is_a_warning_of_clang,
    ]);
    table::run(programs.map(Row::from).into_iter().chain(others).chain(functions).chain(for_verify))
}

/// A program of tests/programs/c.
fn c(name: &'static str) -> Program {
    Program {
        name,
        source: library::root().join("tests/programs/c").join(name).with_extension("c"),
        compiler: "gcc",
        standard: "-std=c11",
        options: &[],
        leaks: Leaks::AreErrors,
        variants: table::ALL,
    }
}

fn every_function_that_takes_a_handle_is_tried_in_a_forked_child() {
    let program = std::fs::read_to_string(library::root().join("tests/programs/c/fork.c")).unwrap();
    let program = program.split_whitespace().collect::<Vec<_>>().join(" ");
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
        // Functions that return no status are tested in another way.
        let has_a_status = !function.ends_with("_free")
            && !["zkl_client_free_nowait", "zkl_client_session_id", "zkl_op_message"].contains(&function);
        let tried = match has_a_status {
            _ if function.contains("_is_") => format!("EXPECT_NOT_SAFE({function}("),
            true => format!("EXPECT(ZKL_E_FORKED, {function}("),
            false => format!("{function}("),
        };
        assert!(program.contains(&tried), "tests/programs/c/fork.c does not try {function} in a child");
    }
}

/// The ways in which a program can end and its expected result: an exit code, or a signal as a negative number.
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
    // The result is the number of descriptors that the program started with.
    ("exec", 3),
];

/// Runs tests/programs/c/process_exit.cpp in each of these ways.
fn end(under: Under, standard: &str, ends: &[(&str, i32)]) {
    let program = under.compile_as("g++", standard, "process_exit.cpp", &[]);
    let server = ZooKeeper::shared();
    let open = Command::new(&program).args(["x", "descriptors"]).output().unwrap().status.code().unwrap();
    for &(how, expected) in ends {
        let expected = if how == "exec" { open } else { expected };
        let started = Instant::now();
        let result = under.command(&program, Leaks::AreNatural).args([&server.address(), how]).output().unwrap();
        let said = result.status.code().unwrap_or_else(|| -result.status.signal().unwrap());
        assert_eq!(said, expected, "{how}: {}", String::from_utf8_lossy(&result.stderr));
        // The end of the program must not wait for the session, whose timeout is 60 s.
        assert_not_late(started.elapsed(), Duration::from_secs(if matches!(under, Plain) { 4 } else { 29 }));
    }
}

/// Runs a program that is not linked with the library. It loads the library, uses it, and unloads it.
fn load(under: Under) {
    let program = under.compile("dlopen");
    let library = library::directory().join("libzklock.so");
    // The program forks.
    library::output(under.command(&program, Leaks::AreNatural).arg(ZooKeeper::shared().address()).arg(library));
}

/// Runs a program that opens a library whose constructor creates a client.
fn construct(under: Under) {
    let source = library::root().join("tests/programs/c/constructor.c");
    let plugin = compile("gcc", &["-std=c11", "-DPLUGIN", "-shared", "-fPIC"], &[source], "constructor.so");
    let program = under.compile_with("constructor", &["-ldl"]);
    for how in ["alone", "literal", "name"] {
        let mut command = under.command(&program, Leaks::AreErrors);
        library::output(command.arg(ZooKeeper::shared().address()).arg(&plugin).arg(how));
    }
}

fn processes_that_cycle_exclude_each_other_and_leak_nothing() {
    let server = ZooKeeper::start();
    let growths = cycle(Plain, &server, 4, 640);
    // The threads of the second client take about 80 KiB, however many cycles follow. A leak of 410 bytes in each cycle is found.
    assert!(growths.iter().all(|&bytes| bytes < 1 << 18), "the memory grew by {growths:?} bytes");
    wait_until(TEST_TIMEOUT, || server.connection_count() == 0 && server.watch_count() == 0);
}

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

fn the_header_compiles_alone_in_every_c() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header.c");
    std::fs::write(&file, "#include <zklock.h>\nint main(void) { return zkl_version()[0] == '\\0'; }\n").unwrap();
    for standard in ["-ansi", "-std=c89", "-std=c99", "-std=c11", "-std=c17", "-std=gnu99"] {
        let program = compile("gcc", &[standard], std::slice::from_ref(&file), &format!("header{standard}"));
        library::output(&mut Command::new(program));
    }
    for standard in ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"] {
        let flags = ["-x", "c++", standard];
        let program = compile("g++", &flags, std::slice::from_ref(&file), &format!("header{standard}-alone"));
        library::output(&mut Command::new(program));
    }
}

/// Without extensions, because programs in C89 include the headers too.
fn every_header_compiles_in_every_c_and_cpp_of_gcc_and_clang() {
    let mut count = 0;
    for header in std::fs::read_dir(library::include()).unwrap() {
        let header = header.unwrap().file_name().into_string().unwrap();
        if !header.ends_with(".h") {
            continue;
        }
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("only-{header}.c"));
        // Only the flat header includes no other header.
        let types = if header == "zklock_ffi.h" { "#include <stddef.h>\n#include <stdint.h>\n" } else { "" };
        std::fs::write(&file, format!("{types}#include <{header}>\nint main(void) {{ return 0; }}\n")).unwrap();
        let c = ["-ansi", "-std=c89", "-std=c99", "-std=c11", "-std=c17"].map(|standard| ("c", standard));
        let cpp = ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"].map(|standard| ("c++", standard));
        for compiler in ["gcc", "clang"] {
            for (language, standard) in c.into_iter().chain(cpp) {
                let flags = [standard, "-pedantic", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"];
                let mut command = Command::new(compiler);
                library::output(
                    command.args(["-x", language]).args(flags).arg("-I").arg(library::include()).arg(&file),
                );
                count += 1;
            }
        }
    }
    assert_eq!(count, 54, "not all headers were compiled");
}

fn unused_acquire_result_is_a_warning_of_gcc() {
    unused_acquire_result_is_a_warning(&[
        ("gcc", "c", "-ansi"),
        ("gcc", "c", "-std=c2x"),
        ("g++", "c++", "-std=c++11"),
        ("g++", "c++", "-std=c++17"),
    ]);
}

fn unused_acquire_result_is_a_warning_of_clang() {
    unused_acquire_result_is_a_warning(&[
        ("clang", "c", "-ansi"),
        ("clang", "c", "-std=c2x"),
        ("clang++", "c++", "-std=c++20"),
    ]);
}

/// An ignored result of an acquire is a warning. For a release, or if the program disables the warning, it is not.
fn unused_acquire_result_is_a_warning(compilers: &[(&str, &str, &str)]) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dropped-{}.c", compilers[0].0));
    let text = "#include <zklock.h>\nvoid drop(zkl_lock *lock);\nvoid drop(zkl_lock *lock) { zkl_acquire(lock); zkl_release(lock); }\n";
    std::fs::write(&file, text).unwrap();
    for &(compiler, language, standard) in compilers {
        let compile = |more: &[&str]| {
            // gcc reports this warning only when it generates code.
            let flags =
                ["-x", language, standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-c", "-o", "/dev/null", "-I"];
            Command::new(compiler).args(flags).arg(library::include()).args(more).arg(&file).output().unwrap()
        };
        let refused = compile(&[]);
        let says = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{compiler} {standard}: {says}");
        assert!(
            says.contains("zkl_acquire") && says.contains("unused-result") && !says.contains("zkl_release(lock)\n"),
            "{says}"
        );
        let allowed = compile(&["-DZKL_NODISCARD="]);
        assert!(allowed.status.success(), "{compiler} {standard}: {}", String::from_utf8_lossy(&allowed.stderr));
    }
}

/// Several processes acquire and release a lock, twice `count` times each. Returns the memory growth of each process in
/// the second half, in bytes.
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
