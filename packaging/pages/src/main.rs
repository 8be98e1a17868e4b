//! `zklock-pages DIRECTORY` writes the man pages of the command, and the completions for bash, zsh and fish. `scripts/dist`
//! calls it, so that packages contain them. The program is not installed.

use std::fs::{File, create_dir_all};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap::builder::Resettable;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

/// The completions, each in the place that its shell searches below `share`.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "zklock"),
    (Shell::Zsh, "zsh/site-functions", "_zklock"),
    (Shell::Fish, "fish/vendor_completions.d", "zklock.fish"),
];

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("zklock-pages: no directory is given; expected zklock-pages DIRECTORY");
        return ExitCode::from(64);
    };
    match write(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zklock-pages: cannot write to the directory {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

/// Writes all files below a directory, in the places that they have below `share`.
fn write(directory: &Path) -> io::Result<()> {
    let pages = directory.join("man/man1");
    create_dir_all(&pages)?;
    let mut program = definition();
    program.build();
    let verbs: Vec<Command> = program.get_subcommands().cloned().collect();
    for page in [program].into_iter().chain(verbs) {
        let name = page.get_display_name().unwrap_or_else(|| page.get_name()).to_owned();
        write_page(page, File::create(pages.join(format!("{name}.1")))?)?;
    }
    for (shell, place, name) in COMPLETIONS {
        let place = directory.join(place);
        create_dir_all(&place)?;
        generate(shell, &mut definition(), "zklock", &mut File::create(place.join(name))?);
    }
    Ok(())
}

/// Returns the definition of the arguments, without the verb `help`, because every verb has the option `--help`.
fn definition() -> Command {
    zklock_command::definition().disable_help_subcommand(true)
}

/// Writes a man page. The notes, which follow the options in the help, get a section whose lines are not joined.
fn write_page(page: Command, mut file: File) -> io::Result<()> {
    let notes =
        page.get_after_long_help().or_else(|| page.get_after_help()).map(ToString::to_string).unwrap_or_default();
    Man::new(page.after_help(Resettable::Reset).after_long_help(Resettable::Reset))
        .source(concat!("zklock ", env!("CARGO_PKG_VERSION")))
        .render(&mut file)?;
    writeln!(file, ".SH NOTES\n.nf")?;
    for line in notes.lines() {
        // A line of text must not begin with the control character of roff.
        writeln!(file, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(file, ".fi")
}
