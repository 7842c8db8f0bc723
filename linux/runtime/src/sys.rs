//! System calls in a blocking and an asynchronous form: `read!(fd, buffer)` and
//! `read!(fd, buffer, cid)`.
//!
//! The paper "SharedScheduler" (section 4.3.1, "User Space Modification") gives a call one name and
//! two forms. Without a coroutine id, the call is synchronous. It blocks the thread, like the call
//! in section 2 of the manual. With a coroutine id, the call is asynchronous. The operation is
//! started at once on the vCPU's ring, at the caller's level, and its completion wakes the
//! coroutine `cid`. The asynchronous form is also a future of the same result, for a caller that
//! awaits the call.
//!
//! | call | result |
//! |---|---|
//! | [`read!`](macro@read), [`write!`](macro@write) of a descriptor and a buffer | count, buffer |
//! | [`recv!`](macro@recv), [`send!`](macro@send) of a socket and a buffer | count, buffer |
//! | [`accept!`](macro@accept) of a listening socket | descriptor of the connection |
//! | [`connect!`](macro@connect) of a socket and an [`Address`] | nothing |
//! | [`fsync!`](macro@fsync) of a file | nothing |
//! | [`openat!`](macro@openat) of a directory, path, flags and mode | descriptor of the file |
//!
//! Each macro stands for two functions: `read!` for [`read_blocking`] and [`read_async`]. One
//! declaration generates all three. The call owns its buffer in both forms and returns it with the
//! result: `(io::Result<usize>, B)`. Descriptors are borrowed only while the macro is evaluated,
//! because an asynchronous call duplicates the descriptor and closes the duplicate when the call
//! has ended.
//!
//! The blocking form retries a call that a signal interrupts. [`trim_heap`] has a blocking form
//! only.
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
//! let (count, buffer) = read!(&file, vec![0; 8], cid).await;      // blocks the coroutine only
//! assert_eq!(&buffer[..count?], b"four");
//! # std::fs::remove_file(&path)?;
//! # std::io::Result::Ok(())
//! # };
//! # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(work).unwrap();
//! ```
//!
//! This server answers one request; `examples/two_forms.rs` is a longer example.
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

/// Returns free memory of glibc's heaps to the kernel (`malloc_trim(3)`); does nothing with another
/// C library.
///
/// By itself, glibc keeps free memory that lies between blocks in use. The call takes about 0.1 ms
/// per MiB returned, during which other threads may block in the allocator. Call it in
/// [`spawn_blocking`](crate::spawn_blocking) after a large amount of memory has been freed.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let large = vec![1u8; 16 << 20];
/// drop(large);
/// upshift::spawn_blocking(upshift::sys::trim_heap).await.unwrap();
/// # });
/// ```
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called by any thread at any time and takes no pointer.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Offset that makes io_uring use the file's current position.
const OWN_POSITION: u64 = u64::MAX;

/// Reads from a descriptor (`read(2)`) at the file's current position. The data starts at the first
/// byte of the buffer.
///
/// The result is 0 at the end of the file.
///
/// ```
/// use std::io::Write;
/// use upshift::sys::read;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (reader, mut writer) = std::io::pipe()?;
/// writer.write_all(b"onetwo")?;
/// let (count, buffer) = read!(&reader, vec![0; 3]); // Blocks the thread.
/// assert_eq!(&buffer[..count?], b"one");
/// let cid = upshift::get_cid().expect("in a coroutine");
/// let (count, buffer) = read!(&reader, vec![0; 3], cid).await; // Blocks the coroutine only.
/// assert_eq!(&buffer[..count?], b"two");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[async_fn(AsyncCall<op::ReadAt<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, |fd, buffer| {
    op::ReadAt::new(fd, buffer, OWN_POSITION)
}))]
pub fn read_blocking<B: IoBufMut + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `start` is valid for writes of `room` bytes, the capacity of the buffer.
    fill(buffer, |start, room| unsafe { libc::read(fd, start, room) })
}

/// Writes to a descriptor (`write(2)`) at the file's current position.
///
/// May write fewer bytes than `buffer` holds.
///
/// ```
/// use std::io::Read;
/// use upshift::sys::write;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (mut reader, writer) = std::io::pipe()?;
/// assert_eq!(write!(&writer, "one").0?, 3); // Blocks the thread.
/// let cid = upshift::get_cid().expect("in a coroutine");
/// assert_eq!(write!(&writer, "two", cid).await.0?, 3); // Blocks the coroutine only.
/// drop(writer);
/// let mut text = String::new();
/// reader.read_to_string(&mut text)?;
/// assert_eq!(text, "onetwo");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[async_fn(AsyncCall<op::WriteAt<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, |fd, buffer| {
    op::WriteAt::new(fd, buffer, OWN_POSITION)
}))]
pub fn write_blocking<B: IoBuf + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `start` is valid for reads of `len` bytes, the length of the buffer.
    drain(buffer, |start, len| unsafe { libc::write(fd, start, len) })
}

