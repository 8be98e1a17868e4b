//! Where the command takes its settings from: the arguments, the environment, and a file.

use std::fs;

use zklock_test_support::{Authority, Certificates, RawClient, TlsListener, ZooKeeper};

use crate::common::{code, file, path, zklock, zklock_on};

#[test]
fn an_option_wins_over_the_environment_and_the_environment_over_the_file() {
    let options = file("options");
    fs::write(&options, "connect.timeout = 1000\nsession.timeout = 9000\nlease.margin = 3000\n").unwrap();
    let negotiated = |arguments: &[&str], variables: &[(&str, &str)]| {
        // The longest grace period depends on the session timeout.
        let arguments = [&["run", "--grace", "1h"], arguments, &["/a", "true"]].concat();
        let call = zklock(&arguments).env("ZKLOCK_CONFIG", options.to_str().unwrap());
        let output = variables.iter().fold(call, |call, (name, value)| call.env(name, value)).output();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(negotiated(&[], &[]).contains("a session timeout of 9000 ms"));
    let variables = [("ZKLOCK_SESSION_TIMEOUT", "8000")];
    assert!(negotiated(&[], &variables).contains("a session timeout of 8000 ms"));
    assert!(negotiated(&["-o", "session.timeout=7000"], &variables).contains("a session timeout of 7000 ms"));
    fs::remove_file(&options).unwrap();
}

#[test]
fn a_misspelled_variable_is_refused_with_the_nearest_name() {
    let output = zklock(&["ls"]).env("ZKLOCK_TLS_CAFILE", "ca.pem").output();
    let errors = String::from_utf8(output.stderr).unwrap();
    let expected = "zklock: the variable ZKLOCK_TLS_CAFILE is unknown; the nearest name is ZKLOCK_TLS_CA\n";
    assert_eq!((output.status.code(), &*errors), (Some(64), expected));
}

#[test]
fn the_default_file_can_name_the_servers_and_the_doctor_names_the_file() {
    let directory = file("configuration");
    fs::create_dir(&directory).unwrap();
    let default = directory.join("zklock.conf");
    fs::write(&default, format!("servers = {}\nsession.timeout = 9s\n", ZooKeeper::shared().address())).unwrap();
    let call = |arguments: &[&str]| {
        let mut call = zklock(arguments).env("XDG_CONFIG_HOME", directory.to_str().unwrap());
        call.command().env_remove("ZKLOCK_SERVERS").env_remove("ZKLOCK_CONFIG");
        let output = call.output();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    assert_eq!(call(&["run", &path("default"), "echo", "ran"]), (Some(0), "ran\n".to_owned()));
    let (code, report) = call(&["doctor", "--json"]);
    assert!(
        code == Some(0) && report.contains(&format!("the options file {} was read", default.display())),
        "{report}"
    );
    assert!(report.contains("the negotiated session timeout is 9s"), "{report}");
    let (code, errors) = call(&["--servers", "127.0.0.1:1", "-o", "connect.timeout=100", "ls"]);
    assert!(code == Some(69) && errors.contains("127.0.0.1:1"), "{errors}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_client_that_verifies_no_server_says_so() {
    let certificates = Certificates::shared();
    let server = ZooKeeper::options().tls(&TlsListener::new(certificates)).start();
    let option = |name: &str, file: &str| format!("{name}={}", certificates.file(file));
    let (key, cert) = (option("tls.key", "client.key"), option("tls.cert", "client.pem"));
    let options = ["-o", &key, "-o", &cert, "-o", "tls.verify=none"];
    let call = |verb: &[&str], last: &[&str]| {
        let output = zklock_on(&server.tls_address(), &[verb, &options, last].concat()).output();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, printed) = call(&["run", "-q"], &[&path("unverified"), "true"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.starts_with("zklock: tls.verify is none: anybody between this host and the servers"), "{printed}");
    let (_, report) = call(&["doctor", "--json"], &[]);
    assert!(report.contains("tls.verify is none"), "{report}");
}

#[test]
fn a_secret_among_the_arguments_is_refused_and_not_printed() {
    let (code, errors) = code(&["run", "-o", "auth.digest=team:hunter2", "/a", "true"]);
    assert_eq!(code, 64);
    assert!(errors.starts_with("zklock: --option auth.digest: other users"), "{errors}");
    assert!(!errors.contains("hunter2"), "{errors}");
}

/// The server requires TLS and a certificate of the client. Its plain port serves the test.
#[test]
fn a_job_runs_over_tls_with_credentials_and_its_record_has_the_access_control_list() {
    let certificates = Certificates::shared();
    certificates.write("other-ca.pem", &Authority::new("other").certificate());
    let server = ZooKeeper::options().tls(&TlsListener::new(certificates)).start();
    let (path, options) = (path("tls"), file("options"));
    let cert = certificates.file("client.pem");
    fs::write(&options, format!("tls.cert = {cert}\nacl = open\nconnect.timeout = 60000\n")).unwrap();
    let run = |authority: &str| {
        let (authority, key) = (format!("tls.ca={}", certificates.file(authority)), certificates.file("client.key"));
        let settings = ["-o", &authority, "-o", "acl=creator_all", "--config", options.to_str().unwrap()];
        let arguments = [&["run", "--once-per", "day"], &settings[..], &[&path, "echo", "ran"]].concat();
        let call = zklock_on(&server.tls_address(), &arguments).env("ZKLOCK_TLS_KEY", &key);
        let output = call.env("ZKLOCK_AUTH_DIGEST", "team:secret").output();
        let [printed, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), printed, errors)
    };
    let (code, printed, errors) = run("other-ca.pem");
    assert_eq!((code, &*printed), (Some(77), ""), "{errors}");
    assert!(errors.contains("is not signed by a CA of tls.ca"), "{errors}");
    assert_eq!(run("ca.pem"), (Some(0), "ran\n".to_owned(), String::new()));
    assert_eq!(run("ca.pem").0, Some(75), "the record can be read");
    let mut team = RawClient::connect(&server.address(), 60_000);
    team.authenticate("digest", "team:secret").unwrap();
    let acl = team.acl(&format!("{path}-runs")).unwrap();
    assert!(acl.iter().all(|entry| entry.contains("digest:team:") || entry.contains("x509:")), "{acl:?}");
    assert!(acl.iter().any(|entry| entry.contains("digest:team:")), "{acl:?}");
    fs::remove_file(&options).unwrap();
}
