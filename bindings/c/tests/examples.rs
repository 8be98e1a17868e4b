//! Compiles each program of bindings/c/examples with all warnings enabled, and runs it on a real
//! ZooKeeper server. (fencing.rs runs the programs that write to a store.)

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::string_slice, reason = "names of nodes are plain ASCII")]

mod library;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use library::{STRICTER, compile, output};
use zklock_test_support::{RawClient, TEST_TIMEOUT, ZooKeeper, wait_until};

#[test]
fn processes_take_turns() {
    take_turns(Command::new(c("mutex", &["-std=c99"])), "/locks/example");
}

#[test]
fn processes_take_turns_in_cpp() {
    let program =
        compile("g++", &["-std=c++17", STRICTER[0], STRICTER[1]], &[example("mutex.cpp")], "example-mutex-cpp");
    take_turns(Command::new(program), "/locks/example-cpp");
}

#[test]
fn epoll_example_tasks_take_turns() {
    take_turns(Command::new(epoll()), "/locks/epoll");
}

#[test]
fn epoll_example_task_times_out_while_the_lock_is_held() {
    let server = ZooKeeper::shared();
    let printed =
        output(Command::new(epoll()).args([&server.address(), "/locks/one,/locks/two", "carol", "4", "1000", "2000"]));
    let ends = |what| printed.lines().filter(|line| line.split(' ').nth(1) == Some(what)).count();
    // Two locks with two tasks each. One task of each pair times out, because the work takes longer than the limit.
    assert_eq!((ends("acquired"), ends("released"), ends("timeout")), (2, 2, 2), "{printed}");
}

/// An operator deletes the node of a task during its work. The task stops long before its work is done, and the next
/// task gets the lock.
#[test]
fn epoll_example_task_stops_when_its_lock_is_lost() {
    let (server, path) = (ZooKeeper::shared(), "/locks/epoll-lost");
    let mut raw = RawClient::connect(&server.address(), 60_000);
    let mut command = Command::new(epoll());
    command.args([&server.address(), path, "dave", "2", "60000", "60000"]).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The next task may get the lock before the first one has noticed the loss.
    let mut said = String::new();
    let mut await_line = |line: &str| {
        while !said.contains(line) {
            said += &lines.next().unwrap_or_else(|| panic!("no {line:?} in {said:?}"));
        }
    };
    for task in ["dave-1", "dave-2"] {
        await_line(&format!("{task} acquired "));
        let first = raw.children(path).unwrap().into_iter().min_by_key(|node| node[node.len() - 10..].to_owned());
        assert_eq!(raw.delete(&format!("{path}/{}", first.unwrap())), 0);
        await_line(&format!("{task} lost "));
    }
    assert!(lines.next().is_none() && program.wait().unwrap().success());
}

#[test]
fn libuv_example_tasks_take_turns() {
    take_turns(Command::new(c("libuv", &["-std=c11", "-Wl,--no-as-needed", "-luv"])), "/locks/libuv");
}

#[test]
fn dlopen_example_processes_take_turns() {
    take_turns(by_name(c("dlopen", &["-std=c99"])), "/locks/dlopen");
}

#[test]
fn ctypes_and_cffi_examples_take_turns() {
    let mut command = by_name("python3");
    command.arg(example("python_ctypes.py"));
    take_turns(command, "/locks/ctypes");
    let python = library::root().join("target/venv/bin/python");
    assert!(python.exists(), "target/venv is missing: make setup");
    let mut command = by_name(python);
    command.arg(example("python_cffi.py")).env("ZKLOCK_HEADER", library::include().join("zklock_ffi.h"));
    take_turns(command, "/locks/cffi");
}

fn epoll() -> PathBuf {
    c("epoll", &["-std=c11"])
}

fn c(name: &str, flags: &[&str]) -> PathBuf {
    compile(
        "gcc",
        flags,
        &[example(&format!("{name}.c"))],
        &format!("example-{name}-{:?}", std::thread::current().id()),
    )
}

/// A program that locates the library itself.
fn by_name(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("ZKLOCK_LIBRARY", library::directory().join("libzklock.so"));
    command
}

/// The program works until it is killed, and serves its metrics meanwhile.
#[test]
fn metrics_example_serves_the_metrics() {
    let mut command = Command::new(c("metrics", &["-std=c99"]));
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
    wait_until(TEST_TIMEOUT, || acquires(&fetch()) >= 3);
    let answer = fetch();
    child.kill().unwrap();
    child.wait().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
}

/// Runs two processes of an example. Each acquires the lock three times.
fn take_turns(command: Command, path: &str) {
    let address = ZooKeeper::shared().address();
    let children = ["alice", "bob"].map(|name| {
        let mut mine = Command::new(command.get_program());
        mine.args(command.get_args()).args([&address, path, name, "3"]);
        mine.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        std::thread::spawn(move || output(&mut mine))
    });
    let printed = children.map(|child| child.join().unwrap()).concat();

    // In the order of time, holds do not overlap and tokens grow.
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

/// The time, the token and the event of a line.
fn parse(line: &str) -> (i64, i64, &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let &[_name, what, "TOKEN", token, time] = &words[..] else { panic!("unexpected line: {line}") };
    (time.parse().unwrap(), token.parse().unwrap(), what)
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}