/// Receives from a connected socket (`recv(2)`). The data starts at the first byte of the buffer.
///
/// The result is 0 if the peer has shut down its side.
///
/// ```
/// use std::{io::Write, os::unix::net::UnixStream};
/// use upshift::sys::recv;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (mut one, other) = UnixStream::pair()?;
/// one.write_all(b"onetwo")?;
/// let (count, buffer) = recv!(&other, vec![0; 3]); // Blocks the thread.
/// assert_eq!(&buffer[..count?], b"one");
/// let cid = upshift::get_cid().expect("in a coroutine");
/// let (count, buffer) = recv!(&other, vec![0; 3], cid).await; // Blocks the coroutine only.
/// assert_eq!(&buffer[..count?], b"two");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[async_fn(AsyncCall<op::Recv<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, op::Recv::new))]
pub fn recv_blocking<B: IoBufMut + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    fill(buffer, |start, room| {
        // SAFETY: `start` is valid for writes of `room` bytes, the capacity of the buffer.
        unsafe { libc::recv(fd, start, room, 0) }
    })
}

/// Sends to a connected socket (`send(2)`), without SIGPIPE.
///
/// May send fewer bytes than `buffer` holds.
///
/// ```
/// use std::{io::Read, os::unix::net::UnixStream};
/// use upshift::sys::send;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (one, mut other) = UnixStream::pair()?;
/// assert_eq!(send!(&one, "one").0?, 3); // Blocks the thread.
/// let cid = upshift::get_cid().expect("in a coroutine");
/// assert_eq!(send!(&one, "two", cid).await.0?, 3); // Blocks the coroutine only.
/// let mut buffer = [0; 6];
/// other.read_exact(&mut buffer)?;
/// assert_eq!(&buffer, b"onetwo");
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[async_fn(AsyncCall<op::Send<B>, (io::Result<usize>, B)> = with_buffer(fd, buffer, op::Send::new))]
pub fn send_blocking<B: IoBuf + Unpin>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let fd = fd.as_fd().as_raw_fd();
    drain(buffer, |start, len| {
        // SAFETY: `start` is valid for reads of `len` bytes, the length of the buffer.
        unsafe { libc::send(fd, start, len, libc::MSG_NOSIGNAL) }
    })
}

/// Accepts a connection at a listening socket (`accept4(2)`). The descriptor of the connection is
/// close-on-exec.
///
/// Blocks even if the listening socket is non-blocking, because without io_uring, the asynchronous
/// form sets `O_NONBLOCK` on the socket.
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
        // SAFETY: both address pointers are null, so the kernel writes no address.
        let accepted = retry(|| unsafe {
            let none = std::ptr::null_mut();
            libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC) as isize
        });
        match accepted {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_readable(fd)?,
            // SAFETY: the kernel has just created this descriptor; nothing else owns it.
            accepted => return accepted.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as c_int) }),
        }
    }
}

/// Connects a socket (`connect(2)`) to an address of its own family.
///
/// ```
/// use std::net::TcpListener;
/// use std::os::fd::OwnedFd;
/// use upshift::sys::connect;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// # let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
/// let first: OwnedFd = socket()?.into();
/// connect!(&first, address)?; // Blocks the thread.
/// let second: OwnedFd = socket()?.into();
/// let cid = upshift::get_cid().expect("in a coroutine");
/// connect!(&second, address, cid).await?; // Blocks the coroutine only.
/// # let second = std::net::TcpStream::from(second);
/// assert_eq!(second.peer_addr()?, address);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[async_fn(AsyncCall<op::Connect, io::Result<()>> = without_buffer(|| {
    Ok(op::Connect::new(duplicate(fd)?, address))
}))]
pub fn connect_blocking(fd: impl AsFd, address: impl Into<Address>) -> io::Result<()> {
    let (fd, address) = (fd.as_fd().as_raw_fd(), address.into());
    let mut is_interrupted = false;
    loop {
        // SAFETY: `as_ptr` is valid for reads of `len` bytes while `address` lives, which is until
        // the call has ended.
        let connected =
            check(unsafe { libc::connect(fd, address.as_ptr(), address.len()) as isize });
        match connected.map_err(|error| (error.raw_os_error(), error)) {
            Err((Some(libc::EINTR), _)) => is_interrupted = true,
            // The kernel has completed the connection that the interrupted call began.
            Err((Some(libc::EISCONN), _)) if is_interrupted => return Ok(()),
            connected => return connected.map(drop).map_err(|(_, error)| error),
        }
    }
}

/// Flushes data and metadata of a file to the device (`fsync(2)`).
///
/// ```
/// use std::{fs::File, io::Write};
/// use upshift::sys::fsync;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-fsync-{}", std::process::id()));
/// let mut file = File::create(&path)?;
/// file.write_all(b"must survive a crash")?;
/// fsync!(&file)?; // Blocks the thread.
/// let cid = upshift::get_cid().expect("in a coroutine");
/// fsync!(&file, cid).await?; // Blocks the coroutine only.
/// assert_eq!(file.metadata()?.len(), 20);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[async_fn(AsyncCall<op::Fsync, io::Result<()>> = without_buffer(|| Ok(op::Fsync::new(duplicate(fd)?))))]
pub fn fsync_blocking(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: `fsync` takes no pointer.
    retry(|| unsafe { libc::fsync(fd) as isize }).map(drop)
}

