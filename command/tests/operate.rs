//! The verbs of an operator: `revoke` and `break`.

use zklock_test_support::{flags, wait_until};

use crate::common::{TEST_TIMEOUT, code, path, queue, raw, wait_for_queue, zklock};

/// Runs a call. Returns its exit code, its output and its errors.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = zklock(arguments).output();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn all_holders_are_asked_to_release() {
    let path = path("revoke");
    assert_eq!(run(&["revoke", &path]), (0, format!("{path}: no participant holds the lock\n"), String::new()));
    let start = || zklock(&["run", "-s", "--on-revoke", "term", &path, "sleep", "60"]).start();
    let (mut one, mut two) = (start(), start());
    one.wait_for_tree(1);
    two.wait_for_tree(1);
    let (code, output, errors) = run(&["revoke", &path]);
    assert_eq!((code, &*errors, output.lines().count()), (0, "", 2));
    assert!(output.contains(&format!(":{} (sleep) to release {path}/_c_", one.pid())), "{output}");
    assert_eq!((one.wait(), two.wait()), (82, 82));
}

#[test]
fn a_holder_that_ignores_the_request_goes_on() {
    let (path, mut raw) = (path("ignore"), raw());
    let call = zklock(&["run", &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    assert_eq!(run(&["revoke", &path]).0, 0);
    let (_, status, _) = run(&["status", &path]);
    assert!(status.contains(&format!(":{} (sleep), asked to release", call.pid())), "{status}");
    assert_eq!((queue(&mut raw, &path).len(), call.tree().len()), (1, 1));
}

#[test]
fn a_foreign_holder_cannot_be_asked() {
    let (path, mut raw) = (path("kazoo"), raw());
    assert_eq!(code(&["run", &path, "true"]).0, 0);
    let name = format!("{path}/{}__lock__", "0".repeat(32));
    let node = raw.create_with_ancestors(&name, b"kazoo-host", flags::EPHEMERAL_SEQUENTIAL).unwrap();
    let (code, _, errors) = run(&["revoke", &path]);
    assert_eq!(code, 83);
    assert!(errors.contains("kazoo-host of kazoo holds the lock"), "{errors}");
    assert_eq!(raw.data(&node).unwrap(), b"kazoo-host");
}

/// The option `locks.wait_for_kazoo` is for paths that kazoo programs and zklock programs share.
#[test]
fn the_command_waits_for_kazoo_in_one_queue_if_an_option_says_so() {
    const WAIT: &str = "-olocks.wait_for_kazoo=true";
    let (path, mut raw) = (path("with-kazoo"), raw());
    let name = format!("{path}/{}__lock__", "0".repeat(32));
    let kazoo = raw.create_with_ancestors(&name, b"kazoo-host", flags::EPHEMERAL_SEQUENTIAL).unwrap();
    assert_eq!(run(&["run", "--timeout", "30s", &path, "true"]).0, 83);

    let mut waiting = zklock(&["run", WAIT, &path, "true"]).start();
    wait_for_queue(&mut raw, &path, 2);
    let (code, text, _) = run(&["status", WAIT, "--json", &path]);
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &status["kind"], &status["foreign"]), (0, &"mutex".into(), &0.into()), "{text}");
    let roles = ["holds", "waits"].map(serde_json::Value::from);
    assert_eq!([&status["queue"][0]["role"], &status["queue"][1]["role"]], [&roles[0], &roles[1]], "{text}");

    let (code, text, _) = run(&["break", WAIT, "--yes", &path]);
    assert!(code == 0 && text.contains(&format!("deleted {kazoo} of kazoo-host")), "{text}");
    assert_eq!(waiting.wait(), 0);
}

#[test]
fn break_deletes_only_with_yes_and_the_next_participant_gets_the_lock() {
    let (path, mut raw) = (path("break"), raw());
    let mut holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let next = zklock(&["run", &path, "sleep", "60"]).start();
    wait_for_queue(&mut raw, &path, 2);
    let node = format!("{path}/{}", queue(&mut raw, &path)[0]);
    let (code, output, errors) = run(&["break", &path]);
    assert_eq!((code, raw.exists(&node)), (64, true));
    assert!(output.starts_with(&format!("would delete {node} of ")) && output.contains("(sleep)"), "{output}");
    assert_eq!(errors, "zklock: nothing was deleted; the option --yes deletes the nodes\n");
    let token = raw.stat(&node).unwrap().czxid;
    let (code, output, _) = run(&["break", "--yes", &path]);
    assert_eq!(code, 0);
    assert!(output.starts_with(&format!("deleted {node} of ")), "{output}");
    assert!(
        output.contains("works on until it notices the loss") && output.contains(&format!("here {token}.")),
        "{output}"
    );
    assert_eq!(holder.wait(), 79);
    next.wait_for_tree(1);
}

#[test]
fn break_deletes_one_node_of_the_queue() {
    let (path, mut raw) = (path("break-node"), raw());
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let _waiter = zklock(&["run", &path, "sleep", "60"]).start();
    wait_for_queue(&mut raw, &path, 2);
    let waiting = queue(&mut raw, &path).remove(1);
    let (wrong, _, errors) = run(&["break", "--yes", "--node", "no-such-node", &path]);
    assert_eq!(wrong, 64);
    assert!(errors.contains("--node no-such-node: no participant of"), "{errors}");
    let (code, output, _) = run(&["break", "--yes", "--node", &waiting, &path]);
    assert_eq!((code, output.lines().count()), (0, 1), "there is no former holder: {output}");
    wait_until(TEST_TIMEOUT, || !queue(&mut raw, &path).contains(&waiting));
    assert_eq!(holder.tree().len(), 1);
}
