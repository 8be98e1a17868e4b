//! Tests of zklock.hpp. The programs of tests/programs/cpp run on real servers and on the standalone server: without
//! tools, under valgrind, and with gcc's sanitizers. The header itself is compiled with every compiler, in every C++
//! standard, without exceptions, and beside another version of itself.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;
mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use library::Under::{Plain, Sanitizers};
use library::{Leaks, STRICTER, compile, include, output, root, scratch};
use table::{Program, Row, row};
use zklock_test_support::ZooKeeper;

const COMPILERS: [&str; 2] = ["g++", "clang++"];
/// The last one is C++23, as far as both compilers support it.
const STANDARDS: [&str; 3] = ["-std=c++17", "-std=c++20", "-std=c++2b"];

fn main() -> ExitCode {
    let programs = [
        Program { leaks: Leaks::AreNatural, ..cpp("faults", "-std=c++17") },
        cpp("locks", "-std=c++17"),
        Program { variants: &[Plain], ..cpp("codes", "-std=c++17") },
        Program { variants: &[Sanitizers], ..cpp("codes", "-std=c++20") },
        cpp("stop", "-std=c++20"),
        Program { options: &[STRICTER[0], STRICTER[1], "-lzookeeper_mt"], ..cpp("acl", "-std=c++17") },
    ];
    let of_clang = [
        Program { name: "locks_of_clang", compiler: "clang++", variants: &[Plain], ..cpp("locks", "-std=c++20") },
        Program { name: "stop_of_clang", compiler: "clang++", variants: &[Plain], ..cpp("stop", "-std=c++20") },
    ];
    let versions = [
        row("two_versions_are_one_program", &[Plain], |_| two_versions_are_one_program("g++", &["-O0", "-O1", "-O2"])),
        row("two_versions_are_one_program_of_clang", &[Plain], |_| {
            two_versions_are_one_program("clang++", &["-O0", "-O2"]);
        }),
    ];
    let with_every_compiler = table::functions![
        codes_without_exceptions,
        header_compiles_with_every_compiler_and_standard,
        without_exceptions_a_call_without_an_error_code_does_not_compile,
        unused_hold_or_status_is_a_compiler_warning,
        every_standard_has_one_layout,
        header_needs_little_compiler_memory,
        two_units_of_two_standards_are_one_program,
    ];
    let functions = table::functions![
        a_small_program_has_few_symbols,
        the_tour_of_the_readme_runs,
        every_function_of_c_is_reached_from_cpp,
        header_defines_no_macro_but_its_guard,
    ];
    let for_verify = of_clang.map(Row::from).into_iter().chain(versions).chain(with_every_compiler);
    table::run(programs.map(Row::from).into_iter().chain(functions).chain(table::for_verify(for_verify)))
}

/// A program of tests/programs/cpp. (Some programs also start their own server.)
fn cpp(name: &'static str, standard: &'static str) -> Program {
    Program {
        name,
        source: source(&format!("{name}.cpp")),
        compiler: "g++",
        standard,
        options: &STRICTER,
        leaks: Leaks::AreErrors,
        variants: table::ALL,
    }
}

fn codes_without_exceptions() {
    for compiler in COMPILERS {
        let flags = ["-std=c++17", "-fno-exceptions", "-fno-rtti", STRICTER[0], STRICTER[1]];
        let program =
            compile(compiler, &flags, &[source("codes.cpp")], &format!("codes-{compiler}-without-exceptions"));
        output(Command::new(program).arg(ZooKeeper::shared().address()));
    }
}

fn header_compiles_with_every_compiler_and_standard() {
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
    // The functions for C++20 need this standard.
    for compiler in COMPILERS {
        succeeded(&look(compiler, &[STANDARDS[2]], &source("stop.cpp")));
    }
}

fn without_exceptions_a_call_without_an_error_code_does_not_compile() {
    let throws = write("throws.cpp", "#include <zklock.hpp>\nint main() { zkl::config().poll_events(); }\n");
    for compiler in COMPILERS {
        let make = |flag: &str| {
            let flags = ["-std=c++17", "-fno-rtti", "-fvisibility=hidden", "-c", "-o", "/dev/null", flag];
            strict(compiler, &flags).arg(&throws).output().unwrap()
        };
        succeeded(&make("-fexceptions"));
        let refused = make("-fno-exceptions");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("must pass a std::error_code"), "{refused:?}");
        let refused = look(compiler, &["-std=c++14"], &throws);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("needs C++17"), "{refused:?}");
    }
}

