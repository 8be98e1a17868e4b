//! `zklock doctor`: each problem is a finding with what to do, and the first failure gives the exit code.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use zklock::{Client, Config};
use zklock_test_support::{
    Authority, Certificates, Direction, Proxy, RawClient, TEST_TIMEOUT, TlsListener, Verdict, ZooKeeper,
    assert_not_late, flags, permissions, wait_until,
};

use crate::common::{code, file, path, raw, zklock, zklock_on};

/// Runs the checks, and returns the exit code and the findings.
fn examine(servers: &str, arguments: &[&str]) -> (i32, Vec<Value>) {
    let output = zklock_on(servers, &[&["doctor", "--json"], arguments].concat()).output();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["exit_code"], output.status.code().unwrap());
    (output.status.code().unwrap(), report["findings"].as_array().unwrap().clone())
}

fn shared(arguments: &[&str]) -> (i32, Vec<Value>) {
    examine(&ZooKeeper::shared().address(), arguments)
}

/// Returns the details of the findings of one check with this level.
#[track_caller]
fn details(findings: &[Value], level: &str, check: &str) -> String {
    let found = findings.iter().filter(|finding| finding["level"] == level && finding["check"] == check);
    let details: Vec<&str> = found.clone().map(|finding| finding["detail"].as_str().unwrap()).collect();
    assert!(!details.is_empty(), "no {level} {check}: {findings:?}");
    let has_advice = |finding: &Value| finding["advice"].as_str().is_some_and(|advice| advice.ends_with('.'));
    assert!(level == "ok" || found.clone().all(has_advice), "{findings:?}");
    details.join("\n")
}

/// Creates a directory with one lock node.
fn lock_node(raw: &mut RawClient, path: &str, name: &str, data: &[u8], flags: i32) -> String {
    raw.create_with_ancestors(&format!("{path}/{name}"), data, flags).unwrap()
}

#[test]
fn a_healthy_ensemble_has_no_failure_and_the_test_lock_leaves_nothing() {
    let (path, mut raw) = (path("healthy"), raw());
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 0, "{findings:?}");
    for check in ["name", "port", "session", "timeout", "rights", "test lock", "clock", "lock"] {
        details(&findings, "ok", check);
    }
    assert!(details(&findings, "ok", "session").contains("without TLS; without credentials"));
    assert_eq!(details(&findings, "ok", "lock"), "mutex, 1 holding, 0 waiting");
    assert_eq!(raw.children(&path).unwrap().len(), 1, "only the node of the holder");
    assert_eq!(holder.tree().len(), 1);
    let missing = format!("{path}-missing");
    assert_eq!(shared(&[&missing]).0, 0);
    assert!(!raw.exists(&missing));
}

#[test]
fn identities_are_those_that_the_server_knows_and_a_wrong_password_is_77() {
    let server = ZooKeeper::options().sasl_users(&[("bob", "secret")]).require_sasl().start();
    let doctor = |password: &str| {
        let call = zklock_on(&server.address(), &["doctor", "--json"]).env("ZKLOCK_SASL_MECHANISM", "digest-md5");
        let output = call.env("ZKLOCK_SASL_USER", "bob").env("ZKLOCK_SASL_PASSWORD", password).output();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report["findings"].as_array().unwrap().clone())
    };
    let (code, findings) = doctor("secret");
    assert_eq!(code, Some(0), "{findings:?}");
    let session = details(&findings, "ok", "session");
    assert!(session.contains("the server accepted the credentials; the server knows this client as "), "{session}");
    assert!(session.contains("sasl:bob"), "{session}");
    let (code, findings) = doctor("wrong");
    assert_eq!(code, Some(77), "{findings:?}");
    assert!(details(&findings, "fail", "session").contains("the server refused the user \"bob\" or its password"));
}

