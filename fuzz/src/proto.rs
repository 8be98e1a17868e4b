//! Tests the decoding of bytes from a peer: every record in both directions, the splitting of a stream into frames, and SASL tokens. Every
//! decoded record can be encoded, and decodes to the same record again.

use std::fmt::Debug;

use zklock_core::session::{SaslMechanism as _, SaslStep};
use zklock_proto::{ConnectRequest, ConnectResponse, Frames, OpCode, ProtoError, ReplyHeader, Request, Response};
use zklock_proto::{RequestHeader, WatchEvent};
use zklock_sasl::{DigestLogin, DigestMd5};

/// The frame limit of this target. It is short, so that the fuzzer reaches it.
const FRAME_LIMIT: usize = 256;

/// Decodes the bytes as the kind of record that the first byte selects.
pub fn run(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else { return };
    match kind {
        0 => frames(body),
        1 => round_trip(body, ConnectRequest::decode, |record, out| {
            record.encode(out);
            Ok(())
        }),
        2 => round_trip(body, ConnectResponse::decode, |record, out| {
            record.encode(out);
            Ok(())
        }),
        3 => round_trip(body, Request::decode, |(xid, request), out| request.encode(*xid, out)),
        4 => event(body),
        5 => headers(body),
        6 => sasl(body),
        _ => response(OpCode::ALL[usize::from(kind) % OpCode::ALL.len()], body),
    }
}

/// Checks that a decoded value can be encoded, and that the result decodes to the same value and encodes to the same bytes.
fn round_trip<T: PartialEq + Debug>(
    body: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, ProtoError>,
    encode: impl Fn(&T, &mut Vec<u8>) -> Result<(), ProtoError>,
) {
    let value = match decode(body) {
        Ok(value) => value,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let write = |value: &T| {
        let mut out = Vec::new();
        encode(value, &mut out).expect("a decoded value cannot be encoded");
        let length = i32::from_be_bytes(out[..4].try_into().unwrap());
        assert_eq!(
            usize::try_from(length).unwrap(),
            out.len() - 4,
            "the length field differs from the length of the frame"
        );
        out
    };
    let written = write(&value);
    let again = decode(&written[4..]).expect("an encoded value cannot be decoded");
    assert_eq!(again, value);
    assert_eq!(write(&again), written);
}

fn response(op: OpCode, body: &[u8]) {
    let decode = |body: &[u8]| Response::decode(op, body);
    let headed = |body: &[u8]| {
        let (header, body) = ReplyHeader::decode(body)?;
        assert_eq!((header.xid, header.zxid), (7, 8));
        Response::decode(op, body)
    };
    let Ok(value) = decode(body) else { return };
    let mut out = Vec::new();
    value.encode(7, 8, &mut out).expect("a decoded value cannot be encoded");
    round_trip(&out[4..], headed, |response, out| response.encode(7, 8, out));
    assert_eq!(headed(&out[4..]), Ok(value));
}

fn event(body: &[u8]) {
    let Ok(event) = WatchEvent::decode(body) else { return };
    let mut out = Vec::new();
    event.encode(9, &mut out);
    let (_, written) = ReplyHeader::decode(&out[4..]).unwrap();
    assert_eq!(WatchEvent::decode(written), Ok(event));
}

fn headers(body: &[u8]) {
    if let Ok((_, rest)) = ReplyHeader::decode(body) {
        assert_eq!(rest.len() + ReplyHeader::LENGTH, body.len());
    }
    if let Ok((header, rest)) = RequestHeader::decode(body) {
        let _ = OpCode::try_from(header.op).map(|op| Request::decode_as(op, rest));
    }
}

/// Sends the tokens of a server to a client. A NUL separates the tokens.
fn sasl(tokens: &[u8]) {
    let login = DigestLogin { user: "bob".to_owned(), password: "secret".to_owned().into() };
    let mut mechanism = DigestMd5::new(login, "zookeeper/zk-sasl-md5".to_owned(), "nonce".to_owned());
    assert!(mechanism.first_token().is_empty());
    for token in tokens.split(|byte| *byte == 0) {
        match mechanism.step(Some(token)) {
            Ok(SaslStep::Send(_)) => assert!(!mechanism.refusal().contains(char::is_control)),
            Ok(SaslStep::Done) => return,
            Err(cause) => return assert!(!cause.is_empty() && !cause.contains(char::is_control), "{cause:?}"),
        }
    }
}

/// Checks that the frames of a stream do not depend on how it is divided into pieces, and that the buffer stays bounded.
fn frames(stream: &[u8]) {
    let Some((&size, stream)) = stream.split_first() else { return };
    assert_eq!(cut(stream, usize::from(size).max(1)), cut(stream, stream.len().max(1)));
}

fn cut(stream: &[u8], size: usize) -> Vec<Result<Vec<u8>, String>> {
    let mut frames = Frames::new(FRAME_LIMIT);
    let mut found = Vec::new();
    for piece in stream.chunks(size) {
        frames.push(piece);
        loop {
            match frames.next() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    assert!(frame.len() <= FRAME_LIMIT);
                    found.push(Ok(frame));
                }
                Err(ProtoError::TooLong { len, .. }) => match frames.skip::<16>() {
                    Some(head) => found.push(Err(format!("{len} {head:?}"))),
                    None => break,
                },
                Err(error) => {
                    found.push(Err(error.to_string()));
                    return found;
                }
            }
        }
    }
    found
}
