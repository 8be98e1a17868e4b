//! The hidden verb `generate`: writes the man pages and the completions of shells. `scripts/dist` calls it, so that
//! packages contain them.

use std::fs::{File, create_dir_all};
use std::io::{self, Write as _};
use std::path::Path;

use clap::builder::{Resettable, StyledStr};
use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};

/// The completions, each in the place that its shell searches below `share`.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "zklock"),
    (Shell::Zsh, "zsh/site-functions", "_zklock"),
    (Shell::Fish, "fish/vendor_completions.d", "zklock.fish"),
];

/// Writes all files below a directory, in the places that they have below `share`.
pub(crate) fn write(directory: &Path) -> Result<(), Failure> {
    write_files(directory).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot write to the directory {}: {error}", directory.display()))
    })
}

fn write_files(directory: &Path) -> io::Result<()> {
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

/// Returns the definition of the arguments without hidden verbs, which the completions would offer. It also has no verb
/// `help`, because every verb has the option `--help`.
fn definition() -> Command {
    let whole = Cli::command();
    let text = |text: Option<&StyledStr>| Resettable::from(text.cloned());
    Command::new("zklock")
        .version(env!("CARGO_PKG_VERSION"))
        .about(text(whole.get_about()))
        .long_about(text(whole.get_long_about()))
        .after_help(text(whole.get_after_help()))
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommands(whole.get_subcommands().filter(|verb| !verb.is_hide_set()))
}

/// Writes a man page. The examples, which follow the options in the help, get a section whose lines are not joined.
fn write_page(page: Command, mut file: File) -> io::Result<()> {
    let examples = page.get_after_help().map(ToString::to_string).unwrap_or_default();
    Man::new(page.after_help(Resettable::Reset))
        .source(concat!("zklock ", env!("CARGO_PKG_VERSION")))
        .render(&mut file)?;
    writeln!(file, ".SH NOTES\n.nf")?;
    for line in examples.lines() {
        // A line of text must not begin with the control character of roff.
        writeln!(file, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(file, ".fi")
}
