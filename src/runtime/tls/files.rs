//! Reads files with certificates and revocation lists in PEM format, and detects whether a file has changed. If a file
//! is a keystore or has another format, the error contains a command that converts the file to PEM. The code in this
//! file does not verify certificates.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use zeroize::Zeroizing;
use zklock_core::error::{Error, Result};

use super::pem;
use crate::runtime::file::{quote_file, read_regular_file};

/// The maximum size of a file, in bytes. Revocation lists are the longest files.
const FILE_LIMIT: usize = 16 * 1024 * 1024;
/// The largest number of files in a directory of certificates.
const DIRECTORY_LIMIT: usize = 10_000;

/// The PEM label of a certificate.
const CERTIFICATE: &str = "CERTIFICATE";

/// A file, and the option that names the file.
#[derive(Clone, Copy)]
pub(super) struct NamedFile<'a> {
    pub(super) option: &'static str,
    pub(super) path: &'a Path,
}

impl NamedFile<'_> {
    /// Reads the file. Refuses keystores and files that are not PEM.
    pub(super) fn read_pem(self) -> Result<Zeroizing<Vec<u8>>> {
        let bytes = read_regular_file(self.option, self.path, FILE_LIMIT)?;
        match BinaryFormat::of(&bytes) {
            Some(format) => Err(self.refuse(&format!(
                "is {}; expected PEM; convert it with: {}",
                format.name(),
                format.conversion(self)
            ))),
            None => Ok(bytes),
        }
    }

    /// Reads the certificates of the file. Fails if the file contains no certificate.
    pub(super) fn certificates(self) -> Result<Vec<CertificateDer<'static>>> {
        let bytes = self.read_pem()?;
        let certificates: Vec<_> = self.sections(&bytes, CERTIFICATE)?;
        if certificates.is_empty() {
            return Err(self.refuse("contains no certificate; expected PEM with \"-----BEGIN CERTIFICATE-----\""));
        }
        Ok(certificates)
    }

    /// Reads the revocation lists of the file. Fails if the file contains no revocation list.
    pub(super) fn revocation_lists(self) -> Result<Vec<CertificateRevocationListDer<'static>>> {
        let bytes = self.read_pem()?;
        let lists: Vec<_> = self.sections(&bytes, "X509 CRL")?;
        if lists.is_empty() {
            return Err(self.refuse("contains no revocation list; expected PEM with \"-----BEGIN X509 CRL-----\""));
        }
        Ok(lists)
    }

    /// Decodes the sections that have the label `label`. Sections with other labels are neither copied nor decoded.
    fn sections<T: PemObject>(self, bytes: &[u8], label: &str) -> Result<Vec<T>> {
        let sections = pem::sections(bytes, label).map_err(|why| self.refuse(&why))?;
        let decoded: std::result::Result<_, PemError> = sections.into_iter().map(T::from_pem_slice).collect();
        decoded.map_err(|_| self.refuse("is not valid PEM: a line is not Base64"))
    }

    /// Returns an INVALID error that names the option and the file. `why` says why the file is not usable.
    pub(super) fn refuse(self, why: &str) -> Error {
        Error::invalid(format!("{} {}: {why}", self.option, quote_file(self.path)))
    }

    /// Returns the path for use in a shell command, with quotes if necessary.
    pub(super) fn for_shell(self) -> String {
        let path = self.path.to_string_lossy();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%,".contains(&byte);
        if path.bytes().all(is_plain) { path.into_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
    }

    /// Replaces the extension of the path by `suffix`. Returns the new path for use in a shell command. The new path
    /// always differs from the old path, so that the command does not overwrite the file.
    pub(super) fn for_shell_with(self, suffix: &str) -> String {
        let is_own = self.path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(suffix));
        let suffix = if is_own { &format!("converted.{suffix}") } else { suffix };
        NamedFile { path: &self.path.with_extension(suffix), ..self }.for_shell()
    }
}

