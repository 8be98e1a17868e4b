//! Hostile servers and the memory of their clients. Whatever a server sends, a client with default settings needs
//! less than [`LIMIT`] bytes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::any::Any;
use std::env;
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::TEST_TIMEOUT;
use zklock::{Client, Config, Owner, Status};
use zklock_test_support::wait_until;

/// The memory that a client may need, in bytes.
const LIMIT: usize = 64 << 20;
const MIB: usize = 1 << 20;
/// A list of this number of contenders is just short enough for a client.
const MOST_NAMES: usize = 131_000;

const CLOSE: i32 = -11;
const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const LIST: i32 = 12;
const MULTI: i32 = 14;
const CREATE_2: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const AUTH: i32 = 100;

const AUTH_XID: i32 = -4;
const EVENT_XID: i32 = -1;

struct Case {
    name: &'static str,
    hostility: Hostility,
    options: &'static [(&'static str, &'static str)],
    program: Program,
    /// The number of hostile answers that the server sends.
    answers: usize,
}

/// Answers a request in a hostile way, or returns false if the server answers as usual.
type Hostility = fn(&mut Connection, &Request) -> io::Result<bool>;

/// Starts calls of the client. The calls last until the result is dropped.
type Program = fn(&Client) -> Vec<Box<dyn Any>>;

/// A request: its xid, its type, and its body.
struct Request {
    xid: i32,
    op: i32,
    body: Vec<u8>,
}

struct Connection {
    stream: BufWriter<TcpStream>,
    /// The name of the node that the client has created last, and the number of created nodes.
    created: String,
    count: usize,
}

/// The number of hostile answers that the server of the present case has sent completely, and whether it sends more.
static ANSWERED: AtomicUsize = AtomicUsize::new(0);
static IS_HOSTILE: AtomicBool = AtomicBool::new(false);

const FOLLOW: &[(&str, &str)] = &[("servers.follow_config", "true")];
const CREDENTIALS: &[(&str, &str)] = &[("auth.digest", "user:password")];

const CASES: &[Case] = &[
    case("a long list", acquire, 1, |c, r| c.list(r, MOST_NAMES, 60)),
    case("a list of short names", acquire, 1, |c, r| c.list(r, MOST_NAMES, 0)),
    case("a list of long names", acquire, 1, |c, r| c.list(r, 8, MIB - 100)),
    case("too long a list", acquire, 1, |c, r| c.list(r, 1_000_000, 60)),
    case("too many names", acquire, 1, |c, r| c.list(r, 1_000_000, 0)),
    case("a long list for each of many", acquire_many, 8, |c, r| c.list(r, MOST_NAMES, 60)),
    case("long participants", participants, 1, |c, r| c.list(r, MOST_NAMES, 60)),
    case("participants with 500 KB", participants, 65, |c, r| c.participants(r, 600, 500_000)),
    case("participants with 1 MB", participants, 2, |c, r| c.participants(r, 600, MIB - 200)),
    case("participants with 250 bytes", participants, 65_001, |c, r| c.participants(r, 65_000, 250)),
    case("many participants", participants, 100001, |c, r| c.participants(r, 100_000, 50)),
    case("long paths of created nodes", acquire_many, 8, Connection::long_path),
    case("many results of a transaction", acquire_many, 8, Connection::many_results),
    case("many short events", acquire, 1, |c, r| c.events(r, 100_000, 20)),
    case("long events", acquire, 1, |c, r| c.events(r, 200, MIB - 100)),
    case("long answers to credentials", acquire, 1, Connection::long_auth_reply).with(CREDENTIALS),
    case("a configuration with long lines", acquire, 1, |c, r| {
        c.configuration(r, &"server.1=h:1:1;1\n".repeat(60_000))
    })
    .with(FOLLOW),
    case("a configuration with a wrong line", acquire, 1, |c, r| {
        c.configuration(r, &format!("server.1={}\n", "x".repeat(MIB - 200)))
    })
    .with(FOLLOW),
];

