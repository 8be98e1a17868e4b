//! What the command prints.

use zklock_test_support::wait_until;

use crate::common::{TEST_TIMEOUT, code, file, path, queue, raw, zklock};

#[test]
fn nothing_is_printed_by_default() {
    let output = zklock(&["run", &path("silent"), "echo", "hello"]).output();
    assert_eq!((output.stdout, output.stderr), (b"hello\n".to_vec(), Vec::new()));
}

#[test]
fn each_step_is_an_event_with_json() {
    let path = path("json");
    let mut holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let (mut call, log) = (zklock(&["run", "--json", &path, "sh", "-c", "exit 3"]), file("events"));
    call.command().stderr(std::fs::File::create(&log).unwrap());
    let mut waiter = call.start();
    let printed = || std::fs::read_to_string(&log).unwrap();
    // The waiter asks who holds the lock, and then prints the first event.
    wait_until(TEST_TIMEOUT, || printed().contains("(sleep)"));
    holder.signal(libc::SIGTERM);
    holder.wait();
    assert_eq!(waiter.wait(), 3);
    let events: Vec<serde_json::Value> = printed().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    std::fs::remove_file(&log).unwrap();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names.first(), Some(&"waiting"), "{names:?}");
    let held = events.iter().find(|event| event["holder"].is_string()).unwrap();
    assert!(held["holder"].as_str().unwrap().ends_with("(sleep)"), "{held}");
    assert_eq!(held["ahead"], 1);
    assert_eq!(names[names.len() - 5..], ["acquired", "started", "exited", "released", "ended"], "{names:?}");
    assert_eq!((&events[events.len() - 3]["code"], &events.last().unwrap()["exit_code"]), (&3.into(), &3.into()));
    let times: Vec<&str> = events.iter().map(|event| event["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted() && times[0].ends_with('Z'), "{times:?}");
}

#[test]
fn a_failure_is_an_event_with_json() {
    let (code, errors) = code(&["run", "--json", "a", "true"]);
    let (failed, ended) = errors.split_once('\n').unwrap();
    let [event, ended] = [failed, ended].map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert_eq!((code, event["exit_code"].as_i64()), (64, Some(64)));
    assert_eq!((ended["event"].as_str(), &ended["exit_code"]), (Some("ended"), &event["exit_code"]));
    assert_eq!(event["message"], "path \"a\": must start with '/'");
}

#[test]
fn the_data_of_the_node_names_the_program_without_its_arguments() {
    let (path, mut raw) = (path("data"), raw());
    let call = zklock(&["run", &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    let node = queue(&mut raw, &path).remove(0);
    let mut data = String::new();
    let mut owner = serde_json::Value::Null;
    wait_until(TEST_TIMEOUT, || {
        data = String::from_utf8(raw.data(&format!("{path}/{node}")).unwrap()).unwrap();
        owner = serde_json::from_str(&data).unwrap();
        owner["held"].is_string()
    });
    assert_eq!((owner["command"].as_str(), owner["pid"].as_i64()), (Some("sleep"), Some(call.pid().into())));
    assert!(!data.contains("60\""), "{data}");
}

#[test]
fn the_user_chooses_the_name_that_others_see() {
    let (path, mut raw) = (path("owner"), raw());
    let call = zklock(&["run", "--owner", "release 7", &path, "sleep", "60"]).start();
    call.wait_for_tree(1);
    let node = queue(&mut raw, &path).remove(0);
    let owner: serde_json::Value = serde_json::from_slice(&raw.data(&format!("{path}/{node}")).unwrap()).unwrap();
    assert_eq!(owner["command"], "release 7");
}
