//! The papers' system calls in two forms: `read!(fd, buffer)` and
//! `read!(fd, buffer, cid)`.
//!
//! SharedScheduler (section on asynchronous system calls) gives a call one name
//! and two forms. Without a coroutine id it is synchronous: it blocks the thread,
//! like `read(2)`. With one it is asynchronous: the operation is started at once
//! on the vCPU's ring, at the caller's priority, and when it completes the
//! coroutine `cid` is woken. It is also a future of the same result, for a caller that
//! awaits it. Both take a buffer and give it back: `(io::Result<usize>, B)`.
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

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use upshift_core::CoroutineId;
use upshift_ring::{Fd, IoBuf, IoBufMut, Operation, Submission, op};

use crate::context;
use crate::host;
use crate::runtime::handle::Handle;
use crate::sync::{Lock, Spare, register, wake};

/// `read(2)` at the file's own position, in two forms; see the [module](self).
#[doc(inline)]
pub use crate::__read as read;
/// `write(2)` at the file's own position, in two forms; see the [module](self).
#[doc(inline)]
pub use crate::__write as write;

/// Has the allocator give back to the kernel what is free in its heaps, if it is glibc's, which keeps
/// what lies between blocks in use. Takes some 0.1 ms for each MiB that goes back, while other threads
/// that allocate may have to wait: for the moment after much has been freed, in
/// [`spawn_blocking`](crate::spawn_blocking).
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __read {
    ($fd:expr, $buffer:expr $(,)?) => {
        $crate::sys::read_blocking($fd, $buffer)
    };
    ($fd:expr, $buffer:expr, $cid:expr $(,)?) => {
        $crate::sys::read_async($fd, $buffer, $cid)
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __write {
    ($fd:expr, $buffer:expr $(,)?) => {
        $crate::sys::write_blocking($fd, $buffer)
    };
    ($fd:expr, $buffer:expr, $cid:expr $(,)?) => {
        $crate::sys::write_async($fd, $buffer, $cid)
    };
}

fn outcome(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The synchronous form of [`read!`](read): blocks the thread.
pub fn read_blocking<B: IoBufMut>(fd: impl AsFd, mut buffer: B) -> (io::Result<usize>, B) {
    let result = loop {
        // SAFETY: the buffer is valid for its capacity.
        let result = outcome(unsafe {
            libc::read(
                fd.as_fd().as_raw_fd(),
                buffer.io_mut_ptr().cast(),
                buffer.io_capacity(),
            )
        });
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            break result;
        }
    };
    if let Ok(count) = result {
        // SAFETY: the kernel has written so many bytes from the first one on.
        unsafe { buffer.set_filled(count) };
    }
    (result, buffer)
}

/// The synchronous form of [`write!`](write): blocks the thread.
pub fn write_blocking<B: IoBuf>(fd: impl AsFd, buffer: B) -> (io::Result<usize>, B) {
    let result = loop {
        // SAFETY: the buffer is valid for its length.
        let result = outcome(unsafe {
            libc::write(
                fd.as_fd().as_raw_fd(),
                buffer.io_ptr().cast(),
                buffer.io_len(),
            )
        });
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            break result;
        }
    };
    (result, buffer)
}

/// The position of the file itself.
const OWN_POSITION: u64 = u64::MAX;

/// The asynchronous form of [`read!`](read): starts at once, wakes `cid` when it is
/// done, and is a future of the result. `cid` may be any coroutine; one that is
/// dead is not woken.
pub fn read_async<B: IoBufMut + Unpin>(
    fd: impl AsFd,
    buffer: B,
    cid: CoroutineId,
) -> AsyncCall<op::ReadAt<B>, B> {
    AsyncCall::start(fd, buffer, cid, |fd, buffer| {
        op::ReadAt::new(fd, buffer, OWN_POSITION)
    })
}

/// The asynchronous form of [`write!`](write); see [`read_async`].
pub fn write_async<B: IoBuf + Unpin>(
    fd: impl AsFd,
    buffer: B,
    cid: CoroutineId,
) -> AsyncCall<op::WriteAt<B>, B> {
    AsyncCall::start(fd, buffer, cid, |fd, buffer| {
        op::WriteAt::new(fd, buffer, OWN_POSITION)
    })
}

/// An asynchronous system call under way. Dropping it cancels the call; the
/// buffer is freed when the kernel is done with it.
#[must_use = "dropping the call cancels it"]
pub struct AsyncCall<T: Operation<Output = (io::Result<usize>, B)>, B> {
    call: Call<T, B>,
    notify: Option<Arc<Notify>>,
}

enum Call<T: Operation<Output = (io::Result<usize>, B)>, B> {
    UnderWay(Submission<T>),
    /// Done before it was asked for, or never started.
    Done(Option<(io::Result<usize>, B)>),
}

impl<T, B> AsyncCall<T, B>
where
    T: Operation<Output = (io::Result<usize>, B)>,
    B: Unpin,
{
    fn start(
        fd: impl AsFd,
        buffer: B,
        cid: CoroutineId,
        operation: impl FnOnce(Fd, B) -> T,
    ) -> AsyncCall<T, B> {
        let done = |result, buffer| AsyncCall {
            call: Call::Done(Some((Err(result), buffer))),
            notify: None,
        };
        // Not of a runtime that the thread belongs to otherwise: there it has no ring.
        let shared = match context::try_with(|worker| worker.shared().clone()) {
            Ok(shared) => shared,
            Err(error) => return done(error, buffer),
        };
        let handle = Handle { shared };
        let fd = match fd.as_fd().try_clone_to_owned() {
            Ok(fd) => Fd::new(fd),
            Err(error) => return done(error, buffer),
        };
        let started = context::with(|worker| worker.start(operation(fd, buffer)));
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

impl<T, B> Future for AsyncCall<T, B>
where
    T: Operation<Output = (io::Result<usize>, B)>,
    B: Unpin,
{
    type Output = (io::Result<usize>, B);

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
                    let mut other = Spare::of(cx.waker());
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
