//! Runs ZooKeeper's own Java clients (Curator's recipes and the command-line shell) on a real server and on the
//! standalone server. Both runs must print the same.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the configured exception for tests leaves out their helpers")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use zklock_standalone::{Server, Settings};
use zklock_test_support::ZooKeeper;

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
        separate_watch_events(
            &run(&commands, &["org.apache.zookeeper.ZooKeeperMain", "-server", address]).replace(address, "SERVER"),
        )
    });
    assert!(real.contains("Command not found nosuch"), "{real}");
    assert_eq!(real, ours);
}

/// Runs a program on each of the two servers and returns both outputs.
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

/// Moves the watch events behind the replies, because another program thread prints the watch events at any time,
/// even within a line. Removes all values that differ from server to server.
fn separate_watch_events(output: &str) -> String {
    // The thread prints each event as two texts, and each text with a line break before it and after it.
    let mut answers = output.replace("\nWATCHER::\n", "");
    let mut events = Vec::new();
    while let Some(start) = answers.find("\nWatchedEvent") {
        let end = answers[start + 1..].find('\n').map_or(answers.len(), |length| start + 1 + length + 1);
        events.push(answers.drain(start..end).collect::<String>().trim().to_owned());
    }
    let clean = |line: &str| match line.split_once(" = ") {
        Some((name @ ("cZxid" | "mZxid" | "pZxid" | "ctime" | "mtime"), _)) => name.to_owned(),
        _ => line.to_owned(),
    };
    let answers = answers.lines().filter(|line| !line.is_empty());
    answers.chain(events.iter().map(String::as_str)).map(clean).collect::<Vec<_>>().join("\n")
}

fn file(name: &str) -> String {
    format!("{}/../tests/interop/curator/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The class path of Debian's Curator package and its dependencies.
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
