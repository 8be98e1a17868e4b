//! The client's side of the SASL mechanism DIGEST-MD5 (RFC 2831), with the quality of protection `auth`. The server sends
//! a challenge, the client answers with a digest of the password, and the server proves with another digest that it
//! knows the password as well. The code in this file does no I/O, and takes random numbers as an argument.

use md5::block_api::compress;
use zeroize::Zeroizing;
use zklock_core::path::quote;
use zklock_core::session::{SaslMechanism, SaslStep};

use crate::jaas::DigestLogin;

/// The maximum length of a challenge, in bytes (RFC 2831, section 2.1.1).
const MAX_CHALLENGE: usize = 2047;
/// The number of responses to the nonce of a challenge. A connection needs only one.
const NONCE_COUNT: &str = "00000001";
/// A server sends no proof if it accepts clients whose authentication has failed.
const NO_PROOF: &str = "SASL: the server refused the user or its password, or sent no proof that it knows the password; check sasl.user and sasl.password";

/// One exchange with a server.
pub struct DigestMd5 {
    login: DigestLogin,
    /// The name of the service and of its host: `zookeeper/zk-sasl-md5` on servers with the default settings.
    digest_uri: String,
    /// A random text that was not used before.
    client_nonce: String,
    state: State,
}

enum State {
    AwaitingChallenge,
    AwaitingProof { expected: String },
    Ended,
}

impl DigestMd5 {
    /// Begins an exchange. `client_nonce` must be a random text that was not used before.
    pub fn new(login: DigestLogin, digest_uri: String, client_nonce: String) -> Self {
        Self { login, digest_uri, client_nonce, state: State::AwaitingChallenge }
    }

    /// Answers a challenge. Returns the response, and the proof that the server must send.
    fn respond(&self, token: &[u8]) -> Result<(Zeroizing<Vec<u8>>, String), String> {
        let Challenge { realm, nonce, is_utf8 } = Challenge::parse(token)?;
        let Self { login: DigestLogin { user, password }, digest_uri, client_nonce, .. } = self;
        let hashed_form = |text: &str| hashed_form(text, is_utf8).ok_or_else(|| self.needs_utf8());
        let secret = md5(&[
            &hashed_form(user)?,
            b":",
            &hashed_form(realm.as_deref().unwrap_or_default())?,
            b":",
            &hashed_form(password)?,
        ]);
        let nonces = format!(":{nonce}:{client_nonce}");
        let session_key = Zeroizing::new(hex(&*md5(&[&*secret, nonces.as_bytes()])));
        let digest = |method: &[u8]| {
            let request = hex(&*md5(&[method, b":", digest_uri.as_bytes()]));
            let text = format!(":{nonce}:{NONCE_COUNT}:{client_nonce}:auth:{request}");
            hex(&*md5(&[session_key.as_bytes(), text.as_bytes()]))
        };
        let mut response = String::from(if is_utf8 { "charset=utf-8," } else { "" });
        add_quoted(&mut response, "username", user);
        if let Some(realm) = &realm {
            add_quoted(&mut response, "realm", realm);
        }
        add_quoted(&mut response, "nonce", &nonce);
        response.extend(["nc=", NONCE_COUNT, ","]);
        add_quoted(&mut response, "cnonce", client_nonce);
        add_quoted(&mut response, "digest-uri", digest_uri);
        response.extend(["response=", &digest(b"AUTHENTICATE"), ",qop=auth"]);
        let response = if is_utf8 { Some(Zeroizing::new(response.into_bytes())) } else { latin1(&response) };
        Ok((response.ok_or_else(|| self.needs_utf8())?, digest(b"")))
    }

    fn needs_utf8(&self) -> String {
        let name = quote(&self.login.user);
        format!(
            "SASL: the server supports only characters of ISO 8859-1, and the name or the password of the user {name} contains others"
        )
    }

    /// Checks the proof of the server.
    fn check(&self, token: &[u8], expected: &str) -> Result<(), String> {
        let text = decoded(token)?;
        match Directives::parse(&text)?.single("rspauth")? {
            Some(proof) if proof == expected => Ok(()),
            Some(_) => Err(format!(
                "SASL: the server does not know the password of the user {}, although it accepted the user: another server may have taken its place",
                quote(&self.login.user)
            )),
            None => Err(NO_PROOF.to_owned()),
        }
    }
}

