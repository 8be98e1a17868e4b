//! zklock.hpp: the programs of tests/cpp on real servers and on the standalone one, as they are, under valgrind and with gcc's sanitizers; and the header
//! itself, with every compiler and in every C++.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use library::Under::{self, Plain, Sanitizers, Valgrind};
use library::{Leaks, STRICTER, compile, include, output, root, scratch};
use zklock_rig::ZooKeeper;

const COMPILERS: [&str; 2] = ["g++", "clang++"];
/// The last is C++23, as far as both compilers know it.
const STANDARDS: [&str; 3] = ["-std=c++17", "-std=c++20", "-std=c++2b"];

#[test]
fn locks() {
    run(Plain, "g++", "-std=c++17", "locks", Leaks::AreErrors);
}

#[test]
fn locks_of_clang() {
    run(Plain, "clang++", "-std=c++20", "locks", Leaks::AreErrors);
}

#[test]
fn locks_under_valgrind() {
    run(Valgrind, "g++", "-std=c++17", "locks", Leaks::AreErrors);
}

#[test]
fn locks_with_sanitizers() {
    run(Sanitizers, "g++", "-std=c++17", "locks", Leaks::AreErrors);
}

#[test]
fn faults() {
    run(Plain, "g++", "-std=c++17", "faults", Leaks::AreNatural);
}

#[test]
fn faults_under_valgrind() {
    run(Valgrind, "g++", "-std=c++17", "faults", Leaks::AreNatural);
}

#[test]
fn faults_with_sanitizers() {
    run(Sanitizers, "g++", "-std=c++17", "faults", Leaks::AreNatural);
}

#[test]
fn stop() {
    run(Plain, "g++", "-std=c++20", "stop", Leaks::AreErrors);
}

#[test]
fn stop_of_clang() {
    run(Plain, "clang++", "-std=c++20", "stop", Leaks::AreErrors);
}

#[test]
fn stop_under_valgrind() {
    run(Valgrind, "g++", "-std=c++20", "stop", Leaks::AreErrors);
}

#[test]
fn stop_with_sanitizers() {
    run(Sanitizers, "g++", "-std=c++20", "stop", Leaks::AreErrors);
}

#[test]
fn every_compiler_takes_it_in_every_standard() {
    let checks = COMPILERS.iter().flat_map(|compiler| STANDARDS.map(|standard| (*compiler, standard)));
    let checks: Vec<_> = checks
        .map(|(compiler, standard)| {
            std::thread::spawn(move || {
                succeeded(&look(compiler, &[standard], &source("locks.cpp")));
            })
        })
        .collect();
    for check in checks {
        check.join().unwrap();
    }
    // C++20's part is run as that.
    for compiler in COMPILERS {
        succeeded(&look(compiler, &[STANDARDS[2]], &source("stop.cpp")));
    }
}

#[test]
fn it_does_without_types_at_run_time_but_not_without_exceptions() {
    let alone = write("alone.cpp", "#include <zklock.hpp>\nint main() { return zkl::version()[0] == '\\0'; }\n");
    for compiler in COMPILERS {
        succeeded(&look(compiler, &["-std=c++17", "-fno-rtti", "-fvisibility=hidden"], &alone));
        let refused = look(compiler, &["-std=c++17", "-fno-exceptions"], &alone);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("use zklock.h"), "{refused:?}");
        let refused = look(compiler, &["-std=c++14"], &alone);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("needs C++17"), "{refused:?}");
    }
}

