//! Reads the login of a client from a JAAS file, which Java programs use. The code in this file supports only the forms
//! that ZooKeeper's documentation describes, and refuses all others.

use zeroize::Zeroizing;
use zklock_core::path::quote;

use super::settings::KerberosLogin;

/// The size of the buffer for a quoted string, in bytes.
const MAX_STRING: usize = 8192;
const DIGEST_MODULE: &str = "org.apache.zookeeper.server.auth.DigestLoginModule";

const KERBEROS_MODULE: &str = "com.sun.security.auth.module.Krb5LoginModule";
/// Options of the Kerberos module that have no effect in zklock: the Kerberos library renews tickets itself, never asks
/// for a password, and keeps no keys.
const IGNORED_OPTIONS: [&str; 6] = ["debug", "doNotPrompt", "isInitiator", "refreshKrb5Config", "renewTGT", "storeKey"];

/// The login of a client.
pub(super) enum Login {
    Digest(DigestLogin),
    Kerberos(KerberosLogin),
}

/// The login of a client with DIGEST-MD5.
pub(super) struct DigestLogin {
    pub(super) user: String,
    pub(super) password: Zeroizing<String>,
}

/// A part of a JAAS file. A text can be a secret.
enum Symbol {
    Text(Zeroizing<String>),
    Mark(char),
}

/// Returns the login in a section of a JAAS file, or an error text that follows the name of the file.
pub(super) fn parse(content: &str, section: &str) -> Result<Login, String> {
    let mut symbols = symbols(content)?.into_iter().peekable();
    let mut login = None;
    while symbols.peek().is_some() {
        let name = text(symbols.next(), "the name of a section")?;
        mark(symbols.next(), '{')?;
        if *name == section {
            login = Some(login_module(&mut symbols)?);
            mark(symbols.next(), '}')?;
        } else {
            // The forms of other sections do not matter.
            while !matches!(symbols.next().ok_or("has no } at the end of a section")?, Symbol::Mark('}')) {}
        }
        mark(symbols.next(), ';')?;
    }
    login.ok_or_else(|| format!("has no section {}", quote(section)))
}

fn login_module(symbols: &mut impl Iterator<Item = Symbol>) -> Result<Login, String> {
    let module = text(symbols.next(), "the name of a login module")?;
    if *module != DIGEST_MODULE && *module != KERBEROS_MODULE {
        return Err(format!("has the login module {}; expected {DIGEST_MODULE} or {KERBEROS_MODULE}", quote(&module)));
    }
    let flag = text(symbols.next(), "required")?;
    if *flag != "required" {
        return Err(format!("has the flag {} of the login module; expected required", quote(&flag)));
    }
    let mut options = Vec::new();
    loop {
        let name = match symbols.next() {
            Some(Symbol::Mark(';')) => break,
            other => text(other, "an option of the login module or ;")?,
        };
        mark(symbols.next(), '=')?;
        let value = text(symbols.next(), "the value of an option")?;
        if value.contains("${") {
            return Err(format!("has a ${{...}} in the option {}, which zklock does not replace", quote(&name)));
        }
        options.push((name, value));
    }
    if *module == DIGEST_MODULE {
        digest_login(options).map(Login::Digest)
    } else {
        kerberos_login(options).map(Login::Kerberos)
    }
}

/// The names and the values of the options of a login module.
type ModuleOptions = Vec<(Zeroizing<String>, Zeroizing<String>)>;

fn digest_login(options: ModuleOptions) -> Result<DigestLogin, String> {
    let (mut user, mut password) = (None, None);
    for (name, value) in options {
        match name.as_str() {
            "username" => user = Some(value.as_str().to_owned()),
            "password" => password = Some(value),
            other => return Err(format!("has the option {}; expected username and password", quote(other))),
        }
    }
    match (user, password) {
        (Some(user), Some(password)) => Ok(DigestLogin { user, password }),
        (None, _) => Err("has no option username".to_owned()),
        (_, None) => Err("has no option password".to_owned()),
    }
}

