//! Tests of the program `zklock-standalone`.

#![allow(clippy::unwrap_used, reason = "a failing test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use zklock_test_support::{RawClient, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_zklock-standalone");

#[test]
fn program_prints_its_address_and_ends_on_sigterm() {
    let mut program = Program::start(Command::new(PROGRAM).args(["--listen", "127.0.0.1:0"]));
    let address = program.address.as_str();

    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"ruok").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");

    let second = Command::new(PROGRAM).args(["--listen", address]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let complaint = String::from_utf8(second.stderr).unwrap();
    assert!(complaint.starts_with(&format!("zklock-standalone: cannot listen on {address}: ")), "{complaint}");

    Command::new("kill").arg(program.child.id().to_string()).status().unwrap();
    assert_eq!(program.child.wait().unwrap().signal(), Some(15));
    assert!(TcpStream::connect(address).is_err());
}

/// The kernel discards a signal to the first process of a container if the process does not wait for it.
#[test]
fn the_first_process_of_a_container_ends_on_sigterm() {
    let container = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(container).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("this test needs unshare(1) and the permission to make pid namespaces");
        return;
    }
    let script = format!("exec 3<&0; (read line <&3; kill -TERM 1) & exec {PROGRAM} --listen 127.0.0.1:0");
    let mut command = Command::new("unshare");
    let mut program = Program::start(command.args(container).args(["sh", "-c", &script]).stdin(Stdio::piped()));
    TcpStream::connect(&program.address).unwrap();
    program.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    let mut status = None;
    wait_until(Duration::from_secs(60), || {
        status = program.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(143));
}

#[test]
fn program_listens_on_a_host_name_and_rejects_invalid_addresses() {
    let program = Program::start(Command::new(PROGRAM).args(["--listen", "localhost:0"]));
    let address: SocketAddr = program.address.parse().unwrap();
    assert!(address.ip().is_loopback(), "{address}");
    TcpStream::connect(address).unwrap();

    for bad in ["localhost", "localhost:x", "", "127.0.0.1:99999", "no.such.name.invalid:1"] {
        let refused = Command::new(PROGRAM).args(["--listen", bad]).output().unwrap();
        let complaint = String::from_utf8(refused.stderr).unwrap();
        assert!(complaint.contains(&format!("{bad:?} is not an address to listen on: ")), "{complaint}");
        assert_eq!(refused.status.code(), Some(2));
    }
}

#[test]
fn lines_on_the_standard_input_cause_faults() {
    let mut program =
        Program::start(Command::new(PROGRAM).args(["--control", "--listen", "127.0.0.1:0"]).stdin(Stdio::piped()));
    let (mut input, address) = (program.child.stdin.take().unwrap(), program.address.clone());
    let mut ask = |line: &str| {
        writeln!(input, "{line}").unwrap();
        let mut answer = String::new();
        program.output.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    };
    assert_eq!(ask("sessions"), "ok");
    let _client = RawClient::connect(&address, 20_000);
    let answer = ask("sessions");
    let session = answer.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(answer, format!("ok {session} 20000 connected"));
    assert!(session.starts_with("0x"), "{answer}");
    for command in ["freeze", "thaw", "cut"] {
        assert_eq!(ask(&format!("{command} {session}")), "ok");
    }
    wait_until(Duration::from_secs(60), || ask("sessions").ends_with("disconnected"));
    assert_eq!(ask("lose-reply all create2"), "ok");
    assert_eq!(ask("delay all 0"), "ok");
    assert_eq!(ask(&format!("expire {session}")), "ok");
    assert_eq!(ask("sessions"), "ok");
    assert_eq!(ask("halt"), "ok");
    assert!(TcpStream::connect(&address).is_err());
    assert_eq!(ask("restart"), "ok");
    TcpStream::connect(&address).unwrap();
    for (wrong, said) in [
        ("", "error \"\" is not a command; expected sessions, expire, "),
        ("stop", "error \"stop\" is not a command"),
        ("expire", "error \"\" is not a session; expected the number of a session"),
        ("expire x", "error \"x\" is not a session"),
        ("expire 7", "error "),
        ("cut all now", "error cut: \"now\" is one word too many"),
        ("delay all", "error \"\" is not a number of milliseconds"),
        ("delay all -1", "error \"-1\" is not a number of milliseconds"),
        ("lose-reply all close", "error \"close\" is not a request; expected one of create, create2, "),
    ] {
        let answer = ask(wrong);
        assert!(answer.starts_with(said), "{wrong}: {answer}");
    }
    drop(input);
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_connection_waits_while_the_server_has_no_free_file_descriptor() {
    let limited = format!("ulimit -n 12; exec {PROGRAM} --listen 127.0.0.1:0");
    let program = Program::start(Command::new("sh").args(["-c", &limited]));
    let address = program.address.as_str();
    let files = format!("/proc/{}/fd", program.child.id());
    let is_open = |descriptor: &i32| fs::exists(format!("{files}/{descriptor}")).unwrap();
    let mut client = RawClient::connect(address, 120_000);
    let free = (0..12).filter(|descriptor| !is_open(descriptor));
    let mut others: Vec<_> = free.map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_until(Duration::from_secs(60), || (0..12).all(|descriptor| is_open(&descriptor)));
    // The kernel establishes this connection, but the server can accept it only after it has closed another one.
    let mut waiting = TcpStream::connect(address).unwrap();
    // Without a further attempt, the server accepts the connection when its next session expires.
    waiting.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    waiting.write_all(b"ruok").unwrap();
    // After two replies, the server has handled all earlier events.
    for _ in 0..2 {
        assert_eq!(client.children("/").unwrap(), ["zookeeper"]);
    }
    others.pop();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");
}

#[test]
fn the_manual_page_has_every_option() {
    let help = String::from_utf8(Command::new(PROGRAM).arg("--help").output().unwrap().stdout).unwrap();
    let manual = include_str!("../../packaging/zklock-standalone.1").replace('\\', "");
    let options: Vec<_> = help.split(&[' ', '\n']).filter(|word| word.starts_with("--")).collect();
    assert_eq!(options.len(), 6, "{help}");
    for option in options {
        assert!(manual.contains(option), "{option}");
    }
}

/// A running `zklock-standalone`. Ends when the value is dropped.
struct Program {
    child: Child,
    /// The standard output after the address.
    output: BufReader<ChildStdout>,
    /// The address that the program has printed.
    address: String,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        Self { child, output, address: line.trim_end().to_owned() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