/// Units of different standards share their objects: what they are made of is the same in each.
#[test]
fn two_units_of_two_standards_are_one_program() {
    let one = write(
        "one.cpp",
        "#include <zklock.hpp>
void work(zkl::client &client, zkl::mutex &mutex, zkl::semaphore &semaphore);
int main(int, char **argv) {
    zkl::client client(argv[1]);
    zkl::mutex mutex(client, \"/cpp/units\");
    zkl::semaphore semaphore(client, \"/cpp/units-leases\", 1);
    mutex.on_lost([] {});
    client.on_event([] {});
    work(client, mutex, semaphore);
    try {
        mutex.fencing_token();
        return 1;
    } catch (const zkl::error &error) {
        return error.code() == zkl::status::not_owner ? 0 : 1;
    }
}
",
    );
    let two = write(
        "two.cpp",
        "#include <mutex>
#include <zklock.hpp>
void work(zkl::client &client, zkl::mutex &mutex, zkl::semaphore &semaphore);
void work(zkl::client &client, zkl::mutex &mutex, zkl::semaphore &semaphore) {
    std::lock_guard guard(mutex);
    zkl::leases lease = semaphore.acquire();
    const auto token = mutex.lost_token();
    lease.on_lost([] {});
    if (token.stop_requested() || lease.lost_token().stop_requested() || client.state() != zkl::state::connected) throw 1;
}
",
    );
    for compiler in COMPILERS {
        let object = |source: &Path, standard: &str| {
            let object = source.with_extension(format!("{compiler}.o"));
            let mut command = strict(compiler, &[standard, "-c"]);
            output(command.arg(source).arg("-o").arg(&object));
            object
        };
        let objects = [object(&one, "-std=c++17"), object(&two, "-std=c++20")];
        let program = compile(compiler, &[], &objects, &format!("units-{compiler}"));
        output(Command::new(program).arg(ZooKeeper::shared().address()));
    }
}

#[test]
fn the_tour_of_the_readme_runs() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```cpp\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    assert!(program.contains("\"localhost:2181\""));
    let source = write("readme.cpp", &program.replace("localhost:2181", &ZooKeeper::shared().address()));
    let program = compile("g++", &["-std=c++17"], &[source], "readme-cpp");
    let printed = output(&mut Command::new(program));
    assert!(printed.starts_with("mine; the store may refuse anything older than "), "{printed}");
}

#[test]
fn every_function_of_c_is_reached_from_cpp() {
    let (c, cpp) = (read("zklock.h"), read("zklock.hpp"));
    // In code, not in a comment.
    let code: String = cpp.lines().filter(|line| !line.trim_start().starts_with(['*', '/'])).collect();
    let words: BTreeSet<&str> = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let functions: Vec<&str> = library::functions(&c).map(library::name).collect();
    assert!(functions.len() > 60, "{functions:?}");
    for function in functions {
        assert!(words.contains(function), "zklock.hpp has nothing for {function}");
    }
    let constants = c.lines().filter_map(|line| line.strip_prefix("#define ")?.split(' ').next());
    for constant in constants.filter(|name| name.starts_with("ZKL_") && !name.starts_with("ZKL_VERSION")) {
        assert!(words.contains(constant), "zklock.hpp has nothing for {constant}");
    }
}

#[test]
fn it_leaves_one_macro() {
    let includes: String = read("zklock.hpp")
        .lines()
        .filter(|line| line.starts_with("#include"))
        .fold(String::new(), |lines, line| lines + line + "\n");
    let macros = |text: &str| -> BTreeSet<String> {
        let file = write("macros.cpp", text);
        let defined = output(Command::new("g++").args(["-std=c++20", "-dM", "-E", "-I"]).arg(include()).arg(file));
        defined.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect()
    };
    let with = macros(&format!("{includes}#include <zklock.hpp>\n"));
    let left: Vec<_> = with.difference(&macros(&includes)).cloned().collect();
    assert_eq!(left, ["ZKLOCK_HPP"]);
}

/// Runs a program of tests/cpp on a real server. (Some start one of their own as well.)
fn run(under: Under, compiler: &str, standard: &str, name: &str, leaks: Leaks) {
    let program = under.compile_at(compiler, standard, &source(&format!("{name}.cpp")), &STRICTER);
    output(under.command(&program, leaks).arg(ZooKeeper::shared().address()));
}

/// Has a compiler look at a source, and make nothing.
fn look(compiler: &str, flags: &[&str], source: &Path) -> Output {
    strict(compiler, flags).arg("-fsyntax-only").arg(source).output().unwrap()
}

fn strict(compiler: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(compiler);
    command.args(flags).args(library::STRICT).args(STRICTER).arg("-I").arg(include());
    command
}

fn succeeded(result: &Output) {
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}

fn source(name: &str) -> PathBuf {
    root().join("tests/cpp").join(name)
}

fn write(name: &str, text: &str) -> PathBuf {
    let file = scratch("cpp-header").join(name);
    std::fs::write(&file, text).unwrap();
    file
}

fn read(header: &str) -> String {
    std::fs::read_to_string(include().join(header)).unwrap()
}