/// Reads the certificates of a file, or of all files in a directory. The files of a directory that contain no
/// certificate are ignored.
pub(super) fn read_roots(ca: NamedFile<'_>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if !ca.path.is_dir() {
        add_roots(&mut roots, ca, &ca.certificates()?)?;
        return Ok(roots);
    }
    // Several links in the directory can point to the same certificate.
    let mut seen = HashSet::new();
    for path in files_of_directory(ca)? {
        let file = NamedFile { option: ca.option, path: &path };
        let mut certificates: Vec<CertificateDer<'static>> =
            file.sections(&read_regular_file(file.option, file.path, FILE_LIMIT)?, CERTIFICATE)?;
        certificates.retain(|certificate| seen.insert(certificate.clone()));
        add_roots(&mut roots, file, &certificates)?;
    }
    if roots.is_empty() {
        return Err(ca.refuse("is a directory without a PEM certificate"));
    }
    Ok(roots)
}

fn add_roots(roots: &mut RootCertStore, file: NamedFile<'_>, certificates: &[CertificateDer<'static>]) -> Result<()> {
    for (number, certificate) in (1..).zip(certificates) {
        if roots.add(certificate.clone()).is_err() {
            return Err(file.refuse(&format!("certificate {number} of the file is not a valid X.509 certificate")));
        }
    }
    Ok(())
}

/// Returns the regular files of a directory, sorted by name. Hidden files are omitted, because Kubernetes stores the
/// versions of a mounted secret under hidden names.
fn files_of_directory(directory: NamedFile<'_>) -> Result<Vec<PathBuf>> {
    let failed = |error: io::Error| directory.refuse(&error.to_string());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory.path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with('.') && path.is_file() {
            files.push(path);
        }
        if files.len() > DIRECTORY_LIMIT {
            return Err(directory.refuse(&format!("contains more than {DIRECTORY_LIMIT} files")));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Identifies the content of files without reading them. A path's stamps change if its file changes, or if the path
/// leads to another file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stamps(Vec<(PathBuf, Option<Stamp>)>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamps {
    /// Adds the stamp of a file, or the stamps of a directory and its files. The caller must call this method before it
    /// reads the file. If the file changes during the read, a later call computes a different stamp.
    pub(super) fn add(&mut self, path: &Path) {
        let stamp = fs::metadata(path).ok().map(|metadata| Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        });
        self.0.push((path.to_owned(), stamp));
        if path.is_dir() {
            let files = files_of_directory(NamedFile { option: "tls.ca", path }).unwrap_or_default();
            files.iter().for_each(|file| self.add(file));
        }
    }
}

/// A non-PEM format for certificates and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BinaryFormat {
    Jks,
    Jceks,
    Pkcs12,
    /// A PKCS#12 file with a cipher that OpenSSL 3 reads only with its option `-legacy`.
    OldPkcs12,
    Bcfks,
    Der,
}

