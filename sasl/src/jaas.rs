//! Reads the login of a client from a JAAS file, which Java programs use. The code in this file supports only the forms
//! that ZooKeeper's documentation describes, and refuses all others.

use zeroize::Zeroizing;
use zklock_core::path::quote;

use crate::settings::KerberosLogin;

const DIGEST_MODULE: &str = "org.apache.zookeeper.server.auth.DigestLoginModule";
const KERBEROS_MODULE: &str = "com.sun.security.auth.module.Krb5LoginModule";
/// Options of the Kerberos module that have no effect in zklock: the Kerberos library renews tickets itself, never asks
/// for a password, and keeps no keys.
const IGNORED_OPTIONS: [&str; 6] = ["debug", "doNotPrompt", "isInitiator", "refreshKrb5Config", "renewTGT", "storeKey"];

/// The login of a client.
pub enum Login {
    /// The client uses DIGEST-MD5.
    Digest(DigestLogin),
    /// The client uses GSSAPI.
    Kerberos(KerberosLogin),
}

/// The login of a client with DIGEST-MD5.
pub struct DigestLogin {
    /// The name of the user.
    pub user: String,
    /// The password of the user.
    pub password: Zeroizing<String>,
}

/// The part of a JAAS file that was not read yet.
struct Symbols<'a>(&'a str);

/// A part of a JAAS file. A text, which is a word or the content of a quoted string, can be a secret.
enum Symbol<'a> {
    Text(&'a str),
    Mark(char),
    End,
}

/// The names and the values of the options of a login module.
type ModuleOptions<'a> = Vec<(&'a str, &'a str)>;

/// Returns the login in a section of a JAAS file, or an error text that follows the name of the file.
#[inline(never)]
pub fn parse_jaas(content: &str, section: &str) -> Result<Login, String> {
    let mut symbols = Symbols(content);
    let mut login = None;
    loop {
        let name = match symbols.next()? {
            Symbol::End => return login.ok_or_else(|| format!("has no section {}", quote(section))),
            symbol => text(symbol, "the name of a section")?,
        };
        symbols.mark('{')?;
        if name == section {
            login = Some(login_module(&mut symbols)?);
            symbols.mark('}')?;
        } else {
            symbols.skip_section()?;
        }
        symbols.mark(';')?;
    }
}

fn login_module(symbols: &mut Symbols<'_>) -> Result<Login, String> {
    let module = symbols.text("the name of a login module")?;
    let is_digest = module == DIGEST_MODULE;
    if !is_digest && module != KERBEROS_MODULE {
        return Err(format!("has the login module {}; expected {DIGEST_MODULE} or {KERBEROS_MODULE}", quote(module)));
    }
    let flag = symbols.text("required")?;
    if flag != "required" {
        return Err(format!("has the flag {} of the login module; expected required", quote(flag)));
    }
    let mut options = Vec::new();
    loop {
        let name = match symbols.next()? {
            Symbol::Mark(';') => break,
            symbol => text(symbol, "an option of the login module or ;")?,
        };
        symbols.mark('=')?;
        let value = symbols.text("the value of an option")?;
        if value.as_bytes().windows(2).any(|part| part == b"${") {
            return Err(format!("has a ${{...}} in the option {}, which zklock does not replace", quote(name)));
        }
        options.push((name, value));
    }
    if is_digest { digest_login(options).map(Login::Digest) } else { kerberos_login(options).map(Login::Kerberos) }
}

fn digest_login(options: ModuleOptions<'_>) -> Result<DigestLogin, String> {
    let (mut user, mut password) = (None, None);
    for (name, value) in options {
        match name {
            "username" => user = Some(value),
            "password" => password = Some(value),
            other => return Err(format!("has the option {}; expected username and password", quote(other))),
        }
    }
    let user = unescaped(user.ok_or("has no option username")?).as_str().to_owned();
    Ok(DigestLogin { user, password: unescaped(password.ok_or("has no option password")?) })
}

fn kerberos_login(options: ModuleOptions<'_>) -> Result<KerberosLogin, String> {
    let mut login = KerberosLogin::default();
    let (mut uses_keytab, mut uses_cache) = (false, false);
    for (name, value) in options {
        let own = |value: &str| unescaped(value).as_str().to_owned();
        match name {
            "principal" => login.principal = Some(own(value)),
            "keyTab" => login.keytab = Some(own(value.strip_prefix("file:").unwrap_or(value)).into()),
            "ticketCache" => login.ccache = Some(own(value)),
            "useKeyTab" => uses_keytab = switch(name, value)?,
            "useTicketCache" => uses_cache = switch(name, value)?,
            other if IGNORED_OPTIONS.contains(&other) => {}
            other => return Err(format!("has the option {}, which has no equivalent in zklock", quote(other))),
        }
    }
    let why = match (uses_keytab, uses_cache) {
        (false, false) => "needs useKeyTab=true or useTicketCache=true",
        (true, false) if login.ccache.is_some() => "has ticketCache without useTicketCache=true",
        (false, true) if login.keytab.is_some() => "has keyTab without useKeyTab=true",
        _ => return Ok(login),
    };
    Err(why.to_owned())
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("has a wrong value of {}; expected true or false", quote(name))),
    }
}

