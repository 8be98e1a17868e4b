//! What services need: messages to systemd.

use std::fs;
use std::os::unix::net::UnixDatagram;

use crate::common::{TEST_TIMEOUT, code, file, path, raw, wait_for_queue, zklock};

struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn start() -> Self {
        let name = file("notify").to_str().unwrap().to_owned();
        let socket = UnixDatagram::bind(&name).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self { socket, name }
    }

    #[track_caller]
    fn receive(&self) -> String {
        let mut message = [0; 1000];
        let length = self.socket.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        fs::remove_file(&self.name).unwrap();
    }
}

#[test]
fn etcd_2855_systemd_is_notified_when_the_command_runs_under_the_lock() {
    let (path, manager, mut raw) = (path("notify"), Manager::start(), raw());
    let mut holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let call = zklock(&["run", "--notify", &path, "sleep", "60"]).env("NOTIFY_SOCKET", &manager.name);
    let mut service = call.start();
    assert_eq!(manager.receive(), format!("STATUS=waiting for {path}"));
    wait_for_queue(&mut raw, &path, 2);
    manager.socket.set_nonblocking(true).unwrap();
    assert!(manager.socket.recv(&mut [0; 100]).is_err(), "the service waits, so it is not ready");
    manager.socket.set_nonblocking(false).unwrap();
    holder.signal(libc::SIGTERM);
    holder.wait();
    assert_eq!(manager.receive(), format!("READY=1\nSTATUS=holds {path}"));
    assert_eq!(service.tree().len(), 1);
    service.signal(libc::SIGTERM);
    assert_eq!(manager.receive(), "STOPPING=1");
    assert_eq!(service.wait(), 143);
}

#[test]
fn stopping_is_reported_before_a_command_that_lost_its_lock_has_ended() {
    let (path, manager, mut raw) = (path("notify"), Manager::start(), raw());
    let script = "trap '' TERM; while :; do sleep 0.05; done";
    let call = zklock(&["run", "--notify", &path, "sh", "-c", script]).env("NOTIFY_SOCKET", &manager.name);
    let mut service = call.start();
    let messages = [manager.receive(), manager.receive()];
    assert_eq!(messages, [format!("STATUS=waiting for {path}"), format!("READY=1\nSTATUS=holds {path}")]);
    let node = raw.children(&path).unwrap().remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(manager.receive(), "STOPPING=1");
    assert!(!service.tree().is_empty(), "the grace period has just begun");
    assert_eq!(service.wait(), 79);
}

#[test]
fn notify_without_a_service_manager_has_no_effect_and_a_wrong_socket_is_named() {
    assert_eq!(code(&["run", "--notify", &path("notify"), "true"]), (0, String::new()));
    for (name, expected) in [("relative", "expected an absolute path, or @ and a name"), ("/no/socket", "(os error 2)")]
    {
        let output = zklock(&["run", "--notify", "/a", "true"]).env("NOTIFY_SOCKET", name).output();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{errors}");
        let start = format!("zklock: --notify: cannot connect to the socket {name} of NOTIFY_SOCKET: ");
        assert!(errors.starts_with(&start) && errors.contains(expected), "{errors}");
    }
}