#[test]
fn the_directory_of_the_test_lock_is_no_participant() {
    let (path, mut raw) = (path("test-lock"), raw());
    let directory = format!("{path}/zklock_doctor");
    // With this child, the directory remains after the test, as it does while two calls run at the same time.
    raw.create_with_ancestors(&format!("{directory}/other"), b"", flags::PERSISTENT).unwrap();
    let before = raw.stat(&directory).unwrap().cversion;
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 0, "{findings:?}");
    assert_eq!(details(&findings, "ok", "lock"), "free");
    let client = Client::connect(&ZooKeeper::shared().address(), &Config::new()).unwrap();
    assert_eq!(client.mutex(&path).unwrap().participants().unwrap(), []);
    assert!(raw.stat(&directory).unwrap().cversion > before, "the test lock has another directory");
}

#[test]
fn the_text_has_80_columns_and_a_summary() {
    let output = zklock(&["doctor", &path("text")]).output();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.starts_with("ok    settings    ") && text.contains("\nok    name        "), "{text}");
    assert!(text.ends_with(" 0 fail\n"), "{text}");
}

#[test]
fn a_closed_port_and_an_unknown_name_are_69_unless_another_server_works() {
    let (code, findings) = examine("127.0.0.1:1", &[]);
    assert_eq!(code, 69);
    assert!(details(&findings, "fail", "port").contains("refused"));
    let (code, findings) = examine("no-such-host.invalid:2181", &[]);
    assert_eq!(code, 69);
    assert!(details(&findings, "fail", "name").starts_with("the name no-such-host.invalid "));
    let list = format!("127.0.0.1:1,{}", ZooKeeper::shared().address());
    let (code, findings) = examine(&list, &["/test-doctor"]);
    assert_eq!(code, 0);
    details(&findings, "warn", "port");
    assert_eq!(details(&findings, "warn", "ensemble"), "1 of 2 servers accept a session");
}

#[test]
fn servers_of_different_ensembles_are_69() {
    let other = ZooKeeper::start();
    let (code, findings) = examine(&format!("{},{}", ZooKeeper::shared().address(), other.address()), &[]);
    assert_eq!(code, 69);
    assert!(details(&findings, "fail", "ensemble").contains("2 standalone servers"));
}

/// Starts a server that answers four-letter words with this text and refuses sessions. Returns its address.
fn server_that_says(text: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut word) = (stream.unwrap(), [0; 4]);
            if stream.read_exact(&mut word).is_ok() && word.is_ascii() && word[0] != 0 {
                let _ = stream.write_all(text.as_bytes());
            }
        }
    });
    address
}

#[test]
fn a_server_that_sends_one_byte_after_the_other_does_not_extend_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                while stream.write_all(b"Z").is_ok() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    let since = Instant::now();
    let (code, findings) = examine(&format!("{address},{0},{0}", ZooKeeper::shared().address()), &[]);
    assert_eq!(code, 0);
    assert_eq!(details(&findings, "warn", "ensemble"), "1 of 2 servers accept a session");
    assert_not_late(since.elapsed(), Duration::from_secs(20));
}

#[test]
fn a_server_without_four_letter_words_is_no_problem_and_one_without_a_quorum_is_69() {
    let other = ZooKeeper::shared().address();
    let silent = server_that_says("srvr is not executed because it is not in the whitelist.\n");
    let (code, findings) = examine(&format!("{silent},{other}"), &[]);
    assert_eq!(code, 0);
    assert!(details(&findings, "ok", "server").contains("srvr is not allowed"));
    details(&findings, "warn", "session");
    let alone = server_that_says("This ZooKeeper instance is not currently serving requests\n");
    let (code, findings) = examine(&alone, &[]);
    assert_eq!(code, 69);
    assert_eq!(details(&findings, "fail", "server"), "the server runs, but its ensemble has no quorum");
}

