//! Translates the option names of ZooKeeper's own clients into zklock options. A file `zkclient.properties` can contain
//! such names. A name without an equivalent causes an error, because the program would otherwise rely on a setting that
//! has no effect. The code in this file does not set options.

use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};
use zklock_core::path::quote;

use crate::runtime::JAAS_FILE;

/// What zklock does when the program uses an option name from ZooKeeper's own client.
#[derive(Clone)]
#[cfg_attr(test, derive(Debug, PartialEq, Eq))]
pub(crate) enum Translation {
    /// Sets an option of zklock. The variant contains the name and the value of this option. The value can be a secret.
    Option(&'static str, Zeroizing<String>),
    /// Sets the oldest accepted version of TLS, unless the program also sets `tls.min_version`.
    DefaultMinVersion { requires_tls13: bool },
    /// Sets whether the client must not use SASL.
    ForbidSasl(bool),
    /// Sets whether the client must not use MD5.
    Fips(bool),
    /// Names a JAAS file.
    JaasFile(String),
    /// Names the section of the JAAS file.
    JaasSection(String),
}

/// The prefix of option names in ZooKeeper's own clients.
const PREFIX: &str = "zookeeper.";

/// The name of the option that sets the TLS protocol. The option has an effect only if the program does not list the
/// enabled protocols.
const PROTOCOL: &str = "zookeeper.ssl.protocol";
/// The name of the option that lists the protocols that the client offers.
const ENABLED_PROTOCOLS: &str = "zookeeper.ssl.enabledProtocols";

/// Returns whether a file may contain both of these names. Two names that set the same option normally exclude each
/// other. In a file, either order of the two names has the same effect.
pub(crate) fn is_pair(one: &str, other: &str) -> bool {
    matches!((one, other), (PROTOCOL, ENABLED_PROTOCOLS) | (ENABLED_PROTOCOLS, PROTOCOL))
}

/// Translates an option of ZooKeeper. Returns `None` if the name is not a ZooKeeper name. If the option requests
/// something that zklock always does, the result is empty.
///
/// Errors: INVALID if the option has no equivalent.
pub(crate) fn translate(name: &str, value: &str) -> Result<Option<Vec<Translation>>> {
    if name == JAAS_FILE {
        return Ok(Some(vec![Translation::JaasFile(value.to_owned())]));
    }
    let Some(short) = name.strip_prefix(PREFIX) else { return Ok(None) };
    let fixed = |option, value: &str| vec![Translation::Option(option, Zeroizing::new(value.to_owned()))];
    let to = |option| fixed(option, value);
    let refuse = |why: &str| Err(Error::invalid(format!("option {}: {why}", quote(name))));
    let expected = |what: &str| Err(Error::invalid(format!("option {name} is {}; expected {what}", quote(value))));
    Ok(Some(match short {
        "client.secure" => to("tls.enabled"),
        "clientCnxnSocket" => match value {
            "org.apache.zookeeper.ClientCnxnSocketNetty" => Vec::new(),
            _ => return expected("org.apache.zookeeper.ClientCnxnSocketNetty"),
        },
        // A keystore in PEM format contains the certificate and the private key.
        "ssl.keyStore.location" => [to("tls.cert"), to("tls.key")].concat(),
        "ssl.keyStore.password" => to("tls.key_password"),
        "ssl.keyStore.passwordPath" => to("tls.key_password_file"),
        "ssl.trustStore.location" => to("tls.ca"),
        "ssl.keyStore.type" | "ssl.trustStore.type" => match value {
            "PEM" | "pem" => Vec::new(),
            _ => {
                return expected(
                    "PEM; convert a keystore with: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12 \
                     && openssl pkcs12 -in FILE.p12 -out FILE.pem",
                );
            }
        },
        "ssl.trustStore.password" | "ssl.trustStore.passwordPath" => match value {
            "" => Vec::new(),
            _ => return refuse("has no equivalent, because a PEM file with CA certificates has no password"),
        },
        "ssl.hostnameVerification" => match value {
            "true" => fixed("tls.verify", "full"),
            "false" => fixed("tls.verify", "ca"),
            _ => return expected("true or false"),
        },
        "ssl.protocol" => match min_version(value) {
            Some(version) => vec![Translation::DefaultMinVersion { requires_tls13: version == "1.3" }],
            None => return expected("TLSv1.2 or TLSv1.3"),
        },
        "ssl.enabledProtocols" => match value.split(',').map(|version| min_version(version.trim())).min() {
            Some(Some(version)) => fixed("tls.min_version", version),
            _ => return expected("a list of TLSv1.2 and TLSv1.3"),
        },
        // In the FIPS mode, which is the default of new Java clients, the Java client leaves the check of host names to
        // the TLS library, which zklock always does, and does not use DIGEST-MD5.
        "fips-mode" => match value {
            "true" => vec![Translation::Fips(true)],
            "false" => vec![Translation::Fips(false)],
            _ => return expected("true or false"),
        },
        "sasl.client" => match value {
            "true" => vec![Translation::ForbidSasl(false)],
            "false" => vec![Translation::ForbidSasl(true)],
            _ => return expected("true or false"),
        },
        "sasl.client.username" => to("sasl.service"),
        "server.realm" => fixed("sasl.server_name", &format!("@{value}")),
        "server.principal" => match value.split_once('/') {
            Some((service, host)) => [fixed("sasl.service", service), fixed("sasl.server_name", host)].concat(),
            None => return expected("a principal such as zookeeper/host@REALM"),
        },
        "sasl.clientconfig" => vec![Translation::JaasSection(value.to_owned())],
        "ssl.crl" | "ssl.ocsp" | "ssl.allowReverseDnsLookup" => match (short, value) {
            (_, "false") => Vec::new(),
            ("ssl.crl", "true") => {
                return refuse(
                    "has no equivalent, because the client downloads no revocation lists; name their file with tls.crl",
                );
            }
            (_, "true") => return refuse("has no equivalent in zklock; expected false"),
            _ => return expected("true or false"),
        },
        _ => return refuse("has no equivalent in zklock"),
    }))
}

fn min_version(protocol: &str) -> Option<&'static str> {
    match protocol {
        "TLSv1.2" => Some("1.2"),
        "TLSv1.3" => Some("1.3"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(name: &str, value: &str) -> Vec<Translation> {
        translate(name, value).unwrap().unwrap()
    }

    #[test]
    fn names_with_an_equivalent_are_translated() {
        for (name, value, options) in [
            ("client.secure", "true", &[("tls.enabled", "true")][..]),
            ("clientCnxnSocket", "org.apache.zookeeper.ClientCnxnSocketNetty", &[]),
            ("ssl.keyStore.location", "/k.pem", &[("tls.cert", "/k.pem"), ("tls.key", "/k.pem")]),
            ("ssl.keyStore.password", "secret", &[("tls.key_password", "secret")]),
            ("ssl.keyStore.passwordPath", "/p", &[("tls.key_password_file", "/p")]),
            ("ssl.keyStore.type", "PEM", &[]),
            ("ssl.trustStore.location", "/ca.pem", &[("tls.ca", "/ca.pem")]),
            ("ssl.trustStore.password", "", &[]),
            ("ssl.hostnameVerification", "false", &[("tls.verify", "ca")]),
            ("ssl.hostnameVerification", "true", &[("tls.verify", "full")]),
            ("ssl.enabledProtocols", "TLSv1.3, TLSv1.2", &[("tls.min_version", "1.2")]),
            ("ssl.crl", "false", &[]),
            ("sasl.client.username", "zk", &[("sasl.service", "zk")]),
            ("server.realm", "R", &[("sasl.server_name", "@R")]),
            ("server.principal", "zk/h@R", &[("sasl.service", "zk"), ("sasl.server_name", "h@R")]),
        ] {
            let option = |&(name, value): &(_, &str)| Translation::Option(name, Zeroizing::new(value.to_owned()));
            let expected: Vec<_> = options.iter().map(option).collect();
            assert_eq!(translated(&format!("zookeeper.{name}"), value), expected, "{name}");
        }
        for (value, requires_tls13) in [("TLSv1.2", false), ("TLSv1.3", true)] {
            assert_eq!(translated(PROTOCOL, value), [Translation::DefaultMinVersion { requires_tls13 }]);
        }
        for (value, is_forbidden) in [("true", false), ("false", true)] {
            assert_eq!(translated("zookeeper.sasl.client", value), [Translation::ForbidSasl(is_forbidden)]);
        }
        for (value, is_fips) in [("true", true), ("false", false)] {
            assert_eq!(translated("zookeeper.fips-mode", value), [Translation::Fips(is_fips)]);
        }
        assert_eq!(translated(JAAS_FILE, "/j"), [Translation::JaasFile("/j".to_owned())]);
        assert_eq!(translated("zookeeper.sasl.clientconfig", "C"), [Translation::JaasSection("C".to_owned())]);
        assert!(translate("tls.ca", "/ca.pem").unwrap().is_none());
    }

    #[test]
    fn names_without_an_equivalent_are_refused() {
        for (name, value, said) in [
            (
                "clientCnxnSocket",
                "x.Nio",
                "option zookeeper.clientCnxnSocket is \"x.Nio\"; expected org.apache.zookeeper.ClientCnxnSocketNetty",
            ),
            ("ssl.keyStore.type", "JKS", "is \"JKS\"; expected PEM; convert a keystore with: keytool "),
            ("ssl.trustStore.password", "hunter2", "option \"zookeeper.ssl.trustStore.password\": has no equivalent"),
            ("ssl.protocol", "TLSv1", "expected TLSv1.2 or TLSv1.3"),
            ("ssl.enabledProtocols", "TLSv1.2,TLSv1.1", "expected a list of TLSv1.2 and TLSv1.3"),
            ("ssl.crl", "true", "tls.crl"),
            ("fips-mode", "x", "option zookeeper.fips-mode is \"x\"; expected true or false"),
            ("server.principal", "zk", "is \"zk\"; expected a principal such as zookeeper/host@REALM"),
            ("sasl.client", "", "option zookeeper.sasl.client is \"\"; expected true or false"),
            ("ssl.ocsp", "true", "has no equivalent in zklock; expected false"),
            ("ssl.ciphersuites", "hunter2", "option \"zookeeper.ssl.ciphersuites\": has no equivalent in zklock"),
            ("", "", "has no equivalent in zklock"),
        ] {
            let error = translate(&format!("zookeeper.{name}"), value).unwrap_err();
            assert!(error.message().contains(said), "{error}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
    }
}