const fn case(name: &'static str, program: Program, answers: usize, hostility: Hostility) -> Case {
    Case { name, hostility, options: &[], program, answers }
}

impl Case {
    const fn with(self, options: &'static [(&'static str, &'static str)]) -> Self {
        Self { options, ..self }
    }
}

/// Answers a connect request.
type Handshake = fn(&mut Connection) -> io::Result<()>;

const HANDSHAKES: &[(&str, Handshake)] = &[
    ("a long connect response", |c| {
        let len = MIB - 30;
        c.frame(&[&0_i32.to_be_bytes(), &3_000_i32.to_be_bytes(), &77_i64.to_be_bytes(), &int(len)], len, &[0])
    }),
    ("a connect response without an end", |c| c.frame(&[], 1 << 30, &[])),
    ("events in place of a connect response", |c| (0..100).try_for_each(|_| c.event(3, MIB - 100))),
];

/// The test starts a process for each client. The variable contains the index of the case and the server's address.
const CLIENT: &str = "TEST_ZKLOCK_CLIENT";

#[test]
#[ignore = "part of make verify"]
fn no_server_makes_a_client_use_more_than_64_mb() {
    if let Ok(client) = env::var(CLIENT) {
        let (case, address) = client.split_once(' ').unwrap();
        return run_client(case.parse().ok().map(|case: usize| &CASES[case]), address);
    }
    let mut used = Vec::new();
    for &(name, handshake) in HANDSHAKES {
        let process = start_client("none", &serve(handshake));
        used.push((memory_of(process), name));
    }
    for (number, &Case { name, hostility, answers, .. }) in CASES.iter().enumerate() {
        ANSWERED.store(0, Ordering::SeqCst);
        IS_HOSTILE.store(true, Ordering::SeqCst);
        let process = start_client(&number.to_string(), &serve(move |connection| connection.serve(hostility)));
        wait_until(TEST_TIMEOUT, || ANSWERED.load(Ordering::SeqCst) >= answers);
        IS_HOSTILE.store(false, Ordering::SeqCst);
        used.push((memory_of(process), name));
    }
    let list: Vec<_> = used.iter().map(|(bytes, name)| format!("{} KB: {name}", bytes >> 10)).collect();
    assert!(used.iter().all(|&(bytes, _)| bytes < LIMIT), "more than {LIMIT} bytes: {list:#?}");
}

fn start_client(case: &str, address: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--nocapture", "--ignored", "--exact", "no_server_makes_a_client_use_more_than_64_mb"]);
    command.env(CLIENT, format!("{case} {address}")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Returns the memory that a client has needed, after it has received all answers.
fn memory_of(process: Child) -> usize {
    let output = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
    let used = output.lines().find_map(|line| line.strip_prefix("used ")).unwrap_or_else(|| panic!("{output}"));
    used.parse().unwrap()
}

fn run_client(case: Option<&Case>, address: &str) {
    let before = memory("VmRSS:");
    if let Some(Case { options, program, .. }) = case {
        let mut config = Config::new().session_timeout(TEST_TIMEOUT);
        for (option, value) in *options {
            config.set(option, value).unwrap();
        }
        let client = Client::connect(address, &config).unwrap();
        let calls = program(&client);
        // The input ends when the server has sent enough. Closing the client needs one answer more.
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
        drop(calls);
        client.close().unwrap();
    } else {
        // The client may use the session, but gets no answer.
        drop(Client::connect(address, &Config::new().connect_timeout(Duration::from_secs(1))));
    }
    println!("\nused {}", memory("VmHWM:") - before);
}

fn acquire(client: &Client) -> Vec<Box<dyn Any>> {
    start_acquires(client, 1)
}

fn acquire_many(client: &Client) -> Vec<Box<dyn Any>> {
    start_acquires(client, 8)
}

fn start_acquires(client: &Client, count: usize) -> Vec<Box<dyn Any>> {
    let start = |number| {
        let lock = client.mutex(&format!("/{number}")).unwrap();
        Box::new(lock.start_acquire(Owner::task(1), None).unwrap()) as Box<dyn Any>
    };
    (0..count).map(start).collect()
}

fn participants(client: &Client) -> Vec<Box<dyn Any>> {
    let result = client.mutex("/lock").unwrap().participants();
    assert!(result.is_ok() || result.is_err_and(|error| error.status() == Status::Exhausted));
    vec![Box::new(())]
}

/// A value of `/proc/self/status` in bytes.
fn memory(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Starts a server that handles each connection after its connect request. Returns the address.
fn serve(handle: impl Fn(&mut Connection) -> io::Result<()> + Send + Sync + Copy + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || {
                receive(&mut stream)?;
                handle(&mut Connection { stream: BufWriter::new(stream), created: String::new(), count: 0 })
            });
        }
    });
    address
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn int(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap().to_be_bytes()
}