impl BinaryFormat {
    /// Recognizes the format of a file from its content.
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xfe, 0xed, 0xfe, 0xed, ..] => Some(Self::Jks),
            [0xce, 0xce, 0xce, 0xce, ..] => Some(Self::Jceks),
            [SEQUENCE, rest @ ..] => Some(match after_length(rest)? {
                // The version of a PKCS#12 file is 3. An unencrypted private key has version 0 or 1.
                [INTEGER, 1, 3, ..] if is_old_pkcs12(bytes) => Self::OldPkcs12,
                [INTEGER, 1, 3, ..] => Self::Pkcs12,
                // The first element of a BCFKS file is encrypted data: an algorithm and its object identifier. A
                // certificate begins with its version or its serial number.
                [SEQUENCE, inner @ ..] => match after_length(inner)? {
                    [SEQUENCE, algorithm @ ..] if after_length(algorithm)?.first() == Some(&OBJECT_IDENTIFIER) => {
                        Self::Bcfks
                    }
                    _ => Self::Der,
                },
                _ => Self::Der,
            }),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Jks => "a Java keystore (JKS)",
            Self::Jceks => "a Java keystore (JCEKS)",
            Self::Pkcs12 => "a PKCS#12 keystore",
            Self::OldPkcs12 => "a PKCS#12 keystore with an old cipher",
            Self::Bcfks => "a Bouncy Castle keystore (BCFKS)",
            Self::Der => "in DER format",
        }
    }

    /// The commands that convert the file to PEM.
    fn conversion(self, file: NamedFile<'_>) -> String {
        let (from, pem, p12) = (file.for_shell(), file.for_shell_with("pem"), file.for_shell_with("p12"));
        let is_key = matches!(file.option, "tls.cert" | "tls.key");
        let provider = match self {
            Self::Jceks => " -storetype JCEKS",
            Self::Bcfks => {
                " -storetype BCFKS -providerclass org.bouncycastle.jcajce.provider.BouncyCastleFipsProvider -providerpath bc-fips.jar"
            }
            _ => "",
        };
        match self {
            Self::Pkcs12 if is_key => format!("openssl pkcs12 -in {from} -out {pem}"),
            Self::Pkcs12 => format!("openssl pkcs12 -in {from} -nokeys -out {pem}"),
            Self::OldPkcs12 if is_key => format!("openssl pkcs12 -legacy -in {from} -out {pem}"),
            Self::OldPkcs12 => format!("openssl pkcs12 -legacy -in {from} -nokeys -out {pem}"),
            Self::Der => match file.option {
                "tls.key" => format!("openssl pkcs8 -topk8 -inform DER -in {from} -out {pem}"),
                "tls.crl" => format!("openssl crl -inform DER -in {from} -out {pem}"),
                _ => format!("openssl x509 -inform DER -in {from} -out {pem}"),
            },
            Self::Jks | Self::Jceks | Self::Bcfks if is_key => {
                let provider = provider.replace("-storetype", "-srcstoretype");
                format!(
                    "keytool -importkeystore -srckeystore {from}{provider} -destkeystore {p12} -deststoretype PKCS12 && \
                     openssl pkcs12 -in {p12} -out {pem}"
                )
            }
            Self::Jks | Self::Jceks | Self::Bcfks => format!("keytool -list -rfc -keystore {from}{provider} > {pem}"),
        }
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// Returns whether a PKCS#12 file uses RC2 or RC4 (RFC 7292, appendix C), as older versions of Java and OpenSSL do.
fn is_old_pkcs12(bytes: &[u8]) -> bool {
    const PBE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x01];
    bytes.windows(PBE.len() + 1).any(|window| {
        window.split_last().is_some_and(|(last, algorithm)| algorithm == PBE && matches!(last, 1 | 2 | 5 | 6))
    })
}

/// Skips the length field of a DER element, and returns the bytes after the field.
fn after_length(bytes: &[u8]) -> Option<&[u8]> {
    let (&first, rest) = bytes.split_first()?;
    let further = if first < 0x80 { 0 } else { usize::from(first & 0x7f) };
    rest.get(further..).filter(|_| further <= 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        let file = |path| NamedFile { option: "tls.ca", path: Path::new(path) };
        assert_eq!(file("/etc/tls/ca-1.jks").for_shell_with("pem"), "/etc/tls/ca-1.pem");
        assert_eq!(file("my ca's.jks").for_shell(), r"'my ca'\''s.jks'");
    }

    #[test]
    fn binary_formats_are_recognized() {
        for (bytes, format) in [
            (&b"\xfe\xed\xfe\xed\0\0\0\x02"[..], Some(BinaryFormat::Jks)),
            (b"\xce\xce\xce\xce", Some(BinaryFormat::Jceks)),
            (b"\x30\x82\x01\x00\x02\x01\x03\x30", Some(BinaryFormat::Pkcs12)),
            (b"\x30\x80\x02\x01\x03\x30", Some(BinaryFormat::Pkcs12)),
            (b"\x30\x82\x01\x00\x30\x81\x90\x30\x0c\x06", Some(BinaryFormat::Bcfks)),
            (b"\x30\x82\x01\x00\x30\x81\x90\xa0\x03\x02\x01\x02", Some(BinaryFormat::Der)),
            (b"\x30\x82\x01\x00\x30\x0c\x06\x09", Some(BinaryFormat::Der)),
            (b"\x30\x82\x01\x00\x02\x01\x00\x30", Some(BinaryFormat::Der)),
            (b"-----BEGIN CERTIFICATE-----", None),
            (b"0", None),
            (b"", None),
        ] {
            assert_eq!(BinaryFormat::of(bytes), format, "{bytes:?}");
        }
    }
}
