//! Helpers of the tests: programs that end with their test, and the processes that they started.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zklock_test_support::{RawClient, ZooKeeper, wait_until};
pub(crate) use zklock_test_support::{TEST_TIMEOUT, path, queue, wait_for_queue};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_zklock");
/// All processes of a test have this variable in their environment.
const TAG: &str = "TEST_ZKLOCK_TAG";

/// A call of the program that does not run yet.
pub(crate) struct Call {
    command: Command,
    tag: String,
}

/// A running call. Dropping it ends all its processes.
pub(crate) struct Running {
    child: Child,
    tag: String,
}

/// A process that a call has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) name: String,
    /// The state of the process, for example `T` if a signal has stopped it.
    pub(crate) state: char,
}

/// Returns the name of a file that does not exist.
pub(crate) fn file(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    directory.join(format!("{name}-{}-{}", std::process::id(), unique()))
}

fn unique() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn raw() -> RawClient {
    RawClient::connect(&ZooKeeper::shared().address(), 60_000)
}

/// Makes a call with these arguments on the shared server.
pub(crate) fn zklock(arguments: &[&str]) -> Call {
    zklock_on(&ZooKeeper::shared().address(), arguments)
}

/// Makes a call with these arguments.
pub(crate) fn zklock_on(servers: &str, arguments: &[&str]) -> Call {
    program(PROGRAM, arguments).env("ZKLOCK_SERVERS", servers)
}

/// Makes a call of another program.
pub(crate) fn program(name: &str, arguments: &[&str]) -> Call {
    let tag = format!("{}-{}", std::process::id(), unique());
    reset_signals();
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env(TAG, &tag);
    command.env("ZKLOCK_SERVERS", ZooKeeper::shared().address());
    // The server of a busy machine may need longer than a call that does not wait gives it.
    command.env("ZKLOCK_CONNECT_TIMEOUT", "60s");
    // The machine can have a default file.
    command.env("ZKLOCK_CONFIG", "");
    Call { command, tag }
}

/// Restores the default actions of signals. The program that runs the tests may ignore signals, as nohup does, and its
/// children inherit this.
fn reset_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: The default action is no function of this process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Runs a call and returns its exit code and its standard error.
pub(crate) fn code(arguments: &[&str]) -> (i32, String) {
    let output = zklock(arguments).output();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Runs a call like [`code`] until a server has answered within its time limit. On a busy machine, a short limit can pass
/// while the call connects.
pub(crate) fn code_in_time(arguments: &[&str]) -> (i32, String) {
    const UNAVAILABLE: i32 = 69;
    std::iter::repeat_with(|| code(arguments)).take(20).find(|(code, _)| *code != UNAVAILABLE).unwrap()
}

impl Call {
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    pub(crate) fn start(mut self) -> Running {
        Running { child: self.command.spawn().unwrap(), tag: self.tag }
    }

    pub(crate) fn output(self) -> Output {
        self.start().output()
    }
}

impl Running {
    /// The process id of the wrapper.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub(crate) fn signal(&self, signal: i32) {
        send(self.pid(), signal);
    }

    /// Waits for the end of the wrapper. Returns its exit code, or 1000 plus the signal that ended it.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> i32 {
        let mut status = None;
        wait_until(TEST_TIMEOUT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 1000 + status.signal().unwrap())
    }

    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Reads standard output until all processes have closed it.
    pub(crate) fn standard_output(&mut self) -> String {
        let mut output = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        output
    }

    /// Reads standard error until all processes have closed it.
    pub(crate) fn standard_error(&mut self) -> String {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        errors
    }

    /// Waits for the end of the wrapper, and of all processes that have its standard output.
    #[track_caller]
    pub(crate) fn output(mut self) -> Output {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (mut output, mut errors) = (self.child.stdout.take().unwrap(), self.child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || {
            errors.read_to_end(&mut stderr).unwrap();
            stderr
        });
        output.read_to_end(&mut stdout).unwrap();
        self.wait();
        let status = self.child.wait().unwrap();
        Output { status, stdout, stderr: reader.join().unwrap() }
    }

    /// Returns all processes of the call, except for those that have ended.
    pub(crate) fn processes(&self) -> Vec<Process> {
        tagged(&self.tag)
    }

    /// Returns the process with this name.
    #[track_caller]
    pub(crate) fn process(&self, name: &str) -> Process {
        let mut found = None;
        wait_until(TEST_TIMEOUT, || {
            found = self.processes().into_iter().find(|process| process.name == name);
            found.is_some()
        });
        found.unwrap()
    }

    /// Returns the processes of the tree: all but the wrapper and the guardian.
    pub(crate) fn tree(&self) -> Vec<Process> {
        self.processes().into_iter().filter(|process| !process.name.starts_with("zklock")).collect()
    }

    /// Waits until the tree has this number of processes.
    #[track_caller]
    pub(crate) fn wait_for_tree(&self, count: usize) {
        wait_until(TEST_TIMEOUT, || self.tree().len() == count);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The guardian ends the tree of a killed wrapper, and removes its control group.
        let _ = self.child.kill();
        for _ in 0..400 {
            if self.processes().is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // A process that starts others in a loop is found again.
        for _ in 0..100 {
            let left = self.processes();
            for process in &left {
                // The process may have ended.
                let _ = try_send(process.pid, libc::SIGKILL);
            }
            if left.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process of this test.
#[track_caller]
pub(crate) fn send(pid: i32, signal: i32) {
    try_send(pid, signal).unwrap();
}

/// Sends a signal to a process that may have ended.
pub(crate) fn try_send(pid: i32, signal: i32) -> rustix::io::Result<()> {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::from_named_raw(signal).unwrap())
}

fn tagged(tag: &str) -> Vec<Process> {
    let wanted = format!("{TAG}={tag}");
    let is_tagged = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| is_tagged(pid)).filter_map(process).collect()
}

/// Describes a process that has not ended.
pub(crate) fn process(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (start, rest) = stat.rsplit_once(')')?;
    let state = rest.trim_start().chars().next()?;
    let name = start.split_once('(')?.1.to_owned();
    (!matches!(state, 'Z' | 'X')).then_some(Process { pid, name, state })
}
