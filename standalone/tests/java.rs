//! ZooKeeper's own Java clients on a real server and on this one: Curator's recipes, and the command line. What they print has
//! to be the same.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the configured exception for tests leaves out their helpers")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use zklock_rig::ZooKeeper;
use zklock_standalone::{Server, Settings};

#[test]
fn curators_recipes() {
    let [real, ours] = on_both(|address| run(Path::new("/dev/null"), &[&file("Recipes.java"), address]));
    assert!(real.contains("cache: heard true"), "{real}");
    assert_eq!(real, ours);
}

#[test]
fn the_command_line() {
    let [real, ours] = on_both(|address| {
        let commands = PathBuf::from(file("commands.txt"));
        told_apart(
            &run(&commands, &["org.apache.zookeeper.ZooKeeperMain", "-server", address]).replace(address, "SERVER"),
        )
    });
    assert!(real.contains("Command not found nosuch"), "{real}");
    assert_eq!(real, ours);
}

/// What a program says to each of the two.
fn on_both(program: impl Fn(&str) -> String) -> [String; 2] {
    let real = ZooKeeper::options().jvm_argument("-Dzookeeper.extendedTypesEnabled=true").start();
    let settings = Settings { sweep: Duration::from_millis(250), ..Settings::default() };
    let ours = Server::bind(("127.0.0.1", 0), settings).unwrap();
    [program(&real.address()), program(&ours.address().to_string())]
}

fn run(input: &Path, arguments: &[&str]) -> String {
    let output = Command::new("java")
        .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &class_path()])
        .args(arguments)
        .stdin(Stdio::from(File::open(input).unwrap()))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// What is told unasked stands anywhere among the answers, so it is put behind them. What no two servers agree on is left out.
fn told_apart(output: &str) -> String {
    let lines = output.lines().filter(|line| !line.is_empty() && *line != "WATCHER::");
    let (events, answers): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("WatchedEvent"));
    let clean = |line: &str| match line.split_once(" = ") {
        Some((name @ ("cZxid" | "mZxid" | "pZxid" | "ctime" | "mtime"), _)) => name.to_owned(),
        _ => line.to_owned(),
    };
    answers.into_iter().chain(events).map(clean).collect::<Vec<_>>().join("\n")
}

fn file(name: &str) -> String {
    format!("{}/../tests/curator/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Debian's packages of Curator, with what they need.
fn class_path() -> String {
    let jars =
        ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper", "commons-cli", "slf4j-nop"];
    let paths = jars.map(|jar| format!("/usr/share/java/{jar}.jar"));
    for path in &paths {
        assert!(
            Path::new(path).exists(),
            "{path} is missing: apt-get install libcurator-recipes-java (as root), or make setup"
        );
    }
    paths.join(":")
}
