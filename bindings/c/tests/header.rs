//! The committed header must match the header that is generated from the crate. `ZKL_BLESS=1` writes it again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod drift;
mod flat;
mod prototypes;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use drift::Section;
use prototypes::{Function, Kind, Returns};
use zklock::Status;

/// Returns the sections of the header. The introductions of the sections are in the header and in the C reference.
fn sections() -> Vec<Section> {
    let section = |title, introduction, sources| Section { title, introduction, sources, macros: String::new() };
    vec![
        Section {
            macros: version() + &statuses(),
            ..section(
                "Statuses",
                "Every call that can fail returns a status, and stores a message that describes the failure.",
                &["status"],
            )
        },
        section(
            "Configuration",
            "A program makes a config, sets its options, and can use it for any number of clients.",
            &["callback", "config"],
        ),
        section(
            "Clients",
            "A client is one ZooKeeper session. All locks and threads of a program can share it.",
            &["client"],
        ),
        section(
            "Locks",
            "All kinds of locks have the same handle type. The page docs/choosing.md compares them.",
            &["lock_object", "lock"],
        ),
        Section {
            macros: OWNER_THREAD.to_owned(),
            ..section(
                "Holds",
                "An acquire of a lock or of leases gives a hold. Any thread may use and release it.",
                &["hold"],
            )
        },
        section("Fencing", "Numbers with which a store can reject late writes. See docs/fencing.md.", &["fencing"]),
        section("Semaphores", "A limited number of leases. One call can acquire one or more of them.", &["semaphore"]),
        section("Runs", "A job that many programs start, and that one of them runs in each period.", &["run"]),
        section(
            "Participants and waits",
            "Queries for tools and messages: the participants of a lock, and what a call waits for.",
            &["participant", "waiting"],
        ),
        section(
            "Operations",
            "Calls that do not block a thread, for event loops, and holds of owners that are not threads. The page\n\
             docs/embedding.md shows an event loop.",
            &["op", "completion_queue", "start"],
        ),
        section(
            "Events",
            "Changes of sessions and holds are reported on the event thread, or when the program polls for them.",
            &["event", "listener", "dispatch"],
        ),
        section(
            "Revocation",
            "Requesting that a holder releases its lock, and reacting to such a request.",
            &["revocation"],
        ),
        section(
            "Metrics and logs",
            "The metrics of a client and the log of the library. The page docs/observability.md explains both.",
            &["metrics", "log"],
        ),
    ]
}

/// The attribute of functions whose result tells the program whether it acquired something.
const NODISCARD: &str = "
/* Makes the compiler warn if a program ignores a result. A program may define this macro as empty. */
#ifndef ZKL_NODISCARD
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define ZKL_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define ZKL_NODISCARD __attribute__((__warn_unused_result__))
#else
#define ZKL_NODISCARD
#endif
#endif
";

/// cbindgen cannot express the largest number of a type.
const OWNER_THREAD: &str = "
/** The calling thread as an owner. A program can choose every other number, except ZKL_OWNER_NEW, for a task or a request. */
#define ZKL_OWNER_THREAD UINT64_MAX
";

#[test]
fn the_headers_are_up_to_date() {
    drift::check("zklock.h", NODISCARD, &sections());
    drift::compare("zklock_ffi.h", &flat::make(&header()));
}

/// A caller can always distinguish a value from an error, and knows which parameters a call writes to.
#[test]
fn functions_return_a_value_or_a_status_and_output_parameters_come_last() {
    for function in functions() {
        let is_output = |kind: &Kind| {
            matches!(
                kind,
                Kind::HandleOut(_)
                    | Kind::NumberOut
                    | Kind::StructOut
                    | Kind::SizedStructOut
                    | Kind::Buffer
                    | Kind::Array
            )
        };
        let mut parameters =
            function.parameters.iter().map(|parameter| &parameter.kind).skip_while(|kind| !is_output(kind));
        // A buffer or an array and its size belong together.
        assert!(
            parameters.all(|kind| is_output(kind) || *kind == Kind::Count),
            "{}: what goes in comes after what goes out",
            function.name
        );
        let named = function.parameters.iter().all(|parameter| {
            parameter.name.ends_with("_out")
                == (is_output(&parameter.kind) && !matches!(parameter.kind, Kind::Buffer | Kind::Array))
        });
        assert!(named, "{}: exactly the outputs have names that end with _out", function.name);
        if function.returns == Returns::Answer {
            // States and descriptors are never negative, and a program does not use them as conditions.
            let is_state_or_descriptor = ["_state", "_state_in_process", "_fd"];
            assert!(is_state_or_descriptor.iter().any(|end| function.name.ends_with(end)), "{}", function.name);
        }
    }
}

/// A program that ignores such a result may hold a lock without knowing it.
#[test]
fn every_function_that_acquires_or_creates_warns_of_an_unused_result() {
    let checked: BTreeSet<String> =
        functions().into_iter().filter(|function| function.is_checked).map(|function| function.name).collect();
    let expected = |name: &str| {
        ["_new", "_acquire", "_start", "_listen"].iter().any(|part| name.contains(part)) && !name.ends_with("_free")
            || ["zkl_op_hold", "zkl_op_client", "zkl_op_semaphore", "zkl_op_run", "zkl_hold_begin_run"].contains(&name)
    };
    let all: BTreeSet<String> =
        functions().into_iter().map(|function| function.name).filter(|name| expected(name)).collect();
    assert!(all.len() > 12 && checked == all, "{checked:?}, not {all:?}");
}

fn functions() -> Vec<Function> {
    prototypes::read(&header())
}

fn header() -> String {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/zklock.h");
    std::fs::read_to_string(header).unwrap()
}

/// The states of clients and the states of locks have no number in common.
#[test]
fn lock_states_and_client_states_share_no_number() {
    let header = header();
    let numbers = |prefix: &str| -> BTreeSet<i32> {
        let defines = header.lines().filter_map(|line| line.strip_prefix("#define ")?.strip_prefix(prefix));
        defines.map(|line| line.split_once(' ').unwrap().1.parse().unwrap()).collect()
    };
    let (clients, locks) = (numbers("ZKL_STATE_"), numbers("ZKL_LOCK_"));
    assert_eq!((clients.len(), locks.len()), (5, 5));
    assert!(clients.is_disjoint(&locks), "{clients:?} and {locks:?}");
}

/// The version as macros, for a program that can be compiled with several versions.
fn version() -> String {
    let mut macros = format!(
        "\n/** The version of this header. zkl_version() reports the version of the library that the program uses at run time. */\n#define ZKL_VERSION \"{}\"\n",
        env!("CARGO_PKG_VERSION")
    );
    let numbers = [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    for (name, number) in numbers {
        writeln!(macros, "#define ZKL_VERSION_{name} {number}").unwrap();
    }
    let [major, minor, patch] = numbers.map(|(_, number)| number.parse::<i32>().unwrap());
    let number = 10_000 * major + 100 * minor + patch;
    writeln!(
        macros,
        "/** The version of this header as a number: 10000 * major + 100 * minor + patch. zkl_version_number() reports the library's version number. */"
    )
    .unwrap();
    writeln!(macros, "#define ZKL_VERSION_NUMBER {number}").unwrap();
    macros
}

/// The statuses as macros, from the table in the core.
fn statuses() -> String {
    let mut macros = String::from("\n/** Success. */\n#define ZKL_OK 0\n");
    for status in Status::ALL {
        writeln!(macros, "\n/** {}. */\n#define {} ({})", capitalized(status.text()), status.name(), status.number())
            .unwrap();
    }
    macros
}

fn capitalized(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}
