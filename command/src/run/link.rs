//! The messages between the wrapper and the guardian, on a pair of connected sockets. Each message is one packet. The
//! environment of the command, which can be longer than a packet, is in a file in memory that both processes have.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::policy::Limits;
use crate::clock::BootTime;

/// A message from the wrapper to the guardian.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Starts the command with additional environment variables. The lock is certainly held until the given time.
    Start { limits: Limits, safe_until: BootTime, environment: Vec<(String, OsString)> },
    /// The lock is certainly held until this time.
    Renew(BootTime),
    /// Sends a signal to the command.
    Signal(i32),
    /// Ends the tree with TERM, and after the grace period with KILL.
    End,
    /// Ends the tree with KILL.
    Kill,
    /// Stops all processes of the tree.
    Stop,
    /// Continues all processes of the tree.
    Continue,
    /// Makes the status descriptor of the command readable, because the lock is lost or uncertain.
    ReportLoss,
}

/// A message from the guardian to the wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs with this process id.
    Started(i32),
    /// The command could not be started, with this error number.
    NotStarted(i32),
    /// The guardian has begun to end the tree, because the wrapper did not renew the lease in time.
    LeaseOver,
    /// The command has ended.
    Exited(Ending),
    /// The guardian has nothing left to do. When the command ended, it left `left_behind` processes behind, and
    /// `survivors` did not end after KILL.
    Gone { left_behind: u32, survivors: u32 },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The process ended with this exit code.
    Code(u8),
    /// This signal ended the process.
    Signal(i32),
}

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    /// The environment of the command. The wrapper writes it before it sends `Start`.
    environment: File,
}