/// Opens a file (`openat(2)`), by a path that is relative to a directory or, with `None`, to the
/// working directory. The descriptor of the file is close-on-exec.
///
/// `flags` are constants of `libc` such as `libc::O_RDONLY`; `mode` applies to a file that the call
/// creates.
///
/// # Errors
/// Errors of `openat(2)`; `InvalidInput` for a path with a NUL byte.
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
    // SAFETY: `path` is a `CString`, so its pointer is valid up to the final NUL.
    let opened = retry(|| unsafe { libc::openat(directory, path.as_ptr(), flags, mode) as isize });
    // SAFETY: the kernel has just created this descriptor; nothing else owns it.
    opened.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

/// Converts the result of a system call, which is negative if `errno` has an error.
fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Retries a system call while it fails with EINTR.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = check(call());
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            return result;
        }
    }
}

/// Makes a call that writes to `buffer`. `call` gets a pointer to the first byte and the capacity,
/// and returns the number of bytes written.
fn fill<B: IoBufMut>(
    mut buffer: B,
    call: impl Fn(*mut c_void, usize) -> isize,
) -> (io::Result<usize>, B) {
    let result = retry(|| call(buffer.io_mut_ptr().cast(), buffer.io_capacity()));
    if let Ok(count) = result {
        // SAFETY: the kernel has initialized the first `count` bytes.
        unsafe { buffer.set_filled(count) };
    }
    (result, buffer)
}

/// Makes a call that reads from `buffer`. `call` gets a pointer to the first byte and the length,
/// and returns the number of bytes read.
fn drain<B: IoBuf>(
    buffer: B,
    call: impl Fn(*const c_void, usize) -> isize,
) -> (io::Result<usize>, B) {
    let result = retry(|| call(buffer.io_ptr().cast(), buffer.io_len()));
    (result, buffer)
}

/// Blocks the thread until the descriptor is readable.
fn wait_readable(fd: c_int) -> io::Result<()> {
    let mut pollfd = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `pollfd` is a local, valid as an array of one entry.
    retry(|| unsafe { libc::poll(&raw mut pollfd, 1, -1) as isize }).map(drop)
}

/// The caller's runtime and an operation ready to start, or the output of a call that failed before
/// its start.
type Prepared<T> = Result<(Handle, T), <T as Operation>::Output>;

/// Returns the runtime whose vCPU the calling thread serves. A thread that belongs to a runtime
/// without serving a vCPU gets an error, because it has no ring.
fn runtime() -> io::Result<Handle> {
    let shared = context::try_with(|worker| worker.shared().clone())?;
    Ok(Handle { shared })
}

fn duplicate(fd: impl AsFd) -> io::Result<Fd> {
    fd.as_fd().try_clone_to_owned().map(Fd::new)
}

/// Prepares an operation on a duplicate of a descriptor. An error returns the buffer.
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
/// The name comes from the paper. The end of the call wakes the coroutine whose id was passed and,
/// if another coroutine awaits the future, that coroutine too. Dropping the future cancels the
/// call; the buffer is freed when the kernel no longer uses it.
#[must_use = "dropping the call cancels it"]
pub struct AsyncCall<T, O> {
    // There is no bound on `T`, as in `Submission`, because with a bound the compiler refuses a
    // coroutine that holds a call with a `&'static` buffer as not `Send`.
    call: Call<T, O>,
    notify: Option<Arc<Notify>>,
}

enum Call<T, O> {
    InFlight(Submission<T>),
    /// The operation completed when it was started, or could not be started.
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
            awaiter: Lock::new(None),
        });
        // The call is polled once here, so that the completion wakes `cid` even if nothing awaits
        // the call.
        let waker = Waker::from(notify.clone());
        let call = match Pin::new(&mut submission).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Call::InFlight(submission),
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
            Call::InFlight(submission) => {
                let Some(notify) = &this.notify else {
                    return Pin::new(submission).poll(cx);
                };
                if host::current_id() != Some(notify.cid) {
                    // If another coroutine awaits the call, the completion wakes both.
                    let mut awaiter = LockSafeWaker::new(cx.waker());
                    let old_waker = register(&mut notify.awaiter.lock(), &mut awaiter);
                    // Dropping a waker may run user code, so the lock is not held here.
                    drop(old_waker);
                }
                let waker = Waker::from(notify.clone());
                Pin::new(submission).poll(&mut Context::from_waker(&waker))
            }
        }
    }
}

/// Wakes the coroutine `cid` and, if another coroutine awaits the call, that coroutine too.
struct Notify {
    handle: Handle,
    cid: CoroutineId,
    awaiter: Lock<Option<Waker>>,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        // An error means that the coroutine has exited, so there is nothing to wake.
        let _ = self.handle.wake(self.cid);
        let awaiter = self.awaiter.lock().take();
        if let Some(awaiter) = awaiter {
            wake(awaiter);
        }
    }
}
