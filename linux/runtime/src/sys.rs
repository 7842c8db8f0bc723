//! The papers' system calls in two forms: `read!(fd, buffer)` and `read!(fd, buffer, cid)`.
//!
//! SharedScheduler (section 4.3.1, "User Space Modification") gives a call one name and two forms.
//! Without a coroutine id it is synchronous: it blocks the thread, like the call in section 2 of
//! the manual. With one it is asynchronous: the operation is started at once on the vCPU's ring, at
//! the caller's priority, and when it is over the coroutine `cid` is woken. It is also a future of
//! the same result, for a caller that awaits it.
//!
//! | call | result |
//! |---|---|
//! | [`read!`](macro@read), [`write!`](macro@write) of a descriptor and a buffer | count, buffer |
//! | [`recv!`](macro@recv), [`send!`](macro@send) of a socket and a buffer | count, buffer |
//! | [`accept!`](macro@accept) of a listening socket | descriptor of the connection |
//! | [`connect!`](macro@connect) of a socket and an [`Address`] | |
//! | [`fsync!`](macro@fsync) of a file | |
//! | [`openat!`](macro@openat) of a directory, path, flags and mode | descriptor of the file |
//!
//! Each macro stands for two functions, as `read!` for [`read_blocking`] and [`read_async`]; one
//! declaration makes all three. A buffer is owned by the call in both forms and comes back with the
//! result: `(io::Result<usize>, B)`. Descriptors are borrowed for the length of the macro: an
//! asynchronous call has a duplicate of its own, which stays open until it is over.
//!
//! The blocking form repeats a call that a signal interrupts.
//!
//! ```
//! use std::fs::File;
//! use upshift::{get_cid, sys::{read, write}};
//!
//! # let path = std::env::temp_dir().join(format!("upshift-sys-{}", std::process::id()));
//! # let work = async {
//! let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
//! let (written, _) = write!(&file, b"four".as_slice());          // blocks
//! assert_eq!(written?, 4);
//! # use std::io::Seek; (&file).rewind()?;
//! let cid = get_cid().expect("in a coroutine");
//! let (count, buffer) = read!(&file, vec![0; 8], cid).await;      // does not
//! assert_eq!(&buffer[..count?], b"four");
//! # std::fs::remove_file(&path)?;
//! # std::io::Result::Ok(())
//! # };
//! # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(work).unwrap();
//! ```
//!
//! A server that answers once; `examples/two_forms.rs` is a longer one.
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//! use upshift::sys::{accept, recv, send};
//!
//! #[upshift::main]
//! async fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let cid = upshift::get_cid().expect("in a coroutine");
//!     let connection = accept!(&listener, cid);                   // started
//!     let client = TcpStream::connect(listener.local_addr()?)?;
//!     let (sent, _) = send!(&client, "question");                 // blocks
//!     let (count, buffer) = recv!(&connection.await?, vec![0; 64], cid).await;
//!     assert_eq!(&buffer[..count?], b"question");
//!     assert_eq!(sent?, 8);
//!     Ok(())
//! }
//! ```

use std::ffi::{CString, c_int, c_void};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use upshift_core::CoroutineId;
use upshift_macros::async_fn;
pub use upshift_ring::Address;
use upshift_ring::{Fd, IoBuf, IoBufMut, Operation, Submission, op};

use crate::context;
use crate::host;
use crate::runtime::handle::Handle;
use crate::sync::{Lock, LockSafeWaker, register, wake};

/// Has the allocator give back to the kernel what is free in its heaps, if it is glibc's, which
/// keeps what lies between blocks in use. Takes some 0.1 ms for each MiB that goes back, while
/// other threads that allocate may have to wait: for the moment after much has been freed, in
/// [`spawn_blocking`](crate::spawn_blocking).
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The position of the file itself.
const OWN_POSITION: u64 = u64::MAX;

