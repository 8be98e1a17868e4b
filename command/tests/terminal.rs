//! The command on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use zklock_test_support::{ZooKeeper, flags, wait_until};

use crate::common::{Call, Running, TEST_TIMEOUT, file, path, program, queue, raw, wait_for_queue, zklock, zklock_on};

/// A terminal, and what the programs on it have written.
pub(crate) struct Terminal {
    pub(crate) keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Starts a call as the first program of a new terminal of 80 columns.
    pub(crate) fn start(call: Call) -> (Self, Running) {
        Self::start_with(call, 80)
    }

    /// Starts a call as the first program of a new terminal with this number of columns.
    fn start_with(mut call: Call, columns: u16) -> (Self, Running) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        tcsetwinsize(&controller, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let user = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let stream = || File::from(user.try_clone().unwrap());
        call.command().stdin(stream()).stdout(stream()).stderr(stream());
        let enter = move || {
            setsid()?;
            ioctl_tiocsctty(&user)?;
            Ok(())
        };
        // SAFETY: The closure makes two system calls.
        unsafe { call.command().pre_exec(enter) };
        let running = call.start();
        let (keyboard, screen) = (File::from(controller), Arc::new(Mutex::new(String::new())));
        let (mut output, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        (Self { keyboard, screen }, running)
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Whether a program on the terminal could write to it now. If it accepts output, the call writes a NUL.
    pub(crate) fn accepts_output(&self) -> bool {
        let name = ptsname(&self.keyboard, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match File::from(open(&*name, flags, Mode::empty()).unwrap()).write(b"\0") {
            Ok(length) => length == 1,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                false
            }
        }
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        let since = std::time::Instant::now();
        while !self.screen().contains(text) {
            assert!(since.elapsed() < TEST_TIMEOUT, "{text:?} is not on the screen: {:?}", self.screen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_key_reaches_the_command_once() {
    let script = "trap 'echo interrupted' INT; echo ready; while :; do sleep 0.05; done";
    let (mut terminal, mut call) = Terminal::start(zklock(&["run", &path("key"), "sh", "-c", script]));
    terminal.wait_for("ready");
    terminal.press("\x03");
    terminal.wait_for("interrupted");
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 143);
    assert_eq!(terminal.screen().matches("interrupted").count(), 1, "{}", terminal.screen());
}

#[test]
fn the_command_reads_from_the_terminal() {
    let (mut terminal, mut call) =
        Terminal::start(zklock(&["run", &path("read"), "sh", "-c", "echo ready; read line; echo got $line"]));
    terminal.wait_for("ready");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    assert_eq!(call.wait(), 0);
}

#[test]
fn a_stopped_job_continues_in_the_foreground() {
    let zklock = env!("CARGO_BIN_EXE_zklock");
    let script = format!(
        "{zklock} run -o session.timeout=20000 {} sh -c 'echo ready; read line; echo got $line'; \
         echo stopped $?; fg; echo ended $?",
        path("job")
    );
    let (mut terminal, mut call) = Terminal::start(program("bash", &["-mc", &script]));
    terminal.wait_for("ready");
    terminal.press("\x1a");
    terminal.wait_for("stopped 14");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    terminal.wait_for("ended 0");
    assert_eq!(call.wait(), 0);
}

/// As with `ssh -t HOST zklock run ...`, and in a container.
#[test]
fn without_a_shell_a_stop_key_has_no_effect() {
    let script = "echo ready; read line; echo got $line";
    let (alone, below) = (path("no-shell"), path("no-jobs"));
    let own = env!("CARGO_BIN_EXE_zklock");
    // The second call has a parent in the same process group, a shell without job control.
    for call in [
        zklock(&["run", &alone, "sh", "-c", script]),
        program("sh", &["-c", "\"$@\"; exit $?", "sh", own, "run", &below, "sh", "-c", script]),
    ] {
        let (mut terminal, mut call) = Terminal::start(call);
        terminal.wait_for("ready");
        terminal.press("\x1a");
        terminal.wait_for("^Z");
        terminal.press("hello\n");
        terminal.wait_for("got hello");
        assert_eq!(call.wait(), 0);
    }
}

/// As with `docker exec -t` or a sandbox: the session and the process group of the terminal belong to a parent pid
/// namespace, and have the number 0 in the namespace of the command.
#[test]
fn a_group_of_another_pid_namespace_keeps_the_terminal() {
    let container = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "sh", "-c"];
    let in_container =
        |script: &str| program("unshare", &[&container[..], &[script, "sh", env!("CARGO_BIN_EXE_zklock")]].concat());
    if in_container("true").output().status.code() != Some(0) {
        eprintln!("this test needs unshare(1) and the permission to make pid namespaces");
        return;
    }
    let script =
        format!("\"$1\" run {} sh -c 'echo ready; read line; echo got $line'; echo ended $?", path("container"));
    let (mut terminal, mut call) = Terminal::start(in_container(&script));
    terminal.wait_for("ready");
    terminal.press("\x1a");
    terminal.wait_for("^Z");
    terminal.press("hello\n");
    terminal.wait_for("got hello");
    terminal.wait_for("ended 0");
    assert_eq!(call.wait(), 0);
}

#[test]
fn the_wait_is_one_line_that_updates_itself() {
    let path = path("progress");
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let (mut terminal, mut call) = Terminal::start(zklock(&["run", &path, "true"]));
    let end = &path[path.len() - 8..];
    terminal.wait_for(&format!("{end}: 1 ahead; held "));
    terminal.wait_for("(sleep)\x1b[K");
    terminal.wait_for("waiting 2s for");
    terminal.press("\x03");
    assert_eq!(call.wait(), 130);
    wait_until(TEST_TIMEOUT, || terminal.screen().ends_with("\r\x1b[K"));
    let screen = terminal.screen().replace("^C", "");
    assert!(!screen.contains('\n') || screen.lines().count() == 1, "{screen:?}");
    assert!(screen.split('\r').all(|line| line.trim_end_matches("\x1b[K").chars().count() < 80), "{screen:?}");
}

#[test]
fn a_tree_that_zklock_ends_leaves_the_terminal_as_it_was() {
    let script = "stty -echo -icanon; echo ready; sleep 60";
    let (path, mut raw) = (path("settings"), raw());
    let (terminal, mut call) = Terminal::start(zklock(&["run", &path, "sh", "-c", script]));
    terminal.wait_for("ready");
    let has_echo =
        || tcgetattr(&terminal.keyboard).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON);
    assert!(!has_echo());
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 79);
    assert!(has_echo());
}

#[test]
fn a_hold_that_is_lost_says_so_on_its_terminal() {
    let (path, mut raw) = (path("interactive"), raw());
    let script =
        format!("{} hold --for 60s {path} >/dev/null; read line; echo got $line", env!("CARGO_BIN_EXE_zklock"));
    let (mut terminal, mut call) = Terminal::start(program("sh", &["-c", &script]));
    wait_for_queue(&mut raw, &path, 1);
    call.process("zklock-holder");
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    terminal.wait_for(&format!("zklock: {path}: the lock is lost or can no longer be confirmed"));
    terminal.press("x\n");
    assert_eq!(call.wait(), 0);
}

#[test]
fn a_slow_connect_is_shown() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    for call in [&["run", "/a", "true"][..], &["status", "/a"], &["hold", "/a"]] {
        let (mut terminal, mut call) = Terminal::start(zklock_on(&silent, call));
        terminal.wait_for(&format!("connecting for 1s to {silent} ..."));
        terminal.press("\x03");
        assert!([130, 1002].contains(&call.wait()));
    }
}

/// A serial console, for example, does not know its size.
#[test]
fn a_terminal_without_a_size_shows_the_whole_line_of_the_wait() {
    let path = path("size");
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let (mut terminal, mut call) = Terminal::start_with(zklock(&["run", &path, "true"]), 0);
    terminal.wait_for(": 1 ahead; held ");
    terminal.press("\x03");
    assert_eq!(call.wait(), 130);
}

/// Replaces what differs from run to run: addresses, ages, dates and numbers. Columns may have another width then.
fn masked(text: &str) -> Vec<String> {
    let has_digits = |word: &str| word.contains(|letter: char| letter.is_ascii_digit());
    let is_age = |word: &str| has_digits(word) && word.ends_with(['s', 'm', 'h']) && !word.contains(':');
    let mask = |word: &str| match word {
        _ if word.contains(':') && !word.ends_with(':') => "ADDRESS".to_owned(),
        _ if is_age(word) => "AGE".to_owned(),
        _ if word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte)) => {
            "NUMBER".to_owned()
        }
        _ => word.to_owned(),
    };
    let line = |line: &str| {
        let indented = line.len() - line.trim_start().len();
        let words: Vec<String> = line.split_whitespace().map(mask).collect();
        " ".repeat(indented) + &words.join(" ")
    };
    text.lines().map(line).collect()
}

