//! The committed ABI in `abi/`: the names that a library exports (`NAME.symbols`), and its signatures and layouts
//! (`NAME.abi`) as abidw of Debian's abigail-tools describes them. `ZKL_BLESS=1` writes both again, and also the names
//! for Debian's packages (`debian/*.symbols`).
//!
//! abidw describes a stub: the header, compiled with a body for each function. The library itself would add Rust's
//! types, which are not part of the ABI. Other tests check that the stub and the library agree: the header is generated
//! from the crate, and the library exports the functions that the header declares.

#![allow(clippy::unwrap_used, clippy::panic, dead_code, reason = "for tests, each of which uses a part")]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::library;

/// The name of a library without `lib`. Its header has the same name.
pub(crate) struct Library(pub(crate) &'static str);

impl Library {
    /// Checks that the library exports what its header declares, that all names begin with `zkl_`, and that the names
    /// and signatures match the committed ones.
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
        assert!(committed == symbols, "{}", self.advice("the exported names have changed", &symbols));
        let debian = fs::read_to_string(self.debian_file()).unwrap_or_default();
        assert!(debian == self.debian(&symbols), "{}", self.advice("Debian's symbols have changed", &debian));
        if let Some(report) = self.differences(&self.header()) {
            panic!("{}", self.advice("signatures or layouts are others", &report));
        }
    }

    pub(crate) fn header(&self) -> String {
        fs::read_to_string(library::include().join(format!("{}.h", self.0))).unwrap()
    }

    /// The differences between the committed ABI and a library with this header.
    pub(crate) fn differences(&self, header: &str) -> Option<String> {
        let stub = self.compile(header);
        let result = Command::new("abidiff").arg(self.committed("abi")).arg(stub).output().unwrap();
        let report = String::from_utf8_lossy(&result.stdout).into_owned();
        match result.status.code() {
            Some(0) => None,
            // Exit status 4: a change; 12: a change that breaks programs. Any other status is an error of abidiff.
            Some(4 | 12) => Some(report),
            _ => panic!("abidiff: {}\n{report}{}", result.status, String::from_utf8_lossy(&result.stderr)),
        }
    }

    fn describe(&self, file: &Path) {
        let options =
            ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--type-id-style", "hash", "--out-file"];
        library::output(Command::new("abidw").args(options).arg(file).arg(self.compile(&self.header())));
    }

    /// Compiles a library whose functions have the signatures of a header and do nothing.
    fn compile(&self, header: &str) -> PathBuf {
        let mut source = header.to_owned();
        for function in library::functions(header) {
            source = source.replace(function, &format!("{} {{ __builtin_trap(); }}", function.trim_end_matches(';')));
        }
        let folder = library::scratch(&format!("{}-stub", self.0));
        fs::write(folder.join("stub.c"), source).unwrap();
        let mut compile = Command::new("gcc");
        // The description contains the name of the file, so the name must not contain a path.
        compile.current_dir(&folder).args(["-g", "-fPIC", "-shared", "stub.c", "-o", "stub.so", "-I"]);
        library::output(compile.arg(library::include()));
        folder.join("stub.so")
    }

    /// The names for Debian's packages, each with the version that introduced it. A new name gets the current version.
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

    /// The version that introduced an exported name, from the names for Debian's packages.
    pub(crate) fn version_of(&self, symbol: &str) -> String {
        let (known, entry) = (fs::read_to_string(self.debian_file()).unwrap(), format!(" {symbol}@"));
        let found = known.lines().find(|line| line.starts_with(&entry));
        found.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {symbol}: make header")).to_owned()
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