fn unused_hold_or_status_is_a_compiler_warning() {
    let dropped = [
        "mutex.release()",
        "mutex.try_lock()",
        "mutex.start()",
        "semaphore.acquire()",
        "semaphore.start()",
        "leases.release()",
    ];
    let parameters = "(zkl::mutex &mutex, zkl::semaphore &semaphore, zkl::hold &leases)";
    let head = format!("#include <zklock.hpp>\nvoid drop{parameters};\nvoid drop{parameters} {{\n");
    let used = "mutex.unlock(); static_cast<void>(semaphore); static_cast<void>(leases);\n";
    let unused: String = dropped.iter().map(|call| format!("{call};\n")).collect();
    let file = write("dropped.cpp", &format!("{head}{used}{unused}}}\n"));
    for compiler in COMPILERS {
        let refused = look(compiler, &["-std=c++17"], &file);
        let says = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{compiler} accepts {unused}");
        for (line, call) in (5..).zip(dropped) {
            let is_refused = |said: &str| said.contains(&format!("dropped.cpp:{line}:")) && said.contains("nodiscard");
            assert!(says.lines().any(is_refused), "{call}: {says}");
        }
        assert!(!says.contains("dropped.cpp:4:"), "{says}");
    }
}

/// Two libraries in one process may have been compiled with two versions of the header, whose classes differ.
fn two_versions_are_one_program(compiler: &str, levels: &[&str]) {
    let directory = scratch(&format!("cpp-versions-{compiler}"));
    let one = read("zklock.hpp");
    // Another version of the header: larger classes and other offsets at each level.
    let mut two = one.replace("namespace v0_1", "namespace v0_2");
    assert_ne!(one, two);
    for grown in [
        "class handle {\n",
        "class target {\n",
        "class listening {\n",
        "class text_buffer {\n",
        "class client {\n",
        "class [[nodiscard]] hold {\n",
        "class lockable {\n",
    ] {
        assert!(two.contains(grown), "{grown}");
        two = two.replacen(grown, &format!("{grown}    std::string grown_ = std::string(100, 'x');\n"), 1);
    }
    let includes = [("one", one), ("two", two)].map(|(version, text)| {
        let include = directory.join(version);
        std::fs::create_dir_all(&include).unwrap();
        std::fs::write(include.join("zklock.hpp"), text).unwrap();
        (version, include)
    });
    let versions = source("versions.cpp");
    let libraries = library::directory();
    for level in levels {
        let name = format!("{compiler}{level}");
        let command = |version: &str, include: &Path| {
            let mut command = Command::new(compiler);
            command
                .args(["-std=c++17", level, "-g", "-Wall", "-Werror", "-fPIC", "-fvisibility=hidden", "-I"])
                .arg(include);
            command.arg("-I").arg(library::include()).arg(format!("-DVERSION={version}")).arg(&versions);
            command
        };
        let files: Vec<_> = includes
            .iter()
            .map(|(version, include)| {
                let files = ["o", "so"].map(|kind| directory.join(format!("lib{version}-{name}.{kind}")));
                output(command(version, include).arg("-c").arg("-o").arg(&files[0]));
                output(Command::new(compiler).arg("-shared").arg(&files[0]).arg("-o").arg(&files[1]));
                files
            })
            .collect();
        let main = directory.join(format!("main-{name}.o"));
        output(command("one", &includes[0].1).args(["-DMAIN", "-c", "-o"]).arg(&main));
        // First as objects of one program, in which the linker keeps one of two functions with the same name, then as
        // two libraries.
        for kind in [0, 1] {
            let program = directory.join(format!("program-{name}-{kind}"));
            let mut linked = Command::new(compiler);
            linked.arg(&main).args(files.iter().map(|files| &files[kind])).arg("-o").arg(&program);
            linked.arg("-L").arg(libraries).args(["-lzklock", "-lpthread"]);
            output(linked.arg(format!("-Wl,-rpath,{}:{}", libraries.display(), directory.display())));
            output(Command::new(program).arg(ZooKeeper::shared().address()));
        }
    }
}

/// Code in C++17 and code in C++20 can share objects.
fn every_standard_has_one_layout() {
    let classes = [
        "config",
        "client",
        "mutex",
        "shared_mutex",
        "multi",
        "semaphore",
        "hold",
        "operation",
        "event",
        "participant",
        "waiting",
        "run",
        "past_run",
    ];
    let sizes: String =
        classes.iter().map(|class| format!("    std::printf(\"{class} %zu\\n\", sizeof(zkl::{class}));\n")).collect();
    let text = format!("#include <zklock.hpp>\n#include <cstdio>\nint main() {{\n{sizes}}}\n");
    let file = write("sizes.cpp", &text);
    let printed = STANDARDS.map(|standard| {
        let program = compile("g++", &[standard], std::slice::from_ref(&file), &format!("sizes{standard}"));
        output(&mut Command::new(program))
    });
    assert_eq!(printed[0].lines().count(), classes.len());
    assert!(printed.iter().all(|one| *one == printed[0]), "{printed:?}");
}

