//! A Kerberos realm for one test program, with a real KDC of MIT Kerberos.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::directory::{Directory, Storage};
use crate::port::Port;
use crate::{TEST_TIMEOUT, wait_until};

/// The name of the realm.
pub const REALM: &str = "ZKLOCK.TEST";

/// A realm with its KDC. Dropping it ends the KDC and removes the database.
pub struct KerberosRealm {
    kdc: Mutex<Option<Child>>,
    directory: Directory,
    port: Port,
}

/// Runs the KDC until the standard input has a line or ends, and removes the directory if the line is missing. The input
/// ends when the test process has ended for any reason.
const SUPERVISOR: &str = r#"
directory=$1
shift
"$@" -n >/dev/null 2>&1 & kdc=$!
echo $kdc
read -r line
kill -9 $kdc
[ "$line" = keep ] || rm -rf "$directory"
"#;

impl KerberosRealm {
    /// Creates the database and starts the KDC. Panics if MIT Kerberos is not installed (`make setup-verify`).
    pub fn start() -> Self {
        let realm =
            Self { kdc: Mutex::new(None), directory: Directory::create(Storage::Memory), port: Port::reserve() };
        let (directory, address) = (realm.directory.path().display(), realm.port.address());
        let client = format!(
            "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n udp_preference_limit = 1\n\
             [realms]\n {REALM} = {{\n  kdc = {address}\n }}\n"
        );
        let kdc = format!(
            "[kdcdefaults]\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n\
             [realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n }}\n\
             [logging]\n kdc = FILE:{directory}/kdc.log\n"
        );
        fs::write(realm.config_file(), client).expect("write krb5.conf");
        fs::write(realm.file("kdc.conf"), kdc).expect("write kdc.conf");
        realm.run("kdb5_util", &["create", "-s", "-r", REALM, "-P", "secret"]);
        realm.resume();
        realm
    }

    /// The configuration file, for the variable `KRB5_CONFIG` and for Java.
    pub fn config_file(&self) -> PathBuf {
        self.file("krb5.conf")
    }

    /// A file in the directory of the realm.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Adds a principal, for example `bob` or `zookeeper/localhost`, and returns its keytab. `options` are those of
    /// kadmin's `addprinc`.
    pub fn add_principal(&self, principal: &str, options: &str) -> PathBuf {
        let keytab = self.file(&format!("{}.keytab", principal.replace('/', "-")));
        self.admin(&format!("addprinc {options} -randkey {principal}"));
        self.admin(&format!("ktadd -k {} {principal}", keytab.display()));
        keytab
    }

    /// Executes a command of kadmin.
    pub fn admin(&self, command: &str) {
        self.run("kadmin.local", &["-r", REALM, "-q", command]);
    }

    /// Gets a ticket with a keytab, as a user does, and returns the credential cache.
    pub fn kinit(&self, principal: &str, keytab: &Path, lifetime: &str) -> PathBuf {
        let cache = self.file(&format!("{principal}.ccache"));
        let (keytab, name) = (keytab.display().to_string(), cache.display().to_string());
        self.run("kinit", &["-l", lifetime, "-k", "-t", &keytab, "-c", &name, principal]);
        cache
    }

    /// The section `Server` of a JAAS file, for a server with this principal.
    pub fn jaas(&self, principal: &str, keytab: &Path) -> String {
        format!(
            "Server {{\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true\n  \
             doNotPrompt=true isInitiator=false keyTab=\"{}\" principal=\"{principal}@{REALM}\";\n}};\n",
            keytab.display()
        )
    }

    /// Ends the KDC, so that no client gets a ticket.
    pub fn pause(&self) {
        let kdc = self.kdc.lock().unwrap_or_else(PoisonError::into_inner).take();
        kdc.into_iter().for_each(end);
    }

    /// Starts the KDC.
    pub fn resume(&self) {
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR, "supervisor"]).arg(self.directory.path()).arg("krb5kdc");
        let mut kdc =
            self.environment(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start sh");
        let mut line = String::new();
        BufReader::new(kdc.stdout.take().expect("standard output")).read_line(&mut line).expect("read the pid");
        *self.kdc.lock().unwrap_or_else(PoisonError::into_inner) = Some(kdc);
        wait_until(TEST_TIMEOUT, || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.number())).is_ok());
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        let output = self.environment(command.args(arguments)).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}; make setup-verify installs krb5-kdc"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !text.contains("kadmin.local:"), "{program} {arguments:?}: {text}");
    }

    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command.env("KRB5_CONFIG", self.config_file()).env("KRB5_KDC_PROFILE", self.file("kdc.conf"))
    }
}

fn end(mut kdc: Child) {
    // The input is closed at the end of this statement.
    let _ = kdc.stdin.take().map(|mut input| input.write_all(b"keep\n"));
    let _ = kdc.wait();
}

impl Drop for KerberosRealm {
    fn drop(&mut self) {
        self.pause();
    }
}
