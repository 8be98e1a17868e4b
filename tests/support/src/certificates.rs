//! Certificates for tests of TLS. Every value has its own authorities and keys, and nothing is read from the machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

use crate::directory::{Directory, Remover, Storage};

/// The DNS name in the certificates of servers, besides `localhost` and the address 127.0.0.1.
pub const SERVER_NAME: &str = "zookeeper.example";

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The certificates that a server or client sends after its own, in PEM.
    chain: String,
}

/// A certificate with its key.
pub struct Identity {
    certificate: String,
    chain: String,
    key: String,
    serial: SerialNumber,
}

/// The period in which a certificate or a revocation list is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// It is valid now.
    Now,
    /// It was valid in the past.
    Expired,
    /// It will be valid in the future.
    NotYet,
    /// It is valid now, and until this time.
    Until(SystemTime),
}

/// A directory with the files of one ensemble: `ca.pem`, the identity `server`, and the identity `client`. Dropping the
/// value removes the directory.
pub struct Certificates {
    directory: Directory,
    _remover: Remover,
    /// The authority that all clients and servers of the ensemble trust.
    pub root: Authority,
    /// The authority that issues the certificates of servers and clients. The root has issued its certificate.
    pub intermediate: Authority,
    /// The first identity of the server.
    pub server: Identity,
}

impl Authority {
    /// An authority that issued its own certificate.
    pub fn new(name: &str) -> Self {
        let issuer = CertifiedIssuer::self_signed(authority_params(name), new_key()).expect("a certificate");
        Self { issuer, chain: String::new() }
    }

    /// An authority whose certificate this authority issued.
    pub fn authority(&self, name: &str) -> Self {
        let issuer =
            CertifiedIssuer::signed_by(authority_params(name), new_key(), &self.issuer).expect("a certificate");
        Self { chain: issuer.pem(), issuer }
    }

    /// The certificate of the authority, in PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for a server with these DNS names and IP addresses.
    pub fn server(&self, names: &[&str], validity: Validity) -> Identity {
        self.issue("server", names, validity, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues a certificate for a client.
    pub fn client(&self, name: &str, validity: Validity) -> Identity {
        self.issue(name, &[], validity, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Issues a list that revokes these certificates, in PEM.
    pub fn revoke(&self, revoked: &[&Identity], validity: Validity) -> String {
        let (this_update, next_update) = validity.years();
        let revoked_certs = revoked.iter().map(|identity| RevokedCertParams {
            serial_number: identity.serial.clone(),
            revocation_time: date_time_ymd(2000, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(this_update, 1, 1),
            next_update: match validity {
                Validity::Until(end) => end.into(),
                _ => date_time_ymd(next_update, 1, 1),
            },
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).and_then(|list| list.pem()).expect("a revocation list")
    }

    fn issue(&self, name: &str, names: &[&str], validity: Validity, usage: ExtendedKeyUsagePurpose) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("DNS names and IP addresses");
        let (not_before, not_after) = validity.years();
        params.not_before = date_time_ymd(not_before, 1, 1);
        params.not_after = match validity {
            Validity::Until(end) => end.into(),
            _ => date_time_ymd(not_after, 1, 1),
        };
        params.distinguished_name = distinguished(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let serial = SerialNumber::from(next_serial());
        params.serial_number = Some(serial.clone());
        let key = new_key();
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity { certificate: certificate.pem(), chain: self.chain.clone(), key: key.serialize_pem(), serial }
    }
}

impl Identity {
    /// The certificate and those of the intermediate authorities, in PEM.
    pub fn certificates(&self) -> String {
        format!("{}{}", self.certificate, self.chain)
    }

    /// The certificate alone, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The unencrypted key, as PKCS#8 in PEM.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl Validity {
    /// The first and the last year. The dates are far from today, so that a test never depends on the date.
    fn years(self) -> (i32, i32) {
        match self {
            Self::Now | Self::Until(_) => (2000, 2999),
            Self::Expired => (2000, 2001),
            Self::NotYet => (2998, 2999),
        }
    }
}

impl Certificates {
    /// Creates the directory with its files.
    pub fn create() -> Self {
        let root = Authority::new("root");
        let intermediate = root.authority("intermediate");
        let server = intermediate.server(&["localhost", "127.0.0.1", SERVER_NAME], Validity::Now);
        let directory = Directory::create(Storage::Memory);
        let certificates = Self { _remover: Remover::start(directory.path()), directory, root, intermediate, server };
        certificates.write("ca.pem", &certificates.root.certificate());
        certificates.add("server", &certificates.server);
        certificates.add("client", &certificates.intermediate.client("client", Validity::Now));
        certificates
    }

    /// The certificates that all tests of a test binary share. A test may add files, but must not change these.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Certificates> = OnceLock::new();
        SHARED.get_or_init(Self::create)
    }

    /// The path of a file in the directory. The file need not exist.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Like [`path`](Self::path), as text for the value of an option.
    pub fn file(&self, file: &str) -> String {
        self.path(file).into_os_string().into_string().expect("a path in UTF-8")
    }

    /// Writes a file. A client that reads the file at the same time reads either the old or the new content.
    pub fn write(&self, file: &str, content: &str) -> PathBuf {
        let (path, new) = (self.path(file), self.path(&format!("{file}.new")));
        fs::write(&new, content).and_then(|()| fs::rename(&new, &path)).expect("write a file of certificates");
        path
    }

    /// Writes `NAME.pem` with the certificates, `NAME.key` with the key, and `NAME.both.pem` with both, as ZooKeeper
    /// reads them.
    pub fn add(&self, name: &str, identity: &Identity) {
        self.write(&format!("{name}.pem"), &identity.certificates());
        self.write(&format!("{name}.key"), identity.key());
        self.write(&format!("{name}.both.pem"), &format!("{}{}", identity.key(), identity.certificates()));
    }

    /// Writes `NAME.encrypted.key`: the key of `NAME.key`, encrypted as openssl does by default. Returns its path.
    pub fn encrypt_key(&self, name: &str, password: &str) -> String {
        let (key, encrypted) = (self.path(&format!("{name}.key")), self.file(&format!("{name}.encrypted.key")));
        let mut openssl = Command::new("openssl");
        openssl.args(["pkcs8", "-topk8", "-passout", "env:PASSWORD", "-in"]).arg(key).args(["-out", &encrypted]);
        let output = openssl.env("PASSWORD", password).output().expect("start openssl; make setup");
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
        encrypted
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn distinguished(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn next_serial() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static LAST: AtomicU64 = AtomicU64::new(1);
    LAST.fetch_add(1, Ordering::Relaxed)
}
