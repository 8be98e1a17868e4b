//! Finds the sections of a PEM file that have a given label. rustls would also decode sections with other labels, and
//! does not erase the decoded data. The code in this file therefore selects the wanted sections first, so that a
//! private key in the same file is never copied. The code in this file does not decode the sections.

use std::result::Result;

use zklock_core::path::quote;

/// Returns the sections that have the label `label`, each from its first line to its last line. All other text is
/// ignored. Between its first and last line, a returned section contains only Base64 text. A returned section therefore
/// cannot contain a part of another section.
///
/// Fails with a message that says what is wrong with the file.
pub(super) fn sections<'a>(pem: &'a [u8], label: &str) -> Result<Vec<&'a [u8]>, String> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let missing_end = || format!("is not valid PEM: the line {} is missing", quote(&end));
    let mut sections = Vec::new();
    // The position of the first line of the current section, or `None` outside such a section.
    let mut open = None;
    let mut next = 0;
    for line in pem.split_inclusive(|byte| b"\r\n".contains(byte)) {
        let start = next;
        next += line.len();
        let line = line.trim_ascii_end();
        if line.starts_with(b"-----BEGIN ") {
            if open.is_some() {
                return Err(missing_end());
            }
            if !line.ends_with(b"-----") || line.ends_with(b"------") {
                return Err("is not valid PEM: a line with \"-----BEGIN\" does not end with \"-----\"".to_owned());
            }
            open = (line == begin.as_bytes()).then_some(start);
        } else if let Some(first) = open {
            if line.starts_with(end.as_bytes()) {
                sections.extend(pem.get(first..next));
                open = None;
            } else if line.starts_with(b"-----END ") {
                return Err(missing_end());
            } else if !line.iter().all(|&byte| is_base64(byte)) {
                return Err("is not valid PEM: a line is not Base64".to_owned());
            }
        }
    }
    if open.is_some() { Err(missing_end()) } else { Ok(sections) }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/= \t\x0b\x0c".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\nAAA=\n-----END CERTIFICATE-----\n";

    fn certificates(pem: &str) -> Result<Vec<&str>, String> {
        let sections = sections(pem.as_bytes(), "CERTIFICATE")?;
        Ok(sections.into_iter().map(|section| std::str::from_utf8(section).unwrap()).collect())
    }

    #[test]
    fn only_sections_with_the_label_are_cut_out() {
        let windows = ONE.replace('\n', "\r\n");
        let (blanks, last) = (ONE.replace("-----\n", "----- \n").replace("AAAA", " AA\tAA "), ONE.trim_end());
        for (pem, expected) in [
            (format!("{KEY}{ONE}{KEY}"), &[ONE][..]),
            (format!("subject: one\n{ONE}\n-----BEGIN X509 CRL-----\n!\n-----END X509 CRL-----\n{ONE}"), &[ONE, ONE]),
            (format!("{KEY}{blanks}{last}"), &[&blanks, last]),
            // With "\r\n" line endings, the section ends after the "\r" of its last line.
            (format!("{windows}{KEY}"), &[windows.trim_end_matches('\n')]),
            // The function ignores a damaged key. The code that loads the key reports the error.
            (format!("{ONE}-----BEGIN PRIVATE KEY-----\nc2Vj"), &[ONE]),
            (format!("{ONE}-----BEGIN PRIVATE KEY-----\n!\n{ONE}"), &[ONE, ONE]),
            (KEY.to_owned(), &[]),
            (String::new(), &[]),
        ] {
            assert_eq!(certificates(&pem).unwrap(), expected, "{pem}");
        }
    }

    #[test]
    fn section_never_contains_a_part_of_another_section() {
        let missing = "is not valid PEM: the line \"-----END CERTIFICATE-----\" is missing";
        let open = ONE.replace("-----END CERTIFICATE-----\n", "");
        for (pem, said) in [
            (open.clone(), missing),
            (format!("{open}{KEY}"), missing),
            (format!("{open}{KEY}{ONE}"), missing),
            (format!("{open}{ONE}"), missing),
            (format!("{open}{}", KEY.replace("-----BEGIN PRIVATE KEY-----\n", "")), missing),
            (format!("{open}{}{ONE}", &KEY[1..]), "is not valid PEM: a line is not Base64"),
            (ONE.replace("AAAA", "Proc-Type: 4,ENCRYPTED"), "is not valid PEM: a line is not Base64"),
            (KEY.replace("KEY-----\nc", "KEY-----c"), "is not valid PEM: a line with \"-----BEGIN\" does not end"),
            (ONE.replace("CERTIFICATE-----\nA", "CERTIFICATE----\nA"), "is not valid PEM: a line with \"-----BEGIN\""),
        ] {
            let error = certificates(&pem).unwrap_err();
            assert!(error.starts_with(said), "{pem}: {error}");
        }
    }
}