/// The cost of including the header: the compilation time, which the test prints, and the memory of the compiler. The
/// memory grows with the time but does not depend on the load of the machine.
fn header_needs_little_compiler_memory() {
    let header = read("zklock.hpp");
    let is_of_cpp20 =
        |line: &&str| ["<algorithm>", "<mutex>", "<stop_token>", "<thread>"].iter().any(|of| line.contains(of));
    let includes: Vec<&str> =
        header.lines().filter(|line| line.starts_with("#include <") && !line.contains("zklock.h>")).collect();
    let old: Vec<&str> = includes.iter().copied().filter(|line| !is_of_cpp20(line)).collect();
    assert!(old.len() > 5 && old.len() < includes.len());
    for (standard, includes) in [("-std=c++17", old), ("-std=c++20", includes)] {
        let alone = write(&format!("includes{standard}.cpp"), &(includes.join("\n") + "\n"));
        let with = write(&format!("header{standard}.cpp"), "#include <zklock.hpp>\n");
        let [(alone_s, alone_kb), (with_s, with_kb)] = [alone, with].map(|source| cost(standard, &source));
        let ratio = with_kb / alone_kb;
        eprintln!("{standard}: {with_s:.2} s with zklock.hpp, {alone_s:.2} s with its includes alone");
        eprintln!("{standard}: {with_kb:.0} kB with zklock.hpp, {alone_kb:.0} kB with its includes alone: {ratio:.2}");
        assert!(ratio < 1.4, "{standard}: {ratio}");
    }
}

fn a_small_program_has_few_symbols() {
    let text = "#include <zklock.hpp>\n#include <mutex>\n\
                int main() { zkl::client client(\"localhost:2181\"); zkl::mutex mutex(client, \"/a\"); std::lock_guard guard(mutex); }\n";
    let (file, object) = (write("three.cpp", text), scratch("cpp-header").join("three.o"));
    output(strict("g++", &["-std=c++17", "-O0", "-c"]).arg(file).arg("-o").arg(&object));
    let symbols = output(Command::new("nm").arg(object));
    let weak =
        symbols.lines().filter(|line| line.contains(" W ") || line.contains(" V ") || line.contains(" u ")).count();
    eprintln!("{weak} weak symbols in three lines; {} lines in the header", read("zklock.hpp").lines().count());
    assert!(weak > 20 && weak < 300, "{weak}");
}

/// Translation units of different standards share their objects, so the layout must be the same in each standard.
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
    zkl::hold held = mutex.acquire();
    zkl::hold lease = semaphore.acquire();
    const auto token = held.lost_token();
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

fn every_function_of_c_is_reached_from_cpp() {
    let (c, cpp) = (read("zklock.h"), read("zklock.hpp"));
    // The names must be in the code, not only in comments.
    let code: String = cpp.lines().filter(|line| !line.trim_start().starts_with(['*', '/'])).collect();
    let words: BTreeSet<&str> = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let functions: Vec<&str> = library::functions(&c).map(library::name).collect();
    assert!(functions.len() > 60, "{functions:?}");
    // Listeners replace these functions, because an object may have several listeners.
    let others = ["zkl_client_set_event_callback", "zkl_lock_set_event_callback"];
    for function in functions.into_iter().filter(|function| !others.contains(function)) {
        assert!(words.contains(function), "zklock.hpp does not use {function}");
    }
    let constants = c.lines().filter_map(|line| line.strip_prefix("#define ")?.split(' ').next());
    for constant in constants
        .filter(|name| name.starts_with("ZKL_") && !name.starts_with("ZKL_VERSION") && *name != "ZKL_NODISCARD")
    {
        assert!(words.contains(constant), "zklock.hpp does not use {constant}");
    }
}

fn header_defines_no_macro_but_its_guard() {
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

/// The processor time in seconds and the memory in kilobytes that g++ needs for a source file.
fn cost(standard: &str, source: &Path) -> (f64, f64) {
    let mut command = Command::new("g++");
    command.args([standard, "-ftime-report", "-c", "-o", "/dev/null", "-I"]).arg(include()).arg(source);
    let reported = String::from_utf8(command.output().unwrap().stderr).unwrap();
    let total = reported.lines().find(|line| line.trim_start().starts_with("TOTAL")).unwrap();
    let numbers: Vec<&str> = total.split_whitespace().skip(2).collect();
    let (memory, unit) = numbers[3].split_at(numbers[3].len() - 1);
    let memory = memory.parse::<f64>().unwrap() * if unit == "M" { 1000.0 } else { 1.0 };
    (numbers[0].parse::<f64>().unwrap() + numbers[1].parse::<f64>().unwrap(), memory)
}

/// Checks a source file with a compiler without generating code.
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
    root().join("tests/programs/cpp").join(name)
}

fn write(name: &str, text: &str) -> PathBuf {
    let file = scratch("cpp-header").join(name);
    std::fs::write(&file, text).unwrap();
    file
}

fn read(header: &str) -> String {
    std::fs::read_to_string(include().join(header)).unwrap()
}