/// Reads from a descriptor (`read(2)`), at the file's own position, into a buffer from its first
/// byte on.
///
/// 0 bytes: the end of the file.
#[async_fn(AsyncCall<op::ReadAt<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, |fd, buffer| {
    op::ReadAt::new(fd, buffer, OWN_POSITION)
}))]
pub fn read_blocking<B: IoBufMut + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the buffer is valid for its capacity.
    fill(buffer, |start, room| unsafe { libc::read(fd, start, room) })
}

/// Writes to a descriptor (`write(2)`), at the file's own position.
///
/// Fewer bytes than the buffer has may be written.
#[async_fn(AsyncCall<op::WriteAt<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, |fd, buffer| {
    op::WriteAt::new(fd, buffer, OWN_POSITION)
}))]
pub fn write_blocking<B: IoBuf + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the buffer is valid for its length.
    take(buffer, |start, len| unsafe { libc::write(fd, start, len) })
}

/// Receives from a connected socket (`recv(2)`), into a buffer from its first byte on.
///
/// 0 bytes: the peer has finished.
#[async_fn(AsyncCall<op::Recv<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, op::Recv::new))]
pub fn recv_blocking<B: IoBufMut + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    fill(buffer, |start, room| {
        // SAFETY: the buffer is valid for its capacity.
        unsafe { libc::recv(fd, start, room, 0) }
    })
}

/// Sends to a connected socket (`send(2)`), without SIGPIPE.
///
/// Fewer bytes than the buffer has may be sent.
#[async_fn(AsyncCall<op::Send<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, op::Send::new))]
pub fn send_blocking<B: IoBuf + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    take(buffer, |start, len| {
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::send(fd, start, len, libc::MSG_NOSIGNAL) }
    })
}

/// Accepts a connection at a listening socket (`accept4(2)`); its descriptor is close-on-exec.
///
/// Also waits if the listening socket is non-blocking, which the asynchronous form makes it where
/// there is no io_uring.
///
/// ```
/// # use upshift::sys::{accept, connect, openat};
/// # use std::net::{TcpListener, TcpStream};
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let _client = TcpStream::connect(listener.local_addr()?)?;
/// let connection = TcpStream::from(accept!(&listener)?);
/// assert_eq!(connection.local_addr()?, listener.local_addr()?);
/// # std::io::Result::Ok(())
/// ```
#[async_fn(AsyncCall<op::Accept, io::Result<OwnedFd>> = without_buffer(|| Ok(op::Accept::new(duplicate(fd)?))))]
pub fn accept_blocking(fd: impl AsFd) -> io::Result<OwnedFd> {
    let fd = fd.as_fd().as_raw_fd();
    loop {
        // SAFETY: no address is asked for.
        let accepted = repeat(|| unsafe {
            let none = std::ptr::null_mut();
            libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC) as isize
        });
        match accepted {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_readable(fd)?,
            // SAFETY: the kernel made this descriptor for us, and it is known here only.
            accepted => return accepted.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as c_int) }),
        }
    }
}

/// Connects a socket (`connect(2)`) to an address of its own family.
#[async_fn(AsyncCall<op::Connect, io::Result<()>> = without_buffer(|| {
    Ok(op::Connect::new(duplicate(fd)?, address))
}))]
pub fn connect_blocking(fd: impl AsFd, address: impl Into<Address>) -> io::Result<()> {
    let (fd, address) = (fd.as_fd().as_raw_fd(), address.into());
    let mut is_interrupted = false;
    loop {
        // SAFETY: the address is valid for its length.
        let connected =
            count_of(unsafe { libc::connect(fd, address.as_ptr(), address.len()) as isize });
        match connected.map_err(|error| (error.raw_os_error(), error)) {
            Err((Some(libc::EINTR), _)) => is_interrupted = true,
            // The interrupted call has gone on.
            Err((Some(libc::EISCONN), _)) if is_interrupted => return Ok(()),
            connected => return connected.map(drop).map_err(|(_, error)| error),
        }
    }
}