impl<'a> Symbols<'a> {
    fn text(&mut self, expected: &str) -> Result<&'a str, String> {
        text(self.next()?, expected)
    }

    fn mark(&mut self, expected: char) -> Result<(), String> {
        match self.next()? {
            Symbol::Mark(mark) if mark == expected => Ok(()),
            other => Err(unexpected(&other, expected.encode_utf8(&mut [0; 4]))),
        }
    }

    /// Skips the content of a section, whose form does not matter.
    fn skip_section(&mut self) -> Result<(), String> {
        loop {
            match self.next()? {
                Symbol::Mark('}') => return Ok(()),
                Symbol::End => return Err("has no } at the end of a section".to_owned()),
                Symbol::Mark(_) | Symbol::Text(_) => {}
            }
        }
    }

    /// Reads the next symbol.
    fn next(&mut self) -> Result<Symbol<'a>, String> {
        loop {
            self.0 = self.0.trim_ascii_start();
            let symbol = match self.0.as_bytes().first() {
                None => Symbol::End,
                Some(&mark @ (b'{' | b'}' | b';' | b'=')) => {
                    self.take(1);
                    Symbol::Mark(char::from(mark))
                }
                Some(b'"') => {
                    let length = string_length(self.0.as_bytes())?;
                    let string = self.take(length);
                    Symbol::Text(string.get(1..length - 1).unwrap_or_default())
                }
                Some(b'/') => {
                    let length = comment_length(self.0.as_bytes())?;
                    self.take(length);
                    continue;
                }
                Some(_) => {
                    let is_end = |byte: u8| byte.is_ascii_whitespace() || b"{};=\"/".contains(&byte);
                    let length = self.0.bytes().position(is_end).unwrap_or(self.0.len());
                    let word = self.take(length);
                    if word.as_bytes().contains(&b'\\') {
                        return Err("has a \\ outside of a string".to_owned());
                    }
                    Symbol::Text(word)
                }
            };
            return Ok(symbol);
        }
    }

    /// Takes the next bytes. A character of ASCII, or the end of the file, follows them.
    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.0.split_at_checked(length).unwrap_or((self.0, ""));
        self.0 = rest;
        taken
    }
}

fn text<'a>(symbol: Symbol<'a>, expected: &str) -> Result<&'a str, String> {
    match symbol {
        Symbol::Text(text) => Ok(text),
        other => Err(unexpected(&other, expected)),
    }
}

fn unexpected(symbol: &Symbol<'_>, expected: &str) -> String {
    match symbol {
        Symbol::Mark(mark) => format!("has {mark}; expected {expected}"),
        // The text can be a secret.
        Symbol::Text(_) => format!("has a text; expected {expected}"),
        Symbol::End => format!("ends; expected {expected}"),
    }
}

/// Returns the length of a quoted string, with both quotes.
fn string_length(quoted: &[u8]) -> Result<usize, &'static str> {
    let mut bytes = quoted.iter().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' if !matches!(bytes.next(), Some((_, b'"' | b'\\' | b'\''))) => {
                return Err("has a \\ in a string; expected \\\" or \\\\");
            }
            b'\n' => break,
            _ => {}
        }
    }
    Err("has a string without an end")
}

fn comment_length(comment: &[u8]) -> Result<usize, &'static str> {
    match comment.get(1) {
        Some(b'/') => Ok(comment.iter().position(|&byte| byte == b'\n').unwrap_or(comment.len())),
        Some(b'*') => {
            let end = comment.windows(2).skip(2).position(|part| part == b"*/");
            end.map(|at| at + 4).ok_or("has a comment without an end")
        }
        _ => Err("has a / outside of a comment and of a string"),
    }
}

