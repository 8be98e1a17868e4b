//! `zklock top`: the live view on a terminal, and its output without one.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, flags, wait_until};

use crate::common::{
    Call, PROGRAM, Running, TEST_TIMEOUT, code, file, path, program, raw, send, wait_for_queue, zklock, zklock_on,
};
use crate::observe::{curator, lock_nodes, output};
use crate::terminal::Terminal;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// A view that refreshes often, so that tests wait for little.
fn view(root: &str) -> Call {
    view_on(&ZooKeeper::shared().address(), &["-d", "100ms", root])
}

fn view_on(servers: &str, arguments: &[&str]) -> Call {
    zklock_on(servers, &[&["top"], arguments].concat()).env("TERM", "xterm")
}

/// Returns the lines that the terminal shows now.
fn frame(terminal: &Terminal) -> Vec<String> {
    let screen = terminal.screen();
    let frames: Vec<&str> = screen.split("\x1b[H").skip(1).filter(|frame| frame.contains("\x1b[J")).collect();
    let frame = frames.last().and_then(|frame| frame.split("\x1b[J").next()).unwrap_or_default();
    frame.split("\r\n").map(|line| line.replace("\x1b[K", "").trim_end().to_owned()).collect()
}

/// Waits for a frame with certain lines.
#[track_caller]
fn wait_for(terminal: &Terminal, mut is_wanted: impl FnMut(&[String]) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    let since = std::time::Instant::now();
    loop {
        lines.clone_from(&frame(terminal));
        if is_wanted(&lines) {
            return lines;
        }
        assert!(since.elapsed() < TEST_TIMEOUT, "{}", lines.join("\n"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[track_caller]
fn wait_for_text(terminal: &Terminal, text: &str) -> Vec<String> {
    wait_for(terminal, |lines| lines.iter().any(|line| line.contains(text)))
}

/// Returns the names of the locks below `root`, in the order of the frame.
fn names(lines: &[String], root: &str) -> Vec<String> {
    // A long path is shown by its end.
    let end = format!("{}/", &root[root.len() - 4..]);
    lines.iter().filter_map(|line| Some(line.split_once(&end)?.1.split(' ').next()?.to_owned())).collect()
}

/// Whether the terminal passes lines on, and shows the keys.
fn is_restored(terminal: &Terminal) -> bool {
    let modes = tcgetattr(&terminal.keyboard).unwrap().local_modes;
    let screen = terminal.screen();
    let is_left = screen.rfind(LEAVE) > screen.rfind(ENTER);
    is_left && modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
}

/// Starts a holder, and a number of waiters one after the other.
fn start_queue(path: &str, waiters: usize) -> Vec<Running> {
    let mut raw = raw();
    let start = |length| {
        let call = zklock(&["run", path, "sleep", "60"]).start();
        wait_for_queue(&mut raw, path, length);
        call
    };
    (1..=waiters + 1).map(start).collect()
}

#[test]
fn the_locks_with_the_longest_wait_come_first_and_a_key_changes_the_order() {
    let (root, mut raw) = (path("top"), raw());
    for (name, length) in [("quiet", 1), ("old", 2), ("long", 3)] {
        lock_nodes(&mut raw, &format!("{root}/{name}"), &vec![&*curator("lock-"); length]);
        // The server counts the age of a node in milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let (mut terminal, mut call) = Terminal::start(view(&root));
    let lines = wait_for_text(&terminal, "3 locks, 3 holders, 3 waiters; longest wait first");
    assert_eq!(names(&lines, &root), ["old", "long", "quiet"], "{lines:?}");
    assert!(lines[1].starts_with("connected, round trip "), "{lines:?}");
    let of = |name: &str| lines.iter().find(|line| line.contains(&format!("/{name} "))).unwrap();
    let words: Vec<&str> = of("long").split_whitespace().collect();
    assert_eq!((words[1], words[3]), ("mutex", "2"), "{words:?}");
    assert!(of("long").ends_with("10.0.0.7"), "{lines:?}");
    assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
    terminal.press("s");
    let lines = wait_for_text(&terminal, "longest queue first");
    assert_eq!(names(&lines, &root), ["long", "old", "quiet"], "{lines:?}");
    terminal.press("s");
    let lines = wait_for_text(&terminal, "longest hold first");
    assert_eq!(names(&lines, &root), ["quiet", "old", "long"], "{lines:?}");
    terminal.press("s");
    let lines = wait_for_text(&terminal, "in the order of the paths");
    assert_eq!(names(&lines, &root), ["long", "old", "quiet"], "{lines:?}");
    terminal.press("q");
    assert_eq!(call.wait(), 0);
    wait_until(TEST_TIMEOUT, || is_restored(&terminal));
}

#[test]
fn a_lock_with_a_new_holder_is_marked_until_the_next_refresh() {
    let root = path("mark");
    let _other = start_queue(&format!("{root}/other"), 0);
    let calls = start_queue(&format!("{root}/lock"), 1);
    // Only the space key refreshes.
    let (mut terminal, _view) = Terminal::start(view_on(&ZooKeeper::shared().address(), &["-d", "1h", &root]));
    let marked = |lines: &[String]| lines.iter().filter(|line| line.starts_with('*')).cloned().collect::<Vec<_>>();
    assert_eq!(marked(&wait_for_text(&terminal, "2 holders, 1 waiter;")), [""; 0]);
    calls[0].signal(libc::SIGTERM);
    calls[1].wait_for_tree(1);
    terminal.press(" ");
    let lines = marked(&wait_for_text(&terminal, "2 holders, 0 waiters;"));
    assert!(lines.len() == 1 && lines[0].contains(&format!(":{} ", calls[1].pid())), "{lines:?}");
    terminal.press(" ");
    wait_for(&terminal, |lines| marked(lines).is_empty());
}

/// As when a user presses Ctrl-S and later Ctrl-Q.
#[test]
fn a_terminal_that_was_stopped_shows_the_last_refresh() {
    let (proxy, root, replies) = (Proxy::start(&ZooKeeper::shared().address()), path("stopped"), Arc::default());
    let _holder = start_queue(&format!("{root}/lock"), 0);
    let counter: Arc<AtomicUsize> = Arc::clone(&replies);
    proxy.hook(move |direction, frame| {
        let is_reply = frame.len() >= 16 && i32::from_be_bytes(*frame.first_chunk().unwrap()) > 0;
        if direction == Direction::ToClient && is_reply {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Verdict::Forward
    });
    // Only the first frame and the first refresh change the screen.
    let script = format!("echo ready; read -r _; exec {PROGRAM} top -d 1h {root}");
    let mut call = program("sh", &["-c", &script]).env("TERM", "xterm");
    call = call.env("ZKLOCK_SERVERS", &proxy.address());
    let (mut terminal, call) = Terminal::start(call);
    terminal.wait_for("ready");
    terminal.press("\x13\n");
    let threads = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", call.pid())).unwrap();
        let names = tasks.flatten().map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.collect::<BTreeSet<_>>()
    };
    // The refresh lists two nodes and reads one.
    wait_until(TEST_TIMEOUT, || replies.load(Ordering::SeqCst) >= 3 && !threads().contains("zklock-refresh\n"));
    // The view needs 20 ms before it draws again. If the machine is slower, the test checks less.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!terminal.screen().contains(ENTER), "{:?}", terminal.screen());
    terminal.press("\x11");
    wait_for_text(&terminal, "1 lock, 1 holder, ");
}

#[test]
fn a_pause_keeps_the_list_until_it_ends() {
    let root = path("pause");
    let _first = start_queue(&format!("{root}/a"), 0);
    let (mut terminal, _view) = Terminal::start(view(&root));
    wait_for_text(&terminal, "1 lock, ");
    terminal.press("p");
    wait_for_text(&terminal, "paused; ");
    let _second = start_queue(&format!("{root}/b"), 0);
    terminal.press("s");
    wait_for_text(&terminal, "1 lock, 1 holder, 0 waiters; longest queue first");
    terminal.press(" ");
    wait_for_text(&terminal, "2 locks, ");
    let _third = start_queue(&format!("{root}/c"), 0);
    terminal.press("p");
    let lines = wait_for_text(&terminal, "3 locks, ");
    assert!(!lines[1].contains("paused"), "{lines:?}");
}

#[test]
fn every_end_restores_the_terminal() {
    let root = path("ends");
    type End = fn(&mut Terminal, &Running);
    let ends: [(End, i32); 5] = [
        (|terminal, _| terminal.press("q"), 0),
        (|terminal, _| terminal.press("\x03"), 130),
        (|_, call| call.signal(libc::SIGTERM), 143),
        (|_, call| call.signal(libc::SIGHUP), 129),
        (|_, call| call.signal(libc::SIGQUIT), 131),
    ];
    for (end, expected) in ends {
        let (mut terminal, mut call) = Terminal::start(view(&root));
        terminal.wait_for(ENTER);
        wait_until(TEST_TIMEOUT, || !tcgetattr(&terminal.keyboard).unwrap().local_modes.contains(LocalModes::ICANON));
        end(&mut terminal, &call);
        assert_eq!(call.wait(), expected);
        wait_until(TEST_TIMEOUT, || is_restored(&terminal));
    }
}

#[test]
fn an_error_of_the_servers_restores_the_terminal() {
    let (proxy, fails) = (Proxy::start(&ZooKeeper::shared().address()), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&fails);
    proxy.hook(move |direction, frame| {
        // A reply has a positive number, the zxid and the error code.
        let is_reply = frame.len() >= 16 && i32::from_be_bytes(*frame.first_chunk().unwrap()) > 0;
        if direction == Direction::ToClient && is_reply && flag.load(Ordering::SeqCst) {
            frame.truncate(16);
            frame[12..].copy_from_slice(&(-1_i32).to_be_bytes());
        }
        Verdict::Forward
    });
    let (terminal, mut call) = Terminal::start(view_on(&proxy.address(), &["-d", "100ms", &path("error")]));
    terminal.wait_for("does not exist");
    fails.store(true, Ordering::SeqCst);
    assert_eq!(call.wait(), 69);
    terminal.wait_for("zklock: ");
    assert!(is_restored(&terminal), "{:?}", terminal.screen());
}

#[test]
fn a_stopped_view_leaves_the_terminal_to_the_shell() {
    // The view cannot restore the terminal before a STOP. An interactive shell then does what stty does here.
    for signal in [libc::SIGTSTP, libc::SIGSTOP] {
        let script = format!(
            "{PROGRAM} top -d 100ms {}; echo stopped $?; stty -a | grep -o ' -*icanon'; stty sane; fg >/dev/null; \
             echo ended $?",
            path("job")
        );
        let (mut terminal, mut call) = Terminal::start(program("bash", &["-mc", &script]).env("TERM", "xterm"));
        terminal.wait_for("does not exist");
        if signal == libc::SIGTSTP {
            terminal.press("\x1a");
        } else {
            send(call.process("zklock").pid, signal);
        }
        terminal.wait_for("stopped 14");
        wait_until(TEST_TIMEOUT, || terminal.screen().matches(ENTER).count() == 2);
        let screen = terminal.screen();
        if signal == libc::SIGTSTP {
            let (view, shell) = screen.split_once("stopped 14").unwrap();
            assert!(view.contains(LEAVE) && shell.contains(" icanon"), "{screen:?}");
        }
        terminal.press("q");
        terminal.wait_for("ended 0");
        assert_eq!(call.wait(), 0);
        assert!(is_restored(&terminal));
    }
}

#[test]
fn a_terminal_that_accepts_no_output_does_not_delay_a_signal() {
    let (proxy, requests) = (Proxy::start(&ZooKeeper::shared().address()), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&requests);
    proxy.hook(move |direction, _| {
        count.fetch_add(usize::from(direction == Direction::ToServer), Ordering::SeqCst);
        Verdict::Forward
    });
    let (mut terminal, mut call) = Terminal::start(view_on(&proxy.address(), &["-d", "100ms", &path("flow")]));
    terminal.wait_for("does not exist");
    terminal.press("\x13");
    wait_until(TEST_TIMEOUT, || !terminal.accepts_output());
    // The view draws a frame after each refresh. After several refreshes, a frame waits for the terminal.
    let before = requests.load(Ordering::SeqCst);
    wait_until(TEST_TIMEOUT, || requests.load(Ordering::SeqCst) > before + 8);
    assert!(!terminal.accepts_output());
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 143);
}

#[test]
fn a_lost_connection_is_shown_until_it_is_back() {
    let (proxy, root) = (Proxy::start(&ZooKeeper::shared().address()), path("lost"));
    let _holder = start_queue(&format!("{root}/a"), 0);
    let arguments = ["-o", "session.timeout=4000", "-d", "100ms", &root];
    let (mut terminal, mut call) = Terminal::start(view_on(&proxy.address(), &arguments));
    wait_for_text(&terminal, "1 lock, ");
    proxy.refuse(true);
    proxy.cut();
    // The requests of a refresh fail after the session timeout.
    let is_long = |line: &str| !(0..6).any(|seconds| line.ends_with(&format!("({seconds}s)")));
    let lines = wait_for(&terminal, |lines| lines[1].contains("no connection since ") && is_long(&lines[1]));
    assert_eq!(names(&lines, &root), ["a"], "the last list is still shown: {lines:?}");
    let _other = start_queue(&format!("{root}/b"), 0);
    proxy.refuse(false);
    let lines = wait_for_text(&terminal, "2 locks, ");
    assert!(lines[1].starts_with("connected, "), "{lines:?}");
    proxy.refuse(true);
    proxy.cut();
    wait_for_text(&terminal, "no connection since ");
    terminal.press("q");
    assert_eq!(call.wait(), 0);
}

#[test]
fn servers_that_do_not_answer_are_shown_and_keys_still_work() {
    let (proxy, root) = (Proxy::start(&ZooKeeper::shared().address()), path("silent"));
    let arguments = ["-o", "session.timeout=30000", "-d", "100ms", &root];
    let (mut terminal, mut call) = Terminal::start(view_on(&proxy.address(), &arguments));
    wait_for_text(&terminal, "does not exist");
    proxy.black_hole(true);
    wait_for_text(&terminal, "connected; the refresh has run for ");
    terminal.press("q");
    assert_eq!(call.wait(), 0);
    wait_until(TEST_TIMEOUT, || is_restored(&terminal));
}

#[test]
fn a_missing_path_is_shown_until_it_has_locks() {
    let root = path("missing");
    let (terminal, _call) = Terminal::start(view(&root));
    wait_for_text(&terminal, "does not exist, so every lock below it is free");
    let mut raw = raw();
    lock_nodes(&mut raw, &root, &[]);
    wait_for_text(&terminal, "is held or waited for");
    lock_nodes(&mut raw, &format!("{root}/lock"), &[&curator("lock-")]);
    let lines = wait_for_text(&terminal, "1 lock, ");
    assert!(names(&lines, &root) == ["lock"] && lines.iter().any(|line| line.ends_with("10.0.0.7")), "{lines:?}");
}

#[test]
fn the_view_fits_the_terminal_also_after_a_change_of_its_size() {
    let (root, mut raw) = (path("size"), raw());
    for at in 0..30 {
        lock_nodes(&mut raw, &format!("{root}/a-lock-with-a-long-name-{at:02}"), &[&curator("lock-")]);
    }
    let (terminal, _call) = Terminal::start(view(&root));
    for (rows, columns) in [(24, 80), (12, 60), (50, 132)] {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal.keyboard, size).unwrap();
        let shown = usize::from(rows.min(5 + 30 + 2)) - 5 - 2;
        let lines = wait_for(&terminal, |lines| {
            names(lines, "name-").len().max(lines.iter().filter(|line| line.contains("-name-")).count()) == shown
        });
        assert!(lines.len() <= rows.into(), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= columns.into()), "{lines:?}");
        assert_eq!(
            lines.iter().any(|line| *line == format!("... {} more; a larger terminal shows them", 30 - shown)),
            shown < 30
        );
        assert_eq!(lines.last().unwrap(), "q: end   space: refresh   s: sort   p: pause");
    }
}

#[test]
fn text_of_others_does_not_reach_the_view_raw() {
    let (root, mut raw) = (path("escape"), raw());
    // The servers refuse control characters in paths.
    let lock = format!("{root}/red\u{202e}");
    lock_nodes(&mut raw, &lock, &[]);
    let text = "\u{1b}[31m\u{9b}31mred\u{202e}";
    raw.create(&format!("{lock}/{}", curator("lock-")), text.as_bytes(), flags::EPHEMERAL_SEQUENTIAL).unwrap();
    let (terminal, _call) = Terminal::start(view(&root));
    let lines = wait_for_text(&terminal, "1 lock, ");
    let line = lines.iter().find(|line| line.contains("mutex")).unwrap();
    assert!(line.matches("red").count() == 2 && !line.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{line:?}");
    let text = output(&["top", "-n", "1", &root]);
    assert!(text.contains("red") && !text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text:?}");
}

#[test]
fn without_a_terminal_each_refresh_is_a_block() {
    let root = path("blocks");
    let _calls = start_queue(&format!("{root}/lock"), 1);
    let text = output(&["top", "-d", "100ms", "-n", "2", &root]);
    let blocks: Vec<&str> = text.split("1 lock, 1 holder, 1 waiter; longest wait first\n\n").collect();
    assert_eq!(blocks.len(), 3, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains('\x1b'), "{text}");
    assert!(
        blocks[1].lines().next().unwrap().split_whitespace().eq(["PATH", "KIND", "HELD", "QUEUE", "WAIT", "HOLDER"])
    );
    assert!(blocks[1].lines().nth(2).unwrap().is_empty(), "a line between the blocks: {text}");
    // A terminal that knows no sequences gets the same.
    let call = zklock(&["top", "-d", "100ms", "-n", "2", &root]).env("TERM", "dumb");
    let (terminal, mut call) = Terminal::start(call);
    assert_eq!(call.wait(), 0);
    wait_until(TEST_TIMEOUT, || terminal.screen().matches("1 waiter; ").count() == 2);
    assert!(!terminal.screen().contains('\x1b'));
}

#[test]
fn the_last_refresh_stays_on_the_terminal() {
    let (terminal, mut call) = Terminal::start(view_on(&ZooKeeper::shared().address(), &["-n", "1", &path("last")]));
    assert_eq!(call.wait(), 0);
    wait_until(TEST_TIMEOUT, || {
        terminal.screen().split(LEAVE).nth(1).is_some_and(|end| end.contains("does not exist"))
    });
}

#[test]
fn each_line_of_json_has_the_fields_of_ls() {
    let root = path("json");
    let _calls = [start_queue(&format!("{root}/a"), 0), start_queue(&format!("{root}/b"), 1)];
    let text = output(&["top", "--json", "-d", "100ms", "-n", "3", "--sort", "queue", &root]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    let list: Value = serde_json::from_str(&output(&["ls", "--json", &root])).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    for line in &lines {
        assert_eq!((fields(line), fields(&line["locks"][0])), (fields(&list), fields(&list["locks"][0])));
        assert_eq!(line["locks"][0]["path"], format!("{root}/b"), "the longest queue is first");
    }
    assert!(lines[0]["time"].as_str().unwrap() < lines[1]["time"].as_str().unwrap(), "{text}");
}

#[test]
fn a_reader_that_leaves_ends_the_blocks() {
    let script = format!("{PROGRAM} top -d 100ms {} | head -1", path("pipe"));
    assert_eq!(program("bash", &["-o", "pipefail", "-c", &script]).start().wait(), 0);
}

#[test]
fn without_a_terminal_a_lost_connection_is_a_message_and_the_blocks_go_on() {
    let (proxy, blocks, errors) = (Proxy::start(&ZooKeeper::shared().address()), file("blocks"), file("errors"));
    let arguments = ["top", "-o", "session.timeout=4000", "-d", "100ms", &path("interrupted")];
    let mut call = zklock_on(&proxy.address(), &arguments);
    call.command().stdout(fs::File::create(&blocks).unwrap()).stderr(fs::File::create(&errors).unwrap());
    let mut call = call.start();
    let count = || fs::read_to_string(&blocks).unwrap().matches("does not exist").count();
    wait_until(TEST_TIMEOUT, || count() > 0);
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || fs::read_to_string(&errors).unwrap().starts_with("zklock: "));
    let before = count();
    proxy.refuse(false);
    wait_until(TEST_TIMEOUT, || count() > before);
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 1000 + libc::SIGTERM);
    fs::remove_file(&blocks).unwrap();
    fs::remove_file(&errors).unwrap();
}

#[test]
fn a_last_refresh_without_an_answer_is_69() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    proxy.hook(|direction, frame| {
        let is_list = frame.get(4..8) == Some(&12_i32.to_be_bytes());
        if direction == Direction::ToServer && is_list { Verdict::Drop } else { Verdict::Forward }
    });
    let call = |arguments: &[&str]| {
        let options = ["-o", "session.timeout=4000", "-n", "1", "/"];
        let call = zklock_on(&proxy.address(), &[&["top"], arguments, &options].concat()).env("TERM", "xterm");
        Terminal::start(call)
    };
    let (mut json, (terminal, mut live)) = (call(&["--json"]).1, call(&[]));
    assert_eq!((json.wait(), live.wait()), (69, 69));
    terminal.wait_for("zklock: ");
    assert!(is_restored(&terminal));
}

/// What the page says: one request for each node below the path, and for each lock its first holders and waiters.
#[test]
fn the_cost_of_a_refresh_is_what_the_page_and_the_heading_say() {
    let (proxy, root, seen) = (Proxy::start(&ZooKeeper::shared().address()), path("cost"), Arc::default());
    let _calls = [start_queue(&format!("{root}/a"), 2), start_queue(&format!("{root}/b"), 0)];
    let types: Arc<Mutex<Vec<i32>>> = Arc::clone(&seen);
    proxy.hook(move |direction, frame| {
        let number = i32::from_be_bytes(*frame.first_chunk().unwrap());
        // The connect request and heartbeats have no positive number.
        if direction == Direction::ToServer && number > 0 {
            types.lock().unwrap().push(i32::from_be_bytes(*frame[4..].first_chunk().unwrap()));
        }
        Verdict::Forward
    });
    let output = zklock_on(&proxy.address(), &["top", "-n", "1", &root]).output();
    let text = String::from_utf8(output.stdout).unwrap();
    let (read, list) = (4, 12);
    let count = |kind| seen.lock().unwrap().iter().filter(|&&one| one == kind).count();
    assert_eq!((count(list), count(read)), (3, 3), "the root and two locks; two holders and one waiter");
    assert!(text.contains(" and 6 requests\n"), "{text}");
}

#[test]
fn a_short_delay_and_no_refresh_are_refused() {
    for (arguments, expected) in [(["-d", "0"], "expected at least 100ms"), (["-n", "0"], "0 is not in 1..")] {
        let (refused, errors) = code(&[&["top"], &arguments[..]].concat());
        assert!(refused == 64 && errors.contains(expected), "{errors}");
    }
    assert_eq!(code(&["top", "-n", "1", "no/path"]).0, 64);
}