/// A terminal shows what `docs/command.md` shows.
#[test]
fn the_page_shows_what_a_terminal_shows() {
    let (page, programs, root) = (include_str!("../../docs/command.md"), file("programs"), path("captures"));
    let servers = format!("{}{root}", ZooKeeper::shared().address());
    let mut raw = raw();
    for (at, _) in root.match_indices('/').skip(1).chain([(root.len(), "")]) {
        _ = raw.create(&root[..at], b"", flags::PERSISTENT);
    }
    std::fs::create_dir(&programs).unwrap();
    let mut calls = Vec::new();
    let mut start = |arguments: &[&str], name: &str| {
        let program = programs.join(name);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap_or_default();
        let arguments = [&["run"], arguments, &[program.to_str().unwrap(), "60"]].concat();
        calls.push(zklock_on(&servers, &arguments).env("USER", "root").start());
    };
    let mut wait = |path: &str, length| wait_for_queue(&mut raw, &format!("{root}{path}"), length);
    for lease in 1..=3 {
        start(&["--semaphore", "3", "/locks/api"], "crawl");
        wait("/locks/api/leases", lease);
    }
    for (length, (option, name)) in (1..).zip([("-s", "deploy"), ("-x", "change")]) {
        start(&[option, "/locks/config"], name);
        wait("/locks/config", length);
    }
    for length in 1..=5 {
        start(&["/locks/deploy/prod"], "report.sh");
        wait("/locks/deploy/prod", length);
    }
    for (begin, columns) in [("```console\n$ zklock ls", 80), ("```console\n$ zklock top", 100)] {
        let (_, rest) = page.split_once(begin).unwrap();
        let (rest, _) = rest.split_once("```").unwrap();
        let examples = format!("{begin}{rest}");
        for example in examples.split("$ zklock ").skip(1) {
            let (arguments, expected) = example.split_once('\n').unwrap();
            let arguments: Vec<&str> = arguments.split_whitespace().collect();
            let call = zklock_on(&servers, &arguments).env("TZ", "UTC");
            let (terminal, mut call) = Terminal::start_with(call, columns);
            assert_eq!(call.wait(), 0);
            // The output of a program that has ended may still be on its way to the screen.
            wait_until(TEST_TIMEOUT, || terminal.screen().lines().count() >= expected.lines().count());
            assert_eq!(masked(&terminal.screen()), masked(expected), "{}", terminal.screen());
            let is_fitting = |line: &str| line.chars().count() <= columns.into();
            assert!(terminal.screen().lines().all(is_fitting), "{}", terminal.screen());
        }
    }
    let (_, expected) = page.split_once("`waiting ").unwrap();
    let (expected, _) = expected.split_once('`').unwrap();
    start(&["/locks/nightly"], "report.sh");
    wait("/locks/nightly", 1);
    let (terminal, _call) = Terminal::start(zklock_on(&servers, &["run", "/locks/nightly", "true"]));
    wait_until(TEST_TIMEOUT, || {
        terminal
            .screen()
            .split('\r')
            .any(|line| masked(line.trim_end_matches("\x1b[K")) == masked(&format!("waiting {expected}")))
    });
    std::fs::remove_dir_all(&programs).unwrap();
}
