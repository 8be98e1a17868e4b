//! Tests files that a program names, and the node with the configuration of the ensemble: option files, JAAS files, certificates, private
//! keys, revocation lists, and `/zookeeper/config`.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use zklock::Config;
use zklock::internal::{load_tls_files, read_options};
use zklock_core::session::check_ensemble_config;
use zklock_sasl::parse_jaas;

/// Interprets the bytes as each kind of file.
pub fn run(data: &[u8]) {
    short(check_ensemble_config(data));
    if let Ok(text) = str::from_utf8(data) {
        short(parse_jaas(text, "Client").map(drop));
    }
    let file = file();
    fs::write(file, data).unwrap();
    match read_options(file) {
        // The same options are valid again.
        Ok(options) => {
            let mut config = Config::new();
            options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
        }
        Err(error) => short(Err(error.message().to_owned())),
    }
    let name = file.to_str().unwrap();
    for options in [&["tls.ca"][..], &["tls.cert", "tls.key"], &["tls.enabled", "tls.crl"]] {
        let mut config = Config::new();
        for option in options {
            config.set(option, if *option == "tls.enabled" { "true" } else { name }).unwrap();
        }
        short(load_tls_files(&config).map_err(|error| error.message().to_owned()));
    }
}

/// An error has a message that a person can read, without control characters.
fn short(result: Result<(), String>) {
    if let Err(message) = result {
        assert!(!message.is_empty() && message.len() < 4096 && !message.contains(char::is_control), "{message:?}");
    }
}

/// Each process has its own file, in memory if possible.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let directory = if memory.is_dir() { memory } else { std::env::temp_dir() };
        directory.join(format!("zklock-fuzz-{}", std::process::id()))
    })
}
