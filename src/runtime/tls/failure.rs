//! Describes TLS failures in plain words. A failure is a *refusal* if the client or the server does not accept the
//! certificate of the other side. A refusal has the status AUTH. All other failures have the status CONNECTION. The
//! code in this file does not react to a failure.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustls::pki_types::{ServerName, UnixTime};
use rustls::{
    AlertDescription, CertRevocationListError, CertificateError, Error, InvalidMessage, PeerIncompatible,
    PeerMisbehaved,
};

/// The keys and signatures of certificates that the client accepts, for messages.
const KINDS: &str =
    "expected RSA of 2048 to 8192 bits, ECDSA with P-256 or P-384, or Ed25519, signed with SHA-256 or better";
/// The largest number of names that a message lists for one certificate.
const MAX_NAMES_LISTED: usize = 8;

/// Facts about a failed connection. [`describe`] uses these facts to explain the failure.
pub(super) struct Circumstances<'a> {
    pub(super) min_version: &'static str,
    /// True if the client has a certificate.
    pub(super) has_certificate: bool,
    /// True if the server has asked the client for a certificate.
    pub(super) is_certificate_requested: bool,
    pub(super) server_name: &'a str,
    /// The first bytes that the server has sent.
    pub(super) first_bytes: &'a [u8],
}

/// A TLS failure, as the inner error of an [`io::Error`].
#[derive(Debug)]
struct TlsFailure {
    message: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The client or the server refused a certificate.
    Refusal,
    /// The server does not use TLS.
    PlainText,
    Other,
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for TlsFailure {}

/// Returns whether a connection error means that the client or the server refused a certificate.
pub(in crate::runtime) fn is_refusal(error: &io::Error) -> bool {
    tls_failure(error).is_some_and(|failure| failure.kind == Kind::Refusal)
}

/// Returns whether a connection error means that the server does not use TLS.
pub(in crate::runtime) fn is_plain_text(error: &io::Error) -> bool {
    tls_failure(error).is_some_and(|failure| failure.kind == Kind::PlainText)
}

/// Returns whether a connection error comes from TLS, and not from the socket.
pub(super) fn is_tls_failure(error: &io::Error) -> bool {
    tls_failure(error).is_some()
}

fn tls_failure(error: &io::Error) -> Option<&TlsFailure> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

pub(super) fn refusal(message: impl Into<String>) -> io::Error {
    io::Error::other(TlsFailure { message: message.into(), kind: Kind::Refusal })
}

pub(super) fn failure(message: impl Into<String>) -> io::Error {
    io::Error::other(TlsFailure { message: message.into(), kind: Kind::Other })
}

/// Describes an error of rustls.
pub(super) fn describe(error: &Error, cx: &Circumstances<'_>) -> io::Error {
    match error {
        Error::InvalidCertificate(cause) => refusal(describe_certificate_error(cause)),
        Error::NoCertificatesPresented => refusal("the server has sent no certificate"),
        Error::InvalidCertRevocationList(cause) => refusal(describe_revocation_list_error(cause)),
        Error::AlertReceived(alert) => describe_alert(*alert, cx),
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        )
        | Error::InvalidMessage(InvalidMessage::UnknownProtocolVersion)
            if is_tls(cx.first_bytes) =>
        {
            too_old(cx)
        }
        _ if !cx.first_bytes.is_empty() && !is_tls(cx.first_bytes) => io::Error::other(TlsFailure {
            message: "the server answered the TLS handshake without TLS; use the port that the servers set with \
                      secureClientPort, or set tls.enabled to false"
                .to_owned(),
            kind: Kind::PlainText,
        }),
        Error::DecryptError => failure("a TLS record was changed on the way"),
        Error::PeerIncompatible(
            PeerIncompatible::NoCipherSuitesInCommon
            | PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::NoSignatureSchemesInCommon
            | PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon,
        )
        | Error::PeerMisbehaved(
            PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme | PeerMisbehaved::SignedKxWithWrongAlgorithm,
        ) => refusal(format!("the server uses a kind of key or signature that this client does not support; {KINDS}")),
        other => failure(format!("TLS failed: {other}")),
    }
}

/// Describes a connection that ended before the handshake was complete.
pub(super) fn describe_closed(first_bytes: &[u8]) -> io::Error {
    if first_bytes.is_empty() {
        return failure(
            "the server closed the connection without an answer to the TLS handshake; its port may not use TLS (see \
             secureClientPort in the servers' configuration)",
        );
    }
    failure("the server closed the connection during the TLS handshake")
}

/// Returns whether a TLS record can begin with these bytes. A TLS record begins with its type and the major version 3.
fn is_tls(first_bytes: &[u8]) -> bool {
    matches!(first_bytes, [20..=24] | [20..=24, 3, ..])
}

fn too_old(cx: &Circumstances<'_>) -> io::Error {
    failure(format!("the server does not support TLS {} or later (tls.min_version)", cx.min_version))
}