/// Writes data and attributes of a file to the device (`fsync(2)`).
#[async_fn(AsyncCall<op::Fsync, io::Result<()>> = without_buffer(|| Ok(op::Fsync::new(duplicate(fd)?))))]
pub fn fsync_blocking(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: no pointers involved.
    repeat(|| unsafe { libc::fsync(fd) as isize }).map(drop)
}

/// Opens a file (`openat(2)`), by a path that is relative to a directory or, with `None`, to the
/// working directory; its descriptor is close-on-exec.
///
/// `flags` are those of `libc`, as `libc::O_RDONLY`; `mode` is for a file that is created.
///
/// # Errors
/// Those of the call; `InvalidInput` for a path with a NUL byte.
///
/// ```
/// # use upshift::sys::openat;
/// # const O_RDONLY: i32 = 0;
/// let file = std::fs::File::from(openat!(None, "/proc/self/stat", O_RDONLY, 0)?);
/// assert!(file.metadata()?.is_file());
/// # std::io::Result::Ok(())
/// ```
#[async_fn(AsyncCall<op::OpenAt, io::Result<OwnedFd>> = without_buffer(|| {
    op::OpenAt::new(directory.map(duplicate).transpose()?, path, flags, mode)
}))]
pub fn openat_blocking(
    directory: Option<BorrowedFd<'_>>,
    path: impl AsRef<Path>,
    flags: i32,
    mode: u32,
) -> io::Result<OwnedFd> {
    let directory = directory.map_or(libc::AT_FDCWD, |directory| directory.as_raw_fd());
    let path = CString::new(path.as_ref().as_os_str().as_bytes())?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL.
    let opened = repeat(|| unsafe { libc::openat(directory, path.as_ptr(), flags, mode) as isize });
    // SAFETY: the kernel made this descriptor for us, and it is known here only.
    opened.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// The result of a system call of `libc`.
fn count_of(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Makes a system call, and again as long as a signal interrupts it.
fn repeat(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = count_of(call());
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            return result;
        }
    }
}

/// Makes a call that fills a buffer: given its first byte and its capacity, it returns how many
/// bytes it has written from there on.
fn fill<B: IoBufMut>(
    mut buffer: B,
    call: impl Fn(*mut c_void, usize) -> isize,
) -> (io::Result<usize>, B) {
    let result = repeat(|| call(buffer.io_mut_ptr().cast(), buffer.io_capacity()));
    if let Ok(count) = result {
        // SAFETY: the kernel has written so many bytes from the first one on.
        unsafe { buffer.set_filled(count) };
    }
    (result, buffer)
}

/// Makes a call that takes bytes out of a buffer: given its first byte and its length.
fn take<B: IoBuf>(
    buffer: B,
    call: impl Fn(*const c_void, usize) -> isize,
) -> (io::Result<usize>, B) {
    let result = repeat(|| call(buffer.io_ptr().cast(), buffer.io_len()));
    (result, buffer)
}

/// Waits until a descriptor is readable.
fn wait_readable(fd: c_int) -> io::Result<()> {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, a local.
    repeat(|| unsafe { libc::poll(&raw mut asked, 1, -1) as isize }).map(drop)
}

/// An operation that can be started, with the runtime of the caller; or the output of a call that
/// cannot be made.
type Prepared<T> = Result<(Handle, T), <T as Operation>::Output>;

/// The runtime whose vCPU the calling thread serves. Not one that the thread belongs to otherwise:
/// there it has no ring.
fn runtime() -> io::Result<Handle> {
    let shared = context::try_with(|worker| worker.shared().clone())?;
    Ok(Handle { shared })
}

fn duplicate(fd: impl AsFd) -> io::Result<Fd> {
    fd.as_fd().try_clone_to_owned().map(Fd::new)
}

