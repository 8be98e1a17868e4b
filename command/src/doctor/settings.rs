//! Checks the settings: which file was read, and whether they protect the connection and the secrets.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use zklock::Server;

use super::finding::Finding;
use crate::settings::{Settings, UNVERIFIED};

/// The options whose values are names of files that contain secrets.
const SECRET_FILES: [&str; 3] = ["auth.digest_file", "tls.key_password_file", "tls.key"];
/// The options whose values are secrets.
const SECRETS: [&str; 2] = ["auth.digest", "tls.key_password"];

/// Checks the settings for these servers.
pub(crate) fn check(settings: &Settings, servers: &[Server]) -> Vec<Finding> {
    let file = settings.file.as_ref().map(|file| file.display().to_string());
    let read = file.as_ref().map_or_else(
        || "no options file was read; the default is $XDG_CONFIG_HOME/zklock.conf or /etc/zklock.conf".to_owned(),
        |file| format!("the options file {file} was read"),
    );
    let mut findings = vec![Finding::ok("settings", &settings.servers, read)];
    if settings.option("tls.verify") == Some("none") {
        findings.push(
            Finding::warn("tls", &settings.servers, UNVERIFIED)
                .advise("Set tls.ca to the certificate of the CA of the servers, and remove tls.verify."),
        );
    }
    let has_digest = settings.option("auth.digest").or_else(|| settings.option("auth.digest_file")).is_some();
    if has_digest
        && !settings.config.uses_tls()
        && let Some(server) = servers.iter().find(|server| !is_local(&server.host))
    {
        let detail = "the password of auth.digest leaves this host without encryption";
        findings.push(Finding::warn("tls", server, detail).advise(
            "Use TLS: set tls.ca, and the port of secureClientPort. Everybody on the way can read the password.",
        ));
    }
    let in_file = file.filter(|_| SECRETS.iter().any(|name| settings.is_in_file(name)));
    let files = SECRET_FILES.into_iter().filter_map(|name| settings.option(name)).map(str::to_owned);
    findings.extend(in_file.into_iter().chain(files).filter_map(|file| exposed(&file)));
    findings
}

fn is_local(host: &str) -> bool {
    let is_loopback = |host: &str| host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    host == "localhost" || is_loopback(host.trim_matches(['[', ']']))
}

/// Finds a file with a secret that users of other groups may read, or that other users may change.
fn exposed(file: &str) -> Option<Finding> {
    let mode = Path::new(file).metadata().ok()?.permissions().mode() & 0o777;
    (mode & 0o026 != 0).then(|| {
        Finding::warn(
            "secrets",
            file,
            format!("the file contains a secret, and other users may read or change it (mode {mode:03o})"),
        )
        .advise(format!("chmod 600 {file}, and change the secret. Other users may have read it."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_need_no_encryption() {
        for (host, expected) in
            [("localhost", true), ("127.0.0.2", true), ("::1", true), ("zk1", false), ("10.0.0.1", false)]
        {
            assert_eq!(is_local(host), expected, "{host}");
        }
    }
}
