//! Every exit code of the table in `docs/command.md`.

use std::fs;

use zklock_test_support::{Proxy, ZooKeeper, flags, wait_until};

use crate::common::{TEST_TIMEOUT, code, code_in_time, file, path, queue, raw, wait_for_queue, zklock, zklock_on};

#[test]
fn consul_947_the_exit_code_is_that_of_the_command() {
    for expected in [0, 1, 3, 64, 75, 255] {
        let (code, errors) = code(&["run", &path("code"), "sh", "-c", &format!("exit {expected}")]);
        assert_eq!((code, &*errors), (expected, ""));
    }
}

#[test]
fn a_command_that_a_signal_ended_has_the_code_128_and_the_number() {
    for (signal, expected) in [("TERM", 143), ("KILL", 137), ("USR1", 138)] {
        assert_eq!(code(&["run", &path("signal"), "-c", &format!("kill -{signal} $$")]).0, expected);
    }
}

#[test]
fn wrong_arguments_are_64_and_name_what_is_wrong() {
    for (arguments, expected) in [
        (&["run"][..], "required arguments were not provided"),
        (&["run", "/a"], "zklock: no command is given; write it after the path, or use -c TEXT\n"),
        (&["run", "a", "true"], "zklock: path \"a\": must start with '/'\n"),
        (&["run", "/a", "-n", "true"], "zklock: -n follows the path; write options before the path, or --"),
        (&["run", "-o", "tls=1", "/a", "true"], "zklock: --option: option \"tls\" is unknown; expected one of"),
        (&["run", "--config", "/no/such/file", "/a", "true"], "options file \"/no/such/file\""),
        (&["run", "-w", "1y", "/a", "true"], "expected a number with a unit, for example 500ms"),
        (&["run", "--grace", "1h", "/a", "true"], "zklock: --grace is too long: a session timeout of"),
        (&["run", "-s", "-x", "/a", "true"], "cannot be used with"),
        (&["run", "-s", "--once-per", "day", "/a", "true"], "zklock: --once-per needs a lock that only one"),
        (&["run", "--once-per", "noon", "/a", "true"], "expected minute, hour, day"),
        (&["run", "--semaphore", "2", "--and", "/b", "/a", "true"], "zklock: --semaphore allows only one path\n"),
        (&["run", "--and", "/a", "/a", "true"], "zklock: the path /a is given twice; expected different paths\n"),
        (&["run", "-c", "true", "/a", "true"], "zklock: -c and a command are given; expected one of them\n"),
        (&["run", "--owner", "a\tb", "/a", "true"], "expected 1 to 60 characters without control characters"),
        (&["run", "/a", "/no/lock", "--", "true"], "zklock: the program /no/lock does not exist; to acquire several"),
        (&["hello"], "unrecognized subcommand"),
    ] {
        let (code, errors) = code(arguments);
        assert_eq!(code, 64, "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_wrong_number_is_64_and_the_message_says_what_was_expected() {
    let (positive, limit) = ("a whole number from 1 to 2147483647", format!("a whole number from 0 to {}", usize::MAX));
    for (arguments, expected) in [
        (&["run", "--semaphore", "x", "/a", "true"][..], positive),
        (&["run", "--semaphore", "2", "--qty", "x", "/a", "true"], positive),
        (&["run", "-E", "x", "/a", "true"], "a whole number from 0 to 255"),
        (&["hold", "--pid", "x", "/a"], positive),
        (&["release", "x"], "a process id, or a path that begins with /"),
        (&["ls", "--limit", "x"], &limit),
        (&["status", "--limit", "x", "/a"], &limit),
        (&["top", "--limit", "x"], &limit),
        (&["top", "-n", "x"], "a whole number from 1 to 18446744073709551615"),
        (&["wait", "--semaphore", "x", "/a"], positive),
        (&["wait", "--semaphore", "2", "--qty", "x", "/a"], positive),
    ] {
        let (code, errors) = code(arguments);
        assert_eq!(code, 64, "{arguments:?}: {errors}");
        let expected = format!(": expected {expected}\n");
        assert!(errors.contains("invalid value 'x' for ") && errors.contains(&expected), "{arguments:?}: {errors}");
    }
    let (code, errors) = code(&["run", "-E", "256", "/a", "true"]);
    assert!(code == 64 && errors.contains(": expected a whole number from 0 to 255\n"), "{errors}");
}

#[test]
fn help_is_no_error() {
    for arguments in [&["--help"][..], &["run", "--help"], &["try", "-h"], &["--version"]] {
        let output = zklock(arguments).output();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
        assert!(output.stdout.starts_with(b"zklock") || output.stdout.windows(5).any(|word| word == b"Usage"));
    }
}

/// Without the check, both commands would use the chroot `/team,h2:2181/team`.
#[test]
fn a_chroot_behind_each_server_is_64_with_the_correct_list() {
    for arguments in [&["run", "/a", "true"][..], &["ls"], &["doctor"], &["try", "/a"]] {
        let output = zklock_on("h1:2181/team,h2:2181/team", arguments).output();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {errors}");
        assert!(errors.contains("after the last server: \"h1:2181,h2:2181/team\""), "{arguments:?}: {errors}");
    }
}

#[test]
fn servers_that_do_not_answer_are_69() {
    let call = zklock_on("127.0.0.1:1", &["run", "-o", "connect.timeout=200", &path("none"), "true"]);
    let output = call.output();
    assert_eq!(output.status.code(), Some(69));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("zklock: no answer from 127.0.0.1:1 within "), "{errors}");
}

#[test]
fn a_busy_lock_is_75_or_the_code_of_the_user() {
    let path = path("busy");
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    // If the server of a busy machine does not answer in time, the message names only the node.
    for (verb, expected) in
        [(&["run", "-n"][..], ": held by "), (&["run", "-w", "1s"], "s; held by "), (&["try"], ": held by ")]
    {
        wait_until(TEST_TIMEOUT, || {
            let (busy, errors) = code_in_time(&[verb, &[&path, "false"]].concat());
            assert_eq!(busy, 75, "{errors}");
            assert!(errors.starts_with(&format!("zklock: {path}: ")) && errors.contains(expected), "{errors}");
            errors.contains(&format!(":{} (sleep) for ", holder.pid()))
                && errors.contains(&format!(", with the node {path}/_c_"))
        });
    }
    assert_eq!(code(&["run", "-E", "9", "-n", "-q", &path, "false"]), (9, String::new()));
}

#[test]
fn refused_access_is_77() {
    let (path, mut raw) = (format!("/denied-{}", std::process::id()), raw());
    raw.create(&path, b"", flags::PERSISTENT).unwrap();
    raw.forbid_creation(&path);
    let (denied, errors) = code(&["run", &path, "true"]);
    assert_eq!(denied, 77, "{errors}");
    assert!(errors.contains(&path), "{errors}");
}

#[test]
fn a_lost_lock_ends_the_command_with_79() {
    let (path, mut raw) = (path("lost"), raw());
    let mut call = zklock(&["run", &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(call.wait(), 79);
    assert_eq!(call.tree(), []);
}

#[test]
fn a_command_that_outlived_its_lock_has_80() {
    let (path, mut raw, done) = (path("suspect"), raw(), file("done"));
    let script = format!("until test -e {}; do sleep 0.05; done", done.display());
    let mut call = zklock(&["run", "--on-lost", "ignore", &path, "sh", "-c", &script]).start();
    call.process("sh");
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    let second = zklock(&["run", &path, "true"]).output();
    assert_eq!(second.status.code(), Some(0), "the lock is free");
    assert!(!call.tree().is_empty());
    fs::write(&done, "").unwrap();
    assert_eq!(call.wait(), 80);
    fs::remove_file(&done).unwrap();
}

#[test]
fn a_release_that_no_server_confirms_is_81_and_does_not_hide_a_failure() {
    for (code, expected) in [(0, 81), (4, 4)] {
        let (proxy, done) = (Proxy::start(&ZooKeeper::shared().address()), file("done"));
        let script = format!("until test -e {}; do sleep 0.05; done; exit {code}", done.display());
        let arguments = ["run", "-o", "session.timeout=4000", &path("unconfirmed"), "sh", "-c", &script];
        let mut call = zklock_on(&proxy.address(), &arguments).start();
        call.process("sh");
        proxy.black_hole(true);
        fs::write(&done, "").unwrap();
        assert_eq!(call.wait(), expected);
        fs::remove_file(&done).unwrap();
    }
}

#[test]
fn a_revoked_lock_is_82_if_the_user_wants_it() {
    let (path, mut raw) = (path("revoked"), raw());
    let mut call = zklock(&["run", "--on-revoke", "term", &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    let node = format!("{path}/{}", queue(&mut raw, &path)[0]);
    assert_eq!(raw.set_data(&node, b"__REVOKE__"), 0);
    assert_eq!(call.wait(), 82);
    wait_for_queue(&mut raw, &path, 0);
}

#[test]
fn a_lock_of_another_kind_is_83() {
    let (path, mut raw) = (path("foreign"), raw());
    assert_eq!(code(&["run", &path, "true"]).0, 0);
    let node = format!("{path}/{}__lock__", "0".repeat(32));
    raw.create_with_ancestors(&node, b"kazoo", flags::EPHEMERAL_SEQUENTIAL).unwrap();
    let (foreign, errors) = code(&["run", &path, "true"]);
    assert_eq!(foreign, 83, "{errors}");
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_a_missing_one_127() {
    let path = path("exec");
    let (missing, errors) = code(&["run", &path, "no-such-command"]);
    assert_eq!(
        (missing, &*errors),
        (127, "zklock: cannot run no-such-command: No such file or directory (os error 2)\n")
    );
    let (empty, errors) = code(&["run", &path, ""]);
    assert_eq!((empty, &*errors), (127, "zklock: cannot run \"\": No such file or directory (os error 2)\n"));
    let (refused, errors) = code(&["run", &path, "/etc/passwd"]);
    assert_eq!((refused, &*errors), (126, "zklock: cannot run /etc/passwd: Permission denied (os error 13)\n"));
    wait_until(TEST_TIMEOUT, || queue(&mut raw(), &path).is_empty());
}
