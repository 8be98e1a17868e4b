//! Reads the private key of the client from a PEM file. The supported formats are PKCS#8 with or without encryption,
//! PKCS#1 and SEC1. The code in this file erases every copy of a key that it creates. It does not check whether the key
//! belongs to the certificate.

use std::sync::Arc;

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::pem::Decoder;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use zeroize::{Zeroize, Zeroizing};
use zklock_core::error::Result;

use super::files::NamedFile;
use super::provider;
use crate::runtime::file::warn_if_exposed;

/// The PEM label and the format of each kind of private key. The format is `None` for an encrypted key.
const LABELS: [(&str, Option<KeyFormat>); 4] = [
    ("PRIVATE KEY", Some(KeyFormat::Pkcs8)),
    ("ENCRYPTED PRIVATE KEY", None),
    ("RSA PRIVATE KEY", Some(KeyFormat::Pkcs1)),
    ("EC PRIVATE KEY", Some(KeyFormat::Sec1)),
];

#[derive(Debug, Clone, Copy)]
enum KeyFormat {
    Pkcs8,
    Pkcs1,
    Sec1,
}

/// A password that decrypts a private key. The field `option` names the option that sets the password or the password
/// file.
pub(super) struct KeyPassword {
    pub(super) option: &'static str,
    pub(super) password: Zeroizing<Vec<u8>>,
}

/// Reads the first private key of a PEM file. The file may also contain certificates.
pub(super) fn read_private_key(
    file: NamedFile<'_>,
    password: Option<&KeyPassword>,
    provider: &CryptoProvider,
) -> Result<Arc<dyn SigningKey>> {
    let pem = file.read_pem()?;
    let Some((section, format)) = first_key(&pem) else {
        return Err(file.refuse("contains no private key; expected PEM with \"-----BEGIN PRIVATE KEY-----\""));
    };
    // This header marks the format that OpenSSL used for encrypted keys before PKCS#8. This format is weak, because it
    // applies only one round of MD5 to the password.
    if contains(section, b"Proc-Type: 4,ENCRYPTED") {
        return Err(refuse_encryption(file, "encrypted in the old format of OpenSSL (\"Proc-Type: 4,ENCRYPTED\")"));
    }
    let der = decode(section).ok_or_else(|| file.refuse("contains a private key that is not valid PEM"))?;
    let (format, der) = match format {
        Some(format) => {
            warn_if_exposed(file.option, file.path);
            (format, der)
        }
        None => (KeyFormat::Pkcs8, decrypt(file, &der, password)?),
    };
    let mut key = match format {
        KeyFormat::Pkcs8 => PrivateKeyDer::Pkcs8(der.to_vec().into()),
        KeyFormat::Pkcs1 => PrivateKeyDer::Pkcs1(der.to_vec().into()),
        KeyFormat::Sec1 => PrivateKeyDer::Sec1(der.to_vec().into()),
    };
    let signing_key = provider::signing_key(provider, &key);
    key.zeroize();
    signing_key.map_err(|_| {
        file.refuse("contains a private key that is damaged or of an unknown kind; expected RSA with 2048 bits or more, ECDSA or Ed25519")
    })
}

/// Returns the section that contains the first private key in a PEM file, and the key's format.
fn first_key(pem: &[u8]) -> Option<(&[u8], Option<KeyFormat>)> {
    let found = LABELS.iter().filter_map(|(label, format)| {
        let begin = find(pem, format!("-----BEGIN {label}-----").as_bytes())?;
        let end = format!("-----END {label}-----");
        let section = pem.get(begin..)?;
        // If the last line of the section is missing, `decode` fails later.
        let length = find(section, end.as_bytes()).map_or(section.len(), |at| at + end.len());
        Some((begin, section.get(..length)?, *format))
    });
    found.min_by_key(|(begin, ..)| *begin).map(|(_, section, format)| (section, format))
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    find(text, part).is_some()
}

fn decode(section: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut decoder = Decoder::new_detect_wrap(section).ok()?;
    let mut der = Zeroizing::new(vec![0; decoder.remaining_len()]);
    decoder.decode(&mut der).ok()?;
    Some(der)
}

fn decrypt(file: NamedFile<'_>, der: &[u8], password: Option<&KeyPassword>) -> Result<Zeroizing<Vec<u8>>> {
    let Some(KeyPassword { option, password }) = password else {
        return Err(file.refuse("is encrypted; set tls.key_password or tls.key_password_file"));
    };
    let unsupported = || refuse_encryption(file, "encrypted with an algorithm that zklock does not support");
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(der).map_err(|_| unsupported())?;
    let data: &[u8] = encrypted.encrypted_data.as_ref();
    match encrypted.encryption_algorithm.decrypt(password, data).map(Zeroizing::new) {
        // A wrong password can, by chance, result in valid padding. After decryption with a wrong password, the first
        // byte is most likely not the tag of `SEQUENCE`.
        Ok(key) if key.first() == Some(&0x30) => Ok(key),
        Ok(_) | Err(pkcs5::Error::DecryptFailed) => {
            Err(file.refuse(&format!("cannot be decrypted: the password of option {option} is wrong")))
        }
        Err(_) => Err(unsupported()),
    }
}

fn refuse_encryption(file: NamedFile<'_>, how: &str) -> zklock_core::error::Error {
    let (from, to) = (file.for_shell(), file.for_shell_with("pkcs8.pem"));
    file.refuse(&format!("is {how}; convert it with: openssl pkcs8 -topk8 -v2 aes-256-cbc -in {from} -out {to}"))
}
