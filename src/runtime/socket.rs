//! Sockets that check their descriptor before each use, to detect whether the program has closed it. No method of these
//! sockets blocks.
//!
//! Some programs, for example daemons, close all descriptors of the process, including the descriptors of the library.
//! If the program then opens files, the kernel may reuse the library's descriptor numbers for them. Before each use of
//! a descriptor, the library therefore checks that the descriptor still refers to the library's own file. In addition,
//! every socket call passes a flag that forbids blocking. The kernel refuses such a call if the file is not a socket.
//! The program can still close the descriptor after the check and before the call. This period is shorter than a
//! microsecond.

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};

/// A socket that belongs to the library. Dropping this value closes the socket, unless its descriptor number now names
/// another file.
#[derive(Debug)]
pub(super) struct CheckedSocket<T: AsRawFd> {
    inner: ManuallyDrop<T>,
    file: FileIdentity,
}

/// Identifies a file of the machine. Each socket has its own inode number. All eventfd and epoll files share one inode
/// number, so this value does not distinguish one such file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl<T: AsRawFd> CheckedSocket<T> {
    pub(super) fn new(inner: T) -> io::Result<Self> {
        // If the program has already closed the socket, its descriptor number may now refer to another file. Dropping
        // this value must not close another file.
        let inner = ManuallyDrop::new(inner);
        let file = FileIdentity::of(inner.as_raw_fd())?;
        Ok(Self { inner, file })
    }

    pub(super) fn is_ours(&self) -> bool {
        FileIdentity::of(self.as_raw_fd()).is_ok_and(|file| file == self.file)
    }

    /// Returns the socket, which the caller must use immediately. Fails if the socket's number now refers to another
    /// file.
    pub(super) fn checked(&mut self) -> io::Result<&mut T> {
        if self.is_ours() { Ok(&mut self.inner) } else { Err(socket_closed_error()) }
    }

    /// Returns the socket without a check, for callers that have just verified that the socket belongs to the library.
    pub(super) fn unchecked(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Sends as many bytes as the socket has room for. Errors: `WouldBlock` if the socket has no room; another error if
    /// the number no longer names this socket.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `bytes` is valid for `bytes.len()` bytes.
        self.call(|socket| unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    /// Receives bytes into `buffer`. Errors: `WouldBlock` if no bytes have arrived; another error if the descriptor
    /// number no longer refers to this socket.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `buffer` is valid for `buffer.len()` bytes.
        self.call(|socket| unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) })
    }

    fn call(&self, call: impl FnOnce(RawFd) -> isize) -> io::Result<usize> {
        if !self.is_ours() {
            return Err(socket_closed_error());
        }
        usize::try_from(call(self.as_raw_fd())).map_err(|_| io::Error::last_os_error())
    }
}

impl<T: AsRawFd> AsRawFd for CheckedSocket<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl<T: AsRawFd> Drop for CheckedSocket<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the value is dropped only here, and is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl FileIdentity {
    fn of(number: RawFd) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` has room for the answer.
        if unsafe { libc::fstat(number, stat.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fstat` has succeeded, so it has initialized `stat`.
        let stat = unsafe { stat.assume_init() };
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

fn socket_closed_error() -> io::Error {
    io::Error::other("another part of the program has closed the descriptor of this connection")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Replaces the socket with another file that has the same descriptor number. The same happens when a program
    /// closes the library's descriptors and then opens files.
    fn replace(number: RawFd, file: impl AsRawFd) -> OwnedFd {
        // SAFETY: the test deliberately replaces the file that the descriptor number refers to.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        // SAFETY: the number names a new file, which has no other owner.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    #[test]
    fn descriptor_reused_by_file_is_neither_written_nor_closed() {
        let path = std::env::temp_dir().join(format!("zklock-socket-{}", std::process::id()));
        let (one, _other) = UnixStream::pair().unwrap();
        let socket = CheckedSocket::new(one).unwrap();
        let stranger = replace(socket.as_raw_fd(), fs::File::create(&path).unwrap());
        assert!(!socket.is_ours());
        socket.send(b"frame").unwrap_err();
        socket.receive(&mut [0; 8]).unwrap_err();
        drop(socket);
        assert_eq!(fs::read(&path).unwrap(), b"");
        drop(stranger);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn descriptor_reused_by_socket_is_neither_used_nor_closed() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (strange, far) = UnixStream::pair().unwrap();
        let mut socket = CheckedSocket::new(one).unwrap();
        assert_eq!(socket.send(b"frame").unwrap(), 5);
        let number = socket.as_raw_fd();
        let stranger = replace(number, strange);
        socket.send(b"frame").unwrap_err();
        socket.checked().unwrap_err();
        let far = CheckedSocket::new(far).unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        far.send(b"reply").unwrap();
        socket.receive(&mut [0; 8]).unwrap_err();
        drop(socket);
        // The test's other socket is still open, and has received the reply.
        let stranger = CheckedSocket::new(UnixStream::from(stranger)).unwrap();
        assert_eq!(stranger.receive(&mut [0; 8]).unwrap(), 5);
    }

    #[test]
    fn drop_closes_own_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = CheckedSocket::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let far = CheckedSocket::new(listener.accept().unwrap().0).unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(socket);
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), 0);
    }
}
