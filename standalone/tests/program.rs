//! Tests of the program `zklock-standalone`.

#![allow(clippy::unwrap_used, reason = "a failing test may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_zklock-standalone");

#[test]
fn program_prints_its_address_and_ends_on_sigterm() {
    let mut child = Command::new(PROGRAM).args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end();

    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"ruok").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");

    let second = Command::new(PROGRAM).args(["--listen", address]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let complaint = String::from_utf8(second.stderr).unwrap();
    assert!(complaint.starts_with(&format!("zklock-standalone: cannot listen on {address}: ")), "{complaint}");

    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn program_listens_on_a_host_name_and_rejects_invalid_addresses() {
    let mut child = Command::new(PROGRAM).args(["--listen", "localhost:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address: SocketAddr = line.trim_end().parse().unwrap();
    assert!(address.ip().is_loopback(), "{address}");
    TcpStream::connect(address).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    for bad in ["localhost", "localhost:x", "", "127.0.0.1:99999", "no.such.name.invalid:1"] {
        let refused = Command::new(PROGRAM).args(["--listen", bad]).output().unwrap();
        let complaint = String::from_utf8(refused.stderr).unwrap();
        assert!(complaint.contains(&format!("{bad:?} is not an address to listen on: ")), "{complaint}");
        assert_eq!(refused.status.code(), Some(2));
    }
}

#[test]
fn the_manual_page_has_every_option() {
    let help = String::from_utf8(Command::new(PROGRAM).arg("--help").output().unwrap().stdout).unwrap();
    let manual = include_str!("../../packaging/zklock-standalone.1").replace('\\', "");
    let options: Vec<_> = help.split(&[' ', '\n']).filter(|word| word.starts_with("--")).collect();
    assert_eq!(options.len(), 5, "{help}");
    for option in options {
        assert!(manual.contains(option), "{option}");
    }
}
