//! The libraries libzklock.so and libzklock_standalone.so of the tested profile, and the programs that use them:
//! without tools, under valgrind, and with gcc's sanitizers.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "for tests, each of which uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use zklock_test_support::{cargo, slack};

pub(crate) const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-g"];

/// Further warnings for C++.
pub(crate) const STRICTER: [&str; 2] = ["-Wshadow", "-Wsign-conversion"];

/// The directory of the libraries. Cargo does not build them for integration tests, because these cannot link them.
/// They are built here.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        // TARGET/PROFILE/deps/TEST
        let test = std::env::current_exe().unwrap();
        let directory = test.ancestors().nth(2).unwrap();
        if std::env::var_os("ZKLOCK_ASAN").is_some() {
            return with_address_sanitizer(directory.parent().unwrap());
        }
        let profile = match directory.file_name().and_then(|name| name.to_str()).unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        output(
            // Without `--package`, the dependencies have the same features as in `make test`, so cargo has built them.
            cargo()
                .args(["build", "--quiet", "--lib", "--profile", profile, "--target-dir"])
                .arg(directory.parent().unwrap())
                .current_dir(root()),
        );
        directory.to_owned()
    })
}

/// The directory of libraries whose Rust code is also compiled with AddressSanitizer (`make asan`). This needs an
/// unstable flag of the compiler. Released libraries are never built with it.
fn with_address_sanitizer(target: &Path) -> PathBuf {
    let (directory, triple) = (target.join("asan"), format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    output(
        cargo()
            .args(["build", "--quiet", "--package", "zklock-c", "--package", "zklock-standalone-c", "--lib"])
            .args(["--target", &triple, "--target-dir"])
            .arg(&directory)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    directory.join(triple).join("debug")
}

/// Runs a command, asserts that it succeeds, and returns its output.
pub(crate) fn output(command: &mut Command) -> String {
    let result = command.output().unwrap_or_else(|error| {
        let tool = command.get_program().display();
        assert!(error.kind() != ErrorKind::NotFound, "{tool} is missing: make setup installs the tools of the tests");
        panic!("{command:?}: {error}")
    });
    let (out, err) = (String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
    assert!(result.status.success(), "{command:?}: {}\n{out}{err}", result.status);
    out.into_owned()
}

/// The names that a library exports.
pub(crate) fn exports(library: &str) -> BTreeSet<String> {
    let symbols = output(Command::new("nm").args(["-D", "--defined-only"]).arg(directory().join(library)));
    symbols.lines().filter_map(|line| line.rsplit(' ').next()).map(str::to_owned).collect()
}

/// The lines of a header that declare functions.
pub(crate) fn functions(header: &str) -> impl Iterator<Item = &str> {
    let is_code = |line: &&str| !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef");
    header.lines().filter(is_code).filter(|line| line.ends_with(");"))
}

/// The name of the function that such a line declares.
pub(crate) fn name(function: &str) -> &str {
    function.split_once('(').and_then(|(head, _)| head.rsplit([' ', '*']).next()).unwrap()
}

/// The tool that a program runs under.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    Plain,
    Valgrind,
    Sanitizers,
}

impl Under {
    /// Compiles a program of tests/programs/c.
    pub(crate) fn compile(self, name: &str) -> PathBuf {
        self.compile_with(name, &[])
    }

    /// The same with further options, for the directories to include and the libraries to link.
    pub(crate) fn compile_with(self, name: &str, options: &[&str]) -> PathBuf {
        self.compile_as("gcc", "-std=c11", &format!("{name}.c"), options)
    }

    /// Compiles a file of tests/programs/c with another compiler and language standard.
    pub(crate) fn compile_as(self, compiler: &str, standard: &str, file: &str, options: &[&str]) -> PathBuf {
        self.compile_at(compiler, standard, &root().join("tests/programs/c").join(file), options)
    }

    /// Compiles a program from any directory.
    pub(crate) fn compile_at(self, compiler: &str, standard: &str, source: &Path, options: &[&str]) -> PathBuf {
        let mut flags = vec![standard];
        if self == Self::Sanitizers {
            flags.extend(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        }
        flags.push("-Wl,--no-as-needed");
        flags.extend(options);
        let name = source.file_name().unwrap().to_string_lossy();
        // Valgrind needs no other program.
        let kind = if self == Self::Sanitizers { "sanitizers" } else { "plain" };
        let name = format!("{name}-{compiler}-{kind}{standard}");
        // The tests of one process share a compiled program.
        static PROGRAMS: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
        let program = Arc::clone(PROGRAMS.lock().unwrap().entry(name.clone()).or_default());
        program.get_or_init(|| compile(compiler, &flags, &[source.to_owned()], &name)).clone()
    }

    /// The command that runs a program.
    pub(crate) fn command(self, program: &Path, leaks: Leaks) -> Command {
        let mut command = match self {
            Self::Plain | Self::Sanitizers => Command::new(program),
            Self::Valgrind => {
                let mut command = Command::new("valgrind");
                // Fair scheduling is necessary: otherwise busy threads can block the I/O thread for longer than the
                // session timeout.
                command.args(["--quiet", "--fair-sched=yes", "--error-exitcode=9", "--errors-for-leak-kinds=definite"]);
                let suppressions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/c/valgrind.supp");
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
        command.env("UNDER", self.name());
        // Valgrind and the sanitizers make every thread slower.
        let slack = if self == Self::Plain { slack() } else { slack().max(Duration::from_secs(5)) };
        command.env("SLACK_MS", slack.as_millis().to_string());
        command
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Valgrind => "valgrind",
            Self::Sanitizers => "sanitizers",
        }
    }
}

/// How to treat memory that is never freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaks {
    AreErrors,
    /// A forked child has only one thread, so nothing frees the memory of the other threads that the parent has.
    AreNatural,
}

/// Compiles and links source files with the headers and the libraries. Warnings are errors.
pub(crate) fn compile(compiler: &str, flags: &[&str], sources: &[PathBuf], name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Another test process may run the same program at the moment.
    let unfinished = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
    let library = directory();
    output(
        Command::new(compiler)
            .args(flags)
            .args(STRICT)
            .arg("-I")
            .arg(include())
            .args(sources)
            .arg("-o")
            .arg(&unfinished)
            .arg("-L")
            .arg(library)
            // Link only the libraries that the program uses.
            .args(["-Wl,--as-needed", "-lzklock", "-lzklock_standalone", "-lpthread"])
            .arg(format!("-Wl,-rpath,{}", library.display())),
    );
    std::fs::rename(unfinished, &program).unwrap();
    program
}

/// A directory for the files of one test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

pub(crate) fn include() -> PathBuf {
    root().join("include")
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