fn number(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn contender(number: usize) -> String {
    format!("_c_00000000-0000-4000-8000-{number:012x}-lock-{number:010}")
}

impl Connection {
    fn serve(&mut self, hostility: Hostility) -> io::Result<()> {
        let numbers = [&0_i32.to_be_bytes()[..], &60_000_i32.to_be_bytes(), &77_i64.to_be_bytes(), &int(16)].concat();
        self.frame(&[&numbers], 16, &[0])?;
        loop {
            self.stream.flush()?;
            let body = receive(self.stream.get_mut())?;
            let request = Request { xid: number(&body, 0), op: number(&body, 4), body };
            if IS_HOSTILE.load(Ordering::SeqCst) && hostility(self, &request)? {
                ANSWERED.fetch_add(1, Ordering::SeqCst);
            } else {
                self.answer(&request)?;
            }
        }
    }

    /// Writes a frame that consists of a head, a number of zeros, and a tail.
    fn frame(&mut self, head: &[&[u8]], zeros: usize, tail: &[u8]) -> io::Result<()> {
        let head = head.concat();
        self.stream.write_all(&int(head.len() + zeros + tail.len()))?;
        self.stream.write_all(&head)?;
        io::copy(&mut io::repeat(0).take(zeros as u64), &mut self.stream)?;
        self.stream.write_all(tail)?;
        self.stream.flush()
    }

    /// Writes a successful reply.
    fn reply(&mut self, xid: i32, body: &[&[u8]]) -> io::Result<()> {
        self.frame(&[&xid.to_be_bytes(), &1_i64.to_be_bytes(), &[0; 4], &body.concat()], 0, &[])
    }

    fn answer(&mut self, request: &Request) -> io::Result<()> {
        let stat = [0; 68];
        match request.op {
            CREATE | CREATE_2 | CREATE_CONTAINER => {
                let len = usize::try_from(number(&request.body, 8)).unwrap();
                let mut path = String::from_utf8(request.body[12..12 + len].to_vec()).unwrap();
                if path.ends_with('-') {
                    path += &format!("{:010}", 2_000_000 + self.count);
                    self.created = path.rsplit_once('/').unwrap().1.to_owned();
                    self.count += 1;
                }
                let stat = if request.op == CREATE { &[][..] } else { &stat };
                self.reply(request.xid, &[&int(path.len()), path.as_bytes(), stat])
            }
            EXISTS => self.reply(request.xid, &[&stat]),
            GET_DATA => self.reply(request.xid, &[&int(0), &stat]),
            LIST => self.names(request, 0, 0).map(drop),
            // The check of the lease has failed: the session is not confirmed, and continues.
            MULTI => {
                let result =
                    [&(-1_i32).to_be_bytes()[..], &[0], &(-2_i32).to_be_bytes(), &(-2_i32).to_be_bytes()].concat();
                self.reply(request.xid, &[&result, &(-1_i32).to_be_bytes(), &[1], &(-1_i32).to_be_bytes()])
            }
            AUTH => self.reply(AUTH_XID, &[]),
            CLOSE => {
                self.reply(request.xid, &[])?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            _ => self.reply(request.xid, &[]),
        }
    }

    /// Answers a list request with this number of names that begin with `len` bytes, and the own name of the client.
    fn names(&mut self, request: &Request, count: usize, len: usize) -> io::Result<()> {
        let name = |number| {
            if len == 0 {
                "a".to_owned()
            } else {
                format!("{}{}", "x".repeat(len.saturating_sub(60)), contender(number))
            }
        };
        let name_len = if len == 0 { 1 } else { len.saturating_sub(60) + contender(0).len() };
        let own = self.created.clone();
        let body = 16 + 4 + count * (4 + name_len) + 4 + own.len() + 68;
        self.stream.write_all(&int(body))?;
        self.stream
            .write_all(&[&request.xid.to_be_bytes()[..], &1_i64.to_be_bytes(), &[0; 4], &int(count + 1)].concat())?;
        for number in 0..count {
            self.stream.write_all(&int(name_len))?;
            self.stream.write_all(name(number).as_bytes())?;
        }
        self.stream.write_all(&[&int(own.len())[..], own.as_bytes(), &[0; 68]].concat())?;
        self.stream.flush()
    }

    fn event(&mut self, kind: i32, path: usize) -> io::Result<()> {
        let head =
            [&EVENT_XID.to_be_bytes()[..], &(-1_i64).to_be_bytes(), &[0; 4], &kind.to_be_bytes(), &3_i32.to_be_bytes()];
        let path = format!("/{}", "x".repeat(path));
        self.frame(&[&head.concat(), &int(path.len()), path.as_bytes()], 0, &[])
    }

    // Hostilities.

    fn list(&mut self, request: &Request, count: usize, len: usize) -> io::Result<bool> {
        if request.op == LIST {
            self.names(request, count, len)?;
        }
        Ok(request.op == LIST)
    }

    fn participants(&mut self, request: &Request, count: usize, data: usize) -> io::Result<bool> {
        if request.op == GET_DATA {
            self.frame(&[&request.xid.to_be_bytes(), &1_i64.to_be_bytes(), &[0; 4], &int(data)], data, &[0; 68])?;
        }
        Ok(self.list(request, count, 60)? || request.op == GET_DATA)
    }

    fn long_path(&mut self, request: &Request) -> io::Result<bool> {
        let is_create = matches!(request.op, CREATE | CREATE_2);
        if is_create {
            let len = MIB - 200;
            let stat = if request.op == CREATE { &[][..] } else { &[0; 68] };
            let name = [&b"/0/"[..], &b"x".repeat(len), contender(1).as_bytes()].concat();
            self.reply(request.xid, &[&int(name.len()), &name, stat])?;
        }
        Ok(is_create)
    }

    fn many_results(&mut self, request: &Request) -> io::Result<bool> {
        // The results are those of deletions, which are the shortest.
        let result = [&2_i32.to_be_bytes()[..], &[0], &0_i32.to_be_bytes()].concat();
        self.reply(request.xid, &[&result.repeat(110_000), &(-1_i32).to_be_bytes(), &[1], &(-1_i32).to_be_bytes()])?;
        Ok(true)
    }

    fn events(&mut self, request: &Request, count: usize, len: usize) -> io::Result<bool> {
        for kind in (1..=4).cycle().take(count) {
            self.event(kind, len)?;
        }
        self.answer(request)?;
        Ok(true)
    }

    fn long_auth_reply(&mut self, request: &Request) -> io::Result<bool> {
        let xid = if request.op == AUTH { AUTH_XID } else { request.xid };
        self.frame(&[&xid.to_be_bytes(), &1_i64.to_be_bytes(), &[0; 4]], MIB - 100, &[])?;
        Ok(true)
    }

    fn configuration(&mut self, request: &Request, content: &str) -> io::Result<bool> {
        if request.op == GET_DATA {
            self.reply(request.xid, &[&int(content.len()), content.as_bytes(), &[0; 68]])?;
        }
        Ok(request.op == GET_DATA)
    }
}
