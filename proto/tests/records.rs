//! The records of the wire protocol: golden bytes that were written by hand, round-trip tests, and malformed bytes.

#![allow(clippy::unwrap_used, reason = "the configured exception for tests leaves out their helpers")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use zklock_proto::{
    Acl, AddWatchMode, Code, ConnectRequest, ConnectResponse, CreateMode, DEFAULT_FRAME_LIMIT, EventKind, Frames,
    Identity, MultiResult, OpCode, ProtoError, ReplyHeader, Request, Response, Stat, WatchEvent, WatcherType,
    XID_NOTIFICATION, XID_PING, encode_error,
};

// Golden bytes find an error that the encoder and the decoder have in common.

#[test]
fn connect_request_bytes() {
    let request = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0x0102,
        timeout_ms: 30_000,
        session_id: 0x1122_3344_5566_7788,
        password: vec![9; 3],
        read_only: true,
    };
    let golden = [
        &[0, 0, 0, 32][..],                                // frame length
        &[0, 0, 0, 0],                                     // protocol version
        &[0, 0, 0, 0, 0, 0, 1, 2],                         // last zxid
        &[0, 0, 0x75, 0x30],                               // timeout
        &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88], // session
        &[0, 0, 0, 3, 9, 9, 9],                            // password
        &[1],                                              // read-only
    ]
    .concat();
    assert_eq!(encoded(|out| request.encode(out)), golden);
    assert_eq!(ConnectRequest::decode(&golden[4..]), Ok(request.clone()));

    let without_flag = &golden[4..golden.len() - 1];
    assert_eq!(ConnectRequest::decode(without_flag), Ok(ConnectRequest { read_only: false, ..request }));
}

#[test]
fn connect_response_bytes() {
    let response =
        ConnectResponse { protocol_version: 0, timeout_ms: 4000, session_id: 5, password: vec![7], read_only: false };
    let golden = [
        &[0, 0, 0, 22][..],
        &[0, 0, 0, 0],             // protocol version
        &[0, 0, 0x0f, 0xa0],       // timeout
        &[0, 0, 0, 0, 0, 0, 0, 5], // session
        &[0, 0, 0, 1, 7],          // password
        &[0],                      // read-only
    ]
    .concat();
    assert_eq!(encoded(|out| response.encode(out)), golden);
    assert_eq!(ConnectResponse::decode(&golden[4..]), Ok(response.clone()));
    assert_eq!(ConnectResponse::decode(&golden[4..golden.len() - 1]), Ok(response));
}

#[test]
fn create2_request_bytes() {
    let create = |mode| Request::Create2 { path: "/a".into(), data: Some(vec![0xff]), acl: Acl::open(), mode };
    let golden = |op: u8, flags: u8| {
        [
            &[0, 0, 0, 50][..],
            &[0, 0, 0, 7],              // xid
            &[0, 0, 0, op],             // type
            &[0, 0, 0, 2, b'/', b'a'],  // path
            &[0, 0, 0, 1, 0xff],        // data
            &[0, 0, 0, 1, 0, 0, 0, 31], // one acl entry, perms
            b"\0\0\0\x05world",         // scheme
            b"\0\0\0\x06anyone",        // id
            &[0, 0, 0, flags],          // flags
        ]
        .concat()
    };
    for (mode, golden) in [(CreateMode::EphemeralSequential, golden(15, 3)), (CreateMode::Container, golden(19, 4))] {
        assert_eq!(request_frame(7, &create(mode)), golden);
        assert_eq!(Request::decode(&golden[4..]), Ok((7, create(mode))));
    }
}

