//! The man pages and the completions of the command.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes all files to a new directory.
fn write(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pages-{name}-{}", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_zklock-pages")).arg(&directory).output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    directory
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_option_has_a_line_in_the_man_page_and_in_the_completions_of_each_shell() {
    let directory = write("options");
    let bash = read(&directory, "bash-completion/completions/zklock");
    let (zsh, fish) =
        (read(&directory, "zsh/site-functions/_zklock"), read(&directory, "fish/vendor_completions.d/zklock.fish"));
    let installed = [include_str!("../../../scripts/install"), include_str!("../../../debian/zklock.install")];
    let page = read(&directory, "man/man1/zklock.1");
    assert!(page.contains("\n.SH NOTES\n.nf\n") && page.contains("75 lock busy"), "{page}");
    let definition = zklock_command::definition();
    assert!(definition.get_subcommands().count() > 10);
    for verb in definition.get_subcommands() {
        let name = verb.get_name();
        assert!(installed.iter().all(|list| list.contains(&format!("zklock-{name}.1"))), "{name}");
        assert!(page.contains(&format!("zklock\\-{name}")), "{name}: {page}");
        let page = read(&directory, &format!("man/man1/zklock-{name}.1"));
        for option in verb.get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(page.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "{name}: {option}: {page}");
            assert!(bash.contains(&format!(" --{option}")), "{name}: {option}");
            assert!(zsh.contains(&format!("--{option}")), "{name}: {option}");
            assert!(fish.lines().any(|line| line.contains(name) && line.contains(&format!("-l {option}"))), "{option}");
        }
    }
    let pages = fs::read_dir(directory.join("man/man1")).unwrap().count();
    let lines =
        |list: &str| list.lines().filter(|line| line.contains("man1/zklock") && !line.contains("standalone")).count();
    assert_eq!(installed.map(lines), [pages; 2], "a removed verb has no page");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn bash_completes_verbs_and_options() {
    let directory = write("bash");
    let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _zklock zklock \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; echo \"${COMPREPLY[*]}\"";
    let complete = |words: &[&str]| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash"]).arg(directory.join("bash-completion/completions/zklock")).args(words);
        String::from_utf8(bash.output().unwrap().stdout).unwrap()
    };
    assert_eq!(complete(&["zklock", "tr"]), "try\n");
    assert_eq!(complete(&["zklock", "run", "--nonb"]), "--nonblock\n");
    assert_eq!(complete(&["zklock", "run", "--on-lost", ""]), "term kill ignore\n");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_zklock-pages")).arg("/proc/none").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.starts_with("zklock-pages: cannot write to the directory /proc/none: "));
}