/// Prepares an operation on a duplicate of a descriptor. The buffer comes back with an error.
fn with_buffer<T, B>(fd: impl AsFd, buffer: B, make: impl FnOnce(Fd, B) -> T) -> Prepared<T>
where
    T: Operation<Output = (io::Result<usize>, B)>,
{
    match runtime().and_then(|runtime| Ok((runtime, duplicate(fd)?))) {
        Ok((runtime, fd)) => Ok((runtime, make(fd, buffer))),
        Err(error) => Err((Err(error), buffer)),
    }
}

/// Prepares an operation that owns no buffer.
fn without_buffer<T, R>(make: impl FnOnce() -> io::Result<T>) -> Prepared<T>
where
    T: Operation<Output = io::Result<R>>,
{
    runtime()
        .and_then(|runtime| Ok((runtime, make()?)))
        .map_err(Err)
}

/// An asynchronous system call in flight, and the future of its result.
///
/// The name is that of the papers. The coroutine whose id was given to the call is woken when it is
/// over, and so is a coroutine that awaits it. Dropping it cancels the call; the buffer is freed
/// when the kernel is done with it.
#[must_use = "dropping the call cancels it"]
pub struct AsyncCall<T, O> {
    // No bound on `T`, as in `Submission`: with a bound, a coroutine that holds a call with a
    // `&'static` buffer is refused as not `Send`.
    call: Call<T, O>,
    notify: Option<Arc<Notify>>,
}

enum Call<T, O> {
    UnderWay(Submission<T>),
    /// Done before it was asked for, or never started.
    Done(Option<O>),
}

impl<T: Operation<Output = O>, O> AsyncCall<T, O> {
    fn start(prepared: Prepared<T>, cid: CoroutineId) -> AsyncCall<T, O> {
        let (handle, operation) = match prepared {
            Ok(prepared) => prepared,
            Err(output) => {
                return AsyncCall {
                    call: Call::Done(Some(output)),
                    notify: None,
                };
            }
        };
        let started = context::with(|worker| worker.start(operation));
        let Some(mut submission) = started else {
            unreachable!("there was a worker, and a coroutine keeps its thread within a poll");
        };
        let notify = Arc::new(Notify {
            handle,
            cid,
            other: Lock::new(None),
        });
        // Polled once here, so that the completion wakes `cid` even if nothing
        // awaits the call.
        let waker = Waker::from(notify.clone());
        let call = match Pin::new(&mut submission).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Call::UnderWay(submission),
            Poll::Ready(result) => Call::Done(Some(result)),
        };
        AsyncCall {
            call,
            notify: Some(notify),
        }
    }
}

impl<T: Operation<Output = O>, O: Unpin> Future for AsyncCall<T, O> {
    type Output = O;

    /// # Panics
    /// If polled again after it has returned the result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match &mut this.call {
            Call::Done(result) => Poll::Ready(result.take().expect("not polled after its result")),
            Call::UnderWay(submission) => {
                let Some(notify) = &this.notify else {
                    return Pin::new(submission).poll(cx);
                };
                if host::current_id() != Some(notify.cid) {
                    // Another coroutine awaits it: both are to be woken.
                    let mut other = LockSafeWaker::new(cx.waker());
                    let before = register(&mut notify.other.lock(), &mut other);
                    // Code of users, perhaps: not with the lock held.
                    drop(before);
                }
                let waker = Waker::from(notify.clone());
                Pin::new(submission).poll(&mut Context::from_waker(&waker))
            }
        }
    }
}

/// Wakes a coroutine by its id, and one that awaits the call besides.
struct Notify {
    handle: Handle,
    cid: CoroutineId,
    other: Lock<Option<Waker>>,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        // A coroutine that has exited has no need to know.
        let _ = self.handle.wake(self.cid);
        let other = self.other.lock().take();
        if let Some(other) = other {
            wake(other);
        }
    }
}
