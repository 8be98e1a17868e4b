//! The programs of bindings/c/examples: each is compiled as strictly as the library's own tests, and run on a real ZooKeeper server. (Those that
//! write to a store are in fencing.rs.)

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod library;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use library::{STRICTER, compile};
use zklock_rig::{ZooKeeper, wait_until};

#[test]
fn processes_take_turns() {
    let program = compile("gcc", &["-std=c99"], &[example("mutex.c")], "example-mutex");
    take_turns(&program, "/locks/example");
}

#[test]
fn processes_take_turns_in_cpp() {
    let program =
        compile("g++", &["-std=c++17", STRICTER[0], STRICTER[1]], &[example("mutex.cpp")], "example-mutex-cpp");
    take_turns(&program, "/locks/example-cpp");
}

#[test]
fn tasks_of_event_loops_take_turns() {
    let program = compile("gcc", &["-std=c99"], &[example("loop.c")], "example-loop");
    take_turns(&program, "/locks/loop");
}

/// It works on until it is killed, and says in the meantime how that goes.
#[test]
fn the_example_of_metrics_shows_them() {
    let program = compile("gcc", &["-std=c99"], &[example("metrics.c")], "example-metrics");
    let mut command = Command::new(program);
    command.args([&ZooKeeper::shared().address(), "/locks/metrics"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap().to_owned();
    let fetch = || {
        let mut connection = TcpStream::connect(&address).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    let acquires = |answer: &str| -> u64 {
        let (_, rest) = answer.split_once("\nzklock_acquires_total{app=\"example\",outcome=\"ok\"} ").unwrap();
        rest.lines().next().unwrap().parse().unwrap()
    };
    wait_until(Duration::from_secs(20), || acquires(&fetch()) >= 3);
    let answer = fetch();
    child.kill().unwrap();
    child.wait().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
}

/// Two processes of an example, each of which is in three times.
fn take_turns(program: &Path, path: &str) {
    let address = ZooKeeper::shared().address();
    let children = ["alice", "bob"].map(|name| {
        let mut command = Command::new(program);
        command.args([&address, path, name, "3"]);
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

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}