fn describe_alert(alert: AlertDescription, cx: &Circumstances<'_>) -> io::Error {
    use AlertDescription as A;
    let name = alert_name(alert);
    let is_about_certificate = matches!(
        alert,
        A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError
            | A::CertificateRequired
            | A::NoCertificate
    );
    match alert {
        A::ProtocolVersion => too_old(cx),
        _ if cx.is_certificate_requested
            && !cx.has_certificate
            && (is_about_certificate || alert == A::HandshakeFailure) =>
        {
            refusal(format!("the server requires a client certificate; set tls.cert and tls.key (TLS alert {name})"))
        }
        _ if is_about_certificate && cx.has_certificate => {
            refusal(format!("the server refused the client certificate of tls.cert (TLS alert {name})"))
        }
        _ if is_about_certificate => refusal(format!("the server refused the client (TLS alert {name})")),
        A::UnrecognisedName => {
            refusal(format!("the server has no certificate for the name {} (TLS alert {name})", cx.server_name))
        }
        A::HandshakeFailure | A::InsufficientSecurity => failure(format!(
            "the server and the client have no TLS cipher suite, key exchange or kind of key in common (TLS alert {name}); {KINDS}"
        )),
        _ => failure(format!("the server ended the connection with the TLS alert {name}")),
    }
}

/// Returns the name that RFC 8446 uses for an alert.
fn alert_name(alert: AlertDescription) -> String {
    let mut name = String::new();
    for letter in format!("{alert:?}").replace("CA", "Ca").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

fn describe_certificate_error(cause: &CertificateError) -> String {
    use CertificateError as C;
    match cause {
        C::UnknownIssuer => "the certificate of the server is not signed by a CA of tls.ca".to_owned(),
        C::NotValidForName => "the certificate of the server is for another name".to_owned(),
        C::NotValidForNameContext { expected, presented } => {
            let (name, names) = (expected.to_str(), presented_names(presented));
            let is_address = matches!(expected, ServerName::IpAddress(_));
            let has_text = is_address && presented.iter().any(|presented| presented_name(presented) == name);
            let hint = if has_text { "; an address must be an entry IP, not DNS" } else { "" };
            format!("the certificate of the server is not for {name}; {names}{hint}")
        }
        C::Expired => "the certificate of the server has expired".to_owned(),
        C::ExpiredContext { not_after, .. } => {
            format!("the certificate of the server expired at {}", date(*not_after))
        }
        C::NotValidYet => "the certificate of the server is not valid yet".to_owned(),
        C::NotValidYetContext { time, not_before } => format!(
            "the certificate of the server is not valid before {}; the clock of this machine is at {}",
            date(*not_before),
            date(*time)
        ),
        C::Revoked => "the certificate of the server, or of a CA that signed it, is revoked by tls.crl".to_owned(),
        C::UnknownRevocationStatus => {
            "tls.crl has no revocation list for a CA that signed the certificate of the server".to_owned()
        }
        C::ExpiredRevocationList => "a revocation list of tls.crl has expired".to_owned(),
        C::ExpiredRevocationListContext { next_update, .. } => {
            format!("a revocation list of tls.crl expired at {}", date(*next_update))
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "the certificate is not for servers: its extended key usage lacks serverAuth".to_owned()
        }
        C::BadEncoding => "the certificate of the server is damaged".to_owned(),
        C::BadSignature => format!(
            "the certificate of the server, or of a CA that signed it, has a wrong signature or too short a key; {KINDS}"
        ),
        C::UnsupportedSignatureAlgorithmContext { .. } | C::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            format!(
                "the certificate of the server has a kind of key or signature that this client does not support, for example \
             SHA-1; {KINDS}"
            )
        }
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server uses the certificate of a CA as its own certificate".to_owned()
        }
        other if format!("{other:?}").contains("UnsupportedCertVersion") => {
            "the certificate of the server has an old version of X.509; expected version 3".to_owned()
        }
        other => format!("the certificate of the server is not valid: {other}"),
    }
}

fn presented_names(presented: &[String]) -> String {
    if presented.is_empty() {
        return "it has no subject alternative name".to_owned();
    }
    let names: Vec<String> =
        presented.iter().take(MAX_NAMES_LISTED).map(|name| presented_name(name).escape_debug().to_string()).collect();
    let more = if presented.len() > MAX_NAMES_LISTED { " and others" } else { "" };
    format!("it is for {}{more}", names.join(", "))
}

/// Strips the type from a name in a certificate. rustls formats such names with their type, as in `DnsName("host")` and
/// `IpAddress(127.0.0.1)`.
fn presented_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"')
}

fn describe_revocation_list_error(cause: &CertRevocationListError) -> String {
    match cause {
        CertRevocationListError::BadSignature => "a revocation list of tls.crl has a wrong signature".to_owned(),
        other => format!("a revocation list of tls.crl is not usable: {other:?}"),
    }
}

/// Formats a time, for example as `2026-01-31 12:00:00 UTC`.
fn date(time: UnixTime) -> String {
    let seconds = time.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // The Gregorian calendar repeats every 146097 days. A year that begins in March has its leap day at the end.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(UnixTime::since_unix_epoch(Duration::from_secs(seconds))), text);
        }
    }

    #[test]
    fn alerts_have_the_names_of_the_standard() {
        assert_eq!(alert_name(AlertDescription::UnknownCA), "unknown_ca");
        assert_eq!(alert_name(AlertDescription::CertificateRequired), "certificate_required");
    }

    #[test]
    fn names_of_certificates_are_shown_without_their_type() {
        assert_eq!(presented_name("DnsName(\"zk1\")"), "zk1");
        assert_eq!(presented_name("IpAddress(127.0.0.1)"), "127.0.0.1");
        assert_eq!(presented_name("zk1"), "zk1");
    }
}