fn kerberos_login(options: ModuleOptions) -> Result<KerberosLogin, String> {
    let mut login = KerberosLogin::default();
    let (mut uses_keytab, mut uses_cache) = (false, false);
    for (name, value) in options {
        let switch =
            || value.parse().map_err(|_| format!("has a wrong value of {}; expected true or false", quote(&name)));
        match name.as_str() {
            "principal" => login.principal = Some(value.to_string()),
            "keyTab" => login.keytab = Some(value.strip_prefix("file:").unwrap_or(&value).into()),
            "ticketCache" => login.ccache = Some(value.to_string()),
            "useKeyTab" => uses_keytab = switch()?,
            "useTicketCache" => uses_cache = switch()?,
            other if IGNORED_OPTIONS.contains(&other) => {}
            other => return Err(format!("has the option {}, which has no equivalent in zklock", quote(other))),
        }
    }
    match (uses_keytab, uses_cache) {
        (false, false) => Err("needs useKeyTab=true or useTicketCache=true".to_owned()),
        (true, false) if login.ccache.is_some() => Err("has ticketCache without useTicketCache=true".to_owned()),
        (false, true) if login.keytab.is_some() => Err("has keyTab without useKeyTab=true".to_owned()),
        _ => Ok(login),
    }
}

fn text(symbol: Option<Symbol>, expected: &str) -> Result<Zeroizing<String>, String> {
    match symbol {
        Some(Symbol::Text(text)) => Ok(text),
        Some(Symbol::Mark(mark)) => Err(format!("has {mark}; expected {expected}")),
        None => Err(format!("ends; expected {expected}")),
    }
}

fn mark(symbol: Option<Symbol>, expected: char) -> Result<(), String> {
    match symbol {
        Some(Symbol::Mark(mark)) if mark == expected => Ok(()),
        Some(Symbol::Mark(mark)) => Err(format!("has {mark}; expected {expected}")),
        // The text can be a secret.
        Some(Symbol::Text(_)) => Err(format!("has a text; expected {expected}")),
        None => Err(format!("ends; expected {expected}")),
    }
}

/// Splits a JAAS file. A text is a word or a quoted string.
fn symbols(content: &str) -> Result<Vec<Symbol>, String> {
    let mut symbols = Vec::new();
    let mut rest = content.trim_start();
    while let Some(first) = rest.chars().next() {
        let (symbol, after) = match first {
            '{' | '}' | ';' | '=' => (Some(Symbol::Mark(first)), rest.strip_prefix(first)),
            '"' => {
                let (text, after) = string(rest)?;
                (Some(Symbol::Text(text)), Some(after))
            }
            '/' => (None, Some(after_comment(rest)?)),
            _ => {
                let end = rest.find(|c: char| c.is_whitespace() || "{};=\"/".contains(c)).unwrap_or(rest.len());
                let word = rest.get(..end).unwrap_or_default();
                (Some(Symbol::Text(Zeroizing::new(word.to_owned()))), rest.get(end..))
            }
        };
        symbols.extend(symbol);
        rest = after.unwrap_or_default().trim_start();
    }
    Ok(symbols)
}

/// Splits a quoted string from the content that follows it.
fn string(quoted: &str) -> Result<(Zeroizing<String>, &str), String> {
    // A buffer that grows would leave copies of the text in memory.
    let mut text = Zeroizing::new(String::with_capacity(MAX_STRING));
    let mut characters = quoted.char_indices().skip(1);
    while let Some((at, next)) = characters.next() {
        if text.len() > MAX_STRING - 4 {
            return Err(format!("has a string of more than {} bytes", MAX_STRING - 4));
        }
        match next {
            '"' => return Ok((text, quoted.get(at + 1..).unwrap_or_default())),
            '\\' => match characters.next() {
                Some((_, escaped @ ('"' | '\\' | '\''))) => text.push(escaped),
                _ => return Err("has a \\ in a string; expected \\\" or \\\\".to_owned()),
            },
            '\n' => break,
            _ => text.push(next),
        }
    }
    Err("has a string without an end".to_owned())
}

fn after_comment(comment: &str) -> Result<&str, String> {
    if let Some(comment) = comment.strip_prefix("//") {
        return Ok(comment.split_once('\n').map_or("", |(_, after)| after));
    }
    let comment = comment.strip_prefix("/*").ok_or("has a / outside of a comment and of a string")?;
    Ok(comment.split_once("*/").ok_or("has a comment without an end")?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(content: &str) -> Result<(String, String), String> {
        match parse(content, "Client")? {
            Login::Digest(login) => Ok((login.user, login.password.as_str().to_owned())),
            Login::Kerberos(_) => panic!("the login is one of Kerberos"),
        }
    }

    #[test]
    fn kerberos_logins_have_a_keytab_or_a_ticket_cache() {
        let parsed =
            |options: &str| match parse(&format!("Client {{ {KERBEROS_MODULE} required {options}; }};"), "Client")? {
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
            ("/* hunter2", "has a comment without an end"),
        ] {
            let error = parsed(content).unwrap_err();
            assert!(error.contains(said), "{content}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