impl SaslMechanism for DigestMd5 {
    fn first_token(&mut self) -> Zeroizing<Vec<u8>> {
        // In DIGEST-MD5, the server sends the first message.
        Zeroizing::default()
    }

    fn step(&mut self, token: Option<&[u8]>) -> Result<SaslStep, String> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::AwaitingChallenge => {
                let (response, expected) = self.respond(token.unwrap_or_default())?;
                self.state = State::AwaitingProof { expected };
                Ok(SaslStep::Send(response))
            }
            State::AwaitingProof { expected } => {
                self.check(token.ok_or(NO_PROOF)?, &expected)?;
                Ok(SaslStep::Done)
            }
            State::Ended => Err("SASL: the exchange with the server has ended".to_owned()),
        }
    }

    fn refusal(&self) -> String {
        match self.state {
            State::AwaitingChallenge => {
                "the server does not offer DIGEST-MD5: it probably requires Kerberos (sasl.mechanism = gssapi)"
                    .to_owned()
            }
            State::AwaitingProof { .. } | State::Ended => {
                let name = quote(&self.login.user);
                format!("the server refused the user {name} or its password; check sasl.user and sasl.password")
            }
        }
    }
}

/// The parts of a challenge that the client needs.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    realm: Option<String>,
    nonce: String,
    is_utf8: bool,
}

impl Challenge {
    fn parse(token: &[u8]) -> Result<Self, String> {
        let text = decoded(token)?;
        let directives = Directives::parse(&text)?;
        let wrong = |name: &str, value: &str, expected: &str| {
            Err(invalid(&format!("{name} is {}; expected {expected}", quote(value))))
        };
        match directives.single("algorithm")?.unwrap_or_default() {
            "md5-sess" => {}
            other => return wrong("algorithm", other, "md5-sess"),
        }
        match directives.single("qop")? {
            Some(qop) if !qop.split(',').any(|offer| offer.trim_ascii() == "auth") => return wrong("qop", qop, "auth"),
            _ => {}
        }
        let is_utf8 = match directives.single("charset")? {
            None => false,
            Some(charset) if charset.eq_ignore_ascii_case("utf-8") => true,
            Some(charset) => return wrong("charset", charset, "utf-8"),
        };
        let nonce = unescaped(directives.single("nonce")?.unwrap_or_default());
        if nonce.is_empty() {
            return Err(invalid("it has no nonce"));
        }
        // A server that serves several realms accepts each of them.
        let realm = directives.all("realm").next().map(unescaped);
        Ok(Self { realm, nonce, is_utf8 })
    }
}

/// The directives `name=value` of a message of the server, in their order. The values of quoted strings contain their
/// backslashes.
struct Directives<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Directives<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let mut rest = text;
        let mut directives = Vec::new();
        loop {
            (_, rest) = split_after(rest, |byte| is_blank(byte) || byte == b',');
            if rest.is_empty() {
                return Ok(Self(directives));
            }
            let (directive, after) = directive(rest)
                .ok_or_else(|| invalid(&format!("at position {}, expected name=value", text.len() - rest.len())))?;
            directives.push(directive);
            rest = after;
        }
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(own, _)| own.eq_ignore_ascii_case(name)).map(|&(_, value)| value)
    }

    /// Returns the value of a directive. Fails if the directive occurs more than once.
    fn single(&self, name: &str) -> Result<Option<&'a str>, String> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(invalid(&format!("it has more than one {name}"))),
        }
    }
}