#[test]
fn small_request_bytes() {
    let path = || "/a".to_owned();
    let cases: [(Request, &[u8]); 8] = [
        (Request::Ping, &[0, 0, 0, 11]),
        (Request::CloseSession, &[0xff, 0xff, 0xff, 0xf5]),
        (Request::GetChildren { path: path(), watch: true }, &[0, 0, 0, 8, 0, 0, 0, 2, b'/', b'a', 1]),
        (
            Request::AddWatch { path: path(), mode: AddWatchMode::PersistentRecursive },
            &[0, 0, 0, 106, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 1],
        ),
        (
            Request::RemoveWatches { path: path(), kind: WatcherType::Data },
            &[0, 0, 0, 18, 0, 0, 0, 2, b'/', b'a', 0, 0, 0, 2],
        ),
        (
            Request::Auth { scheme: "s".into(), auth: vec![1] },
            &[0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 1, b's', 0, 0, 0, 1, 1],
        ),
        (Request::Sasl { token: vec![7] }, &[0, 0, 0, 102, 0, 0, 0, 1, 7]),
        (
            Request::SetWatches { relative_zxid: 3, data: vec![path()], exist: vec![], child: vec![] },
            b"\0\0\0\x65\0\0\0\0\0\0\0\x03\0\0\0\x01\0\0\0\x02/a\0\0\0\0\0\0\0\0",
        ),
    ];
    for (request, golden) in cases {
        let frame = request_frame(XID_PING, &request);
        assert_eq!(frame[..8], [0, 0, 0, 4 + u8::try_from(golden.len()).unwrap(), 0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(&frame[8..], golden, "{request:?}");
    }
}

#[test]
fn multi_request_bytes() {
    let multi = Request::Multi(vec![
        Request::Check { path: "/a".into(), version: 4 },
        Request::Delete { path: "/b".into(), version: -1 },
    ]);
    let golden = [
        &[0, 0, 0, 55][..],
        &[0, 0, 0, 1, 0, 0, 0, 14],                           // xid, multi
        &[0, 0, 0, 13, 0, 0xff, 0xff, 0xff, 0xff],            // check follows
        &[0, 0, 0, 2, b'/', b'a', 0, 0, 0, 4],                // path, version
        &[0, 0, 0, 2, 0, 0xff, 0xff, 0xff, 0xff],             // delete follows
        &[0, 0, 0, 2, b'/', b'b', 0xff, 0xff, 0xff, 0xff],    // path, version
        &[0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff], // end
    ]
    .concat();
    assert_eq!(request_frame(1, &multi), golden);
    assert_eq!(Request::decode(&golden[4..]), Ok((1, multi)));
}

#[test]
fn multi_reply_bytes() {
    let results = vec![
        MultiResult::Ok(Response::Path("/a".into())),
        MultiResult::Ok(Response::Empty),
        MultiResult::Err(Code::NO_NODE),
    ];
    let golden = [
        &[0, 0, 0, 1, 0, 0, 0, 0, 0],                         // create follows
        &[0, 0, 0, 2, b'/', b'a'][..],                        // path
        &[0, 0, 0, 2, 0, 0, 0, 0, 0],                         // delete: nothing follows
        &[0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0x9b], // error follows
        &[0xff, 0xff, 0xff, 0x9b],                            // NoNode
        &[0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff], // end
    ]
    .concat();
    let response = Response::Multi(results);
    assert_eq!(response_body(&response), golden);
    assert_eq!(Response::decode(OpCode::Multi, &golden), Ok(response));
}

#[test]
fn exists_reply_bytes() {
    let stat = Stat {
        czxid: 1,
        mzxid: 2,
        ctime: 3,
        mtime: 4,
        version: 5,
        cversion: 6,
        aversion: 7,
        ephemeral_owner: 8,
        data_length: 9,
        num_children: 10,
        pzxid: 11,
    };
    let wide = |n: i64| n.to_be_bytes().to_vec();
    let narrow = |n: i32| n.to_be_bytes().to_vec();
    let body =
        [wide(1), wide(2), wide(3), wide(4), narrow(5), narrow(6), narrow(7), wide(8), narrow(9), narrow(10), wide(11)]
            .concat();
    let golden = [narrow(84), narrow(7), wide(99), narrow(0), body].concat();
    assert_eq!(encoded(|out| Response::Stat(stat).encode(7, 99, out).unwrap()), golden);
    assert_eq!(Response::decode(OpCode::Exists, &golden[20..]), Ok(Response::Stat(stat)));
}

#[test]
fn error_reply_bytes() {
    let golden = [0, 0, 0, 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0xff, 0xff, 0xff, 0x92];
    assert_eq!(encoded(|out| encode_error(7, 9, Code::NODE_EXISTS, out)), golden);
    let header = ReplyHeader { xid: 7, zxid: 9, err: Code::NODE_EXISTS };
    assert_eq!(ReplyHeader::decode(&golden[4..]), Ok((header, &[][..])));
}

#[test]
fn node_deleted_notification_bytes() {
    let event = WatchEvent { kind: EventKind::Deleted, state: WatchEvent::SYNC_CONNECTED, path: "/a".into() };
    let golden = [
        &[0, 0, 0, 30][..],
        &[0xff, 0xff, 0xff, 0xff],                         // xid of a notification
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], // zxid
        &[0, 0, 0, 0],                                     // err
        &[0, 0, 0, 2, 0, 0, 0, 3],                         // deleted, connected
        &[0, 0, 0, 2, b'/', b'a'],                         // path
    ]
    .concat();
    assert_eq!(encoded(|out| event.encode(-1, out)), golden);
    let (header, rest) = ReplyHeader::decode(&golden[4..]).unwrap();
    assert_eq!(header, ReplyHeader { xid: XID_NOTIFICATION, zxid: -1, err: Code::OK });
    assert_eq!(WatchEvent::decode(rest), Ok(event));
}

// Special cases.

#[test]
fn nulls_read_as_empty_except_data() {
    let null = [0xff; 4];
    assert_eq!(Response::decode(OpCode::Sync, &null), Ok(Response::Path(String::new())));
    assert_eq!(Response::decode(OpCode::GetChildren, &null), Ok(Response::Children(vec![])));

    let create = [&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0][..], &null, &null, &[0; 4]].concat();
    let request = Request::Create { path: String::new(), data: None, acl: vec![], mode: CreateMode::Persistent };
    assert_eq!(Request::decode(&create), Ok((1, request)));
}

