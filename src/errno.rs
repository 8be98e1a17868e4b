//! Checks at compile time that the core and the C library of the target agree on the numbers of `errno`.

macro_rules! assert_same {
    ($($name:ident)+) => {
        $(const _: () = assert!(zklock_core::errno::$name == libc::$name, concat!(stringify!($name), " has another number here"));)+
    };
}

assert_same! {
    EPERM EIO EBADF ECHILD EACCES EBUSY EINVAL ERANGE EDEADLK EOVERFLOW EOPNOTSUPP ENOTCONN ESHUTDOWN ETIMEDOUT EINPROGRESS ESTALE
    ECANCELED ENOTRECOVERABLE
}
