//! The programs of tests/c and the example against libzklock.so and a real ZooKeeper server: as they are, under valgrind,
//! and with gcc's sanitizers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use zklock_rig::{ZooKeeper, wait_until};

const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-g"];

#[test]
fn mutex() {
    Plain.run("mutex");
}

#[test]
fn mutex_under_valgrind() {
    Valgrind.run("mutex");
}

#[test]
fn mutex_with_sanitizers() {
    Sanitizers.run("mutex");
}

#[test]
fn misuse() {
    Plain.run("misuse");
}

#[test]
fn misuse_under_valgrind() {
    Valgrind.run("misuse");
}

#[test]
fn misuse_with_sanitizers() {
    Sanitizers.run("misuse");
}

#[test]
fn events() {
    Plain.run("events");
}

#[test]
fn events_under_valgrind() {
    Valgrind.run("events");
}

#[test]
fn events_with_sanitizers() {
    Sanitizers.run("events");
}

#[test]
fn fork() {
    Plain.run("fork");
}

#[test]
fn fork_under_valgrind() {
    Valgrind.run("fork");
}

#[test]
fn fork_with_sanitizers() {
    Sanitizers.run("fork");
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mutex.c");
    let program = compile("gcc", &["-std=c99"], &[source], "example-mutex");
    let address = ZooKeeper::shared().address();
    let children = ["alice", "bob"].map(|name| {
        let mut command = Command::new(&program);
        command.args([&address, "/locks/example", name, "3"]);
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

/// What a program runs under.
#[derive(Clone, Copy)]
enum Under {
    Plain,
    Valgrind,
    Sanitizers,
}

use Under::{Plain, Sanitizers, Valgrind};

impl Under {
    /// Runs a program of tests/c.
    fn run(self, name: &str) {
        // A forked child has none of its parent's threads, so what these had on their stacks is nobody's.
        let leaks = if name == "fork" { Leaks::AreNatural } else { Leaks::AreErrors };
        library::output(self.command(&self.compile(name), leaks).arg(ZooKeeper::shared().address()));
    }

    fn compile(self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c").join(format!("{name}.c"));
        let flags: &[&str] = match self {
            Plain | Valgrind => &["-std=c11"],
            Sanitizers => &["-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        };
        compile("gcc", flags, &[source], &format!("{name}-{}", self.name()))
    }

    fn command(self, program: &Path, leaks: Leaks) -> Command {
        let mut command = match self {
            Plain | Sanitizers => Command::new(program),
            Valgrind => {
                let mut command = Command::new("valgrind");
                command.args(["--quiet", "--error-exitcode=9", "--errors-for-leak-kinds=definite"]);
                let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/c/valgrind.supp");
                command.arg(format!("--suppressions={}", suppressions.display()));
                command.arg(match leaks {
                    Leaks::AreErrors => "--leak-check=full",
                    Leaks::AreNatural => "--leak-check=no",
                });
                command.arg(program);
                command
            }
        };
        if leaks == Leaks::AreNatural {
            command.env("ASAN_OPTIONS", "detect_leaks=0");
        }
        command.env("SLACK_MS", if matches!(self, Plain) { "1000" } else { "5000" });
        command
    }

    const fn name(self) -> &'static str {
        match self {
            Plain => "plain",
            Valgrind => "valgrind",
            Sanitizers => "sanitizers",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaks {
    AreErrors,
    AreNatural,
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

/// Compiles and links sources against the header and the library, without a warning.
fn compile(compiler: &str, flags: &[&str], sources: &[PathBuf], name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let library = library::directory();
    library::output(
        Command::new(compiler)
            .args(flags)
            .args(STRICT)
            .arg("-I")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"))
            .args(sources)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(library)
            .args(["-lzklock", "-lpthread"])
            .arg(format!("-Wl,-rpath,{}", library.display())),
    );
    program
}