#[test]
fn huge_declared_count_is_rejected_before_allocation() {
    let claim = [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    assert_eq!(
        Response::decode(OpCode::GetChildren, &claim),
        Err(ProtoError::TooLong { what: "reply children", len: 0x7fff_ffff, limit: 1 })
    );
    assert_eq!(
        Response::decode(OpCode::GetData, &claim),
        Err(ProtoError::Truncated { what: "reply data", needed: 0x7fff_ffff, left: 4 })
    );
}

#[test]
fn negative_lengths_are_refused() {
    let minus_two = [0xff, 0xff, 0xff, 0xfe];
    for op in [OpCode::GetChildren, OpCode::GetData, OpCode::Create] {
        let error = Response::decode(op, &minus_two).unwrap_err();
        assert!(matches!(error, ProtoError::Negative { value: -2, .. }), "{error}");
    }
}

#[test]
fn errors_name_the_field_and_the_value() {
    let error = Response::decode(OpCode::Sync, b"\0\0\0\x03/a\xff").unwrap_err();
    assert_eq!(error.to_string(), "reply path: not UTF-8, byte 0xff at offset 2");
    let error = Request::decode(&[0, 0, 0, 1, 0, 0, 0, 77]).unwrap_err();
    assert_eq!(error.to_string(), "request type: unknown value 77");
    let error = Response::decode(OpCode::Delete, &[0]).unwrap_err();
    assert_eq!(error.to_string(), "reply: 1 bytes left over after the end");
    let error = ReplyHeader::decode(&[0; 7]).unwrap_err();
    assert_eq!(error.to_string(), "reply zxid: needs 8 bytes, 3 are left");
}

#[test]
fn encoding_an_op_that_no_multi_can_contain_fails() {
    let mut out = vec![1, 2, 3];
    for inner in [Request::Multi(vec![]), Request::Ping, Request::Exists { path: "/a".into(), watch: false }] {
        let op = inner.op();
        let multi = Request::Multi(vec![Request::Check { path: "/a".into(), version: 0 }, inner]);
        assert_eq!(multi.encode(1, &mut out), Err(ProtoError::NotInMulti { op: format!("{op:?}") }));
        assert_eq!(out, [1, 2, 3], "a failed encode leaves no bytes");
    }
    let nested = Response::Multi(vec![MultiResult::Ok(Response::Multi(vec![]))]);
    assert_eq!(nested.encode(1, 1, &mut out), Err(ProtoError::NotInMultiReply { response: "Multi" }));
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn nested_multis_do_not_exhaust_the_stack() {
    let nested = [0, 0, 0, 14, 0, 0, 0, 0, 0].repeat(100_000);
    let refused = ProtoError::NotInMulti { op: "Multi".to_owned() };
    assert_eq!(Response::decode(OpCode::Multi, &nested), Err(refused.clone()));
    let request = [&[0, 0, 0, 1, 0, 0, 0, 14][..], &nested].concat();
    assert_eq!(Request::decode(&request), Err(refused));
}

#[test]
fn a_container_has_its_own_opcode() {
    let create = Request::Create { path: "/a".into(), data: Some(vec![]), acl: vec![], mode: CreateMode::Container };
    assert_eq!(create.op(), OpCode::CreateContainer);

    let mut frame = request_frame(1, &create);
    assert!(matches!(Request::decode(&frame[4..]), Ok((1, Request::Create2 { mode: CreateMode::Container, .. }))));
    *frame.last_mut().unwrap() = 0;
    let error = Request::decode(&frame[4..]).unwrap_err();
    assert!(matches!(error, ProtoError::Unknown { value: 0, .. }), "{error}");
}

#[test]
fn add_watch_reply_may_contain_its_error_code() {
    assert_eq!(Response::decode(OpCode::AddWatch, &[]), Ok(Response::WatchAdded));
    assert_eq!(Response::decode(OpCode::AddWatch, &[0; 4]), Ok(Response::WatchAdded));
    assert!(Response::decode(OpCode::AddWatch, &[1; 4]).is_err());
    assert!(Response::decode(OpCode::AddWatch, &[0; 5]).is_err());
}

#[test]
fn codes_have_names() {
    assert_eq!(Code::NO_NODE.to_string(), "NoNode (-101)");
    assert_eq!(Code(-999).to_string(), "code -999");
    assert!(Code::OK.is_ok() && !Code::NO_NODE.is_ok());
}

#[test]
fn opcodes_go_both_ways() {
    for op in OpCode::ALL {
        assert_eq!(OpCode::try_from(op.to_wire()), Ok(*op));
    }
    assert_eq!(OpCode::try_from(-1), Err(ProtoError::Unknown { what: "request type", value: -1 }));
}

#[test]
fn passwords_stay_out_of_debug_output() {
    let password = vec![171; 4];
    let request = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 0,
        session_id: 0,
        password: password.clone(),
        read_only: false,
    };
    let response = ConnectResponse { protocol_version: 0, timeout_ms: 0, session_id: 0, password, read_only: false };
    assert!(!format!("{request:?} {response:?}").contains("171"));
}

#[test]
fn frames_refuse_impossible_lengths() {
    let mut frames = Frames::new(10);
    frames.push(&[0, 0, 0, 11]);
    let too_long = Err(ProtoError::TooLong { what: "frame", len: 11, limit: 10 });
    assert_eq!(frames.next(), too_long);
    assert_eq!(frames.next(), too_long, "the stream stays lost");

    frames.clear();
    frames.push(&[0xff; 4]);
    assert_eq!(frames.next(), Err(ProtoError::Negative { what: "frame", value: -1 }));

    frames.clear();
    frames.push(&[0, 0, 0, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(frames.next().unwrap().unwrap().len(), 10);
    assert_eq!(frames.next(), Ok(None));
}

#[test]
fn half_a_million_frames_in_one_push_are_all_returned() {
    const COUNT: usize = 500_000;
    let mut frames = Frames::new(DEFAULT_FRAME_LIMIT);
    frames.push(&[0, 0, 0, 1, 42].repeat(COUNT));
    for _ in 0..COUNT {
        assert_eq!(frames.next(), Ok(Some(vec![42])));
    }
    assert_eq!(frames.next(), Ok(None));
}

// Properties.

proptest! {
    #[test]
    fn connect_requests_round_trip(request in connect_request()) {
        let frame = encoded(|out| request.encode(out));
        prop_assert_eq!(ConnectRequest::decode(body(&frame)), Ok(request));
    }

    #[test]
    fn connect_responses_round_trip(response in connect_response()) {
        let frame = encoded(|out| response.encode(out));
        prop_assert_eq!(ConnectResponse::decode(body(&frame)), Ok(response));
    }

    #[test]
    fn requests_round_trip(xid: i32, request in request()) {
        let frame = request_frame(xid, &request);
        prop_assert_eq!(Request::decode(body(&frame)), Ok((xid, request)));
    }

    #[test]
    fn responses_round_trip(xid: i32, zxid: i64, (op, response) in response()) {
        let frame = encoded(|out| response.encode(xid, zxid, out).unwrap());
        let (header, rest) = ReplyHeader::decode(body(&frame)).unwrap();
        prop_assert_eq!(header, ReplyHeader { xid, zxid, err: Code::OK });
        prop_assert_eq!(Response::decode(op, rest), Ok(response));
    }

    #[test]
    fn errors_round_trip(xid: i32, zxid: i64, err: i32) {
        let frame = encoded(|out| encode_error(xid, zxid, Code(err), out));
        prop_assert_eq!(ReplyHeader::decode(body(&frame)), Ok((ReplyHeader { xid, zxid, err: Code(err) }, &[][..])));
    }

    #[test]
    fn events_round_trip(zxid: i64, event in event()) {
        let frame = encoded(|out| event.encode(zxid, out));
        let (header, rest) = ReplyHeader::decode(body(&frame)).unwrap();
        prop_assert_eq!(header, ReplyHeader { xid: XID_NOTIFICATION, zxid, err: Code::OK });
        prop_assert_eq!(WatchEvent::decode(rest), Ok(event));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        decode_as_everything(&bytes);
    }

    /// Random bytes rarely get past the type of a request. Damage to a valid request reaches more code.
    #[test]
    fn damaged_records_never_panic(
        request in request(),
        (_, response) in response(),
        at in any::<prop::sample::Index>(),
        noise: [u8; 4],
    ) {
        for mut bytes in [body(&request_frame(1, &request)).to_vec(), response_body(&response)] {
            let start = at.index(bytes.len() + 1);
            for (byte, noise) in bytes.iter_mut().skip(start).zip(noise) {
                *byte = noise;
            }
            decode_as_everything(&bytes);
        }
    }

    #[test]
    fn truncated_requests_are_errors(request in request()) {
        let frame = request_frame(1, &request);
        for len in 0..body(&frame).len() {
            prop_assert!(Request::decode(&body(&frame)[..len]).is_err(), "{} bytes of {:?}", len, request);
        }
    }

    #[test]
    fn truncated_responses_are_errors((op, response) in response()) {
        let whole = response_body(&response);
        for len in 0..whole.len() {
            prop_assert!(Response::decode(op, &whole[..len]).is_err(), "{} bytes of {:?}", len, response);
        }
    }

    #[test]
    fn truncated_events_are_errors(event in event()) {
        let frame = encoded(|out| event.encode(1, out));
        for len in 0..frame.len() - 20 {
            prop_assert!(WatchEvent::decode(&frame[20..20 + len]).is_err());
        }
    }

    #[test]
    fn truncated_handshakes_are_errors(request in connect_request(), response in connect_response()) {
        // Without its last byte, a handshake is valid: it comes from an old client or server.
        let frame = encoded(|out| request.encode(out));
        for len in 0..body(&frame).len() - 1 {
            prop_assert!(ConnectRequest::decode(&body(&frame)[..len]).is_err());
        }
        let frame = encoded(|out| response.encode(out));
        for len in 0..body(&frame).len() - 1 {
            prop_assert!(ConnectResponse::decode(&body(&frame)[..len]).is_err());
        }
    }

    #[test]
    fn frames_are_reassembled_from_any_chunks(
        bodies in vec(vec(any::<u8>(), 0..40), 0..20),
        pushes in vec(1_usize..60, 1..40),
    ) {
        let stream: Vec<u8> = bodies.iter().flat_map(|body| framed(body)).collect();
        let mut frames = Frames::new(40);
        let mut out = Vec::new();
        let mut rest = &stream[..];
        for size in pushes.into_iter().cycle() {
            let (now, later) = rest.split_at(size.min(rest.len()));
            frames.push(now);
            rest = later;
            while let Some(body) = frames.next().unwrap() {
                out.push(body);
            }
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(out, bodies);
    }

    #[test]
    fn frames_never_panic(pushes in vec(vec(any::<u8>(), 0..20), 0..10), limit in 0_usize..50) {
        let mut frames = Frames::new(limit);
        for bytes in pushes {
            frames.push(&bytes);
            while let Ok(Some(body)) = frames.next() {
                prop_assert!(body.len() <= limit);
            }
        }
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn request_frame(xid: i32, request: &Request) -> Vec<u8> {
    encoded(|out| request.encode(xid, out).unwrap())
}

/// The bytes after the length of the frame and the reply header.
fn response_body(response: &Response) -> Vec<u8> {
    encoded(|out| response.encode(1, 1, out).unwrap()).split_off(20)
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
}

/// The body of the only frame in `frame`.
fn body(frame: &[u8]) -> &[u8] {
    let (length, body) = frame.split_first_chunk().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, body.len());
    body
}

fn decode_as_everything(bytes: &[u8]) {
    let _ = ConnectRequest::decode(bytes);
    let _ = ConnectResponse::decode(bytes);
    let _ = Request::decode(bytes);
    let _ = ReplyHeader::decode(bytes);
    let _ = WatchEvent::decode(bytes);
    for op in OpCode::ALL {
        let _ = Response::decode(*op, bytes);
        let _ = Request::decode(&[&[0, 0, 0, 1], &op.to_wire().to_be_bytes(), bytes].concat());
    }
}

fn text() -> impl Strategy<Value = String> + Clone {
    "\\PC{0,12}"
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..20)
}

fn data() -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(bytes())
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

fn connect_request() -> impl Strategy<Value = ConnectRequest> {
    (any::<(i32, i64, i32, i64, bool)>(), bytes()).prop_map(|(fields, password)| {
        let (protocol_version, last_zxid_seen, timeout_ms, session_id, read_only) = fields;
        ConnectRequest { protocol_version, last_zxid_seen, timeout_ms, session_id, password, read_only }
    })
}

fn connect_response() -> impl Strategy<Value = ConnectResponse> {
    (any::<(i32, i32, i64, bool)>(), bytes()).prop_map(
        |((protocol_version, timeout_ms, session_id, read_only), password)| ConnectResponse {
            protocol_version,
            timeout_ms,
            session_id,
            password,
            read_only,
        },
    )
}

fn acl() -> impl Strategy<Value = Vec<Acl>> {
    vec((any::<i32>(), text(), text()).prop_map(|(perms, scheme, id)| Acl { perms, scheme, id }), 0..3)
}

fn stat() -> impl Strategy<Value = Stat> {
    any::<([i64; 6], [i32; 5])>().prop_map(|(wide, narrow)| {
        let [czxid, mzxid, ctime, mtime, ephemeral_owner, pzxid] = wide;
        let [version, cversion, aversion, data_length, num_children] = narrow;
        Stat {
            czxid,
            mzxid,
            ctime,
            mtime,
            version,
            cversion,
            aversion,
            ephemeral_owner,
            data_length,
            num_children,
            pzxid,
        }
    })
}

/// The create modes with a time to live.
const WITH_TTL: [CreateMode; 2] = [CreateMode::PersistentWithTtl, CreateMode::PersistentSequentialWithTtl];

fn operation() -> impl Strategy<Value = Request> {
    let plain = select(
        &[
            CreateMode::Persistent,
            CreateMode::Ephemeral,
            CreateMode::PersistentSequential,
            CreateMode::EphemeralSequential,
        ][..],
    );
    let without_ttl = prop_oneof![plain.clone(), Just(CreateMode::Container)];
    prop_oneof![
        (text(), data(), acl(), plain).prop_map(|(path, data, acl, mode)| Request::Create { path, data, acl, mode }),
        (text(), data(), acl(), without_ttl).prop_map(|(path, data, acl, mode)| Request::Create2 {
            path,
            data,
            acl,
            mode
        }),
        (text(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
        (text(), data(), any::<i32>()).prop_map(|(path, data, version)| Request::SetData { path, data, version }),
        (text(), any::<i32>()).prop_map(|(path, version)| Request::Check { path, version }),
        (text(), data(), acl(), select(&WITH_TTL[..]), any::<i64>())
            .prop_map(|(path, data, acl, mode, ttl_ms)| { Request::CreateTtl { path, data, acl, mode, ttl_ms } }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let query = (text(), any::<bool>());
    prop_oneof![
        5 => operation(),
        1 => query.clone().prop_map(|(path, watch)| Request::Exists { path, watch }),
        1 => query.clone().prop_map(|(path, watch)| Request::GetData { path, watch }),
        1 => query.clone().prop_map(|(path, watch)| Request::GetChildren { path, watch }),
        1 => query.clone().prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        1 => text().prop_map(|path| Request::Sync { path }),
        1 => text().prop_map(|path| Request::GetAcl { path }),
        1 => text().prop_map(|path| Request::GetAllChildrenNumber { path }),
        1 => text().prop_map(|prefix| Request::GetEphemerals { prefix }),
        1 => Just(Request::WhoAmI),
        1 => (text(), acl(), any::<i32>()).prop_map(|(path, acl, version)| Request::SetAcl { path, acl, version }),
        1 => vec(read(query), 0..4).prop_map(Request::MultiRead),
        2 => vec(operation(), 0..4).prop_map(Request::Multi),
        1 => (any::<i64>(), texts(), texts(), texts()).prop_map(|(relative_zxid, data, exist, child)| {
            Request::SetWatches { relative_zxid, data, exist, child }
        }),
        1 => (any::<i64>(), texts(), texts(), texts(), texts(), texts()).prop_map(
            |(relative_zxid, data, exist, child, persistent, persistent_recursive)| {
                Request::SetWatches2 { relative_zxid, data, exist, child, persistent, persistent_recursive }
            }
        ),
        1 => (text(), select(AddWatchMode::ALL)).prop_map(|(path, mode)| Request::AddWatch { path, mode }),
        1 => (text(), select(WatcherType::ALL)).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        1 => (text(), select(WatcherType::ALL)).prop_map(|(path, kind)| Request::CheckWatches { path, kind }),
        1 => (text(), bytes()).prop_map(|(scheme, auth)| Request::Auth { scheme, auth }),
        1 => bytes().prop_map(|token| Request::Sasl { token }),
        1 => Just(Request::Ping),
        1 => Just(Request::CloseSession),
    ]
}

/// The requests that a multi-read can contain.
fn read(query: impl Strategy<Value = (String, bool)> + Clone) -> impl Strategy<Value = Request> {
    prop_oneof![
        query.clone().prop_map(|(path, watch)| Request::GetData { path, watch }),
        query.prop_map(|(path, watch)| Request::GetChildren { path, watch }),
    ]
}

/// A response that a multi can contain, and the type of its request.
fn operation_response() -> impl Strategy<Value = (OpCode, Response)> {
    prop_oneof![
        text().prop_map(|path| (OpCode::Create, Response::Path(path))),
        (text(), stat()).prop_map(|(path, stat)| (OpCode::Create2, Response::Create2 { path, stat })),
        stat().prop_map(|stat| (OpCode::SetData, Response::Stat(stat))),
        Just((OpCode::Delete, Response::Empty)),
        Just((OpCode::Check, Response::Checked)),
        (text(), stat()).prop_map(|(path, stat)| (OpCode::CreateTtl, Response::Create2 { path, stat })),
    ]
}

fn response() -> impl Strategy<Value = (OpCode, Response)> {
    let result = prop_oneof![
        operation_response().prop_map(|(_, response)| MultiResult::Ok(response)),
        any::<i32>().prop_map(|err| MultiResult::Err(Code(err))),
    ];
    let read = prop_oneof![
        (data(), stat()).prop_map(|(data, stat)| MultiResult::Ok(Response::Data { data, stat })),
        texts().prop_map(|children| MultiResult::Ok(Response::Children(children))),
        any::<i32>().prop_map(|err| MultiResult::Err(Code(err))),
    ];
    prop_oneof![
        4 => operation_response(),
        1 => (acl(), stat()).prop_map(|(acl, stat)| (OpCode::GetAcl, Response::Acl { acl, stat })),
        1 => texts().prop_map(|paths| (OpCode::GetEphemerals, Response::Paths(paths))),
        1 => any::<i32>().prop_map(|count| (OpCode::CountDescendants, Response::AllChildrenNumber(count))),
        1 => vec((text(), text()).prop_map(|(scheme, id)| Identity { scheme, id }), 0..4)
            .prop_map(|identities| (OpCode::WhoAmI, Response::Identities(identities))),
        1 => data().prop_map(|token| (OpCode::Sasl, Response::SaslToken(token))),
        2 => vec(read, 0..4).prop_map(|results| (OpCode::MultiRead, Response::Multi(results))),
        1 => (data(), stat()).prop_map(|(data, stat)| (OpCode::GetData, Response::Data { data, stat })),
        1 => texts().prop_map(|children| (OpCode::GetChildren, Response::Children(children))),
        1 => (texts(), stat())
            .prop_map(|(children, stat)| (OpCode::GetChildren2, Response::Children2 { children, stat })),
        2 => vec(result, 0..4).prop_map(|results| (OpCode::Multi, Response::Multi(results))),
    ]
}

fn event() -> impl Strategy<Value = WatchEvent> {
    (select(EventKind::ALL), any::<i32>(), text()).prop_map(|(kind, state, path)| WatchEvent { kind, state, path })
}