#[test]
fn a_wrong_authority_is_77_and_a_plain_port_with_tls_is_69() {
    let certificates = Certificates::shared();
    certificates.write("doctor-ca.pem", &Authority::new("other").certificate());
    let server = ZooKeeper::options().tls(&TlsListener::new(certificates)).start();
    let option = |name: &str, file: &str| format!("{name}={}", certificates.file(file));
    let (key, cert) = (option("tls.key", "client.key"), option("tls.cert", "client.pem"));
    let (right, wrong) = (option("tls.ca", "ca.pem"), option("tls.ca", "doctor-ca.pem"));
    let call = |address: &str, authority: &str| examine(address, &["-o", &key, "-o", &cert, "-o", authority]);
    // On a busy machine, the first TLS handshake of a server can take longer than the limit of a check, which is 5 s.
    let mut findings = Vec::new();
    wait_until(TEST_TIMEOUT, || {
        let (code, found) = call(&server.tls_address(), &right);
        assert!(matches!(code, 0 | 69), "{found:?}");
        findings = found;
        code == 0
    });
    assert!(details(&findings, "ok", "session").contains("the TLS handshake succeeded"));
    let (code, findings) = call(&server.tls_address(), &wrong);
    assert_eq!(code, 77);
    assert!(details(&findings, "fail", "session").contains("tls.ca"), "{findings:?}");
    let (code, findings) = call(&server.address(), &right);
    assert_eq!(code, 69);
    details(&findings, "fail", "session");
}

#[test]
fn missing_rights_are_77_and_name_the_permission() {
    let (path, mut raw) = (format!("/doctor-denied-{}", std::process::id()), raw());
    let entries = [(permissions::ALL & !permissions::CREATE & !permissions::DELETE, "world", "anyone")];
    raw.create_with_acl(&path, b"", flags::PERSISTENT, &entries).unwrap();
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 77);
    let rights = details(&findings, "fail", "rights");
    assert!(rights.contains("c (create) is missing") && rights.contains("d (delete) is missing"), "{rights}");
    let (code, findings) = shared(&[&format!("{path}/below")]);
    assert_eq!(code, 77);
    assert!(details(&findings, "fail", "rights").starts_with("c (create) is missing"));
}

#[test]
fn different_kinds_of_lock_on_one_path_are_83() {
    let (path, mut raw) = (path("kinds"), raw());
    let uuid = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0";
    lock_node(&mut raw, &path, &format!("{uuid}-lock-"), b"", flags::EPHEMERAL_SEQUENTIAL);
    lock_node(&mut raw, &path, &format!("{uuid}-__READ__"), b"", flags::EPHEMERAL_SEQUENTIAL);
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 83);
    assert_eq!(details(&findings, "fail", "kinds"), "participants use different kinds of lock: mutex, read/write");
}

#[test]
fn nodes_that_no_session_ends_and_processes_that_are_gone_are_found() {
    let (path, mut raw) = (path("nodes"), raw());
    let uuid = "_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0";
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let data = serde_json::json!({"host": host, "pid": 2_000_000_000, "command": "make"}).to_string();
    lock_node(&mut raw, &path, &format!("{uuid}-lock-"), data.as_bytes(), flags::EPHEMERAL_SEQUENTIAL);
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 0);
    assert!(details(&findings, "warn", "node").contains("(make), which no longer runs on this host"), "{findings:?}");
    let node = lock_node(&mut raw, &path, &format!("{uuid}-lock-0000000007"), b"old", flags::PERSISTENT);
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 69);
    assert_eq!(details(&findings, "fail", "node"), "the node is not ephemeral, so no session ends it (old)");
    let advice = findings.iter().find(|finding| finding["target"] == node).unwrap()["advice"].as_str().unwrap();
    assert!(advice.contains(&format!("zklock break --yes --node {uuid}-lock-0000000007 {path}")), "{advice}");
}

#[test]
fn advice_about_a_node_quotes_its_name_and_contains_no_control_characters() {
    let (path, mut raw) = (path("quoted"), raw());
    lock_node(&mut raw, &path, "$(touch it's)-lock-0000000000", b"", flags::PERSISTENT);
    // Without the invisible character, the name would be that of another node.
    lock_node(&mut raw, &path, "a\u{202e}b-lock-0000000001", b"", flags::PERSISTENT);
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 69);
    let nodes = findings.iter().filter(|finding| finding["check"] == "node");
    let advice: Vec<&str> = nodes.filter_map(|finding| finding["advice"].as_str()).collect();
    let delete = format!(r"zklock break --yes --node '$(touch it'\''s)-lock-0000000000' {path} deletes it.");
    let [quoted, escaped] = advice[..] else { panic!("{advice:?}") };
    assert!(quoted.ends_with(&delete), "{quoted}");
    let name = r#"delete "a\u{202e}b-lock-0000000001" below"#;
    assert!(escaped.contains(name) && !escaped.contains("zklock break"), "{escaped}");
}

