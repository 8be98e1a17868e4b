//! The man pages and the completions that `zklock generate` writes.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{code, file, zklock};

const VERBS: [&str; 12] =
    ["run", "try", "hold", "release", "ls", "status", "top", "wait", "revoke", "break", "fence-check", "doctor"];

/// Returns the long options of a verb, as its help lists them.
fn options(verb: &str) -> Vec<String> {
    let output = zklock(&[verb, "--help"]).output();
    let help = String::from_utf8(output.stdout).unwrap();
    let words = help.lines().filter(|line| line.trim_start().starts_with('-')).flat_map(str::split_whitespace);
    let names = words.filter_map(|word| word.strip_prefix("--")).map(|name| name.trim_end_matches(',').to_owned());
    let options: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    assert!(options.contains(&"help".to_owned()), "{help}");
    options
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_option_has_a_line_in_the_man_page_and_in_the_completions_of_each_shell() {
    let directory = file("generated");
    assert_eq!(code(&["generate", directory.to_str().unwrap()]), (0, String::new()));
    let bash = read(&directory, "bash-completion/completions/zklock");
    let (zsh, fish) =
        (read(&directory, "zsh/site-functions/_zklock"), read(&directory, "fish/vendor_completions.d/zklock.fish"));
    let installed = [include_str!("../../scripts/install"), include_str!("../../debian/zklock.install")];
    for verb in VERBS {
        assert!(installed.iter().all(|list| list.contains(&format!("zklock-{verb}.1"))), "{verb}");
        let page = read(&directory, &format!("man/man1/zklock-{verb}.1"));
        for option in options(verb) {
            assert!(page.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))), "{verb}: {option}: {page}");
            assert!(bash.contains(&format!(" --{option}")), "{verb}: {option}");
            assert!(zsh.contains(&format!("--{option}")), "{verb}: {option}");
            assert!(fish.lines().any(|line| line.contains(verb) && line.contains(&format!("-l {option}"))), "{option}");
        }
    }
    let page = read(&directory, "man/man1/zklock.1");
    assert!([&bash, &zsh, &fish].iter().all(|script| !script.contains("generate")));
    assert!(
        VERBS.iter().all(|verb| page.contains(&format!("zklock\\-{}", verb.replace('-', "\\-"))))
            && !page.contains("generate"),
        "{page}"
    );
    assert!(page.contains("\n.SH NOTES\n.nf\n") && page.contains("75 lock busy"), "{page}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn bash_completes_verbs_and_options() {
    let directory = file("generated");
    assert_eq!(code(&["generate", directory.to_str().unwrap()]), (0, String::new()));
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
    let (code, errors) = code(&["generate", "/proc/none"]);
    assert_eq!(code, 64);
    assert!(errors.starts_with("zklock: cannot write to the directory /proc/none: "), "{errors}");
}
