//! The report of all measurements: on standard output, as JSON, and as the page in `docs/`.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use zklock_test_support::ZooKeeper;

use crate::campaign::{self, Base, Pair, WarmUp};
use crate::measure;
use crate::plot;
use crate::scale::{self, Scale};
use crate::table;

#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) method: Method,
    pub(crate) machine: Vec<(&'static str, String)>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) warm_ups: Vec<WarmUp>,
    pub(crate) scale: Vec<Scale>,
    /// The size of libzklock.so without symbols.
    pub(crate) library_bytes: Option<u64>,
}

/// The parameters of the measurement.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Method {
    pub(crate) base: Base,
    pub(crate) rounds: usize,
    pub(crate) window_seconds: f64,
    pub(crate) warm_up_limit: usize,
    pub(crate) redo_limit: usize,
    /// The duration of the whole run.
    pub(crate) minutes: f64,
}

const PAGE: &str = include_str!("page.md");

impl Report {
    pub(crate) fn failures(&self) -> usize {
        table::failures(&self.pairs) + scale::failures(&self.scale)
    }

    /// All tables in Markdown.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        if !self.pairs.is_empty() {
            text += &table::tables(&self.pairs, self.method.base);
            text += &table::warm_ups(&self.warm_ups);
        }
        text += &scale::table(&self.scale);
        if let Some(bytes) = self.library_bytes {
            let _ = writeln!(text, "libzklock.so without symbols: {:.2} MB\n", bytes as f64 / 1e6);
        }
        text
    }

    pub(crate) fn json(&self) -> Result<String, String> {
        serde_json::to_string(self).map(|text| text + "\n").map_err(|error| error.to_string())
    }

    /// Writes `benchmarks.md`, its pictures and its numbers to a directory.
    pub(crate) fn write_page(&self, docs: &Path) -> Result<(), String> {
        let directory = docs.join("benchmarks");
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        remove_pictures(&directory)?;
        let mut pictures = String::new();
        for picture in plot::pictures(&self.pairs) {
            let _ = writeln!(pictures, "![{}](benchmarks/{})\n", picture.title, picture.file);
            write_file(&directory.join(&picture.file), &picture.svg)?;
        }
        write_file(&directory.join("benchmarks.json"), &self.json()?)?;
        let machine: Vec<String> = self.machine.iter().map(|(what, which)| format!("- {what}: {which}\n")).collect();
        let Method { rounds, window_seconds, warm_up_limit, redo_limit, minutes, .. } = self.method;
        let page = PAGE
            .replace("{rounds}", &rounds.to_string())
            .replace("{window}", &window_seconds.to_string())
            .replace("{warm-up}", &warm_up_limit.to_string())
            .replace("{agreement}", &(campaign::AGREEMENT * 100.0).to_string())
            .replace("{break-in}", &campaign::BREAK_IN.to_string())
            .replace("{lead-in}", &(measure::LEAD_IN / 1_000_000).to_string())
            .replace("{redo}", &redo_limit.to_string())
            .replace("{minutes}", &format!("{minutes:.0}"))
            .replace("{foreign}", &campaign::FOREIGN_LIMIT.to_string())
            .replace("{machine}", &machine.concat())
            .replace("{pictures}", &pictures)
            .replace("{tables}", &self.tables());
        write_file(&docs.join("benchmarks.md"), &(page.trim_end().to_owned() + "\n"))
    }
}

/// Removes the pictures of an earlier run, which may have measured more workloads.
fn remove_pictures(directory: &Path) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            fs::remove_file(&path).map_err(|error| format!("remove {}: {error}", path.display()))?;
        }
    }
    Ok(())
}

pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))
}

/// The machine and the versions of the programs.
pub(crate) fn machine(server: &ZooKeeper) -> Vec<(&'static str, String)> {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Do not use the affinity of this thread, which may be limited to one core now.
    let cores = processor.lines().filter(|line| line.starts_with("processor")).count();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let answer = server.four_letter_word("srvr");
    let zookeeper = answer.lines().next().and_then(|line| line.strip_prefix("Zookeeper version: ")).unwrap_or_default();
    vec![
        ("processor", format!("{}, {cores} cores", processor.trim_start_matches([' ', '\t', ':']))),
        ("kernel", kernel.trim().to_owned()),
        ("ZooKeeper", zookeeper.split('-').next().unwrap_or_default().to_owned()),
        (
            "disk of the server with fsync",
            first_output_line("stat", &["-f", "-c", "%T", &std::env::temp_dir().to_string_lossy()]),
        ),
        ("Java", first_output_line("java", &["-version"])),
        ("Python", first_output_line("python3", &["--version"])),
        ("zklock", env!("CARGO_PKG_VERSION").to_owned()),
        ("Curator", curator()),
        ("kazoo", requirement("kazoo")),
        ("zookeeper-client", locked("zookeeper-client")),
        ("zookeeper (crate)", locked("zookeeper")),
    ]
}

/// The first line that a program prints about its version.
fn first_output_line(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else { return "none".to_owned() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    text.lines().next().unwrap_or_default().replace("Python ", "")
}

/// The version in the name of a jar in Debian's package.
fn curator() -> String {
    let files = fs::read_dir("/usr/share/java").into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let version = |name: String| Some(name.strip_prefix("curator-recipes-")?.strip_suffix(".jar")?.to_owned());
    names.filter_map(version).next().unwrap_or_else(|| "unknown".to_owned())
}

fn locked(name: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let version = lock.split_once(&format!("name = \"{name}\"\nversion = \"")).map(|(_, rest)| rest);
    version.and_then(|rest| rest.split('"').next()).unwrap_or("unknown").to_owned()
}

fn requirement(name: &str) -> String {
    let lines = include_str!("../../scripts/requirements-build.txt").lines();
    let version = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix("==")).next();
    version.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_of_the_peers_are_known() {
        for version in [requirement("kazoo"), locked("zookeeper-client"), locked("zookeeper"), curator()] {
            assert!(version.starts_with(|first: char| first.is_ascii_digit()), "{version}");
        }
    }
}
