//! Files with random damage. The client either refuses a file with INVALID, or uses it; it never panics and never
//! waits.

use std::fs;
use std::time::Duration;

use zklock::{Client, Config, Status};
use zklock_test_support::{Certificates, Validity};

use crate::common::{TEST_TIMEOUT, timed};

/// The number of variants of each file.
const VARIANTS: u64 = 60;

#[test]
fn damaged_files_are_refused_or_used() {
    let certificates = Certificates::shared();
    let identity = certificates.intermediate.client("damaged", Validity::Now);
    certificates.add("damaged", &identity);
    certificates.write("damaged.crl", &certificates.intermediate.revoke(&[&identity], Validity::Now));
    let encrypted = certificates.encrypt_key("damaged", "secret");
    let files = [
        ("tls.ca", certificates.file("ca.pem")),
        ("tls.cert", certificates.file("damaged.pem")),
        ("tls.key", certificates.file("damaged.key")),
        ("tls.key", encrypted),
        ("tls.crl", certificates.file("damaged.crl")),
    ];
    for (number, (option, file)) in files.iter().enumerate() {
        let content = fs::read(file).unwrap();
        let variant = certificates.file(&format!("damaged-{number}"));
        for seed in 1..=VARIANTS {
            fs::write(&variant, damaged(&content, seed)).unwrap();
            let mut config = Config::new().connect_timeout(Duration::from_millis(1));
            config.set("tls.key_password", "secret").unwrap();
            for (option, file) in &files[..3] {
                config.set(option, file).unwrap();
            }
            config.set(option, &variant).unwrap();
            // No server listens on this port.
            let (result, took) = timed(|| Client::connect("127.0.0.1:1", &config));
            let error = result.err().unwrap();
            assert!(
                [Status::Invalid, Status::Connection].contains(&error.status()) && took < TEST_TIMEOUT,
                "{option}, seed {seed}, {took:?}: {error}"
            );
            assert!(!error.message().contains("secret"), "{error}");
        }
    }
}

/// Damages a few places: changes a byte, removes a part, or repeats a part.
fn damaged(content: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = content.to_vec();
    let mut state = seed;
    // A linear congruential generator; its high bits are the random ones.
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit.max(1)
    };
    for _ in 0..=random(3) {
        let at = random(bytes.len());
        let end = (at + random(40)).min(bytes.len());
        match random(4) {
            0 => bytes[at] = random(256) as u8,
            1 => bytes[at] = b"ABCxyz019+/=\n-"[random(14)],
            2 => drop(bytes.drain(at..end)),
            _ => bytes.extend_from_within(at..end),
        }
    }
    bytes
}