#[test]
fn a_node_beside_the_lock_that_is_no_record_of_runs_is_64() {
    let (path, mut raw) = (path("runs"), raw());
    raw.create_with_ancestors(&path, b"", flags::PERSISTENT).unwrap();
    assert_eq!(code(&["run", "--once-per", "day", &path, "true"]).0, 0);
    assert_eq!(details(&shared(&[&path]).1, "ok", "runs"), "1 run is recorded");
    assert_eq!(raw.set_data(&format!("{path}-runs"), b"else"), 0);
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 64);
    details(&findings, "fail", "runs");
}

#[test]
fn a_record_of_runs_that_is_not_readable_is_77_and_hides_no_other_finding() {
    let (path, mut raw) = (path("secret"), raw());
    raw.create_with_ancestors(&path, b"", flags::PERSISTENT).unwrap();
    let entries = [(permissions::ALL & !permissions::READ, "world", "anyone")];
    raw.create_with_acl(&format!("{path}-runs"), b"", flags::PERSISTENT, &entries).unwrap();
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 77);
    details(&findings, "ok", "lock");
    assert!(details(&findings, "fail", "runs").contains("r (read)"), "{findings:?}");
}

/// No thread of this size can start, as if the machine had no more threads.
#[test]
fn a_machine_without_threads_is_70() {
    let output = zklock(&["doctor"]).env("RUST_MIN_STACK", &(1_u64 << 60).to_string()).output();
    let findings = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(70), "{findings}");
    assert!(findings.contains("starting a thread failed: "), "{findings}");
}

#[test]
fn settings_that_protect_nothing_are_warnings() {
    let digest = file("digest");
    fs::write(&digest, "team:secret").unwrap();
    fs::set_permissions(&digest, fs::Permissions::from_mode(0o644)).unwrap();
    let option = format!("auth.digest_file={}", digest.display());
    let (_, findings) = examine("no-such-host.invalid:2181", &["-o", &option]);
    assert!(details(&findings, "warn", "tls").contains("leaves this host without encryption"));
    assert!(details(&findings, "warn", "secrets").contains("other users may read or change it (mode 644)"));
    fs::set_permissions(&digest, fs::Permissions::from_mode(0o600)).unwrap();
    let (code, findings) = shared(&["-o", &option]);
    assert_eq!(code, 0);
    let checks: Vec<&str> = findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    assert!(!checks.contains(&"tls") && !checks.contains(&"secrets"), "{findings:?}");
    fs::remove_file(&digest).unwrap();
}

#[test]
fn a_directory_that_gives_others_more_than_the_options_ask_for_is_a_warning() {
    let (open, mut raw) = (path("open"), raw());
    lock_node(&mut raw, &open, "child", b"", flags::PERSISTENT);
    let credentials = |path: &str| {
        let call = zklock(&["doctor", "--json", "-o", "acl=creator_all", path]).env("ZKLOCK_AUTH_DIGEST", "a:b");
        let report: Value = serde_json::from_slice(&call.output().stdout).unwrap();
        report["findings"].as_array().unwrap().clone()
    };
    let rights = details(&credentials(&open), "warn", "rights");
    assert!(rights.contains("a client without credentials has c (create)"), "{rights}");
    let own = path("own");
    let call = zklock(&["run", "-o", "acl.lock_directory=creator_all", &own, "true"]);
    assert!(call.env("ZKLOCK_AUTH_DIGEST", "a:b").output().status.success());
    let findings = credentials(&own);
    assert!(findings.iter().all(|finding| finding["level"] == "ok" || finding["check"] != "rights"), "{findings:?}");
}

