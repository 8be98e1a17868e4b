//! Faults that a test in any language causes by lines of text, one command for each line. The answer to each command is one
//! line as well. The README of this directory lists the commands.

use std::fmt::Write as _;
use std::io::{BufRead, Write};
use std::str::SplitWhitespace;
use std::time::Duration;

use zklock_proto::OpCode;
use zklock_standalone::{Server, Target};

/// The names of the requests whose reply a test can drop.
const REQUESTS: [(&str, OpCode); 8] = [
    ("create", OpCode::Create),
    ("create2", OpCode::Create2),
    ("create-container", OpCode::CreateContainer),
    ("delete", OpCode::Delete),
    ("get-children2", OpCode::GetChildren2),
    ("get-data", OpCode::GetData),
    ("multi", OpCode::Multi),
    ("ping", OpCode::Ping),
];

/// Executes the commands of `input` until its end, and writes the answers to `output`. An answer is `ok`, with a result if
/// the command has one, or `error` and a text. The call ends early if the output is closed.
pub(crate) fn serve(server: &Server, input: impl BufRead, mut output: impl Write) {
    for line in input.split(b'\n').map_while(Result::ok) {
        let answer = match execute(server, String::from_utf8_lossy(&line).trim()) {
            Ok(result) => format!("ok{result}"),
            Err(why) => format!("error {}", why.replace('\n', " ")),
        };
        if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

fn execute(server: &Server, line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let command = words.next().unwrap_or_default();
    let mut result = String::new();
    let done = match command {
        "sessions" => server.sessions().map(|sessions| {
            for session in sessions {
                let state = if session.is_connected { "connected" } else { "disconnected" };
                // Writing to a text cannot fail.
                let _ = write!(result, " {:#x} {} {state}", session.id, session.timeout.as_millis());
            }
        }),
        "expire" => server.expire(target(&mut words)?),
        "cut" => server.cut(target(&mut words)?),
        "freeze" => server.freeze(target(&mut words)?),
        "thaw" => server.thaw(target(&mut words)?),
        "delay" => server.delay(target(&mut words)?, milliseconds(words.next())?),
        "lose-reply" => server.lose_reply(target(&mut words)?, request(words.next())?),
        "halt" => server.halt(),
        "restart" => server.restart(),
        other => {
            return Err(format!(
                "{other:?} is not a command; expected sessions, expire, cut, freeze, thaw, delay, lose-reply, halt or restart"
            ));
        }
    };
    if let Some(extra) = words.next() {
        return Err(format!("{command}: {extra:?} is one word too many"));
    }
    done.map(|()| result).map_err(|error| error.to_string())
}

/// Parses a session id, as a decimal number or as a hexadecimal number with 0x, or the word `all`.
fn target(words: &mut SplitWhitespace<'_>) -> Result<Target, String> {
    let word = words.next().unwrap_or_default();
    let number = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
        None => word.parse().ok(),
    };
    match (word, number) {
        ("all", _) => Ok(Target::All),
        (_, Some(number)) => Ok(Target::Session(number)),
        _ => Err(format!("{word:?} is not a session; expected the number of a session, such as 0x10000a1b2c3, or all")),
    }
}

fn milliseconds(word: Option<&str>) -> Result<Duration, String> {
    let word = word.unwrap_or_default();
    let number = word.parse::<u32>().map_err(|_| format!("{word:?} is not a number of milliseconds"))?;
    Ok(Duration::from_millis(number.into()))
}

fn request(word: Option<&str>) -> Result<OpCode, String> {
    let word = word.unwrap_or_default();
    let found = REQUESTS.iter().find(|(name, _)| *name == word).map(|(_, op)| *op);
    found.ok_or_else(|| {
        let names = REQUESTS.map(|(name, _)| name).join(", ");
        format!("{word:?} is not a request; expected one of {names}")
    })
}