/// Splits a directive from the text that follows it. The value is a token or a quoted string.
fn directive(text: &str) -> Option<((&str, &str), &str)> {
    let (name, after) = split_after(text, |byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let after = after.strip_prefix('=').filter(|_| !name.is_empty())?;
    let (value, after) = match after.strip_prefix('"') {
        Some(content) => {
            let mut is_escaped = false;
            let end = content.char_indices().find(|&(_, character)| {
                let is_end = !is_escaped && (character == '"' || character.is_control());
                is_escaped = !is_escaped && character == '\\';
                is_end
            });
            let (value, after) = content.split_at_checked(end?.0)?;
            (value, after.strip_prefix('"')?)
        }
        None => {
            let is_token = |byte: u8| byte.is_ascii_graphic() && !b"\"\\,=;:<>@()[]{}?/".contains(&byte);
            let (value, after) = split_after(after, is_token);
            (value, Some(after).filter(|_| !value.is_empty())?)
        }
    };
    let (_, after) = split_after(after, is_blank);
    (after.is_empty() || after.starts_with(',')).then_some(((name, value), after))
}

/// Splits a text after its first characters of a kind. The characters are those of ASCII.
fn split_after(text: &str, is_of_kind: fn(u8) -> bool) -> (&str, &str) {
    let end = text.bytes().position(|byte| !is_of_kind(byte)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Returns the text that the content of a quoted string stands for.
fn unescaped(content: &str) -> String {
    let mut characters = content.chars();
    std::iter::from_fn(|| match characters.next()? {
        '\\' => characters.next(),
        character => Some(character),
    })
    .collect()
}

/// Appends a directive whose value is a quoted string.
fn add_quoted(response: &mut String, name: &str, value: &str) {
    response.extend([name, "=\""]);
    for character in value.chars() {
        response.extend(matches!(character, '\\' | '"').then_some('\\'));
        response.push(character);
    }
    response.push_str("\",");
}

fn invalid(why: &str) -> String {
    format!("SASL: the server's message is not one of DIGEST-MD5: {why}")
}

/// Decodes a message of the server, which is UTF-8 or ISO 8859-1.
fn decoded(token: &[u8]) -> Result<String, String> {
    if token.len() > MAX_CHALLENGE {
        let length = token.len();
        return Err(invalid(&format!("it has {length} bytes; DIGEST-MD5 allows at most {MAX_CHALLENGE} bytes")));
    }
    Ok(str::from_utf8(token).map_or_else(|_| token.iter().map(|&byte| char::from(byte)).collect(), str::to_owned))
}

/// Returns the bytes of a text of which a digest is computed. These are the bytes in ISO 8859-1, or in UTF-8 if the text
/// has other characters. Returns `None` if the text has other characters and the server does not support UTF-8.
fn hashed_form(text: &str, is_utf8: bool) -> Option<Zeroizing<Vec<u8>>> {
    latin1(text).or_else(|| is_utf8.then(|| Zeroizing::new(text.as_bytes().to_vec())))
}

/// Encodes a text in ISO 8859-1. Returns `None` if the text has other characters.
fn latin1(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    // A buffer that grows would leave copies of the text in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    for character in text.chars() {
        bytes.push(u8::try_from(character).ok()?);
    }
    Some(bytes)
}

/// Returns the MD5 digest of a message in several parts (RFC 1321). The type `Md5` of the crate `md-5` would keep a copy
/// of the last part, and its feature `zeroize` makes other digests of the library slower and larger.
fn md5(parts: &[&[u8]]) -> Zeroizing<[u8; 16]> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // The padding is a bit, zeros, and the length in bits.
    let padded = (length + 9).next_multiple_of(64);
    let mut message = Zeroizing::new(Vec::with_capacity(padded));
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message.push(0x80);
    message.resize(padded - 8, 0);
    message.extend_from_slice(&(length as u64 * 8).to_le_bytes());
    let mut state = Zeroizing::new([0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]);
    compress(&mut state, message.as_chunks().0);
    let mut digest = Zeroizing::new([0; 16]);
    for (bytes, word) in digest.chunks_exact_mut(4).zip(&*state) {
        bytes.copy_from_slice(&u32::to_le_bytes(*word));
    }
    digest
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(digit.into(), 16)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHALLENGE: &str = r#"realm="zk-sasl-md5",nonce="OA6MG9tEQGm2hh",charset=utf-8,algorithm=md5-sess"#;

    fn exchange_with(user: &str, password: &str, digest_uri: &str) -> DigestMd5 {
        let login = DigestLogin { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) };
        DigestMd5::new(login, digest_uri.to_owned(), "OA6MHXh6VqTrRk".to_owned())
    }

    fn exchange(user: &str, password: &str) -> DigestMd5 {
        exchange_with(user, password, "zookeeper/zk-sasl-md5")
    }

    fn response(exchange: &mut DigestMd5, challenge: &[u8]) -> Result<Vec<u8>, String> {
        assert!(exchange.first_token().is_empty());
        match exchange.step(Some(challenge))? {
            SaslStep::Send(response) => Ok(response.to_vec()),
            SaslStep::Done => panic!("the server has sent no proof"),
        }
    }

    fn error(challenge: &str) -> String {
        response(&mut exchange("bob", "secret"), challenge.as_bytes()).unwrap_err()
    }

    /// The example of RFC 2831, section 4.
    #[test]
    fn example_of_the_rfc() {
        let mut exchange = exchange_with("chris", "secret", "imap/elwood.innosoft.com");
        let challenge =
            br#"realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8"#;
        let sent = String::from_utf8(response(&mut exchange, challenge).unwrap()).unwrap();
        assert_eq!(
            sent,
            "charset=utf-8,username=\"chris\",realm=\"elwood.innosoft.com\",nonce=\"OA6MG9tEQGm2hh\",nc=00000001,\
             cnonce=\"OA6MHXh6VqTrRk\",digest-uri=\"imap/elwood.innosoft.com\",\
             response=d388dad90d4bbd760a152321f2143af7,qop=auth"
        );
        let proof = exchange.step(Some(b"rspauth=ea40f60335c427b5527b84dbabcdfffd"));
        assert!(matches!(proof, Ok(SaslStep::Done)), "{proof:?}");
        assert!(exchange.step(Some(b"")).is_err());
    }

    /// Examples of RFC 1321, and messages whose padding begins at the end of a block.
    #[test]
    fn digests_are_those_of_md5() {
        for (parts, expected) in [
            (&[][..], "d41d8cd98f00b204e9800998ecf8427e"),
            (&[&b"message "[..], b"", b"digest"], "f96b697d7cb7938d525a2f31aaf161d0"),
            (&[&[b'a'; 55]], "ef1772b6dff9a122358552954ad0df65"),
            (&[&[b'a'; 56]], "3b0c8ac703f828b04c6c197006d17218"),
            (&[&[b'a'; 60], &[b'a'; 4]], "014842d480b571495a4a0363793f7367"),
            (&[&[b'a'; 119]], "8a7bd0732ed6a28ce75f6dabc90e1613"),
        ] {
            assert_eq!(hex(&*md5(parts)), expected);
        }
    }

    #[test]
    fn wrong_or_missing_proof_is_an_error() {
        for (proof, said) in [
            (Some(&b"rspauth=ea40f60335c427b5527b84dbabcdfffd"[..]), "does not know the password of the user \"bob\""),
            (Some(b"rspauth="), "expected name=value"),
            (Some(b"rspauth=a,rspauth=b"), "more than one rspauth"),
            (Some(b""), "no proof"),
            (None, "no proof"),
        ] {
            let mut exchange = exchange("bob", "secret");
            response(&mut exchange, CHALLENGE.as_bytes()).unwrap();
            let error = exchange.step(proof).unwrap_err();
            assert!(error.contains(said), "{error}");
            assert!(exchange.step(proof).is_err());
        }
    }

    #[test]
    fn challenges_are_parsed() {
        let parse = |text: &str| Challenge::parse(text.as_bytes()).unwrap();
        let expected = Challenge { realm: Some("zk-sasl-md5".into()), nonce: "OA6MG9tEQGm2hh".into(), is_utf8: true };
        assert_eq!(parse(CHALLENGE), expected);
        let other = parse(
            " , realm=\"a \\\"b\\\\\" , realm=\"c\",NONCE=\"n=,\" ,qop=\"auth-int, auth\",stale=true,algorithm=md5-sess,,cipher=\"des\"",
        );
        assert_eq!(other, Challenge { realm: Some("a \"b\\".into()), nonce: "n=,".into(), is_utf8: false });
        let none = parse("nonce=n,algorithm=md5-sess,qop=auth");
        assert_eq!(none, Challenge { realm: None, nonce: "n".into(), is_utf8: false });
    }

    #[test]
    fn wrong_challenges_are_refused_with_the_cause() {
        for (challenge, said) in [
            ("", "algorithm is \"\"; expected md5-sess"),
            ("nonce=\"n\",algorithm=md5", "algorithm is \"md5\"; expected md5-sess"),
            ("algorithm=md5-sess", "no nonce"),
            ("nonce=\"\",algorithm=md5-sess", "no nonce"),
            ("nonce=a,nonce=b,algorithm=md5-sess", "more than one nonce"),
            ("nonce=a,algorithm=md5-sess,algorithm=md5-sess", "more than one algorithm"),
            ("nonce=a,algorithm=md5-sess,qop=\"auth-conf\"", "qop is \"auth-conf\"; expected auth"),
            ("nonce=a,algorithm=md5-sess,charset=utf-16", "charset is \"utf-16\"; expected utf-8"),
            ("nonce=\"a", "at position 0, expected name=value"),
            ("nonce=\"a\\", "at position 0, expected name=value"),
            ("nonce=\"a\"b", "at position 0, expected name=value"),
            ("nonce=\"a\nb\"", "at position 0, expected name=value"),
            ("nonce=a, b", "at position 9, expected name=value"),
            ("=a", "at position 0, expected name=value"),
            ("a b=c", "at position 0, expected name=value"),
            ("n\u{f6}=a", "at position 0, expected name=value"),
            ("nonce=a=b", "at position 0, expected name=value"),
        ] {
            let error = error(challenge);
            assert!(error.starts_with("SASL: the server's message is not one of DIGEST-MD5: "), "{error}");
            assert!(error.ends_with(said), "{challenge:?}: {error}");
        }
        let long = format!("{CHALLENGE},x=\"{}\"", "y".repeat(MAX_CHALLENGE));
        assert!(error(&long).ends_with("bytes; DIGEST-MD5 allows at most 2047 bytes"));
    }

    /// Changes each byte of a challenge, cuts the challenge, and repeats parts of it.
    #[test]
    fn damaged_challenges_cause_no_panic() {
        let challenge = CHALLENGE.as_bytes();
        for at in 0..challenge.len() {
            for byte in [0, b'"', b'\\', b',', b'=', b' ', 0x80, 0xc3, 0xff] {
                let mut damaged = challenge.to_vec();
                damaged[at] = byte;
                let _ = response(&mut exchange("bob", "secret"), &damaged);
            }
            let _ = response(&mut exchange("bob", "secret"), &challenge[at..]);
            let _ = response(&mut exchange("bob", "secret"), &[&challenge[..at], challenge].concat());
            let _ = exchange("bob", "secret").check(&challenge[..at], "x");
        }
    }

    #[test]
    fn texts_are_latin1_if_they_can_and_otherwise_utf8() {
        assert_eq!(hashed_form("b\u{f6}b", true).unwrap().as_slice(), b"b\xf6b");
        assert_eq!(hashed_form("b\u{f6}b", false).unwrap().as_slice(), b"b\xf6b");
        assert_eq!(hashed_form("\u{20ac}", true).unwrap().as_slice(), "\u{20ac}".as_bytes());
        assert_eq!(hashed_form("\u{20ac}", false), None);
        let latin1_only = CHALLENGE.replace("charset=utf-8,", "");
        for (name, password, is_allowed) in
            [("b\u{f6}b", "\u{e4}", true), ("\u{20ac}", "secret", false), ("bob", "\u{20ac}", false)]
        {
            let sent = response(&mut exchange(name, password), CHALLENGE.as_bytes()).unwrap();
            let start = format!("charset=utf-8,username=\"{name}\",");
            assert!(sent.starts_with(start.as_bytes()), "{sent:?}");
            let sent = response(&mut exchange(name, password), latin1_only.as_bytes());
            assert_eq!(sent.is_ok(), is_allowed, "{sent:?}");
            match sent {
                Ok(sent) => assert!(sent.starts_with(b"username=\"b\xf6b\","), "{sent:?}"),
                Err(error) => assert!(error.contains("supports only characters of ISO 8859-1"), "{error}"),
            }
        }
    }

    #[test]
    fn names_are_quoted() {
        let sent = response(&mut exchange("a\"b\\", "secret"), CHALLENGE.as_bytes()).unwrap();
        assert!(sent.starts_with(br#"charset=utf-8,username="a\"b\\",realm="#), "{sent:?}");
    }
}
