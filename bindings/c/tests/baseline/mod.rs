//! The committed ABI in `abi/`: the names that a library exports (`NAME.symbols`), and its signatures and layouts (`NAME.abi`), as
//! abidw of Debian's abigail-tools describes them. `ZKL_BLESS=1` writes both anew, and the names for
//! Debian's packages (`debian/*.symbols`).
//!
//! What is described is the header, compiled with a body for each function: the library itself would bring Rust's types, which
//! are nobody's business. That the two are the same is for other tests: the header is made from the crate, and the library
//! exports what it declares.

#![allow(clippy::unwrap_used, clippy::panic, reason = "for tests")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::library;

/// A library's name without `lib`, which is also its header's.
pub(crate) struct Library(pub(crate) &'static str);

impl Library {
    /// Checks that it exports what its header declares, that nothing but what begins with `zkl_`, and that these are the names and
    /// the signatures that were committed.
    pub(crate) fn check(&self) {
        let exported = library::exports(&format!("lib{}.so", self.0));
        let declared = library::functions(&self.header()).map(library::name).map(str::to_owned).collect();
        assert_eq!(exported, declared);
        assert!(exported.iter().all(|name| name.starts_with("zkl_")), "{exported:?}");
        let symbols = exported.iter().fold(String::new(), |mut symbols, name| {
            writeln!(symbols, "{name}").unwrap();
            symbols
        });
        if std::env::var_os("ZKL_BLESS").is_some() {
            fs::write(self.committed("symbols"), &symbols).unwrap();
            fs::write(self.debian_file(), self.debian(&symbols)).unwrap();
            self.describe(&self.committed("abi"));
        }
        let committed = fs::read_to_string(self.committed("symbols")).unwrap_or_default();
        assert!(committed == symbols, "{}", self.advice("the exported names are others", &symbols));
        let debian = fs::read_to_string(self.debian_file()).unwrap_or_default();
        assert!(debian == self.debian(&symbols), "{}", self.advice("Debian's symbols are others", &debian));
        if let Some(report) = self.differences(&self.header()) {
            panic!("{}", self.advice("signatures or layouts are others", &report));
        }
    }

    pub(crate) fn header(&self) -> String {
        fs::read_to_string(library::include().join(format!("{}.h", self.0))).unwrap()
    }

    /// In what a library with this header would differ from the committed one.
    pub(crate) fn differences(&self, header: &str) -> Option<String> {
        let stub = self.compile(header);
        let result = Command::new("abidiff").arg(self.committed("abi")).arg(stub).output().unwrap();
        let report = String::from_utf8_lossy(&result.stdout).into_owned();
        match result.status.code() {
            Some(0) => None,
            // 4: a change; 12: one that breaks programs. Anything else is a failure of its own.
            Some(4 | 12) => Some(report),
            _ => panic!("abidiff: {}\n{report}{}", result.status, String::from_utf8_lossy(&result.stderr)),
        }
    }

    fn describe(&self, file: &Path) {
        let options =
            ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--type-id-style", "hash", "--out-file"];
        library::output(Command::new("abidw").args(options).arg(file).arg(self.compile(&self.header())));
    }

    /// A library with the functions of a header that do nothing.
    fn compile(&self, header: &str) -> PathBuf {
        let mut source = header.to_owned();
        for function in library::functions(header) {
            source = source.replace(function, &format!("{} {{ __builtin_trap(); }}", function.trim_end_matches(';')));
        }
        let folder = library::scratch(&format!("{}-stub", self.0));
        fs::write(folder.join("stub.c"), source).unwrap();
        let mut compile = Command::new("gcc");
        // By a name without a path, for the description has it.
        compile.current_dir(&folder).args(["-g", "-fPIC", "-shared", "stub.c", "-o", "stub.so", "-I"]);
        library::output(compile.arg(library::include()));
        folder.join("stub.so")
    }

    /// What Debian's packages know of the names: since which version each is there. A name that is new is there since this version.
    fn debian(&self, symbols: &str) -> String {
        let (name, package, epoch) = (self.0, self.0.replace('_', "-"), epoch());
        let node = format!("{}_{epoch}", name.to_uppercase());
        let known = fs::read_to_string(self.debian_file()).unwrap_or_default();
        let mut made =
            format!("lib{name}.so.{epoch} lib{package}{epoch} #MINVER#\n* Build-Depends-Package: lib{package}-dev\n");
        for symbol in [node.as_str()].into_iter().chain(symbols.lines()) {
            let entry = format!(" {symbol}@{node} ");
            let since = known.lines().find_map(|line| line.strip_prefix(&entry)).unwrap_or(env!("CARGO_PKG_VERSION"));
            writeln!(made, "{entry}{since}").unwrap();
        }
        made
    }

    fn debian_file(&self) -> PathBuf {
        library::root().join(format!("debian/lib{}{}.symbols", self.0.replace('_', "-"), epoch()))
    }

    fn committed(&self, kind: &str) -> PathBuf {
        library::root().join(format!("abi/lib{}.{kind}", self.0))
    }

    fn advice(&self, what: &str, report: &str) -> String {
        format!(
            "lib{}: {what} than in abi/:\n{report}\nWhat was there must stay as it is, since programs were compiled for it. For a \
             function that is new: make header",
            self.0
        )
    }
}

/// The number in the SONAME and in the version of the symbols.
fn epoch() -> String {
    fs::read_to_string(library::root().join("abi/SOVERSION")).unwrap().trim().to_owned()
}
