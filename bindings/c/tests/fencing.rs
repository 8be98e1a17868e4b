//! Tests of the examples whose stores reject stale writes. A holder is stopped for longer than its session timeout,
//! another process writes, and the first process continues.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod library;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use library::compile;
use zklock_test_support::{RawClient, ZooKeeper, pause, resume};

#[test]
fn sqlite_store_refuses_a_stale_token() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fenced-{}.db", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let program = Program::compile("sqlite", "-lsqlite3");
    stop_write_go_on(&program, "/fencing/sqlite", file.to_str().unwrap(), "report");
    let look = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT value FROM item').fetchall())";
    assert_eq!(library::output(Command::new("python3").args(["-c", look]).arg(&file)), "('two',)\n");
    std::fs::remove_file(&file).unwrap();
}

/// The store also works while a revocation request changes the data and the version of the lock node.
#[test]
fn zookeeper_store_refuses_a_stale_token() {
    let server = ZooKeeper::shared();
    let program = Program::compile("zookeeper", "-lzookeeper_mt");
    let (lock, data) = ("/fencing/zookeeper", "/fencing-data");
    stop_write_go_on(&program, lock, &server.address(), data);
    let mut raw = RawClient::connect(&server.address(), 60_000);
    assert_eq!(raw.data(data).unwrap(), b"two");

    let mut holder = program.start(lock, &server.address(), data);
    let node = raw.children(lock).unwrap().remove(0);
    assert_eq!(raw.set_data(&format!("{lock}/{node}"), b"__REVOKE__"), 0);
    assert_eq!(holder.write("three"), "written");
    assert_eq!(raw.data(data).unwrap(), b"three");
    assert_eq!(raw.delete(&format!("{lock}/{node}")), 0);
    assert_eq!(holder.write("four"), "refused");
    assert_eq!(raw.data(data).unwrap(), b"three");
}

/// The first process holds the lock and is stopped. Another process gets the lock and writes. The first process
/// continues and does not know about the loss yet.
fn stop_write_go_on(program: &Program, lock: &str, store: &str, resource: &str) {
    let mut first = program.start(lock, store, resource);
    assert_eq!(first.write("zero"), "written");
    assert_eq!(first.write("one"), "written", "the store accepts the token of the holder");
    pause(first.process.id() as i32);
    first.send("late");
    let mut second = program.start(lock, store, resource);
    assert!(second.token > first.token);
    assert_eq!(second.write("two"), "written");
    resume(first.process.id() as i32);
    assert_eq!(first.line(), "refused");
    assert_eq!(first.write("too late"), "refused");
    assert_eq!(first.end(), "the lock was lost while it was held");
    assert_eq!(second.end(), "released");
}

struct Program(std::path::PathBuf);

struct Running {
    process: Child,
    output: BufReader<ChildStdout>,
    token: i64,
}

impl Program {
    fn compile(store: &str, library: &str) -> Self {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let sources = ["fenced".to_owned(), format!("fenced_{store}")];
        let sources = sources.map(|name| examples.join(name).with_extension("c"));
        Self(compile("gcc", &["-std=c99", "-Wl,--no-as-needed", library], &sources, &format!("fenced-{store}")))
    }

    /// Starts a process with a short session timeout, and waits until it holds the lock.
    fn start(&self, lock: &str, store: &str, resource: &str) -> Running {
        let mut process = Command::new(&self.0)
            .args([&ZooKeeper::shared().address(), lock, store, resource, "1500"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut running = Running { process, output, token: 0 };
        running.token = running.line().strip_prefix("acquired TOKEN ").unwrap().parse().unwrap();
        running
    }
}

impl Running {
    fn send(&mut self, value: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{value}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it has ended");
        line.trim().to_owned()
    }

    fn write(&mut self, value: &str) -> String {
        self.send(value);
        self.line()
    }

    /// Ends the process and returns its last line.
    fn end(&mut self) -> String {
        drop(self.process.stdin.take());
        let last = self.line();
        assert!(self.process.wait().unwrap().success());
        last
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