#[test]
fn a_check_that_fails_does_not_discard_the_others() {
    let (parent, mut raw) = (path("ephemeral"), raw());
    raw.create_with_ancestors(&parent, b"", flags::EPHEMERAL).unwrap();
    let (code, findings) = shared(&[&format!("{parent}/lock")]);
    assert_ne!(code, 0);
    details(&findings, "fail", "test lock");
    details(&findings, "ok", "lock");
    let output = zklock(&["doctor", "--json", "-o", "session.timeout=x"]).output();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), report["exit_code"].as_i64()), (Some(64), Some(64)));
    let findings = report["findings"].as_array().unwrap();
    assert!(details(findings, "fail", "settings").contains("session.timeout"), "{report}");
}

/// The proxy shows a directory that has had almost as many children as there are sequence numbers.
#[test]
fn used_up_sequence_numbers_are_70_also_in_an_empty_directory() {
    let (path, mut raw) = (path("numbers"), raw());
    raw.create_with_ancestors(&path, b"", flags::PERSISTENT).unwrap();
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (watched, mut lists) = (path.clone(), Vec::new());
    proxy.hook(move |direction, frame: &mut Vec<u8>| {
        let xid = frame.get(..4).map(<[u8]>::to_vec).unwrap_or_default();
        if direction == Direction::ToServer {
            // A list without a watch ends with the path and a zero.
            if frame.get(4..8) == Some(&12_i32.to_be_bytes()) && frame.ends_with(&[watched.as_bytes(), &[0]].concat()) {
                lists.push(xid);
            }
        } else if lists.contains(&xid)
            && let Some(cversion) = frame.len().checked_sub(32).and_then(|at| frame.get_mut(at..at + 4))
        {
            cversion.copy_from_slice(&(u32::MAX - 10).to_be_bytes());
        }
        Verdict::Forward
    });
    let (code, findings) = examine(&proxy.address(), &[&path]);
    assert_eq!(code, 70, "{findings:?}");
    assert!(details(&findings, "fail", "numbers").contains("so no participant can join"));
    details(&findings, "ok", "lock");
}

#[test]
fn semaphores_with_different_numbers_of_leases_and_a_mutex_beside_a_semaphore_are_83() {
    let path = path("leases");
    let start = |leases: &str| {
        let call = zklock(&["run", "--semaphore", leases, &path, "sleep", "60"]).start();
        call.wait_for_tree(1);
        call
    };
    let calls = [start("2"), start("3")];
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 83);
    let kinds = details(&findings, "fail", "kinds");
    assert_eq!(kinds, "participants use semaphores with different numbers of leases: 2, 3");
    drop(calls);
    let mutex = zklock(&["run", &path, "sleep", "60"]).start();
    mutex.wait_for_tree(1);
    let _semaphore = start("2");
    let (code, findings) = shared(&[&path]);
    assert_eq!(code, 83);
    assert!(details(&findings, "fail", "kinds").contains("different kinds of lock: mutex, semaphore"), "{findings:?}");
}

/// ZooKeeper closes further connections of an address at once.
#[test]
fn a_limit_of_connections_is_named() {
    let server = ZooKeeper::options().config_line("maxClientCnxns=2").start();
    let _sessions = [(); 2].map(|()| RawClient::connect(&server.address(), 60_000));
    let output = zklock_on(&server.address(), &["run", "-o", "connect.timeout=2s", "/a", "true"]).output();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(69) && errors.contains("maxClientCnxns"), "{errors}");
    let (code, findings) = examine(&server.address(), &["-o", "connect.timeout=2s"]);
    assert_eq!(code, 69, "{findings:?}");
    // The first check whose connection the server closes explains the reason.
    let first = findings.iter().find(|finding| finding["level"] != "ok").unwrap();
    assert!(first["advice"].as_str().unwrap().contains("maxClientCnxns"), "{findings:?}");
}

#[test]
fn wrong_arguments_are_64() {
    assert_eq!(code(&["doctor", "no/path"]).0, 64);
    assert_eq!(zklock_on("a:b", &["doctor"]).output().status.code(), Some(64));
}