impl Link {
    /// Makes both ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let environment = File::from(memfd_create("zklock-environment", MemfdFlags::CLOEXEC)?);
        let shared = environment.try_clone()?;
        Ok((Self { socket: one, environment }, Self { socket: other, environment: shared }))
    }

    /// Sends an order. An order that does not fit into the socket because the guardian is stopped is lost.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        if let Order::Start { environment, .. } = order {
            let variables =
                environment.iter().flat_map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"]);
            self.environment.write_all_at(&variables.collect::<Vec<_>>().concat(), 0)?;
        }
        self.send(order.encode())
    }

    pub(crate) fn report(&self, report: Report) -> io::Result<()> {
        self.send(report.encode())
    }

    /// Receives an order that has arrived. Returns an error with the kind `UnexpectedEof` if the other end is closed,
    /// and `WouldBlock` if no order has arrived.
    pub(crate) fn receive_order(&self) -> io::Result<Order> {
        let mut order = Order::decode(self.receive()?).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        if let Order::Start { environment, .. } = &mut order {
            let mut variables = vec![0; usize::try_from(self.environment.metadata()?.len()).unwrap_or(usize::MAX)];
            self.environment.read_exact_at(&mut variables, 0)?;
            *environment = variables.split(|&byte| byte == 0).filter_map(variable).collect();
        }
        Ok(order)
    }

    /// Receives a report that has arrived, with the same errors as [`receive_order`](Self::receive_order).
    pub(crate) fn receive_report(&self) -> io::Result<Report> {
        Report::decode(self.receive()?).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    fn send(&self, packet: Packet) -> io::Result<()> {
        let bytes = packet.map(u64::to_ne_bytes);
        match send(&self.socket, bytes.as_flattened(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&self) -> io::Result<Packet> {
        let mut packet = [[0; 8]; 6];
        let length = loop {
            match recv(&self.socket, packet.as_flattened_mut(), RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                // The other end was closed before it had read everything. The kernel reports this once, before the
                // packets that arrived.
                Err(Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if length == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(packet.map(u64::from_ne_bytes)) }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A packet: the number of the message, and its fields. The fields that a message does not use are 0.
type Packet = [u64; 6];

impl Order {
    fn encode(&self) -> Packet {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        match self {
            Self::Start { limits: Limits { grace, loss_grace, reserve, enforce }, safe_until, .. } => {
                let [grace, loss_grace, reserve] = [*grace, *loss_grace, *reserve].map(nanos);
                [1, grace, loss_grace, reserve, safe_until.as_nanos(), u64::from(*enforce)]
            }
            Self::Renew(until) => [2, until.as_nanos(), 0, 0, 0, 0],
            Self::Signal(signal) => [3, u64::from(signal.cast_unsigned()), 0, 0, 0, 0],
            Self::End => [4, 0, 0, 0, 0, 0],
            Self::Kill => [5, 0, 0, 0, 0, 0],
            Self::Stop => [6, 0, 0, 0, 0, 0],
            Self::Continue => [7, 0, 0, 0, 0, 0],
            Self::ReportLoss => [8, 0, 0, 0, 0, 0],
        }
    }

    fn decode(packet: Packet) -> Option<Self> {
        Some(match packet {
            [1, grace, loss_grace, reserve, safe_until, enforce] => {
                let [grace, loss_grace, reserve] = [grace, loss_grace, reserve].map(Duration::from_nanos);
                let limits = Limits { grace, loss_grace, reserve, enforce: enforce != 0 };
                Self::Start { limits, safe_until: BootTime::from_nanos(safe_until), environment: Vec::new() }
            }
            [2, until, ..] => Self::Renew(BootTime::from_nanos(until)),
            [3, signal, ..] => Self::Signal(number(signal)?.cast_signed()),
            [4, ..] => Self::End,
            [5, ..] => Self::Kill,
            [6, ..] => Self::Stop,
            [7, ..] => Self::Continue,
            [8, ..] => Self::ReportLoss,
            _ => return None,
        })
    }
}

impl Report {
    fn encode(self) -> Packet {
        let (tag, first, second) = match self {
            Self::Started(pid) => (1, pid.cast_unsigned(), 0),
            Self::NotStarted(error) => (2, error.cast_unsigned(), 0),
            Self::LeaseOver => (3, 0, 0),
            Self::Exited(Ending::Code(code)) => (4, u32::from(code), 0),
            Self::Exited(Ending::Signal(signal)) => (5, signal.cast_unsigned(), 0),
            Self::Gone { left_behind, survivors } => (6, left_behind, survivors),
        };
        [tag, u64::from(first), u64::from(second), 0, 0, 0]
    }

    fn decode([tag, first, second, ..]: Packet) -> Option<Self> {
        let (first, second) = (number(first)?, number(second)?);
        Some(match tag {
            1 => Self::Started(first.cast_signed()),
            2 => Self::NotStarted(first.cast_signed()),
            3 => Self::LeaseOver,
            4 => Self::Exited(Ending::Code(u8::try_from(first).ok()?)),
            5 => Self::Exited(Ending::Signal(first.cast_signed())),
            6 => Self::Gone { left_behind: first, survivors: second },
            _ => return None,
        })
    }
}

fn number(field: u64) -> Option<u32> {
    u32::try_from(field).ok()
}

/// Splits `name=value`.
fn variable(bytes: &[u8]) -> Option<(String, OsString)> {
    let equals = bytes.iter().position(|&byte| byte == b'=')?;
    let (name, value) = bytes.split_at_checked(equals)?;
    Some((String::from_utf8(name.to_vec()).ok()?, OsString::from_vec(value.get(1..)?.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn each_message_arrives_as_it_was_sent() {
        let (wrapper, guardian) = Link::pair().unwrap();
        let (grace, loss_grace) = (Duration::from_millis(1), Duration::from_millis(2));
        let limits = Limits { grace, loss_grace, reserve: Duration::ZERO, enforce: true };
        let until = BootTime::from_nanos(7);
        let environment = vec![("ONE".to_owned(), OsString::from("=")), ("TWO".to_owned(), "2".repeat(500_000).into())];
        let orders = [
            Order::Start { limits, safe_until: until, environment },
            Order::Renew(until),
            Order::Signal(15),
            Order::End,
            Order::Kill,
            Order::Stop,
            Order::Continue,
            Order::ReportLoss,
        ];
        for order in orders {
            wrapper.order(&order).unwrap();
            assert_eq!(guardian.receive_order().unwrap(), order);
        }
        let gone = Report::Gone { left_behind: 2, survivors: u32::MAX };
        let ends = [Report::Exited(Ending::Code(255)), Report::Exited(Ending::Signal(9))];
        for report in [Report::Started(5), Report::NotStarted(2), Report::LeaseOver, gone].into_iter().chain(ends) {
            guardian.report(report).unwrap();
            assert_eq!(wrapper.receive_report().unwrap(), report);
        }
    }

    #[test]
    fn a_closed_link_and_a_quiet_one_differ() {
        let (wrapper, guardian) = Link::pair().unwrap();
        assert_eq!(guardian.receive_order().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(wrapper);
        // A child process that another test starts has a copy of the other end until it executes its program.
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        poll(&mut [PollFd::new(&guardian, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(guardian.receive_order().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