/// Returns a text without the backslashes that escape other characters. Only a quoted string contains backslashes.
fn unescaped(text: &str) -> Zeroizing<String> {
    // A buffer that grows would leave copies of the text in memory.
    let mut result = Zeroizing::new(String::with_capacity(text.len()));
    let mut characters = text.chars();
    while let Some(next) = characters.next() {
        result.extend(if next == '\\' { characters.next() } else { Some(next) });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(content: &str) -> Result<(String, String), String> {
        match parse_jaas(content, "Client")? {
            Login::Digest(login) => Ok((login.user, login.password.as_str().to_owned())),
            Login::Kerberos(_) => panic!("the login is one of Kerberos"),
        }
    }

    #[test]
    fn kerberos_logins_have_a_keytab_or_a_ticket_cache() {
        let parsed = |options: &str| match parse_jaas(
            &format!("Client {{ {KERBEROS_MODULE} required {options}; }};"),
            "Client",
        )? {
            Login::Kerberos(login) => Ok::<_, String>(login),
            Login::Digest(_) => panic!("the login is one of DIGEST-MD5"),
        };
        let own = |text: &str| Some(text.to_owned());
        let keytab = "useKeyTab=true storeKey=true doNotPrompt=true keyTab=\"/k\" principal=\"app@R\"";
        let login = KerberosLogin { principal: own("app@R"), keytab: Some("/k".into()), ccache: None };
        assert_eq!(parsed(keytab), Ok(login.clone()));
        assert_eq!(parsed(&keytab.replace("/k", "file:/k").replace("storeKey", "debug")), Ok(login));
        assert_eq!(parsed("useTicketCache=true"), Ok(KerberosLogin::default()));
        let cache = KerberosLogin { ccache: own("/c"), ..KerberosLogin::default() };
        assert_eq!(parsed("useTicketCache=true useKeyTab=false ticketCache=\"/c\""), Ok(cache));
        for (options, said) in [
            ("", "needs useKeyTab=true or useTicketCache=true"),
            ("keyTab=\"/k\"", "needs useKeyTab=true or useTicketCache=true"),
            ("useTicketCache=true keyTab=\"/k\"", "has keyTab without useKeyTab=true"),
            ("useKeyTab=true ticketCache=\"/c\"", "has ticketCache without useTicketCache=true"),
            ("useKeyTab=yes", "has a wrong value of \"useKeyTab\"; expected true or false"),
            ("useKeyTab=true password=\"hunter2\"", "has the option \"password\", which has no equivalent in zklock"),
        ] {
            let error = parsed(options).unwrap_err();
            assert!(error.contains(said) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn logins_are_found_in_their_section() {
        for content in [
            "Client { org.apache.zookeeper.server.auth.DigestLoginModule required username=\"bob\" password=\"a\\\"b\\\\ =;\"; };",
            "// ours\nServer{com.sun.Krb5LoginModule required useKeyTab=true keyTab=\"/k\"; other.Module optional; };\n\
             /* a * b **/Client\n{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n  password=\"a\\\"b\\\\ =;\" // his\n\
             username=bob;\n};\n",
        ] {
            assert_eq!(parsed(content), Ok(("bob".to_owned(), "a\"b\\ =;".to_owned())), "{content}");
        }
    }

    #[test]
    fn other_content_is_refused_without_the_password() {
        let module = "Client { org.apache.zookeeper.server.auth.DigestLoginModule required";
        for (content, said) in [
            ("", "has no section \"Client\""),
            ("Server { };", "has no section \"Client\""),
            ("Client", "ends; expected {"),
            ("Client { ", "ends; expected the name of a login module"),
            ("Client { };", "has }; expected the name of a login module"),
            ("Other { a.b required", "has no } at the end of a section"),
            ("Client { com.sun.security.auth.module.JndiLoginModule required; };", "has the login module \"com.sun."),
            ("Client { org.apache.zookeeper.server.auth.DigestLoginModule optional; };", "expected required"),
            (&format!("{module}; }};"), "has no option username"),
            (&format!("{module} username=bob; }};"), "has no option password"),
            (&format!("{module} password=hunter2; }};"), "has no option username"),
            (&format!("{module} username=bob password hunter2; }};"), "has a text; expected ="),
            (&format!("{module} username=bob password=\"hunter2\" \"hunter2\"; }};"), "has ;; expected ="),
            (&format!("{module} username=bob password=${{hunter2}}; }};"), "has {; expected an option"),
            (
                &format!("{module} username=bob password=\"${{p}}hunter2\"; }};"),
                "has a ${...} in the option \"password\"",
            ),
            (&format!("{module} username=bob password=\"hunter2; }};"), "has a string without an end"),
            (&format!("{module} username=bob password=\"hunter2\\n\"; }};"), "has a \\ in a string"),
            (&format!("{module} username=bob debug=true; }};"), "has the option \"debug\""),
            (&format!("{module} username=bob password=\"hunter2\"; }}"), "ends; expected ;"),
            (&format!("{module} username=bob password=\"hunter2\"; a.b required; }};"), "has a text; expected }"),
            ("a / b", "has a / outside of a comment"),
            ("a\\b {", "has a \\ outside of a string"),
            ("/* hunter2", "has a comment without an end"),
        ] {
            let error = parsed(content).unwrap_err();
            assert!(error.contains(said), "{content}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
